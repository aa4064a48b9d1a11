"""Sequences to pooled vectors, batch by batch, without ever letting the device wait.

A thread tokenises ahead of the device, and the vectors of one batch are copied back while the next
batch is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from abag.core.device import DevicePlan, current_device, to_device
from abag.embed.families.family import Encoder, PoolingEncoder
from abag.embed.packing import LayerPooling, Layout, PackedBatch, fill_batches, pool_tokens
from abag.embed.sequences.chains import Chains

AHEAD = 4
"""Batches tokenised in advance."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Pooled vectors of the sequences that a batch completed.

    Attributes
    ----------
    positions : ndarray, shape=(S,), dtype=int64
        Positions in the input; consecutive over batches.
    lengths : ndarray, shape=(N,), dtype=int32
        Tokens in each span of the batch.
    stored_SPD : ndarray, shape=(S, P, D)
        S sequences, P poolings, D values; float16 or float32.
    bad : tuple of int and str, or None
        Position of the first vector that must not be stored, and the problem: ``not finite``, or
        ``overflow`` or ``underflow`` (to zeros) of the stored type, where it is sound in fp32.
    """

    positions: NDArray[np.int64]
    lengths: NDArray[np.int32]
    stored_SPD: NDArray[np.float16 | np.float32]
    bad: tuple[int, str] | None


def encode_stream(
    encoder: Encoder,
    layout: Layout,
    chains: Iterable[Chains],
    plan: DevicePlan,
    budget: int,
    dtype: torch.dtype,
    layers: Sequence[int] = (),
) -> Iterator[Encoded]:
    """Encode sequences in the given order.

    Parameters
    ----------
    chains : iterable of tuple of str
        Best sorted by length, longest first: less padding, and memory runs out at once or never.
    budget : int
        Most tokens per batch.
    dtype : torch.dtype
        Type of the yielded vectors: float16 or float32.
    layers : sequence of int
        Layers whose poolings follow those of the last layer.

    Raises
    ------
    torch.OutOfMemoryError
        If a batch does not fit; vectors yielded before are valid.
    """
    carry: torch.Tensor | None = None
    pending: _Pending | None = None
    for batch in _prefetch(fill_batches(layout.numbered_spans(chains), budget)):
        with current_device(plan.device):  # not around the yield: the caller keeps its own
            pooled_SPD = _pooled(encoder, batch, plan, carry, layers)
            carry = pooled_SPD[-1].clone() if batch.continues else None
            latest = _Pending(batch, pooled_SPD, dtype)
        if pending is not None:
            yield pending.fetch()
        pending = latest
    if pending is not None:
        yield pending.fetch()


@torch.inference_mode()
def _pooled(
    encoder: Encoder,
    batch: PackedBatch,
    plan: DevicePlan,
    carry: torch.Tensor | None,
    layers: Sequence[int],
) -> torch.Tensor:
    """Pool a batch, shape (S, P, D); `carry` is the sum so far of its first sequence, (P, D)."""
    weights_TP = to_device(batch.weights, plan.device)
    bounds = to_device(batch.bounds.astype(np.int64), plan.device)
    if isinstance(encoder, PoolingEncoder):
        pooled_SPD = encoder.pool(batch)
    elif layers:
        layer_pooling = LayerPooling(layers, weights_TP, bounds)
        last_SPD = pool_tokens(encoder(batch, layer_pooling), weights_TP, bounds)
        pooled_SPD = torch.cat([last_SPD, *(layer_pooling.pooled[n] for n in layers)], dim=1)
    else:
        pooled_SPD = pool_tokens(encoder(batch), weights_TP, bounds)
    if carry is not None:
        pooled_SPD[0] += carry
    return pooled_SPD


class _Pending:
    """Pooled vectors that are being copied from the device."""

    def __init__(self, batch: PackedBatch, pooled_SPD: torch.Tensor, dtype: torch.dtype) -> None:
        done = len(batch.sequences) - batch.continues
        self._positions = batch.sequences[:done]
        self._lengths = np.diff(batch.offsets)
        stored_SPD = pooled_SPD[:done].to(dtype)
        lost_SP = pooled_SPD[:done].any(2) & ~stored_SPD.any(2)
        self._finite_S = _to_host(pooled_SPD[:done].isfinite().flatten(1).all(1))
        self._lost_S = _to_host(lost_SP.any(1))
        self._stored_SPD = _to_host(stored_SPD)
        self._copied: Any = None
        if pooled_SPD.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def fetch(self) -> Encoded:
        """Wait for the copy."""
        if self._copied is not None:
            self._copied.synchronize()
        stored_SPD = self._stored_SPD.numpy()
        bad = None
        infinite_S = ~np.isfinite(stored_SPD).all((1, 2))
        at_S = np.flatnonzero(infinite_S | self._lost_S.numpy())
        if len(at_S):
            at, problem = at_S[0], "underflow"
            if infinite_S[at]:
                problem = "overflow" if self._finite_S[at] else "not finite"
            bad = int(self._positions[at]), problem
        return Encoded(self._positions, self._lengths, stored_SPD, bad)


def _to_host(x: torch.Tensor) -> torch.Tensor:
    """Start copying to pinned host memory; a CPU tensor is returned as it is."""
    if not x.is_cuda:
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return host.copy_(x, non_blocking=True)


def _prefetch(batches: Iterable[PackedBatch]) -> Iterator[PackedBatch]:
    """Make batches in a thread, a few in advance; the thread ends with its consumer."""
    source = iter(batches)
    with ThreadPoolExecutor(1, "tokenise") as thread:
        ahead = deque(thread.submit(next, source, None) for _ in range(AHEAD))
        try:
            while (batch := ahead.popleft().result()) is not None:
                ahead.append(thread.submit(next, source, None))
                yield batch
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
