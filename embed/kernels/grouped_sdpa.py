"""Attention of torch, `scaled_dot_product_attention`, for the sequences of a packed batch.

Sequences of similar length form a group: padded inside the group only, one call per group. This is
the path of GPUs without the Triton kernel, such as the T4, and of CPUs.

T packed tokens, G sequences of a group, L tokens of its longest, H heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from abag.core.device import to_device

MAX_PADDING = 0.05
"""Largest share of padding in a sequence; 0 with a bias, whose mask would be G x H x L x L."""
_ALIGNED = 8
"""torch copies a mask whose rows are not a multiple of 8 values apart."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that one call takes."""

    size: int
    length: int
    rows: slice | Tensor  # tokens of all sequences, shape (G * L,); padding repeats a token
    kept: Tensor | None  # those of the G * L that are no padding; None: all
    targets: slice | Tensor  # rows[kept]
    mask: Tensor | None  # added to the scores; broadcasts to (G, H, L, L)


def group_lengths(
    lengths: NDArray[np.int32], max_padding: float = MAX_PADDING
) -> list[NDArray[np.int64]]:
    """Partition sequences into groups of similar length, longest first.

    Parameters
    ----------
    lengths : ndarray, shape=(N,), dtype=int32
    max_padding : float
        Largest share of padding in a sequence that is padded to the longest of its group.

    Returns
    -------
    list of ndarray, each shape=(G,), dtype=int64
        The sequences of each group, longest first.
    """
    order = np.argsort(-lengths, kind="stable")
    first, groups = 0, []
    for i, length in enumerate(lengths[order]):
        if length < (1 - max_padding) * lengths[order[first]]:
            groups.append(order[first:i])
            first = i
    return [*groups, order[first:]]


def make_groups(
    offsets: NDArray[np.int32], bias_HR: Tensor | None, dtype: torch.dtype, device: torch.device
) -> list[Group]:
    """Group the sequences of a batch, with the masks that every layer adds to its scores.

    `offsets` has shape (N + 1,), `bias_HR` shape (H, 2 * R + 1), multiplied by the attention's
    scale.
    """
    lengths = np.diff(offsets)
    bias_HLL = None if bias_HR is None else dense_bias(bias_HR.to(dtype), int(lengths.max()))
    groups = []
    for members in group_lengths(lengths, MAX_PADDING if bias_HR is None else 0.0):
        length = int(lengths[members[0]])
        mask = None if bias_HLL is None else bias_HLL[:, :length, :length]
        groups.append(_make_group(offsets, members, length, mask, dtype, device))
    return groups


def _make_group(
    offsets: NDArray[np.int32], members: NDArray[np.int64], length: int, mask: Tensor | None,
    dtype: torch.dtype, device: torch.device,
) -> Group:  # fmt: skip
    starts_G, lengths_G = offsets[members], np.diff(offsets)[members]
    size = len(members)
    equal = bool((lengths_G == length).all())
    if equal and np.array_equal(starts_G, starts_G[0] + length * np.arange(size)):
        own = slice(int(starts_G[0]), int(starts_G[0]) + size * length)  # adjacent: no copy
        return Group(size, length, own, None, own, mask)
    at_L = np.arange(length)
    rows_GL = starts_G[:, None] + np.minimum(at_L, lengths_G[:, None] - 1)
    is_token_GL = at_L < lengths_G[:, None]
    rows = to_device(rows_GL.ravel(), device)
    if equal:
        return Group(size, length, rows, None, rows, mask)
    added_GL = np.zeros((size, -(-length // _ALIGNED) * _ALIGNED), dtype=np.float32)
    added_GL[:, :length][~is_token_GL] = -np.inf
    mask = to_device(added_GL, device).to(dtype)[:, None, None, :length]
    tokens = rows_GL[is_token_GL]
    if np.array_equal(tokens, tokens[0] + np.arange(len(tokens))):  # adjacent: no scattered writes
        targets: slice | Tensor = slice(int(tokens[0]), int(tokens[-1]) + 1)
    else:
        targets = to_device(tokens, device)
    kept = to_device(np.flatnonzero(is_token_GL), device)
    return Group(size, length, rows, kept, targets, mask)


def grouped_sdpa(qkv: Tensor, groups: list[Group], heads: int, scale: float) -> Tensor:
    """Attend within each sequence.

    Parameters
    ----------
    qkv : Tensor, shape=(T, 3 * H * D)
        Queries of all heads, then keys, then values.
    scale : float
        Factor of the products of queries and keys.

    Returns
    -------
    Tensor, shape=(T, H * D)
    """
    out = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    for group in groups:
        own = qkv[group.rows].view(group.size, group.length, 3, heads, -1)
        q, k, v = own.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask, scale=scale)
        y = y.transpose(1, 2).reshape(-1, out.shape[1])
        out[group.targets] = y if group.kept is None else y[group.kept]
    return out


def dense_bias(bias_HR: Tensor, length: int) -> Tensor:
    """Expand a bias by distance, (H, 2 * R + 1), to (H, queries, keys), each of `length`."""
    reach = bias_HR.shape[1] // 2
    at = torch.arange(-(-length // _ALIGNED) * _ALIGNED, device=bias_HR.device)
    distance = (at[None, :] - at[:length, None]).clamp(-reach, reach)
    return bias_HR[:, distance + reach][:, :, :length]
