"""Units of affinities: one row of `UNITS` per unit, from which all else about it is derived.

The values of ``--label``, what the names of columns say, the conversion to pKd and of its errors,
which values are stronger, and how a non-binder is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ANTIBODY_KDA = 150.0
"""Molar mass of IgG."""
KCAL_PER_PKD = 1.987204259e-3 * 298.15 * math.log(10.0)
"""R T ln 10 at 298.15 K in kcal/mol: dG = -RT ln 10 * pKd."""
KJ_PER_KCAL = 4.184
WEAK_PKD = 5.0
"""Affinity of the bound that is advised for a non-binder: that of a Kd of 10 uM."""
_MASS_SHIFT = math.log10(ANTIBODY_KDA * 1e6)
"""pKd of 1 ug/mL of an antibody: ug/mL = 1e-3 g/L, kDa = 1e3 g/mol."""
_LN10 = math.log(10.0)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of affinities: pKd = `at_one` + x / `per_pkd`, of a value x or of its log10."""

    name: str
    """As ``--label`` has it."""
    written: tuple[str, ...] = ()
    """What the names of columns call the quantity, with its logarithm; none: no affinity."""
    scales: tuple[str, ...] = ("",)
    """What these names say that it is measured in, the usual one first; empty: nothing."""
    at_one: float = 0.0
    """pKd of a value of 1, or of 0 if no logarithm is taken."""
    per_pkd: float = -1.0
    """Change per pKd; above 0: higher values are stronger."""
    words: tuple[str, ...] = ()
    """Spellings of the first of `scales`, where it is not M with a prefix."""
    of_mass: bool = False
    """Whether it needs a molar mass."""

    @property
    def takes_log(self) -> bool:
        """Whether the logarithm of the values is taken, which have to be positive."""
        return self.written[:1] in (("kd",), ("ka",))

    @property
    def stronger(self) -> str:
        """Which values bind more strongly: ``higher`` or ``lower``."""
        return "higher" if self.per_pkd > 0 else "lower"

    @property
    def bound_of_a_non_binder(self) -> str:
        """How a pair without binding at 10 uM is written, such as ``>10000``."""
        weak = (WEAK_PKD - self.at_one) * self.per_pkd
        value = 10.0**weak if self.takes_log else weak
        return f"{'<' if self.per_pkd > 0 else '>'}{float(f'{value:.3g}'):g}"


_ROWS = (
    Unit("pkd", ("pkd", "-log10 pkd", "-log10 kd"), ("", "m"), per_pkd=1.0),
    Unit("kd_m", ("kd",), ("m",)),
    Unit("kd_mm", ("kd",), ("mm",), 3.0),
    Unit("kd_um", ("kd",), ("um",), 6.0),
    Unit("kd_nm", ("kd",), ("nm",), 9.0),
    Unit("kd_pm", ("kd",), ("pm",), 12.0),
    Unit("kd_fm", ("kd",), ("fm",), 15.0),
    Unit("log10_kd_m", ("log10 kd",), ("m",)),
    Unit("log10_kd_um", ("log10 kd",), ("um",), 6.0),
    Unit("log10_kd_nm", ("log10 kd",), ("nm",), 9.0),
    Unit("log10_kd_pm", ("log10 kd",), ("pm",), 12.0),
    Unit("neg_log10_kd_nm", ("-log10 kd",), ("nm", ""), 9.0, 1.0),
    Unit("ln_kd_m", ("ln kd",), ("m",), 0.0, -_LN10),
    Unit("ln_kd_nm", ("ln kd",), ("nm",), 9.0, -_LN10),
    Unit("ka_per_m", ("ka",), ("per m",), 0.0, 1.0),
    Unit("ka_per_um", ("ka",), ("per um",), 6.0, 1.0),
    Unit("ka_per_nm", ("ka",), ("per nm",), 9.0, 1.0),
    Unit("log10_ka_per_m", ("log10 ka",), ("per m",), 0.0, 1.0),
    Unit("ug_ml", ("kd",), ("ug_ml",), _MASS_SHIFT, of_mass=True,
         words=("ugml", "ugml1", "ug/ml", "mcg/ml", "microg/ml", "mg/l", "ng/ul")),
    Unit("ng_ml", ("kd",), ("ng_ml",), _MASS_SHIFT + 3.0, of_mass=True,
         words=("ngml", "ngml1", "ng/ml", "nanog/ml", "ug/l", "pg/ul")),
    Unit("dg_kcal", ("dg",), ("kcal", ""), 0.0, -KCAL_PER_PKD, words=("kcal", "kcalmol")),
    Unit("dg_kj", ("dg",), ("kj", ""), 0.0, -KCAL_PER_PKD * KJ_PER_KCAL, words=("kj", "kjmol")),
    Unit("binary", per_pkd=1.0),
    Unit("classes", per_pkd=1.0),
    Unit("value", per_pkd=1.0),
)  # fmt: skip
UNITS: Mapping[str, Unit] = {unit.name: unit for unit in _ROWS}
"""By name; of several that fit the name of a column, the first is the most probable one. The last
are no affinities: ``binary``, yes or no; ``classes``, ordered ones; and ``value``, any other
quantity, as it is written."""
NO_AFFINITIES = ("binary", "classes", "value")
