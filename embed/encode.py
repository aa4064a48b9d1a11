"""Missing sequences of one kind to committed vectors: batches, memory limits and progress.

The device never waits: a thread tokenises ahead of it, and the vectors of one batch are copied back
while the next batch is computed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from abag import AbagError
from abag.core.device import (
    DevicePlan,
    current_device,
    default_batch_tokens,
    measure_matmul_flops,
    to_device,
)
from abag.core.messages import bar, detail, note
from abag.embed.encoders.loading import build_encoder
from abag.embed.families.family import Encoder, PoolingEncoder
from abag.embed.job import KindJob
from abag.embed.packing import (
    LayerPooling,
    Layout,
    PackedBatch,
    ResidueWeights,
    fill_batches,
    longest_first,
    pool_tokens,
)
from abag.embed.ranks import Rank
from abag.embed.sequences.chains import Chains
from abag.embed.sequences.partitions import SequencePart
from abag.embed.store.store_files import note_speed
from abag.embed.store.writer import ShardWriter

AHEAD = 4
"""Batches tokenised in advance."""


STORED = {"float16": torch.float16, "float32": torch.float32}
"""Types of stored vectors by their names."""


class NonFiniteVector(AbagError):
    """An encoder returned NaN or infinity, or a value that float16 cannot hold."""


class DeviceFull(AbagError):
    """The device has too little memory for a sequence encoded alone."""


# --- sequences to vectors, batch by batch ---------------------------------------------------------


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
    extra: Sequence[ResidueWeights] | None = None,
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
    extra : sequence of tuple of ndarray, optional
        Weights of the residues of each sequence in one more pooling; see `Layout.spans`.

    Raises
    ------
    torch.OutOfMemoryError
        If a batch does not fit; vectors yielded before are valid.
    """
    carry: torch.Tensor | None = None
    pending: _Pending | None = None
    for batch in _prefetch(fill_batches(layout.numbered_spans(chains, extra), budget)):
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


# --- into the store -------------------------------------------------------------------------------


class EncodeProgress:
    """Counts what was encoded until the latest batch, and draws the bar; a context manager."""

    def __init__(self, job: KindJob, total: int, *, shown: bool) -> None:
        self.sequences = self.tokens = self.residues = 0
        self.seconds = 0.0
        self._flop = 0.0
        self._shape = job.identity.shape
        on_gpu = shown and job.plan.device.type == "cuda"
        self._peak = measure_matmul_flops(job.plan) if on_gpu else None
        self._start_s = time.perf_counter()
        title = f"{job.kind} · {job.identity.checkpoint.name}"
        hidden = {} if shown else {"disable": True}
        self._bar = bar(total=total, unit="seq", desc=title, **hidden)

    def __enter__(self) -> EncodeProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    @property
    def rate(self) -> str:
        """The speed so far, and on a GPU its share of the peak."""
        seconds = self.seconds or math.inf  # a clock can stand still
        peak = f", {self._flop / seconds / self._peak:.0%} of peak" if self._peak else ""
        return f"{self.tokens / seconds:,.0f} tokens/s{peak}"

    def advance(self, vectors: Encoded, residues: int, committed: int) -> None:
        """Count one batch; `committed` is the number of sequences committed so far."""
        self.sequences += len(vectors.positions)
        self.tokens += int(vectors.lengths.sum())
        self.residues += residues
        self._flop += self._shape.count_flops(vectors.lengths)
        self.seconds = time.perf_counter() - self._start_s
        self._bar.set_postfix_str(f"{self.rate}, {committed:,} committed", refresh=False)
        self._bar.update(len(vectors.positions))


def encode_share(job: KindJob, rank: Rank) -> float:
    """Encode what this process has to encode; return the seconds it took, loading included."""
    start_s = time.perf_counter()
    if not job.own:
        return 0.0
    encoder = build_encoder(job.identity, job.plan, job.backend, job.options.attention)
    load_s = time.perf_counter() - start_s
    with EncodeProgress(job, job.own, shown=not rank.number) as progress:
        encode_parts(job, encoder, job.own_parts(), progress)
    device = str(job.plan.device)
    note_speed(job.folder.path, progress.residues, progress.seconds, device)
    name = f"{rank}: {progress.sequences:,} " if rank.world > 1 else ""
    detail(
        f"{name}{job.plural}: {progress.tokens:,} tokens; loaded in {load_s:.1f} s, encoded in "
        f"{progress.seconds:.2f} s = {progress.rate}"
    )
    return time.perf_counter() - start_s


