"""Antibodies and antigens of a table, checked, with chains in their places.

Each distinct text of a column, and each distinct variant of a parent, is parsed once.

R rows, N distinct sequences or chains.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from abag.core.errors import AbagError, TableError
from abag.core.messages import bar, quoted
from abag.embed.tables.chains import (
    ANTIBODY_ROLES,
    CHAIN_ROLES,
    LONG_RUN,
    MUTATIONS,
    NO_ANTIGEN,
    RESIDUES,
    STOP_CODON,
    WHOLE_DOMAIN,
    ChainPlaces,
    Chains,
    EmptySequence,
    Kind,
    ParsedSequence,
    UnknownResidue,
    UnsureDomains,
    are_joined,
    count_replaced,
    located,
    parse_antibody,
    parse_antigen,
    parse_chain,
    sequence_text,
)
from abag.embed.tables.columns import (
    IS_MUTANT,
    MissingColumn,
    column_option,
    list_columns,
    quote_names,
    simplified,
)
from abag.embed.tables.content import (
    CDR_PAGE,
    OTHER_STATE,
    REGION,
    SHORT,
    SHORTEST_PEPTIDE,
    antigen_candidates,
    coded_domains,
    distinct_texts,
    domain_cells,
    holds_names,
    is_peptide,
    is_sequence,
    names_as_residues,
    propose_columns,
    refuse_other_header,
    suggest_columns,
    unused_columns,
)
from abag.embed.tables.mutations import (
    BadMutation,
    columns_of_mutations,
    holds_mutations,
    means_parent,
    mutate,
    of_chain,
    one_letter,
    propose_antigen,
    propose_numbers,
)
from abag.embed.tables.numbering import (
    HEAVY_TYPE,
    LIGHT_TYPE,
    UNCLEAR_TYPE,
    chain_types,
    cut_to_domains,
    domain_types,
    find_flanked,
    find_types,
    have_motif,
    place_chains,
)
from abag.embed.tables.options import TableOptions
from abag.embed.tables.references import References, UnknownName, cell_name
from abag.embed.tables.table import Table

# one chain, read as it is: nucleotides have no L, and words that are no sequence fewer letters
_CLEAN_CHAIN = f"^[{RESIDUES}]*L[{RESIDUES}]{{6}}[{RESIDUES}]*$"
REASONS: dict[type[AbagError], str] = {
    EmptySequence: "empty sequence",
    UnknownResidue: "unknown residue",
    UnsureDomains: "unsure domains",
    UnknownName: "name without a sequence",
    BadMutation: "mutation",
}
UNREADABLE = tuple(REASONS)
# at 0.25 ms per chain, to count what antibodies of unclear types are; --chains auto numbers all
NUMBERED_AT_MOST = 200
_NUMBERED_NAME = re.compile(r"[A-Za-z]+[.-]?\d+(?:[.-]\w+)*")
"""Names of antigens such as BA.1 and IL-6, and no number."""
_NEEDS_PARENT = (
    "not sequences. Give the antibody that they are of with --parent SEQ or --parent FILE."
)
_LONGEST_ID = 2  # characters of a chain of a PDB file, as SAbDab and others list them
SHORT_DOMAIN = 70  # residues below which a chain is no variable domain, whose shortest have 95
# as AIRR has junctions, C...W, and IMGT CDR3: AR...DY
_CDR3 = re.compile("C[AVTSIGQLMHFN][A-Z]{2,36}[WF]|[AVTSI][RKSTNG][A-Z]{1,34}[DG][YVIHPL]")


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
    advice: str = ""
    """What would fix this row and others like it."""


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
    bad: dict[int, BadCell] = field(default_factory=dict)
    """Problem of each bad sequence, by its index."""
    stopped: list[int] = field(default_factory=list)
    """Indices of those with a chain that ended in a stop codon."""
    joined: list[int] = field(default_factory=list)
    """Indices of those whose chains are joined by a sign that is no sure separator."""

    @classmethod
    def constant(cls, rows: int, parsed: ParsedSequence, text: str = "") -> ParsedColumn:
        """Make a column with the same valid sequence, read from a text, in every row."""
        column = cls.unread(np.zeros(rows, np.int64), [()])
        column.read(0, parsed, text)
        return column

    @classmethod
    def unread(cls, codes: NDArray[np.int64], chains: list[Chains]) -> ParsedColumn:
        """Make a column of sequences that stay as they are unless they are read or refused."""
        replaced = np.zeros(len(chains), np.int32)
        return cls(codes=codes, chains=chains, replaced=replaced, forms=[""] * len(chains))

    def read(self, i: int, parsed: ParsedSequence, text: str) -> None:
        """Take a sequence that was read from a text."""
        self.chains[i], self.replaced[i], self.forms[i] = parsed
        if STOP_CODON in text:
            self.stopped.append(i)

    def refuse(self, i: int, kind: Kind, text: str, error: AbagError, where: str) -> None:
        """List a sequence, of this text in the cell, as bad."""
        msg = f"{where}: {error}".rstrip(".") + "."
        self.bad[i] = BadCell(kind, REASONS[type(error)], text, msg, type(error))

    @property
    def longest(self) -> int:
        """Residues of the longest chain."""
        return max(map(len, chain.from_iterable(self.chains)), default=0)

    def good_chains(self) -> Iterator[Chains]:
        """Yield the sequences that are not bad."""
        return (chains for i, chains in enumerate(self.chains) if i not in self.bad)

    @property
    def bad_texts(self) -> list[str]:
        """Texts of the bad cells that hold any."""
        return [cell.text for cell in self.bad.values() if cell.text.strip()]

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


_Codes: TypeAlias = tuple[NDArray[np.int64], Sequence[Any]]
"""The index of each row's cell, (R,), and the distinct cells, as `Table.factorize` returns them."""


