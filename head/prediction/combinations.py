"""Where variants of one antibody differ from it: more changes, or in other regions, than training.

A model that has seen changes in CDR H3 only together with changes in the framework cannot tell
which of them weaken binding. A variant with changes in CDR H3 alone has no new residue, and its
vector may be close to the training vectors, but its combination of changes is new. Therefore a
predictor keeps the consensus of the training antibodies, which regions of it were changed
together, and how many changes there were in each. Sigma is larger for a set of regions that few
training antibodies change.

Unrelated antibodies have no meaningful consensus. They are recognized by their identity to it, and
nothing is kept of them, nor of antibodies that are too few to tell what is rare.

N antibodies, P positions, R regions of both chains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.embed.sequences.domains import IMGT_REGIONS, position_number
from abag.embed.sequences.numbering import CHAINS, ChainName
from abag.head.prediction.applicability import FAR_QUANTILE

Aligned: TypeAlias = tuple[Sequence[str], NDArray[np.uint8]]
"""P positions, and N chains as ASCII codes, (N, P); 0 beyond the ends of a chain."""
GAP, UNKNOWN = "-", "X"
PER_CHAIN = len(IMGT_REGIONS)
REGIONS = len(CHAINS) * PER_CHAIN
LEAST_IDENTITY = 0.8
"""Median identity of training antibodies to their consensus, below which they are unrelated."""
LEAST_ANTIBODIES = 200
"""Of 100 drawn from a library, up to 10 % of the others would be new; of 200, 1.6 % on average."""
SHARE_UNIT = 1e-4
"""Unit of the shares of training antibodies in 16-bit counts."""
COMMON_SHARE, MOST_WIDENING, WIDENING_POWER = 0.1, 2.0, 0.2
"""Sigma grows with this power of `COMMON_SHARE` relative to the share of the training antibodies
that change the same regions, up to a factor. Found on variants of trastuzumab, of which a library
was left out with or without some of its rows; see docs/decisions.md."""
_REGION_OF: list[int] = np.searchsorted([n for _, n in IMGT_REGIONS[:-1]], np.arange(1000)).tolist()
"""Index of the region by position number; `POSITION` allows 999."""


@dataclass(frozen=True, slots=True)
class Combinations:
    """The combinations of changes in training antibodies, which are variants of their consensus."""

    consensus: Mapping[ChainName, Mapping[str, str]]
    """Chain to IMGT position to the most frequent residue; a gap at any other position."""
    most_changes: tuple[int, ...]
    """Changes in each region, (R,), and in all, up to which a combination is not new."""
    known: frozenset[int]
    """Sets of regions, bit r for region r, that are not new. If empty, no set is new."""
    shares: Mapping[int, int]
    """Sets of regions to the share of the training antibodies with it, in `SHARE_UNIT`."""

    def share(self, changes_NR: NDArray[np.int16]) -> NDArray[np.int16]:
        """Return the share of the training antibodies that change the same regions, (N,).

        In `SHARE_UNIT`. An antibody without changes has the largest.
        """
        shares = {**self.shares, 0: round(1 / SHARE_UNIT)}
        sets, index = np.unique(_changed_sets(changes_NR), return_inverse=True)
        return np.array([shares.get(one, 0) for one in sets.tolist()], np.int16)[index]

    def is_new(self, changes_NR: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Return which antibodies, given their changes by region, are new combinations, (N,)."""
        new = np.asarray((_with_total(changes_NR) > self.most_changes).any(axis=1))
        if self.known:
            new |= ~np.isin(_changed_sets(changes_NR), [0, *self.known])
        return new

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        consensus = {name: dict(self.consensus[name]) for name in CHAINS}
        return {
            "consensus": consensus,
            "most_changes": list(self.most_changes),
            "known": sorted(self.known),
            "shares": [list(item) for item in sorted(self.shares.items())],
        }

    @classmethod
    def from_json(
        cls,
        record: Any,  # noqa: ANN401  # from a file
        seen: Mapping[ChainName, Mapping[str, str]],
    ) -> Combinations:
        """Check and convert JSON; `seen` has the residues that the consensus can have.

        Raises
        ------
        ValueError
            If it is not what `to_json` returns.
        """
        names = ("consensus", "most_changes", "known", "shares")
        is_record = isinstance(record, dict) and record.keys() == set(names)
        found: list[Any] = [record[name] for name in names] if is_record else [None] * 4
        consensus, most, known, shares = found
        valid = (
            isinstance(consensus, dict)
            and consensus.keys() == set(CHAINS)
            and all(_is_consensus(consensus[name], seen[name]) for name in CHAINS)
            and _are_numbers(most, 1000)
            and len(most) == REGIONS + 1
            and _are_numbers(known, 1 << REGIONS)
            and isinstance(shares, list)
            and all(_are_numbers(item, 1 << REGIONS) and len(item) == 2 for item in shares)
            and all(share <= 1 / SHARE_UNIT for _, share in shares)
        )
        if not valid:
            msg = "the combinations of changes are not valid"
            raise ValueError(msg)
        return cls(consensus, tuple(most), frozenset(known), dict(shares))


