"""What follows the product in a block of stacked heads: bias, LayerNorm, GELU and dropout, fused.

One Triton kernel forward and one backward for M heads, where torch.compile makes five that read
everything two or three times. Tests compare them with the plain layers of `layers`.

M members in G training sets of K = M / G each, B pairs, O outputs of the product. Sums are float32
and in a fixed order, so the results are reproducible bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

EPS = 1e-5
"""As in `torch.nn.LayerNorm`."""
ONE_WARP = 1024
"""Elements of a tile that one warp can hold."""
CHUNK = 16
"""Pairs per program over which the gradients of bias, gain and shift are summed."""


@triton.jit
def _block(
    y_ptr, bias_ptr, noise_ptr, rate_ptr, member, pair, column, pairs, shared,
    WIDTH: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Load a tile of the product plus bias, and the factors of dropout."""
    mask = (pair < pairs)[:, None] & (column < WIDTH)[None, :]
    # 64-bit: M x B x O passes 2^31 at 256 heads of the large preset
    row = ((member // shared).to(tl.int64) * pairs + pair) * shared + member % shared
    at = row[:, None] * WIDTH + column[None, :]
    bias = tl.load(bias_ptr + member * WIDTH + column, mask=column < WIDTH, other=0.0)
    x = tl.load(y_ptr + at, mask=mask, other=0.0).to(tl.float32) + bias[None, :]
    factor = mask.to(tl.float32)
    if DROPOUT:
        rate = tl.load(rate_ptr + member)
        noise = tl.load(noise_ptr + pair[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        factor = tl.where(noise >= rate, factor / (1 - rate), 0.0)
    return x, factor, mask, at


@triton.jit
def _normal(x):
    """Return the cumulative normal distribution at x, and ``exp(-x^2 / 2)``.

    erfc by Abramowitz and Stegun 7.1.26, absolute error 1.5e-7, as in the encoders' GELU: half the
    instructions of the library function, and instructions limit these kernels.
    """
    bell = tl.exp2(x * x * -0.7213475204444817)  # log2(e) / 2
    t = 1.0 / (1.0 + 0.2316419 * tl.abs(x))  # 0.3275911 / sqrt(2)
    series = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    series = t * (0.254829592 + t * (-0.284496736 + t * series))
    tail = 0.5 * series * bell
    return tl.where(x < 0, tail, 1 - tail), bell


@triton.jit
def _centre(x, mask, mean):
    """Subtract the mean; units beyond the last are 0."""
    return tl.where(mask, x - mean[:, None], 0.0)


@triton.jit
def _store_activated(
    centred, rstd, factor, mask, gain_ptr, shift_ptr, out_ptr, member, row, column,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Finish a tile of centered units and store it."""
    gain = tl.load(gain_ptr + member * WIDTH + column, mask=column < WIDTH, other=0.0)
    shift = tl.load(shift_ptr + member * WIDTH + column, mask=column < WIDTH, other=0.0)
    z = centred * rstd[:, None] * gain[None, :] + shift[None, :]
    below, _ = _normal(z)
    h = z * below * factor
    out = out_ptr + row[:, None] * WIDTH + column[None, :]
    tl.store(out, h.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _forward_kernel(
    y_ptr, bias_ptr, gain_ptr, shift_ptr, noise_ptr, rate_ptr, out_ptr, mean_ptr, rstd_ptr,
    pairs, shared, eps, WIDTH: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    PAIRS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0)
    pair = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    low, high = tl.arange(0, LOW), LOW + tl.arange(0, HIGH)
    x_low, factor_low, mask_low, _ = _block(
        y_ptr, bias_ptr, noise_ptr, rate_ptr, member, pair, low, pairs, shared, WIDTH, DROPOUT
    )
    x_high, factor_high, mask_high, _ = _block(
        y_ptr, bias_ptr, noise_ptr, rate_ptr, member, pair, high, pairs, shared, WIDTH, DROPOUT
    )
    mean = (tl.sum(x_low, 1) + tl.sum(x_high, 1)) / WIDTH
    x_low, x_high = _centre(x_low, mask_low, mean), _centre(x_high, mask_high, mean)
    rstd = tl.rsqrt((tl.sum(x_low * x_low, 1) + tl.sum(x_high * x_high, 1)) / WIDTH + eps)
    row = member.to(tl.int64) * pairs + pair
    _store_activated(
        x_low, rstd, factor_low, mask_low, gain_ptr, shift_ptr, out_ptr, member, row, low, WIDTH
    )
    _store_activated(
        x_high, rstd, factor_high, mask_high, gain_ptr, shift_ptr, out_ptr, member, row, high, WIDTH
    )
    tl.store(mean_ptr + row, mean, mask=pair < pairs)
    tl.store(rstd_ptr + row, rstd, mask=pair < pairs)


@triton.jit
def _slopes(x, factor, mask, mean, rstd, gain, shift, grad_ptr, row, column, WIDTH: tl.constexpr):
    """Return the normed units, and the gradients after and before the gain."""
    normed = tl.where(mask, (x - mean) * rstd, 0.0)
    z = normed * gain + shift
    grad = tl.load(grad_ptr + row[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
    below, bell = _normal(z)
    slope = below + z * bell * 0.3989422804014327  # 1 / sqrt(2 pi)
    dz = grad.to(tl.float32) * factor * slope
    return normed, dz, dz * gain


@triton.jit
def _store_sums(d_bias, d_gain, d_shift, sums_ptr, part, size, column, WIDTH: tl.constexpr):
    """Store the gradients of bias, gain and shift, summed over a chunk of pairs."""
    inside = column < WIDTH
    tl.store(sums_ptr + part + column, d_bias, mask=inside)
    tl.store(sums_ptr + size + part + column, d_gain, mask=inside)
    tl.store(sums_ptr + 2 * size + part + column, d_shift, mask=inside)


@triton.jit
def _backward_kernel(
    grad_ptr, y_ptr, bias_ptr, gain_ptr, shift_ptr, noise_ptr, rate_ptr, mean_ptr, rstd_ptr,
    dy_ptr, sums_ptr, pairs, shared, members, WIDTH: tl.constexpr, LOW: tl.constexpr,
    HIGH: tl.constexpr, PAIRS: tl.constexpr, CHUNK: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    member, chunk = tl.program_id(0), tl.program_id(1)
    low, high = tl.arange(0, LOW), LOW + tl.arange(0, HIGH)
    of_low, of_high = member * WIDTH + low, member * WIDTH + high
    gain_low = tl.load(gain_ptr + of_low, mask=low < WIDTH, other=0.0)[None, :]
    gain_high = tl.load(gain_ptr + of_high, mask=high < WIDTH, other=0.0)[None, :]
    shift_low = tl.load(shift_ptr + of_low, mask=low < WIDTH, other=0.0)[None, :]
    shift_high = tl.load(shift_ptr + of_high, mask=high < WIDTH, other=0.0)[None, :]
    d_bias_low, d_bias_high = tl.zeros([LOW], tl.float32), tl.zeros([HIGH], tl.float32)
    d_gain_low, d_gain_high = tl.zeros([LOW], tl.float32), tl.zeros([HIGH], tl.float32)
    d_shift_low, d_shift_high = tl.zeros([LOW], tl.float32), tl.zeros([HIGH], tl.float32)
    for first in range(0, CHUNK, PAIRS):
        pair = chunk * CHUNK + first + tl.arange(0, PAIRS)
        x_low, factor_low, mask_low, at_low = _block(
            y_ptr, bias_ptr, noise_ptr, rate_ptr, member, pair, low, pairs, shared, WIDTH, DROPOUT
        )
        x_high, factor_high, mask_high, at_high = _block(
            y_ptr, bias_ptr, noise_ptr, rate_ptr, member, pair, high, pairs, shared, WIDTH, DROPOUT
        )
        row = member.to(tl.int64) * pairs + pair
        mean = tl.load(mean_ptr + row, mask=pair < pairs, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + row, mask=pair < pairs, other=0.0)[:, None]
        normed_low, dz_low, dn_low = _slopes(
            x_low, factor_low, mask_low, mean, rstd, gain_low, shift_low, grad_ptr, row, low, WIDTH
        )
        normed_high, dz_high, dn_high = _slopes(
            x_high, factor_high, mask_high, mean, rstd, gain_high, shift_high, grad_ptr, row, high,
            WIDTH,
        )  # fmt: skip
        outer = ((tl.sum(dn_low, 1) + tl.sum(dn_high, 1)) / WIDTH)[:, None]
        inner = tl.sum(dn_low * normed_low, 1) + tl.sum(dn_high * normed_high, 1)
        inner = (inner / WIDTH)[:, None]
        dx_low = tl.where(mask_low, (dn_low - outer - normed_low * inner) * rstd, 0.0)
        dx_high = tl.where(mask_high, (dn_high - outer - normed_high * inner) * rstd, 0.0)
        tl.store(dy_ptr + at_low, dx_low.to(dy_ptr.dtype.element_ty), mask=mask_low)
        tl.store(dy_ptr + at_high, dx_high.to(dy_ptr.dtype.element_ty), mask=mask_high)
        d_bias_low += tl.sum(dx_low, 0)
        d_bias_high += tl.sum(dx_high, 0)
        d_gain_low += tl.sum(dz_low * normed_low, 0)
        d_gain_high += tl.sum(dz_high * normed_high, 0)
        d_shift_low += tl.sum(dz_low, 0)
        d_shift_high += tl.sum(dz_high, 0)
    chunks = tl.num_programs(1)
    part, size = (member * chunks + chunk) * WIDTH, members * chunks * WIDTH
    _store_sums(d_bias_low, d_gain_low, d_shift_low, sums_ptr, part, size, low, WIDTH)
    _store_sums(d_bias_high, d_gain_high, d_shift_high, sums_ptr, part, size, high, WIDTH)


def _tile(width: int) -> dict[str, int]:
    """Choose the columns, pairs and warps of a tile.

    Triton's tiles are powers of two. Two of them cover a width, the larger one first: 320 by 256
    and 64, because a third of a tile of 512 would be idle. One warp sums a row without
    synchronization; on an H200, four were up to five times slower. Rows that exceed the registers
    of one warp are shared.
    """
    columns = triton.next_power_of_2(width)
    low = max(16, columns // 2)
    fits = columns <= ONE_WARP
    return {
        "WIDTH": width, "LOW": low,
        "HIGH": max(16, triton.next_power_of_2(max(1, width - low))),
        "PAIRS": min(16, ONE_WARP // columns) if fits else 2,
        "num_warps": 1 if fits else columns // 512,
    }  # fmt: skip


@torch.library.custom_op("abag::norm_gelu", mutates_args=())
def norm_gelu(
    y: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, noise: Tensor | None, rate: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``dropout(gelu(layer_norm(y + bias)))`` of M heads.

    Parameters
    ----------
    y : Tensor, shape=(G, B, K, O)
        Products, bfloat16 or float32; contiguous.
    bias, gain, shift : Tensor, shape=(M, O), dtype=float32
        Of the linear layer, and the two of the LayerNorm.
    noise : Tensor, shape=(B, O), dtype=float32, optional
        Uniform numbers, shared by all heads; a unit is kept if its number is at least its head's
        rate. None: no dropout.
    rate : Tensor, shape=(M,), dtype=float32

    Returns
    -------
    Tensor, shape=(M, B, O), of y's dtype
    Tensor, shape=(M, B), dtype=float32
        Means of the LayerNorm.
    Tensor, shape=(M, B), dtype=float32
        Reciprocals of its standard deviations.
    """
    sets, pairs, shared, width = y.shape
    out = y.new_empty(sets * shared, pairs, width)
    mean, rstd = (bias.new_empty(len(bias), pairs) for _ in range(2))
    tile = _tile(width)
    _forward_kernel[(len(bias), triton.cdiv(pairs, tile["PAIRS"]))](
        y, bias, gain, shift, y if noise is None else noise, rate, out, mean, rstd,
        pairs, shared, EPS, DROPOUT=noise is not None, **tile,
    )  # fmt: skip
    return out, mean, rstd


@norm_gelu.register_fake
def _(
    y: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, noise: Tensor | None, rate: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    sets, pairs, shared, width = y.shape
    out = y.new_empty(sets * shared, pairs, width)
    return out, bias.new_empty(len(bias), pairs), bias.new_empty(len(bias), pairs)


@torch.library.custom_op("abag::norm_gelu_backward", mutates_args=())
def norm_gelu_backward(
    grad: Tensor,
    y: Tensor,
    bias: Tensor,
    gain: Tensor,
    shift: Tensor,
    noise: Tensor | None,
    rate: Tensor,
    mean: Tensor,
    rstd: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of `norm_gelu`: of the product, and of bias, gain and shift per chunk.

    The incoming gradient has shape (M, B, O), the other tensors are inputs and outputs of
    `norm_gelu`; the results have shapes (G, B, K, O), of y's dtype, and (3, M, chunks, O), float32.
    """
    _, pairs, shared, width = y.shape
    dy, sums = torch.empty_like(y), bias.new_empty(3, len(bias), triton.cdiv(pairs, CHUNK), width)
    _backward_kernel[(len(bias), sums.shape[2])](
        grad.contiguous(), y, bias, gain, shift, y if noise is None else noise, rate, mean, rstd,
        dy, sums, pairs, shared, len(bias), CHUNK=CHUNK, DROPOUT=noise is not None, **_tile(width),
    )  # fmt: skip
    return dy, sums


@norm_gelu_backward.register_fake
def _(
    grad: Tensor,
    y: Tensor,
    bias: Tensor,
    gain: Tensor,
    shift: Tensor,
    noise: Tensor | None,
    rate: Tensor,
    mean: Tensor,
    rstd: Tensor,
) -> tuple[Tensor, Tensor]:
    chunks = -(-y.shape[1] // CHUNK)
    return torch.empty_like(y), bias.new_empty(3, len(bias), chunks, y.shape[3])


def _keep(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:  # noqa: ANN401
    ctx.save_for_backward(*inputs, *output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    dy, sums = norm_gelu_backward(grad, *ctx.saved_tensors)
    d_bias, d_gain, d_shift = sums.sum(2).unbind(0)
    return dy, d_bias, d_gain, d_shift, None, None


norm_gelu.register_autograd(_backward, setup_context=_keep)
