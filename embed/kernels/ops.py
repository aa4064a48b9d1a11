"""The steps of the packed encoders other than attention, in plain torch.

They run on any device, and are the reference that tests compare `triton_kernels` with.

T packed tokens, D model width, F feed-forward width, H heads.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch.nn.functional as F
from torch import Tensor

Activation = Literal["relu", "gelu_tanh", "silu"]
Norm: TypeAlias = tuple[Tensor | None, Tensor | None]
"""Factors and offsets, each shape (D,), dtype=float32; None if they are part of what follows."""


class Rotary(NamedTuple):
    """Rotary positions of T tokens."""

    positions: Tensor
    """Of each token in its own sequence: shape (T,), dtype=int32."""
    cos: Tensor
    """Of the angles: shape (positions, head width / 2), dtype=float32."""
    sin: Tensor


class PlainOps:
    """Norms, activations and rotary positions on any device; trailing underscore: in place."""

    def add_rms_norm_(
        self, x_TD: Tensor, delta_TD: Tensor, scale: float, weight_D: Tensor, eps: float
    ) -> Tensor:
        """Add to the residual stream and return its norm.

        ``x += scale * delta``; returns ``x / sqrt(mean(x^2) + eps) * weight``, shape=(T, D), in the
        type of `delta_TD`. `weight_D` has dtype=float32.
        """
        x = x_TD.add_(delta_TD, alpha=scale).float()
        return F.rms_norm(x, weight_D.shape, weight_D, eps).to(delta_TD.dtype)

    def layer_norm(self, x_TD: Tensor, shift_D: Tensor, norm: Norm, eps: float) -> Tensor:
        """Return the layer norm of ``x + shift``, shape=(T, D), in the type of `x_TD`.

        `shift_D` has dtype=float32.
        """
        normal = F.layer_norm(x_TD + shift_D, shift_D.shape, *norm, eps)
        return normal.to(x_TD.dtype)

    def linear(self, x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None) -> Tensor:
        """Return ``x W^T + b``, shape=(T, F)."""
        return F.linear(x_TD, weight_FD, bias_F)

    def add_linear_(self, x_TD: Tensor, y_TF: Tensor, weight_DF: Tensor) -> None:
        """Add ``y W^T`` to the residual stream."""
        x_TD.addmm_(y_TF, weight_DF.T)

    def linear_relu(self, x_TD: Tensor, weight_FD: Tensor) -> Tensor:
        """Return ``relu(x W^T)``, shape=(T, F), in the type of `x_TD`."""
        return F.linear(x_TD, weight_FD).relu_()

    def linear_gelu(self, x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        """Return the exact GELU of ``x W^T + b``, shape=(T, F), in the type of `x_TD`."""
        return F.gelu(F.linear(x_TD, weight_FD, bias_F))

    def linear_gated(
        self, x_TD: Tensor, weight: Tensor, activation: Activation, bias: Tensor | None = None
    ) -> Tensor:
        """Return ``activation(x G^T + g) * (x U^T + u)``, shape=(T, F), in the type of `x_TD`.

        `weight`, shape (2 * F, D), holds G, then U; `bias`, shape (2 * F,), g, then u.
        """
        gate_TF, up_TF = F.linear(x_TD, weight, bias).chunk(2, dim=1)
        if activation == "silu":
            return F.silu(gate_TF).mul_(up_TF)
        assert activation == "gelu_tanh"
        return F.gelu(gate_TF, approximate="tanh").mul_(up_TF)

    def rotary_(self, x: Tensor, rotary: Rotary, heads: int, bias: Tensor | None = None) -> Tensor:
        """Rotate the first `heads` heads of every row in place, and return `x`.

        Parameters
        ----------
        x : Tensor, shape=(T, columns)
            Contiguous rows, such as queries, keys and values, or keys and values.
        rotary : Rotary
            Of the T tokens.
        bias : Tensor, shape=(heads * head width,), optional
            Added before they are rotated.

        References
        ----------
        Su et al., arXiv:2104.09864.
        """
        low, high = _halves(x, heads, rotary, bias)
        at_T = rotary.positions.long()
        c = rotary.cos[at_T, None, :]
        s = rotary.sin[at_T, None, :]
        turned_low = low * c - high * s
        turned_high = high * c + low * s
        low[:] = turned_low
        high[:] = turned_high
        return x

    def norm_rotary_(
        self, qkv: Tensor, weight: Tensor, eps: float, rotary: Rotary, heads: int
    ) -> Tensor:
        """Norm all queries of a token together, and all keys, then rotate them in place.

        `weight`, shape (2 * D,), dtype=float32, multiplies the normed queries, then keys; there
        are `heads` of each. The others are as for `rotary_`. Returns `qkv`.
        """
        pair = qkv[:, : len(weight)].view(len(qkv), 2, -1)
        normal = F.layer_norm(pair.float(), pair.shape[2:], eps=eps) * weight.view(2, -1)
        pair.copy_(normal)
        return self.rotary_(qkv, rotary, 2 * heads)


class HalfOps(PlainOps):
    """For fp16 where Triton does not work: fewer passes over memory, each rounded to fp16."""

    def layer_norm(self, x_TD: Tensor, shift_D: Tensor, norm: Norm, eps: float) -> Tensor:
        """See `PlainOps`: shape (T, D), in the type of `x_TD`; the sum is rounded to fp16."""
        # factors in fp16 would be as far from fp32 as transformers' are
        if norm[0] is not None:
            return super().layer_norm(x_TD, shift_D, norm, eps)
        return F.layer_norm(x_TD + shift_D.to(x_TD.dtype), shift_D.shape, eps=eps)

    def rotary_(self, x: Tensor, rotary: Rotary, heads: int, bias: Tensor | None = None) -> Tensor:
        """See `PlainOps`; angles and products are rounded to fp16."""
        low, high = _halves(x, heads, rotary, bias)
        at_T = rotary.positions.long()
        c = rotary.cos.to(x.dtype)[at_T, None, :]
        s = rotary.sin.to(x.dtype)[at_T, None, :]
        old_low = low.clone()
        low.mul_(c).addcmul_(high, s, value=-1)
        high.mul_(c).addcmul_(old_low, s)
        return x


def _halves(x: Tensor, heads: int, rotary: Rotary, bias: Tensor | None) -> tuple[Tensor, ...]:
    """View both halves of the first heads of every row, (T, heads, half); add `bias` to them."""
    half = rotary.cos.shape[1]
    first_heads = x[:, : 2 * heads * half]
    if bias is not None:
        first_heads += bias
    return first_heads.view(len(x), heads, 2, half).unbind(2)
