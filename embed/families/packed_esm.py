"""ESM-2, and encoders with its norms and biases, on packed tokens, without padding.

T tokens, D hidden width, H heads, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from abag.embed.families.packed import PackedEncoder
from abag.embed.weights.tensors import EncoderWeights

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.families.family import EncoderShape
    from abag.embed.kernels.attention import BatchGeometry
    from abag.embed.weights.checkpoints import EncoderCheckpoint

TOKEN_DROPOUT_SCALE = 1 - 0.15 * 0.8
"""ESM-2 scales its embeddings by the share of tokens that were not masked in training."""


class EsmNames(NamedTuple):
    """Names of tensors, without ``.weight`` and ``.bias``; those of a layer inside it."""

    embedding: str
    layers: str  # the list of layers
    norm1: str
    qkv: tuple[str, str, str]
    out: str
    norm2: str
    up: str
    down: str
    last_norm: str


@dataclass(frozen=True, slots=True)
class Layer:
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

    A subclass has other names, other orders of rows and another feed-forward.

    Raises
    ------
    BadCheckpoint
        Weights that do not match config.json.
    AdapterMismatch, AttentionUnavailable
    """

    names: ClassVar = EsmNames(
        "embeddings.word_embeddings", "encoder.layer", "attention.LayerNorm",
        ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output.dense", "LayerNorm", "intermediate.dense", "output.dense",
        "encoder.emb_layer_norm_after",
    )  # fmt: skip
    embedding_scale: ClassVar = TOKEN_DROPOUT_SCALE
    up_products: ClassVar = 1  # 2 if the feed-forward is gated

    def __init__(
        self, checkpoint: EncoderCheckpoint, shape: EncoderShape, plan: DevicePlan,
        attention: str = "auto", *, positions: int,
    ) -> None:  # fmt: skip
        config, names = checkpoint.config, self.names
        super().__init__(plan, attention, width=shape.width, heads=shape.heads, positions=positions)
        self._eps, self._inner = float(config["layer_norm_eps"]), shape.feed_forward_width
        with EncoderWeights(checkpoint, plan) as weights:
            embed_VD = weights(
                f"{names.embedding}.weight", int(config["vocab_size"]), self.width,
                dtype=torch.float32,
            )  # fmt: skip
            self._embed_VD = (embed_VD * self.embedding_scale).to(plan.dtype)
            self._shift_D = torch.zeros(self.width, device=plan.device)
            self._layers = [
                self._load_layer(weights, f"{names.layers}.{i}") for i in range(shape.layers)
            ]
            self._final = weights.norm(names.last_norm, self.width)

    def _arrange_qkv(self, rows: Tensor) -> Tensor:
        """Order and scale weights, (3 * D, D), or biases, (3 * D,), of queries, keys and values."""
        return rows

    def _arrange_up(self, rows: Tensor) -> Tensor:
        """Order weights, (rows, D), or biases, (rows,), of the first feed-forward product."""
        return rows

    def _feed_forward(self, y_TD: Tensor, layer: Layer) -> Tensor:
        """Return the activations between the two feed-forward products, shape (T, F)."""
        return self._ops.linear_gelu(y_TD, layer.up_FD, layer.up_bias_F)

    def _projection(
        self, weights: EncoderWeights, norm: str, *names: str, rows: int
    ) -> tuple[Tensor, Tensor]:
        """Merge a norm's factors and offsets into the projections after it.

        With ``n`` the standardized stream: ``W (n * w + b) + c = (W * w) n + (W b + c)``.

        Returns
        -------
        weight : Tensor, shape=(len(names) * rows, D), dtype=float32
        bias : Tensor, shape=(len(names) * rows,), dtype=float32
        """
        d, full = self.width, torch.float32
        norm_D, norm_bias_D = weights.norm(norm, d)
        weight = torch.cat([weights(f"{n}.weight", rows, d, dtype=full) for n in names])
        bias = torch.cat([weights(f"{n}.bias", rows, dtype=full) for n in names])
        return weight * norm_D, bias + weight @ norm_bias_D

    def _load_layer(self, weights: EncoderWeights, at: str) -> Layer:
        names, d, full = self.names, self.width, torch.float32
        qkv_3DD, qkv_bias_3D = self._projection(
            weights, f"{at}.{names.norm1}", *(f"{at}.{name}" for name in names.qkv), rows=d
        )
        qkv_3DD, qkv_bias_3D = self._arrange_qkv(qkv_3DD), self._arrange_qkv(qkv_bias_3D)
        up_FD, up_bias_F = self._projection(
            weights, f"{at}.{names.norm2}", f"{at}.{names.up}", rows=self.up_products * self._inner
        )
        out_DD = weights(f"{at}.{names.out}.weight", d, d, dtype=full)
        # attention weights sum to 1, so the bias of the values is a constant of the output
        out_bias_D = weights(f"{at}.{names.out}.bias", d, dtype=full)
        shift1_D = self._shift_D
        shift2_D = shift1_D + out_bias_D + out_DD @ qkv_bias_3D[2 * d :]
        qkv_bias_3D[2 * d :] = 0
        self._shift_D = shift2_D + weights(f"{at}.{names.down}.bias", d, dtype=full)
        return Layer(
            shift1_D,
            qkv_3DD.to(self._dtype),
            qkv_bias_3D.to(self._dtype),
            out_DD.to(self._dtype),
            shift2_D,
            self._arrange_up(up_FD).to(self._dtype),
            self._arrange_up(up_bias_F).to(self._dtype),
            weights(f"{at}.{names.down}.weight", d, self._inner),
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
            ops.add_linear_(x_TD, self._feed_forward(y_TD, layer), layer.down_DF)
        yield ops.layer_norm(x_TD, self._shift_D, *self._final, eps)
