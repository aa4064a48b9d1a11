"""Pairs that are measured already: found among the candidates by their sequences, not by text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Ints, KeyIndex
from abag.embed.sequences.pairs import read_pairs
from abag.embed.sequences.tables import read_table_chunks
from abag.head.data.labels import label_pairs
from abag.head.design.candidates import UNNAMED_ANTIGEN, CannotRank

if TYPE_CHECKING:
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.sequences.tables import TableLike
    from abag.head.design.candidates import Candidates
    from abag.head.design.rank_options import RankOptions


@dataclass(frozen=True, slots=True)
class Measured:
    """A table of measured pairs, in terms of the candidates."""

    table: SequenceTable
    """Its sequences are in the order of their keys, as those of `label_pairs`."""
    antigen_of: Ints
    """Index of each distinct antigen of the table among those of the candidates; -1: not there."""
    is_measured: NDArray[np.bool_]
    """Which candidates are in the table, (R,)."""

    def best(self, antigen: int | None = None) -> float:
        """Return the best pKd of the candidates' antigens, or of one of them.

        Raises
        ------
        CannotRank
            If there is none.
        AbagError
            If the labels cannot be read.
        """
        self.table.column("pkd")  # the advice of `label_pairs` has options that rank lacks
        pairs = label_pairs(self.table)
        found = self.antigen_of[pairs.antigen]
        used = (found >= 0) if antigen is None else (found == antigen)
        used &= pairs.censored >= 0
        if used.any():
            return float(pairs.pkd[used].max())
        msg = (
            f"{self.table.source}: no measured pair has the antigen of the predictions; expected "
            "some for --rule improvement. Give --best PKD."
        )
        raise CannotRank(msg)


def read_measured(table: TableLike, candidates: Candidates, options: RankOptions) -> Measured:
    """Read a table of measured pairs and find its pairs among the candidates.

    Raises
    ------
    AbagError
        If the table cannot be read or lacks a column.
    """
    first = next(read_table_chunks(table, limit=1))
    columns = {role: name for role, name in options.columns.items() if name in first.frame}
    antigen = options.antigen
    if antigen != UNNAMED_ANTIGEN and ("antigen" in columns or first.has("antigen")):
        antigen = None
    reading = replace(options, columns=columns, antigen=antigen, limit=None)
    pairs = read_pairs(table, reading).sorted_by_key()
    pairs.report_notes()
    _, antibody_of = KeyIndex([candidates.antibody_keys]).find(pairs.antibodies.keys)
    _, antigen_of = KeyIndex([candidates.antigen_keys]).find(pairs.antigens.keys)
    antibody, antigen_index = (
        antibody_of[pairs.antibodies.of_row],
        antigen_of[pairs.antigens.of_row],
    )
    known = (antibody >= 0) & (antigen_index >= 0)
    measured = antibody[known] * len(candidates.antigen_keys) + antigen_index[known]
    return Measured(pairs, antigen_of, np.isin(candidates.pair, measured))
