"""What the cells of a table refer to: sequences by their names, and the parents of mutations.

What a table refers to is decided once, from its first rows. Columns of names are found by the names
in them. A name with two different sequences is refused, or is not found.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

from abag.core.errors import AbagError, ColumnError, SequenceError, TableError
from abag.core.messages import counted, quoted, say, shell_quoted
from abag.embed.tables.chains import (
    CHAIN_ROLES,
    KINDS,
    LIGHT_MUTATIONS,
    MISSING_TEXT,
    MUTATION_PARTS,
    MUTATIONS,
    PLURAL,
    RESIDUES,
    ROLES_OF,
    SEQUENCE_ROLES,
    Kind,
    find_domains,
    is_word,
    parse_antibody,
    parse_antigen,
    sequence_text,
)
from abag.embed.tables.columns import (
    MissingColumn,
    column_option,
    list_columns,
    quote_names,
    simplified,
    with_found,
)
from abag.embed.tables.content import (
    ANTIGEN_WORDS,
    SHORT,
    are_peptides,
    distinct_texts,
    holds_numbers,
    holds_sequences,
    is_peptide,
    is_sequence,
    roles_by_content,
)
from abag.embed.tables.formats import (
    CHAIN_ENDING,
    CHUNK_ROWS,
    FORMATS,
    bare_suffix,
    cell_text,
    fasta_records,
    is_gzip,
    read_fasta,
    role_last,
    sheet_names,
)
from abag.embed.tables.mutations import (
    IN_ORDER,
    ChainId,
    MutationRules,
    are_in_order,
    chain_of_column,
    describe_unapplied,
    holds_mutations,
    mutation_columns,
    without_wild,
)
from abag.embed.tables.numbering import (
    HEAVY_TYPE,
    LIGHT_TYPE,
    chain_types,
    domain_types,
    find_types,
)
from abag.embed.tables.options import TableOptions
from abag.embed.tables.table import ANTIGEN_COLUMN, Table, read_table

ANY = "sequence"
"""Role of a sequence of which the file does not say what it is."""
LISTED = 20
_DATABASES = frozenset(("sp", "tr", "pdb", "gb", "ref", "emb", "dbj"))
_GENERIC_SEQUENCE = re.compile("(protein)?(seq|sequence|aa|aaseq|aminoacidsequence)")
_NAME_COLUMNS: Mapping[Kind | None, str] = {
    "antibody": "(antibody|ab|mab|fab|fv|nanobody|clone|parent)(name|id)?",
    "antigen": "(antigen|ag|target|strain)(name|id)?",
    None: "(name|names|id|identifier|accession|entry|label|protein|construct|sample|molecule|"
    "variant|record)(name|id)?|(seq|sequence)(name|id)",
}
"""Names of the columns of names in a table of these."""
_CHAIN_NAMES = {
    **dict.fromkeys(("H", "VH", "HC", "VHH", "HEAVY", "IGH"), "heavy"),
    **dict.fromkeys(("L", "VL", "LC", "K", "LIGHT", "KAPPA", "LAMBDA", "IGK", "IGL"), "light"),
    **dict.fromkeys(("AG", "ANTIGEN"), "antigen"),
}
"""Roles of chains as a column of a table of sequences names them."""
_Key = tuple[str, str, bool]
"""Role and name, and whether the role is the ending of the record's name: see `Entry`."""
SAMPLED = 20
"""Named sequences whose domains are looked for."""


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


_Places = Mapping[str, Entry]
"""An entry for each distinct sequence of a name."""


