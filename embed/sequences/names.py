"""Sequences by name, of FASTA files and tables, for columns that hold names.

Promises that a name with two different sequences is refused, or is not found.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from abag.core.errors import SequenceError, TableError
from abag.core.messages import quoted
from abag.embed.sequences.chains import MISSING_TEXT, Kind
from abag.embed.sequences.columns import SEQUENCE_ROLES, MissingColumn, simplified, with_found
from abag.embed.sequences.contents import holds_sequences, roles_by_content
from abag.embed.sequences.delimited import cell_text
from abag.embed.sequences.table_files import bare_suffix, is_gzip
from abag.embed.sequences.tables import Table, read_table

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

_GENERIC_SEQUENCE = re.compile("(protein)?(seq|sequence|aa|aaseq|aminoacidsequence)")
_NAME_COLUMNS: Mapping[Kind | None, str] = {
    "antibody": "(antibody|ab|mab|fab|fv|nanobody|clone|parent)(name|id)?",
    "antigen": "(antigen|ag|target|strain)(name|id)?",
    None: "(name|names|id|identifier|accession|entry|label|protein|construct|sample|molecule|"
    "variant|record)(name|id)?",
}
"""Names of the columns of names in a table of these."""
_CHAIN_NAMES = {
    **dict.fromkeys(("H", "VH", "HC", "VHH", "HEAVY", "IGH"), "heavy"),
    **dict.fromkeys(("L", "VL", "LC", "K", "LIGHT", "KAPPA", "LAMBDA", "IGK", "IGL"), "light"),
    **dict.fromkeys(("AG", "ANTIGEN"), "antigen"),
}
"""Roles of chains as a column of a table of sequences names them."""


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
            if role == "antibody":
                if self._is_ambiguous("heavy", name) or self._is_ambiguous("light", name):
                    return None  # else a heavy chain would lose its light chain
                if heavy or light:
                    return f"{heavy or ''}|{light or ''}"
            chain = {"heavy": heavy, "light": light}.get(role)
            if chain:
                return chain
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
                listed = ", ".join(map(quoted, similar[:3]))
                msg = f"{quoted(name)} may be {listed} in {self.source}; expected one."
                return UnknownName(f"{msg} Write the whole name.")
        names = {named for _, named in self.of}
        close = get_close_matches(name, names, n=2, cutoff=0.75)
        hint = f" (did you mean {' or '.join(map(quoted, close))}?)" if close else ""
        msg = f"{quoted(name)} has no sequence in {self.source}{hint}; expected one. Add it there."
        return UnknownName(msg)


def cell_name(cell: object) -> str:
    """Return the name in a cell; numbers, which are names too, as they are usually written."""
    return cell_text(cell).strip()


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
    conflicts = []
    for (_, name), places in seen.items():
        if len(places) > 1:
            conflicts.append(f"{quoted(name)} at {' and '.join(places.values())}")
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


def load_names(paths: Sequence[str | Path]) -> NamedSequences:
    """Read the sequences of FASTA files and tables by their names.

    Raises
    ------
    AbagError
        If a file cannot be read, names no sequence, or a name has two.
    """
    entries: list[Entry] = []
    for path in paths:
        entries += read_entries(Path(path).expanduser())
    source = ", ".join(Path(path).name for path in paths)
    return name_sequences(entries, source)


def read_entries(path: Path) -> Iterator[Entry]:
    """Read the sequences of a FASTA file or table, each with its name."""
    return fasta_entries(path) if is_fasta(path) else _table_entries(path)


def _table_entries(path: Path) -> Iterator[Entry]:
    """Yield the sequences of a table under their names, column by column."""
    table = read_table(path, as_written=True)
    table = replace(table, frame=table.frame.astype(object))
    roles = _sequence_columns(table, path)
    for role, column in roles.items():
        kind: Kind | None = "antigen" if role == "antigen" else "antibody"
        row_roles = [role] * len(table.frame)
        if role == ANY:
            kind = None
            row_roles = _chain_roles(table)
        names = table.frame[_name_column(table, kind, roles)].tolist()
        texts = table.frame[column].tolist()
        rows = zip(names, texts, row_roles, strict=True)
        for number, (cell, text, row_role) in enumerate(rows, table.first_row):
            is_missing = text is None or text != text  # NaN
            residues = "" if is_missing else str(text).strip()
            if not residues or residues in MISSING_TEXT:
                continue
            where = f"{path.name} row {number}"
            name = cell_name(cell)
            if not name:
                msg = f"--sequences {where}: has no name; expected one. Name it or remove it."
                raise TableError(msg)
            yield Entry(name, row_role, residues, where)


def _sequence_columns(table: Table, path: Path) -> dict[str, str]:
    """Find the columns of a table of names that hold sequences, by role."""
    columns = {**table.columns, **roles_by_content(table)}
    roles: dict[str, str] = {}
    for role, name in columns.items():
        if role in SEQUENCE_ROLES and holds_sequences(table, name):
            roles[role] = name
    if _GENERIC_SEQUENCE.fullmatch(simplified(roles.get("antibody", ""))):
        roles[ANY] = roles.pop("antibody")  # "sequence" is a name for those of antigens, too
    if not roles:
        others = [name for name in map(str, table.names) if holds_sequences(table, name)]
        if len(others) != 1:
            problem = f"--sequences {path}: no column for sequences"
            advice = "Call the columns name, and heavy and light, antibody, antigen or sequence."
            raise MissingColumn(with_found(problem, table.names, advice))
        roles[ANY] = others[0]
    return roles


def _chain_roles(table: Table) -> list[str]:
    """Return the role of each sequence by a column that names its chain, else `ANY`."""
    for name in map(str, table.names):
        if re.fullmatch("(chain)?(type|name|id)?|locus", simplified(name)):
            cells = [cell_name(cell).upper() for cell in table.frame[name].tolist()]
            roles = [_CHAIN_NAMES.get(cell, ANY) for cell in cells]
            if ANY not in roles:
                return roles
    return [ANY] * len(table.frame)


def _name_column(table: Table, kind: Kind | None, roles: Mapping[str, str]) -> str:
    """Return the column that names the sequences of a kind; the first one if none is called so."""
    others = [name for name in map(str, table.names) if name not in roles.values()]
    order: tuple[Kind | None, ...] = (kind, None)
    if kind is None:
        order = (None, "antibody", "antigen")
    for named_kind in order:
        pattern = _NAME_COLUMNS[named_kind]
        for name in others:
            if re.fullmatch(pattern, simplified(name)):
                return name
    if not others:
        problem = f"--sequences {table.source}: no column for names"
        raise MissingColumn(with_found(problem, table.names, "Call one name."))
    return others[0]
