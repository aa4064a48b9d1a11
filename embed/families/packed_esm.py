"""The ESM-2 encoder on packed tokens, without padding.

T tokens, D hidden width, H heads, F feed-forward width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abag.core.device import to_device
from abag.embed.families.packed import rotary_tables
from abag.embed.kernels.attention import Attention, load_kernels
from abag.embed.weights.tensors import EncoderWeights

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.packing.batches import PackedBatch
    from abag.embed.packing.pooling import LayerPooling
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


class PackedEsm:
    """An ESM-2 encoder on packed tokens; see `Encoder`.

    The residual stream is kept without the biases that each layer adds. They are constant, so
    their running sum is added where the stream is read, in the norms, and the matrix product can
    accumulate into the stream in place. Each norm's factors and offsets are part of the projection
    that follows it.

    Raises
    ------
    BadCheckpoint
        An unsupported architecture, or weights that do not match config.json.
    AdapterMismatch, AttentionUnavailable
    """

    def __init__(
        self, checkpoint: EncoderCheckpoint, plan: DevicePlan, attention: str = "auto"
    ) -> None:
        config = checkpoint.config
        checkpoint.require(
            position_embedding_type="rotary", emb_layer_norm_before=False, token_dropout=True,
            hidden_act="gelu",
        )  # fmt: skip
        self.width = int(config["hidden_size"])
        self._device, self._dtype = plan.device, plan.dtype
        self._eps = float(config["layer_norm_eps"])
        self._heads = int(config["num_attention_heads"])
        head_width = self.width // self._heads
        name, self._ops = load_kernels(
            plan, biased=False, head_width=head_width, requested=attention
        )
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
        self._attention = Attention(name, self._heads, head_width**-0.5)
        self._cos, self._sin = rotary_tables(
            int(config["max_position_embeddings"]), head_width, plan.device
        )

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

    @torch.inference_mode()
    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        """Encode a batch: see `Encoder`."""
        ops, eps = self._ops, self._eps
        geometry = self._attention.geometry(batch, self._device, self._dtype)
        ids_T = to_device(batch.ids, self._device)
        x_TD = self._embed_VD[ids_T]
        for i, layer in enumerate(self._layers):
            if layer_pooling is not None and i in layer_pooling:
                layer_pooling.add(i, x_TD + layer.shift1_D)
            y_TD = ops.layer_norm(x_TD, layer.shift1_D, None, None, eps)
            qkv = torch.addmm(layer.qkv_bias_3D, y_TD, layer.qkv_3DD.T)
            ops.rotary_(qkv, geometry.positions, self._cos, self._sin, self._heads)
            x_TD.addmm_(self._attention(qkv, geometry), layer.out_DD.T)
            y_TD = ops.layer_norm(x_TD, layer.shift2_D, None, None, eps)
            hidden_TF = ops.linear_gelu(y_TD, layer.up_FD, layer.up_bias_F)
            x_TD.addmm_(hidden_TF, layer.down_DF.T)
        last_TD = ops.layer_norm(x_TD, self._shift_D, *self._final, eps)
        if layer_pooling is not None:
            layer_pooling.add(len(self._layers), last_TD)
        return last_TD
