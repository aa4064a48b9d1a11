"""Stage one: encode the distinct sequences of a table, once, into a store.

Stored sequences are never encoded again, and vectors are committed while encoding continues, so
stopping at any moment loses at most what was not committed yet. The table may be larger than
memory, and the work may be spread over ranks (`ranks`) or a Ray cluster (`ray_cluster`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict, cast

from abag import AbagError
from abag.core.messages import bar, detail, note, reporting, say
from abag.core.options import EncoderOptions
from abag.embed.encoders.identity import Identity
from abag.embed.families.registry import known_alias
from abag.embed.job import KindJob, check_layers, identify_for
from abag.embed.options import EmbedOptions
from abag.embed.ranks import Rank, WrongRank, count_devices, launch, rank_here
from abag.embed.sequences.chains import KINDS, Kind
from abag.embed.sequences.changes import count_changes, describe_counts
from abag.embed.sequences.pairs import TableTotals, read_pair_chunks
from abag.embed.sequences.partitions import Partitions
from abag.embed.sequences.tables import TableLike
from abag.embed.store import status
from abag.embed.store.spool import publish_spools
from abag.embed.store.store import Store, open_store
from abag.embed.store.store_files import ADAPTER_FOLDER

if TYPE_CHECKING:
    import pandas as pd

    from abag.embed.store.encoder_folder import EncoderFolder

Meanwhile: TypeAlias = Callable[[str, int], AbstractContextManager[object]]
"""Called with the type of the device that encodes, and the rows of the table."""


class OtherEncoder(AbagError):
    """The encoder found under a name is not the expected one."""


class KindSummary(TypedDict):
    """What happened to the antibodies, or to the antigens."""

    unique: int
    reused: int
    encoded: int
    tokens: int
    seconds: float
    encoder: str
    fingerprint: str


class EmbedSummary(TypedDict):
    """What `embed_table` returns, and ``abag embed --json`` prints."""

    antibodies: NotRequired[KindSummary]
    antigens: NotRequired[KindSummary]
    rows: int
    skipped_rows: int


def describe_embedding(summary: EmbedSummary) -> str:
    """Describe what was encoded, one line per kind of sequence."""
    lines = []
    for plural, kind in _by_plural(summary).items():
        seconds = f" in {kind['seconds']:.1f} s" if kind["encoded"] else ""
        lines.append(
            f"{plural}: {kind['unique']:,} unique, {kind['reused']:,} reused, "
            f"{kind['encoded']:,} encoded with {kind['encoder']}{seconds}"
        )
    return "\n".join(lines)


def _by_plural(summary: EmbedSummary) -> dict[str, KindSummary]:
    return {name: part for name, part in summary.items() if isinstance(part, dict)}  # type: ignore[misc]


def embed_table(
    table: TableLike,
    store: Path | str,
    antibody_encoder: str = "igt5",
    antigen_encoder: str = "esm2-650m",
    **options: Any,  # noqa: ANN401 - the fields of EmbedOptions
) -> EmbedSummary:
    """Encode every sequence of a table that the store does not hold yet.

    Parameters
    ----------
    table : path or DataFrame
        A file or a folder of Parquet files, of any size: it is read in chunks.
    store : path
        Created if it does not exist.
    antibody_encoder, antigen_encoder : str
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
    names = (antibody_encoder, antigen_encoder)
    return _embed(table, store, names, EmbedOptions.from_keywords(options, "embed"))


def embed_meanwhile(
    meanwhile: Meanwhile,
    table: TableLike,
    store: Path | str,
    **options: Any,  # noqa: ANN401 - the fields of EncoderOptions and EmbedOptions
) -> EmbedSummary:
    """As `embed_table`; `meanwhile` makes what is entered while this process encodes alone."""
    encoders, others = EncoderOptions.take(options)
    names = (encoders.antibody_encoder, encoders.antigen_encoder)
    chosen = EmbedOptions.from_keywords(others, "embed")
    return _embed(table, store, names, chosen, meanwhile=meanwhile)


