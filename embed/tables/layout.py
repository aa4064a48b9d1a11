"""Layout: what every column of the given tables is, decided once, as data.

Each file is opened once; its first rows, read as text, decide which role a column has, what cells
refer to, and what is not used. Whatever reads rows afterwards gets these decisions and takes none.
Several tables are read as one: rows keep the order of the tables, and no column is lost. Columns of
one role get the name that they have in the first table, others stay, and one more names the table.

A run remembers what the user told it of its table: columns, the antigen, the parent of variants and
how its residues are numbered, what happens to bad rows, and where chains are put. What of this
applies to another table is decided here, too: what the table or the user has instead wins, and is
said in a line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import pandas as pd

from abag.core.errors import TableError
from abag.core.messages import say
from abag.core.options import MAY_LACK
from abag.embed.tables.chains import (
    ANTIBODY_ROLES,
    CHAIN_ROLES,
    KINDS,
    LIGHT_MUTATIONS,
    LONG_RUN,
    MUTATION_PARTS,
    MUTATION_ROLES,
    MUTATIONS,
    NO_SEQUENCE,
    ROLES_OF,
    TEXT_ROLES,
    ChainPlaces,
    Kind,
    parse_antibody,
)
from abag.embed.tables.chains import antigen as antigen_chains
from abag.embed.tables.columns import (
    LONGEST_NAME,
    ROLES,
    UNNAMED,
    MissingColumn,
    find_columns,
    with_unit,
)
from abag.embed.tables.content import (
    SHORT,
    antigen_candidates,
    are_peptides,
    distinct_texts,
    drop_unused_roles,
    holds_sequences,
    refuse_exchanged,
    refuse_other_header,
    with_content,
)
from abag.embed.tables.formats import CHUNK_ROWS, EXCEL, ReadOptions, bare_suffix, cell_text
from abag.embed.tables.mutations import holds_mutations, means_parent
from abag.embed.tables.options import MOST_RESIDUE, AntibodyRegion, BadRows, Numbering, TableOptions
from abag.embed.tables.references import (
    References,
    find_references,
    refuse_rows_of_chains,
    with_references,
)
from abag.embed.tables.table import OneTable, Table, TableLike, open_table

T = TypeVar("T", bound=TableOptions)
DecideLabel: TypeAlias = Callable[[Table], Any]
"""Decides what the label of one table is: an object whose ``column`` is its name, or empty.

