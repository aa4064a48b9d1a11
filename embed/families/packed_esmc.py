"""ESM C on packed tokens: norms before each part, rotary positions, a gated feed-forward.

T tokens, D hidden width, H heads, F feed-forward width, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abag.embed.families.packed import PackedEncoder, rotary_tables
from abag.embed.weights.tensors import EncoderWeights

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.kernels.attention import BatchGeometry
    from abag.embed.weights.checkpoints import EncoderCheckpoint

EPSILON = 1e-5
"""Of every norm; config.json does not give it."""
RESIDUAL_LAYERS = 36
"""Number of layers at which residual branches are added unscaled."""


@dataclass(frozen=True, slots=True)
class _Layer:
    norm1: tuple[Tensor, Tensor]
    qkv_3DD: Tensor
    qk_norm_2D: Tensor
    out_DD: Tensor  # like down_DF, divided by the scale of the residual branches
    norm2: tuple[Tensor, Tensor]
    gate_up_2FD: Tensor
    down_DF: Tensor


class PackedEsmc(PackedEncoder):
    """An ESM C encoder on packed tokens; see `Encoder`.

    `positions` is the largest number of tokens in a span.

    Raises
    ------
    BadCheckpoint
        Weights that do not match config.json.
    AdapterMismatch, AttentionUnavailable

    References
    ----------
    transformers, models/esmc: norms of all queries and of all keys of a token before they are
    rotated, and branches divided by sqrt(layers / 36).
    """

    def __init__(
        self, checkpoint: EncoderCheckpoint, plan: DevicePlan, attention: str = "auto", *,
        positions: int,
    ) -> None:  # fmt: skip
        config = checkpoint.config
        width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        super().__init__(plan, attention, width=width, heads=heads)
        layers, self._inner = int(config["num_hidden_layers"]), int(config["intermediate_size"])
        self._branch = (layers / RESIDUAL_LAYERS) ** 0.5
        self._zero_D = torch.zeros(width, device=plan.device)
        self._angles = rotary_tables(positions, width // heads, plan.device)
        with EncoderWeights(checkpoint, plan) as weights:
            self._embed_VD = weights("embed_tokens.weight", int(config["vocab_size"]), width)
            self._layers = [self._load_layer(weights, f"layers.{i}") for i in range(layers)]
            self._final_D = weights("norm.weight", width, dtype=torch.float32)

    def _load_layer(self, weights: EncoderWeights, at: str) -> _Layer:
        d, f, full = self.width, self._inner, torch.float32
        out_DD = weights(f"{at}.self_attn.o_proj.weight", d, d, dtype=full)
        down_DF = weights(f"{at}.mlp.down_proj.weight", d, f, dtype=full)
        return _Layer(
            weights.norm(f"{at}.input_layernorm", d),
            torch.cat([weights(f"{at}.self_attn.{p}_proj.weight", d, d) for p in "qkv"]),
            torch.cat([weights(f"{at}.self_attn.{p}_norm.weight", d, dtype=full) for p in "qk"]),
            (out_DD / self._branch).to(self._dtype),
            weights.norm(f"{at}.post_attention_layernorm", d),
            torch.cat([weights(f"{at}.mlp.{p}_proj.weight", f, d) for p in ("gate", "up")]),
            (down_DF / self._branch).to(self._dtype),
        )

    def _hidden_states(
        self, ids_T: Tensor, geometry: BatchGeometry, read: Set[int]
    ) -> Iterator[Tensor]:
        ops, zero_D = self._ops, self._zero_D
        x_TD = self._embed_VD[ids_T]
        for layer in self._layers:
            yield x_TD
            y_TD = ops.layer_norm(x_TD, zero_D, *layer.norm1, EPSILON)
            qkv = ops.linear(y_TD, layer.qkv_3DD)
            ops.norm_rotary_(
                qkv, layer.qk_norm_2D, EPSILON, geometry.positions, *self._angles, self._heads
            )
            ops.add_linear_(x_TD, self._attention(qkv, geometry), layer.out_DD)
            y_TD = ops.layer_norm(x_TD, zero_D, *layer.norm2, EPSILON)
            hidden_TF = ops.linear_gated(y_TD, layer.gate_up_2FD, "silu")
            ops.add_linear_(x_TD, hidden_TF, layer.down_DF)
        yield ops.layer_norm(x_TD, zero_D, self._final_D, zero_D, EPSILON)
