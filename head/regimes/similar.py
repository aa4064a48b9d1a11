"""Connected components of near-duplicates, exact.

Whole strings are compared by edit distance, and the shorter of two antigens is aligned inside the
longer: each row of the table of edit distances is two Python integers, whose bits run along all
texts and say where the distance grows or shrinks by one (Myers, J. ACM 46, 1999; Hyyrö, Nordic J.
Computing 10, 2003). Pairs are skipped that lower bounds exclude, by their longest common
subsequence, founders of families of variants, edlib or the first rows of the table; or that already
share a component. N strings, T texts, K pairs, C rows and B columns of a block of pairs, L
residues, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from abag.core.arrays import Bools, Floats, Ints, Matrix
from abag.core.cores import count_cores, limit_blas
from abag.core.messages import bar
from abag.embed.tables.chains import STANDARD_RESIDUES

try:  # not on every platform: it only saves time
    import edlib
except ImportError:
    edlib = None

Strings: TypeAlias = NDArray[np.object_]
Pairs: TypeAlias = list[tuple[int, int]]

BLOCK = 1 << 15
"""Residues of one block of texts: in more, short patterns occur by chance."""
UNRELATED = 0.7
"""Edits per residue of a pattern inside an unrelated text; at most 1 in 100 have fewer."""
COMMON = 0.36
"""Share of a pattern that an unrelated text of its length has in common with it, in order."""
COMMON_PER_LENGTH = 0.2
"""How much more if the text is longer by one length of the pattern."""
FIRST_PATTERNS = 32
"""Compared before the others, because they join most of each family."""
SUBSTITUTED = 0.04
"""Largest share of substitutions in a family: with more, unrelated families would not be far."""
PARTS = 64
"""Of the patterns, for the threads; each knows what those before it have joined."""
SPACER = ord("-")
_BITS = np.arange(256)[:, None] >> np.arange(8) & 1
_STEPS = (_BITS[:, None] - _BITS[None]).cumsum(axis=2)  # of a byte that grows and one that shrinks
_TOTAL = _STEPS[..., -1].astype(np.int16).ravel()
_LEAST = _STEPS.min(axis=2).astype(np.int16).ravel()


def count_edits(lengths: Ints, identity: Floats | float) -> Ints:
    """Return the edits up to which others are near-duplicates of strings of N lengths, (N,)."""
    # 1e-9, because (1 - 0.9) * 10 is 0.9999999999999998
    return np.asarray(np.floor((1 - identity) * lengths + 1e-9), np.int64)


def lengths_of(strings: Sequence[str] | Strings) -> Ints:
    """Return the length of each of N strings, (N,)."""
    return np.fromiter(map(len, strings), np.int64, len(strings))


def letters_of(strings: Sequence[str] | Strings) -> NDArray[np.uint8]:
    """Return the letters of N strings of one length, as ASCII codes, (N, L)."""
    text = "".join(strings).encode("ascii")
    return np.frombuffer(text, np.uint8).reshape(len(strings), -1 if len(strings) else 0)


def unusual_letters(
    code_NL: NDArray[np.uint8], usual_L: NDArray[np.uint8], dtype: np.dtype[Any]
) -> tuple[sparse.csr_array, Ints, NDArray[np.uint8]]:
    """Mark where N sequences have other letters than the usual ones.

    Returns a 1 for each of U such letters at a position that a sequence has, (N, U), and of these
    letters the positions, ascending, and the codes, (U,) each.
    """
    row, place = np.nonzero(code_NL != usual_L)
    letters, column = np.unique(place * 256 + code_NL[row, place], return_inverse=True)
    place_U, letter_U = np.divmod(letters, 256)
    ends = np.searchsorted(row, np.arange(len(code_NL) + 1))
    ones = np.ones(len(row), dtype)
    marks_NU = sparse.csr_array((ones, column, ends), (len(code_NL), len(letters)))
    return marks_NU, place_U, letter_U.astype(np.uint8)


def length_order(strings: Strings) -> Ints:
    """Return the order of N strings by length, (N,); those of one length stay in order."""
    return np.argsort(lengths_of(strings), kind="stable")


class Block:
    """Lay T texts side by side, each after a spacer and up to the end of a byte."""

    def __init__(self, texts: Sequence[str]) -> None:
        sizes = lengths_of(texts) // 8 + 1
        self._begins = np.cumsum(sizes) - sizes
        padded = []
        for text, size in zip(texts, sizes.tolist(), strict=True):
            padded.append(f"-{text}".ljust(8 * size, "-"))
        self._text = "".join(texts)
        codes = np.frombuffer("".join(padded).encode("ascii"), np.uint8)
        self._n_bytes = int(sizes.sum())
        self._residues = _as_integer(codes != SPACER)
        letters = np.unique(codes[codes != SPACER])
        self._places = {chr(code): _as_integer(codes == code) for code in letters.tolist()}

    def distances(self, pattern: str) -> Ints:
        """Return the fewest edits that turn a pattern into a part of each text, (T,)."""
        residues = self._residues
        places = self._places
        grows = shrinks = 0  # along the text; the first row is 0 everywhere
        for letter in pattern:
            equal = places.get(letter, 0)
            # where the distance is that of the pair of residues before
            diagonal = ((((equal & grows) + grows) ^ grows) | equal | shrinks) & residues
            # from row to row, one residue on: where it does not grow, and where it shrinks
            no_more = ((diagonal | grows) ^ shrinks) << 1
            less = (diagonal & grows) << 1
            both = diagonal & no_more
            shrinks = diagonal ^ both
            grows = (less | (no_more ^ both)) & residues
        index = self._as_bytes(grows).astype(np.uint16) << 8 | self._as_bytes(shrinks)
        total = _TOTAL[index]
        before = np.cumsum(total, dtype=np.int64) - total
        lowest = np.minimum.reduceat(before + _LEAST[index], self._begins) - before[self._begins]
        return np.asarray(len(pattern) + np.minimum(lowest, 0))

    def may_have(self, pattern: str, edits: int) -> bool:
        """Return whether a pattern is inside the texts, in sequence, with so many edits."""
        result = edlib.align(pattern, self._text, mode="HW", task="distance", k=edits)
        return bool(result["editDistance"] >= 0)

    def _as_bytes(self, bits: int) -> NDArray[np.uint8]:
        return np.frombuffer(bits.to_bytes(self._n_bytes, "little"), np.uint8)


def _as_integer(bits: Bools) -> int:
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


class Texts:
    """Hold T strings, sorted by length, inside which others are aligned."""

    def __init__(self, strings: Strings, identity: float) -> None:
        self.strings = strings
        self.identity = identity
        self.lengths = lengths_of(strings)
        # 8 more at most: a spacer, and the rest of a byte
        ends = np.cumsum(self.lengths + 8) // BLOCK
        bounds = np.flatnonzero(np.diff(ends, prepend=-1, append=-1))
        self._parts = [slice(begin, end) for begin, end in pairwise(bounds.tolist())]
        self._blocks: dict[int, Block] = {}  # threads may fill it twice, with the same

    def near(self, pattern: str, wanted: Bools, more: Ints | None = None) -> Iterator[Ints]:
        """Yield which of the wanted texts, (T,), none shorter, have a pattern inside.

        Texts may become unwanted meanwhile. `more` are edits beyond those of near-duplicates, (T,).
        """
        edits = np.repeat(count_edits(lengths_of([pattern]), self.identity), len(wanted))
        if more is not None:
            edits += more
        possible = self._have_enough(pattern, edits, wanted)
        for part in self._parts:
            rows = part.start + np.flatnonzero(possible[part] & wanted[part])
            if len(rows):
                near = self._inside(pattern, edits, part, rows)
                yield rows[near]

    def _have_enough(self, pattern: str, edits: Ints, wanted: Bools) -> Bools:
        """Exclude texts of similar length that have too little in common with a pattern."""
        from rapidfuzz.distance import LCSseq
        from rapidfuzz.process import cdist

        longer = max(0.0, (self.identity - COMMON) / COMMON_PER_LENGTH)
        rows = np.flatnonzero(wanted & (self.lengths <= len(pattern) * (1 + longer)))
        possible = wanted.copy()
        if len(rows):
            least = len(pattern) - edits[rows]
            common = cdist(
                [pattern],
                self.strings[rows].tolist(),
                scorer=LCSseq.similarity,
                score_cutoff=max(0, int(least.min())),
                dtype=np.int32,
            )[0]
            possible[rows] = common >= least
        return possible

    def _inside(self, pattern: str, edits: Ints, part: slice, rows: Ints) -> Bools:
        size = part.stop - part.start
        if 2 * len(rows) < size:  # few are wanted: a block of these alone
            strings = self.strings[rows]
            return _near_in(Block(strings.tolist()), strings, pattern, edits[rows])
        if part.start not in self._blocks:
            self._blocks[part.start] = Block(self.strings[part].tolist())
        near = _near_in(self._blocks[part.start], self.strings[part], pattern, edits[part])
        return np.asarray(near[rows - part.start])


def _near_in(block: Block, strings: Strings, pattern: str, edits: Ints) -> Bools:
    """Return which texts of a block have a pattern inside with so many edits, (T,)."""
    most = int(edits.max())
    if edlib is not None and not block.may_have(pattern, most):
        return np.zeros(len(strings), np.bool_)
    first = int(most / UNRELATED) + 1
    near = block.distances(pattern[:first]) <= edits  # a part of a pattern takes no more edits
    if first < len(pattern) and near.any():
        rest = block if near.all() else Block(strings[near].tolist())
        near[near] = rest.distances(pattern) <= edits[near]
    return near


class Families:
    """Group strings that differ from a founder of their length by few substitutions.

    Members differ by no fewer edits than their founders, less the substitutions of both.
    """

    def __init__(self, texts: Texts) -> None:
        most = (SUBSTITUTED * texts.lengths).astype(np.int64)
        founders, self._family, changes = _families(texts.strings, most)
        self._changes = np.zeros(len(founders), np.int64)
        np.maximum.at(self._changes, self._family, changes)
        self._founders = Texts(texts.strings[founders], texts.identity)
        self._compared: dict[int, tuple[Bools, Bools]] = {}

    def possible(self, i: int, wanted: Bools) -> Bools:
        """Exclude texts whose founder is too far from that of a pattern, (N,)."""
        families = np.zeros(len(self._changes), np.bool_)
        families[self._family[wanted]] = True
        if 2 * np.count_nonzero(families) > np.count_nonzero(wanted):
            return wanted  # founders are about as many
        family = int(self._family[i])
        none = np.zeros(len(families), np.bool_)
        compared, possible = self._compared.setdefault(family, (none, none.copy()))
        families &= ~compared
        if families.any():
            more = self._changes[family] + self._changes
            for rows in self._founders.near(self._founders.strings[family], families, more):
                possible[rows] = True
            compared |= families  # last: other threads compare again what is not marked yet
        return wanted & possible[self._family]


def contained_components(strings: Strings, identity: float) -> Ints:
    """Return the component of each of N strings, sorted by length, aligned inside later ones."""
    n = len(strings)
    texts = Texts(strings, identity)
    founders, family, _ = _families(strings, count_edits(texts.lengths, identity))
    labels = founders[family]
    if (labels == labels[0]).all():  # variants of one antigen
        return labels
    families = Families(texts)
    first = np.unique(np.linspace(0, n - 1, FIRST_PATTERNS, dtype=np.int64))
    _join(labels, _near_pairs(texts, families, labels, first))
    rest = np.setdiff1d(np.arange(n), first)
    # every PARTS-th: each part has patterns of all lengths, and takes about as long
    parts = [rest[at::PARTS] for at in range(min(PARTS, len(rest)))]
    with (
        ThreadPoolExecutor(count_cores()) as threads,  # edlib and rapidfuzz release the lock
        bar(desc="clusters", total=len(parts), unit=" parts", delay=2) as drawn,
    ):
        for pairs in threads.map(partial(_near_pairs, texts, families, labels), parts):
            _join(labels, pairs)
            drawn.update()
    return labels


def _near_pairs(texts: Texts, families: Families, labels: Ints, patterns: Ints) -> Pairs:
    """Find pairs of strings that join all components that any of the patterns would join."""
    labels = labels.copy()  # which the caller changes meanwhile
    pairs: Pairs = []
    for i in patterns.tolist():
        wanted = labels != labels[i]
        wanted[: i + 1] = False
        if not wanted.any():
            continue
        wanted = families.possible(i, wanted)
        for rows in texts.near(texts.strings[i], wanted):
            apart = rows[labels[rows] != labels[i]]
            near = [(i, j) for j in apart.tolist()]
            _join(labels, near)
            wanted &= labels != labels[i]
            pairs += near
    return pairs


def _join(labels: Ints, pairs: Pairs) -> None:
    for i, j in pairs:
        if labels[i] != labels[j]:
            labels[labels == labels[j]] = labels[i]


def contained_near(queries: Strings, targets: Strings, identity: float) -> Bools:
    """Return which of N strings have a near-duplicate among others by alignment inside, (N,).

    The shorter of two is aligned inside the longer, as in `contained_components`.
    """
    unique, index = np.unique(queries, return_inverse=True)
    order = length_order(unique)
    unique = unique[order]
    others = np.unique(targets)
    others = others[length_order(others)]
    is_near = np.zeros(len(unique), np.bool_)
    texts = Texts(others, identity)
    for at, query in enumerate(unique):
        wanted = texts.lengths >= len(query)
        is_near[at] = any(map(len, texts.near(query, wanted)))  # until the first
    texts = Texts(unique, identity)
    for other in others:
        if is_near.all():
            break
        wanted = ~is_near & (texts.lengths > len(other))
        for rows in texts.near(other, wanted):
            is_near[rows] = True
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return np.asarray(is_near[rank[index]])


def _families(strings: Strings, most: Ints) -> tuple[Ints, Ints, Ints]:
    """Group N strings of equal length that differ from a founder by so many substitutions, (N,).

    Returns the founder of each family, and of each string its family and its substitutions, (N,).
    """
    founder = np.arange(len(strings))
    changes = np.zeros(len(strings), np.int64)
    lengths = lengths_of(strings)
    for length in np.unique(lengths).tolist():
        free = np.flatnonzero(lengths == length)
        residues = letters_of(strings[free])
        while len(free):
            differ = np.count_nonzero(residues != residues[0], axis=1)
            near = differ <= most[free[0]]
            founder[free[near]] = free[0]
            changes[free[near]] = differ[near]
            free = free[~near]
            residues = residues[~near]
    founders, family = np.unique(founder, return_inverse=True)
    return founders, family, changes


Words: TypeAlias = NDArray[np.uint64]

NEIGHBOURS = 8
"""Others with which each string is compared before all pairs are."""
FEW_QUERIES = 64
"""Strings up to which all others are compared at once: profiles of 110,000 take seconds."""
CLOSEST = 4
"""Candidates of each string that are aligned at a time, until one is a near-duplicate."""
ROWS = 512
"""Rows of a block of pairs, which limits memory."""
COLUMNS = 4096
"""Columns of a block of pairs, which limits memory."""
BATCH_PAIRS = 1 << 15
"""Pairs that are aligned before it is looked which others are still worth it."""
BITS = 832
"""Of a profile: two for each pair of 20 residues, rounded up to words of 64."""
BITS_PER_EDIT = 4
"""A substitution removes two pairs of residues and adds two."""
SAMPLE = 8192
"""Strings whose principal components become the axes; up to twice as many are not projected."""
DIMENSIONS = 256
"""With 128 axes most pairs of random antibodies pass the bound (`bench_clusters.py`)."""
ROUNDING = 0.5
"""More than the error of `Profiles.distances`."""
PART = 2048
"""Strings or pairs that are unpacked at a time."""
_RESIDUES = len(STANDARD_RESIDUES)
_NUMBER = np.zeros(128, np.int64)  # of a residue; others count as A, which adds no difference
_NUMBER[[ord(letter) for letter in STANDARD_RESIDUES]] = np.arange(_RESIDUES)


def cluster(
    strings: Sequence[str] | Strings,
    identity: float,
    *,
    contained: bool = False,
    queries: Bools | None = None,
    joined: Ints | None = None,
) -> Ints:
    """Cluster N strings, none empty, by single linkage: numbers by first appearance, (N,).

    Only pairs with one of the `queries`, (N,), are compared, none inside `joined` clusters, (N,).
    """
    if not len(strings):
        return np.zeros(0, np.int64)
    unique, first, index = np.unique(
        np.asarray(strings, dtype=object), return_index=True, return_inverse=True
    )
    labels = np.empty(len(unique), np.int64)
    if contained:
        order = length_order(unique)
        labels[order] = contained_components(unique[order], identity)
    else:
        is_query = np.full(len(unique), queries is None)
        if queries is not None:
            is_query[index[queries]] = True
        order = np.argsort(~is_query, kind="stable")
        search = WholeStrings(unique[order], identity)
        if joined is not None:
            search.labels = number_by_appearance(joined[first][order])
        labels[order] = search.find(int(is_query.sum()))
    return number_by_appearance(labels[index])


def number_by_appearance(labels: Ints) -> Ints:
    """Renumber labels in the order of their first appearance, shape (N,), dtype int64."""
    return pd.factorize(labels)[0].astype(np.int64)


def join_clusters(n: int, groupings: Sequence[tuple[Ints, Ints]]) -> Ints:
    """Return the components of n items that are joined by any grouping: items, group ids."""
    items = list[Ints]()
    nodes = list[Ints]()
    used = n
    for members, labels in groupings:
        items.append(members)
        nodes.append(labels + used)
        used += int(labels.max(initial=-1)) + 1
    components = _components(used, np.concatenate(items), np.concatenate(nodes))
    return number_by_appearance(components[:n])


def _components(n: int, i: Ints, j: Ints) -> Ints:
    graph = sparse.coo_array((np.ones(len(i)), (i, j)), (n, n))
    return np.asarray(sparse.csgraph.connected_components(graph, directed=False)[1], np.int64)


class Components:
    """Join N strings by near-duplicates; a subclass bounds their distances."""

    def __init__(self, strings: Strings, identity: float) -> None:
        self.strings = strings
        self.edits = count_edits(lengths_of(strings), identity)
        self.labels = np.arange(len(strings))

    def allowed(self, i: Ints, j: Ints) -> Ints:
        """Return the edits up to which pairs are near-duplicates, by the longer string, (K,)."""
        return np.maximum(self.edits[i], self.edits[j])

    def bounds(self, i: Ints, j: Ints) -> NDArray[np.number]:
        """Bound the edits between C strings i and B strings j from below, (C, B)."""
        raise NotImplementedError

    def tighter(self, i: Ints, j: Ints) -> Ints:
        """Bound the edits of K pairs from below, (K,), in more time than `bounds`, not aligning."""
        raise NotImplementedError

    def find(self, first: int | None = None) -> Ints:
        """Return the component of each string, comparing the pairs with one of the first ones."""
        # neighbours in sorted order first: in a library of variants this joins nearly all
        n = len(self.strings)
        first = n if first is None else first
        for step in range(1, NEIGHBOURS + 1):
            i = np.arange(min(first, n - step))
            self._compare(i, i + step)
        blocks = []
        for row in range(0, first, ROWS):
            rows = np.arange(row, min(row + ROWS, first))
            for column in range(row, n, COLUMNS):
                blocks.append((rows, np.arange(column, min(column + COLUMNS, n))))
        with bar(desc="clusters", total=len(blocks), unit=" tiles", delay=2) as drawn:
            for i, j, least in self._candidates(blocks):
                drawn.update()
                order = np.argsort(least, kind="stable")  # the closest make others superfluous
                for at in range(0, len(order), BATCH_PAIRS):
                    batch = order[at : at + BATCH_PAIRS]
                    self._compare(i[batch], j[batch])
        return self.labels

    def near_first(self, first: int) -> Bools:
        """Return which of the first strings have a near-duplicate among the others, (first,)."""
        starts = range(0, first, ROWS)
        with (
            limit_blas(1),  # each block has a thread already
            ThreadPoolExecutor(count_cores()) as threads,
            bar(desc="recognition", total=len(starts), unit=" tiles", delay=2) as drawn,
        ):
            is_near = np.zeros(first, np.bool_)
            blocks = threads.map(partial(self._near, first), starts)
            for start, block in zip(starts, blocks, strict=True):
                is_near[start : start + ROWS] = block
                drawn.update()
        return is_near

    def _near(self, first: int, start: int) -> Bools:
        """Return which strings of a block have a near-duplicate among those after the first."""
        is_near = np.zeros(min(ROWS, first - start), np.bool_)
        for column in range(first, len(self.strings), COLUMNS):
            rows = start + np.flatnonzero(~is_near)
            if not len(rows):
                break
            columns = np.arange(column, min(column + COLUMNS, len(self.strings)))
            self._mark(is_near, start, *self._possible((rows, columns)))
        return is_near

    def _mark(self, is_near: Bools, start: int, i: Ints, j: Ints, least: Ints) -> None:
        """Align pairs of a block until each string has a near-duplicate, the closest first."""
        order = np.lexsort((least, i))
        i = i[order]
        j = j[order]
        while len(i):
            number = np.arange(len(i)) - np.searchsorted(i, i)  # among the pairs of its string
            closest = number < CLOSEST
            allowed = self.allowed(i[closest], j[closest])
            # one worker: each block has its own thread already
            distance = whole_distances(
                self.strings[i[closest]], self.strings[j[closest]], int(allowed.max()), workers=1
            )
            is_near[i[closest][distance <= allowed] - start] = True
            left = ~closest & ~is_near[i - start]
            i = i[left]
            j = j[left]

    def _compare(self, i: Ints, j: Ints) -> None:
        i, j, _ = self._worth_aligning(i, j)
        if len(i):
            allowed = self.allowed(i, j)
            distance = whole_distances(self.strings[i], self.strings[j], int(allowed.max()))
            near = distance <= allowed
            if near.any():
                labels = self.labels
                self.labels = _components(len(labels), labels[i[near]], labels[j[near]])[labels]

    def _worth_aligning(self, i: Ints, j: Ints) -> tuple[Ints, Ints, Ints]:
        apart = self.labels[i] != self.labels[j]
        i = i[apart]
        j = j[apart]
        least = self.tighter(i, j)
        possible = least <= self.allowed(i, j)
        return i[possible], j[possible], least[possible]

    def _candidates(self, blocks: Sequence[tuple[Ints, Ints]]) -> Iterator[tuple[Ints, ...]]:
        """Yield pairs that could be near-duplicates, with lower bounds, block after block."""
        # Blocks side by side, one thread each: 10 s for 110,000 antibodies on 16 cores; one after
        # the other on all cores 24 s. Few are begun at a time, because all found pairs wait.
        cores = count_cores()
        with limit_blas(1), ThreadPoolExecutor(cores) as threads:
            for at in range(0, len(blocks), cores):
                yield from threads.map(self._possible, blocks[at : at + cores])

    def _possible(self, block: tuple[Ints, Ints]) -> tuple[Ints, ...]:
        rows, columns = block
        labels = self.labels  # others join meanwhile: at worst, a pair is found in vain
        if (labels[rows] == labels[rows[0]]).all():
            columns = columns[labels[columns] != labels[rows[0]]]
        if not len(columns):
            return columns, columns, columns
        most = max(self.edits[rows].max(), self.edits[columns].max())
        at_C, at_B = np.nonzero(self.bounds(rows, columns) <= most)
        i = rows[at_C]
        j = columns[at_B]
        return self._worth_aligning(i[i < j], j[i < j])


class WholeStrings(Components):
    """Join strings by their edit distance, relative to the longer one."""

    def __init__(self, strings: Strings, identity: float) -> None:
        super().__init__(strings, identity)
        self._profiles = Profiles(strings)

    def bounds(self, i: Ints, j: Ints) -> NDArray[np.number]:
        """Bound the edits by projected profiles, (C, B)."""
        distance_CB = self._profiles.distances(i, j)
        distance_CB -= ROUNDING
        distance_CB /= BITS_PER_EDIT
        return distance_CB

    def tighter(self, i: Ints, j: Ints) -> Ints:
        """Bound the edits of pairs by the bits of their profiles that differ, (K,)."""
        return np.asarray(-(-self._profiles.differing(i, j) // BITS_PER_EDIT))


def whole_near(queries: Strings, targets: Strings, identity: float) -> Bools:
    """Return which of N strings have a near-duplicate among T others by edit distance, (N,)."""
    unique, index = np.unique(queries, return_inverse=True)
    targets = np.unique(targets)
    if len(unique) > FEW_QUERIES and len(targets):
        near = WholeStrings(np.concatenate([unique, targets]), identity).near_first(len(unique))
    else:
        from rapidfuzz.distance import Levenshtein
        from rapidfuzz.process import cdist

        query_edits = count_edits(lengths_of(unique), identity)
        target_edits = count_edits(lengths_of(targets), identity)
        allowed = np.maximum(query_edits[:, None], target_edits)
        distance = cdist(
            unique.tolist(),
            targets.tolist(),
            scorer=Levenshtein.distance,
            score_cutoff=int(allowed.max(initial=0)),
            dtype=np.int32,
            workers=-1,
        )
        near = np.asarray((distance <= allowed).any(axis=1))
    return np.asarray(near[index])


class Clones(Components):
    """Join N heavy chains that are clones: CDR H3 of one length differ in few positions, too."""

    def __init__(
        self, heavies: Strings, identity: float, loops: Sequence[str], loop_identity: float
    ) -> None:
        super().__init__(heavies, identity)
        self._loops_LN = letters_of(loops).T.copy()
        self._most_changes = int((1 - loop_identity) * len(self._loops_LN) + 1e-9)

    def bounds(self, i: Ints, j: Ints) -> NDArray[np.number]:
        """Exclude pairs whose CDR H3 differ in too many positions, (C, B)."""
        changes_CB = np.zeros((len(i), len(j)), np.uint8)
        for letters in self._loops_LN:
            changes_CB += letters[i][:, None] != letters[j]
        return self._exclude(changes_CB)

    def tighter(self, i: Ints, j: Ints) -> Ints:
        """Exclude pairs as `bounds` does, (K,)."""
        return self._exclude((self._loops_LN[:, i] != self._loops_LN[:, j]).sum(axis=0))

    def _exclude(self, changes: NDArray[np.integer]) -> Ints:
        return np.where(changes <= self._most_changes, 0, self.edits.max() + 1)


class Profiles:
    """Tell which pairs of neighbouring residues occur in N strings, and which occur again.

    The bits that differ, or the squared distance between projections of them, bound the edits.
    """

    def __init__(self, strings: Strings) -> None:
        parts = [slice(at, at + PART) for at in range(0, len(strings), PART)]
        self._words = profile_words(strings)
        axes = self._axes() if len(strings) > 2 * SAMPLE else np.eye(BITS, dtype=np.float32)
        # beside each projection its squared length and a 1: `distances` is then one product
        self._x_ND = np.ones((len(strings), axes.shape[1] + 2), np.float32)
        for part in parts:
            x_CD = self.bits(part) @ axes
            self._x_ND[part, :-2] = x_CD
            np.einsum("CD,CD->C", x_CD, x_CD, out=self._x_ND[part, -2])

    def bits(self, rows: Ints | slice) -> Matrix:
        """Return the profiles of some strings as numbers 0 and 1, (C, `BITS`)."""
        return np.unpackbits(self._words[rows].view(np.uint8), axis=1).astype(np.float32)

    def differing(self, i: Ints, j: Ints) -> Ints:
        """Count the bits that differ between the two strings of each pair, (K,)."""
        differing = np.empty(len(i), np.int64)
        for at in range(0, len(i), PART):  # each pair takes over 200 bytes
            part = slice(at, at + PART)
            words = self._words[i[part]] ^ self._words[j[part]]
            differing[part] = np.bitwise_count(words).sum(axis=1)
        return differing

    def distances(self, i: Ints, j: Ints) -> Matrix:
        """Bound the bits that differ between strings i and j, (C, B), from below by projections."""
        y_BD = self._x_ND[j]
        square_B = y_BD[:, -2:-1]
        ones_B = y_BD[:, -1:]
        y_BD = np.concatenate([-2 * y_BD[:, :-2], ones_B, square_B], axis=1)
        return np.asarray(self._x_ND[i] @ y_BD.T)

    def _axes(self) -> Matrix:
        """Return the axes along which a sample of the profiles varies most, (`BITS`, D)."""
        sample = np.random.default_rng(0).permutation(len(self._words))[:SAMPLE]
        x_CD = self.bits(sample)
        x_CD -= x_CD.mean(axis=0)
        _, axes = np.linalg.eigh(x_CD.T @ x_CD)  # in ascending order
        return np.ascontiguousarray(axes[:, : -DIMENSIONS - 1 : -1])


def profile_words(strings: Strings) -> Words:
    """Return the bits of the profile of each of N strings, in W words, (N, W)."""
    parts = range(0, len(strings), PART)
    return np.concatenate([_pack(strings[part : part + PART].tolist()) for part in parts])


def _pack(strings: Sequence[str]) -> Words:
    codes = _NUMBER[np.frombuffer("".join(strings).encode("ascii"), np.uint8)]
    owner = np.repeat(np.arange(len(strings)), lengths_of(strings))
    within = owner[1:] == owner[:-1]
    pairs = owner[1:] * _RESIDUES**2 + codes[:-1] * _RESIDUES + codes[1:]
    counts = np.bincount(pairs[within], minlength=len(strings) * _RESIDUES**2)
    counts = counts.reshape(len(strings), -1)
    bits = np.packbits(np.concatenate([counts > 0, counts > 1], axis=1), axis=1)
    rest = BITS // 8 - bits.shape[1]  # up to whole words
    return np.pad(bits, ((0, 0), (0, rest))).view(np.uint64)


def whole_distances(
    first: Strings,
    second: Strings,
    largest: int | None = None,
    *,
    workers: int = -1,
    in_place: bool = False,
) -> Ints:
    """Compute the edit distances of K pairs of whole strings; above `largest` any larger number.

    `workers` is the number of threads, -1: all cores. With `in_place`, strings have equal lengths,
    and the positions at which they differ are counted.
    """
    from rapidfuzz.distance import Hamming, Levenshtein
    from rapidfuzz.process import cpdist

    distances = cpdist(
        first.tolist(),
        second.tolist(),
        scorer=Hamming.distance if in_place else Levenshtein.distance,
        score_cutoff=largest,
        dtype=np.int32,
        workers=workers,
    )
    return np.asarray(distances, np.int64)
