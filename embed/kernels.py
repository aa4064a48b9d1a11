"""Triton kernels of the packed encoders. Imported only where Triton runs.

Each has a plain PyTorch twin in `abag.embed.ops`, with which it is compared. All read and write
packed tokens: no padding, no batch dimension. Dimensions: T tokens, H heads, D width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# beyond this distance every pair of residues shares one T5 bucket
FARTHEST = 128


@triton.jit
def _attention_kernel(
    qkv_ptr,
    out_ptr,
    tile_first_ptr,  # (tiles,) first query token of a tile
    tile_start_ptr,  # (tiles,) first token of the tile's sequence
    tile_stop_ptr,  # (tiles,) one past its last token
    bias_ptr,  # (H, BLOCK_M, BIAS_COLUMNS): see `tile_bias`
    scale,
    token_stride,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BIAS_COLUMNS: tl.constexpr,
    BIAS_REACH: tl.constexpr,
):
    """One tile of queries of one sequence and head, over all keys of that sequence."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(tile_first_ptr + tile)
    start = tl.load(tile_start_ptr + tile)
    stop = tl.load(tile_stop_ptr + tile)
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, WIDTH)
    # 64-bit: tokens x 3 x H x D passes 2^31 at 175k tokens of IgT5
    query_rows = (first + rows).to(tl.int64)
    here = qkv_ptr + head * WIDTH
    alive = (first + rows)[:, None] < stop
    q = tl.load(here + query_rows[:, None] * token_stride + dims[None, :], mask=alive, other=0.0)
    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    for key in range(start, stop, BLOCK_N):
        key_rows = (key + columns).to(tl.int64)
        inside = (key + columns) < stop
        k = tl.load(
            here + HEADS * WIDTH + key_rows[None, :] * token_stride + dims[:, None],
            mask=inside[None, :],
            other=0.0,
        )
        scores = tl.dot(q, k)
        if HAS_BIAS:
            # distances repeat beyond the reach, so one tile on each side stands for all farther
            offset = tl.minimum(tl.maximum(key - first, -BIAS_REACH), BIAS_REACH) + BIAS_REACH
            offset = tl.multiple_of(offset, 16)
            bias_at = bias_ptr + head * BLOCK_M * BIAS_COLUMNS + rows[:, None] * BIAS_COLUMNS
            scores += tl.load(bias_at + offset + columns[None, :]).to(tl.float32)
        scores = tl.where(inside[None, :], scores * (scale * LOG2E), -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weight = tl.exp2(scores - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(weight, 1)
        v = tl.load(
            here + 2 * HEADS * WIDTH + key_rows[:, None] * token_stride + dims[None, :],
            mask=inside[:, None],
            other=0.0,
        )
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None])
        peak = new_peak
    out = out_ptr + query_rows[:, None] * (HEADS * WIDTH) + head * WIDTH + dims[None, :]
    tl.store(out, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=alive)


