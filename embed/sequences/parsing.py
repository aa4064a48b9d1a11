"""Parse the columns of a table into antibodies and antigens, with chains in their places.

Each distinct text of a column is parsed once. The type of a chain is told by its J segment where
that is clear, else by immunum, which is slow.

R rows, N distinct sequences or chains.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from abag.core.errors import AbagError, TableError
from abag.core.messages import bar
from abag.embed.sequences.chains import (
    KINDS,
    NO_ANTIGEN,
    REPLACED,
    RESIDUES,
    Chains,
    EmptySequence,
    Kind,
    ParsedSequence,
    UnknownResidue,
    antigen,
    parse_antibody,
    parse_antigen,
    parse_chain,
    sequence_text,
)
from abag.embed.sequences.changes import BadCell
from abag.embed.sequences.columns import SEQUENCE_ROLES, MissingColumn, quote_names, with_found
from abag.embed.sequences.domains import (
    CONSTANT_MOTIF,
    WHOLE_DOMAIN,
    UnsureDomains,
    find_domains,
    split_domains,
    variable_domain,
)
from abag.embed.sequences.flanks import HISTIDINE_TAG, J_MOTIFS, find_leaders, find_tails
from abag.embed.sequences.mutations import (
    BadMutation,
    MutationRules,
    mutate,
    propose_numbers,
    read_mutations,
)
from abag.embed.sequences.names import NamedSequences, UnknownName, cell_name
from abag.embed.sequences.table_options import ChainPlaces, TableOptions
from abag.embed.sequences.tables import CHUNK_ROWS, Table

# at 0.25 ms per chain, to count what antibodies of unclear types are; --chains auto numbers all
NUMBERED_AT_MOST = 200
CHECKED_AT_MOST = 20  # cells of a column by which its content is recognized
SHORT = 20  # residues below which a chain may be a name, such as VEGF, or the H of a PDB file
SHORT_DOMAIN = 70  # residues below which a chain is no variable domain, whose shortest have 95
# read as it is: nucleotides have no L, and words that are no sequence have fewer letters
_PROTEIN = f"^[{RESIDUES}]*L[{RESIDUES}]{{6}}[{RESIDUES}]*$"
_SEQUENCE = re.compile(rf"[{RESIDUES}{REPLACED}|:\s]{{{SHORT},}}", re.IGNORECASE)  # not a name
_NUCLEOTIDE_LETTERS = frozenset("ACGTUN|:")
# as AIRR has junctions, C...W, and IMGT CDR3: AR...DY
_CDR3 = re.compile("C[AVTSIGQLMHFN][A-Z]{2,36}[WF]|[AVTSI][RKSTNG][A-Z]{1,34}[DG][YVIHPL]")
_REGION = re.compile("cdr|junction|fw?r[1-4]", re.IGNORECASE)
"""Names of columns that hold parts of a chain."""
_REASONS: dict[type[AbagError], str] = {
    EmptySequence: "empty sequence",
    UnknownResidue: "unknown residue",
    UnsureDomains: "unsure domains",
    UnknownName: "name without a sequence",
    BadMutation: "mutation",
}
_UNREADABLE = tuple(_REASONS)
_VARIABLE_DOMAIN = re.compile(
    "[^C]{18,23}C.{7,25}W.{45,85}C.{3,40}(?:WG.G.{4}V[ST][SAP]|FG.G[TS].[LV].[IVL][KLE])"
)
"""A chain that `variable_domain` need not look at."""
_ANTIGEN_WORDS = re.compile(
    "antigen|target|epitope|virus|viral|strain|receptor|ligand|protein|pathogen|(?<![a-z])ag(?![a-z])",
    re.IGNORECASE,
)
"""Names of columns that may hold or name antigens."""
MOST_CANDIDATES = 4
EARLIEST_CONSTANT = 95  # residues before which no constant domain starts
CHAIN_TYPES: tuple[list[str], ...] = ([], ["heavy"], ["light"])
"""Types of the variable domains of a chain that `find_types` can tell, by number."""
HEAVY_TYPE = 1
LIGHT_TYPE = 2
UNCLEAR_TYPE = len(CHAIN_TYPES)
"""Type of a chain that only numbering can tell."""


@dataclass(slots=True, kw_only=True)
class ParsedColumn:
    """A column of R rows with N distinct sequences, of which some may be bad."""

    codes: NDArray[np.int64]
    """Shape (R,); row ``r`` holds sequence ``codes[r]``."""
    chains: list[Chains]
    """N sequences; those that are bad have no meaning."""
    replaced: NDArray[np.int32]
    """Shape (N,); residues read as X."""
    forms: list[str]
    """`ParsedSequence.form` of N sequences."""
    bad: dict[int, BadCell]
    """Problem of each bad sequence, by its index."""
    examples: dict[str, str] = field(default_factory=dict)
    """Residues that a word in `forms` is about."""

    @classmethod
    def constant(cls, rows: int, chains: Chains) -> ParsedColumn:
        """Make a column with the same valid sequence in every row."""
        return cls(
            codes=np.zeros(rows, np.int64),
            chains=[chains],
            replaced=np.zeros(1, np.int32),
            forms=[""],
            bad={},
        )

    def is_bad(self) -> NDArray[np.bool_]:
        """Tell which sequences are bad, shape (N,)."""
        bad_N = np.zeros(len(self.chains), np.bool_)
        bad_N[[*self.bad]] = True
        return bad_N

    def mark(self, word: str, sequences: Sequence[int]) -> None:
        """Add a word to the forms of these sequences, by their indices, less the bad ones."""
        for i in sequences:
            if i not in self.bad:
                self.forms[i] += f"+{word}"

    def mark_residues(self, word: str, residues: Mapping[int, str]) -> None:
        """Add a word to the forms of sequences with such residues, and keep some as an example."""
        self.mark(word, [*residues])
        good = [text for i, text in residues.items() if i not in self.bad]
        if good and good[0]:
            self.examples.setdefault(word, good[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Sequences that cells of a table refer to: by names, and as parents of mutations."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns by role, of the roles that were found by what the cells refer to."""
    names: NamedSequences | None = None
    by_name: frozenset[str] = frozenset()
    """Roles of columns that hold names."""
    parent: str | None = None
    """Antibody of every row, before its mutations."""
    rules: Mapping[Kind, MutationRules] = field(default_factory=dict)
    """Kinds of sequences that have a column of mutations."""
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
        if not isinstance(cell, str) or (cell and not _SEQUENCE.fullmatch(cell)):
            raise self.names.unknown(role, cell)
        return sequence_text(cell)


