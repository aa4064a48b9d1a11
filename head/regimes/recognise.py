"""Tell what of a pair is new to a predictor, and which of its regimes applies.

A predictor keeps sketches of its training sequences that cannot be read back. Antibodies are
aligned by their IMGT numbering; of each position is kept whether there is a residue, and which of
eight classes of two or three residues it belongs to. Who has the file can test a guess, but has
some 2.5^N sequences to choose from. Residues that replace each other often are in different
classes, so that nearly all replaced residues are seen; an antibody counts as near only if it would
be one with as many unseen ones as chance may add.

Antigens have no common numbering. Of each chain is kept one bit per bin of one-permutation minwise
hashing of its 4-mers, from which follows the share of the 4-mers of the shorter chain that the
longer has.

N sequences that are asked about, T of training, P pairs, W words of 64 bits.

References
----------
Li and Koenig: b-bit minwise hashing, WWW 2010. Li, Owen and Zhang: One permutation hashing,
NeurIPS 2012.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Bools, Floats, Ints
from abag.embed.sequences.domains import ChainName, position_number
from abag.embed.sequences.numbering import CHAINS, Numbered, number_antibodies
from abag.head.regimes.clusters import CLONE_HEAVY, CLONE_LOOP, FIRST, LAST
from abag.head.regimes.library import GAP, SeenMutations, align, mix
from abag.head.regimes.regimes import REGIMES, Regime

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains, Kind

Words: TypeAlias = NDArray[np.uint64]

IDENTITY = 0.9
"""From which two antibodies are near-duplicates."""
CLASSES = ("SVW", "KH", "TFE", "GM", "ARY", "NL", "DIC", "QP")
"""Of residues; the number of a class has three bits."""
SEEN = 0.94
"""Share of replaced residues that change their class: 0.98 between antibodies of HIV, 0.92 if all
residues replace each other alike."""
DOUBT, CLONE_DOUBT = 0.5, 1.0
"""Standard deviations of the replaced residues that are not seen by which an antibody has to be
nearer than the limit. CDR H3 are short, so that clones cannot be told from others as well."""
SLOTS = 192
"""Places for positions of a chain: 128, and insertions."""
INSERTED = {111: (128, 24), 112: (152, 24)}
"""First place and number of places for the insertions of CDR3, in which long loops differ."""
OTHERS = (176, 16)
WORDS = SLOTS // 64
CLASS_BITS = 3
PLANES = 1 + CLASS_BITS
"""Bits per position: whether there is a residue, and its class."""
SIDE = PLANES * WORDS
"""Words of one chain."""
BINS, K = 2048, 4
HALF = BINS // 64
SHARED = 0.74
"""Share of common 4-mers from which antigens are near-duplicates. Edits spread at random leave 0.66
at 90 % identity; those of families of antigens are together, and leave more (envelope proteins of
HIV)."""
MOST_VARIABLE = (1, 0, 2)
"""Words of a chain in the order in which they tell most antibodies apart: that of CDR3 first."""
_BITS = np.zeros((CLASS_BITS, 128), np.bool_)  # of the class of a residue; X has the first one
for _number, _residues in enumerate(CLASSES):
    for _bit in range(CLASS_BITS):
        _BITS[_bit, [ord(letter) for letter in _residues]] = bool(_number >> _bit & 1)
_loop = np.zeros(SLOTS, np.bool_)
_loop[FIRST - 1 : LAST] = True
for _first, _places in INSERTED.values():
    _loop[_first : _first + _places] = True
LOOP = np.packbits(_loop, bitorder="little").view(np.uint64)
"""The places of CDR3, (`WORDS`,)."""
LOOP_WORDS = (1, 2)
"""The words that have places of CDR3."""
EVERYWHERE = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True)
class SeenSequences:
    """Sketches of the training sequences of one kind."""

    kind: Kind
    digests: Words
    """Sorted digests of the sequences, (T,), for those that have no sketch."""
    sketch: Words
    """Shape (C, W); of antibodies with a domain, or of the chains of antigens."""

    @classmethod
    def of(
        cls,
        kind: Kind,
        chains: Sequence[Chains],
        numbered: Mapping[ChainName, Numbered] | None = None,
    ) -> SeenSequences:
        """Sketch the T sequences of a training set; `numbered` has antibodies and any others."""
        sketch, _ = _sketch(kind, chains, numbered)
        return cls(kind, np.unique(_digests(chains)), np.unique(sketch, axis=0))

    def near(self, chains: Sequence[Chains]) -> Bools:
        """Return which of N sequences have a near-duplicate in training, (N,)."""
        found = np.isin(_digests(chains), self.digests)
        sketch, owner = _sketch(self.kind, chains)
        seen = (_Antibodies if self.kind == "antibody" else _Chains)(self.sketch)
        for row, number in zip(sketch, owner.tolist(), strict=True):
            found[number] = found[number] or seen.has_near(row)
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `load` needs."""
        return {"digests": self.digests, "sketch": self.sketch}

    @classmethod
    def load(cls, kind: Kind, arrays: Mapping[str, NDArray[Any]]) -> SeenSequences:
        """Restore from arrays of a file; ValueError if they are not those of `arrays`."""
        width = len(CHAINS) * SIDE if kind == "antibody" else 2 * HALF
        digests, sketch = arrays["digests"], arrays["sketch"]
        words = digests.dtype == sketch.dtype == np.uint64
        if not words or digests.ndim != 1 or sketch.ndim != 2 or sketch.shape[1] != width:
            msg = f"the sketches of {kind} sequences have shapes {digests.shape}, {sketch.shape}"
            raise ValueError(msg)
        return cls(kind, digests, sketch)


