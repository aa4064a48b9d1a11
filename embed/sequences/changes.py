"""What reading a table changed and skipped: counts, their descriptions, and the skipped rows."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from abag import AbagError
from abag.core.files import write_text
from abag.core.messages import counted
from abag.embed.sequences.chains import REPLACED, Kind
from abag.embed.sequences.formats import BadTable

COLUMNS = ("row", "kind", "reason", "text", "error")
SHOWN_ROWS = 5
"""Rows that a note lists before it ends in dots."""
_FORMS = {
    "repeated_antibodies": (
        "repeated",
        "antibody strings hold a heavy chain twice, which is read once",
    ),
    "unrecognised_antibodies": (
        "no domain",
        "antibody strings have no known variable domain and are read as heavy chains",
    ),
    "exchanged_antibodies": ("exchanged", "antibodies had heavy and light exchanged: put right"),
    "misplaced_antibodies": (
        "misplaced",
        "antibodies have heavy and light exchanged and are left as they are; see --chains auto",
    ),
    "same_type_antibodies": (
        "same type",
        "antibodies have two heavy or two light chains and are left as they are",
    ),
    "two_domain_antibodies": (
        "two domains",
        "antibodies have two variable domains in one chain and are left as they are; see "
        "--chains auto",
    ),
    "unclear_antibodies": (
        "unclear",
        "antibodies have a chain without a clear J segment, of which only a sample was numbered; "
        "--chains auto numbers all",
    ),
    "constant_antibodies": (
        "constant",
        "antibodies carry residues of constant domains, which harms models of tables that have "
        "both kinds; cut them off with --antibody-region fv",
    ),
    "cut_antibodies": ("cut", "antibodies cut to their variable domains"),
    "uncut_antibodies": (
        "not cut",
        "antibodies have a chain without one certain variable domain, which is left whole",
    ),
    "light_only_antibodies": (
        "no heavy",
        "antibodies have a light chain but no heavy one: is its cell empty by mistake?",
    ),
    "short_antibodies": (
        "short antibody",
        "antibodies have a chain of fewer than 20 residues: is it a name, or missing?",
    ),
    "short_antigens": (
        "short antigen",
        "antigens have a chain of fewer than 20 residues: are they peptides, or names?",
    ),
}
"""Count to the word in `ParsedSequence.form` that it counts, and its description."""


class BadCell(NamedTuple):
    """A cell that holds no valid sequence."""

    text: str
    error: AbagError


class BadSequence(NamedTuple):
    """What `SkippedRows` counts rows of."""

    kind: Kind | Literal[""]
    reason: str
    text: str
    error: str


EMPTY_ROW = BadSequence("", "empty row", "", "every cell is empty")
"""Skipped whatever ``--bad-rows`` is: it holds nothing, and spreadsheets do not show it."""


@dataclass(slots=True)
class SkippedRows:
    """Skipped rows by the sequence because of which they were skipped, or as `EMPTY_ROW`."""

    rows_of: dict[BadSequence, array[int]] = field(default_factory=dict)
    """1-based rows of the table."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(map(len, self.rows_of.values()))

    @property
    def empty(self) -> Sequence[int]:
        """1-based rows of the table that are empty."""
        return self.rows_of.get(EMPTY_ROW, ())

    def add(self, bad: BadSequence, row: int) -> None:
        """Add a row."""
        self.rows_of.setdefault(bad, array("q")).append(row)

    def update(self, other: SkippedRows) -> None:
        """Add the rows of another part of the table."""
        for bad, rows in other.rows_of.items():
            self.rows_of.setdefault(bad, array("q")).extend(rows)

    def notes(self) -> list[str]:
        """Say how many rows each reason costs, and of how many distinct sequences."""
        rows_of, empty = dict(self.rows_of), self.empty
        rows_of.pop(EMPTY_ROW, None)
        parts = []
        for kind, reason in dict.fromkeys((bad.kind, bad.reason) for bad in rows_of):
            found = [r for bad, r in rows_of.items() if (bad.kind, bad.reason) == (kind, reason)]
            parts.append(f"{sum(map(len, found)):,} {reason} in {counted(len(found), kind)}")
        lines = []
        if parts:
            count = counted(len(self) - len(empty), "bad row")
            lines.append(f"{count} skipped ({', '.join(parts)})")
        if empty:
            count = counted(len(empty), "row")
            lines.append(f"{count} with only empty cells skipped; the first is row {min(empty)}")
        return lines

    def write(self, path: Path) -> None:
        """Write a CSV with one line per row, in the order of the table.

        Raises
        ------
        BadTable
            If the file exists and is not such a list.
        """
        header = ",".join(COLUMNS)
        if path.exists() and not path.read_bytes().startswith(header.encode()):
            msg = (
                f"{path}: already exists and is not a list of skipped rows; expected a new file. "
                "Choose another --skipped."
            )
            raise BadTable(msg)
        lines = sorted((row, *bad) for bad, rows in self.rows_of.items() for row in rows)
        write_text(path, pd.DataFrame(lines, columns=COLUMNS).to_csv(index=False))


def count_changes(forms: Mapping[str, int], replaced: int) -> dict[str, int]:
    """Name the counts of what was changed or found; arguments as in `SequencePart`."""
    words: Counter[str] = Counter()
    for form, n in forms.items():
        words.update(dict.fromkeys(form.split("+"), n))
    return {
        "split_antibodies": words["glued"] + words["linker"],
        "split_glued": words["glued"], "split_linker": words["linker"],
        **{name: words[word] for name, (word, _) in _FORMS.items()}, "replaced_residues": replaced,
    }  # fmt: skip


def count_line_breaks(frame: pd.DataFrame) -> int:
    """Count the cells of text files that contain a line break."""
    columns = frame.select_dtypes(exclude=["number", "bool"]).to_numpy(object).T
    cells = (cell for cell in columns.flat if isinstance(cell, str))
    return sum("\n" in cell or "\r" in cell for cell in cells)


def describe_counts(
    counts: Mapping[str, int], skipped: SkippedRows, light_only: Sequence[int] = ()
) -> list[str]:
    """Describe what was done to a table, one printable line each; empty when nothing was.

    `light_only` lists rows with a light chain alone.
    """
    lines = {
        "split_antibodies": (
            f"antibody strings split into heavy and light ({counts['split_glued']:,} glued, "
            f"{counts['split_linker']:,} joined by a linker, which was removed)"
        ),
        **{name: line for name, (_, line) in _FORMS.items()},
        "replaced_residues": f"residues {', '.join(REPLACED)} read as X",
        "line_breaks": "cells contain line breaks: does an unmatched quotation mark join rows?",
    }
    if light_only:
        shown = ", ".join(map(str, light_only[:SHOWN_ROWS]))
        more = " ..." if len(light_only) > SHOWN_ROWS else ""
        lines["light_only_antibodies"] += f" Row{'s' * (len(light_only) > 1)} {shown}{more}"
    found = [f"{counts[name]:,} {line}" for name, line in lines.items() if counts[name]]
    return skipped.notes() + found
