"""Relations of sequences: families of near-duplicates, and the nearest.

For each kind, and for clones, one rule says which two sequences are related. Clusters are its
components, recognition asks whether any of other sequences is related, and the nearest is that with
the least distance.

Single linkage, exact: no sequence has a near-duplicate outside its cluster. Antibodies are compared
over the chains that both have, relative to the longer, and joined to their clones, with a CDR H3 of
equal length and 80 % and a heavy chain of 70 % identical. Antigens are aligned inside the longer
and join the clusters of all their chains; peptides are compared with peptides only. Sequences are
in the order of their keys, so that groups have the same numbers whatever the order of the rows.

The distance of two sequences is the sum over their chains: the positions at which chains of equal
length differ, the edits between others, and 1 for each chain that only one of them has. Antibodies
without a chain in common have no distance. Chains of an antigen are compared in the order of their
lengths. 0 is the sequence itself. The result is exact: bounds only skip what cannot be nearer.

N sequences, T training sequences, C sequences and B training sequences of a block, Q sequences of a
part of it, K pairs, P chains of each, L positions, U unusual letters at positions, W words.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Bools, Floats, Ints
from abag.core.files import cache_dir, load_cached, store_cached
from abag.embed.tables.chains import CHAIN_ROLES, Chains, Kind, position_number
from abag.embed.tables.numbering import Numbered, number_antibodies
from abag.head.regimes.similar import (
    BITS_PER_EDIT,
    Clones,
    Strings,
    Words,
    cluster,
    contained_near,
    count_edits,
    join_clusters,
    lengths_of,
    letters_of,
    number_by_appearance,
    profile_words,
    unusual_letters,
    whole_distances,
    whole_near,
)

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
CLUSTERS_VERSION = 2
"""Raise when the clusters change, so that cached ones are not used."""


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
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def are_related(
    kind: Kind,
    queries: Sequence[Chains],
    targets: Sequence[Chains],
    identity: float,
    loops: Mapping[str, str],
    as_long: Nearest,
) -> Bools:
    """Return which of N sequences would join the cluster of any of T others, (N,).

    Parameters
    ----------
    kind : str
        Of the sequences.
    queries, targets : sequence of tuple of str
        The N sequences, and the T others.
    identity : float
        Of families.
    loops : mapping of str
        CDR H3 of the heavy chains of the others that have one.
    as_long : Nearest
        Of the others, the nearest whose chains are as long: most relatives are told by these.
    """
    related = _are_near_by(kind, as_long.distance, queries, identity)
    rules: list[Callable[[list[Chains]], Bools]]
    rules = [lambda apart: _antigens_near(apart, targets, identity)]
    if kind == "antibody":
        rules = [
            lambda apart: _antibodies_near(apart, targets, identity),
            lambda apart: _clones_near(apart, loops),
        ]
    for are_near in rules:
        rows = np.flatnonzero(~related)
        related[rows] = are_near([queries[row] for row in rows.tolist()])
    return related


def _are_near_by(kind: Kind, distance: Ints, sequences: Sequence[Chains], identity: float) -> Bools:
    """Return which of N sequences are related to one as long, given how far that is, (N,).

    Such two have as many chains, of equal lengths. Replacing the residues that differ turns one
    into the other, so no alignment takes more edits than the distance: not that of both chains of
    an antibody in one string, nor that of an antigen's longest chain, nor of a chain inside
    another. The edits that an identity allows depend on the lengths alone, which are equal.
    """
    size = sum if kind == "antibody" else max
    lengths = np.array([size([0, *map(len, chains)]) for chains in sequences], np.int64)
    least: Floats | float = identity
    if kind == "antigen":
        of_peptides = identity_of_chains(identity, is_peptide=True)
        least = np.where(lengths < PEPTIDE, of_peptides, identity)
    return np.asarray((distance != NONE) & (distance <= count_edits(lengths, least)))


# ---- antibodies ----------------------------------------------------------------------------------


def antibody_clusters(
    antibodies: Sequence[Chains], identity: float, clones: Ints | None = None
) -> Ints:
    """Cluster N antibodies by their identity, and join `clones` as well.

    Numbers by first appearance, (N,).
    """
    n = len(antibodies)
    clones = np.arange(n) if clones is None else clones
    texts_N2, is_paired = _chains_of(antibodies)
    whole = np.flatnonzero(is_paired)
    by_both = cluster(texts_N2[whole, 0] + texts_N2[whole, 1], identity, joined=clones[whole])
    groupings = [(np.arange(n), clones), (whole, by_both)]
    for texts in texts_N2.T:
        having = np.flatnonzero(texts != "")
        alone = ~is_paired[having]
        if alone.any():
            labels = cluster(texts[having], identity, queries=alone)
            # Two paired antibodies are never joined by one chain, even if it is identical.
            keep = np.isin(labels, labels[alone])
            groupings.append((having[keep], labels[keep]))
    return join_clusters(n, groupings)


def _antibodies_near(
    queries: Sequence[Chains], targets: Sequence[Chains], identity: float
) -> Bools:
    """Return which of N antibodies are near-duplicates of others over the chains both have."""
    queries_N2, is_paired = _chains_of(queries)
    targets_T2, is_target_paired = _chains_of(targets)
    near = np.zeros(len(queries), np.bool_)
    joined = queries_N2[is_paired, 0] + queries_N2[is_paired, 1]
    joined_targets = targets_T2[is_target_paired, 0] + targets_T2[is_target_paired, 1]
    near[is_paired] = whole_near(joined, joined_targets, identity)
    for texts, target_texts in zip(queries_N2.T, targets_T2.T, strict=True):
        # as for clusters: not two paired ones by one chain
        has_chain = target_texts != ""
        alone = target_texts[has_chain & ~is_target_paired]
        rows = ~near & is_paired
        near[rows] = whole_near(texts[rows], alone, identity)
        rows = ~near & ~is_paired & (texts != "")
        near[rows] = whole_near(texts[rows], target_texts[has_chain], identity)
    return near


def _chains_of(antibodies: Sequence[Chains]) -> tuple[NDArray[np.object_], Bools]:
    """Return the chains of N antibodies, (N, 2), and which have both, (N,)."""
    texts_N2 = np.array(antibodies, object).reshape(-1, len(CHAIN_ROLES))
    return texts_N2, (texts_N2 != "").all(axis=1)


# ---- clones --------------------------------------------------------------------------------------


def clone_clusters(antibodies: Sequence[Chains], numbering: Path | None = None) -> Ints:
    """Cluster N antibodies by clones, (N,); those without a numbered heavy chain are alone.

    `numbering` is the folder that keeps IMGT numbering; None: it is not kept.
    """
    loops = cdr3_of_chains(number_antibodies(antibodies, numbering)["heavy"])
    cluster_of: dict[str, int] = {}
    for _, heavies in sorted(_by_loop_length(loops).items()):
        base = len(antibodies) + len(cluster_of)  # above the numbers of those without a loop
        clones = _search_clones(heavies, loops)
        cluster_of |= zip(heavies, (base + clones.find()).tolist(), strict=True)
    clusters = [cluster_of.get(heavy, number) for number, (heavy, _) in enumerate(antibodies)]
    return number_by_appearance(np.array(clusters, np.int64))


def _clones_near(queries: Sequence[Chains], loops: Mapping[str, str]) -> Bools:
    """Return which of N antibodies are clones of heavy chains with these CDR H3."""
    if not len(queries) or not loops:
        return np.zeros(len(queries), np.bool_)
    queried = cdr3_of_chains(number_antibodies(queries, cache_dir() / "numbering")["heavy"])
    targets = _by_loop_length(loops)
    of_both = {**loops, **queried}  # a heavy chain may be on both sides
    clones = set[str]()
    for length, heavies in _by_loop_length(queried).items():
        if length in targets:
            search = _search_clones([*heavies, *targets[length]], of_both)
            clones.update(itertools.compress(heavies, search.near_first(len(heavies))))
    return np.array([heavy in clones for heavy, _ in queries], np.bool_)


def _search_clones(heavies: Sequence[str], loops: Mapping[str, str]) -> Clones:
    """Compare N heavy chains, whose CDR H3 have one length, by the rule of clones."""
    loops_of_heavies = [loops[heavy] for heavy in heavies]
    return Clones(np.array(heavies, object), CLONE_HEAVY, loops_of_heavies, CLONE_LOOP)


def _by_loop_length(loops: Mapping[str, str]) -> dict[int, list[str]]:
    """Sort heavy chains into those whose CDR H3 have one length."""
    chains: dict[int, list[str]] = {}
    # clones have similar loops, and neighbours are compared first
    for heavy in sorted(loops, key=lambda heavy: (loops[heavy], heavy)):
        chains.setdefault(len(loops[heavy]), []).append(heavy)
    return chains


def cdr3_of_chains(numbered: Numbered) -> dict[str, str]:
    """Return the CDR3 of each chain that can be numbered and has one."""
    loops = {}
    for layout, rows, codes_RL in numbered.by_layout():
        inside = [FIRST <= position_number(position) <= LAST for position in layout]
        if any(inside):
            for row, codes in zip(rows.tolist(), codes_RL[:, inside], strict=True):
                loops[numbered.chains[row]] = codes.tobytes().decode("ascii")
    return loops


# ---- antigens ------------------------------------------------------------------------------------


def antigen_clusters(
    antigens: Sequence[Chains], identity: float, within: Ints | None = None
) -> Ints:
    """Cluster N antigens, (N,): one shared cluster of chains is enough.

    `within` are clusters at a smaller identity, between which nothing has to be compared.
    """
    n = len(antigens)
    owner, texts, is_peptide = _chains_of_antigens(antigens)
    of_antigen = np.zeros(n, np.int64) if within is None else within
    groupings = [(np.arange(n), np.arange(n))]
    for chains in rows_by_group(2 * of_antigen[owner] + is_peptide):
        if len(chains) > 1:
            least = identity_of_chains(identity, is_peptide=bool(is_peptide[chains[0]]))
            labels = cluster(texts[chains], least, contained=True)
            groupings.append((owner[chains], labels))
    return join_clusters(n, groupings)


def _antigens_near(queries: Sequence[Chains], targets: Sequence[Chains], identity: float) -> Bools:
    """Return which of N antigens have a chain that is a near-duplicate of one of others."""
    near = np.zeros(len(queries), np.bool_)
    owner, texts, is_peptide = _chains_of_antigens(queries)
    _, others, is_other_peptide = _chains_of_antigens(targets)
    for peptides in (False, True):
        least = identity_of_chains(identity, is_peptide=peptides)
        rows = np.flatnonzero(is_peptide == peptides)
        alike = others[is_other_peptide == peptides]
        if len(rows) and len(alike):
            is_near = contained_near(texts[rows], alike, least)
            near[owner[rows[is_near]]] = True
    return near


def _chains_of_antigens(antigens: Sequence[Chains]) -> tuple[Ints, Strings, Bools]:
    """Return of all chains of N antigens whose they are, the chains, and which are peptides.

    Peptides are compared with peptides only.
    """
    n_chains = np.array([len(chains) for chains in antigens], np.int64)
    owner = np.repeat(np.arange(len(antigens)), n_chains)
    texts = np.array([*itertools.chain.from_iterable(antigens)], object)
    return owner, texts, lengths_of(texts) < PEPTIDE


def identity_of_chains(identity: float, *, is_peptide: bool) -> float:
    """Return the identity from which two antigen chains, or two peptides, are near-duplicates."""
    return max(identity, PEPTIDE_IDENTITY) if is_peptide else identity


def contained_peptides(antigens: Sequence[Chains]) -> Ints:
    """Find antigens with a peptide that occurs in another, (K, 2): indices of both."""
    owner, texts, is_peptide = _chains_of_antigens(antigens)
    beginning: dict[str, list[int]] = {}
    for chain in np.flatnonzero(is_peptide).tolist():
        if len(texts[chain]) >= SHORTEST:
            beginning.setdefault(texts[chain][:SHORTEST], []).append(chain)
    contained = set[tuple[int, int]]()
    for number in np.flatnonzero(~is_peptide).tolist() if beginning else ():
        protein = texts[number]
        for at in range(len(protein) - SHORTEST + 1):
            for chain in beginning.get(protein[at : at + SHORTEST], ()):
                if protein.startswith(texts[chain], at):
                    contained.add((int(owner[chain]), int(owner[number])))
    return np.array(sorted(contained), np.int64).reshape(-1, 2)


def distance_to_consensus(antibodies: Sequence[Chains]) -> Ints:
    """Count the edits between each antibody and the consensus of all, (N,)."""
    distance = np.zeros(len(antibodies), np.int64)
    for chain in (0, 1):
        texts = np.array([chains[chain] for chains in antibodies], object)
        reference = np.full(len(texts), consensus(texts.tolist()), object)
        distance += whole_distances(texts, reference)
    return distance


def consensus(texts: Sequence[str]) -> str:
    """Return the most common residues of the texts of the most common length; of ties the first."""
    length = int(np.argmax(np.bincount(lengths_of(texts))))
    kept = [text for text in texts if len(text) == length]
    return _most_common(letters_of(kept)).tobytes().decode()


def _most_common(code_NL: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the most common letter of each position, (L,); of ties the first."""
    return np.asarray(count_letters(code_NL).argmax(axis=1), np.uint8)


