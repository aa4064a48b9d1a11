"""References of cells: to sequences by their names, and to parents by mutations.

What a table refers to is decided once, from its first rows. Columns of names are found by the names
in them, columns of mutations by their names and content.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from abag.core.errors import AbagError, ColumnError, TableError
from abag.core.messages import counted, quoted
from abag.embed.sequences.chains import (
    MISSING_TEXT,
    PLURAL,
    RESIDUES,
    Kind,
    is_word,
    parse_antibody,
    parse_antigen,
    sequence_text,
)
from abag.embed.sequences.columns import (
    SEQUENCE_ROLES,
    MissingColumn,
    column_option,
    quote_names,
    quote_some,
    simplified,
    with_found,
)
from abag.embed.sequences.contents import (
    LOOKED_AT,
    SHORT,
    are_peptides,
    holds_sequences,
    is_peptide,
    is_sequence,
)
from abag.embed.sequences.domain_types import chain_types
from abag.embed.sequences.domains import find_domains
from abag.embed.sequences.matrix import ANTIGEN_COLUMN
from abag.embed.sequences.mutations import (
    BadMutation,
    ChainId,
    Mutation,
    MutationRules,
    means_parent,
    read_mutations,
)
from abag.embed.sequences.names import (
    ANY,
    NamedSequences,
    RepeatedName,
    UnknownName,
    cell_name,
    load_names,
    read_entries,
)
from abag.embed.sequences.table_files import FORMATS, bare_suffix
from abag.embed.sequences.table_options import Numbering, ReferenceOptions, TableOptions
from abag.embed.sequences.tables import CHUNK_ROWS, Table

_MUTATION_COLUMN = re.compile(
    "hgvs(pro|p)?|(aa|aminoacid|protein|ab|antibody)?(mutations?|mutants?|muts?|substitutions?|"
    "variants?|changes?)(s|list|string|str|code|name|id|pdb|cleaned|spdb|scleaned)?"
)
_CHANGES = (
    "(?:aa|aminoacid|protein)?(?:mutations?|mutants?|muts?|substitutions?|variants?|changes?)"
)
_OWNER = "(?:antibody|ab|mab|fab|fv)?"
_CHAIN_MUTATIONS: Mapping[ChainId, str] = {
    "H": "(?:variable)?(?:heavy(?:chain)?|vhh?|hc|h)",
    "L": "(?:variable)?(?:light(?:chain)?|vl|vk|lc|l|kappa|lambda)",
}
"""Names of chains in the names of columns of their mutations."""
LIGHT_MUTATIONS = "light_mutations"
"""Role of the second of two columns of mutations, one for each chain."""
_PLURAL = {
    "heavy": "heavy chains",
    "light": "light chains",
    "antibody": PLURAL["antibody"],
    "antigen": PLURAL["antigen"],
}
SAMPLED = 20
"""Named sequences whose domains are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Sequences that cells of a table refer to: by names, and as parents of mutations."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns by role, of the roles that were found by what the cells refer to."""
    names: NamedSequences | None = None
    by_name: frozenset[str] = frozenset()
    """Roles of columns that hold names."""
    peptides: frozenset[str] = frozenset()
    """Those of which cells without a name are peptides."""
    parent: str | None = None
    """Antibody of every row, before its mutations."""
    rules: Mapping[Kind, MutationRules] = field(default_factory=dict)
    """Kinds of sequences that have a column of mutations."""
    chain_of_role: Mapping[str, ChainId] = field(default_factory=dict)
    """Chains of antibodies that columns of mutations are of, by role, where their names say so."""
    antigen: str | None = None
    """Antigen of every row, before its mutations."""
    remarks: tuple[str, ...] = ()

    def text(self, role: str, cell: object) -> str:
        """Return the text of a sequence in a cell; `UnknownName` if it is a name without one."""
        if role not in self.by_name or self.names is None:
            return sequence_text(cell)
        named = self.names.find(role, cell)
        if named is not None:
            return named
        if cell in MISSING_TEXT:
            return ""
        if isinstance(cell, str) and role in self.peptides and is_peptide(cell):
            return sequence_text(cell)
        if not isinstance(cell, str) or (cell and not is_sequence(cell)):
            raise self.names.unknown(role, cell)
        return sequence_text(cell)


