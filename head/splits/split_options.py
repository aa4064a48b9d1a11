"""Options of splitting pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from abag.core.options import BadOption, Options, option

ComparedRegion: TypeAlias = Literal["fv", "cdrh3"]
ClusterTool: TypeAlias = Literal["auto", "builtin", "mmseqs"]
AdapterRows: TypeAlias = Literal["leave-out", "train"]
SPLIT_VALUES = {
    "auto": ("",), "random": ("",), "antigen": ("",), "antibody": ("",), "both": ("",),
    "mutations": ("", "NEAR:FAR"), "column": ("NAME",), "file": ("PATH",),
}  # fmt: skip
"""What may follow ``=`` after the name of a split method; the empty string: nothing."""
HELD_OUT = {
    "antigen": ("On antigens not seen in training", "rank binders for new antigens"),
    "antibody": ("On antibodies not seen in training", "rank new antibodies"),
    "both": ("On antibodies and antigens not seen in training", "rank new pairs"),
    "random": ("On random pairs, of sequences also seen in training,", "rank other pairs"),
    "mutations": ("On variants far from those in training", "rank distant variants"),
}
"""By the name of a split: what is new about its test pairs, and what a model would be used for."""
PARTS_GIVEN = ("On the test part that was given", "rank new pairs")
"""The same for a split whose parts a column or a file gives."""


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Options, group="Split"):
    """How pairs are split into training, validation and test parts."""

    split: str = option(
        "auto", metavar="HOW",
        help="auto, random, antigen, antibody, both, mutations[=NEAR:FAR], column=NAME or "
        "file=PATH.",
    )  # fmt: skip
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
    antibody_by: ComparedRegion = option(
        "fv",
        rare=True,
        help="Region of an antibody that is compared: both variable domains, or CDRH3.",
    )
    cluster_tool: ClusterTool = option(
        "auto",
        rare=True,
        help="Clustering method; auto: MMseqs2 for many antigens if it is installed.",
    )
    seed: int = option(
        0, low=0, help="Seed of the split, and of all else that is random in training."
    )
    split_seed: int | None = option(
        None, low=0, rare=True, help="Seed of the split alone.", default_text="--seed"
    )

    def __post_init__(self) -> None:
        """Check the split method and the number of folds."""
        super().__post_init__()
        if self.folds == 1:
            msg = "--folds: 1 is out of range; expected 2 or more folds, or 0 for one split."
            raise BadOption(msg)
        if bool(self.split_value) not in map(bool, SPLIT_VALUES.get(self.split_name, ())):
            spelled = [f"{n}={v}" if v else n for n, values in SPLIT_VALUES.items() for v in values]
            msg = f"--split: {self.split!r} is unknown; expected one of {', '.join(spelled)}."
            raise BadOption(msg)

    @property
    def split_name(self) -> str:
        """Name of the split method."""
        return self.split.partition("=")[0]

    @property
    def split_value(self) -> str:
        """What follows ``=`` in ``split``, or nothing."""
        return self.split.partition("=")[2]

    @property
    def effective_split_seed(self) -> int:
        """Seed that the split is drawn with."""
        return self.seed if self.split_seed is None else self.split_seed
