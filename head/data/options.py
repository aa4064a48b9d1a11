"""Options of reading labels and of splitting pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from abag.core.options import BadOption, Options, option
from abag.embed.sequences.options import BadRowOptions

Label: TypeAlias = Literal[
    "pkd", "kd_m", "kd_um", "kd_nm", "log10_kd_m", "log10_kd_nm", "ug_ml", "dg_kcal", "dg_kj"
]
Replicates: TypeAlias = Literal["median", "mean", "first", "keep", "error"]
Floor: TypeAlias = Literal["keep", "censor", "drop"]
AdapterRows: TypeAlias = Literal["leave-out", "train"]
MOST_PKD = 1e6
"""Larger values, such as times in seconds, are no affinities and exceed what training can add."""
SPLIT_VALUES = {
    "auto": ("",), "random": ("",), "antigen": ("",), "antibody": ("",), "both": ("",),
    "mutations": ("",), "column": ("NAME",), "file": ("PATH",),
}  # fmt: skip
"""What may follow ``=`` after the name of a split method; the empty string: nothing."""


@dataclass(frozen=True, kw_only=True)
class LabelOptions(BadRowOptions, group="Data"):
    """How the label column is read."""

    label: Label | None = option(
        None,
        default_text="stated by the column's name, else pkd",
        help="Unit of the label column; Kd stands for IC50 and EC50 too, ug_ml is of a 150 kDa "
        "antibody.",
    )
    label_range: str | None = option(
        None,
        metavar="MIN:MAX",
        default_text="any",
        help="Valid labels in pKd, such as 4:12; others are invalid rows, see --bad-rows.",
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
        low, high = self.label_bounds
        if not low < high:
            msg = (
                f"--label-range: {self.label_range!r} is not valid; expected MIN:MAX in pKd, such "
                "as 4:12."
            )
            raise BadOption(msg)

    @property
    def label_bounds(self) -> tuple[float, float]:
        """Least and largest valid pKd."""
        try:
            low, high = map(float, (self.label_range or f"{-MOST_PKD}:{MOST_PKD}").split(":"))
        except ValueError:
            return math.nan, math.nan
        return low, high


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Options, group="Split"):
    """How pairs are split into training, validation and test parts."""

    split: str = option(
        "auto", metavar="HOW",
        help="auto (every regime), random, antigen, antibody, both, mutations, column=NAME or "
        "file=PATH.",
    )  # fmt: skip
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
        if self.folds == 1:
            msg = (
                "--folds: 1 is out of range; expected 2 or more folds, or 0 for as many as needed."
            )
            raise BadOption(msg)
        if bool(self.split_value) not in map(bool, SPLIT_VALUES.get(self.split_name, ())):
            spelled = [f"{n}={v}" if v else n for n, values in SPLIT_VALUES.items() for v in values]
            msg = f"--split: {self.split!r} is unknown; expected one of {', '.join(spelled)}."
            raise BadOption(msg)

    @property
    def split_name(self) -> str:
        return self.split.partition("=")[0]

    @property
    def split_value(self) -> str:
        """What follows ``=`` in ``split``, or nothing."""
        return self.split.partition("=")[2]

    @property
    def effective_split_seed(self) -> int:
        return self.seed if self.split_seed is None else self.split_seed
