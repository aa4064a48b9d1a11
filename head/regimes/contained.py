"""Near-duplicates by aligning the shorter of two strings inside the longer, exact.

A pattern is aligned inside many texts at once: each row of the table of edit distances is two
Python integers, whose bits run along all texts and say where the distance grows or shrinks by one
(Myers, J. ACM 46, 1999; Hyyrö, Nordic J. Computing 10, 2003). Before that, texts are excluded by
their longest common subsequence, by founders of families of variants, and by edlib or the first
rows of the table. N strings, T texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Bools, Ints
from abag.core.cores import count_cores
from abag.core.messages import bar

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


def count_edits(lengths: Ints, identity: float) -> Ints:
    """Return the edits up to which others are near-duplicates of strings of N lengths, (N,)."""
    # 1e-9, because (1 - 0.9) * 10 is 0.9999999999999998
    return np.asarray(np.floor((1 - identity) * lengths + 1e-9), np.int64)


def lengths_of(strings: Sequence[str] | Strings) -> Ints:
    """Return the length of each of N strings, (N,)."""
    return np.fromiter(map(len, strings), np.int64, len(strings))


def by_length(strings: Strings) -> Ints:
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
    order = by_length(unique)
    unique = unique[order]
    others = np.unique(targets)
    others = others[by_length(others)]
    is_near = np.isin(unique, others)
    is_near |= _near_by_substitutions(unique, others, identity)
    texts = Texts(others, identity)
    for at in np.flatnonzero(~is_near).tolist():
        wanted = texts.lengths >= len(unique[at])
        is_near[at] = any(map(len, texts.near(unique[at], wanted)))  # until the first
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


def _near_by_substitutions(queries: Strings, targets: Strings, identity: float) -> Bools:
    """Return which of N strings differ from another of their length by few residues, (N,)."""
    is_near = np.zeros(len(queries), np.bool_)
    of_query = lengths_of(queries)
    of_target = lengths_of(targets)
    edits = count_edits(of_query, identity)
    for length in np.unique(of_query).tolist():
        others = np.flatnonzero(of_target == length)
        rows = np.flatnonzero(of_query == length)
        residues = _as_residues(queries[rows], length)
        for target in _as_residues(targets[others], length):
            if not len(rows):
                break
            near = np.count_nonzero(residues != target, axis=1) <= edits[rows]
            is_near[rows[near]] = True
            rows = rows[~near]
            residues = residues[~near]
    return is_near


def _as_residues(strings: Strings, length: int) -> NDArray[np.uint8]:
    text = "".join(strings).encode("ascii")
    return np.frombuffer(text, np.uint8).reshape(len(strings), length)


def _families(strings: Strings, most: Ints) -> tuple[Ints, Ints, Ints]:
    """Group N strings of equal length that differ from a founder by so many substitutions, (N,).

    Returns the founder of each family, and of each string its family and its substitutions, (N,).
    """
    founder = np.arange(len(strings))
    changes = np.zeros(len(strings), np.int64)
    lengths = lengths_of(strings)
    for length in np.unique(lengths).tolist():
        free = np.flatnonzero(lengths == length)
        residues = _as_residues(strings[free], length)
        while len(free):
            differ = np.count_nonzero(residues != residues[0], axis=1)
            near = differ <= most[free[0]]
            founder[free[near]] = free[0]
            changes[free[near]] = differ[near]
            free = free[~near]
            residues = residues[~near]
    founders, family = np.unique(founder, return_inverse=True)
    return founders, family, changes
