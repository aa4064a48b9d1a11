"""What is read as the label of a table, and what in the table contradicts that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag.core.arrays import Floats
from abag.embed.sequences.columns import ROLES
from abag.head.data.affinities import read_affinities
from abag.head.data.cells import read_numbers
from abag.head.data.headers import read_header
from abag.head.data.joined_labels import with_one_label
from abag.head.data.label_options import Label, LabelOptions
from abag.head.data.label_unit import name_affinity
from abag.head.data.quantity import PKD, Quantity
from abag.head.data.units import outside, to_pkd

if TYPE_CHECKING:
    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.data.affinities import Affinities

CONFLICT_PKD = 1.0
"""Labels of one pair, or assay means of one antigen, that differ by more are a conflict."""
POSSIBLE_PKD = (0.0, 16.0)
"""Labels outside are certainly in another unit."""
OPPOSITE = -0.5
"""Rank correlation from which a second measurement contradicts the direction of the label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelReading:
    """What was read as the label, and why."""

    column: str = ""
    unit: Label = "pkd"
    why: str = ""
    line: str = ""
    """The same in one line, and whether a higher label means stronger binding."""
    problems: tuple[str, ...] = ()
    """What contradicts it."""
    quantity: Quantity = PKD
    conflict: float = CONFLICT_PKD
    """Labels of one pair that differ by more contradict each other: by 1 pKd, and by a standard
    deviation of the labels of another quantity."""


def label_sense(
    table: SequenceTable, options: LabelOptions | None = None
) -> tuple[SequenceTable, LabelReading]:
    """Return the table with its label among its roles, and what `label_pairs` would read."""
    options = options or LabelOptions()
    table = with_one_label(table, options)
    affinities = read_affinities(table, options)
    table = with_label(table, affinities)
    return table, reading_of(table, affinities, options)


def with_label(table: SequenceTable, affinities: Affinities) -> SequenceTable:
    """Return the table with its label among its columns."""
    columns = {**table.columns, "pkd": affinities.column}
    roles = [role for role in ROLES if role in columns and role != "label"]
    return replace(table, columns={role: columns[role] for role in roles})


def reading_of(table: SequenceTable, affinities: Affinities, options: LabelOptions) -> LabelReading:
    """Say what was read as the label, and what in the table contradicts it."""
    column = affinities.column
    unit = affinities.unit
    quantity = affinities.quantity
    if not quantity.affinity:
        return LabelReading(
            column=column,
            unit=unit,
            why=affinities.why,
            line=affinities.describe(),
            quantity=quantity,
        )
    readable = np.isfinite(affinities.pkd) & ~affinities.no_binding
    impossible = readable & outside(affinities.pkd, POSSIBLE_PKD)
    problems = []
    for other, other_unit in _opposite_measurements(table, affinities.pkd):
        problems.append(
            f"Column {other!r}, read as {other_unit}, ranks the rows the other way round than "
            f"{column!r}, read as {unit}."
        )
    if 0 < 2 * impossible.sum() <= readable.sum():  # more are refused
        problems.append(
            f"{impossible.sum():,} labels, such as {affinities.raw[impossible][0]:g}, are "
            f"impossible as {unit}: mixed units?"
        )
    named = replace(quantity, name=name_affinity(table, options.affinity_type))
    return LabelReading(
        column=column,
        unit=unit,
        why=affinities.why,
        line=affinities.describe(),
        problems=tuple(problems),
        quantity=named,
    )


def _opposite_measurements(table: SequenceTable, pkd: Floats) -> Iterator[tuple[str, Label]]:
    """Yield other columns with a unit in their names that rank the rows the other way round."""
    used = table.columns.values()
    is_measured = np.isfinite(pkd)
    for name in map(str, table.frame.columns):
        header = read_header(name)
        if name in used or header.unit is None or not header.sure:
            continue
        other = to_pkd(read_numbers(table.frame[name]), header.unit)
        measured_twice = is_measured & np.isfinite(other)
        if 2 * measured_twice.sum() > is_measured.sum():
            label_ranks = pd.Series(pkd[measured_twice]).rank()
            other_ranks = pd.Series(other[measured_twice]).rank()
            if label_ranks.corr(other_ranks) < OPPOSITE:
                yield name, header.unit
