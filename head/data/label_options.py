"""Options of reading labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from abag.core.options import BadOption, option
from abag.embed.sequences.options import BadRowOptions

Label: TypeAlias = Literal[
    "pkd", "kd_m", "kd_um", "kd_nm", "log10_kd_m", "log10_kd_nm", "ug_ml", "dg_kcal", "dg_kj"
]
Replicates: TypeAlias = Literal["median", "mean", "first", "keep", "error"]
Floor: TypeAlias = Literal["keep", "censor", "drop"]


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

    def __post_init__(self) -> None:
        """Refuse a range that is not one."""
        super().__post_init__()
        _ = self.label_bounds

    @property
    def label_bounds(self) -> tuple[float, float] | None:
        """Least and largest valid pKd; None: any."""
        if self.label_range is None:
            return None
        try:
            low, high = map(float, self.label_range.split(":"))
        except ValueError:
            low, high = math.nan, math.nan
        if not low < high:
            msg = (
                f"--label-range: {self.label_range!r} is not valid; expected MIN:MAX in pKd, such "
                "as 4:12."
            )
            raise BadOption(msg)
        return low, high