NO_REFERENCES = References()
MUTATIONS: dict[Kind, str] = {"antibody": "mutations", "antigen": "antigen_mutations"}
"""Roles of the columns of mutations."""


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
    if not options.refers:
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
        remarks += _describe_names(table, names, columns, options)
        if not (columns or _are_names(options, names)):
            for side in sides:
                if not _has_sequences(table, side):
                    raise _unused(table, names)
            remarks.append(f"--sequences {names.source} is not used: the columns hold sequences")
    by_name = frozenset(columns)
    mutations, light = _mutation_columns(table, options, kinds)
    peptides = frozenset[str]()
    if (
        names is not None
        and "antigen" in columns
        and _has_peptides(table, names, columns["antigen"])
    ):
        peptides = frozenset(["antigen"])
    rules = _mutation_rules(options, mutations)
    remarks += _describe_mutations(table, mutations, light, rules, constants)
    columns |= {MUTATIONS[kind]: name for kind, name in mutations.items()}
    chain_of_role: dict[str, ChainId] = {}
    if "antibody" in rules and not rules["antibody"].shared:
        chain_of_role["mutations"] = _chain_of_column(mutations["antibody"])
    if light:
        columns[LIGHT_MUTATIONS] = light
        chain_of_role[LIGHT_MUTATIONS] = "L"
    return References(
        columns=columns,
        names=names,
        by_name=by_name,
        peptides=peptides,
        parent=parent,
        rules=rules,
        chain_of_role={role: chain for role, chain in chain_of_role.items() if chain},
        antigen=antigen,
        remarks=tuple(remarks),
    )


def _mutation_rules(
    options: TableOptions, mutations: Mapping[Kind, str]
) -> dict[Kind, MutationRules]:
    """Decide how the mutations of each kind, in these columns, are read."""
    # one column for both kinds: then the chain of a mutation says of which it is
    is_shared = len({*mutations.values()}) < len(mutations)
    rules: dict[Kind, MutationRules] = {}
    for kind in mutations:
        numbers = _numbers(kind, options, mutations)
        rules[kind] = MutationRules(kind=kind, **numbers, shared=is_shared)
    return rules


def _describe_mutations(
    table: Table,
    mutations: Mapping[Kind, str],
    light: str,
    rules: Mapping[Kind, MutationRules],
    constants: Mapping[str, str | None],
) -> Iterator[str]:
    """Say in lines which columns hold mutations, and what of them cannot be checked."""
    for kind, kind_rules in rules.items():
        start = f"column {mutations[kind]!r} holds"
        if light and kind == "antibody":
            start = f"columns {mutations[kind]!r} and {light!r} hold"
        yield (
            f"{start} mutations of {_owner(kind, constants)}, "
            f"{kind_rules.words}; empty cells, WT and the like are that itself"
        )
    used = [*dict.fromkeys(filter(None, (*mutations.values(), light)))]
    for name in map(str, table.frame.columns):
        is_other = bool(_chain_of_column(name)) and name not in used and "antibody" in rules
        if is_other and _holds_mutations(table, name):
            yield f"column {name!r} holds mutations that are not applied: it was not chosen"
    for name in used:
        unchecked = _without_wild(table, name) if name in table.frame else []
        if unchecked:
            yield (
                f"column {name!r}: mutations such as {quoted(unchecked[0])} name no wild-type "
                "residue, so that it is not checked: are the numbers those of the parent?"
            )


def _numbers(kind: Kind, options: TableOptions, mutations: Mapping[Kind, str]) -> _Numbers:
    """Return how the residues of a kind are numbered; schemes are those of variable domains."""
    if kind == "antigen":
        return {"numbering": "sequential", "first_residue": options.first_residue}
    first = 1 if "antigen" in mutations else options.first_residue
    return {"numbering": options.numbering, "first_residue": first}


def with_references(table: Table, references: References) -> Table:
    """Give a table the columns that were found by what they refer to."""
    replaced = ("heavy", "light") if "antibody" in references.columns else ()
    kept = {role: name for role, name in table.columns.items() if role not in replaced}
    decided = {*replaced, *references.columns}
    ties = {role: names for role, names in table.ties.items() if role not in decided}
    return replace(table, columns={**kept, **references.columns}, ties=ties)


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
    if antigen:
        antigen = "|".join(parse_antigen(sequence_text(antigen)).chains)
    parent = _constant(options.parent, "--parent", "antibody", names)
    if parent:
        parent = "|".join(parse_antibody(sequence_text(parent)).chains)
    return {"antigen": antigen, "parent": parent}


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
        return value  # which is refused as a sequence
    distinct: dict[str, dict[str, None]] = {}
    for entry in read_entries(path):
        distinct.setdefault(entry.role, {})[entry.text] = None
    texts = {role: [*listed] for role, listed in distinct.items()}
    if kind == "antibody":
        sequence = _only_antibody(texts)
    else:
        antigens = texts.get("antigen") or texts.get(ANY, [])
        sequence = antigens[0] if len(antigens) == 1 else None
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
    types = []
    for text in strings:
        types.append([domain.chain for domain in find_domains(text.upper())])
    if types == [["heavy"], ["light"]]:
        return "|".join(strings)
    if types == [["light"], ["heavy"]]:
        return "|".join(reversed(strings))
    return None


# --- columns of names -----------------------------------------------------------------------------


