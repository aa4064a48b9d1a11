"""Positions, residues and combinations of changes of antibodies that no training antibody had.

The framework dominates the vectors of antibodies, so a variant that differs where training never
varied can be close to the training vectors. Therefore a predictor keeps the residues of
the training antibodies by IMGT position, where a gap within a chain counts as the residue ``-``.
The ends of chains are often trimmed, so nothing is counted beyond the first and last residue of a
chain or of the training chains. X never counts. If the training antibodies are variants of one,
their combinations of changes are kept too (`abag.head.prediction.combinations`). Antigens have no
common numbering and are not counted; their vectors are compared
(`abag.head.prediction.applicability`).

N antibodies or distinct chains, P positions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import distinct
from abag.embed.sequences.chains import RESIDUES
from abag.embed.sequences.domains import POSITION, position_number
from abag.embed.sequences.numbering import (
    CHAINS,
    ChainName,
    Layout,
    Numbered,
    number_antibodies,
    number_chains,
)
from abag.head.prediction.applicability import FAR_QUANTILE
from abag.head.prediction.combinations import (
    GAP,
    PER_CHAIN,
    REGIONS,
    UNKNOWN,
    Combinations,
    measure_combinations,
    region_of,
    widening,
)
from abag.head.splits.splits import TRAIN

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains
    from abag.head.data.labels import LabelledPairs
    from abag.head.splits.splits import Split

COLUMNS = ("new_positions", "new_residues", "changes", "new_combination")
UNCOUNTED = -1
"""All counts of an antibody without a chain that can be numbered."""
ASCII = 128
MOST_POSITIONS = 999
"""IMGT has 128 and insertions."""
_RESIDUES = re.compile(f"[{GAP}{RESIDUES}]+")


class Novelty:
    """The residues of the training antibodies at each IMGT position.

    Parameters
    ----------
    seen : mapping
        Chain, heavy or light, to IMGT position to the residues seen there, in alphabetical order.
        At any other position all training chains had a gap.
    most_positions, most_residues : int
        Counts up to which an antibody is not far.
    combinations : Combinations or None
        Combinations of changes, if the training antibodies are variants of one.
    """

    def __init__(
        self,
        seen: Mapping[ChainName, Mapping[str, str]],
        most_positions: int,
        most_residues: int,
        combinations: Combinations | None = None,
    ) -> None:
        self.seen, self.most_positions, self.most_residues = seen, most_positions, most_residues
        self.combinations = combinations
        self._span = {name: position_span(seen[name]) for name in CHAINS}

    def count(
        self,
        antibodies: Sequence[Chains],
        numbered: Mapping[ChainName, Numbered] | None = None,
    ) -> NDArray[np.int16]:
        """Count what is new in N antibodies.

        Parameters
        ----------
        antibodies : sequence of (str, str)
        numbered : mapping, optional
            Of these antibodies and any others; by default they are numbered here.

        Returns
        -------
        NDArray, shape=(N, 5), dtype=int16
            New positions: all training antibodies have the same residue there, this one another.
            New residues: no training antibody has this residue there; new positions included.
            Changes from the consensus of the training antibodies. New combination: 1 if there are
            more changes, or in other regions, than in almost all training antibodies, else 0.
            Share of the training antibodies that change the same regions; see
            `Combinations.share`. The last three only with `combinations`, so that the shape is
            (N, 2) without.
            `UNCOUNTED` in all if no chain can be numbered.
        """
        counts_NC = np.zeros((len(antibodies), 2 + REGIONS), np.int16)
        counted_N = np.zeros(len(antibodies), np.bool_)
        for at, name in enumerate(CHAINS):
            distinct = dict.fromkeys(chains[at] for chains in antibodies)
            counts = self._count_chains(
                name, distinct, None if numbered is None else numbered[name]
            )
            rows = [n for n, chains in enumerate(antibodies) if counts.get(chains[at])]
            if not rows:
                continue
            counted_N[rows] = True
            of_chain = np.array([counts[antibodies[n][at]] for n in rows])
            counts_NC[rows, :2] += of_chain[:, :2].astype(np.int16)
            counts_NC[rows, 2 + at * PER_CHAIN : 2 + (at + 1) * PER_CHAIN] = of_chain[:, 2:]
        found, changes_NR = [*counts_NC[:, :2].T], counts_NC[:, 2:]
        if self.combinations is not None:
            found += [changes_NR.sum(axis=1), self.combinations.is_new(changes_NR)]
            found.append(self.combinations.share(changes_NR))
        new_NC = np.stack(found, axis=1).astype(np.int16)
        new_NC[~counted_N] = UNCOUNTED
        return new_NC

    def is_far(self, new_NC: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Return whether any limit is exceeded, shape (N,), from what `count` returns."""
        return np.asarray(np.any([*self.reasons(new_NC).values()], axis=0))

    def reasons(self, new_NC: NDArray[np.int16]) -> dict[str, NDArray[np.bool_]]:
        """Return which limits are exceeded, (N,) each.

        New residues: more new positions or residues than the limits. New combination: as counted.
        """
        positions, residues = new_NC[:, 0], new_NC[:, 1]
        far_N = (positions > self.most_positions) | (residues > self.most_residues)
        if self.combinations is None:
            return {"new_residues": far_N}
        return {"new_residues": far_N, "new_combination": new_NC[:, 3] > 0}

    def widening(self, new_NC: NDArray[np.int16]) -> NDArray[np.float64]:
        """Return by what factor sigma grows, (N,), from what `count` returns.

        It is 1 without `combinations` and for what cannot be counted.
        """
        if self.combinations is None:
            return np.ones(len(new_NC))
        share_N = new_NC[:, 4]
        return np.where(share_N == UNCOUNTED, 1.0, widening(share_N))

    def columns(self, new_NC: NDArray[np.int16]) -> dict[str, Any]:
        """Return the columns of what `count` returns, (N,) each, missing where `UNCOUNTED`."""
        return as_columns(new_NC)

    def _count_chains(
        self, name: ChainName, chains: Collection[str], numbered: Numbered | None
    ) -> dict[str, list[int]]:
        """Count in distinct chains as `_count_residues`; nothing in one without numbering."""
        if numbered is None:
            numbered = number_chains(chains, name)
        found: dict[str, list[int]] = {}
        for layout, rows, codes_RL in numbered.by_layout():
            missing = sorted(self.seen[name].keys() - set(layout))
            gaps_1L = np.full((1, len(missing)), ord(GAP), np.uint8)
            counts_RC = self._count_residues(name, layout, layout, codes_RL)
            counts_RC += self._count_residues(name, layout, missing, gaps_1L)
            of_row = (numbered.chains[row] for row in rows.tolist())
            found |= zip(of_row, counts_RC.tolist(), strict=True)
        return found

    def _count_residues(
        self,
        name: ChainName,
        layout: Layout,
        positions: Sequence[str],
        codes_RL: NDArray[np.uint8],
    ) -> NDArray[np.int64]:
        """Count new positions, new residues and the changes by region at L positions, (R, C).

        The R chains have residues at the positions of the layout, and `codes_RL` at these.
        """
        consensus = {} if self.combinations is None else self.combinations.consensus[name]
        spans = self._span[name], position_span(layout)
        inside = range(max(first for first, _ in spans), min(last for _, last in spans) + 1)
        known_L = [self.seen[name].get(position, GAP) for position in positions]
        number_L = [position_number(position) for position in positions]
        is_new_LA = np.zeros((len(positions), ASCII), np.bool_)
        is_changed_LA = np.zeros((len(positions), ASCII), np.bool_)
        for at, (position, known) in enumerate(zip(positions, known_L, strict=True)):
            if number_L[at] in inside:
                is_new_LA[at] = is_changed_LA[at] = True
                is_new_LA[at, list((known + UNKNOWN).encode())] = False
                same = consensus.get(position, GAP) + UNKNOWN + (known if len(known) == 1 else "")
                is_changed_LA[at, list(same.encode())] = False
        row_L = np.arange(len(positions))
        new_RL, changed_RL = is_new_LA[row_L, codes_RL], is_changed_LA[row_L, codes_RL]
        never_varied_L = np.array([len(known) == 1 for known in known_L], np.bool_)
        region_L = np.array([region_of(number) for number in number_L], np.int64)
        groups = [new_RL[:, never_varied_L], new_RL]
        groups += [changed_RL[:, region_L == region] for region in range(PER_CHAIN)]
        return np.stack([group.sum(axis=1) for group in groups], axis=1)

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        limits = {"most_positions": self.most_positions, "most_residues": self.most_residues}
        combinations = None if self.combinations is None else self.combinations.to_json()
        seen: dict[str, Any] = {name: dict(self.seen[name]) for name in CHAINS}
        return {**limits, "combinations": combinations, **seen}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Novelty:
        """Check and convert the JSON of a predictor.

        Raises
        ------
        ValueError
            If it is not what `to_json` returns.
        """
        limits: list[Any] = [record.get(name) for name in ("most_positions", "most_residues")]
        if len(record) != 5 or not all(type(n) is int and 0 <= n < 1000 for n in limits):
            msg = f"residues by position with limits {limits} and {', '.join(record)}"
            raise ValueError(msg)
        seen = {name: _checked(record.get(name), name) for name in CHAINS}
        combinations = record.get("combinations")
        known = None if combinations is None else Combinations.from_json(combinations, seen)
        return cls(seen, limits[0], limits[1], known)


