"""Regimes: what is new about a pair, and how a predictor recognises it.

A predictor keeps sketches of its training sequences that cannot be read back. Of antibodies,
aligned by IMGT numbering, these have three bits per residue, its class; residues that replace each
other often differ. Of a library's antibodies, digests of residues at positions are kept too.
Antigens have b-bit one-permutation minhashes of their 4-mers (Li, Owen and Zhang, NeurIPS 2012),
which estimate what two share. N sequences, T of training, P pairs, L positions, W words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import compress, product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Bools, Floats, Ints
from abag.embed.sequences.domains import IMGT_REGIONS, position_number
from abag.embed.sequences.numbering import CHAINS, Numbered, number_antibodies
from abag.head.regimes.clusters import CLONE_HEAVY, CLONE_LOOP, FIRST, LAST

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains, Kind
    from abag.embed.sequences.domains import ChainName

Words: TypeAlias = NDArray[np.uint64]
Arrays: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Regime:
    """A kind of new pairs."""

    name: str
    words: str
    new: tuple[Kind, ...]


REGIMES = {
    one.name: one
    for one in (
        Regime("known", "known antibodies, known antigens", ()),
        Regime("new_antibody", "new antibodies, known antigens", ("antibody",)),
        Regime("new_mutations", "new mutations, known antigens", ("antibody",)),
        Regime("new_antigen", "known antibodies, new antigens", ("antigen",)),
        Regime("both_new", "new antibodies, new antigens", ("antibody", "antigen")),
        Regime("given", "the test pairs that were given", ()),
    )
}
"""By name; a table shows them in this order."""
OF_SPLIT = {
    "random": "known", "antibody": "new_antibody", "antigen": "new_antigen", "both": "both_new",
    "mutations": "new_mutations", "column": "given", "file": "given",
}  # fmt: skip
"""The regime that a split measures."""

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
SKETCHED = 24
"""Residues of an antigen chain from which it is sketched: the few 4-mers of a shorter one occur in
a long one by chance, so that it is only known if it is the same."""
SHARED = 0.74
"""Share of common 4-mers from which antigens are near-duplicates. Edits spread at random leave 0.66
at 90 % identity; those of families of antigens are together, and leave more (envelope proteins of
HIV)."""
VARIABLE, LESS_VARIABLE = 1, (0, 2)
"""Words of a chain: that of CDR3 tells most antibodies apart."""
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
EVERYWHERE = np.uint64(2**64 - 1)
GAP = ord("-")
UNKNOWN = ord("X")
REGIONS = len(IMGT_REGIONS)
"""Of one chain."""
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
        seen = self.antigens if kind == "antigen" else self.antibodies
        near = seen.near(chains)
        if kind == "antigen" or self.mutations is None:
            return np.where(near, KNOWN, NEW).astype(np.int8)
        variant = np.where(self.mutations.is_new(chains), NEW, KNOWN)
        return np.where(near, variant, OUTSIDE).astype(np.int8)

    def regimes_of(
        self, new: NewSequences, measured: Collection[str]
    ) -> tuple[NDArray[np.object_], NDArray[np.object_], NDArray[np.object_]]:
        """Return the regime of each pair, the measured one that is used, and why it is far, (P,).

        The reason is empty for pairs that are not far. All are far if no regime was measured.
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
        found: dict[str, NDArray[Any]] = {}
        for kind, one in (("antibody", self.antibodies), ("antigen", self.antigens)):
            found |= {f"seen.{kind}.digests": one.digests, f"seen.{kind}.sketch": one.sketch}
        if self.mutations is not None:
            for name in SeenMutations.__slots__:
                found[f"seen.mutations.{name}"] = getattr(self.mutations, name)
        return found

    @classmethod
    def load(cls, arrays: Arrays) -> Recogniser:
        """Restore from arrays of a file; ValueError or LookupError if they do not fit."""
        widths: dict[Kind, int] = {"antibody": len(CHAINS) * SIDE, "antigen": 2 * HALF}
        seen = {}
        for kind, width in widths.items():
            digests = _checked(arrays, f"seen.{kind}.digests", (None,))
            sketch = _checked(arrays, f"seen.{kind}.sketch", (None, width))
            seen[kind] = SeenSequences(kind, digests, sketch)
        mutations = None
        if any(name.startswith("seen.mutations.") for name in arrays):
            mutations = SeenMutations(
                _checked(arrays, "seen.mutations.tokens", (None,)),
                _checked(arrays, "seen.mutations.consensus", (2 * REGIONS,)),
                _checked(arrays, "seen.mutations.changed", (None,), np.int64),
            )
        return cls(seen["antibody"], seen["antigen"], mutations)


