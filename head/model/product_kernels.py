"""The first product of stacked heads that each have their own rows, which it gathers as it reads.

M heads of B pairs read M x B pairs of vectors. Written out, joined, they are the most that a step
moves after weights and moments; but a program that holds a whole row of outputs reads each vector
once, from the table itself. So both products, forward and of the weight's gradient, take tables
and rows. The plain twin is ``torch.bmm`` over gathered vectors (`abag.head.model.layers`).

D and E are the widths of antibody and antigen vectors, I = D + E; O outputs. Sums run in fp32 and
in a fixed order: the same bits every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from abag.head.model.triton_kernels import halves

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDEST_TILE = 320
"""Outputs that a program holds in registers, for 128 pairs."""
FEW = 66
"""Programs that leave half of a GPU idle (an H100 has 132 multiprocessors)."""


@triton.jit
def _add_side(
    low, high, table_ptr, index_ptr, w_ptr, member, pair, column_low, column_high,
    B: tl.constexpr, FROM: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
    OUTER: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Add one side's part of the product, into both halves of the outputs."""
    row = tl.load(index_ptr + member * B + pair, mask=pair < B, other=0).to(tl.int64)
    weight = w_ptr + member.to(tl.int64) * OUTER * INNER + FROM
    # What lies beyond the last pair or column is computed and never stored: no mask is needed.
    w_low_ptr = weight + tl.minimum(column_low, OUTER - 1)[None, :] * INNER
    w_high_ptr = weight + tl.minimum(column_high, OUTER - 1)[None, :] * INNER
    for at in range(0, WIDTH, STEP):
        inner = at + tl.arange(0, STEP)
        inside = (inner < WIDTH) | (WIDTH % STEP == 0)  # true to the compiler where it divides
        x = tl.load(
            table_ptr + row[:, None] * WIDTH + inner[None, :], mask=inside[None, :], other=0.0
        )
        w_low = tl.load(w_low_ptr + inner[:, None], mask=inside[:, None], other=0.0)
        w_high = tl.load(w_high_ptr + inner[:, None], mask=inside[:, None], other=0.0)
        low = tl.dot(x, w_low, low)
        high = tl.dot(x, w_high, high)
    return low, high


@triton.jit
def _product_kernel(
    w_ptr,  # (M, O, I)
    antibody_ptr,  # (N, D)
    antibody_row_ptr,  # (M, B)
    antigen_ptr,  # (A, E)
    antigen_row_ptr,  # (M, B)
    y_ptr,  # (M, B, O)
    B: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    OUTER: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    PAIRS: tl.constexpr,
    STEP: tl.constexpr,
):
    member = tl.program_id(1)
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    column_low, column_high = tl.arange(0, LOW), LOW + tl.arange(0, HIGH)
    low = tl.zeros([PAIRS, LOW], tl.float32)
    high = tl.zeros([PAIRS, HIGH], tl.float32)
    low, high = _add_side(
        low, high, antibody_ptr, antibody_row_ptr, w_ptr, member, pair, column_low, column_high,
        B, 0, D, D + E, OUTER, STEP,
    )  # fmt: skip
    low, high = _add_side(
        low, high, antigen_ptr, antigen_row_ptr, w_ptr, member, pair, column_low, column_high,
        B, D, E, D + E, OUTER, STEP,
    )  # fmt: skip
    out = y_ptr + (member.to(tl.int64) * B + pair)[:, None] * OUTER
    inside = (pair < B)[:, None]
    dtype = y_ptr.dtype.element_ty
    tl.store(out + column_low[None, :], low.to(dtype), mask=inside & (column_low < OUTER)[None, :])
    tl.store(
        out + column_high[None, :], high.to(dtype), mask=inside & (column_high < OUTER)[None, :]
    )


