"""Options of ``abag sweep``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from abag.core.options import Options, flag, option

CHOSEN_BY_SWEEP = frozenset(
    {
        "antibody_pooling", "antigen_pooling", "dropout", "folds", "head", "learning_curve", "loss",
        "lr", "members", "preset", "repeats", "weight_decay", "widths",
    }
)  # fmt: skip
"""Options of ``fit`` that a sweep searches, sets itself or does not use."""


def refusal(given: str) -> str:
    """Say why a flag of ``fit`` is not one of ``sweep``; empty for any other flag."""
    if given not in map(flag, CHOSEN_BY_SWEEP):
        return ""
    return (
        f"{given}: is chosen by sweep itself, among networks, ridge, kernel and gp. Leave it out; "
        "abag fit trains one head as you choose, and one_hot heads have nothing to search."
    )


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options, group="Search"):
    """The options of ``sweep`` beside those of ``fit`` that are not searched."""

    leaves_out: ClassVar = CHOSEN_BY_SWEEP

    trials: int | None = option(
        None, low=1, metavar="N", default_text="50; with --final the existing ones",
        help="Total number of trials.",
    )  # fmt: skip
    folds: int = option(
        3, low=2, flag="--inner-folds", metavar="K",
        help="Folds, outside the test part, that each trial is scored on.",
    )  # fmt: skip
    final: bool = option(False, help="Refit the winner and score it on the test part, once.")
    members: int = option(
        8, low=1, high=1024, metavar="K", help="Heads of that refit, if they are networks."
    )
