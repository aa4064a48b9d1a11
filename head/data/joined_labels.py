"""The labels of several tables that are read as one: one column in one unit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.errors import LabelError
from abag.head.data.affinities import read_affinities
from abag.head.data.label_unit import Remembered, name_affinity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.data.affinities import Affinities
    from abag.head.data.label_options import LabelOptions


def with_one_label(
    table: SequenceTable, options: LabelOptions, remembered: Remembered | None = None
) -> SequenceTable:
    """Return several tables with the label of each in the column of the first.

    A single table is returned as it is.

    Raises
    ------
    LabelError
        If units or quantities differ, or one table has the label of another beside its own.
    AbagError
        As `read_affinities`, of the table that has no label.
    """
    if table.file_of_row is None:
        return table
    # a table whose rows were all skipped has no label to compare
    used = [number for number in range(len(table.files)) if (table.file_of_row == number).any()]
    parts = [_part(table, number) for number in used]
    labels = [read_affinities(part, options, remembered=remembered) for part in parts]
    for label in labels:
        label.refuse_other_units(np.isfinite(label.pkd))
    units = [label.unit for label in labels]
    if len(set(units)) > 1:
        msg = (
            f"{table.source}: the labels are in different units: {_listed(labels, units)}; "
            "expected one unit. Convert the columns to one unit, such as pKd, or fit the tables "
            "apart."
        )
        raise LabelError(msg)
    names = [_name(part, label, options) for part, label in zip(parts, labels, strict=True)]
    quantities = {label.quantity for label in labels}
    if len(quantities) > 1 or len(set(names)) > 1:
        msg = (
            f"{table.source}: the labels are different quantities: {_listed(labels, names)}; "
            "expected one. Give columns of the same quantity one name, or fit the tables apart."
        )
        raise LabelError(msg)
    return _in_one_column(table, used, labels)


def _listed(labels: Sequence[Affinities], read_as: Sequence[str]) -> str:
    """List the label column of each table, and what it is read as."""
    parts = []
    for label, meaning in zip(labels, read_as, strict=True):
        parts.append(f"{label.column!r} of {label.source} as {meaning}")
    return "; ".join(parts)


def _name(part: SequenceTable, label: Affinities, options: LabelOptions) -> str:
    """Name what one of several tables measures: pKd, pIC50, pEC50 or another quantity."""
    if not label.quantity.affinity:
        return str(label.quantity)
    part = replace(part, columns={**part.columns, "pkd": label.column})
    return name_affinity(part, options.affinity_type)


def _part(table: SequenceTable, number: int) -> SequenceTable:
    """Return the rows and columns of one of several tables."""
    file = table.files[number]
    rows = np.flatnonzero(table.file_of_row == number)
    frame = table.frame.iloc[rows][[*file.names]].reset_index(drop=True)
    columns = {role: name for role, name in table.columns.items() if name in file.names}
    return replace(
        table,
        source=file.source,
        frame=frame,
        names=[*file.names],
        columns=columns,
        row_numbers=table.row_numbers[rows],
        files=(),
        file_of_row=None,
    )


def _in_one_column(
    table: SequenceTable, used: Sequence[int], labels: Sequence[Affinities]
) -> SequenceTable:
    column = labels[0].column
    frame = table.frame.copy()
    notes: list[str] = []
    for number, label in zip(used, labels, strict=True):
        if label.column == column:
            continue
        if column in table.files[number].names:
            msg = (
                f"{label.source}: its label is {label.column!r}, that of {labels[0].source} is "
                f"{column!r}, which {label.source} has, too; expected one name. Choose it with "
                "--column pkd=NAME."
            )
            raise LabelError(msg)
        rows = table.file_of_row == number
        values = frame[column].astype(object)  # the columns may have different types
        values[rows] = frame.loc[rows, label.column]
        frame[column] = values
        notes.append(f"{label.source}: label {label.column!r} is read as {column!r}")
    columns = {**table.columns, "pkd": column}
    return replace(table, frame=frame, columns=columns, ignored=[*table.ignored, *notes])