def count_letters(code_NL: NDArray[np.uint8]) -> Ints:
    """Count each of the `LETTERS` at each position of N sequences, (L, LETTERS)."""
    length = code_NL.shape[1]
    # each position has its own cells: one count for all positions
    first_L = LETTERS * np.arange(length)
    counts = np.zeros(length * LETTERS, np.int64)
    for at in range(0, len(code_NL), QUERIES_AT_ONCE):  # whose cells stay in the cache
        cells = code_NL[at : at + QUERIES_AT_ONCE] + first_L
        counts += np.bincount(cells.ravel(), minlength=len(counts))
    return counts.reshape(length, LETTERS)


NONE = -1
"""Nearest training sequence, and distance, where there is none."""
FARTHEST = 1 << 30
"""More than any distance."""
BLOCK_CELLS = 1 << 21
"""Distances that are in memory at a time."""
KEPT_CELLS = 1 << 23
"""Distances of one set of sequences that are kept, 32 MB: up to 2,896 sequences."""
CACHED_CELLS = 1 << 18
"""Those that are in the cache at a time."""
QUERIES = 1 << 14
"""Sequences whose letters are compared with one table of letters."""
QUERIES_AT_ONCE = 1 << 10
"""Sequences whose distances to a block of others are in the cache."""
TABLE_BYTES = 1 << 20
"""Of the table for a block of training sequences, which stays in the cache."""
LEAST_BLOCK = 1 << 9
"""Training sequences of a block, at least."""
SAMPLE = 1_000
"""Sequences, about, that tell which letters are usual."""
LETTERS = 128
"""Codes of ASCII."""
CLOSEST = 4
"""Training sequences that are aligned at first, of those that bounds do not exclude."""
LONE_CHAIN = 1
"""Distance of a chain to a sequence that lacks it."""


