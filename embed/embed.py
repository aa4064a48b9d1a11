"""Stage one: encode the distinct sequences of a table, once, into a store.

Stored sequences are never encoded again, and vectors are committed while encoding continues, so
stopping at any moment loses at most what was not committed yet. The table may be larger than
memory, and the work may be spread over processes or a Ray cluster (`workers`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NotRequired, TypeAlias, TypedDict, cast

import pandas as pd

from abag.core.errors import EncoderError, WorkerError
from abag.core.files import refuse_read_only, sweep_partials
from abag.core.messages import bar, detail, reporting, say
from abag.core.options import EncoderOptions
from abag.embed.encoders.registry import EncoderNotFound
from abag.embed.job import KindJob, Rank, check_layers, identify_for, note_licences, rank_here
from abag.embed.options import EmbedOptions
from abag.embed.store.store import EncoderFolder, Store, open_store
from abag.embed.store.writer import publish_spools
from abag.embed.tables.chains import ALONE, PLURAL, Kind
from abag.embed.tables.formats import CHUNK_ROWS
from abag.embed.tables.layout import Layout
from abag.embed.tables.pairs import (
    Partitions,
    Tally,
    check_chunks,
    count_changes,
    describe_counts,
    describe_rows,
)
from abag.embed.tables.table import TableLike
from abag.embed.workers import count_devices, launch

Meanwhile: TypeAlias = Callable[[int], AbstractContextManager[object]]
"""Called with the rows of the table if one GPU encodes it."""


class KindSummary(TypedDict):
    """The summary of the antibodies, or of the antigens."""

    unique: int
    """Distinct sequences of the table."""
    reused: int
    """Those that the store held already."""
    encoded: int
    tokens: int
    """Tokens of the sequences that the store lacked, special tokens included."""
    seconds: float
    """Wall time of encoding, loading included; 0 if there was nothing to encode."""
    encoder: str
    fingerprint: str


class EmbedSummary(TypedDict):
    """The summary that `embed_table` returns, and ``abag embed --json`` prints."""

    antibodies: NotRequired[KindSummary]
    antigens: NotRequired[KindSummary]
    rows: int
    skipped_rows: int


def describe_embedding(summary: EmbedSummary) -> str:
    """Describe what was encoded, one line per kind of sequence."""
    lines = []
    for plural in PLURAL.values():
        if kind := cast("KindSummary | None", summary.get(plural)):
            seconds = f" in {kind['seconds']:.1f} s" if kind["encoded"] else ""
            lines.append(
                f"{plural}: {kind['unique']:,} unique, {kind['reused']:,} reused, "
                f"{kind['encoded']:,} encoded with {kind['encoder']}{seconds}"
            )
    return "\n".join(lines)


def embed_table(
    table: TableLike,
    store: Path | str,
    antibody_encoder: Path | str = "igt5",
    antigen_encoder: Path | str = "esm2-650m",
    **options: Any,  # noqa: ANN401 - the fields of EmbedOptions
) -> EmbedSummary:
    """Encode every sequence of a table that the store does not hold yet.

    Parameters
    ----------
    table : path, DataFrame or list of these
        A file or a folder of Parquet files, of any size: it is read in chunks. Several are read as
        one table.
    store : path
        Created if it does not exist.
    antibody_encoder, antigen_encoder : str or path
        Alias, hub name or checkpoint folder.
    **options
        Fields of `EmbedOptions`.

    Returns
    -------
    EmbedSummary
        ``antibodies``, ``antigens``, ``rows`` and ``skipped_rows`` of the whole job, without a
        kind that was not asked for. Ranks that a launcher started, except the first, report their
        own share.

    Raises
    ------
    AbagError
        For any invalid input. Nothing is written before the whole table and both encoders have
        been checked.
    """
    names = {"antibody_encoder": antibody_encoder, "antigen_encoder": antigen_encoder}
    return embed_meanwhile(None, table, store, **names, **options)


def embed_meanwhile(
    meanwhile: Meanwhile | None,
    table: TableLike,
    store: Path | str,
    **options: Any,  # noqa: ANN401 - the fields of EncoderOptions and EmbedOptions
) -> EmbedSummary:
    """Encode a table like `embed_table`, and use the cores that are idle meanwhile.

    `meanwhile` makes a context that is entered while this process alone encodes on a GPU.
    """
    encoders, others = EncoderOptions.take(options)
    chosen = EmbedOptions.from_keywords(others, "embed")
    return _embed(table, store, encoders, chosen, meanwhile=meanwhile)


def embed_with_same_encoders(
    table: pd.DataFrame,
    store: Path,
    *,
    fingerprints: Mapping[Kind, str],
    long_antigens: str = "window",
    **options: Any,  # noqa: ANN401 - the fields of EncoderOptions and EmbedOptions
) -> EmbedSummary:
    """Encode a table like `embed_table`, with encoders that must have the given fingerprints.

    `long_antigens` is what an encoder.json says of long chains: of ``window-1022``, the policy is
    ``window``, as that of an encoder without a longest chain, ``whole``, may be.

    Raises
    ------
    EncoderError
        If an encoder has another fingerprint.
    AbagError
        For any other invalid input.
    """
    policy = long_antigens.partition("-")[0].replace("whole", "window")
    encoders, others = EncoderOptions.take({**options, "long_antigens": policy})
    chosen = EmbedOptions.from_keywords(others, "embed")
    with reporting(silent=True if not chosen.progress else None):
        return _embed(table, store, encoders, chosen, expected=fingerprints)


def embed_like_folders(
    table: pd.DataFrame,
    store: Path,
    folders: Mapping[Kind, EncoderFolder],
    **options: Any,  # noqa: ANN401 - the fields of EmbedOptions
) -> EmbedSummary:
    """Encode the sequences that a store lacks with the encoders of folders in it, one per kind.

    Raises as `embed_with_same_encoders`.
    """
    encoders: dict[str, Any] = {}
    for folder in folders.values():
        encoders |= folder.encoder_options
    if "antigen" in folders:
        encoders["long_antigens"] = str(folders["antigen"].info.get("long", "window"))
    else:
        encoders["no_antigen"] = True
    fingerprints = {kind: folder.fingerprint for kind, folder in folders.items()}
    return embed_with_same_encoders(table, store, fingerprints=fingerprints, **encoders, **options)


def _embed(
    table: TableLike,
    store: Path | str,
    encoders: EncoderOptions,
    options: EmbedOptions,
    started: bool = False,
    meanwhile: Meanwhile | None = None,
    expected: Mapping[Kind, str] | None = None,
) -> EmbedSummary:
    """Run the whole job, or the share of a rank: `started` by this command, or by a launcher."""
    rank = rank_here()
    first = not started and not rank.number
    # what one process does is said by the process that started it
    silent = True if started and not options.progress else None
    with reporting(bars=options.progress, silent=silent), ExitStack() as files:
        ranks, device = _choose_devices(options, rank)
        partitions = [files.enter_context(Partitions(kind)) for kind in options.kinds]
        reading = _read(table, options, partitions)
        jobs = _identify(partitions, encoders, device, options, expected)
        opened = _look_up(store, jobs, rank, first=first)
        if first:
            _announce(reading, jobs, device)
            if options.skipped is not None:
                reading.skipped.write(Path(options.skipped))
        seconds = [0.0] * len(jobs)
        missing = any(job.missing for job in jobs)
        refuse_read_only(*(job.folder.path for job in jobs if job.missing), option="--store")
        if missing and options.ray is not None:
            seconds = _on_ray(jobs, opened, encoders)
        elif missing:
            for job in jobs:
                job.create_folder(opened)
            if ranks > 1:
                one_rank = replace(options, devices=None)
                shares = launch(ranks, _embed, table, store, encoders, one_rank, True)
                for at, job in enumerate(jobs):
                    job.check_complete()
                    seconds[at] = max(share[job.plural]["seconds"] for share in shares)
            else:
                from abag.embed.encode import encode_share  # imports torch, which takes seconds

                beside: Callable[[], AbstractContextManager[object]] = nullcontext
                if meanwhile is not None and _encodes_alone_on_gpu(jobs, rank):
                    beside = partial(meanwhile, reading.counts["rows"])
                # after the first encoder is loaded, which would take half a second longer
                loaded = cache(lambda: files.enter_context(beside()))
                seconds = [encode_share(job, rank, loaded) for job in jobs]
    return _summary(reading, jobs, seconds, rank)


def _encodes_alone_on_gpu(jobs: Sequence[KindJob], rank: Rank) -> bool:
    if rank.world > 1:
        return False
    return any(job.missing and job.plan.device.type == "cuda" for job in jobs)


def _choose_devices(options: EmbedOptions, rank: Rank) -> tuple[int, str]:
    """Return how many ranks to start here, 1 being this process, and this process's device."""
    if rank.world > 1 and (options.devices is not None or options.ray is not None):
        msg = f"--devices or --ray: a launcher started this process as {rank}. Leave them out."
        raise WorkerError(msg)
    ranks = 1 if options.devices is None else count_devices(options.devices, options.device)
    device = rank.device(options.device)
    if (options.device, options.precision) != ("auto", "auto"):
        from abag.core.device import plan_device

        plan_device(device, options.precision)  # refuses what this machine does not have
    return ranks, device


