"""What the columns of a table hold, by their cells: sequences, chains, names, methods.

Where names of columns do not decide their roles, a sample of the cells does. A table whose columns
hold the chains of one another is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from abag.core.messages import quoted
from abag.embed.tables.chains import (
    ALONE,
    ANTIBODY_ROLES,
    CHAIN_ROLES,
    KINDS,
    LONG_RUN,
    MUTATION_ROLES,
    REPLACED,
    RESIDUES,
    SEQUENCE_ROLES,
    STANDARD_RESIDUES,
    WHOLE_DOMAIN,
    Kind,
    is_word,
    translated,
    unlisted,
)
from abag.embed.tables.columns import (
    MissingColumn,
    column_option,
    may_hold,
    quote_some,
    simplified,
)
from abag.embed.tables.formats import CHUNK_ROWS
from abag.embed.tables.numbering import domain_types
from abag.embed.tables.options import TableOptions
from abag.embed.tables.table import Table, listed_cells, read_numbers

CHECKED_AT_MOST = 20  # cells of a column by which its content is recognized
SHORT = 20  # residues below which a chain may be a name, such as VEGF, or the H of a PDB file
# not a name; `*` is a stop codon, which is no residue
_SEQUENCE = re.compile(rf"[{RESIDUES}{REPLACED}|:\s]{{{SHORT},}}\**\s*", re.IGNORECASE)
_PEPTIDE = re.compile(rf"[{STANDARD_RESIDUES}X]+(?:[|:][{STANDARD_RESIDUES}X]+)*\**", re.IGNORECASE)
_RESIDUES_ONLY = re.compile(rf"[{RESIDUES}{REPLACED}|:\s]+", re.IGNORECASE)
_PRONOUNCEABLE = re.compile(
    "(?:[B-DF-HJ-NP-TV-XZ]{0,2}[AEIOUY]{1,2})+[B-DF-HJ-NP-TV-XZ]{0,2}", re.IGNORECASE
)
SHORTEST_PEPTIDE = 5  # fewer letters are as likely a name: VEGF, EGFR
SHORTEST_OF_ONE_LENGTH = 8  # shorter names may be as long as each other: Alpha, Gamma, Delta
FEW = 3  # letters of a word, and words of a column, from which they are no chance
_NUCLEOTIDE_LETTERS = frozenset("ACGTUN|:")
REGION = re.compile("cdr|junction|f(r|wr?)[1-4]|paratope", re.IGNORECASE)
"""Names of columns that hold parts of a chain."""
ANTIGEN_WORDS = re.compile(
    "antigen|target|epitope|virus|viral|strain|receptor|ligand|protein|pathogen|(?<![a-z])ag(?![a-z])",
    re.IGNORECASE,
)
"""Names of columns that may hold or name antigens."""
_ANTIBODY_WORDS = re.compile(
    "antibod|nanobod|contig|linker|(?<![a-z])(m?ab|vhh|v[hkl]|vd?j|bcr)(?![a-z])", re.IGNORECASE
)
"""Names of columns of antibodies, or of what joins them, if they do not name antigens as well."""
_RECEPTOR = re.compile(
    r"(?<![a-z])(tcr|tr)[ _.-]?((?P<light>a|alpha|g|gamma)|b|beta|d|delta)(?![a-z])", re.IGNORECASE
)
"""Names of columns of T cell receptor chains; those without D segments are like light chains."""
_LINKER = re.compile("linker", re.IGNORECASE)
"""Names of columns of what joins chains or antibodies."""
_ANTIGEN_CHAIN = re.compile("(antigen|ag|target)(?!.*(epitope|peptide|germline|nt|dna)).*")
"""Names of columns, simplified, that may hold a chain of antigens."""
MOST_CANDIDATES = 4
OTHER_STATE = re.compile(
    "germ ?line|parent|wild.?type|(?<![a-z])wt(?![a-z])|naive|unmutated|inferred|ancest|template|"
    "(?<![a-z])uca(?![a-z])",
    re.IGNORECASE,
)
"""Names of columns of the chains that those of the row were derived from."""
_FORMATS = re.compile("(scfv|fab|nanobody|sdab)(chain)?")
"""Names of columns, simplified, that hold antibodies, their names, or whether they are such."""
_DEFAULTS = TableOptions()
CDR_PAGE = "docs/how-to/own-table.md, CDRs of one antibody"
"""Where it is said how parts of chains are written into their parent."""
_CHAIN_LETTERS = {
    "heavy": re.compile("h|(h|fabh|fvh)(chain|seq|sequence|aa)|(chain|seq|sequence|aa)h"),
    "light": re.compile("[lk]|([lk]|fabl|fvl)(chain|seq|sequence|aa)|(chain|seq|sequence|aa)[lk]"),
}
"""Names of columns that hold chains if one of the other chain is beside them."""
_AS_X = str.maketrans(REPLACED, "X" * len(REPLACED))
_BESIDE_RESIDUES = re.compile(r"(?m)^\s*>.*|[^A-Z|:,;\t]|[,;\t]\s*\Z")
"""What a cell may have beside residues: a line of FASTA, gaps, numbers, quotation marks. With other
commas or tabs, it is lines of a table that a quotation mark joins."""


def with_content(table: Table, options: TableOptions) -> tuple[Table, list[str]]:
    """Choose columns by what they hold, where their names do not decide; say which."""
    roles = roles_by_content(table, options)
    columns = dict(table.columns)
    string = columns.get("antibody")
    chains = {role: columns[role] for role in CHAIN_ROLES if role in columns}
    is_open = roles.keys().isdisjoint(chains) and options.columns.keys().isdisjoint(chains)
    if string and is_open and all(holds_names(table, name) for name in chains.values()):
        if holds_sequences(table, string):
            columns = {role: name for role, name in columns.items() if role not in chains}
    remarks = []
    for role, name in roles.items():
        instead = columns.get(role)
        if instead is not None:
            held = "nucleotides" if holds_nucleotides(table, instead) else "no sequences"
            held = "names" if holds_names(table, instead) else held
            remarks.append(f"column {name!r} is used as {role}: {instead!r} holds {held}")
        elif role in ANTIBODY_ROLES and role not in table.ties:
            remarks.append(f"column {name!r} is used as {role}: it holds {role} variable domains")
    ties = {role: names for role, names in table.ties.items() if role not in roles}
    return replace(table, columns=columns | roles, ties=ties), remarks


def roles_by_content(table: Table, options: TableOptions = _DEFAULTS) -> dict[str, str]:
    """Choose columns by their cells: for roles that several fit, and for chains that none fits.

    Of several, it is the only one that holds sequences. A chain without a column gets the only
    column of such variable domains, if the other chain has one, or if both are called by letters.
    """
    columns = _of_residues(table, options)
    for tied_role in filter(table.ties.get, SEQUENCE_ROLES):
        held = [name for name in table.ties[tied_role] if holds_sequences(table, name)]
        if len(held) == 1:
            columns[tied_role] = held[0]
    if options.parent is not None or "antibody" in options.columns:
        return columns
    if not any(map(table.has, ANTIBODY_ROLES)):  # `scfv` may also tell whether it is one
        formats = [name for name in table.names if _FORMATS.fullmatch(simplified(name))]
        strings = [name for name in formats if domain_cells(table, name)]
        if len(strings) == 1:
            return {**columns, "antibody": strings[0]}
    absent = [x for x in CHAIN_ROLES if not table.has(x) and x not in options.columns]
    named: dict[str, str] = {}
    for absent_role in absent:
        name = _only_column_of(table, absent_role, {*columns.values()})
        if name:
            named[absent_role] = name
    if len(absent) == 1:  # beside an antibody in one string, it may be a part of that
        is_beside = table.has("light" if absent == ["heavy"] else "heavy")
        return columns | named if is_beside else columns
    are_letters = len(named) == len(CHAIN_ROLES) and all(
        _CHAIN_LETTERS[role].fullmatch(simplified(name)) for role, name in named.items()
    )
    string = table.columns.get("antibody")
    if are_letters and not (string is not None and holds_sequences(table, string)):
        return columns | named
    return columns


def _only_column_of(table: Table, role: str, taken: set[str]) -> str:
    """Return the only unused column that holds domains of one chain; empty if there is another."""
    columns = []
    for name in unused_columns(table):
        if name in taken or ANTIGEN_WORDS.search(name) or OTHER_STATE.search(name):
            continue
        types = [{*domain_types(text)} for _, text in domain_cells(table, name)]
        if 2 * types.count({role}) > len(types):
            columns.append(name)
    return columns[0] if len(columns) == 1 else ""


def unused_columns(table: Table) -> list[str]:
    """List the columns that play no role of a sequence."""
    used = {table.columns.get(role) for role in SEQUENCE_ROLES}
    for role in SEQUENCE_ROLES:
        used.update(table.ties.get(role, ()))
    return [name for name in table.names if name not in used]


def domain_cells(table: Table, name: str) -> list[tuple[int, str]]:
    """Return some cells of a column that hold variable domains, with their rows in the frame.

    Few cells are enough: those that are too short for a domain, such as notes, are not counted.
    """
    row_of_text: dict[str, int] = {}
    column = table.frame[name]
    rows = np.arange(min(len(column), CHUNK_ROWS))
    if isinstance(column.dtype, pd.StringDtype):  # text files have 10,000 columns of short ones
        lengths = pc.utf8_length(pa.array(column.array[:CHUNK_ROWS]))
        rows = np.flatnonzero(np.asarray(lengths) >= WHOLE_DOMAIN)
    if not len(rows):
        return []
    for row, cell in zip(rows.tolist(), listed_cells(column.iloc[rows]), strict=True):
        if isinstance(cell, str) and len(cell) >= WHOLE_DOMAIN:
            row_of_text.setdefault(cell, row)
    texts = [*row_of_text]
    picked = np.linspace(0, len(texts) - 1, min(len(texts), CHECKED_AT_MOST)).astype(int)
    cells = []
    for at in picked.tolist():
        residues = _BESIDE_RESIDUES.sub("", unlisted(texts[at]).upper()).translate(_AS_X)
        if not is_sequence(residues) or _NUCLEOTIDE_LETTERS.issuperset(residues):
            continue
        if domain_types(residues):
            cells.append((row_of_text[texts[at]], residues))
    return cells if 2 * len(cells) > len(picked) else []


def _of_residues(table: Table, options: TableOptions) -> dict[str, str]:
    """Choose, for roles whose columns hold no residues, the only other one that does."""
    given = {"antigen"} if options.antigen is not None else set[str]()
    if options.parent is not None:
        given.update(ANTIBODY_ROLES)
    columns: dict[str, str] = {}
    for role in SEQUENCE_ROLES:
        name = table.columns.get(role)
        if name is None or role in options.columns or role in given:
            continue
        are_names = holds_names(table, name)
        is_blank = not distinct_texts(table, name)  # or numbers: `VH_mut` may count mutations
        if not (are_names or is_blank or holds_nucleotides(table, name)):
            continue
        used = {*table.columns.values()}
        others = [x for x in table.names if x not in used and not holds_nucleotides(table, x)]
        fits = may_hold(others, options.columns, [role])
        held = [other for other in fits if holds_sequences(table, other)]
        if len(held) == 1:
            columns[role] = held[0]
            if are_names and role in KINDS and not table.has(f"{role}_name"):
                columns[f"{role}_name"] = name
    return columns


def holds_names(table: Table, name: str) -> bool:
    """Tell whether the filled cells of a column are neither sequences nor peptides."""
    texts = distinct_texts(table, name)
    return bool(texts) and not (any(map(is_sequence, texts)) or are_peptides(texts))


def _sequences_in(table: Table, name: str, *, nucleotides: bool = False) -> list[str]:
    """Return some texts of a column if most of them are sequences, or nucleotides, else nothing."""
    cells = table.frame[name].iloc[:CHUNK_ROWS].dropna()
    if isinstance(cells.dtype, pd.StringDtype):
        cells = cells[cells.str.strip() != ""]
    else:  # one by one: pandas before 3 does not convert a column of lists as a whole
        cells = cells[[str(cell).strip() != "" for cell in listed_cells(cells)]]
    # spread over the rows: a table may begin with its rows of one kind
    picked = np.linspace(0, len(cells) - 1, min(len(cells), CHECKED_AT_MOST)).astype(int)
    sequences = []
    for text in listed_cells(cells.iloc[picked]):
        if isinstance(text, str) and is_sequence(text):
            residues = "".join(unlisted(text).upper().split()).rstrip("*")
            if _NUCLEOTIDE_LETTERS.issuperset(residues) == nucleotides:
                sequences.append(residues)
    return sequences if 2 * len(sequences) > len(picked) else []


def is_sequence(text: str) -> bool:
    """Tell whether a text may be a sequence, rather than a name."""
    return _SEQUENCE.fullmatch(unlisted(text)) is not None and not is_word(text)


def holds_sequences(table: Table, name: str) -> bool:
    """Tell whether most cells of a column are sequences."""
    return bool(_sequences_in(table, name))


def holds_nucleotides(table: Table, name: str) -> bool:
    """Tell whether most cells of a column are nucleotides."""
    return bool(_sequences_in(table, name, nucleotides=True))


def coded_domains(table: Table, name: str) -> set[str]:
    """Return the types of variable domains that most cells of nucleotides encode."""
    texts = _sequences_in(table, name, nucleotides=True)
    types = [{*domain_types(translated(text))} for text in texts]
    return {role for role in CHAIN_ROLES if 2 * sum(role in held for held in types) > len(texts)}


def distinct_texts(table: Table, name: str) -> list[str]:
    """Return distinct texts of a column, from its first rows."""
    cells = table.distinct_cells(name)
    return [*dict.fromkeys(cell.strip() for cell in cells if isinstance(cell, str))]


def is_peptide(text: str) -> bool:
    """Tell whether a text consists of standard residues, as peptides do and some names."""
    return _PEPTIDE.fullmatch(text.strip()) is not None and not is_word(text)


def are_peptides(texts: Sequence[str]) -> bool:
    """Tell whether texts, none of which is a known name, are rather peptides than names."""
    peptides = [text for text in texts if is_peptide(text) and len(text) >= SHORTEST_PEPTIDE]
    return 10 * len(peptides) >= 9 * len(texts) > 0 and 2 * len(_words_in(peptides)) < len(peptides)


def _words_in(texts: Sequence[str]) -> list[str]:
    """Return the texts of residues that can be pronounced, unless they vary one peptide."""
    lengths = {*map(len, texts)}
    if len(texts) >= FEW and len(lengths) == 1 and min(lengths) >= SHORTEST_OF_ONE_LENGTH:
        return []  # FEAQKAKANKAVD, FEAQKAKANKAVE, ...
    return [text for text in texts if _reads_as_a_word(text)]


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
    if FEW <= len(others) == len(_words_in(others)):
        names += others
    unreadable = len(texts) - len(readable)
    return names if 2 * (len(names) + unreadable) > len(texts) else []


def role_by_content(table: Table, name: str) -> str:
    """Tell the role that a column may play by some of its texts; empty without sequences."""
    texts = _sequences_in(table, name)
    types = [{*domain_types(text)} for text in texts]
    if 2 * types.count(set()) >= len(texts):
        return "antigen" if texts else ""
    most = [role for role in CHAIN_ROLES if 2 * types.count({role}) > len(texts)]
    return most[0] if most else "antibody"


def suggest_columns(table: Table, no_antigen: bool) -> str:
    """Propose columns by their content, if no column is of antibodies; empty without sequences."""
    antibodies, antigens = propose_columns(table, no_antigen)
    advice = []
    if not antibodies:
        whole = [name for name in table.names if not REGION.search(name)]
        coded = [name for name in whole if holds_nucleotides(table, name)]
        hold = f"{quote_some(coded)} {'holds' if len(coded) == 1 else 'hold'}"
        if coded:
            advice.append(f"{hold} nucleotides: translate them into amino acids.")
    proposed = antibodies if table.has("antigen") else f"{antibodies} {antigens}".strip()
    if proposed:
        advice.append(f"By their content: {proposed}.")
    return " ".join(advice)


def propose_columns(table: Table, no_antigen: bool = False) -> tuple[str, str]:
    """Propose columns of antibodies and of antigens by their content: one for each role, or more.

    Those that may play one role are alternatives; either may be empty.
    """
    other = "heavy" if no_antigen else "antigen"
    proposals: dict[str, list[str]] = {"heavy": [], "light": [], "antibody": [], "antigen": []}
    for name in table.names:
        role = "" if REGION.search(name) else role_by_content(table, name)
        if role == "antigen":
            role = "" if _LINKER.search(name) else _role_by_name(name) or other
        if role:
            proposals[role].append(column_option(role, name))
    heavy = _any_of(proposals["heavy"])
    light = _any_of(proposals["light"])
    paired = f"{heavy} {light}".strip()
    antibodies = _any_of([paired, *proposals["antibody"]] if paired else proposals["antibody"])
    return antibodies, _any_of(proposals["antigen"])


def _role_by_name(name: str) -> str:
    """Tell which role of antibodies a column is named like; empty if it is named like antigens."""
    if receptor := _RECEPTOR.search(name):
        return "light" if receptor["light"] else "heavy"
    is_antibody = _ANTIBODY_WORDS.search(name) is not None and not ANTIGEN_WORDS.search(name)
    return "antibody" if is_antibody else ""


def _any_of(options: Sequence[str]) -> str:
    """Join alternatives, in parentheses; empty without any."""
    listed = " or ".join(options)
    return f"({listed})" if len(options) > 1 else listed


def refuse_other_header(table: Table) -> None:
    """Refuse a table that lacks a line of names, or has lines above it.

    Otherwise the first pair would be taken for the names of the columns, and be lost.

    Raises
    ------
    MissingColumn
        If the first line holds a sequence, or a row below it the names of columns.
    """
    for name in map(str, table.names):
        if len(name) >= WHOLE_DOMAIN and name.isupper() and is_peptide(name):
            table.refuse(
                f"the first line holds a sequence, {quoted(name)}; expected the names of the "
                "columns. Add a line with them, such as heavy,light,antigen,pKd.",
                MissingColumn,
            )
    first = table.frame.head(CHECKED_AT_MOST)
    for number, cells in enumerate(zip(*(listed_cells(first[x]) for x in first), strict=True)):
        names = [text for cell in cells if isinstance(cell, str) and (text := cell.strip())]
        if any(map(LONG_RUN.search, names)):  # a pair, beside the types of its chains
            return
        if len(may_hold(names, {}, SEQUENCE_ROLES)) > 1:
            table.refuse(
                f"row {table.first_row + number} holds {quote_some(names)}; expected the names of "
                "the columns in the first line. Remove the lines above it.",
                MissingColumn,
            )


def refuse_exchanged(table: Table, options: TableOptions, kinds: Sequence[Kind]) -> None:
    """Refuse a table whose columns hold the chains of one another, by a sample of each."""
    columns = {role: name for role, name in table.columns.items() if role in SEQUENCE_ROLES}
    antigens = columns.pop("antigen", None)
    held = {role: role_by_content(table, name) for role, name in columns.items()}
    heavy = held.get("heavy")
    light = held.get("light")
    exchanged = (heavy == "light" and light != "light") or (light == "heavy" and heavy != "heavy")
    if exchanged and options.chains != "auto":
        heavy_option = column_option("heavy", columns.get("light", "NAME"))
        light_option = column_option("light", columns.get("heavy", "NAME"))
        table.refuse(
            "most rows hold a light chain in the place of the heavy one, or the reverse; expected "
            f"heavy and light. Exchange the columns with {heavy_option} {light_option}, or use "
            "--chains auto."
        )
    # antigens may be antibodies, so that they alone decide nothing
    others = [role for role, content in held.items() if content == "antigen"]
    if not others or antigens is None or len(kinds) < len(KINDS):
        return
    content = role_by_content(table, antigens)
    if content not in ("antigen", ""):
        table.refuse(
            "most antigens are variable domains of antibodies, and most antibodies hold another "
            "chain; expected antibodies and antigens. Exchange the columns with "
            f"{column_option(content, antigens)} {column_option('antigen', columns[others[0]])}."
        )


def drop_unused_roles(table: Table, options: TableOptions) -> tuple[Table, list[str]]:
    """Drop the roles that the options, or heavy and light columns, replace; say which."""
    replaced_by: dict[str, str] = {}
    if options.antigen is not None:
        replaced_by["antigen"] = "--antigen"
    if options.no_antigen:
        replaced_by["antigen"] = ALONE
    if options.parent is not None:
        replaced_by |= dict.fromkeys(ANTIBODY_ROLES, "--parent")
    elif "antibody" in options.columns:
        column = f"column {options.columns['antibody']!r}"
        replaced_by |= {"heavy": column, "light": column}
    elif table.has("heavy") or table.has("light"):
        replaced_by["antibody"] = "the columns of heavy and light chains"
    ignored = []
    mutated = {table.columns.get(role) for role in MUTATION_ROLES}
    for role, replacement in replaced_by.items():
        name = table.columns.get(role)
        if name is None or name in mutated:
            continue
        why = ": " if replacement == ALONE else ", replaced by "
        ignored.append(f"column {name!r} is ignored{why}{replacement}")
    for name in antigen_candidates(table) if options.no_antigen else ():
        is_constant = table.frame[name].dropna().astype(str).nunique() <= 1
        if not is_constant and name != table.columns.get("antigen"):
            ignored.append(f"column {name!r} may hold antigens, and is not used: {ALONE}")
    if "antigen" in table.columns and "antigen" not in replaced_by:
        for name in unused_columns(table):
            if _ANTIGEN_CHAIN.fullmatch(simplified(name)) and holds_sequences(table, name):
                ignored.append(
                    f"column {name!r} holds sequences that are not used; if they are further "
                    "chains of the antigens, join them with | in one column"
                )
    kept = {role: name for role, name in table.columns.items() if role not in replaced_by}
    ties = {role: names for role, names in table.ties.items() if role not in replaced_by}
    return replace(table, columns=kept, ties=ties), ignored


def holds_numbers(table: Table, name: str) -> bool:
    """Tell whether all cells of a column are numbers, none of which is a code such as 0101."""
    cells = pd.Series(table.distinct_cells(name), dtype=object)
    are_codes = any(isinstance(cell, str) and re.match(r"\s*0[0-9]", cell) for cell in cells)
    return not are_codes and bool(np.isfinite(read_numbers(cells)).all())


def _holds_measurements(table: Table, name: str) -> bool:
    """Tell whether all cells are numbers that no name is, as of ``off_target_affinity``."""
    cells = table.distinct_cells(name)
    return not cells or (holds_numbers(table, name) and any("." in str(cell) for cell in cells))


def antigen_candidates(table: Table) -> list[str]:
    """List the unused columns that may hold or name antigens, by their names or content."""
    used = {*table.columns.values()} - {table.columns.get("antigen_name")}
    candidates = []
    for name in table.names:
        if name in used or REGION.search(name) or may_hold([name], {}, CHAIN_ROLES):
            continue
        is_named = ANTIGEN_WORDS.search(name) and not _holds_measurements(table, name)
        if is_named or role_by_content(table, name) == "antigen":
            candidates.append(name)
    return candidates[:MOST_CANDIDATES]
