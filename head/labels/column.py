"""The label of a table: which column it is, its unit, and its pKd.

`decide_label` decides once per table, as part of its layout; `read_affinities` only converts.

A column is taken if its name says what it measures. What is unclear is refused, with the options
that would decide it, and an option that contradicts the name is refused, too; a run decides where
neither an option nor the name does. A relation such as ``>1000`` in the label is of the label's
unit. In a column of its own it is of Kd, where ``>`` means a higher Kd, hence a lower pKd; for
another quantity it is of that quantity. R rows of a table.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats
from abag.core.errors import AbagError, ColumnError, LabelError
from abag.core.messages import counted, quoted
from abag.core.units import UNITS
from abag.embed.tables.columns import MissingColumn, quote_names, quote_some, with_found
from abag.head.labels.headers import (
    PKD,
    SCAN_MEASURED,
    USUAL_PKD,
    Header,
    Quantity,
    outside,
    plain_text,
    read_header,
    to_pkd,
    written_by,
)
from abag.head.labels.options import Better, Label, LabelOptions
from abag.head.labels.values import (
    SIDES,
    read_bounds,
    read_texts,
    refuse_two_values,
    says_class,
    says_no_binding,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.tables.pairs import SequenceTable
    from abag.embed.tables.table import Table


_UNNAMED = re.compile(r"Unnamed: \d+|index", re.IGNORECASE)
"""Columns of the index that pandas writes."""
_MOST_PROPOSED = 4
_CAMEL = re.compile("(?<=[a-z])(?=[A-Z][a-z]|[A-Z]{2})")
_BINDING = re.compile(
    "affin|activit|fitness|enrich|bind|bound|avidity|score|potenc|inhibit|neutrali|pkd|ic50|ec50"
)
_BINDING_WORDS = frozenset("kd ka ki dg ddg fit".split())
_MEASURED = re.compile("express|signal|respon|titer|titre|yield|stabil|intens|measure|elisa|logfc")
_MEASURED_WORDS = frozenset(
    "exp expt experiment experimental tm mfi od od450 spr bli facs value label y".split()
)
"""What columns of measurements are called, first those of binding."""
_COMPUTED = re.compile(
    "plddt|iptm|ptm|pae|rosetta|dock|perplex|likelihood|loglik|confid|probab|quality|humanness|"
    "evalue|bitscore|predict|gravy|hydrophob"
)
"""What columns are called that were computed from sequences and structures."""
_OF_ROWS = re.compile(
    "(?:.*(?:count|counts|number|index|length|position|pmid|year)|.*[a-z]{3}id|id|ids|idx|no|num|nr|"
    "n|reads?|umis?|dates?|pubmed|doi|pos|positions|len|rank|distance|dist|hamming|levenshtein|"
    "identity|similarity)[0-9]*"
)
_BESIDE = re.compile(
    "(?:.*class|.*cluster|days?|months?|patent|resi|residue|site|start|end|size|mut|muts|mutations?|"
    "nmut|subs|category|classes|clone|clonotype|group|family|fold|split|set|round|cycle|batch|plate|"
    "well|row|col|column|line|replicates?|reps?|order|seed|tax|taxon|chain|resolution|age|donor|"
    "sample|subject|patient|version|flag|ph|temp|temperature|mw|mass|weight|charge|pi|conc|"
    "concentration|dose|lane|bin|code|accession|freq|frequency)[0-9]*"
)
"""Words of columns that number or count rows, and of those that describe them where no word of a
measurement is beside, as in ``fitness_round2``."""
_SUMMARIES = frozenset(
    "avg average mean median geomean gmean combined consensus overall final all".split()
)
"""Words that set one column above those that it summarises."""
_YEARS = (1900, 2100)


class UnclearLabel(MissingColumn):
    """No column is the label for sure, but some may be."""


class _Cells(NamedTuple):
    """What the cells of a column hold."""

    are_numbers: bool
    """Whether most that are not empty are numbers or bounds."""
    are_classes: bool
    are_few: bool
    """Whether values are repeated ten times, on average."""
    are_whole: bool
    count_rows: bool
    """Whether they are years, or the whole numbers of a range, each once."""


@dataclass(frozen=True, eq=False)
class Column:
    """What one column of a table may be, by its name and its cells; each is looked at once."""

    table: Table
    name: str

    @cached_property
    def header(self) -> Header:
        """What the name says."""
        return read_header(self.name)

    @cached_property
    def command(self) -> str:
        """Command of abag that wrote it, or nothing."""
        return written_by(self.name, self.table.names)

    @cached_property
    def cells(self) -> _Cells:
        """What the cells hold."""
        cells = self.table.frame[self.name]
        numbers, _ = read_bounds(cells)
        known = numbers[np.isfinite(numbers)]
        distinct = np.unique(known)
        is_whole = bool((distinct % 1 == 0).all())
        counts_rows = False
        if is_whole and len(distinct):
            is_year = _YEARS[0] <= distinct[0] and distinct[-1] <= _YEARS[1]
            counts_rows = is_year or len(distinct) == len(numbers) == np.ptp(distinct) + 1
        return _Cells(
            are_numbers=2 * len(known) > int(cells.notna().sum()),
            are_classes=len(distinct) < 3,
            are_few=10 * len(distinct) < len(numbers),
            are_whole=is_whole,
            count_rows=bool(counts_rows),
        )

    @property
    def holds_numbers(self) -> bool:
        """Whether most cells that are not empty are numbers or bounds."""
        return self.name in self.table.frame and self.cells.are_numbers

    @cached_property
    def improbability(self) -> tuple[bool | int, ...]:
        """Order of columns of numbers by how probably each is the label.

        Names of measurements come first, those of binding before others; rates and differences, and
        then what numbers, counts or describes rows, come last.
        """
        words = re.findall("[a-z]+[0-9]*", plain_text(_CAMEL.sub(" ", self.name))[0])
        joined = "".join(words)
        bare = {word.rstrip("0123456789") for word in words} | {*words}
        if _BINDING.search(joined) or not _BINDING_WORDS.isdisjoint(bare):
            kind = 0
        elif _MEASURED.search(joined) or not _MEASURED_WORDS.isdisjoint(bare):
            kind = 1
        else:
            kind = 2
        cells = self.cells
        is_described = any(map(_OF_ROWS.fullmatch, words)) or bool(_COMPUTED.search(joined))
        is_other = is_described or cells.are_classes or self.header.predicted
        if kind == 2:
            is_other = is_other or cells.count_rows or any(map(_BESIDE.fullmatch, words))
        is_summary = not _SUMMARIES.isdisjoint(words)
        is_no_label = bool(self.header.not_label)
        return (is_other, is_no_label, kind, cells.are_whole, not is_summary, cells.are_few)

    @property
    def is_probable(self) -> bool:
        """Whether it is named like a measurement, and holds more than classes."""
        is_other, _, kind, *_ = self.improbability
        return self.header.better is not None or (not is_other and kind < 2)

    @property
    def hint(self) -> str:
        """How it is read if it may be the label by its name; empty for others."""
        header = self.header
        if header.not_label or not (header.affinity or header.plain):
            return ""
        if not (header.sure or self.holds_numbers):
            return ""
        use = f"use --column {shlex.quote(f'pkd={self.name}')} --label"
        if header.of_alphaseq:
            return f"{self.name!r} is log10 of Kd in nM, lower is stronger: {use} log10_kd_nm."
        if header.unit_alone:
            return ""
        if header.units:
            return f"{self.name!r} is named like {header.units[0]}: {use} {header.units[0]}."
        ending = "." if header.affinity else _IF_NO_AFFINITY
        return f"{self.name!r} may be one: {use} UNIT{ending}"


_IF_NO_AFFINITY = " (value --better higher: if it is no affinity)."


def _likely_first(columns: Iterable[Column]) -> list[Column]:
    return sorted(columns, key=lambda column: column.improbability)


def _names(columns: Iterable[Column]) -> list[str]:
    return [column.name for column in columns]


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table that may be its label."""

    table: Table

    @cached_property
    def free(self) -> list[Column]:
        """Those that have no role, and that no command has written."""
        used = set(self.table.columns.values())
        columns = [Column(self.table, name) for name in map(str, self.table.names)]
        return [column for column in columns if column.name not in used and not column.command]

    @cached_property
    def numbers(self) -> list[Column]:
        """Those of numbers, likely labels first, without constants, such as a pH, beside others."""
        numbers = []
        for column in self.free:
            is_index = _UNNAMED.fullmatch(column.name) is not None
            if is_index or column.header.describes_another:
                continue
            if column.holds_numbers:  # last: it reads all cells
                numbers.append(column)
        frame = self.table.frame
        varied = [column for column in numbers if frame[column.name].nunique() > 1]
        return _likely_first(varied or numbers)

    @cached_property
    def states_unit(self) -> bool:
        """Whether the name of a column states a unit, and more than the unit."""
        headers = [column.header for column in self.free]
        return any(header.units and not header.unit_alone for header in headers)

    def find_same(self, quantity: Quantity) -> str:
        """Return the only column of numbers with the name of a quantity, that of a run."""
        name = quantity.name.casefold()
        same = [x for x in self.numbers if x.header.quantity.casefold() == name]
        if len(same) == 1:
            return same[0].name
        self._refuse_missing(f"no column for {quantity}, which the run predicts")

    def _refuse_missing(self, problem: str) -> NoReturn:
        """Refuse a table without a column of numbers that may be the label."""
        problem = f"{self.table.source}: {problem}"
        advice = "Name it with --column label=NAME."
        raise MissingColumn(with_found(problem, self.table.names, advice))

    def find_label(self, options: LabelOptions, *, of_run: bool = False) -> str:
        """Return the only column whose name says that it is the label, in the unit of `label`.

        For a table of a run of affinities (`of_run`), other quantities are neither taken nor
        proposed.
        """
        table = self.table
        label = options.label
        asked = options.better is not None or options.unit is not None
        if label == "value" or asked:
            numbers = [column for column in self.numbers if not column.header.states_affinity]
            if len(numbers) == 1:
                return numbers[0].name
            self._refuse_unclear_value(replace(options, label="value"))
        column = self._stated_label(label)
        if column is not None:
            return column
        takes_value = label is None and not of_run
        written = self._describe_written()
        hints = self._propose_named()
        if written and not hints:
            hints = self.propose_numbers()
        if takes_value and not hints and not written:
            numbers = self.numbers
            if len(numbers) == 1 and numbers[0].header.better:
                return numbers[0].name  # a quantity that is no affinity
        if hints:
            quantities = self._propose_quantities() if takes_value else []
            others = self._list_others() if takes_value and not written else []
            lines = [*quantities, *hints, *others, *written]
            msg = f"{table.source}: no column for pkd, but {' '.join(lines)}"
            raise UnclearLabel(msg)
        if written:
            msg = (
                f"{table.source}: no column for pkd. {' '.join(written)} Add a column of "
                "measurements, and name it with --column pkd=NAME."
            )
            raise MissingColumn(msg)
        if takes_value:
            self._refuse_unclear_value(options)
        return table.column("pkd", "" if of_run else self._advise_value())

    def _refuse_unclear_value(self, options: LabelOptions) -> None:
        """Raise an error that lists the columns that may be another quantity than an affinity."""
        asked = options.label == "value"
        candidates = self.numbers
        if not asked and any(column.header.better for column in candidates):
            candidates = [column for column in candidates if column.is_probable]
        elif not asked:
            return
        if not candidates:
            self._refuse_missing("no column of numbers for the label")
        first = candidates[0]
        advice = f"Use --column {shlex.quote(f'label={first.name}')}"
        if not options.better and (asked or not first.header.better):
            advice += " --label value --better higher, or lower"
        empty = int(self.table.frame[first.name].isna().sum())
        skip = f" Its empty cells, {empty:,}, need --bad-rows skip." if empty else ""
        msg = (
            f"{self.table.source}: no column for {'the label' if asked else 'pkd'}, but "
            f"{quote_some(_names(candidates))} may be another quantity; expected one to be chosen. "
            f"{advice}.{skip}"
        )
        raise UnclearLabel(msg)

    def _advise_value(self) -> str:
        """Say how a column of numbers is read whose name says nothing; empty without one."""
        names = _names(self.numbers)
        if not names:
            return ""
        named = shlex.quote(f"label={names[0]}")
        listed = f"; columns of numbers, likely labels first: {quote_some(names)}"
        return (
            f", or a quantity that is no affinity with --column {named} --label value --better "
            f"higher, or lower{listed if len(names) > 1 else ''}"
        )

    def _stated_label(self, label: Label | None) -> str | None:
        """Return the column whose name fits best; None if none does, and refuse several."""
        stated = []
        for column in self.free:
            header = column.header
            if header.sure and header.units and (label is None or label in header.units):
                stated.append(column)
        first = min((column.header.order for column in stated), default=0)
        best = _names(column for column in stated if column.header.order == first)
        if len(best) == 1:
            return best[0]
        if len(best) > 1 and first < 2:
            choices = [f"--column {shlex.quote(f'pkd={name}')}" for name in best]
            msg = (
                f"{self.table.source}: columns {quote_names(best)} fit pkd equally well; expected "
                f"one. Choose with {' or '.join(choices)}; for a run of each, give each its own "
                "--run folder, and compare them with abag runs."
            )
            raise ColumnError(msg)
        if label is None or best:
            return None
        return self._only_affinity()

    def _only_affinity(self) -> str | None:
        """Return the only column that may be in a unit that the user gave; None without one."""
        sure = [column for column in self.free if column.header.sure]
        with_unit = _names(column for column in sure if column.header.units)
        affinities = _names(column for column in sure if column.header.affinity)
        without_unit = [name for name in affinities if name not in with_unit]
        plain = _names(column for column in self.free if column.header.plain)
        for names in (without_unit, plain):
            if len(names) == 1:
                return names[0]
        # the name of a column with a unit contradicts the option, which is refused
        is_one = not without_unit and not plain and len(with_unit) == 1
        return with_unit[0] if is_one else None

    def _describe_written(self) -> list[str]:
        """Say which columns would be labels by their names, but were written by a command."""
        described = []
        for name in map(str, self.table.names):
            column = Column(self.table, name)
            if column.command and (column.header.plain or column.header.units):
                described.append(f"{name!r} is a column of abag {column.command}.")
        return described

    def _propose_named(self) -> list[str]:
        """Say how columns are read that may be the label; if some state a unit, only these."""
        proposed = []
        for column in self.free:
            header = column.header
            is_possible = header.units or header.of_alphaseq or not self.states_unit
            if is_possible and column.hint:
                proposed.append(column)
        return [column.hint for column in _likely_first(proposed)]

    def _list_others(self) -> list[str]:
        """Name other columns that may be the label, if no column states a unit."""
        others = []
        for column in self.numbers:
            is_proposed = column.hint or column.header.better
            if not (is_proposed or self.states_unit) and column.is_probable:
                others.append(column.name)
        return [f"Other columns of numbers: {quote_some(others)}."] if others else []

    def _propose_quantities(self) -> list[str]:
        """Say how the columns are read that are named like another quantity than an affinity."""
        named = [column for column in self.numbers if column.header.better]
        proposed = []
        for column in named[:_MOST_PROPOSED]:
            if not column.header.states_affinity:
                choice = f"--column {shlex.quote(f'label={column.name}')}"
                proposed.append(
                    f"{column.name!r} is named like a quantity that is no affinity: use {choice}."
                )
        return proposed

    def propose_numbers(self) -> list[str]:
        """Propose the columns of numbers of a table that a command has written."""
        free = [column for column in self.free if not column.header.not_label]
        numbers = [column for column in free if column.holds_numbers]
        proposed = []
        for column in _likely_first(numbers)[:_MOST_PROPOSED]:
            choice = f"--column {shlex.quote(f'pkd={column.name}')} --label UNIT"
            proposed.append(f"{column.name!r} may be one: use {choice}{_IF_NO_AFFINITY}")
        return proposed


