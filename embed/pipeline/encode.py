"""One encoder's missing sequences to committed vectors: memory, progress, and what to refuse."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from abag import AbagError
from abag.core.device import DevicePlan, default_budget, matmul_peak
from abag.embed.encoders.registry import (
    Encoder,
    Identity,
    backend_that_runs,
    depth,
    flop,
    load_encoder,
)
from abag.embed.packing.batches import longest_first
from abag.embed.pipeline.stream import Encoded, encode_stream
from abag.embed.sequences.chains import Chains
from abag.embed.sequences.partitions import SequencePart
from abag.embed.store.store import EncoderFolder, ShardWriter, Store
from abag.embed.weights.adapters import keep_adapter

if TYPE_CHECKING:
    from abag.embed.pipeline.options import EmbedOptions

MOST_LAYERS = 14
"""With four poolings each they fill a shard's 64 datasets."""
_DTYPES = {"float16": torch.float16, "float32": torch.float32}


class NonFiniteVector(AbagError):
    """An encoder returned NaN or infinity, or a value that float16 cannot hold."""


class AbsentLayer(AbagError):
    """A layer that no encoder has."""


class PoolingsMismatch(AbagError):
    """A store begun with the poolings of other layers."""


class MixedPrecision(AbagError):
    """A store begun in another precision, and mixing was forbidden."""


class DeviceFull(AbagError):
    """Not enough device memory for the longest sequence alone."""


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Who encodes what, how, and into which folder of the store."""

    identity: Identity
    folder: EncoderFolder
    plan: DevicePlan
    options: EmbedOptions

    @property
    def kind(self) -> str:
        """``antibody`` or ``antigen``."""
        return self.identity.layout.kind

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose poolings are stored beside those of the last."""
        return tuple(self.folder.info.get("layers", ()))

    @property
    def poolings(self) -> tuple[str, ...]:
        """Every pooling that is stored, in the order in which the encoder gives them."""
        last = self.identity.layout.poolings
        return (*last, *(f"{name}@{n}" for n in self.layers for name in last))


def loaded(task: EncodeTask) -> Encoder:
    """Load a task's encoder onto its device."""
    options = task.options
    return load_encoder(
        task.identity,
        task.plan,
        backend=options.backend(task.identity.layout.kind),
        attention=options.attention,
    )


def find_folder(store: Store, identity: Identity, options: EmbedOptions) -> EncoderFolder:
    """Find the folder of an encoder; one that is not there is empty, and nothing is written.

    Raises
    ------
    PoolingsMismatch
    """
    return store.find_folder(identity.layout.kind, _info(store, identity, options))


def begin_folder(store: Store, identity: Identity, options: EmbedOptions) -> EncoderFolder:
    """Open the folder of an encoder, made as these options ask if it is not there.

    Raises
    ------
    PoolingsMismatch
    """
    folder = store.create_folder(identity.layout.kind, _info(store, identity, options))
    keep_adapter(identity.checkpoint, folder)
    return folder


def _info(store: Store, identity: Identity, options: EmbedOptions) -> dict[str, object]:
    layers = _layers(store, identity, options)
    return identity.info() | ({"layers": list(layers)} if layers else {})


def refuse_absent_layers(identities: Sequence[Identity], asked: tuple[int, ...] | None) -> None:
    """Each layer asked for must be in one encoder at least, and fit into a shard."""
    depths = {i.checkpoint.name: depth(i.checkpoint) for i in identities}
    bad = [n for n in asked or () if not 1 <= n <= max(depths.values())]
    if bad or len(asked or ()) > MOST_LAYERS:
        have = " and ".join(f"{name} has {n}" for name, n in depths.items())
        drop = bad[0] if bad else "some"
        msg = (
            f"--layers {','.join(map(str, asked or ()))}: {have} layers; expected at most "
            f"{MOST_LAYERS} numbers, each a layer of one of them, the first being 1. "
            f"Leave out {drop}."
        )
        raise AbsentLayer(msg)


