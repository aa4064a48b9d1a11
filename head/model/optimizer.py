"""AdamW and clipping for one head, or for M heads stacked: each member by its own norm and rates.

Two ways to the same numbers. ``update`` calls torch's fused kernel, once a member on views of its
part of every tensor. ``stacked_update`` is the formula itself over whole stacks: under
torch.compile it is one pass over weights, gradients and moments, clipping included, where the
fused kernel would be launched M times with too little work to fill a GPU.

That pass is bound by the bytes that it moves. Weights that are multiplied in half precision keep
the mean of their gradients in it too, which leaves 24 bytes a weight of 28. A tenth of that mean is
new at each step, which half precision resolves; of the squares a thousandth, which it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from collections.abc import Sequence

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
NORM_EPS = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""


class AdamW:
    """torch's fused AdamW, by its functional form.

    The whole state exists from the start, at addresses that never change, which a CUDA graph
    needs; and the class in ``torch.optim`` would import torch._dynamo, 2 s before the first step.

    Parameters
    ----------
    model : nn.Module
        One head, or a stack.
    decay_M : sequence of float
        Decoupled weight decay of each member.
    lr : Tensor, shape=() or (M,)
        Filled with the rate of each step; with a member axis where ``model`` is a stack.
    clip : float
        Largest norm of a member's gradient; 0: not clipped.
    lowered : nn.Module, optional
        A copy with some weights in half precision, which has the gradients and is kept up to date.
    """

    def __init__(
        self,
        model: nn.Module,
        decay_M: Sequence[float],
        lr: Tensor,
        clip: float,
        lowered: nn.Module | None = None,
    ) -> None:
        self.lr, self.clip, self.stacked = lr, clip, lr.ndim == 1
        self.named = dict(model.named_parameters())
        copies = dict((model if lowered is None else lowered).named_parameters())
        self.lowered = {n: copies[n] for n, p in self.named.items() if copies[n] is not p}
        self.state = {
            f"{name}.{key}": torch.zeros(shape, device=p.device, dtype=dtype)
            for name, p in self.named.items()
            for key, shape, dtype in (
                ("mean", p.shape, copies[name].dtype),
                ("square", p.shape, p.dtype),
                ("step", lr.shape, p.dtype),
            )
        }
        # Decay shrinks matrices; biases and norms have no scale to shrink.
        matrices = [n for n, p in self.named.items() if p.ndim - lr.ndim >= 2]
        self.decay_M = torch.tensor(decay_M, device=lr.device)
        self.decayed = [name in matrices for name in self.named]
        rest = [name for name in self.named if name not in matrices]
        self.groups = [
            (member, names, decay if names is matrices else 0.0)
            for member, decay in enumerate(decay_M)
            for names in ((matrices, rest) if decay else (list(self.named),))
        ]

    def clear(self) -> None:
        """Forget all gradients."""
        for p in (*self.named.values(), *self.lowered.values()):
            p.grad = None

    def collect(self) -> None:
        """Add the half-precision gradients to those of the weights in full precision."""
        for name, low in self.lowered.items():
            if low.grad is not None:
                p, gradient, low.grad = self.named[name], low.grad.float(), None
                p.grad = gradient if p.grad is None else p.grad + gradient

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the weights to their copies in half precision."""
        for name, low in self.lowered.items():
            low.copy_(self.named[name])

    @torch.no_grad()
    def update(self) -> None:
        """Clip and apply the gradients, with the fused kernel; not of weights in half precision."""
        if self.clip and self.stacked:
            clip_members(self.gradients(), self.clip)
        elif self.clip:
            nn.utils.clip_grad_norm_(self.named.values(), self.clip)
        for member, names, decay in self.groups:
            adamw(
                [self._own(self.named[n], member) for n in names],
                [self._own(g, member) for n in names if (g := self.named[n].grad) is not None],
                [self._own(self.state[f"{n}.mean"], member) for n in names],
                [self._own(self.state[f"{n}.square"], member) for n in names],
                [],
                [self._own(self.state[f"{n}.step"], member) for n in names],
                fused=True,
                capturable=self.lr.is_cuda,
                amsgrad=False,
                beta1=BETA1,
                beta2=BETA2,
                lr=self._own(self.lr, member),  # a tensor, as torch.optim.AdamW passes it
                weight_decay=decay,
                eps=EPS,
                maximize=False,
            )

    def gradients(self) -> list[Tensor]:
        """Return every parameter's gradient, in the order of ``named``."""
        learnt = (p if p.grad is not None else self.lowered[n] for n, p in self.named.items())
        return [gradient for p in learnt if (gradient := p.grad) is not None]

    def states(self, key: str) -> list[Tensor]:
        """Return every parameter's ``mean``, ``square`` or ``step``."""
        return [self.state[f"{name}.{key}"] for name in self.named]

    def arguments(self) -> tuple[Any, ...]:
        """Return what `stacked_update` takes."""
        return (
            [*self.named.values()], [self.lowered.get(n) for n in self.named], self.gradients(),
            self.states("mean"), self.states("square"), self.states("step"),
            self.decayed, self.lr, self.decay_M, self.clip,
        )  # fmt: skip

    def _own(self, tensor: Tensor, member: int) -> Tensor:
        return tensor[member] if self.stacked else tensor