def _checked(
    arrays: Arrays, name: str, shape: tuple[int | None, ...], dtype: type = np.uint64
) -> NDArray[Any]:
    """Return an array of a file; None stands for any length."""
    found = arrays[name]
    same = found.ndim == len(shape) and all(
        n in (None, m) for n, m in zip(shape, found.shape, strict=True)
    )
    if found.dtype != dtype or not same:
        msg = f"{name} has {found.dtype} and shape {found.shape}"
        raise ValueError(msg)
    return found


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


@dataclass(frozen=True, slots=True)
class SeenMutations:
    """Residues by position, and sets of changed regions, of the antibodies of a library."""

    tokens: Words
    """Sorted digests of (chain, position, residue)."""
    consensus: Words
    """Digest of the most frequent text of each region of both chains, (2 `REGIONS`,)."""
    changed: Ints
    """Sorted sets of changed regions, one bit each."""

    @classmethod
    def of(
        cls, antibodies: Sequence[Chains], numbered: Mapping[ChainName, Numbered] | None = None
    ) -> SeenMutations:
        """Collect what occurs in N antibodies; `numbered` has them and any others."""
        tokens_NL, regions_NR = _tokens(antibodies, numbered)
        found = [np.unique(column, return_counts=True) for column in regions_NR.T]
        consensus = np.array([texts[counts.argmax()] for texts, counts in found], np.uint64)
        return cls(np.unique(tokens_NL), consensus, np.unique(_changed(regions_NR, consensus)))

    def is_new(
        self, antibodies: Sequence[Chains], numbered: Mapping[ChainName, Numbered] | None = None
    ) -> Bools:
        """Return which of N antibodies have new mutations, (N,), or no domain to number."""
        tokens_NL, regions_NR = _tokens(antibodies, numbered)
        is_known_NL = np.isin(tokens_NL, self.tokens) | (tokens_NL == 0)
        changed_N = _changed(regions_NR, self.consensus)
        is_known_N = is_known_NL.all(axis=1) & np.isin(changed_N, self.changed)
        return np.asarray(~is_known_N | ~tokens_NL.any(axis=1))

    @staticmethod
    def tokens_of(antibodies: Sequence[Chains], numbered: Mapping[ChainName, Numbered]) -> Bools:
        """Return which residues at a position each of N antibodies has, (N, T)."""
        tokens_NL, _ = _tokens(antibodies, numbered)
        found, index = np.unique(tokens_NL, return_inverse=True)
        has_NT = np.zeros((len(antibodies), len(found)), bool)
        has_NT[np.arange(len(antibodies))[:, None], index.reshape(tokens_NL.shape)] = True
        return has_NT[:, found != 0]


def _tokens(
    antibodies: Sequence[Chains], numbered: Mapping[ChainName, Numbered] | None
) -> tuple[Words, Words]:
    """Digest the residues, (N, L), 0 for none, and the regions, (N, 2 `REGIONS`)."""
    numbered = numbered or number_antibodies(antibodies, None)
    tokens, regions = [], []
    for at, name in enumerate(CHAINS):
        positions, x_NL = align([chains[at] for chains in antibodies], numbered[name])
        number_L = np.array([position_number(position) for position in positions], np.int64)
        inserted = [
            sum(map(ord, p[len(str(n)) :])) for p, n in zip(positions, number_L, strict=True)
        ]
        place_L = (at << 24) | (number_L << 12) | np.array(inserted, np.int64)
        token_NL = mix((place_L << 8 | x_NL).astype(np.uint64))
        token_NL[(x_NL <= GAP) | (x_NL == UNKNOWN)] = 0
        tokens.append(token_NL)
        region_L = np.searchsorted([end for _, end in IMGT_REGIONS[:-1]], number_L)
        with np.errstate(over="ignore"):
            regions += [token_NL[:, region_L == r].sum(axis=1) for r in range(REGIONS)]
    return np.concatenate(tokens, axis=1), np.stack(regions, axis=1).astype(np.uint64)


