"""Encoders on packed tokens: laid end to end, without padding, through layers that are declared.

`Architecture` declares the layers. T tokens, D hidden width, H heads, I attention width (H x head
width, D in most encoders), F feed-forward width, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abag.core.device import DevicePlan, to_device
from abag.embed.encoders.weights import EncoderWeights
from abag.embed.kernels.attention import Attention, BatchGeometry, load_kernels
from abag.embed.kernels.ops import Norm, Rotary

if TYPE_CHECKING:
    from abag.embed.encoders.identity import Identity
    from abag.embed.encoders.packing import LayerPooling, PackedBatch


MAX_DISTANCE = 128
"""Longer distances share T5's last bucket of relative positions."""
FP16_BITS = 15
"""Products are scaled to stay below 2^15, half of the largest fp16 number."""


class PackedEncoder(ABC):
    """An encoder of equal layers on packed tokens; see `Encoder`.

    Parameters
    ----------
    identity : Identity
        Its weights are read here, each exactly once.
    plan : DevicePlan
        Device and precision.
    attention : str
        The kernel that was asked for, see `load_kernels`.
    """

    def __init__(self, identity: Identity, plan: DevicePlan, attention: str = "auto") -> None:
        family = identity.family
        config = family.checked_config(identity.checkpoint)
        architecture = family.architecture_of(config)
        shape = identity.shape
        self.width = shape.width
        self._shape = shape
        self._architecture = architecture
        self._config = config
        self._eps = architecture.epsilon(config)
        self._device = plan.device
        self._dtype = plan.dtype
        name, self._ops = load_kernels(
            plan,
            biased=bool(architecture.relative_bias),
            head_width=shape.head_width,
            requested=attention,
        )
        self._rotary = None
        if architecture.rotary:
            positions = family.vocabulary.longest_span
            assert positions is not None
            self._rotary = rotary_tables(positions, shape.head_width, plan.device)
        with EncoderWeights(identity.checkpoint, plan) as weights:
            bias_HR = self._load(weights)
        self._attention = Attention(
            name,
            shape.heads,
            # T5's weights include the usual 1 / sqrt(head width)
            shape.head_width**-0.5 if bias_HR is None else 1.0,
            bias_HR,
            # queries that are normed first are rotated with the keys
            rotary=None if architecture.qk_norms else self._rotary,
        )

    @abstractmethod
    def _load(self, weights: EncoderWeights) -> Tensor | None:
        """Read all weights; returns the bias of attention by distance, see `Attention`."""

    def _load_embedding(self, weights: EncoderWeights, dtype: torch.dtype) -> Tensor:
        name = f"{self._architecture.embedding}.weight"
        size = int(self._config["vocab_size"])
        embed_VD = weights(name, size, self.width, dtype=torch.float32)
        return (embed_VD * self._architecture.embedding_scale).to(dtype)

    def _arrange_qkv(self, rows: Tensor) -> Tensor:
        """Order and scale weights, (3 * I, D), or biases, (3 * I,), as the kernels need them."""
        declared = self._architecture
        query, key, value = rows.chunk(3)
        if declared.scaled_twice:
            query = query * self._shape.head_width**-0.5
        if declared.rotary == "neighbours":
            query, key = (by_halves(x, self._shape.heads) for x in (query, key))
        return torch.cat([query, key, value])

    @torch.inference_mode()
    def __call__(self, batch: PackedBatch, layer_pooling: LayerPooling | None = None) -> Tensor:
        geometry = self._attention.geometry(batch.offsets, self._device, self._dtype)
        read = frozenset() if layer_pooling is None else layer_pooling.layers
        states = self._hidden_states(to_device(batch.ids, self._device), geometry, read)
        for layer, x_TD in enumerate(states):
            if layer_pooling is not None:
                layer_pooling.add(layer, x_TD)
        return x_TD

    @abstractmethod
    def _hidden_states(
        self, ids_T: Tensor, geometry: BatchGeometry, read: Set[int]
    ) -> Iterator[Tensor]:
        """Yield transformers' ``hidden_states``, each shape (T, D); the next may overwrite it.

        Those before the last whose number is not in `read` may hold anything.
        """

    def _attend(
        self,
        y_TD: Tensor,
        qkv_3ID: Tensor,
        bias_3I: Tensor | None,
        geometry: BatchGeometry,
        qk_norm_2I: Tensor | None = None,
    ) -> Tensor:
        """Project to queries, keys and values, rotate if need be, and attend; shape (T, I)."""
        # attention weights sum to 1: the values' bias is a constant of the output, here zero
        ops = self._ops
        heads = self._shape.heads
        if self._rotary is None:
            return self._attention(ops.linear(y_TD, qkv_3ID, bias_3I), geometry)
        rotary = Rotary(geometry.positions, *self._rotary)
        if self._attention.rotates_queries:
            # the GPU is at its power limit: what rotates adds the bias too, not the product
            qkv = ops.linear(y_TD, qkv_3ID)
            query_bias, key_bias, _ = (None,) * 3 if bias_3I is None else bias_3I.chunk(3)
            ops.rotary_(qkv[:, self._shape.attention_width :], rotary, heads, key_bias)
            return self._attention(qkv, geometry, query_bias)
        qkv = ops.linear(y_TD, qkv_3ID, bias_3I)
        if qk_norm_2I is None:
            ops.rotary_(qkv, rotary, 2 * heads)
        else:
            ops.norm_rotary_(qkv, qk_norm_2I, self._eps, rotary, heads)
        return self._attention(qkv, geometry)

    def _feed(self, y_TD: Tensor, up: Tensor, bias: Tensor | None) -> Tensor:
        """Return the activations between the two products of the feed-forward, shape (T, F)."""
        activation = self._architecture.activation
        ops = self._ops
        if self._architecture.gate:
            assert activation != "gelu"
            return ops.linear_gated(y_TD.to(up.dtype), up, activation, bias).to(self._dtype)
        if activation == "relu":
            return ops.linear_relu(y_TD, up)
        assert activation == "gelu"
        assert bias is not None
        return ops.linear_gelu(y_TD, up, bias)


