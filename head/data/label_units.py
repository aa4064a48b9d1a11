"""Units of a label column, and the affinities that occur."""

from __future__ import annotations

import re
import sys
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api.types import is_any_real_numeric_dtype

from abag import AbagError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from abag.head.data.label_options import Label

KCAL_PER_PKD = 1.987204259e-3 * 298.15 * np.log(10.0)
"""R T ln 10 at 298.15 K in kcal/mol: dG = -RT ln 10 * pKd."""
KJ_PER_KCAL = 4.184
ANTIBODY_G_PER_MOL = 150_000.0
"""Molar mass of IgG, for concentrations in ug/mL."""
USUAL_PKD = (2.0, 14.0)
"""Affinities outside this range do not occur; the label has another unit or meaning."""
DOUBLE_LOG = (0.3, 1.2)
"""Range of log10 of a pKd: labels there had their logarithm taken twice."""

TO_PKD: Mapping[Label, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "pkd": lambda x: x,
    "kd_m": lambda x: -np.log10(x),
    "kd_um": lambda x: 6.0 - np.log10(x),
    "kd_nm": lambda x: 9.0 - np.log10(x),
    "log10_kd_m": lambda x: -x,
    "log10_kd_nm": lambda x: 9.0 - x,
    "ug_ml": lambda x: np.log10(ANTIBODY_G_PER_MOL * 1e3) - np.log10(x),
    "dg_kcal": lambda x: -x / KCAL_PER_PKD,
    "dg_kj": lambda x: -x / KCAL_PER_PKD / KJ_PER_KCAL,
}
"""Conversions of arrays to pKd, by unit."""
POSITIVE: frozenset[Label] = frozenset({"kd_m", "kd_um", "kd_nm", "ug_ml"})
"""Units of which the logarithm is taken."""
FITTING_SHARE = 0.95
"""Share of usual values from which a unit is suggested."""
SIGNS = {">": 1, "≥": 1, "<": -1, "≤": -1, "": 0, "=": 0, "~": 0}
"""Relations by their first character: on which side of a number the value lies."""
_BOUND = re.compile(r"\s*([<>≥≤=~])=?\s*(?=[-+.\d])")


class BadLabel(AbagError):
    """A label is invalid, or the label column is not in the unit given."""


def read_numbers(cells: pd.Series) -> NDArray[np.float64]:
    """Convert cells to numbers, shape (R,); NaN for what is neither a number nor text of one."""

    def is_number(cell: object) -> bool:
        kinds = (str, int, float, Decimal, np.integer, np.floating)
        if isinstance(cell, int) and abs(cell) > sys.float_info.max:
            return False  # pandas would raise OverflowError
        return isinstance(cell, kinds) and not isinstance(cell, bool)

    if not is_any_real_numeric_dtype(cells.dtype):  # pandas converts dates and booleans too
        cells = cells.astype(object)
        cells = cells.where(cells.map(is_number).astype(bool))
    return pd.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan)


def read_bounds(cells: pd.Series) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Convert cells as `read_numbers` does, also those such as ``>1000``; each of shape (R,).

    The second result is on which side of its number each value lies: 1 above, -1 below, 0 exact.
    """
    if is_any_real_numeric_dtype(cells.dtype):
        return read_numbers(cells), np.zeros(len(cells), np.int8)
    values = cells.tolist()
    sides = np.zeros(len(values), np.int8)
    for i, value in enumerate(values):
        if isinstance(value, str) and (found := _BOUND.match(value)):
            values[i], sides[i] = value[found.end() :], SIGNS[found[1]]
    return read_numbers(pd.Series(values, dtype=object)), sides


def refuse_other_units(where: str, raw: NDArray[np.float64], label: Label) -> None:
    """Refuse labels that are not in the unit `label`.

    Parameters
    ----------
    where : str
        Table and column.
    raw : NDArray, shape=(N,), dtype=float64
        Finite; positive where the unit requires it.

    Raises
    ------
    BadLabel
        If over half of the labels are affinities that do not occur.
    """
    if label == "pkd" and ((raw > 0) & (raw < 1e-3)).all():
        msg = (
            f"{where} looks like Kd in M (all values below 1e-3), but pKd was expected. "
            "Use --label kd_m."
        )
        raise BadLabel(msg)
    pkd = TO_PKD[label](raw)
    unusual = outside(pkd, USUAL_PKD)
    if 2 * unusual.sum() > len(pkd):
        twice = 2 * np.sum(~outside(pkd, DOUBLE_LOG)) > len(pkd)
        hint = " (was the logarithm taken twice?)" if twice else ""
        fitting = " or ".join(fitting_units(raw))
        unit = f"--label {fitting}, which fits the values," if fitting else "--label,"
        msg = (
            f"{where}: {unusual.sum()} of {len(pkd)} labels, such as {raw[unusual][0]:g}, are "
            f"outside the usual range of pKd (2 to 14) if read as {label}{hint}; expected "
            f"affinities. Choose the unit with {unit} or the column with --column pkd=NAME."
        )
        raise BadLabel(msg)


def fitting_units(raw: NDArray[np.float64]) -> list[Label]:
    """List the units in which nearly all values, (N,), are usual affinities."""
    fitting: list[Label] = []
    for unit, convert in TO_PKD.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            pkd = convert(raw)
        usual = (pkd >= USUAL_PKD[0]) & (pkd <= USUAL_PKD[1])
        if len(raw) and usual.mean() >= FITTING_SHARE:
            fitting.append(unit)
    return fitting


def outside(values: NDArray[np.float64], bounds: tuple[float, float]) -> NDArray[np.bool_]:
    """Return which values, (N,), are below or above the bounds."""
    return (values < bounds[0]) | (values > bounds[1])
