"""Candidates for faster steps of the packed encoders, measured by bench_steps.py.

T packed tokens, D model width, H heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from abag.core.device import to_device
from abag.embed.families.packed_esm import PackedEsm
from abag.embed.kernels.attention import Attention
from abag.embed.kernels.ops import HalfOps, PlainOps
from abag.embed.kernels.triton_kernels import FusedOps, tile_bias


@triton.jit
def _rows_norm_kernel(
    x_ptr, delta_ptr, shift_ptr, weight_ptr, bias_ptr, out_ptr, tokens, eps,
    WIDTH: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, ROWS: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """Layer norm of several rows, each in two tiles; ADD: of x + delta, which is stored in x."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    low, high = tl.arange(0, LOW), LOW + tl.arange(0, HIGH)
    inside = (row < tokens)[:, None]
    mask = inside & (high < WIDTH)[None, :]
    start = row.to(tl.int64)[:, None] * WIDTH
    x = tl.load(x_ptr + start + low[None, :], mask=inside, other=0.0).to(tl.float32)
    y = tl.load(x_ptr + start + high[None, :], mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta_ptr + start + low[None, :], mask=inside, other=0.0).to(tl.float32)
        y += tl.load(delta_ptr + start + high[None, :], mask=mask, other=0.0).to(tl.float32)
        kept_x, kept_y = x.to(x_ptr.dtype.element_ty), y.to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + start + low[None, :], kept_x, mask=inside)
        tl.store(x_ptr + start + high[None, :], kept_y, mask=mask)
        x, y = kept_x.to(tl.float32), kept_y.to(tl.float32)
    x += tl.load(shift_ptr + low)[None, :]
    y += tl.load(shift_ptr + high, mask=high < WIDTH, other=0.0)[None, :]
    mean = ((tl.sum(x, 1) + tl.sum(y, 1)) / WIDTH)[:, None]
    x, y = x - mean, tl.where(mask, y - mean, 0.0)
    rstd = tl.rsqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / WIDTH + eps)[:, None]
    x = x * rstd * tl.load(weight_ptr + low)[None, :] + tl.load(bias_ptr + low)[None, :]
    weight = tl.load(weight_ptr + high, mask=high < WIDTH, other=0.0)
    bias = tl.load(bias_ptr + high, mask=high < WIDTH, other=0.0)
    y = y * rstd * weight[None, :] + bias[None, :]
    tl.store(out_ptr + start + low[None, :], x.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(out_ptr + start + high[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)


def rows_norm(x_TD, shift_D, weight_D, bias_D, eps, delta_TD=None, rows=4):
    """Return the layer norm of ``x + shift``; `delta_TD` is added to x first, in place."""
    out, width = torch.empty_like(x_TD), x_TD.shape[1]
    low = max(16, triton.next_power_of_2(width) // 2)
    _rows_norm_kernel[(triton.cdiv(len(x_TD), rows),)](
        x_TD, x_TD if delta_TD is None else delta_TD, shift_D, weight_D, bias_D, out, len(x_TD),
        eps, WIDTH=width, LOW=low, HIGH=max(16, triton.next_power_of_2(max(1, width - low))),
        ROWS=rows, ADD=delta_TD is not None, num_warps=rows,
    )  # fmt: skip
    return out


@triton.jit
def _rows_rotary_kernel(
    qkv_ptr, bias_ptr, position_ptr, cos_ptr, sin_ptr, tokens, token_stride, FIRST: tl.constexpr,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Add the bias to and rotate a block of tokens and heads, from head FIRST on."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, HALF)
    inside = token < tokens
    position = tl.load(position_ptr + token, mask=inside, other=0)
    at = position[:, None] * HALF + dims[None, :]
    cos = tl.load(cos_ptr + at)[:, None, :]
    sin = tl.load(sin_ptr + at)[:, None, :]
    column = (FIRST + head)[:, None] * (2 * HALF) + dims[None, :]
    real = (head < HEADS)[:, None]
    bias_low = tl.load(bias_ptr + column, mask=real, other=0.0)[None, :, :]
    bias_high = tl.load(bias_ptr + column + HALF, mask=real, other=0.0)[None, :, :]
    mask = inside[:, None, None] & real[None, :, :]
    at = qkv_ptr + token.to(tl.int64)[:, None, None] * token_stride + column[None, :, :]
    low = tl.load(at, mask=mask, other=0.0).to(tl.float32) + bias_low
    high = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32) + bias_high
    tl.store(at, (low * cos - high * sin).to(qkv_ptr.dtype.element_ty), mask=mask)
    tl.store(at + HALF, (high * cos + low * sin).to(qkv_ptr.dtype.element_ty), mask=mask)


def rows_rotary_(qkv, bias, positions_T, cos, sin, heads, *, first=0, block_t=8, block_h=4):
    """Rotate queries and keys, or with `first` = `heads` the keys only; `heads` counts one kind."""
    count = 2 * heads - first
    _rows_rotary_kernel[(triton.cdiv(len(qkv), block_t), triton.cdiv(count, block_h))](
        qkv, bias, positions_T, cos, sin, len(qkv), qkv.stride(0), FIRST=first, HEADS=count,
        HALF=cos.shape[1], BLOCK_T=block_t, BLOCK_H=block_h, num_warps=4,
    )  # fmt: skip
    return qkv


@triton.jit
def _tile(
    q, peak, total, acc, qkv, bias, key, stop, first, head, unit,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_BIAS: tl.constexpr, BIAS_REACH: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    k = qkv.load([key, (HEADS + head) * WIDTH])
    if HAS_BIAS:  # the product accumulates onto the bias
        offset = tl.minimum(tl.maximum(key - first, -BIAS_REACH), BIAS_REACH) + BIAS_REACH
        scores = tl.dot(q, k.T, bias.load([head * BLOCK_M, offset]).to(tl.float32))
    else:
        scores = tl.dot(q, k.T)
    if LAST:
        inside = key + tl.arange(0, BLOCK_N) < stop
        scores = tl.where(inside[None, :], scores, -float("inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    weight = tl.exp2(scores * unit - (new_peak * unit)[:, None])
    shrink = tl.exp2((peak - new_peak) * unit)
    total = total * shrink + tl.sum(weight, 1)
    v = qkv.load([key, (2 * HEADS + head) * WIDTH])
    acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None])
    return new_peak, total, acc


@triton.jit
def _variant_attention_kernel(
    qkv_q, qkv, bias, out_ptr, tile_first_ptr, tile_start_ptr, tile_stop_ptr, scale,
    turn_ptr, cos_ptr, sin_ptr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_BIAS: tl.constexpr, BIAS_REACH: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """As the package's; TURN: adds their bias to the queries and rotates them."""
    head = tl.program_id(0)
    tile = tl.program_id(1)
    first = tl.load(tile_first_ptr + tile)
    start = tl.load(tile_start_ptr + tile)
    stop = tl.load(tile_stop_ptr + tile)
    unit = scale * 1.4426950408889634
    q = qkv_q.load([first, head * WIDTH])
    if TURN:
        HALF: tl.constexpr = WIDTH // 2
        dims = tl.arange(0, HALF)
        position = (first - start) + tl.arange(0, BLOCK_M)
        near = (first + tl.arange(0, BLOCK_M) < stop)[:, None]
        at = position[:, None] * HALF + dims[None, :]
        cos = tl.load(cos_ptr + at, mask=near, other=0.0)
        sin = tl.load(sin_ptr + at, mask=near, other=0.0)
        low, high = tl.split(q.to(tl.float32).reshape(BLOCK_M, 2, HALF).permute(0, 2, 1))
        low += tl.load(turn_ptr + head * WIDTH + dims)[None, :]
        high += tl.load(turn_ptr + head * WIDTH + HALF + dims)[None, :]
        turned = tl.join(low * cos - high * sin, high * cos + low * sin)
        q = turned.permute(0, 2, 1).reshape(BLOCK_M, WIDTH).to(q.dtype)
    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    whole = start + (stop - start) // BLOCK_N * BLOCK_N
    for key in range(start, whole, BLOCK_N):
        peak, total, acc = _tile(
            q, peak, total, acc, qkv, bias, key, stop, first, head, unit,
            HEADS, WIDTH, BLOCK_M, BLOCK_N, HAS_BIAS, BIAS_REACH, False,
        )  # fmt: skip
    if whole < stop:
        peak, total, acc = _tile(
            q, peak, total, acc, qkv, bias, whole, stop, first, head, unit,
            HEADS, WIDTH, BLOCK_M, BLOCK_N, HAS_BIAS, BIAS_REACH, True,
        )  # fmt: skip
    rows = (first + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = head * WIDTH + tl.arange(0, WIDTH)
    out = out_ptr + rows[:, None] * (HEADS * WIDTH) + columns[None, :]
    result = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out, result, mask=rows[:, None] < stop)


class VariantAttention(Attention):
    """The candidate kernel with any tiles, or another library's attention."""

    def __init__(self, heads, scale, bias_HR=None, *, tile=None, kernel="triton", maxnreg=None):
        super().__init__(
            "triton" if bias_HR is None or kernel == "triton" else "sdpa", heads, scale, bias_HR
        )
        self.kernel, self._maxnreg = kernel, maxnreg
        self._tile = tile or self._tile
        if bias_HR is not None and kernel == "triton":
            self._tiled_bias = tile_bias(bias_HR, *self._tile[:2])
        self.turn = None  # bias of the queries, and the rotary tables

    def __call__(self, qkv, geometry):
        if self.kernel != "triton":
            return getattr(self, f"_{self.kernel}")(qkv, geometry)
        (m, n, warps, stages), heads, bias = self._tile, self._heads, self._tiled_bias
        width = qkv.shape[1] // (3 * heads)
        out = torch.empty(len(qkv), heads * width, dtype=qkv.dtype, device=qkv.device)
        rows = bias.flatten(0, 1) if bias is not None else qkv
        turn = self.turn or (geometry.offsets,) * 3
        _variant_attention_kernel[(heads, len(geometry.tiles[0]))](
            TensorDescriptor.from_tensor(qkv, [m, width]),
            TensorDescriptor.from_tensor(qkv, [n, width]),
            TensorDescriptor.from_tensor(rows, [m, n]),
            out, *geometry.tiles, self._scale, *turn, HEADS=heads, WIDTH=width, BLOCK_M=m, BLOCK_N=n,
            HAS_BIAS=bias is not None,
            BIAS_REACH=0 if bias is None else (bias.shape[2] - n) // 2,
            TURN=self.turn is not None, num_warps=warps, num_stages=stages,
            **({} if self._maxnreg is None else {"maxnreg": self._maxnreg}),
        )  # fmt: skip
        return out

    def _qkv(self, qkv):
        return qkv.view(len(qkv), 3, self._heads, -1).unbind(1)

    def _cudnn(self, qkv, geometry):
        longest = geometry.max_length
        return torch.ops.aten._cudnn_attention_forward(
            *self._qkv(qkv), None, geometry.offsets, geometry.offsets, longest, longest, True,
            scale=self._scale,
        )[0].flatten(1)  # fmt: skip

    def _cudnn_groups(self, qkv, geometry):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return Attention.__call__(self, qkv, geometry)

    def _varlen(self, qkv, geometry):
        from torch.nn.attention.varlen import varlen_attn

        span = geometry.offsets, geometry.offsets, geometry.max_length, geometry.max_length
        return varlen_attn(*self._qkv(qkv), *span).flatten(1)

    def _flash4(self, qkv, geometry):
        from flash_attn.cute import flash_attn_varlen_func

        at, longest = geometry.offsets, geometry.max_length
        out = flash_attn_varlen_func(
            *self._qkv(qkv), cu_seqlens_q=at, cu_seqlens_k=at, max_seqlen_q=longest,
            max_seqlen_k=longest, softmax_scale=self._scale,
        )  # fmt: skip
        return (out[0] if isinstance(out, tuple) else out).flatten(1)


class EpilogueOps(FusedOps):
    """GELU in its tanh form, in the epilogue of the product."""

    def linear_gelu(self, x_TD, weight_FD, bias_F):
        return torch._addmm_activation(bias_F, x_TD, weight_FD.T, use_gelu=True)


class RowsOps(EpilogueOps):
    """Also the norm and the rotation that take several rows per program."""

    rotary_ = staticmethod(rows_rotary_)

    def layer_norm(self, x_TD, shift_D, weight_D, bias_D, eps):
        return rows_norm(x_TD, shift_D, weight_D, bias_D, eps)


class KeysOps(RowsOps):
    """Rotates keys only: the attention kernel rotates the queries."""

    def rotary_(self, qkv, bias, positions_T, cos, sin, heads):
        return rows_rotary_(qkv, bias, positions_T, cos, sin, heads, first=heads)


class HalfEpilogueOps(HalfOps):
    """fp16 without Triton; GELU in the epilogue."""

    def linear_gelu(self, x_TD, weight_FD, bias_F):
        return torch._addmm_activation(bias_F, x_TD, weight_FD.T, use_gelu=True)


class HalfNormOps(HalfEpilogueOps):
    """Also the sum and the norm in fp16."""

    def layer_norm(self, x_TD, shift_D, weight_D, bias_D, eps):
        weight_D, bias_D = weight_D.to(x_TD.dtype), bias_D.to(x_TD.dtype)
        return F.layer_norm(x_TD + shift_D.to(x_TD.dtype), weight_D.shape, weight_D, bias_D, eps)


class HalfTurnOps(HalfNormOps):
    """Also the bias of queries and keys in the epilogue of their product."""

    def rotary_(self, qkv, bias, positions_T, cos, sin, heads):
        half, at = cos.shape[1], positions_T.long()
        low, high = qkv[:, : len(bias)].view(len(qkv), 2 * heads, 2, half).unbind(2)
        c, s = (table.to(qkv.dtype)[at, None, :] for table in (cos, sin))
        turned = (low * c).addcmul_(high, s, value=-1)
        high.mul_(c).addcmul_(low, s)
        low.copy_(turned)
        return qkv


class CompiledOps(PlainOps):
    """The plain steps under torch.compile, as the baseline of FlashAttention and compiled steps."""

    def __init__(self):
        for name in ("layer_norm", "rotary_"):
            plain = getattr(super(), name)
            setattr(self, name, torch.compile(plain, dynamic=True))
        self._gelu = torch.compile(F.gelu, dynamic=True)

    def linear_gelu(self, x_TD, weight_FD, bias_F):
        return self._gelu(F.linear(x_TD, weight_FD, bias_F))


class VariantEsm:
    """Run a loaded `PackedEsm` with another loop over its layers."""

    def __init__(self, encoder: PackedEsm, *, add_norm=False, qkv_bias=False):
        self._e, self._add_norm, self._qkv_bias = encoder, add_norm, qkv_bias

    @torch.inference_mode()
    def __call__(self, batch):
        e = self._e
        ops, eps = e._ops, e._eps
        geometry = e._attention.geometry(batch, e._device, e._dtype)
        x = e._embed_VD[to_device(batch.ids, e._device)]
        delta = None
        for layer in e._layers:
            y = self._norm(x, delta, layer.shift1_D, layer.norm1_D, layer.norm1_bias_D)
            if self._qkv_bias:
                bias = F.pad(layer.qk_bias_2D, (0, e.width)).to(x.dtype)
                qkv = torch.addmm(bias, y, layer.qkv_3DD.T)
            else:
                qkv = y @ layer.qkv_3DD.T
            ops.rotary_(qkv, layer.qk_bias_2D, geometry.positions, e._cos, e._sin, e._heads)
            if isinstance(e._attention, VariantAttention) and isinstance(ops, KeysOps):
                e._attention.turn = (layer.qk_bias_2D, e._cos, e._sin)
            out = e._attention(qkv, geometry)
            delta = self._add(x, out, layer.out_DD)
            y = self._norm(x, delta, layer.shift2_D, layer.norm2_D, layer.norm2_bias_D)
            hidden = ops.linear_gelu(y, layer.up_FD, layer.up_bias_F)
            delta = self._add(x, hidden, layer.down_DF)
        return self._norm(x, delta, e._shift_D, *e._final, eps)

    def _add(self, x, y, weight):
        if self._add_norm:
            return y @ weight.T
        x.addmm_(y, weight.T)
        return None

    def _norm(self, x, delta, shift, weight, bias, _eps=None):
        if delta is not None:
            return rows_norm(x, shift, weight, bias, self._e._eps, delta)
        return self._e._ops.layer_norm(x, shift, weight, bias, self._e._eps)
