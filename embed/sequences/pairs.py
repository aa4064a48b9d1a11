"""A table of antibody-antigen pairs -> unique, checked, keyed sequences.

Promises that the same chains get the same key whatever their row, file, order, case or white
space, and that nothing is cut, dropped or merged without being refused or counted. Knows no
labels: their columns are found by name and handed on unread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from abag import AbagError
from abag.embed.sequences.chains import (
    BAD_SEQUENCE,
    REPLACED,
    Chains,
    EmptySequence,
    Kind,
    ParsedSequence,
    UnknownResidue,
    antigen,
    keys_array,
    parse_antibody,
    parse_antigen,
    parse_chain,
)
from abag.embed.sequences.domains import UnsureDomains
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.tables import MissingColumn, Table, listed, read_stretches, read_table

_REASONS: dict[type[AbagError], str] = {
    EmptySequence: "empty_sequence",
    UnknownResidue: "unknown_residue",
    UnsureDomains: "unsure_domains",
}


_DEFAULTS = TableOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueSequences:
    """The distinct sequences of one kind, in the order of their first rows."""

    kind: Kind
    chains: list[Chains]
    """N sequences."""
    keys: NDArray[np.uint8]
    """shape=(N, 16)."""
    of_row: NDArray[np.int64]
    """shape=(R,); row ``r`` holds ``chains[of_row[r]]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable(Table):
    """A table whose every row holds a checked antibody and a checked antigen."""

    row_numbers: NDArray[np.int64]
    """shape=(R,); 1-based data row of the file that each kept row came from."""
    antibodies: UniqueSequences
    antigens: UniqueSequences
    counts: dict[str, int]
    """Rows kept and skipped; of the unique sequences, what was split and replaced."""
    skipped: dict[str, int]
    """Skipped rows by reason."""
    notes: list[str]
    """What was done to the table, one printable line each; empty when nothing was."""


def read_pairs(
    table: Path | str | pd.DataFrame,
    options: TableOptions = _DEFAULTS,
    *,
    source: str | None = None,
    rows_before: int = 0,
) -> PairTable:
    """Read a table of antibody-antigen pairs and check every sequence in it.

    A table with heavy or light columns is read by these, even beside a single antibody column,
    unless ``options.columns`` names the latter. A string of the single column is ``heavy|light``,
    or ``heavy:light``, or is split by :func:`~abag.embed.sequences.domains.split_domains`.

    Parameters
    ----------
    table : path or DataFrame
        See :func:`~abag.embed.sequences.tables.read_table`.
    options : TableOptions, optional
    source, rows_before
        The name of the table, and its rows before these, where ``table`` is a part of a larger
        one: for messages and ``row_numbers``.

    Returns
    -------
    PairTable

    Raises
    ------
    BadTable, MissingColumn, AmbiguousColumn
        The table cannot be read, or lacks a column.
    EmptySequence, UnknownResidue, UnsureDomains
        The first bad row; with ``bad_rows="skip"``, only if no row is left.
    """
    whole = _part(table, options, source, rows_before)
    raw, unread, sides = _read_sides(whole, options)
    keep, skipped, first = _good_rows(raw, sides, options.bad_rows)
    if first is not None and not len(keep):
        raise _all_bad(raw.source, len(raw.frame), first)
    antibodies, of_antibody = _distinct("antibody", sides[0], keep)
    antigens, of_antigen = _distinct("antigen", sides[1], keep)
    counts = _counts([antibodies, antigens], len(keep), len(raw.frame) - len(keep))
    return PairTable(
        source=raw.source,
        frame=raw.frame.iloc[keep].reset_index(drop=True) if skipped else raw.frame,
        columns=raw.columns,
        ties=raw.ties,
        row_numbers=rows_before + keep + 1,
        antibodies=_numbered(antibodies, of_antibody),
        antigens=_numbered(antigens, of_antigen),
        counts=counts,
        skipped=dict(skipped),
        notes=unread + notes_on(counts, skipped),
    )