def _digests(chains: Sequence[Chains]) -> Words:
    """Digest whole sequences, (N,)."""
    texts = ("|".join(one).encode() for one in chains)
    joined = b"".join(blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(joined, np.uint64)


def _sketch(
    kind: Kind,
    chains: Sequence[Chains],
    numbered: Mapping[ChainName, Numbered] | None = None,
) -> tuple[Words, NDArray[np.int64]]:
    """Return sketches, (C, W), and the sequence of each, (C,)."""
    if kind == "antigen":
        owner = np.array([n for n, one in enumerate(chains) for c in one if len(c) >= K], np.int64)
        found = [_bins(chain) for one in chains for chain in one if len(chain) >= K]
        return np.array(found, np.uint64).reshape(-1, 2 * HALF), owner
    numbered = numbered or number_antibodies(chains, None)
    sketch = np.zeros((len(chains), len(CHAINS) * SIDE), np.uint64)
    for at, name in enumerate(CHAINS):
        positions, x_NL = align([one[at] for one in chains], numbered[name])
        bits = np.zeros((PLANES, len(chains), SLOTS), bool)
        is_residue = x_NL > GAP
        for plane, values in enumerate((is_residue, *_BITS[:, x_NL])):
            bits[plane][:, [*map(_slot, positions)]] = is_residue & values
        packed = np.packbits(bits, axis=2, bitorder="little").view(np.uint64)
        sketch[:, at * SIDE : (at + 1) * SIDE] = np.concatenate([*packed], axis=1)
    owner = np.flatnonzero(sketch.any(axis=1))
    return sketch[owner], owner


def _slot(position: str) -> int:
    """Return the place of an IMGT position: insertions follow the 128 numbers."""
    number = position_number(position)
    letters = position[len(str(number)) :]
    if not letters:
        return number - 1
    first, places = INSERTED.get(number, OTHERS)
    index = 0
    for letter in letters:
        index = 26 * index + ord(letter) - ord("A")
    return first + (index if number in INSERTED else number * 7 + index) % places


class _Antibodies:
    """Sketches of T antibodies, compared with one other, (W,), at a time."""

    def __init__(self, sketch: Words) -> None:
        # Words of one place are next to each other, so that few have to be read for most rows.
        self.words_WT = np.ascontiguousarray(sketch.T)
        self.lengths = [_count(sketch[:, at : at + WORDS]) for at in (0, SIDE)]
        self.loops = _count(sketch[:, :WORDS] & LOOP)

    def has_near(self, row: Words) -> bool:
        """Whether any is a near-duplicate or a clone of another."""
        return bool(self._near(row).any()) or bool(self._clones(row).any())

    def _near(self, row: Words) -> Bools:
        """Which of the last ones that remain are near-duplicates."""
        sizes = [_count(row[at : at + WORDS]) for at in (0, SIDE)]
        longest = sum(
            float(np.maximum(lengths.max(initial=0), size))
            for lengths, size in zip(self.lengths, sizes, strict=True)
        )
        most = SEEN * _limit((1 - IDENTITY) * longest, DOUBT)
        rows: Ints | slice = slice(None)
        replaced = np.zeros(len(self.loops), np.uint8)
        for at, word in product((0, SIDE), MOST_VARIABLE):
            replaced = replaced + self._replaced(row, rows, at + word)
            possible = np.flatnonzero(replaced <= most)
            rows = possible if isinstance(rows, slice) else rows[possible]
            replaced = replaced[possible]
        longer = np.zeros(len(replaced))
        for lengths, size in zip(self.lengths, sizes, strict=True):
            both = (lengths[rows] > 0) & (size > 0)
            longer += np.where(both, np.maximum(lengths[rows], size), 0)
        edits = replaced / SEEN + self._shifted(row, rows, 0) + self._shifted(row, rows, SIDE)
        return np.asarray((longer > 0) & (edits <= _limit((1 - IDENTITY) * longer, DOUBT)))

    def _clones(self, row: Words) -> Bools:
        """Which of those with similar CDR H3 of the same length are clones."""
        size = _count(row[:WORDS] & LOOP)
        rows = np.flatnonzero((self.loops == size) & (size > 0))
        changes = sum(self._replaced(row, rows, word, LOOP[word]) for word in LOOP_WORDS)
        rows = rows[changes <= SEEN * _limit((1 - CLONE_LOOP) * size, CLONE_DOUBT)]
        replaced = sum(self._replaced(row, rows, word) for word in range(WORDS))
        longest = np.maximum(self.lengths[0][rows], _count(row[:WORDS]))
        edits = replaced / SEEN + self._shifted(row, rows, 0)
        return np.asarray(edits <= (1 - CLONE_HEAVY) * longest)

    def _replaced(
        self, row: Words, rows: Ints | slice, at: int, mask: np.uint64 = EVERYWHERE
    ) -> NDArray[np.uint8]:
        """Count the residues of another class in one word of a chain."""
        words = self.words_WT
        differ = words[at + WORDS][rows] ^ row[at + WORDS]
        for place in range(at + 2 * WORDS, at + SIDE, WORDS):
            differ |= words[place][rows] ^ row[place]
        differ &= words[at][rows]
        differ &= row[at] & mask
        return np.asarray(np.bitwise_count(differ))

    def _shifted(self, row: Words, rows: Ints | slice, at: int) -> Floats:
        """Count the residues of one chain that only one of the antibodies has, as edits."""
        size, lengths = _count(row[at : at + WORDS]), self.lengths[at // SIDE][rows]
        gaps = _count((row[at : at + WORDS, None] ^ self.words_WT[at : at + WORDS, rows]).T)
        # a residue more on one side and one less on the other are one edit
        edits = (np.abs(lengths - size) + gaps) / 2
        return np.where((lengths > 0) & (size > 0), edits, 0)


def _limit(edits: Floats | float, doubt: float) -> Floats:
    """Lower a limit of edits by the standard deviation of the edits that are not seen."""
    return np.asarray(edits - doubt * np.sqrt(edits * (1 - SEEN) / SEEN))


def _count(words: Words) -> Floats:
    """Count the bits of each row, or of one."""
    return np.asarray(np.bitwise_count(words).sum(axis=-1), np.float64)


def _bins(chain: str) -> Words:
    """Sketch a chain: which bins have a 4-mer, and one bit of the least hash in each."""
    codes = np.frombuffer(chain.encode("ascii"), np.uint8).astype(np.uint64)
    words = np.zeros(len(codes) - K + 1, np.uint64)
    for i in range(K):
        words = words * np.uint64(128) + codes[i : i + len(words)]
    hashed = np.sort(mix(words))[::-1]
    bits = np.zeros((2, BINS), bool)
    place = (hashed % np.uint64(BINS)).astype(np.int64)
    bits[0, place] = True
    bits[1, place] = (hashed // np.uint64(BINS)) & np.uint64(1)  # of the least, written last
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64).reshape(-1)


class _Chains:
    """Sketches of T chains of antigens, compared with one other, (W,), at a time."""

    def __init__(self, sketch: Words) -> None:
        self.bins, self.bits = sketch[:, :HALF], sketch[:, HALF:]
        self.sizes = _features(_count(self.bins))

    def has_near(self, row: Words) -> bool:
        """Whether any shares enough 4-mers with another."""
        both = row[:HALF] & self.bins
        agree = _count(both & ~(row[HALF:] ^ self.bits))
        union = _count(row[:HALF] | self.bins)
        jaccard = np.maximum(2 * agree - _count(both), 0) / np.maximum(union, 1)
        size = _features(_count(row[:HALF]))
        common = jaccard * (self.sizes + size) / (1 + jaccard)
        return bool(np.any(common >= SHARED * np.minimum(self.sizes, size)))


def _features(bins: Floats) -> Floats:
    """Estimate how many 4-mers fill so many bins."""
    return np.asarray(np.log1p(-np.minimum(bins, BINS - 1) / BINS) / np.log1p(-1 / BINS))


KNOWN, NEW, OUTSIDE = 0, 1, 2
"""States of a sequence; outside: no variant of a library's antibody."""
UNRELATED = "the antibody is no variant of those in training"
UNMEASURED = "the run could not measure {}"


class NewSequences(NamedTuple):
    """States of the two sequences of P pairs, (P,) each, dtype int8."""

    antibody: NDArray[np.int8]
    antigen: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Recogniser:
    """The sketches of the training sequences."""

    antibodies: SeenSequences
    antigens: SeenSequences
    mutations: SeenMutations | None
    """Of a library of variants; None if the training antibodies are not one."""

    def states(self, kind: Kind, chains: Sequence[Chains]) -> NDArray[np.int8]:
        """Return the state of each of N sequences, (N,)."""
        seen = self.antigens if kind == "antigen" else self.antibodies
        near, state = seen.near(chains), np.full(len(chains), KNOWN, np.int8)
        if kind == "antigen" or self.mutations is None:
            state[~near] = NEW
            return state
        state[self.mutations.is_new(chains)] = NEW
        state[~near] = OUTSIDE
        return state

    def regimes_of(
        self, new: NewSequences, measured: Collection[str]
    ) -> tuple[NDArray[np.object_], NDArray[np.object_], NDArray[np.object_]]:
        """Return the regime of each pair, the measured one that is used, and why it is far, (P,).

        A pair of a regime that was not measured is predicted like those of a stricter one, in which
        at least as much is new. If none was measured, the pair is far. The reason is empty for
        pairs that are not far.
        """
        name, used, why = (np.full(new.antibody.shape, "", object) for _ in range(3))
        changed = "new_antibody" if self.mutations is None else "new_mutations"
        of_states = {
            (KNOWN, KNOWN): "known", (NEW, KNOWN): changed, (OUTSIDE, KNOWN): "new_antibody",
            (KNOWN, NEW): "new_antigen", (NEW, NEW): "both_new", (OUTSIDE, NEW): "both_new",
        }  # fmt: skip
        for (antibody, antigen), regime in of_states.items():
            rows = (new.antibody == antibody) & (new.antigen == antigen)
            if rows.any():
                covers, found = applicable(REGIMES[regime], measured)
                name[rows], used[rows] = regime, found
                if antibody == OUTSIDE:
                    why[rows] = UNRELATED
                elif not covers:
                    why[rows] = UNMEASURED.format(REGIMES[regime].words)
        return name, used, why

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `load` needs."""
        sides: dict[str, SeenSequences | SeenMutations] = {
            "antibody": self.antibodies, "antigen": self.antigens
        }  # fmt: skip
        if self.mutations is not None:
            sides["mutations"] = self.mutations
        return {
            f"seen.{side}.{name}": array
            for side, one in sides.items()
            for name, array in one.arrays().items()
        }

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]]) -> Recogniser:
        """Restore from arrays of a file; ValueError or LookupError if they do not fit."""

        def of(side: str) -> dict[str, NDArray[Any]]:
            prefix = f"seen.{side}."
            return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}

        mutations = of("mutations")
        return cls(
            SeenSequences.load("antibody", of("antibody")),
            SeenSequences.load("antigen", of("antigen")),
            SeenMutations.load(mutations) if mutations else None,
        )


def applicable(regime: Regime, measured: Collection[str]) -> tuple[bool, str]:
    """Return whether a measured regime covers another one, and the measured one to use."""
    for name in ("given", regime.name):
        if name in measured:
            return True, name
    known = [REGIMES[name] for name in measured]
    covering = [one for one in known if set(regime.new) <= set(one.new)]
    if covering:
        return True, min(covering, key=lambda one: len(one.new)).name
    shared = max(known, key=lambda one: (len(set(one.new) & set(regime.new)), len(one.new)))
    return False, shared.name
