"""Columns of sequences: each distinct text parsed once, bad ones kept with what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.messages import bar
from abag.embed.sequences.chains import (
    BAD_SEQUENCE,
    EmptySequence,
    Kind,
    ParsedSequence,
    UnknownResidue,
    antigen,
    parse_antibody,
    parse_antigen,
    parse_chain,
)
from abag.embed.sequences.changes import BadCell
from abag.embed.sequences.columns import MissingColumn, quote_names
from abag.embed.sequences.domains import UnsureDomains
from abag.embed.sequences.formats import BadTable
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.regions import UNCLEAR, arrange, refuse_misplaced
from abag.embed.sequences.tables import CHUNK_ROWS, Table

NUMBERED_AT_MOST = 200
"""Antibodies of a chunk that are numbered only to count what stays as it is: 0.25 ms per chain."""


class ParsedColumn(NamedTuple):
    """A column: row ``r`` holds ``cells[codes[r]]``, which is a `BadCell` if the row is bad."""

    codes: NDArray[np.int64]
    cells: list[ParsedSequence | BadCell]


def drop_unused_roles(table: Table, options: TableOptions) -> tuple[Table, list[str]]:
    """Drop the roles that the options, or heavy and light columns, replace; say which."""
    replaced_by: dict[str, str] = {}
    if options.antigen is not None:
        replaced_by["antigen"] = "--antigen"
    if "antibody" in options.columns:
        column = f"column {options.columns['antibody']!r}"
        replaced_by |= {"heavy": column, "light": column}
    elif table.has("heavy") or table.has("light"):
        replaced_by["antibody"] = "the columns of heavy and light chains"
    columns = {role: name for role, name in table.columns.items() if role not in replaced_by}
    ties = {role: names for role, names in table.ties.items() if role not in replaced_by}
    ignored = [
        f"column {name!r} is ignored, replaced by {replaced_by[role]}"
        for role, name in table.columns.items()
        if role in replaced_by
    ]
    return replace(table, columns=columns, ties=ties), ignored


def parse_antibodies(table: Table) -> ParsedColumn:
    if table.has("antibody"):
        return _parse_column(table, "antibody", parse_antibody)
    roles = [role for role in ("heavy", "light") if table.has(role)]
    if not roles:
        msg = (
            f"{table.source}: no column for heavy, light or antibody; found {table.found}. "
            "Name them with --column heavy=NAME, light=NAME or antibody=NAME."
        )
        raise MissingColumn(msg)
    parsed = {role: _parse_column(table, role, parse_chain) for role in roles}
    absent = ParsedColumn(np.zeros(len(table.frame), np.int64), [ParsedSequence(("",))])
    heavy, light = parsed.get("heavy", absent), parsed.get("light", absent)
    where = f"column {quote_names(table.column(role) for role in roles)}"
    codes, pairs = pd.factorize(heavy.codes * len(light.cells) + light.codes)
    cells = [
        _join(heavy.cells[h], light.cells[k], where)
        for h, k in zip(*(n.tolist() for n in np.divmod(pairs, len(light.cells))), strict=True)
    ]
    return ParsedColumn(codes.astype(np.int64), cells)


def _join(
    heavy: ParsedSequence | BadCell, light: ParsedSequence | BadCell, where: str
) -> ParsedSequence | BadCell:
    if isinstance(heavy, BadCell):
        return heavy
    if isinstance(light, BadCell):
        return light
    chains = heavy.chains + light.chains
    if not any(chains):
        msg = f"{where}: no antibody chain; expected at least one. Give a chain."
        return BadCell("", EmptySequence(msg))
    return ParsedSequence(chains, heavy.replaced + light.replaced)


def parse_antigens(table: Table, given: str | None) -> ParsedColumn:
    if given is None:
        return _parse_column(table, "antigen", parse_antigen)
    return ParsedColumn(np.zeros(len(table.frame), np.int64), [ParsedSequence(antigen(given))])


def _parse_column(table: Table, role: str, parse: Callable[[str], ParsedSequence]) -> ParsedColumn:
    """Parse each distinct text of a column once."""
    name = table.column(role)
    try:
        codes, texts = pd.factorize(table.cells(role))  # -1: missing
    except (TypeError, NotImplementedError) as error:  # lists, structs
        kind = table.frame[name].dtype
        msg = f"{table.source}: column {name!r} holds {kind} values; expected text. Convert it."
        raise BadTable(msg) from error

    def cell(text: object) -> ParsedSequence | BadCell:
        if isinstance(text, float) and math.isnan(text):  # Parquet tells it from a missing cell
            text = ""
        if not isinstance(text, str):  # True would be read as the residues TRXE
            msg = f"column {name!r}: {text!r} is not a valid sequence; expected text. Correct it."
            return BadCell(str(text), UnknownResidue(msg))
        try:
            return parse(text)
        except BAD_SEQUENCE as error:
            return BadCell(str(text), type(error)(f"column {name!r}: {error}"))

    with bar(
        iterable=["", *texts.tolist()], desc=f"reading {name}", unit=" texts", delay=2
    ) as shown:
        return ParsedColumn(codes.astype(np.int64) + 1, [cell(text) for text in shown])


def arrange_chains(column: ParsedColumn, table: Table, options: TableOptions) -> ParsedColumn:
    """Bring the chains of every antibody into place; refuse a table that has most misplaced."""

    names = quote_names(
        table.columns[r] for r in ("heavy", "light", "antibody") if r in table.columns
    )

    def cell(parsed: ParsedSequence | BadCell, *, number: bool) -> ParsedSequence | BadCell:
        if isinstance(parsed, BadCell):
            return parsed
        try:
            return arrange(
                parsed, places=options.chains, region=options.antibody_region, number=number
            )
        except UnsureDomains as error:
            return BadCell("|".join(parsed.chains), UnsureDomains(f"column {names}: {error}"))

    with bar(iterable=column.cells, desc="looking at chains", unit=" texts", delay=2) as shown:
        cells = [cell(parsed, number=options.chains == "auto") for parsed in shown]
    unclear = np.flatnonzero(_has_form(cells, UNCLEAR))
    sample = np.linspace(0, len(unclear) - 1, min(len(unclear), NUMBERED_AT_MOST)).astype(int)
    for i in unclear[sample].tolist():
        cells[i] = cell(column.cells[i], number=True)
    if table.frame.index[0] == 0:  # the same rows of a whole table and of its first chunk
        rows = column.codes[:CHUNK_ROWS]
        checked = rows[~_has_form(cells, UNCLEAR)[rows]]
        refuse_misplaced(_has_form(cells, "misplaced")[checked], table.source)
    return ParsedColumn(column.codes, cells)


def _has_form(cells: Sequence[ParsedSequence | BadCell], word: str) -> NDArray[np.bool_]:
    return np.array([word in getattr(cell, "form", "") for cell in cells])


def is_bad(column: ParsedColumn) -> NDArray[np.bool_]:
    return np.array([isinstance(cell, BadCell) for cell in column.cells])[column.codes]


def first_bad(columns: Mapping[Kind, ParsedColumn], row: int) -> tuple[Kind, BadCell]:
    cells = ((kind, column.cells[column.codes[row]]) for kind, column in columns.items())
    return next((kind, cell) for kind, cell in cells if isinstance(cell, BadCell))
