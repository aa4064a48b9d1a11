"""BERT and RoFormer on packed tokens: a norm after each residual sum.

T tokens, D hidden width, H heads, F feed-forward width, V tokens of the vocabulary, P positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from abag.embed.families.packed import PackedEncoder, by_halves
from abag.embed.weights.tensors import EncoderWeights

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.kernels.attention import BatchGeometry
    from abag.embed.weights.checkpoints import EncoderCheckpoint

Norm = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv_3DD: Tensor
    qkv_bias_3D: Tensor  # zeros for the values
    out_DD: Tensor
    out_bias_D: Tensor  # includes that of the values
    norm1: Norm
    up_FD: Tensor
    up_bias_F: Tensor
    down_DF: Tensor
    down_bias_D: Tensor
    norm2: Norm


class PackedBert(PackedEncoder):
    """A BERT or RoFormer encoder on packed tokens; see `Encoder`.

    `config` is config.json with all defaults.

    Raises
    ------
    BadCheckpoint
        An unsupported architecture, or weights that do not match config.json.
    AdapterMismatch, AttentionUnavailable
    """

    def __init__(
        self, checkpoint: EncoderCheckpoint, config: Mapping[str, Any], plan: DevicePlan,
        attention: str = "auto",
    ) -> None:  # fmt: skip
        width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        positions = int(config["max_position_embeddings"])
        rotary = config["model_type"] == "roformer"
        super().__init__(
            plan, attention, width=width, heads=heads, positions=positions if rotary else None
        )
        self._eps = float(config["layer_norm_eps"])
        self._inner = int(config["intermediate_size"])
        self._positions_PD: Tensor | None = None
        with EncoderWeights(checkpoint, plan) as weights:
            at = "embeddings"
            self._embed_VD = weights(
                f"{at}.word_embeddings.weight", int(config["vocab_size"]), width
            )
            types = int(config["type_vocab_size"])
            self._type_D = weights(
                f"{at}.token_type_embeddings.weight", types, width, dtype=torch.float32
            )[0]
            if not rotary:
                self._positions_PD = weights(f"{at}.position_embeddings.weight", positions, width)
            self._norm = weights.norm(f"{at}.LayerNorm", width)
            self._layers = [
                self._load_layer(weights, f"encoder.layer.{i}")
                for i in range(int(config["num_hidden_layers"]))
            ]

    def _load_layer(self, weights: EncoderWeights, at: str) -> _Layer:
        d, f, full = self.width, self._inner, torch.float32
        names = [f"{at}.attention.self.{p}" for p in ("query", "key", "value")]
        query, key, value = (weights(f"{n}.weight", d, d) for n in names)
        q_bias, k_bias, v_bias = (weights(f"{n}.bias", d, dtype=full) for n in names)
        if self._rotary is not None:
            query, key, q_bias, k_bias = (
                by_halves(x, self._heads) for x in (query, key, q_bias, k_bias)
            )
        out_DD = weights(f"{at}.attention.output.dense.weight", d, d, dtype=full)
        out_bias_D = weights(f"{at}.attention.output.dense.bias", d, dtype=full)
        return _Layer(
            torch.cat([query, key, value]),
            torch.cat([q_bias, k_bias, torch.zeros_like(v_bias)]).to(self._dtype),
            out_DD.to(self._dtype),
            # attention weights sum to 1, so the bias of the values is a constant of the output
            out_bias_D + out_DD @ v_bias,
            weights.norm(f"{at}.attention.output.LayerNorm", d),
            weights(f"{at}.intermediate.dense.weight", f, d),
            weights(f"{at}.intermediate.dense.bias", f),
            weights(f"{at}.output.dense.weight", d, f),
            weights(f"{at}.output.dense.bias", d, dtype=full),
            weights.norm(f"{at}.output.LayerNorm", d),
        )

    def _hidden_states(
        self, ids_T: Tensor, geometry: BatchGeometry, read: Set[int]
    ) -> Iterator[Tensor]:
        ops, eps = self._ops, self._eps
        x_TD = self._embed_VD[ids_T]
        if self._positions_PD is not None:
            x_TD += self._positions_PD[geometry.positions]
        x_TD = ops.layer_norm(x_TD, self._type_D, *self._norm, eps)
        yield x_TD
        for layer in self._layers:
            attended_TD = self._attend(x_TD, layer.qkv_3DD, layer.qkv_bias_3D, geometry)
            ops.add_linear_(x_TD, attended_TD, layer.out_DD)
            x_TD = ops.layer_norm(x_TD, layer.out_bias_D, *layer.norm1, eps)
            hidden_TF = ops.linear_gelu(x_TD, layer.up_FD, layer.up_bias_F)
            ops.add_linear_(x_TD, hidden_TF, layer.down_DF)
            x_TD = ops.layer_norm(x_TD, layer.down_bias_D, *layer.norm2, eps)
            yield x_TD