def member_scales(gradients: Sequence[Tensor], clip: float) -> Tensor:
    """Return what each member's gradient is multiplied by so that its norm is ``clip`` at most.

    Parameters
    ----------
    gradients : sequence of Tensor, shape=(M, ...)
    clip : float

    Returns
    -------
    Tensor, shape=(M,)
    """
    squares = [g.flatten(1).float().square().sum(1) for g in gradients]
    norm_M = torch.stack(squares).sum(0).sqrt()
    return (clip / (norm_M + NORM_EPS)).clamp(max=1.0)


def clip_members(gradients: Sequence[Tensor], clip: float) -> None:
    """Scale each member's gradients in place, by its own norm."""
    scale_M = member_scales(gradients, clip)
    for gradient in gradients:
        gradient.mul_(_along(scale_M, gradient))


@torch.no_grad()
def stacked_update(
    parameters: list[Tensor],
    lowered: list[Tensor | None],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    decayed: list[bool],
    lr_M: Tensor,
    decay_M: Tensor,
    clip: float,
) -> None:
    """Clip and apply the gradients of M members, by the formula; see the module's text.

    Parameters
    ----------
    parameters, squares : list of Tensor, shape=(M, ...), dtype=float32
    gradients, means : list of Tensor, shape=(M, ...)
        In half precision where there is a copy.
    lowered : list of (Tensor or None), shape=(M, ...)
        Copies in half precision.
    steps : list of Tensor, shape=(M,)
        Updates before this one, the same for all.
    decayed : list of bool
        Which parameters weight decay shrinks.
    lr_M, decay_M : Tensor, shape=(M,)
    clip : float

    References
    ----------
    Loshchilov and Hutter 2019, algorithm 2; the order of operations of ``torch.optim.AdamW``.
    """
    scale_M = member_scales(gradients, clip) if clip else torch.ones_like(lr_M)
    step_M = steps[0] + 1
    rate_M = lr_M / (1 - BETA1**step_M)
    root_M = (1 - BETA2**step_M).sqrt()
    shrunk_M = 1 - lr_M * decay_M
    for i, p in enumerate(parameters):
        gradient = gradients[i] * _along(scale_M, p)
        mean = torch.lerp(means[i].float(), gradient, 1 - BETA1)
        means[i].copy_(mean)
        squares[i].copy_(squares[i] * BETA2 + gradient.square() * (1 - BETA2))
        denominator = squares[i].sqrt() / _along(root_M, p) + EPS
        kept = p * _along(shrunk_M, p) if decayed[i] else p
        updated = kept - _along(rate_M, p) * mean / denominator
        p.copy_(updated)
        if (low := lowered[i]) is not None:
            low.copy_(updated)
        steps[i].copy_(step_M)


def _along(values_M: Tensor, like: Tensor) -> Tensor:
    return values_M.view(-1, *[1] * (like.ndim - 1))
