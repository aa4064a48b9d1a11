"""Heads: an antibody vector and an antigen vector in, one number a pair out.

B pairs of a batch, D width of an antibody vector, E of an antigen vector, I of both, R rank, M
members. Vectors arrive standardised; what comes out is pKd in training standard deviations.

A head is written once. Built of plain layers it is one head; built of stacked ones
it is M heads of one shape, and every tensor inside or out has a member axis in front. What comes
in has an axis of G feeds, each read by M / G members in turn.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from abag.head.model.layers import LayerFactory, PlainLayerFactory, StackedLayerFactory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from abag.head.model.config import FitConfig


class Head(Protocol):
    """What every head can do."""

    def __call__(self, antibody_BD: Tensor, antigen_BE: Tensor) -> Tensor:
        """Score each pair, shape (B,), float32."""
        ...


class Mlp(nn.Module):
    """Both vectors joined, then blocks of linear, LayerNorm, GELU and dropout."""

    def __init__(
        self, antibody_width: int, antigen_width: int, widths: tuple[int, ...], layers: LayerFactory
    ) -> None:
        super().__init__()
        joined = antibody_width + antigen_width
        blocks: list[nn.Module] = []
        for inner, outer in pairwise((joined, *widths)):
            blocks += [
                layers.linear(inner, outer), layers.norm(outer), nn.GELU(), layers.dropout()
            ]  # fmt: skip
        self.layers = layers.blocks(*blocks, layers.linear(widths[-1], 1))

    def forward(self, antibody_BD: Tensor, antigen_BE: Tensor) -> Tensor:
        """Score each pair, shape (B,)."""
        scores_B1: Tensor = self.layers(torch.cat([antibody_BD, antigen_BE], dim=-1))
        return scores_B1.squeeze(-1).float()


class Notebook(nn.Module):
    """The old notebooks' regressor, layer for layer; for comparison.

    Its dropout lies before the LayerNorm, whose statistics then differ between training and use.
    """

    def __init__(
        self, antibody_width: int, antigen_width: int, widths: tuple[int, ...], layers: LayerFactory
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for inner, outer in pairwise((antibody_width + antigen_width, *widths)):
            blocks += [
                layers.linear(inner, outer), nn.GELU(), layers.dropout(), layers.norm(outer)
            ]  # fmt: skip
        self.layers = nn.Sequential(*blocks[:-1], layers.linear(widths[-1], 1))

    def forward(self, antibody_BD: Tensor, antigen_BE: Tensor) -> Tensor:
        """Score each pair, shape (B,)."""
        scores_B1: Tensor = self.layers(torch.cat([antibody_BD, antigen_BE], dim=-1))
        return scores_B1.squeeze(-1).float()


class LowRank(nn.Module):
    """A linear term a side plus an antibody x antigen interaction of low rank."""

    def __init__(
        self, antibody_width: int, antigen_width: int, rank: int, layers: LayerFactory
    ) -> None:
        super().__init__()
        self.antibody = nn.Sequential(layers.linear(antibody_width, rank), layers.norm(rank))
        self.antigen = nn.Sequential(layers.linear(antigen_width, rank), layers.norm(rank))
        self.dropout = layers.dropout()
        self.out = layers.linear(3 * rank, 1)

    def forward(self, antibody_BD: Tensor, antigen_BE: Tensor) -> Tensor:
        """Score each pair, shape (B,)."""
        antibody_BR = self.antibody(antibody_BD)
        antigen_BR = self.antigen(antigen_BE)
        joint = torch.cat([antibody_BR, antigen_BR, antibody_BR * antigen_BR], dim=-1)
        scores_B1: Tensor = self.out(self.dropout(joint))
        return scores_B1.squeeze(-1).float()


def build_head(config: FitConfig, antibody_width: int, antigen_width: int) -> nn.Module:
    """Make the head that a configuration asks for, its weights drawn from torch's seed.

    Parameters
    ----------
    config : FitConfig
    antibody_width, antigen_width : int
        D and E.
    """
    return _assemble(
        config, antibody_width, antigen_width, PlainLayerFactory(config.filled().dropout)
    )


def build_stacked_heads(
    config: FitConfig,
    antibody_width: int,
    antigen_width: int,
    seeds: Sequence[int],
    dropout_M: Sequence[float],
) -> nn.Module:
    """Make M heads of one shape that train in one step; of one seed, a plain head.

    Parameters
    ----------
    config : FitConfig
        Head and widths; its own dropout is not used.
    antibody_width, antigen_width : int
        D and E.
    seeds : sequence of int, length M
        torch's seed for the initial weights of each, which are those of a plain head.
    dropout_M : sequence of float, length M

    Returns
    -------
    nn.Module
        Vectors (G, B, D) and (G, B, E) in, scores (M, B) out; without G and M where there is one
        seed.
    """
    heads = []
    for seed, rate in zip(seeds, dropout_M, strict=True):
        torch.manual_seed(seed)
        heads.append(_assemble(config, antibody_width, antigen_width, PlainLayerFactory(rate)))
    if len(heads) == 1:
        return heads[0]
    stack = _assemble(config, antibody_width, antigen_width, StackedLayerFactory(dropout_M))
    states = [head.state_dict() for head in heads]
    stack.load_state_dict({name: torch.stack([s[name] for s in states]) for name in states[0]})
    return stack


def _assemble(
    config: FitConfig, antibody_width: int, antigen_width: int, layers: LayerFactory
) -> nn.Module:
    filled = config.filled()
    if filled.head == "lowrank":
        return LowRank(antibody_width, antigen_width, config.rank, layers)
    kind = Notebook if filled.head == "notebook" else Mlp
    return kind(antibody_width, antigen_width, filled.widths, layers)
