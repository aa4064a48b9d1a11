"""Which sequences a table to be predicted holds, and which of them have to be encoded first.

The table is read in parts; what is kept of it is two numbers a row, the distinct keys, and the
chains of those sequences that the store lacks. P rows, N sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from abag import AbagError
from abag.core.keys import distinct_keys
from abag.embed.sequences.chains import EmptySequence, UnknownResidue
from abag.embed.sequences.domains import UnsureDomains
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.pairs import notes_on, read_pairs
from abag.embed.store.store import open_store
from abag.head.prediction.predictor import existing_store
from abag.head.prediction.rows import blanked, read_rows

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains, Kind
    from abag.embed.sequences.pairs import PairTable, UniqueSequences
    from abag.embed.store.store import Store
    from abag.head.prediction.predictor import Predictor

TableSource: TypeAlias = "Path | str | pd.DataFrame"

ROOM = 1 << 18
"""Keys of several parts that are held before equal ones become one: 19 MB while they do."""
PREDICTED_COLUMNS = ("pkd_predicted", "sigma", "far_antibody", "far_antigen")


class CannotPredict(AbagError):
    """What was asked for cannot be written, or nothing would be in it."""


@dataclass(frozen=True, slots=True)
class Work:
    """What every step of a prediction needs."""

    predictor: Predictor
    place: Path
    """The store."""
    say: Callable[[str], None]
    progress: bool
    encoding: Mapping[str, Any]
    """Options for encoding what is new."""

    def bar(self, what: str, total: int | None = None) -> tqdm[Any]:
        """Count rows on stderr."""
        return tqdm(
            total=total, desc=what, unit=" rows", unit_scale=True, dynamic_ncols=True, delay=1,
            disable=not self.progress,
        )  # fmt: skip


@dataclass(slots=True)
class Gathered:
    """The distinct sequences of one kind, gathered from a table that is read in parts."""

    kind: Kind
    unique: int = 0
    """Distinct sequences, once all are gathered."""
    new: dict[bytes, Chains] = field(default_factory=dict)
    """Those that the store lacks, by key."""
    any: Chains = ()
    """One of them."""
    _keys: list[NDArray[np.uint8]] = field(default_factory=list)
    _of_row: list[NDArray[np.int32]] = field(default_factory=list)
    _held: int = 0

    def add(self, part: UniqueSequences, missing: NDArray[np.bool_]) -> None:
        """Take in the sequences of some rows, and note those that have no vector."""
        self._keys.append(part.keys)
        self._of_row.append((part.of_row + self._held).astype(np.int32))
        self._held += len(part.keys)
        assert self._held < 2**31  # more rows than that would have filled any memory before
        self.any = self.any or part.chains[0]
        for i in np.flatnonzero(missing):
            self.new.setdefault(part.keys[i].tobytes(), part.chains[i])
        if self._held > 2 * self.unique + ROOM:
            self._merge()

    def _merge(self) -> None:
        """Keep each key once: every part may hold all of them."""
        keys, self._keys = np.concatenate(self._keys), []
        keys, index = distinct_keys(keys)
        of_row, self._of_row = np.concatenate(self._of_row), []
        self._keys, self._of_row = [keys], [index[of_row]]
        self.unique = self._held = len(keys)

    def finish(self) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        """Return the distinct keys, (N, 16), and each row's place among them, (P,)."""
        self._merge()
        return self._keys.pop(), self._of_row.pop()

    def summary(self, far: int) -> dict[str, int]:
        """Say what became of the sequences."""
        new = len(self.new)
        return {
            "unique": self.unique, "reused": self.unique - new, "encoded": new, "far": far,
        }  # fmt: skip


@dataclass(slots=True)
class GatheredPairs:
    """What the first reading of a table of pairs found."""

    antibodies: Gathered
    antigens: Gathered
    rows: int = 0
    """Good ones."""
    kept: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    """For parts that lost rows, by the number of rows before the part: whether each stayed."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows that did not, by reason."""

    def take(self, part: PairTable, missing: Callable[[UniqueSequences], Any]) -> None:
        """Take in a part of the table."""
        self.antibodies.add(part.antibodies, missing(part.antibodies))
        self.antigens.add(part.antigens, missing(part.antigens))
        self.rows += len(part.frame)
        self.skipped.update(part.skipped)


def gather_pairs(work: Work, table: TableSource, options: TableOptions) -> GatheredPairs:
    """Check every row of a table, and gather its sequences.

    Raises
    ------
    AbagError
        At the first bad row, unless these are skipped; if no row is left.
    """
    found = GatheredPairs(Gathered("antibody"), Gathered("antigen"))
    store, source, before = existing_store(work.place), source_name(table), 0
    counts: Counter[str] = Counter()
    with work.bar("reading") as bar:
        for frame in read_rows(table, limit=options.limit):
            refuse_taken(frame, source)
            part = _read_part(frame, options, source, before)
            if part is None:
                found.skipped["bad"] += len(frame)
                found.kept[before] = np.zeros(len(frame), np.bool_)
            else:
                found.take(part, lambda u: work.predictor.missing(store, u.kind, u.keys))
                counts.update(part.counts)
                if part.skipped:
                    found.kept[before] = np.zeros(len(frame), np.bool_)
                    found.kept[before][part.row_numbers - 1 - before] = True
            before += len(frame)
            bar.update(len(frame))
    if not found.rows:
        why = f"all {before} rows are bad" if before else "the table has no rows"
        msg = f"{source}: {why}; expected one antibody-antigen pair a row. Mend the table."
        raise CannotPredict(msg)
    for note in notes_on({**counts, "skipped_rows": found.skipped.total()}, found.skipped):
        work.say(f"{source}: {note}")
    return found


def _read_part(
    frame: pd.DataFrame, options: TableOptions, source: str, before: int
) -> PairTable | None:
    """Read some rows as pairs; None where all are bad and bad rows are skipped."""
    # the limit is of the whole table
    options = TableOptions(
        columns=options.columns, antigen=options.antigen, bad_rows=options.bad_rows
    )
    try:
        return read_pairs(blanked(frame), options, source=source, rows_before=before)
    except (EmptySequence, UnknownResidue, UnsureDomains):
        if options.bad_rows == "skip":
            return None
        raise


def source_name(table: TableSource) -> str:
    """Name a table in messages."""
    return "table" if isinstance(table, pd.DataFrame) else Path(table).name


def refuse_taken(frame: pd.DataFrame, source: str) -> None:
    """Refuse a table that has one of our columns: it would be overwritten."""
    taken = [name for name in PREDICTED_COLUMNS if name in frame.columns]
    if taken:
        msg = (
            f"{source}: has a column {taken[0]!r} already; expected none of "
            f"{', '.join(PREDICTED_COLUMNS)}. Rename or remove it."
        )
        raise CannotPredict(msg)


def complete(work: Work, antibodies: Gathered, antigens: Gathered) -> Store:
    """Have encoded what the store lacks, and open it."""
    for side, noun in ((antibodies, "antibodies"), (antigens, "antigens")):
        new = len(side.new)
        work.say(f"{side.unique:,} distinct {noun}: {side.unique - new:,} stored, {new:,} new")
    if work.predictor.embed is not None and (antibodies.new or antigens.new):
        work.predictor.encode(
            work.place,
            [*antibodies.new.values()],
            [*antigens.new.values()],
            (antibodies.any, antigens.any),
            say=work.say,
            progress=work.progress,
            **work.encoding,
        )
    return open_store(work.place)
