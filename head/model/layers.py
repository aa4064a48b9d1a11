"""The layers that heads are built of: torch's own for one head, and the same for M heads at once.

M members, G feeds that they share, B pairs a feed, I inputs and O outputs of a layer. A stacked
layer holds what M plain layers hold, name by name, with a member axis in front: member k's tensors
are a plain layer's.
"""

from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDEST = 8192
"""Outputs of a layer that a fused block holds in registers."""


class LayerFactory(Protocol):
    """Makes the layers of a head."""

    def linear(self, inner: int, outer: int, *, bias: bool = True) -> nn.Module:
        """Make a linear layer."""
        ...

    def norm(self, width: int) -> nn.Module:
        """Make a LayerNorm over the last axis."""
        ...

    def dropout(self) -> nn.Module:
        """Make a dropout at the rate (stacked: the rates) that this was made with."""
        ...

    def blocks(self, *modules: nn.Module) -> nn.Sequential:
        """Chain blocks of linear, LayerNorm, GELU and dropout, and a last linear layer."""
        ...


class PlainLayerFactory:
    """torch's own layers: inputs (B, I), or any shape that ends in I."""

    def __init__(self, dropout: float) -> None:
        self.rate = dropout

    def linear(self, inner: int, outer: int, *, bias: bool = True) -> nn.Module:
        """Make a linear layer."""
        return nn.Linear(inner, outer, bias=bias)

    def norm(self, width: int) -> nn.Module:
        """Make a LayerNorm."""
        return nn.LayerNorm(width)

    def dropout(self) -> nn.Module:
        """Make a dropout."""
        return nn.Dropout(self.rate)

    def blocks(self, *modules: nn.Module) -> nn.Sequential:
        """Chain blocks and a last linear layer."""
        return nn.Sequential(*modules)


class StackedLayerFactory:
    """Layers of M heads: inputs (M, B, I); of the first layers (G, B, I), each for M / G heads."""

    def __init__(self, dropout_M: Sequence[float]) -> None:
        self.rates = tuple(dropout_M)

    def linear(self, inner: int, outer: int, *, bias: bool = True) -> nn.Module:
        """Make M linear layers."""
        return _Linear(len(self.rates), inner, outer, bias)

    def norm(self, width: int) -> nn.Module:
        """Make M LayerNorms."""
        return _LayerNorm(len(self.rates), width)

    def dropout(self) -> nn.Module:
        """Make M dropouts, each at its own rate."""
        return _Dropout(self.rates)

    def blocks(self, *modules: nn.Module) -> nn.Sequential:
        """Chain blocks and a last linear layer."""
        return _Blocks(*modules)


class _Linear(nn.Module):
    """One product for all heads that share a feed; weights are copied in from plain layers."""

    def __init__(self, members: int, inner: int, outer: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, outer, inner))
        self.bias = nn.Parameter(torch.empty(members, outer)) if bias else None

    def forward(self, x_GBI: Tensor) -> Tensor:
        y_MBO = _members_apart(self.product(x_GBI)).float()
        return y_MBO if self.bias is None else y_MBO + self.bias[:, None]

    def product(self, x_GBI: Tensor) -> Tensor:
        """Multiply without the bias, shape (G, B, K, O) and dtype of the weights; M = G x K."""
        _, outer, inner = self.weight.shape
        # The heads of a feed one below the other: it is read once, not once a head.
        joined_GHI = self.weight.view(len(x_GBI), -1, inner)
        y_GBH: Tensor = _Product.apply(x_GBI.to(self.weight.dtype), joined_GHI)  # type: ignore[no-untyped-call]
        return y_GBH.view(*y_GBH.shape[:2], -1, outer)


def _members_apart(y_GBKO: Tensor) -> Tensor:
    return y_GBKO.transpose(1, 2).flatten(0, 1)


class _Product(torch.autograd.Function):
    """``x w^T``, whose weight gradient comes out laid out as the weight is.

    Left to itself, autograd transposes it, and every gradient is copied once more.
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
            # one output is no product but a multiplication, which matrix units are slow at
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
    """Members share random numbers: their units have nothing but the place in common."""

    rate_M: Tensor

    def __init__(self, rates: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("rate_M", torch.tensor(rates), persistent=False)
        self.drops = max(rates) > 0

    def noise(self, shape: Sequence[int]) -> Tensor | None:
        """Draw the numbers that decide which units stay; None where all do."""
        return (
            torch.rand(shape, device=self.rate_M.device) if self.training and self.drops else None
        )

    def forward(self, x_MBI: Tensor) -> Tensor:
        noise_BI = self.noise(x_MBI.shape[1:])
        if noise_BI is None:
            return x_MBI
        rate_M11 = self.rate_M[:, None, None]
        return x_MBI * ((noise_BI >= rate_M11) / (1 - rate_M11)).to(x_MBI.dtype)


class _Blocks(nn.Sequential):
    """Blocks of linear, LayerNorm, GELU and dropout, and a last linear layer."""

    fused = False
    """Whether everything in a block except its product is one kernel: see `bf16_copy`."""

    def forward(self, x_GBI: Tensor) -> Tensor:
        if not self.fused:
            return cast("Tensor", super().forward(x_GBI))  # type: ignore[no-untyped-call]
        *layers, last = self
        for at in range(0, len(layers), 4):
            linear, norm, _, dropout = layers[at : at + 4]
            x_GBI = _fused_block(
                cast("_Linear", linear), cast("_LayerNorm", norm), cast("_Dropout", dropout), x_GBI
            )
        return cast("Tensor", last(x_GBI))


def _fused_block(linear: _Linear, norm: _LayerNorm, dropout: _Dropout, x_GBI: Tensor) -> Tensor:
    from abag.head.model.triton_kernels import norm_gelu

    y_GBKO = linear.product(x_GBI)
    noise_BO = dropout.noise((y_GBKO.shape[1], y_GBKO.shape[3]))
    out_MBO: Tensor = norm_gelu(
        y_GBKO, linear.bias, norm.weight, norm.bias, noise_BO, dropout.rate_M
    )[0]
    return out_MBO


def bf16_copy(stack: nn.Module) -> nn.Module:
    """Copy a stack to train with, its products in bf16; all parameters but weights are shared.

    On a GPU with bf16 units its blocks are fused.
    """
    weights = {id(m.weight) for m in stack.modules() if isinstance(m, _Linear)}
    shared = {id(p): p for p in stack.parameters() if id(p) not in weights}
    copied = deepcopy(stack, dict(shared))
    for module in copied.modules():
        if isinstance(module, _Linear):
            module.weight = nn.Parameter(module.weight.bfloat16())
        if isinstance(module, _Blocks):
            widest = max(m.weight.shape[1] for m in module if isinstance(m, _Linear))
            fits = widest <= WIDEST and find_spec("triton") is not None
            module.fused = fits and has_bf16_units(next(stack.parameters()).device)
    return copied


def has_bf16_units(device: torch.device) -> bool:
    """Tell whether a device is a GPU that multiplies in bf16: compute capability 8.0 or newer."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
