"""Options of splitting pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from abag.core.options import BadOption, Options, option
from abag.head.clustering.choices import AntibodyRegion, ClusterTool

AdapterRows: TypeAlias = Literal["leave-out", "train"]


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Options):
    """How pairs are split into training, validation and test parts."""

    split: str = option(
        "auto",
        metavar="HOW",
        help="auto, random, antigen, antibody, both, mutations[=NEAR:FAR], column=NAME or "
        "file=PATH.",
    )
    folds: int = option(
        0, low=0, metavar="K", help="Folds of a cross-validation; 0: one split, or as auto chooses."
    )
    repeats: int = option(1, low=1, metavar="R", help="Repetitions of the cross-validation.")
    antigen_identity: float = option(
        0.4, above=0, high=1, help="Sequence identity from which antigens stay in one part."
    )
    antibody_identity: float = option(
        0.9, above=0, high=1, help="Sequence identity from which antibodies stay in one part."
    )
    antibody_by: AntibodyRegion = option(
        "fv", help="Region of an antibody that is compared: both variable domains, or CDRH3."
    )
    cluster_tool: ClusterTool = option(
        "auto", help="Clustering method; auto: MMseqs2 for many antigens if it is installed."
    )
    seed: int = option(
        0, low=0, help="Seed of the split, and of all else that is random in training."
    )
    split_seed: int | None = option(
        None, low=0, help="Seed of the split alone.", default_text="--seed"
    )

    def __post_init__(self) -> None:
        """Refuse what no table could be split by."""
        super().__post_init__()
        self._check_method()
        if self.folds == 1:
            msg = "--folds: 1 is out of range; expected 2 or more folds, or 0 for one split."
            raise BadOption(msg)

    def _check_method(self) -> None:
        # imported here: the registry imports pandas, which would slow down every --help
        from abag.head.splits.split_methods import SPLIT_METHODS

        name, _, value = self.split.partition("=")
        known = {"auto": ("",)} | {n: method.values for n, method in SPLIT_METHODS.items()}
        if bool(value) not in map(bool, known.get(name, ())):
            spelled = [f"{n}={v}" if v else n for n, values in known.items() for v in values]
            msg = f"--split: {self.split!r} is unknown; expected one of {', '.join(spelled)}."
            raise BadOption(msg)

    @property
    def effective_split_seed(self) -> int:
        """Seed that the split is drawn with."""
        return self.seed if self.split_seed is None else self.split_seed