def _distinct_rows(columns: Sequence[_Codes]) -> tuple[NDArray[np.int64], list[tuple[Any, ...]]]:
    """Return the index of each row's cells in these columns, (R,), and the distinct ones."""
    row_R = np.zeros(len(columns[0][0]), np.int64)
    rows: list[tuple[Any, ...]] = [()]
    for code_R, cells in columns:
        codes, pairs = pd.factorize(row_R * len(cells) + code_R)
        row_R = codes.astype(np.int64)
        places = [divmod(pair, len(cells)) for pair in pairs.tolist()]
        rows = [(*rows[before], cells[at]) for before, at in places]
    return row_R, rows


def parse_column(
    table: Table, role: str, parse: Callable[[str], ParsedSequence], references: References
) -> ParsedColumn:
    """Parse each distinct text of a column; those that cannot be read are listed as bad."""
    name = table.column(role)
    kind: Kind = "antigen" if role == "antigen" else "antibody"
    codes, texts = table.factorize(role, by_name=role in references.by_name)
    column = ParsedColumn.unread(codes, [(text,) for text in texts])
    # a string of both chains is always looked at: it may have to be split
    todo: Sequence[int] = range(len(texts))
    if parse is not parse_antibody and role not in references.by_name:
        ascii_texts = [x if isinstance(x, str) and x.isascii() else "" for x in texts]
        is_clean = have_motif(_CLEAN_CHAIN, pa.array(ascii_texts, pa.large_string()))
        todo = np.flatnonzero(~is_clean).tolist()
    for i in bar(iterable=todo, desc=f"reading {name}", unit=" texts", delay=2):
        try:
            text = references.text(role, texts[i])
            column.read(i, parse(text), text)
            # ColabFold writes complexes of any chains with a colon
            if are_joined(texts[i]) or (role == "antibody" and ":" in text):
                column.joined.append(i)
        except UNREADABLE as error:
            column.chains[i] = ("", "") if parse is parse_antibody else ("",)
            column.refuse(i, kind, str(texts[i]), error, f"column {name!r}")
    if role == "antigen":
        column.mark("joined antigen", column.joined)
    return column