NO_REFERENCES = References()
MUTATIONS: dict[Kind, str] = {"antibody": "mutations", "antigen": "antigen_mutations"}
"""Roles of the columns of mutations."""


def roles_by_content(table: Table) -> dict[str, str]:
    """Choose, for each role that several columns fit, the only one that holds sequences."""
    columns: dict[str, str] = {}
    for role, names in table.ties.items():
        if role in SEQUENCE_ROLES:
            held = [name for name in names if name in table.frame and _sequences_in(table, name)]
            if len(held) == 1:
                columns[role] = held[0]
    return columns


def with_roles(table: Table, roles: Mapping[str, str]) -> Table:
    """Return the same rows with the columns of these roles decided."""
    ties = {role: names for role, names in table.ties.items() if role not in roles}
    return replace(table, columns={**table.columns, **roles}, ties=ties)


def _sequences_in(table: Table, name: str) -> list[str]:
    """Return some texts of a column if most of them are sequences, else nothing."""
    cells = table.frame[name].iloc[:CHUNK_ROWS].dropna()
    cells = cells[cells.astype(str).str.strip() != ""]
    picked = np.linspace(0, len(cells) - 1, min(len(cells), CHECKED_AT_MOST)).astype(int)
    sequences = []
    for text in cells.iloc[picked]:
        if isinstance(text, str) and _SEQUENCE.fullmatch(text):
            residues = "".join(text.upper().split())
            if not _NUCLEOTIDE_LETTERS.issuperset(residues):
                sequences.append(residues)
    return sequences if 2 * len(sequences) > len(picked) else []


def holds_sequences(table: Table, name: str) -> bool:
    """Tell whether most cells of a column are sequences."""
    return bool(_sequences_in(table, name))


def _role_by_content(table: Table, name: str) -> str:
    """Tell the role that a column may play by some of its texts; empty without sequences."""
    texts = _sequences_in(table, name)
    types = [_types_in(text) for text in texts]
    if 2 * types.count(set()) >= len(texts):
        return "antigen" if texts else ""
    if 2 * types.count({"heavy"}) > len(texts):
        return "heavy"
    if 2 * types.count({"light"}) > len(texts):
        return "light"
    return "antibody"


def _types_in(text: str) -> set[str]:
    """Return the types of the variable domains in the chains of a text."""
    types: set[str] = set()
    for part in re.split("[|:]", text):
        types.update(chain_types(part))
    return types


