"""Which column of a table is the label, or why no column is it for sure.

A column is taken if its name says what it measures, in words of `head.data.headers` or
`head.data.quantity`. What is unclear is refused, with the options that would decide it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.errors import ColumnError
from abag.embed.sequences.columns import MissingColumn, quote_names, with_found
from abag.head.data.cells import read_bounds
from abag.head.data.headers import Header, is_of_alphaseq, read_header
from abag.head.data.label_options import Label, LabelOptions
from abag.head.data.quantity import Quantity, read_value_header
from abag.head.data.written_columns import written_by

if TYPE_CHECKING:
    from abag.embed.sequences.tables import Table

_UNNAMED = re.compile(r"Unnamed: \d+|index", re.IGNORECASE)
"""Columns of the index that pandas writes."""
_MOST_PROPOSED = 4


class UnclearLabel(MissingColumn):
    """No column is the label for sure, but some may be."""


def find_same(table: Table, quantity: Quantity) -> str:
    """Return the only column of numbers with the name of a quantity, that of a run."""
    same = [
        name
        for name in _number_columns(table)
        if read_value_header(name).name.casefold() == quantity.name.casefold()
    ]
    if len(same) == 1:
        return same[0]
    problem = f"{table.source}: no column for {quantity}, which the run predicts"
    advice = "Name it with --column label=NAME."
    raise MissingColumn(with_found(problem, table.names, advice))


def has_numbers(table: Table) -> bool:
    """Tell whether a column that plays no role holds numbers, so that one may be the label."""
    return bool(_number_columns(table))


def _number_columns(table: Table) -> list[str]:
    """List the free columns of numbers that no command has written.

    Constants, such as the pH of an assay, are left out if there are others.
    """
    numbers = []
    for name in _free_columns(table):
        is_index = _UNNAMED.fullmatch(name) is not None
        if is_index or read_value_header(name).describes_another:
            continue
        if holds_numbers(table, name):  # last: it reads all cells
            numbers.append(name)
    varied = [name for name in numbers if table.frame[name].nunique() > 1]
    return varied or numbers


def is_named_affinity(name: str) -> bool:
    """Return whether a name states a unit of an affinity, and more than the unit."""
    header = read_header(name)
    return bool(header.units) and header.affinity and not header.unit_alone


def _refuse_unclear_value(table: Table, options: LabelOptions) -> None:
    """Raise an error that lists the columns that may be another quantity than an affinity."""
    numbers = _number_columns(table)
    asked = options.label == "value"
    candidates = [name for name in numbers if asked or read_value_header(name).better]
    if not candidates and asked:
        problem = f"{table.source}: no column of numbers for the label"
        advice = "Name it with --column label=NAME."
        raise MissingColumn(with_found(problem, table.names, advice))
    if not candidates:
        return
    listed = candidates[:_MOST_PROPOSED]
    unlisted = len(candidates) - len(listed)
    more = f" and {unlisted} more" if unlisted else ""
    advice = f"Use --column {shlex.quote(f'label={listed[0]}')}"
    if asked and not options.better:
        advice += " --label value --better higher, or lower"
    empty = int(table.frame[listed[0]].isna().sum())
    skip = f" Its empty cells, {empty:,}, need --bad-rows skip." if empty else ""
    msg = (
        f"{table.source}: no column for {'the label' if asked else 'pkd'}, but "
        f"{quote_names(listed)}{more} may be another quantity; expected one to be chosen. "
        f"{advice}.{skip}"
    )
    raise UnclearLabel(msg)


def _advise_value(table: Table) -> str:
    """Say how a column of numbers is read whose name says nothing; empty without one."""
    numbers = _number_columns(table)  # rates and differences come last
    numbers.sort(key=lambda name: bool(read_header(name).not_label))
    if not numbers:
        return ""
    named = shlex.quote(f"label={numbers[0]}")
    return (
        f", or a quantity that is no affinity with --column {named} --label value --better higher, "
        "or lower"
    )


def find_label(table: Table, options: LabelOptions, *, of_run: bool = False) -> str:
    """Return the only column whose name says that it is the label, in the unit of `label`.

    For a table of a run of affinities (`of_run`), other quantities are neither taken nor proposed.
    """
    label = options.label
    asked = options.better is not None or options.unit is not None
    if label == "value" or asked:
        numbers = [name for name in _number_columns(table) if not is_named_affinity(name)]
        if len(numbers) == 1:
            return numbers[0]
        _refuse_unclear_value(table, replace(options, label="value"))
    headers = {name: read_header(name) for name in _free_columns(table)}
    column = _stated_label(table, headers, label)
    if column is not None:
        return column
    takes_value = label is None and not of_run
    written = _describe_written(table)
    hints = _propose_all(table, headers)
    if written and not hints:
        hints = propose_numbers(table)
    if takes_value and not hints and not written:
        numbers = _number_columns(table)
        if len(numbers) == 1 and read_value_header(numbers[0]).better:
            return numbers[0]  # a quantity that is no affinity
    if hints:
        quantities = _propose_quantities(table) if takes_value else []
        msg = f"{table.source}: no column for pkd, but {' '.join([*quantities, *hints, *written])}"
        raise UnclearLabel(msg)
    if written:
        msg = (
            f"{table.source}: no column for pkd. {' '.join(written)} Add a column of measurements, "
            "and name it with --column pkd=NAME."
        )
        raise MissingColumn(msg)
    if takes_value:
        _refuse_unclear_value(table, options)
    return table.column("pkd", "" if of_run else _advise_value(table))


def _stated_label(table: Table, headers: Mapping[str, Header], label: Label | None) -> str | None:
    """Return the column whose name fits best; None if none does, and refuse several."""
    names_of_order: dict[int, list[str]] = {}
    for name, header in headers.items():
        is_asked = label is None or label in header.units
        if header.sure and header.units and is_asked:
            names_of_order.setdefault(header.order, []).append(name)
    first = min(names_of_order, default=0)
    best = names_of_order.get(first, [])
    if len(best) == 1:
        return best[0]
    if len(best) > 1 and first < 2:
        choices = [f"--column {shlex.quote(f'pkd={name}')}" for name in best]
        msg = (
            f"{table.source}: columns {quote_names(best)} fit pkd equally well; expected one. "
            f"Choose with {' or '.join(choices)}; for a run of each, give each its own --run "
            "folder, and compare them with abag runs."
        )
        raise ColumnError(msg)
    if label is None or best:
        return None
    return _only_affinity(headers)


def _only_affinity(headers: Mapping[str, Header]) -> str | None:
    """Return the only column that may be in a unit that the user gave; None without one."""
    without_unit = []
    plain = []
    with_unit = []
    for name, header in headers.items():
        if header.plain:
            plain.append(name)
        if header.sure and header.units:
            with_unit.append(name)
        elif header.sure and header.affinity:
            without_unit.append(name)
    for names in (without_unit, plain):
        if len(names) == 1:
            return names[0]
    if not without_unit and not plain and len(with_unit) == 1:
        return with_unit[0]  # its name contradicts the option, which is refused
    return None


def _describe_written(table: Table) -> list[str]:
    """Say which columns would be labels by their names, but were written by a command."""
    described = []
    for name in map(str, table.names):
        command = written_by(name, table.names)
        if not command:
            continue
        header = read_header(name)
        if header.plain or header.units:
            described.append(f"{name!r} is a column of abag {command}.")
    return described


def _propose_all(table: Table, headers: Mapping[str, Header]) -> list[str]:
    """Say how columns are read that may be the label; if some state a unit, only these."""
    is_stated = any(header.units and not header.unit_alone for header in headers.values())
    proposed = []
    for name, header in headers.items():
        if header.units or is_of_alphaseq(name) or not is_stated:
            proposed += _propose(table, name)
    return proposed


def _free_columns(table: Table) -> list[str]:
    """List the columns that have no role, and that no command has written."""
    used = set(table.columns.values())
    names = [name for name in map(str, table.names) if name not in used]
    return [name for name in names if not written_by(name, table.names)]


def _propose(table: Table, name: str) -> list[str]:
    """Say how a column is read that may be the label by its name; nothing for others."""
    header = read_header(name)
    if header.not_label or not (header.affinity or header.plain):
        return []
    if not (header.sure or holds_numbers(table, name)):
        return []
    use = f"use --column {shlex.quote(f'pkd={name}')} --label"
    if is_of_alphaseq(name):
        return [f"{name!r} is log10 of Kd in nM, lower is stronger: {use} log10_kd_nm."]
    if header.unit_alone:
        return []
    if header.units:
        return [f"{name!r} is named like {header.units[0]}: {use} {header.units[0]}."]
    hint = "." if header.affinity else " (value --better higher: if it is no affinity)."
    return [f"{name!r} may be one: {use} UNIT{hint}"]


def _propose_quantities(table: Table) -> list[str]:
    """Say how the columns are read that are named like another quantity than an affinity."""
    named = [name for name in _number_columns(table) if read_value_header(name).better]
    proposed = []
    for name in named[:_MOST_PROPOSED]:
        if not is_named_affinity(name):
            choice = f"--column {shlex.quote(f'label={name}')}"
            proposed.append(f"{name!r} is named like a quantity that is no affinity: use {choice}.")
    return proposed


def propose_numbers(table: Table) -> list[str]:
    """Propose the columns of numbers of a table that a command has written."""
    proposed: list[str] = []
    for name in _free_columns(table):
        if len(proposed) == _MOST_PROPOSED:
            break
        if read_header(name).not_label or not holds_numbers(table, name):
            continue
        choice = f"--column {shlex.quote(f'pkd={name}')} --label UNIT"
        proposed.append(
            f"{name!r} may be one: use {choice} (value --better higher: if it is no affinity)."
        )
    return proposed


def holds_numbers(table: Table, name: str) -> bool:
    """Tell whether most cells of a column that are not empty are numbers or bounds."""
    if name not in table.frame:
        return False
    cells = table.frame[name].dropna()
    numbers, _ = read_bounds(cells)
    return 2 * int(np.isfinite(numbers).sum()) > len(cells)
