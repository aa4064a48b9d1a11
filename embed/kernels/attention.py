"""Attention within the sequences of a packed batch: the kernels, and the choice between them.

A packed batch holds T tokens of N sequences end to end. A token attends to its own sequence only.
H heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import torch.nn.functional as F

from abag import AbagError
from abag.core.device import to_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.core.device import DevicePlan
    from abag.embed.packing.batches import PackedBatch

AttentionName = Literal["triton", "flash-attn", "varlen", "sdpa"]

# the fastest tiles on an H200 (benchmarks/bench_kernels.py): queries, keys, warps, stages
_TILES = {"biased": (64, 32, 4, 2), "plain": (64, 64, 4, 3)}


class AttentionUnavailable(AbagError):
    """An attention kernel that this device, precision or encoder cannot use."""


@dataclass(frozen=True, slots=True)
class BatchGeometry:
    """Positions of the sequences of a packed batch, on the device.

    Attributes
    ----------
    offsets : Tensor, shape=(N + 1,), dtype=int32
    positions : Tensor, shape=(T,), dtype=int32
        Position of each token in its own sequence.
    tiles : tuple of 3 Tensors, each shape=(tiles,), dtype=int32
        Rows of `query_tiles`, for the Triton kernel.
    lengths : ndarray, shape=(N,), dtype=int32
        Tokens per sequence, on the host.
    """

    offsets: torch.Tensor
    positions: torch.Tensor
    tiles: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    lengths: NDArray[np.int32]

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.lengths.max())


def query_tiles(offsets: NDArray[np.int32], block: int) -> NDArray[np.int32]:
    """Divide the queries of every sequence into tiles of at most `block` tokens.

    Parameters
    ----------
    offsets : ndarray, shape=(N + 1,), dtype=int32
        Sequence ``i`` owns tokens ``offsets[i]:offsets[i + 1]``.
    block : int

    Returns
    -------
    ndarray, shape=(3, tiles), dtype=int32
        Rows: first query of the tile, first token of its sequence, one past its last token.
    """
    lengths = np.diff(offsets)
    tiles_N = -(-lengths // block)
    sequence = np.repeat(np.arange(len(lengths)), tiles_N)
    within = np.arange(len(sequence)) - np.repeat(np.cumsum(tiles_N) - tiles_N, tiles_N)
    start = offsets[:-1][sequence]
    return np.stack([start + within * block, start, offsets[1:][sequence]]).astype(np.int32)


class Attention:
    """The attention of one encoder.

    Parameters
    ----------
    name : {"triton", "flash-attn", "varlen", "sdpa"}
    heads : int
    scale : float
        Factor of the scores, applied after the bias is added.
    bias_HR : Tensor, shape=(H, 2 * R + 1), optional
        Bias by distance ``key - query``, clamped to -R ... R.
    """

    def __init__(
        self, name: AttentionName, heads: int, scale: float, bias_HR: torch.Tensor | None = None
    ) -> None:
        self.name = name
        self._heads = heads
        self._scale = scale
        self._bias_HR = bias_HR
        self._tile = _TILES["plain" if bias_HR is None else "biased"]
        self._tiled_bias: torch.Tensor | None = None
        if name == "triton" and bias_HR is not None:
            from abag.embed.kernels.triton_kernels import tile_bias

            self._tiled_bias = tile_bias(bias_HR, *self._tile[:2])

    def geometry(self, batch: PackedBatch, device: torch.device) -> BatchGeometry:
        """Start copying the positions of a batch's sequences to the device."""
        lengths = np.diff(batch.offsets)
        positions = np.arange(len(batch.ids)) - np.repeat(batch.offsets[:-1], lengths)
        first, start, stop = query_tiles(batch.offsets, self._tile[0])

        return BatchGeometry(
            to_device(batch.offsets, device),
            to_device(positions.astype(np.int32), device),
            (to_device(first, device), to_device(start, device), to_device(stop, device)),
            lengths,
        )

    def __call__(self, qkv: torch.Tensor, geometry: BatchGeometry) -> torch.Tensor:
        """Attend within each sequence.

        Parameters
        ----------
        qkv : Tensor, shape=(T, 3 * H * D), dtype=float32, bfloat16 or float16
            Queries of all heads, then keys, then values.
        geometry : BatchGeometry

        Returns
        -------
        Tensor, shape=(T, H * D)
            In the type of `qkv`.
        """
        if self.name == "triton":
            from abag.embed.kernels import triton_kernels as kernels

            m, n, warps, stages = self._tile
            return kernels.attention(
                qkv, geometry.tiles, self._heads, self._scale, self._tiled_bias,
                block_m=m, block_n=n, warps=warps, stages=stages,
            )  # fmt: skip
        q, k, v = qkv.view(len(qkv), 3, self._heads, -1).unbind(1)
        if self.name == "sdpa":
            out = self._sdpa(q, k, v, geometry)
        elif self.name == "varlen":
            out = _varlen(q, k, v, geometry, self._scale)
        else:
            out = _flash_attn(q, k, v, geometry, self._scale)
        return out.flatten(1)

    def _sdpa(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, geometry: BatchGeometry
    ) -> torch.Tensor:
        """Use torch, one sequence at a time: the reference for every other kernel."""
        bias = None
        if self._bias_HR is not None:
            scaled = dense_bias(self._bias_HR, geometry.max_length) * self._scale
            bias = scaled.to(q.dtype)
        out = torch.empty_like(v)
        start = 0
        for length in geometry.lengths.tolist():
            own = slice(start, start + length)
            out[own] = F.scaled_dot_product_attention(
                q[own].transpose(0, 1),
                k[own].transpose(0, 1),
                v[own].transpose(0, 1),
                attn_mask=None if bias is None else bias[:, :length, :length],
                scale=self._scale,
            ).transpose(0, 1)
            start += length
        return out


