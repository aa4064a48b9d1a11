"""Stage one: a table's distinct sequences, encoded once, into a store.

What is stored already is never encoded again; what is encoded is handed to the store's writer
at once; stopping at any moment loses at most what was not yet committed. The table may be larger
than memory, and the work spread over the ranks of a job (shares.py) or a cluster (ray_pool.py).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
from tqdm import tqdm

from abag import AbagError
from abag.embed.device import Plan, Precision, choose
from abag.embed.encoders import (
    Backend,
    Encoder,
    Identity,
    identify,
    load_encoder,
)
from abag.embed.encoding import Task, refuse_absent_layers
from abag.embed.job import Job
from abag.embed.mounts import is_local, mount_of
from abag.embed.partitions import Partitions
from abag.embed.sequences import (
    Kind,
    Reading,
    TableOptions,
    counts_of,
    notes_on,
    read_sequences,
)
from abag.embed.shares import Devices, Rank, WrongRank, count_devices, launch, rank_here
from abag.embed.store import open_store
from abag.embed.tokens import LongPolicy
from abag.embed.waiting import publish_waiting

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    devices: Devices | None = None
    """Start this many processes, one a device, or one for each GPU (``all``)."""
    ray: str | None = None
    """Address of the Ray cluster to run on; empty: the one at hand, or one started here."""
    progress: bool = False
    """Say on stderr what is done, with a progress bar."""

    def __post_init__(self) -> None:
        if self.batch_tokens is not None and self.batch_tokens < 1:
            msg = f"--batch-tokens {self.batch_tokens}: at least 1 is needed"
            raise AbagError(msg)
        if self.commit_seconds < 0:
            msg = f"--commit-seconds {self.commit_seconds}: a time cannot be negative"
            raise AbagError(msg)
        if self.devices is not None and self.ray is not None:
            msg = "--devices and --ray: both say where to run. Give one."
            raise AbagError(msg)

    def backend(self, kind: Kind) -> Backend:
        """Whose modules encode sequences of a kind."""
        return self.antibody_backend if kind == "antibody" else self.antigen_backend


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
        A file or a folder of Parquet files, of any size: it is read a stretch at a time.
    store : path
        Made if it does not exist.
    antibody_encoder, antigen_encoder : str
        Alias, hub name or checkpoint folder.
    **options
        Fields of `EmbedOptions`.

    Returns
    -------
    dict
        ``antibodies`` and ``antigens`` (see `abag.embed.job.KindSummary`), ``rows`` and
        ``skipped_rows``; of the whole job, but in ranks other than the first that a launcher
        started.

    Raises
    ------
    AbagError
        Any refusal; nothing is written before the whole table and both encoders are checked.
    """
    return _embed(table, store, (antibody_encoder, antigen_encoder), EmbedOptions(**options))


def _embed(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    names: tuple[str, str],
    options: EmbedOptions,
    rank: Rank | None = None,
) -> dict[str, Any]:
    """Embed as a whole job, as a rank that an outer launcher started, or as `rank` of our own."""
    ours = rank is not None
    rank = rank or rank_here()
    ranks = _count_ranks(options, rank)
    device = rank.device(options.device)
    plan = choose(device, options.precision)
    with Partitions("antibody") as antibodies, Partitions("antigen") as antigens:
        sides = (antibodies, antigens)
        reading = _read(table, options, sides)
        identities = [identify_for(n, s.kind, options) for n, s in zip(names, sides, strict=True)]
        jobs = [
            Job(side, identity, plan_for(identity, device, options), options)
            for side, identity in zip(sides, identities, strict=True)
        ]
        for job in jobs:
            job.refuse_what_cannot_be_encoded()
        refuse_absent_layers(identities, options.layers)
        opened = open_store(store, create=True)
        first = not rank.number and not ours
        if first:
            publish_waiting(opened.path)
        for job in jobs:
            job.look_up(opened, rank)
        if options.progress and first:
            _announce(reading, jobs, plan)
        for job in jobs:
            job.check_precision()
            if not ours:
                job.refuse_unloadable()
        begin = partial(_begin, jobs, reading if first else None)
        if not any(job.missing for job in jobs):
            seconds = [0.0, 0.0]
        elif options.ray is not None:
            seconds = _on_ray(jobs, begin, names, Path(store).resolve(), options)
        elif ranks > 1:
            begin()
            seconds = _on_devices(jobs, ranks, table, store, names, options)
        else:
            begin()
            seconds = _here(jobs, rank, waits=rank.world > 1 and first)
        summaries = [job.summary(s, rank) for job, s in zip(jobs, seconds, strict=True)]
    return {
        "antibodies": summaries[0],
        "antigens": summaries[1],
        "rows": reading.rows,
        "skipped_rows": reading.skipped.total(),
    }


def _begin(jobs: Sequence[Job], reading: Reading | None) -> None:
    """Write for the first time: whatever was to be refused has been."""
    for job in jobs:
        job.begin(reading)


