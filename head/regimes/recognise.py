"""Recognise near-duplicates of training sequences from sketches that cannot be read back.

Antibodies are aligned by their IMGT numbering. Of each position is kept whether there is a residue,
and two bits of a hash of the residue, which about five residues have in common: who has the file
can test a guess, but has some 5^N sequences to choose from. Different residues have the same two
bits in a quarter of the cases, so the number of edits is known up to about 3 of 230 residues at
90 % identity.

Antigens have no common numbering. Of each chain is kept one bit per bin of one-permutation minwise
hashing of its 4-mers, from which follows the share of the 4-mers of the shorter chain that the
longer has.

N sequences that are asked about, T of training, W words of 64 bits.

References
----------
Li and Koenig: b-bit minwise hashing, WWW 2010. Li, Owen and Zhang: One permutation hashing,
NeurIPS 2012.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Bools
from abag.embed.sequences.domains import IMGT_REGIONS, position_number
from abag.embed.sequences.numbering import CHAINS, ChainName, Numbered, number_antibodies
from abag.head.regimes.library import GAP, align, mix

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains, Kind

Words: TypeAlias = NDArray[np.uint64]

IDENTITY = 0.9
"""From which two sequences are near-duplicates."""
CLONE_LOOP, CLONE_HEAVY = 0.8, 0.7
"""Identities of the CDR H3, of equal length, and of the heavy chain of clones."""
SLOTS = 192
"""Places for positions of a chain: 128, and insertions."""
WORDS = SLOTS // 64
PLANES = 3
"""Bits per position: whether there is a residue, and two of its hash."""
DIFFER = 0.75
"""Share of pairs of different residues whose two bits differ."""
LOOP = IMGT_REGIONS[4][1], IMGT_REGIONS[5][1]
"""The positions of CDR3 lie after the first and up to the second."""
BINS, K = 2048, 4
SHARED = 0.74
"""Share of common 4-mers from which antigens are near-duplicates. Edits spread at random leave 0.66
at 90 % identity; those of families of antigens are together, and leave more (envelope proteins of
HIV)."""
AT_ONCE = 1 << 22
"""Words compared at a time."""


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
        """Sketch the T sequences of a training set.

        `numbered` has antibodies and any others; by default they are numbered here.
        """
        sketch, _ = _sketch(kind, chains, numbered)
        sketch = np.unique(sketch, axis=0)
        return cls(kind, np.unique(_digests(chains)), sketch)

    def near(self, chains: Sequence[Chains]) -> Bools:
        """Return which of N sequences have a near-duplicate in training, (N,)."""
        found = np.isin(_digests(chains), self.digests)
        sketch, owner = _sketch(self.kind, chains)
        if not len(self.sketch) or not len(sketch):
            return found
        is_near = _near_antibody if self.kind == "antibody" else _near_chain
        for row, number in zip(sketch, owner.tolist(), strict=True):
            if not found[number]:
                found[number] = is_near(row, self.sketch)
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `load` needs."""
        return {"digests": self.digests, "sketch": self.sketch}

    @classmethod
    def load(cls, kind: Kind, arrays: Mapping[str, NDArray[Any]]) -> SeenSequences:
        """Restore from arrays of a file.

        Raises
        ------
        ValueError
            If they are not those of `arrays`.
        """
        width = len(CHAINS) * PLANES * WORDS if kind == "antibody" else 2 * BINS // 64
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
        return np.array(found, np.uint64).reshape(-1, 2 * BINS // 64), owner
    numbered = numbered or number_antibodies(chains, None)
    sides = []
    for at, name in enumerate(CHAINS):
        positions, x_NL = align([one[at] for one in chains], numbered[name])
        bits = np.zeros((PLANES, len(chains), SLOTS), bool)
        slots = [_slot(position) for position in positions]
        is_residue = x_NL > GAP
        hashed = mix(x_NL.astype(np.uint64) + np.array(slots, np.uint64) * np.uint64(256))
        for plane, values in enumerate((is_residue, hashed & np.uint64(1), hashed & np.uint64(2))):
            bits[plane][:, slots] = is_residue & (values != 0)
        packed = np.packbits(bits, axis=2, bitorder="little").view(np.uint64)
        sides.append(np.concatenate([*packed], axis=1))
    sketch = np.concatenate(sides, axis=1)
    owner = np.flatnonzero(sketch.any(axis=1))
    return sketch[owner], owner


def _slot(position: str) -> int:
    """Return the place of an IMGT position: insertions follow the 128 numbers."""
    number = position_number(position)
    letters = position[len(str(number)) :]
    if not letters:
        return number - 1
    return 128 + (number * 7 + sum(map(ord, letters))) % (SLOTS - 128)


def _masks() -> Words:
    """Return the words with the slots of CDR3, (`WORDS`,); insertions there count elsewhere."""
    bits = np.zeros(SLOTS, bool)
    bits[LOOP[0] : LOOP[1]] = True
    return np.packbits(bits, bitorder="little").view(np.uint64)


def _near_antibody(row: Words, seen: Words) -> bool:
    """Whether one of T antibodies, (T, W), is a near-duplicate or a clone of another, (W,)."""
    step = max(1, AT_ONCE // seen.shape[1])
    return any(_any_near_antibody(row, seen[at : at + step]) for at in range(0, len(seen), step))


def _any_near_antibody(row: Words, seen: Words) -> bool:
    side = PLANES * WORDS
    edits, longest = np.zeros(len(seen)), np.zeros(len(seen))
    heavy = _compare(row[:side], seen[:, :side])
    light = _compare(row[side:], seen[:, side:])
    for both, apart, length in (heavy, light):
        edits += np.where(both, apart, 0)
        longest += np.where(both, length, 0)
    if np.any((longest > 0) & (edits <= (1 - IDENTITY) * longest)):
        return True
    both, apart, length = heavy
    rows = np.flatnonzero(both & (apart <= (1 - CLONE_HEAVY) * length))
    if not len(rows):
        return False
    mask = np.tile(_masks(), PLANES)
    own, others = row[:side] & mask, seen[rows, :side] & mask
    sizes = np.bitwise_count(others[:, :WORDS]).sum(axis=1, dtype=np.int64)
    size = int(np.bitwise_count(own[:WORDS]).sum())
    both, apart, length = _compare(own, others)
    return bool(np.any(both & (sizes == size) & (apart <= (1 - CLONE_LOOP) * length)))


def _compare(row: Words, seen: Words) -> tuple[Bools, NDArray[np.float64], NDArray[np.float64]]:
    """Compare one chain with T: whether both exist, edits, and length of the longer, (T,) each."""
    here, there = row[:WORDS], seen[:, :WORDS]
    counts = np.bitwise_count(there).sum(axis=1, dtype=np.int64)
    size = int(np.bitwise_count(here).sum())
    gaps = np.bitwise_count(here ^ there).sum(axis=1, dtype=np.int64)
    planes = [
        row[p * WORDS : (p + 1) * WORDS] ^ seen[:, p * WORDS : (p + 1) * WORDS] for p in (1, 2)
    ]
    differ = np.bitwise_count((planes[0] | planes[1]) & here & there).sum(axis=1, dtype=np.int64)
    # a residue more on one side and one less on the other are one edit
    unequal = np.abs(counts - size)
    edits = differ / DIFFER + unequal + (gaps - unequal) / 2
    return (counts > 0) & (size > 0), edits, np.maximum(counts, size).astype(np.float64)


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


def _near_chain(row: Words, seen: Words) -> bool:
    """Whether one of T chains, (T, W), shares enough 4-mers with another, (W,)."""
    half = BINS // 64
    step = max(1, AT_ONCE // seen.shape[1])
    for at in range(0, len(seen), step):
        part = seen[at : at + step]
        both = row[:half] & part[:, :half]
        agree = np.bitwise_count(both & ~(row[half:] ^ part[:, half:])).sum(axis=1, dtype=np.int64)
        n_both = np.bitwise_count(both).sum(axis=1, dtype=np.int64)
        union = np.bitwise_count(row[:half] | part[:, :half]).sum(axis=1, dtype=np.int64)
        jaccard = np.maximum(2 * agree - n_both, 0) / np.maximum(union, 1)
        sizes = _features(np.bitwise_count(part[:, :half]).sum(axis=1, dtype=np.int64))
        size = _features(np.bitwise_count(row[:half]).sum(dtype=np.int64))
        common = jaccard * (sizes + size) / (1 + jaccard)
        if np.any(common >= SHARED * np.minimum(sizes, size)):
            return True
    return False


def _features(bins: NDArray[np.int64]) -> NDArray[np.float64]:
    """Estimate how many 4-mers fill so many bins."""
    return np.asarray(np.log1p(-np.minimum(bins, BINS - 1) / BINS) / np.log1p(-1 / BINS))
