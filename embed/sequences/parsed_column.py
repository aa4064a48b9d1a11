"""Columns of sequences, of which each distinct text is parsed once.

R rows, N distinct sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from abag.core.errors import AbagError, TableError
from abag.core.messages import bar
from abag.embed.sequences.chains import (
    RESIDUES,
    Chains,
    EmptySequence,
    Kind,
    ParsedSequence,
    UnknownResidue,
    parse_antibody,
)
from abag.embed.sequences.changes import BadCell
from abag.embed.sequences.domain_types import have_motif
from abag.embed.sequences.domains import UnsureDomains
from abag.embed.sequences.mutations import BadMutation
from abag.embed.sequences.names import UnknownName
from abag.embed.sequences.references import References
from abag.embed.sequences.tables import Table

# read as it is: nucleotides have no L, and words that are no sequence have fewer letters
_PROTEIN = f"^[{RESIDUES}]*L[{RESIDUES}]{{6}}[{RESIDUES}]*$"
REASONS: dict[type[AbagError], str] = {
    EmptySequence: "empty sequence",
    UnknownResidue: "unknown residue",
    UnsureDomains: "unsure domains",
    UnknownName: "name without a sequence",
    BadMutation: "mutation",
}
UNREADABLE = tuple(REASONS)


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

    @property
    def longest(self) -> int:
        """Residues of the longest chain."""
        return max(map(len, chain.from_iterable(self.chains)), default=0)

    @property
    def good(self) -> list[int]:
        """Indices of the sequences that are not bad."""
        return [i for i in range(len(self.chains)) if i not in self.bad]

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

    def mark_residues(self, word: str, residues: Mapping[int, str]) -> None:
        """Add a word to the forms of sequences with such residues, and keep some as an example."""
        self.mark(word, [*residues])
        for i, text in residues.items():
            if i not in self.bad:  # a bad one is not shown: its row is skipped
                self.examples.setdefault(word, text)
                return


def distinct_cells(
    table: Table, role: str, *, by_name: bool = False
) -> tuple[NDArray[np.int64], list[Any]]:
    """Return the index of each row's cell, (R,), and the distinct cells, the missing one first.

    In a column of names, ``NA`` and the like are cells as others.

    Raises
    ------
    TableError
        If the column holds lists or the like.
    """
    try:
        cells = table.frame[table.column(role)] if by_name else table.cells(role)
        codes, distinct = pd.factorize(cells)  # -1: missing
    except (TypeError, NotImplementedError) as error:  # lists, structs
        name = table.column(role)
        held = table.frame[name].dtype
        msg = f"{table.source}: column {name!r} holds {held} values; expected text. Convert it."
        raise TableError(msg) from error
    return codes.astype(np.int64) + 1, ["", *distinct.tolist()]


def parse_column(
    table: Table, role: str, parse: Callable[[str], ParsedSequence], references: References
) -> ParsedColumn:
    """Parse each distinct text of a column; those that cannot be read are listed as bad."""
    name = table.column(role)
    kind: Kind = "antigen" if role == "antigen" else "antibody"
    codes, texts = distinct_cells(table, role, by_name=role in references.by_name)
    chains: list[Chains] = [(text,) for text in texts]
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
        except UNREADABLE as error:
            msg = f"column {name!r}: {error}"
            chains[i] = ("", "") if parse is parse_antibody else ("",)
            bad[i] = BadCell(kind, REASONS[type(error)], str(texts[i]), msg, type(error))
    return ParsedColumn(codes=codes, chains=chains, replaced=replaced, forms=forms, bad=bad)


def _not_clean(texts: Sequence[object]) -> list[int]:
    """Find the texts that may not be one chain as they are written, by index."""
    ascii_texts = []
    for text in texts:
        is_ascii = isinstance(text, str) and text.isascii()
        ascii_texts.append(text if is_ascii else "")
    is_clean = have_motif(_PROTEIN, pa.array(ascii_texts, pa.large_string()))
    return np.flatnonzero(~is_clean).tolist()
