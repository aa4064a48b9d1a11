"""Columns of sequences: each distinct text parsed once, bad ones kept with what is wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import add
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from abag.core.messages import bar
from abag.embed.sequences.chains import (
    BAD_SEQUENCE,
    RESIDUES,
    Chains,
    EmptySequence,
    Kind,
    ParsedSequence,
    antigen,
    parse_antibody,
    parse_antigen,
    parse_chain,
    sequence_text,
)
from abag.embed.sequences.changes import BadCell
from abag.embed.sequences.columns import MissingColumn, quote_names
from abag.embed.sequences.domains import UnsureDomains
from abag.embed.sequences.formats import BadTable
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.regions import (
    UNCLEAR,
    ChainsMisplaced,
    arrange,
    chain_types,
    forms_as_given,
    having,
    refuse_misplaced,
)
from abag.embed.sequences.tables import CHUNK_ROWS, Table

NUMBERED_AT_MOST, NUMBERED_LATER = 200, 20
"""Antibodies of the first and of each later chunk that are numbered only to count what stays as it
is, at 0.25 ms per chain. The first decides whether a table is refused."""
CHECKED_AT_MOST = 20
"""Antibodies, and antigens, by which a table with exchanged columns is recognized."""
SHORT = 20
"""Residues below which a chain may be a name, such as VEGF, or the H of a PDB file."""
_PROTEIN = re.compile(f"^[{RESIDUES}]*L[{RESIDUES}]{{6}}[{RESIDUES}]*$")
"""What `parse_chain` and `parse_antigen` leave as it is: nucleotides have no L, and words that are
no sequence have fewer letters."""


class ParsedColumn(NamedTuple):
    """A column of R rows with N sequences, of which some may be bad.

    Attributes
    ----------
    codes : ndarray, shape=(R,), dtype=int64
        Row ``r`` holds sequence ``codes[r]``.
    chains, replaced, forms
        N each, as in `ParsedSequence`; those of a bad sequence have no meaning.
    bad : mapping
        What is wrong with the sequences that are bad, by their number.
    """

    codes: NDArray[np.int64]
    chains: list[Chains]
    replaced: NDArray[np.int32]
    forms: list[str]
    bad: Mapping[int, BadCell]

    @classmethod
    def constant(cls, rows: int, chains: Chains) -> ParsedColumn:
        """Make a column with the same valid sequence in every row."""
        return cls(np.zeros(rows, np.int64), [chains], np.zeros(1, np.int32), [""], {})

    def is_bad(self) -> NDArray[np.bool_]:
        """Tell which sequences are bad, shape (N,)."""
        bad_N = np.zeros(len(self.chains), np.bool_)
        bad_N[[*self.bad]] = True
        return bad_N


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


def parse_antibodies(table: Table, given: Mapping[str, str]) -> ParsedColumn:
    """Parse the antibodies; `given` are the columns that the user named."""
    if table.has("antibody"):
        return _parse_column(table, "antibody", parse_antibody)
    roles = [role for role in ("heavy", "light") if table.has(role)]
    if not roles:
        msg = (
            f"{table.source}: no column for heavy, light or antibody; found {table.found}. "
            "Name them with --column heavy=NAME, light=NAME or antibody=NAME"
            + (", or separate columns by commas." if len(table.names) == 1 else ".")
        )
        raise MissingColumn(msg)
    if roles == ["light"] and "light" not in given:  # the heavy chains may be in another column
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
    return _join(parsed.get("heavy", absent), parsed.get("light", absent), where)


def _join(heavy: ParsedColumn, light: ParsedColumn, where: str) -> ParsedColumn:
    """Join the chains of each row; a row without any is bad."""
    codes, pairs = pd.factorize(heavy.codes * len(light.chains) + light.codes)
    h, k = np.divmod(pairs, len(light.chains))
    heavies, lights = (
        [*map(c.chains.__getitem__, i.tolist())] for c, i in ((heavy, h), (light, k))
    )
    chains = [*map(add, heavies, lights)]
    msg = f"{where}: no antibody chain; expected at least one. Give a chain, or remove the row."
    no_chain = BadCell("", EmptySequence(msg))
    bad = {
        i: heavy.bad.get(int(h[i])) or light.bad.get(int(k[i])) or no_chain
        for i in np.flatnonzero(heavy.is_bad()[h] | light.is_bad()[k]).tolist()
    }
    bad |= {i: no_chain for i, pair in enumerate(chains) if not any(pair) and i not in bad}
    replaced = heavy.replaced[h] + light.replaced[k]
    return ParsedColumn(codes.astype(np.int64), chains, replaced, [""] * len(chains), bad)


def parse_antigens(table: Table, given: str | None) -> ParsedColumn:
    if given is None:
        if not table.has("antigen"):
            msg = (
                f"{table.source}: no column for antigen; found {table.found}. Name it with "
                "--column antigen=NAME, or give one antigen for all rows with --antigen SEQ."
            )
            raise MissingColumn(msg)
        column = _parse_column(table, "antigen", parse_antigen)
        return _marked(column, "short antigen", _with_short_chain(column.chains))
    return ParsedColumn.constant(len(table.frame), antigen(given))


def _parse_column(table: Table, role: str, parse: Callable[[str], ParsedSequence]) -> ParsedColumn:
    """Parse each distinct text of a column once."""
    name = table.column(role)
    try:
        codes, distinct = pd.factorize(table.cells(role))  # -1: missing
    except (TypeError, NotImplementedError) as error:  # lists, structs
        kind = table.frame[name].dtype
        msg = f"{table.source}: column {name!r} holds {kind} values; expected text. Convert it."
        raise BadTable(msg) from error
    texts = ["", *distinct.tolist()]
    chains: list[Chains] = [*zip(texts, strict=True)]
    replaced, forms = np.zeros(len(texts), np.int32), [""] * len(texts)
    bad: dict[int, BadCell] = {}
    # a string of both chains is always looked at: it may have to be split
    todo = range(len(texts)) if parse is parse_antibody else _changed_or_bad(texts)
    for i in bar(iterable=todo, desc=f"reading {name}", unit=" texts", delay=2):
        found = _parse_text(texts[i], parse, name)
        if isinstance(found, BadCell):  # of any type
            chains[i], bad[i] = ("",), found
        else:
            chains[i], replaced[i], forms[i] = found
    return ParsedColumn(codes.astype(np.int64) + 1, chains, replaced, forms, bad)


def _changed_or_bad(texts: Sequence[object]) -> list[int]:
    """Find the texts that may not be one chain as it is."""
    plain = [text if isinstance(text, str) and text.isascii() else "" for text in texts]
    proteins = having(_PROTEIN, pa.array(plain, pa.large_string()))
    return np.flatnonzero(~proteins).tolist()


def _parse_text(
    text: object, parse: Callable[[str], ParsedSequence], name: str
) -> ParsedSequence | BadCell:
    """Parse a cell of the column with this name."""
    try:
        return parse(sequence_text(text))
    except BAD_SEQUENCE as error:
        return BadCell(str(text), type(error)(f"column {name!r}: {error}"))


def arrange_chains(column: ParsedColumn, table: Table, options: TableOptions) -> ParsedColumn:
    """Bring the chains of every antibody into place; refuse a table that has most misplaced."""
    names = quote_names(
        [table.columns[r] for r in ("heavy", "light", "antibody") if r in table.columns]
    )
    chains, forms, bad = [*column.chains], [*column.forms], dict(column.bad)

    def look_at(i: int, *, number: bool) -> None:
        parsed = ParsedSequence(column.chains[i], form=column.forms[i])
        try:
            chains[i], _, forms[i] = arrange(
                parsed, places=options.chains, region=options.antibody_region, number=number
            )
        except UnsureDomains as error:
            msg = f"column {names}: {error}"
            bad[i] = BadCell("|".join(parsed.chains), UnsureDomains(msg))

    todo = [i for i in range(len(chains)) if i not in bad]
    if options.chains == options.antibody_region == "as-given":
        pairs = [i for i in todo if not forms[i]]
        todo = [i for i in todo if forms[i]]
        for i, form in zip(pairs, forms_as_given([chains[i] for i in pairs]), strict=True):
            forms[i] = form
    for i in bar(iterable=todo, desc="looking at chains", unit=" texts", delay=2):
        look_at(i, number=options.chains == "auto")
    unclear = [i for i, form in enumerate(forms) if UNCLEAR in form and i not in bad]
    is_top = table.frame.index[0] == 0
    numbered = min(len(unclear), NUMBERED_AT_MOST if is_top else NUMBERED_LATER)
    sample = np.linspace(0, len(unclear) - 1, numbered).astype(int)
    for i in sample.tolist():
        look_at(unclear[i], number=True)
    if is_top:  # the same rows of a whole table and of its first chunk
        unchecked = _having(UNCLEAR, forms)
        unchecked[[*bad]] = True
        rows = column.codes[:CHUNK_ROWS]
        checked = rows[~unchecked[rows]]
        refuse_misplaced(_having("misplaced", forms)[checked], table.source)
    arranged = column._replace(chains=chains, forms=forms, bad=bad)
    if table.has("heavy"):
        light_alone = [i for i, (heavy, _) in enumerate(chains) if not heavy]
        arranged = _marked(arranged, "no heavy", light_alone)
    return _marked(arranged, "short antibody", _with_short_chain(chains))


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
    return column._replace(forms=forms)


def refuse_exchanged(parsed: Mapping[Kind, ParsedColumn], source: str) -> None:
    """Refuse a table if most of its antigens are variable domains, and most antibodies are not.

    Antigens may be antibodies, so that they alone decide nothing.
    """
    samples: dict[Kind, list[Chains]] = {}
    for kind, column in parsed.items():
        codes = np.unique(column.codes[:CHUNK_ROWS])
        codes = codes[~column.is_bad()[codes]]
        picked = np.linspace(0, len(codes) - 1, min(len(codes), CHECKED_AT_MOST)).astype(int)
        samples[kind] = [column.chains[i] for i in codes[picked].tolist()]
    antibodies, antigens = samples["antibody"], samples["antigen"]
    others = sum(not all(map(chain_types, filter(None, chains))) for chains in antibodies)
    if 2 * others <= len(antibodies):  # as usual, by the motifs alone
        return
    domains = sum(any(map(chain_types, chains)) for chains in antigens)
    if 2 * domains > len(antigens):
        msg = (
            f"{source}: {domains} of {len(antigens)} checked antigens are variable domains of "
            f"antibodies, and {others} of {len(antibodies)} checked antibodies hold another chain; "
            "expected antibodies and antigens. Exchange the columns with --column heavy=NAME and "
            "antigen=NAME."
        )
        raise ChainsMisplaced(msg)


def _having(word: str, forms: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([word in form for form in forms])
