"""AMPLIFY and gLM2 on packed tokens: RMS norms before each part, rotary positions, SwiGLU.

T tokens, D hidden width, H heads, F feed-forward width, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abag.embed.families.packed import PackedEncoder, by_halves
from abag.embed.weights.tensors import EncoderWeights

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.families.family import EncoderShape
    from abag.embed.families.swiglu_names import SwigluNames
    from abag.embed.kernels.attention import BatchGeometry
    from abag.embed.weights.checkpoints import EncoderCheckpoint


@dataclass(frozen=True, slots=True)
class _Layer:
    norm1_D: Tensor
    qkv_3DD: Tensor
    out_DD: Tensor
    norm2_D: Tensor
    gate_up_2FD: Tensor
    down_DF: Tensor


class PackedSwiglu(PackedEncoder):
    """An encoder on packed tokens, up to its last layer; see `Encoder`.

    `positions` is the largest number of tokens in a span. The residual stream is in fp32 if the
    plan is fp16, which might not hold it.

    Raises
    ------
    BadCheckpoint
        Weights that do not match config.json.
    AdapterMismatch, AttentionUnavailable
    """

    def __init__(
        self, checkpoint: EncoderCheckpoint, names: SwigluNames, shape: EncoderShape,
        plan: DevicePlan, attention: str = "auto", *, positions: int,
    ) -> None:  # fmt: skip
        super().__init__(plan, attention, width=shape.width, heads=shape.heads, positions=positions)
        self._names, self._inner = names, shape.feed_forward_width
        self._eps = float(checkpoint.config["norm_eps"])
        wide = torch.float32 if plan.dtype is torch.float16 else plan.dtype
        with EncoderWeights(checkpoint, plan) as weights:
            vocabulary = int(checkpoint.config["vocab_size"])
            self._embed_VD = weights(
                f"{names.embedding}.weight", vocabulary, self.width, dtype=wide
            )
            self._layers = [
                self._load_layer(weights, f"{names.layers}.{i}") for i in range(shape.layers)
            ]

    def _load_layer(self, weights: EncoderWeights, at: str) -> _Layer:
        d, f, names = self.width, self._inner, self._names
        norm1_D, norm2_D = (
            weights(f"{at}.{name}.weight", d, dtype=torch.float32) for name in names.norms
        )
        qkv_3DD = torch.cat(
            [weights(f"{at}.{name}.weight", 3 * d // len(names.qkv), d) for name in names.qkv]
        )
        if names.interleaved:
            qkv_3DD[: 2 * d] = by_halves(qkv_3DD[: 2 * d], 2 * self._heads)
        rows = 2 * f // len(names.gate_up)
        return _Layer(
            norm1_D,
            qkv_3DD,
            weights(f"{at}.{names.out}.weight", d, d),
            norm2_D,
            torch.cat([weights(f"{at}.{name}.weight", rows, d) for name in names.gate_up]),
            weights(f"{at}.{names.down}.weight", d, f),
        )

    def _hidden_states(
        self, ids_T: Tensor, geometry: BatchGeometry, read: Set[int]
    ) -> Iterator[Tensor]:
        ops, eps = self._ops, self._eps
        x_TD = self._embed_VD[ids_T]
        delta_TD = torch.zeros_like(x_TD, dtype=self._dtype)
        for i, layer in enumerate(self._layers):
            yield x_TD + delta_TD if i in read else x_TD
            y_TD = ops.add_rms_norm_(x_TD, delta_TD, 1.0, layer.norm1_D, eps)
            attended_TD = self._attend(y_TD, layer.qkv_3DD, None, geometry)
            delta_TD = ops.linear(attended_TD, layer.out_DD)
            y_TD = ops.add_rms_norm_(x_TD, delta_TD, 1.0, layer.norm2_D, eps)
            hidden_TF = ops.linear_gated(y_TD, layer.gate_up_2FD, "silu")
            delta_TD = ops.linear(hidden_TF, layer.down_DF)
        yield x_TD.add_(delta_TD)
