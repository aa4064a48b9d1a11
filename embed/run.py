"""Stage one: a table's unique sequences, encoded once, into a store.

What is stored already is never encoded again; what is encoded is handed to the store's writer
at once; stopping at any moment loses at most what was not yet committed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from abag import AbagError
from abag.embed.adapters import keep_adapter
from abag.embed.attention import choose_attention
from abag.embed.batches import BatchTooLarge, longest_first
from abag.embed.device import Plan, Precision, choose, default_budget, matmul_peak
from abag.embed.encoders import (
    Backend,
    Identity,
    backend_that_runs,
    check_backend,
    depth,
    flop,
    identify,
    load_encoder,
)
from abag.embed.sequences import Chains, Kind, PairTable, TableOptions, UniqueSequences, read_pairs
from abag.embed.store import EncoderFolder, ShardWriter, Store, open_store
from abag.embed.stream import Encoded, encode_stream
from abag.embed.tokens import LongPolicy, SequenceTooLong

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_LAYERS = 14
"""With four poolings each they fill a shard's 64 datasets."""
_DTYPES = {"float16": torch.float16, "float32": torch.float32}


class NonFiniteVector(AbagError):
    """An encoder returned NaN or infinity, or a value that float16 cannot hold."""


class DeviceFull(AbagError):
    """Not enough device memory for the longest sequence alone."""


class AbsentLayer(AbagError):
    """A layer that no encoder has."""


class PoolingsMismatch(AbagError):
    """A store begun with the poolings of other layers."""


class MixedPrecision(AbagError):
    """A store begun in another precision, and mixing was forbidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedOptions:
    """Options of stage one."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Role to column name, where detection must be helped."""
    antigen: str | None = None
    """One antigen for a table without an antigen column."""
    limit: int | None = None
    """Take the first rows only; None: all."""
    bad_rows: Literal["error", "skip"] = "error"
    """Refuse the table for a bad row, or skip and count it."""
    long_antigens: LongPolicy = "window"
    """What happens to chains longer than 1,022 residues."""
    device: str = "auto"
    precision: Precision = "auto"
    strict_precision: bool = False
    """Refuse to add to a store begun in another precision."""
    antibody_backend: Backend = "packed"
    """Our packed encoders, or transformers' own modules."""
    antigen_backend: Backend = "packed"
    """The same, or FAESM's modules, which know ESM-2 only."""
    antibody_adapter: Path | str | None = None
    """Folder of an adapter to merge into the antibody encoder; None: the encoder as it is."""
    antigen_adapter: Path | str | None = None
    """The same for the antigen encoder."""
    layers: tuple[int, ...] | None = None
    """Layers whose poolings are stored too, as ``mean@24``; each encoder takes those it has. None:
    those that the store was begun with."""
    attention: str = "auto"
    """Attention kernel: triton, flash-attn, varlen, sdpa; auto: the fastest that runs here."""
    batch_tokens: int | None = None
    """Most tokens in a batch; None: chosen from the device."""
    commit_seconds: float = 30.0
    """Work at risk at most; 0 commits after every batch."""
    store_dtype: Literal["float16", "float32"] = "float16"
    progress: bool = False
    """Say on stderr what is done, with a progress bar."""

    def __post_init__(self) -> None:
        if self.batch_tokens is not None and self.batch_tokens < 1:
            msg = f"--batch-tokens {self.batch_tokens}: at least 1 is needed"
            raise AbagError(msg)
        if self.commit_seconds < 0:
            msg = f"--commit-seconds {self.commit_seconds}: a time cannot be negative"
            raise AbagError(msg)

    def backend(self, kind: Kind) -> Backend:
        """Whose modules encode sequences of a kind."""
        return self.antibody_backend if kind == "antibody" else self.antigen_backend


class KindSummary(TypedDict):
    """What happened to the antibodies, or to the antigens."""

    unique: int
    reused: int
    encoded: int
    tokens: int
    seconds: float
    encoder: str
    fingerprint: str


