"""A plain torch module of AbLang2, whose parameters have the names of its published checkpoint.

transformers has no class of it. The reference for `packed_ablang2`, and what `abag adapt` trains.
N sequences, L tokens of the longest, D hidden width, H heads, E width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from abag.embed.families.family import EncoderShape
from abag.embed.families.packed import rotary_tables
from abag.embed.families.swiglu_module import Output, rotate


class AbLang2Module(nn.Module):
    """The encoder, without the head that predicts residues."""

    def __init__(self, shape: EncoderShape, vocab_size: int, eps: float) -> None:
        super().__init__()
        self.aa_embed_layer = nn.Embedding(vocab_size, shape.width)
        self.encoder_blocks = nn.ModuleList(_Block(shape, eps) for _ in range(shape.layers))
        self.layer_norm_after_encoder_blocks = nn.LayerNorm(shape.width, eps)
        self._head_width = shape.head_width

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: bool) -> Output:
        """Encode padded token ids; both have shape (N, L), and 0 in the mask is padding."""
        angles = rotary_tables(input_ids.shape[1], self._head_width, input_ids.device)
        x_NLD = self.aa_embed_layer(input_ids)
        states = [x_NLD]
        for block in self.encoder_blocks:
            x_NLD = block(x_NLD, attention_mask.bool(), *angles)
            states.append(x_NLD)
        states[-1] = self.layer_norm_after_encoder_blocks(x_NLD)
        return Output(states[-1], states)


class _Block(nn.Module):
    def __init__(self, shape: EncoderShape, eps: float) -> None:
        super().__init__()
        d, f = shape.width, shape.feed_forward_width
        self.multihead_attention = _Attention(d, shape.heads)
        self.intermediate_layer = nn.Sequential(
            nn.Linear(d, 2 * f), _SwigluSecondGate(), nn.Linear(f, d)
        )
        self.pre_attn_layer_norm = nn.LayerNorm(d, eps)
        self.final_layer_norm = nn.LayerNorm(d, eps)

    def forward(self, x_NLD: Tensor, is_token_NL: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y_NLD = self.pre_attn_layer_norm(x_NLD)
        x_NLD = x_NLD + self.multihead_attention(y_NLD, is_token_NL, cos, sin)
        hidden: Tensor = x_NLD + self.intermediate_layer(self.final_layer_norm(x_NLD))
        return hidden


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(width, width) for _ in range(4)
        )
        self._heads = heads

    def forward(self, x_NLD: Tensor, is_token_NL: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key, value_NLHE = (
            project(x_NLD).unflatten(2, (self._heads, -1))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = (rotate(x, cos, sin, interleaved=True) for x in (query, key))
        mixed_NHLE = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value_NLHE.transpose(1, 2),
            attn_mask=is_token_NL[:, None, None],
            scale=1 / query.shape[-1],  # the published code divides by sqrt(E) twice
        )  # fmt: skip
        mixed: Tensor = self.out_proj(mixed_NHLE.transpose(1, 2).flatten(2))
        return mixed


class _SwigluSecondGate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        up, gate = x.chunk(2, dim=-1)
        return torch.mul(F.silu(gate), up)
