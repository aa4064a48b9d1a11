"""How the table of a run was read, so that later tables need none of it again.

A run remembers what the user told it: columns, the antigen, what happens to bad rows, and where
chains are put. `as_in_the_run` is the one place that decides what of this applies to another table:
what the table or the user has instead wins, and is said in a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from abag.core.messages import printable, say
from abag.embed.sequences.chains import antigen as antigen_chains
from abag.embed.sequences.columns import ROLES
from abag.embed.sequences.options import (
    ChainPlaces,
    TableOptions,
)
from abag.embed.sequences.parsing import holds_sequences
from abag.embed.sequences.tables import read_table_chunks

if TYPE_CHECKING:
    from abag.embed.sequences.tables import Table, TableLike

T = TypeVar("T", bound=TableOptions)
BadRows = Literal["error", "skip"]
ROWS_LOOKED_AT = 100
"""Rows that tell whether a column holds sequences."""
OF_LABELS = frozenset({"pkd", "label", "prediction", "sigma", "censored", "affinity_type"})
"""Roles of columns of measurements: `run_folder.remembered_label` has the label."""
LONGEST_NAME = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumn:
    """A column that the user named for a role."""

    role: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAs:
    """How a table was read; saved in predictor.json, and checked by `check` when it is loaded."""

    columns: tuple[NamedColumn, ...] = ()
    antigen: str = ""
    """Of all rows; empty: the table has antigens. `abag share` leaves it out with the sequences."""
    bad_rows: BadRows = "error"
    chains: ChainPlaces = "as-given"

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Take what is remembered of the options of a fit, as in its config.json."""
        columns = sorted(options["columns"].items())
        return cls(
            columns=tuple(NamedColumn(role=role, name=name) for role, name in columns),
            antigen=options["antigen"] or "",
            bad_rows=options["bad_rows"],
            chains=options["chains"],
        )

    def named(self) -> dict[str, str]:
        """Return the columns by role, without those of labels."""
        return {one.role: one.name for one in self.columns if one.role not in OF_LABELS}

    def check(self) -> None:
        """Raise ValueError for what no fit has written; a predictor may come from anybody."""
        roles = [one.role for one in self.columns]
        if unknown := set(roles) - set(ROLES):
            msg = f"reading has a column for {min(unknown)!r}, which is no role"
            raise ValueError(msg)
        if len(set(roles)) < len(roles):
            msg = "reading has two columns for one role"
            raise ValueError(msg)
        for one in self.columns:
            if not one.name or len(one.name) > LONGEST_NAME or printable(one.name) != one.name:
                msg = f"reading has an invalid column name for {one.role}"
                raise ValueError(msg)
        if self.antigen and not re.fullmatch(r"[A-Za-z|:\s]+", self.antigen):
            msg = "reading has an antigen that is not a sequence"
            raise ValueError(msg)
        if self.antigen:
            antigen_chains(self.antigen)


NOTHING = ReadAs()


def as_in_the_run(table: TableLike, given: T, remembered: ReadAs) -> T:
    """Complete options of reading a table by those of the run.

    A column of the run is used where the table has it and the user named none for its role. The
    antigen of the run is used where the table has no antigen sequences. Options that are None are
    as in the run.
    """
    bad_rows: Any = given.bad_rows
    chains: Any = given.chains
    options = replace(
        given,
        bad_rows=remembered.bad_rows if bad_rows is None else bad_rows,
        chains=remembered.chains if chains is None else chains,
    )
    named = remembered.named()
    if not (named or remembered.antigen):
        return options
    chunks = read_table_chunks(table, columns=options.columns, limit=ROWS_LOOKED_AT)
    first = next(chunks)
    columns = _columns_of_run(first, options, named)
    antigen = options.antigen
    if antigen is None and remembered.antigen:
        antigen = _antigen_of_run(first, {*columns, *options.columns}, remembered.antigen)
    return replace(options, columns={**columns, **options.columns}, antigen=antigen)


def _columns_of_run(
    first: Table, options: TableOptions, named: Mapping[str, str]
) -> dict[str, str]:
    """Return the columns of the run that a table has, where the user named no others."""
    taken = set(options.columns)
    if taken & {"heavy", "light", "antibody"}:
        taken |= {"heavy", "light", "antibody"}
    if options.antigen is not None:
        taken.add("antigen")
    wanted = {role: name for role, name in named.items() if role not in taken}
    present = {*map(str, first.names)}
    for role, name in wanted.items():
        if name in present:
            continue
        instead = first.columns.get(role)
        if instead is not None:
            say(f"{first.source}: column {instead!r} is used as {role}; the run used {name!r}")
    return {role: name for role, name in wanted.items() if name in present}


def _antigen_of_run(first: Table, named: set[str], antigen: str) -> str | None:
    """Return the antigen of the run, unless a table has antigens of its own."""
    if "antigen" in named:
        return None
    column = None if "antigen" in first.ties else first.columns.get("antigen")
    if not first.has("antigen") or (column is not None and not holds_sequences(first, column)):
        say(f"{first.source}: the antigen of the run is taken for all rows")
        return antigen
    if column is not None:
        say(f"{first.source}: antigens are those of column {column!r}, not that of the run")
    return None