def parse_variants(
    table: Table, kind: Kind, options: TableOptions, references: References
) -> ParsedColumn:
    """Parse the sequences of a kind that rows give as a parent and its mutations.

    Raises
    ------
    TableError
        If bad rows are to be skipped, but the variants are numbered in another way: those that fit
        do so by chance.
    """
    rules = references.rules[kind]
    constant = references.constant(kind)
    parents = _read_parents(table, kind, references) if constant is None else []
    parts = references.parts_of(kind)
    roles = references.mutations_of(kind)
    names = [table.column(role) for role in (*parts, *roles)]
    where = list_columns(names)
    of_chains = references.chain_of_role if kind == "antibody" else {}
    chains = [of_chains.get(role, "") for role in roles]
    codes, rows = _distinct_rows([*parents, *map(table.factorize, (*parts, *roles))])
    parse = parse_antibody if kind == "antibody" else parse_antigen
    no_chains: Chains = ("", "") if kind == "antibody" else ("",)
    column = ParsedColumn.unread(codes, [no_chains] * len(rows))
    variants: list[tuple[str, str]] = []
    for i, cells in enumerate(bar(iterable=rows, desc=f"reading {names[-1]}", delay=2)):
        texts_of_parent = cells[: len(parents)]
        changes = [*map(cell_name, cells[len(parents) :])]
        if parts:
            changes[: len(parts) + 1] = [_join_parts(parts, changes)]
        text = "; ".join(filter(None, changes))
        try:
            text = "; ".join(filter(None, map(of_chain, changes, chains)))
            for parent in texts_of_parent:
                if isinstance(parent, AbagError):
                    raise parent  # once per variant, so that each of its rows is listed
            parent_text = "|".join(texts_of_parent) if constant is None else constant
            variants.append((parent_text, text))
            parsed = parse(mutate(parent_text, text, rules))
            # mutations are of standard residues
            of_parent = parsed._replace(replaced=count_replaced(parent_text))
            column.read(i, of_parent, parent_text)
        except UNREADABLE as error:
            column.refuse(i, kind, text, error, where)
    misfits = [i for i, cell in column.bad.items() if cell.refusal is BadMutation]
    hint = propose_numbers(variants, rules) if misfits else ""
    if misfits and not hint and kind == "antibody" and references.antigen is not None:
        hint = propose_antigen(variants, references.antigen, table.column(roles[0]))
    if not hint:
        return column
    if options.bad_rows == "skip":
        table.refuse(
            f"{len(misfits):,} of {len(variants):,} cells of {where} do not fit the parent "
            f"({rules.words}), and others may fit by chance; expected those of its residues. {hint}"
        )
    for i in misfits:
        column.bad[i] = column.bad[i]._replace(advice=hint)
    return column


def _join_parts(parts: Sequence[str], cells: Sequence[str]) -> str:
    """Return the mutation whose `parts` are the first cells, and whose residue is the next one."""
    mutation = one_letter(cells[len(parts)])
    for part, cell in reversed([*zip(parts, cells, strict=False)]):  # each goes before the others
        # pandas writes 33 as 33.0 beside empty cells
        before = one_letter(cell.removesuffix(".0"))
        if part == "mutation_chain":
            if means_parent(mutation):  # whose rows may name a chain
                continue
            before += ":"
        mutation = before + mutation
    return mutation


def _read_parents(table: Table, kind: Kind, references: References) -> list[_Codes]:
    """Read the columns of parents: texts, or the errors of those that cannot be read."""
    roles: Sequence[str] = (kind,)
    if kind == "antigen":
        table.column("antigen", ", or give one antigen for all rows with --antigen SEQ")
    elif any(map(table.has, CHAIN_ROLES)):
        roles = CHAIN_ROLES
    else:
        table.column("antibody", ", or give one parent for all rows with --parent SEQ")
    columns: list[_Codes] = []
    for role in roles:
        if table.has(role):
            code_R, cells = table.factorize(role)
        else:
            code_R = np.zeros(len(table.frame), np.int64)
            cells = [""]
        texts: list[str | AbagError] = []
        for cell in cells:
            try:
                texts.append(references.text(role, cell))
            except UNREADABLE as error:
                texts.append(type(error)(f"column {table.column(role)!r}: {error}"))
        columns.append((code_R, texts))
    return columns


