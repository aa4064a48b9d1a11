"""Options of ``abag evaluate`` and ``abag plan``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from abag.core.options import EncoderOptions, option
from abag.embed.sequences.table_options import (
    BAD_ROWS_HELP,
    FileOptions,
    ReferenceOptions,
    SkippedOptions,
    TableOptions,
)
from abag.head.data.label_options import Label, LabelOptions, PairColumnOptions, read_molar_mass
from abag.head.models.config import ViewNames


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(FileOptions, ReferenceOptions, group="Data"):
    """All options of ``evaluate``."""

    store: Path | str | None = option(
        None, default_text="the store of the run", help="Store that holds the vectors of TABLE."
    )
    predictions: Path | str | Any | None = option(
        None,
        metavar="FILE",
        help="Table of the run's pairs with the predictions of another tool.",
    )
    label: Label | None = option(
        None,
        default_text="stated by the column's name, else as in the run, else pkd",
        help="Unit of the labels of TABLE, or of the predictions of FILE.",
    )
    molar_mass: str | None = option(
        None,
        metavar="KDA",
        default_text="as in the run",
        rare=True,
        help="Molar mass of the antibodies, for ug_ml or ng_ml: igg, scfv, vhh, or kDa.",
    )
    affinity_type: str | None = option(
        None, metavar="NAME", default_text="as in the run", help="Rows of TABLE to score."
    )
    strong: float | None = option(
        None,
        metavar="PKD",
        help="Say how well pairs with at least this pKd are found, or with values of another "
        "quantity that are this or better: precision, recall and cut-offs.",
    )
    bad_rows: Literal["error", "skip"] | None = option(
        None,
        default_text="as in the run",
        help=BAD_ROWS_HELP,
    )

    def check_combination(self) -> None:
        """Raise `OptionError` if the molar mass is invalid."""
        _ = read_molar_mass(self.molar_mass)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(
    ViewNames,
    PairColumnOptions,
    LabelOptions,
    SkippedOptions,
    TableOptions,
    EncoderOptions,
    group="Hardware",
):
    """All options of ``plan``."""

    price_per_hour: float | None = option(
        None, low=0, help="Price of one GPU hour, in any currency."
    )
    all_gpus: bool = option(False, help="List six GPU models beside this machine, not only two.")
