"""Weighted sums over tokens: every pooling of every sequence in a batch, in one pass."""

from __future__ import annotations

import torch


def pool(hidden_TD: torch.Tensor, weights_TP: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
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