@dataclass(frozen=True, slots=True)
class NamedSequences:
    """Sequences by name, written as in the cells of a column of sequences."""

    source: str
    """Names of the files."""
    of: Mapping[_Key, _Places]
    """Entries by role and whole name, and by role and name less the ending that says the role."""
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
        if any((any_role, name, False) in self.of for any_role in (*SEQUENCE_ROLES, ANY)):
            return text  # a record has this very name
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
        whole = self._text(role, name) or self._text(ANY, name)
        if role == "antigen":
            part = self._text(role, name, of_ending=True)
            # the antibody of a complex may be called as its antigen is
            return part if part and whole and self._domains(whole) else whole or part
        if role == "antibody":
            return self._antibody(name)
        if self._text(role, name):
            return whole
        part = self._chain(role, name)
        types = self._domains(whole) if whole else []
        if whole and (role in types or not (part or types)):
            return whole
        return part

    def _antibody(self, name: str) -> str | None:
        """Return the antibody of this name, from one record or from those of its two chains."""
        if whole := self._text("antibody", name):
            return whole
        heavy = self._text("heavy", name)
        light = self._text("light", name)
        heavy_part = self._chain("heavy", name)
        light_part = self._chain("light", name)
        whole = self._text(ANY, name)
        types = self._domains(whole) if whole else []
        if whole and not (heavy or light):
            lacks_chain = (types == ["heavy"] and light_part and not heavy_part) or (
                types == ["light"] and heavy_part and not light_part
            )
            # an antigen, of which the antibody has its name
            is_other = not types and any(map(self._domains, filter(None, (heavy_part, light_part))))
            if not (lacks_chain or is_other):
                return whole
        heavy = heavy or (whole if types == ["heavy"] else None) or heavy_part
        light = light or (whole if types == ["light"] else None) or light_part
        return f"{heavy or ''}|{light or ''}" if heavy or light else None

    def _chain(self, role: str, name: str) -> str | None:
        """Return the chain of an antibody by the ending of its name, if it is one.

        cathepsin-L and ferritin light chain are none: a variable domain tells. Without any, the
        names of two chains do.
        """
        text = self._text(role, name, of_ending=True)
        if text is None or self._domains(text):
            return text
        other = self._text("light" if role == "heavy" else "heavy", name, of_ending=True)
        return None if other is None or self._domains(other) else text

    def _text(self, role: str, name: str, *, of_ending: bool = False) -> str | None:
        places = self.of.get((role, name, of_ending))
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
            self.types[text] = domain_types(_residues(text))
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

    def unknown(self, role: str, cell: object) -> UnknownName:
        """Make the error of a name without a sequence."""
        name = cell_name(cell)
        names = {named for _, named, _ in self.of}
        close = [other for other, _ in self._similar(role, name) if other != name]
        if not close and name not in names:
            close = get_close_matches(name, names, n=2, cutoff=0.75)
        hint = f" (did you mean {' or '.join(map(quoted, close[:3]))}?)" if close else ""
        held = f"{role} chain" if role in CHAIN_ROLES else role
        same = self.of.get((ANY, name, False), {}).values() if role in CHAIN_ROLES else ()
        types = {kind for entry in same for kind in self._domains(entry.text)}
        advice = "Add it there, or write the whole name."
        if types:
            hint = f", where it is a {' and a '.join(sorted(types))} chain"
            advice = "Write it into the other column, or correct the file."
        msg = (
            f"{quoted(name)} has no {held} sequence in {self.source}{hint}; expected one. {advice}"
        )
        return UnknownName(msg)


def cell_name(cell: object) -> str:
    """Return the name in a cell; numbers, which are names too, as they are usually written."""
    return cell_text(cell).strip()


def _folded(name: str) -> str:
    return " ".join(name.lower().split())


def _residues(text: str) -> str:
    """Return the chains of a text as they are compared, without the stop codons behind them."""
    return re.sub(r"\*(?=[|:]|$)", "", "".join(text.split()).upper())


def _parts(name: str) -> Iterator[str]:
    """Yield the names that a record may have beside its whole header."""
    first = name.split()[0]
    yield first
    fields = first.split("|")
    if len(fields) > 1 and fields[0].lower() in _DATABASES:  # sp|P04626|ERBB2_HUMAN
        yield from fields[1:]


