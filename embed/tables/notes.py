"""Changes and skipped rows of reading a table: counts, descriptions and lists.

Whatever is changed or skipped has a count, and each count that is not 0 a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from abag.core.errors import AbagError, TableError
from abag.core.files import write_text
from abag.core.messages import counted
from abag.embed.tables.airr import NOT_PRODUCTIVE
from abag.embed.tables.chains import REPLACED, Kind

COLUMNS = ("row", "kind", "reason", "text", "error")
LISTED_ROWS = 20  # bad rows that an error lists before it counts the others
_LEFT = "left as written"
_STOPPED = "with a stop codon (*) behind the last residue of a chain, which is left out"
_FOUND = {
    "repeated": ("repeated_antibodies", "with the heavy chain twice in one string, read once"),
    "no domain": (
        "unrecognised_antibodies",
        "without a known variable domain in its string, read as a heavy chain",
    ),
    "exchanged": ("exchanged_antibodies", "with heavy and light exchanged: put right"),
    "misplaced": (
        "misplaced_antibodies",
        f"with heavy and light exchanged, {_LEFT}; see --chains auto",
    ),
    "same type": ("same_type_antibodies", f"with two heavy or two light chains, {_LEFT}"),
    "two domains": (
        "two_domain_antibodies",
        f"with two variable domains in one chain, {_LEFT}; see --chains auto",
    ),
    "unclear": (
        "unclear_antibodies",
        "with a chain without a clear J segment, not numbered; --chains auto numbers all",
    ),
    "constant": (
        "constant_antibodies",
        "with residues of constant domains, which harms models of tables that have both kinds; cut "
        "them off with --antibody-region fv",
    ),
    "leader": (
        "leader_antibodies",
        "with residues before the variable domain, such as a leader peptide or a tag, which "
        "harms models of tables that have both kinds; cut them off with --antibody-region fv",
    ),
    "tail": (
        "tail_antibodies",
        "with residues behind the variable domain that are no constant domain, such as a tag or a "
        "linker, which harms models of tables that have both kinds; cut them off with "
        "--antibody-region fv",
    ),
    "unknown chain": (
        "unknown_antibodies",
        "with a chain in which no variable domain is found",
    ),
    "cut": ("cut_antibodies", "cut to variable domains"),
    "not cut": ("uncut_antibodies", "with a chain without one certain variable domain, left whole"),
    "no heavy": (
        "light_only_antibodies",
        "with a light chain but no heavy one: is that missing by mistake?",
    ),
    "no light": (
        "heavy_only_antibodies",
        "with a heavy chain but no light one: nanobodies, or is that missing by mistake?",
    ),
    "short antibody": (
        "short_antibodies",
        "with a chain of fewer than 70 residues, too short for a variable domain: is it a CDR, a "
        "fragment, a name, or missing?",
    ),
    "short antigen": (
        "short_antigens",
        "with a chain of fewer than 20 residues: a peptide, or a name?",
    ),
    "stopped antibody": ("stopped_antibodies", _STOPPED),
    "stopped antigen": ("stopped_antigens", _STOPPED),
    "divided antigen": (
        "divided_antigens",
        "with blanks between runs of unequal lengths, read as one chain: if these are several, "
        "write | between them",
    ),
    "tagged antigen": (
        "tagged_antigens",
        "with six histidines at an end, a tag: without it, it would be another antigen",
    ),
}
"""Words in `ParsedSequence.form`: the name of a count of unique sequences, and a note."""


class BadCell(NamedTuple):
    """Problem for which a row cannot be used."""

    kind: Kind | Literal["label", ""]
    reason: str
    text: str
    """Text of the cell."""
    error: str
    refusal: type[AbagError] = TableError
    """Class of the error with which a table with such a row is refused."""
    file: str = ""
    """Name of the file, of several that are read as one table."""


EMPTY_ROW = BadCell("", "empty row", "", "every cell is empty")
"""Skipped whatever ``--bad-rows`` is: it holds nothing, and spreadsheets do not show it."""
_ALWAYS_SKIPPED = {
    EMPTY_ROW.reason: "with only empty cells",
    NOT_PRODUCTIVE: "without a productive chain",
}


@dataclass(slots=True)
class SkippedRows:
    """Rows that are empty or bad, by their numbers."""

    rows: list[tuple[int, BadCell]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bad(self) -> list[tuple[int, BadCell]]:
        """The rows that only ``--bad-rows skip`` skips, in the order of the table."""
        return [(row, cell) for row, cell in self._ordered() if cell.reason not in _ALWAYS_SKIPPED]

    def _ordered(self) -> list[tuple[int, BadCell]]:
        files = [*dict.fromkeys(cell.file for _, cell in self.rows)]

        def place(skipped: tuple[int, BadCell]) -> tuple[int, int]:
            row, cell = skipped
            return files.index(cell.file), row

        return sorted(self.rows, key=place)

    def update(self, other: SkippedRows) -> None:
        """Add the rows of another part of the table."""
        self.rows += other.rows

    def of_file(self, file: str) -> SkippedRows:
        """Return the same rows as those of one of several files."""
        return SkippedRows([(row, cell._replace(file=file)) for row, cell in self.rows])

    def notes(self) -> list[str]:
        """Say how many rows each reason costs, and of how many distinct cells."""
        bad = self.bad
        texts_by_reason: dict[tuple[str, str], list[str]] = {}
        for _, cell in bad:
            texts_by_reason.setdefault((cell.kind, cell.reason), []).append(cell.text)
        parts = []
        for (kind, reason), texts in texts_by_reason.items():
            rows = counted(len(texts), "row")
            parts.append(f"{reason}: {rows}, {counted(len(set(texts)), kind)}")
        lines = []
        if bad:
            lines.append(f"{counted(len(bad), 'bad row')} skipped ({'; '.join(parts)})")
        ordered = self._ordered()
        for reason, words in _ALWAYS_SKIPPED.items():
            places = [_place(row, cell) for row, cell in ordered if cell.reason == reason]
            if places:
                count = counted(len(places), "row")
                lines.append(f"{count} {words} skipped; the first is row {places[0]}")
        return lines

    def refusal(self, source: str, *, kept: int) -> AbagError:
        """Make the error that lists the bad rows of a table; `kept` is how many rows are good."""
        bad = self.bad
        if not bad:
            reasons = dict.fromkeys(_ALWAYS_SKIPPED[cell.reason] for _, cell in self.rows)
            words = " or ".join(reasons)
            if words == _ALWAYS_SKIPPED[EMPTY_ROW.reason]:
                words = "empty"
            msg = (
                f"{source}: all {len(self)} rows are {words}; expected at least one with sequences."
            )
            return TableError(msg)
        (row, first), *_ = bad
        if len(bad) == 1:
            advice = " Or skip it with --bad-rows skip." if kept else ""
            return first.refusal(f"{source}: row {_place(row, first)}, {first.error}{advice}")
        places_by_error: dict[str, list[str]] = {}
        for row, cell in bad[:LISTED_ROWS]:
            places_by_error.setdefault(cell.error, []).append(_place(row, cell))
        listed = []
        for error, places in places_by_error.items():
            rows = "row" if len(places) == 1 else "rows"
            listed.append(f"{rows} {', '.join(places)}, {error}")
        if len(bad) > LISTED_ROWS:
            listed.append(f"and {len(bad) - LISTED_ROWS:,} more")
        count = f"{len(bad):,} rows" if kept else f"all {len(bad):,} rows"
        fix = " Fix them, or skip them with --bad-rows skip." if kept else " Fix them."
        head = f"{source}: {count} are bad; expected valid sequences and labels.{fix}"
        return first.refusal("\n  ".join([head, *listed]))

    def write(self, path: Path) -> None:
        """Write a CSV with a line per row, in their order, but not over any other file."""
        header = ",".join(COLUMNS)
        if path.exists() and not path.read_bytes().startswith(header.encode()):
            msg = (
                f"{path}: already exists and is not a list of skipped rows; expected a new file. "
                "Choose another --skipped."
            )
            raise TableError(msg)
        lines = []
        for row, cell in self._ordered():
            lines.append((row, cell.kind, cell.reason, cell.text, cell.error, cell.file))
        table = pd.DataFrame(lines, columns=[*COLUMNS, "file"])
        has_files = any(cell.file for _, cell in self.rows)
        columns = [*COLUMNS, "file"] if has_files else [*COLUMNS]
        write_text(path, table[columns].to_csv(index=False))


def _place(row: int, cell: BadCell) -> str:
    """Return the number of a row, and of several files the one that has it."""
    return f"{row} of {cell.file}" if cell.file else str(row)


def describe_rows(used: int, skipped: int, others: Mapping[str, int] | None = None) -> str:
    """Say how many rows were read, and if not all of them are used, where the others are.

    `others` are counts of rows that are neither used nor skipped, by words for them.
    """
    beside = {"skipped": skipped, **(others or {})}
    read = used + sum(beside.values())
    if read == used:
        return counted(used, "row")
    parts = [f"{counted(read, 'row')} read"]
    parts += [f"{n:,} {words}" for words, n in beside.items() if n]
    return ", ".join([*parts, f"{used:,} used"])


def count_changes(forms: Mapping[str, int], replaced: int) -> dict[str, int]:
    """Name the counts of what was changed or found; arguments as in `SequencePart`."""
    words: Counter[str] = Counter()
    for form, number in forms.items():
        words.update(dict.fromkeys(form.split("+"), number))
    counts = {
        "split_antibodies": words["glued"] + words["linker"],
        "split_glued": words["glued"],
        "split_linker": words["linker"],
    }
    counts |= {name: words[word] for word, (name, _) in _FOUND.items()}
    counts["replaced_residues"] = replaced
    return counts


def count_line_breaks(frame: pd.DataFrame) -> int:
    """Count the cells of text files that contain a line break."""
    count = 0
    for _, column in frame.select_dtypes(exclude=["number", "bool"]).items():
        if isinstance(column.dtype, pd.StringDtype):
            texts = pa.array(column, pa.large_string(), from_pandas=True)
        else:
            texts = pa.array([x for x in column.tolist() if isinstance(x, str)], pa.large_string())
        has_break = pc.match_substring_regex(texts, "[\r\n]")
        count += pc.sum(has_break, min_count=0).as_py()
    return count


def describe_counts(counts: Mapping[str, int], skipped: SkippedRows) -> list[str]:
    """Describe what was done to a table, one printable line each; empty when nothing was."""
    nouns_and_notes = {
        "split_antibodies": (
            "antibody string",
            f"split into heavy and light ({counts['split_glued']:,} glued, "
            f"{counts['split_linker']:,} joined by a linker, which was removed)",
        )
    }
    for name, note in _FOUND.values():
        nouns_and_notes[name] = ("antigen" if "antigen" in name else "antibody", note)
    nouns_and_notes |= {
        "replaced_residues": ("residue", f"{', '.join(REPLACED)} read as X"),
        "line_breaks": ("cell", "with a line break: does an unmatched quotation mark join rows?"),
    }
    lines = skipped.notes()
    for name, (noun, note) in nouns_and_notes.items():
        if counts[name]:
            lines.append(f"{counted(counts[name], noun)} {note}")
    return lines
