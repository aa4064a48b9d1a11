"""Triton kernels of the packed encoders, imported only where Triton runs.

Tests compare each with its torch version in `ops` or `attention`. T packed tokens, H heads, D width
(of a head, in attention), F feed-forward width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from abag.embed.kernels.cublaslt import Epilogue, wide_products
from abag.embed.kernels.ops import Activation, Norm, PlainOps, Rotary


class AttentionShape(NamedTuple):
    """Constants of the attention of an encoder, for which it is compiled."""

    heads: int
    width: int
    block_d: int
    """Columns of a tile: `width`, or the next power of 2."""
    queries: int
    """Rows of a tile of queries."""
    keys: int
    bias_reach: int
    """That of `tile_bias`; 0 without a bias."""
    descriptors: bool
    """Whether tiles are loaded by tensor descriptors, or else by pointers."""


@triton.jit
def _load_rows(
    source,
    row,
    column,
    stop,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    MASKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Load a tile by its descriptor, or by pointers; MASKED: rows from `stop` on are 0.

    It has BLOCK columns; those from WIDTH on are 0 or those of the next head.
    """
    if DESCRIPTORS:
        tile = source.load([row, column])
    else:
        rows = tl.arange(0, ROWS)
        columns = tl.arange(0, BLOCK)
        # 64-bit: tokens x 3 H x D passes 2^31 at 175k tokens of IgT5
        first = source + tl.cast(row, tl.int64) * STRIDE + column
        at = first + rows[:, None] * STRIDE + columns[None, :]
        if MASKED or WIDTH < BLOCK:
            mask = (row + rows < stop)[:, None] & (columns < WIDTH)[None, :]
            tile = tl.load(at, mask=mask, other=0.0)
        else:
            tile = tl.load(at)
    return tile


@triton.jit
def _load_queries(
    source, cos_ptr, sin_ptr, bias_ptr, first, start, column, stop, SHAPE: tl.constexpr
):
    """Load a tile of queries; with `cos_ptr`, add their bias and turn them by their positions.

    `source` then loads half the width, a power of 2. Rows past `stop` hold anything; columns past
    the width are 0, so that those of the keys do not count.
    """
    ROWS: tl.constexpr = SHAPE.queries
    WIDTH: tl.constexpr = SHAPE.width
    STRIDE: tl.constexpr = 3 * SHAPE.heads * WIDTH
    DESCRIPTORS: tl.constexpr = SHAPE.descriptors
    if cos_ptr is not None:
        HALF: tl.constexpr = WIDTH // 2
        low = _load_rows(source, first, column, stop, ROWS, HALF, HALF, STRIDE, True, DESCRIPTORS)
        high = _load_rows(
            source, first, column + HALF, stop, ROWS, HALF, HALF, STRIDE, True, DESCRIPTORS
        )
        row = first + tl.arange(0, ROWS)
        at = (row - start)[:, None] * HALF + tl.arange(0, HALF)[None, :]
        cos = tl.load(cos_ptr + at, mask=(row < stop)[:, None], other=0.0)
        sin = tl.load(sin_ptr + at, mask=(row < stop)[:, None], other=0.0)
        x = low.to(tl.float32)
        y = high.to(tl.float32)
        if bias_ptr is not None:
            bias_at = bias_ptr + column + tl.arange(0, HALF)
            x += tl.load(bias_at).to(tl.float32)[None, :]
            y += tl.load(bias_at + HALF).to(tl.float32)[None, :]
        turned = tl.join((x * cos - y * sin).to(low.dtype), (y * cos + x * sin).to(low.dtype))
        tile = turned.permute(0, 2, 1).reshape(ROWS, WIDTH)
    else:
        BLOCK: tl.constexpr = SHAPE.block_d
        tile = _load_rows(
            source, first, column, stop, ROWS, WIDTH, BLOCK, STRIDE, True, DESCRIPTORS
        )
        if WIDTH < BLOCK:
            tile = tl.where((tl.arange(0, BLOCK) < WIDTH)[None, :], tile, 0.0)
    return tile


