"""Attention within the sequences of a packed batch: the kernels, and the choice between them.

T packed tokens of N sequences, H heads, D head width; G sequences of a group, L tokens of its
longest. A token attends to its own sequence only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from abag.core.device import DevicePlan, current_device, to_device
from abag.core.errors import DeviceError
from abag.core.messages import first_line, note
from abag.embed.kernels.ops import HalfOps, PlainOps

AttentionName = Literal["triton", "flash-attn", "varlen", "sdpa"]

# queries, keys, warps, stages
_TILES = {"biased": (64, 32, 4, 2), "plain": (64, 64, 4, 3)}
"""The fastest on an H200 (benchmarks/bench_kernels.py)."""
_POINTER_TILES = {"biased": (128, 32, 8, 2), "plain": (64, 32, 4, 2)}
"""For GPUs before 9.0, by an estimate: the most warps whose registers and shared memory fit."""


MAX_PADDING = 0.05
"""Largest share of padding in a sequence; 0 with a bias, whose mask would be G x H x L x L."""
_ALIGNED = 8
"""torch copies a mask whose rows are not a multiple of 8 values apart."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences of similar length that one call of torch's attention takes, padded to one."""

    size: int
    """G, the number of sequences."""
    length: int
    """L, tokens of the longest."""
    rows: slice | Tensor
    """Tokens of all sequences, shape (G * L,); padding repeats a token."""
    kept: Tensor | None
    """Which of the G * L are not padding; None: all."""
    targets: slice | Tensor
    """``rows[kept]``."""
    mask: Tensor | None
    """Added to the scores; broadcasts to (G, H, L, L)."""


@dataclass(frozen=True, slots=True)
class BatchGeometry:
    """Positions of the sequences of a packed batch, on the device."""

    offsets: Tensor
    """First token of each sequence, and T: shape (N + 1,), dtype int32."""
    positions: Tensor
    """Of each token in its own sequence: shape (T,), dtype int32."""
    tiles: tuple[Tensor, Tensor, Tensor]
    """Rows of `query_tiles`, for the Triton kernel."""
    groups: list[Group]
    """For sdpa; empty with other kernels."""
    lengths: NDArray[np.int32]
    """Tokens per sequence, shape (N,), on the host."""

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.lengths.max())