AS_IN_THE_RUN = "as in the run"
"""Why a column has a unit."""
_IN_THE_NAME = "the column is named so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """How a run read its labels, for tables that say nothing else."""

    column: str
    unit: Label
    no_binding_pkd: float | None = None
    no_binding_empty: bool = False
    quantity: Quantity = PKD


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMeaning:
    """What a column of labels or predictions is read as."""

    column: str
    unit: Label
    why: str
    """What says so; empty if nothing needs to."""
    quantity: Quantity = PKD


def choose_prediction(table: Table, label: Label | None = None) -> ColumnMeaning:
    """Find the column of predictions, and what it is read as."""
    column = table.columns.get("prediction")
    if column is None and "prediction" not in table.ties:
        columns = [Column(table, name) for name in map(str, table.names)]
        named = [x.name for x in columns if x.header.predicted and x.header.units]
        column = named[0] if len(named) == 1 else None
    column = table.column("prediction") if column is None else column
    return meaning_of_column(table, column, "prediction", LabelOptions(label=label), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelLayout:
    """What the label of one table is, or why it has none."""

    source: str
    """Name of the table."""
    meaning: ColumnMeaning | None
    """None if the label is refused."""
    options: LabelOptions
    """How it is converted."""
    remembered: Remembered | None = None
    refused: AbagError | None = None
    is_absent: bool = False
    """Whether nothing may be a label, as in a table to predict."""

    @property
    def column(self) -> str:
        """Name of the column in its table; empty if the label is refused."""
        return "" if self.meaning is None else self.meaning.column

    def checked(self) -> ColumnMeaning:
        """Return what the column is read as, or raise the error that refuses it."""
        if self.meaning is None:
            assert self.refused is not None
            raise self.refused
        return self.meaning


def decide_label(
    table: Table, options: LabelOptions, remembered: Remembered | None = None
) -> LabelLayout:
    """Decide which column of a table is the label, and what it is read as.

    Parameters
    ----------
    table : Table
        With ``pkd`` or ``label`` among its roles if the user named the column; with ``label``,
        what it measures has to be stated.
    options : LabelOptions
    remembered : Remembered, optional
        How the run of the table read its labels.

    Returns
    -------
    LabelLayout
        With the refusal, as `ColumnError` or `LabelError`, if no column is the label, its unit is
        not known, or its name contradicts the options: a table to predict needs none.
    """
    columns = Columns(table)
    try:
        column = table.columns.get("label", table.columns.get("pkd"))
        if column is None:
            column = _find_column(columns, options, remembered)
        meaning = meaning_of_column(table, column, "pkd", options, remembered)
        if meaning.quantity.affinity:
            name = _name_affinity(table, column, options.affinity_type)
            meaning = replace(meaning, quantity=replace(meaning.quantity, name=name))
    except AbagError as error:
        is_missing = isinstance(error, MissingColumn) and not isinstance(error, UnclearLabel)
        return LabelLayout(
            source=table.source,
            meaning=None,
            options=options,
            refused=error,
            is_absent=is_missing and not columns.numbers,
        )
    return LabelLayout(source=table.source, meaning=meaning, options=options, remembered=remembered)


def meaning_of_column(
    table: Table,
    column: str,
    role: str,
    options: LabelOptions,
    remembered: Remembered | None,
) -> ColumnMeaning:
    """Find what a column is read as; refuse one that its name or the options contradict.

    Parameters
    ----------
    table : Table
    column : str
        Its name.
    role : str
        ``pkd`` for labels, which may be of another quantity, or ``prediction``.
    options : LabelOptions
    remembered : Remembered, optional
        How the run of the table read its labels.

    Raises
    ------
    LabelError
        If the column is no measurement, or named like another unit than that of the options.
    UnclearLabel
        If the unit is not known.
    """
    if role == "pkd":
        _refuse_written(table, column)
        other = _other_quantity(table, column, options, remembered)
        if other is not None:
            return other
    unit, why = _unit_of_affinity(table, column, role, options, remembered)
    return ColumnMeaning(column=column, unit=unit, why=why)


def _unit_of_affinity(
    table: Table,
    column: str,
    role: str,
    options: LabelOptions,
    remembered: Remembered | None,
) -> tuple[Label, str]:
    """Return the unit of a column of affinities, and what says so."""
    header = read_header(column)
    where = f"{table.source}: column {column!r}"
    if header.not_label:
        hint = ""
        if role == "pkd":
            hint = "; to learn it as it is, add --label value --better higher, or lower"
        msg = (
            f"{where} is named like {header.not_label}, not like an affinity; expected pKd, Kd, Ka "
            f"or dG. Choose another with --column {role}=NAME, or rename it{hint}."
        )
        raise LabelError(msg)
    if options.label is not None:
        _refuse_other_unit(where, header, options.label)
        return options.label, "given by --label"
    # a name that allows one unit says more than the run
    if remembered is not None and remembered.column == column and len(header.units) != 1:
        return remembered.unit, AS_IN_THE_RUN
    if header.units:
        return header.units[0], _IN_THE_NAME
    if header.affinity:
        units = ", ".join(unit for unit in UNITS if unit not in ("pkd", "value"))
        hint = ""
        if role == "pkd":
            hint = "; a quantity that is no affinity needs --label value --better higher, or lower"
        choice = f"--column {shlex.quote(f'{role}={column}')} --label UNIT"
        msg = (
            f"{where} names no unit that is understood; expected one of {units}. Give it with "
            f"{choice}{hint}."
        )
        raise UnclearLabel(msg)
    cells = table.frame[column].dropna()
    is_words = all(map(says_class, cells))  # which are refused later
    if role == "pkd" and table.columns.get("label") == column and not is_words:
        numbers, _ = read_bounds(cells)
        refuse_two_values(numbers, where, "an affinity")
        msg = (
            f"{where} does not say what it measures; expected an affinity in a unit, or another "
            "quantity. Add --label pkd, or another unit such as kd_nm, or for a quantity that is "
            "no affinity --label value --better higher, or lower."
        )
        raise UnclearLabel(msg)
    return "pkd", "" if role == "prediction" else "no unit is stated"


def _refuse_written(table: Table, column: str) -> None:
    """Refuse a column of labels that abag itself wrote, unless it holds measurements."""
    command = written_by(column, table.names)
    if command and column not in SCAN_MEASURED:
        advice = " ".join(Columns(table).propose_numbers()) or "Use --column pkd=NAME."
        msg = (
            f"{table.source}: column {column!r} is a column of abag {command}, not a measurement; "
            f"expected measured affinities. {advice}"
        )
        raise LabelError(msg)


def _refuse_other_unit(where: str, header: Header, label: Label) -> None:
    """Refuse a unit that is given if the column is named like another one."""
    if header.units and label not in header.units:
        stated = " or ".join(header.units)
        msg = (
            f"{where} is named like {stated}, but --label says {label}; expected the unit of "
            "the name. Leave --label out, or rename the column."
        )
        raise LabelError(msg)


def _name_affinity(table: Table, column: str, affinity_type: str | None) -> str:
    """Name affinities: pIC50 or pEC50 if their column or affinity type says so, or pKd."""
    says = [column, affinity_type or ""]
    if affinity_type is None and table.has("affinity_type"):  # of one type: they are never mixed
        says += read_texts(table.frame[table.column("affinity_type")]).unique().tolist()
    match = re.search("(ic|ec)50", " ".join(says).lower())
    return f"p{match[0].upper()}" if match else "pKd"


def _other_quantity(
    table: Table, column: str, options: LabelOptions, remembered: Remembered | None
) -> ColumnMeaning | None:
    """Find the quantity of a column that is no affinity; None if it is one.

    Of a run, it has to be the quantity of the run.
    """
    quantity_of_run = None if remembered is None else remembered.quantity
    if quantity_of_run is not None and not quantity_of_run.affinity:
        refuse_affinity_options(table, options, quantity_of_run)
        refuse_affinity(table, column, quantity_of_run)
        _refuse_other_kind(table, column, quantity_of_run)
        return _as_it_is(column, AS_IN_THE_RUN, quantity_of_run)
    header = read_header(column)
    is_affinity = header.names_affinity and not header.not_label
    asked = options.label == "value" or options.better is not None or options.unit is not None
    is_known = header.better is not None and not is_affinity
    if not asked and not is_known:
        return None
    where = f"{table.source}: column {column!r}"
    if is_affinity and header.units:
        msg = (
            f"{where} is named like {header.units[0]}, an affinity, which is learned as pKd, and "
            "--label value, --better or --unit is of other quantities; expected one or the other. "
            "Leave these options out, or choose another column with --column label=NAME."
        )
        raise LabelError(msg)
    if options.label not in (None, "value"):
        msg = (
            f"{where} is named like another quantity than an affinity, but --label says "
            f"{options.label}; expected --label value. Leave --label out, or rename the column."
        )
        raise LabelError(msg)
    if quantity_of_run is not None:
        msg = (
            f"{where} is {header.quantity!r}, not an affinity, which the run predicts; expected "
            "labels of its kind. Choose another column with --column label=NAME."
        )
        raise LabelError(msg)
    better = options.better or header.better
    if better is None:
        numbers, _ = read_bounds(table.frame[column])
        refuse_two_values(numbers, where, header.quantity)
        msg = (
            f"{where}: which of its values are better is not known; expected higher or lower. Add "
            "--better higher, or --better lower."
        )
        raise UnclearLabel(msg)
    unit = header.written_unit if options.unit is None else options.unit.strip()
    quantity = Quantity(name=header.quantity, unit=unit, better=better, affinity=False)
    return _as_it_is(column, "given by the options" if asked else _IN_THE_NAME, quantity)


def _as_it_is(column: str, why: str, quantity: Quantity) -> ColumnMeaning:
    """Return what a column of another quantity than an affinity is read as: its values."""
    return ColumnMeaning(column=column, unit="value", why=why, quantity=quantity)


def refuse_affinity(table: Table, column: str, quantity: Quantity) -> None:
    """Raise `LabelError` if a column is named like an affinity, which the run does not predict."""
    if read_header(column).states_affinity:
        msg = (
            f"{table.source}: column {column!r} is named like {read_header(column).unit}, an "
            f"affinity; expected {quantity}, which the run predicts. Choose another with --column."
        )
        raise LabelError(msg)


def refuse_affinity_options(table: Table, options: LabelOptions, quantity: Quantity) -> None:
    """Raise `LabelError` if options ask for another quantity, or direction, than the run has."""
    better: Better | None = options.better
    if options.label not in (None, "value") or better not in (None, quantity.better):
        option = f"--label {options.label}" if better is None else f"--better {better}"
        msg = (
            f"{table.source}: {option}: the run predicts {quantity.description}; expected labels "
            "of that. Leave the option out."
        )
        raise LabelError(msg)


def _refuse_other_kind(table: Table, column: str, quantity: Quantity) -> None:
    """Refuse a column whose name says another direction, or another unit, than the run has."""
    header = read_header(column)
    unit = header.written_unit
    same = header.quantity.casefold() == quantity.name.casefold()
    if not same and header.better not in (None, quantity.better):
        msg = (
            f"{table.source}: column {column!r} is named like a quantity of which {header.better} "
            f"is better; expected {quantity.description}, as in the run. Choose another with "
            "--column label=NAME, or rename it."
        )
        raise LabelError(msg)
    if unit and quantity.unit and _spelled(unit) != _spelled(quantity.unit):
        msg = (
            f"{table.source}: column {column!r} is in {unit}; expected {quantity.unit}, as in the "
            "run. Convert it, and name it so."
        )
        raise LabelError(msg)


def _spelled(unit: str) -> str:
    return re.sub(r"[\s.*·^]|deg(?:rees?)?|°", "", unit.casefold())


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinities:
    """Values of a column as pKd, or of another quantity as they are, and what was read."""

    source: str
    column: str
    unit: Label
    why: str
    """What says that the column has this unit."""
    raw: Floats
    """Shape (R,); the numbers of the cells, NaN for other cells."""
    pkd: Floats
    """Shape (R,); NaN for what is no affinity. Of another quantity, its values."""
    side: NDArray[np.int8]
    """Shape (R,); 0: exact, -1: the true pKd (or value) is below, +1: above."""
    no_binding: Bools
    """Shape (R,); the rows whose cells say that nothing binds, read as a bound."""
    molar_mass_kda: float
    words: tuple[str, ...] = ()
    """Some of these cells."""
    bound: str = ""
    """What they are read as."""
    quantity: Quantity = PKD

    def describe(self, rows: Bools | None = None, noun: str = "labels") -> str:
        """Say in one line what was read and why."""
        numbers = np.isfinite(self.pkd) & ~self.no_binding
        if rows is not None:
            numbers &= rows
        evidence = []
        if self.quantity.affinity or numbers.any():
            evidence.append(self._range(numbers))
        if self.why:
            evidence.append(self.why)
        if self.no_binding.any():
            such = f" such as {', '.join(map(quoted, self.words))}" if self.words else ""
            count = int(self.no_binding.sum())
            evidence.append(f"{count:,} cells{such} read as {self.bound}")
        if self.quantity.affinity:
            read = f"{self.unit}, {UNITS[self.unit].stronger} is stronger"
        else:
            read = self.quantity.description
        return f"{noun}: {self.column!r} read as {read} ({'; '.join(evidence)})"

    def _range(self, known: Bools) -> str:
        """Say where the known values lie, (R,)."""
        if self.quantity.affinity:
            usual = int((known & ~outside(self.pkd, USUAL_PKD)).sum())
            return f"{usual:,} of {known.sum():,} are in the usual range of pKd (2 to 14)"
        low = self.quantity.show(float(self.pkd[known].min()))
        high = self.quantity.show(float(self.pkd[known].max()))
        return f"{counted(int(known.sum()), 'value')}, {low} to {high}"

    def refuse_other_units(self, rows: Bools, noun: str = "labels") -> None:
        """Refuse values that are classes, or of which over half of `rows` are no affinities."""
        rows = rows & ~self.no_binding
        raw = self.raw[rows]
        pkd = self.pkd[rows]
        if not len(raw):
            return
        where = f"{self.source}: column {self.column}"
        if not self.quantity.affinity:
            refuse_two_values(raw, where, str(self.quantity))
            return
        role = "pkd" if noun == "labels" else "prediction"
        choose = f"Choose the column with --column {role}=NAME"
        if np.unique(raw).tolist() == [0, 1]:
            msg = f"{where} holds only 0 and 1, which are classes, not affinities. {choose}."
            raise LabelError(msg)
        unusual = outside(pkd, USUAL_PKD)
        if 2 * unusual.sum() > len(raw):
            msg = (
                f"{where}: {unusual.sum()} of {len(raw)} {noun}, such as {raw[unusual][0]:g}, are "
                f"not affinities if read as {self.unit}: outside the usual range of pKd (2 to 14). "
                f"{choose}, or the unit with --label; another quantity than an affinity needs "
                "--label value --better higher, or lower."
            )
            raise LabelError(msg)


def read_affinities(table: Table, label: LabelLayout) -> Affinities:
    """Convert the label of a table to pKd, or raise the error that refuses it."""
    return _read_column(table, label.checked(), label.options, label.remembered)


def _find_column(columns: Columns, options: LabelOptions, remembered: Remembered | None) -> str:
    """Return the column that is the label of the run, or else the label by its own name."""
    if remembered is None:
        return columns.find_label(options)
    if remembered.column in map(str, columns.table.names):
        return remembered.column
    if not remembered.quantity.affinity:
        return columns.find_same(remembered.quantity)
    return columns.find_label(options, of_run=True)


def decide_prediction(
    table: Table,
    options: LabelOptions,
    quantity: Quantity = PKD,
    molar_mass: str | None = None,
) -> LabelLayout:
    """Decide which column of a table holds the predictions of another tool, and in which unit.

    Those of another `quantity` than an affinity are taken as they are. `molar_mass` is that of the
    run, unless `options` give one. What is wrong is part of the result, as in `decide_label`.
    """
    try:
        if quantity.affinity:
            meaning = replace(choose_prediction(table, options.label), quantity=quantity)
            if options.molar_mass is None and UNITS[meaning.unit].of_mass:
                options = replace(options, molar_mass=molar_mass)
        else:
            refuse_affinity_options(table, options, quantity)
            column = table.column("prediction")
            refuse_affinity(table, column, quantity)
            meaning = _as_it_is(column, AS_IN_THE_RUN, quantity)
    except AbagError as error:
        return LabelLayout(source=table.source, meaning=None, options=options, refused=error)
    return LabelLayout(source=table.source, meaning=meaning, options=options)


def _read_column(
    table: Table, meaning: ColumnMeaning, options: LabelOptions, remembered: Remembered | None
) -> Affinities:
    column = meaning.column
    unit = meaning.unit
    if options.molar_mass is not None and not UNITS[unit].of_mass and remembered is None:
        msg = (
            f"{table.source}: column {column!r} is read as {unit}, which needs no molar mass; "
            "expected ug_ml or ng_ml with --molar-mass. Leave it out, or give --label."
        )
        raise LabelError(msg)
    cells = table.frame[column]
    raw, side = read_bounds(cells)
    is_weaker_above = UNITS[unit].stronger == "lower"
    affinities = Affinities(
        source=table.source,
        column=column,
        unit=unit,
        why=meaning.why,
        raw=raw,
        pkd=to_pkd(raw, unit, options.molar_mass_kda),
        side=-side if is_weaker_above else side,  # >1000 nM is a pKd below 6
        no_binding=np.zeros(len(raw), np.bool_),
        molar_mass_kda=options.molar_mass_kda,
        quantity=meaning.quantity,
    )
    if options.no_binding is not None:
        floor = _given_floor(affinities, options.no_binding)
        relation = ">" if is_weaker_above or meaning.quantity.sign < 0 else "<"
        bound = f"{relation}{options.no_binding:g}"
        return _with_no_binding(affinities, cells, floor, bound, empty=options.no_binding_empty)
    if remembered is not None and remembered.no_binding_pkd is not None:
        floor = remembered.no_binding_pkd
        relation = "<" if meaning.quantity.sign > 0 else ">"
        bound = f"pKd <{floor:g}" if meaning.quantity.affinity else f"{relation}{floor:g}"
        return _with_no_binding(affinities, cells, floor, bound, empty=remembered.no_binding_empty)
    return affinities


def _given_floor(read: Affinities, no_binding: float) -> float:
    """Return ``--no-binding`` as a pKd; refuse one that no affinity has."""
    floor = float(to_pkd(np.array([no_binding]), read.unit, read.molar_mass_kda)[0])
    # down to a pKd of 0: a bound may be weaker than any affinity that is measured
    if read.quantity.affinity and not USUAL_PKD[0] - 2 <= floor <= USUAL_PKD[1]:
        msg = (
            f"{read.source}: --no-binding {no_binding:g} is not an affinity if read as "
            f"{read.unit}, the unit of column {read.column!r}; expected a bound such as "
            f"{UNITS[read.unit].bound_of_a_non_binder[1:]}."
        )
        raise LabelError(msg)
    return floor


def _with_no_binding(
    read: Affinities, cells: pd.Series, floor: float, bound: str, *, empty: bool
) -> Affinities:
    """Read the words for no binding, and perhaps empty cells, as a pKd below `floor`."""
    is_text = ~np.isfinite(read.raw)
    values = cells.tolist()
    says = is_text & np.array([says_no_binding(value) for value in values], np.bool_)
    texts = [str(cell).strip() for cell in cells[says]]
    words = tuple(dict.fromkeys(texts))[:3]
    if empty:
        is_blank = np.array([not str(value).strip() for value in values], np.bool_)
        is_empty = is_text & (is_blank | cells.isna().to_numpy(np.bool_))
        if is_empty.any():
            words = (*words, "")
        says |= is_empty
    sign = read.quantity.sign
    exact = np.isfinite(read.pkd) & (read.side == 0)
    strongest = np.max(sign * read.pkd[exact], initial=-np.inf)
    if says.any() and exact.any() and sign * floor > strongest:
        msg = (
            f"{read.source}: --no-binding: a non-binder would be weaker than {bound}, which is "
            f"stronger than every exact label of column {read.column!r}; expected a bound at the "
            "weak end. Give the highest concentration tested."
        )
        raise LabelError(msg)
    return replace(
        read,
        pkd=np.where(says, floor, read.pkd),
        no_binding=says,
        words=words,
        bound=bound,
        side=np.where(says, -sign, read.side).astype(np.int8),
    )


STATED: tuple[Label, ...] = ("kd_m", "kd_um", "kd_nm")
"""Units beside pKd and that of the labels in which a column of relations may repeat the labels."""
SAME_PKD = 0.1
"""Largest distance of such a bound from its label, from rounding."""


class _Relations(NamedTuple):
    """Hold the relations of the R rows of a table, from a column of their own."""

    column: str
    side: pd.Series
    """As in `LabelledPairs.censored`, of what the column is of, Kd or pKd."""
    bound: Floats
    """Shape (R,); NaN where the cell has none."""
    is_bound: Bools
    """Shape (R,); whether the cell has a relation with a bound."""


def read_censored(table: SequenceTable, pkd: Floats, affinities: Affinities) -> NDArray[np.int8]:
    """Join the relations in the labels with those in a column, (R,)."""
    column = table.columns.get("censored")
    is_affinity = affinities.quantity.affinity
    labelled = np.isfinite(pkd)
    censored = np.where(labelled, affinities.side, 0).astype(np.int8)
    is_bound = np.zeros(len(pkd), np.bool_)
    if column is not None:
        relations = _read_relations(table, column)
        is_bound = relations.is_bound
        if is_affinity:
            censored = _with_relations_of_affinity(table, relations, censored, pkd, affinities)
        else:
            censored = _with_relations(table, relations, censored, pkd)
    if is_affinity and (affinities.unit == "pkd" or column is not None):
        _refuse_reversed(table, column, censored, pkd, is_bound)
    return censored


def refuse_cells(table: SequenceTable, rows: Bools, column: str, problem: str) -> None:
    """Refuse the cells of some rows, (R,), if there are any, by the first of them."""
    if rows.any():
        cell = table.describe_cell(np.flatnonzero(rows)[0], column)
        msg = f"{cell} ({counted(int(rows.sum()), 'such row')}) {problem}"
        raise LabelError(msg)


def _read_relations(table: SequenceTable, column: str) -> _Relations:
    text = read_texts(table.frame[column])
    side = text.str[:1].map(SIDES)
    bound = read_bounds(text)[0]
    is_bound = np.isfinite(bound) & side.notna().to_numpy()
    signs = "".join(SIDES)
    is_relation = text.str.fullmatch(f"[{signs}]*").to_numpy(np.bool_)
    refuse_cells(
        table,
        ~is_bound & ~is_relation,
        column,
        "is not a valid relation; expected > or < (of Kd), also with its bound, = or an empty "
        "cell. Fix it, or choose another column with --column censored=NAME.",
    )
    return _Relations(column, side, bound, is_bound)


def _with_relations_of_affinity(
    table: SequenceTable,
    relations: _Relations,
    censored: NDArray[np.int8],
    pkd: Floats,
    affinities: Affinities,
) -> NDArray[np.int8]:
    """Join relations in labels with those in a column, of Kd unless its bounds are pKd."""
    column = relations.column
    labelled = np.isfinite(pkd)
    off_as_pkd, off_as_kd = _distances_from_bounds(relations, pkd, affinities)
    is_kd = bool(off_as_pkd.sum() >= off_as_kd.sum())
    refuse_cells(
        table,
        (off_as_kd if is_kd else off_as_pkd) > SAME_PKD,
        column,
        "is not the label, as pKd or as Kd in M, uM or nM; expected the same bound. Fix it.",
    )
    side = -relations.side if is_kd else relations.side
    relation_to_pkd = np.where(labelled, side, 0).astype(np.int8)
    problem = f"contradicts the relation in column {column}; expected one. Remove the other."
    refuse_cells(table, censored * relation_to_pkd < 0, table.column("pkd"), problem)
    return np.where(censored == 0, relation_to_pkd, censored)


def _distances_from_bounds(
    relations: _Relations, pkd: Floats, affinities: Affinities
) -> tuple[Floats, Floats]:
    """Return how far the bounds are from the labels in pKd, read as pKd and as Kd, (R,) each.

    A bound is the label again, and shows whether the relations are of pKd or of Kd.
    """
    bound = relations.bound
    unit = affinities.unit
    label_distance = np.abs(to_pkd(bound, unit, affinities.molar_mass_kda) - pkd)
    distances_as_pkd = [np.abs(bound - pkd)]
    distances_as_kd = [np.abs(to_pkd(bound, unit_of_bound) - pkd) for unit_of_bound in STATED]
    (distances_as_pkd if UNITS[unit].stronger == "higher" else distances_as_kd).append(
        label_distance
    )
    is_compared = relations.is_bound & np.isfinite(pkd)
    off_as_pkd = np.where(is_compared, np.fmin.reduce(distances_as_pkd), 0.0)
    off_as_kd = np.where(is_compared, np.fmin.reduce(distances_as_kd), 0.0)
    # a bound that is no Kd, such as a negative one, is far from every label
    return np.nan_to_num(off_as_pkd, nan=np.inf), np.nan_to_num(off_as_kd, nan=np.inf)


def _with_relations(
    table: SequenceTable,
    relations: _Relations,
    censored: NDArray[np.int8],
    value: Floats,
) -> NDArray[np.int8]:
    """Join relations in labels of another quantity with those in a column, which are of it, too."""
    column = relations.column
    labelled = np.isfinite(value)
    off = np.where(relations.is_bound & labelled, np.abs(relations.bound - value), 0.0)
    rounding = 1e-6 * np.maximum(1.0, np.abs(np.nan_to_num(value)))  # of numbers in text
    refuse_cells(
        table,
        off > rounding,
        column,
        "is not the label; expected the same bound, or > or < alone. Fix it.",
    )
    relation_to_value = np.where(labelled, relations.side, 0).astype(np.int8)
    problem = "contradicts the relation in the label. Remove one."
    refuse_cells(table, censored * relation_to_value < 0, column, problem)
    return np.where(censored == 0, relation_to_value, censored)


def _refuse_reversed(
    table: SequenceTable,
    column: str | None,
    censored: NDArray[np.int8],
    pkd: Floats,
    is_bound: Bools,
) -> None:
    """Refuse relations whose labels are all at the end that the relation points away from."""
    expected, other = ("pKd", "Kd") if column is None else ("Kd", "pKd")
    least = np.nanmin(pkd, initial=np.inf)
    most = np.nanmax(pkd, initial=-np.inf)
    for side, end in ((-1, most), (1, least)):
        rows = (censored == side) & ~is_bound
        # the usual floor of an assay is such a bound, read the other way round
        reversed_ = least < most and bool((pkd[rows] == end).all())
        problem = f"is at the end of the labels, as if its relation were of {other}; expected "
        refuse_cells(
            table,
            rows & reversed_,
            column or table.column("pkd"),
            f"{problem}bounds of {expected}. Write these.",
        )