def _layers(store: Store, identity: Identity, options: EmbedOptions) -> tuple[int, ...]:
    """Which layers' poolings to store: those that the folder was begun with, or those asked for.

    Raises
    ------
    PoolingsMismatch
        All shards of a folder hold the same poolings.
    """
    last = depth(identity.checkpoint)
    asked = tuple(n for n in sorted(set(options.layers or ())) if n <= last)
    for folder in store.folders(identity.layout.kind):
        if folder.fingerprint == identity.fingerprint:
            held = tuple(folder.info.get("layers", ()))
            if options.layers is not None and asked != held:
                begun = f"--layers {','.join(map(str, held))}" if held else "the last layer only"
                msg = (
                    f"{folder.path}: begun with {begun}, --layers {','.join(map(str, asked))} was "
                    "asked for; one store holds the same poolings of all sequences. Leave --layers "
                    "out to go on, or give a new --store."
                )
                raise PoolingsMismatch(msg)
            return held
    return asked


def check_precision(task: EncodeTask) -> str:
    """Say where a store goes on in another precision than it was begun in (T4, then A100).

    Raises
    ------
    MixedPrecision
        Where `strict_precision` forbids it.
    """
    others = {str(block.attrs.get("precision")) for block in task.folder.blocks()}
    others -= {task.plan.precision}
    if not others:
        return ""
    begun = ", ".join(sorted(others))
    text = f"{task.folder.path.name}: begun in {begun}, goes on in {task.plan.precision}"
    if task.options.strict_precision:
        msg = f"{text}; give --precision {min(others)}, or leave out --strict-precision"
        raise MixedPrecision(msg)
    return text


def encode_parts(
    task: EncodeTask, encoder: Encoder, parts: Iterable[SequencePart], bar: Bar
) -> None:
    """Encode sequences and commit their vectors.

    Parameters
    ----------
    parts : iterable of Part
        Nothing that is stored already; encoded one after the other, longest sequences first.
    bar : Bar
        Kept up to date.

    Raises
    ------
    NonFiniteVector, DeviceFull
    """
    options, layout = task.options, task.identity.layout
    attrs = {
        "precision": task.plan.precision,
        "device": str(task.plan.device),
        "backend": backend_that_runs(task.identity, options.backend(layout.kind)),
    }
    budget = options.batch_tokens or default_budget(task.plan)
    with task.folder.writer(attrs=attrs, commit_seconds=options.commit_seconds) as writer:
        for part in parts:
            budget = _encode_part(task, encoder, part, budget, writer, bar)


def _encode_part(
    task: EncodeTask,
    encoder: Encoder,
    part: SequencePart,
    budget: int,
    writer: ShardWriter,
    bar: Bar,
) -> int:
    """Encode a part; returns the tokens a batch that the device was found to hold."""
    layout, dtype = task.identity.layout, _DTYPES[task.options.store_dtype]
    lengths = [max(layout.piece_lengths(chains)) for chains in part.chains]
    longest = max(lengths, default=0)
    if task.options.batch_tokens is None:
        budget = max(budget, longest)
    todo = longest_first(lengths)
    while len(todo):
        done = 0
        try:
            chains = (part.chains[i] for i in todo)
            for vectors in encode_stream(
                encoder, layout, chains, task.plan, budget, dtype, task.layers
            ):
                bar.residues += _store(task, part, todo, vectors, writer)
                done += len(vectors.positions)
                bar.advance(vectors, writer.committed)
        except torch.OutOfMemoryError:
            budget = _halved(budget, longest, task)
            torch.cuda.empty_cache()
        todo = todo[done:]
    return budget