@triton.jit
def _attend_tile(
    q,
    peak,
    total,
    acc,
    qkv,
    bias,
    key,
    queries,
    SHAPE: tl.constexpr,
    KEYS: tl.constexpr,
    LAST: tl.constexpr,
):
    """Add KEYS keys to the running softmax."""
    first, stop, head, unit = queries
    HEADS: tl.constexpr = SHAPE.heads
    WIDTH: tl.constexpr = SHAPE.width
    BLOCK: tl.constexpr = SHAPE.block_d
    STRIDE: tl.constexpr = 3 * HEADS * WIDTH
    DESCRIPTORS: tl.constexpr = SHAPE.descriptors
    column = (HEADS + head) * WIDTH
    k = _load_rows(qkv, key, column, stop, KEYS, WIDTH, BLOCK, STRIDE, LAST, DESCRIPTORS)
    scores = tl.dot(q, k.T)
    if bias is not None:
        # beyond the reach all tiles have the same bias
        REACH: tl.constexpr = SHAPE.bias_reach
        ROWS: tl.constexpr = SHAPE.queries
        COLUMNS: tl.constexpr = 2 * REACH + SHAPE.keys
        offset = tl.minimum(tl.maximum(key - first, -REACH), REACH) + REACH
        offset = tl.multiple_of(offset, 16)
        scores += _load_rows(
            bias, head * ROWS, offset, stop, ROWS, KEYS, KEYS, COLUMNS, False, DESCRIPTORS
        ).to(tl.float32)
    if LAST:  # keys past the end belong to the next sequence
        inside = key + tl.arange(0, KEYS) < stop
        scores = tl.where(inside[None, :], scores, -float("inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    weight = tl.exp2(scores * unit - (new_peak * unit)[:, None])
    shrink = tl.exp2((peak - new_peak) * unit)
    total = total * shrink + tl.sum(weight, 1)
    column = (2 * HEADS + head) * WIDTH
    v = _load_rows(qkv, key, column, stop, KEYS, WIDTH, BLOCK, STRIDE, LAST, DESCRIPTORS)
    acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None])
    return new_peak, total, acc


@triton.jit
def _attention_kernel(
    qkv_q,  # descriptor of qkv in blocks of (queries, block_d or its half), or its pointer
    qkv,  # the same in blocks of (keys, block_d)
    qkv_half,  # (keys / 2, block_d)
    bias,  # of `tile_bias`, in blocks of (queries, keys); None: there is none
    bias_half,  # (queries, keys / 2)
    out_ptr,
    tile_first_ptr,  # (tiles,) first query token of a tile
    tile_start_ptr,  # (tiles,) first token of the tile's sequence
    tile_stop_ptr,  # (tiles,) one past its last token
    cos_ptr,  # (positions, width / 2), and
    sin_ptr,  # the same: rotary angles of the queries; None: they are not rotated here
    query_bias_ptr,  # (heads * width,) added before they are rotated, or None
    scale,
    SHAPE: tl.constexpr,  # an `AttentionShape`
):
    """Attend with one tile of queries of one sequence and head to all keys of the sequence.

    The last keys, if they fit, are half a tile.
    """
    head = tl.program_id(0)
    tile = tl.program_id(1)
    first = tl.load(tile_first_ptr + tile)
    start = tl.load(tile_start_ptr + tile)
    stop = tl.load(tile_stop_ptr + tile)
    unit = scale * 1.4426950408889634  # log2(e), because exp2 is the hardware instruction
    WIDTH: tl.constexpr = SHAPE.width
    ROW: tl.constexpr = SHAPE.heads * WIDTH
    BLOCK_D: tl.constexpr = SHAPE.block_d
    QUERIES: tl.constexpr = SHAPE.queries
    KEYS: tl.constexpr = SHAPE.keys
    HALF: tl.constexpr = KEYS // 2
    column = head * WIDTH
    q = _load_queries(qkv_q, cos_ptr, sin_ptr, query_bias_ptr, first, start, column, stop, SHAPE)
    peak = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, BLOCK_D], tl.float32)
    whole = start + (stop - start) // KEYS * KEYS
    queries = (first, stop, head, unit)
    for key in range(start, whole, KEYS):
        peak, total, acc = _attend_tile(
            q, peak, total, acc, qkv, bias, key, queries, SHAPE, KEYS, False
        )
    if whole + HALF < stop:
        peak, total, acc = _attend_tile(
            q, peak, total, acc, qkv, bias, whole, queries, SHAPE, KEYS, True
        )
    elif whole < stop:
        peak, total, acc = _attend_tile(
            q, peak, total, acc, qkv_half, bias_half, whole, queries, SHAPE, HALF, True
        )
    # 64-bit: tokens x H x D passes 2^31 at 500k tokens of IgT5
    rows = (first + tl.arange(0, QUERIES)).to(tl.int64)
    columns = tl.arange(0, BLOCK_D)
    out = out_ptr + rows[:, None] * ROW + column + columns[None, :]
    result = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out, result, mask=(rows < stop)[:, None] & (columns < WIDTH)[None, :])