def query_tiles(offsets: NDArray[np.int32], block: int) -> NDArray[np.int32]:
    """Divide the queries of each sequence into tiles of at most `block` tokens.

    Parameters
    ----------
    offsets : ndarray, shape=(N + 1,)
        Sequence ``i`` is tokens ``offsets[i]:offsets[i + 1]``.
    block : int
        Queries per tile; the last tile of a sequence may have fewer.

    Returns
    -------
    ndarray, shape=(3, tiles), dtype=int32
        Of each tile its first query, and the first token and the end of its sequence.
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
    name : AttentionName
        The kernel, as chosen by `load_kernels`.
    heads : int
        H, the number of heads.
    scale : float
        Factor of the scores, applied after the bias is added.
    bias_HR : Tensor, shape=(H, 2 * R + 1), optional
        Bias by distance ``key - query``, clamped to -R ... R.
    rotary : tuple of 2 Tensors, each shape=(positions, D / 2), dtype=float32, optional
        Cosines and sines of rotary positions. They are only used if `rotates_queries`.
    """

    def __init__(
        self,
        name: AttentionName,
        heads: int,
        scale: float,
        bias_HR: Tensor | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.name = name
        self._heads = heads
        self._scale = scale
        # the kernel turns halves of heads, which are blocks of Triton: powers of 2
        even = rotary is not None and rotary[0].shape[1].bit_count() == 1
        self._rotary = rotary if name == "triton" and even else None
        self._scaled_bias_HR = None if bias_HR is None else bias_HR * scale
        self._descriptors = loads_by_descriptors()
        tiles = _TILES if self._descriptors else _POINTER_TILES
        self._tile = tiles["plain" if bias_HR is None else "biased"]
        self._tiled_bias: Tensor | None = None
        if name == "triton" and bias_HR is not None:
            from abag.embed.kernels.triton_kernels import tile_bias

            self._tiled_bias = tile_bias(bias_HR, *self._tile[:2])

    @property
    def rotates_queries(self) -> bool:
        """Whether queries get their bias and are rotated when they are read; keys never are."""
        return self._rotary is not None

    def geometry(
        self, offsets: NDArray[np.int32], device: torch.device, dtype: torch.dtype
    ) -> BatchGeometry:
        """Start copying the positions of sequences to the device.

        `offsets` are those of a packed batch, see `query_tiles`; `dtype` is that of the queries,
        keys and values, which a mask has to have too.
        """
        lengths = np.diff(offsets)
        positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        first, start, stop = query_tiles(offsets, self._tile[0])
        groups = []
        if self.name == "sdpa":
            groups = make_groups(offsets, self._scaled_bias_HR, dtype, device)
        return BatchGeometry(
            to_device(offsets, device),
            to_device(positions.astype(np.int32), device),
            (to_device(first, device), to_device(start, device), to_device(stop, device)),
            groups,
            lengths,
        )

    def __call__(
        self, qkv: Tensor, geometry: BatchGeometry, query_bias: Tensor | None = None
    ) -> Tensor:
        """Attend within each sequence.

        Parameters
        ----------
        qkv : Tensor, shape=(T, 3 * H * D), dtype=float32, bfloat16 or float16
            Queries of all heads, then keys, then values.
        geometry : BatchGeometry
            From `geometry`, for the batch that `qkv` was computed from.
        query_bias : Tensor, shape=(H * D,), optional
            Added to the queries before they are rotated; only if `rotates_queries`.

        Returns
        -------
        Tensor, shape=(T, H * D)
            In the type of `qkv`.
        """
        assert query_bias is None or self.rotates_queries
        if self.name == "triton":
            from abag.embed.kernels import triton_kernels as kernels

            return kernels.attention(
                qkv,
                geometry.tiles,
                self._heads,
                self._scale,
                self._tiled_bias,
                self._rotary,
                query_bias,
                tile=self._tile,
                descriptors=self._descriptors,
            )
        if self.name == "sdpa":
            return grouped_sdpa(qkv, geometry.groups, self._heads, self._scale)
        q, k, v = qkv.view(len(qkv), 3, self._heads, -1).unbind(1)
        # of queries, then of keys
        ends = (geometry.offsets, geometry.offsets)
        longest = (geometry.max_length, geometry.max_length)
        out: Tensor
        if self.name == "varlen":  # FlashAttention-2 as built into torch
            from torch.nn.attention.varlen import varlen_attn

            assert abs(self._scale - q.shape[-1] ** -0.5) < 1e-9  # its scale is always 1/sqrt(D)
            out = varlen_attn(q, k, v, *ends, *longest)  # type: ignore[assignment]
        else:
            from flash_attn import flash_attn_varlen_func

            out = flash_attn_varlen_func(q, k, v, *ends, *longest, softmax_scale=self._scale)
        return out.flatten(1)


# --- torch's own attention: for GPUs without the Triton kernel, such as the T4, and for CPUs ------


def group_lengths(lengths: NDArray[np.int32], max_padding: float) -> list[NDArray[np.int64]]:
    """Group N sequences of similar length, longest first.

    Parameters
    ----------
    lengths : ndarray, shape=(N,)
        Tokens of each sequence.
    max_padding : float
        Largest share of padding in the shortest sequence of a group.

    Returns
    -------
    list of ndarray, dtype=int64
        Positions in `lengths` of each group's sequences.
    """
    order = np.argsort(-lengths, kind="stable")
    first = 0
    groups = []
    for i, length in enumerate(lengths[order]):
        if length < (1 - max_padding) * lengths[order[first]]:
            groups.append(order[first:i])
            first = i
    return [*groups, order[first:]]


def make_groups(
    offsets: NDArray[np.int32], bias_HR: Tensor | None, dtype: torch.dtype, device: torch.device
) -> list[Group]:
    """Group a batch's sequences, with the masks that all layers add to their scores.

    `bias_HR` is the scaled bias by distance, which the masks then contain.
    """
    lengths = np.diff(offsets)
    bias_HLL = None if bias_HR is None else dense_bias(bias_HR.to(dtype), int(lengths.max()))
    groups = []
    for members in group_lengths(lengths, MAX_PADDING if bias_HR is None else 0.0):
        length = int(lengths[members[0]])
        mask = None if bias_HLL is None else bias_HLL[:, :length, :length]
        groups.append(_make_group(offsets, members, length, mask, dtype, device))
    return groups


def _make_group(
    offsets: NDArray[np.int32],
    members: NDArray[np.int64],
    length: int,
    mask: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Group:
    starts_G = offsets[members]
    lengths_G = np.diff(offsets)[members]
    size = len(members)
    equal = bool((lengths_G == length).all())
    if equal and np.array_equal(starts_G, starts_G[0] + length * np.arange(size)):
        adjacent = slice(int(starts_G[0]), int(starts_G[0]) + size * length)  # no copy
        return Group(size, length, adjacent, None, adjacent, mask)
    at_L = np.arange(length)
    rows_GL = starts_G[:, None] + np.minimum(at_L, lengths_G[:, None] - 1)
    is_token_GL = at_L < lengths_G[:, None]
    rows = to_device(rows_GL.ravel(), device)
    if equal:
        return Group(size, length, rows, None, rows, mask)
    added_GL = np.zeros((size, -(-length // _ALIGNED) * _ALIGNED), dtype=np.float32)
    added_GL[:, :length][~is_token_GL] = -np.inf
    mask = to_device(added_GL, device).to(dtype)[:, None, None, :length]
    tokens = rows_GL[is_token_GL]
    if np.array_equal(tokens, tokens[0] + np.arange(len(tokens))):  # adjacent: no scattered writes
        targets: slice | Tensor = slice(int(tokens[0]), int(tokens[-1]) + 1)
    else:
        targets = to_device(tokens, device)
    kept = to_device(np.flatnonzero(is_token_GL), device)
    return Group(size, length, rows, kept, targets, mask)


def grouped_sdpa(qkv: Tensor, groups: list[Group], heads: int, scale: float) -> Tensor:
    """Attend within each sequence by torch's own attention, one call per group.

    `qkv`, shape (T, 3 * H * D), is as for `Attention`; returns shape (T, H * D).
    """
    out = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    for group in groups:
        padded = qkv[group.rows].view(group.size, group.length, 3, heads, -1)
        q, k, v = padded.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask, scale=scale)
        y = y.transpose(1, 2).reshape(-1, out.shape[1])
        out[group.targets] = y if group.kept is None else y[group.kept]
    return out


def dense_bias(bias_HR: Tensor, length: int) -> Tensor:
    """Expand a bias by distance, (H, 2 * R + 1), to (H, queries, keys), each of `length`."""
    reach = bias_HR.shape[1] // 2
    at = torch.arange(-(-length // _ALIGNED) * _ALIGNED, device=bias_HR.device)
    distance = (at[None, :] - at[:length, None]).clamp(-reach, reach)
    return bias_HR[:, distance + reach][:, :, :length]


# --- the choice of a kernel -----------------------------------------------------------------------


@cache
def loads_by_descriptors() -> bool:
    """Return whether the GPUs of this machine load tensor descriptors in hardware."""
    # older ones emulate them with a pointer per value: the kernel would spill 700 bytes per thread
    count = torch.cuda.device_count()
    return all(torch.cuda.get_device_capability(i) >= (9, 0) for i in range(count))


def kernel_problems(plan: DevicePlan, *, biased: bool, head_width: int) -> dict[AttentionName, str]:
    """Return why each kernel cannot run, or an empty string; the fastest kernel first.

    Parameters
    ----------
    plan : DevicePlan
        Device and precision.
    biased : bool
        Whether scores have a bias by relative position.
    head_width : int
        D, dimensions of a head.
    """
    if plan.device.type != "cuda":
        problem = "needs a CUDA device"
        return {"triton": problem, "flash-attn": problem, "varlen": problem, "sdpa": ""}
    capable = torch.cuda.get_device_capability(plan.device) >= (8, 0)
    if plan.precision == "fp32":
        fast = "computes in bf16 or fp16 only"
    else:
        fast = "" if capable else "needs compute capability 8.0"
    no_bias = "does not support a bias by position"
    # tensor descriptors need rows of a multiple of 16 bytes
    uneven = f"does not support heads of {head_width} dimensions: no multiple of 8"
    return {
        "triton": fast or _missing("triton") or uneven * (head_width % 8 > 0),
        "flash-attn": no_bias if biased else fast or _missing("flash_attn"),
        "varlen": no_bias if biased else fast or _missing("torch.nn.attention.varlen"),
        "sdpa": "",
    }


def choose_attention(
    plan: DevicePlan, *, biased: bool, head_width: int = 64, requested: str = "auto"
) -> AttentionName:
    """Choose the attention kernel; ``"auto"`` is the fastest that runs.

    The other arguments are those of `kernel_problems`.

    Raises
    ------
    DeviceError
        If the requested kernel cannot run here.
    """
    problems = kernel_problems(plan, biased=biased, head_width=head_width)
    usable = [name for name, problem in problems.items() if not problem]
    for name in usable:
        if requested in (name, "auto"):
            return name
    by_name: dict[str, str] = dict(problems.items())
    reason = by_name.get(requested, "unknown kernel")
    msg = f"--attention {requested}: {reason}; usable on this device: auto, {', '.join(usable)}"
    raise DeviceError(msg)


def load_kernels(
    plan: DevicePlan, *, biased: bool, head_width: int = 64, requested: str = "auto"
) -> tuple[AttentionName, PlainOps]:
    """Choose the attention kernel and the operations of an encoder.

    With ``"auto"``, a GPU on which Triton does not work uses torch, and a note says so. The
    arguments are those of `choose_attention`.

    Raises
    ------
    DeviceError
        If the requested kernel cannot run here, or is Triton's and does not work.
    """
    name = choose_attention(plan, biased=biased, head_width=head_width, requested=requested)
    if plan.device.type != "cuda" or plan.precision == "fp32":
        return name, PlainOps()
    problem = triton_problem(plan.device)
    if not problem:
        from abag.embed.kernels.triton_kernels import FusedOps

        return name, FusedOps(plan.device)
    if requested == "triton":
        msg = f"--attention triton: does not work on this device ({problem}); give auto or sdpa"
        raise DeviceError(msg)
    note(f"Triton does not work on this device ({problem}): using plain torch steps, slower")
    ops = HalfOps() if plan.precision == "fp16" else PlainOps()
    return "sdpa" if name == "triton" else name, ops


@cache
def triton_problem(device: torch.device) -> str:
    """Run a Triton kernel on a GPU and compare it with torch; return what fails, or nothing."""
    # Triton needs a C compiler at run time, and its support of older GPUs ends without notice
    if absent := _missing("triton"):
        return absent
    x = torch.linspace(-2, 2, 256, device=device).view(2, 128)
    weight = torch.ones(128).to(device)
    delta = x.half()
    try:
        from abag.embed.kernels.triton_kernels import FusedOps

        with current_device(device):
            ours = FusedOps(device).add_rms_norm_(x.clone(), delta, 2.0, weight, 1e-6)
        theirs = PlainOps().add_rms_norm_(x, delta, 2.0, weight, 1e-6)
        return "" if torch.allclose(ours, theirs, atol=1e-2) else "wrong numbers"  # GPU sync
    except Exception as error:  # noqa: BLE001 - every failure means the same here
        return first_line(error)


def _missing(module: str) -> str:
    from importlib.util import find_spec

    try:
        installed = find_spec(module) is not None
    except ModuleNotFoundError:
        installed = False
    return "" if installed else f"{module} is not installed"