def _suggest_columns(table: Table) -> str:
    """Propose columns by their content: one for each role, and the others as alternatives."""
    proposals: dict[str, list[str]] = {}
    for name in map(str, table.frame.columns):
        role = "" if _REGION.search(name) else _role_by_content(table, name)
        if role:
            proposals.setdefault(role, []).append(_as_options([(role, name)]))
    if not proposals:
        mutations = _column_of_mutations(table)
        if mutations:
            return (
                f"Column {mutations!r} holds mutations: give the antibody that they are of with "
                "--parent SEQ or --parent FILE."
            )
        return (
            "No column holds sequences: add columns with those of the chains, or give a FASTA file "
            "or table of names and sequences with --sequences FILE."
        )
    pairs = [_any_of(proposals[role]) for role in ("heavy", "light") if role in proposals]
    chains = [" ".join(pairs)] if pairs else []
    antibodies = _any_of(chains + proposals.get("antibody", []))
    antigens = _any_of(proposals.get("antigen", []))
    return f"By their content: {' '.join(filter(None, [antibodies, antigens]))}."


def _column_of_mutations(table: Table) -> str:
    """Return the first column with mutations that name the wild type; empty if there is none."""
    for name in map(str, table.frame.columns):
        cells = table.frame[name].iloc[:CHUNK_ROWS].dropna().unique()[:CHECKED_AT_MOST].tolist()
        try:
            mutations = [*chain.from_iterable(read_mutations(str(cell)) for cell in cells)]
        except BadMutation:
            continue
        if mutations and all(mutation.wild for mutation in mutations):
            return name
    return ""


def _any_of(options: Sequence[str]) -> str:
    listed = " or ".join(options)
    return f"({listed})" if len(options) > 1 else listed


def _as_options(roles: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"--column {shlex.quote(f'{role}={name}')}" for role, name in roles)


def refuse_exchanged(table: Table, options: TableOptions, kinds: Sequence[Kind]) -> None:
    """Refuse a table whose columns hold the chains of one another, by a sample of each."""
    columns = {role: name for role, name in table.columns.items() if role in SEQUENCE_ROLES}
    antigens = columns.pop("antigen", None)
    held = {role: _role_by_content(table, name) for role, name in columns.items()}
    heavy = held.get("heavy")
    light = held.get("light")
    exchanged = (heavy == "light" and light != "light") or (light == "heavy" and heavy != "heavy")
    if exchanged and options.chains != "auto":
        swapped = [("heavy", columns.get("light", "NAME")), ("light", columns.get("heavy", "NAME"))]
        msg = (
            f"{table.source}: most rows hold a light chain in the place of the heavy one, or the "
            "reverse; expected heavy and light. Exchange the columns with "
            f"{_as_options(swapped)}, or use --chains auto."
        )
        raise TableError(msg)
    # antigens may be antibodies, so that they alone decide nothing
    others = [role for role, content in held.items() if content == "antigen"]
    if not others or antigens is None or len(kinds) < len(KINDS):
        return
    content = _role_by_content(table, antigens)
    if content not in ("antigen", ""):
        swapped = [(content, antigens), ("antigen", columns[others[0]])]
        msg = (
            f"{table.source}: most antigens are variable domains of antibodies, and most "
            "antibodies hold another chain; expected antibodies and antigens. Exchange the columns "
            f"with {_as_options(swapped)}."
        )
        raise TableError(msg)


def drop_unused_roles(table: Table, options: TableOptions) -> tuple[Table, list[str]]:
    """Drop the roles that the options, or heavy and light columns, replace; say which."""
    replaced_by: dict[str, str] = {}
    if options.antigen is not None:
        replaced_by["antigen"] = "--antigen"
    if options.no_antigen:
        replaced_by["antigen"] = "antibodies alone"
    if options.parent is not None:
        replaced_by |= dict.fromkeys(("heavy", "light", "antibody"), "--parent")
    elif "antibody" in options.columns:
        column = f"column {options.columns['antibody']!r}"
        replaced_by |= {"heavy": column, "light": column}
    elif table.has("heavy") or table.has("light"):
        replaced_by["antibody"] = "the columns of heavy and light chains"
    kept = {role: name for role, name in table.columns.items() if role not in replaced_by}
    ties = {role: names for role, names in table.ties.items() if role not in replaced_by}
    ignored = []
    for role, replacement in replaced_by.items():
        name = table.columns.get(role)
        if name is None or name == table.columns.get("mutations"):
            continue
        if role == "antigen" and options.no_antigen:
            ignored.append(f"column {name!r} is ignored: {replacement} (--no-antigen)")
        else:
            ignored.append(f"column {name!r} is ignored, replaced by {replacement}")
    if options.no_antigen:
        candidates = [name for name in _antigen_candidates(table) if _differ(table, name)]
        ignored += [
            f"column {name!r} may hold antigens, and is not used: antibodies alone (--no-antigen)"
            for name in candidates
            if name != table.columns.get("antigen")
        ]
    return replace(table, columns=kept, ties=ties), ignored


