"""AdamW and gradient clipping for one head or M stacked heads, each with its own norm and rates.

There are two implementations with the same results. ``AdamW.update`` calls torch's fused kernel
once per member. ``stacked_update`` is the formula over whole stacks: under torch.compile it is one
pass over weights, gradients and moments, including clipping, while M launches of the fused kernel
have too little work to fill a GPU.

That pass is bound by memory traffic. Weights whose products are in bf16 therefore also keep the
mean of their gradients in bf16, which saves 4 of 28 bytes per weight. Each step changes the mean by
a tenth, which bf16 resolves; it changes the mean of squares by a thousandth, which bf16 does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
NORM_EPS = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""


class _Part(NamedTuple):
    """Parameters that one call of the fused kernel updates, and their state."""

    member: int | None
    """Whose; None: those of all."""
    names: Sequence[str]
    decay: float
    lr: Tensor
    """Shape ()."""
    parameters: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    steps: list[Tensor]
    """Shape () each; the kernel counts the update there."""
    other_steps: list[Tensor]
    """The counts of all other members, where it updates these, too."""


class AdamW:
    """AdamW with torch's fused kernel.

    The state is allocated at once and its addresses never change, as a CUDA graph requires. The
    class in ``torch.optim`` would also import torch._dynamo, which takes 2 s.

    Parameters
    ----------
    model : nn.Module
        One head, or M stacked heads.
    decay_M : sequence of float
        Decoupled weight decay of each member.
    lr : Tensor, shape=() or (M,)
        Holds the learning rate of the current step; shape (M,) for stacked heads.
    clip : float
        Largest norm of a member's gradient; 0: no clipping.
    bf16_model : nn.Module, optional
        A copy with some weights in bf16. It receives the gradients and is kept up to date.
    alike : bool
        Whether all members have the same learning rate and weight decay, so that one call of the
        kernel updates them all.
    """

    def __init__(
        self,
        model: nn.Module,
        decay_M: Sequence[float],
        lr: Tensor,
        clip: float,
        bf16_model: nn.Module | None = None,
        *,
        alike: bool = False,
    ) -> None:
        self.lr, self.clip, self.stacked = lr, clip, lr.ndim == 1
        self.alike = alike and self.stacked
        self.named = dict(model.named_parameters())
        copies = dict((model if bf16_model is None else bf16_model).named_parameters())
        self.bf16_weights = {n: copies[n] for n, p in self.named.items() if copies[n] is not p}
        self.state = {
            f"{name}.{key}": torch.zeros(shape, device=p.device, dtype=dtype)
            for name, p in self.named.items()
            for key, shape, dtype in (
                ("mean", p.shape, copies[name].dtype),
                ("square", p.shape, p.dtype),
                ("step", lr.shape, p.dtype),
            )
        }
        # Weight decay applies to matrices, not to biases and norms.
        matrices = [n for n, p in self.named.items() if p.ndim - lr.ndim >= 2]
        self.decay_M = torch.tensor(decay_M, device=lr.device)
        self.decayed = [name in matrices for name in self.named]
        rest = [name for name in self.named if name not in matrices]
        self.parts = [
            self._part(member, names, decay if names is matrices else 0.0)
            for member, decay in enumerate(decay_M[:1] if self.alike else decay_M)
            for names in ((matrices, rest) if decay else (list(self.named),))
        ]

    def _part(self, member: int, names: Sequence[str], decay: float) -> _Part:
        whole = not self.stacked or self.alike

        def of_member(tensors: Iterable[Tensor]) -> list[Tensor]:
            return [tensor if whole else tensor.detach()[member] for tensor in tensors]

        steps = [self.state[f"{name}.step"] for name in names]
        return _Part(
            None if whole else member,
            names,
            decay,
            self.lr[member] if self.stacked else self.lr,
            of_member(self.named[name] for name in names),
            of_member(self.state[f"{name}.mean"] for name in names),
            of_member(self.state[f"{name}.square"] for name in names),
            [step[member] for step in steps] if self.stacked else steps,
            [step[1:] for step in steps] if self.alike else [],
        )

    def clear(self) -> None:
        """Delete all gradients."""
        for p in (*self.named.values(), *self.bf16_weights.values()):
            p.grad = None

    def collect_bf16_gradients(self) -> None:
        """Add the gradients of the bf16 weights to those of the float32 weights."""
        for name, low in self.bf16_weights.items():
            if low.grad is not None:
                p, gradient, low.grad = self.named[name], low.grad.float(), None
                p.grad = gradient if p.grad is None else p.grad + gradient

    @torch.no_grad()
    def update_bf16_weights(self) -> None:
        """Round the weights to their bf16 copies."""
        for name, low in self.bf16_weights.items():
            low.copy_(self.named[name])

    @torch.no_grad()
    def update(self) -> None:
        """Clip and apply the gradients with the fused kernel; bf16 copies are not supported."""
        if self.clip and self.stacked:
            clip_members(self.gradients(), self.clip)
        elif self.clip:
            nn.utils.clip_grad_norm_(self.named.values(), self.clip)
        for part in self.parts:
            gradients = [g for name in part.names if (g := self.named[name].grad) is not None]
            if part.member is not None:
                gradients = [gradient[part.member] for gradient in gradients]
            adamw(
                part.parameters, gradients, part.means, part.squares, [], part.steps,
                fused=True, capturable=self.lr.is_cuda, amsgrad=False, maximize=False,
                lr=part.lr,  # a tensor, as torch.optim.AdamW passes it
                beta1=BETA1, beta2=BETA2, weight_decay=part.decay, eps=EPS,
            )  # fmt: skip
            for steps in part.other_steps:
                steps.add_(1)

    def gradients(self) -> list[Tensor]:
        """Return every parameter's gradient, of its shape, in the order of ``named``."""
        trained = (p if p.grad is not None else self.bf16_weights[n] for n, p in self.named.items())
        return [gradient for p in trained if (gradient := p.grad) is not None]

    def stacked_update_arguments(self) -> tuple[Any, ...]:
        """Return the arguments of `stacked_update`."""
        state = [
            [self.state[f"{n}.{key}"] for n in self.named] for key in ("mean", "square", "step")
        ]
        copies = [self.bf16_weights.get(n) for n in self.named]
        parameters, gradients = [*self.named.values()], self.gradients()
        return (parameters, copies, gradients, *state,
                self.decayed, self.lr, self.decay_M, self.clip)  # fmt: skip


