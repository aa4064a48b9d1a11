"""Sequences by name, of FASTA files and tables, for columns that hold names.

Promises that a name with two different sequences is refused, or is not found.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from abag.core.errors import SequenceError, TableError
from abag.embed.sequences.table_files import bare_suffix, is_gzip

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
    """A sequence and its name."""

    name: str
    role: str
    """One of SEQUENCE_ROLES, or `ANY`."""
    text: str
    where: str
    """File and record or row, for messages."""


class FastaRecord(NamedTuple):
    """The header of a record without its ``>``, and its residues."""

    header: str
    residues: str


@dataclass(frozen=True, slots=True)
class NamedSequences:
    """Sequences by name, written as in the cells of a column of sequences."""

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
            if role == "antibody" and any(self._is_ambiguous(chain, name) for chain in _CHAINS):
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
        texts = self._texts_alike(role, name)
        return texts.pop() if len(texts) == 1 else None

    def _is_ambiguous(self, role: str, name: str) -> bool:
        return (role, name) not in self.of and len(self._texts_alike(role, name)) > 1

    def _texts_alike(self, role: str, name: str) -> set[str]:
        names = self.alike.get((role, _folded(name)), frozenset())
        return {self.of[role, similar] for similar in names}

    def unknown(self, role: str, cell: object) -> UnknownName:
        """Make the error of a name without a sequence."""
        name = cell_name(cell)
        roles = (*_CHAINS, role, ANY) if role == "antibody" else (role, ANY)
        for part in roles:
            if self._is_ambiguous(part, name):
                similar = sorted(self.alike[part, _folded(name)])
                listed = ", ".join(map(repr, similar[:3]))
                msg = f"{name!r} may be {listed} in {self.source}; expected one."
                return UnknownName(f"{msg} Write the whole name.")
        names = {named for _, named in self.of}
        close = get_close_matches(name, names, n=2, cutoff=0.75)
        hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
        msg = f"{name!r} has no sequence in {self.source}{hint}; expected one. Add it there."
        return UnknownName(msg)


def cell_name(cell: object) -> str:
    """Return the name in a cell; numbers, which are names too, as they are usually written."""
    if isinstance(cell, float):
        if math.isnan(cell):
            return ""
        return str(int(cell)) if cell.is_integer() else str(cell)
    return "" if cell is None else str(cell).strip()


def _folded(name: str) -> str:
    return " ".join(name.lower().split())


def name_sequences(entries: Iterable[Entry], source: str) -> NamedSequences:
    """Index sequences by name.

    Raises
    ------
    TableError
        If a name has two different sequences.
    """
    texts: dict[tuple[str, str], str] = {}
    seen: dict[tuple[str, str], dict[str, str]] = {}
    alike: dict[tuple[str, str], set[str]] = {}
    for entry in entries:
        key = (entry.role, entry.name)
        texts.setdefault(key, entry.text)
        seen.setdefault(key, {}).setdefault(_residues(entry.text), entry.where)
        for part in (entry.name, *_parts(entry.name)):
            alike.setdefault((entry.role, _folded(part)), set()).add(entry.name)
    conflicts = [
        f"{name!r} at {' and '.join(places.values())}"
        for (_, name), places in seen.items()
        if len(places) > 1
    ]
    if conflicts:
        listed = conflicts[:LISTED]
        if len(conflicts) > LISTED:
            listed.append(f"and {len(conflicts) - LISTED} more")
        msg = (
            f"--sequences {source}: a name has different sequences: {'; '.join(listed)}; expected "
            "one each. Remove or rename the others."
        )
        raise TableError(msg)
    frozen = {key: frozenset(names) for key, names in alike.items()}
    return NamedSequences(source, texts, frozen)


def _residues(text: str) -> str:
    return "".join(text.split()).upper()


def _parts(name: str) -> Iterator[str]:
    """Yield the names that a record may have beside its whole header."""
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
    parsed: list[FastaRecord] = []
    for number, record in enumerate(records, 1):
        header, _, lines = record.partition("\n")
        residues = "".join(lines.split()).rstrip("*")
        if not header.strip() or not residues:
            missing = "name" if not header.strip() else "residues"
            msg = f"{path}: record {number} has no {missing}; expected both. Correct or remove it."
            raise TableError(msg)
        parsed.append(FastaRecord(" ".join(header.split()), residues))
    return parsed


def is_fasta(path: Path) -> bool:
    """Tell by its name whether a file is FASTA."""
    return bare_suffix(path) in FASTA