def _fasta_entries(path: Path, problems: list[str]) -> Iterator[Entry]:
    """Yield the sequences of a FASTA file under their names, and these less the ending."""
    try:
        content = gzip.decompress(path.read_bytes()) if is_gzip(path) else path.read_bytes()
        records = fasta_records(content)
        if not records:
            msg = "it has no record"
            raise ValueError(msg)
    except (OSError, EOFError, ValueError) as error:
        msg = f"{path}: cannot be read ({error}); expected a FASTA file. Check the path."
        raise TableError(msg) from error
    for number, (header, residues) in enumerate(records, 1):
        where = f"{path.name} record {number}"
        if not header or not _residues(residues):
            problems.append(f"{where} has no {'residues' if header else 'name'}")
            continue
        yield Entry(header, ANY, residues, where)
        first = header.split()[0]
        for name in dict.fromkeys((first, header, role_last(first))):
            ending = CHAIN_ENDING.fullmatch(name)
            if ending is not None:
                role = str(ending.lastgroup)
                yield Entry(ending["stem"], role, residues, where, of_ending=True)
                break


def load_names(paths: Sequence[str | Path]) -> NamedSequences:
    """Read the sequences of FASTA files and tables, and index them by their names.

    Raises
    ------
    AbagError
        If a file cannot be read, or names no sequence.
    """
    of: dict[_Key, dict[str, Entry]] = {}
    whole: dict[str, set[str]] = {}
    parts: dict[str, set[str]] = {}
    looked_at: dict[str, None] = {}
    problems: list[str] = []
    for entry in chain.from_iterable(read_entries(Path(x).expanduser(), problems) for x in paths):
        residues = _residues(entry.text)
        key = (entry.role, entry.name, entry.of_ending)
        of.setdefault(key, {}).setdefault(residues, entry)
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
    source = ", ".join(Path(path).name for path in paths)
    return NamedSequences(source, of, tuple(alike), tuple(problems), types)


def read_entries(path: Path, problems: list[str]) -> Iterator[Entry]:
    """Read the sequences of a FASTA file or table, each with its name.

    `problems` receives a line for each record without a name or residues.
    """
    is_fasta = FORMATS.get(bare_suffix(path)) is read_fasta
    return (_fasta_entries if is_fasta else _table_entries)(path, problems)


def _table_entries(path: Path, problems: list[str]) -> Iterator[Entry]:
    """Yield the sequences of a table under their names, column by column.

    Of an Excel file with several sheets, all that hold sequences are read.
    """
    sheets = sheet_names(path)
    if len(sheets) < 2:
        yield from _entries_of(read_table(path), path, problems)
        return
    refused: list[AbagError] = []
    read: list[str] = []
    for sheet in sheets:
        try:
            entries = [*_entries_of(read_table(path, sheet), path, problems)]
        except AbagError as error:
            refused.append(error)
            continue
        read.append(sheet)
        yield from (entry._replace(where=f"sheet {sheet!r}, {entry.where}") for entry in entries)
    if not read:
        raise min(refused, key=lambda error: not isinstance(error, MissingColumn))
    plural = "s" if len(read) > 1 else ""
    say(f"{path.name}: sequences are read from sheet{plural} {quote_names(read)}")


def _entries_of(table: Table, path: Path, problems: list[str]) -> Iterator[Entry]:
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
            residues = cell_text(text).strip()
            if not residues or residues in MISSING_TEXT:
                continue
            where = f"{path.name} row {number}"
            name = cell_name(cell)
            if not name:
                problems.append(f"{where} has no name")
                continue
            yield Entry(name, row_role, residues, where)


def _sequence_columns(table: Table, path: Path) -> dict[str, str]:
    """Find the columns of a table of names that hold sequences, by role."""
    columns = {**table.columns, **roles_by_content(table)}
    roles: dict[str, str] = {}
    for role, name in columns.items():
        if role not in SEQUENCE_ROLES:
            continue
        # antigens may be peptides, and "sequence" is a name for those of antigens, too
        is_generic = _GENERIC_SEQUENCE.fullmatch(simplified(name)) is not None
        may_be_peptides = role == "antigen" or is_generic
        are_chains = holds_sequences(table, name) or (
            may_be_peptides and are_peptides(distinct_texts(table, name))
        )
        if are_chains:
            roles[ANY if role == "antibody" and is_generic else role] = name
    if not roles:
        others = [name for name in table.names if holds_sequences(table, name)]
        if len(others) != 1:
            problem = f"--sequences {path}: no column for sequences"
            advice = "Call the columns name, and heavy and light, antibody, antigen or sequence."
            raise MissingColumn(with_found(problem, table.names, advice))
        roles[ANY] = others[0]
    return roles