def _name_columns(
    table: Table, names: NamedSequences, options: TableOptions, side: _Side, taken: set[str]
) -> dict[str, str]:
    """Find the columns of one side that hold names, by role; empty if it has sequences."""
    chosen = {role: options.columns[role] for role in side.roles if options.columns.get(role)}
    detected = {role: table.columns[role] for role in side.roles if role in table.columns}
    named: dict[str, str] = {}
    has_sequences = False
    for role, name in (chosen or detected).items():
        if name not in table.frame:
            continue
        if _hits(table, names, role, name):
            named[role] = name
        has_sequences = has_sequences or holds_sequences(table, name)
    if named or has_sequences:
        return named
    if side.kind == "antigen" and (chosen or detected):
        (name,) = (chosen or detected).values()
        if name in table.frame and _has_peptides(table, names, name):
            return {}
    if chosen:
        return chosen  # whose names are then listed as unknown
    role = side.roles[-1]
    name_column = table.columns.get(side.name_role)
    if name_column in table.frame and _hits(table, names, role, str(name_column)):
        return {role: str(name_column)}
    fits = []
    for name in map(str, table.frame.columns):
        if name not in taken and _names_side(table, names, role, name):
            fits.append(name)
    if len(fits) > 1:
        lines = " or ".join(column_option(role, name) for name in fits)
        msg = (
            f"{table.source}: columns {quote_names(fits)} hold names of {names.source}; expected "
            f"one for {role}. Choose it with {lines}."
        )
        raise ColumnError(msg)
    if not fits and side.kind == "antigen":
        return {role: name for role, name in detected.items() if name in table.frame}
    return {role: fits[0]} if fits else {}


def _describe_names(
    table: Table, names: NamedSequences, columns: Mapping[str, str], options: TableOptions
) -> Iterator[str]:
    """Say in lines for what the records of named sequences are used."""
    texts: list[str] = []
    for role, name in columns.items():
        cells = table.frame[name].dropna().unique().tolist()
        found = names.describe(role, cells)
        texts += filter(None, (names.find(role, cell) for cell in cells))
        is_header = options.matrix and name == ANTIGEN_COLUMN
        holder = "the headers of the matrix hold" if is_header else f"column {name!r} holds"
        line = f"{holder} names of {_PLURAL[role]}, looked up in {names.source}"
        more = f" (first {len(table.frame):,} rows)" if len(table.frame) >= CHUNK_ROWS else ""
        yield f"{line}{more}: {found or 'none is there'}"
    if columns:
        yield from names.describe_unused(texts)
    for problem in names.problems[:1]:
        count = counted(len(names.problems), "record")
        yield f"{count} of {names.source} without a name or residues left out: {problem}"


def _has_sequences(table: Table, side: _Side) -> bool:
    """Tell whether a column of one side holds sequences."""
    for role in side.roles:
        name = table.columns.get(role)
        if name in table.frame and holds_sequences(table, str(name)):
            return True
    return False


def _cells(table: Table, name: str) -> list[object]:
    """Return distinct cells of a column, from its first rows."""
    filled = table.frame[name].dropna().iloc[: 50 * LOOKED_AT]
    cells: list[object] = filled.unique()[:LOOKED_AT].tolist()
    return [cell for cell in cells if cell_name(cell)]


def _hits(table: Table, names: NamedSequences, role: str, name: str) -> list[str]:
    """Return the sequences of the names in a column."""
    texts: list[str] = []
    for cell in _cells(table, name):
        try:
            text = names.find(role, cell)
        except RepeatedName:
            text = ""  # it is a name, and an error if the column is used
        if text is not None:
            texts.append(text)
    return texts


def _has_peptides(table: Table, names: NamedSequences, name: str) -> bool:
    """Tell whether most cells of a column of antigens are short sequences without a name."""
    cells = _cells(table, name)
    unnamed = [cell for cell in cells if not _is_name(names, "antigen", cell)]
    texts = [cell_name(cell) for cell in unnamed]
    return 2 * len(texts) > len(cells) and are_peptides(texts)


def _is_name(names: NamedSequences, role: str, cell: object) -> bool:
    try:
        return names.find(role, cell) is not None
    except RepeatedName:
        return True


def _names_side(table: Table, names: NamedSequences, role: str, name: str) -> bool:
    """Tell whether a column holds mostly names, and of antibodies if these are asked for."""
    hits = _hits(table, names, role, name)
    if not hits or 2 * len(hits) < len(_cells(table, name)):
        return False
    texts = [*dict.fromkeys(hits)][:SAMPLED]
    antibodies = sum(map(_has_domain, texts))
    are_antibodies = 2 * antibodies > len(texts)
    return are_antibodies == (role != "antigen")


