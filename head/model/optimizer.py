"""AdamW of torch for one head or M stacked heads, each with its own gradient norm and rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NORM_EPS = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""


class AdamW:
    """AdamW with torch's fused kernel.

    The state is allocated at once and its addresses never change, as a CUDA graph requires. The
    class in ``torch.optim`` does the same, but imports torch._dynamo, which takes 1.3 s.

    Parameters
    ----------
    model : nn.Module
        One head, or M stacked heads.
    decay_M : sequence of float
        Decoupled weight decay of each member, of matrices, not of biases and norms.
    lr : Tensor, shape=() or (M,)
        Holds the learning rate of the current step; shape (M,) for stacked heads.
    clip : float
        Largest norm of a member's gradient; 0: no clipping.
    alike : bool
        Whether all members have the same learning rate and weight decay, so that one call of the
        kernel updates them all.
    """

    def __init__(
        self, model: nn.Module, decay_M: Sequence[float], lr: Tensor, clip: float, *, alike: bool
    ) -> None:
        self.lr, self.clip, self.stacked = lr, clip, lr.ndim == 1
        self.named = dict(model.named_parameters())
        self.state = {
            f"{name}.{key}": torch.zeros(shape, device=p.device)
            for name, p in self.named.items()
            for key, shape in (("mean", p.shape), ("square", p.shape), ("step", lr.shape))
        }
        self.whole = not self.stacked or alike
        """Whether one call updates all members."""
        matrices = [name for name, p in self.named.items() if p.ndim - lr.ndim >= 2]
        rest = [name for name in self.named if name not in matrices]
        self.groups = [
            (member, names, decay if names is matrices else 0.0)
            for member, decay in enumerate(decay_M[:1] if self.whole else decay_M)
            for names in (matrices, rest)
        ]

    def clear(self) -> None:
        """Delete all gradients."""
        for p in self.named.values():
            p.grad = None

    @torch.no_grad()
    def update(self) -> None:
        """Clip and apply the gradients."""
        if self.clip and self.stacked:
            clip_members([p.grad for p in self.named.values() if p.grad is not None], self.clip)
        elif self.clip:
            nn.utils.clip_grad_norm_(self.named.values(), self.clip)
        for member, names, decay in self.groups:
            steps = [self.state[f"{name}.step"] for name in names]
            adamw(
                self._of_member(member, (self.named[name] for name in names)),
                self._of_member(member, (self.named[name].grad for name in names)),
                self._of_member(member, (self.state[f"{name}.mean"] for name in names)),
                self._of_member(member, (self.state[f"{name}.square"] for name in names)),
                [],
                [step[member] for step in steps] if self.stacked else steps,
                fused=True,
                capturable=self.lr.is_cuda,
                amsgrad=False,
                maximize=False,
                lr=self.lr[member] if self.stacked else self.lr,
                beta1=0.9,
                beta2=0.999,
                weight_decay=decay,
                eps=1e-8,
            )
            if self.stacked and self.whole:  # the kernel counts one member's steps
                for step in steps:
                    step[1:] = step[0]

    def _of_member(self, member: int, tensors: Iterable[Tensor | None]) -> list[Tensor]:
        return [t if self.whole else t[member] for t in tensors if t is not None]


def clip_members(gradients: Sequence[Tensor], clip: float) -> None:
    """Clip each member's gradients, of shape (M, ...), in place by their norm."""
    norms = [vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    scale_M = (clip / (vector_norm(torch.stack(norms), dim=0) + NORM_EPS)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale_M.view(-1, *[1] * (gradient.ndim - 1)))