def widening(share_N: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return the factors of sigma, (N,), for shares of training antibodies in `SHARE_UNIT`."""
    rarity_N = COMMON_SHARE / SHARE_UNIT / np.maximum(share_N, 1)
    factor_N = np.maximum(rarity_N, 1.0) ** WIDENING_POWER
    return np.asarray(np.minimum(factor_N, MOST_WIDENING))


def region_of(number: int) -> int:
    """Return the index of the region of an IMGT position, from 0 for framework 1."""
    return _REGION_OF[number]


def measure_combinations(aligned: Sequence[Aligned]) -> Combinations | None:
    """Collect the combinations of changes of N distinct training antibodies.

    Of the training antibodies, at most 1 % have more changes, in any region or in all, than the
    limits, and at most 1 % have a set of regions that would not be known without them.

    Parameters
    ----------
    aligned : sequence
        Heavy and light chains.

    Returns
    -------
    Combinations or None
        None for unrelated or few antibodies.
    """
    consensus: dict[ChainName, dict[str, str]] = {}
    changes, compared_N = [], np.zeros(len(aligned[0][1]), np.int64)
    for name, (positions, x_NP) in zip(CHAINS, aligned, strict=True):
        known_NP = (x_NP != 0) & (x_NP != ord(UNKNOWN))
        common_P = _most_frequent(x_NP, known_NP)
        changed_NP = known_NP & (x_NP != common_P)
        region_P = np.array([region_of(position_number(p)) for p in positions], np.int64)
        changes += [changed_NP[:, region_P == r].sum(axis=1) for r in range(PER_CHAIN)]
        compared_N += (known_NP & ((x_NP != ord(GAP)) | (common_P != ord(GAP)))).sum(axis=1)
        consensus[name] = dict(zip(positions, bytes(common_P).decode(), strict=True))
    counted_N = compared_N > 0
    changes_NR = np.stack(changes, axis=1)[counted_N]
    identity_N = 1 - changes_NR.sum(axis=1) / compared_N[counted_N]
    if len(identity_N) < LEAST_ANTIBODIES or np.median(identity_N) < LEAST_IDENTITY:
        return None
    limits = _limits(_with_total(changes_NR))
    return Combinations(consensus, limits, _known_sets(changes_NR), _shares(changes_NR))


def _most_frequent(x_NP: NDArray[np.uint8], known_NP: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the most frequent residue of each position, (P,)."""
    columns = zip(x_NP.T, known_NP.T, strict=True)
    counts = [np.bincount(x_N[known_N], minlength=ord(GAP) + 1) for x_N, known_N in columns]
    return np.array([c.argmax() if c.any() else ord(GAP) for c in counts], np.uint8)


def _limits(changes_NR: NDArray[np.integer]) -> tuple[int, ...]:
    """Return one limit per column, such that at most 1 % of the rows exceed any of them."""
    ascending = np.sort(changes_NR, axis=0)
    columns = zip(ascending.T, changes_NR.T, strict=True)
    # Share of antibodies with at least as many changes: the smaller, the more unusual.
    tail_RN = [1 - np.searchsorted(all_N, x_N) / len(x_N) for all_N, x_N in columns]
    least = np.quantile(np.min(tail_RN, axis=0), 1 - FAR_QUANTILE, method="lower")
    columns = zip(changes_NR.T, tail_RN, strict=True)
    return tuple(int(x_N[tail_N >= least].max()) for x_N, tail_N in columns)


def _known_sets(changes_NR: NDArray[np.integer]) -> frozenset[int]:
    """Return the sets that enough antibodies have; nothing if more than 1 % have one alone."""
    sets, index, copies = np.unique(
        _changed_sets(changes_NR), return_inverse=True, return_counts=True
    )
    others_N = copies[index] - 1
    least = np.quantile(others_N, 1 - FAR_QUANTILE, method="lower")
    return frozenset(sets[copies >= least].tolist()) if least else frozenset()


def _shares(changes_NR: NDArray[np.integer]) -> dict[int, int]:
    """Return the share of the antibodies that have each set, in `SHARE_UNIT`."""
    sets, copies = np.unique(_changed_sets(changes_NR), return_counts=True)
    shares = np.rint(copies / copies.sum() / SHARE_UNIT).astype(int)
    return dict(zip(sets.tolist(), shares.tolist(), strict=True))


def _changed_sets(changes_NR: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the set of regions that each antibody changes, (N,), bit r for region r."""
    return np.asarray((changes_NR > 0) @ (1 << np.arange(changes_NR.shape[1])))


def _with_total(changes_NR: NDArray[np.integer]) -> NDArray[np.integer]:
    """Append the sum as a column."""
    return np.column_stack([changes_NR, changes_NR.sum(axis=1)])


def _is_consensus(found: Any, seen: Mapping[str, str]) -> bool:  # noqa: ANN401  # from a file
    """Tell whether this has one residue for each position, which the training antibodies had."""
    return (
        isinstance(found, dict)
        and found.keys() == seen.keys()
        and all(isinstance(r, str) and len(r) == 1 and r in seen[p] + GAP for p, r in found.items())
    )


def _are_numbers(found: Any, end: int) -> bool:  # noqa: ANN401  # from a file
    """Tell whether this is a list of integers from 0, below an end."""
    return isinstance(found, list) and all(type(n) is int and 0 <= n < end for n in found)
