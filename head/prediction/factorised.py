"""A head factorised into an antibody part, an antigen part and their combination.

The first layer of an MLP is linear in the joined vectors, so its product splits into a term per
antibody and a term per antigen, computed once per sequence. Per pair there remain their sum and
the narrow layers behind it, a twentieth of the arithmetic.

N antibodies, M antigens, D and E their widths; B pairs; H width of the first layer; R rank.
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
    """``combine(antibody(x)[i], antigen(y)[j])`` is the output of the head for the pair (i, j)."""

    antibody: Callable[[Tensor], Tensor]
    """(N, D) -> (N, H)"""
    antigen: Callable[[Tensor], Tensor]
    """(M, E) -> (M, H)"""
    combine: Callable[[Tensor, Tensor], Tensor]
    """(B, H), (B, H) -> (B,)"""


def factorise(model: nn.Module, antibody_width: int) -> FactorisedHead:
    """Factorise a head in evaluation mode; the result equals its output up to rounding.

    Raises
    ------
    TypeError
        If the head is no `Mlp`, `Notebook` or `LowRank`.
    """
    if isinstance(model, LowRank):

        def combine(a_BR: Tensor, g_BR: Tensor) -> Tensor:
            scores_B1: Tensor = model.out(torch.cat([a_BR, g_BR, a_BR * g_BR], dim=1))
            return scores_B1.squeeze(1)

        return FactorisedHead(model.antibody, model.antigen, combine)
    if not isinstance(model, Mlp | Notebook):
        msg = f"cannot factorise a head of class {type(model).__name__}"
        raise TypeError(msg)
    first, rest = cast("nn.Linear", model.layers[0]), model.layers[1:]
    left_DH, right_EH = first.weight[:, :antibody_width].T, first.weight[:, antibody_width:].T
    return FactorisedHead(
        lambda x_ND: x_ND @ left_DH,
        lambda x_ME: x_ME @ right_EH + first.bias,
        lambda a_BH, g_BH: cast("Tensor", rest(a_BH + g_BH)).squeeze(1),
    )