def _read(table: TableLike, options: EmbedOptions, partitions: Sequence[Partitions]) -> Tally:
    """Read, check and key every sequence."""
    tally = Tally()
    layout = Layout.of(table, options, kinds=options.kinds, rows=CHUNK_ROWS)
    with bar(desc="reading", unit=" rows", unit_scale=True, delay=5) as drawn:
        for pairs in check_chunks(layout):
            tally.add(pairs)
            for part in partitions:
                part.add(pairs.sequences[part.kind])
            drawn.update(len(pairs.frame) + len(pairs.skipped))
    return tally


def _identify(
    partitions: Sequence[Partitions],
    encoders: EncoderOptions,
    device: str,
    options: EmbedOptions,
    expected: Mapping[Kind, str] | None,
) -> list[KindJob]:
    jobs = []
    for part in partitions:
        name = encoders.encoder(part.kind)
        remedy = (
            f"Give that checkpoint as --{part.kind}-encoder, or a --store that holds its vectors."
        )
        try:
            identity = identify_for(name, part.kind, options)
        except EncoderNotFound as error:
            if expected is None:
                raise
            msg = f"{error} Expected the encoder used in training. {remedy}"
            raise EncoderNotFound(msg) from error
        wanted = (expected or {}).get(part.kind, identity.fingerprint)
        if identity.fingerprint != wanted:
            msg = (
                f"{part.kind} encoder {name}: its fingerprint is {identity.fingerprint}; expected "
                f"{wanted}, that of the encoder used in training. {remedy}"
            )
            raise EncoderError(msg)
        jobs.append(KindJob(identity, device, options))
    check_layers(jobs, options.layers or ())
    for job, part in zip(jobs, partitions, strict=True):
        job.survey(part)
    return jobs


