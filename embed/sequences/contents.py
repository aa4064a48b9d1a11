"""Columns of sequences by what they hold: chosen among several, proposed, or refused.

A sample of the cells of a column decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from abag.core.errors import TableError
from abag.embed.sequences.chains import KINDS, REPLACED, RESIDUES, STANDARD_RESIDUES, Kind, is_word
from abag.embed.sequences.columns import SEQUENCE_ROLES, column_option
from abag.embed.sequences.domain_types import chain_types
from abag.embed.sequences.mutations import BadMutation, Mutation, read_mutations
from abag.embed.sequences.table_options import TableOptions
from abag.embed.sequences.tables import CHUNK_ROWS, Table

CHECKED_AT_MOST = 20  # cells of a column by which its content is recognized
SHORT = 20  # residues below which a chain may be a name, such as VEGF, or the H of a PDB file
# not a name; `*` is a stop codon, which is refused as a residue
_SEQUENCE = re.compile(rf"[{RESIDUES}{REPLACED}|:\s]{{{SHORT},}}\**\s*", re.IGNORECASE)
_PEPTIDE = re.compile(rf"[{STANDARD_RESIDUES}X]+(?:[|:][{STANDARD_RESIDUES}X]+)*\**", re.IGNORECASE)
_RESIDUES_ONLY = re.compile(rf"[{RESIDUES}{REPLACED}|:\s]+", re.IGNORECASE)
_PRONOUNCEABLE = re.compile(
    "(?:[B-DF-HJ-NP-TV-XZ]{0,2}[AEIOUY]{1,2})+[B-DF-HJ-NP-TV-XZ]{0,2}", re.IGNORECASE
)
SHORTEST_PEPTIDE = 5  # fewer letters are as likely a name: VEGF, EGFR
FEW = 3  # letters of a word, and words of a column, from which they are no chance
LOOKED_AT = 1_000
"""Distinct cells of a column by which its content is recognized."""
_NUCLEOTIDE_LETTERS = frozenset("ACGTUN|:")
REGION = re.compile("cdr|junction|fw?r[1-4]", re.IGNORECASE)
"""Names of columns that hold parts of a chain."""
_ANTIGEN_WORDS = re.compile(
    "antigen|target|epitope|virus|viral|strain|receptor|ligand|protein|pathogen|(?<![a-z])ag(?![a-z])",
    re.IGNORECASE,
)
"""Names of columns that may hold or name antigens."""
MOST_CANDIDATES = 4


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
    # one by one: pandas before 3 does not convert a column of lists as a whole
    cells = cells[[str(cell).strip() != "" for cell in cells]]
    # spread over the rows: a table may begin with its rows of one kind
    picked = np.linspace(0, len(cells) - 1, min(len(cells), CHECKED_AT_MOST)).astype(int)
    sequences = []
    for text in cells.iloc[picked]:
        if isinstance(text, str) and is_sequence(text):
            residues = "".join(text.upper().split()).rstrip("*")
            if not _NUCLEOTIDE_LETTERS.issuperset(residues):
                sequences.append(residues)
    return sequences if 2 * len(sequences) > len(picked) else []


def is_sequence(text: str) -> bool:
    """Tell whether a text may be a sequence, rather than a name."""
    return _SEQUENCE.fullmatch(text) is not None


def holds_sequences(table: Table, name: str) -> bool:
    """Tell whether most cells of a column are sequences."""
    return bool(_sequences_in(table, name))


def distinct_texts(table: Table, name: str) -> list[str]:
    """Return distinct texts of a column, from its first rows."""
    cells = table.frame[name].dropna().iloc[: 50 * LOOKED_AT].tolist()
    texts = dict.fromkeys(cell.strip() for cell in cells if isinstance(cell, str))
    return [text for text in texts if text][:LOOKED_AT]


def is_peptide(text: str) -> bool:
    """Tell whether a text consists of standard residues, as peptides do and some names."""
    return _PEPTIDE.fullmatch(text.strip()) is not None and not is_word(text)


def are_peptides(texts: Sequence[str]) -> bool:
    """Tell whether texts, none of which is a known name, are rather peptides than names."""
    peptides = [text for text in texts if is_peptide(text) and len(text) >= SHORTEST_PEPTIDE]
    words = [text for text in peptides if _reads_as_a_word(text)]
    return 10 * len(peptides) >= 9 * len(texts) > 0 and 2 * len(words) < len(peptides)


def _reads_as_a_word(text: str) -> bool:
    """Tell whether a text can be pronounced, which one peptide of 20 can."""
    is_long = len(text) >= SHORTEST_PEPTIDE and len({*text}) >= FEW
    return is_long and _PRONOUNCEABLE.fullmatch(text) is not None


def names_as_residues(table: Table, name: str) -> list[str]:
    """Return the cells of a column of names that would be read as sequences, else nothing.

    All cells are short then, and most are words or no residues at all.
    """
    texts = distinct_texts(table, name)
    if any(map(is_sequence, texts)):
        return []
    readable = [text for text in texts if _RESIDUES_ONLY.fullmatch(text) and not is_word(text)]
    others = [text for text in readable if is_peptide(text)]
    # with U or Z, which few sequences have
    names = [text for text in readable if text not in others and _reads_as_a_word(text)]
    if len(others) >= FEW and all(map(_reads_as_a_word, others)):
        names += others
    unreadable = len(texts) - len(readable)
    return names if 2 * (len(names) + unreadable) > len(texts) else []


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


def suggest_columns(table: Table) -> str:
    """Propose columns by their content: one for each role, and the others as alternatives."""
    proposals: dict[str, list[str]] = {"heavy": [], "light": [], "antibody": [], "antigen": []}
    for name in map(str, table.frame.columns):
        role = "" if REGION.search(name) else _role_by_content(table, name)
        if role:
            proposals[role].append(column_option(role, name))
    heavy = _any_of(proposals["heavy"])
    light = _any_of(proposals["light"])
    paired = f"{heavy} {light}".strip()
    antibodies = _any_of([paired, *proposals["antibody"]] if paired else proposals["antibody"])
    antigens = _any_of(proposals["antigen"])
    proposal = f"{antibodies} {antigens}".strip()
    return f"By their content: {proposal}." if proposal else _advise_without_sequences(table)


def _advise_without_sequences(table: Table) -> str:
    """Say what to do about a table in which no column holds sequences."""
    mutations = _column_of_mutations(table)
    if mutations:
        return (
            f"Column {mutations!r} holds mutations: give the antibody that they are of with "
            "--parent SEQ or --parent FILE."
        )
    return (
        "No column holds sequences: add columns with those of the chains, or give a FASTA file or "
        "table of names and sequences with --sequences FILE."
    )


def _column_of_mutations(table: Table) -> str:
    """Return the first column with mutations that name the wild type; empty if there is none."""
    for name in map(str, table.frame.columns):
        distinct = table.frame[name].iloc[:CHUNK_ROWS].dropna().unique()
        mutations: list[Mutation] = []
        try:
            for cell in distinct[:CHECKED_AT_MOST].tolist():
                mutations += read_mutations(str(cell))
        except BadMutation:
            continue
        if mutations and all(mutation.wild for mutation in mutations):
            return name
    return ""


def _any_of(options: Sequence[str]) -> str:
    """Join alternatives, in parentheses; empty without any."""
    listed = " or ".join(options)
    return f"({listed})" if len(options) > 1 else listed


def _as_options(roles: Iterable[tuple[str, str]]) -> str:
    """Spell the options that give roles other columns."""
    return " ".join(column_option(role, name) for role, name in roles)


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
    ignored = []
    for role, replacement in replaced_by.items():
        name = table.columns.get(role)
        if name is None or name == table.columns.get("mutations"):
            continue
        if role == "antigen" and options.no_antigen:
            ignored.append(f"column {name!r} is ignored: {replacement} (--no-antigen)")
        else:
            ignored.append(f"column {name!r} is ignored, replaced by {replacement}")
    for name in antigen_candidates(table) if options.no_antigen else ():
        is_constant = table.frame[name].dropna().astype(str).nunique() <= 1
        if not is_constant and name != table.columns.get("antigen"):
            ignored.append(
                f"column {name!r} may hold antigens, and is not used: antibodies alone "
                "(--no-antigen)"
            )
    kept = {role: name for role, name in table.columns.items() if role not in replaced_by}
    ties = {role: names for role, names in table.ties.items() if role not in replaced_by}
    return replace(table, columns=kept, ties=ties), ignored


def antigen_candidates(table: Table) -> list[str]:
    """List the unused columns that may hold or name antigens, by their names or content."""
    used = {*table.columns.values()} - {table.columns.get("antigen_name")}
    candidates = []
    for name in map(str, table.frame.columns):
        if name in used:
            continue
        if _ANTIGEN_WORDS.search(name) or _role_by_content(table, name) == "antigen":
            candidates.append(name)
    return candidates[:MOST_CANDIDATES]
