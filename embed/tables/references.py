"""What the cells of a table hold or refer to: sequences, names of sequences, mutations of parents.

What a table refers to is decided once, from its first rows. Columns of names are found by the names
in them, columns of mutations by their names and content. A name with two different sequences is
refused, or is not found.
"""

from __future__ import annotations

import gzip
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np

from abag.core.errors import AbagError, ColumnError, SequenceError, TableError
from abag.core.messages import counted, quoted
from abag.embed.tables.chains import (
    ALONE,
    KINDS,
    MISSING_TEXT,
    PLURAL,
    REPLACED,
    RESIDUES,
    STANDARD_RESIDUES,
    Kind,
    is_word,
    parse_antibody,
    parse_antigen,
    sequence_text,
)
from abag.embed.tables.columns import (
    CHAIN_ROLES,
    SEQUENCE_ROLES,
    MissingColumn,
    column_option,
    quote_names,
    quote_some,
    simplified,
    with_found,
)
from abag.embed.tables.domain_types import HEAVY_TYPE, LIGHT_TYPE, chain_types, find_types
from abag.embed.tables.domains import WHOLE_DOMAIN, find_domains
from abag.embed.tables.formats import FORMATS, bare_suffix, cell_text, is_gzip
from abag.embed.tables.mutations import (
    BadMutation,
    ChainId,
    Mutation,
    MutationRules,
    means_parent,
    read_mutations,
)
from abag.embed.tables.options import Numbering, ReferenceOptions, TableOptions
from abag.embed.tables.table import ANTIGEN_COLUMN, CHUNK_ROWS, Table, read_table

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
_SAYS_ASSAY = re.compile("assay|stud(y|ies)|dataset")
"""Names of columns, simplified, that say what they hold, unlike ``source``."""
_METHODS = re.compile(
    r"\b(spr|bli|biacore|octet|carterra|fortebio|elisas?|itc|kinexa|facs|flow|cytometry|mst|htrf|"
    r"fret|alpha ?(lisa|screen|seq)|assays?|titrations?|tite ?seq|displays?|panning|calorimetry|"
    r"thermophoresis|fluorescence|anisotropy|polari[sz]ation|interferometry|plasmon|resonance|"
    r"neutrali[sz]ation|pseudovirus|radioimmunoassay|ria|binding|kinetics?|sensorgrams?|luminex|"
    r"skempi|ab ?bind|sabdab|abbind|pdbbind|biomap|alphabind|flab|atlas)\b"
)
"""Methods of measuring, and collections of measurements, in lower case with spaces for signs."""
_OTHER_STATE = re.compile(
    "germ ?line|parent|wild.?type|(?<![a-z])wt(?![a-z])|naive|unmutated|inferred|ancest|template|"
    "(?<![a-z])uca(?![a-z])",
    re.IGNORECASE,
)
"""Names of columns of the chains that those of the row were derived from."""
_DEFAULTS = TableOptions()
_CHAIN_LETTERS = {
    "heavy": re.compile("h|(h|fabh|fvh)(chain|seq|sequence|aa)|(chain|seq|sequence|aa)h"),
    "light": re.compile("[lk]|([lk]|fabl|fvl)(chain|seq|sequence|aa)|(chain|seq|sequence|aa)[lk]"),
}
"""Names of columns that hold chains if one of the other chain is beside them."""
_NOT_RESIDUES = str.maketrans(REPLACED, "X" * len(REPLACED), "-.*")
"""Spelling of a sequence that may be aligned, and its residues that are read as X."""