def encode_parts(
    job: KindJob,
    encoder: Encoder,
    parts: Iterable[SequencePart],
    progress: EncodeProgress,
) -> None:
    """Encode sequences that are not stored yet, longest of each part first, and commit them.

    Raises
    ------
    NonFiniteVector
        If a vector cannot be stored; the vectors before it are committed.
    DeviceFull
        If a sequence does not fit into the device's memory even alone; those before it are stored.
    """
    attrs = {
        "precision": job.plan.precision,
        "device": str(job.plan.device),
        "backend": job.backend,
    }
    with job.folder.writer(attrs=attrs, commit_seconds=job.options.commit_seconds) as writer:
        encoding = _Encoding(job, encoder, writer, progress)
        for part in parts:
            encoding.encode(part)
    if encoding.unnumbered:
        note(
            "cdr_mean leaves out chains without IMGT numbering (antibodies with such a chain: "
            f"{encoding.unnumbered:,}); without any numbered chain, it is the mean"
        )


class _Encoding:
    """Encodes parts into a store, within the token budget that turned out to fit the device."""

    def __init__(
        self, job: KindJob, encoder: Encoder, writer: ShardWriter, progress: EncodeProgress
    ) -> None:
        self._job, self._encoder, self._writer, self._progress = job, encoder, writer, progress
        self._budget = job.options.batch_tokens or default_batch_tokens(job.plan)
        self.unnumbered = 0  # antibodies with a chain whose CDRs are unknown

    def encode(self, part: SequencePart) -> None:
        job = self._job
        lengths = [max(job.identity.layout.span_lengths(chains)) for chains in part.chains]
        todo, extra = longest_first(lengths), None
        if job.extra_poolings:
            from abag.embed.cdr import weigh_cdrs

            extra, unnumbered = weigh_cdrs(part.chains)
            self.unnumbered += unnumbered
        while len(todo):
            done, longest = 0, lengths[todo[0]]
            budget = max(self._budget, longest)
            stream = encode_stream(
                self._encoder, job.identity.layout, [part.chains[i] for i in todo], job.plan,
                budget, STORED[job.options.store_dtype], job.folder.layers,
                None if extra is None else [extra[i] for i in todo],
            )  # fmt: skip
            try:
                for vectors in stream:
                    self._store(part, todo, vectors)
                    done += len(vectors.positions)
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                if budget <= lengths[todo[done]]:  # a batch of its own
                    raise _device_full(job, _name(job, part, int(todo[done])), budget) from error
                if job.plan.device.type == "cuda":
                    torch.cuda.empty_cache()
                self._budget = max(budget // 2, lengths[todo[done]])
                note(
                    f"out of memory with {budget:,} tokens per batch; continuing with "
                    f"{self._budget:,}"
                )
            todo = todo[done:]

    def _store(self, part: SequencePart, todo: NDArray[np.int64], vectors: Encoded) -> None:
        """Hand the vectors of a batch to the writer, and count them."""
        job, at = self._job, todo[vectors.positions]
        if vectors.bad is not None:
            position, problem = vectors.bad
            raise _not_finite(job, _name(job, part, int(todo[position])), problem)
        residues = np.array([sum(map(len, part.chains[i])) for i in at], dtype=np.int32)
        poolings = {name: vectors.stored_SPD[:, p] for p, name in enumerate(job.poolings)}
        flags = {}
        if job.kind == "antibody":  # without a light chain, `light_mean` is zeros
            present = np.array([[bool(c) for c in part.chains[i]] for i in at], dtype=np.uint8)
            flags = {"has_heavy": present[:, 0].copy(), "has_light": present[:, 1].copy()}
        self._writer.add(part.keys[at], residues, poolings, flags)
        self._progress.advance(vectors, int(residues.sum()), self._writer.committed)


def _device_full(job: KindJob, name: str, tokens: int) -> DeviceFull:
    return DeviceFull(
        f"{name}, {tokens:,} tokens: out of memory on {job.plan.device} even alone; the sequences "
        "encoded before it are stored. Cut or remove it, or use a device with more memory."
    )


def _is_out_of_memory(error: Exception) -> bool:
    # On a CPU torch raises a plain RuntimeError.
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "can't allocate memory" in str(error)


def _name(job: KindJob, part: SequencePart, sequence: int) -> str:
    text = "|".join(part.chains[sequence])
    if len(text) > 24:
        text = f"{text[:12]}...{text[-6:]} ({len(text)} characters)"
    return f"row {part.rows[sequence]}: {job.kind} {text}"


def _not_finite(job: KindJob, name: str, problem: str) -> NonFiniteVector:
    if problem == "not finite":
        return NonFiniteVector(
            f"{name}: {job.identity.checkpoint.name} in {job.plan.precision} returned NaN or "
            "infinity; its vector was not stored. Give --precision fp32, or check the checkpoint's "
            "weights."
        )
    what = {
        "overflow": "a value of its vector exceeds the float16 maximum of 65,504",
        "underflow": "all values of its vector are below the float16 minimum of 6e-8 and would be "
        "stored as 0",
    }[problem]
    return NonFiniteVector(f"{name}: {what}; give --store-dtype float32")
