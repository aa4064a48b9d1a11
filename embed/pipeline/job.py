"""The sequences of one kind: what of them is missing in the store, and whose it is to encode."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.device import DevicePlan
from abag.embed.encoders.registry import Encoder, Identity, check_backend, refuse_unloadable
from abag.embed.kernels.attention import choose_attention
from abag.embed.packing.batches import BatchTooLarge
from abag.embed.packing.tokens import SequenceTooLong
from abag.embed.pipeline.encode import (
    Bar,
    EncodeTask,
    begin_folder,
    check_precision,
    encode_parts,
    find_folder,
)
from abag.embed.pipeline.ranks import Rank
from abag.embed.sequences.chains import Kind
from abag.embed.sequences.pairs import Reading
from abag.embed.sequences.partitions import Partitions, SequencePart
from abag.embed.store.store import Store

if TYPE_CHECKING:
    from abag.embed.pipeline.options import EmbedOptions

POLL_SECONDS = 0.5  # between looks at the store for what other ranks add, at least
PATIENCE_SECONDS = 600.0  # without anything new, and several commits: other ranks are gone


class Incomplete(AbagError):
    """A job that ended, or stands still, with sequences that nobody encoded."""


class KindSummary(TypedDict):
    """What happened to the antibodies, or to the antigens."""

    unique: int
    reused: int
    encoded: int
    tokens: int
    seconds: float
    encoder: str
    fingerprint: str


class Job:
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
        self, partitions: Partitions, identity: Identity, plan: DevicePlan, options: EmbedOptions
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

    def _survey(self, part: SequencePart) -> None:
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
    def task(self) -> EncodeTask:
        """What is needed to encode one of its sequences."""
        return EncodeTask(self.identity, self._folder, self.plan, self.options)

    def refuse_what_cannot_be_encoded(self) -> None:
        """Raise before anything is written."""
        layout, options, family = (
            self.identity.layout,
            self.options,
            self.identity.checkpoint.family,
        )
        check_backend(self.identity, options.backend(self.kind), layers=bool(options.layers))
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

    def look_up(self, store: Store, rank: Rank) -> None:
        """Find what is missing in the store, and what of it is this rank's."""
        self._store = store
        self._folder = folder = find_folder(store, self.identity, self.options)
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

    def begin(self, reading: Reading | None) -> None:
        """Make the folder, now that nothing is left to refuse; with `reading`, note the run."""
        self._folder = begin_folder(self._store, self.identity, self.options)
        if reading is not None and self.missing:
            self._note_run(reading)

    def _note_run(self, reading: Reading) -> None:
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

    def _tokens(self, part: SequencePart, at: NDArray[np.int64]) -> NDArray[np.int64]:
        layout = self.identity.layout
        sums = (sum(layout.piece_lengths(part.chains[i])) for i in at.tolist())
        return np.fromiter(sums, np.int64, len(at))

    def todo(self) -> Iterator[SequencePart]:
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

    def refuse_unloadable(self) -> None:
        """Raise if the encoder cannot be loaded: now, not after hours of the other kind."""
        if self.missing and self.options.backend(self.kind) == "packed":
            refuse_unloadable(self.identity)

    def encode(self, rank: Rank, load: Callable[[EncodeTask], Encoder]) -> float:
        """Encode what is this process's to encode; returns the seconds."""
        start_s = time.perf_counter()
        if not self._mine:
            return 0.0
        task = self.task
        encoder = load(task)
        load_s = time.perf_counter() - start_s
        if not rank.number:
            self.note_encoding()
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

    def note_encoding(self) -> None:
        """Keep when encoding began, for `abag store info`."""
        self._folder.note_encoding()

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
