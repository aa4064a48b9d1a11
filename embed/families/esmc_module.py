"""A plain torch module of ESM C, for versions of transformers without `EsmcModel`.

N sequences, L tokens of the longest, D hidden width, H heads, E width of a head.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from abag.embed.families.family import EncoderShape
from abag.embed.families.packed import rotary_tables
from abag.embed.families.packed_esmc import EPSILON, RESIDUAL_LAYERS
from abag.embed.families.swiglu_module import Output, rotate


class EsmcModule(nn.Module):
    """An ESM C encoder whose parameters have the names of transformers' `EsmcModel`."""

    def __init__(self, shape: EncoderShape, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, shape.width)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = _Norm(shape.width, EPSILON, bias=False)
        self._head_width = shape.head_width

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: bool) -> Output:
        """Encode padded token ids; both have shape (N, L), and 0 in the mask is padding."""
        angles = rotary_tables(input_ids.shape[1], self._head_width, input_ids.device)
        x_NLD = self.embed_tokens(input_ids)
        states = []
        for layer in self.layers:
            states.append(x_NLD)
            x_NLD = layer(x_NLD, attention_mask.bool(), *angles)
        x_NLD = self.norm(x_NLD)
        return Output(x_NLD, [*states, x_NLD])


class _Layer(nn.Module):
    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        d = shape.width
        self.input_layernorm = _Norm(d, EPSILON)
        self.self_attn = _Attention(d, shape.heads)
        self.post_attention_layernorm = _Norm(d, EPSILON)
        self.mlp = _FeedForward(d, shape.feed_forward_width)
        self._branch = (shape.layers / RESIDUAL_LAYERS) ** 0.5

    def forward(self, x_NLD: Tensor, is_token_NL: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        mixed_NLD = self.self_attn(self.input_layernorm(x_NLD), is_token_NL, cos, sin)
        x_NLD = x_NLD + mixed_NLD / self._branch
        hidden: Tensor = x_NLD + self.mlp(self.post_attention_layernorm(x_NLD)) / self._branch
        return hidden


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.q_norm, self.k_norm = (_Norm(width, EPSILON, bias=False) for _ in range(2))
        self._heads = heads

    def forward(self, x_NLD: Tensor, is_token_NL: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        parts = self.q_norm(self.q_proj(x_NLD)), self.k_norm(self.k_proj(x_NLD)), self.v_proj(x_NLD)
        query, key, value_NLHE = (part.unflatten(-1, (self._heads, -1)) for part in parts)
        query, key = (rotate(part, cos, sin, interleaved=False) for part in (query, key))
        mixed_NHLE = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value_NLHE.transpose(1, 2),
            attn_mask=is_token_NL[:, None, None],
        )  # fmt: skip
        mixed: Tensor = self.o_proj(mixed_NHLE.transpose(1, 2).flatten(2))
        return mixed


class _FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x_NLD: Tensor) -> Tensor:
        hidden: Tensor = self.down_proj(F.silu(self.gate_proj(x_NLD)) * self.up_proj(x_NLD))
        return hidden


class _Norm(nn.LayerNorm):
    """A layer norm that keeps the type of its input, under autocast too."""

    def forward(self, x_NLD: Tensor) -> Tensor:
        return super().forward(x_NLD).to(x_NLD.dtype)
