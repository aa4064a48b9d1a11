"""The distinct sequences of a table that is scored, collected chunk by chunk.

Each sequence is kept once, in the order of its first row, with its key. N sequences, P rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NotRequired, TypeAlias, TypedDict

import numpy as np

from abag.embed.sequences.chains import keys_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Chains, Kind
    from abag.embed.sequences.pairs import UniqueSequences


@dataclass(frozen=True, slots=True)
class Sequences:
    """The N distinct sequences of one kind in a table, and which of them each of its P rows has."""

    kind: Kind
    chains: list[Chains]
    keys: NDArray[np.uint8]
    of_row: NDArray[np.int32]

    @classmethod
    def of(cls, kind: Kind, chains: Sequence[Chains]) -> Sequences:
        """Collect the distinct sequences of P rows, whose chains are given."""
        collected = SequenceCollector(kind)
        collected.add(chains, slice(None))
        return collected.finish()


class SequenceCollector:
    """Collects the distinct sequences of one kind from the chunks of a table."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._number: dict[Chains, int] = {}
        self._of_row: list[NDArray[np.int32]] = []

    def add(self, chains: Sequence[Chains], of_row: NDArray[np.integer] | slice) -> None:
        """Add a chunk of P rows.

        Parameters
        ----------
        chains : sequence of tuple of str
            The distinct sequences of the chunk.
        of_row : ndarray of int, shape=(P,), or slice
            Index in `chains` of the sequence of each row.
        """
        number = [self._number.setdefault(sequence, len(self._number)) for sequence in chains]
        self._of_row.append(np.array(number, np.int32)[of_row])

    def finish(self) -> Sequences:
        """Return what was collected, and forget it; call this once, after the last chunk."""
        chains = list(self._number)
        self._number.clear()
        keys = keys_array(self._kind, chains)
        return Sequences(self._kind, chains, keys, np.concatenate(self._of_row))


AnySequences: TypeAlias = "Sequences | UniqueSequences"


class SequenceCounts(TypedDict):
    """Numbers of distinct antibodies, or antigens, of a prediction."""

    unique: int
    reused: int
    encoded: int
    new: NotRequired[int]
    """Without a near-duplicate in training, or with new mutations."""