def embed_with_same_encoders(
    table: pd.DataFrame,
    store: Path,
    *,
    antibody_encoder: str,
    antigen_encoder: str,
    antibody_fingerprint: str,
    antigen_fingerprint: str,
    **options: Any,  # noqa: ANN401 - the fields of EmbedOptions
) -> EmbedSummary:
    """As `embed_table`, with encoders that must have the fingerprints of a training.

    Raises
    ------
    OtherEncoder
        If a fingerprint differs; nothing has been encoded or written then.
    """
    names = (antibody_encoder, antigen_encoder)
    expected: dict[Kind, str] = {"antibody": antibody_fingerprint, "antigen": antigen_fingerprint}
    chosen = EmbedOptions.from_keywords(options, "embed")
    return _embed(table, store, names, chosen, expected=expected)


def embed_like_folders(
    table: pd.DataFrame,
    store: Path,
    folders: Mapping[Kind, EncoderFolder],
    **options: Any,  # noqa: ANN401 - the fields of EmbedOptions
) -> EmbedSummary:
    """Encode what a store lacks with the encoders of folders in it, one per kind.

    Raises
    ------
    OtherEncoder
        If an encoder has changed since; nothing has been encoded then.
    """
    given: dict[str, Any] = {}
    for kind, folder in folders.items():
        given[f"{kind}_encoder"] = str(folder.info.get("origin", folder.name))
        given[f"{kind}_fingerprint"] = folder.fingerprint
        if folder.info.get("adapter"):
            given[f"{kind}_adapter"] = folder.path / ADAPTER_FOLDER
    long = str(folders["antigen"].info.get("long", "window")).partition("-")[0]
    given["long_antigens"] = long.replace("whole", "window")
    return embed_with_same_encoders(table, store, **given, **options)


def _embed(
    table: TableLike,
    store: Path | str,
    names: tuple[str, str],
    options: EmbedOptions,
    rank: Rank | None = None,
    meanwhile: Meanwhile = lambda _device, _rows: nullcontext(),
    expected: Mapping[Kind, str] | None = None,
) -> EmbedSummary:
    """Run the whole job, or the share of a rank: one given by a launcher, or started by us.

    `expected` holds the fingerprints that the encoders must have; None accepts any.
    """
    started_by_us = rank is not None
    rank = rank or rank_here()
    first = not rank.number and not started_by_us
    encoders = dict(zip(KINDS, names, strict=True))
    with reporting(bars=options.progress, silent=not options.progress), ExitStack() as files:
        ranks, device = _choose_devices(options, rank)
        partitions = [files.enter_context(Partitions(kind)) for kind in options.kinds]
        reading = _read(table, options, partitions)
        identities = [_identify(encoders[p.kind], p.kind, options, expected) for p in partitions]
        check_layers(identities, options.layers or ())
        jobs = [KindJob(identity, device, options) for identity in identities]
        for job, part in zip(jobs, partitions, strict=True):
            job.survey(part)
        opened = open_store(store, create=True)
        if first:
            publish_spools(opened.path)
        for job in jobs:
            job.look_up(opened, rank)
        if first:
            _announce(reading, jobs, device)
            if options.skipped is not None:
                reading.skipped.write(Path(options.skipped))
        to_do, noted = [job for job in jobs if job.missing], reading if first else None
        for job in to_do:
            if job.options.ray is None and (text := job.change_of_precision()):
                say(f"note: {text}")
        if not to_do:
            seconds = [0.0] * len(jobs)
        elif options.ray is not None:
            seconds = _on_ray(jobs, opened, noted, encoders)
        elif ranks > 1:
            _begin(jobs, opened, noted)
            alone = replace(options, devices=None)
            seconds = _seconds_of(launch(ranks, _as_rank, table, store, names, alone), jobs)
        else:
            _begin(jobs, opened, noted)
            seconds = _encode_here(jobs, rank, reading.rows, meanwhile)
            if first and rank.world > 1:
                seconds = [s + j.wait_for_others() for s, j in zip(seconds, jobs, strict=True)]
    return _summary(reading, jobs, seconds, rank)


