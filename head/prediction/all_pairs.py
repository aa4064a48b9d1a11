"""Every antibody of one table against every antigen of another.

A row of the output is an antibody's columns, an antigen's, and their scores; antibodies come in
the order of their table, each with all antigens in the order of theirs. N antibodies, M antigens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.pairs import read_side
from abag.head.prediction.inputs import (
    CannotPredict,
    Gathered,
    TableSource,
    Work,
    complete,
    refuse_taken,
    source_name,
)
from abag.head.prediction.predictor import existing_store
from abag.head.prediction.rows import ROWS, RowWriter, blanked, read_rows

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind
    from abag.embed.sequences.pairs import SequenceTable
    from abag.embed.store.store import Store

SLICE = 16_384
"""Antibodies whose vectors are in memory at a time: 67 MB at IgT5's width."""
PAIRS = 1 << 20
"""Pairs that are scored at a time."""
OF_A_PAIR = frozenset(
    {"pkd", "kd_m", "kd_nm", "log10_kd_nm", "dg_kcal", "prediction", "censored", "affinity_type"}
)
"""Roles of columns that say something of one pair, and would be wrong beside another."""
ROLES: dict[Kind, frozenset[str]] = {
    "antibody": frozenset({"heavy", "light", "antibody"}),
    "antigen": frozenset({"antigen"}),
}


def predict_cross(
    work: Work, table: TableSource, cross: TableSource, out: Path, options: TableOptions
) -> dict[str, Any]:
    """Score each distinct antibody of a table against each distinct antigen of another."""
    if options.antigen is not None:
        msg = "--antigen and --cross: both say what the antigens are; expected one. Give one."
        raise CannotPredict(msg)
    antibodies, bodies = _read_side(work, table, "antibody", options)
    antigens, targets = _read_side(work, cross, "antigen", options)
    left, right = _columns(work, antibodies, antigens, same=_same(table, cross))
    for frame, source in ((left, table), (right, cross)):
        refuse_taken(frame, source_name(source))
    store = complete(work, bodies, targets)
    far = _write(work, store, (antibodies, left), (antigens, right), out)
    return {
        "rows": len(left) * len(right),
        "skipped_rows": sum(sum(side.skipped.values()) for side in (antibodies, antigens)),
        "antibodies": bodies.summary(far[0]),
        "antigens": targets.summary(far[1]),
    }


def _read_side(
    work: Work, table: TableSource, kind: Kind, options: TableOptions
) -> tuple[SequenceTable, Gathered]:
    """Read one side's table whole, and note which sequences are new."""
    parts = list(read_rows(table, limit=options.limit))
    if not sum(map(len, parts)):
        msg = f"{source_name(table)}: the table has no rows; expected one {kind} a row."
        raise CannotPredict(msg)
    frame = pd.concat(parts, ignore_index=True)
    own = {role: name for role, name in options.columns.items() if role in ROLES[kind]}
    reading = TableOptions(columns=own, bad_rows=options.bad_rows)
    read = read_side(blanked(frame), kind, reading, source=source_name(table))
    for note in read.notes:
        work.say(f"{read.source}: {note}")
    gathered = Gathered(kind)
    store = existing_store(work.place)
    gathered.add(read.unique, work.predictor.missing(store, kind, read.unique.keys))
    gathered.finish()
    cells = frame.iloc[read.row_numbers - 1].reset_index(drop=True)
    return replace(read, frame=cells), gathered  # as they are in the file


def _same(table: TableSource, cross: TableSource) -> bool:
    if isinstance(table, pd.DataFrame) or isinstance(cross, pd.DataFrame):
        return table is cross
    return Path(table).samefile(cross)


def _columns(
    work: Work, antibodies: SequenceTable, antigens: SequenceTable, *, same: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Give each distinct sequence the columns that belong to it, saying which are left out."""
    left = _own(antibodies, "antibody")
    right = _own(antigens, "antigen")
    if same:  # a column of both, such as a constant one, comes once
        right = right.drop(columns=[name for name in right if name in left])
    out = [n for n in antibodies.frame if n not in left and not (same and n in right)]
    if not same:
        out += [n for n in antigens.frame if n not in right]
    if out:
        work.say(
            f"left out, since they say something of a pair or differ between rows of one "
            f"sequence: {', '.join(map(str, out))}"
        )
    both = set(left) & set(right)
    return (
        left.rename(columns={name: f"{name}_antibody" for name in both}),
        right.rename(columns={name: f"{name}_antigen" for name in both}),
    )


def _own(table: SequenceTable, kind: Kind) -> pd.DataFrame:
    """Select the columns with one value a sequence, a row a distinct sequence."""
    foreign = OF_A_PAIR | ROLES["antigen" if kind == "antibody" else "antibody"]
    elsewhere = {name for role, name in table.columns.items() if role in foreign}
    of_row = table.unique.of_row
    _, first = np.unique(of_row, return_index=True)
    own = []
    for name in table.frame.columns:
        value = pd.factorize(table.frame[name], use_na_sentinel=False)[0]
        sequence = name in [table.columns.get(role) for role in ROLES[kind]]
        if sequence or (name not in elsewhere and (value == value[first[of_row]]).all()):
            own.append(name)
    return table.frame[own].iloc[first].reset_index(drop=True)


def _write(
    work: Work,
    store: Store,
    left: tuple[SequenceTable, pd.DataFrame],
    right: tuple[SequenceTable, pd.DataFrame],
    out: Path,
) -> tuple[int, int]:
    """Score and write all pairs; return how many antibodies and antigens lie far."""
    predictor = work.predictor
    bodies, targets = left[0].unique.keys, right[0].unique.keys
    predictor.refuse_missing(store, "antibody", bodies)
    y_ME = predictor.read(store, "antigen", targets)
    far_antigen, far = predictor.antigen_applicability.is_far(y_ME), 0
    with RowWriter(out) as writer, work.bar("scoring", len(bodies) * len(targets)) as bar:
        for at in range(0, len(bodies), SLICE):
            x_ND = predictor.read(store, "antibody", bodies[at : at + SLICE])
            far_antibody = predictor.antibody_applicability.is_far(x_ND)
            far += int(far_antibody.sum())
            for i, j in _pairs(len(x_ND), len(y_ME)):
                pkd, sigma = predictor.score(x_ND, y_ME, i, j)
                scores = pd.DataFrame(
                    {
                        "pkd_predicted": pkd,
                        "sigma": sigma,
                        "far_antibody": far_antibody[i],
                        "far_antigen": far_antigen[j],
                    }
                )
                for first in range(0, len(scores), ROWS):
                    rows = slice(first, first + ROWS)
                    writer.write(_row(left[1], right[1], at + i[rows], j[rows], scores[rows]))
                    bar.update(len(i[rows]))
    return far, int(far_antigen.sum())


def _pairs(n: int, m: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Give all pairs of n and m, antibodies first, about `PAIRS` at a time."""
    step = max(1, PAIRS // m)
    for first in range(0, n, step):
        rows = np.arange(first, min(first + step, n))
        yield np.repeat(rows, m), np.tile(np.arange(m), len(rows))


def _row(
    left: pd.DataFrame,
    right: pd.DataFrame,
    i: NDArray[np.int64],
    j: NDArray[np.int64],
    scores: pd.DataFrame,
) -> pd.DataFrame:
    parts = [left.iloc[i], right.iloc[j], scores]
    return pd.concat([part.reset_index(drop=True) for part in parts], axis=1)
