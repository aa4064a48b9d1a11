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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from tqdm import tqdm

from abag.core.device import DevicePlan, choose
from abag.embed.pipeline.encode import loaded, refuse_absent_layers
from abag.embed.pipeline.job import Job
from abag.embed.pipeline.options import EmbedOptions, identify_for, plan_for
from abag.embed.pipeline.ranks import Rank, WrongRank, count_devices, launch, rank_here
from abag.embed.sequences.pairs import Reading, TableOptions, counts_of, notes_on, read_sequences
from abag.embed.sequences.partitions import Partitions
from abag.embed.store.filesystem import is_local, mount_of
from abag.embed.store.spool import publish_waiting
from abag.embed.store.store import open_store

if TYPE_CHECKING:
    pass


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
        ``antibodies`` and ``antigens`` (see `abag.embed.pipeline.job.KindSummary`), ``rows`` and
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
    from abag.embed.pipeline.ray_cluster import Order, cluster, encode_on

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


def _announce(reading: Reading, jobs: Sequence[Job], plan: DevicePlan) -> None:
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
