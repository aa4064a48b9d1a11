"""The residues of antibodies at the positions of a common reference, as columns of 0 and 1.

Variants of one parent are compared residue by residue. The reference has the most common residues
of the training antibodies. A chain of its length is compared by position; another one is aligned to
it with the fewest edits, so that a deletion is the residue ``-`` there, and an insertion is a
residue in a place of its own before, between or behind the positions.

N antibodies, S places (2 L + 1 for L positions of a chain), C columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from abag.embed.sequences.chains import RESIDUES
from abag.head.regimes.clusters import consensus

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rapidfuzz.distance import Opcodes

    from abag.embed.sequences.chains import Chains

SHARED_LENGTH = 0.5
"""Share of the pairs with one common length from which residues are compared by position."""
NOTHING, GAP = ".", "-"
"""What is in the place of an insertion in most chains, and in that of a deleted residue."""
LETTERS = NOTHING + GAP + RESIDUES
MOST_PLACES = 20_000
"""Of the reference in a predictor."""
ENCODED = 4_096
"""Antibodies encoded at a time."""


@dataclass(frozen=True, slots=True)
class OneHot:
    """What each column stands for."""

    reference: tuple[str, ...]
    """Heavy and light chain; one may be empty."""
    seen: tuple[str, ...]
    """Letters of the training antibodies at each place, (S,). Two or more have a column each."""
    marks_new: bool
    """Whether each place has a further column for all other letters."""

    def __post_init__(self) -> None:
        """Refuse what no training antibodies give, since predictors come from files."""
        places = sum(2 * len(chain) + 1 for chain in self.reference)
        valid = (
            len(self.reference) == 2
            and set("".join(self.reference)) <= set(RESIDUES)
            and len(self.seen) == places <= MOST_PLACES
            and all(0 < len(one) == len(set(one) & set(LETTERS)) for one in self.seen)
            and self.width > 0
        )
        if not valid:
            msg = f"one-hot columns of a reference with {places} places and {len(self.seen)} lists"
            raise ValueError(msg)

    @classmethod
    def of(
        cls, chains: Sequence[Chains], reference: tuple[str, str], *, marks_new: bool
    ) -> OneHot | None:
        """Collect the letters of training antibodies; None if there is nothing to tell them by."""
        codes_NS = _aligned(chains, reference)
        present = np.zeros((codes_NS.shape[1], 256), np.bool_)
        for place, codes_N in enumerate(codes_NS.T):
            present[place, codes_N] = True
        seen = tuple(bytes(np.flatnonzero(one).astype(np.uint8)).decode() for one in present)
        if not marks_new and not any(len(one) > 1 for one in seen):
            return None
        return cls(reference, seen, marks_new)

    @property
    def width(self) -> int:
        """Number of columns."""
        varied = sum(len(one) for one in self.seen if len(one) > 1)
        return varied + self.marks_new * len(self.seen)

    def encode(self, chains: Sequence[Chains]) -> NDArray[np.float32]:
        """Return one row per antibody, (N, C) of 0 and 1."""
        column_SB = self._columns()
        x_NC = np.zeros((len(chains), self.width), np.float32)
        for at in range(0, len(chains), ENCODED):
            codes_NS = _aligned(chains[at : at + ENCODED], self.reference)
            column_NS = column_SB[np.arange(len(self.seen)), codes_NS]
            row, place = np.nonzero(column_NS >= 0)
            x_NC[at + row, column_NS[row, place]] = 1
        return x_NC

    def _columns(self) -> NDArray[np.int32]:
        """Return the column of each letter at each place, (S, 256); -1 for none."""
        column_SB = np.full((len(self.seen), 256), -1, np.int32)
        used = 0
        for of_letter_B, letters in zip(column_SB, self.seen, strict=True):
            codes = list(letters.encode())
            if self.marks_new:
                of_letter_B[:] = used
                of_letter_B[codes] = -1
                used += 1
            if len(codes) > 1:
                of_letter_B[codes] = used + np.arange(len(codes))
                used += len(codes)
        return column_SB


def common_reference(
    chains: Sequence[Chains], of_pair: NDArray[np.integer]
) -> tuple[str, str] | None:
    """Return the consensus of the antibodies of some pairs, if most pairs share their lengths.

    Parameters
    ----------
    chains : sequence of Chains
        Unique antibodies.
    of_pair : NDArray, shape=(R,), dtype=integer
        Antibody of each pair.
    """
    used, times = np.unique(of_pair, return_counts=True)
    lengths = [tuple(map(len, chains[i])) for i in used.tolist()]
    count: Counter[tuple[int, ...]] = Counter()
    for length, n in zip(lengths, times.tolist(), strict=True):
        count[length] += n
    usual, most = count.most_common(1)[0]
    if most < SHARED_LENGTH * len(of_pair):
        return None
    of_usual = [chains[i] for i, one in zip(used.tolist(), lengths, strict=True) if one == usual]
    heavy, light = (consensus([one[at] for one in of_usual]) for at in (0, 1))
    return heavy, light


def identity(chains: Sequence[Chains], reference: tuple[str, str]) -> float:
    """Return the share of the reference's residues that antibodies have in place, on average."""
    same = total = 0
    for at in range(0, len(chains), ENCODED):
        codes_NS = _aligned(chains[at : at + ENCODED], reference)
        expected_S = _aligned([reference], reference)[0]
        positions = expected_S != ord(NOTHING)
        same += int((codes_NS == expected_S)[:, positions].sum())
        total += len(codes_NS) * int(positions.sum())
    return same / max(1, total)


def _aligned(chains: Sequence[Chains], reference: Sequence[str]) -> NDArray[np.uint8]:
    """Return the letter of each antibody at each place, as ASCII codes, (N, S)."""
    return np.hstack(
        [_aligned_chain([one[at] for one in chains], chain) for at, chain in enumerate(reference)]
    )


def _aligned_chain(texts: Sequence[str], reference: str) -> NDArray[np.uint8]:
    """Return the letters of one chain: places of insertions and positions alternate, (N, S)."""
    from rapidfuzz.distance import Levenshtein

    length = len(reference)
    codes_NS = np.full((len(texts), 2 * length + 1), ord(NOTHING), np.uint8)
    same = [row for row, text in enumerate(texts) if len(text) == length]
    letters = np.frombuffer("".join(texts[row] for row in same).encode(), np.uint8)
    codes_NS[same, 1::2] = letters.reshape(len(same), length)
    for row, text in enumerate(texts):
        if len(text) != length:
            _align(codes_NS[row], text.encode(), Levenshtein.opcodes(reference, text))
    return codes_NS


def _align(codes_S: NDArray[np.uint8], text: bytes, edits: Opcodes) -> None:
    """Put the letters of one chain into their places, given the edits that lead to it."""
    for edit in edits:
        first, last = 2 * edit.src_start, 2 * edit.src_end
        letters = np.frombuffer(text[edit.dest_start : edit.dest_end], np.uint8)
        if edit.tag == "insert":
            codes_S[first] = letters[0]
        else:  # a replacement has as many letters on both sides
            codes_S[first + 1 : last : 2] = ord(GAP) if edit.tag == "delete" else letters