def _chain_roles(table: Table) -> list[str]:
    """Return the role of each sequence by a column that names its chain, else `ANY`."""
    for name in table.names:
        if re.fullmatch("(chain)?(type|name|id)?|locus", simplified(name)):
            cells = [cell_name(cell).upper() for cell in table.frame[name].tolist()]
            roles = [_CHAIN_NAMES.get(cell, ANY) for cell in cells]
            if ANY not in roles:
                return roles
    return [ANY] * len(table.frame)


def _roles_of_endings(table: Table) -> list[str]:
    """Return the roles in which the names of a column end, as in ab1_VH and ab1_VL, or none."""
    for name in table.names:
        cells = map(cell_name, table.frame[name])
        ends = [*takewhile(bool, map(CHAIN_ENDING.fullmatch, cells))]  # mostly not even one
        if len(ends) == len(table.frame):
            return [str(end.lastgroup) for end in ends if end]
    return []


def refuse_rows_of_chains(table: Table, options: TableOptions) -> None:
    """Refuse a table whose rows are heavy and light chains, which would be an antibody each."""
    column = table.columns.get("antibody", "")
    if not column or column in options.columns.values():
        return
    roles = _chain_roles(table)
    if ANY in roles:
        roles = _roles_of_endings(table)
    cells = zip(roles, table.frame[column].head(SAMPLED).map(cell_text), strict=False)
    if {*CHAIN_ROLES} <= {*roles} and all(
        domain_types(_residues(text)) == [role] for role, text in cells
    ):
        msg = (
            f"{table.source}: column {column!r} holds one chain per row, heavy or light; expected "
            "an antibody per row. Write both chains into one row, in columns heavy and light, or "
            f"add {column_option('antibody', column)}, if each chain is an antibody."
        )
        raise ColumnError(msg)


def _name_column(table: Table, kind: Kind | None, roles: Mapping[str, str]) -> str:
    """Return the column that names the sequences of a kind, or else the first one of texts."""
    others = [name for name in table.names if name not in roles.values()]
    order: tuple[Kind | None, ...] = (kind, None)
    if kind is None:
        order = (None, "antibody", "antigen")
    for named_kind in order:
        for name in others:
            if _is_called(name, named_kind):
                return name
    if not others:
        problem = f"--sequences {table.source}: no column for names"
        raise MissingColumn(with_found(problem, table.names, "Call one name."))
    # numbers may be those of rows, as pandas writes them, unless the other columns only describe
    return next((name for name in others if _may_name(table, name)), others[0])


def _may_name(table: Table, name: str) -> bool:
    """Tell whether a column has texts that tell rows, or at least pairs of two chains, apart."""
    cells = table.distinct_cells(name)
    return not holds_numbers(table, name) and 2 * len(cells) >= len(table.frame)


