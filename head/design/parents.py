"""Reads the parents of a scan: antibodies with their antigens, and the residues to mutate."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from abag.core.messages import bar, printable, say
from abag.embed.sequences.pairs import read_pairs
from abag.head.design.sites import Parent, find_sites
from abag.head.prediction.inputs import CannotPredict

if TYPE_CHECKING:
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.sequences.tables import TableLike
    from abag.head.design.options import ScanOptions

NAME_ROLES = ("antibody_name", "id")
"""Roles of the columns that name a parent; the first that the table has is used."""
LONGEST_NAME = 60
NAMED = 5
"""Parents that a message names."""


class Parents(NamedTuple):
    """The parents that have residues to mutate."""

    parents: list[Parent]
    skipped: int
    """Parents that have none."""


def read_parents(options: ScanOptions) -> Parents:
    """Read and check the parents, and report what of them is not scanned.

    Raises
    ------
    AbagError
        If a row is bad, or no parent has a residue to mutate.
    """
    table = read_pairs(_table(options), options)
    table.report_notes()
    names = _names(table) if options.parents is not None else ["the parent"]
    pairs = list(zip(table.antibodies.of_row, table.antigens.of_row, strict=True))
    first_rows = {pair: row for row, pair in reversed([*enumerate(pairs)])}
    parents: list[Parent] = []
    problems: dict[str, list[str]] = {}
    rows = sorted(first_rows.values())
    for row in bar(iterable=rows, desc="numbering", unit=" parents", delay=1):
        antibody = table.antibodies.chains[pairs[row][0]]
        antigen = table.antigens.chains[pairs[row][1]]
        sites, found = find_sites(antibody, antigen, options)
        for problem in found:
            problems.setdefault(problem, []).append(names[row])
        if sites:
            parents.append(Parent(names[row], antibody, antigen, sites))
    _report(problems, len(rows), options)
    if len(rows) < len(pairs):
        say(f"{len(pairs) - len(rows):,} rows repeat a parent, which is scanned once")
    if not parents:
        what = "; ".join(f"{problem} ({_few(of)})" for problem, of in problems.items())
        msg = (
            f"nothing to scan: {what}; expected an antibody with residues in {options.chosen}. "
            "Give another parent, --region or --positions."
        )
        raise CannotPredict(msg)
    return Parents(parents, len(rows) - len(parents))


def _table(options: ScanOptions) -> TableLike:
    if options.parents is not None:
        found: TableLike = options.parents
        return found
    chains = {"heavy": options.heavy, "light": options.light}
    return pd.DataFrame({name: [chain] for name, chain in chains.items() if chain is not None})


def _names(table: SequenceTable) -> list[str]:
    """Name each row by the table's own column, and by its number where that is not enough."""
    numbers = [f"row {number}" for number in table.row_numbers]
    column = next((table.columns[role] for role in NAME_ROLES if role in table.columns), None)
    if column is None:
        return numbers
    names = [
        "" if pd.isna(cell) else printable(str(cell).strip())[:LONGEST_NAME]
        for cell in table.frame[column]
    ]
    count = Counter(names)
    return [
        number if not name else name if count[name] == 1 else f"{name} ({number})"
        for name, number in zip(names, numbers, strict=True)
    ]


def _report(problems: dict[str, list[str]], parents: int, options: ScanOptions) -> None:
    """Say what is not scanned; refuse positions that no parent has."""
    for problem, names in problems.items():
        if problem.startswith("no position") and len(names) == parents:
            msg = (
                f"--positions: {problem.removeprefix('no position ')}: {_few(names)} has no such "
                "residue; expected IMGT positions of the antibody, or residues of the antigen. "
                "Correct --positions."
            )
            raise CannotPredict(msg)
        say(f"not scanned: {problem}, in {len(names):,} of {parents:,} parents ({_few(names)})")


def _few(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
