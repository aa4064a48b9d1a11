"""Every option of ``abag adapt``, declared once; imports no torch, so that help is instant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from abag.core.options import DeviceOptions, EncoderOptions, Options, option
from abag.embed.tables.options import TableOptions
from abag.head.labels.options import LabelOptions
from abag.head.models.config import TrainingPrecision

if TYPE_CHECKING:
    from abag.embed.tables.chains import Kind

AdaptedSides = Literal["antibody", "antigen", "both"]


@dataclass(frozen=True, kw_only=True)
class Lora(Options, group="Adapter"):
    """Options of the low-rank factors of an adapter: their places and sizes."""

    rank: int = option(8, low=1, high=1024, metavar="R", help="Rank of the weight change B A.")
    alpha: float = option(16.0, above=0, help="The weight change is alpha / rank times B A.")
    dropout: float = option(
        0.1, low=0, high=0.95, help="Share of A's inputs dropped per training step."
    )
    targets: tuple[str, ...] = option(
        (),
        metavar="NAMES",
        default_text="queries and values: q,v of T5; query,value of ESM-2",
        help="Projections to adapt.",
    )
    layers: tuple[int, ...] = option(
        (), metavar="NUMBERS", default_text="all", help="Layers to adapt, counted from 1."
    )


@dataclass(frozen=True, kw_only=True)
class AdaptConfig(
    DeviceOptions, Lora, LabelOptions, TableOptions, EncoderOptions, group="Training"
):
    """All options of ``adapt``."""

    split_from: Path | str = option(
        metavar="RUN|FILE",
        may_change=True,
        group="Split",
        help="Run folder, or a file like its splits.parquet, that names the training pairs.",
    )
    fold: int | None = option(
        None, group="Split", help="Fold of the split, counted from 0.", default_text="the only one"
    )
    sides: AdaptedSides = option("both", group="Encoders", help="Encoders to adapt.")
    no_antigen: bool = option(
        False, python_only=True, help="Not supported: pairs of antibody and antigen are trained on."
    )
    proposes_no_antigen = False
    head_share: float = option(
        0.5,
        low=0,
        high=0.95,
        group="Split",
        help="Share of the training pairs that is left to abag fit.",
    )
    epochs: int = option(10, low=1, help="Most passes over the adapter's training pairs.")
    batch_size: int = option(16, low=1, help="Pairs per batch.")
    lr: float = option(3e-4, above=0, high=10, help="Peak learning rate of the adapter.")
    head_lr: float = option(
        1e-3, above=0, high=10, help="Peak learning rate of the regression head."
    )
    patience: int = option(
        3,
        low=0,
        metavar="N",
        help="Epochs without a better validation loss before training stops; 0: never stop early.",
    )
    gradient_checkpointing: bool = option(
        False, rare=True, group="Hardware", help="Compute activations twice to save memory."
    )
    seed: int = option(0, low=0, help="Seed of the shares, initial weights and order.")
    save_every: int = option(
        100,
        low=1,
        metavar="N",
        may_change=True,
        rare=True,
        group="Hardware",
        help="Steps between checkpoints.",
    )
    precision: TrainingPrecision = option(
        "auto",
        group="Hardware",
        help="Precision of the encoders; auto: bf16 on a GPU that supports it, else fp32.",
    )

    def adapted_kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of sequence whose encoders are adapted."""
        return ("antibody", "antigen") if self.sides == "both" else (self.sides,)

    def to_json(self) -> dict[str, Any]:
        """Return the options as config.json holds them, paths as text."""
        return super().to_json() | {"split_from": str(self.split_from)}