def embed_table(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    antibody_encoder: str = "igt5",
    antigen_encoder: str = "esm2-650m",
    **options: Any,  # noqa: ANN401 - the fields of EmbedOptions
) -> dict[str, Any]:
    """Encode every sequence of a table that the store does not hold yet.

    Parameters
    ----------
    table : path or DataFrame
    store : path
        Made if it does not exist.
    antibody_encoder, antigen_encoder : str
        Alias, hub name or checkpoint folder.
    **options
        Fields of `EmbedOptions`.

    Returns
    -------
    dict
        ``antibodies`` and ``antigens`` (see `KindSummary`), ``rows`` and ``skipped_rows``.

    Raises
    ------
    AbagError
        Any refusal; nothing is written before the whole table and both encoders are checked.
    """
    chosen = EmbedOptions(**options)
    plan = choose(chosen.device, chosen.precision)
    pairs = read_pairs(
        table,
        TableOptions(
            columns=chosen.columns,
            antigen=chosen.antigen,
            limit=chosen.limit,
            bad_rows=chosen.bad_rows,
        ),
    )
    work = [
        (
            pairs.antibodies,
            identify(antibody_encoder, "antibody", adapter=chosen.antibody_adapter),
        ),
        (
            pairs.antigens,
            identify(antigen_encoder, "antigen", chosen.long_antigens, chosen.antigen_adapter),
        ),
    ]
    for sequences, identity in work:
        _refuse_what_cannot_be_encoded(sequences, identity, plan, chosen)
    _refuse_absent_layers([i for _, i in work], chosen.layers)
    opened = open_store(store, create=True)
    layers = [_layers(opened, identity, chosen) for _, identity in work]
    folders = [
        opened.create_folder(i.layout.kind, i.info() | ({"layers": list(n)} if n else {}))
        for (_, i), n in zip(work, layers, strict=True)
    ]
    for (_, identity), folder in zip(work, folders, strict=True):
        keep_adapter(identity.checkpoint, folder)
    jobs = [_Job(pairs, i, f, plan) for (_, i), f in zip(work, folders, strict=True)]
    if chosen.progress:
        _announce(pairs, jobs, plan)
    for job in jobs:
        _check_precision(job, chosen)
    antibodies, antigens = (_encode_missing(job, chosen) for job in jobs)
    return {
        "antibodies": antibodies,
        "antigens": antigens,
        "rows": len(pairs.frame),
        "skipped_rows": pairs.counts.get("skipped_rows", 0),
    }


class _Job:
    """The sequences of one kind, their encoder, and where their vectors go.

    `todo` holds the missing sequences' positions among the unique ones, in encoding order.
    """

    def __init__(
        self, pairs: PairTable, identity: Identity, folder: EncoderFolder, plan: Plan
    ) -> None:
        kind = identity.layout.kind
        # composition has no weights to cast: it is fp32 on the CPU wherever it runs
        self.plan = choose("cpu", "fp32") if identity.checkpoint.folder is None else plan
        self.sequences = pairs.antibodies if kind == "antibody" else pairs.antigens
        self.identity = identity
        self.folder = folder
        self.layers: tuple[int, ...] = tuple(folder.info.get("layers", ()))
        last = identity.layout.poolings
        self.poolings = (*last, *(f"{name}@{n}" for n in self.layers for name in last))
        # verified byte for byte, so that a run repairs what a disk has damaged
        missing = np.flatnonzero(folder.missing(self.sequences.keys, verify=True))
        lengths = [max(identity.layout.piece_lengths(self.sequences.chains[i])) for i in missing]
        self.longest_piece = max(lengths, default=0)
        self.todo = missing[longest_first(lengths)]
        self._row_numbers = pairs.row_numbers

    def row_of(self, sequence: int) -> int:
        """Number of the first row that holds a sequence."""
        return int(self._row_numbers[np.flatnonzero(self.sequences.of_row == sequence)[0]])


