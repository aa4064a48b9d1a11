"""How often two rows are predicted in their measured order.

Pairs of rows are counted without listing them, so that a million rows take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

CONFIDENT_PKD = 1.0
"""Labels at least this far apart are in a known order, whatever the error of the assay."""
ROUNDING = 1e-9
"""8.1 is at least 1 above 7.1 in floating point too."""


class ClusterPairs(NamedTuple):
    """Clusters of the sequences of N rows."""

    antibody: Ints
    """(N,)"""
    antigen: Ints
    """(N,)"""

    def of(self, rows: Bools | Ints) -> ClusterPairs:
        """Return the clusters of some rows."""
        return ClusterPairs(self.antibody[rows], self.antigen[rows])

    @property
    def both(self) -> Ints:
        """Number each combination of two clusters, (N,)."""
        return np.asarray(self.antibody * (self.antigen.max(initial=0) + 1) + self.antigen)


def concordance(
    pkd: Floats, predicted: Floats, censored: NDArray[np.int8]
) -> dict[str, float | int | None]:
    """Share of the pairs of rows with a known order that are predicted in that order.

    Predicted ties count half. The order of two exact rows is known if their labels differ. The
    order of a censored row and another row is known if the bound excludes the other's values.
    Without ``decidable_pairs``, the concordance is None.

    Parameters
    ----------
    pkd, predicted : NDArray, shape=(N,), dtype=float64
    censored : NDArray, shape=(N,), dtype=int8
    """
    _, rank = np.unique(pkd, return_inverse=True)
    # Row i is below row j if upper[i] < lower[j]; a bound lies just beside its label.
    upper = np.where(censored > 0, np.iinfo(np.int64).max, 3 * rank + np.where(censored < 0, 0, 1))
    lower = np.where(censored < 0, np.iinfo(np.int64).min, 3 * rank + np.where(censored > 0, 2, 1))
    keys = np.concatenate([lower, upper])
    is_upper = np.repeat([False, True], len(pkd))
    # Where both are equal, lower ends come first: "below" is strict.
    order = np.lexsort((is_upper, keys))
    below = is_upper[order]
    right, pairs = _count_in_order(below, order % len(pkd), predicted, np.zeros_like(rank))
    return {"concordance": right / pairs if pairs else None, "decidable_pairs": pairs}


def confident_pairs(
    pkd: Floats, predicted: Floats, antigen: Ints, clusters: ClusterPairs | None = None
) -> dict[str, float | int | None]:
    """Share of the pairs with labels at least `CONFIDENT_PKD` apart that are in the right order.

    Predicted ties count half. Pairs of one antigen are also scored separately and, if clusters are
    known, variants of one complex (antibodies of one cluster and antigens of one cluster) and
    unrelated complexes (neither).

    Parameters
    ----------
    pkd, predicted : NDArray, shape=(N,), dtype=float64
    antigen : NDArray, shape=(N,), dtype=int64

    References
    ----------
    AbRank, arXiv 2506.17857: affinities compared in pairs that differ by more than a margin.
    """

    def count(group: Ints) -> Floats:
        return np.array(_count_confident(pkd, predicted, np.unique(group, return_inverse=True)[1]))

    every = count(np.zeros_like(antigen))
    nothing = np.zeros(2)
    counts = {"": every, "_within_antigen": count(antigen)}
    counts |= {"_variants": nothing, "_unrelated": nothing}
    if clusters is not None:
        variants = counts["_variants"] = count(clusters.both)
        one_shared = count(clusters.antibody) + count(clusters.antigen) - variants
        counts["_unrelated"] = every - one_shared
    shares = {
        f"pair_accuracy{n}": float(right / k) if k else None for n, (right, k) in counts.items()
    }
    return shares | {"confident_pairs": int(every[1])}


def ordered_by_cluster(
    scope: str,
    pkd: Floats,
    predicted: Floats,
    antigen: Ints,
    clusters: ClusterPairs | None,
    drawn_with: Ints,
) -> tuple[Floats, Floats]:
    """Count the confident pairs in the right order, and all, by two clusters of N rows.

    Parameters
    ----------
    scope : str
        A key of `SCOPES`; the other arguments are as in `confident_pairs`.
    drawn_with : NDArray, shape=(N,), dtype=int64
        The clusters, numbered from 0 to K - 1; not those that define the scope.

    Returns
    -------
    tuple of NDArray, shape=(K, K), dtype=float64
    """
    size = int(drawn_with.max(initial=-1)) + 1
    high, low = np.nonzero(pkd[:, None] >= pkd + CONFIDENT_PKD - ROUNDING)
    kept = SCOPES[scope](antigen, clusters, high, low)
    high, low = high[kept], low[kept]
    cells = drawn_with[high] * size + drawn_with[low]
    difference = predicted[high] - predicted[low]
    in_order = (difference > 0) / 2 + (difference >= 0) / 2
    right, every = (np.bincount(cells, w, size**2).reshape(size, size) for w in (in_order, None))
    return right.astype(np.float64), every.astype(np.float64)


def _of_variants(antigen: Ints, clusters: ClusterPairs | None, i: Ints, j: Ints) -> Bools:
    if clusters is None:
        return np.zeros(len(i), np.bool_)
    return np.asarray(clusters.both[i] == clusters.both[j])


def _unrelated(antigen: Ints, clusters: ClusterPairs | None, i: Ints, j: Ints) -> Bools:
    if clusters is None:
        return np.zeros(len(i), np.bool_)
    return np.asarray(np.all([of_kind[i] != of_kind[j] for of_kind in clusters], axis=0))


SCOPES: Mapping[str, Callable[[Ints, ClusterPairs | None, Ints, Ints], Bools]] = {
    "pair_accuracy": lambda _antigen, _clusters, i, _j: np.ones(len(i), np.bool_),
    "pair_accuracy_within_antigen": lambda antigen, _clusters, i, j: antigen[i] == antigen[j],
    "pair_accuracy_variants": _of_variants,
    "pair_accuracy_unrelated": _unrelated,
}
"""Which pairs of rows i and j count in each score of `confident_pairs`."""


def _count_confident(pkd: Floats, predicted: Floats, group: Ints) -> tuple[float, int]:
    """Count the confident pairs within groups that are in the right order, and all of them."""
    lower = pkd + CONFIDENT_PKD - ROUNDING
    inserted = np.repeat([True, False], len(pkd))
    order = np.lexsort((~inserted, np.concatenate([lower, pkd]), np.tile(group, 2)))
    return _count_in_order(inserted[order], order % len(pkd), predicted, group)


def _count_in_order(
    inserted: NDArray[np.bool_], row: Ints, predicted: Floats, group: Ints
) -> tuple[float, int]:
    """Count pairs of an inserted row and a later query of its group in order; and all.

    `inserted` and `row`, shape (2N,), have every row twice, groups in ascending order. `predicted`
    and `group`, shape (N,), belong to the rows; groups are numbered from 0. Predicted ties count
    half.
    """
    queries = np.bincount(group[row[~inserted]], minlength=1)
    before = np.cumsum(np.bincount(group[row[inserted]], minlength=1))
    pairs = int(np.cumsum(inserted)[~inserted].sum() - (queries[1:] * before[:-1]).sum())
    if not pairs:
        return 0.0, 0
    distinct, rank = np.unique(predicted, return_inverse=True)
    # Ranked above all later groups, an inserted row is never smaller than their queries.
    rank = ((group.max() - group) * len(distinct) + rank)[row]
    strict = _earlier_and_smaller(inserted, 2 * rank + inserted)
    if len(distinct) == len(predicted):
        return strict, pairs
    with_ties = _earlier_and_smaller(inserted, 2 * rank + ~inserted)
    return (strict + with_ties) / 2, pairs


def _earlier_and_smaller(inserted: NDArray[np.bool_], value: Ints) -> int:
    """Count pairs of an inserted row and a later query with a larger value.

    A merge sort unrolled over its levels: vectorised, so that a million rows take seconds.
    """
    count, width = 0, 1
    by_value = np.argsort(value, kind="stable")
    while width < len(value):
        # The smallest integer type, because numpy sorts 16 bits and fewer by radix.
        pair = (by_value // (2 * width)).astype(np.min_scalar_type(len(value) // (2 * width)))
        order = by_value[np.argsort(pair, kind="stable")]
        left = order // width % 2 == 0
        earlier = np.concatenate([[0], np.cumsum(inserted[order] & left)])
        # Subtract the rows that were inserted by earlier pairs of blocks.
        before = earlier[order // (2 * width) * (2 * width)]
        count += int((earlier[1:] - before)[~inserted[order] & ~left].sum())
        width *= 2
    return count
