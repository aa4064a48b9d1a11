"""The elementwise steps of the packed encoders: fused kernels on CUDA, plain torch elsewhere.

The plain versions are the reference; both are compared in the tests.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


class EncoderOps(Protocol):
    """What an encoder needs beside matrix products and attention."""

    def add_rms_norm_(self, x_TD: Tensor, delta_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        """``x += delta``; returns ``x / sqrt(mean(x^2) + eps) * weight`` in `weight`'s type."""
        ...

    def layer_norm(
        self, x_TD: Tensor, shift_D: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
    ) -> Tensor:
        """Layer norm of ``x + shift``; shift, weight and bias are fp32."""
        ...

    def linear_relu(self, x_TD: Tensor, weight_FD: Tensor) -> Tensor:
        """``relu(x W^T)``."""
        ...

    def linear_gelu(self, x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        """``gelu(x W^T + b)`` with the error function."""
        ...

    def rotary_(
        self, qkv: Tensor, bias: Tensor, positions_T: Tensor, cos: Tensor, sin: Tensor, heads: int
    ) -> Tensor:
        """Add the bias (2 * H * D,) to queries and keys of (T, 3 * H * D) and rotate, in place."""
        ...


class PlainOps:
    """Torch only: any device, any precision."""

    def add_rms_norm_(self, x_TD: Tensor, delta_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        """See `EncoderOps`."""
        x = x_TD.add_(delta_TD).float()
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return (x * scale * weight_D.float()).to(weight_D.dtype)

    def layer_norm(
        self, x_TD: Tensor, shift_D: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
    ) -> Tensor:
        """See `EncoderOps`."""
        normal = F.layer_norm(x_TD.float() + shift_D, weight_D.shape, weight_D, bias_D, eps)
        return normal.to(x_TD.dtype)

    def linear_relu(self, x_TD: Tensor, weight_FD: Tensor) -> Tensor:
        """See `EncoderOps`."""
        return F.linear(x_TD, weight_FD).relu_()

    def linear_gelu(self, x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        """See `EncoderOps`."""
        return F.gelu(F.linear(x_TD, weight_FD, bias_F))

    def rotary_(
        self, qkv: Tensor, bias: Tensor, positions_T: Tensor, cos: Tensor, sin: Tensor, heads: int
    ) -> Tensor:
        """See `EncoderOps`."""
        half = cos.shape[1]
        pair = qkv[:, : len(bias)].view(len(qkv), 2 * heads, 2, half)
        low, high = (pair.float() + bias.view(2 * heads, 2, half)).unbind(2)
        c, s = cos[positions_T.long(), None, :], sin[positions_T.long(), None, :]
        pair[:, :, 0], pair[:, :, 1] = low * c - high * s, high * c + low * s
        return qkv


class FusedOps:
    """Triton and cuBLAS epilogues: CUDA, compute capability 8.0 and newer, bf16 or fp16."""

    def add_rms_norm_(self, x_TD: Tensor, delta_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        """See `EncoderOps`."""
        from abag.embed.kernels import triton_kernels as kernels

        return kernels.add_rms_norm_(x_TD, delta_TD, weight_D, eps)

    def layer_norm(
        self, x_TD: Tensor, shift_D: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
    ) -> Tensor:
        """See `EncoderOps`."""
        from abag.embed.kernels import triton_kernels as kernels

        return kernels.layer_norm(x_TD, shift_D, weight_D, bias_D, eps)

    def linear_relu(self, x_TD: Tensor, weight_FD: Tensor) -> Tensor:
        """See `EncoderOps`; relu is applied as the product leaves the matrix unit."""
        zero_F = weight_FD.new_zeros(len(weight_FD))
        return torch._addmm_activation(zero_F, x_TD, weight_FD.T)

    def linear_gelu(self, x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        """See `EncoderOps`.

        cuBLAS's own GELU epilogue is the tanh form, 1 % off, and even its bias epilogue costs a
        fifth of the product's time on an H200: the bias is added by the GELU kernel.
        """
        from abag.embed.kernels import triton_kernels as kernels

        return kernels.gelu_(F.linear(x_TD, weight_FD), bias_F)

    def rotary_(
        self, qkv: Tensor, bias: Tensor, positions_T: Tensor, cos: Tensor, sin: Tensor, heads: int
    ) -> Tensor:
        """See `EncoderOps`."""
        from abag.embed.kernels import triton_kernels as kernels

        return kernels.rotary_(qkv, bias, positions_T, cos, sin, heads)