def _has_domain(text: str) -> bool:
    """Tell whether a chain of a sequence has a variable domain."""
    return any(chain_types(part.upper()) for part in text.split("|"))


def _unused(table: Table, names: NamedSequences) -> MissingColumn:
    """Make the error of a file of names that no column holds."""
    distinct = [*dict.fromkeys(name for _, name in names.of)]
    problem = (
        f"{table.source}: no column holds names of --sequences {names.source}, such as "
        f"{quote_names(distinct[:3])}"
    )
    advice = "Name it with --column antibody=NAME or --column antigen=NAME."
    antigens = [name for name in map(str, table.names) if names.find("antigen", name)]
    if antigens:
        advice = "Columns are called so: add --matrix if each holds the labels of one antigen."
    return MissingColumn(with_found(problem, table.names, advice))


# --- columns of mutations -------------------------------------------------------------------------


def _mutation_columns(
    table: Table, options: TableOptions, kinds: Sequence[Kind]
) -> tuple[dict[Kind, str], str]:
    """Return the column of mutations of each kind that has one, and that of light chains alone.

    The latter is empty unless heavy and light chains have a column each.
    """
    chosen: dict[Kind, str] = {}
    for kind, role in MUTATIONS.items():
        if role in options.columns and kind in kinds:
            chosen[kind] = options.columns[role]
    if options.parent is None or "antibody" in chosen or "antibody" not in kinds:
        return chosen, ""
    names = [name for name in map(str, table.frame.columns) if name not in chosen.values()]
    of_chains = [name for name in names if _chain_of_column(name) and _holds_mutations(table, name)]
    named_so = [name for name in names if _MUTATION_COLUMN.fullmatch(simplified(name))]
    best = [name for name in named_so if _holds_mutations(table, name)]
    if of_chains and not (len(best) == 1 and _names_chains(table, best[0])):
        best += of_chains
    if not best:
        # 50G, without a wild type, may be a well or a name in any other column
        best = [name for name in names if _holds_mutations(table, name, with_wild=True)]
    if len(best) == 1:
        return {"antibody": best[0], **chosen}, ""
    if len(best) == 2 and {*map(_chain_of_column, best)} == {"H", "L"}:
        heavy, light = sorted(best, key=_chain_of_column)
        return {"antibody": heavy, **chosen}, light
    if best:
        lines = " or ".join(column_option("mutations", name) for name in best)
        msg = (
            f"{table.source}: columns {quote_some(best)} hold mutations; expected one, or two "
            f"called heavy_mutations and light_mutations. Rename them, or choose one with {lines}."
        )
        raise ColumnError(msg)
    if chosen:
        return chosen, ""  # every row has the parent, and a variant of the antigen
    problem = f"{table.source}: --parent: no column holds mutations such as A50G or H:A50G"
    advice = "Name it with --column mutations=NAME, or leave --parent out."
    raise MissingColumn(with_found(problem, table.names, advice))


def _chain_of_column(name: str) -> ChainId:
    """Return the chain that the name of a column of mutations says; empty if it says none."""
    bare = simplified(name)
    for chain, pattern in _CHAIN_MUTATIONS.items():
        if re.fullmatch(f"{_OWNER}{pattern}{_CHANGES}|{_CHANGES}(?:in|of|on)?{pattern}", bare):
            return chain
    return ""


def _names_chains(table: Table, name: str) -> bool:
    """Tell whether all mutations of a column name their chain."""
    mutations = [m for cell in _cells(table, name) for m in _read(str(cell))]
    return all(mutation.chain for mutation in mutations)


def _check_parent(parent: str) -> None:
    """Raise the error of a parent that is no antibody, before rows are read."""
    try:
        chains = parse_antibody(parent if is_word(parent) else sequence_text(parent)).chains
    except AbagError as error:
        msg = f"--parent: {error}"
        raise type(error)(msg) from None
    longest = max(map(len, chains))
    if longest < SHORT or is_word(parent):  # all letters of trastuzumab are residues
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
        if not held:
            continue
        sequences = len(table.frame[held].drop_duplicates())
        if 2 * sequences <= table.frame[name].nunique():
            of_antibodies = column_option("mutations", name)
            of_antigens = column_option("antigen_mutations", name)
            yield (
                f"column {name!r} holds mutations that are not applied, and the sequences are "
                f"fewer: if these are the parents, give {of_antibodies} or {of_antigens}"
            )


def _holds_mutations(table: Table, name: str, *, with_wild: bool = False) -> bool:
    """Tell whether most cells that are not of the parent are mutations."""
    cells = [cell for cell in _cells(table, name) if isinstance(cell, str)]
    others = [cell for cell in cells if not means_parent(cell)]
    understood = 0
    for cell in others:
        mutations = _read(cell)
        unchecked = [mutation for mutation in mutations if not mutation.wild]
        if mutations and not (with_wild and unchecked):
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
