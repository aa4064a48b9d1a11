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
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.messages import bar
from abag.embed.sequences.chains import RESIDUES
from abag.embed.sequences.domains import number_domain
from abag.head.prediction.applicability import FAR_QUANTILE
from abag.head.prediction.combinations import (
    CHAINS,
    GAP,
    PER_CHAIN,
    REGIONS,
    UNKNOWN,
    ChainName,
    Combinations,
    measure_combinations,
    position_number,
    region_of,
)

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains

COLUMNS = ("new_positions", "new_residues", "changes", "new_combination")
UNCOUNTED = -1
"""All counts of an antibody without a chain that can be numbered."""
CACHED_CHAINS = 1 << 16
"""Chains whose counts are remembered: 20 MB. A chain occurs in many rows of a table."""
MOST_POSITIONS = 999
"""IMGT has 128 and insertions."""
_POSITION = re.compile("[1-9][0-9]{0,2}[A-Z]{0,2}")
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
        self._span = {name: _span(seen[name]) for name in CHAINS}
        self._count_cached = lru_cache(CACHED_CHAINS)(self._count_chain)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the cache, so that predictors can be sent to other processes."""
        return Novelty, (self.seen, self.most_positions, self.most_residues, self.combinations)

    def count(self, antibodies: Sequence[Chains]) -> NDArray[np.int16]:
        """Count what is new in N antibodies.

        Returns
        -------
        NDArray, shape=(N, 4), dtype=int16
            New positions: all training antibodies have the same residue there, this one another.
            New residues: no training antibody has this residue there; new positions included.
            Changes from the consensus of the training antibodies. New combination: 1 if there are
            more changes, or in other regions, than in almost all training antibodies, else 0.
            The last two only with `combinations`, so that the shape is (N, 2) without.
            `UNCOUNTED` in all if no chain can be numbered.
        """
        counts_NC = np.zeros((len(antibodies), 2 + REGIONS), np.int16)
        counted_N = np.zeros(len(antibodies), np.bool_)
        for n, chains in enumerate(antibodies):
            for at, (name, chain) in enumerate(zip(CHAINS, chains, strict=True)):
                if counts := self._count_cached(name, chain):
                    counted_N[n] = True
                    counts_NC[n, :2] += counts[:2]
                    counts_NC[n, 2 + at * PER_CHAIN : 2 + (at + 1) * PER_CHAIN] = counts[2:]
        found, changes_NR = [*counts_NC[:, :2].T], counts_NC[:, 2:]
        if self.combinations is not None:
            found += [changes_NR.sum(axis=1), self.combinations.is_new(changes_NR)]
        new_NC = np.stack(found, axis=1).astype(np.int16)
        new_NC[~counted_N] = UNCOUNTED
        return new_NC

    def is_far(self, new_NC: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Return whether any limit is exceeded, shape (N,), from what `count` returns."""
        return self.has_new_residues(new_NC) | self.has_new_combination(new_NC)

    def has_new_residues(self, new_NC: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Return whether there are more new positions or residues than the limits, (N,)."""
        positions, residues = new_NC[:, 0], new_NC[:, 1]
        far: NDArray[np.bool_] = (positions > self.most_positions) | (residues > self.most_residues)
        return far

    def has_new_combination(self, new_NC: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Return whether the combination of changes is new, (N,)."""
        return np.asarray((new_NC[:, 3:] > 0).any(axis=1))

    def _count_chain(self, name: ChainName, chain: str) -> tuple[int, ...] | None:
        """Count new positions, new residues and the changes by region; None if not numbered."""
        numbered = number_domain(chain, name) if chain else {}
        if not numbered:
            return None
        seen = self.seen[name]
        consensus = {} if self.combinations is None else self.combinations.consensus[name]
        spans = self._span[name], _span(numbered)
        inside = range(max(first for first, _ in spans), min(last for _, last in spans) + 1)
        positions = residues = 0
        changes = [0] * PER_CHAIN
        for position in numbered.keys() | seen.keys():
            residue, known = numbered.get(position, GAP), seen.get(position, GAP)
            if (
                residue == UNKNOWN
                or residue == known
                or (number := position_number(position)) not in inside
            ):
                continue
            if residue not in known:
                residues += 1
                positions += len(known) == 1
            if residue != consensus.get(position, GAP):
                changes[region_of(number)] += 1
        return positions, residues, *changes

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
        columns[new] = pd.arrays.BooleanArray(new_NC[:, -1] > 0, missing_N)
    return columns


def measure_novelty(antibodies: Sequence[Chains]) -> Novelty:
    """Collect the residues of N distinct training antibodies by position.

    The limits are the 99 % quantiles of what would be new in a training antibody if all others, but
    not this one, had been in training.
    """
    seen: dict[ChainName, dict[str, str]] = {}
    alone_N2 = np.zeros((len(antibodies), 2), np.int64)
    aligned = [_aligned([c[at] for c in antibodies], name) for at, name in enumerate(CHAINS)]
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


def _aligned(chains: Sequence[str], name: ChainName) -> tuple[list[str], NDArray[np.uint8]]:
    """Number N chains.

    Returns
    -------
    list of P str
        All positions that occur.
    NDArray, shape=(N, P), dtype=uint8
        Residues as ASCII codes, with gaps; 0 beyond the ends of a chain.
    """
    distinct = {chain: row for row, chain in enumerate(dict.fromkeys(chains))}
    columns: dict[str, int] = {}
    places, codes = [], []
    for chain in bar(iterable=distinct, desc=f"numbering {name} chains", unit=" chains", delay=1):
        numbered = number_domain(chain, name) if chain else {}
        places.append(np.array([columns.setdefault(p, len(columns)) for p in numbered], np.int16))
        codes.append(np.frombuffer("".join(numbered.values()).encode(), np.uint8))
    x_NP = np.zeros((len(distinct), len(columns)), np.uint8)
    number_P = np.array([position_number(position) for position in columns], np.int16)
    for row, (place, code) in enumerate(zip(places, codes, strict=True)):
        if len(place):
            first, last = number_P[place[[0, -1]]]
            x_NP[row, (number_P >= first) & (number_P <= last)] = ord(GAP)
            x_NP[row, place] = code
    return list(columns), x_NP[[distinct[chain] for chain in chains]]


def _checked(positions: Any, name: str) -> dict[str, str]:  # noqa: ANN401  # from a file
    """Return residues by position, or raise ValueError."""
    if isinstance(positions, dict) and len(positions) <= MOST_POSITIONS:
        valid = (
            _POSITION.fullmatch(position) and isinstance(seen, str) and _RESIDUES.fullmatch(seen)
            for position, seen in positions.items()
        )
        if all(valid):
            return positions
    msg = f"the residues by position of the {name} chain are not valid"
    raise ValueError(msg)


def _span(positions: Collection[str]) -> tuple[int, int]:
    """Return the first and last number; where there are no positions, all count."""
    numbers = [position_number(position) for position in positions]
    return min(numbers, default=0), max(numbers, default=MOST_POSITIONS)
