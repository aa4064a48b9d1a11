"""Missing sequences of one kind to committed vectors: batches, memory limits and progress."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from abag import AbagError
from abag.core.device import default_batch_tokens, measure_matmul_flops
from abag.core.messages import bar, detail, note
from abag.embed.encoders.loading import build_encoder
from abag.embed.families.family import Encoder
from abag.embed.job import KindJob
from abag.embed.packing import longest_first
from abag.embed.ranks import Rank
from abag.embed.sequences.partitions import SequencePart
from abag.embed.store import status
from abag.embed.store.writer import ShardWriter
from abag.embed.stream import Encoded, encode_stream

MOST_TOO_LONG = 10
"""Sequences that do not fit alone after which the device is taken to be too small for any."""
STORED = {"float16": torch.float16, "float32": torch.float32}
"""Types of stored vectors by their names."""


class NonFiniteVector(AbagError):
    """An encoder returned NaN or infinity, or a value that float16 cannot hold."""


class DeviceFull(AbagError):
    """The device has too little memory for some sequences, each encoded alone."""


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
    if not rank.number:
        status.start_encoding(job.folder.path)
    with EncodeProgress(job, job.own, shown=not rank.number) as progress:
        encode_parts(job, encoder, job.own_parts(), progress, rank.job_digest)
    device = str(job.plan.device)
    status.note_speed(job.folder.path, progress.residues, progress.seconds, device)
    name = f"{rank}: " if rank.world > 1 else ""
    detail(
        f"{name}{progress.sequences:,} {job.plural}, {progress.tokens:,} tokens; loaded in "
        f"{load_s:.1f} s, encoded in {progress.seconds:.2f} s = {progress.rate}"
    )
    return time.perf_counter() - start_s


def encode_parts(
    job: KindJob,
    encoder: Encoder,
    parts: Iterable[SequencePart],
    progress: EncodeProgress,
    job_digest: str = "",
) -> None:
    """Encode sequences that are not stored yet, longest of each part first, and commit them.

    `job_digest` names the job of several ranks that this process belongs to (`Rank.job_digest`).

    Raises
    ------
    NonFiniteVector
        If a vector cannot be stored; the vectors before it are committed.
    DeviceFull
        If sequences do not fit into the device's memory even alone; the others are stored, unless
        there are `MOST_TOO_LONG` such sequences.
    """
    attrs = {
        "precision": job.plan.precision,
        "device": str(job.plan.device),
        "backend": job.backend,
    }
    if job_digest:
        attrs["job"] = job_digest
    with job.folder.writer(attrs=attrs, commit_seconds=job.options.commit_seconds) as writer:
        encoding = _Encoding(job, encoder, writer, progress)
        for part in parts:
            encoding.encode(part)
        if encoding.too_long:
            raise encoding.device_full()


class _Encoding:
    """Encodes parts into a store, within the token budget that turned out to fit the device.

    Sequences that do not fit even alone are named in `too_long`, and the others are encoded.
    """

    def __init__(
        self, job: KindJob, encoder: Encoder, writer: ShardWriter, progress: EncodeProgress
    ) -> None:
        self._job, self._encoder, self._writer, self._progress = job, encoder, writer, progress
        self._budget = job.options.batch_tokens or default_batch_tokens(job.plan)
        self.too_long: list[str] = []

    def encode(self, part: SequencePart) -> None:
        job = self._job
        lengths = [max(job.identity.layout.span_lengths(chains)) for chains in part.chains]
        todo, alone = longest_first(lengths), False
        while len(todo):
            done, longest = 0, lengths[todo[0]]
            alone = alone or (job.options.batch_tokens is None and longest > self._budget)
            try:
                for vectors in self._vectors(part, todo, longest if alone else 0):
                    self._store(part, todo, vectors)
                    done += len(vectors.positions)
                alone = False
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                if job.plan.device.type == "cuda":
                    torch.cuda.empty_cache()
                if alone:
                    self.too_long.append(f"{_name(job, part, int(todo[0]))}, {longest:,} tokens")
                    if len(self.too_long) == MOST_TOO_LONG:
                        raise self.device_full() from error
                    done, alone = 1, False
                elif self._budget // 2 < lengths[todo[done]]:
                    alone = True
                else:
                    half = self._budget // 2
                    note(
                        f"out of memory with {self._budget:,} tokens per batch; continuing with "
                        f"{half:,}"
                    )
                    self._budget = half
            todo = todo[done:]

    def _vectors(
        self, part: SequencePart, todo: NDArray[np.int64], alone: int
    ) -> Iterator[Encoded]:
        """Encode the sequences `todo` of a part; or the first of them, of `alone` tokens."""
        job = self._job
        chains = [part.chains[i] for i in (todo[:1] if alone else todo)]
        return encode_stream(
            self._encoder, job.identity.layout, chains, job.plan, alone or self._budget,
            STORED[job.options.store_dtype], job.folder.layers,
        )  # fmt: skip

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

    def device_full(self) -> DeviceFull:
        first, more = self.too_long[0], len(self.too_long) - 1
        stopped = len(self.too_long) == MOST_TOO_LONG
        rest = "stopped there" if stopped else f"the other {self._job.kind} sequences are stored"
        return DeviceFull(
            f"{first}{f' and {more} more' * bool(more)}: out of memory on "
            f"{self._job.plan.device} even alone; {rest}. "
            "Cut or remove these sequences, or use a device with more memory."
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