def _differ(table: Table, name: str) -> bool:
    """Tell whether a column has several values."""
    return name in table.frame and len(table.frame[name].dropna().astype(str).unique()) > 1


def parse_antibodies(
    table: Table, options: TableOptions, references: References = NO_REFERENCES
) -> ParsedColumn:
    """Parse the antibodies of a table and bring their chains into place.

    Bad sequences are listed in the result.

    Raises
    ------
    MissingColumn
        If no column holds antibodies, or one holds names.
    TableError
        If a column holds parts of chains, or no text.
    """
    if "antibody" in references.rules:
        return _arranged(_parse_variants(table, "antibody", references), table, options)
    if references.parent is not None:
        parent = ParsedColumn.constant(len(table.frame), parse_antibody(references.parent).chains)
        return _arranged(parent, table, options)
    if table.has("antibody"):
        column = _parse_column(table, "antibody", parse_antibody, references)
        _refuse_names(column, table, references)
        return _arranged(column, table, options)
    roles = [role for role in ("heavy", "light") if table.has(role)]
    if not roles:
        problem = f"{table.source}: no column for heavy, light or antibody"
        commas = ", or separate columns by commas" if len(table.names) == 1 else ""
        advice = (
            f"Name them with --column heavy=NAME, light=NAME or antibody=NAME{commas}. "
            f"{_suggest_columns(table)}{_advise_antigen(table, options)}"
        )
        raise MissingColumn(with_found(problem, table.names, advice))
    if roles == ["light"] and "light" not in options.columns:  # heavy may be in another column
        light = table.column("light")
        problem = f"{table.source}: no column for heavy, only {light!r} for light"
        advice = (
            "Name it with --column heavy=NAME, or, if the antibodies have no heavy chains, the "
            f"other with --column light={shlex.quote(light)}."
        )
        raise MissingColumn(with_found(problem, table.names, advice))
    parsed = {role: _parse_column(table, role, parse_chain, references) for role in roles}
    absent = ParsedColumn.constant(len(table.frame), ("",))
    where = f"column {quote_names([table.column(role) for role in roles])}"
    joined = _join(parsed.get("heavy", absent), parsed.get("light", absent), where)
    return _arranged(joined, table, options)


def _advise_antigen(table: Table, options: TableOptions) -> str:
    """Say what else is missing, so that it does not take another attempt to learn it."""
    is_chosen = options.antigen is not None or "antigen" in options.columns
    if is_chosen or options.no_antigen or options.matrix:
        return ""
    if not options.proposes_no_antigen or table.has("antigen"):
        return ""
    return (
        " No column is named like an antigen, either: name it with --column antigen=NAME, give one "
        "for all rows with --antigen SEQ, or learn from antibodies alone with --no-antigen."
    )


def _join(heavy: ParsedColumn, light: ParsedColumn, where: str) -> ParsedColumn:
    """Join the chains of each row; a row without any is bad."""
    codes, pairs = pd.factorize(heavy.codes * len(light.chains) + light.codes)
    heavy_N, light_N = np.divmod(pairs, len(light.chains))
    places = [*zip(heavy_N.tolist(), light_N.tolist(), strict=True)]
    chains = [heavy.chains[h] + light.chains[k] for h, k in places]
    bad: dict[int, BadCell] = {}
    for i in np.flatnonzero(heavy.is_bad()[heavy_N] | light.is_bad()[light_N]).tolist():
        h, k = places[i]
        bad[i] = heavy.bad.get(h) or light.bad[k]
    msg = f"{where}: no antibody chain; expected at least one. Give a chain, or remove the row."
    no_chain = BadCell("antibody", _REASONS[EmptySequence], "", msg, EmptySequence)
    for i, pair in enumerate(chains):
        if not any(pair):
            bad.setdefault(i, no_chain)
    return ParsedColumn(
        codes=codes.astype(np.int64),
        chains=chains,
        replaced=heavy.replaced[heavy_N] + light.replaced[light_N],
        forms=[""] * len(chains),
        bad=bad,
    )


