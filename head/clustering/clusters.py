"""Clusters of antibodies and of antigens: near-duplicates that a split must keep together.

Clusters are found by single linkage, exactly: two strings are near-duplicates if the number of
edits between them is small enough for the identity asked for, and clusters are the connected
components, so that no string has a near-duplicate outside its cluster. `search` finds them.

- Antibodies: identity is one minus the edit distance over the length of the longer, compared over
  the chains that both have.
- Antigens: identity is one minus the edits that align the shorter chain inside the longer, over
  the length of the shorter, so that a domain is a near-duplicate of the protein that contains it.
  (Of two chains of equal length, the alphabetically first is aligned inside the other.) An
  antigen joins the clusters of all its chains. Peptides are compared with peptides only. One that
  occurs in a protein letter by letter is nevertheless part of it (`contained_peptides`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import compress
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from abag.core.arrays import Bools, Ints
from abag.core.messages import bar
from abag.embed.sequences.chains import Chains
from abag.head.clustering.alignment import whole_distances
from abag.head.clustering.search import ContainedSearch, WholeSearch

Method: TypeAlias = Callable[..., list[Ints]]
"""Clusters strings, called as `cluster`."""
LETTERS = 128
"""Codes of ASCII."""
PEPTIDE = 50
"""Antigen chains below this length are peptides: they align somewhere in almost any protein."""
PEPTIDE_IDENTITY = 0.6
"""Smallest identity of peptides: unrelated short ones reach 0.4, overlapping windows 0.6."""
SEED = 8
"""Shortest peptide that is looked for: shorter ones occur in unrelated proteins by chance."""


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


def antibody_clusters(
    antibodies: Sequence[Chains], identities: Sequence[float], method: Method = cluster
) -> list[Ints]:
    """Cluster antibodies by the identity of their variable domains.

    Parameters
    ----------
    antibodies : sequence of (str, str), length N
        Heavy and light chain; either may be empty.
    identities : sequence of float
        Smallest identities of near-duplicates, above 0 and up to 1.
    method : callable, optional
        Used for antibodies with both chains.

    Returns
    -------
    list of NDArray, shape=(N,), dtype=int64
        Cluster of each antibody at each identity, numbered by first appearance.
    """
    paired = np.array([bool(heavy and light) for heavy, light in antibodies], bool)
    whole = np.flatnonzero(paired)
    found = method(["".join(antibodies[i]) for i in whole.tolist()], identities)
    groupings = [[(whole, labels)] for labels in found]
    for chain in (0, 1):
        having = np.array([i for i, chains in enumerate(antibodies) if chains[chain]], np.int64)
        alone = ~paired[having]
        if alone.any():
            found = cluster([antibodies[i][chain] for i in having], identities, queries=alone)
            for grouping, labels in zip(groupings, found, strict=True):
                # Two paired antibodies are never joined by one chain, even if it is identical.
                keep = np.isin(labels, labels[alone])
                grouping.append((having[keep], labels[keep]))
    return [_merged(len(antibodies), grouping) for grouping in groupings]


def antigen_clusters(
    antigens: Sequence[Chains], identities: Sequence[float], method: Method = cluster
) -> list[Ints]:
    """Cluster antigens by their chains; one shared cluster of chains is enough.

    Parameters
    ----------
    antigens : sequence of tuple of str, length N
    identities : sequence of float
        As for `antibody_clusters`; for peptides at least `PEPTIDE_IDENTITY`.
    method : callable, optional
        Used for chains longer than peptides.

    Returns
    -------
    list of NDArray, shape=(N,), dtype=int64
        Cluster of each antigen at each identity, numbered by first appearance.
    """
    owner = np.array([i for i, chains in enumerate(antigens) for _ in chains], np.int64)
    texts = [chain for chains in antigens for chain in chains]
    is_peptide = np.array([len(text) < PEPTIDE for text in texts], bool)
    proteins, peptides = np.flatnonzero(~is_peptide), np.flatnonzero(is_peptide)
    of_proteins = method([texts[i] for i in proteins], identities, contained=True)
    of_peptides = cluster(
        [texts[i] for i in peptides],
        [max(identity, PEPTIDE_IDENTITY) for identity in identities],
        contained=True,
    )
    return [
        _merged(len(antigens), [(owner[proteins], protein), (owner[peptides], peptide)])
        for protein, peptide in zip(of_proteins, of_peptides, strict=True)
    ]


def cdrh3_clusters(antibodies: Sequence[Chains], identities: Sequence[float]) -> list[Ints]:
    """Cluster antibodies by the identity of their CDRH3: cluster numbers, each of shape (N,).

    Antibodies in which no CDRH3 is found, such as a light chain alone, are compared by all their
    chains, and only with each other. Parameters and result are those of `antibody_clusters`.
    """
    from immunum import Annotator

    annotator = Annotator(["IGH"], "imgt")
    loops = [str(annotator.segment(heavy).cdr3 or "") if heavy else "" for heavy, _ in antibodies]
    has_loop = np.array([bool(loop) for loop in loops], bool)
    texts = [loop or "".join(chains) for loop, chains in zip(loops, antibodies, strict=True)]
    groups = (np.flatnonzero(has_loop), np.flatnonzero(~has_loop))
    found = [cluster([texts[i] for i in rows], identities) for rows in groups]
    return [
        _merged(len(antibodies), list(zip(groups, labels, strict=True)))
        for labels in zip(*found, strict=True)
    ]


def distance_to_parent(
    antibodies: Sequence[Chains], clusters: Ints, known: NDArray[np.bool_] | None = None
) -> Ints:
    """Count the edits between each antibody and the consensus of its cluster, over both chains.

    `antibodies` are as in `antibody_clusters`; `clusters` and the result have shape (N,). The
    consensus is that of the `known` antibodies, (N,), of which every cluster has one; by default
    all are.
    """
    distance = np.zeros(len(antibodies), np.int64)
    families = [members for members in rows_by_group(clusters) if len(members) > 1]
    if not families:
        return distance
    rows = np.concatenate(families)
    is_known = np.ones(len(antibodies), np.bool_) if known is None else known
    for chain in (0, 1):
        texts = [[antibodies[i][chain] for i in members] for members in families]
        parents = [
            consensus([*compress(one, is_known[members])])
            for one, members in zip(texts, families, strict=True)
        ]
        strings = np.array([*parents, *(text for one in texts for text in one)], dtype=object)
        parent = np.repeat(np.arange(len(families)), [len(members) for members in families])
        distance[rows] += _edits(strings, parent, len(families) + np.arange(len(rows)))
    return distance


def consensus(texts: Sequence[str]) -> str:
    """Return the most common residue at each position of the texts of the most common length.

    Of equally common residues or lengths the first in the alphabet, or the shortest, is taken.
    """
    lengths = np.array([len(text) for text in texts])
    length = int(np.argmax(np.bincount(lengths)))
    kept = [text.encode() for text in texts if len(text) == length]
    residues = np.frombuffer(b"".join(kept), np.uint8).reshape(len(kept), length)
    cells = residues + LETTERS * np.arange(length)
    counts = np.bincount(cells.ravel(), minlength=length * LETTERS).reshape(length, LETTERS)
    return bytes(counts.argmax(axis=1).astype(np.uint8)).decode()


def _edits(strings: NDArray[np.object_], i: Ints, j: Ints) -> Ints:
    """Edit distance of strings i and j, (K,); equal pairs are aligned once."""
    unique, number = np.unique(strings, return_inverse=True)
    pairs, index = np.unique(number[i] * len(unique) + number[j], return_inverse=True)
    return whole_distances(unique, *np.divmod(pairs, len(unique)))[index]


def join_clusters(first: Ints, second: Ints) -> Ints:
    """Join two clusterings of N items: members of one cluster in either are together, (N,)."""
    items = np.arange(len(first))
    return _merged(len(first), [(items, first), (items, second)])


def _merged(n: int, groupings: Sequence[tuple[Ints, Ints]]) -> Ints:
    """Components of n items that are joined by any of several groupings: (items, group ids)."""
    items, nodes, used = [], [], n
    for members, labels in groupings:
        items.append(members)
        nodes.append(labels + used)
        used += int(labels.max(initial=-1)) + 1
    ends = (np.concatenate(items), np.concatenate(nodes))
    graph = sparse.coo_array((np.ones(len(ends[0])), ends), (used, used))
    _, found = sparse.csgraph.connected_components(graph, directed=False)
    return number_by_appearance(found[:n])


def contained_peptides(antigens: Sequence[Chains]) -> Ints:
    """Find the antigens with a peptide chain that occurs in a longer chain of another antigen.

    Parameters
    ----------
    antigens : sequence of tuple of str, length N

    Returns
    -------
    NDArray, shape=(K, 2), dtype=int64
        Indices of the antigen with the peptide and of the one that contains it.
    """
    peptides: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for i, chains in enumerate(antigens):
        for chain in chains:
            if SEED <= len(chain) < PEPTIDE:
                peptides[chain[:SEED]].append((i, chain))
    found = {
        (i, j)
        for j, chains in enumerate(antigens if peptides else ())
        for chain in chains
        if len(chain) >= PEPTIDE
        for at in range(len(chain) - SEED + 1)
        for i, peptide in peptides.get(chain[at : at + SEED], ())
        if chain.startswith(peptide, at)
    }
    return np.array(sorted(found), np.int64).reshape(-1, 2)