def _changed(regions_NR: Words, consensus_R: Words) -> Ints:
    """Return the set of regions of each antibody that differ from the consensus, (N,)."""
    bits = 1 << np.arange(len(consensus_R), dtype=np.int64)
    return np.asarray((regions_NR != consensus_R) @ bits)


def align(chains: Sequence[str], numbered: Numbered) -> tuple[list[str], NDArray[np.uint8]]:
    """Align N chains: the L positions that occur, and ASCII codes, (N, L), 0 beyond the ends."""
    every = dict.fromkeys(position for layout in numbered.layouts for position in layout)
    columns = {position: at for at, position in enumerate(every)}
    number_L = np.array([position_number(position) for position in columns], np.int16)
    x_ML = np.zeros((len(numbered.chains) + 1, len(columns)), np.uint8)  # the last has no domain
    for layout, rows, codes_RL in numbered.by_layout():
        numbers = [position_number(position) for position in layout]
        inside = (number_L >= min(numbers, default=0)) & (number_L <= max(numbers, default=0))
        line_RL = np.tile(inside * np.uint8(GAP), (len(rows), 1))
        line_RL[:, [columns[position] for position in layout]] = codes_RL
        x_ML[rows] = line_RL
    row_of = {chain: row for row, chain in enumerate(numbered.chains)} | {"": len(numbered.chains)}
    x_NL = x_ML[[row_of[chain] for chain in chains]]
    # the others, which are numbered too, may have residues where these have gaps only
    occurs_L = np.asarray((x_NL > GAP).any(axis=0))
    return [*compress(columns, occurs_L.tolist())], x_NL[:, occurs_L]