def parse_antigens(
    table: Table, options: TableOptions, references: References = NO_REFERENCES
) -> ParsedColumn:
    """Parse the antigens of a table, unless the options have one for all rows, or say none.

    Bad sequences are listed in the result.

    Raises
    ------
    MissingColumn
        If no column holds antigens, or it holds names.
    TableError
        If the column holds no text.
    """
    if options.no_antigen:
        return ParsedColumn.constant(len(table.frame), NO_ANTIGEN)
    if "antigen" in references.rules:
        return _with_antigen_notes(_parse_variants(table, "antigen", references))
    if options.antigen is not None:
        text = options.antigen if references.antigen is None else references.antigen
        return ParsedColumn.constant(len(table.frame), antigen(text))
    if not table.has("antigen"):
        advice = ", or give one antigen for all rows with --antigen SEQ"
        if options.proposes_no_antigen:
            advice += ", or learn from antibodies alone with --no-antigen"
        candidates = _antigen_candidates(table)
        if candidates:
            advice += f". {quote_names(candidates)} may hold it"
        table.column("antigen", advice)
    column = _parse_column(table, "antigen", parse_antigen, references)
    names = [cell.text for cell in column.bad.values() if cell.text.strip()]
    is_long = any(max(map(len, chains)) >= SHORT for chains in column.chains)
    distinct = len(column.chains) - 1  # less that of empty cells
    most = distinct / 2 if options.bad_rows == "error" else distinct - 1
    are_names = bool(names) and not is_long and len(names) > most
    is_first_chunk = table.frame.index[0] == 0
    if are_names and is_first_chunk and "antigen" not in references.by_name:
        msg = (
            f"{table.source}: column {table.column('antigen')!r} holds names, such as "
            f"{names[0]!r}, not sequences. If all rows have the same antigen, give its sequence "
            "with --antigen SEQ; else add a column of sequences and name it with "
            "--column antigen=NAME, or give a FASTA file or table of names and sequences with "
            "--sequences FILE."
        )
        if options.proposes_no_antigen:
            msg += " If the label does not depend on it, learn from antibodies alone: --no-antigen."
        raise MissingColumn(msg)
    return _with_antigen_notes(column)


def _with_antigen_notes(column: ParsedColumn) -> ParsedColumn:
    column.mark("short antigen", _with_short_chain(column.chains))
    joined = pa.array(["|".join(chains) for chains in column.chains], pa.large_string())
    column.mark("tagged antigen", np.flatnonzero(having(HISTIDINE_TAG, joined)).tolist())
    return column


def _antigen_candidates(table: Table) -> list[str]:
    """List the unused columns that may hold or name antigens, by their names or content."""
    used = {*table.columns.values()} - {table.columns.get("antigen_name")}
    free = [name for name in map(str, table.frame.columns) if name not in used]
    candidates = [
        name
        for name in free
        if _ANTIGEN_WORDS.search(name) or _role_by_content(table, name) == "antigen"
    ]
    return candidates[:MOST_CANDIDATES]


def _refuse_names(column: ParsedColumn, table: Table, references: References) -> None:
    """Refuse a table whose column of antibodies holds names."""
    if table.frame.index[0] or "antibody" in references.by_name:
        return
    names = [cell.text for cell in column.bad.values() if cell.text.strip()]
    is_long = any(max(map(len, chains)) >= SHORT_DOMAIN for chains in column.chains)
    if len(names) > 1 and not is_long and all(len(name) < SHORT for name in names):
        where = f"{table.source}: column {table.column('antibody')!r}"
        msg = (
            f"{where} holds names, such as {names[0]!r}, not sequences. Give a FASTA file or table "
            "of names and sequences with --sequences FILE, or name the columns of sequences with "
            "--column heavy=NAME and --column light=NAME."
        )
        raise MissingColumn(msg)


def distinct_cells(table: Table, role: str) -> tuple[NDArray[np.int64], list[Any]]:
    """Return the index of each row's cell, (R,), and the distinct cells, the missing one first.

    Raises
    ------
    TableError
        If the column holds lists or the like.
    """
    try:
        codes, distinct = pd.factorize(table.cells(role))  # -1: missing
    except (TypeError, NotImplementedError) as error:  # lists, structs
        name = table.column(role)
        held = table.frame[name].dtype
        msg = f"{table.source}: column {name!r} holds {held} values; expected text. Convert it."
        raise TableError(msg) from error
    return codes.astype(np.int64) + 1, ["", *distinct.tolist()]