@triton.jit
def _side_gradient(
    table_ptr, index_ptr, dy_ptr, dw_ptr, member, first, part,
    B: tl.constexpr, FROM: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
    OUTER: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Multiply a tile of one side's vectors with a part of the outputs' gradients."""
    inner = first + tl.arange(0, TILE)
    column_low = part * (LOW + HIGH) + tl.arange(0, LOW)
    column_high = part * (LOW + HIGH) + LOW + tl.arange(0, HIGH)
    low = tl.zeros([TILE, LOW], tl.float32)
    high = tl.zeros([TILE, HIGH], tl.float32)
    # True to the compiler where tiles divide: a mask costs registers, and so half the programs.
    inside = (inner < WIDTH) | (WIDTH % TILE == 0)
    inside_low = (column_low < OUTER) | (OUTER % (LOW + HIGH) == 0)
    inside_high = (column_high < OUTER) | (OUTER % (LOW + HIGH) == 0)
    for at in range(0, B, STEP):
        pair = at + tl.arange(0, STEP)
        there = (pair < B) | (B % STEP == 0)
        row = tl.load(index_ptr + member * B + pair, mask=there, other=0).to(tl.int64)
        # Beyond the last pair these are vectors of row 0, times gradients of 0.
        x = tl.load(
            table_ptr + row[:, None] * WIDTH + inner[None, :], mask=inside[None, :], other=0.0
        )
        dy = dy_ptr + (member.to(tl.int64) * B + pair)[:, None] * OUTER
        dy_low = tl.load(
            dy + column_low[None, :], mask=there[:, None] & inside_low[None, :], other=0.0
        )
        dy_high = tl.load(
            dy + column_high[None, :], mask=there[:, None] & inside_high[None, :], other=0.0
        )
        low = tl.dot(tl.trans(x), dy_low, low)
        high = tl.dot(tl.trans(x), dy_high, high)
    out = dw_ptr + member.to(tl.int64) * OUTER * INNER + FROM + inner[None, :]
    dtype = dw_ptr.dtype.element_ty
    tl.store(
        out + column_low[:, None] * INNER, tl.trans(low).to(dtype),
        mask=inside[None, :] & inside_low[:, None],
    )  # fmt: skip
    tl.store(
        out + column_high[:, None] * INNER, tl.trans(high).to(dtype),
        mask=inside[None, :] & inside_high[:, None],
    )  # fmt: skip


@triton.jit
def _gradient_kernel(
    dy_ptr,  # (M, B, O)
    antibody_ptr,
    antibody_row_ptr,
    antigen_ptr,
    antigen_row_ptr,
    dw_ptr,  # (M, O, I)
    B: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    OUTER: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    tile, part, member = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    antibody_tiles: tl.constexpr = (D + TILE - 1) // TILE
    if tile < antibody_tiles:
        _side_gradient(
            antibody_ptr, antibody_row_ptr, dy_ptr, dw_ptr, member, tile * TILE, part,
            B, 0, D, D + E, OUTER, LOW, HIGH, TILE, STEP,
        )  # fmt: skip
    else:
        _side_gradient(
            antigen_ptr, antigen_row_ptr, dy_ptr, dw_ptr, member, (tile - antibody_tiles) * TILE,
            part, B, D, E, D + E, OUTER, LOW, HIGH, TILE, STEP,
        )  # fmt: skip


def _buffers(like: Tensor, height: int) -> tuple[int, int]:
    """Choose a step along the sum, so that at least three buffers of ``height`` rows fit."""
    if not like.is_cuda:  # interpreted
        return 64, 1
    room = torch.cuda.get_device_properties(like.device).shared_memory_per_block_optin  # type: ignore[attr-defined]
    size = height * like.element_size()
    step = 64 if room >= 3 * 64 * size else 32
    return step, room // (step * size)


@torch.library.custom_op("abag::gathered_product", mutates_args=())
def gathered_product(
    weight: Tensor, antibody: Tensor, antibody_row: Tensor, antigen: Tensor, antigen_row: Tensor
) -> Tensor:
    """Multiply each head's own pairs with its weight: ``[antibody, antigen] @ weight^T``.

    Parameters
    ----------
    weight : Tensor, shape=(M, O, D + E)
        O is `WIDEST_TILE` at most.
    antibody : Tensor, shape=(N, D)
    antibody_row : Tensor, shape=(M, B), dtype=int64
    antigen : Tensor, shape=(A, E)
    antigen_row : Tensor, shape=(M, B), dtype=int64
        All contiguous; tables and weight of one dtype, bf16 on a GPU.

    Returns
    -------
    Tensor, shape=(M, B, O), of the weight's dtype
    """
    members, outer, _ = weight.shape
    pairs = antibody_row.shape[1]
    y = weight.new_empty(members, pairs, outer)
    # Fewer pairs a program where there would be too few programs: more weights are read instead.
    tile = 128 if members * triton.cdiv(pairs, 128) > FEW else 64
    tile_of = halves(outer)
    step, buffers = _buffers(weight, tile + sum(tile_of.values()))
    _product_kernel[(triton.cdiv(pairs, tile), members)](
        weight, antibody, antibody_row, antigen, antigen_row, y, B=pairs,
        D=antibody.shape[1], E=antigen.shape[1], OUTER=outer, **tile_of,
        PAIRS=tile, STEP=step, num_stages=min(4, buffers), num_warps=tile // 16,
    )  # fmt: skip
    return y


@gathered_product.register_fake
def _(
    weight: Tensor, antibody: Tensor, antibody_row: Tensor, antigen: Tensor, antigen_row: Tensor
) -> Tensor:
    return weight.new_empty(*antibody_row.shape, weight.shape[1])


@torch.library.custom_op("abag::gathered_product_backward", mutates_args=())
def gathered_product_backward(
    dy: Tensor, antibody: Tensor, antibody_row: Tensor, antigen: Tensor, antigen_row: Tensor
) -> Tensor:
    """Give the gradient of `gathered_product`'s weight.

    Parameters
    ----------
    dy : Tensor, shape=(M, B, O)
    antibody, antibody_row, antigen, antigen_row : Tensor
        What went into `gathered_product`.

    Returns
    -------
    Tensor, shape=(M, O, D + E), of dy's dtype
    """
    members, pairs, outer = dy.shape
    sides, tile = (antibody.shape[1], antigen.shape[1]), 128
    parts = 1 if outer <= WIDEST_TILE // 2 else 2
    tile_of = halves(-(-outer // parts))
    step, _ = _buffers(dy, tile + sum(tile_of.values()))
    dw = dy.new_empty(members, outer, sum(sides))
    _gradient_kernel[(sum(triton.cdiv(width, tile) for width in sides), parts, members)](
        dy.contiguous(), antibody, antibody_row, antigen, antigen_row, dw, B=pairs,
        D=sides[0], E=sides[1], OUTER=outer, **tile_of, TILE=tile, STEP=step, num_warps=8,
        num_stages=5,  # three buffers of vectors: their rows are read two steps ahead of them
    )  # fmt: skip
    return dw


@gathered_product_backward.register_fake
def _(
    dy: Tensor, antibody: Tensor, antibody_row: Tensor, antigen: Tensor, antigen_row: Tensor
) -> Tensor:
    return dy.new_empty(len(dy), dy.shape[2], antibody.shape[1] + antigen.shape[1])


def _keep(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:  # noqa: ANN401
    ctx.save_for_backward(*inputs[1:])


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    return gathered_product_backward(dy, *ctx.saved_tensors), None, None, None, None


gathered_product.register_autograd(_backward, setup_context=_keep)