def _look_up(store: Path | str, jobs: Sequence[KindJob], rank: Rank, *, first: bool) -> Store:
    opened = open_store(store, create=True)
    if first:
        publish_spools(opened.path)
        sweep_partials(opened.path)  # without anything to encode, no writer does
    for job in jobs:
        job.look_up(opened, rank)
        if job.missing and job.options.ray is None:  # on Ray the workers choose it
            job.note_precision(job.precisions(), {job.plan.precision})
    return opened


def _announce(reading: Tally, jobs: Sequence[KindJob], device: str) -> None:
    """Say what was read, what is done to it, and where; the summary counts what was encoded."""
    options = jobs[0].options
    if not any(job.missing for job in jobs):
        place = "nothing to encode"
    elif options.ray is not None:
        place = "running on Ray"
    else:
        from abag.core.device import plan_device

        plan = plan_device(device, options.precision)
        place = f"running on {plan.reason}, {plan.precision}"
    rows = describe_rows(reading.counts["rows"], reading.counts["skipped_rows"])
    detail(f"{reading.source}: {rows}; {place}")
    if options.no_antigen:
        detail(f"{reading.source}: {ALONE}")
    forms = Counter[str]()
    replaced = 0
    for job in jobs:
        forms.update(job.forms)
        replaced += job.replaced
    counts = count_changes(forms, replaced)
    counts["line_breaks"] = reading.counts["line_breaks"]
    for line in reading.ignored + describe_counts(counts, reading.skipped):
        say(f"  {line}")
    for job in jobs:
        for line in job.remarks():
            say(f"  {line}")
    note_licences(jobs)


def _on_ray(jobs: Sequence[KindJob], store: Store, encoders: EncoderOptions) -> list[float]:
    from abag.embed.workers import encode_on, ray_cluster

    seconds = []
    options = jobs[0].options
    with ray_cluster(options.ray or "") as resource_there:
        for job in jobs:
            job.create_folder(store)  # not before the cluster is known to be there
        resource = "CPU" if options.device == "cpu" else resource_there
        for job in jobs:
            start_s = time.perf_counter()
            encode_on(resource, job, encoders.encoder(job.kind), store.path.resolve())
            job.check_complete()
            seconds.append(time.perf_counter() - start_s)
    return seconds


def _summary(
    reading: Tally, jobs: Sequence[KindJob], seconds: Sequence[float], rank: Rank
) -> EmbedSummary:
    """Summarise the whole job; ranks other than the first report their own share."""
    kinds: dict[str, KindSummary] = {}
    for job, spent_s in zip(jobs, seconds, strict=True):
        kinds[job.plural] = {
            "unique": job.unique,
            "reused": job.unique - job.missing,
            "encoded": job.own if rank.number else job.missing,
            "tokens": job.tokens,
            "seconds": round(spent_s, 3),
            "encoder": job.identity.checkpoint.name,
            "fingerprint": job.identity.fingerprint,
        }
    totals = {name: reading.counts[name] for name in ("rows", "skipped_rows")}
    return cast("EmbedSummary", kinds | totals)
