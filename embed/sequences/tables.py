"""A file of rows -> a DataFrame, whole or a stretch at a time, and which column plays which role.

Promises that every column and row of the file is there, unchanged, or that one line says what is
wrong with the file. Column names are read as people write them (``VH``, ``Ab_heavy_chain_seq``,
``hc_sequence`` ...); where two fit equally well, nobody guesses.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pandas as pd

from abag import AbagError

# Patterns over a name's lower-case letters and digits. The first pattern that fits any column
# decides, so a column that says "sequence" goes before one that may hold a name or a PDB chain.
_SEQUENCE = "(seq|sequence|aa|aaseq|aminoacidsequence)"
_MUTANT = "(mut|mutant|mutated)"
_OWNER = "(antibody|ab|mab|fab|fv)?"
_HEAVY = f"{_OWNER}(heavy|heavychain|vh|vhchain|vhh|hc|variableheavy|heavyvariable)"
_LIGHT = f"{_OWNER}(light|lightchain|vl|vlchain|lc|variablelight|lightvariable)"
_ANTIGEN = "(antigen|ag|target)"

ROLES: dict[str, tuple[str, ...]] = {
    "heavy": (
        f"{_MUTANT}{_HEAVY}{_SEQUENCE}?",
        f"({_HEAVY}|nanobody){_SEQUENCE}",
        f"{_HEAVY}|fabh",
    ),
    "light": (f"{_MUTANT}{_LIGHT}{_SEQUENCE}?", f"{_LIGHT}{_SEQUENCE}", f"{_LIGHT}|fabl"),
    "antibody": (
        f"(antibody|ab|mab|scfv|fv){_SEQUENCE}",
        "antibody|ab|mab|fv",
        f"mata{_SEQUENCE}|{_SEQUENCE}",
    ),
    "antigen": (
        f"{_ANTIGEN}(chain)?{_SEQUENCE}",
        "antigen|ag",
        f"target|matalpha{_SEQUENCE}",
    ),
    "pkd": (
        "(affinity)?pkd(value)?|neg(ative)?log(10)?kdm?|affinitypkd",
        "affinity|label",
        "processedmeasurement|bindingscore|fitness|measurement|score",
    ),
    "kd_m": ("(affinity)?kdm|kdmolar",),
    "kd_nm": ("(affinity)?kdnm|kdnanomolar",),
    "log10_kd_nm": ("(affinity)?log(10)?kdnm", "alphaseqaffinity|predaffinity"),
    "dg_kcal": ("(dg|deltag)(kcal|kcalmol)?",),
    "prediction": ("pkdpredicted|predictedpkd|predictions?|predicted",),
    "censored": ("censored|censor|censoring", "(kd|affinity|aff|label)?(relation|operator|op)"),
    "assay": ("assay|assayid|assayname", "dataset|study", "source"),
    "affinity_type": ("(affinity|label|measurement)type",),
    "id": ("id|pairid|rowid",),
}
"""Role to patterns; the label's roles are named for their units (``--label``)."""

SEQUENCE_ROLES = ("heavy", "light", "antibody", "antigen")
STRETCH_ROWS = 1 << 16


class BadTable(AbagError):
    """A file that is no readable table, or a table without rows."""


class MissingColumn(AbagError):
    """A role that no column of the table plays, or a column that the table does not have."""


class AmbiguousColumn(AbagError):
    """A role that several columns fit equally well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows, and the roles of their columns."""

    source: str
    """The file's name, for messages."""
    frame: pd.DataFrame
    """Every column in the file's order, rows in the file's order, with a RangeIndex."""
    columns: dict[str, str]
    """Role to column name."""
    ties: dict[str, list[str]]
    """Roles left open, because several columns fit them equally well."""
    names: Sequence[str] = ()
    """Every column of the file, where the frame holds the sequences' columns only."""

    @property
    def found(self) -> str:
        """The file's columns, quoted for a message."""
        return listed(self.names or self.frame.columns)

    def column(self, role: str) -> str:
        """Name the column that plays a role.

        Raises
        ------
        MissingColumn, AmbiguousColumn
        """
        if role in self.columns:
            return self.columns[role]
        if role in self.ties:
            msg = (
                f"{self.source}: columns {listed(self.ties[role])} fit {role} equally well; "
                f"expected one. Choose with --column {role}=NAME."
            )
            raise AmbiguousColumn(msg)
        msg = (
            f"{self.source}: no column for {role}; found {self.found}. "
            f"Name it with --column {role}=NAME."
        )
        raise MissingColumn(msg)

    def has(self, role: str) -> bool:
        """Tell whether some column plays the role, or several could."""
        return role in self.columns or role in self.ties


