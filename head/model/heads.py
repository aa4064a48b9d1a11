"""Heads: an antibody vector and an antigen vector in, one number per pair out.

B pairs of a batch, D width of an antibody vector, E of an antigen vector, R rank, M members, G
training sets. Vectors are standardized; predictions are in standard deviations of the training
labels.

Each head is written once. Made of plain layers it is one head. Made of stacked layers it is M heads
of one shape: its tensors, inputs and outputs have a leading axis. That of the inputs has length G,
and each training set is read by M / G consecutive members.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from abag.head.model.layers import LayerFactory, plain_layers, stacked_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from abag.head.model.config import FitConfig, Network


class Mlp(nn.Module):
    """Both vectors joined, then blocks of linear, LayerNorm, GELU and dropout."""

    def __init__(
        self, antibody_width: int, antigen_width: int, widths: Sequence[int], layers: LayerFactory
    ) -> None:
        super().__init__()
        self.layers = self._chain((antibody_width + antigen_width, *widths), layers)

    def _chain(self, widths: tuple[int, ...], layers: LayerFactory) -> nn.Sequential:
        blocks: list[nn.Module] = []
        for inner, outer in pairwise(widths):
            blocks += [layers.linear(inner, outer), layers.norm(outer)]
            blocks += [nn.GELU(), layers.dropout()]
        return nn.Sequential(*blocks, layers.linear(widths[-1], 1))

    def forward(self, antibody_BD: Tensor, antigen_BE: Tensor) -> Tensor:
        """Predict pairs: (B, D) and (B, E) in, (B,) in float32 out."""
        scores_B1: Tensor = self.layers(torch.cat([antibody_BD, antigen_BE], dim=-1))
        return scores_B1.squeeze(-1).float()


class Notebook(Mlp):
    """The regressor of the old notebooks, layer for layer; for comparison.

    Its dropout precedes the LayerNorm, so the norm's statistics differ between training and
    prediction.
    """

    def _chain(self, widths: tuple[int, ...], layers: LayerFactory) -> nn.Sequential:
        blocks: list[nn.Module] = []
        for inner, outer in pairwise(widths):
            blocks += [layers.linear(inner, outer), nn.GELU()]
            blocks += [layers.dropout(), layers.norm(outer)]
        return nn.Sequential(*blocks[:-1], layers.linear(widths[-1], 1))


class LowRank(nn.Module):
    """A linear term per sequence and an antibody x antigen interaction of low rank."""

    def __init__(
        self, antibody_width: int, antigen_width: int, rank: int, layers: LayerFactory
    ) -> None:
        super().__init__()
        self.antibody = nn.Sequential(layers.linear(antibody_width, rank), layers.norm(rank))
        self.antigen = nn.Sequential(layers.linear(antigen_width, rank), layers.norm(rank))
        self.dropout = layers.dropout()
        self.out = layers.linear(3 * rank, 1)

    def forward(self, antibody_BD: Tensor, antigen_BE: Tensor) -> Tensor:
        """Predict pairs: (B, D) and (B, E) in, (B,) in float32 out."""
        antibody_BR, antigen_BR = self.antibody(antibody_BD), self.antigen(antigen_BE)
        joint = torch.cat([antibody_BR, antigen_BR, antibody_BR * antigen_BR], dim=-1)
        scores_B1: Tensor = self.out(self.dropout(joint))
        return scores_B1.squeeze(-1).float()


HEADS: dict[Network, Callable[[FitConfig, int, int, LayerFactory], nn.Module]] = {
    "mlp": lambda config, d, e, layers: Mlp(d, e, config.filled().widths, layers),
    "lowrank": lambda config, d, e, layers: LowRank(d, e, config.rank, layers),
    "notebook": lambda config, d, e, layers: Notebook(d, e, config.filled().widths, layers),
}
"""Networks by name; `Network` lists the same names."""


def build_head(config: FitConfig, antibody_width: int, antigen_width: int) -> nn.Module:
    """Make the head of a configuration, with initial weights drawn from torch's seed.

    It maps (B, D) and (B, E), float32, to (B,), float32.
    """
    assert config.network is not None
    layers = plain_layers(config.filled().dropout)
    return HEADS[config.network](config, antibody_width, antigen_width, layers)


def build_stacked_heads(
    config: FitConfig,
    antibody_width: int,
    antigen_width: int,
    seeds: Sequence[int],
    dropout_M: Sequence[float],
) -> nn.Module:
    """Make M heads of one shape that train in one step.

    Parameters
    ----------
    config : FitConfig
        Its dropout is not used.
    antibody_width, antigen_width : int
    seeds : sequence of int, length M
        torch's seed for the initial weights of each head, which equal those of a plain head.
    dropout_M : sequence of float, length M

    Returns
    -------
    nn.Module
        Maps (G, B, D) and (G, B, E) to (M, B) in float32. With one seed, a plain head.
    """
    assert config.network is not None
    build, widths = HEADS[config.network], (antibody_width, antigen_width)
    heads = []
    for seed, rate in zip(seeds, dropout_M, strict=True):
        torch.manual_seed(seed)
        heads.append(build(config, *widths, plain_layers(rate)))
    if len(heads) == 1:
        return heads[0]
    stack = build(config, *widths, stacked_layers(dropout_M))
    states = [head.state_dict() for head in heads]
    stack.load_state_dict({name: torch.stack([s[name] for s in states]) for name in states[0]})
    return stack