Its ``describing`` has the roles of columns that say more of it, and remarks on these."""
FILE_COLUMNS = ("file", "source_file", "joined_file")
"""Names of the column that names the table of a row: the first that is free, or else one more."""
OF_LABELS = frozenset({"pkd", "label", "prediction", "sigma", "censored", "affinity_type"})
"""Roles of columns of measurements: what a run remembers of its label is another record."""

LONGEST_PATH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedColumn:
    """What a column of the table of a run is."""

    role: str
    name: str
    """Empty: the user said that no column is this chain."""
    given: bool
    """Whether the user named it; others were found, and are found again in other tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRecord:
    """What the columns of a run's table are, and how it was read: saved, and checked if loaded."""

    columns: tuple[RecordedColumn, ...] = ()
    antigen: str = ""
    """Of all rows, or before its mutations; empty: there are several. `abag share` leaves it out
    with the sequences."""
    antibody_region: AntibodyRegion = "as-given"
    bad_rows: BadRows = "error"
    chains: ChainPlaces = "as-given"
    parent: str = ""
    """Antibody that mutations are of; empty: none was given. Left out as `antigen` is."""
    numbering: Numbering = "sequential"
    first_residue: int = 1
    mutations_in_order: bool = field(default=False, metadata=MAY_LACK)
    """Whether those of heavy and light chains were, as in A50G:WT; absent from files if not."""
    sequences: tuple[str, ...] = ()
    """Files of ``--sequences``: absolute paths, and in a shared predictor the names alone."""

    @property
    def files_of_names(self) -> tuple[str, ...]:
        """The files of ``--sequences`` that are where the run read them.

        Those of a shared predictor are not: a file of this name may have other sequences.
        """
        paths = map(Path, self.sequences)
        return tuple(str(path) for path in paths if path.is_absolute() and path.exists())

    @staticmethod
    def columns_of(given: Mapping[str, str], found: Mapping[str, str]) -> Iterator[RecordedColumn]:
        """Yield the columns that the user named by role, and those of other roles."""
        for role in ROLES:
            if role in given:
                yield RecordedColumn(role=role, name=given[role], given=True)
            elif role in found:
                yield RecordedColumn(role=role, name=found[role], given=False)

    @property
    def has_antigens(self) -> bool:
        """Whether a column of the table had the antigen, which no option gave."""
        return any(column.role == "antigen" for column in self.columns)

    def named(self) -> dict[str, str]:
        """Return the columns by role that the user named, without those of labels."""
        named = {column.role: column.name for column in self.columns if column.given}
        return {role: name for role, name in named.items() if role not in OF_LABELS}

    def check(self) -> None:
        """Raise ValueError for what no predictor may have: a fit asks before it trains."""
        roles = [column.role for column in self.columns]
        if unknown := set(roles) - set(ROLES):
            msg = f"the layout has a column for {min(unknown)!r}, which is no role"
            raise ValueError(msg)
        if len(set(roles)) < len(roles):
            msg = "the layout has two columns for one role"
            raise ValueError(msg)
        for column in self.columns:
            shortest = 0 if column.role in CHAIN_ROLES and column.given else 1
            if not shortest <= len(column.name) <= LONGEST_NAME:
                msg = (
                    f"the name of the column for {column.role} has {len(column.name):,} "
                    f"characters; expected 1 to {LONGEST_NAME:,}"
                )
                raise ValueError(msg)
        for name, text in (("an antigen", self.antigen), ("a parent", self.parent)):
            if text and not re.fullmatch(r"[A-Za-z|:\s]+", text):
                msg = f"the layout has {name} that is not a sequence"
                raise ValueError(msg)
        if self.antigen:
            antigen_chains(self.antigen)
        if self.parent:
            parse_antibody(self.parent)
        for path in self.sequences:
            if not 0 < len(path) <= LONGEST_PATH or "\0" in path:
                msg = "the layout has an invalid path of a file of sequences"
                raise ValueError(msg)
        if abs(self.first_residue) > MOST_RESIDUE:
            msg = f"the layout has residues from {self.first_residue} on"
            raise ValueError(msg)


