"""Encoders on packed tokens: laid end to end, without padding, through layers that are declared.

`Architecture` declares the layers. T tokens, D hidden width, H heads, I attention width (H x head
width, D in most encoders), F feed-forward width, V tokens of the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from abag.core.device import to_device
from abag.embed.kernels.attention import Attention, BatchGeometry, load_kernels
from abag.embed.weights.tensors import EncoderWeights

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.families.architecture import Architecture, EncoderShape
    from abag.embed.packing.batches import LayerPooling, PackedBatch
    from abag.embed.weights.checkpoints import EncoderCheckpoint


class PackedEncoder(ABC):
    """An encoder of equal layers on packed tokens; see `Encoder`.

    `config` is config.json with all defaults. `positions` is the largest number of tokens in a
    span, which only rotary positions need.

    Raises
    ------
    BadCheckpoint
        Weights that do not match config.json.
    AdapterMismatch, AttentionUnavailable
    """

    def __init__(
        self, checkpoint: EncoderCheckpoint, config: Mapping[str, Any], architecture: Architecture,
        shape: EncoderShape, plan: DevicePlan, attention: str = "auto", *,
        positions: int | None = None,
    ) -> None:  # fmt: skip
        self.width, self._shape, self._architecture = shape.width, shape, architecture
        self._config, self._eps = config, architecture.epsilon(config)
        self._device, self._dtype = plan.device, plan.dtype
        name, self._ops = load_kernels(
            plan, biased=bool(architecture.relative_bias), head_width=shape.head_width,
            requested=attention,
        )  # fmt: skip
        self._rotary = None
        if architecture.rotary:
            assert positions is not None
            self._rotary = rotary_tables(positions, shape.head_width, plan.device)
        with EncoderWeights(checkpoint, plan) as weights:
            bias_HR = self._load(weights)
        self._attention = Attention(
            name, shape.heads,
            # T5's weights include the usual 1 / sqrt(head width)
            shape.head_width**-0.5 if bias_HR is None else 1.0,
            bias_HR,
            # queries that are normed first are rotated with the keys
            rotary=None if architecture.qk_norms else self._rotary,
        )  # fmt: skip

    @abstractmethod
    def _load(self, weights: EncoderWeights) -> Tensor | None:
        """Read all weights; returns the bias of attention by distance, see `Attention`."""

    def _load_embedding(self, weights: EncoderWeights, dtype: torch.dtype) -> Tensor:
        """Read the embeddings of tokens, shape (V, D)."""
        name, size = f"{self._architecture.embedding}.weight", int(self._config["vocab_size"])
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
        """Encode a batch: see `Encoder`."""
        geometry = self._attention.geometry(batch, self._device, self._dtype)
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

        Those before the last that are not in `read` may be anything.
        """

    def _attend(
        self, y_TD: Tensor, qkv_3ID: Tensor, bias_3I: Tensor | None, geometry: BatchGeometry,
        qk_norm_2I: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Project to queries, keys and values, rotate if positions are rotary, and attend.

        The values' part of the bias is zero: attention weights sum to 1, so their bias is a
        constant of the output. Returns shape (T, I).
        """
        ops, heads = self._ops, self._shape.heads
        if self._rotary is None:
            return self._attention(ops.linear(y_TD, qkv_3ID, bias_3I), geometry)
        at, angles = geometry.positions, self._rotary
        if self._attention.rotates_queries:
            # the GPU is at its power limit: what rotates adds the bias too, not the product
            qkv = ops.linear(y_TD, qkv_3ID)
            query_bias, key_bias, _ = (None,) * 3 if bias_3I is None else bias_3I.chunk(3)
            ops.rotary_(qkv[:, self._shape.attention_width :], at, *angles, heads, key_bias)
            return self._attention(qkv, geometry, query_bias)
        qkv = ops.linear(y_TD, qkv_3ID, bias_3I)
        if qk_norm_2I is None:
            ops.rotary_(qkv, at, *angles, 2 * heads)
        else:
            ops.norm_rotary_(qkv, qk_norm_2I, self._eps, at, *angles, heads)
        return self._attention(qkv, geometry)

    def _feed(self, y_TD: Tensor, up: Tensor, bias: Tensor | None) -> Tensor:
        """Return the activations between the two products of the feed-forward, shape (T, F)."""
        activation, ops = self._architecture.activation, self._ops
        if self._architecture.gate:
            assert activation != "gelu"
            return ops.linear_gated(y_TD.to(up.dtype), up, activation, bias).to(self._dtype)
        if activation == "relu":
            return ops.linear_relu(y_TD, up)
        assert activation == "gelu"
        assert bias is not None
        return ops.linear_gelu(y_TD, up, bias)


def rotary_tables(positions: int, head_width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the rotary angles.

    Returns
    -------
    cos, sin : Tensor, shape=(positions, head_width / 2), dtype=float32

    References
    ----------
    Su et al., arXiv:2104.09864: pair ``i`` of ``d`` turns by ``position / 10000^(2i / d)``.
    """
    pair = torch.arange(0, head_width, 2, dtype=torch.float32)
    frequency = 1.0 / 10000.0 ** (pair / head_width)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32), frequency)
    return angle.cos().to(device), angle.sin().to(device)


def by_halves(x: Tensor, heads: int) -> Tensor:
    """Reorder the rows of projections of queries or keys, shape (I, ...), as kernels rotate them.

    Some models rotate neighbouring dimensions of a head together, the kernels those half a head
    apart. Scores do not change if queries and keys are reordered alike.
    """
    return x.view(heads, -1, 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)
