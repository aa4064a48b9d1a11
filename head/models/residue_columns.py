"""Residues of variants as columns: what each sequence has at each place of a reference.

A place holds a residue of the reference, or what is inserted after it. Residues are equal or not
(one-hot), or have coordinates whose squared distances are 2 - 2 x similarity, from BLOSUM62
(Henikoff and Henikoff, PNAS 89, 1992) divided so that each is 1 with itself (Jankowiak et al.,
arXiv 2606.11057).
N sequences, A in training, S places (2 L + 1 for L positions of a chain), V of them where these
differ, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats, Matrix
from abag.embed.sequences.chains import RESIDUES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Chains

NOTHING = "."
"""Stands in the place of an insertion in most chains."""
GAP = "-"
"""Stands in the place of a deleted residue."""
LETTERS = NOTHING + GAP + RESIDUES
"""All letters that a place may have."""
MOST_PLACES = 20_000
"""Places of a reference, at most."""
ORDER = "ARNDCQEGHILKMFPSTWYV"
"""Residues of the rows and columns of `BLOSUM62`."""
BLOSUM62 = """
 4 -1 -2 -2  0 -1 -1  0 -2 -1 -1 -1 -1 -2 -1  1  0 -3 -2  0
-1  5  0 -2 -3  1  0 -2  0 -3 -2  2 -1 -3 -2 -1 -1 -3 -2 -3
-2  0  6  1 -3  0  0  0  1 -3 -3  0 -2 -3 -2  1  0 -4 -2 -3
-2 -2  1  6 -3  0  2 -1 -1 -3 -4 -1 -3 -3 -1  0 -1 -4 -3 -3
 0 -3 -3 -3  9 -3 -4 -3 -3 -1 -1 -3 -1 -2 -3 -1 -1 -2 -2 -1
-1  1  0  0 -3  5  2 -2  0 -3 -2  1  0 -3 -1  0 -1 -2 -1 -2
-1  0  0  2 -4  2  5 -2  0 -3 -3  1 -2 -3 -1  0 -1 -3 -2 -2
 0 -2  0 -1 -3 -2 -2  6 -2 -4 -4 -2 -3 -3 -2  0 -2 -2 -3 -3
-2  0  1 -1 -3  0  0 -2  8 -3 -3 -1 -2 -1 -2 -1 -2 -2  2 -3
-1 -3 -3 -3 -1 -3 -3 -4 -3  4  2 -3  1  0 -3 -2 -1 -3 -1  3
-1 -2 -3 -4 -1 -2 -3 -4 -3  2  4 -2  2  0 -3 -2 -1 -2 -1  1
-1  2  0 -1 -3  1  1 -2 -1 -3 -2  5 -1 -3 -1  0 -1 -3 -2 -2
-1 -1 -2 -3 -1  0 -2 -3 -2  1  2 -1  5  0 -2 -1 -1 -1 -1  1
-2 -3 -3 -3 -2 -3 -3 -3 -1  0  0 -3  0  6 -4 -2 -2  1  3 -1
-1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4  7 -1 -1 -4 -3 -2
 1 -1  1  0 -1  0  0  0 -1 -2 -2  0 -1 -2 -1  4  1 -3 -2 -2
 0 -1  0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1  1  5 -2 -2  0
-3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1  1 -4 -3 -2 11  2 -3
-2 -2 -2 -3 -2 -1 -2 -3  2 -1 -1 -2 -1  3 -3 -2 -2  2  7 -1
 0 -3 -3 -3 -1 -2 -2 -3 -3  3  1 -2  1 -1 -2 -2  0 -3 -1  4
"""
"""Scores in half bits: twice the logarithm, base 2, of observed / expected."""
JITTER = 1e-9
"""Added to similarities of a letter with itself, which keeps their matrix positive."""
MOST_TABLES = 4_096
"""Tables of letters at a place that are kept, each of some kilobytes."""


@dataclass(frozen=True, slots=True)
class OneHot:
    """Encode the residues of variants as columns; each stands for a letter at a place."""

    reference: tuple[str, ...]
    """Heavy and light chain, of which one may be empty, or the chains of an antigen."""
    seen: tuple[str, ...]
    """Letters of the training sequences at each place, (S,). Two or more have a column each."""
    marks_new: bool
    """Whether each place has a further column, its first, for all other letters."""

    def __post_init__(self) -> None:
        """Refuse what no training sequences give, since predictors come from files."""
        places = sum(2 * len(chain) + 1 for chain in self.reference)
        has_residues = set("".join(self.reference)) <= set(RESIDUES)
        has_letters = all(0 < len(seen) == len(set(seen) & set(LETTERS)) for seen in self.seen)
        fits = len(self.seen) == places <= MOST_PLACES
        if not (has_residues and fits and has_letters and self.width):
            msg = f"one-hot columns of a reference with {places} places and {len(self.seen)} lists"
            raise ValueError(msg)

    @classmethod
    def of(
        cls, chains: Sequence[Chains], reference: tuple[str, ...], *, marks_new: bool
    ) -> OneHot | None:
        """Collect the letters of training sequences; None if there is nothing to tell them by."""
        seen = []
        for codes_A in align(chains, reference).T:
            present = np.flatnonzero(np.bincount(codes_A))
            seen.append(bytes(present.tolist()).decode())
        if not marks_new and max(map(len, seen)) < 2:
            return None
        return cls(reference, tuple(seen), marks_new)

    @property
    def width(self) -> int:
        """Return the number of columns."""
        varied = sum(len(letters) for letters in self.seen if len(letters) > 1)
        return varied + self.marks_new * len(self.seen)

    def encode(self, chains: Sequence[Chains], *, alike: bool = False) -> Matrix:
        """Return one row per sequence, see `encode_codes`."""
        return self.encode_codes(align(chains, self.reference), alike=alike)

    def encode_codes(self, codes_NS: NDArray[np.uint8], *, alike: bool) -> Matrix:
        """Return columns of 0 and 1, (N, C), and if `alike` the coordinates as two more views."""
        x_NC = np.empty((len(codes_NS), self.width), np.float32)
        alike_NC = np.empty_like(x_NC) if alike else None
        first = 0
        for codes_N, letters in zip(codes_NS.T, self.seen, strict=True):
            table = indicators(letters, self.marks_new)
            after = first + table.shape[1]
            x_NC[:, first:after] = table[codes_N]
            if alike_NC is not None:
                alike_NC[:, first:after] = coordinates(letters)[codes_N]
            first = after
        return x_NC if alike_NC is None else np.hstack([x_NC, alike_NC, alike_NC])

    def pack(self, x_NC: Matrix) -> NDArray[np.uint8]:
        """Return the letters of training sequences where these differ, (A, V), from `encode`."""
        packed = []
        first = 0
        for letters in self.seen:
            after = first + self.marks_new + (len(letters) if len(letters) > 1 else 0)
            if len(letters) > 1:
                codes = np.frombuffer(letters.encode(), np.uint8)
                packed.append(codes[x_NC[:, first + self.marks_new : after].argmax(axis=1)])
            first = after
        return np.stack(packed, axis=1) if packed else np.zeros((len(x_NC), 0), np.uint8)

    def unpack(self, codes_AV: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the letters at all places, (A, S), from `pack`."""
        varied = [place for place, letters in enumerate(self.seen) if len(letters) > 1]
        if codes_AV.dtype != np.uint8 or codes_AV.shape[1:] != (len(varied),):
            msg = f"the training residues are of type {codes_AV.dtype} and shape {codes_AV.shape}"
            raise ValueError(msg)
        common = "".join(letters[0] for letters in self.seen)
        codes_AS = np.tile(np.frombuffer(common.encode(), np.uint8), (len(codes_AV), 1))
        codes_AS[:, varied] = codes_AV
        return codes_AS


