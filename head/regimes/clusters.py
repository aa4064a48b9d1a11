"""Clusters of near-duplicate sequences, and the groups of pairs that a split must keep together.

Single linkage, exact: no sequence has a near-duplicate outside its cluster. Antibodies are compared
over the chains that both have, relative to the longer, and joined to their clones, with a CDR H3 of
equal length and 80 % and a heavy chain of 70 % identical. Antigens are aligned inside the longer
and join the clusters of all their chains; peptides are compared with peptides only. Sequences are
in the order of their keys, so that groups have the same numbers whatever the order of the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Bools, Ints
from abag.core.files import cache_dir, load_cached, store_cached
from abag.core.messages import say
from abag.embed.tables.chains import Chains, position_number
from abag.embed.tables.numbering import Numbered, number_antibodies
from abag.head.regimes.similar import (
    Clones,
    Strings,
    cluster,
    join_clusters,
    lengths_of,
    number_by_appearance,
    whole_distances,
)

if TYPE_CHECKING:
    from abag.embed.tables.chains import Kind
    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.labels.options import SplitOptions

CLONE_LOOP = 0.8
"""Smallest identity of the CDR H3 of clones, which have equal length."""
CLONE_HEAVY = 0.7
"""Smallest identity of the heavy chains of clones."""
FIRST = 105
"""First IMGT position of CDR H3."""
LAST = 117
"""Last IMGT position of CDR H3."""
PEPTIDE = 50
"""Antigen chains below this length are peptides: they align somewhere in almost any protein."""
PEPTIDE_IDENTITY = 0.6
"""Smallest identity of peptides: unrelated short ones reach 0.4, overlapping windows 0.6."""
SHORTEST = 8
"""Shortest peptide that is looked for: shorter ones occur in unrelated proteins by chance."""
KNOWN_ANTIGEN = 0.9
"""Identity to a training antigen from which an antigen is known."""
MANY_SEQUENCES: Mapping[Kind, int] = {"antibody": 150_000, "antigen": 5_000}
"""Above this, clustering takes minutes: it is left out where the split does not need it."""
CLUSTERS_VERSION = 2
"""Raise when the clusters change, so that cached ones are not used."""
LETTERS = 128
"""Codes of ASCII."""


@dataclass
class PairGroups:
    """Group P pairs, (P,) each: equal for pairs that belong together; computed on first use."""

    pairs: LabelledPairs
    options: SplitOptions
    cache: Path | None = None
    """Folder of cached clusters; None: they are not kept."""

    @cached_property
    def pair(self) -> Ints:
        """Group pairs with the same two sequences."""
        n_antigens = len(self.pairs.table.antigens.keys)
        return number_by_appearance(self.pairs.antibody * n_antigens + self.pairs.antigen)

    @cached_property
    def clones(self) -> Ints:
        """Group pairs by the clones of their antibodies."""
        return self._of_pairs("antibody", self._clones)

    @cached_property
    def antibody(self) -> Ints:
        """Group pairs by the clusters of their antibodies, by identity and clones."""
        chains = self.pairs.table.antibodies.chains
        identity = self.options.antibody_identity
        clusters = self._cached(
            "antibody", f"{identity!r}", lambda: antibody_clusters(chains, identity, self._clones)
        )
        return self._of_pairs("antibody", clusters)

    @cached_property
    def antigen(self) -> Ints:
        """Group pairs by the clusters of their antigens, by identity."""
        return self._of_pairs("antigen", self._antigens)

    @cached_property
    def near_antigen(self) -> Ints:
        """Group pairs by clusters of antigens, of which one in training makes the others known."""
        chains = self.pairs.table.antigens.chains
        identity = self.options.antigen_identity
        if identity >= KNOWN_ANTIGEN:
            return self.antigen
        clusters = self._cached(
            "antigen",
            f"{KNOWN_ANTIGEN!r} within {identity!r}",
            lambda: antigen_clusters(chains, KNOWN_ANTIGEN, self._antigens),
        )
        return self._of_pairs("antigen", clusters)

    def of_method(self, method: str) -> Ints:
        """Return the groups that ``random``, ``antibody`` or ``antigen`` keeps in one part."""
        groups: Ints = getattr(self, "pair" if method == "random" else method)
        return groups

    def are_clustered(self, kind: Kind) -> bool:
        """Return whether sequences of a kind are clustered though the split may not need it."""
        n_sequences = len(self.pairs.table.sequences[kind].keys)
        is_needed = self.options.split_name in ("auto", kind, "both")
        return is_needed or n_sequences <= MANY_SEQUENCES[kind]

    def levels(self) -> dict[str, dict[str, Ints]]:
        """Return the group of each pair by kind (or ``pair``) and closeness, for leaks."""
        result = {"pair": {"exact": self.pair}}
        for kind in MANY_SEQUENCES:
            result[kind] = {"exact": self.pairs.index(kind)}
        clustered = [kind for kind in MANY_SEQUENCES if self.are_clustered(kind)]
        if "antibody" in clustered:
            result["antibody"][f"{self.options.antibody_identity:g}"] = self.antibody
            result["antibody"]["clone"] = self.clones
        if "antigen" in clustered:
            result["antigen"][f"{KNOWN_ANTIGEN:g}"] = self.near_antigen
            result["antigen"][f"{self.options.antigen_identity:g}"] = self.antigen
        if len(clustered) == 2:
            # group numbers are below the number of pairs, so that no two cells share one
            result["pair"]["near"] = self.antibody * len(self.antigen) + self.antigen
        return result

    def cluster_sizes(self) -> dict[str, dict[str, dict[str, float]]]:
        """Count the clusters by kind and closeness, and the share of the pairs in the largest."""
        result: dict[str, dict[str, dict[str, float]]] = {}
        levels = self.levels()
        for kind in MANY_SEQUENCES:
            result[kind] = {}
            for closeness, labels in levels[kind].items():
                sizes = np.bincount(number_by_appearance(labels))
                share = float(sizes.max() / sizes.sum())
                result[kind][closeness] = {"clusters": len(sizes), "largest_share": share}
        return result

    @cached_property
    def peptides(self) -> Ints:
        """Find unique antigens of which the first is a peptide of the second, (K, 2)."""
        is_small = self.are_clustered("antigen")
        return contained_peptides(self.pairs.table.antigens.chains if is_small else ())

    @cached_property
    def _clones(self) -> Ints:
        chains = self.pairs.table.antibodies.chains
        numbering = None if self.cache is None else cache_dir() / "numbering"
        return self._cached("antibody", "clones", lambda: clone_clusters(chains, numbering))

    @cached_property
    def _antigens(self) -> Ints:
        chains = self.pairs.table.antigens.chains
        identity = self.options.antigen_identity
        return self._cached("antigen", f"{identity!r}", lambda: antigen_clusters(chains, identity))

    def _cached(self, kind: Kind, name: str, compute: Callable[[], Ints]) -> Ints:
        keys = self.pairs.table.sequences[kind].keys
        return cached_clusters(f"{kind} {name}", keys, compute, self.cache)

    def _of_pairs(self, kind: Kind, labels: Ints) -> Ints:
        return number_by_appearance(labels[self.pairs.index(kind)])


def with_clusters(groups: PairGroups) -> LabelledPairs:
    """Add the clusters of the sequences to the pairs, but where that takes minutes for no split."""
    pairs = groups.pairs
    if groups.are_clustered("antibody"):
        pairs = replace(pairs, antibody_cluster=groups.antibody)
    if groups.are_clustered("antigen"):
        return replace(pairs, antigen_cluster=groups.antigen)
    n = len(pairs.table.antigens.keys)
    say(f"{n:,} antigens are not clustered: intervals treat each as independent of the others")
    return replace(pairs, antigen_cluster=pairs.antigen)


def cached_clusters(
    name: str, keys: NDArray[np.uint8], compute: Callable[[], Ints], cache: Path | None
) -> Ints:
    """Return the cluster of each of N sequences, (N,), computed once for their keys, (N, 16)."""
    # clones depend on the numbering
    versions = f"{CLUSTERS_VERSION} immunum {version('immunum')}"
    entry = f"{versions} {name}".encode() + b"\0" + keys.tobytes()
    content = load_cached(cache, entry)
    if content and len(content) == 8 * len(keys):  # else damaged: computed again
        return np.frombuffer(content, np.int64).copy()  # writable
    labels = compute()
    store_cached(cache, entry, labels.astype(np.int64).tobytes())
    return labels


def rows_by_group(group: Ints) -> list[Ints]:
    """List the row indices of each group of N rows, (N,), in ascending order of group."""
    if not len(group):
        return []
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def antibody_clusters(
    antibodies: Sequence[Chains], identity: float, clones: Ints | None = None
) -> Ints:
    """Cluster N antibodies by their identity, and join `clones` as well.

    Numbers by first appearance, (N,).
    """
    n = len(antibodies)
    clones = np.arange(n) if clones is None else clones
    heavies = np.array([heavy for heavy, _ in antibodies], object)
    lights = np.array([light for _, light in antibodies], object)
    paired = (heavies != "") & (lights != "")
    whole = np.flatnonzero(paired)
    by_both = cluster(heavies[whole] + lights[whole], identity, joined=clones[whole])
    groupings = [(np.arange(n), clones), (whole, by_both)]
    for texts in (heavies, lights):
        having = np.flatnonzero(texts != "")
        alone = ~paired[having]
        if alone.any():
            labels = cluster(texts[having], identity, queries=alone)
            # Two paired antibodies are never joined by one chain, even if it is identical.
            keep = np.isin(labels, labels[alone])
            groupings.append((having[keep], labels[keep]))
    return join_clusters(n, groupings)


def antigen_clusters(
    antigens: Sequence[Chains], identity: float, within: Ints | None = None
) -> Ints:
    """Cluster N antigens, (N,): one shared cluster of chains is enough.

    `within` are clusters at a smaller identity, between which nothing has to be compared.
    """
    n = len(antigens)
    n_chains = np.array([len(chains) for chains in antigens], np.int64)
    owner = np.repeat(np.arange(n), n_chains)
    texts = np.array([*itertools.chain.from_iterable(antigens)], object)
    is_peptide = lengths_of(texts) < PEPTIDE
    of_antigen = np.zeros(n, np.int64) if within is None else within
    groupings = [(np.arange(n), np.arange(n))]
    for chains in rows_by_group(2 * of_antigen[owner] + is_peptide):
        if len(chains) > 1:
            least = identity_of_chains(identity, is_peptide=bool(is_peptide[chains[0]]))
            labels = cluster(texts[chains], least, contained=True)
            groupings.append((owner[chains], labels))
    return join_clusters(n, groupings)


def identity_of_chains(identity: float, *, is_peptide: bool) -> float:
    """Return the identity from which two antigen chains, or two peptides, are near-duplicates."""
    return max(identity, PEPTIDE_IDENTITY) if is_peptide else identity


def search_clones(heavies: Strings, loops: Sequence[str]) -> Clones:
    """Compare N heavy chains, given their CDR H3 of one length, by the rule of clones."""
    return Clones(heavies, CLONE_HEAVY, loops, CLONE_LOOP)


def clone_clusters(antibodies: Sequence[Chains], numbering: Path | None = None) -> Ints:
    """Cluster N antibodies by clones, (N,); those without a numbered heavy chain are alone.

    `numbering` is the folder that keeps IMGT numbering; None: it is not kept.
    """
    loops = cdr3_of_chains(number_antibodies(antibodies, numbering)["heavy"])
    # clones have similar loops, and neighbours are compared first
    heavies = np.array(sorted(loops, key=lambda heavy: (loops[heavy], heavy)), object)
    loops_of_heavies = np.array([loops[heavy] for heavy in heavies], object)
    cluster_of: dict[str, int] = {}
    for rows in rows_by_group(lengths_of(loops_of_heavies)):
        same_length = heavies[rows]
        base = len(antibodies) + len(cluster_of)  # above the numbers of those without a loop
        clones = search_clones(same_length, loops_of_heavies[rows].tolist())
        cluster_of |= zip(same_length, (base + clones.find()).tolist(), strict=True)
    clusters = [cluster_of.get(heavy, number) for number, (heavy, _) in enumerate(antibodies)]
    return number_by_appearance(np.array(clusters, np.int64))


def cdr3_of_chains(numbered: Numbered) -> dict[str, str]:
    """Return the CDR3 of each chain that can be numbered and has one."""
    loops = {}
    for layout, rows, codes_RL in numbered.by_layout():
        inside = [FIRST <= position_number(position) <= LAST for position in layout]
        if any(inside):
            for row, codes in zip(rows.tolist(), codes_RL[:, inside], strict=True):
                loops[numbered.chains[row]] = codes.tobytes().decode("ascii")
    return loops


def contained_peptides(antigens: Sequence[Chains]) -> Ints:
    """Find antigens with a peptide that occurs in another, (K, 2): indices of both."""
    peptides = list[tuple[int, str]]()
    proteins = list[tuple[int, str]]()
    for number, chains in enumerate(antigens):
        for chain in chains:
            if len(chain) >= PEPTIDE:
                proteins.append((number, chain))
            elif len(chain) >= SHORTEST:
                peptides.append((number, chain))
    contained = set[tuple[int, int]]()
    for number, peptide in peptides:
        for other, protein in proteins:
            if peptide in protein:
                contained.add((number, other))
    return np.array(sorted(contained), np.int64).reshape(-1, 2)


def distance_to_parent(
    antibodies: Sequence[Chains], clusters: Ints, known: Bools | None = None
) -> Ints:
    """Count the edits between each antibody and the consensus of its cluster, (N,).

    The consensus is that of the `known` antibodies, of which every cluster has one.
    """
    distance = np.zeros(len(antibodies), np.int64)
    is_known = np.ones(len(antibodies), np.bool_) if known is None else known
    for chain in (0, 1):
        texts = np.array([chains[chain] for chains in antibodies], object)
        parents = np.empty(len(texts), object)
        for members in rows_by_group(clusters):
            parents[members] = consensus(texts[members[is_known[members]]].tolist())
        distance += whole_distances(texts, parents)
    return distance


def consensus(texts: Sequence[str]) -> str:
    """Return the most common residues of the texts of the most common length; of ties the first."""
    length = int(np.argmax(np.bincount(lengths_of(texts))))
    kept = [text for text in texts if len(text) == length]
    residues = np.frombuffer("".join(kept).encode(), np.uint8).reshape(len(kept), length)
    # each position has its own `LETTERS` cells: one count for all positions
    cells = residues + LETTERS * np.arange(length)
    counts = np.bincount(cells.ravel(), minlength=length * LETTERS).reshape(length, LETTERS)
    return bytes(counts.argmax(axis=1).astype(np.uint8)).decode()
