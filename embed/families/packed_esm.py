"""The ESM-2 encoder on packed tokens, without padding.

T tokens, D hidden width, H heads, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abag.embed.families.packed import PackedEncoder
from abag.embed.weights.tensors import EncoderWeights

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.kernels.attention import BatchGeometry
    from abag.embed.weights.checkpoints import EncoderCheckpoint

TOKEN_DROPOUT_SCALE = 1 - 0.15 * 0.8
"""ESM-2 scales its embeddings by the share of tokens that were not masked in training."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer; a `shift` is the sum of all biases added to the stream before."""

    shift1_D: Tensor
    qkv_3DD: Tensor
    qkv_bias_3D: Tensor
    out_DD: Tensor
    shift2_D: Tensor
    up_FD: Tensor
    up_bias_F: Tensor
    down_DF: Tensor


class PackedEsm(PackedEncoder):
    """An ESM-2 encoder on packed tokens; see `Encoder`.

    The residual stream is kept without the biases that each layer adds. They are constant, so
    their running sum is added where the stream is read, in the norms, and the matrix product can
    accumulate into the stream in place. Each norm's factors and offsets are part of the projection
    that follows it. `positions` is the largest number of tokens in a span.

    Raises
    ------
    BadCheckpoint
        Weights that do not match config.json.
    AdapterMismatch, AttentionUnavailable
    """

    def __init__(
        self, checkpoint: EncoderCheckpoint, plan: DevicePlan, attention: str = "auto", *,
        positions: int,
    ) -> None:  # fmt: skip
        config = checkpoint.config
        width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        super().__init__(plan, attention, width=width, heads=heads, positions=positions)
        self._eps = float(config["layer_norm_eps"])
        with EncoderWeights(checkpoint, plan) as weights:
            embed_VD = weights(
                "embeddings.word_embeddings.weight", int(config["vocab_size"]), self.width,
                dtype=torch.float32,
            )  # fmt: skip
            self._embed_VD = (embed_VD * TOKEN_DROPOUT_SCALE).to(plan.dtype)
            self._shift_D = torch.zeros(self.width, device=plan.device)
            self._layers = [
                self._load_layer(weights, i) for i in range(int(config["num_hidden_layers"]))
            ]
            self._final = weights.norm("encoder.emb_layer_norm_after", self.width)

    def _projection(
        self, weights: EncoderWeights, norm: str, *names: str, rows: int
    ) -> tuple[Tensor, Tensor]:
        """Merge a norm's factors and offsets into the projections after it.

        With ``n`` the standardized stream: ``W (n * w + b) + c = (W * w) n + (W b + c)``.

        Returns
        -------
        weight : Tensor, shape=(len(names) * rows, D), in the plan's type
        bias : Tensor, shape=(len(names) * rows,), dtype=float32
        """
        d, full = self.width, torch.float32
        norm_D, norm_bias_D = weights.norm(norm, d)
        weight = torch.cat([weights(f"{n}.weight", rows, d, dtype=full) for n in names])
        bias = torch.cat([weights(f"{n}.bias", rows, dtype=full) for n in names])
        return (weight * norm_D).to(self._dtype), bias + weight @ norm_bias_D

    def _load_layer(self, weights: EncoderWeights, i: int) -> _Layer:
        at, d, f = f"encoder.layer.{i}", self.width, int(weights.config["intermediate_size"])
        names = [f"{at}.attention.self.{p}" for p in ("query", "key", "value")]
        qkv_3DD, qkv_bias_3D = self._projection(
            weights, f"{at}.attention.LayerNorm", *names, rows=d
        )
        up_FD, up_bias_F = self._projection(
            weights, f"{at}.LayerNorm", f"{at}.intermediate.dense", rows=f
        )
        out_DD = weights(f"{at}.attention.output.dense.weight", d, d, dtype=torch.float32)
        # attention weights sum to 1, so the bias of the values is a constant of the output
        out_bias_D = weights(f"{at}.attention.output.dense.bias", d, dtype=torch.float32)
        shift1_D = self._shift_D
        shift2_D = shift1_D + out_bias_D + out_DD @ qkv_bias_3D[2 * d :]
        qkv_bias_3D[2 * d :] = 0
        self._shift_D = shift2_D + weights(f"{at}.output.dense.bias", d, dtype=torch.float32)
        return _Layer(
            shift1_D,
            qkv_3DD,
            qkv_bias_3D.to(self._dtype),
            out_DD.to(self._dtype),
            shift2_D,
            up_FD,
            up_bias_F.to(self._dtype),
            weights(f"{at}.output.dense.weight", d, f),
        )

    def _hidden_states(
        self, ids_T: Tensor, geometry: BatchGeometry, read: Set[int]
    ) -> Iterator[Tensor]:
        ops, eps = self._ops, self._eps
        x_TD = self._embed_VD[ids_T]
        for i, layer in enumerate(self._layers):
            yield x_TD + layer.shift1_D if i in read else x_TD
            y_TD = ops.layer_norm(x_TD, layer.shift1_D, None, None, eps)
            attended_TD = self._attend(y_TD, layer.qkv_3DD, layer.qkv_bias_3D, geometry)
            ops.add_linear_(x_TD, attended_TD, layer.out_DD)
            y_TD = ops.layer_norm(x_TD, layer.shift2_D, None, None, eps)
            hidden_TF = ops.linear_gelu(y_TD, layer.up_FD, layer.up_bias_F)
            ops.add_linear_(x_TD, hidden_TF, layer.down_DF)
        yield ops.layer_norm(x_TD, self._shift_D, *self._final, eps)