def as_columns(new_NC: NDArray[np.int16]) -> dict[str, Any]:
    """Return the columns of counts from `Novelty.count`, (N,) each, missing where `UNCOUNTED`."""
    missing_N = new_NC[:, 0] == UNCOUNTED
    columns: dict[str, Any] = {
        name: pd.arrays.IntegerArray(new_N.copy(), missing_N.copy())
        for name, new_N in zip(COLUMNS, new_NC.T, strict=False)
    }
    if (new := COLUMNS[-1]) in columns:
        columns[new] = pd.arrays.BooleanArray(new_NC[:, 3] > 0, missing_N)
    return columns


def _checked(positions: Any, name: str) -> dict[str, str]:  # noqa: ANN401  # from a file
    """Return residues by position, or raise ValueError."""
    if isinstance(positions, dict) and len(positions) <= MOST_POSITIONS:
        valid = (
            POSITION.fullmatch(position) and isinstance(seen, str) and _RESIDUES.fullmatch(seen)
            for position, seen in positions.items()
        )
        if all(valid):
            return positions
    msg = f"the residues by position of the {name} chain are not valid"
    raise ValueError(msg)


def position_span(positions: Collection[str]) -> tuple[int, int]:
    """Return the first and last number; where there are no positions, all count."""
    numbers = [position_number(position) for position in positions]
    return min(numbers, default=0), max(numbers, default=MOST_POSITIONS)