def mix(x: Words) -> Words:
    """Hash 64-bit numbers; the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


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
        found = np.isin(_digests(chains), self.digests)
        sketch, owner = _sketch(self.kind, chains)
        seen = (_Antibodies if self.kind == "antibody" else _Chains)(self.sketch)
        for row, number in zip(sketch, owner.tolist(), strict=True):
            found[number] = found[number] or seen.has_near(row)
        return found


def _digests(chains: Sequence[Chains]) -> Words:
    texts = ("|".join(one).encode() for one in chains)
    joined = b"".join(blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(joined, np.uint64)


def _sketch(
    kind: Kind, chains: Sequence[Chains], numbered: Mapping[ChainName, Numbered] | None = None
) -> tuple[Words, Ints]:
    """Return sketches, (C, W), and the sequence of each, (C,)."""
    if kind == "antigen":
        long = [(n, c) for n, one in enumerate(chains) for c in one if len(c) >= SKETCHED]
        owner = np.array([n for n, _ in long], np.int64)
        return np.array([_bins(c) for _, c in long], np.uint64).reshape(-1, 2 * HALF), owner
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
    # a chain that cannot be numbered is not compared: the other alone says nothing
    of_chain = sketch.reshape(len(chains), len(CHAINS), SIDE).any(axis=2)
    given = np.array([[bool(chain) for chain in one] for one in chains]).reshape(of_chain.shape)
    owner = np.flatnonzero((of_chain == given).all(axis=1))
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


class _Antibodies:
    """Sketches of T antibodies, compared with one other, (W,), at a time."""

    def __init__(self, sketch: Words) -> None:
        # Words of one place are next to each other, so that few have to be read for most rows.
        self.words_WT = np.ascontiguousarray(sketch.T)
        self.lengths = [_count(sketch[:, at : at + WORDS]) for at in (0, SIDE)]
        self.loops = _count(sketch[:, :WORDS] & LOOP).astype(np.uint8)

    def has_near(self, row: Words) -> bool:
        return bool(self._near(row).any()) or bool(self._clones(row).any())

    def _near(self, row: Words) -> Bools:
        """Which of the last ones that remain are near-duplicates."""
        sizes = [_count(row[at : at + WORDS]) for at in (0, SIDE)]
        sides = [*zip(self.lengths, sizes, strict=True)]
        longest = sum(np.maximum(lengths.max(initial=0), size) for lengths, size in sides)
        most = SEEN * _limit((1 - IDENTITY) * longest, DOUBT)
        every = slice(None)  # without an index, which takes as long as the comparison
        replaced = self._replaced(row, every, VARIABLE)
        replaced += self._replaced(row, every, SIDE + VARIABLE)
        rows = np.flatnonzero(replaced <= most)
        replaced = replaced[rows]
        for word, at in product(LESS_VARIABLE, (0, SIDE)):
            replaced += self._replaced(row, rows, at + word)
            rows, replaced = rows[replaced <= most], replaced[replaced <= most]
        longer = np.zeros(len(rows))
        for lengths, size in sides:
            both = (lengths[rows] > 0) & (size > 0)
            longer += np.where(both, np.maximum(lengths[rows], size), 0)
        edits = replaced / SEEN + self._shifted(row, rows, 0) + self._shifted(row, rows, SIDE)
        return np.asarray((longer > 0) & (edits <= _limit((1 - IDENTITY) * longer, DOUBT)))

    def _clones(self, row: Words) -> Bools:
        """Which of those with similar CDR H3 of the same length are clones."""
        size = _count(row[:WORDS] & LOOP)
        rows = np.flatnonzero((self.loops == size) & (size > 0))
        changes = sum(self._replaced(row, rows, w, LOOP[w]) for w in np.flatnonzero(LOOP).tolist())
        rows = rows[changes <= SEEN * _limit((1 - CLONE_LOOP) * size, CLONE_DOUBT)]
        replaced = sum(self._replaced(row, rows, word) for word in range(WORDS))
        longest = np.maximum(self.lengths[0][rows], _count(row[:WORDS]))
        edits = replaced / SEEN + self._shifted(row, rows, 0)
        return np.asarray(edits <= (1 - CLONE_HEAVY) * longest)

    def _replaced(
        self, row: Words, rows: Ints | slice, at: int, mask: np.uint64 = EVERYWHERE
    ) -> NDArray[np.uint8]:
        """Count the residues of another class in one word of a chain."""
        words, (first, *others) = self.words_WT, range(at + WORDS, at + SIDE, WORDS)
        differ = words[first][rows] ^ row[first]
        for place in others:
            differ |= words[place][rows] ^ row[place]
        differ &= words[at][rows]
        differ &= row[at] & mask
        return np.asarray(np.bitwise_count(differ))

    def _shifted(self, row: Words, rows: Ints, at: int) -> Floats:
        """Count the residues of one chain that only one of the antibodies has, as edits."""
        size, lengths = _count(row[at : at + WORDS]), self.lengths[at // SIDE][rows]
        gaps = _count((row[at : at + WORDS, None] ^ self.words_WT[at : at + WORDS, rows]).T)
        # a residue more on one side and one less on the other are one edit
        edits = (np.abs(lengths - size) + gaps) / 2
        return np.where((lengths > 0) & (size > 0), edits, 0)


class _Chains:
    """Sketches of T chains of antigens, compared with one other, (W,), at a time."""

    def __init__(self, sketch: Words) -> None:
        self.bins, self.bits = sketch[:, :HALF], sketch[:, HALF:]
        self.sizes = _features(_count(self.bins))

    def has_near(self, row: Words) -> bool:
        both = row[:HALF] & self.bins
        agree = _count(both & ~(row[HALF:] ^ self.bits))
        union = _count(row[:HALF] | self.bins)
        jaccard = np.maximum(2 * agree - _count(both), 0) / np.maximum(union, 1)
        size = _features(_count(row[:HALF]))
        common = jaccard * (self.sizes + size) / (1 + jaccard)
        return bool(np.any(common >= SHARED * np.minimum(self.sizes, size)))


def _limit(edits: Floats | float, doubt: float) -> Floats:
    """Lower a limit of edits by the standard deviation of the edits that are not seen."""
    return np.asarray(edits - doubt * np.sqrt(edits * (1 - SEEN) / SEEN))


def _count(words: Words) -> Floats:
    """Count the bits of each row, or of one."""
    return np.asarray(np.bitwise_count(words).sum(axis=-1), np.float64)


def _features(bins: Floats) -> Floats:
    """Estimate how many 4-mers fill so many bins."""
    return np.asarray(np.log1p(-np.minimum(bins, BINS - 1) / BINS) / np.log1p(-1 / BINS))
