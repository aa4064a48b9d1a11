"""The layers that heads are made of: torch's own for one head, stacked ones for several.

M members in G training sets of K = M / G each, B pairs, I inputs and O outputs of a layer. The
tensors of a stacked layer have the names of the plain layer's and a leading member axis: those of
member k are a plain layer's.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_FUSED_WIDTH = 8192
"""Outputs of a layer that a fused block can hold in registers."""


@dataclass(frozen=True, slots=True)
class LayerFactory:
    """Makes the layers of a head, see `plain_layers` and `stacked_layers`."""

    linear: Callable[[int, int], nn.Module]
    """By the widths of inputs and outputs."""
    norm: Callable[[int], nn.Module]
    """LayerNorm over the last axis, by its width."""
    dropout: Callable[[], nn.Module]
    blocks: Callable[..., nn.Sequential]
    """Chains blocks of linear, LayerNorm, GELU and dropout, and a last linear layer."""


def plain_layers(dropout: float) -> LayerFactory:
    """Make torch's own layers, with inputs (B, I)."""
    return LayerFactory(nn.Linear, nn.LayerNorm, partial(nn.Dropout, dropout), nn.Sequential)


def stacked_layers(dropout_M: Sequence[float]) -> LayerFactory:
    """Make layers of M heads: the first layers have inputs (G, B, I), all others (M, B, I)."""
    members = len(dropout_M)
    return LayerFactory(
        partial(_Linear, members),
        partial(_LayerNorm, members),
        partial(_Dropout, dropout_M),
        _Blocks,
    )


class _Linear(nn.Module):
    """M linear layers; their weights are copied in from plain ones."""

    def __init__(self, members: int, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, outer, inner))
        self.bias = nn.Parameter(torch.empty(members, outer))

    def forward(self, x_GBI: Tensor) -> Tensor:
        return split_members(self.product(x_GBI)).float() + self.bias[:, None]

    def product(self, x_GBI: Tensor) -> Tensor:
        """Multiply without the bias: (G, B, K, O) in the dtype of the weights."""
        members, outer, inner = self.weight.shape
        # The members of a training set side by side: its vectors are read once for all of them.
        w_GHI = self.weight.view(len(x_GBI), -1, inner)
        y_GBH: Tensor = _Product.apply(x_GBI.to(self.weight.dtype), w_GHI)  # type: ignore[no-untyped-call]
        return y_GBH.view(*y_GBH.shape[:2], members // len(x_GBI), outer)


def split_members(y_GBKO: Tensor) -> Tensor:
    """Change the products of `_Linear` from (G, B, K, O) to (M, B, O)."""
    return y_GBKO.transpose(1, 2).flatten(0, 1)


class _Product(torch.autograd.Function):
    """``x w^T`` with H = K x O outputs, whose weight gradient has the memory layout of the weight.

    The gradient that autograd derives is transposed and would have to be copied.
    """

    @staticmethod
    def forward(ctx: Any, x_GBI: Tensor, w_GHI: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x_GBI, w_GHI)
        return torch.bmm(x_GBI, w_GHI.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, dy_GBH: Tensor) -> tuple[Tensor | None, Tensor]:  # noqa: ANN401
        x_GBI, w_GHI = ctx.saved_tensors
        dx_GBI = None
        if ctx.needs_input_grad[0]:
            # With one output this is an outer product, which matrix units are slow at.
            dx_GBI = dy_GBH * w_GHI if w_GHI.shape[1] == 1 else torch.bmm(dy_GBH, w_GHI)
        return dx_GBI, torch.bmm(dy_GBH.transpose(1, 2), x_GBI)


class _LayerNorm(nn.Module):
    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, width))
        self.bias = nn.Parameter(torch.empty(members, width))

    def forward(self, x_MBI: Tensor) -> Tensor:
        normed_MBI = layer_norm(x_MBI, x_MBI.shape[-1:])
        return torch.addcmul(self.bias[:, None], normed_MBI, self.weight[:, None])


class _Dropout(nn.Module):
    """Dropout whose random numbers all members share; their units are unrelated."""

    rate_M: Tensor

    def __init__(self, rates: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("rate_M", torch.tensor(rates), persistent=False)
        self.drops = max(rates) > 0
        self.generator: torch.Generator | None = None

    def noise(self, shape: Sequence[int]) -> Tensor | None:
        """Draw uniform numbers; units with a number below the rate are dropped. None: none is."""
        if not (self.training and self.drops):
            return None
        return torch.rand(shape, device=self.rate_M.device, generator=self.generator)

    def forward(self, x_MBI: Tensor) -> Tensor:
        noise_BI = self.noise(x_MBI.shape[1:])
        if noise_BI is None:
            return x_MBI
        rate_M11 = self.rate_M[:, None, None]
        return x_MBI * ((noise_BI >= rate_M11) / (1 - rate_M11)).to(x_MBI.dtype)


class _Blocks(nn.Sequential):
    """Blocks of linear, LayerNorm, GELU and dropout, and a last linear layer."""

    fused = False
    """Whether everything in a block except the product is one kernel, see `bf16_copy`."""

    def forward(self, x_GBI: Tensor) -> Tensor:
        if not self.fused:
            return cast("Tensor", super().forward(x_GBI))  # type: ignore[no-untyped-call]
        from abag.head.model.triton_kernels import norm_gelu

        layers: list[Any] = list(self)
        for at in range(0, len(layers) - 1, 4):
            linear, norm, _, dropout = layers[at : at + 4]
            y_GBKO = linear.product(x_GBI)
            noise_BO = dropout.noise((y_GBKO.shape[1], y_GBKO.shape[3]))
            x_GBI = norm_gelu(
                y_GBKO, linear.bias, norm.weight, norm.bias, noise_BO, dropout.rate_M
            )[0]
        return cast("Tensor", layers[-1](x_GBI))


def use_generator(stack: nn.Module, generator: torch.Generator) -> None:
    """Have stacked heads draw from this generator, so that other threads can draw meanwhile."""
    for module in stack.modules():
        if isinstance(module, _Dropout):
            module.generator = generator


def bf16_copy(stack: nn.Module) -> nn.Module:
    """Copy stacked heads for training with bf16 products.

    The copy has its own weight matrices, in bf16, and shares all other parameters. On a GPU that
    supports bf16 its blocks are fused.
    """
    weights = {id(m.weight) for m in stack.modules() if isinstance(m, _Linear)}
    shared = {id(p): p for p in stack.parameters() if id(p) not in weights}
    copied = deepcopy(stack, dict(shared))
    for module in copied.modules():
        if isinstance(module, _Linear):
            module.weight = nn.Parameter(module.weight.bfloat16())
        if isinstance(module, _Blocks):
            widest = max(m.weight.shape[1] for m in module if isinstance(m, _Linear))
            fits = widest <= MAX_FUSED_WIDTH and find_spec("triton") is not None
            module.fused = fits and supports_bf16(next(stack.parameters()).device)
    return copied


def supports_bf16(device: torch.device) -> bool:
    """Whether a device is a GPU with bf16 matrix units (compute capability 8.0 or newer)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
