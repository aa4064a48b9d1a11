"""Tables of antibody-antigen pairs: unique sequences, checked and keyed.

Each distinct text of a column is parsed once. Nothing is cut, dropped or merged without being
refused or counted. Labels are not read: their columns are found by name and passed on.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import sort_keys
from abag.core.messages import bar, say
from abag.embed.sequences.chains import (
    BAD_SEQUENCE,
    KINDS,
    REPLACED,
    RESIDUES,
    Chains,
    EmptySequence,
    Kind,
    ParsedSequence,
    UnknownResidue,
    antigen,
    keys_array,
    parse_antibody,
    parse_antigen,
    parse_chain,
    sequence_text,
)
from abag.embed.sequences.changes import (
    EMPTY_ROW,
    BadCell,
    SkippedRows,
    count_changes,
    count_line_breaks,
    describe_counts,
)
from abag.embed.sequences.columns import SEQUENCE_ROLES, MissingColumn, quote_names
from abag.embed.sequences.domains import UnsureDomains
from abag.embed.sequences.options import ChainPlaces, TableOptions
from abag.embed.sequences.regions import (
    UNCLEAR_TYPE,
    ChainsMisplaced,
    chain_types,
    cut_to_domains,
    find_types,
    have_constant_domain,
    having,
    place_chains,
)
from abag.embed.sequences.tables import (
    CHUNK_ROWS,
    BadTable,
    Table,
    TableLike,
    bare_suffix,
    read_table,
    read_table_chunks,
)

_DEFAULTS = TableOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueSequences:
    """The distinct sequences of one kind in some rows, in the order of their first rows."""

    kind: Kind
    chains: list[Chains]
    """N sequences."""
    keys: NDArray[np.uint8]
    """shape=(N, 16)."""
    of_row: NDArray[np.int64]
    """shape=(R,); row ``r`` holds ``chains[of_row[r]]``."""
    first_rows: NDArray[np.int64]
    """shape=(N,); number of the row in which each sequence occurs first."""
    replaced: NDArray[np.int32]
    """shape=(N,); residues read as X."""
    forms: list[str]
    """`ParsedSequence.form` of N sequences."""

    def sorted_by_key(self) -> UniqueSequences:
        """Return the sequences in the order of their keys, which does not depend on the rows."""
        order, _ = sort_keys(self.keys)
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order))
        return replace(
            self, keys=self.keys[order], of_row=ranks[self.of_row],
            first_rows=self.first_rows[order], replaced=self.replaced[order],
            chains=[self.chains[i] for i in order], forms=[self.forms[i] for i in order],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTable(Table):
    """The rows of a table that hold valid sequences, of one kind or of both."""

    row_numbers: NDArray[np.int64]
    """shape=(R,); number of each row, counted from `first_row`."""
    sequences: Mapping[Kind, UniqueSequences]
    skipped: SkippedRows
    counts: dict[str, int]
    """Rows kept and skipped; unique antibodies that were split, residues that were replaced."""
    ignored: list[str]
    """One line per sequence column that is not used."""

    @property
    def antibodies(self) -> UniqueSequences:
        """The antibodies of the rows."""
        return self.sequences["antibody"]

    @property
    def antigens(self) -> UniqueSequences:
        """The antigens of the rows."""
        return self.sequences["antigen"]

    @property
    def notes(self) -> list[str]:
        """What was done to the table, one printable line each; empty when nothing was."""
        return self.ignored + describe_counts(self.counts, self.skipped)

    def report_notes(self) -> None:
        """Report what was done to the table."""
        for note in self.notes:
            say(f"{self.source}: {note}")

    def describe_cell(self, at: int | np.integer[Any], column: str) -> str:
        """Say where the cell of the `at`-th row here is, and what it holds."""
        where = f"{self.source}: row {self.row_numbers[at]}, column {column}"
        return f"{where}: {self.cell_text(at, column)}"

    def cell_text(self, at: int | np.integer[Any], column: str) -> str:
        """Say what the cell of the `at`-th row here holds."""
        value = self.frame[column].iloc[at]
        shown = getattr(value, "item", lambda: value)()  # numpy's numbers name their type
        return "an empty cell (or NA)" if self.frame[column].isna().iloc[at] else repr(shown)

    def sorted_by_key(self) -> SequenceTable:
        """Return the same rows with their unique sequences in the order of their keys."""
        ordered = {kind: unique.sorted_by_key() for kind, unique in self.sequences.items()}
        return replace(self, sequences=ordered)


@dataclass(slots=True)
class TableTotals:
    """What the chunks of a table held so far."""

    source: str = ""
    rows: int = 0
    """Rows kept."""
    skipped: SkippedRows = field(default_factory=SkippedRows)
    ignored: list[str] = field(default_factory=list)
    """One line per sequence column that is not used."""
    line_breaks: int = 0
    """Cells that contain a line break."""

    def add(self, chunk: SequenceTable) -> None:
        """Count the rows of a chunk."""
        self.source, self.ignored = chunk.source, chunk.ignored
        self.rows += len(chunk.frame)
        self.skipped.update(chunk.skipped)
        self.line_breaks += chunk.counts["line_breaks"]


def read_pairs(
    table: TableLike,
    options: TableOptions = _DEFAULTS,
    *,
    kinds: Sequence[Kind] = KINDS,
    as_written: bool = False,
) -> SequenceTable:
    """Read a table of antibody-antigen pairs, or of one of the `kinds`, and check every sequence.

    Rows in which every cell is empty are left out and reported, whatever ``bad_rows`` is.

    Columns for heavy and light take precedence over one for the antibody, unless
    ``options.columns`` names the latter. A cell of the antibody column is ``heavy|light``,
    ``heavy:light``, or one string that :func:`~abag.embed.sequences.domains.split_domains` splits.
    `as_written` is that of :func:`~abag.embed.sequences.tables.read_table`.
    """
    whole = read_table(table, columns=options.columns, limit=options.limit, as_written=as_written)
    pairs = _check_rows(_with_roles(whole, roles_by_content(whole)), kinds, options)
    if not len(pairs.frame) or (options.bad_rows == "error" and pairs.skipped.bad):
        raise pairs.skipped.refusal(pairs.source, kept=len(pairs.frame))
    return pairs


def read_pair_chunks(
    table: TableLike,
    options: TableOptions,
    *,
    kinds: Sequence[Kind] = KINDS,
    as_written: bool = False,
    only_sequences: bool = False,
) -> Iterator[SequenceTable]:
    """Read a table as :func:`read_pairs` in chunks of rows, so that it may be larger than memory.

    A chunk lacks its bad rows and may be empty. A sequence that occurs in several chunks is in each
    of them.
    """
    rows, skipped = 0, SkippedRows()
    chunks = read_table_chunks(
        table, columns=options.columns, limit=options.limit, as_written=as_written,
        only_sequences=only_sequences,
    )  # fmt: skip
    refused, roles = False, None
    for chunk in chunks:
        roles = roles_by_content(chunk) if roles is None else roles  # the first chunk decides
        pairs = _check_rows(_with_roles(chunk, roles), kinds, options)
        rows += len(pairs.frame)
        skipped.update(pairs.skipped)
        refused = refused or (options.bad_rows == "error" and bool(pairs.skipped.bad))
        if not refused:  # else the rest is only read to list all bad rows
            yield pairs
    if refused or not rows:
        raise skipped.refusal(pairs.source, kept=rows)


# --- rows -----------------------------------------------------------------------------------------


def _check_rows(whole: Table, kinds: Sequence[Kind], options: TableOptions) -> SequenceTable:
    """Parse the sequences of every row; leave out rows that are empty or bad."""
    table, ignored = drop_unused_roles(whole, options)
    if table.frame.index[0] == 0:  # the first chunk decides
        refuse_exchanged(table, options, kinds)
    parsed: dict[Kind, ParsedColumn] = {}
    if "antibody" in kinds:
        parsed["antibody"] = parse_antibodies(table, options)
    if "antigen" in kinds:
        parsed["antigen"] = parse_antigens(table, options)
    empty = whole.are_empty()
    bad = np.any([column.is_bad()[column.codes] for column in parsed.values()], axis=0) & ~empty
    numbers = table.frame.index.to_numpy(np.int64) + table.first_row
    skipped = SkippedRows([(row, EMPTY_ROW) for row in numbers[empty].tolist()])
    for at in np.flatnonzero(bad).tolist():
        cells = (column.bad.get(column.codes[at]) for column in parsed.values())
        skipped.rows.append((int(numbers[at]), next(filter(None, cells))))
    keep = np.flatnonzero(~(bad | empty))
    if len(skipped):
        table = replace(table, frame=table.frame.iloc[keep].reset_index(drop=True))
    sequences = {kind: _unique(kind, column, keep, numbers) for kind, column in parsed.items()}
    forms = Counter(form for unique in sequences.values() for form in unique.forms)
    replaced = sum(int(unique.replaced.sum()) for unique in sequences.values())
    counts = {"rows": len(keep), "skipped_rows": len(skipped), **count_changes(forms, replaced)}
    may_join_rows = bare_suffix(Path(whole.source)) in (".csv", ".tsv")
    counts["line_breaks"] = count_line_breaks(whole.frame) if may_join_rows else 0
    return SequenceTable(
        **{f.name: getattr(table, f.name) for f in fields(Table)},
        row_numbers=numbers[keep], sequences=sequences, counts=counts, skipped=skipped,
        ignored=ignored,
    )  # fmt: skip


def _unique(
    kind: Kind, column: ParsedColumn, keep: NDArray[np.int64], numbers: NDArray[np.int64]
) -> UniqueSequences:
    """Merge cells with the same sequence, for instance in upper and in lower case."""
    codes, used = pd.factorize(column.codes[keep])
    chains = [column.chains[i] for i in used.tolist()]
    numbered = {sequence: number for number, sequence in enumerate(dict.fromkeys(chains))}
    of_code = np.array([numbered[sequence] for sequence in chains], np.int64)
    _, first = np.unique(of_code, return_index=True)
    of_row, cells = of_code[codes], used[first]
    _, first_rows = np.unique(of_row, return_index=True)
    return UniqueSequences(
        kind=kind, chains=[*numbered], keys=keys_array(kind, [*numbered]), of_row=of_row,
        first_rows=numbers[keep[first_rows]], replaced=column.replaced[cells],
        forms=[column.forms[i] for i in cells.tolist()],
    )  # fmt: skip


# --- columns -------------------------------------------------------------------------------------

NUMBERED_AT_MOST = 200
"""Antibodies of unclear types that are numbered, at 0.25 ms per chain, to count what they are;
``--chains auto`` numbers all."""
CHECKED_AT_MOST = 20
"""Cells of a column by which its content is recognized."""
SHORT = 20
"""Residues below which a chain may be a name, such as VEGF, or the H of a PDB file."""
_PROTEIN = f"^[{RESIDUES}]*L[{RESIDUES}]{{6}}[{RESIDUES}]*$"
"""What `parse_chain` and `parse_antigen` leave as it is: nucleotides have no L, and words that are
no sequence have fewer letters."""
_SEQUENCE = re.compile(rf"[{RESIDUES}{REPLACED}|:\s]{{{SHORT},}}", re.IGNORECASE)
"""What is rather a sequence than a name."""
_REASONS: dict[type[AbagError], str] = {
    EmptySequence: "empty sequence",
    UnknownResidue: "unknown residue",
    UnsureDomains: "unsure domains",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedColumn:
    """A column of R rows with N distinct sequences, of which some may be bad."""

    codes: NDArray[np.int64]
    """Shape (R,); row ``r`` holds sequence ``codes[r]``."""
    chains: list[Chains]
    """N; those of a bad sequence have no meaning."""
    replaced: NDArray[np.int32]
    """Shape (N,); residues read as X."""
    forms: list[str]
    """`ParsedSequence.form` of N sequences."""
    bad: Mapping[int, BadCell]
    """What is wrong with the sequences that are bad, by their number."""

    @classmethod
    def constant(cls, rows: int, chains: Chains) -> ParsedColumn:
        """Make a column with the same valid sequence in every row."""
        codes, replaced = np.zeros(rows, np.int64), np.zeros(1, np.int32)
        return cls(codes=codes, chains=[chains], replaced=replaced, forms=[""], bad={})

    def is_bad(self) -> NDArray[np.bool_]:
        """Tell which sequences are bad, shape (N,)."""
        bad_N = np.zeros(len(self.chains), np.bool_)
        bad_N[[*self.bad]] = True
        return bad_N


def roles_by_content(table: Table) -> dict[str, str]:
    """Of several columns that fit a role, take the only one that holds sequences, by role."""
    held = {
        role: [name for name in names if name in table.frame and _sequences_in(table, name)]
        for role, names in table.ties.items()
        if role in SEQUENCE_ROLES
    }
    return {role: names[0] for role, names in held.items() if len(names) == 1}


def _with_roles(table: Table, roles: Mapping[str, str]) -> Table:
    ties = {role: names for role, names in table.ties.items() if role not in roles}
    return replace(table, columns={**table.columns, **roles}, ties=ties)


def _sequences_in(table: Table, name: str) -> list[str]:
    """Return some texts of a column if most of them are sequences, else nothing."""
    cells = table.frame[name].iloc[:CHUNK_ROWS].dropna()
    cells = cells[cells.astype(str).str.strip() != ""]
    picked = np.linspace(0, len(cells) - 1, min(len(cells), CHECKED_AT_MOST)).astype(int)
    texts = [text for text in cells.iloc[picked] if isinstance(text, str)]
    found = ["".join(text.upper().split()) for text in texts if _SEQUENCE.fullmatch(text)]
    return found if 2 * len(found) > len(picked) else []


def _role_by_content(table: Table, name: str) -> str:
    """Tell which role a column may play by some of its texts; empty if it holds no sequences."""
    texts = _sequences_in(table, name)
    types = [{t for one in re.split("[|:]", text) for t in chain_types(one)} for text in texts]
    if 2 * types.count(set()) >= len(texts):
        return "antigen" if texts else ""
    heavy, light = (2 * types.count({kind}) > len(texts) for kind in ("heavy", "light"))
    return "heavy" if heavy else "light" if light else "antibody"


def _suggest_columns(table: Table) -> str:
    """Name the columns that hold sequences, with the roles that these may have."""
    names = [*map(str, table.frame.columns)]
    roles = [(role, name) for name in names if (role := _role_by_content(table, name))]
    if not roles:
        return "No column holds sequences: add columns with those of the chains."
    return f"By their content: {_as_options(roles)}."


def _as_options(roles: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"--column {shlex.quote(f'{role}={name}')}" for role, name in roles)


def refuse_exchanged(table: Table, options: TableOptions, kinds: Sequence[Kind]) -> None:
    """Refuse a table whose columns hold the chains of one another, by a sample of each.

    Antigens may be antibodies, so that they alone decide nothing.
    """
    own = {role: name for role, name in table.columns.items() if role in SEQUENCE_ROLES}
    antigens = own.pop("antigen", None)
    held = {role: _role_by_content(table, name) for role, name in own.items()}
    heavy, light = held.get("heavy"), held.get("light")
    exchanged = (heavy == "light" and light != "light") or (light == "heavy" and heavy != "heavy")
    if exchanged and options.chains != "auto":
        swapped = [("heavy", own.get("light", "NAME")), ("light", own.get("heavy", "NAME"))]
        msg = (
            f"{table.source}: most rows hold a light chain in the place of the heavy one, or the "
            "reverse; expected heavy and light. Exchange the columns with "
            f"{_as_options(swapped)}, or use --chains auto."
        )
        raise ChainsMisplaced(msg)
    others = [role for role, found in held.items() if found == "antigen"]
    if not others or antigens is None or len(kinds) < len(KINDS):
        return
    if (found := _role_by_content(table, antigens)) not in ("antigen", ""):
        swapped = [(found, antigens), ("antigen", own[others[0]])]
        msg = (
            f"{table.source}: most antigens are variable domains of antibodies, and most "
            "antibodies hold another chain; expected antibodies and antigens. Exchange the columns "
            f"with {_as_options(swapped)}."
        )
        raise ChainsMisplaced(msg)


def drop_unused_roles(table: Table, options: TableOptions) -> tuple[Table, list[str]]:
    """Drop the roles that the options, or heavy and light columns, replace; say which."""
    replaced_by: dict[str, str] = {}
    if options.antigen is not None:
        replaced_by["antigen"] = "--antigen"
    if "antibody" in options.columns:
        column = f"column {options.columns['antibody']!r}"
        replaced_by |= {"heavy": column, "light": column}
    elif table.has("heavy") or table.has("light"):
        replaced_by["antibody"] = "the columns of heavy and light chains"
    columns = {role: name for role, name in table.columns.items() if role not in replaced_by}
    ties = {role: names for role, names in table.ties.items() if role not in replaced_by}
    ignored = [
        f"column {name!r} is ignored, replaced by {replaced_by[role]}"
        for role, name in table.columns.items()
        if role in replaced_by
    ]
    return replace(table, columns=columns, ties=ties), ignored


def parse_antibodies(table: Table, options: TableOptions) -> ParsedColumn:
    """Parse the antibodies of a table and bring their chains into place."""
    if table.has("antibody"):
        return _arranged(_parse_column(table, "antibody", parse_antibody), table, options)
    roles = [role for role in ("heavy", "light") if table.has(role)]
    if not roles:
        msg = (
            f"{table.source}: no column for heavy, light or antibody; found {table.found}. "
            "Name them with --column heavy=NAME, light=NAME or antibody=NAME"
            + (", or separate columns by commas. " if len(table.names) == 1 else ". ")
            + _suggest_columns(table)
        )
        raise MissingColumn(msg)
    if roles == ["light"] and "light" not in options.columns:  # heavy may be in another column
        light = table.column("light")
        msg = (
            f"{table.source}: no column for heavy, only {light!r} for light; found {table.found}. "
            "Name it with --column heavy=NAME, or, if the antibodies have no heavy chains, the "
            f"other with --column light={shlex.quote(light)}."
        )
        raise MissingColumn(msg)
    parsed = {role: _parse_column(table, role, parse_chain) for role in roles}
    absent = ParsedColumn.constant(len(table.frame), ("",))
    where = f"column {quote_names([table.column(role) for role in roles])}"
    joined = _join(parsed.get("heavy", absent), parsed.get("light", absent), where)
    return _arranged(joined, table, options)


def _join(heavy: ParsedColumn, light: ParsedColumn, where: str) -> ParsedColumn:
    """Join the chains of each row; a row without any is bad."""
    codes, pairs = pd.factorize(heavy.codes * len(light.chains) + light.codes)
    h, k = np.divmod(pairs, len(light.chains))
    heavies, lights = (
        [*map(c.chains.__getitem__, i.tolist())] for c, i in ((heavy, h), (light, k))
    )
    chains = [*map(add, heavies, lights)]
    msg = f"{where}: no antibody chain; expected at least one. Give a chain, or remove the row."
    no_chain = BadCell("antibody", _REASONS[EmptySequence], "", msg, EmptySequence)
    bad = {
        i: heavy.bad.get(int(h[i])) or light.bad.get(int(k[i])) or no_chain
        for i in np.flatnonzero(heavy.is_bad()[h] | light.is_bad()[k]).tolist()
    }
    bad |= {i: no_chain for i, pair in enumerate(chains) if not any(pair) and i not in bad}
    return ParsedColumn(
        codes=codes.astype(np.int64), chains=chains, replaced=heavy.replaced[h] + light.replaced[k],
        forms=[""] * len(chains), bad=bad,
    )  # fmt: skip


def parse_antigens(table: Table, options: TableOptions) -> ParsedColumn:
    """Parse the antigens of a table, unless the options have one for all rows."""
    if options.antigen is not None:
        return ParsedColumn.constant(len(table.frame), antigen(options.antigen))
    if not table.has("antigen"):
        msg = (
            f"{table.source}: no column for antigen; found {table.found}. Name it with "
            "--column antigen=NAME, or give one antigen for all rows with --antigen SEQ."
        )
        raise MissingColumn(msg)
    column = _parse_column(table, "antigen", parse_antigen)
    names = [cell.text for cell in column.bad.values() if cell.text.strip()]
    is_long = any(max(map(len, chains)) >= SHORT for chains in column.chains)
    distinct = len(column.chains) - 1  # less that of empty cells
    refuse = options.bad_rows == "error" and table.frame.index[0] == 0
    if refuse and not is_long and 2 * len(names) > distinct:
        msg = (
            f"{table.source}: column {table.column('antigen')!r} holds names, such as "
            f"{names[0]!r}, not sequences. If all rows have the same antigen, give its sequence "
            "with --antigen SEQ; else add a column of sequences and name it with "
            "--column antigen=NAME."
        )
        raise MissingColumn(msg)
    return _marked(column, "short antigen", _with_short_chain(column.chains))


def _parse_column(table: Table, role: str, parse: Callable[[str], ParsedSequence]) -> ParsedColumn:
    """Parse each distinct text of a column once."""
    name = table.column(role)
    kind: Kind = "antigen" if role == "antigen" else "antibody"
    try:
        codes, distinct = pd.factorize(table.cells(role))  # -1: missing
    except (TypeError, NotImplementedError) as error:  # lists, structs
        held = table.frame[name].dtype
        msg = f"{table.source}: column {name!r} holds {held} values; expected text. Convert it."
        raise BadTable(msg) from error
    texts = ["", *distinct.tolist()]
    chains: list[Chains] = [*zip(texts, strict=True)]
    replaced, forms = np.zeros(len(texts), np.int32), [""] * len(texts)
    bad: dict[int, BadCell] = {}
    # a string of both chains is always looked at: it may have to be split
    todo = range(len(texts)) if parse is parse_antibody else _changed_or_bad(texts)
    for i in bar(iterable=todo, desc=f"reading {name}", unit=" texts", delay=2):
        try:
            chains[i], replaced[i], forms[i] = parse(sequence_text(texts[i]))
        except BAD_SEQUENCE as error:
            msg, reason = f"column {name!r}: {error}", _REASONS[type(error)]
            chains[i] = ("", "") if parse is parse_antibody else ("",)
            bad[i] = BadCell(kind, reason, str(texts[i]), msg, type(error))
    codes = codes.astype(np.int64) + 1
    return ParsedColumn(codes=codes, chains=chains, replaced=replaced, forms=forms, bad=bad)


def _changed_or_bad(texts: Sequence[object]) -> list[int]:
    """Find the texts that may not be one chain as it is."""
    plain = [text if isinstance(text, str) and text.isascii() else "" for text in texts]
    return np.flatnonzero(~having(_PROTEIN, pa.array(plain, pa.large_string()))).tolist()


def _arranged(column: ParsedColumn, table: Table, options: TableOptions) -> ParsedColumn:
    """Bring the chains of every antibody into place."""
    is_top = table.frame.index[0] == 0
    placed = _placed(column, table, options.chains, sample=NUMBERED_AT_MOST if is_top else 0)
    chains, forms = [*placed.chains], [*placed.forms]
    if options.antibody_region == "fv":
        good = [i for i in range(len(chains)) if i not in placed.bad]
        for i in bar(iterable=good, desc="cutting chains", unit=" texts", delay=2):
            chains[i], words = cut_to_domains(chains[i])
            forms[i] = "+".join(filter(None, [forms[i], *words]))
    arranged = replace(placed, chains=chains, forms=forms)
    if options.antibody_region != "fv":
        heavy, light = map(have_constant_domain, zip(*chains, strict=True))
        arranged = _marked(arranged, "constant", np.flatnonzero(heavy | light).tolist())
    if table.has("heavy"):
        light_alone = [i for i, (heavy_chain, _) in enumerate(chains) if not heavy_chain]
        arranged = _marked(arranged, "no heavy", light_alone)
    return _marked(arranged, "short antibody", _with_short_chain(chains))


def _placed(
    column: ParsedColumn, table: Table, places: ChainPlaces, *, sample: int
) -> ParsedColumn:
    """Find chains in the other one's place, and put them right if asked to.

    Only `sample` antibodies are numbered where motifs do not tell the types of their chains, unless
    chains have to be put right.
    """
    chains, forms, bad = [*column.chains], [*column.forms], dict(column.bad)
    heavy, light = map(find_types, zip(*chains, strict=True))
    is_unclear = (heavy == UNCLEAR_TYPE) | (light == UNCLEAR_TYPE)
    # strings, which have a form, were looked at when they were split
    open_ones = np.array([not form for form in forms]) & ~column.is_bad()
    unclear = np.flatnonzero(open_ones & is_unclear)
    if places != "auto":
        chosen = np.linspace(0, len(unclear) - 1, min(len(unclear), sample)).astype(int)
        for i in np.delete(unclear, chosen).tolist():
            forms[i] = "unclear"
        unclear = unclear[chosen]
    unusual = np.flatnonzero(open_ones & ~is_unclear & ((heavy == 2) | (light == 1)))
    todo = np.union1d(unclear, unusual).tolist()
    for i in bar(iterable=todo, desc="looking at chains", unit=" texts", delay=2):
        types = chain_types(chains[i][0], heavy[i]), chain_types(chains[i][1], light[i])
        try:
            chains[i], forms[i] = place_chains(chains[i], types, places)
        except UnsureDomains as error:
            roles = [role for role in ("heavy", "light") if role in table.columns]
            msg = f"column {quote_names([table.columns[role] for role in roles])}: {error}"
            text, reason = "|".join(chains[i]), _REASONS[UnsureDomains]
            bad[i] = BadCell("antibody", reason, text, msg, UnsureDomains)
    return replace(column, chains=chains, forms=forms, bad=bad)


def _with_short_chain(sequences: Sequence[Chains]) -> list[int]:
    """Find the sequences with a chain that is shorter than `SHORT`, but not empty."""
    lengths = np.fromiter(map(len, chain(*sequences)), np.int64)
    owners = np.repeat(np.arange(len(sequences)), [*map(len, sequences)])
    return [*dict.fromkeys(owners[(lengths > 0) & (lengths < SHORT)].tolist())]


def _marked(column: ParsedColumn, word: str, at: Sequence[int]) -> ParsedColumn:
    """Add a word to the forms of these sequences, less the bad ones."""
    forms = [*column.forms]
    for i in at:
        if i not in column.bad:
            forms[i] += f"+{word}"
    return replace(column, forms=forms)
