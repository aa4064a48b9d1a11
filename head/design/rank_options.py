"""Options of ``abag rank``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from abag.core.options import BadOption, flag, option
from abag.embed.sequences.options import TableOptions

RuleName: TypeAlias = Literal["mean", "ucb", "improvement", "probability"]
Diversity: TypeAlias = Literal["none", "clusters", "distance"]
NEEDED_FOR = {
    "explore": ("rule", "ucb"),
    "per_cluster": ("diversity", "clusters"),
    "identity": ("diversity", "clusters"),
    "run": ("diversity", "distance"),
    "store": ("diversity", "distance"),
}
"""Options that one value of another option reads, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class RankOptions(TableOptions, group="Choice"):
    """All options of ``rank``."""

    batch: int = option(96, low=1, metavar="N", help="Pairs to choose.")
    rule: RuleName = option(
        "ucb",
        help="What is largest for the first pair: the prediction, the prediction plus --explore "
        "sigmas, the expected improvement over the best measured pair, or the probability of "
        "exceeding --above.",
    )
    explore: float | None = option(
        None, low=0, metavar="K", default_text="1", help="Sigmas that --rule ucb adds."
    )
    best: float | None = option(
        None, metavar="PKD", default_text="the best of --measured",
        help="Best pKd so far, for --rule improvement.",
    )  # fmt: skip
    above: float | None = option(
        None, metavar="PKD", help="pKd to exceed; the pairs expected above it are counted."
    )
    measured: Path | str | Any | None = option(
        None, metavar="TABLE", group="Data", help="Table of measured pairs, which are left out."
    )
    keep_far: bool = option(
        False, help="Keep pairs that predict flagged as far from the training set."
    )
    per_antigen: bool = option(False, help="Choose a batch for each antigen.")
    diversity: Diversity = option(
        "none",
        help="clusters: at most --per-cluster pairs per cluster of near-duplicate antibodies; "
        "distance: pairs whose vectors are far from each other, which needs --run.",
    )
    pool: int = option(
        4, low=1, metavar="K", rare=True,
        help="With --diversity, choose among the best K x --batch pairs.",
    )  # fmt: skip
    per_cluster: int | None = option(
        None, low=1, metavar="N", default_text="8", help="Most pairs per cluster."
    )
    identity: float | None = option(
        None, above=0, high=1, rare=True, default_text="0.98",
        help="Sequence identity from which antibodies are near-duplicates.",
    )  # fmt: skip
    run: Path | str | None = option(
        None, metavar="DIR", group="Data", help="Run whose vectors --diversity distance compares."
    )
    store: Path | str | None = option(
        None, metavar="DIR", group="Data", rare=True, default_text="the store of the run",
        help="Store that holds these vectors.",
    )  # fmt: skip
    correlation: float = option(
        0.5, low=0, high=1, rare=True,
        help="Correlation of the errors of two predictions, for the expected results.",
    )  # fmt: skip
    force: bool = option(False, group="Output", help="Overwrite the output file if it exists.")

    def __post_init__(self) -> None:
        """Refuse options that are missing, or that nothing reads."""
        super().__post_init__()
        for name, (other, value) in NEEDED_FOR.items():
            if getattr(self, name) is not None and getattr(self, other) != value:
                msg = (
                    f"{flag(name)}: is read with {flag(other)} {value} only; expected both or "
                    f"neither. Add {flag(other)} {value}, or omit {flag(name)}."
                )
                raise BadOption(msg)
        if self.rule == "probability" and self.above is None:
            msg = "--rule probability: no threshold; expected one. Add --above PKD."
            raise BadOption(msg)
        if self.rule == "improvement" and self.best is None and self.measured is None:
            msg = (
                "--rule improvement: the best measured pKd is not known; expected it or a table of "
                "measured pairs. Add --best PKD or --measured TABLE."
            )
            raise BadOption(msg)
        if self.diversity == "distance" and self.run is None:
            msg = "--diversity distance: no run; expected one for its vectors. Add --run DIR."
            raise BadOption(msg)
