"""Missing sequences of one kind to committed vectors: batches, memory limits and progress."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from abag import AbagError
from abag.core.device import default_batch_tokens, measure_matmul_flops
from abag.core.messages import bar, note
from abag.embed.encoders.loading import count_flops
from abag.embed.families.family import Encoder
from abag.embed.packing.batches import longest_first
from abag.embed.pipeline.stream import BadVector, Encoded, encode_stream
from abag.embed.pipeline.task import EncodeTask
from abag.embed.sequences.partitions import SequencePart
from abag.embed.store.writer import ShardWriter

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

    def __init__(self, task: EncodeTask, total: int, *, shown: bool) -> None:
        self.sequences = self.tokens = self.residues = 0
        self.seconds = 0.0
        self._flop = 0.0
        self._checkpoint = task.identity.checkpoint
        on_gpu = shown and task.plan.device.type == "cuda"
        self._peak = measure_matmul_flops(task.plan) if on_gpu else None
        self._start_s = time.perf_counter()
        title = f"{task.kind} · {self._checkpoint.name}"
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
        self._flop += count_flops(self._checkpoint, vectors.lengths)
        self.seconds = time.perf_counter() - self._start_s
        self._bar.set_postfix_str(f"{self.rate}, {committed:,} committed", refresh=False)
        self._bar.update(len(vectors.positions))


def encode_parts(
    task: EncodeTask,
    encoder: Encoder,
    parts: Iterable[SequencePart],
    progress: EncodeProgress,
    job: str = "",
) -> None:
    """Encode sequences that are not stored yet, longest of each part first, and commit them.

    `job` names the job of several ranks that this process belongs to (`Rank.job_digest`).

    Raises
    ------
    NonFiniteVector
        If a vector cannot be stored; the vectors before it are committed.
    DeviceFull
        If sequences do not fit into the device's memory even alone; the others are stored, unless
        there are `MOST_TOO_LONG` such sequences.
    """
    attrs = {
        "precision": task.plan.precision,
        "device": str(task.plan.device),
        "backend": task.identity.family.effective_backend(task.options.backend(task.kind)),
    }
    if job:
        attrs["job"] = job
    budget = task.options.batch_tokens or default_batch_tokens(task.plan)
    too_long: list[str] = []
    with task.folder.writer(attrs=attrs, commit_seconds=task.options.commit_seconds) as writer:
        for part in parts:
            budget = _encode_part(task, encoder, part, budget, writer, progress, too_long)
        if too_long:
            raise _device_full(task, too_long)


def _encode_part(
    task: EncodeTask,
    encoder: Encoder,
    part: SequencePart,
    budget: int,
    writer: ShardWriter,
    progress: EncodeProgress,
    too_long: list[str],
) -> int:
    """Encode one part; return the token budget that turned out to fit the device.

    Sequences that do not fit even alone are named in `too_long`, and the others are encoded.
    """
    layout, dtype = task.identity.layout, STORED[task.options.store_dtype]
    lengths = [max(layout.span_lengths(chains)) for chains in part.chains]
    todo, alone = longest_first(lengths), False
    while len(todo):
        done, longest = 0, lengths[todo[0]]
        alone = alone or (task.options.batch_tokens is None and longest > budget)
        try:
            chains = [part.chains[i] for i in (todo[:1] if alone else todo)]
            limit = longest if alone else budget
            stream = encode_stream(encoder, layout, chains, task.plan, limit, dtype, task.layers)
            for vectors in stream:
                residues = _store(task, part, todo, vectors, writer)
                done += len(vectors.positions)
                progress.advance(vectors, residues, writer.committed)
            alone = False
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            if task.plan.device.type == "cuda":
                torch.cuda.empty_cache()
            if alone:
                too_long.append(f"{_name(task, part, int(todo[0]))}, {longest:,} tokens")
                if len(too_long) == MOST_TOO_LONG:
                    raise _device_full(task, too_long) from error
                done, alone = 1, False
            elif budget // 2 < lengths[todo[done]]:
                alone = True
            else:
                note(
                    f"out of memory with {budget:,} tokens per batch; continuing with "
                    f"{budget // 2:,}"
                )
                budget //= 2
        todo = todo[done:]
    return budget


def _is_out_of_memory(error: Exception) -> bool:
    # On a CPU torch raises a plain RuntimeError.
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "can't allocate memory" in str(error)


def _device_full(task: EncodeTask, too_long: list[str]) -> DeviceFull:
    more = f" and {len(too_long) - 1} more" * (len(too_long) > 1)
    stopped = len(too_long) == MOST_TOO_LONG
    rest = "stopped there" if stopped else f"the other {task.kind} sequences are stored"
    return DeviceFull(
        f"{too_long[0]}{more}: out of memory on {task.plan.device} even alone; {rest}. "
        "Cut or remove these sequences, or use a device with more memory."
    )


def _store(
    task: EncodeTask,
    part: SequencePart,
    todo: NDArray[np.int64],
    vectors: Encoded,
    writer: ShardWriter,
) -> int:
    """Hand the vectors of a batch to the writer; return their number of residues."""
    at = todo[vectors.positions]
    if vectors.bad is not None:
        raise _not_finite(task, part, int(todo[vectors.bad.position]), vectors.bad)
    residues = np.array([sum(map(len, part.chains[i])) for i in at], dtype=np.int32)
    poolings = {name: vectors.stored_SPD[:, p] for p, name in enumerate(task.poolings)}
    writer.add(part.keys[at], residues, poolings, _chain_flags(task, part, at))
    return int(residues.sum())


def _name(task: EncodeTask, part: SequencePart, sequence: int) -> str:
    text = "|".join(part.chains[sequence])
    if len(text) > 24:
        text = f"{text[:12]}...{text[-6:]} ({len(text)} characters)"
    return f"row {part.rows[sequence]}: {task.kind} {text}"


def _not_finite(
    task: EncodeTask, part: SequencePart, sequence: int, bad: BadVector
) -> NonFiniteVector:
    name = _name(task, part, sequence)
    if bad.problem == "overflow":
        return NonFiniteVector(
            f"{name}: a value of its vector exceeds the float16 maximum of 65,504; "
            "give --store-dtype float32"
        )
    if bad.problem == "underflow":
        return NonFiniteVector(
            f"{name}: all values of its vector are below the float16 minimum of 6e-8 and would be "
            "stored as 0; give --store-dtype float32"
        )
    return NonFiniteVector(
        f"{name}: {task.identity.checkpoint.name} in {task.plan.precision} returned NaN or "
        "infinity; its vector was not stored. Give --precision fp32, or check the checkpoint's "
        "weights."
    )


def _chain_flags(
    task: EncodeTask, part: SequencePart, at: NDArray[np.int64]
) -> dict[str, NDArray[np.uint8]]:
    """Say which chains each antibody has: without a light chain, its `light_mean` is zeros."""
    if task.kind != "antibody":
        return {}
    present = np.array([[bool(c) for c in part.chains[i]] for i in at], dtype=np.uint8)
    return {"has_heavy": present[:, 0].copy(), "has_light": present[:, 1].copy()}