def _parse_variants(table: Table, kind: Kind, references: References) -> ParsedColumn:
    """Parse the sequences of a kind that rows give as a parent and its mutations."""
    rules = references.rules[kind]
    name = table.column(MUTATIONS[kind])
    parent_R, parents = _parents(table, kind, references)
    change_R, changes = distinct_cells(table, MUTATIONS[kind])
    codes, pairs = pd.factorize(parent_R * len(changes) + change_R)
    parse = parse_antibody if kind == "antibody" else parse_antigen
    no_chains: Chains = ("", "") if kind == "antibody" else ("",)
    column = ParsedColumn(
        codes=codes.astype(np.int64),
        chains=[no_chains] * len(pairs),
        replaced=np.zeros(len(pairs), np.int32),
        forms=[""] * len(pairs),
        bad={},
    )
    variants: list[tuple[str, str]] = []
    for i, pair in enumerate(bar(iterable=pairs.tolist(), desc=f"reading {name}", delay=2)):
        parent, change = divmod(pair, len(changes))
        text = cell_name(changes[change])
        try:
            parent_text = parents[parent]
            if isinstance(parent_text, AbagError):
                raise parent_text
            variants.append((parent_text, text))
            parsed = parse(mutate(parent_text, text, rules))
            column.chains[i], column.replaced[i], column.forms[i] = parsed
        except _UNREADABLE as error:
            msg = f"column {name!r}: {error}".rstrip(".") + "."
            column.bad[i] = BadCell(kind, _REASONS[type(error)], text, msg, type(error))
    mutated = [i for i, cell in column.bad.items() if cell.refusal is BadMutation]
    hint = propose_numbers(variants, rules) if mutated else ""
    if hint:
        for i in mutated:
            column.bad[i] = column.bad[i]._replace(error=f"{column.bad[i].error} {hint}")
    return column


def _parents(
    table: Table, kind: Kind, references: References
) -> tuple[NDArray[np.int64], list[str | AbagError]]:
    """Return the index of each row's parent, (R,), and the distinct parents, or their errors."""
    constant = references.parent if kind == "antibody" else references.antigen
    if constant is not None:
        return np.zeros(len(table.frame), np.int64), [constant]

    def texts(role: str) -> tuple[NDArray[np.int64], list[str | AbagError]]:
        codes, cells = distinct_cells(table, role)
        read: list[str | AbagError] = []
        for cell in cells:
            try:
                read.append(references.text(role, cell))
            except _UNREADABLE as error:
                located = type(error)(f"column {table.column(role)!r}: {error}")
                read.append(located)
        return codes, read

    if kind == "antigen":
        table.column("antigen", ", or give one antigen for all rows with --antigen SEQ")
        return texts("antigen")
    roles = [role for role in ("heavy", "light") if table.has(role)]
    if not roles:
        table.column("antibody", ", or give one parent for all rows with --parent SEQ")
        return texts("antibody")
    heavy_R, heavies = texts("heavy") if "heavy" in roles else _no_chain(table)
    light_R, lights = texts("light") if "light" in roles else _no_chain(table)
    codes, pairs = pd.factorize(heavy_R * len(lights) + light_R)
    joined: list[str | AbagError] = []
    for pair in pairs.tolist():
        h, k = divmod(pair, len(lights))
        joined.append(_join_texts(heavies[h], lights[k]))
    return codes.astype(np.int64), joined


def _join_texts(heavy: str | AbagError, light: str | AbagError) -> str | AbagError:
    if isinstance(heavy, AbagError):
        return heavy
    if isinstance(light, AbagError):
        return light
    return f"{heavy}|{light}"


def _no_chain(table: Table) -> tuple[NDArray[np.int64], list[str | AbagError]]:
    return np.zeros(len(table.frame), np.int64), [""]


def _parse_column(
    table: Table, role: str, parse: Callable[[str], ParsedSequence], references: References
) -> ParsedColumn:
    name = table.column(role)
    kind: Kind = "antigen" if role == "antigen" else "antibody"
    codes, texts = distinct_cells(table, role)
    chains: list[Chains] = [*zip(texts, strict=True)]
    replaced = np.zeros(len(texts), np.int32)
    forms = [""] * len(texts)
    bad: dict[int, BadCell] = {}
    # a string of both chains is always looked at: it may have to be split
    todo: Sequence[int] = range(len(texts))
    if parse is not parse_antibody and role not in references.by_name:
        todo = _not_clean(texts)
    for i in bar(iterable=todo, desc=f"reading {name}", unit=" texts", delay=2):
        try:
            chains[i], replaced[i], forms[i] = parse(references.text(role, texts[i]))
        except _UNREADABLE as error:
            msg = f"column {name!r}: {error}"
            chains[i] = ("", "") if parse is parse_antibody else ("",)
            bad[i] = BadCell(kind, _REASONS[type(error)], str(texts[i]), msg, type(error))
    return ParsedColumn(codes=codes, chains=chains, replaced=replaced, forms=forms, bad=bad)


