"""Options of reading labels and of splitting pairs, and the units of affinities.

`UNITS` has one row per unit, from which all else about it is derived: the values of ``--label``,
what the names of columns say, the conversion to pKd and of its errors, which values are stronger,
and how a non-binder is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from abag.core.errors import OptionError
from abag.core.messages import quoted
from abag.core.options import Options, option
from abag.embed.tables.options import BadRowOptions, refuse_together

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


if TYPE_CHECKING:
    Label: TypeAlias = str
else:
    Label = Literal[*UNITS]
"""Units of affinities, and what is none: ``binary``, ``classes`` and ``value``, any other quantity,
as it is written."""
Better: TypeAlias = Literal["higher", "lower"]
Scale: TypeAlias = Literal["linear", "log"]
Replicates: TypeAlias = Literal["median", "mean", "first", "keep", "error"]
Floor: TypeAlias = Literal["keep", "censor", "drop"]
FLOOR_SHARE = 0.05
"""A lowest value that more than this share of the rows have is a floor."""
BesideRole: TypeAlias = Literal["feature", "category", "error", "weight", "split"]
"""What a column is that the user names beside labels and sequences."""
AdapterRows: TypeAlias = Literal["leave-out", "train"]
MOLAR_MASSES = {"igg": ANTIBODY_KDA, "scfv": 27.0, "vhh": 15.0}
"""In kDa, for concentrations in ug/mL or ng/mL."""
MOST_PKD = 1e6
"""Larger values, such as times in seconds, are no affinities and exceed what training can add."""
MOST_VALUE = 1e12
"""The same of other quantities, such as fluorescence."""
MOST_FEATURE = 1e15
"""The same of features, of which models compute squares."""
LONGEST_UNIT = 30
MOST_FEATURES = 1_000
"""Of columns that models read beside the vectors."""
SPLIT_VALUES = {
    "auto": "", "random": "", "antigen": "", "antibody": "", "both": "", "mutations": "",
    "column": "=NAME", "file": "=PATH",
}  # fmt: skip
"""What follows the name of a split method."""


def read_molar_mass(given: str | None) -> float:
    """Read the value of ``--molar-mass``, in kDa; None stands for IgG."""
    name = (given or "igg").strip().lower()
    if name in MOLAR_MASSES:
        return MOLAR_MASSES[name]
    try:
        mass = float(name.removesuffix("kda"))
    except ValueError:
        mass = math.nan
    if not 1.0 <= mass <= 10_000.0:
        msg = (
            f"--molar-mass: {quoted(given)} is not valid; expected {', '.join(MOLAR_MASSES)} or "
            "a number of kDa from 1 to 10000, such as 50."
        )
        raise OptionError(msg)
    return mass


@dataclass(frozen=True, kw_only=True)
class LabelOptions(BadRowOptions, group="Data"):
    """How the label column is read."""

    label: Label | None = option(
        None,
        default_text="stated by the column's name, else pkd",
        help="Unit of the label column; Kd stands for IC50 and EC50 too. value: another quantity "
        "than an affinity, such as expression or a melting temperature; binary: yes or no.",
    )
    positive: str | None = option(
        None,
        metavar="VALUE",
        default_text="known for words such as yes, binder, 1 or +",
        help="Cell that says yes, where the label is binary.",
    )
    classes: tuple[str, ...] | None = option(
        None,
        metavar="NAMES",
        default_text="yes and no, where the label is binary",
        help="Cells of a label of ordered classes, the lowest first, such as low,medium,high.",
    )
    better: Better | None = option(
        None,
        default_text="known for pKd and by usual names, such as Tm or ddG",
        help="Which values of another quantity are better.",
    )
    unit: str | None = option(
        None,
        metavar="TEXT",
        default_text="in brackets in the column's name",
        help="Unit of another quantity, for messages and reports.",
    )
    scale: Scale | None = option(
        None,
        default_text="log for positive values over two decades or more",
        help="Scale on which another quantity than an affinity is learned and predicted; log: its "
        "logarithm to base 10, as for counts, titers and fluorescence.",
    )
    molar_mass: str | None = option(
        None,
        metavar="KDA",
        default_text="igg",
        rare=True,
        help="Molar mass of the antibodies, for labels in ug_ml or ng_ml: igg (150 kDa), scfv "
        "(27), vhh (15), or a number of kDa.",
    )
    no_binding: float | None = option(
        None,
        metavar="VALUE",
        default_text="such cells are invalid",
        help="Read words such as NB or non-binder as weaker than this value, in the unit of the "
        "label; for instance the highest concentration tested.",
    )
    no_binding_empty: bool = option(
        False, rare=True, help="Read empty cells so, too; needs --no-binding."
    )
    label_range: str | None = option(
        None,
        metavar="MIN:MAX",
        default_text="any",
        help="Valid labels in pKd, such as 4:12, or in the unit of another quantity; others are "
        "invalid rows, see --bad-rows.",
    )
    replicates: Replicates = option(
        "median",
        rare=True,
        help="How several labels of one pair are combined; keep: each is a pair.",
    )
    floor: Floor = option(
        "keep",
        rare=True,
        help="What to do with the lowest value if more than 5 % of the rows share it.",
    )
    affinity_type: str | None = option(
        None,
        metavar="NAME",
        help="Use the rows of this affinity type; required if a table has several.",
    )

    def check_combination(self) -> None:
        """Raise `OptionError` if options of the label contradict each other or lack one another."""
        self._check_quantity()
        self._check_classes()
        low, high = self.bounds(affinity=True)
        if not low < high:
            msg = (
                f"--label-range: {quoted(self.label_range)} is not valid; expected MIN:MAX in "
                "pKd, such as 4:12."
            )
            raise OptionError(msg)
        if self.no_binding_empty and self.no_binding is None:
            msg = "--no-binding-empty: no bound is given; expected --no-binding VALUE too. Add it."
            raise OptionError(msg)
        _ = self.molar_mass_kda

    @property
    def molar_mass_kda(self) -> float:
        """Molar mass of the antibodies in kDa."""
        return read_molar_mass(self.molar_mass)

    def _check_quantity(self) -> None:
        is_of_value = self.unit is not None or self.scale is not None
        is_given = self.better is not None or is_of_value
        may_be_better = not is_of_value and self.label in ("binary", "classes")
        if is_given and self.label not in (None, "value") and not may_be_better:
            msg = (
                "--better, --unit and --scale: are of other quantities than affinities, but "
                f"--label says {self.label}; expected --label value with them. Leave these options "
                "out, or give --label value."
            )
            raise OptionError(msg)
        unit = self.unit
        if unit is not None and (len(unit) > LONGEST_UNIT or not unit.strip().isprintable()):
            msg = (
                f"--unit: {quoted(unit)} is not valid; expected a few characters on one line, "
                "such as °C or mg/L. Shorten it."
            )
            raise OptionError(msg)

    @property
    def asks_for_value(self) -> bool:
        """Whether the label is to be read as another quantity than an affinity."""
        given = (self.better, self.unit, self.scale)
        return self.label == "value" or any(value is not None for value in given)

    @property
    def asks_for_classes(self) -> bool:
        """Whether the label is to be read as classes."""
        named = self.positive is not None or self.classes is not None
        return named or self.label in ("binary", "classes")

    def _check_classes(self) -> None:
        """Refuse options of classes that contradict each other, or those of numbers."""
        names = self.classes
        if self.label == "classes" and names is None:
            msg = (
                "--label classes: which classes there are is not given; expected --classes too, "
                "the lowest first, such as --classes low,medium,high. Add it."
            )
            raise OptionError(msg)
        if names is not None and (len(names) < 2 or not all(names) or len(set(names)) < len(names)):
            msg = (
                f"--classes: {quoted(','.join(names))} is not valid; expected two or more "
                "different names, the lowest first, such as low,medium,high."
            )
            raise OptionError(msg)
        if not self.asks_for_classes:
            return
        given = {"--positive": self.positive is not None, "--classes": names is not None}
        refuse_together("each names the classes", given)
        asked = self.given({"positive", "classes"}) or f"--label {self.label}"
        is_more = names is not None and len(names) > 2
        if self.label not in ((None, "classes") if is_more else (None, "binary", "classes")):
            msg = (
                f"{asked}: is of classes, but --label says {self.label}; expected --label "
                f"{'binary' if names is None else 'classes'}. Leave one of the two out."
            )
            raise OptionError(msg)
        of_numbers = {"no_binding", "label_range", "floor", "molar_mass", "unit", "scale"}
        others = self.given(of_numbers)
        why = f"{others} is of numbers, not of classes"
        refuse_together(why, {asked: True, others: bool(others)})

    def bounds(self, *, affinity: bool) -> tuple[float, float]:
        """Return the least and the largest valid label, in pKd or in its own unit."""
        most = MOST_PKD if affinity else MOST_VALUE
        try:
            low, high = map(float, (self.label_range or f"{-most}:{most}").split(":"))
        except ValueError:
            return math.nan, math.nan
        return low, high


@dataclass(frozen=True, kw_only=True)
class PairColumnOptions(Options, group="Data"):
    """Columns that describe a pair or its label, beside its sequences."""

    features: tuple[str, ...] | None = option(
        None,
        metavar="COLUMNS",
        default_text="none",
        help="Columns of numbers that models read beside the vectors, such as "
        "loglik,foldx_ddg; predict needs them, too.",
    )
    categories: tuple[str, ...] | None = option(
        None,
        metavar="COLUMNS",
        default_text="none",
        help="Columns of text that models read as categories, such as assay,laboratory.",
    )
    error: str | None = option(
        None,
        metavar="COLUMN",
        help="Column of the standard deviation of each label, in its unit; labels with smaller "
        "ones count more.",
    )
    weight: str | None = option(
        None,
        metavar="COLUMN",
        help="Column of the weight of each label, above 0; only their ratios count.",
    )

    @property
    def has_features(self) -> bool:
        """Whether models read columns beside the vectors."""
        return any((self.features, self.categories))

    def check_combination(self) -> None:
        """Raise `OptionError` if a column is empty, named twice, or one of too many."""
        names = [*(self.features or ()), *(self.categories or ())]
        for option_name in ("features", "categories"):
            if getattr(self, option_name) is not None and not all(getattr(self, option_name)):
                msg = (
                    f"--{option_name}: names no column; expected names such as foldx_ddg. Correct "
                    "it."
                )
                raise OptionError(msg)
        if len(names) > MOST_FEATURES:
            msg = (
                f"--features: {len(names):,} columns; expected at most {MOST_FEATURES:,}. Leave "
                "some out."
            )
            raise OptionError(msg)
        for at, name in enumerate(names):
            if name in names[:at]:
                msg = (
                    f"--features and --categories: {name!r} is given twice; expected each column "
                    "once. Remove one."
                )
                raise OptionError(msg)
        trusted = {"--error": self.error is not None, "--weight": self.weight is not None}
        refuse_together("each says how far labels can be trusted", trusted)


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Options, group="Split"):
    """How pairs are split into training, validation and test parts."""

    split: str = option(
        "auto",
        metavar="HOW",
        help="auto (every regime), random, antigen, antibody, both, mutations, column=NAME or "
        "file=PATH.",
    )
    folds: int = option(
        0, low=0, metavar="K", help="Folds of a cross-validation; 0: as many as needed."
    )
    repeats: int = option(1, low=1, metavar="R", help="Repetitions of the cross-validation.")
    antigen_identity: float = option(
        0.4, above=0, high=1, help="Sequence identity from which antigens stay in one part."
    )
    antibody_identity: float = option(
        0.9, above=0, high=1, help="Sequence identity from which antibodies stay in one part."
    )
    seed: int = option(
        0, low=0, help="Seed of the split, and of all else that is random in training."
    )
    split_seed: int | None = option(
        None, low=0, rare=True, help="Seed of the split alone.", default_text="--seed"
    )

    def check_combination(self) -> None:
        """Raise `OptionError` if the split is unknown, or its number of folds is 1."""
        if self.folds == 1:
            msg = (
                "--folds: 1 is out of range; expected 2 or more folds, or 0 for as many as needed."
            )
            raise OptionError(msg)
        value = SPLIT_VALUES.get(self.split_name)
        if value is None or bool(self.split_value) != bool(value):
            spelled = ", ".join(map("".join, SPLIT_VALUES.items()))
            msg = f"--split: {quoted(self.split)} is unknown; expected one of {spelled}."
            raise OptionError(msg)

    @property
    def cross_validates(self) -> bool:
        """Whether a cross-validation is asked for, by its folds or its repetitions."""
        return self.folds > 0 or self.repeats > 1

    @property
    def split_name(self) -> str:
        """Method of the split, without the column or file that follows ``=``."""
        return self.split.partition("=")[0]

    @property
    def split_value(self) -> str:
        """What follows ``=`` in ``split``, or nothing."""
        return self.split.partition("=")[2]

    @property
    def effective_split_seed(self) -> int:
        """Seed of the split: `split_seed`, or else `seed`."""
        return self.seed if self.split_seed is None else self.split_seed

    @property
    def split_column(self) -> str:
        """Name of the column that divides the pairs; empty for other methods."""
        return self.split_value if self.split_name == "column" else ""


def named_beside(*options: Options) -> list[tuple[str, BesideRole]]:
    """List the columns that options name beside labels and sequences, and what each is."""
    named: list[tuple[str, BesideRole]] = []
    for given in options:
        if isinstance(given, PairColumnOptions):
            named += [(name, "feature") for name in given.features or ()]
            named += [(name, "category") for name in given.categories or ()]
            if given.error is not None:
                named.append((given.error, "error"))
            if given.weight is not None:
                named.append((given.weight, "weight"))
        if isinstance(given, SplitOptions) and given.split_column:
            named.append((given.split_column, "split"))
    return named