NOTHING = LayoutRecord()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """What the columns of one table are."""

    table: OneTable
    source: str
    """Its name, for messages."""
    options: TableOptions
    """The user's options as they apply to this table, completed by those of the run."""
    columns: Mapping[str, str]
    """Names of columns by role."""
    ties: Mapping[str, list[str]]
    """Names of the columns that fit a role equally well, by role."""
    references: References
    """What cells refer to."""
    replaced: tuple[str, ...]
    """Columns of sequences that options, or other columns, replace."""
    remarks: tuple[str, ...]
    """One line per column of sequences that is not used, and per column that refers to others."""
    names: tuple[str, ...]
    """All of its columns, as they are called among those of all tables."""
    renamed: Mapping[str, str]
    """New names of columns, by the old ones."""
    label: Any = None
    """What `DecideLabel` returned; None if labels are not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the columns of all given tables are, and how their rows are read."""

    files: tuple[FileLayout, ...]
    kinds: tuple[Kind, ...]
    """Kinds of sequences that are read."""
    names: tuple[str, ...]
    """Columns of all tables together."""
    columns: Mapping[str, str]
    """Their names by role."""
    file_column: str
    """Name of the column that names the table of a row; empty: there is one table."""
    is_text: bool
    """Whether cells that are read as they are written become text, because types differ."""
    holds_texts: bool
    """Whether the columns of a table have no types, as those of text files and matrices."""
    limit: int | None
    _reading: ReadOptions
    _open: dict[int, Iterator[Table]] = field(repr=False, compare=False)
    """Tables that were not read yet, by their number."""

    @classmethod
    def of(
        cls,
        table: TableLike,
        options: TableOptions,
        *,
        kinds: Sequence[Kind] = KINDS,
        rows: int | None = CHUNK_ROWS,
        as_written: bool = False,
        remembered: LayoutRecord = NOTHING,
        label: DecideLabel | None = None,
    ) -> Self:
        """Decide what the columns of a table, or of several, are.

        Parameters
        ----------
        table : path, DataFrame or list of these
        options : TableOptions
        kinds : sequence of str
            Kinds of sequences that are asked for.
        rows : int or None
            Most rows of a chunk; None: each table is one chunk.
        as_written : bool
            Keep cells as in the file: text stays text, and Parquet keeps its types.
        remembered : LayoutRecord
            How the table of the run was read, for a table of a later command.
        label : callable, optional
            Decides the label of each table, by its first rows. Without it, labels are not read.

        Raises
        ------
        AbagError
            If a table cannot be read, has no rows, is given twice, has no column for a role that
            the user chose, or has two columns for what is one in another.
        """
        tables = tables_of(table)
        reading = ReadOptions(
            rows=rows,
            as_written=as_written,
            may_be_names=bool(options.sequences or remembered.sequences),
            kinds=kinds,
        )
        is_one = len(tables) == 1
        sources = [None] if is_one else _name_tables(tables)
        files = []
        opened = {}
        for number, (part, name) in enumerate(zip(tables, sources, strict=True)):
            file, opened[number] = _open_file(part, name, options, reading, remembered, label)
            files.append(file)
        for role, column in options.columns.items():
            is_present = any(with_unit(column, file.names) in file.names for file in files)
            if not (is_one or options.matrix or is_present):
                find_columns(files[0].names, {role: column}, files[0].source)  # raises
        canonical: dict[str, str] = {}  # the name of a role's column, of the first table with one
        for file in files:
            for role, column in file.columns.items():
                canonical.setdefault(role, column)
        files = [_with_names_of(canonical, file) for file in files]
        names = [*dict.fromkeys(chain.from_iterable(file.names for file in files))]
        file_column = ""
        if not is_one:
            proposed = chain(FILE_COLUMNS, (f"file_{number}" for number in count(2)))
            file_column = next(name for name in proposed if name not in names)
        have_types = {_has_types(part) for part in tables}
        columns_differ = len({file.names for file in files}) > 1
        return cls(
            files=tuple(files),
            kinds=tuple(kinds),
            names=tuple(names) if is_one else (*names, file_column),
            columns={role: canonical[role] for role in ROLES if canonical.get(role) in names},
            file_column=file_column,
            is_text=columns_differ or len(have_types) > 1,
            holds_texts=options.matrix or False in have_types,
            limit=options.limit,
            _reading=reading,
            _open=opened,
        )

    @property
    def source(self) -> str:
        """The names of all tables, for messages."""
        return ", ".join(file.source for file in self.files)

    def with_region(self, region: AntibodyRegion) -> Self:
        """Return the layout by which antibodies are cut to another region."""
        files = []
        for file in self.files:
            options = replace(file.options, antibody_region=region)
            files.append(replace(file, options=options))
        return replace(self, files=tuple(files))

    def describe(self) -> list[str]:
        """Say which columns of several tables were renamed, one line per table that has some."""
        lines = [f"column {self.file_column!r} names the table of a row"]
        for file in self.files:
            if file.renamed:
                pairs = ", ".join(f"{old!r} as {new!r}" for old, new in file.renamed.items())
                lines.append(f"{file.source}: columns are read as those of the others: {pairs}")
        return lines

    def align(self, frame: pd.DataFrame, number: int) -> pd.DataFrame:
        """Give rows of one table the columns of all."""
        if not self.file_column:
            return frame
        file = self.files[number]
        as_text = self._reading.as_written and self.is_text
        aligned = frame.rename(columns=dict(file.renamed))
        if as_text:
            aligned = aligned.astype(object).map(cell_text)
        absent = [name for name in self.names if name not in aligned and name != self.file_column]
        fill = "" if as_text else None
        for name in absent:
            aligned[name] = pd.Series([fill] * len(aligned), aligned.index, dtype=object)
        aligned[self.file_column] = file.source
        return aligned[[*self.names]]

    def chunks_of(self, number: int, start: int) -> Iterator[Table]:
        """Read the rows of one table, which begins at row `start` of all of them.

        The first reading goes on where the decisions stopped; another one opens the file again.
        """
        file = self.files[number]
        most = None if self.limit is None else self.limit - start
        chunks = self._open.pop(number, None)
        if chunks is None:
            chunks = open_table(file.table, replace(self._reading, table=file.options))
        for chunk in chunks:
            first = int(chunk.frame.index[0])
            if most is not None and first >= most:
                return
            frame = chunk.frame if most is None else chunk.frame.head(most - first)
            lacking = [name for name in file.columns.values() if name not in frame]
            if lacking:
                msg = (
                    f"{file.source}: row {first + chunk.first_row} and those after it have no "
                    f"column {lacking[0]!r}, which the first rows have; expected it in every file "
                    "of the folder. Add it, or give the files one by one."
                )
                raise TableError(msg)
            columns = dict(file.columns)
            ties = dict(file.ties)
            yield replace(chunk, frame=frame, source=file.source, columns=columns, ties=ties)

    def chunks(self) -> Iterator[Table]:
        """Read the rows of all tables, numbered through them by the index, unchecked."""
        start = 0
        for number in range(len(self.files)):
            rows = 0
            for chunk in self.chunks_of(number, start):
                frame = self.align(chunk.frame, number)
                rows += len(frame)
                if not self.file_column:
                    yield chunk
                    continue
                yield replace(
                    chunk,
                    frame=frame.set_axis(frame.index + start),
                    columns=dict(self.columns),
                    ties={},
                )
            start += rows


