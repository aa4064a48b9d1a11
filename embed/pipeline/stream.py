"""Sequences to stored vectors, a batch at a time, with the device never waiting.

A thread tokenises ahead; the device encodes and pools; a batch's vectors travel back while the
next batch is computed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from abag.core.device import DevicePlan, current, send
from abag.embed.encoders.registry import Encoder
from abag.embed.packing.batches import PackedBatch, fill
from abag.embed.packing.pooling import Taps, pool
from abag.embed.packing.tokens import Layout, TokenRun
from abag.embed.sequences.chains import Chains

AHEAD = 4  # batches tokenised before the device asks for them


class Bad(NamedTuple):
    """A sequence whose vector must not be stored, and whether fp32 would have held it."""

    position: int
    overflow: bool


@dataclass(frozen=True, slots=True)
class Encoded:
    """Pooled vectors of sequences that are complete.

    Attributes
    ----------
    positions : ndarray, shape=(S,), dtype=int64
        Positions among the sequences given; consecutive over batches.
    lengths : ndarray, shape=(N,), dtype=int32
        Tokens in each piece of the batch.
    stored_SPD : ndarray, shape=(S, P, D)
        In the type asked for.
    bad : Bad or None
        The first sequence with a value that is not finite.
    """

    positions: NDArray[np.int64]
    lengths: NDArray[np.int32]
    stored_SPD: NDArray[np.float16 | np.float32]
    bad: Bad | None


def encode_stream(
    encoder: Encoder,
    layout: Layout,
    chains: Iterable[Chains],
    plan: DevicePlan,
    budget: int,
    dtype: torch.dtype,
    layers: Sequence[int] = (),
) -> Iterator[Encoded]:
    """Encode sequences in the order given.

    Parameters
    ----------
    chains : iterable of tuple of str
        Longest first keeps padding and surprises small.
    budget : int
        Most tokens in a batch.
    dtype : torch.dtype
        float16 or float32, of the vectors yielded.
    layers : sequence of int
        Layers whose poolings follow those of the last in the vectors yielded.
    """
    carry: torch.Tensor | None = None
    pending: _Pending | None = None
    for batch in _prefetch(fill(_pieces(layout, chains), budget)):
        with current(plan.device):  # not around the yield: it would reach into the caller
            pooled_SPD = _pooled(encoder, batch, plan, carry, layers)
            carry = pooled_SPD[-1].clone() if batch.continues else None
            latest = _Pending(batch, pooled_SPD, dtype)
        if pending is not None:
            yield pending.fetch()
        pending = latest
    if pending is not None:
        yield pending.fetch()


def _pieces(layout: Layout, chains: Iterable[Chains]) -> Iterator[tuple[int, TokenRun]]:
    """Tokenise sequence by sequence, as batches ask for more."""
    for position, sequence in enumerate(chains):
        for piece in layout.pieces(sequence):
            yield position, piece


@torch.inference_mode()
def _pooled(
    encoder: Encoder,
    batch: PackedBatch,
    plan: DevicePlan,
    carry: torch.Tensor | None,
    layers: Sequence[int],
) -> torch.Tensor:
    """Pool a batch; `carry` is what earlier batches summed of its first sequence."""
    weights_TP = send(batch.weights, plan.device)
    bounds = send(batch.bounds.astype(np.int64), plan.device)
    if layers:
        taps = Taps(layers, weights_TP, bounds)
        last_SPD = pool(encoder(batch, taps), weights_TP, bounds)
        pooled_SPD = torch.cat([last_SPD, *(taps.pooled[n] for n in layers)], dim=1)
    else:
        pooled_SPD = pool(encoder(batch), weights_TP, bounds)
    if carry is not None:
        pooled_SPD[0] += carry
    return pooled_SPD


class _Pending:
    """Pooled vectors on their way from the device."""

    def __init__(self, batch: PackedBatch, pooled_SPD: torch.Tensor, dtype: torch.dtype) -> None:
        done = len(batch.sequences) - batch.continues
        self._positions = batch.sequences[:done]
        self._lengths = np.diff(batch.offsets)
        self._finite_S = _to_host(pooled_SPD[:done].isfinite().flatten(1).all(1))
        self._stored_SPD = _to_host(pooled_SPD[:done].to(dtype))
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
        at_S = np.flatnonzero(~np.isfinite(stored_SPD).all((1, 2)))
        if len(at_S):
            bad = Bad(int(self._positions[at_S[0]]), bool(self._finite_S[at_S[0]]))
        return Encoded(self._positions, self._lengths, stored_SPD, bad)


def _to_host(x: torch.Tensor) -> torch.Tensor:
    """Start copying to pinned memory; on a CPU there is nothing to copy."""
    if not x.is_cuda:
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return host.copy_(x, non_blocking=True)


def _prefetch(batches: Iterable[PackedBatch]) -> Iterator[PackedBatch]:
    """Make batches in a thread, a few ahead of the device; ends with its consumer."""
    queue: Queue[PackedBatch | BaseException | None] = Queue(maxsize=AHEAD)
    stopped = threading.Event()

    def offer(item: PackedBatch | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                queue.put(item, timeout=0.1)
            except Full:
                continue
            return

    def produce() -> None:
        try:
            for batch in batches:
                offer(batch)
                if stopped.is_set():
                    return
            offer(None)
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer
            offer(error)

    thread = threading.Thread(target=produce, name="tokenise", daemon=True)
    thread.start()
    try:
        while (item := _taken(queue)) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


def _taken(
    queue: Queue[PackedBatch | BaseException | None],
) -> PackedBatch | BaseException | None:
    """Wait in short steps: a signal is only seen between them."""
    while True:
        try:
            return queue.get(timeout=0.2)
        except Empty:
            continue
