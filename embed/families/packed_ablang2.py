"""AbLang2 on packed tokens: ESM-2's norms and biases, with a gated feed-forward."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from abag.embed.families.packed import by_halves
from abag.embed.families.packed_esm import EsmNames, Layer, PackedEsm


class PackedAbLang2(PackedEsm):
    """An AbLang2 encoder on packed tokens; see `Encoder`."""

    names: ClassVar = EsmNames(
        "aa_embed_layer", "encoder_blocks", "pre_attn_layer_norm",
        ("multihead_attention.q_proj", "multihead_attention.k_proj", "multihead_attention.v_proj"),
        "multihead_attention.out_proj", "final_layer_norm", "intermediate_layer.0",
        "intermediate_layer.2", "layer_norm_after_encoder_blocks",
    )  # fmt: skip
    embedding_scale: ClassVar = 1.0
    up_products: ClassVar = 2

    def _arrange_qkv(self, rows: Tensor) -> Tensor:
        """Order queries and keys as kernels rotate them; divide queries by sqrt(E) once more."""
        d = self.width
        query = rows[:d] * (d // self._heads) ** -0.5
        both = by_halves(torch.cat([query, rows[d : 2 * d]]), 2 * self._heads)
        return torch.cat([both, rows[2 * d :]])

    def _arrange_up(self, rows: Tensor) -> Tensor:
        """Put the gate, which is the second half, first."""
        return rows.roll(len(rows) // 2, 0)

    def _feed_forward(self, y_TD: Tensor, layer: Layer) -> Tensor:
        return self._ops.linear_gated(y_TD, layer.up_FD, "silu", layer.up_bias_F)