def parse_antibodies(table: Table, options: TableOptions, references: References) -> ParsedColumn:
    """Parse the antibodies of a table and bring their chains into place.

    Bad sequences are listed in the result.

    Raises
    ------
    MissingColumn
        If no column holds antibodies, or one holds names.
    TableError
        If a column holds parts of chains, or no text.
    """
    column = _read_antibodies(table, options, references)
    _place(column, table, options.chains)
    chains = column.chains
    forms = column.forms
    if options.antibody_region == "fv" or table.reader.cut:
        for i in bar(
            iterable=[i for i in range(len(column.chains)) if i not in column.bad],
            desc="cutting chains",
            unit=" texts",
            delay=2,
        ):
            chains[i], words = cut_to_domains(chains[i])
            forms[i] = "+".join(filter(None, [forms[i], *words]))
    else:
        heavies, lights = zip(*chains, strict=True)
        column.mark("flanked", [*{*find_flanked(heavies, "heavy"), *find_flanked(lights, "light")}])
    has_column = table.has("heavy")
    without_heavy = []
    for i, (heavy, _) in enumerate(chains):
        # |DIQ... says that there is none, unlike a light chain as the whole string
        if not heavy and (has_column or forms[i].startswith("one chain")):
            without_heavy.append(i)
    column.mark("light only", without_heavy)
    read = column.codes[~table.frame.index.isin([*table.reader.problems])]
    if any(chains[i][1] and i not in column.bad for i in read.tolist()):
        without_light = [i for i, (heavy, light) in enumerate(chains) if heavy and not light]
        column.mark("heavy only", without_light)
    column.mark("short", _with_short_chain(chains, SHORT_DOMAIN))
    column.mark("stopped", column.stopped)
    _refuse_parts(column, table)
    return column


def _read_antibodies(table: Table, options: TableOptions, references: References) -> ParsedColumn:
    """Parse the antibodies of a table as they are given."""
    if "antibody" in references.rules:
        return parse_variants(table, "antibody", options, references)
    if references.parent is not None:
        parent = parse_antibody(references.parent)
        return ParsedColumn.constant(len(table.frame), parent, references.parent)
    if table.has("antibody"):
        column = parse_column(table, "antibody", parse_antibody, references)
        _refuse_names(column, table, references)
        return column
    roles = [role for role in CHAIN_ROLES if table.has(role)]
    if not roles:
        _refuse_without_antibodies(table, options)
    if roles == ["light"] and "light" not in options.columns:  # heavy may be in another column
        light = table.column("light")
        table.refuse_missing(
            f"no column for heavy, only {light!r} for light",
            "Name it with --column heavy=NAME, or, if the antibodies have no heavy chains, the "
            f"other with {column_option('light', light)}.",
        )
    parsed = {role: parse_column(table, role, parse_chain, references) for role in roles}
    for role, column in parsed.items():
        _refuse_names(column, table, references, role)
    absent = ParsedColumn.constant(len(table.frame), ParsedSequence(("",)))
    names = quote_names([table.column(role) for role in roles])
    heavy = parsed.get("heavy", absent)
    return _join(heavy, parsed.get("light", absent), f"column {names}")


def _refuse_without_antibodies(table: Table, options: TableOptions) -> None:
    """Refuse a table without a column of antibodies."""
    refuse_other_header(table)
    commas = ", or separate columns by commas" if len(table.names) == 1 else ""
    suggestion = suggest_columns(table, options.no_antigen)
    if not suggestion:
        mutations = columns_of_mutations(table)
        if MUTATIONS["antigen"] in options.columns:
            suggestion = (
                "If all rows have one antibody, give it with --parent SEQ or --parent FILE."
            )
        elif mutations:
            suggestion = f"Column {mutations[0]!r} holds mutations, {_NEEDS_PARENT}"
        else:
            suggestion = (
                f"No {'other ' * table.has('antigen')}column holds sequences: write columns with "
                "those of whole chains, joined from "
                f"their positions or regions if the table has these ({CDR_PAGE}), or give a FASTA "
                "file or table of names and sequences with --sequences FILE."
            )
    advice = (
        "Name them with --column heavy=NAME, --column light=NAME or --column antibody=NAME"
        f"{commas}. {suggestion}"
    )
    has_antigen = "antigen" in options.decided or options.matrix or table.has("antigen")
    if options.proposes_no_antigen and not has_antigen and "antigen=" not in advice:
        # said here, too, so that it does not take another attempt to learn it
        advice += (
            " No column is named like an antigen, either: name it with --column antigen=NAME, give "
            "one for all rows with --antigen SEQ, or learn from antibodies alone with --no-antigen."
        )
    table.refuse_missing("no column for heavy, light or antibody", advice)