def member_scales(gradients: Sequence[Tensor], clip: float) -> Tensor:
    """Return the factors, (M,) in float32, that limit each member's gradient norm to ``clip``."""
    norms = [vector_norm(g.flatten(1), dim=1, dtype=torch.float32) for g in gradients]
    norm_M = torch.stack(norms).square().sum(0).sqrt()
    return (clip / (norm_M + NORM_EPS)).clamp(max=1.0)


def clip_members(gradients: Sequence[Tensor], clip: float) -> None:
    """Clip each member's gradients, of shape (M, ...), in place by their norm."""
    scale_M = member_scales(gradients, clip)
    for gradient in gradients:
        gradient.mul_(_along(scale_M, gradient))


@torch.no_grad()
def stacked_update(
    parameters: list[Tensor],
    bf16_weights: list[Tensor | None],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    decayed: list[bool],
    lr_M: Tensor,
    decay_M: Tensor,
    clip: float,
) -> None:
    """Clip and apply the gradients of M members; see the module's docstring.

    The tensors in lists have shape (M, ...); `steps`, the number of updates so far, has shape (M,).
    Gradients and means are in bf16 where there is a bf16 copy, everything else is float32. Without
    clipping, `clip` is 0.

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
        decayed_p = p * _along(shrunk_M, p) if decayed[i] else p
        updated = decayed_p - _along(rate_M, p) * mean / denominator
        p.copy_(updated)
        if (low := bf16_weights[i]) is not None:
            low.copy_(updated)
        steps[i].copy_(step_M)


def _along(values_M: Tensor, like: Tensor) -> Tensor:
    return values_M.view(-1, *[1] * (like.ndim - 1))