def _open_file(
    table: OneTable,
    name: str | None,
    given: TableOptions,
    reading: ReadOptions,
    remembered: LayoutRecord,
    decide_label: DecideLabel | None,
) -> tuple[FileLayout, Iterator[Table]]:
    """Open a table, and decide by its first rows what its columns are.

    `name` is that of one of several tables, which may lack columns that the user chose.
    """
    options = with_habits(given, remembered)
    is_excel = not isinstance(table, pd.DataFrame) and bare_suffix(Path(table)) in EXCEL
    if name is not None and not is_excel:
        options = replace(options, sheet=None)
    of_run = _named_by_run(options, remembered)
    options = replace(options, columns={**of_run, **options.columns})
    chunks = open_table(table, replace(reading, table=options))
    first = next(chunks)
    present = {*first.names}
    chosen = {}
    for role, given_name in options.columns.items():
        column = with_unit(given_name, first.names)
        may_lack = role in of_run or (name is not None and not options.matrix)
        if not column or column in present or not may_lack:
            chosen[role] = column
    options = replace(options, columns=chosen)
    top = replace(first.with_roles(chosen), source=name or first.source)
    if any(map(UNNAMED.fullmatch, top.names)):  # whose names may be in the second line
        refuse_other_header(top)
    for role, used in of_run.items():
        instead = top.columns.get(role)
        if used and used not in present and instead is not None:
            say(f"{top.source}: column {instead!r} is used as {role}; the run used {used!r}")
    top, remarks = with_content(top, options)
    options = _with_antigen(top, options, remembered)
    options, references = _with_parent(top, options, reading.kinds, remembered)
    top = with_references(top, references)
    found = top.columns
    top, ignored = drop_unused_roles(top, options)
    refuse_exchanged(top, options, reading.kinds)
    refuse_rows_of_chains(top, options)
    replaced = {role: column for role, column in found.items() if role not in top.columns}
    if options.parent is None:  # a string may have a chain that the columns of chains lack
        replaced.pop("antibody", None)
    label = None if decide_label is None else decide_label(top)
    if label is not None and label.column:
        columns = {**top.columns, "pkd": label.column, **label.describing.roles}
        remarks += label.describing.remarks
        in_order = [role for role in ROLES if role in columns and role != "label"]
        top = replace(top, columns={role: columns[role] for role in in_order})
    file = FileLayout(
        table=table,
        source=top.source,
        options=options,
        columns=top.columns,
        ties=top.ties,
        references=references,
        replaced=tuple(replaced.values()),
        remarks=(*ignored, *remarks, *references.remarks),
        names=tuple(top.names),
        renamed={},
        label=label,
    )
    return file, chain([first], chunks)


def read_top_row(table: TableLike, options: TableOptions) -> Table:
    """Return the first row of a table, with the roles that its columns have by their names."""
    of_file = TableOptions(
        limit=1, chains=options.chains, sheet=options.sheet, matrix=options.matrix
    )
    return next(open_table(tables_of(table)[0], ReadOptions(table=of_file))).with_roles({})


