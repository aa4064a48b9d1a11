"""Packed encoders with layer norms: ESM-2, ESM C and AbLang2; BERT, RoFormer and RoBERTa.

Dimensions as in `packed`; P positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abag.embed.families.packed import PackedEncoder

if TYPE_CHECKING:
    from abag.embed.kernels.attention import BatchGeometry
    from abag.embed.weights.tensors import EncoderWeights

Norm = tuple[Tensor | None, Tensor | None]
"""Factors and offsets, each shape (D,); None if they are part of the product that follows."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A `shift` is the sum of the biases that a norm's input lacks."""

    shift1_D: Tensor
    norm1: Norm
    qkv_3DD: Tensor
    qkv_bias_3D: Tensor | None
    qk_norm_2D: Tensor | None
    out_DD: Tensor
    shift2_D: Tensor
    norm2: Norm
    up: Tensor  # shape (F, D); (2 * F, D) if gated: the gate first
    up_bias: Tensor | None
    down_DF: Tensor


class PackedLayerNormEncoder(PackedEncoder):
    """A packed encoder with layer norms, before or after each residual sum.

    The residual stream is kept without the biases that each layer adds. They are constant, so
    they are added where the stream is read, in the norms, and the matrix product can accumulate
    into the stream in place. The factors and offsets of a norm before a part with biases are
    merged into the projection that follows it.
    """

    def _load(self, weights: EncoderWeights) -> Tensor | None:
        declared, d, full = self._architecture, self.width, torch.float32
        self._embed_VD = self._load_embedding(weights, self._dtype)
        self._positions_PD: Tensor | None = None
        shift_D = torch.zeros(d, device=self._device)
        if name := declared.type_embedding:
            types = int(self._config["type_vocab_size"])
            shift_D = weights(f"{name}.weight", types, d, dtype=full)[0]
        if name := declared.position_embedding:
            rows = weights(f"{name}.weight", int(self._config["max_position_embeddings"]), d)
            first = self._config["pad_token_id"] + 1 if declared.positions_after_pad else 0
            self._positions_PD = rows[first:]
        layers = [f"{declared.layers}.{i}" for i in range(self._shape.layers)]
        norms = [f"{at}.{name}" for at in layers for name in declared.norms]
        # a norm after one part of a layer is the norm before the next
        norms = [declared.first_norm, *norms] if declared.norm_after else norms
        self._layers = []
        for i, at in enumerate(layers):
            layer, shift_D = self._load_layer(weights, at, norms[2 * i : 2 * i + 2], shift_D)
            self._layers.append(layer)
        self._last_shift_D = shift_D
        last = norms[-1] if declared.norm_after else declared.last_norm
        if declared.last_norm_biased:
            self._last_norm = weights.norm(last, d)
        else:
            self._last_norm = (weights(f"{last}.weight", d, dtype=full), torch.zeros_like(shift_D))
        return None

    def _load_layer(
        self, weights: EncoderWeights, at: str, norms: list[str], shift1_D: Tensor
    ) -> tuple[_Layer, Tensor]:
        """Read one layer; also returns the shift of the norm after it."""
        declared, shape, full = self._architecture, self._shape, torch.float32
        d, f = shape.width, shape.feed_forward_width
        qkv_3DD, qkv_bias_3D = self._projection(weights, at, declared.qkv, 3 * d, d)
        qkv_3DD, qkv_bias_3D = self._arrange_qkv(qkv_3DD), self._arrange_qkv(qkv_bias_3D)
        up, up_bias = self._projection(weights, at, declared.up, (1 + bool(declared.gate)) * f, d)
        if declared.gate == "second":
            up, up_bias = up.roll(f, 0), up_bias.roll(f, 0)
        out_DD, out_bias_D = self._projection(weights, at, (declared.out,), d, d)
        down_DF, down_bias_D = self._projection(weights, at, (declared.down,), d, f)
        scale = declared.branch_scale(shape.layers)
        norm1, norm2 = (weights.norm(name, d) for name in norms)
        merges = declared.biased and not declared.norm_after
        if merges:
            qkv_3DD, qkv_bias_3D = _merge(norm1, qkv_3DD, qkv_bias_3D)
            up, up_bias = _merge(norm2, up, up_bias)
        # attention weights sum to 1, so the bias of the values is a constant of the output
        value_bias_D = qkv_bias_3D[2 * d :].clone()
        qkv_bias_3D[2 * d :] = 0
        before_D = torch.zeros_like(shift1_D) if declared.norm_after else shift1_D
        shift2_D = before_D + out_bias_D + out_DD @ value_bias_D
        qk_norm_2D = None
        if declared.qk_norms:
            names = [f"{at}.{name}.weight" for name in declared.qk_norms]
            qk_norm_2D = torch.cat([weights(name, d, dtype=full) for name in names])
        dtype, biased = self._dtype, declared.biased
        layer = _Layer(
            shift1_D,
            (None, None) if merges else norm1,
            qkv_3DD.to(dtype),
            qkv_bias_3D.to(dtype) if biased else None,
            qk_norm_2D,
            (out_DD / scale).to(dtype),
            shift2_D,
            (None, None) if merges else norm2,
            up.to(dtype),
            up_bias.to(dtype) if biased else None,
            (down_DF / scale).to(dtype),
        )
        return layer, down_bias_D if declared.norm_after else shift2_D + down_bias_D

    def _projection(
        self, weights: EncoderWeights, at: str, names: tuple[str, ...], rows: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        """Read weights, shape (rows, columns), and biases, shape (rows,), of which some are 0."""
        each, full = rows // len(names), torch.float32
        weight = [weights(f"{at}.{name}.weight", each, columns, dtype=full) for name in names]
        if not self._architecture.biased:
            return torch.cat(weight), torch.zeros(rows, device=self._device)
        bias = [weights(f"{at}.{name}.bias", each, dtype=full) for name in names]
        return torch.cat(weight), torch.cat(bias)

    def _hidden_states(
        self, ids_T: Tensor, geometry: BatchGeometry, read: Set[int]
    ) -> Iterator[Tensor]:
        ops, eps, after = self._ops, self._eps, self._architecture.norm_after
        x_TD = self._embed_VD[ids_T]
        if self._positions_PD is not None:
            x_TD += self._positions_PD[geometry.positions]
        for i, layer in enumerate(self._layers):
            y_TD = ops.layer_norm(x_TD, layer.shift1_D, *layer.norm1, eps)
            if after:
                x_TD = y_TD
            yield x_TD + layer.shift1_D if i in read and not after else x_TD
            attended_TD = self._attend(
                y_TD, layer.qkv_3DD, layer.qkv_bias_3D, geometry, layer.qk_norm_2D
            )
            ops.add_linear_(x_TD, attended_TD, layer.out_DD)
            y_TD = ops.layer_norm(x_TD, layer.shift2_D, *layer.norm2, eps)
            if after:
                x_TD = y_TD
            ops.add_linear_(x_TD, self._feed(y_TD, layer.up, layer.up_bias), layer.down_DF)
        yield ops.layer_norm(x_TD, self._last_shift_D, *self._last_norm, eps)


def _merge(norm: Norm, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Merge a norm's factors and offsets into the projection after it.

    With ``n`` the standardized stream: ``W (n * w + b) + c = (W * w) n + (W b + c)``.
    """
    factor_D, offset_D = norm
    assert factor_D is not None
    assert offset_D is not None
    return weight * factor_D, bias + weight @ offset_D