def _choose_devices(options: EmbedOptions, rank: Rank) -> tuple[int, str]:
    """Return how many ranks to start here, 1 being this process, and this process's device."""
    if rank.world > 1 and (options.devices is not None or options.ray is not None):
        msg = f"--devices or --ray: a launcher started this process as {rank}. Leave them out."
        raise WrongRank(msg)
    ranks = 1 if options.devices is None else count_devices(options.devices, options.device)
    device = rank.device(options.device)
    if (options.device, options.precision) != ("auto", "auto"):
        from abag.core.device import plan_device

        plan_device(device, options.precision)  # refuses what this machine does not have
    return ranks, device


def _read(table: TableLike, options: EmbedOptions, partitions: Sequence[Partitions]) -> TableTotals:
    """Read, check and key every sequence."""
    reading = TableTotals()
    with bar(desc="reading", unit=" rows", unit_scale=True, delay=5) as drawn:
        for pairs in read_pair_chunks(table, options, kinds=options.kinds, only_sequences=True):
            reading.add(pairs)
            for part in partitions:
                part.add(pairs.sequences[part.kind])
            drawn.update(reading.rows + len(reading.skipped) - drawn.n)
    return reading


def _identify(
    name: str, kind: Kind, options: EmbedOptions, expected: Mapping[Kind, str] | None
) -> Identity:
    """Find an encoder; raise `OtherEncoder` if its fingerprint is not the expected one."""
    identity = identify_for(name, kind, options)
    wanted = (expected or {}).get(kind, identity.fingerprint)
    if identity.fingerprint != wanted:
        msg = (
            f"{kind} encoder {name}: its fingerprint is {identity.fingerprint}; expected {wanted}, "
            f"that of the encoder used in training. Give that checkpoint as --{kind}-encoder, "
            "or a --store that holds its vectors."
        )
        raise OtherEncoder(msg)
    return identity


def _begin(jobs: Sequence[KindJob], store: Store, reading: TableTotals | None) -> None:
    """Create the folders; with `reading`, record what this run will do for `store info`."""
    for job in jobs:
        job.create_folder(store)
        if reading is not None and job.missing:
            status.start_run(
                job.folder.path,
                {
                    "table": reading.source, "rows": reading.rows, "sequences": job.unique,
                    "to_encode": job.missing, "residues": job.residues,
                    "residues_to_encode": job.residues_missing,
                    "residues_of_rows": reading.residues[job.kind],
                },
            )  # fmt: skip


def _encode_here(
    jobs: Sequence[KindJob], rank: Rank, rows: int, meanwhile: Meanwhile
) -> list[float]:
    """Encode the share of this process; return the seconds of each kind."""
    from abag.embed.encode import encode_share

    devices = {job.plan.device.type for job in jobs if job.missing}
    device = "cuda" if "cuda" in devices else "cpu"
    with meanwhile(device, rows) if rank.world == 1 else nullcontext():
        return [encode_share(job, rank) for job in jobs]


def _as_rank(
    table: TableLike, store: Path | str, names: tuple[str, str], options: EmbedOptions
) -> EmbedSummary:
    return _embed(table, store, names, options, rank_here())


def _seconds_of(shares: Sequence[EmbedSummary], jobs: Sequence[KindJob]) -> list[float]:
    """Check that ranks have encoded everything; return the seconds of the slowest for each kind."""
    for job in jobs:
        job.check_complete()
    of_ranks = [_by_plural(share) for share in shares]
    return [max(parts[job.plural]["seconds"] for parts in of_ranks) for job in jobs]


