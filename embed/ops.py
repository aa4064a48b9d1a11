"""The elementwise steps of the packed encoders: fused kernels on CUDA, plain torch elsewhere.

The plain versions are the reference; both are compared in the tests.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


class Ops(Protocol):
    """What an encoder needs beside matrix products and attention."""

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        """``x / sqrt(mean(x^2) + eps) * weight``, in the type of `weight`."""
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
        self, qkv: Tensor, positions_T: Tensor, cos: Tensor, sin: Tensor, heads: int
    ) -> Tensor:
        """Rotate the queries and keys of (T, 3 * H * D) in place."""
        ...


class PlainOps:
    """Torch only: any device, any precision."""

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        """See `Ops`."""
        x = x_TD.float()
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return (x * scale * weight_D.float()).to(weight_D.dtype)

    def layer_norm(
        self, x_TD: Tensor, shift_D: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
    ) -> Tensor:
        """See `Ops`."""
        normal = F.layer_norm(x_TD.float() + shift_D, weight_D.shape, weight_D, bias_D, eps)
        return normal.to(x_TD.dtype)

    def linear_relu(self, x_TD: Tensor, weight_FD: Tensor) -> Tensor:
        """See `Ops`."""
        return F.linear(x_TD, weight_FD).relu_()

    def linear_gelu(self, x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        """See `Ops`."""
        return F.gelu(F.linear(x_TD, weight_FD, bias_F))

    def rotary_(
        self, qkv: Tensor, positions_T: Tensor, cos: Tensor, sin: Tensor, heads: int
    ) -> Tensor:
        """See `Ops`."""
        half = cos.shape[1]
        pair = qkv[:, : 2 * heads * 2 * half].view(len(qkv), 2 * heads, 2, half)
        low, high = pair[:, :, 0].float(), pair[:, :, 1].float()
        c, s = cos[positions_T.long(), None, :], sin[positions_T.long(), None, :]
        pair[:, :, 0], pair[:, :, 1] = low * c - high * s, high * c + low * s
        return qkv


class FusedOps:
    """Triton and cuBLAS epilogues: CUDA, compute capability 8.0 and newer, bf16 or fp16."""

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        """See `Ops`."""
        from abag.embed import kernels

        return kernels.rms_norm(x_TD, weight_D, eps)

    def layer_norm(
        self, x_TD: Tensor, shift_D: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
    ) -> Tensor:
        """See `Ops`."""
        from abag.embed import kernels

        return kernels.layer_norm(x_TD, shift_D, weight_D, bias_D, eps)

    def linear_relu(self, x_TD: Tensor, weight_FD: Tensor) -> Tensor:
        """See `Ops`; relu is applied as the product leaves the matrix unit."""
        zero_F = weight_FD.new_zeros(len(weight_FD))
        return torch._addmm_activation(zero_F, x_TD, weight_FD.T)

    def linear_gelu(self, x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        """See `Ops`; cuBLAS's own GELU epilogue is the tanh form, 1 % off."""
        from abag.embed import kernels

        return kernels.gelu_(torch.addmm(bias_F, x_TD, weight_FD.T))

    def rotary_(
        self, qkv: Tensor, positions_T: Tensor, cos: Tensor, sin: Tensor, heads: int
    ) -> Tensor:
        """See `Ops`."""
        from abag.embed import kernels

        return kernels.rotary_(qkv, positions_T, cos, sin, heads)