@triton.jit
def _rms_norm_kernel(x_ptr, weight_ptr, out_ptr, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < WIDTH
    x = tl.load(x_ptr + row * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / WIDTH + eps)
    weight = tl.load(weight_ptr + at, mask=mask, other=0.0).to(tl.float32)
    y = x * scale * weight
    tl.store(out_ptr + row * WIDTH + at, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _layer_norm_kernel(
    x_ptr,
    shift_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < WIDTH
    x = tl.load(x_ptr + row * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(shift_ptr + at, mask=mask, other=0.0)
    mean = tl.sum(x) / WIDTH
    centred = tl.where(mask, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred) / WIDTH + eps)
    weight = tl.load(weight_ptr + at, mask=mask, other=0.0)
    bias = tl.load(bias_ptr + at, mask=mask, other=0.0)
    y = centred * scale * weight + bias
    tl.store(out_ptr + row * WIDTH + at, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gelu_kernel(x_ptr, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(x_ptr + at, y.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rotary_kernel(
    qkv_ptr, position_ptr, cos_ptr, sin_ptr, HEADS2: tl.constexpr, HALF: tl.constexpr,
    token_stride, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Rotate queries and keys of one token in place; they are the first 2 H heads of a row."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + token)
    dims = tl.arange(0, HALF)
    heads = tl.arange(0, BLOCK_H)
    cos = tl.load(cos_ptr + position * HALF + dims)[None, :]
    sin = tl.load(sin_ptr + position * HALF + dims)[None, :]
    mask = heads[:, None] < HEADS2
    at = qkv_ptr + token * token_stride + heads[:, None] * (2 * HALF) + dims[None, :]
    low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, (low * cos - high * sin).to(qkv_ptr.dtype.element_ty), mask=mask)
    tl.store(at + HALF, (high * cos + low * sin).to(qkv_ptr.dtype.element_ty), mask=mask)


def tile_bias(bias_HR: torch.Tensor, block_m: int, block_n: int) -> torch.Tensor:
    """Lay a bias by distance out as tiles whose rows are contiguous.

    A tile of queries from `i0` and keys from `j0` needs ``bias[h, (j0 + c) - (i0 + r)]``: rows
    shifted by one. Gathered from a 1-D table these are scalar loads; laid out here they are
    wide ones.

    Parameters
    ----------
    bias_HR : Tensor, shape=(H, 2 * FARTHEST + 1)
        Bias of distance ``key - query`` from -FARTHEST to FARTHEST; farther ones are equal.

    Returns
    -------
    Tensor, shape=(H, block_m, 2 * reach + block_n)
        Column ``reach + (j0 - i0) + c`` of row ``r`` belongs to that pair; ``reach`` is
        `bias_reach(block_m, block_n)`.
    """
    reach = bias_reach(block_m, block_n)
    columns = torch.arange(2 * reach + block_n, device=bias_HR.device)
    rows = torch.arange(block_m, device=bias_HR.device)
    distance = (columns[None, :] - reach - rows[:, None]).clamp(-FARTHEST, FARTHEST)
    return bias_HR[:, distance + FARTHEST].contiguous()


def bias_reach(block_m: int, block_n: int) -> int:
    """Offset of tiles beyond which all their pairs are farther apart than FARTHEST."""
    longest = max(block_m, block_n)
    return -(-(FARTHEST + longest) // longest) * longest


def attention(
    qkv: torch.Tensor,
    tiles: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    heads: int,
    scale: float,
    bias: torch.Tensor | None = None,
    *,
    block_m: int,
    block_n: int,
    warps: int,
    stages: int,
) -> torch.Tensor:
    """Attention within each packed sequence.

    Parameters
    ----------
    qkv : Tensor, shape=(T, 3 * H * D)
        Queries of all heads, then keys, then values.
    tiles : (first, start, stop), each of shape (tiles,), dtype=int32
        See `abag.embed.attention.query_tiles`; made for this `block_m`.
    scale : float
        Factor of the scores, before which the bias is added.
    bias : Tensor, optional
        From `tile_bias` for this `block_m` and `block_n`.

    Returns
    -------
    Tensor, shape=(T, H * D)
    """
    tokens, width = qkv.shape[0], qkv.shape[1] // (3 * heads)
    out = torch.empty(tokens, heads * width, dtype=qkv.dtype, device=qkv.device)
    first, start, stop = tiles
    _attention_kernel[(len(first), heads)](
        qkv, out, first, start, stop, bias if bias is not None else qkv, scale, qkv.stride(0),
        HEADS=heads, WIDTH=width, BLOCK_M=block_m, BLOCK_N=block_n,
        HAS_BIAS=bias is not None,
        BIAS_COLUMNS=2 * bias_reach(block_m, block_n) + block_n,
        BIAS_REACH=bias_reach(block_m, block_n),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """T5's norm: no mean, no bias; computed in fp32. Shape (T, D) in and out."""
    width = x_TD.shape[1]
    out = torch.empty(x_TD.shape, dtype=weight_D.dtype, device=x_TD.device)
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[(len(x_TD),)](x_TD, weight_D, out, eps, WIDTH=width, BLOCK=block, num_warps=4)
    return out


def layer_norm(
    x_TD: torch.Tensor,
    shift_D: torch.Tensor,
    weight_D: torch.Tensor,
    bias_D: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Norm of ``x + shift`` in fp32; shift, weight and bias are fp32. Shape (T, D) in and out."""
    width = x_TD.shape[1]
    out = torch.empty_like(x_TD)
    block = triton.next_power_of_2(width)
    _layer_norm_kernel[(len(x_TD),)](
        x_TD, shift_D, weight_D, bias_D, out, eps, WIDTH=width, BLOCK=block, num_warps=4
    )
    return out


def gelu_(x: torch.Tensor) -> torch.Tensor:
    """Exact (erf) GELU in place."""
    block = 4096
    _gelu_kernel[(triton.cdiv(x.numel(), block),)](x, x.numel(), BLOCK=block, num_warps=8)
    return x


def rotary_(
    qkv: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int
) -> torch.Tensor:
    """Rotate queries and keys in place; ``cos`` and ``sin`` are (positions, D / 2) in fp32."""
    half = cos.shape[1]
    _rotary_kernel[(len(qkv),)](
        qkv, positions, cos, sin, HEADS2=2 * heads, HALF=half, token_stride=qkv.stride(0),
        BLOCK_H=triton.next_power_of_2(2 * heads), num_warps=4,
    )  # fmt: skip
    return qkv