def describe_unused_chains(
    column: ParsedColumn, table: Table, options: TableOptions, ignored: Sequence[str]
) -> list[str]:
    """Refuse a table with unused columns of variable domains; say which the user left out.

    Nucleotides are looked at where no antibody has the chain that they encode.

    `column` has its antibodies, and `ignored` are columns that options replace. A column that
    repeats chains of the antibodies, or parts of them, holds no other domain.

    Raises
    ------
    TableError
        If a column holds domains that no role uses, and no option says that this is meant.
    """
    if table.frame.index[0]:  # the first chunk decides
        return []
    decided = {role for role in CHAIN_ROLES if role in options.columns}
    if options.parent is not None or "antibody" in options.columns:
        decided = {*CHAIN_ROLES}
    _refuse_coded_chains(column, table, decided)
    notes = []
    # another column may hold the chains of the rows in which that of the user is empty
    partly = {role: name for role in CHAIN_ROLES if (name := options.columns.get(role))}
    for name in unused_columns(table):
        if name in ignored:
            continue
        cells = []
        for row, text in domain_cells(table, name):
            if column.codes[row] not in column.bad:
                cells.append((column.chains[column.codes[row]], text))
        new: Counter[str] = Counter()
        rows = 0
        for chains, text in cells:
            types = _new_domains(text, chains)
            new.update(types)
            rows += bool(types)
            for role, residues in zip(CHAIN_ROLES, chains, strict=True):
                if role in types and role in partly and not residues:
                    table.refuse(
                        f"column {name!r} holds {role} variable domains of rows whose column "
                        f"{partly[role]!r} is empty; expected one column of {role} chains. Join "
                        f"the two into one and name it with {column_option(role, 'NAME')}, or "
                        f"remove {name!r} from the table."
                    )
        if not rows:
            continue
        roles = [role for role in CHAIN_ROLES if 2 * new[role] >= rows]
        held = f"column {name!r} holds {' and '.join(roles)} variable domains"
        if 2 * rows <= len(cells) or decided.issuperset(roles) or _is_derived(table, name, roles):
            notes.append(f"{held} that are not used")
            continue
        is_string = any(len({*domain_types(text)}) > 1 for _, text in cells) or len(roles) > 1
        use = column_option("antibody" if is_string else roles[0], name)
        keep = []
        if "antibody" in table.columns:
            keep.append(column_option("antibody", table.columns["antibody"]))
        else:
            for role in roles:
                if role not in decided:
                    keep.append(column_option(role, table.columns.get(role, "")))
        table.refuse(
            f"{held} that no role uses; expected all chains of the antibodies to have a role. Use "
            f"it with {use}, or leave it out with {' '.join(keep)}."
        )
    return notes


def _refuse_coded_chains(column: ParsedColumn, table: Table, decided: Set[str]) -> None:
    """Refuse a table that has a chain of its antibodies as nucleotides alone."""
    if len(column.bad) == len(column.chains):
        return
    for place, role in enumerate(CHAIN_ROLES):
        if role in decided or any(chains[place] for chains in column.good_chains()):
            continue
        for name in unused_columns(table):
            if role in coded_domains(table, name):
                table.refuse(
                    f"column {name!r} holds nucleotides of {role} variable domains, and no column "
                    f"holds {role} chains; expected amino acids. Translate it, or leave it out "
                    f"with {column_option(role, '')}."
                )


def _new_domains(text: str, chains: Sequence[str]) -> set[str]:
    """Return the types of the variable domains in a text that are of none of these chains."""
    pieces = re.split("[|:]", text)
    for residues in chains:
        if len(residues) < WHOLE_DOMAIN:
            continue
        rest: list[str] = []
        for piece in pieces:
            rest += [] if piece in residues else piece.split(residues)
        pieces = rest
    return {*domain_types("|".join(pieces))}


def _is_derived(table: Table, name: str, roles: Sequence[str]) -> bool:
    """Tell whether the chains of these roles are used, and were derived from those of a column."""
    used = [table.columns.get(role) or table.columns.get("antibody", "") for role in roles]
    if not all(used):
        return False
    are_mutants = all(IS_MUTANT.search(simplified(column)) for column in used)
    return are_mutants or OTHER_STATE.search(name) is not None