def _on_ray(
    jobs: Sequence[KindJob],
    store: Store,
    reading: TableTotals | None,
    encoders: Mapping[Kind, str],
) -> list[float]:
    """Encode on a Ray cluster; return the seconds of each kind."""
    from abag.embed.ray_cluster import cluster, encode_on

    seconds, options = [], jobs[0].options
    with cluster(options.ray or "") as resource:
        _begin(jobs, store, reading)
        resource = "CPU" if options.device == "cpu" else resource
        for job in jobs:
            start_s = time.perf_counter()
            status.start_encoding(job.folder.path)
            encode_on(resource, job, encoders[job.kind], store.path.resolve())
            job.check_complete()
            seconds.append(time.perf_counter() - start_s)
    return seconds


def _summary(
    reading: TableTotals, jobs: Sequence[KindJob], seconds: Sequence[float], rank: Rank
) -> EmbedSummary:
    """Summarise the whole job; ranks other than the first report their own share."""
    kinds: dict[str, KindSummary] = {
        job.plural: {
            "unique": job.unique, "reused": job.unique - job.missing,
            "encoded": job.own if rank.number else job.missing, "tokens": job.tokens,
            "seconds": round(spent_s, 3), "encoder": job.identity.checkpoint.name,
            "fingerprint": job.identity.fingerprint,
        }
        for job, spent_s in zip(jobs, seconds, strict=True)
    }  # fmt: skip
    totals = {"rows": reading.rows, "skipped_rows": len(reading.skipped)}
    return cast("EmbedSummary", kinds | totals)


def _announce(reading: TableTotals, jobs: Sequence[KindJob], device: str) -> None:
    """Say what was read, what will be encoded, and where."""
    detail(f"{reading.source}: {reading.rows:,} rows; {_describe_place(jobs, device)}")
    forms = sum((job.forms for job in jobs), Counter())
    counts = count_changes(forms, sum(job.replaced for job in jobs))
    counts["line_breaks"] = reading.line_breaks
    for line in reading.ignored + describe_counts(counts, reading.skipped, reading.light_only):
        say(f"  {line}")
    for job in jobs:
        _announce_kind(job)
    checkpoints = [job.identity.checkpoint for job in jobs]
    for name, origin in dict.fromkeys((c.name, c.origin) for c in checkpoints):
        alias = known_alias(name, origin)
        if alias is not None and not alias.commercial:
            note(f"{name}: the licence of its weights, {alias.licence}, forbids commercial use")


def _describe_place(jobs: Sequence[KindJob], device: str) -> str:
    """Say where the missing sequences are encoded."""
    options = jobs[0].options
    if not any(job.missing for job in jobs):
        return "nothing to encode"
    if options.ray is not None:
        return "running on Ray"
    from abag.core.device import plan_device

    plan = plan_device(device, options.precision)
    return f"running on {plan.reason}, {plan.precision}"


def _announce_kind(job: KindJob) -> None:
    layout, checkpoint = job.identity.layout, job.identity.checkpoint
    detail(
        f"  {job.unique:,} unique {job.plural}: {job.unique - job.missing:,} already stored, "
        f"{job.missing:,} to encode with {checkpoint.name}"
    )
    if job.long:
        policy = "truncated" if layout.long == "truncate" else "encoded in overlapping windows"
        say(f"    {job.long:,} with a chain of more than {layout.limit:,} residues: {policy}")
    if layers := job.folder.layers:
        say(f"    poolings of layers {', '.join(map(str, layers))} are stored too")
    chosen = job.options.store_dtype
    if others := {block.number_format for block in job.folder.shards()} - {chosen}:
        kept = f"    stored {job.plural} keep their {others.pop()} vectors"
        say(f"{kept}; those encoded now are stored as {chosen}" if job.missing else kept)
    if checkpoint.random:
        say(f"    {checkpoint.name}: random weights, its vectors have no biological meaning")
