"""How far labels can be trusted: their standard deviations, or weights, from a column of a table.

A label with a standard deviation s has noise of the variance s^2, and a model errs beside it, by
as much for all labels. How much that is, is not known: half of the mean variance is taken as equal
for all, so that no label counts more than twice as much as the average because of a small s.
R rows of a table, P pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from abag.core.errors import LabelError
from abag.core.messages import counted, say
from abag.head.data.cells import read_numbers
from abag.head.data.features import refuse_absent
from abag.head.data.label_options import Label
from abag.head.data.units import POSITIVE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from abag.core.arrays import Bools, Floats
    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.data.affinities import Affinities
    from abag.head.data.label_options import PairColumnOptions

PER_UNIT: Mapping[Label, float] = {
    "ln_kd_m": float(1 / np.log(10)), "ln_kd_nm": float(1 / np.log(10)),
    "dg_kcal": 0.733, "dg_kj": 0.175,
}  # fmt: skip
"""Change of a pKd per unit of a logarithm or an energy at 25 degrees; 1 for others."""
LARGEST = 1e100
"""Errors and weights are below it, and above its inverse: squares and sums of others overflow."""
MOST_UNLIKE = 1e12
"""Factor between an error or a weight and their median, beyond which others would not count."""
OF_MODEL = 0.5
"""Share of the mean variance that all labels have in common."""


class LabelTrust(NamedTuple):
    """How far the labels of R rows can be trusted."""

    what: Literal["error", "weight"]
    values_R: Floats
    """Errors in the unit of the labels as they are read, pKd for affinities, or weights."""
    share_R: Floats
    """Variance of the noise of each label, up to a factor."""


def read_trust(
    table: SequenceTable, options: PairColumnOptions, labels: Affinities, used: Bools, exact: Bools
) -> LabelTrust | None:
    """Read the column of errors or weights; None if none is named.

    Parameters
    ----------
    table : SequenceTable
        With R rows.
    options : PairColumnOptions
        Names the column.
    labels : Affinities
        The labels as they are written, and their unit.
    used, exact : ndarray, shape=(R,)
        Rows with a label, and those whose label is no bound. Bounds may lack an error.

    Raises
    ------
    LabelError
        If an error or a weight is not a number above 0, or too far from the others.
    """
    name = options.error if options.error is not None else options.weight
    if name is None:
        return None
    kind: Literal["error", "weight"] = "weight" if options.error is None else "error"
    refuse_absent(name, [*map(str, table.names)], table.source, f"--{kind} names")
    values = read_numbers(table.frame[name])
    valid = (values > 1 / LARGEST) & (values < LARGEST)
    bad = used & ~valid
    if kind == "error":
        bad &= exact | ~np.isnan(values)
    if bad.any():
        cell = table.describe_cell(int(np.flatnonzero(bad)[0]), name)
        msg = (
            f"{cell} ({counted(int(bad.sum()), 'such row')}) is not a valid {kind}; expected a "
            f"finite number above 0, and below {LARGEST:g}. Fix it, or leave the row out."
        )
        raise LabelError(msg)
    if kind == "weight":
        _refuse_unlike(table, name, values, used)
        return LabelTrust(kind, values, _share_of_weights(table.source, name, values, used))
    error = _of_pkd(values, labels)
    finite = used & exact & np.isfinite(error)
    if not finite.any():
        msg = (
            f"{table.source}: column {name!r} has errors of bounds alone; expected those of exact "
            "labels. Leave --error out."
        )
        raise LabelError(msg)
    _refuse_unlike(table, name, error, used & np.isfinite(error))
    typical = float(np.median(error[finite]))
    quantity = labels.quantity
    say(
        f"{table.source}: errors {name!r}: standard deviations of the labels, median "
        f"{quantity.show(typical)} {quantity}"
    )
    share_R = np.square(np.where(np.isfinite(error), error / typical, 1.0))
    return LabelTrust(kind, error, share_R)


def _refuse_unlike(table: SequenceTable, name: str, values: Floats, used: Bools) -> None:
    """Refuse a value beside which those of the other rows would not count, or that would not."""
    median = float(np.median(values[used]))
    unlike = used & ~((values < median * MOST_UNLIKE) & (values > median / MOST_UNLIKE))
    if unlike.any():
        cell = table.describe_cell(int(np.flatnonzero(unlike)[0]), name)
        msg = (
            f"{cell} ({counted(int(unlike.sum()), 'such row')}) is more than {MOST_UNLIKE:g} times "
            "larger or smaller than the median of the column; expected values that can be "
            "compared. Fix it, or leave the row out."
        )
        raise LabelError(msg)


def _share_of_weights(source: str, name: str, values: Floats, used: Bools) -> Floats:
    """Turn the weights of labels into variances of their noise, (R,), and report their range."""
    typical = float(np.median(values[used]))
    low = values[used].min() / typical
    high = values[used].max() / typical
    say(f"{source}: weights {name!r}: {low:.3g} to {high:.3g} times their median")
    return np.where(used, typical / values, 1.0)


def _of_pkd(error: Floats, labels: Affinities) -> Floats:
    """Turn the errors of labels into those of pKd, by its slope, or leave other quantities."""
    if labels.unit in POSITIVE:  # d log10(x) = dx / (x ln 10)
        with np.errstate(divide="ignore", invalid="ignore"):  # a label of 0 has no pKd
            return np.asarray(error / (np.abs(labels.raw) * np.log(10)))
    return error * PER_UNIT.get(labels.unit, 1.0)


def share_of_pairs(pairs: pd.DataFrame, *, of_errors: bool) -> Floats | None:
    """Return the variance of each pair's label relative to its mean, (P,), given those of rows.

    Parameters
    ----------
    pairs : DataFrame
        Has ``measurements``, and ``share`` if there are errors or weights.
    of_errors : bool
        Whether the shares are of errors, beside which a model errs.
    """
    if "share" not in pairs:
        return None
    # the mean of m measurements has an m-th of their variance
    share = (pairs["share"] / pairs["measurements"]).to_numpy(np.float64)
    share = share / share.mean()
    return np.asarray(OF_MODEL + (1 - OF_MODEL) * share if of_errors else share)