def _part(
    table: Path | str | pd.DataFrame, options: TableOptions, source: str | None, before: int = 0
) -> Table:
    """Read a table under the name, and with the rows before it, of the one it is a part of."""
    whole = read_table(table, columns=options.columns, limit=options.limit)
    frame = whole.frame.set_axis(pd.RangeIndex(before, before + len(whole.frame)))
    return replace(whole, source=source or whole.source, frame=frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTable(Table):
    """A table whose every row holds a checked sequence of one kind."""

    row_numbers: NDArray[np.int64]
    """shape=(R,); as in :class:`PairTable`."""
    unique: UniqueSequences
    skipped: dict[str, int]
    """Skipped rows by reason."""
    notes: list[str]
    """What was done to the table, one printable line each; empty when nothing was."""


def read_side(
    table: Path | str | pd.DataFrame,
    kind: Kind,
    options: TableOptions = _DEFAULTS,
    *,
    source: str | None = None,
) -> SequenceTable:
    """Read the antibodies or the antigens of a table, which may lack the other side.

    As :func:`read_pairs` otherwise.
    """
    raw, _ = _drop_unread(_part(table, options, source), options)
    cells = _read_antibodies(raw) if kind == "antibody" else _read_antigens(raw, None)
    keep, skipped, first = _good_rows(raw, (cells,), options.bad_rows)
    if first is not None and not len(keep):
        raise _all_bad(raw.source, len(raw.frame), first)
    distinct, of_row = _distinct(kind, cells, keep)
    counts = _counts([distinct], len(keep), len(raw.frame) - len(keep))
    return SequenceTable(
        source=raw.source,
        frame=raw.frame.iloc[keep].reset_index(drop=True) if skipped else raw.frame,
        columns=raw.columns,
        ties=raw.ties,
        row_numbers=keep + 1,
        unique=_numbered(distinct, of_row),
        skipped=dict(skipped),
        notes=notes_on(counts, skipped),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct:
    """The distinct sequences of some rows, in the order of their first rows."""

    kind: Kind
    chains: list[Chains]
    """N sequences."""
    keys: NDArray[np.uint8]
    """shape=(N, 16)."""
    rows: NDArray[np.int64]
    """shape=(N,); 1-based data row of the file in which each was met first."""
    replaced: NDArray[np.int32]
    """shape=(N,); residues that were read as X."""
    how: list[str]
    """N words; how an antibody's string was split, empty for all others."""


@dataclass(slots=True)
class Reading:
    """What `read_sequences` has met so far."""

    source: str = ""
    rows: int = 0
    """Rows kept."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows left out, by reason."""
    notes: list[str] = field(default_factory=list)
    """Columns that were not read, one printable line each."""
    residues: Counter[Kind] = field(default_factory=Counter)
    """In the sequences of the kept rows, each row's counted."""


def read_sequences(
    table: Path | str | pd.DataFrame, options: TableOptions, reading: Reading
) -> Iterator[Distinct]:
    """Read the sequences of a table that may be larger than memory.

    The same checks, sequences and keys as :func:`read_pairs`, a stretch of rows at a time.

    Parameters
    ----------
    table, options
        As for :func:`read_pairs`.
    reading : Reading
        Kept up to date.

    Yields
    ------
    Distinct
        Antibodies and antigens of a stretch, in turn; a sequence that is in several stretches
        comes with each.

    Raises
    ------
    AbagError
        As :func:`read_pairs`.
    """
    first: AbagError | None = None
    for whole in read_stretches(table, columns=options.columns, limit=options.limit):
        raw, reading.notes, sides = _read_sides(whole, options)
        keep, skipped, bad = _good_rows(raw, sides, options.bad_rows)
        reading.source, first = raw.source, first or bad
        reading.rows += len(keep)
        reading.skipped += skipped
        kinds: tuple[Kind, Kind] = ("antibody", "antigen")
        for kind, side in zip(kinds, sides, strict=True):
            distinct, of_row = _distinct(kind, side, keep, raw.frame.index[0])
            lengths = np.array([sum(map(len, chains)) for chains in distinct.chains], np.int64)
            reading.residues[kind] += int(lengths[of_row].sum())
            yield distinct
    if first is not None and not reading.rows:
        raise _all_bad(reading.source, reading.skipped.total(), first)


class _Cells(NamedTuple):
    """A column: row ``r`` says ``cells[codes[r]]``, which is an error where the row is bad."""

    codes: NDArray[np.int64]
    cells: list[ParsedSequence | AbagError]


def _drop_unread(table: Table, options: TableOptions) -> tuple[Table, list[str]]:
    """Leave out the roles that the options, or heavy and light, put out of use."""
    unread = {"antigen"} if options.antigen is not None else set()
    if "antibody" in options.columns:
        unread |= {"heavy", "light"}
    elif table.has("heavy") or table.has("light"):
        unread |= {"antibody"}
    columns = {role: name for role, name in table.columns.items() if role not in unread}
    ties = {role: names for role, names in table.ties.items() if role not in unread}
    notes = [
        f"column {name!r} is not read: the {role} comes from elsewhere"
        for role, name in table.columns.items()
        if role in unread
    ]
    return replace(table, columns=columns, ties=ties), notes


def _read_sides(
    whole: Table, options: TableOptions
) -> tuple[Table, list[str], tuple[_Cells, _Cells]]:
    """Read every antibody and antigen of some rows; say which columns were not read."""
    raw, unread = _drop_unread(whole, options)
    return raw, unread, (_read_antibodies(raw), _read_antigens(raw, options.antigen))


def _read_antibodies(table: Table) -> _Cells:
    if table.has("antibody"):
        return _read_column(table, "antibody", parse_antibody)
    roles = [role for role in ("heavy", "light") if table.has(role)]
    if not roles:
        msg = (
            f"{table.source}: no column for heavy, light or antibody; found "
            f"{table.found}. Name them with --column heavy=NAME, light=NAME "
            "or antibody=NAME."
        )
        raise MissingColumn(msg)
    read = {role: _read_column(table, role, parse_chain) for role in roles}
    absent = _Cells(np.zeros(len(table.frame), np.int64), [ParsedSequence(("",))])
    heavy, light = read.get("heavy", absent), read.get("light", absent)
    where = f"column {listed(table.column(role) for role in roles)}"
    codes, pairs = pd.factorize(heavy.codes * len(light.cells) + light.codes)
    of_heavy, of_light = np.divmod(pairs, len(light.cells))
    cells = [
        _pair(heavy.cells[h], light.cells[k], where)
        for h, k in zip(of_heavy, of_light, strict=True)
    ]
    return _Cells(codes.astype(np.int64), cells)


def _pair(
    heavy: ParsedSequence | AbagError, light: ParsedSequence | AbagError, where: str
) -> ParsedSequence | AbagError:
    if isinstance(heavy, AbagError):
        return heavy
    if isinstance(light, AbagError):
        return light
    chains = heavy.chains + light.chains
    if not any(chains):
        return EmptySequence(f"{where}: no antibody chain; expected at least one. Give a chain.")
    return ParsedSequence(chains, heavy.replaced + light.replaced)


def _read_antigens(table: Table, text: str | None) -> _Cells:
    if text is None:
        return _read_column(table, "antigen", parse_antigen)
    return _Cells(np.zeros(len(table.frame), np.int64), [ParsedSequence(antigen(text))])


def _read_column(table: Table, role: str, read: Callable[[str], ParsedSequence]) -> _Cells:
    """Read each distinct text of a column once."""
    name = table.column(role)
    codes, texts = pd.factorize(table.frame[name])  # -1: nothing in the cell

    def cell(text: object) -> ParsedSequence | AbagError:
        try:
            return read(str(text))
        except BAD_SEQUENCE as error:
            return type(error)(f"column {name!r}: {error}")

    bar = tqdm(["", *texts], desc=f"reading {name}", unit=" texts", delay=2, disable=None)
    return _Cells(codes.astype(np.int64) + 1, [cell(text) for text in bar])


def _good_rows(
    table: Table, sides: Sequence[_Cells], bad_rows: str
) -> tuple[NDArray[np.int64], Counter[str], AbagError | None]:
    """Give the positions of the good rows, the bad ones by reason, and the first one's error."""
    bad = [np.array([isinstance(cell, AbagError) for cell in side.cells]) for side in sides]
    row_is_bad = np.any([b[side.codes] for b, side in zip(bad, sides, strict=True)], axis=0)
    if not row_is_bad.any():
        return np.arange(len(row_is_bad)), Counter(), None
    errors = [_first_error(sides, row) for row in np.flatnonzero(row_is_bad).tolist()]
    where = f"row {table.frame.index[int(row_is_bad.argmax())] + 1}, "
    first = type(errors[0])(f"{where}{errors[0]}")
    if bad_rows == "error":
        if row_is_bad.all():
            raise _all_bad(table.source, len(row_is_bad), first)
        msg = f"{table.source}: {first}"
        raise type(first)(msg)
    reasons = Counter(_REASONS[type(error)] for error in errors)
    return np.flatnonzero(~row_is_bad), reasons, first


def _all_bad(source: str, rows: int, first: AbagError) -> AbagError:
    return type(first)(f"{source}: all {rows} rows are bad; {first}")


def _first_error(sides: Sequence[_Cells], row: int) -> AbagError:
    cells = (side.cells[side.codes[row]] for side in sides)
    return next(cell for cell in cells if isinstance(cell, AbagError))


def _distinct(
    kind: Kind, side: _Cells, keep: NDArray[np.int64], start: int = 0
) -> tuple[Distinct, NDArray[np.int64]]:
    """Merge the texts that say the same sequence; give each kept row's place among the distinct."""
    codes, used = pd.factorize(side.codes[keep])
    _, first_rows = np.unique(codes, return_index=True)
    index: dict[Chains, int] = {}
    met: list[tuple[ParsedSequence, int]] = []
    of_code = np.empty(len(used), np.int64)
    for i, code in enumerate(used):
        cell = cast("ParsedSequence", side.cells[code])
        if cell.chains not in index:
            met.append((cell, int(first_rows[i])))
        of_code[i] = index.setdefault(cell.chains, len(index))
    chains = [*index]
    distinct = Distinct(
        kind=kind,
        chains=chains,
        keys=keys_array(kind, chains),
        rows=keep[[row for _, row in met]] + start + 1,
        replaced=np.array([cell.replaced for cell, _ in met], np.int32),
        how=[cell.form for cell, _ in met],
    )
    return distinct, of_code[codes]


def _numbered(distinct: Distinct, of_row: NDArray[np.int64]) -> UniqueSequences:
    return UniqueSequences(
        kind=distinct.kind, chains=distinct.chains, keys=distinct.keys, of_row=of_row
    )


def _counts(sides: Sequence[Distinct], rows: int, skipped: int) -> dict[str, int]:
    how = Counter(word for side in sides for word in side.how)
    replaced = sum(int(side.replaced.sum()) for side in sides)
    return {"rows": rows, "skipped_rows": skipped, **counts_of(how, replaced)}


def counts_of(how: Mapping[str, int], replaced: int) -> dict[str, int]:
    """Name the counts of what was done to read the distinct sequences.

    Parameters
    ----------
    how : mapping
        How strings were split (`Distinct.how`) to the number of sequences.
    replaced : int
        Residues read as X.
    """
    glued, linker = how.get("glued", 0), how.get("linker", 0)
    return {
        "split_antibodies": glued + linker,
        "split_glued": glued,
        "split_linker": linker,
        "unrecognised_antibodies": how.get("no domain", 0),
        "replaced_residues": replaced,
    }


def notes_on(counts: Mapping[str, int], skipped: Mapping[str, int]) -> list[str]:
    """Say what was done to a table, one printable line each; empty when nothing was."""
    reasons = ", ".join(f"{n:,} {reason.replace('_', ' ')}" for reason, n in skipped.items())
    lines = {
        f"{counts['skipped_rows']:,} bad rows skipped ({reasons})": counts["skipped_rows"],
        f"{counts['split_antibodies']:,} antibody strings split into heavy and light "
        f"({counts['split_glued']:,} glued, {counts['split_linker']:,} joined by a linker, which "
        "was removed)": counts["split_antibodies"],
        f"{counts['unrecognised_antibodies']:,} antibody strings have no known variable domain "
        "and are taken for heavy chains": counts["unrecognised_antibodies"],
        f"{counts['replaced_residues']:,} residues {', '.join(REPLACED)} read as X": counts[
            "replaced_residues"
        ],
    }
    return [line for line, n in lines.items() if n]