def _not_clean(texts: Sequence[object]) -> list[int]:
    """Find the texts that may not be one chain as they are written, by index."""
    ascii_texts = []
    for text in texts:
        is_ascii = isinstance(text, str) and text.isascii()
        ascii_texts.append(text if is_ascii else "")
    is_clean = having(_PROTEIN, pa.array(ascii_texts, pa.large_string()))
    return np.flatnonzero(~is_clean).tolist()


def _arranged(column: ParsedColumn, table: Table, options: TableOptions) -> ParsedColumn:
    _place(column, table, options.chains)
    chains = column.chains
    forms = column.forms
    if options.antibody_region == "fv" or table.reader.cut:
        good = [i for i in range(len(chains)) if i not in column.bad]
        for i in bar(iterable=good, desc="cutting chains", unit=" texts", delay=2):
            chains[i], words = cut_to_domains(chains[i])
            forms[i] = "+".join(filter(None, [forms[i], *words]))
    else:
        _mark_flanks(column)
    if table.has("heavy"):
        column.mark("no heavy", [i for i, (heavy, _) in enumerate(chains) if not heavy])
    column.mark("short antibody", _with_short_chain(chains, SHORT_DOMAIN))
    _refuse_parts(column, table)
    return column


def _mark_flanks(column: ParsedColumn) -> None:
    """Mark the antibodies that have residues beside their variable domains."""
    heavies, lights = zip(*column.chains, strict=True)
    constant_heavy = have_constant_domain(heavies)
    constant_light = have_constant_domain(lights)
    column.mark("constant", np.flatnonzero(constant_heavy | constant_light).tolist())
    leaders = find_leaders(heavies, "heavy") | find_leaders(lights, "light")
    column.mark_residues("leader", leaders)
    for texts, is_constant in ((heavies, constant_heavy), (lights, constant_light)):
        tails = {i: tail for i, tail in find_tails(texts).items() if not is_constant[i]}
        column.mark_residues("tail", tails)


def _refuse_parts(column: ParsedColumn, table: Table) -> None:
    """Refuse a table whose heavy or light chains are all CDRs or other parts of a chain."""
    if table.frame.index[0]:  # the first chunk decides
        return
    good = [chains for i, chains in enumerate(column.chains) if i not in column.bad]
    for role, place in (("heavy", 0), ("light", 1)):
        texts = [*dict.fromkeys(chains[place] for chains in good if chains[place])]
        if not texts or max(map(len, texts)) >= SHORT_DOMAIN:
            continue
        name = table.columns.get("antibody") or table.columns.get(role, role)
        alike = len(texts) > 1 and all(map(_CDR3.fullmatch, texts))
        if alike or _REGION.search(name):
            msg = (
                f"{table.source}: column {name!r} holds parts of {role} chains, such as "
                f"{texts[0]!r}; expected whole variable domains, of about 110 to 130 residues. "
                f"Name the column of these with --column {role}=NAME."
            )
            raise TableError(msg)


def _place(column: ParsedColumn, table: Table, places: ChainPlaces) -> None:
    """Find misplaced chains, of the unclear ones in a sample, and put them right if asked to."""
    chains = column.chains
    forms = column.forms
    heavy_N, light_N = map(find_types, zip(*chains, strict=True))
    is_unclear = (heavy_N == UNCLEAR_TYPE) | (light_N == UNCLEAR_TYPE)
    # strings, which have a form, were looked at when they were split
    is_open = np.array([not form for form in forms]) & ~column.is_bad()
    unclear = np.flatnonzero(is_open & is_unclear)
    if places != "auto":
        sample = min(len(unclear), NUMBERED_AT_MOST) if table.frame.index[0] == 0 else 0
        chosen = np.linspace(0, len(unclear) - 1, sample).astype(int)
        column.mark("unclear", np.delete(unclear, chosen).tolist())
        unclear = unclear[chosen]
    is_misplaced = (heavy_N == LIGHT_TYPE) | (light_N == HEAVY_TYPE)
    unusual = np.flatnonzero(is_open & ~is_unclear & is_misplaced)
    todo = np.union1d(unclear, unusual).tolist()
    for i in bar(iterable=todo, desc="looking at chains", unit=" texts", delay=2):
        heavy, light = chains[i]
        types = (chain_types(heavy, heavy_N[i]), chain_types(light, light_N[i]))
        try:
            chains[i], forms[i] = place_chains(chains[i], types, places)
            is_long = [len(text) >= WHOLE_DOMAIN for text in chains[i]]
            if any(long and not named for long, named in zip(is_long, types, strict=True)):
                forms[i] += "+unknown chain"
        except UnsureDomains as error:
            names = [table.columns[role] for role in ("heavy", "light") if role in table.columns]
            msg = f"column {quote_names(names)}: {error}"
            text = "|".join(chains[i])
            reason = _REASONS[UnsureDomains]
            column.bad[i] = BadCell("antibody", reason, text, msg, UnsureDomains)


