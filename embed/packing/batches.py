"""Batches under a token budget, packed or padded, and every pooling of their sequences.

Imports torch where it is used: what finds nothing to encode does without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.packing.tokens import TokenSpan

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class BatchTooLarge(AbagError):
    """A single span exceeds the token budget."""


def longest_first(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the stable order by descending length, shape (N,): memory peaks in the first batch."""
    return np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Spans laid end to end, without padding: T tokens, N spans, S sequences, P poolings."""

    ids: NDArray[np.int32]  # shape (T,)
    offsets: NDArray[np.int32]  # shape (N + 1,); span i is ids[offsets[i]:offsets[i + 1]]
    weights: NDArray[np.float32]  # shape (T, P): of each token in each pooling
    sequences: NDArray[np.int64]  # shape (S,), in order of their first token
    bounds: NDArray[np.int32]  # shape (S + 1,); sequence s owns tokens bounds[s]:bounds[s + 1]
    continues: bool  # whether the last sequence has further spans in the next batch

    @property
    def max_length(self) -> int:
        """Tokens in the longest span."""
        return int(np.diff(self.offsets).max())


def fill_batches(
    spans: Iterable[tuple[int, TokenSpan]], budget_tokens: int
) -> Iterator[PackedBatch]:
    """Fill batches of at most `budget_tokens` with spans; those of a sequence are consecutive.

    Raises
    ------
    BatchTooLarge
        If one span alone exceeds the budget.
    """
    held: list[tuple[int, TokenSpan]] = []
    tokens = 0
    for sequence, span in spans:
        length = len(span.ids)
        if length > budget_tokens:
            msg = (
                f"--batch-tokens {budget_tokens}: a sequence has {length} tokens; "
                f"give --batch-tokens {length} or more"
            )
            raise BatchTooLarge(msg)
        if tokens + length > budget_tokens:
            yield pack_spans(held, continues=held[-1][0] == sequence)
            held, tokens = [], 0
        held.append((sequence, span))
        tokens += length
    if held:
        yield pack_spans(held)


def pack_spans(spans: Sequence[tuple[int, TokenSpan]], *, continues: bool = False) -> PackedBatch:
    """Lay spans, each given with its sequence, end to end."""
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


def pad_batch(
    batch: PackedBatch, pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy a batch into one padded row per span, L tokens wide.

    Returns
    -------
    ids_NL : Tensor, shape=(N, L), dtype=int64
    is_token_NL : Tensor, shape=(N, L), dtype=bool
        False is padding.
    """
    import torch

    lengths_N = torch.from_numpy(batch.offsets).diff()
    is_token_NL = torch.arange(batch.max_length)[None, :] < lengths_N[:, None]
    ids_NL = torch.full(is_token_NL.shape, pad_id, dtype=torch.int64)
    ids_NL[is_token_NL] = torch.from_numpy(batch.ids).long()
    return ids_NL.to(device), is_token_NL.to(device)


def pool_tokens(hidden_TD: Tensor, weights_TP: Tensor, bounds: Tensor) -> Tensor:
    """Sum each sequence's token vectors with the weights of each pooling.

    Parameters
    ----------
    hidden_TD : Tensor, shape=(T, D), dtype=float32, bfloat16 or float16
    weights_TP : Tensor, shape=(T, P), dtype=float32
    bounds : Tensor, shape=(S + 1,), dtype=int64
        Sequence ``s`` owns tokens ``bounds[s]:bounds[s + 1]``; none is empty.

    Returns
    -------
    Tensor, shape=(S, P, D), dtype=float32
        Summed in fp32 whatever the input type.
    """
    import torch

    weighted = (hidden_TD.float() * w_T[:, None] for w_T in weights_TP.T)
    sums = [torch.segment_reduce(x_TD, "sum", offsets=bounds, axis=0) for x_TD in weighted]
    return torch.stack(sums, dim=1)


class LayerPooling:
    """Pools the token vectors of selected layers while an encoder runs.

    Layers are numbered as in transformers' ``hidden_states``: 1 is the output of the first layer.
    Only the output of the last layer is normalised. `weights_TP` and `bounds` are those of
    `pool_tokens`.
    """

    def __init__(self, layers: Sequence[int], weights_TP: Tensor, bounds: Tensor) -> None:
        self.layers = frozenset(layers)
        self._weights_TP, self._bounds = weights_TP, bounds
        self.pooled: dict[int, Tensor] = {}  # by layer: shape (S, P, D), dtype float32

    def add(self, layer: int, hidden_TD: Tensor) -> None:
        """Pool the token vectors of a layer, shape (T, D), if it is one of those selected."""
        if layer in self.layers:
            self.pooled[layer] = pool_tokens(hidden_TD, self._weights_TP, self._bounds)
