"""Weighted sums over tokens: every pooling of every sequence in a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