@lru_cache(maxsize=MOST_TABLES)
def indicators(seen: str, marks_new: bool) -> Matrix:
    """Return the columns of 0 and 1 of every letter at a place with these letters, (256, C)."""
    codes = np.frombuffer(seen.encode(), np.uint8)
    table = np.zeros((256, marks_new + (len(codes) if len(codes) > 1 else 0)), np.float32)
    if marks_new:
        table[:, 0] = 1
        table[codes, 0] = 0
    if len(codes) > 1:
        table[codes, marks_new + np.arange(len(codes))] = 1
    return table


@cache
def similarity() -> Floats:
    """Return the similarity of each two letters, (256, 256); no residue is like another letter."""
    scores = np.array(BLOSUM62.split(), np.float64).reshape(len(ORDER), -1)
    odds = np.exp2(scores / 2)
    root = np.sqrt(odds.diagonal())
    alike = np.eye(256)
    codes = np.frombuffer(ORDER.encode(), np.uint8)
    alike[np.ix_(codes, codes)] = odds / root / root[:, None]
    return alike


@lru_cache(maxsize=MOST_TABLES)
def coordinates(seen: str) -> Matrix:
    """Return the coordinates of every letter at a place with these letters, (256, C).

    The first is 0 for seen letters; where nothing varies, squared distances are half as large.
    """
    alike = similarity()
    codes = np.frombuffer(seen.encode(), np.uint8)
    if len(codes) == 1:
        return np.sqrt(np.maximum(0, 1 - alike[:, codes])).astype(np.float32)
    root = np.linalg.cholesky(alike[np.ix_(codes, codes)] + JITTER * np.eye(len(codes)))
    inside = np.linalg.solve(root, alike[codes]).T
    outside = np.sqrt(np.maximum(0, 1 - np.square(inside).sum(axis=1)))
    outside[codes] = 0
    return np.hstack([outside[:, None], inside]).astype(np.float32)


def align(chains: Sequence[Chains], reference: Sequence[str]) -> NDArray[np.uint8]:
    """Return the letter of each sequence at each place, as ASCII codes, (N, S).

    Chains that the reference lacks follow its last one, as an insertion; one that it has more is
    deleted.
    """
    last = len(reference) - 1
    columns = []
    for number, text in enumerate(reference):
        end = number + 1 if number < last else None
        texts = ["".join(sequence[number:end]) for sequence in chains]
        columns.append(_align_chain(texts, text))
    return np.hstack(columns)


def _align_chain(texts: Sequence[str], reference: str) -> NDArray[np.uint8]:
    """Return the letters of one chain: places of insertions and positions alternate, (N, S)."""
    from rapidfuzz.distance import Levenshtein

    length = len(reference)
    codes_NS = np.full((len(texts), 2 * length + 1), ord(NOTHING), np.uint8)
    same = [row for row, text in enumerate(texts) if len(text) == length]
    letters = np.frombuffer("".join(texts[row] for row in same).encode(), np.uint8)
    codes_NS[same, 1::2] = letters.reshape(len(same), length)
    for row, text in enumerate(texts):
        if len(text) == length:  # compared as it stands, not by an insertion and a deletion
            continue
        for edit in Levenshtein.opcodes(reference, text):
            first = 2 * edit.src_start
            last = 2 * edit.src_end
            letters_here = text[edit.dest_start : edit.dest_end].encode()
            if edit.tag == "insert":
                codes_NS[row, first] = letters_here[0]
            else:  # a replacement has as many letters on both sides, a deletion none
                codes_NS[row, first + 1 : last : 2] = list(letters_here or GAP.encode())
    return codes_NS