def _is_called(name: str, kind: Kind | None) -> bool:
    """Tell whether a column is called like names of a kind, or of any."""
    return re.fullmatch(_NAME_COLUMNS[kind], simplified(name)) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Sequences that cells of a table refer to: by names, and as parents of mutations."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns by role, of the roles that were found by what the cells refer to."""
    names: NamedSequences | None = None
    by_name: frozenset[str] = frozenset()
    """Roles of columns that hold names."""
    has_peptides: bool = False
    """Whether antigens without a name are peptides."""
    parent: str | None = None
    """Antibody of every row, before its mutations."""
    rules: Mapping[Kind, MutationRules] = field(default_factory=dict)
    """Kinds of sequences that have a column of mutations."""
    split: frozenset[Kind] = frozenset()
    """Those whose mutations have their parts in columns of `MUTATION_PARTS`."""
    chain_of_role: Mapping[str, ChainId] = field(default_factory=dict)
    """Chains of antibodies that columns of mutations are of, by role, where their names say so."""
    antigen: str | None = None
    """Antigen of every row, before its mutations."""
    remarks: tuple[str, ...] = ()

    def constant(self, kind: Kind) -> str | None:
        """Return the sequence of every row, before its mutations; None if rows have their own."""
        return self.parent if kind == "antibody" else self.antigen

    def constants(self) -> tuple[str, str]:
        """Return the antigen and the parent of all rows as a run keeps them; empty without one.

        Chains are separated by ``|``, as in a cell of a table.
        """
        antigen = parse_antigen(sequence_text(self.antigen)).chains if self.antigen else ()
        parent = parse_antibody(sequence_text(self.parent)).chains if self.parent else ()
        return "|".join(antigen), "|".join(parent)

    def parts_of(self, kind: Kind) -> list[str]:
        """List the roles of the columns that complete one of residues to mutations of a kind."""
        return [role for role in MUTATION_PARTS if kind in self.split and role in self.columns]

    def mutations_of(self, kind: Kind) -> list[str]:
        """List the roles of the columns of mutations of a kind."""
        has_light = kind == "antibody" and LIGHT_MUTATIONS in self.columns
        return [MUTATIONS[kind], LIGHT_MUTATIONS] if has_light else [MUTATIONS[kind]]

    @property
    def mutations_in_order(self) -> bool:
        """Whether cells have the mutations of heavy and light chains in order."""
        return IN_ORDER in self.chain_of_role.values()

    def text(self, role: str, cell: object) -> str:
        """Return the text of a sequence in a cell; `UnknownName` if it is a name without one."""
        if role not in self.by_name or self.names is None:
            return sequence_text(cell)
        named = self.names.find(role, cell)
        if named is not None:
            return sequence_text(named)
        if cell in MISSING_TEXT:
            return ""
        if isinstance(cell, str) and self.has_peptides and role == "antigen" and is_peptide(cell):
            return sequence_text(cell)
        if not isinstance(cell, str) or (cell and not is_sequence(cell)):
            raise self.names.unknown(role, cell)
        return sequence_text(cell)


def find_references(
    table: Table, options: TableOptions, kinds: Sequence[Kind], *, in_order: bool
) -> References:
    """Decide what the cells of a table refer to, from its first rows.

    `in_order` tells whether the run of the table had `References.mutations_in_order`.

    Raises
    ------
    AbagError
        If a file of sequences cannot be read, or no column refers to it.
    """
    if not options.refers:
        antigen = _constant(options.antigen, "--antigen", "antigen", None)
        return References(antigen=antigen, remarks=tuple(describe_unapplied(table)))
    names = load_names(options.sequences) if options.sequences else None
    parent = _constant(options.parent, "--parent", "antibody", names)
    if parent is not None:
        try:
            chains = parse_antibody(parent if is_word(parent) else sequence_text(parent)).chains
        except AbagError as error:
            msg = f"--parent: {error}"
            raise type(error)(msg) from None
        longest = max(map(len, chains))
        if longest < SHORT or is_word(parent):  # all letters of trastuzumab are residues
            msg = (
                f"--parent {parent}: has {longest} residues; expected a variable domain, of about "
                "110 to 130 residues, a FASTA file, or a name in a file given with --sequences "
                "FILE."
            )
            raise UnknownName(msg)
    antigen = _constant(options.antigen, "--antigen", "antigen", names)
    references = References(names=names, parent=parent, antigen=antigen)
    if names is not None:
        constant = {"antibody": parent, "antigen": antigen}
        named = [kind for kind in kinds if kind in options.kinds and constant[kind] is None]
        references = _with_names(references, names, table, options, named)
    return _with_mutations(references, table, options, kinds, in_order=in_order)


def _with_names(
    references: References,
    names: NamedSequences,
    table: Table,
    options: TableOptions,
    kinds: Sequence[Kind],
) -> References:
    """Add the columns of these kinds that hold names, each of which is looked up."""
    columns: dict[str, str] = {}
    for kind in kinds:
        columns |= _name_columns(table, names, options, kind, {*columns.values()})
    remarks = [*_describe_names(table, names, columns)]
    parent_named = options.parent is not None and names.find("antibody", options.parent)
    antigen_named = options.antigen is not None and names.find("antigen", options.antigen)
    if not (columns or parent_named or antigen_named):
        if not all(_has_sequences(table, kind) for kind in kinds):
            distinct = [*dict.fromkeys(name for _, name, of_ending in names.of if not of_ending)]
            problem = (
                f"no column holds names of --sequences {names.source}, such as "
                f"{quote_names(distinct[:3])}"
            )
            advice = "Name it with --column antibody=NAME or --column antigen=NAME."
            antigens = [name for name in table.names if names.find("antigen", name)]
            if antigens:
                advice = (
                    "Columns are called so: add --matrix if each holds the labels of one antigen."
                )
            table.refuse_missing(problem, advice)
        remarks.append(f"--sequences {names.source} is not used: the columns hold sequences")
    return replace(
        references,
        columns=columns,
        by_name=frozenset(columns),
        has_peptides="antigen" in columns and _has_peptides(table, names, columns["antigen"]),
        remarks=tuple(remarks),
    )


