"""Which column of a table is the label, or why no column is it for sure.

A column is taken if its name says what it measures, in words of `head.data.headers` or
`head.data.quantity`. What is unclear is refused, with the options that would decide it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.errors import ColumnError
from abag.embed.sequences.columns import MissingColumn, quote_names, quote_some, with_found
from abag.head.data.cells import read_bounds
from abag.head.data.headers import Header, is_of_alphaseq, plain_text, read_header
from abag.head.data.label_options import Label, LabelOptions
from abag.head.data.quantity import Quantity, read_value_header
from abag.head.data.written_columns import written_by

if TYPE_CHECKING:
    from abag.embed.sequences.tables import Table

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
    """List the free columns of numbers that no command has written, likely labels first.

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
    return _likely_first(table, varied or numbers)


def _likely_first(table: Table, names: Iterable[str]) -> list[str]:
    """Order columns of numbers by how probably each is the label, by its name and its cells.

    Names of measurements come first, those of binding before others; rates and differences, and
    then what numbers, counts or describes rows, come last.
    """
    return sorted(names, key=lambda name: _improbability(table, name))


def _improbability(table: Table, name: str) -> tuple[bool | int, ...]:
    words = re.findall("[a-z]+[0-9]*", plain_text(_CAMEL.sub(" ", name))[0])
    joined = "".join(words)
    bare = {word.rstrip("0123456789") for word in words} | {*words}
    if _BINDING.search(joined) or not _BINDING_WORDS.isdisjoint(bare):
        kind = 0
    elif _MEASURED.search(joined) or not _MEASURED_WORDS.isdisjoint(bare):
        kind = 1
    else:
        kind = 2
    is_described = any(map(_OF_ROWS.fullmatch, words)) or bool(_COMPUTED.search(joined))
    numbers, _ = read_bounds(table.frame[name])
    distinct = np.unique(numbers[np.isfinite(numbers)])
    is_whole = bool((distinct % 1 == 0).all())
    is_other = is_described or len(distinct) < 3 or read_header(name).predicted
    if kind == 2 and len(distinct):
        is_year = is_whole and _YEARS[0] <= distinct[0] and distinct[-1] <= _YEARS[1]
        is_running = is_whole and len(distinct) == len(numbers) == np.ptp(distinct) + 1
        is_beside = any(map(_BESIDE.fullmatch, words))
        is_other = is_other or is_year or is_running or is_beside
    is_summary = not _SUMMARIES.isdisjoint(words)
    few = 10 * len(distinct) < len(numbers)
    return (is_other, bool(read_header(name).not_label), kind, is_whole, not is_summary, few)


def _is_probable(table: Table, name: str) -> bool:
    """Tell whether a column of numbers is named like a measurement, and holds more than classes."""
    is_other, _, kind, *_ = _improbability(table, name)
    return read_value_header(name).better is not None or (not is_other and kind < 2)


def is_named_affinity(name: str) -> bool:
    """Return whether a name states a unit of an affinity, and more than the unit."""
    header = read_header(name)
    return bool(header.units) and header.affinity and not header.unit_alone


def _refuse_unclear_value(table: Table, options: LabelOptions) -> None:
    """Raise an error that lists the columns that may be another quantity than an affinity."""
    numbers = _number_columns(table)
    asked = options.label == "value"
    candidates = numbers
    if not asked and any(read_value_header(name).better for name in numbers):
        candidates = [name for name in numbers if _is_probable(table, name)]
    elif not asked:
        candidates = []
    if not candidates and asked:
        problem = f"{table.source}: no column of numbers for the label"
        advice = "Name it with --column label=NAME."
        raise MissingColumn(with_found(problem, table.names, advice))
    if not candidates:
        return
    first = candidates[0]
    advice = f"Use --column {shlex.quote(f'label={first}')}"
    if not options.better and (asked or not read_value_header(first).better):
        advice += " --label value --better higher, or lower"
    empty = int(table.frame[first].isna().sum())
    skip = f" Its empty cells, {empty:,}, need --bad-rows skip." if empty else ""
    msg = (
        f"{table.source}: no column for {'the label' if asked else 'pkd'}, but "
        f"{quote_some(candidates)} may be another quantity; expected one to be chosen. "
        f"{advice}.{skip}"
    )
    raise UnclearLabel(msg)


def _advise_value(table: Table) -> str:
    """Say how a column of numbers is read whose name says nothing; empty without one."""
    numbers = _number_columns(table)
    if not numbers:
        return ""
    named = shlex.quote(f"label={numbers[0]}")
    return (
        f", or a quantity that is no affinity with --column {named} --label value --better higher, "
        f"or lower{_list_candidates(numbers)}"
    )


def _list_candidates(numbers: Sequence[str]) -> str:
    """List columns of numbers for the end of an advice that names the first; or nothing."""
    if len(numbers) < 2:
        return ""
    return f"; columns of numbers, likely labels first: {quote_some(numbers)}"


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
        others = _list_others(table, headers) if takes_value and not written else []
        lines = [*quantities, *hints, *others, *written]
        msg = f"{table.source}: no column for pkd, but {' '.join(lines)}"
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
    is_stated = _is_unit_stated(headers)
    names = []
    for name, header in headers.items():
        if (header.units or is_of_alphaseq(name) or not is_stated) and _propose(table, name):
            names.append(name)
    proposed = []
    for name in _likely_first(table, names):
        proposed += _propose(table, name)
    return proposed


def _is_unit_stated(headers: Mapping[str, Header]) -> bool:
    return any(header.units and not header.unit_alone for header in headers.values())


def _list_others(table: Table, headers: Mapping[str, Header]) -> list[str]:
    """Name other columns that may be the label, if no column states a unit."""
    if _is_unit_stated(headers):
        return []
    others = []
    for name in _number_columns(table):
        is_proposed = _propose(table, name) or read_value_header(name).better
        if not is_proposed and _is_probable(table, name):
            others.append(name)
    return [f"Other columns of numbers: {quote_some(others)}."] if others else []


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
    free = [name for name in _free_columns(table) if not read_header(name).not_label]
    numbers = [name for name in free if holds_numbers(table, name)]
    proposed: list[str] = []
    for name in _likely_first(table, numbers)[:_MOST_PROPOSED]:
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