class Nearest(NamedTuple):
    """Hold the nearest training sequences of N sequences, (N,) each."""

    distance: Ints
    """To the nearest training sequence; `NONE` if none has a chain in common."""
    row: Ints
    """Which one it is; `NONE` if there is none."""


def by_length(antigen: Chains) -> Chains:
    """Order the chains of an antigen by length: they are stored by letters, which may mutate."""
    return tuple(sorted(antigen, key=lambda chain: (-len(chain), chain)))


def _rows_by_lengths(lengths_NP: Ints) -> dict[tuple[int, ...], Ints]:
    """Sort the rows of sequences into those whose chains have the same lengths."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for number, lengths in enumerate(lengths_NP.tolist()):
        rows.setdefault(tuple(lengths), []).append(number)
    return {lengths: np.array(numbers, np.int64) for lengths, numbers in rows.items()}


def _padded(sequences: Sequence[Chains], places: int) -> NDArray[np.object_]:
    """Return the chains of N sequences, (N, P), empty where there is none."""
    padded = np.full((len(sequences), places), "", object)
    for row, chains in enumerate(sequences):
        padded[row, : len(chains)] = chains
    return padded


def _lengths(chains_NP: NDArray[np.object_]) -> Ints:
    return np.stack([lengths_of(chains_N) for chains_N in chains_NP.T], axis=1)


def _by_positions(code_NL: NDArray[np.uint8], code_TL: NDArray[np.uint8]) -> Nearest:
    """Find the nearest of T sequences with as many letters.

    A sequence differs from the T as the usual letters do, but where it has another letter: there, a
    row of a table tells by how much more or less. The sums of these rows are the product of a
    sparse matrix and the table, of bytes: they wrap around, but no distance is above the largest.
    """
    usual_L = _most_common(code_NL[:: 1 + len(code_NL) // SAMPLE])
    varies_L = (code_NL != usual_L).any(axis=0) | (code_TL != usual_L).any(axis=0)
    usual_L = usual_L[varies_L]
    code_LT = code_TL[:, varies_L].T.copy()
    number = np.min_scalar_type(len(usual_L))
    distance = np.full(len(code_NL), FARTHEST, np.int64)
    index = np.zeros(len(code_NL), np.int64)
    for start in range(0, len(code_NL), QUERIES):
        code_CL = code_NL[start : start + QUERIES, varies_L]
        unusual_CU, place_U, letter_U = unusual_letters(code_CL, usual_L, number)
        step = max(LEAST_BLOCK, TABLE_BYTES // (number.itemsize * (len(letter_U) + 1)))
        parts = range(0, len(code_CL), QUERIES_AT_ONCE)
        parts_QU = [unusual_CU[part : part + QUERIES_AT_ONCE] for part in parts]
        for first in range(0, code_LT.shape[1], step):
            code_LB = code_LT[:, first : first + step]
            differs_LB = code_LB != usual_L[:, None]
            more_UB = (code_LB[place_U] != letter_U[:, None]).astype(number)
            more_UB -= differs_LB[place_U]
            usual_B = differs_LB.sum(axis=0, dtype=number)
            for part, part_QU in zip(parts, parts_QU, strict=True):
                count_QB = part_QU @ more_UB
                count_QB += usual_B
                rows = start + part + np.arange(len(count_QB))
                nearest = count_QB.argmin(axis=1)
                least = count_QB[np.arange(len(rows)), nearest]
                is_nearer = least < distance[rows]  # of equal ones the first stays
                distance[rows[is_nearer]] = least[is_nearer]
                index[rows[is_nearer]] = first + nearest[is_nearer]
    return Nearest(distance, index)


class Distances:
    """Find the nearest of T sequences for N others of one kind, or for each other.

    Within one set of sequences, what was aligned is kept: folds ask for the same pairs again.
    """

    def __init__(
        self, kind: Kind, queries: Sequence[Chains], targets: Sequence[Chains] | None = None
    ) -> None:
        is_among = targets is None
        targets = queries if targets is None else targets
        if kind == "antigen":
            queries = [*map(by_length, queries)]
            targets = queries if is_among else [*map(by_length, targets)]
        n_places = max(map(len, [*queries, *targets]), default=0)
        self._query_NP = _padded(queries, n_places)
        self._target_TP = self._query_NP if is_among else _padded(targets, n_places)
        self._lengths_NP = _lengths(self._query_NP)
        self._lengths_TP = self._lengths_NP if is_among else _lengths(self._target_TP)
        self._words: list[tuple[Words, Words]] | None = None
        self._aligned_NN: NDArray[np.int32] | None = None
        if is_among and len(queries) ** 2 <= KEPT_CELLS:
            # 0: not aligned yet; below 0: the distance is this large at least
            self._aligned_NN = np.zeros((len(queries), len(queries)), np.int32)

    def nearest(self, rows: Ints, columns: Ints) -> Nearest:
        """Find the nearest of some of the T for some of the N, given their indices."""
        return self.nearest_of_other_lengths(rows, columns, self.nearest_as_long(rows, columns))

    def nearest_as_long(self, rows: Ints, columns: Ints) -> Nearest:
        """Find the nearest of those whose chains are as long; `NONE` without any."""
        found = Nearest(np.full(len(rows), NONE), np.full(len(rows), NONE))
        trained = _rows_by_lengths(self._lengths_TP[columns])
        for lengths, members in _rows_by_lengths(self._lengths_NP[rows]).items():
            if lengths in trained:
                alike = columns[trained[lengths]]
                code_NL = letters_of(self._query_NP[rows[members]].sum(axis=1))
                code_TL = letters_of(self._target_TP[alike].sum(axis=1))
                nearest = _by_positions(code_NL, code_TL)
                found.distance[members] = nearest.distance
                found.row[members] = alike[nearest.row]
        return found

    def nearest_of_other_lengths(self, rows: Ints, columns: Ints, found: Nearest) -> Nearest:
        """Replace what `nearest_as_long` found where sequences of other lengths are nearer."""
        best = Nearest(np.where(found.row == NONE, FARTHEST, found.distance), found.row.copy())
        are_open = np.flatnonzero(best.distance > 1)  # those of other lengths differ by 1 at least
        for of_lengths in _rows_by_lengths(self._lengths_NP[rows[are_open]]).values():
            self._compare(rows, columns, best, are_open[of_lengths])
        best.distance[best.row == NONE] = NONE
        return best

    def _compare(self, rows: Ints, columns: Ints, best: Nearest, members: Ints) -> None:
        """Compare those `members` of the rows, which have the same lengths, with other lengths."""
        lengths_P = self._lengths_NP[rows[members[0]]]
        lengths_TP = self._lengths_TP[columns]
        # lengths bound the distance from below
        are_both = (lengths_P > 0) & (lengths_TP > 0)
        is_lone = (lengths_P > 0) != (lengths_TP > 0)
        of_chains = np.where(are_both, np.abs(lengths_P - lengths_TP), LONE_CHAIN * is_lone)
        least_T = np.where(are_both.any(axis=1), of_chains.sum(axis=1), FARTHEST)
        is_as_long = (lengths_TP == lengths_P).all(axis=1)
        others = np.flatnonzero(~is_as_long & (least_T < best.distance[members].max()))
        others = others[np.argsort(least_T[others], kind="stable")]
        # sorted: the sequences of a block need about the same part of the others
        members = members[np.argsort(best.distance[members], kind="stable")]
        step = max(1, BLOCK_CELLS // max(len(others), 1))
        for start in range(0, len(members) if len(others) else 0, step):
            block = members[start : start + step]
            most = int(best.distance[block].max()) - 1
            near = columns[others[: int(np.searchsorted(least_T[others], most, side="right"))]]
            if len(near):
                distance, row = self._compare_block(rows[block], near, best.distance[block])
                is_nearer = distance < best.distance[block]
                best.distance[block[is_nearer]] = distance[is_nearer]
                best.row[block[is_nearer]] = row[is_nearer]

    def _compare_block(self, rows: Ints, others: Ints, distance: Ints) -> Nearest:
        """Find the nearest of B others for C rows, those at least that are nearer than `distance`.

        Of equally near ones the first counts: a key is a distance and the place among the others in
        one number.
        """
        n = len(others)
        best = distance * n
        key_CB = self._bounds(rows, others) * n + np.arange(n)
        row = np.arange(len(rows))
        closest = key_CB.argmin(axis=1)
        possible = key_CB[row, closest] < best
        self._align(rows, others, row[possible], closest[possible], best)
        key_CB[row, closest] = FARTHEST * n
        query, other = np.nonzero(key_CB < best[:, None])
        key = key_CB[query, other]
        order = np.lexsort((key, query))
        query = query[order]
        other = other[order]
        key = key[order]
        number = np.arange(len(query)) - np.searchsorted(query, query)  # among those of its row
        most = CLOSEST
        while len(query):
            chosen = number < most
            self._align(rows, others, query[chosen], other[chosen], best)
            left = ~chosen & (key < best[query])
            query = query[left]
            other = other[left]
            key = key[left]
            number = number[left]
            most *= CLOSEST
        return Nearest(best // n, others[best % n])

    def _bounds(self, rows: Ints, others: Ints) -> Ints:
        """Bound distances from below by pairs of neighbouring residues, (C, B)."""
        if self._words is None:
            pairs = zip(self._query_NP.T, self._target_TP.T, strict=True)
            self._words = [(_words_of(queries), _words_of(targets)) for queries, targets in pairs]
        lone_B = np.zeros(len(others), np.int64)
        compared = []
        for place, (words_NW, words_TW) in enumerate(self._words):
            is_there = self._lengths_NP[rows[0], place] > 0  # in all C
            is_there_B = self._lengths_TP[others, place] > 0
            lone_B += LONE_CHAIN * (is_there != is_there_B)
            if not is_there:
                continue
            words_WB = words_TW[others].T.copy()  # each word of all B in one piece
            for word_C, word_B in zip(words_NW[rows].T, words_WB, strict=True):
                if (word_C != word_C[0]).any() or (word_B != word_C[0]).any():
                    compared.append((word_C, word_B, is_there_B))
        bound_CB = np.empty((len(rows), len(others)), np.int64)
        step = max(1, CACHED_CELLS // len(others))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            bits_QB = np.zeros(bound_CB[part].shape, np.uint16)
            for word_C, word_B, is_there_B in compared:
                count_QB = np.bitwise_count(word_C[part, None] ^ word_B)
                if not is_there_B.all():
                    count_QB *= is_there_B
                bits_QB += count_QB
            bits_QB += BITS_PER_EDIT - 1
            bound_CB[part] = bits_QB // BITS_PER_EDIT + lone_B
        return bound_CB

    def _align(self, rows: Ints, others: Ints, query: Ints, other: Ints, best: Ints) -> None:
        """Lower the best keys of C sequences by those of K pairs with B others."""
        if not len(query):
            return
        i = rows[query]
        j = others[other]
        most = int(best[query].max()) // len(others)
        if self._aligned_NN is None:
            edits = _edits(self._query_NP[i], self._target_TP[j], most)
        else:
            known = self._aligned_NN[i, j]
            new = np.flatnonzero((known <= 0) & (-known <= most))
            found = _edits(self._query_NP[i[new]], self._target_TP[j[new]], most)
            found[found > most] *= -1
            self._aligned_NN[i[new], j[new]] = found
            self._aligned_NN[j[new], i[new]] = found
            edits = np.abs(self._aligned_NN[i, j].astype(np.int64))
        np.minimum.at(best, query, edits * len(others) + other)


def _words_of(chains: NDArray[np.object_]) -> Words:
    """Return the profile of each of N chains, (N, W)."""
    unique, index = np.unique(chains, return_inverse=True)
    return profile_words(unique)[index]


def _edits(query_KP: NDArray[np.object_], target_KP: NDArray[np.object_], most: int) -> Ints:
    """Return the distances of K pairs of sequences, (K,); any larger above `most`."""
    total = np.zeros(len(query_KP), np.int64)
    for queries, targets in zip(query_KP.T, target_KP.T, strict=True):
        length = lengths_of(queries)
        other_length = lengths_of(targets)
        total += LONE_CHAIN * ((length > 0) != (other_length > 0))
        are_both = (length > 0) & (other_length > 0)
        are_as_long = length == other_length
        for in_place in (True, False):
            pairs = np.flatnonzero(are_both & (are_as_long == in_place) & (queries != targets))
            if len(pairs):
                total[pairs] += whole_distances(
                    queries[pairs], targets[pairs], most, in_place=in_place
                )
    return total