def _refuse_what_cannot_be_encoded(
    sequences: UniqueSequences, identity: Identity, plan: Plan, options: EmbedOptions
) -> None:
    layout, family = identity.layout, identity.checkpoint.family
    check_backend(identity, options.backend(layout.kind), layers=bool(options.layers))
    if family in ("t5", "esm") and options.backend(layout.kind) == "packed":
        choose_attention(plan, biased=family == "t5", asked=options.attention)
    long = [chains for chains in sequences.chains if layout.is_long(chains)]
    if long and options.long_antigens == "error":
        longest = max(len(chain) for chains in long for chain in chains)
        msg = (
            f"{len(long)} {layout.kind} sequences have a chain over {layout.limit} residues "
            f"(longest {longest}), which {identity.checkpoint.name} does not take at once; "
            "give --long-antigens window or truncate"
        )
        raise SequenceTooLong(msg)
    if options.batch_tokens is not None:
        longest = max(max(layout.piece_lengths(chains)) for chains in sequences.chains)
        if longest > options.batch_tokens:
            msg = (
                f"--batch-tokens {options.batch_tokens}: the longest {layout.kind} takes "
                f"{longest} tokens at once; give {longest} or more"
            )
            raise BatchTooLarge(msg)


def _refuse_absent_layers(identities: Sequence[Identity], asked: tuple[int, ...] | None) -> None:
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


def _check_precision(job: _Job, options: EmbedOptions) -> None:
    """A store may mix precisions (T4, then A100), but never silently."""
    if not len(job.todo):
        return
    others = {str(b.attrs.get("precision")) for b in job.folder.blocks()} - {job.plan.precision}
    if not others:
        return
    begun = ", ".join(sorted(others))
    text = f"{job.folder.path.name}: begun in {begun}, goes on in {job.plan.precision}"
    if options.strict_precision:
        msg = f"{text}; give --precision {min(others)}, or leave out --strict-precision"
        raise MixedPrecision(msg)
    if options.progress:
        print(f"note: {text}", file=sys.stderr)


def _announce(pairs: PairTable, jobs: Sequence[_Job], plan: Plan) -> None:
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    say(f"{pairs.source}: {len(pairs.frame):,} rows; running on {plan.why}, {plan.precision}")
    for note in pairs.notes:
        say(f"  {note}")
    for job in jobs:
        unique, missing = len(job.sequences.chains), len(job.todo)
        plural = "antibodies" if job.sequences.kind == "antibody" else "antigens"
        say(
            f"  {unique:,} unique {plural}: {unique - missing:,} already stored, "
            f"{missing:,} to encode with {job.identity.checkpoint.name}"
        )
        layout = job.identity.layout
        if long := sum(map(layout.is_long, job.sequences.chains)):
            how = "truncated" if layout.long == "truncate" else "in overlapping windows"
            say(f"    {long:,} with a chain over {layout.limit:,} residues: {how}")
        if job.layers:
            say(f"    poolings also of layers {', '.join(map(str, job.layers))}")
        if job.identity.checkpoint.random:
            say(f"    {job.identity.checkpoint.name}: random weights, no biology in its vectors")


def _encode_missing(job: _Job, options: EmbedOptions) -> KindSummary:
    unique, missing = len(job.sequences.chains), len(job.todo)
    start_s = time.perf_counter()
    tokens = _encode(job, options) if missing else 0
    return KindSummary(
        unique=unique,
        reused=unique - missing,
        encoded=missing,
        tokens=tokens,
        seconds=round(time.perf_counter() - start_s, 3),
        encoder=job.identity.checkpoint.name,
        fingerprint=job.identity.fingerprint,
    )


def _encode(job: _Job, options: EmbedOptions) -> int:
    """Encode a job's missing sequences; returns the number of tokens."""
    layout = job.identity.layout
    backend = options.backend(layout.kind)
    encoder = load_encoder(job.identity, job.plan, backend=backend, attention=options.attention)
    attrs = {
        "precision": job.plan.precision,
        "device": str(job.plan.device),
        "backend": backend_that_runs(job.identity, backend),
    }
    budget = options.batch_tokens or max(default_budget(job.plan), job.longest_piece)
    todo, dtype = job.todo, _DTYPES[options.store_dtype]
    with (
        _Bar(job, options) as bar,
        job.folder.writer(attrs=attrs, commit_seconds=options.commit_seconds) as writer,
    ):
        while len(todo):
            done = 0
            try:
                chains = (job.sequences.chains[i] for i in todo)
                for vectors in encode_stream(
                    encoder, layout, chains, job.plan, budget, dtype, job.layers
                ):
                    _store(job, todo, vectors, writer)
                    done += len(vectors.positions)
                    bar.advance(vectors, writer.committed)
            except torch.OutOfMemoryError:
                budget = _halved(budget, job)
                torch.cuda.empty_cache()
            todo = todo[done:]
    residues = sum(len(chain) for i in job.todo for chain in job.sequences.chains[i])
    job.folder.note_speed(residues, bar.seconds, str(job.plan.device))
    return bar.tokens