def _with_short_chain(sequences: Sequence[Chains], least: int = SHORT) -> list[int]:
    """Find the sequences with a chain of fewer than `least` residues, but not empty."""
    lengths = np.fromiter(map(len, chain(*sequences)), np.int64)
    owners = np.repeat(np.arange(len(sequences)), [*map(len, sequences)])
    return [*dict.fromkeys(owners[(lengths > 0) & (lengths < least)].tolist())]


# --- types of chains, by motifs or numbering ------------------------------------------------------


def having(motif: str, texts: pa.Array) -> NDArray[np.bool_]:
    """Tell which texts have a motif, in half the time of a search per text."""
    return np.asarray(pc.match_substring_regex(texts, motif))


def have_constant_domain(chains: Sequence[str]) -> NDArray[np.bool_]:
    """Tell which chains have a constant domain, shape (N,)."""
    array = pa.array(chains, pa.large_string())
    return having(CONSTANT_MOTIF, pc.utf8_slice_codeunits(array, EARLIEST_CONSTANT))


def find_types(chains: Sequence[str]) -> NDArray[np.int64]:
    """Tell the `CHAIN_TYPES` of chains by motifs, shape (N,), or `UNCLEAR_TYPE`."""
    array = pa.array(chains, pa.large_string())
    length_N = np.asarray(pc.binary_length(array))
    heavy_N = having(J_MOTIFS["heavy"], array)
    light_N = having(J_MOTIFS["light"], array)
    # a longer chain may have a second domain, unless a constant one follows the first
    is_single_N = length_N < 2 * WHOLE_DOMAIN
    long = np.flatnonzero(~is_single_N)
    is_single_N[long] = have_constant_domain([chains[i] for i in long.tolist()])
    is_clear_N = is_single_N & (heavy_N ^ light_N)
    type_N = np.where(heavy_N, HEAVY_TYPE, LIGHT_TYPE)
    type_N = np.where(is_clear_N, type_N, UNCLEAR_TYPE)
    return np.where(length_N < WHOLE_DOMAIN, 0, type_N)


def chain_types(chain: str, type_number: int | None = None) -> list[str]:
    """Name the type of each variable domain of a chain; `type_number` is that of `find_types`."""
    number = find_types([chain])[0] if type_number is None else type_number
    if number == UNCLEAR_TYPE:
        return [domain.chain for domain in find_domains(chain)]
    return CHAIN_TYPES[number]


def place_chains(
    chains: Chains, types: tuple[list[str], list[str]], places: ChainPlaces
) -> tuple[Chains, str]:
    """Return the chains of these types in their places, if asked to, and what was found."""
    heavy, light = chains
    if types in ((["light"], ["heavy"]), (["light"], []), ([], ["heavy"])):
        return ((light, heavy), "exchanged") if places == "auto" else (chains, "misplaced")
    if types in ((["heavy"], ["heavy"]), (["light"], ["light"])):
        return chains, "same type"
    if max(map(len, types)) > 1:
        if places == "auto" and not (heavy and light):
            split = split_domains(heavy or light)
            return (split.heavy, split.light), split.form
        return chains, "two domains"
    return chains, ""


def cut_to_domains(chains: Chains) -> tuple[Chains, list[str]]:
    """Cut chains to their variable domains if these are certain, and say what was done."""
    kept: list[str] = []
    words: list[str] = []
    for text in chains:
        is_domain = not text or _VARIABLE_DOMAIN.fullmatch(text)
        domain = text if is_domain else variable_domain(text)
        if domain is None:
            words = ["not cut"]
        kept.append(text if domain is None else domain)
    if tuple(kept) != chains:
        words.append("cut")
    return tuple(kept), words
