"""Find what cells of a table refer to, decided once from its first rows.

Columns of names are found by the names in them, columns of mutations by their names and content.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from abag.core.errors import AbagError, ColumnError, TableError
from abag.core.messages import counted
from abag.embed.sequences.chains import (
    MISSING_TEXT,
    PLURAL,
    RESIDUES,
    Kind,
    parse_antibody,
    parse_antigen,
    sequence_text,
)
from abag.embed.sequences.columns import (
    SEQUENCE_ROLES,
    MissingColumn,
    quote_names,
    quote_some,
    simplified,
    with_found,
)
from abag.embed.sequences.domains import ChainName, find_domains
from abag.embed.sequences.mutations import (
    BadMutation,
    Mutation,
    MutationRules,
    means_parent,
    read_mutations,
)
from abag.embed.sequences.names import (
    ANY,
    Entry,
    NamedSequences,
    UnknownName,
    cell_name,
    fasta_entries,
    is_fasta,
    name_sequences,
)
from abag.embed.sequences.parsing import (
    MUTATIONS,
    NO_REFERENCES,
    SHORT,
    References,
    chain_types,
    holds_sequences,
    roles_by_content,
)
from abag.embed.sequences.table_files import FORMATS, bare_suffix
from abag.embed.sequences.table_options import Numbering, ReferenceOptions, TableOptions
from abag.embed.sequences.tables import Table, read_table

_GENERIC_SEQUENCE = re.compile("(protein)?(seq|sequence|aa|aaseq|aminoacidsequence)")
_NAME_COLUMNS: Mapping[Kind | None, str] = {
    "antibody": "(antibody|ab|mab|fab|fv|nanobody|clone|parent)(name|id)?",
    "antigen": "(antigen|ag|target|strain)(name|id)?",
    None: "(name|names|id|identifier|accession|entry|label|protein|construct|sample|molecule|"
    "variant|record)(name|id)?",
}
"""Names of the columns of names in a table of these."""
_MUTATION_COLUMN = re.compile(
    "hgvs(pro|p)?|(aa|aminoacid|protein|ab|antibody)?(mutations?|mutants?|muts?|substitutions?|"
    "variants?|changes?)(s|list|string|str|code|name|id|pdb|cleaned|spdb|scleaned)?"
)
_PLURAL = {
    "heavy": "heavy chains",
    "light": "light chains",
    "antibody": PLURAL["antibody"],
    "antigen": PLURAL["antigen"],
}
_CHAINS = {
    **dict.fromkeys(("H", "VH", "HC", "VHH", "HEAVY", "IGH"), "heavy"),
    **dict.fromkeys(("L", "VL", "LC", "K", "LIGHT", "KAPPA", "LAMBDA", "IGK", "IGL"), "light"),
    **dict.fromkeys(("AG", "ANTIGEN"), "antigen"),
}
"""Roles of chains as a column of a table of sequences names them."""
LOOKED_AT = 1_000
"""Distinct cells of a column by which its content is recognized."""
SAMPLED = 20
"""Named sequences whose domains are looked for."""


class _Numbers(TypedDict):
    numbering: Numbering
    first_residue: int


@dataclass(frozen=True, slots=True)
class _Side:
    kind: Kind
    roles: tuple[str, ...]
    """Roles of the columns that may hold its sequences."""
    name_role: str
    """Role of the column that may name them."""


_SIDES = (
    _Side("antibody", ("heavy", "light", "antibody"), "antibody_name"),
    _Side("antigen", ("antigen",), "antigen_name"),
)


def find_references(table: Table, options: TableOptions, kinds: Sequence[Kind]) -> References:
    """Decide what the cells of a table refer to, from its first rows.

    Raises
    ------
    AbagError
        If a file of sequences cannot be read, or no column refers to it.
    """
    if not (options.sequences or options.parent or options.columns.keys() & {*MUTATIONS.values()}):
        antigen = _constant(options.antigen, "--antigen", "antigen", None)
        return replace(NO_REFERENCES, antigen=antigen, remarks=tuple(_unapplied(table)))
    names = load_names(options.sequences) if options.sequences else None
    parent = _constant(options.parent, "--parent", "antibody", names)
    if parent is not None:
        _check_parent(parent)
    antigen = _constant(options.antigen, "--antigen", "antigen", names)
    constants = {"antibody": parent, "antigen": antigen}
    sides = [side for side in _SIDES if side.kind in kinds and constants[side.kind] is None]
    columns: dict[str, str] = {}
    remarks: list[str] = []
    if names is not None:
        for side in sides:
            columns |= _name_columns(table, names, options, side, {*columns.values()})
        for role, name in columns.items():
            line = f"column {name!r} holds names of {_PLURAL[role]}, looked up in {names.source}"
            remarks.append(line)
        if not (columns or _are_names(options, names)):
            if not all(_has_sequences(table, side) for side in sides):
                raise _unused(table, names)
            remarks.append(f"--sequences {names.source} is not used: the columns hold sequences")
    by_name = frozenset(columns)
    mutations = _mutation_columns(table, options, kinds)
    rules = _mutation_rules(options, mutations)
    remarks += _describe_mutations(table, mutations, rules, constants)
    columns |= {MUTATIONS[kind]: name for kind, name in mutations.items()}
    return References(
        columns=columns,
        names=names,
        by_name=by_name,
        parent=parent,
        rules=rules,
        antigen=antigen,
        remarks=tuple(remarks),
    )


def _mutation_rules(
    options: TableOptions, mutations: Mapping[Kind, str]
) -> dict[Kind, MutationRules]:
    """Decide how the mutations of each kind, in these columns, are read."""
    is_shared = len({*mutations.values()}) < len(mutations)
    rules: dict[Kind, MutationRules] = {}
    for kind in mutations:
        numbers = _numbers(kind, options, mutations)
        rules[kind] = MutationRules(kind=kind, **numbers, shared=is_shared)
    return rules


def _describe_mutations(
    table: Table,
    mutations: Mapping[Kind, str],
    rules: Mapping[Kind, MutationRules],
    constants: Mapping[str, str | None],
) -> Iterator[str]:
    for kind, kind_rules in rules.items():
        yield (
            f"column {mutations[kind]!r} holds mutations of {_owner(kind, constants)}, "
            f"{kind_rules.words}; empty cells, WT and the like are that itself"
        )
    for name in dict.fromkeys(mutations.values()):
        unchecked = _without_wild(table, name) if name in table.frame else []
        if unchecked:
            yield (
                f"column {name!r}: mutations such as {unchecked[0]!r} name no wild-type residue, "
                "so that it is not checked: are the numbers those of the parent?"
            )


def _numbers(kind: Kind, options: TableOptions, mutations: Mapping[Kind, str]) -> _Numbers:
    """Return how the residues of a kind are numbered; schemes are those of variable domains."""
    if kind == "antigen":
        return {"numbering": "sequential", "first_residue": options.first_residue}
    first = 1 if "antigen" in mutations else options.first_residue
    return {"numbering": options.numbering, "first_residue": first}


def with_references(table: Table, references: References) -> Table:
    """Give a table the columns that were found by what they refer to."""
    referring = references.columns
    replaced = {"heavy", "light"} if "antibody" in referring else set[str]()
    columns = {role: name for role, name in table.columns.items() if role not in replaced}
    ties = {
        role: names for role, names in table.ties.items() if role not in replaced | referring.keys()
    }
    return replace(table, columns={**columns, **referring}, ties=ties)


def _are_names(options: TableOptions, names: NamedSequences) -> bool:
    """Tell whether an option has the name of a sequence."""
    parent = options.parent is not None and names.find("antibody", options.parent)
    antigen = options.antigen is not None and names.find("antigen", options.antigen)
    return bool(parent or antigen)


def _owner(kind: Kind, constants: Mapping[str, str | None]) -> str:
    if constants[kind] is None:
        return f"the {kind} of the row"
    return "--parent" if kind == "antibody" else "--antigen"


# --- sequences of options -------------------------------------------------------------------------


def constant_sequences(options: ReferenceOptions) -> dict[str, str | None]:
    """Return the ``antigen`` and the ``parent`` of all rows, read from files and by their names.

    Chains are separated by ``|``, as in a cell of a table; None for what is not given.
    """
    if options.antigen is None and options.parent is None:
        return {"antigen": None, "parent": None}  # files of names may be large
    names = load_names(options.sequences) if options.sequences else None
    antigen = _constant(options.antigen, "--antigen", "antigen", names)
    parent = _constant(options.parent, "--parent", "antibody", names)
    return {
        "antigen": antigen and "|".join(parse_antigen(sequence_text(antigen)).chains),
        "parent": parent and "|".join(parse_antibody(sequence_text(parent)).chains),
    }


def _constant(
    value: str | None, option: str, kind: Kind, names: NamedSequences | None
) -> str | None:
    """Return the sequence of an option: as it is, of a file with one, or of a name."""
    if value is None:
        return None
    named = names.find(kind, value) if names is not None else None
    if named is not None:
        return named
    if set(value.upper()) <= {*RESIDUES, *"UZOB|: \t\n"} and not bare_suffix(Path(value[:200])):
        return value
    path = Path(value)
    if bare_suffix(path) not in FORMATS:
        return value  # which is refused as a sequence
    distinct: dict[str, dict[str, None]] = {}
    for entry in _entries(path):
        distinct.setdefault(entry.role, {})[entry.text] = None
    texts = {role: [*listed] for role, listed in distinct.items()}
    sequence = _only_antibody(texts) if kind == "antibody" else _only_antigen(texts)
    if sequence is None:
        most = max(map(len, texts.values()))
        msg = (
            f"{option} {value}: holds {counted(most, 'sequence')} of a kind, or other chains; "
            f"expected one {kind}. Choose it by its name with --sequences {shlex.quote(value)} "
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
    types = [_domain_types(text) for text in strings]
    if types == [["heavy"], ["light"]]:
        return "|".join(strings)
    if types == [["light"], ["heavy"]]:
        return "|".join(reversed(strings))
    return None


def _domain_types(text: str) -> list[ChainName]:
    return [domain.chain for domain in find_domains(text.upper())]


def _only_antigen(texts: Mapping[str, list[str]]) -> str | None:
    strings = texts.get("antigen") or texts.get(ANY, [])
    return strings[0] if len(strings) == 1 else None


# --- files of names and sequences -----------------------------------------------------------------


def load_names(paths: Sequence[str | Path]) -> NamedSequences:
    """Read the sequences of FASTA files and tables by their names.

    Raises
    ------
    AbagError
        If a file cannot be read, names no sequence, or a name has two.
    """
    entries: list[Entry] = []
    for path in paths:
        entries += _entries(Path(path).expanduser())
    return name_sequences(entries, ", ".join(Path(path).name for path in paths))


def _entries(path: Path) -> Iterator[Entry]:
    return fasta_entries(path) if is_fasta(path) else _table_entries(path)


def _table_entries(path: Path) -> Iterator[Entry]:
    table = read_table(path, as_written=True)
    table = replace(table, frame=table.frame.astype(object))
    columns = {**table.columns, **roles_by_content(table)}
    roles = {
        role: name
        for role, name in columns.items()
        if role in SEQUENCE_ROLES and holds_sequences(table, name)
    }
    if _GENERIC_SEQUENCE.fullmatch(simplified(roles.get("antibody", ""))):
        roles[ANY] = roles.pop("antibody")
    if not roles:
        others = [name for name in map(str, table.names) if holds_sequences(table, name)]
        if len(others) != 1:
            problem = f"--sequences {path}: no column for sequences"
            advice = "Call the columns name, and heavy and light, antibody, antigen or sequence."
            raise MissingColumn(with_found(problem, table.names, advice))
        roles[ANY] = others[0]
    for role, name in roles.items():
        named = table.frame[_name_column(table, _kind_of_role(role), roles)].tolist()
        row_roles = _chain_roles(table) if role == ANY else [role] * len(named)
        texts = table.frame[name].tolist()
        rows = zip(named, texts, row_roles, strict=True)
        for number, (cell, text, row_role) in enumerate(rows, table.first_row):
            residues = "" if text is None or text != text else str(text).strip()
            if not residues or residues in MISSING_TEXT:
                continue
            where = f"{path.name} row {number}"
            if not cell_name(cell):
                msg = f"--sequences {where}: has no name; expected one. Name it or remove it."
                raise TableError(msg)
            yield Entry(cell_name(cell), row_role, residues, where)


def _kind_of_role(role: str) -> Kind | None:
    """Return the kind of the sequences of a role; None for `ANY`."""
    if role == ANY:
        return None
    return "antigen" if role == "antigen" else "antibody"


def _chain_roles(table: Table) -> list[str]:
    """Return the role of each sequence by a column that names its chain, else `ANY`."""
    for name in map(str, table.names):
        if re.fullmatch("(chain)?(type|name|id)?|locus", simplified(name)):
            cells = [cell_name(cell).upper() for cell in table.frame[name].tolist()]
            roles = [_CHAINS.get(cell, ANY) for cell in cells]
            if ANY not in roles:
                return roles
    return [ANY] * len(table.frame)


def _name_column(table: Table, kind: Kind | None, roles: Mapping[str, str]) -> str:
    """Return the column that names the sequences of a kind; the first one if none is called so."""
    others = [name for name in map(str, table.names) if name not in roles.values()]
    order = [kind, None] if kind is not None else [None, "antibody", "antigen"]
    for pattern in order:
        for name in others:
            if re.fullmatch(_NAME_COLUMNS[pattern], simplified(name)):  # type: ignore[index]
                return name
    if not others:
        problem = f"--sequences {table.source}: no column for names"
        raise MissingColumn(with_found(problem, table.names, "Call one name."))
    return others[0]


# --- columns of names -----------------------------------------------------------------------------


def _name_columns(
    table: Table, names: NamedSequences, options: TableOptions, side: _Side, taken: set[str]
) -> dict[str, str]:
    """Find the columns of one side that hold names, by role; empty if it has sequences."""
    chosen = {role: options.columns[role] for role in side.roles if role in options.columns}
    detected = {role: table.columns[role] for role in side.roles if role in table.columns}
    columns = chosen or detected
    present = {role: name for role, name in columns.items() if name in table.frame}
    named = {role: name for role, name in present.items() if _hits(table, names, role, name)}
    if named:
        return named
    if any(holds_sequences(table, name) for name in present.values()):
        return {}
    if chosen:
        return chosen  # whose names are then listed as unknown
    role = side.roles[-1]
    name_column = table.columns.get(side.name_role)
    if name_column in table.frame and _hits(table, names, role, str(name_column)):
        return {role: str(name_column)}
    fits = [
        name
        for name in map(str, table.frame.columns)
        if name not in taken
        and _share(table, names, role, name) >= 0.5
        and _is_of_side(table, names, role, name)
    ]
    if len(fits) > 1:
        lines = " or ".join(f"--column {shlex.quote(f'{role}={name}')}" for name in fits)
        msg = (
            f"{table.source}: columns {quote_names(fits)} hold names of {names.source}; expected "
            f"one for {role}. Choose it with {lines}."
        )
        raise ColumnError(msg)
    return {role: fits[0]} if fits else {}


def _has_sequences(table: Table, side: _Side) -> bool:
    present = [table.columns[role] for role in side.roles if role in table.columns]
    return any(name in table.frame and holds_sequences(table, name) for name in present)


def _cells(table: Table, name: str) -> list[object]:
    cells: list[object] = table.frame[name].dropna().iloc[: 50 * LOOKED_AT].unique().tolist()
    return [cell for cell in cells[:LOOKED_AT] if cell_name(cell)]


def _hits(table: Table, names: NamedSequences, role: str, name: str) -> list[str]:
    """Return the sequences of the names in a column."""
    texts = [names.find(role, cell) for cell in _cells(table, name)]
    return [text for text in texts if text is not None]


def _share(table: Table, names: NamedSequences, role: str, name: str) -> float:
    cells = _cells(table, name)
    return len(_hits(table, names, role, name)) / len(cells) if cells else 0.0


def _is_of_side(table: Table, names: NamedSequences, role: str, name: str) -> bool:
    """Tell whether most of the sequences that a column names are of antibodies, or are not."""
    texts = [*dict.fromkeys(_hits(table, names, role, name))][:SAMPLED]
    antibodies = sum(map(_has_domain, texts))
    are_antibodies = 2 * antibodies > len(texts)
    return are_antibodies == (role != "antigen")


def _has_domain(text: str) -> bool:
    """Tell whether a chain of a sequence has a variable domain."""
    return any(chain_types(part.upper()) for part in text.split("|"))


def _unused(table: Table, names: NamedSequences) -> MissingColumn:
    distinct = [*dict.fromkeys(name for _, name in names.of)]
    problem = (
        f"{table.source}: no column holds names of --sequences {names.source}, such as "
        f"{quote_names(distinct[:3])}"
    )
    advice = "Name it with --column antibody=NAME or --column antigen=NAME."
    if any(names.find("antigen", name) for name in map(str, table.names)):
        advice = "Columns are called so: add --matrix if each holds the labels of one antigen."
    return MissingColumn(with_found(problem, table.names, advice))


# --- columns of mutations -------------------------------------------------------------------------


def _mutation_columns(
    table: Table, options: TableOptions, kinds: Sequence[Kind]
) -> dict[Kind, str]:
    """Return the column of mutations of each kind that has one."""
    chosen: dict[Kind, str] = {
        kind: options.columns[role]
        for kind, role in MUTATIONS.items()
        if role in options.columns and kind in kinds
    }
    if options.parent is None or "antibody" in chosen or "antibody" not in kinds:
        return chosen
    names = [name for name in map(str, table.frame.columns) if name not in chosen.values()]
    named_so = [name for name in names if _MUTATION_COLUMN.fullmatch(simplified(name))]
    best = [name for name in named_so if _holds_mutations(table, name)]
    if not best:
        # 50G, without a wild type, may be a well or a name in any other column
        best = [name for name in names if _holds_mutations(table, name, with_wild=True)]
    if len(best) == 1:
        return {"antibody": best[0], **chosen}
    if not best and chosen:
        return chosen  # every row has the parent, and a variant of the antigen
    if best:
        lines = " or ".join(f"--column {shlex.quote(f'mutations={name}')}" for name in best)
        msg = (
            f"{table.source}: columns {quote_some(best)} hold mutations; expected one. Choose it "
            f"with {lines}."
        )
        raise ColumnError(msg)
    problem = f"{table.source}: --parent: no column holds mutations such as A50G or H:A50G"
    advice = "Name it with --column mutations=NAME, or leave --parent out."
    raise MissingColumn(with_found(problem, table.names, advice))


def _check_parent(parent: str) -> None:
    """Raise the error of a parent that is no antibody, before rows are read."""
    try:
        chains = parse_antibody(sequence_text(parent)).chains
    except AbagError as error:
        msg = f"--parent: {error}"
        raise type(error)(msg) from None
    longest = max(map(len, chains))
    if longest < SHORT:  # all letters of trastuzumab are residues
        msg = (
            f"--parent {parent}: has {longest} residues; expected a variable domain, of about 110 "
            "to 130 residues, a FASTA file, or a name in a file given with --sequences FILE."
        )
        raise UnknownName(msg)


def _unapplied(table: Table) -> Iterator[str]:
    """Say that a column of mutations is not applied, if the sequences do not follow it."""
    for name in map(str, table.frame.columns):
        if not _MUTATION_COLUMN.fullmatch(simplified(name)):
            continue
        if not _holds_mutations(table, name, with_wild=True):
            continue
        held = [table.columns[role] for role in SEQUENCE_ROLES if role in table.columns]
        held = [column for column in held if column in table.frame and column != name]
        sequences = len(table.frame[held].drop_duplicates()) if held else 1
        if held and 2 * sequences <= table.frame[name].nunique():
            role = "--column " + shlex.quote(f"mutations={name}")
            other = "--column " + shlex.quote(f"antigen_mutations={name}")
            yield (
                f"column {name!r} holds mutations that are not applied, and the sequences are "
                f"fewer: if these are the parents, give {role} or {other}"
            )


def _holds_mutations(table: Table, name: str, *, with_wild: bool = False) -> bool:
    """Tell whether most cells that are not of the parent are mutations."""
    cells = [cell for cell in _cells(table, name) if isinstance(cell, str)]
    others = [cell for cell in cells if not means_parent(cell)]
    understood = 0
    for cell in others:
        mutations = _read(cell)
        if mutations and (not with_wild or all(mutation.wild for mutation in mutations)):
            understood += 1
    return understood > 0 and 2 * understood >= len(others)


def _read(cell: str) -> tuple[Mutation, ...]:
    """Return the mutations in a cell, none if it is not understood."""
    try:
        return read_mutations(cell)
    except BadMutation:
        return ()


def _without_wild(table: Table, name: str) -> list[str]:
    """Return mutations of a column that do not name the wild type."""
    texts: list[str] = []
    for cell in _cells(table, name):
        if isinstance(cell, str):
            texts += [mutation.text for mutation in _read(cell) if not mutation.wild]
    return texts
