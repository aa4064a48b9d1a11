"""The T5 encoder of IgT5, ProtT5 and Ankh on packed tokens, without padding.

T tokens, D model width, H heads, I attention width (H x head width), F feed-forward width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abag.embed.families.packed import PackedEncoder
from abag.embed.kernels.attention import Attention
from abag.embed.weights.tensors import EncoderWeights

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.kernels.attention import BatchGeometry
    from abag.embed.kernels.ops import Activation
    from abag.embed.weights.checkpoints import EncoderCheckpoint

MAX_DISTANCE = 128
"""Longer distances share T5's last bucket of relative positions."""
FP16_BITS = 15
"""Products are scaled to stay below 2^15, half of the largest fp16 number."""


@dataclass(frozen=True, slots=True)
class _Layer:
    norm1_D: Tensor
    qkv_3ID: Tensor
    out_DI: Tensor
    norm2_D: Tensor
    up: Tensor  # shape (F, D); (2 * F, D) if gated: the gate first; float32 where fp16 overflows
    down_DF: Tensor
    out_scale: float  # of what out_DI and down_DF add to the residual stream: 1 except in fp16
    down_scale: float


class PackedT5(PackedEncoder):
    """A T5 encoder on packed tokens; see `Encoder`.

    Raises
    ------
    BadCheckpoint
        Weights that do not match config.json.
    AdapterMismatch, AttentionUnavailable
    """

    def __init__(
        self, checkpoint: EncoderCheckpoint, activation: Activation, plan: DevicePlan,
        attention: str = "auto",
    ) -> None:  # fmt: skip
        config = checkpoint.config
        self._activation: Activation = activation
        heads, head_width = int(config["num_heads"]), int(config["d_kv"])
        super().__init__(
            plan, attention, width=int(config["d_model"]), heads=heads, head_width=head_width,
            biased=True,
        )  # fmt: skip
        self._eps = float(config["layer_norm_epsilon"])
        # the residual stream and all weights before they are scaled: fp16 could not hold them
        self._wide = torch.float32 if plan.dtype is torch.float16 else plan.dtype
        with EncoderWeights(checkpoint, plan) as weights:
            self._embed_VD = weights(
                "shared.weight", int(config["vocab_size"]), self.width, dtype=self._wide
            )
            table = weights(
                "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                int(config["relative_attention_num_buckets"]), heads, dtype=torch.float32,
            )  # fmt: skip
            self._layers = [
                self._load_layer(weights, i, heads * head_width)
                for i in range(config["num_layers"])
            ]
            self._final_D = weights(
                "encoder.final_layer_norm.weight", self.width, dtype=torch.float32
            )
        # scale 1: T5's weights include the usual 1 / sqrt(head width)
        bias_HR = bias_by_distance(table).to(plan.dtype)
        self._attention = Attention(self._attention.name, heads, 1.0, bias_HR)

    def _load_layer(self, weights: EncoderWeights, i: int, inner: int) -> _Layer:
        at, d, f = f"encoder.block.{i}.layer", self.width, int(weights.config["d_ff"])
        wide = self._wide
        query, key = (weights(f"{at}.0.SelfAttention.{p}.weight", inner, d) for p in "qk")
        norm1_D, norm2_D = (
            weights(f"{at}.{part}.layer_norm.weight", d, dtype=torch.float32) for part in (0, 1)
        )
        value, out_DI, scale1 = self._fitted(
            norm1_D,
            weights(f"{at}.0.SelfAttention.v.weight", inner, d, dtype=wide),
            weights(f"{at}.0.SelfAttention.o.weight", d, inner, dtype=wide),
        )
        gated = self._activation != "relu"
        up, down_DF, scale2 = self._fitted(
            norm2_D,
            *(
                weights(f"{at}.1.DenseReluDense.{part}.weight", f, d, dtype=wide)
                for part in (("wi_1", "wi_0") if gated else ("wi",))
            ),
            weights(f"{at}.1.DenseReluDense.wo.weight", d, f, dtype=wide),
        )
        qkv_3ID = torch.cat([query, key, value])
        return _Layer(norm1_D, qkv_3ID, out_DI, norm2_D, up, down_DF, scale1, scale2)

    def _fitted(
        self, norm_D: Tensor, first_ID: Tensor, *others: Tensor
    ) -> tuple[Tensor, Tensor, float]:
        """Divide two successive products by powers of 2, so that neither can overflow fp16.

        Between them is a ReLU, an average over tokens, or a gate: a factor of the first carries
        over to the second. Before its weights are applied, a norm returns vectors of length
        sqrt(D), which bounds both products. `others` are a gate's weights, shape (I, D), if there
        is one, and the second weights, shape (D, I). A gate cannot be scaled: where its own
        product could overflow, the first weights stay in fp32. Returns the first weights, after
        those of the gate, the second, and the factor that restores the second product.
        """
        *gates, second_DI = others
        if self._wide is self._dtype:
            return torch.cat([*gates, first_ID]), second_DI, 1.0
        reach = self.width**0.5
        bound_I = (first_ID * norm_D).norm(dim=1) * reach
        fits = True
        for gate_ID in gates:  # an activation never exceeds its argument
            gate_I = (gate_ID * norm_D).norm(dim=1) * reach
            fits = float(gate_I.max()) < 2.0**FP16_BITS  # GPU sync
            bound_I = bound_I * gate_I.clamp(min=1)
        inner, outer = (
            max(0, math.frexp(float(bound))[1] - FP16_BITS)  # GPU sync
            for bound in (bound_I.max(), (second_DI.abs() @ bound_I).max())
        )
        first = torch.cat([*gates, first_ID * 2.0**-inner])
        second_DI = second_DI * 2.0 ** (inner - outer)
        return first.to(self._dtype) if fits else first, second_DI.to(self._dtype), 2.0**outer

    def _hidden_states(
        self, ids_T: Tensor, geometry: BatchGeometry, read: Set[int]
    ) -> Iterator[Tensor]:
        ops, eps = self._ops, self._eps
        x_TD = self._embed_VD[ids_T]
        delta_TD, scale = torch.zeros_like(x_TD, dtype=self._dtype), 1.0
        for i, layer in enumerate(self._layers):
            yield x_TD.add(delta_TD, alpha=scale) if i in read else x_TD
            y_TD = ops.add_rms_norm_(x_TD, delta_TD, scale, layer.norm1_D, eps)
            qkv = ops.linear(y_TD, layer.qkv_3ID)
            delta_TD = ops.linear(self._attention(qkv, geometry), layer.out_DI)
            y_TD = ops.add_rms_norm_(x_TD, delta_TD, layer.out_scale, layer.norm2_D, eps)
            delta_TD = ops.linear(self._hidden(y_TD, layer.up), layer.down_DF)
            scale = layer.down_scale
        yield ops.add_rms_norm_(x_TD, delta_TD, scale, self._final_D, eps)

    def _hidden(self, y_TD: Tensor, up: Tensor) -> Tensor:
        """Return the activations between the two products of the feed-forward, shape (T, F)."""
        if self._activation == "relu":
            return self._ops.linear_relu(y_TD, up)
        return self._ops.linear_gated(y_TD.to(up.dtype), up, self._activation).to(self._dtype)


def bias_by_distance(table_BH: Tensor) -> Tensor:
    """Expand T5's bucketed bias to every distance up to `MAX_DISTANCE`.

    Parameters
    ----------
    table_BH : Tensor, shape=(buckets, H)

    Returns
    -------
    Tensor, shape=(H, 2 * MAX_DISTANCE + 1)
        Column ``MAX_DISTANCE + d`` belongs to ``d = key - query``; dtype of `table_BH`.

    References
    ----------
    Raffel et al., JMLR 21(140), 2020: half of the buckets per direction; the first half of
    those are exact distances, the others are logarithmic up to a distance of 128.
    """
    half = len(table_BH) // 2
    exact = half // 2
    buckets = []
    for distance in range(-MAX_DISTANCE, MAX_DISTANCE + 1):
        bucket = abs(distance)
        if bucket >= exact:
            logarithmic = math.log(bucket / exact) / math.log(MAX_DISTANCE / exact)
            bucket = min(exact + int(logarithmic * (half - exact)), half - 1)
        buckets.append(bucket + half * (distance > 0))
    return table_BH[torch.tensor(buckets, device=table_BH.device)].T.contiguous()