def measure_novelty(
    antibodies: Sequence[Chains], numbered: Mapping[ChainName, Numbered] | None = None
) -> Novelty:
    """Collect the residues of N distinct training antibodies by position.

    The limits are the 99 % quantiles of what would be new in a training antibody if all others, but
    not this one, had been in training. `numbered` is of these antibodies and any others; by default
    they are numbered here.
    """
    numbered = numbered or number_antibodies(antibodies, None)
    seen: dict[ChainName, dict[str, str]] = {}
    alone_N2 = np.zeros((len(antibodies), 2), np.int64)
    aligned = [
        _aligned([chains[at] for chains in antibodies], numbered[name])
        for at, name in enumerate(CHAINS)
    ]
    for name, (positions, x_NP) in zip(CHAINS, aligned, strict=True):
        seen[name] = {}
        for position, x_N in zip(positions, x_NP.T, strict=True):
            rows = np.flatnonzero(x_N)
            codes, index, copies = np.unique(x_N[rows], return_inverse=True, return_counts=True)
            seen[name][position] = bytes(codes).decode()
            if len(codes) > 1:
                alone = rows[copies[index] == 1]
                alone_N2[alone] += (len(codes) == 2, 1)
    positions, residues = np.quantile(alone_N2, FAR_QUANTILE, axis=0).astype(int).tolist()
    return Novelty(seen, positions, residues, measure_combinations(aligned))


def training_novelty(
    pairs: LabelledPairs,
    splits: Sequence[Split],
    numbered: Mapping[ChainName, Numbered] | None = None,
) -> Novelty:
    """Measure the novelty of the antibodies that are in the training part of any of the splits."""
    in_training = np.any([split.part == TRAIN for split in splits], axis=0)
    trained = distinct(pairs.antibody[in_training]).tolist()
    chains = pairs.table.antibodies.chains
    return measure_novelty([chains[n] for n in trained], numbered)


def widening_of(
    antibodies: Sequence[Chains], novelty: Novelty, numbered: Mapping[ChainName, Numbered]
) -> NDArray[np.float64]:
    """Return by what factor sigma grows for N antibodies, (N,)."""
    if novelty.combinations is None:  # spares the counts
        return np.ones(len(antibodies))
    return novelty.widening(novelty.count(antibodies, numbered))


def _aligned(chains: Sequence[str], numbered: Numbered) -> tuple[list[str], NDArray[np.uint8]]:
    """Align N chains by their numbering.

    Returns
    -------
    list of P str
        All positions that occur in these chains.
    NDArray, shape=(N, P), dtype=uint8
        Residues as ASCII codes, with gaps; 0 beyond the ends of a chain.
    """
    columns = {
        p: at for at, p in enumerate(dict.fromkeys(p for one in numbered.layouts for p in one))
    }
    number_P = np.array([position_number(position) for position in columns], np.int16)
    x_MP = np.zeros((len(numbered.chains) + 1, len(columns)), np.uint8)  # the last has no domain
    for layout, rows, codes_RL in numbered.by_layout():
        first, last = position_span(layout)
        line_RP = np.tile(
            ((number_P >= first) & (number_P <= last)) * np.uint8(ord(GAP)), (len(rows), 1)
        )
        line_RP[:, [columns[position] for position in layout]] = codes_RL
        x_MP[rows] = line_RP
    row_of = {chain: row for row, chain in enumerate(numbered.chains)} | {"": len(numbered.chains)}
    x_NP = x_MP[[row_of[chain] for chain in chains]]
    # The others, which are numbered too, may have residues where these have gaps only.
    occurs_P = np.asarray((x_NP > ord(GAP)).any(axis=0))
    return [*compress(columns, occurs_P.tolist())], x_NP[:, occurs_P]