def roles_by_content(table: Table, options: TableOptions = _DEFAULTS) -> dict[str, str]:
    """Choose columns by their cells: for roles that several fit, and for chains that none fits.

    Of several, it is the only one that holds sequences. A chain without a column gets the only
    column of such variable domains, if the other chain has one, or if both are called by letters.
    """
    columns = _among_ties(table)
    if options.parent is not None or "antibody" in options.columns:
        return columns
    absent: list[str] = []
    for role in CHAIN_ROLES:
        if not table.has(role) and role not in options.columns:
            absent.append(role)
    if not absent:
        return columns
    taken = {*columns.values()}
    named: dict[str, str] = {}
    for absent_role in absent:
        name = _only_column_of(table, absent_role, taken)
        if name:
            named[absent_role] = name
    if len(absent) == 1:  # beside an antibody in one string, it may be a part of that
        return {**columns, **named} if table.has(_other(absent[0])) else columns
    are_letters = len(named) == len(CHAIN_ROLES) and all(
        _CHAIN_LETTERS[role].fullmatch(simplified(name)) for role, name in named.items()
    )
    string = table.columns.get("antibody")
    has_strings = string in table.frame and holds_sequences(table, str(string))
    return {**columns, **named} if are_letters and not has_strings else columns


def _other(chain_role: str) -> str:
    heavy, light = CHAIN_ROLES
    return light if chain_role == heavy else heavy


def _only_column_of(table: Table, role: str, taken: set[str]) -> str:
    """Return the only unused column that holds domains of one chain; empty if there is another."""
    columns = []
    for name in unused_columns(table):
        if name in taken or _ANTIGEN_WORDS.search(name) or _OTHER_STATE.search(name):
            continue
        types = [_types_in(text) for _, text in domain_cells(table, name)]
        if 2 * types.count({role}) > len(types):
            columns.append(name)
    return columns[0] if len(columns) == 1 else ""


def unused_columns(table: Table) -> list[str]:
    """List the columns that play no role of a sequence."""
    used = {table.columns.get(role) for role in SEQUENCE_ROLES}
    for role in SEQUENCE_ROLES:
        used.update(table.ties.get(role, ()))
    return [str(name) for name in table.frame.columns if str(name) not in used]


def domain_cells(table: Table, name: str) -> list[tuple[int, str]]:
    """Return some cells of a column that hold variable domains, with their rows in the frame.

    Few cells are enough: those that are too short for a domain, such as notes, are not counted.
    """
    row_of_text: dict[str, int] = {}
    column = table.frame[name].iloc[:CHUNK_ROWS]
    try:
        listed = column.tolist()
    except OverflowError:  # not every time of Arrow is one of Python
        return []
    for row, cell in enumerate(listed):
        if isinstance(cell, str) and len(cell) >= WHOLE_DOMAIN:
            row_of_text.setdefault(cell, row)
    texts = [*row_of_text]
    picked = np.linspace(0, len(texts) - 1, min(len(texts), CHECKED_AT_MOST)).astype(int)
    cells = []
    for at in picked.tolist():
        residues = "".join(texts[at].upper().split()).translate(_NOT_RESIDUES)
        if not is_sequence(residues) or _NUCLEOTIDE_LETTERS.issuperset(residues):
            continue
        if _types_in(residues):
            cells.append((row_of_text[texts[at]], residues))
    return cells if 2 * len(cells) > len(picked) else []


def new_domains(text: str, chains: Sequence[str]) -> set[str]:
    """Return the types of the variable domains in a text that are of none of these chains."""
    pieces = re.split("[|:]", text)
    for chain in chains:
        if len(chain) < WHOLE_DOMAIN:
            continue
        rest: list[str] = []
        for piece in pieces:
            rest += [] if piece in chain else piece.split(chain)
        pieces = rest
    types: set[str] = set()
    for piece in pieces:
        types.update(chain_types(piece))
    return types


