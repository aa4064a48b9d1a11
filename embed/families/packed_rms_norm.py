"""Packed encoders with RMS norms before each part: T5, AMPLIFY and gLM2. Dimensions: `packed`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abag.embed.families.packed import PackedEncoder

if TYPE_CHECKING:
    from abag.embed.kernels.attention import BatchGeometry
    from abag.embed.weights.tensors import EncoderWeights

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


class PackedRmsNormEncoder(PackedEncoder):
    """A packed encoder with RMS norms and no biases.

    In fp16, the residual stream is in fp32, which fp16 could not hold.
    """

    def _load(self, weights: EncoderWeights) -> Tensor | None:
        declared, d, full = self._architecture, self.width, torch.float32
        # all weights before they are scaled, and the residual stream
        self._wide = full if self._dtype is torch.float16 else self._dtype
        self._embed_VD = self._load_embedding(weights, self._wide)
        self._layers = [
            self._load_layer(weights, f"{declared.layers}.{i}") for i in range(self._shape.layers)
        ]
        self._last_norm_D: Tensor | None = None
        if name := declared.last_norm:
            self._last_norm_D = weights(f"{name}.weight", d, dtype=full)
        if not (name := declared.relative_bias):
            return None
        buckets = int(self._config["relative_attention_num_buckets"])
        table_BH = weights(f"{name}.weight", buckets, self._shape.heads, dtype=full)
        return bias_by_distance(table_BH).to(self._dtype)

    def _load_layer(self, weights: EncoderWeights, at: str) -> _Layer:
        declared, shape, wide = self._architecture, self._shape, self._wide
        d, inner, f = shape.width, shape.attention_width, shape.feed_forward_width
        norm1_D, norm2_D = (
            weights(f"{at}.{name}.weight", d, dtype=torch.float32) for name in declared.norms
        )
        rows = 3 * inner // len(declared.qkv)
        qkv_3ID = torch.cat(
            [weights(f"{at}.{name}.weight", rows, d, dtype=wide) for name in declared.qkv]
        )
        query_ID, key_ID, value_ID = self._arrange_qkv(qkv_3ID).chunk(3)
        value_ID, out_DI, scale1 = self._fitted(
            norm1_D, value_ID, weights(f"{at}.{declared.out}.weight", d, inner, dtype=wide)
        )
        rows = (1 + bool(declared.gate)) * f // len(declared.up)
        up = torch.cat(
            [weights(f"{at}.{name}.weight", rows, d, dtype=wide) for name in declared.up]
        )
        *gate, first = up.chunk(2) if declared.gate else (up,)
        up, down_DF, scale2 = self._fitted(
            norm2_D, first, *gate, weights(f"{at}.{declared.down}.weight", d, f, dtype=wide)
        )
        qkv_3ID = torch.cat([query_ID.to(self._dtype), key_ID.to(self._dtype), value_ID])
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
            attended_TI = self._attend(y_TD, layer.qkv_3ID, None, geometry)
            delta_TD = ops.linear(attended_TI, layer.out_DI)
            y_TD = ops.add_rms_norm_(x_TD, delta_TD, layer.out_scale, layer.norm2_D, eps)
            delta_TD = ops.linear(self._feed(y_TD, layer.up, None), layer.down_DF)
            scale = layer.down_scale
        if self._last_norm_D is None:
            yield x_TD.add_(delta_TD, alpha=scale)
        else:
            yield ops.add_rms_norm_(x_TD, delta_TD, scale, self._last_norm_D, eps)


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
