"""Options of ``abag sweep``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from abag.core.options import Options, flag, option

CHOSEN_BY_SWEEP = frozenset(
    {
        "add",
        "antibody_pooling",
        "antigen_pooling",
        "dropout",
        "folds",
        "head",
        "learning_curve",
        "loss",
        "lr",
        "members",
        "preset",
        "repeats",
        "weight_decay",
        "widths",
    }
)
"""Options of ``fit`` that a sweep searches, sets itself or does not use."""


def refusal(given: str) -> str:
    """Say why a flag of ``fit`` is not one of ``sweep``; empty for any other flag."""
    if given not in map(flag, CHOSEN_BY_SWEEP):
        return ""
    if given == "--add":
        return (
            "--add: is of abag fit, which starts the next round; sweep reads one table. Leave it "
            "out."
        )
    return (
        f"{given}: is chosen by sweep itself, among networks, ridge, kernel and gp. Leave it out, "
        "or use abag fit, which trains the head that you choose."
    )


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options, group="Search"):
    """The options of ``sweep`` beside those of ``fit`` that are not searched."""

    leaves_out: ClassVar = CHOSEN_BY_SWEEP

    trials: int | None = option(
        None,
        low=1,
        metavar="N",
        default_text="50; with --final the existing ones",
        help="Total number of trials.",
    )
    folds: int = option(
        3,
        low=2,
        flag="--inner-folds",
        metavar="K",
        help="Folds of the other pairs than the test part, on which each trial is scored.",
    )
    final: bool = option(False, help="Refit the best trial and score it on the test part, once.")
    members: int = option(
        8, low=1, high=1024, metavar="K", help="Networks of that refit, if networks are best."
    )