def _with_mutations(
    references: References,
    table: Table,
    options: TableOptions,
    kinds: Sequence[Kind],
    *,
    in_order: bool,
) -> References:
    """Add the columns of mutations, and how these are read."""
    mutations, further, split = mutation_columns(table, options, kinds)
    rules = _mutation_rules(options, mutations)
    chain_of_role: dict[str, ChainId] = {}
    if LIGHT_MUTATIONS in further:
        chain_of_role = {"mutations": "H", LIGHT_MUTATIONS: "L"}
    elif "antibody" in rules and not rules["antibody"].shared:
        chain_id = chain_of_column(mutations["antibody"])
        if not chain_id and are_in_order(table, mutations["antibody"], in_run=in_order):
            chain_id = IN_ORDER
        chain_of_role = {"mutations": chain_id}
    of_mutations = {MUTATIONS[kind]: name for kind, name in mutations.items()} | further
    references = replace(
        references,
        columns={**references.columns, **of_mutations},
        rules=rules,
        split=split,
        chain_of_role=chain_of_role,
    )
    remarks = (*references.remarks, *_describe_mutations(table, references))
    return replace(references, remarks=remarks)


def _mutation_rules(
    options: TableOptions, mutations: Mapping[Kind, str]
) -> dict[Kind, MutationRules]:
    """Decide how the mutations of each kind, in these columns, are read."""
    # one column for both kinds: then the chain of a mutation says of which it is
    is_shared = len({*mutations.values()}) < len(mutations)
    first = options.first_residue
    of_antibodies = MutationRules(
        kind="antibody",
        numbering=options.numbering,  # schemes are those of variable domains
        first_residue=1 if "antigen" in mutations else first,
        shared=is_shared,
    )
    of_antigens = MutationRules(kind="antigen", first_residue=first, shared=is_shared)
    return {kind: of_antibodies if kind == "antibody" else of_antigens for kind in mutations}


def _describe_mutations(table: Table, references: References) -> Iterator[str]:
    """Say in lines which columns hold mutations, and what of them cannot be checked."""
    columns = references.columns
    rules = references.rules
    if not rules:
        yield from describe_unapplied(replace(table, columns={**table.columns, **columns}))
    used: dict[str, None] = {}
    for kind, kind_rules in rules.items():
        owner = "--parent" if kind == "antibody" else "--antigen"
        if references.constant(kind) is None:
            owner = f"the {kind} of the row"
        roles = (*references.parts_of(kind), *references.mutations_of(kind))
        names = [columns[role] for role in roles]
        used |= dict.fromkeys(names)
        verb = "hold" if len(names) > 1 else "holds"
        yield (
            f"{list_columns(names)} {verb} mutations of {owner}, {kind_rules.words}; "
            "empty cells, WT and the like are that itself"
        )
    for name in table.names:
        is_other = bool(chain_of_column(name)) and name not in used and "antibody" in rules
        if is_other and holds_mutations(table, name):
            yield f"column {name!r} holds mutations that are not applied: it was not chosen"
    parts = {columns.get(role) for role in MUTATION_PARTS}
    for name in used:
        unchecked = [] if name in parts else without_wild(table, name)
        if unchecked:
            yield (
                f"column {name!r}: mutations such as {quoted(unchecked[0])} name no wild-type "
                "residue, so that it is not checked: are the numbers those of the parent?"
            )
    if references.split and "mutation_wild" not in columns:
        yield (
            "no column has the wild-type residues, so that they are not checked: are the numbers "
            "those of the parent?"
        )
    if references.mutations_in_order:
        yield (
            f"column {columns['mutations']!r}: mutations before ':' are of the heavy chain, those "
            "behind it of the light one, as in A50G:WT"
        )


