"""Single-linkage clusters of near-duplicate strings of residues, exact.

Two strings are near-duplicates if the number of edits between them is small enough for the
identity asked for. Clusters are the connected components: no string has a near-duplicate outside
its cluster. How they are found is in `search`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from abag.core.arrays import Bools, Ints
from abag.core.messages import bar
from abag.head.clustering.search import ContainedSearch, WholeSearch


def cluster(
    strings: Sequence[str],
    identities: Sequence[float],
    *,
    contained: bool = False,
    queries: Bools | None = None,
) -> list[Ints]:
    """Cluster strings by single linkage at several identities, in one search.

    Parameters
    ----------
    strings : sequence of str, length N
        Residues in upper case, none empty.
    identities : sequence of float, length K
        Smallest identities of near-duplicates, above 0 and up to 1: one minus the edits over the
        length of the longer string, or of the shorter one if `contained`.
    contained : bool
        Align the shorter string inside the longer one; unaligned ends of the longer are free.
    queries : NDArray, shape=(N,), dtype=bool, optional
        Compare only pairs that include at least one of these strings.

    Returns
    -------
    list of NDArray, shape=(N,), dtype=int64
        Cluster of each string at each identity, numbered by first appearance.
    """
    if not len(strings):
        return [np.zeros(0, np.int64) for _ in identities]
    unique, index = np.unique(np.asarray(strings, dtype=object), return_inverse=True)
    is_query = np.ones(len(unique), bool)
    if queries is not None:
        is_query[:] = False
        is_query[index[queries]] = True
    # Matrix products in several threads, each in threads of its own, would wait for each other.
    with threadpool_limits(1, user_api="blas"):
        search = (ContainedSearch if contained else WholeSearch)(unique, identities, is_query)
        with bar(desc="clusters", total=len(search.tiles()), unit=" tiles", delay=2) as drawn:
            search.run(drawn.update)
    labels_KN = search.labels_KN[:, np.argsort(search.order)]
    return [number_by_appearance(labels[index]) for labels in labels_KN]


def number_by_appearance(labels: Ints) -> Ints:
    """Renumber labels in the order of their first appearance, shape (N,), dtype int64."""
    return pd.factorize(labels)[0].astype(np.int64)


def rows_by_group(group: Ints) -> list[Ints]:
    """Row indices of each group, for `group` of shape (N,); groups in ascending order of id."""
    if not len(group):
        return []
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
