"""Sequences by name, of FASTA files and tables, for columns that hold names.

Promises that a name that is used and has two different sequences is refused, and that a name which
a record has exactly, in any role, never finds a record of a similar name.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import NamedTuple

from abag.core.errors import SequenceError, TableError
from abag.core.messages import counted, quoted
from abag.embed.sequences.chains import MISSING_TEXT, Kind
from abag.embed.sequences.columns import SEQUENCE_ROLES, MissingColumn, simplified, with_found
from abag.embed.sequences.contents import (
    are_peptides,
    distinct_texts,
    holds_sequences,
    roles_by_content,
)
from abag.embed.sequences.delimited import cell_text
from abag.embed.sequences.domain_types import HEAVY_TYPE, LIGHT_TYPE, chain_types, find_types
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


class RepeatedName(TableError):
    """Names in a table that have several sequences each."""

    def __init__(self, source: str, names: Sequence[str]) -> None:
        self.names = [*names]
        """Each with the places of its sequences."""
        listed = self.names[:LISTED]
        if len(self.names) > LISTED:
            listed.append(f"and {len(self.names) - LISTED} more")
        super().__init__(
            f"--sequences {source}: a name has different sequences: {'; '.join(listed)}; expected "
            "one each. Remove or rename the others."
        )


class Entry(NamedTuple):
    """A sequence and its name."""

    name: str
    role: str
    """One of SEQUENCE_ROLES, or `ANY`."""
    text: str
    where: str
    """File and record or row, for messages."""
    of_ending: bool = False
    """Whether the role is the ending of the record's name, and `name` is what is before it."""


class FastaRecord(NamedTuple):
    """The header of a record without its ``>``, and its residues."""

    header: str
    residues: str


_Key = tuple[str, str]
"""Role and name."""
_Places = Mapping[str, Entry]
"""An entry for each distinct sequence of a name."""