def _with_names_of(canonical: Mapping[str, str], file: FileLayout) -> FileLayout:
    """Decide how the columns of one table are called in all of them."""
    renamed: dict[str, str] = {}
    for role in sorted(file.columns, key=lambda role: role not in TEXT_ROLES):
        name = file.columns[role]
        new = canonical[role]
        if new == name or name in renamed:
            continue
        if new in file.names or new in renamed.values():
            if role not in TEXT_ROLES:
                continue
            msg = (
                f"{file.source}: column {name!r} is {role}, as {new!r} is in the first table, "
                f"but {new!r} is another column here; expected one name for one role. Rename one."
            )
            raise TableError(msg)
        renamed[name] = new
    names = tuple(renamed.get(name, name) for name in file.names)
    return replace(file, names=names, renamed=renamed)


def tables_of(table: TableLike) -> list[OneTable]:
    """List the tables of a list, or the only one."""
    if isinstance(table, list | tuple) and len(table) > 1:
        return [one_table(part) for part in table]
    return [one_table(table)]


def one_table(table: TableLike) -> OneTable:
    """Return the only table."""
    if isinstance(table, list | tuple):
        if len(table) == 1:
            return one_table(table[0])
        msg = f"{len(table)} tables: expected one. Give them one by one."
        raise TableError(msg)
    if not isinstance(table, str | PathLike | pd.DataFrame):
        msg = (
            f"table: {type(table).__name__}; expected a path, a DataFrame of pandas, Polars or "
            "PyArrow, a dict of lists, or a list of these. Wrap records in pandas.DataFrame."
        )
        raise TableError(msg)
    return table


def _has_types(table: OneTable) -> bool:
    """Tell whether the columns of a table have types, as those of text files do not."""
    if isinstance(table, pd.DataFrame):
        return True
    return Path(table).is_dir() or bare_suffix(Path(table)) == ".parquet"


def _name_tables(tables: Sequence[OneTable]) -> list[str]:
    """Name each table by its file, or by its path where files of two folders have one name."""
    paths = [Path(table) for table in tables if not isinstance(table, pd.DataFrame)]
    resolved = [path.resolve() for path in paths]
    for at, path in enumerate(resolved):
        if path in resolved[:at]:
            msg = f"{path.name}: is given twice; expected different tables. Remove one."
            raise TableError(msg)
    counts = Counter(path.name for path in paths)
    names = []
    for number, table in enumerate(tables, 1):
        if isinstance(table, pd.DataFrame):
            names.append(f"table {number}")
        else:
            path = Path(table)
            names.append(path.name if counts[path.name] == 1 else str(path))
    return names


# ---- what a run remembers --------------------------------------------------------------------


def with_habits(given: T, remembered: LayoutRecord) -> T:
    """Complete the options that are None and do not depend on the table."""
    left_open = [name for name in ("bad_rows", "chains") if getattr(given, name) is None]
    return replace(given, **{name: getattr(remembered, name) for name in left_open})


def _named_by_run(options: TableOptions, remembered: LayoutRecord) -> dict[str, str]:
    """Return the columns that the user named for the run, where none is named for this table."""
    # mutations are of the run's parent or antigen only together with it
    taken = {*options.columns, *MUTATION_ROLES}
    for kind in options.decided:
        taken.update(ROLES_OF[kind])
    return {role: name for role, name in remembered.named().items() if role not in taken}


def _with_antigen(top: Table, options: T, remembered: LayoutRecord) -> T:
    """Add the antigen of the run, unless a table has antigens of its own."""
    if "antigen" in options.decided or not remembered.antigen:
        return options
    if "antigen" in top.ties:
        return options
    column = top.columns.get("antigen")
    if column is not None and holds_sequences(top, column):
        if not remembered.has_antigens:
            say(f"{top.source}: antigens are those of column {column!r}, not that of the run")
        return options
    candidates = [] if column is None else [column]
    candidates += antigen_candidates(top)
    if not remembered.has_antigens:  # names are those that the option replaced
        texts = {name: distinct_texts(top, name) for name in candidates}
        held = []
        for name in candidates:  # sequences may be in blocks of ten, and faulty ones in one block
            if holds_sequences(top, name) or any(map(LONG_RUN.search, texts[name])):
                held.append(name)
        own = [{"".join(text.split()) for text in texts[name]} for name in held]
        candidates = [
            name for name, found in zip(held, own, strict=True) if found != {remembered.antigen}
        ]
    if candidates:
        return options  # which may be another antigen
    say(f"{top.source}: the antigen of the run is taken for all rows")
    completed = _with_mutations(top, options, remembered, "antigen_mutations")
    return replace(completed, antigen=remembered.antigen)


