"""A plain torch module of encoders with RMS norms, rotary positions and SwiGLU.

transformers has no class of them. The reference for `packed_swiglu`, and what `abag adapt` trains.
N sequences, L tokens of the longest, D hidden width, H heads, E width of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from abag.embed.families.family import EncoderShape
from abag.embed.families.packed import rotary_tables
from abag.embed.families.swiglu_names import SwigluNames


class Output(NamedTuple):
    """What `SwigluModule` returns, as transformers' modules do."""

    last_hidden_state: Tensor  # shape (N, L, D)
    hidden_states: list[Tensor]  # of the embedding and of each layer, each shape (N, L, D)


class SwigluModule(nn.Module):
    """An encoder whose parameters have the names of its published checkpoints."""

    def __init__(
        self, names: SwigluNames, shape: EncoderShape, vocab_size: int, eps: float
    ) -> None:
        super().__init__()
        place(self, names.embedding, nn.Embedding(vocab_size, shape.width))
        layers = nn.ModuleList(_Layer(names, shape, eps) for _ in range(shape.layers))
        place(self, names.layers, layers)
        self._names, self._head_width = names, shape.head_width

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: bool) -> Output:
        """Encode padded token ids; both have shape (N, L), and 0 in the mask is padding."""
        angles = rotary_tables(input_ids.shape[1], self._head_width, input_ids.device)
        x_NLD = self.get_submodule(self._names.embedding)(input_ids)
        states = [x_NLD]
        for layer in self.get_submodule(self._names.layers).children():
            x_NLD = layer(x_NLD, attention_mask.bool(), *angles)
            states.append(x_NLD)
        return Output(x_NLD, states)


class _Layer(nn.Module):
    def __init__(self, names: SwigluNames, shape: EncoderShape, eps: float) -> None:
        super().__init__()
        d, f = shape.width, shape.feed_forward_width
        sizes = {name: (d, 3 * d // len(names.qkv)) for name in names.qkv}
        sizes |= {name: (d, 2 * f // len(names.gate_up)) for name in names.gate_up}
        for name, (columns, rows) in {**sizes, names.out: (d, d), names.down: (f, d)}.items():
            place(self, name, nn.Linear(columns, rows, bias=False))
        for name in names.norms:
            place(self, name, nn.RMSNorm(d, eps))
        self._names, self._heads = names, shape.heads

    def forward(self, x_NLD: Tensor, is_token_NL: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        names = self._names
        norm1, norm2 = (self.get_submodule(name) for name in names.norms)
        y_NLD = norm1(x_NLD)
        qkv = torch.cat([self.get_submodule(name)(y_NLD) for name in names.qkv], dim=-1)
        query, key, value_NLHE = qkv.view(*qkv.shape[:2], 3, self._heads, -1).unbind(2)
        query, key = (rotate(x, cos, sin, interleaved=names.interleaved) for x in (query, key))
        mixed_NHLE = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value_NLHE.transpose(1, 2),
            attn_mask=is_token_NL[:, None, None],
        )  # fmt: skip
        x_NLD = x_NLD + self.get_submodule(names.out)(mixed_NHLE.transpose(1, 2).flatten(2))
        y_NLD = norm2(x_NLD)
        both = torch.cat([self.get_submodule(name)(y_NLD) for name in names.gate_up], dim=-1)
        gate, up = both.chunk(2, dim=-1)
        hidden: Tensor = x_NLD + self.get_submodule(names.down)(F.silu(gate) * up)
        return hidden


def rotate(x_NLHE: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Turn pairs of dimensions by the angles of each position.

    A pair is two neighbours if `interleaved`, else dimension ``i`` of each half. `cos` and `sin`
    have shape (L, E / 2).
    """
    pairs = x_NLHE.float().view(*x_NLHE.shape[:-1], *((-1, 2) if interleaved else (2, -1)))
    first, second = pairs.unbind(-1 if interleaved else -2)
    c, s = cos[:, None], sin[:, None]
    turned = [first * c - second * s, second * c + first * s]
    return torch.stack(turned, dim=-1 if interleaved else -2).flatten(-2).to(x_NLHE.dtype)


def place(parent: nn.Module, path: str, module: nn.Module) -> None:
    """Add a submodule at a dotted path, whose parts are created."""
    *parts, last = path.split(".")
    for part in parts:
        if not hasattr(parent, part):
            parent.add_module(part, nn.Module())
        parent = parent.get_submodule(part)
    parent.add_module(last, module)