@dataclass(frozen=True, slots=True)
class NamedSequences:
    """Sequences by name, written as in the cells of a column of sequences."""

    source: str
    """Names of the files."""
    of: Mapping[_Key, _Places]
    """Entries by role and whole name."""
    chains: Mapping[_Key, _Places]
    """Entries by role and name less the ending that says the role."""
    alike: tuple[Mapping[str, frozenset[str]], ...]
    """Names by `_folded` name, and by a part of one."""
    problems: tuple[str, ...] = ()
    """Lines on records that have no name or no residues."""
    types: dict[str, list[str]] = field(default_factory=dict)
    """Variable domains in sequences, by their text."""

    def find(self, role: str, cell: object) -> str | None:
        """Return the text of a name in a column of this role; None if it has none.

        Raises
        ------
        RepeatedName
            If a record has this very name, and another sequence than another one.
        """
        name = cell_name(cell)
        if not name:
            return None
        text = self._named(role, name)
        if self._is_record(name):
            return text
        if text is not None:
            return text if role != "antibody" else self._completed(text, name)
        similar = self._similar(role, name)
        return similar[0][1] if len({_residues(text) for _, text in similar}) == 1 else None

    def _completed(self, text: str, name: str) -> str | None:
        """Add the chain of a name in another case that an antibody lacks; None for one of two."""
        heavy, _, light = text.partition("|")
        missing = "light" if heavy else "heavy"
        similar = self.alike[0].get(_folded(name), frozenset())
        texts = {self._chain(missing, other) for other in similar if other != name} - {None}
        if (heavy and light) or not texts:
            return text
        if len(texts) > 1:
            return None
        (chain,) = texts
        return f"{heavy or chain}|{light or chain}"

    def _is_record(self, name: str) -> bool:
        """Tell whether a record has this very name, in any role."""
        return any((role, name) in self.of for role in (*SEQUENCE_ROLES, ANY))

    def _similar(self, role: str, name: str) -> list[tuple[str, str]]:
        """Return similar names and their texts: of another case, or else those with such a part."""
        for alike in self.alike:
            found = []
            for similar in sorted(alike.get(_folded(name), ())):
                try:
                    text = self._named(role, similar)
                except RepeatedName:
                    found += [(similar, ""), (similar, similar)]  # two texts: which is unknown
                    continue
                if text is not None:
                    found.append((similar, text.removesuffix("|")))
            if found:
                return found
        return []

    def _named(self, role: str, name: str) -> str | None:
        """Return the text of a name that a record has exactly, perhaps less an ending."""
        whole = self._record(role, name) or self._record(ANY, name)
        if role == "antigen":
            part = self._text(self.chains, role, name)
            # the antibody of a complex may be called as its antigen is
            return part if part and whole and self._domains(whole) else whole or part
        if role == "antibody":
            return self._antibody(name)
        if self._record(role, name):
            return whole
        part = self._chain(role, name)
        types = self._domains(whole) if whole else []
        if whole and (role in types or not (part or types)):
            return whole
        return part

    def _antibody(self, name: str) -> str | None:
        """Return the antibody of this name, from one record or from those of its two chains."""
        if whole := self._record("antibody", name):
            return whole
        heavy = self._record("heavy", name)
        light = self._record("light", name)
        heavy_part = self._chain("heavy", name)
        light_part = self._chain("light", name)
        whole = self._record(ANY, name)
        types = self._domains(whole) if whole else []
        if whole and not (heavy or light):
            is_pair = bool(heavy_part and light_part)
            if types == ["heavy"] and light_part and not is_pair and not heavy_part:
                return f"{whole}|{light_part}"
            if types == ["light"] and heavy_part and not is_pair and not light_part:
                return f"{heavy_part}|{whole}"
            # an antigen, of which the antibody has its name
            is_other = not types and any(map(self._domains, filter(None, (heavy_part, light_part))))
            if not is_other:
                return whole
        if not heavy and whole and types == ["heavy"]:
            heavy = whole
        if not light and whole and types == ["light"]:
            light = whole
        heavy = heavy or heavy_part
        light = light or light_part
        return f"{heavy or ''}|{light or ''}" if heavy or light else None

    def _record(self, role: str, name: str) -> str | None:
        return self._text(self.of, role, name)

    def _chain(self, role: str, name: str) -> str | None:
        """Return the chain of an antibody by the ending of its name, if it is one.

        cathepsin-L and ferritin light chain are none: a variable domain tells. Without any, the
        names of two chains do.
        """
        text = self._text(self.chains, role, name)
        if text is None or self._domains(text):
            return text
        other = self._text(self.chains, "light" if role == "heavy" else "heavy", name)
        return None if other is None or self._domains(other) else text

    def _text(self, entries: Mapping[_Key, _Places], role: str, name: str) -> str | None:
        places = entries.get((role, name))
        if places is None:
            return None
        first, *others = places.values()
        if others:
            listed = " and ".join(entry.where for entry in places.values())
            raise RepeatedName(self.source, [f"{name!r} at {listed}"])
        return first.text

    def _domains(self, text: str) -> list[str]:
        """Return the types of the variable domains of a text."""
        if text not in self.types:
            types: list[str] = []
            for chain in re.split("[|:]", _residues(text)):
                types += chain_types(chain)
            self.types[text] = types
        return self.types[text]

    def describe(self, role: str, cells: Iterable[object]) -> str:
        """Count what the names in a column of this role are, for messages.

        Raises
        ------
        RepeatedName
            If some of the names have several sequences; all of them are listed.
        """
        forms = Counter[str]()
        repeated: list[str] = []
        for name in dict.fromkeys(map(cell_name, cells)):
            try:
                text = self.find(role, name)
            except RepeatedName as error:
                repeated += error.names
                continue
            if text is not None:
                forms[self._form(role, text)] += 1
        if repeated:
            raise RepeatedName(self.source, repeated)
        return ", ".join(f"{counted(count, 'name')} of {form}" for form, count in forms.items())

    def _form(self, role: str, text: str) -> str:
        """Say what the text of a name is."""
        if role != "antibody":
            return "an antigen" if role == "antigen" else f"a {role} chain"
        heavy, _, light = text.partition("|")
        if heavy and light:
            return "a heavy and a light chain"
        types = self._domains(text)
        if len(types) > 1:
            return "a heavy and a light chain in one sequence"
        is_light = light or types == ["light"]
        return "a light chain alone" if is_light else "a heavy chain alone"

    def describe_unused(self, texts: Iterable[str]) -> Iterator[str]:
        """Say how many records are not used, if the table has these texts, in a line."""
        used: set[str] = set()
        for text in texts:
            used.update((_residues(text), *_residues(text).split("|")))
        records: dict[str, bool] = {}
        for places in self.of.values():
            for residues, entry in places.items():
                records[entry.where] = records.get(entry.where, False) or residues in used
        unused = [where for where, is_used in records.items() if not is_used]
        if unused:
            verb = "is" if len(unused) == 1 else "are"
            yield (
                f"{counted(len(unused), 'record')} of {self.source} {verb} not used, the first is "
                f"{unused[0]}"
            )

    def unknown(self, role: str, cell: object) -> UnknownName:
        """Make the error of a name without a sequence."""
        name = cell_name(cell)
        similar = [] if self._is_record(name) else self._similar(role, name)
        if similar:
            listed = ", ".join(dict.fromkeys(quoted(other) for other, _ in similar[:3]))
            msg = f"{quoted(name)} may be {listed} in {self.source}; expected one."
            return UnknownName(f"{msg} Write the whole name.")
        if self._is_record(name):
            what = f"{role} chain" if role in _CHAINS else role
            msg = (
                f"{quoted(name)} is in {self.source}, but has no {what} there; expected one. Add "
                "it, or leave the cell empty if there is none."
            )
            return UnknownName(msg)
        names = {named for _, named in [*self.of, *self.chains]}
        close = get_close_matches(name, names, n=2, cutoff=0.75)
        hint = f" (did you mean {' or '.join(map(quoted, close))}?)" if close else ""
        msg = f"{quoted(name)} has no sequence in {self.source}{hint}; expected one. Add it there."
        return UnknownName(msg)


def cell_name(cell: object) -> str:
    """Return the name in a cell; numbers, which are names too, as they are usually written."""
    return cell_text(cell).strip()


