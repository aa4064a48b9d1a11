"""Units of affinity, their conversion to pKd, and the range in which affinities lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from abag.core.arrays import Bools, Floats
from abag.head.data.label_options import ANTIBODY_KDA, Label

KCAL_PER_PKD = 1.987204259e-3 * 298.15 * np.log(10.0)
"""R T ln 10 at 298.15 K in kcal/mol: dG = -RT ln 10 * pKd."""
KJ_PER_KCAL = 4.184
DECADES = {"m": 0.0, "mm": 3.0, "um": 6.0, "nm": 9.0, "pm": 12.0}
"""Powers of ten that a mole per litre has of each unit."""
_MASS_SHIFT = np.log10(ANTIBODY_KDA * 1e6)
"""pKd of 1 ug/mL of an antibody, less its sign: ug/mL = 1e-3 g/L, kDa = 1e3 g/mol."""

TO_PKD: Mapping[Label, Callable[[Floats], Floats]] = {
    "pkd": lambda x: x,
    "kd_m": lambda x: -np.log10(x),
    "kd_mm": lambda x: 3.0 - np.log10(x),
    "kd_um": lambda x: 6.0 - np.log10(x),
    "kd_nm": lambda x: 9.0 - np.log10(x),
    "kd_pm": lambda x: 12.0 - np.log10(x),
    "log10_kd_m": lambda x: -x,
    "log10_kd_um": lambda x: 6.0 - x,
    "log10_kd_nm": lambda x: 9.0 - x,
    "log10_kd_pm": lambda x: 12.0 - x,
    "neg_log10_kd_nm": lambda x: 9.0 + x,
    "ln_kd_m": lambda x: -x / np.log(10.0),
    "ln_kd_nm": lambda x: 9.0 - x / np.log(10.0),
    "ka_per_m": lambda x: np.log10(x),
    "ka_per_um": lambda x: 6.0 + np.log10(x),
    "ka_per_nm": lambda x: 9.0 + np.log10(x),
    "ug_ml": lambda x: _MASS_SHIFT - np.log10(x),
    "ng_ml": lambda x: _MASS_SHIFT + 3.0 - np.log10(x),
    "dg_kcal": lambda x: -x / KCAL_PER_PKD,
    "dg_kj": lambda x: -x / KCAL_PER_PKD / KJ_PER_KCAL,
}
POSITIVE: frozenset[Label] = frozenset(
    {
        "kd_m",
        "kd_mm",
        "kd_um",
        "kd_nm",
        "kd_pm",
        "ka_per_m",
        "ka_per_um",
        "ka_per_nm",
        "ug_ml",
        "ng_ml",
    }
)
"""Units of which the logarithm is taken."""
HIGHER_IS_STRONGER: frozenset[Label] = frozenset(
    {
        "pkd",
        "neg_log10_kd_nm",
        "ka_per_m",
        "ka_per_um",
        "ka_per_nm",
    }
)
USUAL_PKD = (2.0, 14.0)
"""Affinities outside this range do not occur; the label has another unit or meaning."""
OF_MASS: frozenset[Label] = frozenset({"ug_ml", "ng_ml"})
"""Units that need a molar mass."""


def to_pkd(values: Floats, unit: Label, molar_mass_kda: float = ANTIBODY_KDA) -> Floats:
    """Convert values to pKd; what has no logarithm becomes NaN, other quantities stay."""
    if unit == "value":
        return np.where(np.isfinite(values), values, np.nan)
    # zero and negative numbers have no logarithm, and become NaN below
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        pkd = TO_PKD[unit](values)
        if unit in OF_MASS:
            pkd = pkd + np.log10(molar_mass_kda / ANTIBODY_KDA)
    return np.where(np.isfinite(pkd), pkd, np.nan)


def stronger(unit: Label) -> str:
    """Say which values of a unit bind more strongly."""
    return "higher" if unit in HIGHER_IS_STRONGER else "lower"


def outside(values: Floats, bounds: tuple[float, float]) -> Bools:
    """Return which values lie below the first bound or above the second, (R,)."""
    return (values < bounds[0]) | (values > bounds[1])