def read_table(
    table: Path | str | pd.DataFrame,
    *,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Table:
    """Read a table and find the roles of its columns.

    Parameters
    ----------
    table : path or DataFrame
        CSV or TSV (the header line tells the separator) or Parquet, each also with ``.gz``, or a
        folder of Parquet files.
    columns : mapping, optional
        Role to column name, as chosen by a person; goes before what is detected.
    limit : int, optional
        Read the first rows only.

    Returns
    -------
    Table
        Sequence columns are text, the other columns as pandas reads them.

    Raises
    ------
    BadTable, MissingColumn
    """
    given = columns or {}
    if isinstance(table, pd.DataFrame):
        source, frame = "table", table.head(limit or len(table)).reset_index(drop=True)
    else:
        source, frame = Path(table).name, _read_file(Path(table), given, limit)
    roles, ties = find_columns(frame.columns, given, source)
    if frame.empty:
        raise _no_rows(source)
    return Table(source=source, frame=frame, columns=roles, ties=ties)


def read_stretches(
    table: Path | str | pd.DataFrame,
    *,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    rows: int = STRETCH_ROWS,
) -> Iterator[Table]:
    """Read a table a stretch of rows at a time, so that it may be larger than memory.

    Parameters
    ----------
    table, columns, limit
        As for `read_table`.
    rows : int
        Most rows in a stretch.

    Yields
    ------
    Table
        Of Parquet only the sequences' columns are read; the frame's index goes on counting the
        rows of the whole table.

    Raises
    ------
    BadTable, MissingColumn
    """
    given = columns or {}
    frames: Iterable[tuple[Sequence[str], pd.DataFrame]]
    if isinstance(table, pd.DataFrame):
        source, frames = "table", _cut(table, rows)
    else:
        source, frames = Path(table).name, _read_stretches(Path(table), given, rows)
    start = 0
    for names, whole in frames:
        frame = whole if limit is None else whole.head(limit - start)
        if not len(frame):
            continue
        roles, ties = find_columns(names, given, source)
        frame = frame.set_axis(pd.RangeIndex(start, start + len(frame)))
        yield Table(source=source, frame=frame, columns=roles, ties=ties, names=names)
        start += len(frame)
        if start == limit:
            return
    if not start:
        raise _no_rows(source)


def _no_rows(source: str) -> BadTable:
    return BadTable(f"{source}: the table has no rows; expected one antibody-antigen pair a row.")


def find_columns(
    names: Iterable[Hashable], given: Mapping[str, str], source: str
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Find the columns that play the roles, and the roles that several fit equally well."""
    present = [str(name) for name in names]
    for role, name in given.items():
        _check_given(role, name, present, source)
    free = [name for name in present if name not in given.values()]
    fits = {role: _best_fits(role, free) for role in ROLES if role not in given}
    found = {role: names[0] for role, names in fits.items() if len(names) == 1}
    return {**found, **given}, {role: names for role, names in fits.items() if len(names) > 1}


def _check_given(role: str, name: str, present: Sequence[str], source: str) -> None:
    if role not in ROLES:
        msg = f"--column {role}={name}: no such role; expected one of {', '.join(ROLES)}."
        raise MissingColumn(msg)
    if name not in present:
        msg = (
            f"{source}: --column {role}={name}: no such column; found {listed(present)}. "
            "Give one of these."
        )
        raise MissingColumn(msg)


def _best_fits(role: str, names: Sequence[str]) -> list[str]:
    for pattern in ROLES[role]:
        fits = [name for name in names if re.fullmatch(pattern, _bare(name))]
        if fits:
            return fits
    return []


def _bare(name: str) -> str:
    # pandas calls the second of two columns of one name "heavy.1"
    return re.sub("[^a-z0-9]", "", re.sub(r"\.\d+$", "", name.lower()))


def listed(names: Iterable[Hashable]) -> str:
    """Quote names for a message."""
    return ", ".join(repr(str(name)) for name in names)


_READERS = (".csv", ".tsv", ".parquet")


def _kind_of(path: Path) -> str:
    """Tell the kind of a table by its name, less ``.gz``; a folder holds Parquet files."""
    if path.is_dir():
        return ".parquet"
    zipped = path.suffix.lower() == ".gz"
    suffix = Path(path.stem if zipped else path.name).suffix.lower()
    if suffix not in _READERS:
        if not path.exists():
            msg = f"{path}: does not exist; expected a table. Check the path."
            raise BadTable(msg)
        msg = (
            f"{path}: no known kind of table; expected a name that ends in "
            f"{', '.join(_READERS)} or these with .gz, or a folder of .parquet files. "
            "Convert or rename it."
        )
        raise BadTable(msg)
    return suffix


@contextmanager
def _readable(path: Path, suffix: str) -> Iterator[None]:
    """Turn what a reader says into one line."""
    try:
        yield
    except FileNotFoundError as error:
        msg = f"{path}: does not exist; expected a {suffix[1:]} table. Check the path."
        raise BadTable(msg) from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = " ".join(str(error).split())
        msg = f"{path}: cannot be read: {reason}; expected a {suffix[1:]} table. Check the file."
        raise BadTable(msg) from error


def _open(path: Path) -> IO[bytes]:
    zipped = path.suffix.lower() == ".gz"
    return cast("IO[bytes]", gzip.open(path) if zipped else path.open("rb"))


def _read_file(path: Path, given: Mapping[str, str], limit: int | None) -> pd.DataFrame:
    suffix = _kind_of(path)
    with _readable(path, suffix):
        if suffix == ".parquet":
            frame = pd.read_parquet(_parquet_source(path))
            return frame.head(limit or len(frame)).reset_index(drop=True)
        with _open(path) as file:
            frame = pd.read_csv(file, nrows=limit, **_text_options(file, given))
            return _without_surplus(frame)


def _parquet_source(path: Path) -> Any:  # noqa: ANN401 - a path or a file, as pandas takes it
    """A path, or what a ``.gz`` holds: Parquet is read from its end, for which gzip unpacks all."""
    return io.BytesIO(gzip.decompress(path.read_bytes())) if path.suffix.lower() == ".gz" else path


def _text_options(file: IO[bytes], given: Mapping[str, str]) -> dict[str, Any]:
    """Find the separator and the sequences' columns; leaves the file at its start."""
    # Public tables come as .csv with tabs inside; the header line does not lie.
    header = file.readline()
    separator = max(",\t;", key=lambda mark: header.count(mark.encode()))
    read: dict[str, Any] = {"sep": separator, "low_memory": False}
    file.seek(0)
    names = pd.read_csv(file, nrows=0, **read).columns
    roles, _ = find_columns(names, given, Path(file.name).name)
    file.seek(0)
    return {**read, "dtype": {roles[role]: str for role in SEQUENCE_ROLES if role in roles}}


def _without_surplus(frame: pd.DataFrame) -> pd.DataFrame:
    if not isinstance(frame.index, pd.RangeIndex):  # pandas took the surplus fields for an index
        msg = "rows have more fields than the header"
        raise ValueError(msg)
    return frame


# --- a stretch at a time --------------------------------------------------------------------------


def _cut(table: pd.DataFrame, rows: int) -> Iterator[tuple[Sequence[str], pd.DataFrame]]:
    for start in range(0, len(table), rows):
        yield list(table.columns), table.iloc[start : start + rows]


def _read_stretches(
    path: Path, given: Mapping[str, str], rows: int
) -> Iterator[tuple[Sequence[str], pd.DataFrame]]:
    suffix = _kind_of(path)
    read = _read_parquet if suffix == ".parquet" else _read_text
    with _readable(path, suffix):
        yield from read(path, given, rows)


def _read_text(
    path: Path, given: Mapping[str, str], rows: int
) -> Iterator[tuple[Sequence[str], pd.DataFrame]]:
    with _open(path) as file:
        reader = pd.read_csv(file, chunksize=rows, **_text_options(file, given))
        for frame in reader:
            yield list(frame.columns), _without_surplus(frame)


def _read_parquet(
    path: Path, given: Mapping[str, str], rows: int
) -> Iterator[tuple[Sequence[str], pd.DataFrame]]:
    from pyarrow import dataset

    source: Any = _parquet_files(path) if path.is_dir() else _parquet_source(path)
    if path.suffix.lower() == ".gz":
        source = pd.read_parquet(source)
        yield from _cut(source, rows)
        return
    files = dataset.dataset(source, format="parquet")
    names = files.schema.names
    roles, ties = find_columns(names, given, path.name)
    wanted = [n for role in SEQUENCE_ROLES for n in (roles.get(role), *ties.get(role, ())) if n]
    # the defaults hold whole columns and several files: 1.5 GB where these need 0.5
    frugal = dataset.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
    ahead = {"batch_readahead": 1, "fragment_readahead": 1, "fragment_scan_options": frugal}
    columns = [*dict.fromkeys(wanted)] or None  # without any, the missing role is named further on
    for batch in files.to_batches(columns=columns, batch_size=rows, **ahead):
        yield names, batch.to_pandas()


def _parquet_files(folder: Path) -> list[str]:
    """List a folder's Parquet files by name, without what others keep under ``_`` and ``.``."""
    files = [
        str(path)
        for path in sorted(folder.rglob("*.parquet"))
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
    ]
    if not files:
        msg = f"{folder}: holds no .parquet file; expected a table. Give a file or such a folder."
        raise BadTable(msg)
    return files