def _folded(name: str) -> str:
    return " ".join(name.lower().split())


def name_sequences(
    entries: Iterable[Entry], source: str, problems: Sequence[str] = ()
) -> NamedSequences:
    """Index sequences by name."""
    of: dict[_Key, dict[str, Entry]] = {}
    chains: dict[_Key, dict[str, Entry]] = {}
    whole: dict[str, set[str]] = {}
    parts: dict[str, set[str]] = {}
    looked_at: dict[str, None] = {}
    for entry in entries:
        named = chains if entry.of_ending else of
        residues = _residues(entry.text)
        named.setdefault((entry.role, entry.name), {}).setdefault(residues, entry)
        whole.setdefault(_folded(entry.name), set()).add(entry.name)
        for part in _parts(entry.name):
            parts.setdefault(_folded(part), set()).add(entry.name)
        if entry.of_ending and residues.isascii():
            looked_at[entry.text] = None
    alike = []
    for names in (whole, parts):
        alike.append({key: frozenset(similar) for key, similar in names.items()})
    types: dict[str, list[str]] = {}
    texts = [*looked_at]
    # at once, since one by one takes a minute for 100,000 chains
    for text, number in zip(texts, find_types([*map(_residues, texts)]).tolist(), strict=True):
        if number in (HEAVY_TYPE, LIGHT_TYPE):
            types[text] = chain_types(text, number)
    return NamedSequences(source, of, chains, tuple(alike), tuple(problems), types)


def _residues(text: str) -> str:
    return "".join(text.split()).upper()


def _parts(name: str) -> Iterator[str]:
    """Yield the names that a record may have beside its whole header."""
    first = name.split()[0]
    yield first
    fields = first.split("|")
    if len(fields) > 1 and fields[0].lower() in _DATABASES:  # sp|P04626|ERBB2_HUMAN
        yield from fields[1:]


def fasta_entries(path: Path, problems: list[str] | None = None) -> Iterator[Entry]:
    """Yield the sequences of a FASTA file under their names, and these less the ending."""
    for number, (header, residues) in enumerate(read_fasta(path, problems), 1):
        if not (header and residues):
            continue
        where = f"{path.name} record {number}"
        yield Entry(header, ANY, residues, where)
        for name in dict.fromkeys((header.split()[0], header)):
            ending = _ENDING.fullmatch(name)
            if ending is not None:
                role = str(ending.lastgroup)
                yield Entry(ending["stem"], role, residues, where, of_ending=True)
                break


def read_fasta(path: Path, problems: list[str] | None = None) -> list[FastaRecord]:
    """Read the records of a FASTA file; `problems` receives a line for each that is incomplete.

    Raises
    ------
    TableError
        If it is no FASTA file, or without `problems`, if a record has no name or no residues.
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
            if problems is None:
                msg = (
                    f"{path}: record {number} has no {missing}; expected both. Correct or remove "
                    "it."
                )
                raise TableError(msg)
            problems.append(f"{path.name} record {number} has no {missing}")
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
        If a file cannot be read, or names no sequence.
    """
    entries: list[Entry] = []
    problems: list[str] = []
    for path in paths:
        entries += read_entries(Path(path).expanduser(), problems)
    source = ", ".join(Path(path).name for path in paths)
    return name_sequences(entries, source, problems)


def names_digest(path: str | Path) -> str:
    """Hash a file of named sequences, or a folder of them: 32 hex digits; empty without one."""
    place = Path(path).expanduser()
    digest = blake2b(digest_size=16)
    files = sorted(place.rglob("*.parquet")) if place.is_dir() else [place]
    try:
        for file in files:
            with file.open("rb") as stream:
                file_digest(stream, lambda: digest)
    except OSError:
        return ""
    return digest.hexdigest()


def read_entries(path: Path, problems: list[str] | None = None) -> Iterator[Entry]:
    """Read the sequences of a FASTA file or table, each with its name.

    `problems` receives a line for each record without a name or residues; else that is an error.
    """
    if is_fasta(path):
        return fasta_entries(path, problems)
    return _table_entries(path, problems)


def _table_entries(path: Path, problems: list[str] | None) -> Iterator[Entry]:
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
                if problems is None:
                    msg = f"--sequences {where}: has no name; expected one. Name it or remove it."
                    raise TableError(msg)
                problems.append(f"{where} has no name")
                continue
            yield Entry(name, row_role, residues, where)


def _sequence_columns(table: Table, path: Path) -> dict[str, str]:
    """Find the columns of a table of names that hold sequences, by role."""
    columns = {**table.columns, **roles_by_content(table)}
    roles: dict[str, str] = {}
    for role, name in columns.items():
        if role in SEQUENCE_ROLES and _holds_chains(table, name, role):
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


def _holds_chains(table: Table, name: str, role: str) -> bool:
    """Tell whether a column of a role holds sequences; those of antigens may be peptides."""
    if holds_sequences(table, name):
        return True
    may_be_antigens = role == "antigen" or _GENERIC_SEQUENCE.fullmatch(simplified(name))
    return bool(may_be_antigens) and are_peptides(distinct_texts(table, name))


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
