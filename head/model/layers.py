"""The layers that heads are made of: torch's own for one head, stacked ones for several.

M members in G training sets of K = M / G each, B pairs, I inputs and O outputs of a layer. The
tensors of a stacked layer have the names of the plain layer's and a leading member axis: those of
member k are a plain layer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class LayerFactory:
    """Makes the layers of a head, see `plain_layers` and `stacked_layers`."""

    linear: Callable[[int, int], nn.Module]
    """By the widths of inputs and outputs."""
    norm: Callable[[int], nn.Module]
    """LayerNorm over the last axis, by its width."""
    dropout: Callable[[], nn.Module]


def plain_layers(dropout: float) -> LayerFactory:
    """Make torch's own layers, with inputs (B, I)."""
    return LayerFactory(nn.Linear, nn.LayerNorm, partial(nn.Dropout, dropout))


def stacked_layers(dropout_M: Sequence[float]) -> LayerFactory:
    """Make layers of M heads: the first layers have inputs (G, B, I), all others (M, B, I)."""
    members = len(dropout_M)
    return LayerFactory(
        partial(_Linear, members),
        partial(_LayerNorm, members),
        partial(_Dropout, dropout_M),
    )


class _Linear(nn.Module):
    """M linear layers; their weights are copied in from plain ones."""

    def __init__(self, members: int, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, outer, inner))
        self.bias = nn.Parameter(torch.empty(members, outer))

    def forward(self, x_GBI: Tensor) -> Tensor:
        members, outer, inner = self.weight.shape
        # The members of a training set side by side: its vectors are read once for all of them.
        # The weights come first, or their gradient would be transposed and have to be copied.
        w_GHI = self.weight.view(len(x_GBI), -1, inner)
        y_GHB = torch.baddbmm(self.bias.view(len(x_GBI), -1, 1), w_GHI, x_GBI.mT)
        return y_GHB.view(members, outer, -1).mT.float()


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

    def forward(self, x_MBI: Tensor) -> Tensor:
        if not (self.training and self.drops):
            return x_MBI
        noise_BI = torch.rand(x_MBI.shape[1:], device=x_MBI.device, generator=self.generator)
        rate_M11 = self.rate_M[:, None, None]
        return x_MBI * ((noise_BI >= rate_M11) / (1 - rate_M11))


def use_generator(stack: nn.Module, generator: torch.Generator) -> None:
    """Have stacked heads draw from this generator, so that other threads can draw meanwhile."""
    for module in stack.modules():
        if isinstance(module, _Dropout):
            module.generator = generator


def supports_bf16(device: torch.device) -> bool:
    """Whether a device is a GPU with bf16 matrix units (compute capability 8.0 or newer)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
