"""Weighted sums over tokens: every pooling of every sequence in a batch, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def pool_tokens(
    hidden_TD: torch.Tensor, weights_TP: torch.Tensor, bounds: torch.Tensor
) -> torch.Tensor:
    """Sum each sequence's token vectors under each pooling's weights.

    Parameters
    ----------
    hidden_TD : Tensor, shape=(T, D)
        Token vectors, any float type.
    weights_TP : Tensor, shape=(T, P), dtype=float32
        Share of each token in each pooling.
    bounds : Tensor, shape=(S + 1,), dtype=int64
        Sequence ``s`` owns tokens ``bounds[s]:bounds[s + 1]``; none is empty.

    Returns
    -------
    Tensor, shape=(S, P, D), dtype=float32
        Summed in fp32 whatever the input type.
    """
    return torch.stack(
        [
            torch.segment_reduce(hidden_TD.float() * w_T[:, None], "sum", offsets=bounds, axis=0)
            for w_T in weights_TP.T
        ],
        dim=1,
    )


class LayerPooling:
    """Pools what an encoder's layers give, as the encoder passes them.

    A layer is numbered as in transformers' ``hidden_states``: 1 is what the first layer adds to
    the embeddings and hands on; the last layer's is normed, the others' are not.

    Attributes
    ----------
    pooled : dict of int to Tensor, shape=(S, P, D), dtype=float32
    """

    def __init__(
        self, layers: Sequence[int], weights_TP: torch.Tensor, bounds: torch.Tensor
    ) -> None:
        self._wanted = frozenset(layers)
        self._weights_TP, self._bounds = weights_TP, bounds
        self.pooled: dict[int, torch.Tensor] = {}

    def __contains__(self, layer: int) -> bool:
        """Say whether a layer's vectors are wanted: computing them costs a pass over memory."""
        return layer in self._wanted

    def add(self, layer: int, hidden_TD: torch.Tensor) -> None:
        """Pool a layer's token vectors, if they are wanted."""
        if layer in self._wanted:
            self.pooled[layer] = pool_tokens(hidden_TD, self._weights_TP, self._bounds)