def dense_bias(bias_HR: torch.Tensor, length: int) -> torch.Tensor:
    """Expand a bias by distance, (H, 2 * R + 1), to (H, queries, keys), each of `length`."""
    reach = bias_HR.shape[1] // 2
    at = torch.arange(length, device=bias_HR.device)
    distance = (at[None, :] - at[:, None]).clamp(-reach, reach)
    return bias_HR[:, distance + reach]


def _varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, geometry: BatchGeometry, scale: float
) -> torch.Tensor:
    """Use FlashAttention-2 as built into torch; its scale is always 1/sqrt(D)."""
    from torch.nn.attention.varlen import varlen_attn

    assert abs(scale - q.shape[-1] ** -0.5) < 1e-9
    n = geometry.max_length
    out = varlen_attn(q, k, v, geometry.offsets, geometry.offsets, n, n)
    assert isinstance(out, torch.Tensor)
    return out


def _flash_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, geometry: BatchGeometry, scale: float
) -> torch.Tensor:
    from flash_attn import flash_attn_varlen_func

    n = geometry.max_length
    out: torch.Tensor = flash_attn_varlen_func(
        q, k, v, geometry.offsets, geometry.offsets, n, n, softmax_scale=scale
    )
    return out


def kernel_problems(plan: DevicePlan, *, biased: bool) -> dict[AttentionName, str]:
    """Return why each kernel cannot run: by name, fastest first; empty if it can run."""
    if plan.device.type != "cuda":
        problem = "needs a CUDA device"
        return {"triton": problem, "flash-attn": problem, "varlen": problem, "sdpa": ""}
    capable = torch.cuda.get_device_capability(plan.device) >= (8, 0)
    if plan.precision == "fp32":
        fast = "computes in bf16 or fp16 only"
    else:
        fast = "" if capable else "needs compute capability 8.0"
    no_bias = "does not support a bias by position"
    return {
        "triton": fast or _missing("triton"),
        "flash-attn": no_bias if biased else fast or _missing("flash_attn"),
        "varlen": no_bias if biased else fast or _missing("torch.nn.attention.varlen"),
        "sdpa": "",
    }


def choose_attention(plan: DevicePlan, *, biased: bool, requested: str = "auto") -> AttentionName:
    """Choose the attention kernel.

    Parameters
    ----------
    plan : DevicePlan
    biased : bool
        Whether the encoder adds a bias by relative position.
    requested : str
        A kernel's name, or ``"auto"`` for the fastest that runs.

    Raises
    ------
    AttentionUnavailable
        If the requested kernel is unknown or cannot run on this device.
    """
    reason = "unknown kernel"
    usable: list[AttentionName] = []
    for name, problem in kernel_problems(plan, biased=biased).items():
        if name == requested:
            reason = problem
        if not problem:
            usable.append(name)
            if requested in (name, "auto"):
                return name
    msg = f"--attention {requested}: {reason}; usable on this device: auto, {', '.join(usable)}"
    raise AttentionUnavailable(msg)


def _missing(module: str) -> str:
    from importlib.util import find_spec

    try:
        found = find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    return "" if found else f"{module} is not installed"
