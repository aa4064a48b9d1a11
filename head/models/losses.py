"""Losses per pair, in one registry.

To add a loss, write its function and register it in `LOSSES`; the choices of ``--loss`` derive
from the registry. torch is imported when a loss is computed, so that ``abag fit --help`` is fast.

B pairs of a batch. Several heads have an axis of members before B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class PredictedPairs(NamedTuple):
    """The predictions and labels of a batch."""

    predicted_B: Tensor
    """Shape (B,), float32, in standard deviations of the training labels."""
    target_B: Tensor
    """Labels or bounds; shape (B,), float32, in the same unit."""
    censored_B: Tensor
    """Shape (B,), int8: -1 if the true value is below the target, +1 if above, 0 if exact."""
    antigen_B: Tensor
    """Shape (B,), int64."""
    weight_B: Tensor
    """Shape (B,), float32; 0 for padding."""


def one_sided_errors(predicted_B: Tensor, target_B: Tensor, censored_B: Tensor) -> Tensor:
    """Subtract the targets; an error on the allowed side of a bound is 0.

    The tensors are those of `PredictedPairs`; the result has shape (B,), float32.
    """
    error_B = predicted_B - target_B
    error_B = error_B.clamp(min=0).where(censored_B < 0, error_B)
    return error_B.clamp(max=0).where(censored_B > 0, error_B)


def mse(pairs: PredictedPairs) -> Tensor:
    """Return the squared error of each pair, shape (B,), float32."""
    return one_sided_errors(pairs.predicted_B, pairs.target_B, pairs.censored_B).square()


def huber(pairs: PredictedPairs) -> Tensor:
    """Return the Huber loss of each pair with a threshold of 1, shape (B,), float32."""
    import torch
    from torch.nn.functional import huber_loss

    error_B = one_sided_errors(pairs.predicted_B, pairs.target_B, pairs.censored_B)
    return huber_loss(error_B, torch.zeros_like(error_B), reduction="none")


def rank(pairs: PredictedPairs) -> Tensor:
    """Return a pairwise logistic loss plus the squared error, shape (B,), float32.

    A pair's logistic loss is the mean over the pairs of its antigen that are known to bind less
    strongly. Ranking alone would leave the scale of the predictions open; the squared error fixes
    it.
    """
    from torch.nn.functional import softplus

    predicted_B, target_B, censored_B = pairs.predicted_B, pairs.target_B, pairs.censored_B
    # Before the ranking: autograd adds up gradients in this order, and rounding depends on it.
    error_B = one_sided_errors(predicted_B, target_B, censored_B)
    stronger = target_B[..., :, None] > target_B[..., None, :]
    certain = (censored_B >= 0)[..., :, None] & (censored_B <= 0)[..., None, :]
    same_antigen = pairs.antigen_B[..., :, None] == pairs.antigen_B[..., None, :]
    comparable = stronger & certain & same_antigen & (pairs.weight_B > 0)[..., None, :]
    losses_BB = softplus(predicted_B[..., None, :] - predicted_B[..., :, None]) * comparable
    return losses_BB.sum(-1) / comparable.sum(-1).clamp(min=1) + error_B.square()


LOSSES: dict[str, Callable[[PredictedPairs], Tensor]] = {"mse": mse, "huber": huber, "rank": rank}


def loss_names() -> tuple[str, ...]:
    """Names that ``--loss`` accepts."""
    return tuple(LOSSES)
