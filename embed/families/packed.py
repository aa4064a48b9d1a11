"""What the packed encoders share: tokens laid end to end, without padding, through the layers.

T tokens, D hidden width, H heads, F feed-forward width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abag.core.device import to_device
from abag.embed.kernels.attention import Attention, BatchGeometry, load_kernels

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.packing.batches import LayerPooling, PackedBatch


class PackedEncoder(ABC):
    """An encoder of equal layers on packed tokens; see `Encoder`.

    `positions` is the number of positions whose rotary angles are needed, or None without them.

    Raises
    ------
    AttentionUnavailable
    """

    def __init__(
        self, plan: DevicePlan, attention: str, *, width: int, heads: int,
        head_width: int | None = None, biased: bool = False, positions: int | None = None,
    ) -> None:  # fmt: skip
        self.width, self._heads = width, heads
        self._device, self._dtype = plan.device, plan.dtype
        head_width = head_width or width // heads
        name, self._ops = load_kernels(
            plan, biased=biased, head_width=head_width, requested=attention
        )
        self._rotary = None
        if positions is not None:
            self._rotary = rotary_tables(positions, head_width, plan.device)
        self._attention = Attention(name, heads, head_width**-0.5, rotary=self._rotary)

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

    def _attend(
        self, y_TD: Tensor, qkv_3DD: Tensor, bias_3D: Tensor | None, geometry: BatchGeometry
    ) -> Tensor:
        """Project to queries, keys and values, rotate if positions are rotary, and attend.

        The values' part of the bias is zero: attention weights sum to 1, so their bias is a
        constant of the output. Returns shape (T, D).
        """
        ops, heads = self._ops, self._heads
        if self._rotary is not None and self._attention.rotates_queries:
            # the GPU is at its power limit: what rotates adds the bias too, not the product
            qkv = ops.linear(y_TD, qkv_3DD)
            query_bias, key_bias, _ = (None,) * 3 if bias_3D is None else bias_3D.chunk(3)
            keys = qkv[:, self.width :]
            ops.rotary_(keys, geometry.positions, *self._rotary, heads, key_bias)
            return self._attention(qkv, geometry, query_bias)
        qkv = ops.linear(y_TD, qkv_3DD, bias_3D)
        if self._rotary is not None:
            ops.rotary_(qkv, geometry.positions, *self._rotary, 2 * heads)
        return self._attention(qkv, geometry)

    @abstractmethod
    def _hidden_states(
        self, ids_T: Tensor, geometry: BatchGeometry, read: Set[int]
    ) -> Iterator[Tensor]:
        """Yield transformers' ``hidden_states``, each shape (T, D); the next may overwrite it.

        Those before the last that are not in `read` may be anything.
        """


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
    """Reorder the rows of projections of queries or keys, shape (D, ...), as kernels rotate them.

    Some models rotate neighbouring dimensions of a head together, the kernels those half a head
    apart. Scores do not change if queries and keys are reordered alike.
    """
    return x.view(heads, -1, 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)
