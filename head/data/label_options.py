"""Options of reading labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from abag.core.options import option
from abag.embed.sequences.options import BadRowOptions

Label: TypeAlias = Literal[
    "pkd", "kd_m", "kd_um", "kd_nm", "log10_kd_m", "log10_kd_nm", "ug_ml", "dg_kcal", "dg_kj"
]
Replicates: TypeAlias = Literal["median", "mean", "first", "keep", "error"]
Floor: TypeAlias = Literal["keep", "censor", "drop"]


@dataclass(frozen=True, kw_only=True)
class LabelOptions(BadRowOptions, group="Data"):
    """How the label column is read."""

    label: Label = option(
        "pkd",
        help="Unit of the label column; Kd stands for IC50 and EC50 too, ug_ml is of a 150 kDa "
        "antibody.",
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