def _store(job: _Job, todo: NDArray[np.int64], vectors: Encoded, writer: ShardWriter) -> None:
    """Hand a batch's vectors to the writer, unless one of them is not to be stored."""
    at = todo[vectors.positions]
    if vectors.bad is not None:
        raise _not_finite(job, int(todo[vectors.bad.position]), overflow=vectors.bad.overflow)
    writer.add(
        job.sequences.keys[at],
        np.array([sum(map(len, job.sequences.chains[i])) for i in at], dtype=np.int32),
        {name: vectors.stored_SPD[:, p] for p, name in enumerate(job.poolings)},
        _flags(job, at),
    )


def _halved(budget: int, job: _Job) -> int:
    """Go on with half the tokens a batch, or give up where a single sequence does not fit."""
    if budget // 2 < job.longest_piece:
        msg = (
            f"out of memory on {job.plan.device} with {budget} tokens a batch, and the longest "
            f"{job.sequences.kind} alone takes {job.longest_piece}; what was encoded is stored; "
            "go on with --device cpu, or free the device's memory"
        )
        raise DeviceFull(msg)
    print(
        f"note: out of memory with {budget:,} tokens a batch; going on with {budget // 2:,}",
        file=sys.stderr,
    )
    return budget // 2


def _not_finite(job: _Job, sequence: int, *, overflow: bool) -> NonFiniteVector:
    shown = _shown(job.sequences.chains[sequence])
    name = f"row {job.row_of(sequence)}: {job.sequences.kind} {shown}"
    if overflow:
        return NonFiniteVector(
            f"{name}: a value of its vector exceeds float16's 65,504; give --store-dtype float32"
        )
    return NonFiniteVector(
        f"{name}: {job.identity.checkpoint.name} in {job.plan.precision} gave NaN or infinity; "
        "nothing of it was stored; give --precision fp32, or check the checkpoint's weights"
    )


def _shown(chains: Chains) -> str:
    text = "|".join(chains)
    return text if len(text) <= 24 else f"{text[:12]}...{text[-6:]} ({len(text)} characters)"


class _Bar:
    """Progress on stderr: sequences, tokens a second, share of the matrix units, time left."""

    def __init__(self, job: _Job, options: EmbedOptions) -> None:
        self.tokens = 0
        self.seconds = 0.0
        self._flop = 0.0
        self._job = job
        on_gpu = options.progress and job.plan.device.type == "cuda"
        self._peak = matmul_peak(job.plan) if on_gpu else None
        self._start_s = time.perf_counter()
        self._bar = tqdm(
            total=len(job.todo),
            unit="seq",
            desc=f"{job.sequences.kind} · {job.identity.checkpoint.name}",
            disable=not options.progress,
            dynamic_ncols=True,
        )

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def advance(self, vectors: Encoded, committed: int) -> None:
        """Count a batch."""
        self.tokens += int(vectors.lengths.sum())
        self._flop += flop(self._job.identity.checkpoint, vectors.lengths)
        self.seconds = seconds = time.perf_counter() - self._start_s
        share = f", {self._flop / seconds / self._peak:.0%} of peak" if self._peak else ""
        text = f"{self.tokens / seconds:,.0f} tokens/s{share}, {committed:,} safe"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(len(vectors.positions))


def _flags(job: _Job, at: NDArray[np.int64]) -> dict[str, NDArray[np.uint8]]:
    """Which chains an antibody has: a zero `light_mean` is an absent chain, not a vector."""
    if job.sequences.kind != "antibody":
        return {}
    present = np.array([[bool(c) for c in job.sequences.chains[i]] for i in at], dtype=np.uint8)
    return {"has_heavy": present[:, 0].copy(), "has_light": present[:, 1].copy()}