def _join(heavy: ParsedColumn, light: ParsedColumn, where: str) -> ParsedColumn:
    """Join the chains of each row; a row without any is bad."""
    codes, pairs = pd.factorize(heavy.codes * len(light.chains) + light.codes)
    heavy_N, light_N = np.divmod(pairs, max(1, len(light.chains)))
    places = [*zip(heavy_N.tolist(), light_N.tolist(), strict=True)]
    chains = [heavy.chains[h] + light.chains[k] for h, k in places]
    bad: dict[int, BadCell] = {}
    is_bad = heavy.is_bad()[heavy_N] | light.is_bad()[light_N]
    for i in np.flatnonzero(is_bad).tolist():
        h, k = places[i]
        bad[i] = heavy.bad.get(h) or light.bad[k]
    stopped = np.isin(heavy_N, heavy.stopped) | np.isin(light_N, light.stopped)
    msg = f"{where}: no antibody chain; expected at least one. Give a chain, or remove the row."
    no_chain = BadCell("antibody", REASONS[EmptySequence], "", msg, EmptySequence)
    for i, pair in enumerate(chains):
        if not any(pair):
            bad.setdefault(i, no_chain)
    return ParsedColumn(
        codes=codes,
        chains=chains,
        replaced=heavy.replaced[heavy_N] + light.replaced[light_N],
        forms=[""] * len(chains),
        bad=bad,
        stopped=np.flatnonzero(stopped).tolist(),
    )


def parse_antigens(table: Table, options: TableOptions, references: References) -> ParsedColumn:
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
        return ParsedColumn.constant(len(table.frame), ParsedSequence(NO_ANTIGEN))
    if "antigen" in references.rules:
        column = parse_variants(table, "antigen", options, references)
    elif references.antigen is not None:
        with located("antigen"):
            antigen = parse_antigen(sequence_text(references.antigen))
        column = ParsedColumn.constant(len(table.frame), antigen, references.antigen)
    else:
        if not table.has("antigen"):
            refuse_other_header(table)
            advice = (
                ", or add --matrix if each antigen has a column of labels, or give one antigen for "
                "all rows with --antigen SEQ"
            )
            if options.proposes_no_antigen:
                advice += ", or learn from antibodies alone with --no-antigen"
            candidates = antigen_candidates(table)
            if candidates:
                advice += f". {quote_names(candidates)} may hold it"
            table.column("antigen", advice)
        column = parse_column(table, "antigen", parse_antigen, references)
        if table.frame.index[0] == 0 and "antigen" not in references.by_name:
            _refuse_antigen_names(column, table, options)
    column.mark("short antigen", _with_short_chain(column.chains))
    column.mark("stopped antigen", column.stopped)
    return column


def _refuse_antigen_names(column: ParsedColumn, table: Table, options: TableOptions) -> None:
    """Refuse a table whose column of antigens holds names."""
    names = column.bad_texts
    distinct = len(column.chains) - 1  # less that of empty cells
    # what is longer, or has a stop codon, is a sequence with a fault
    bare = {text: text.replace(STOP_CODON, "") for text in names if not LONG_RUN.search(text)}
    names = [text for text in bare if not (is_sequence(bare[text]) or is_peptide(bare[text]))]
    # some names are valid residues, such as VEGF, or WT and XBB beside BA.1
    are_most = 2 * len(names) > distinct
    are_numbered = any(map(_NUMBERED_NAME.fullmatch, names))
    are_short = column.longest < SHORTEST_PEPTIDE and are_numbered
    if not (are_most or are_short):
        names = names_as_residues(table, table.column("antigen"))
    if column.longest < SHORT and names:
        columns = propose_columns(table)[1] or "--column antigen=NAME"
        msg = (
            f"{table.source}: column {table.column('antigen')!r} holds names, such as "
            f"{quoted(names[0])}, not sequences. If all rows have the same antigen, give its "
            f"sequence with --antigen SEQ; else name a column of sequences with {columns}, or give "
            "a FASTA file or table of names and sequences with --sequences FILE."
        )
        if options.proposes_no_antigen:
            msg += " If the label does not depend on it, learn from antibodies alone: --no-antigen."
        raise MissingColumn(msg)


