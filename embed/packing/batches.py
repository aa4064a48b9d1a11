"""Lengths to batches under a token budget. Pure: no torch, no files, no sequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.packing.tokens import TokenSpan


class BatchTooLarge(AbagError):
    """A single span exceeds the token budget."""


def longest_first(lengths: Sequence[int]) -> NDArray[np.int64]:
    """Order of sequences by descending length, stable: the largest memory is met at once."""
    return np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Pieces laid end to end, with no padding.

    Attributes
    ----------
    ids : ndarray, shape=(T,), dtype=int32
    offsets : ndarray, shape=(N + 1,), dtype=int32
        TokenSpan ``i`` is ``ids[offsets[i]:offsets[i + 1]]``.
    weights : ndarray, shape=(T, P), dtype=float32
        Pooling weights of each token.
    sequences : ndarray, shape=(S,), dtype=int64
        Which sequences the batch touches, in order of their first token here.
    bounds : ndarray, shape=(S + 1,), dtype=int32
        Sequence ``sequences[s]`` owns tokens ``bounds[s]:bounds[s + 1]``.
    continues : bool
        Whether the last sequence has further spans in the next batch.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]
    weights: NDArray[np.float32]
    sequences: NDArray[np.int64]
    bounds: NDArray[np.int32]
    continues: bool

    @property
    def max_length(self) -> int:
        """Tokens of the longest span."""
        return int(np.diff(self.offsets).max())


def fill_batches(spans: Iterable[tuple[int, TokenSpan]], budget: int) -> Iterator[PackedBatch]:
    """Fill batches with consecutive spans until the next one would exceed the budget.

    Parameters
    ----------
    spans : iterable of (sequence, TokenSpan)
        Pieces of one sequence are neighbours.
    budget : int
        Most tokens in a batch.

    Raises
    ------
    BatchTooLarge
        When one span alone exceeds the budget.
    """
    held: list[tuple[int, TokenSpan]] = []
    tokens = 0
    for sequence, span in spans:
        length = len(span.ids)
        if length > budget:
            msg = (
                f"a sequence of {length} tokens does not fit into a batch of {budget}; "
                f"give --batch-tokens {length} or more"
            )
            raise BatchTooLarge(msg)
        if tokens + length > budget:
            yield pack_spans(held, continues=held[-1][0] == sequence)
            held, tokens = [], 0
        held.append((sequence, span))
        tokens += length
    if held:
        yield pack_spans(held)


def pack_spans(spans: Sequence[tuple[int, TokenSpan]], *, continues: bool = False) -> PackedBatch:
    """Lay spans, each with the sequence it belongs to, end to end."""
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    np.cumsum([len(span.ids) for _, span in spans], out=offsets[1:])
    owner = np.array([sequence for sequence, _ in spans], dtype=np.int64)
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    return PackedBatch(
        ids=np.concatenate([span.ids for _, span in spans]),
        offsets=offsets,
        weights=np.concatenate([span.weights for _, span in spans]),
        sequences=owner[first],
        bounds=np.r_[offsets[first], offsets[-1]].astype(np.int32),
        continues=continues,
    )