def describe_unused(
    table: Table, options: TableOptions, chains_of_row: Mapping[int, Sequence[str]]
) -> list[str]:
    """Refuse a table with unused columns of variable domains; say which the user left out.

    `chains_of_row` has the chains of the antibodies, by row of the frame, without bad ones. A
    column that repeats these, or parts of them, holds no other domain.

    Raises
    ------
    TableError
        If a column holds domains that no role uses, and no option says that this is meant.
    """
    decided = {role for role in CHAIN_ROLES if role in options.columns}
    if options.parent is not None or "antibody" in options.columns:
        decided = {*CHAIN_ROLES}
    notes = []
    # another column may hold the chains of the rows in which that of the user is empty
    partly = {role: column for role in CHAIN_ROLES if (column := options.columns.get(role))}
    for name in unused_columns(table):
        cells = [cell for cell in domain_cells(table, name) if cell[0] in chains_of_row]
        new: Counter[str] = Counter()
        rows = 0
        for row, text in cells:
            types = new_domains(text, chains_of_row[row])
            new.update(types)
            rows += bool(types)
            for role, chain in zip(CHAIN_ROLES, chains_of_row[row], strict=True):
                if role in types and role in partly and not chain:
                    msg = (
                        f"{table.source}: column {name!r} holds {role} variable domains of rows "
                        f"whose column {partly[role]!r} is empty; expected one column of {role} "
                        f"chains. Join the two into one and name it with "
                        f"{column_option(role, 'NAME')}, or remove {name!r} from the table."
                    )
                    raise TableError(msg)
        if not rows:
            continue
        roles = [role for role in CHAIN_ROLES if 2 * new[role] >= rows]
        held = f"column {name!r} holds {' and '.join(roles)} variable domains"
        if 2 * rows <= len(cells) or decided.issuperset(roles) or _is_derived(table, name, roles):
            notes.append(f"{held} that are not used")
            continue
        is_string = any(len(_types_in(text)) > 1 for _, text in cells) or len(roles) > 1
        use = column_option("antibody" if is_string else roles[0], name)
        keep = []
        if "antibody" in table.columns:
            keep.append(column_option("antibody", table.columns["antibody"]))
        else:
            for role in roles:
                if role not in decided:
                    keep.append(column_option(role, table.columns.get(role, "")))
        msg = (
            f"{table.source}: {held} that no role uses; expected all chains of the antibodies to "
            f"have a role. Use it with {use}, or leave it out with {' '.join(keep)}."
        )
        raise TableError(msg)
    return notes


def _is_derived(table: Table, name: str, roles: Sequence[str]) -> bool:
    """Tell whether the chains of these roles are used, and were derived from those of a column."""
    used = [table.columns.get(role) or table.columns.get("antibody", "") for role in roles]
    if not all(used):
        return False
    are_mutants = all(simplified(column).startswith("mut") for column in used)
    return are_mutants or _OTHER_STATE.search(name) is not None


def _among_ties(table: Table) -> dict[str, str]:
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
    table = without_doubtful_assay(table, options)
    replaced_by: dict[str, str] = {}
    if options.antigen is not None:
        replaced_by["antigen"] = "--antigen"
    if options.no_antigen:
        replaced_by["antigen"] = ALONE
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
        why = ": " if replacement == ALONE else ", replaced by "
        ignored.append(f"column {name!r} is ignored{why}{replacement}")
    for name in antigen_candidates(table) if options.no_antigen else ():
        is_constant = table.frame[name].dropna().astype(str).nunique() <= 1
        if not is_constant and name != table.columns.get("antigen"):
            ignored.append(f"column {name!r} may hold antigens, and is not used: {ALONE}")
    kept = {role: name for role, name in table.columns.items() if role not in replaced_by}
    ties = {role: names for role, names in table.ties.items() if role not in replaced_by}
    return replace(table, columns=kept, ties=ties), ignored


def without_doubtful_assay(table: Table, options: TableOptions) -> Table:
    """Return a table whose column of assays is that by its name, its content or the options.

    A column ``source`` may be of species, cohorts or publications as well.
    """
    name = table.columns.get("assay")
    if name is None or "assay" in options.columns or _SAYS_ASSAY.search(simplified(name)):
        return table
    if name in table.frame and _names_methods(table, name):
        return table
    columns = {role: column for role, column in table.columns.items() if role != "assay"}
    return replace(table, columns=columns)


def _names_methods(table: Table, name: str) -> bool:
    """Tell whether most distinct cells of a column name a method or collection."""
    distinct = [str(cell) for cell in table.frame[name].iloc[:CHUNK_ROWS].dropna().unique()]
    words = [re.sub(r"[\W_]+", " ", text.lower()).strip() for text in distinct]
    filled = [text for text in words if text]
    return 2 * sum(_METHODS.search(text) is not None for text in filled) > len(filled)


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