def _refuse_names(
    column: ParsedColumn, table: Table, references: References, role: str = "antibody"
) -> None:
    """Refuse a table whose column of antibodies, or of their chains, holds names or mutations."""
    if table.frame.index[0] or role in references.by_name:
        return
    names = names_as_residues(table, table.column(role))
    if not names and 0 < column.longest <= _LONGEST_ID:
        names = distinct_texts(table, table.column(role))
    if not names:
        names = column.bad_texts if holds_names(table, table.column(role)) else []
        if len(names) < 2 or column.longest >= SHORT_DOMAIN:
            return
    where = f"column {table.column(role)!r}"
    if holds_mutations(table, table.column(role), with_wild=True):
        table.refuse(f"{where} holds mutations, {_NEEDS_PARENT}", MissingColumn)
    # longer ones, and those with a run of residues, may be sequences with a fault
    are_short = 2 * sum(len(name) >= SHORT for name in names) < len(names)
    if are_short and not any(map(LONG_RUN.search, names)):
        columns = propose_columns(table)[0] or "--column heavy=NAME and --column light=NAME"
        table.refuse(
            f"{where} holds names, such as {quoted(names[0])}, not sequences. Give a FASTA file "
            "or table of names and sequences with --sequences FILE, or name the columns of "
            f"sequences with {columns}.",
            MissingColumn,
        )


def _refuse_parts(column: ParsedColumn, table: Table) -> None:
    """Refuse a table whose heavy or light chains are all CDRs or other parts of a chain."""
    if table.frame.index[0]:  # the first chunk decides
        return
    for place, role in enumerate(CHAIN_ROLES):
        if any(len(chains[place]) >= SHORT_DOMAIN for chains in column.good_chains()):
            continue
        texts = [*filter(None, dict.fromkeys(chains[place] for chains in column.good_chains()))]
        if not texts:
            continue
        name = table.columns.get("antibody") or table.columns.get(role, role)
        loops = [text for text in texts if _CDR3.fullmatch(text)]  # other peptides hardly match
        are_loops = len(texts) > 1 and 2 * len(loops) > len(texts)
        if are_loops or REGION.search(name):
            table.refuse(
                f"column {name!r} holds parts of {role} chains, such as {quoted(texts[0])}; "
                "expected whole variable domains, of about 110 to 130 residues. Name the column "
                f"of these with --column {role}=NAME, or write each part into the chain of the "
                f"parent ({CDR_PAGE})."
            )


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
        chosen = np.union1d(chosen, np.flatnonzero(np.isin(unclear, column.joined)))
        column.mark("unclear", np.delete(unclear, chosen).tolist())
        unclear = unclear[chosen]
    is_misplaced = (heavy_N == LIGHT_TYPE) | (light_N == HEAVY_TYPE)
    unusual = np.flatnonzero(is_open & ~is_unclear & is_misplaced)
    todo = np.union1d(unclear, unusual).tolist()
    joined = {*column.joined}
    for i in bar(iterable=todo, desc="looking at chains", unit=" texts", delay=2):
        heavy, light = chains[i]
        types = (chain_types(heavy, heavy_N[i]), chain_types(light, light_N[i]))
        # told before the chains are placed: `types` keeps the order of the columns
        is_unknown = [
            len(text) >= WHOLE_DOMAIN and not domains
            for text, domains in zip(chains[i], types, strict=True)
        ]
        try:
            if i in joined and any(is_unknown) and any(types):
                other = chains[i][is_unknown.index(True)]
                msg = (
                    f"{quoted(other)} beside a variable domain is not one itself; expected heavy "
                    "and light. If it is the antigen, write it into a column of its own, else "
                    "write heavy|light"
                )
                raise UnsureDomains(msg)
            chains[i], forms[i] = place_chains(chains[i], types, places)
            if any(is_unknown):
                forms[i] += "+unknown"
        except UnsureDomains as error:
            names = [table.columns[role] for role in ANTIBODY_ROLES if role in table.columns]
            where = f"column {quote_names(names)}"
            column.refuse(i, "antibody", "|".join(chains[i]), error, where)


def _with_short_chain(sequences: Sequence[Chains], least: int = SHORT) -> list[int]:
    """Find the sequences with a chain of fewer than `least` residues, but not empty."""
    short = []
    for i, chains in enumerate(sequences):
        for residues in chains:
            if 0 < len(residues) < least:
                short.append(i)
                break
    return short
