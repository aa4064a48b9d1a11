"""Every option of ``abag adapt``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from abag import AbagError
from abag.embed.encoders.lora import Lora
from abag.head.data.labels import Floor, Label, LabelOptions, Replicates

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind

Sides = Literal["antibody", "antigen", "both"]
Precision = Literal["auto", "fp32", "bf16"]


class BadOption(AbagError):
    """An option's value is outside what it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptConfig:
    """All options of ``adapt``."""

    split_from: str
    """A run's folder, or a file like its splits.parquet: which pairs are training pairs."""
    fold: int | None = None
    """Which of its folds; None: it has one only."""
    sides: Sides = "both"
    """Encoders that are adapted; the other's vectors stay as they are."""
    antibody_encoder: str = "igt5"
    antigen_encoder: str = "esm2-650m"
    lora: Lora = field(default_factory=Lora)
    """Where low-rank factors go, and how large they are."""
    head_share: float = 0.5
    """Share of the training pairs, in whole groups, that the adapter leaves to ``abag fit``."""

    columns: Mapping[str, str] = field(default_factory=dict)
    antigen: str | None = None
    limit: int | None = None
    bad_rows: Literal["error", "skip"] = "error"
    label: Label = "pkd"
    replicates: Replicates = "median"
    floor: Floor = "keep"
    affinity_type: str | None = None

    epochs: int = 10
    """Most passes over the adapter's training pairs."""
    batch_size: int = 16
    """Pairs a forward pass."""
    accumulate: int = 1
    """Forward passes an optimiser step."""
    lr: float = 3e-4
    """Highest learning rate of the factors."""
    head_lr: float = 1e-3
    """Highest learning rate of the regression head."""
    patience: int = 3
    """Epochs without a better validation loss before training stops; 0: never."""
    gradient_checkpointing: bool = False
    """Compute each layer twice instead of keeping what it needs on the way back."""
    seed: int = 0
    save_every: int = 100
    """Steps between checkpoints, beside one at the end of each epoch."""
    device: str = "auto"
    precision: Precision = "auto"
    """bf16 where the GPU has it, else fp32."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, before anything is read."""
        for name, choices in (("sides", Sides), ("precision", Precision)):
            if getattr(self, name) not in get_args(choices):
                given, allowed = getattr(self, name), ", ".join(get_args(choices))
                msg = f"--{name}: {given!r} is unknown; expected one of {allowed}."
                raise BadOption(msg)
        LabelOptions.of(self)  # refuses for itself
        for name, low, high in _RANGES:
            value = getattr(self.lora if hasattr(self.lora, name) else self, name)
            if not low <= value <= high:
                flag = "--" + name.replace("_", "-")
                msg = f"{flag}: {value} is out of range; expected {low:g} to {high:g}."
                raise BadOption(msg)

    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of sequence whose encoder is adapted."""
        return ("antibody", "antigen") if self.sides == "both" else (self.sides,)

    def encoder(self, kind: Kind) -> str:
        """Name the encoder of a kind."""
        return self.antibody_encoder if kind == "antibody" else self.antigen_encoder

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        record = asdict(self)
        record |= {f"lora_{name}": value for name, value in record.pop("lora").items()}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in record.items()}


_MANY = float("inf")
_RANGES = (
    ("rank", 1, 1024), ("alpha", 1e-6, _MANY), ("dropout", 0, 0.95), ("head_share", 0, 0.95),
    ("epochs", 1, _MANY), ("batch_size", 1, _MANY), ("accumulate", 1, _MANY), ("lr", 1e-12, 10),
    ("head_lr", 1e-12, 10), ("patience", 0, _MANY), ("seed", 0, _MANY), ("save_every", 1, _MANY),
)  # fmt: skip
