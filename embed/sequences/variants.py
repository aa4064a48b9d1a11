"""Columns of variants: parents and their mutations, made into sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.errors import AbagError
from abag.core.messages import bar
from abag.embed.sequences.chains import Chains, Kind, parse_antibody, parse_antigen
from abag.embed.sequences.changes import BadCell
from abag.embed.sequences.mutations import (
    BadMutation,
    ChainId,
    mutate,
    of_chain,
    propose_numbers,
)
from abag.embed.sequences.names import cell_name
from abag.embed.sequences.parsed_column import (
    REASONS,
    UNREADABLE,
    ParsedColumn,
    distinct_cells,
)
from abag.embed.sequences.references import LIGHT_MUTATIONS, MUTATIONS, References
from abag.embed.sequences.tables import Table


def parse_variants(table: Table, kind: Kind, references: References) -> ParsedColumn:
    """Parse the sequences of a kind that rows give as a parent and its mutations."""
    rules = references.rules[kind]
    name = table.column(MUTATIONS[kind])
    where = f"column {name!r}"
    if kind == "antibody" and LIGHT_MUTATIONS in table.columns:
        where = f"columns {name!r} and {table.column(LIGHT_MUTATIONS)!r}"
    parent_R, parents = _parents(table, kind, references)
    change_R, changes = _changes(table, kind, references)
    codes, pairs = pd.factorize(parent_R * len(changes) + change_R)
    parse = parse_antibody if kind == "antibody" else parse_antigen
    no_chains: Chains = ("", "") if kind == "antibody" else ("",)
    column = ParsedColumn(
        codes=codes.astype(np.int64),
        chains=[no_chains] * len(pairs),
        replaced=np.zeros(len(pairs), np.int32),
        forms=[""] * len(pairs),
        bad={},
    )
    variants: list[tuple[str, str]] = []
    for i, pair in enumerate(bar(iterable=pairs.tolist(), desc=f"reading {name}", delay=2)):
        parent, change = divmod(pair, len(changes))
        text = changes[change].text
        try:
            problem = changes[change].problem
            if problem is not None:
                raise problem
            parent_text = parents[parent]
            if isinstance(parent_text, AbagError):
                raise parent_text  # once per variant, so that each of its rows is listed
            variants.append((parent_text, text))
            parsed = parse(mutate(parent_text, text, rules))
            column.chains[i], column.replaced[i], column.forms[i] = parsed
        except UNREADABLE as error:
            msg = f"{where}: {error}".rstrip(".") + "."
            column.bad[i] = BadCell(kind, REASONS[type(error)], text, msg, type(error))
    misfits = [i for i, cell in column.bad.items() if cell.refusal is BadMutation]
    hint = propose_numbers(variants, rules) if misfits else ""
    if hint:
        for i in misfits:
            cell = column.bad[i]
            column.bad[i] = cell._replace(error=f"{cell.error} {hint}")
    return column


class _Changes(NamedTuple):
    """Hold the mutations of one variant as they are written, or why they cannot be read."""

    text: str
    problem: BadMutation | None = None


def _changes(
    table: Table, kind: Kind, references: References
) -> tuple[NDArray[np.int64], list[_Changes]]:
    """Return the index of each row's mutations, (R,), and the distinct ones."""
    chains = references.chain_of_role if kind == "antibody" else {}
    if not chains:
        codes, cells = distinct_cells(table, MUTATIONS[kind])
        return codes, [_Changes(cell_name(cell)) for cell in cells]
    codes, changes = _of_column(table, "mutations", chains)
    if LIGHT_MUTATIONS not in chains:
        return codes, changes
    light_R, lights = _of_column(table, LIGHT_MUTATIONS, chains)
    codes, pairs = pd.factorize(codes * len(lights) + light_R)
    joined = []
    for pair in pairs.tolist():
        both = (changes[pair // len(lights)], lights[pair % len(lights)])
        text = "; ".join(filter(None, (part.text for part in both)))
        joined.append(_Changes(text, both[0].problem or both[1].problem))
    return codes.astype(np.int64), joined


def _of_column(
    table: Table, role: str, chains: Mapping[str, ChainId]
) -> tuple[NDArray[np.int64], list[_Changes]]:
    """Return the index of each row's mutations in a column of one chain, and the distinct ones."""
    codes, cells = distinct_cells(table, role)
    changes = []
    for cell in cells:
        text = cell_name(cell)
        try:
            changes.append(_Changes(of_chain(text, chains[role])))
        except BadMutation as error:
            changes.append(_Changes(text, error))
    return codes, changes


def _parents(
    table: Table, kind: Kind, references: References
) -> tuple[NDArray[np.int64], list[str | AbagError]]:
    """Return the index of each row's parent, (R,), and the distinct parents, or their errors."""
    constant = references.parent if kind == "antibody" else references.antigen
    if constant is not None:
        return np.zeros(len(table.frame), np.int64), [constant]

    def texts(role: str) -> tuple[NDArray[np.int64], list[str | AbagError]]:
        codes, cells = distinct_cells(table, role)
        read: list[str | AbagError] = []
        for cell in cells:
            try:
                read.append(references.text(role, cell))
            except UNREADABLE as error:
                located = type(error)(f"column {table.column(role)!r}: {error}")
                read.append(located)
        return codes, read

    if kind == "antigen":
        table.column("antigen", ", or give one antigen for all rows with --antigen SEQ")
        return texts("antigen")
    roles = [role for role in ("heavy", "light") if table.has(role)]
    if not roles:
        table.column("antibody", ", or give one parent for all rows with --parent SEQ")
        return texts("antibody")
    heavy_R, heavies = texts("heavy") if "heavy" in roles else _no_chain(table)
    light_R, lights = texts("light") if "light" in roles else _no_chain(table)
    codes, pairs = pd.factorize(heavy_R * len(lights) + light_R)
    joined: list[str | AbagError] = []
    for pair in pairs.tolist():
        h, k = divmod(pair, len(lights))
        joined.append(_join_texts(heavies[h], lights[k]))
    return codes.astype(np.int64), joined


def _join_texts(heavy: str | AbagError, light: str | AbagError) -> str | AbagError:
    if isinstance(heavy, AbagError):
        return heavy
    if isinstance(light, AbagError):
        return light
    return f"{heavy}|{light}"


def _no_chain(table: Table) -> tuple[NDArray[np.int64], list[str | AbagError]]:
    return np.zeros(len(table.frame), np.int64), [""]