@triton.jit
def _add_rms_norm_kernel(
    x_ptr, delta_ptr, weight_ptr, out_ptr, scale, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Add to one row of the residual stream, then norm the sum as rounded when stored."""
    at = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < WIDTH
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    x += scale * tl.load(delta_ptr + at, mask=mask, other=0.0).to(tl.float32)
    stored = x.to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + at, stored, mask=mask)
    x = stored.to(tl.float32)
    shrink = tl.rsqrt(tl.sum(x * x) / WIDTH + eps)
    weight = tl.load(weight_ptr + tl.arange(0, BLOCK), mask=mask, other=0.0)
    tl.store(out_ptr + at, (x * shrink * weight).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _layer_norm_kernel(
    x_ptr, shift_ptr, weight_ptr, bias_ptr, out_ptr, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < WIDTH
    x = tl.load(x_ptr + row * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(shift_ptr + at, mask=mask, other=0.0)
    mean = tl.sum(x) / WIDTH
    centred = tl.where(mask, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred) / WIDTH + eps)
    y = centred * scale
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + at, mask=mask, other=0.0)
        y = y * weight + tl.load(bias_ptr + at, mask=mask, other=0.0)
    tl.store(out_ptr + row * WIDTH + at, y.to(out_ptr.dtype.element_ty), mask=mask)


# not specialised: it would be compiled again for token counts that are multiples of 16
@triton.jit(do_not_specialize=["tokens"])
def _gelu_kernel(
    x_ptr, bias_ptr, tokens, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """``gelu(x + bias)`` of a tile, in place.

    erfc by Abramowitz and Stegun 7.1.26, absolute error 1.5e-7: half the instructions of the
    library's function, and instructions are the bottleneck here, not memory.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    mask = (row < tokens)[:, None] & (column < WIDTH)[None, :]
    at = x_ptr + row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    bias = tl.load(bias_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32) + bias[None, :]
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * z)
    series = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    series = t * (0.254829592 + t * (-0.284496736 + t * series))
    tail = 0.5 * series * tl.exp2(z * z * -1.4426950408889634)  # share beyond |x|
    y = tl.where(x > 0, x - x * tail, x * tail)
    tl.store(at, y.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rotary_kernel(
    qkv_ptr,
    bias_ptr,
    weight_ptr,
    position_ptr,
    cos_ptr,
    sin_ptr,
    token_stride,
    eps,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Rotate the first heads of one token's row, to which their bias is added before.

    With `weight_ptr` instead, one program norms and rotates the queries, another the keys.
    """
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + token)
    dims = tl.arange(0, BLOCK_D)
    heads = tl.arange(0, BLOCK_H)
    cos = tl.load(cos_ptr + position * HALF + dims, mask=dims < HALF, other=0.0)[None, :]
    sin = tl.load(sin_ptr + position * HALF + dims, mask=dims < HALF, other=0.0)[None, :]
    mask = (heads < HEADS)[:, None] & (dims < HALF)[None, :]
    if weight_ptr is not None:
        column = (tl.program_id(1) * HEADS + heads)[:, None] * (2 * HALF) + dims[None, :]
    else:
        column = heads[:, None] * (2 * HALF) + dims[None, :]
    at = qkv_ptr + token * token_stride + column
    low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        low += tl.load(bias_ptr + column, mask=mask, other=0.0)
        high += tl.load(bias_ptr + column + HALF, mask=mask, other=0.0)
    if weight_ptr is not None:
        width = HEADS * 2 * HALF
        mean = tl.sum(low + high) / width
        low = tl.where(mask, low - mean, 0.0)
        high = tl.where(mask, high - mean, 0.0)
        scale = tl.rsqrt(tl.sum(low * low + high * high) / width + eps)
        low *= scale * tl.load(weight_ptr + column, mask=mask, other=0.0)
        high *= scale * tl.load(weight_ptr + column + HALF, mask=mask, other=0.0)
    tl.store(at, (low * cos - high * sin).to(qkv_ptr.dtype.element_ty), mask=mask)
    tl.store(at + HALF, (high * cos + low * sin).to(qkv_ptr.dtype.element_ty), mask=mask)


# not specialised: it would be compiled again for token counts that are multiples of 16
@triton.jit(do_not_specialize=["tokens"])
def _gate_kernel(
    x_ptr,
    out_ptr,
    tokens,
    SILU: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Multiply the second half of each row by the activation of the first."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    mask = (row < tokens)[:, None] & (column < WIDTH)[None, :]
    at = x_ptr + row[:, None] * (2 * WIDTH) + column[None, :]
    gate = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=mask, other=0.0).to(tl.float32)
    # both are x times a logistic function: of x, or of twice the argument of GELU's tanh
    inner = gate if SILU else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    tail = tl.exp2(tl.abs(inner) * -1.4426950408889634)  # never overflows
    y = gate * tl.where(inner > 0, 1.0, tail) / (1.0 + tail) * up
    out = out_ptr + row[:, None] * WIDTH + column[None, :]
    tl.store(out, y.to(out_ptr.dtype.element_ty), mask=mask)


def tile_bias(bias_HR: Tensor, block_m: int, block_n: int) -> Tensor:
    """Expand a bias by distance to tiles with contiguous rows.

    A tile of queries from `i0` and keys from `j0` needs ``bias[h, (j0 + c) - (i0 + r)]``. Read
    from a 1-D table these are scalar loads; from tiles they are vector loads.

    Parameters
    ----------
    bias_HR : Tensor, shape=(H, 2 * R + 1)
        Bias of distance ``key - query`` from -R to R.

    Returns
    -------
    Tensor, shape=(H, block_m, 2 * reach + block_n)
        Column ``reach + (j0 - i0) + c`` of row ``r`` belongs to that pair. All pairs of two tiles
        that are ``reach`` or more apart are over R apart.
    """
    farthest = bias_HR.shape[1] // 2
    longest = max(block_m, block_n)
    reach = triton.cdiv(farthest + longest, longest) * longest
    columns = torch.arange(2 * reach + block_n, device=bias_HR.device)
    rows = torch.arange(block_m, device=bias_HR.device)
    distance = (columns[None, :] - reach - rows[:, None]).clamp(-farthest, farthest)
    return bias_HR[:, distance + farthest].contiguous()


def attention(
    qkv: Tensor,
    tiles: tuple[Tensor, Tensor, Tensor],
    heads: int,
    scale: float,
    bias: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    query_bias: Tensor | None = None,
    *,
    tile: tuple[int, int, int, int],
    descriptors: bool = True,
) -> Tensor:
    """Attend within each packed sequence.

    Parameters
    ----------
    qkv : Tensor, shape=(T, 3 * H * D)
        Queries of all heads, then keys, then values.
    tiles : tuple of 3 Tensors, each shape=(tiles,), dtype=int32
        From `abag.embed.kernels.attention.query_tiles` with the queries of a `tile`.
    scale : float
        Factor of the scores, applied after the bias is added.
    heads : int
        H, the number of heads.
    bias : Tensor, shape=(H, queries, 2 * reach + keys), optional
        From `tile_bias` with the queries and keys of a `tile`.
    rotary : tuple of 2 Tensors, each shape=(positions, D / 2), dtype=float32, optional
        Cosines and sines to rotate the queries with, not the keys, by the position in a sequence.
        Only if D is a power of 2.
    query_bias : Tensor, shape=(H * D,), optional
        Added to the queries before they are rotated.
    tile : tuple of 4 int
        Queries and keys of a tile, warps of a program, and stages of its software pipeline.
    descriptors : bool
        Load tiles by tensor descriptors, which need compute capability 9.0 to be fast.

    Returns
    -------
    Tensor, shape=(T, H * D)

    References
    ----------
    Dao, arXiv:2307.08691: tiles of queries and a running softmax over tiles of keys.
    """
    block_m, block_n, warps, stages = tile
    tokens = qkv.shape[0]
    width = qkv.shape[1] // (3 * heads)
    out = torch.empty(tokens, heads * width, dtype=qkv.dtype, device=qkv.device)
    half = block_n // 2
    block_d = max(16, triton.next_power_of_2(width))  # 16: for tl.dot
    query_block = block_d if rotary is None else width // 2
    bias_reach = 0
    sources = [(qkv, block_m, query_block), (qkv, block_n, block_d), (qkv, half, block_d)]
    if bias is not None:
        bias_reach = (bias.shape[2] - block_n) // 2
        rows = bias.flatten(0, 1)
        sources += [(rows, block_m, block_n), (rows, block_m, half)]
    loaded: list[Any] = [None] * 5
    for at, (x, m, n) in enumerate(sources):
        loaded[at] = TensorDescriptor.from_tensor(x, [m, n]) if descriptors else x
    shape = AttentionShape(heads, width, block_d, block_m, block_n, bias_reach, descriptors)
    _attention_kernel[(heads, len(tiles[0]))](
        *loaded,
        out,
        *tiles,
        *(rotary or (None, None)),
        query_bias,
        scale,
        SHAPE=shape,
        num_warps=warps,
        num_stages=stages,
    )
    return out


def gelu_(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    """Apply the exact GELU to ``x + bias``, `bias_F`, in place; returns `x_TF`, shape=(T, F)."""
    tokens, width = x_TF.shape
    rows = 8
    columns = 512
    _gelu_kernel[(triton.cdiv(width, columns), triton.cdiv(tokens, rows))](
        x_TF, bias_F, tokens, WIDTH=width, ROWS=rows, COLUMNS=columns, num_warps=4
    )
    return x_TF


def gate(x_T2F: Tensor, *, silu: bool) -> Tensor:
    """Return ``activation(x[:, :F]) * x[:, F:]``, shape (T, F); SiLU, or the tanh form of GELU."""
    tokens = len(x_T2F)
    width = x_T2F.shape[1] // 2
    out = x_T2F.new_empty(tokens, width)
    rows = 8
    columns = 512
    _gate_kernel[(triton.cdiv(width, columns), triton.cdiv(tokens, rows))](
        x_T2F, out, tokens, SILU=silu, WIDTH=width, ROWS=rows, COLUMNS=columns, num_warps=4
    )
    return out


def rotary_launch(heads: int, cos: Tensor, *, per_warp: int) -> dict[str, int]:
    """Return constants and launch options of a program that rotates one token's heads.

    `cos` has shape (positions, half of a head's width); a warp has at most `per_warp` pairs of
    dimensions.
    """
    half = cos.shape[1]
    block_h = triton.next_power_of_2(heads)
    block_d = triton.next_power_of_2(half)
    warps = max(1, block_h * block_d // per_warp)
    return {
        "HEADS": heads,
        "HALF": half,
        "BLOCK_H": block_h,
        "BLOCK_D": block_d,
        "num_warps": warps,
    }


class FusedOps(PlainOps):
    """Triton kernels and cuBLAS epilogues: bf16 or fp16, compute capability 8.0 or newer."""

    def __init__(self, device: torch.device) -> None:
        self._wide = wide_products(device)

    def _product(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        epilogue: Epilogue = "none",
        add_to: Tensor | None = None,
    ) -> Tensor | None:
        if self._wide is None or x.dtype is torch.float32:
            return None
        return self._wide(x, weight, bias, epilogue=epilogue, add_to=add_to)

    def add_rms_norm_(
        self, x_TD: Tensor, delta_TD: Tensor, scale: float, weight_D: Tensor, eps: float
    ) -> Tensor:
        """See `PlainOps`: shape (T, D); computed in fp32."""
        out = torch.empty_like(delta_TD)
        _add_rms_norm_kernel[(len(x_TD),)](
            x_TD, delta_TD, weight_D, out, scale, eps, **_row_launch(x_TD.shape[1])
        )
        return out

    def layer_norm(self, x_TD: Tensor, shift_D: Tensor, norm: Norm, eps: float) -> Tensor:
        """See `PlainOps`: shape (T, D); computed in fp32."""
        out = torch.empty_like(x_TD)
        _layer_norm_kernel[(len(x_TD),)](
            x_TD, shift_D, *norm, out, eps, **_row_launch(x_TD.shape[1])
        )
        return out

    def linear(self, x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None) -> Tensor:
        """See `PlainOps`: shape (T, F)."""
        out = self._product(x_TD, weight_FD, bias_F)
        return super().linear(x_TD, weight_FD, bias_F) if out is None else out

    def add_linear_(self, x_TD: Tensor, y_TF: Tensor, weight_DF: Tensor) -> None:
        """See `PlainOps`."""
        if self._product(y_TF, weight_DF, add_to=x_TD) is None:
            super().add_linear_(x_TD, y_TF, weight_DF)

    def linear_relu(self, x_TD: Tensor, weight_FD: Tensor) -> Tensor:
        """See `PlainOps`: shape (T, F); the ReLU is in the matrix product's epilogue."""
        out = self._product(x_TD, weight_FD, epilogue="relu")
        if out is None:
            none_F = weight_FD.new_zeros(len(weight_FD))
            out = torch._addmm_activation(none_F, x_TD, weight_FD.T)
        return out

    def linear_gelu(self, x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        """See `PlainOps`; in bf16 the tanh form, in the matrix product's epilogue.

        The tanh form is up to 4.7e-4 off: less than bf16 rounds the activations of trained weights,
        five times as much as fp16 does. There a kernel computes the exact form and adds the bias.
        """
        if x_TD.dtype is not torch.bfloat16:
            return gelu_(self.linear(x_TD, weight_FD), bias_F)
        out = self._product(x_TD, weight_FD, bias_F, epilogue="gelu")
        if out is None:
            out = torch._addmm_activation(bias_F, x_TD, weight_FD.T, use_gelu=True)
        return out

    def linear_gated(
        self, x_TD: Tensor, weight: Tensor, activation: Activation, bias: Tensor | None = None
    ) -> Tensor:
        """See `PlainOps`."""
        return gate(self.linear(x_TD, weight, bias), silu=activation == "silu")

    def norm_rotary_(
        self, qkv: Tensor, weight: Tensor, eps: float, rotary: Rotary, heads: int
    ) -> Tensor:
        """See `PlainOps`."""
        launch = rotary_launch(heads, rotary.cos, per_warp=1024)
        _rotary_kernel[(len(qkv), 2)](qkv, None, weight, *rotary, qkv.stride(0), eps, **launch)
        return qkv

    def rotary_(self, x: Tensor, rotary: Rotary, heads: int, bias: Tensor | None = None) -> Tensor:
        """See `PlainOps`; the bias is added in fp32."""
        launch = rotary_launch(heads, rotary.cos, per_warp=512)
        _rotary_kernel[(len(x),)](x, bias, None, *rotary, x.stride(0), 0.0, **launch)
        return x


def _row_launch(width: int) -> dict[str, int]:
    """Return launch options of a norm; fastest if a thread holds at most 64 values (measured)."""
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "BLOCK": block, "num_warps": max(1, block // 2048)}