def _with_parent(
    top: Table, options: T, kinds: Sequence[Kind], remembered: LayoutRecord
) -> tuple[T, References]:
    """Find what cells refer to: as the table or the user says, or as in the run."""
    in_order = remembered.mutations_in_order
    if remembered.parent and "antibody" not in options.decided:
        if _holds_antibodies(top):
            say(
                f"{top.source}: antibodies are those of the table, not variants of the run's parent"
            )
        else:
            completed = _with_mutations(top, options, remembered, "mutations")
            completed = replace(completed, parent=remembered.parent)
            completed = _with_names(top, completed, remembered, kinds)
            with suppress(MissingColumn):  # of mutations: the parent of the run is none here
                references = find_references(top, completed, kinds, in_order=in_order)
                say(f"{top.source}: mutations are of the parent of the run")
                return completed, references
    options = _with_names(top, options, remembered, kinds)
    return options, find_references(top, options, kinds, in_order=in_order)


def _holds_antibodies(top: Table) -> bool:
    """Tell whether columns of antibodies hold these, and not mutations under a name such as VH."""
    for role in ANTIBODY_ROLES:
        if role in top.ties:
            return True
        if role not in top.columns:
            continue
        name = top.columns[role]
        is_parent = all(means_parent(cell_text(cell)) for cell in top.distinct_cells(name))
        if not (is_parent or holds_mutations(top, name)):
            return True
    return False


def _with_names(first: Table, options: T, remembered: LayoutRecord, kinds: Sequence[Kind]) -> T:
    """Add the files of the run to a table with names, or without a column of sequences."""
    if options.sequences or not remembered.sequences:
        return options
    names = [name for kind in kinds if (name := _name_in(first, options, kind)) is not None]
    if not names:
        return options
    here = remembered.files_of_names
    for path in remembered.sequences:
        if path not in here:
            has = f"holds names, such as {names[0]!r}" if names[0] else "has no sequences"
            why = "does not exist" if Path(path).is_absolute() else "is not part of the predictor"
            first.refuse(
                f"{has}, and {path}, in which the run looked names up, {why}; expected that file. "
                "Give it with --sequences FILE, or a table of sequences."
            )
    listed = ", ".join(Path(path).name for path in remembered.sequences)
    say(f"{first.source}: names are looked up in the file of the run, {listed}")
    return replace(options, sequences=remembered.sequences)


def _name_in(first: Table, options: TableOptions, kind: Kind) -> str | None:
    """Return a name in the columns of a kind; empty without columns, None if all are sequences."""
    constant = options.antigen if kind == "antigen" else options.parent
    if constant is not None or (kind == "antigen" and options.no_antigen):
        return None
    columns = {**first.columns, **options.columns}
    held = [columns[role] for role in sorted({*ROLES_OF[kind]} & columns.keys())]
    for name in held:
        texts = [text for text in distinct_texts(first, name) if text not in NO_SEQUENCE]
        short = [text for text in texts if len(text) < SHORT]
        if short and not (kind == "antigen" and are_peptides(short)):
            return short[0]
    return None if held else ""


def _with_mutations(top: Table, options: T, remembered: LayoutRecord, role: str) -> T:
    """Read mutations as the run did: its column, if a table has it, and its numbering of residues.

    What the user says of either wins.
    """
    roles = {role, *MUTATION_PARTS}
    if role == MUTATIONS["antibody"]:
        roles.add(LIGHT_MUTATIONS)
    named = remembered.named()
    of_run = {role: named[role] for role in named if role in roles and named[role] in top.names}
    return with_numbers(replace(options, columns={**of_run, **options.columns}), remembered)


def with_numbers(options: T, remembered: LayoutRecord) -> T:
    """Number residues as the run did, unless the user says how."""
    if options.numbering != "sequential" or options.first_residue != 1:
        return options
    return replace(options, numbering=remembered.numbering, first_residue=remembered.first_residue)