def _here(jobs: Sequence[Job], rank: Rank, *, waits: bool) -> list[float]:
    """Encode in this process; returns the seconds of both kinds."""
    seconds = [job.encode(rank, loaded) for job in jobs]
    if waits:
        seconds = [s + job.await_others() for s, job in zip(seconds, jobs, strict=True)]
    return seconds


def _count_ranks(options: EmbedOptions, rank: Rank) -> int:
    """How many ranks to start here: 1 is this process."""
    if rank.world > 1 and (options.devices is not None or options.ray is not None):
        msg = f"--devices or --ray: this is {rank} of a launcher already. Leave it out."
        raise WrongRank(msg)
    return 1 if options.devices is None else count_devices(options.devices, options.device)


def _on_devices(
    jobs: Sequence[Job],
    ranks: int,
    table: Path | str | pd.DataFrame,
    store: Path | str,
    names: tuple[str, str],
    options: EmbedOptions,
) -> list[float]:
    """Encode in one process a device; returns the seconds of both kinds."""
    alone = replace(options, devices=None)
    summaries = launch(ranks, _as_rank, table, store, names, alone)
    for job in jobs:
        job.refuse_gaps()
    plurals = ("antibodies", "antigens")
    return [max(summary[plural]["seconds"] for summary in summaries) for plural in plurals]


def _as_rank(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    names: tuple[str, str],
    options: EmbedOptions,
) -> dict[str, Any]:
    return _embed(table, store, names, options, rank_here())


def _on_ray(
    jobs: Sequence[Job],
    begin: Callable[[], None],
    names: tuple[str, str],
    store: Path,
    options: EmbedOptions,
) -> list[float]:
    """Encode on a Ray cluster; returns the seconds of both kinds."""
    from abag.embed.ray_pool import Order, cluster, encode_on

    seconds = []
    with cluster(options.ray or "") as device:
        begin()
        device = "CPU" if options.device == "cpu" else device
        for job, name in zip(jobs, names, strict=True):
            start_s = time.perf_counter()
            given = str(Path(name).resolve()) if Path(name).is_dir() else name
            order = Order(given, job.kind, job.identity.fingerprint, store, options)
            job.note_encoding()
            encode_on(device, order, job.todo(), sequences=job.missing, tokens=job.tokens)
            job.refuse_gaps()
            seconds.append(time.perf_counter() - start_s)
    return seconds


def _read(
    table: Path | str | pd.DataFrame, options: EmbedOptions, sides: tuple[Partitions, Partitions]
) -> Reading:
    """Read, check and key every sequence of a table."""
    of_kind = {side.kind: side for side in sides}
    reading = Reading()
    with tqdm(desc="reading", unit=" rows", unit_scale=True, delay=5, disable=None) as bar:
        for distinct in read_sequences(table, TableOptions.of(options), reading):
            of_kind[distinct.kind].add(distinct)
            bar.update(reading.rows + reading.skipped.total() - bar.n)
    return reading


def identify_for(name: str, kind: Kind, options: EmbedOptions) -> Identity:
    """Find an encoder and its fingerprint, as these options use it."""
    if kind == "antigen":
        return identify(name, kind, options.long_antigens, options.antigen_adapter)
    return identify(name, kind, adapter=options.antibody_adapter)


def plan_for(identity: Identity, device: str, options: EmbedOptions) -> Plan:
    """Choose device and precision; without weights there is nothing to cast, or to speed up."""
    if identity.checkpoint.folder is None:
        return choose("cpu", "fp32")
    return choose(device, options.precision)


def loaded(task: Task) -> Encoder:
    """Load a task's encoder onto its device."""
    options = task.options
    return load_encoder(
        task.identity,
        task.plan,
        backend=options.backend(task.identity.layout.kind),
        attention=options.attention,
    )


def _announce(reading: Reading, jobs: Sequence[Job], plan: Plan) -> None:
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    where = f"running on {plan.why}, {plan.precision}"
    if jobs[0].options.ray is not None:
        where = "running on Ray"
    say(f"{reading.source}: {reading.rows:,} rows; {where}")
    how = sum((job.how for job in jobs), Counter[str]())
    counts = counts_of(how, sum(job.replaced for job in jobs))
    counts |= {"skipped_rows": reading.skipped.total()}
    for note in reading.notes + notes_on(counts, reading.skipped):
        say(f"  {note}")
    if not is_local(store := jobs[0].store):
        say(
            f"  {store} lies on {mount_of(store).kind}, no disk of this machine: each shard is "
            "written and checked here first, then copied"
        )
    for job in jobs:
        say(
            f"  {job.unique:,} unique {job.plural}: {job.unique - job.missing:,} already stored, "
            f"{job.missing:,} to encode with {job.identity.checkpoint.name}"
        )
        layout = job.identity.layout
        if job.long:
            how_long = "truncated" if layout.long == "truncate" else "in overlapping windows"
            say(f"    {job.long:,} with a chain over {layout.limit:,} residues: {how_long}")
        if job.task.layers:
            say(f"    poolings also of layers {', '.join(map(str, job.task.layers))}")
        if job.identity.checkpoint.random:
            say(f"    {job.identity.checkpoint.name}: random weights, no biology in its vectors")
