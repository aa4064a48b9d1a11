"""Stage one: a table's distinct sequences, encoded once, into a store.

What is stored already is never encoded again; what is encoded is handed to the store's writer
at once; stopping at any moment loses at most what was not yet committed. The table may be larger
than memory, and the work spread over the ranks of a job (shares.py) or a cluster (ray_pool.py).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from abag import AbagError
from abag.embed.attention import choose_attention
from abag.embed.batches import BatchTooLarge
from abag.embed.device import Plan, Precision, choose
from abag.embed.encoders import (
    Backend,
    Encoder,
    Identity,
    check_backend,
    identify,
    load_encoder,
)
from abag.embed.encoding import Bar, Task, check_precision, encode_parts
from abag.embed.mounts import is_local, mount_of
from abag.embed.partitions import Part, Partitions
from abag.embed.sequences import (
    Kind,
    Reading,
    TableOptions,
    counts_of,
    notes_on,
    read_sequences,
)
from abag.embed.shares import Devices, Rank, WrongRank, count_devices, launch, rank_here
from abag.embed.store import EncoderFolder, open_store
from abag.embed.tokens import LongPolicy, SequenceTooLong
from abag.embed.waiting import publish_waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

POLL_SECONDS = 0.5  # between looks at the store for what other ranks add, at least
PATIENCE_SECONDS = 600.0  # without anything new, and several commits: other ranks are gone


class Incomplete(AbagError):
    """A job that ended, or stands still, with sequences that nobody encoded."""


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
        ``antibodies`` and ``antigens`` (see `KindSummary`), ``rows`` and ``skipped_rows``; of the
        whole job, but in ranks other than the first of a job that a launcher started.

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
            _Job(side, identity, plan_for(identity, device, options), options)
            for side, identity in zip(sides, identities, strict=True)
        ]
        for job in jobs:
            job.refuse_what_cannot_be_encoded()
        opened = open_store(store, create=True)
        if not rank.number and not ours:
            publish_waiting(opened.path)
        for job in jobs:
            job.look_up(opened.create_folder(job.kind, job.identity.info()), rank)
        if options.progress and not rank.number and not ours:
            _announce(reading, jobs, plan)
        for job in jobs:
            job.check_precision()
            if job.missing and not rank.number and not ours:
                job.note_run(reading)
        if not any(job.missing for job in jobs):
            seconds = [0.0, 0.0]
        elif options.ray is not None:
            seconds = _on_ray(jobs, names, Path(store).resolve(), options)
        elif ranks > 1:
            seconds = _on_devices(jobs, ranks, table, store, names, options)
        else:
            seconds = _here(jobs, rank, waits=rank.world > 1 and not rank.number and not ours)
        summaries = [job.summary(s, rank) for job, s in zip(jobs, seconds, strict=True)]
    return {
        "antibodies": summaries[0],
        "antigens": summaries[1],
        "rows": reading.rows,
        "skipped_rows": reading.skipped.total(),
    }


def _here(jobs: Sequence[_Job], rank: Rank, *, waits: bool) -> list[float]:
    """Encode in this process; returns the seconds of both kinds."""
    seconds = [job.encode(rank) for job in jobs]
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
    jobs: Sequence[_Job],
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
    jobs: Sequence[_Job], names: tuple[str, str], store: Path, options: EmbedOptions
) -> list[float]:
    """Encode on a Ray cluster; returns the seconds of both kinds."""
    from abag.embed.ray_pool import Order, cluster, encode_on

    seconds = []
    with cluster(options.ray or "") as device:
        device = "CPU" if options.device == "cpu" else device
        for job, name in zip(jobs, names, strict=True):
            start_s = time.perf_counter()
            given = str(Path(name).resolve()) if Path(name).is_dir() else name
            order = Order(given, job.kind, job.identity.fingerprint, store, options)
            encode_on(device, order, job.todo(), sequences=job.missing, tokens=job.tokens)
            job.refuse_gaps()
            seconds.append(time.perf_counter() - start_s)
    return seconds


def _read(
    table: Path | str | pd.DataFrame, options: EmbedOptions, sides: tuple[Partitions, Partitions]
) -> Reading:
    """Read, check and key every sequence of a table."""
    reading_options = TableOptions(
        columns=options.columns,
        antigen=options.antigen,
        limit=options.limit,
        bad_rows=options.bad_rows,
    )
    of_kind = {side.kind: side for side in sides}
    reading = Reading()
    with tqdm(desc="reading", unit=" rows", unit_scale=True, delay=5, disable=None) as bar:
        for distinct in read_sequences(table, reading_options, reading):
            of_kind[distinct.kind].add(distinct)
            bar.update(reading.rows + reading.skipped.total() - bar.n)
    return reading


def identify_for(name: str, kind: Kind, options: EmbedOptions) -> Identity:
    """Find an encoder and its fingerprint, as these options use it."""
    return identify(name, kind, options.long_antigens if kind == "antigen" else "window")


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


class _Job:
    """The sequences of one kind, their encoder, and where their vectors go.

    Attributes
    ----------
    unique, missing : int
        Sequences of the table, and those of them that the store does not hold.
    tokens : int
        In the missing sequences.
    long : int
        Sequences with a chain longer than the encoder takes at once.
    """

    def __init__(
        self, partitions: Partitions, identity: Identity, plan: Plan, options: EmbedOptions
    ) -> None:
        self.kind: Kind = partitions.kind
        self.plan = plan
        self.identity = identity
        self.options = options
        self.missing = self.tokens = self.unique = self.long = 0
        self._residues = self._residues_missing = 0
        self.how: Counter[str] = Counter()
        self.replaced = 0
        self._longest_chain = self._longest_piece = 0
        self._partitions = partitions
        self._mine = 0
        self._todo: list[NDArray[np.uint8]] = []  # a bit a sequence, in the order of the parts
        for part in partitions.parts():
            self._survey(part)

    def _survey(self, part: Part) -> None:
        layout = self.identity.layout
        self.unique += len(part.chains)
        self._residues += sum(sum(map(len, chains)) for chains in part.chains)
        self.how.update(part.how)
        self.replaced += part.replaced
        self.long += sum(map(layout.is_long, part.chains))
        longest = max(max(map(len, chains)) for chains in part.chains)
        self._longest_chain = max(self._longest_chain, longest)
        if self.options.batch_tokens is not None:
            longest = max(max(layout.piece_lengths(chains)) for chains in part.chains)
            self._longest_piece = max(self._longest_piece, longest)

    @property
    def plural(self) -> str:
        """What its sequences are called."""
        return "antibodies" if self.kind == "antibody" else "antigens"

    @property
    def task(self) -> Task:
        """What is needed to encode one of its sequences."""
        return Task(self.identity, self._folder, self.plan, self.options)

    def refuse_what_cannot_be_encoded(self) -> None:
        """Raise before anything is written."""
        layout, options, family = self.identity.layout, self.options, self.identity.checkpoint.family
        check_backend(self.identity, options.backend(self.kind))
        packed = family in ("t5", "esm") and options.backend(self.kind) == "packed"
        if packed and options.ray is None:
            choose_attention(self.plan, biased=family == "t5", asked=options.attention)
        if self.long and options.long_antigens == "error":
            msg = (
                f"{self.long} {self.kind} sequences have a chain over {layout.limit} residues "
                f"(longest {self._longest_chain}), which {self.identity.checkpoint.name} does not "
                "take at once; give --long-antigens window or truncate"
            )
            raise SequenceTooLong(msg)
        if options.batch_tokens is not None and self._longest_piece > options.batch_tokens:
            msg = (
                f"--batch-tokens {options.batch_tokens}: the longest {self.kind} takes "
                f"{self._longest_piece} tokens at once; give {self._longest_piece} or more"
            )
            raise BatchTooLarge(msg)

    def look_up(self, folder: EncoderFolder, rank: Rank) -> None:
        """Find what is missing in the store, and what of it is this rank's."""
        self._folder = folder
        for part in self._partitions.parts():
            # verified byte for byte, so that a run repairs what a disk has damaged
            missing = folder.missing(part.keys, verify=True)
            mine = missing
            if rank.world > 1:
                tokens = self._tokens(part, np.arange(len(part.chains)))
                mine = missing & rank.owns(part.keys, tokens)
            self.missing += int(missing.sum())
            absent = (part.chains[i] for i in np.flatnonzero(missing))
            self._residues_missing += sum(sum(map(len, chains)) for chains in absent)
            self.tokens += int(self._tokens(part, np.flatnonzero(missing)).sum())
            self._mine += int(mine.sum())
            self._todo.append(np.packbits(mine))

    @property
    def store(self) -> Path:
        """The store's folder."""
        return self._folder.path.parent

    def note_run(self, reading: Reading) -> None:
        """Keep what this run sets out to do, for `abag store info`."""
        self._folder.note_run(
            {
                "table": reading.source,
                "rows": reading.rows,
                "sequences": self.unique,
                "to_encode": self.missing,
                "residues": self._residues,
                "residues_to_encode": self._residues_missing,
                "residues_of_rows": reading.residues[self.kind],
            }
        )

    def _tokens(self, part: Part, at: NDArray[np.int64]) -> NDArray[np.int64]:
        layout = self.identity.layout
        sums = (sum(layout.piece_lengths(part.chains[i])) for i in at.tolist())
        return np.fromiter(sums, np.int64, len(at))

    def todo(self) -> Iterator[Part]:
        """Give what this process has to encode."""
        for part, bits in zip(self._partitions.parts(), self._todo, strict=True):
            at = np.flatnonzero(np.unpackbits(bits, count=len(part.chains)))
            if len(at):
                yield part.take(at)

    def check_precision(self) -> None:
        """Say it, or refuse, where a store goes on in another precision."""
        if self.missing and self.options.ray is None:
            note = check_precision(self.task)
            if note and self.options.progress:
                print(f"note: {note}", file=sys.stderr)

    def encode(self, rank: Rank) -> float:
        """Encode what is this process's to encode; returns the seconds."""
        start_s = time.perf_counter()
        if not self._mine:
            return 0.0
        task = self.task
        encoder = loaded(task)
        load_s = time.perf_counter() - start_s
        shown = self.options.progress and not rank.number
        with Bar(task, self._mine, shown=shown) as bar:
            encode_parts(task, encoder, self.todo(), bar)
        self._folder.note_speed(bar.residues, bar.seconds, str(self.plan.device))
        if self.options.progress:
            name = f"{rank}: " if rank.world > 1 else ""
            print(
                f"{name}{bar.sequences:,} {self.plural}, {bar.tokens:,} tokens; loading "
                f"{load_s:.1f} s, then {bar.seconds:.2f} s = "
                f"{bar.tokens / bar.seconds:,.0f} tokens/s",
                file=sys.stderr,
            )
        return time.perf_counter() - start_s

    def await_others(self) -> float:
        """Return, with the seconds that it took, once the store holds what other ranks encode."""
        start_s = changed_s = time.monotonic()
        patience_s = PATIENCE_SECONDS + 10 * self.options.commit_seconds
        for part in self._partitions.parts():
            before = -1
            while left := int(self._folder.missing(part.keys).sum()):
                now_s = time.monotonic()
                changed_s = changed_s if left == before else now_s
                if now_s - changed_s > patience_s:
                    raise self._gap(left, f"and nothing was added for {patience_s:,.0f} s")
                before = left
                time.sleep(max(POLL_SECONDS, time.monotonic() - now_s))
        return time.monotonic() - start_s

    def refuse_gaps(self) -> None:
        """Raise unless the store now holds every sequence."""
        left = sum(int(self._folder.missing(p.keys).sum()) for p in self._partitions.parts())
        if left:
            raise self._gap(left, "though every process ended well")

    def _gap(self, left: int, why: str) -> Incomplete:
        return Incomplete(
            f"{self._folder.path}: {left:,} {self.plural} are not stored, {why}; all were "
            "expected. Did the table change, or a rank end? Run the same command again."
        )

    def summary(self, seconds: float, rank: Rank) -> KindSummary:
        """Say what happened: of the whole job, but in ranks other than the first."""
        encoded = self._mine if rank.number else self.missing
        return KindSummary(
            unique=self.unique,
            reused=self.unique - self.missing,
            encoded=encoded,
            tokens=self.tokens,
            seconds=round(seconds, 3),
            encoder=self.identity.checkpoint.name,
            fingerprint=self.identity.fingerprint,
        )


def _announce(reading: Reading, jobs: Sequence[_Job], plan: Plan) -> None:
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
        if job.identity.checkpoint.random:
            say(f"    {job.identity.checkpoint.name}: random weights, no biology in its vectors")
