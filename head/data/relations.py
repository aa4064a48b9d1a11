"""Relations of censored labels: ``>1000`` in the label itself, or in a column of their own.

In the label, a relation is of the label's unit. In a column of its own it is of Kd, where ``>``
means a higher Kd, hence a lower pKd; for another quantity it is of that quantity.

R rows of a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats
from abag.core.errors import LabelError
from abag.core.messages import counted
from abag.head.data.cells import SIDES, read_bounds, read_texts
from abag.head.data.label_options import Label
from abag.head.data.units import HIGHER_IS_STRONGER, to_pkd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.data.affinities import Affinities

STATED: tuple[Label, ...] = ("kd_m", "kd_um", "kd_nm")
"""Units beside pKd and that of the labels in which a column of relations may repeat the labels."""
SAME_PKD = 0.1
"""Largest distance of such a bound from its label, from rounding."""


class _Relations(NamedTuple):
    """Hold the relations of the R rows of a table, from a column of their own."""

    column: str
    side: pd.Series
    """As in `LabelledPairs.censored`, of what the column is of, Kd or pKd."""
    bound: Floats
    """Shape (R,); NaN where the cell has none."""
    is_bound: Bools
    """Shape (R,); whether the cell has a relation with a bound."""


def read_censored(table: SequenceTable, pkd: Floats, affinities: Affinities) -> NDArray[np.int8]:
    """Join the relations in the labels with those in a column, (R,)."""
    column = table.columns.get("censored")
    is_affinity = affinities.quantity.affinity
    labelled = np.isfinite(pkd)
    censored = np.where(labelled, affinities.side, 0).astype(np.int8)
    is_bound = np.zeros(len(pkd), np.bool_)
    if column is not None:
        relations = _read_relations(table, column)
        is_bound = relations.is_bound
        if is_affinity:
            censored = _with_relations_of_affinity(table, relations, censored, pkd, affinities)
        else:
            censored = _with_relations(table, relations, censored, pkd)
    if is_affinity and (affinities.unit == "pkd" or column is not None):
        _refuse_reversed(table, column, censored, pkd, is_bound)
    return censored


def _refuse_cells(table: SequenceTable, rows: Bools, column: str, problem: str) -> None:
    """Refuse the cells of some rows, (R,), if there are any, by the first of them."""
    if rows.any():
        cell = table.describe_cell(np.flatnonzero(rows)[0], column)
        msg = f"{cell} ({counted(int(rows.sum()), 'such row')}) {problem}"
        raise LabelError(msg)


def _read_relations(table: SequenceTable, column: str) -> _Relations:
    text = read_texts(table.frame[column])
    side = text.str[:1].map(SIDES)
    bound = read_bounds(text)[0]
    is_bound = np.isfinite(bound) & side.notna().to_numpy()
    signs = "".join(SIDES)
    is_relation = text.str.fullmatch(f"[{signs}]*").to_numpy(np.bool_)
    _refuse_cells(
        table,
        ~is_bound & ~is_relation,
        column,
        "is not a valid relation; expected > or < (of Kd), also with its bound, = or an empty "
        "cell. Fix it, or choose another column with --column censored=NAME.",
    )
    return _Relations(column, side, bound, is_bound)


def _with_relations_of_affinity(
    table: SequenceTable,
    relations: _Relations,
    censored: NDArray[np.int8],
    pkd: Floats,
    affinities: Affinities,
) -> NDArray[np.int8]:
    """Join relations in labels with those in a column, of Kd unless its bounds are pKd."""
    column = relations.column
    labelled = np.isfinite(pkd)
    off_as_pkd, off_as_kd = _distances_from_bounds(relations, pkd, affinities)
    is_kd = bool(off_as_pkd.sum() >= off_as_kd.sum())
    _refuse_cells(
        table,
        (off_as_kd if is_kd else off_as_pkd) > SAME_PKD,
        column,
        "is not the label, as pKd or as Kd in M, uM or nM; expected the same bound. Fix it.",
    )
    side = -relations.side if is_kd else relations.side
    relation_to_pkd = np.where(labelled, side, 0).astype(np.int8)
    problem = f"contradicts the relation in column {column}; expected one. Remove the other."
    _refuse_cells(table, censored * relation_to_pkd < 0, table.column("pkd"), problem)
    return np.where(censored == 0, relation_to_pkd, censored)


def _distances_from_bounds(
    relations: _Relations, pkd: Floats, affinities: Affinities
) -> tuple[Floats, Floats]:
    """Return how far the bounds are from the labels in pKd, read as pKd and as Kd, (R,) each.

    A bound is the label again, and shows whether the relations are of pKd or of Kd.
    """
    bound = relations.bound
    unit = affinities.unit
    label_distance = np.abs(to_pkd(bound, unit, affinities.molar_mass_kda) - pkd)
    distances_as_pkd = [np.abs(bound - pkd)]
    distances_as_kd = [np.abs(to_pkd(bound, unit_of_bound) - pkd) for unit_of_bound in STATED]
    (distances_as_pkd if unit in HIGHER_IS_STRONGER else distances_as_kd).append(label_distance)
    is_compared = relations.is_bound & np.isfinite(pkd)
    off_as_pkd = np.where(is_compared, np.fmin.reduce(distances_as_pkd), 0.0)
    off_as_kd = np.where(is_compared, np.fmin.reduce(distances_as_kd), 0.0)
    # a bound that is no Kd, such as a negative one, is far from every label
    return np.nan_to_num(off_as_pkd, nan=np.inf), np.nan_to_num(off_as_kd, nan=np.inf)


def _with_relations(
    table: SequenceTable,
    relations: _Relations,
    censored: NDArray[np.int8],
    value: Floats,
) -> NDArray[np.int8]:
    """Join relations in labels of another quantity with those in a column, which are of it, too."""
    column = relations.column
    labelled = np.isfinite(value)
    off = np.where(relations.is_bound & labelled, np.abs(relations.bound - value), 0.0)
    rounding = 1e-6 * np.maximum(1.0, np.abs(np.nan_to_num(value)))  # of numbers in text
    _refuse_cells(
        table,
        off > rounding,
        column,
        "is not the label; expected the same bound, or > or < alone. Fix it.",
    )
    relation_to_value = np.where(labelled, relations.side, 0).astype(np.int8)
    problem = "contradicts the relation in the label. Remove one."
    _refuse_cells(table, censored * relation_to_value < 0, column, problem)
    return np.where(censored == 0, relation_to_value, censored)


def _refuse_reversed(
    table: SequenceTable,
    column: str | None,
    censored: NDArray[np.int8],
    pkd: Floats,
    is_bound: Bools,
) -> None:
    """Refuse relations whose labels are all at the end that the relation points away from."""
    expected, other = ("pKd", "Kd") if column is None else ("Kd", "pKd")
    least = np.nanmin(pkd, initial=np.inf)
    most = np.nanmax(pkd, initial=-np.inf)
    for side, end in ((-1, most), (1, least)):
        rows = (censored == side) & ~is_bound
        # the usual floor of an assay is such a bound, read the other way round
        reversed_ = least < most and bool((pkd[rows] == end).all())
        problem = f"is at the end of the labels, as if its relation were of {other}; expected "
        _refuse_cells(
            table,
            rows & reversed_,
            column or table.column("pkd"),
            f"{problem}bounds of {expected}. Write these.",
        )
