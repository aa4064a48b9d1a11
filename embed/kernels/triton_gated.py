"""Triton kernels of the encoders with a gated feed-forward, imported only where Triton runs.

Tests compare each with its torch version in `ops`. T packed tokens, H heads, F feed-forward width.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


# not specialised: it would be compiled again for token counts that are multiples of 16
@triton.jit(do_not_specialize=["tokens"])
def _gate_kernel(
    x_ptr, out_ptr, tokens, SILU: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
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


@triton.jit
def _norm_rotary_kernel(
    qkv_ptr, weight_ptr, position_ptr, cos_ptr, sin_ptr, token_stride, eps,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Norm and rotate one token's queries, or its keys."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + token)
    dims = tl.arange(0, BLOCK_D)
    heads = tl.arange(0, BLOCK_H)
    mask = (heads < HEADS)[:, None] & (dims < HALF)[None, :]
    column = (tl.program_id(1) * HEADS + heads)[:, None] * (2 * HALF) + dims[None, :]
    at = qkv_ptr + token * token_stride + column
    low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    width = HEADS * 2 * HALF
    mean = tl.sum(low + high) / width
    low = tl.where(mask, low - mean, 0.0)
    high = tl.where(mask, high - mean, 0.0)
    scale = tl.rsqrt(tl.sum(low * low + high * high) / width + eps)
    low *= scale * tl.load(weight_ptr + column, mask=mask, other=0.0)
    high *= scale * tl.load(weight_ptr + column + HALF, mask=mask, other=0.0)
    cos = tl.load(cos_ptr + position * HALF + dims, mask=dims < HALF, other=0.0)[None, :]
    sin = tl.load(sin_ptr + position * HALF + dims, mask=dims < HALF, other=0.0)[None, :]
    tl.store(at, (low * cos - high * sin).to(qkv_ptr.dtype.element_ty), mask=mask)
    tl.store(at + HALF, (high * cos + low * sin).to(qkv_ptr.dtype.element_ty), mask=mask)


def gate(x_T2F: Tensor, *, silu: bool) -> Tensor:
    """Return ``activation(x[:, :F]) * x[:, F:]``, shape (T, F); SiLU, or the tanh form of GELU."""
    tokens, width = len(x_T2F), x_T2F.shape[1] // 2
    out = x_T2F.new_empty(tokens, width)
    rows, columns = 8, 512
    _gate_kernel[(triton.cdiv(width, columns), triton.cdiv(tokens, rows))](
        x_T2F, out, tokens, SILU=silu, WIDTH=width, ROWS=rows, COLUMNS=columns, num_warps=4
    )
    return out


def norm_rotary_(
    qkv: Tensor, weight: Tensor, eps: float, positions_T: Tensor, cos: Tensor, sin: Tensor,
    heads: int,
) -> Tensor:  # fmt: skip
    """Norm and rotate queries and keys in place: see `PlainOps.norm_rotary_`."""
    launch = rotary_launch(heads, cos, per_warp=1024)
    _norm_rotary_kernel[(len(qkv), 2)](
        qkv, weight, positions_T, cos, sin, qkv.stride(0), eps, **launch
    )
    return qkv


def rotary_launch(heads: int, cos: Tensor, *, per_warp: int) -> dict[str, int]:
    """Return constants and launch options of a program that rotates one token's heads.

    A warp has at most `per_warp` pairs of dimensions.
    """
    half, block_h = cos.shape[1], triton.next_power_of_2(heads)
    block_d = triton.next_power_of_2(half)
    blocks = {"BLOCK_H": block_h, "BLOCK_D": block_d}
    warps = max(1, block_h * block_d // per_warp)
    return {"HEADS": heads, "HALF": half, **blocks, "num_warps": warps}
