"""The network: an antibody vector and an antigen vector in, one number per pair out.

B pairs of a batch, D width of an antibody vector, E of an antigen vector, M members, G training
sets. Vectors are standardized; predictions are in standard deviations of the training
labels.

It is written once. Made of plain layers it is one head. Made of stacked layers it is M heads of one
shape: its tensors, inputs and outputs have a leading axis. That of the inputs has length G,
and each training set is read by M / G consecutive members. Tensors of a stacked layer have the
names of the plain layer's: those of member k are a plain layer's. I inputs, O outputs of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
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


class Mlp(nn.Module):
    """Both vectors joined, then blocks of linear, LayerNorm, GELU and dropout."""

    def __init__(
        self, antibody_width: int, antigen_width: int, widths: Sequence[int], layers: LayerFactory
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for inner, outer in pairwise((antibody_width + antigen_width, *widths)):
            blocks += [layers.linear(inner, outer), layers.norm(outer)]
            blocks += [nn.GELU(), layers.dropout()]
        self.layers = nn.Sequential(*blocks, layers.linear(widths[-1], 1))

    def forward(self, antibody_BD: Tensor, antigen_BE: Tensor) -> Tensor:
        """Predict pairs: (B, D) and (B, E) in, (B,) in float32 out."""
        scores_B1: Tensor = self.layers(torch.cat([antibody_BD, antigen_BE], dim=-1))
        return scores_B1.squeeze(-1).float()


def build_stacked_heads(
    antibody_width: int,
    antigen_width: int,
    widths: Sequence[int],
    seeds: Sequence[int],
    dropout_M: Sequence[float],
) -> nn.Module:
    """Make M heads of one shape that train in one step.

    Parameters
    ----------
    antibody_width, antigen_width : int
    widths : sequence of int
        Of the hidden layers.
    seeds : sequence of int, length M
        torch's seed for the initial weights of each head, which equal those of a plain head.
    dropout_M : sequence of float, length M

    Returns
    -------
    nn.Module
        Maps (G, B, D) and (G, B, E) to (M, B) in float32. With one seed, a plain head.
    """
    build, heads = partial(Mlp, antibody_width, antigen_width, widths), []
    for seed, rate in zip(seeds, dropout_M, strict=True):
        torch.manual_seed(seed)
        heads.append(build(plain_layers(rate)))
    if len(heads) == 1:
        return heads[0]
    stack = build(stacked_layers(dropout_M))
    states = [head.state_dict() for head in heads]
    stack.load_state_dict({name: torch.stack([s[name] for s in states]) for name in states[0]})
    return stack
