"""Stage one for one kind of sequence: find what is missing, encode this process's share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.messages import detail, say
from abag.embed.encoders.loading import Identity, check_backend, check_loadable
from abag.embed.packing.batches import BatchTooLarge
from abag.embed.packing.tokens import SequenceTooLong
from abag.embed.pipeline.options import EmbedOptions
from abag.embed.pipeline.ranks import Rank
from abag.embed.pipeline.task import EncodeTask, create_folder, find_folder, plan_for
from abag.embed.sequences.chains import PLURAL, Kind
from abag.embed.sequences.pairs import TableTotals
from abag.embed.sequences.partitions import Partitions, SequencePart
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.store import Store

if TYPE_CHECKING:
    from abag.core.device import DevicePlan

POLL_SECONDS = 0.5
"""Shortest time between two looks at the store for what other ranks have added."""
PATIENCE_SECONDS = 600.0
"""Time without a new vector, on top of several commits, after which other ranks are given up."""


class Incomplete(AbagError):
    """The job ended, or stands still, with sequences that no process encoded."""


class KindSummary(TypedDict):
    """What happened to the antibodies, or to the antigens."""

    unique: int
    reused: int
    encoded: int
    tokens: int
    seconds: float
    encoder: str
    fingerprint: str


class KindJob:
    """The sequences of one kind, their encoder, and where their vectors go.

    torch is imported as soon as a sequence has to be encoded.

    Attributes
    ----------
    unique, missing, long : int
        Sequences of the table; those that the store lacked before this job; those with a chain that
        is longer than the encoder takes at once.
    tokens : int
        Tokens in the missing sequences.
    forms, replaced
        As in `SequencePart`, of all sequences.
    """

    def __init__(
        self, partitions: Partitions, identity: Identity, device: str, options: EmbedOptions
    ) -> None:
        self.kind: Kind = partitions.kind
        self.plural = PLURAL[self.kind]
        self.identity, self.options = identity, options
        self._device = device
        self.missing = self.tokens = self.unique = self.long = 0
        self.forms: Counter[str] = Counter()
        self.replaced = 0
        self._residues = self._residues_missing = 0
        self._longest_chain = self._longest_run = 0
        self._partitions = partitions
        self._own = 0
        self._own_bits: list[NDArray[np.uint8]] = []  # one bit per sequence, for each part
        for part in partitions.parts():
            self._survey(part)

    def _survey(self, part: SequencePart) -> None:
        layout = self.identity.layout
        self.unique += len(part.chains)
        self._residues += _count_residues(part.chains)
        self.forms.update(part.forms)
        self.replaced += part.replaced
        self.long += sum(map(layout.is_long, part.chains))
        longest = max(max(map(len, chains)) for chains in part.chains)
        self._longest_chain = max(self._longest_chain, longest)
        if self.options.batch_tokens is not None:
            longest = max(max(layout.span_lengths(chains)) for chains in part.chains)
            self._longest_run = max(self._longest_run, longest)

    @cached_property
    def plan(self) -> DevicePlan:
        """Device and precision that the encoder runs with."""
        return plan_for(self.identity, self._device, self.options)

    @property
    def folder(self) -> EncoderFolder:
        """The encoder's folder in the store, which may not exist yet; see `look_up`."""
        return self._folder

    @property
    def task(self) -> EncodeTask:
        """Everything needed to encode one of the sequences."""
        return EncodeTask(self.identity, self._folder, self.plan, self.options)

    def check(self) -> None:
        """Refuse what cannot be encoded with these options, before anything is written.

        Raises
        ------
        WrongBackend, FaesmUnavailable, AttentionUnavailable
            The backend or the attention kernel cannot run this encoder here.
        SequenceTooLong, BatchTooLarge
        """
        layout, options = self.identity.layout, self.options
        family, backend = self.identity.family, options.backend(self.kind)
        check_backend(self.identity, backend, layers=bool(options.layers))
        chosen = options.attention != "auto" and options.ray is None  # auto finds one everywhere
        if chosen and family.effective_backend(backend) == "packed":
            from abag.embed.kernels.attention import choose_attention

            choose_attention(
                self.plan,
                biased=family.biased_attention,
                head_width=family.shape(self.identity.checkpoint.config).head_width,
                requested=options.attention,
            )
        if self.long and options.long_antigens == "error":
            msg = (
                f"{self.long} {self.kind} sequences have a chain of more than {layout.limit} "
                f"residues (longest {self._longest_chain}), the most that "
                f"{self.identity.checkpoint.name} takes at once; "
                "give --long-antigens window or truncate"
            )
            raise SequenceTooLong(msg)
        if options.batch_tokens is not None and self._longest_run > options.batch_tokens:
            msg = (
                f"--batch-tokens {options.batch_tokens}: the longest {self.kind} has "
                f"{self._longest_run} tokens; give {self._longest_run} or more"
            )
            raise BatchTooLarge(msg)

    def look_up(self, store: Store, rank: Rank) -> None:
        """Find what the store lacks, and which part of it this rank encodes."""
        self._store = store
        self._folder = folder = find_folder(store, self.identity, self.options)
        for part in self._partitions.parts():
            # verified byte for byte, so that a run replaces what a disk has damaged
            missing = folder.missing(part.keys, verify=True)
            own = missing
            if rank.world > 1:
                own = missing & rank.owns(part.keys, self._tokens(part.chains))
                missing = missing | self._stored_by(rank, part.keys)
            absent = [part.chains[i] for i in np.flatnonzero(missing)]
            self.missing += len(absent)
            self._residues_missing += _count_residues(absent)
            self.tokens += int(self._tokens(absent).sum())
            self._own += int(own.sum())
            self._own_bits.append(np.packbits(own))

    def _stored_by(self, rank: Rank, keys: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Select what faster ranks of this job have stored already, shape (N,), dtype bool."""
        job = rank.job_digest
        block, _ = self._folder.find(keys)
        of_job = [job != "" and one.attrs.get("job") == job for one in self._folder.blocks()]
        return np.array([*of_job, False])[block]  # -1, not stored, is the last

    def _tokens(self, sequences: list[tuple[str, ...]]) -> NDArray[np.int64]:
        """Count the tokens of each sequence, shape (N,)."""
        layout = self.identity.layout
        sums = (sum(layout.span_lengths(chains)) for chains in sequences)
        return np.fromiter(sums, np.int64, len(sequences))

    def own_parts(self) -> Iterator[SequencePart]:
        """Yield the missing sequences that this process has to encode."""
        for part, bits in zip(self._partitions.parts(), self._own_bits, strict=True):
            at = np.flatnonzero(np.unpackbits(bits, count=len(part.chains)))
            if len(at):
                yield part.take(at)

    def check_precision(self) -> None:
        """Report, or refuse, another precision; see `EncodeTask.check_precision`."""
        if self.missing and self.options.ray is None and (text := self.task.check_precision()):
            say(f"note: {text}")

    def check_loadable(self) -> None:
        """Refuse a broken checkpoint now rather than after hours of encoding the other kind."""
        if self.missing and self.options.backend(self.kind) == "packed":
            check_loadable(self.identity)

    def begin(self, reading: TableTotals | None) -> None:
        """Create the folder; with `reading`, record what this run will do for `store info`."""
        self._folder = create_folder(self._store, self.identity, self.options)
        if reading is not None and self.missing:
            self._folder.notes.start_run(
                {
                    "table": reading.source, "rows": reading.rows, "sequences": self.unique,
                    "to_encode": self.missing, "residues": self._residues,
                    "residues_to_encode": self._residues_missing,
                    "residues_of_rows": reading.residues[self.kind],
                }
            )  # fmt: skip

    def encode(self, rank: Rank) -> float:
        """Encode this process's share; return the seconds it took, loading included."""
        start_s = time.perf_counter()
        if not self._own:
            return 0.0
        from abag.embed.pipeline.encode import EncodeProgress, encode_parts

        task = self.task
        encoder = task.load_encoder()
        load_s = time.perf_counter() - start_s
        if not rank.number:
            self._folder.notes.start_encoding()
        with EncodeProgress(task, self._own, shown=not rank.number) as progress:
            encode_parts(task, encoder, self.own_parts(), progress, rank.job_digest)
        self._folder.notes.note_speed(progress.residues, progress.seconds, str(self.plan.device))
        name = f"{rank}: " if rank.world > 1 else ""
        detail(
            f"{name}{progress.sequences:,} {self.plural}, {progress.tokens:,} tokens; loaded in "
            f"{load_s:.1f} s, encoded in {progress.seconds:.2f} s = {progress.rate}"
        )
        return time.perf_counter() - start_s

    def wait_for_others(self) -> float:
        """Wait until the store holds what other ranks encode; return the seconds waited.

        Raises `Incomplete` if nothing new arrives for a long time.
        """
        start_s = changed_s = time.monotonic()
        patience_s = PATIENCE_SECONDS + 10 * self.options.commit_seconds
        for part in self._partitions.parts():
            before = -1
            while left := int(self._folder.missing(part.keys).sum()):
                now_s = time.monotonic()
                changed_s = changed_s if left == before else now_s
                if now_s - changed_s > patience_s:
                    raise self._incomplete(left, f"and none was added for {patience_s:,.0f} s")
                before = left
                time.sleep(max(POLL_SECONDS, time.monotonic() - now_s))
        return time.monotonic() - start_s

    def check_complete(self) -> None:
        """Raise `Incomplete` unless the store now holds every sequence."""
        left = sum(int(self._folder.missing(p.keys).sum()) for p in self._partitions.parts())
        if left:
            raise self._incomplete(left, "although every process ended normally")

    def _incomplete(self, left: int, why: str) -> Incomplete:
        return Incomplete(
            f"{self._folder.path}: {left:,} {self.plural} are not stored, {why}; expected all of "
            "them. Has the table changed, or a rank stopped? Run the same command again."
        )

    def summary(self, seconds: float, rank: Rank) -> KindSummary:
        """Summarise the whole job; ranks other than the first report their own share."""
        return {
            "unique": self.unique, "reused": self.unique - self.missing,
            "encoded": self._own if rank.number else self.missing, "tokens": self.tokens,
            "seconds": round(seconds, 3), "encoder": self.identity.checkpoint.name,
            "fingerprint": self.identity.fingerprint,
        }  # fmt: skip


def _count_residues(sequences: list[tuple[str, ...]]) -> int:
    return sum(sum(map(len, chains)) for chains in sequences)