def _store(
    task: EncodeTask,
    part: SequencePart,
    todo: NDArray[np.int64],
    vectors: Encoded,
    writer: ShardWriter,
) -> int:
    """Hand a batch's vectors to the writer, unless one is not to be stored; returns residues."""
    at = todo[vectors.positions]
    if vectors.bad is not None:
        raise _not_finite(
            task, part, int(todo[vectors.bad.position]), overflow=vectors.bad.overflow
        )
    residues = np.array([sum(map(len, part.chains[i])) for i in at], dtype=np.int32)
    writer.add(
        part.keys[at],
        residues,
        {name: vectors.stored_SPD[:, p] for p, name in enumerate(task.poolings)},
        _flags(task, part, at),
    )
    return int(residues.sum())


def _halved(budget: int, longest: int, task: EncodeTask) -> int:
    """Go on with half the tokens a batch, or give up where a single sequence does not fit."""
    if budget // 2 < longest:
        msg = (
            f"out of memory on {task.plan.device} with {budget} tokens a batch, and the longest "
            f"{task.kind} alone takes {longest}; what was encoded is stored; "
            "go on with --device cpu, or free the device's memory"
        )
        raise DeviceFull(msg)
    print(
        f"note: out of memory with {budget:,} tokens a batch; going on with {budget // 2:,}",
        file=sys.stderr,
    )
    return budget // 2


def _not_finite(
    task: EncodeTask, part: SequencePart, sequence: int, *, overflow: bool
) -> NonFiniteVector:
    name = f"row {part.rows[sequence]}: {task.kind} {_shown(part.chains[sequence])}"
    if overflow:
        return NonFiniteVector(
            f"{name}: a value of its vector exceeds float16's 65,504; give --store-dtype float32"
        )
    return NonFiniteVector(
        f"{name}: {task.identity.checkpoint.name} in {task.plan.precision} gave NaN or infinity; "
        "nothing of it was stored; give --precision fp32, or check the checkpoint's weights"
    )


def _shown(chains: Chains) -> str:
    text = "|".join(chains)
    return text if len(text) <= 24 else f"{text[:12]}...{text[-6:]} ({len(text)} characters)"


def _flags(
    task: EncodeTask, part: SequencePart, at: NDArray[np.int64]
) -> dict[str, NDArray[np.uint8]]:
    """Which chains an antibody has: a zero `light_mean` is an absent chain, not a vector."""
    if task.kind != "antibody":
        return {}
    present = np.array([[bool(c) for c in part.chains[i]] for i in at], dtype=np.uint8)
    return {"has_heavy": present[:, 0].copy(), "has_light": present[:, 1].copy()}


class Bar:
    """Progress on stderr: sequences, tokens a second, share of the matrix units, time left.

    Attributes
    ----------
    sequences, tokens, residues : int
        Encoded so far.
    seconds : float
        Since the bar was made, at the last batch.
    """

    def __init__(self, task: EncodeTask, total: int, *, shown: bool) -> None:
        self.sequences = self.tokens = self.residues = 0
        self.seconds = 0.0
        self._flop = 0.0
        self._checkpoint = task.identity.checkpoint
        on_gpu = shown and task.plan.device.type == "cuda"
        self._peak = matmul_peak(task.plan) if on_gpu else None
        self._start_s = time.perf_counter()
        self._bar = tqdm(
            total=total,
            unit="seq",
            desc=f"{task.kind} · {self._checkpoint.name}",
            disable=not shown,
            dynamic_ncols=True,
        )

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def advance(self, vectors: Encoded, committed: int) -> None:
        """Count a batch."""
        self.sequences += len(vectors.positions)
        self.tokens += int(vectors.lengths.sum())
        self._flop += flop(self._checkpoint, vectors.lengths)
        self.seconds = seconds = time.perf_counter() - self._start_s
        share = f", {self._flop / seconds / self._peak:.0%} of peak" if self._peak else ""
        text = f"{self.tokens / seconds:,.0f} tokens/s{share}, {committed:,} safe"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(len(vectors.positions))