def with_references(table: Table, references: References) -> Table:
    """Give a table the columns that were found by what they refer to."""
    replaced = ("heavy", "light") if "antibody" in references.columns else ()
    kept = {role: name for role, name in table.columns.items() if role not in replaced}
    naming = {
        f"{role}_name": references.columns[role] for role in KINDS if role in references.by_name
    }
    decided = {*replaced, *references.columns}
    ties = {role: names for role, names in table.ties.items() if role not in decided}
    return replace(table, columns={**naming, **kept, **references.columns}, ties=ties)


# --- sequences of options -------------------------------------------------------------------------


def read_antigen(value: str, files: Sequence[str]) -> str:
    """Return the text of one antigen: a sequence, that of a file with one, or of a name in files.

    Raises
    ------
    AbagError
        If it is a name that the files do not have, or a file without a single antigen.
    """
    names = load_names(files) if files else None
    return _constant(value, "--antigen", "antigen", names) or ""


def _constant(
    value: str | None, option: str, kind: Kind, names: NamedSequences | None
) -> str | None:
    """Return the sequence of an option: as it is, of a file with one, or of a name."""
    if value is None:
        return None
    named = names.find(kind, value) if names is not None else None
    if named is not None:
        return named
    if set(value.upper()) <= {*RESIDUES, *"UZOB|: \t\n"}:  # the name of a table has a full stop
        return value
    path = Path(value)
    if bare_suffix(path) not in FORMATS:
        if len(value) >= SHORT:
            return value  # which is refused as a sequence
        msg = (
            f"{option}: {quoted(value)} is a name, not a sequence; expected residues, a FASTA file "
            "or a name of --sequences FILE. Give the sequence."
        )
        raise UnknownName(msg)
    distinct: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    for entry in read_entries(path, problems):
        distinct.setdefault(entry.role, {}).setdefault(_residues(entry.text), entry.text)
    if problems:
        msg = f"{option} {value}: {problems[0]}; expected both. Correct or remove it."
        raise TableError(msg)
    texts = {role: [*listed.values()] for role, listed in distinct.items()}
    if kind == "antibody":
        sequence = _only_antibody(texts)
    else:
        antigens = texts.get("antigen") or texts.get(ANY, [])
        sequence = antigens[0] if len(antigens) == 1 else None
    if sequence is None:
        most = max(map(len, texts.values()))
        msg = (
            f"{option} {value}: holds {counted(most, 'sequence')} of a kind, or other chains; "
            f"expected one {kind}. Choose it by its name with --sequences {shell_quoted(value)} "
            f"{option} NAME, or give the sequence itself."
        )
        raise TableError(msg)
    return sequence


def _only_antibody(texts: Mapping[str, list[str]]) -> str | None:
    """Return the only antibody of a file, by the texts of each role; None without or of several."""
    heavy = texts.get("heavy", [])
    light = texts.get("light", [])
    if max(len(heavy), len(light)) == 1:
        return f"{''.join(heavy)}|{''.join(light)}"
    strings = texts.get("antibody") or texts.get(ANY, [])
    if len(strings) == 1:
        return strings[0]
    types = []
    for text in strings:
        types.append([domain.chain for domain in find_domains(_residues(text))])
    if types == [["heavy"], ["light"]]:
        return "|".join(strings)
    if types == [["light"], ["heavy"]]:
        return "|".join(reversed(strings))
    return None


# --- columns of names -----------------------------------------------------------------------------