@dataclass(frozen=True, slots=True)
class _LayerNormLayer:
    """The weights of a layer; a `shift` is the sum of the biases that a norm's input lacks."""

    shift1_D: Tensor
    norm1: Norm
    qkv_3DD: Tensor
    qkv_bias_3D: Tensor | None
    qk_norm_2D: Tensor | None
    out_DD: Tensor
    shift2_D: Tensor
    norm2: Norm
    up: Tensor
    """Shape (F, D); (2 * F, D) if gated: the gate first."""
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
        declared = self._architecture
        d = self.width
        full = torch.float32
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
        norms = []
        for at in layers:
            norms += [f"{at}.{name}" for name in declared.norms]
        # a norm after one part of a layer is the norm before the next
        norms = [declared.first_norm, *norms] if declared.norm_after else norms
        self._layers = []
        for i, at in enumerate(layers):
            layer, shift_D = self._load_layer(weights, at, norms[2 * i : 2 * i + 2], shift_D)
            self._layers.append(layer)
        self._last_shift_D = shift_D
        # of the embeddings, and the shift before it; after each sum, a layer begins with a norm
        self._first_norm: tuple[Tensor, Norm] | None = None
        if declared.first_norm and not declared.norm_after:
            no_shift_D = torch.zeros(d, device=self._device)
            self._first_norm = (no_shift_D, weights.norm(declared.first_norm, d))
        last = norms[-1] if declared.norm_after else declared.last_norm
        if declared.last_norm_biased:
            self._last_norm: Norm = weights.norm(last, d)
        else:
            self._last_norm = (weights(f"{last}.weight", d, dtype=full), torch.zeros_like(shift_D))
        return None

    def _load_layer(
        self, weights: EncoderWeights, at: str, norms: list[str], shift1_D: Tensor
    ) -> tuple[_LayerNormLayer, Tensor]:
        """Read one layer; also returns the shift of the norm after it."""
        declared = self._architecture
        shape = self._shape
        full = torch.float32
        d = shape.width
        f = shape.feed_forward_width
        qkv_3DD, qkv_bias_3D = self._projection(weights, at, declared.qkv, 3 * d, d)
        qkv_3DD = self._arrange_qkv(qkv_3DD)
        qkv_bias_3D = self._arrange_qkv(qkv_bias_3D)
        up, up_bias = self._projection(weights, at, declared.up, (1 + bool(declared.gate)) * f, d)
        if declared.gate == "second":
            up = up.roll(f, 0)
            up_bias = up_bias.roll(f, 0)
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
        dtype = self._dtype
        biased = declared.biased
        layer = _LayerNormLayer(
            shift1_D=shift1_D,
            norm1=(None, None) if merges else norm1,
            qkv_3DD=qkv_3DD.to(dtype),
            qkv_bias_3D=qkv_bias_3D.to(dtype) if biased else None,
            qk_norm_2D=qk_norm_2D,
            out_DD=(out_DD / scale).to(dtype),
            shift2_D=shift2_D,
            norm2=(None, None) if merges else norm2,
            up=up.to(dtype),
            up_bias=up_bias.to(dtype) if biased else None,
            down_DF=(down_DF / scale).to(dtype),
        )
        return layer, down_bias_D if declared.norm_after else shift2_D + down_bias_D

    def _projection(
        self, weights: EncoderWeights, at: str, names: tuple[str, ...], rows: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        """Read weights, shape (rows, columns), and biases, shape (rows,), of which some are 0."""
        full = torch.float32
        weight = weights.stacked(at, names, rows, columns, full)
        if not self._architecture.biased:
            return weight, torch.zeros(rows, device=self._device)
        part = rows // len(names)
        bias = [weights(f"{at}.{name}.bias", part, dtype=full) for name in names]
        return weight, torch.cat(bias)

    def _hidden_states(
        self, ids_T: Tensor, geometry: BatchGeometry, read: Set[int]
    ) -> Iterator[Tensor]:
        ops = self._ops
        eps = self._eps
        after = self._architecture.norm_after
        x_TD = self._embed_VD[ids_T]
        if self._positions_PD is not None:
            x_TD += self._positions_PD[geometry.positions]
        if self._first_norm is not None:
            x_TD = ops.layer_norm(x_TD, *self._first_norm, eps)
        for i, layer in enumerate(self._layers):
            y_TD = ops.layer_norm(x_TD, layer.shift1_D, layer.norm1, eps)
            if after:
                x_TD = y_TD
            yield x_TD + layer.shift1_D if i in read and not after else x_TD
            attended_TD = self._attend(
                y_TD, layer.qkv_3DD, layer.qkv_bias_3D, geometry, layer.qk_norm_2D
            )
            ops.add_linear_(x_TD, attended_TD, layer.out_DD)
            y_TD = ops.layer_norm(x_TD, layer.shift2_D, layer.norm2, eps)
            if after:
                x_TD = y_TD
            ops.add_linear_(x_TD, self._feed(y_TD, layer.up, layer.up_bias), layer.down_DF)
        yield ops.layer_norm(x_TD, self._last_shift_D, self._last_norm, eps)


def _merge(norm: Norm, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Merge a norm into the next projection: ``W (n * w + b) + c = (W * w) n + (W b + c)``."""
    factor_D, offset_D = norm
    assert factor_D is not None
    assert offset_D is not None
    return weight * factor_D, bias + weight @ offset_D


@dataclass(frozen=True, slots=True)
class _RmsNormLayer:
    norm1_D: Tensor
    qkv_3ID: Tensor
    out_DI: Tensor
    norm2_D: Tensor
    up: Tensor
    """Shape (F, D); (2 * F, D) if gated: the gate first; float32 where fp16 overflows."""
    down_DF: Tensor
    out_scale: float
    """Factor of what `out_DI` adds to the residual stream: 1 except in fp16."""
    down_scale: float
    """The same of `down_DF`."""


class PackedRmsNormEncoder(PackedEncoder):
    """A packed encoder with RMS norms, no biases, and in fp16 a residual stream in fp32."""

    def _load(self, weights: EncoderWeights) -> Tensor | None:
        declared = self._architecture
        d = self.width
        full = torch.float32
        # all weights before they are scaled, and the residual stream
        self._wide = full if self._dtype is torch.float16 else self._dtype
        self._embed_VD = self._load_embedding(weights, self._wide)
        self._layers = []
        for i in range(self._shape.layers):
            layer = self._load_layer(weights, f"{declared.layers}.{i}")
            self._layers.append(layer)
        self._last_norm_D: Tensor | None = None
        if name := declared.last_norm:
            self._last_norm_D = weights(f"{name}.weight", d, dtype=full)
        if not (name := declared.relative_bias):
            return None
        buckets = int(self._config["relative_attention_num_buckets"])
        table_BH = weights(f"{name}.weight", buckets, self._shape.heads, dtype=full)
        return bias_by_distance(table_BH).to(self._dtype)

    def _load_layer(self, weights: EncoderWeights, at: str) -> _RmsNormLayer:
        declared = self._architecture
        shape = self._shape
        wide = self._wide
        d = shape.width
        inner = shape.attention_width
        f = shape.feed_forward_width
        norm1_D, norm2_D = (
            weights(f"{at}.{name}.weight", d, dtype=torch.float32) for name in declared.norms
        )
        qkv_3ID = weights.stacked(at, declared.qkv, 3 * inner, d, wide)
        query_ID, key_ID, value_ID = self._arrange_qkv(qkv_3ID).chunk(3)
        out_DI = weights(f"{at}.{declared.out}.weight", d, inner, dtype=wide)
        value_ID, out_DI, out_scale = self._fitted(norm1_D, value_ID, out_DI)
        up_rows = (1 + bool(declared.gate)) * f
        up = weights.stacked(at, declared.up, up_rows, d, wide)
        *gate, first = up.chunk(2) if declared.gate else (up,)
        down_DF = weights(f"{at}.{declared.down}.weight", d, f, dtype=wide)
        up, down_DF, down_scale = self._fitted(norm2_D, first, *gate, down_DF)
        return _RmsNormLayer(
            norm1_D=norm1_D,
            qkv_3ID=torch.cat([query_ID.to(self._dtype), key_ID.to(self._dtype), value_ID]),
            out_DI=out_DI,
            norm2_D=norm2_D,
            up=up,
            down_DF=down_DF,
            out_scale=out_scale,
            down_scale=down_scale,
        )

    def _fitted(
        self, norm_D: Tensor, first_ID: Tensor, *others: Tensor
    ) -> tuple[Tensor, Tensor, float]:
        """Divide two successive products by powers of 2, so that neither can overflow fp16."""
        # Between them is a ReLU, an average or a gate: a factor of the first carries over to the
        # second. A norm returns vectors of length sqrt(D), which bounds both. `others`: a gate's
        # weights (I, D), if any, and the second weights (D, I). A gate cannot be scaled: where it
        # could overflow, the first weights stay in fp32. The factor that is returned restores the
        # second product.
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
        inner = _bits_over(bound_I.max())
        outer = _bits_over((second_DI.abs() @ bound_I).max())
        first = torch.cat([*gates, first_ID * 2.0**-inner])
        if fits:
            first = first.to(self._dtype)
        second_DI = second_DI * 2.0 ** (inner - outer)
        return first, second_DI.to(self._dtype), 2.0**outer

    def _hidden_states(
        self, ids_T: Tensor, geometry: BatchGeometry, read: Set[int]
    ) -> Iterator[Tensor]:
        ops = self._ops
        eps = self._eps
        x_TD = self._embed_VD[ids_T]
        delta_TD = torch.zeros_like(x_TD, dtype=self._dtype)
        scale = 1.0
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


def _bits_over(bound: Tensor) -> int:
    """Return by how many powers of 2 a number is to be divided to stay below 2^15."""
    exponent = math.frexp(float(bound))[1]  # GPU sync
    return max(0, exponent - FP16_BITS)


def bias_by_distance(table_BH: Tensor) -> Tensor:
    """Expand T5's bias by buckets of distances to all distances.

    Parameters
    ----------
    table_BH : Tensor, shape=(buckets, H)

    Returns
    -------
    Tensor, shape=(H, 2 * MAX_DISTANCE + 1)
        Of distances ``key - query`` from -MAX_DISTANCE; those farther apart share the last.

    References
    ----------
    Raffel et al., JMLR 21(140), 2020.
    """
    # half of the buckets per direction; the first half of those are exact distances, the others
    # are logarithmic up to a distance of 128
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


def rotary_tables(positions: int, head_width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles ``position / 10000^(2i / d)``.

    Each has shape (positions, d / 2), dtype=float32; d is `head_width`.

    References
    ----------
    Su et al., arXiv:2104.09864.
    """
    pair = torch.arange(0, head_width, 2, dtype=torch.float32)
    frequency = 1.0 / 10000.0 ** (pair / head_width)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32), frequency)
    return angle.cos().to(device), angle.sin().to(device)


def by_halves(x: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a projection from neighbours to halves of a head.

    `x` holds weights, shape (I, D), or biases, shape (I,), of queries or of keys. Their scores do
    not change if both are reordered.
    """
    return x.view(heads, -1, 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)
