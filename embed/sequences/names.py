"""Sequences by name, of FASTA files and tables, for columns that hold names.

Promises that a name with two different sequences is refused, or is not found.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from abag.core.errors import SequenceError, TableError
from abag.embed.sequences.tables import bare_suffix, is_gzip

FASTA = (".fasta", ".fa")
ANY = "sequence"
"""Role of a sequence of which the file does not say what it is."""
LISTED = 20
_CHAINS = ("heavy", "light")
_ENDING = re.compile(
    r"(?P<stem>.+?)[\s_|:./-]+(?:(?P<heavy>h|vh|vhh|hc|heavy)|(?P<light>l|vl|lc|light|k|vk|kappa|"
    r"lambda)|(?P<antigen>ag|antigen))(?:[\s_-]*(?:chain|domain|seq|sequence|aa))*",
    re.IGNORECASE,
)
"""A name that ends in the role of its chain."""
_DATABASES = frozenset(("sp", "tr", "pdb", "gb", "ref", "emb", "dbj"))


class UnknownName(SequenceError):
    """A name in a table that has no sequence."""


class Entry(NamedTuple):
    """A sequence of a name."""

    name: str
    role: str  # of SEQUENCE_ROLES, or `ANY`
    text: str
    where: str


class FastaRecord(NamedTuple):
    """The header of a record without its ``>``, and its residues."""

    header: str
    residues: str


@dataclass(frozen=True, slots=True)
class NamedSequences:
    """What names stand for, as cells of a column of sequences write it."""

    source: str
    """Names of the files."""
    of: Mapping[tuple[str, str], str]
    """Text by role and name."""
    alike: Mapping[tuple[str, str], frozenset[str]]
    """Names by role and `_folded` name, or part of one."""

    def find(self, role: str, cell: object) -> str | None:
        """Return the text of a name in a column of this role; None if it has none."""
        name = cell_name(cell)
        if not name:
            return None
        if role in ("antibody", "heavy", "light"):
            heavy = self._look_up("heavy", name)
            light = self._look_up("light", name)
            if role == "antibody" and any(self._is_ambiguous(one, name) for one in _CHAINS):
                return None  # else a heavy chain would lose its light chain
            if role == "antibody" and (heavy or light):
                return f"{heavy or ''}|{light or ''}"
            if role != "antibody" and (heavy if role == "heavy" else light):
                return heavy if role == "heavy" else light
        return self._look_up(role, name) or self._look_up(ANY, name)

    def _look_up(self, role: str, name: str) -> str | None:
        exact = self.of.get((role, name))
        if exact is not None:
            return exact
        names = self.alike.get((role, _folded(name)), frozenset())
        texts = {self.of[role, one] for one in names}
        return texts.pop() if len(texts) == 1 else None

    def _is_ambiguous(self, role: str, name: str) -> bool:
        names = self.alike.get((role, _folded(name)), frozenset())
        return (role, name) not in self.of and len({self.of[role, one] for one in names}) > 1

    def unknown(self, role: str, cell: object) -> UnknownName:
        """Make the error of a name without a sequence."""
        name = cell_name(cell)
        roles = (*_CHAINS, role, ANY) if role == "antibody" else (role, ANY)
        several = next(
            (self.alike[r, _folded(name)] for r in roles if self._is_ambiguous(r, name)), ()
        )
        if several:
            listed = ", ".join(map(repr, sorted(several)[:3]))
            msg = f"{name!r} may be {listed} in {self.source}; expected one. Write the whole name"
            return UnknownName(f"{msg}.")
        close = get_close_matches(name, {known for _, known in self.of}, n=2, cutoff=0.75)
        meant = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
        msg = f"{name!r} has no sequence in {self.source}{meant}; expected one. Add it there"
        return UnknownName(f"{msg}.")


def cell_name(cell: object) -> str:
    """Return the name in a cell; numbers, which are names too, as they are usually written."""
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() else "" if cell != cell else str(cell)
    return "" if cell is None else str(cell).strip()


def _folded(name: str) -> str:
    return " ".join(name.lower().split())


def name_sequences(entries: Iterable[Entry], source: str) -> NamedSequences:
    """Index sequences by name; `TableError` for names with two of them."""
    of: dict[tuple[str, str], str] = {}
    seen: dict[tuple[str, str], dict[str, str]] = {}
    alike: dict[tuple[str, str], set[str]] = {}
    for entry in entries:
        key = entry.role, entry.name
        of.setdefault(key, entry.text)
        seen.setdefault(key, {}).setdefault(_residues(entry.text), entry.where)
        for part in (entry.name, *_parts(entry.name)):
            alike.setdefault((entry.role, _folded(part)), set()).add(entry.name)
    conflicts = [
        f"{name!r} at {' and '.join(places.values())}"
        for (_, name), places in seen.items()
        if len(places) > 1
    ]
    if conflicts:
        listed = conflicts[:LISTED] + [f"and {len(conflicts) - LISTED} more"] * (
            len(conflicts) > LISTED
        )
        msg = (
            f"--sequences {source}: a name has different sequences: {'; '.join(listed)}; expected "
            "one each. Remove or rename the others."
        )
        raise TableError(msg)
    return NamedSequences(source, of, {key: frozenset(names) for key, names in alike.items()})


def _residues(text: str) -> str:
    return "".join(text.split()).upper()


def _parts(name: str) -> Iterator[str]:
    """Yield what a record may be called beside its whole header."""
    first = name.split()[0]
    yield first
    fields = first.split("|")
    if len(fields) > 1 and fields[0].lower() in _DATABASES:  # sp|P04626|ERBB2_HUMAN
        yield from fields[1:]


def fasta_entries(path: Path) -> Iterator[Entry]:
    """Yield the sequences of a FASTA file under their names, and these less the ending."""
    for number, (header, residues) in enumerate(read_fasta(path), 1):
        where = f"{path.name} record {number}"
        yield Entry(header, ANY, residues, where)
        for name in dict.fromkeys((header.split()[0], header)):
            ending = _ENDING.fullmatch(name)
            if ending is not None:
                yield Entry(ending["stem"], str(ending.lastgroup), residues, where)
                break


def read_fasta(path: Path) -> list[FastaRecord]:
    """Read the records of a FASTA file.

    Raises
    ------
    TableError
        If it is no FASTA file, or a record has no name or no residues.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if is_gzip(path) else path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read ({error}); expected a FASTA file. Check the path."
        raise TableError(msg) from error
    before, *records = re.split(r"^\s*>", re.sub("\r\n?", "\n", text), flags=re.MULTILINE)
    if before.strip() or not records:
        msg = (
            f"{path}: is not FASTA, which begins with '>'; expected names and sequences. Check it."
        )
        raise TableError(msg)
    found: list[FastaRecord] = []
    for number, record in enumerate(records, 1):
        header, _, lines = record.partition("\n")
        residues = "".join(lines.split()).rstrip("*")
        if not header.strip() or not residues:
            what = "name" if not header.strip() else "residues"
            msg = f"{path}: record {number} has no {what}; expected both. Correct or remove it."
            raise TableError(msg)
        found.append(FastaRecord(" ".join(header.split()), residues))
    return found


def is_fasta(path: Path) -> bool:
    """Tell by its name whether a file is FASTA."""
    return bare_suffix(path) in FASTA
