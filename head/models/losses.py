"""Losses of pairs that ``--loss`` offers, on tensors; to add one, register it in `LOSSES`.

A censored pair costs nothing while its prediction is within the bound. Torch is imported when a
loss is computed, so that ``--help`` needs none.

B pairs of a batch; heads of a stack have an axis before B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class PredictedPairs(NamedTuple):
    """Hold the predictions and labels of a batch, each (B,)."""

    predicted_B: Tensor
    """In standard deviations of the training labels, float32."""
    target_B: Tensor
    """Labels or bounds in the same unit, float32."""
    censored_B: Tensor
    """int8: -1 if the true value is below the target, +1 if above, 0 if exact."""
    antigen_B: Tensor
    """Number of the antigen, int64."""
    weight_B: Tensor
    """Share of the pair in the loss of the step, float32; 0 for padding."""


def one_sided_errors(predicted_B: Tensor, target_B: Tensor, censored_B: Tensor) -> Tensor:
    """Subtract the targets, (B,); an error on the allowed side of a bound is 0."""
    error_B = predicted_B - target_B
    error_B = error_B.clamp(min=0).where(censored_B < 0, error_B)
    return error_B.clamp(max=0).where(censored_B > 0, error_B)


def mse(pairs: PredictedPairs) -> Tensor:
    """Return the squared errors, (B,)."""
    return one_sided_errors(pairs.predicted_B, pairs.target_B, pairs.censored_B).square()


def huber(pairs: PredictedPairs) -> Tensor:
    """Return half of the squared errors, linear beyond 1 standard deviation, (B,)."""
    import torch
    from torch.nn.functional import huber_loss

    error_B = one_sided_errors(pairs.predicted_B, pairs.target_B, pairs.censored_B)
    return huber_loss(error_B, torch.zeros_like(error_B), reduction="none")


def rank(pairs: PredictedPairs) -> Tensor:
    """Add to the squared error the pairwise logistic loss over weaker pairs of its antigen, (B,).

    References
    ----------
    RankNet: Burges et al., Learning to rank using gradient descent, ICML 2005.
    """
    from torch.nn.functional import softplus

    predicted_B = pairs.predicted_B
    target_B = pairs.target_B
    censored_B = pairs.censored_B
    # Before the ranking: autograd adds up gradients in this order, and rounding depends on it.
    error_B = one_sided_errors(predicted_B, target_B, censored_B)
    stronger = target_B[..., :, None] > target_B[..., None, :]
    certain = (censored_B >= 0)[..., :, None] & (censored_B <= 0)[..., None, :]
    same_antigen = pairs.antigen_B[..., :, None] == pairs.antigen_B[..., None, :]
    comparable = stronger & certain & same_antigen & (pairs.weight_B > 0)[..., None, :]
    losses_BB = softplus(predicted_B[..., None, :] - predicted_B[..., :, None]) * comparable
    return losses_BB.sum(-1) / comparable.sum(-1).clamp(min=1) + error_B.square()


LOSSES: dict[str, Callable[[PredictedPairs], Tensor]] = {"mse": mse, "huber": huber, "rank": rank}
"""Losses by the name that ``--loss`` takes."""
