"""A head taken apart, so that what depends on one sequence is computed once and not once a pair.

The first layer of an mlp is linear in both vectors joined: its product splits into the antibody's
part and the antigen's. What is left for each pair is their sum and the narrow layers behind it,
a twentieth of the arithmetic. N antibodies, M antigens, D and E wide; B pairs; H first layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from abag.head.model.heads import LowRank, Mlp, Notebook


@dataclass(frozen=True, slots=True)
class FactorisedHead:
    """``join(antibody(x)[i], antigen(y)[j])`` is the head's score of pair (i, j)."""

    antibody: Callable[[Tensor], Tensor]
    """(N, D) -> (N, H)"""
    antigen: Callable[[Tensor], Tensor]
    """(M, E) -> (M, H)"""
    join: Callable[[Tensor, Tensor], Tensor]
    """(B, H), (B, H) -> (B,)"""


def factorise(model: nn.Module, antibody_width: int) -> FactorisedHead:
    """Take a head apart; equal to calling it within rounding.

    Parameters
    ----------
    model : Mlp, Notebook or LowRank
        In evaluation mode.
    antibody_width : int
        D.
    """
    if isinstance(model, LowRank):
        return FactorisedHead(model.antibody, model.antigen, lambda a, g: _low_rank(model, a, g))
    if not isinstance(model, Mlp | Notebook):
        msg = f"no way is known to take a {type(model).__name__} apart"
        raise TypeError(msg)
    first, rest = cast("nn.Linear", model.layers[0]), model.layers[1:]
    left_DH, right_EH = first.weight[:, :antibody_width].T, first.weight[:, antibody_width:].T
    return FactorisedHead(
        lambda x_ND: x_ND @ left_DH,
        lambda x_ME: x_ME @ right_EH + first.bias,
        lambda a_BH, g_BH: cast("Tensor", rest(a_BH + g_BH)).squeeze(1),
    )


def _low_rank(model: LowRank, a_BR: Tensor, g_BR: Tensor) -> Tensor:
    scores_B1: Tensor = model.out(torch.cat([a_BR, g_BR, a_BR * g_BR], dim=1))
    return scores_B1.squeeze(1)