def _name_columns(
    table: Table, names: NamedSequences, options: TableOptions, kind: Kind, taken: set[str]
) -> dict[str, str]:
    """Find the columns of a kind that hold names, by role; empty if it has sequences."""
    roles = ROLES_OF[kind]
    chosen = {role: options.columns[role] for role in roles if options.columns.get(role)}
    detected = {role: table.columns[role] for role in roles if role in table.columns}
    named: dict[str, str] = {}
    has_sequences = False
    for role, name in (chosen or detected).items():
        if _hits(table, names, role, name):
            named[role] = name
        has_sequences = has_sequences or holds_sequences(table, name)
    if named or has_sequences:
        return named
    if kind == "antigen" and (chosen or detected):
        (name,) = (chosen or detected).values()
        if _has_peptides(table, names, name):
            return {}
    if chosen:
        return chosen  # whose names are then listed as unknown
    role = roles[-1]
    name_column = table.columns.get(f"{kind}_name")
    if name_column is not None and _hits(table, names, role, name_column):
        return {role: name_column}
    columns: dict[Kind, list[str]] = {"antibody": [], "antigen": []}
    for name in table.names:
        named_kind = None if name in taken else _named_kind(table, names, role, name)
        if named_kind is None:
            continue
        # numbers are rather measurements, which may be those of names by chance
        is_called_so = any(_is_called(name, kind) for kind in (kind, None))
        if is_called_so or not holds_numbers(table, name):
            columns[named_kind].append(name)
    fits = columns[kind]
    if options.kinds == ("antibody",) and not (fits or detected):
        # alone, they may be other binders, such as designed ones
        fits = [name for name in columns["antigen"] if not ANTIGEN_WORDS.search(name)]
    if len(fits) > 1:
        lines = " or ".join(column_option(role, name) for name in fits)
        table.refuse(
            f"columns {quote_names(fits)} hold names of {names.source}; expected one for {role}. "
            f"Choose it with {lines}.",
            ColumnError,
        )
    if not fits and kind == "antigen":
        return detected
    return {role: fits[0]} if fits else {}


def _describe_names(
    table: Table, names: NamedSequences, columns: Mapping[str, str]
) -> Iterator[str]:
    """Say in lines for what the records of named sequences are used."""
    for role, name in columns.items():
        found = names.describe(role, table.frame[name].dropna().unique().tolist())
        is_header = table.is_matrix and name == ANTIGEN_COLUMN
        holder = "the headers of the matrix hold" if is_header else f"column {name!r} holds"
        line = (
            f"{holder} names of {PLURAL.get(role, f'{role} chains')}, looked up in {names.source}"
        )
        more = f" (first {len(table.frame):,} rows)" if len(table.frame) >= CHUNK_ROWS else ""
        yield f"{line}{more}: {found or 'none is there'}"
    for problem in names.problems[:1]:
        count = counted(len(names.problems), "record")
        yield f"{count} of {names.source} without a name or residues left out: {problem}"


def _has_sequences(table: Table, kind: Kind) -> bool:
    """Tell whether a column of a kind holds sequences."""
    columns = [table.columns[role] for role in ROLES_OF[kind] if role in table.columns]
    return any(holds_sequences(table, name) for name in columns)


def _hits(table: Table, names: NamedSequences, role: str, name: str) -> list[str]:
    """Return the sequences of the names in a column."""
    texts = [_named_text(names, role, cell) for cell in table.distinct_cells(name)]
    return [text for text in texts if text is not None]


def _named_text(names: NamedSequences, role: str, cell: object) -> str | None:
    """Return the sequence of a name; empty if it has several, an error if the column is used."""
    try:
        return names.find(role, cell)
    except RepeatedName:
        return ""


def _has_peptides(table: Table, names: NamedSequences, name: str) -> bool:
    """Tell whether most cells of a column of antigens are short sequences without a name."""
    cells = table.distinct_cells(name)
    unnamed = [cell for cell in cells if _named_text(names, "antigen", cell) is None]
    texts = [cell_name(cell) for cell in unnamed]
    return 2 * len(texts) > len(cells) and are_peptides(texts)


def _named_kind(table: Table, names: NamedSequences, role: str, name: str) -> Kind | None:
    """Tell of which kind the names are that a column mostly holds; None if it holds others."""
    hits = _hits(table, names, role, name)
    if not hits or 2 * len(hits) < len(table.distinct_cells(name)):
        return None
    texts = [*dict.fromkeys(hits)][:SAMPLED]
    antibodies = sum(bool(domain_types(_residues(text))) for text in texts)
    return "antibody" if 2 * antibodies > len(texts) else "antigen"
