"""The layers that heads are built of: torch's own for one head, and the same for M heads at once.

M members, G feeds that they share, B pairs a feed, I inputs and O outputs of a layer. A stacked
layer holds what M plain layers hold, name by name, with a member axis in front: member k's tensors
are a plain layer's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

if TYPE_CHECKING:
    from collections.abc import Sequence


class Layers(Protocol):
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


class PlainLayers:
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


class StackedLayers:
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
        return _Dropout(self.rates) if max(self.rates) > 0 else nn.Identity()


class _Linear(nn.Module):
    """One product for all heads that share a feed; weights are copied in from plain layers."""

    def __init__(self, members: int, inner: int, outer: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, outer, inner))
        self.bias = nn.Parameter(torch.empty(members, outer)) if bias else None

    def forward(self, x_GBI: Tensor) -> Tensor:
        members, outer, inner = self.weight.shape
        feeds, pairs, _ = x_GBI.shape
        # The heads of a feed one below the other: it is read once, not once a head. Weights times
        # inputs, not inputs times weights: so heads come out apart from each other, and gradients
        # laid out as the weights are; the other way each would be copied once more.
        joined_GHI = self.weight.view(feeds, -1, inner)
        y_MOB = torch.bmm(joined_GHI, x_GBI.transpose(1, 2)).view(members, outer, pairs)
        # Added apart: the compiler fuses it into what follows, where baddbmm would write it first.
        return (y_MOB if self.bias is None else y_MOB + self.bias[..., None]).transpose(1, 2)


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

    rate_M11: Tensor

    def __init__(self, rates: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("rate_M11", torch.tensor(rates)[:, None, None], persistent=False)

    def forward(self, x_MBI: Tensor) -> Tensor:
        if not self.training:
            return x_MBI
        kept_MBI = torch.rand(x_MBI.shape[1:], device=x_MBI.device) >= self.rate_M11
        return x_MBI * (kept_MBI / (1 - self.rate_M11)).to(x_MBI.dtype)
