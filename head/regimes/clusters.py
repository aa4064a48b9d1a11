"""Clusters of antibodies and of antigens: near-duplicates that a split must keep together.

Clusters are found by single linkage, exactly: they are the connected components of near-duplicates,
so that no sequence has a near-duplicate outside its cluster. `near_duplicates` finds them.

- Antibodies: identity is one minus the edit distance over the length of the longer, compared over
  the chains that both have. Clones often bind alike although they are less identical: two
  antibodies are clones if their CDR H3 have equal length and at least 80 % identical positions, and
  their heavy chains are at least 70 % identical.
- Antigens: identity is one minus the edits that align the shorter chain inside the longer, over
  the length of the shorter, so that a domain is a near-duplicate of the protein that contains it.
  (Of two chains of equal length, the alphabetically first is aligned inside the other.) An
  antigen joins the clusters of all its chains. Peptides are compared with peptides only. One that
  occurs in a protein letter by letter is nevertheless part of it (`contained_peptides`).

N distinct heavy chains with CDR H3 of one length, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Ints
from abag.embed.sequences.chains import Chains
from abag.embed.sequences.domains import position_number
from abag.embed.sequences.numbering import Numbered, number_antibodies
from abag.head.regimes.alignment import Strings, whole_distances
from abag.head.regimes.near_duplicates import (
    Components,
    cluster,
    join_clusters,
    number_by_appearance,
)

if TYPE_CHECKING:
    from pathlib import Path

CLONE_LOOP, CLONE_HEAVY = 0.8, 0.7
"""Smallest identities of the CDR H3, of equal length, and of the heavy chains of clones."""
FIRST, LAST = 105, 117
"""IMGT positions of CDR H3."""
PEPTIDE = 50
"""Antigen chains below this length are peptides: they align somewhere in almost any protein."""
PEPTIDE_IDENTITY = 0.6
"""Smallest identity of peptides: unrelated short ones reach 0.4, overlapping windows 0.6."""
SHORTEST = 8
"""Shortest peptide that is looked for: shorter ones occur in unrelated proteins by chance."""
LETTERS = 128
"""Codes of ASCII."""


def rows_by_group(group: Ints) -> list[Ints]:
    """Row indices of each group, for `group` of shape (N,); groups in ascending order of id."""
    if not len(group):
        return []
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def antibody_clusters(
    antibodies: Sequence[Chains], identity: float, clones: Ints | None = None
) -> Ints:
    """Cluster N antibodies, (heavy, light), by the identity of their variable domains.

    `clones` are clusters that are joined as well, see `clone_clusters`. Returns the cluster of each
    antibody, numbered by first appearance, (N,).
    """
    n = len(antibodies)
    clones = np.arange(n) if clones is None else clones
    paired = np.array([bool(heavy and light) for heavy, light in antibodies], bool)
    whole = np.flatnonzero(paired)
    texts = ["".join(antibodies[i]) for i in whole.tolist()]
    groupings = [(np.arange(n), clones), (whole, cluster(texts, identity, joined=clones[whole]))]
    for chain in (0, 1):
        having = np.array([i for i, chains in enumerate(antibodies) if chains[chain]], np.int64)
        alone = ~paired[having]
        if alone.any():
            labels = cluster([antibodies[i][chain] for i in having], identity, queries=alone)
            # Two paired antibodies are never joined by one chain, even if it is identical.
            keep = np.isin(labels, labels[alone])
            groupings.append((having[keep], labels[keep]))
    return join_clusters(n, groupings)


def antigen_clusters(
    antigens: Sequence[Chains], identity: float, within: Ints | None = None
) -> Ints:
    """Cluster N antigens by their chains; one shared cluster of chains is enough.

    The identity of peptides is at least `PEPTIDE_IDENTITY`. `within` are clusters at a smaller
    identity, between which nothing has to be compared. Returns the cluster of each antigen,
    numbered by first appearance, (N,).
    """
    n = len(antigens)
    owner = np.array([i for i, chains in enumerate(antigens) for _ in chains], np.int64)
    texts = [chain for chains in antigens for chain in chains]
    is_peptide = np.array([len(text) < PEPTIDE for text in texts], bool)
    of_chain = np.zeros(n, np.int64) if within is None else within
    groupings = [(np.arange(n), np.arange(n))]
    for chains in rows_by_group(2 * of_chain[owner] + is_peptide):
        if len(chains) > 1:
            least = max(identity, PEPTIDE_IDENTITY) if is_peptide[chains[0]] else identity
            labels = cluster([texts[i] for i in chains], least, contained=True)
            groupings.append((owner[chains], labels))
    return join_clusters(n, groupings)


def clone_clusters(antibodies: Sequence[Chains], numbering: Path | None = None) -> Ints:
    """Cluster N antibodies, (heavy, light), by clones: cluster numbers, shape (N,).

    An antibody whose heavy chain is missing or cannot be numbered is a cluster of its own.
    `numbering` is the folder that keeps IMGT numbering; None: it is not kept.
    """
    loops = find_loops(number_antibodies(antibodies, numbering)["heavy"])
    heavies = np.array(sorted(loops, key=lambda heavy: (loops[heavy], heavy)), object)
    lengths = np.array([len(loops[heavy]) for heavy in heavies], np.int64)
    cluster_of: dict[str, int] = {}
    for rows in rows_by_group(lengths):
        base = len(antibodies) + len(cluster_of)
        same_length = heavies[rows]
        labels = _Clones(same_length, [loops[heavy] for heavy in same_length]).find()
        cluster_of |= zip(same_length, (base + labels).tolist(), strict=True)
    own = [cluster_of.get(heavy, n) for n, (heavy, _) in enumerate(antibodies)]
    return number_by_appearance(np.array(own, np.int64))


def find_loops(numbered: Numbered) -> dict[str, str]:
    """Return the CDR3 of each chain that can be numbered and has one."""
    loops = {}
    for layout, rows, codes_RL in numbered.by_layout():
        inside = [FIRST <= position_number(position) <= LAST for position in layout]
        if any(inside):
            for row, codes in zip(rows.tolist(), codes_RL[:, inside], strict=True):
                loops[numbered.chains[row]] = codes.tobytes().decode("ascii")
    return loops


class _Clones(Components):
    """Components of N heavy chains, sorted by their CDR H3 of one length."""

    def __init__(self, heavies: Strings, loops: Sequence[str]) -> None:
        super().__init__(heavies, CLONE_HEAVY)
        residues = np.frombuffer("".join(loops).encode("ascii"), np.uint8)
        self.loops_LN = residues.reshape(len(loops), -1).T.copy()
        self.most_changes = int((1 - CLONE_LOOP) * len(self.loops_LN) + 1e-9)

    def bounds(self, i: Ints, j: Ints) -> NDArray[np.number]:
        """See `Components`; only chains with similar CDR H3 can be clones."""
        changes_CB = np.zeros((len(i), len(j)), np.uint8)
        for letters in self.loops_LN:
            changes_CB += letters[i][:, None] != letters[j]
        return np.where(changes_CB <= self.most_changes, 0, self.lengths.max() + 1)

    def decide(self, i: Ints, j: Ints) -> None:
        """See `Components`."""
        changes = (self.loops_LN[:, i] != self.loops_LN[:, j]).sum(axis=0)
        similar = changes <= self.most_changes  # neighbours need not be
        super().decide(i[similar], j[similar])


def distance_to_parent(
    antibodies: Sequence[Chains], clusters: Ints, known: NDArray[np.bool_] | None = None
) -> Ints:
    """Count the edits between each antibody and the consensus of its cluster, over both chains.

    `antibodies` are as in `antibody_clusters`; `clusters` and the result have shape (N,). The
    consensus is that of the `known` antibodies, (N,), of which every cluster has one; by default
    all are.
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


def contained_peptides(antigens: Sequence[Chains]) -> Ints:
    """Find the antigens with a peptide chain that occurs in a longer chain of another antigen.

    Returns their indices, (K, 2): of the peptide and of the antigen that contains it.
    """
    chains = [(i, chain) for i, one in enumerate(antigens) for chain in one]
    peptides = [(i, chain) for i, chain in chains if SHORTEST <= len(chain) < PEPTIDE]
    proteins = [(j, chain) for j, chain in chains if len(chain) >= PEPTIDE]
    found = {(i, j) for i, peptide in peptides for j, text in proteins if peptide in text}
    return np.array(sorted(found), np.int64).reshape(-1, 2)
