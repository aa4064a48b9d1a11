"""Every option of ``abag fit`` and the presets that fill in what is left out.

A field that is None is taken from the preset, so any one of them can be overridden alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np

from abag import AbagError
from abag.head.data.adapter_leaks import AdapterRows
from abag.head.data.groups import Tool
from abag.head.data.labels import Floor, Label, Replicates
from abag.head.data.splits import SplitOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from abag.embed.sequences.chains import Kind

HeadName = Literal["mlp", "lowrank", "notebook"]
LossName = Literal["mse", "huber", "rank"]
RankScope = Literal["antigen", "batch"]
PresetName = Literal["small", "medium", "large", "seed"]
Precision = Literal["auto", "fp32", "bf16"]
Compile = Literal["auto", "off", "graph", "full"]
TablesPlace = Literal["auto", "device", "host"]
Select = Literal[
    "spearman",
    "spearman_within_antigen",
    "pearson",
    "rmse",
    "mae",
    "recall_at_9",
    "precision_at_9",
    "average_precision_at_9",
]
NOTEBOOK_BATCH = 48
"""Pairs an optimiser step of the old notebooks, whose rate the linear rule starts from."""
EPOCH_STEPS = 16
SMALLEST_BATCH = 32


class VectorsOf(TypedDict):
    """Which stored vectors of one kind a fit takes."""

    encoder: str | None
    pooling: str


class BadOption(AbagError):
    """An option's value is outside what it may be."""


class RunMismatch(AbagError):
    """The run folder belongs to another configuration, table or encoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A size of head and the optimisation that suits it."""

    widths: tuple[int, ...]
    """Hidden widths; the input and the single output are added."""
    epochs: int
    """Passes over the training pairs."""
    batch_size: int
    """Most pairs a forward pass: small tables take fewer, see `fitting_batch`."""
    accumulate: int = 1
    """Forward passes an optimiser step."""
    lr: float = 1e-3
    """Highest learning rate of the schedule."""
    head: HeadName = "mlp"
    """Its shape, see `abag.head.model.heads`."""
    dropout: float = 0.3
    """Share of hidden units dropped while training."""
    weight_decay: float = 0.05
    """Decoupled decay, on matrices only."""
    warmup: float = 0.05
    """Share of all steps in which the rate rises linearly from 0."""


PRESETS: Mapping[str, Preset] = {
    # what the old notebooks trained, number for number
    "seed": Preset(
        widths=(1024, 512, 256, 128), epochs=50, batch_size=12, accumulate=4, lr=4e-3,
        weight_decay=0.01, head="notebook",
    ),
    "small": Preset(widths=(320, 128), epochs=50, batch_size=1024, dropout=0.1),
    "medium": Preset(widths=(1280, 640, 256), epochs=75, batch_size=1024),
    "large": Preset(widths=(4096, 2560, 640), epochs=150, batch_size=1024, lr=3e-4),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """All options of ``fit``; None means the preset's value unless the field says otherwise."""

    antibody_encoder: str | None = None
    """Encoder of the antibody vectors; None: the only one in the store."""
    antigen_encoder: str | None = None
    """Encoder of the antigen vectors; None: the only one in the store."""
    antibody_pooling: str = "mean"
    """Stored pooling that stands for an antibody."""
    antigen_pooling: str = "mean"
    """Stored pooling that stands for an antigen."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Role to column name, where detection by name is not enough."""
    antigen: str | None = None
    """One antigen for a table without that column."""
    bad_rows: Literal["error", "skip"] = "error"
    """What to do with a row that cannot be used."""
    limit: int | None = None
    """Use the first rows only; None: all."""
    label: Label = "pkd"
    """Unit of the label column."""
    replicates: Replicates = "median"
    """What several labels of one pair become."""
    floor: Floor = "keep"
    """What the lowest value becomes when more than 5 % of the rows share it."""
    affinity_type: str | None = None
    """Keep the rows of this affinity type; None: there must be no more than one."""

    split: str = "auto"
    """How the table is cut into training, validation and test; see `SplitOptions` for this and
    the next six."""
    folds: int = 0
    """Folds of a cross-validation; 0: one split (``auto`` may choose folds)."""
    repeats: int = 1
    """How often the folds are dealt anew."""
    antigen_identity: float = 0.4
    """Antigens at least this identical stay together."""
    antibody_identity: float = 0.9
    """Antibodies at least this identical stay together."""
    antibody_by: Literal["fv", "cdrh3"] = "fv"
    """What of two antibodies is compared."""
    cluster_tool: Tool = "auto"
    """MMseqs2 where it is installed, or the built-in method."""
    split_seed: int | None = None
    """Seed of the split; None: ``seed``."""

    adapter_rows: AdapterRows = "leave-out"
    """What the head makes of training pairs that taught an encoder's adapter."""
    allow_adapter_leak: bool = False
    """Go on where held-out pairs taught an adapter; the report then says it."""

    preset: PresetName = "small"
    """Size of head and its optimisation."""
    head: HeadName | None = None
    """``mlp`` on both vectors joined, ``lowrank`` antibody x antigen interaction, or ``notebook``:
    the old notebooks' regressor."""
    rank: int = 64
    """Width of the low-rank interaction."""
    widths: tuple[int, ...] | None = None
    """Hidden widths of the mlp."""
    dropout: float | None = None
    """Share of hidden units dropped while training."""
    epochs: int | None = None
    """Passes over the training pairs."""
    batch_size: int | None = None
    """Pairs a forward pass; None: the preset's, or fewer where the table is small."""
    accumulate: int | None = None
    """Forward passes an optimiser step."""
    lr: float | None = None
    """Highest learning rate."""
    scale_lr: bool = False
    """Multiply ``lr`` by batch_size x accumulate / 48, the linear rule from the notebooks' step."""
    weight_decay: float | None = None
    """Decoupled decay, on matrices only."""
    warmup: float | None = None
    """Share of all steps in which the rate rises from 0."""
    clip: float = 1.0
    """Largest norm of the gradient; 0: not clipped."""
    loss: LossName = "mse"
    """``rank`` is pairwise logistic plus mse; censored rows always train one-sidedly."""
    rank_scope: RankScope = "antigen"
    """Which pairs of a batch the ranking loss compares."""

    members: int = 1
    """Heads that train in one step; a prediction is their mean, and their spread goes into sigma.
    Member k is what ``seed`` + k gives alone, but for its bag."""
    bootstrap: bool = True
    """Whether each of several members draws its own bag of training groups."""

    select: Select = "spearman"
    """Validation metric that picks the best checkpoint."""
    validate_every: int = 1
    """Epochs between validations."""
    validate_pairs: int = 2048
    """Size of the fixed random validation subset used while training; 0: all."""
    patience: int = 0
    """Validations without a better score before training stops; 0: never."""

    seed: int = 0
    """Governs split, initial weights, order and dropout."""
    save_every: int | None = None
    """Steps between checkpoints; None: as often as costs 1 % of the time, and every 30 s."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    threads: int = 1
    """CPU threads. Sums over rows depend on it in the last bit; more pay for large heads only."""
    precision: Precision = "auto"
    """``fp32`` (TF32 products on a GPU) or ``bf16`` products, all else in fp32; ``auto``: bf16 for
    several heads on a GPU that has it, which are bound by their products, else fp32."""
    tables: TablesPlace = "auto"
    """Where the vectors lie; auto: on the device if they fit in half of its free memory."""
    compile: Compile = "auto"
    """``off``: eager; ``graph``: the step replayed as one CUDA graph; ``full``: its kernels fused
    by torch.compile as well; ``auto``: full on a GPU, off on a CPU."""
    deterministic: bool = False
    """Only kernels that give the same bits every time (a GPU may be slower)."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, before anything is read."""
        _check_choices(self)
        _check_ranges(self)
        self.split_options()

    def filled(self) -> Preset:
        """Return the preset with the fields given here in place of its own."""
        given = {f.name: getattr(self, f.name) for f in fields(Preset)}
        return replace(
            PRESETS[self.preset], **{n: value for n, value in given.items() if value is not None}
        )

    def fitting_batch(self, n_training: int) -> tuple[int, int]:
        """Return pairs a pass and passes a step for a training set.

        What was asked for is kept, as far as there are pairs to fill it. A preset's batch is cut
        so that an epoch has at least `EPOCH_STEPS` steps: a small table needs them.
        """
        filled = self.filled()
        size = filled.batch_size
        if self.batch_size is None:
            fair = max(SMALLEST_BATCH, 2 ** int(np.log2(max(1, n_training / EPOCH_STEPS))))
            size = min(size, fair)
        size = min(size, n_training)
        return size, min(filled.accumulate, -(-n_training // size))

    def peak_lr(self, pairs_a_step: int) -> float:
        """Return the highest learning rate, by the linear rule if asked for."""
        return self.filled().lr * (pairs_a_step / NOTEBOOK_BATCH if self.scale_lr else 1.0)

    def vectors_of(self, kind: Kind) -> VectorsOf:
        """Return the encoder and the pooling of one kind, as `read_vectors` takes them."""
        if kind == "antibody":
            return {"encoder": self.antibody_encoder, "pooling": self.antibody_pooling}
        return {"encoder": self.antigen_encoder, "pooling": self.antigen_pooling}

    def split_options(self) -> SplitOptions:
        """Select the part that ``make_splits`` takes."""
        return SplitOptions(
            split=self.split,
            folds=self.folds,
            repeats=self.repeats,
            seed=self.seed if self.split_seed is None else self.split_seed,
            antigen_identity=self.antigen_identity,
            antibody_identity=self.antibody_identity,
            antibody_by=self.antibody_by,
            cluster_tool=self.cluster_tool,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields, those of the preset filled in, as JSON values."""
        record = {f.name: getattr(self, f.name) for f in fields(self)} | asdict(self.filled())
        lists = {"widths": list(record["widths"]), "columns": dict(self.columns)}
        return record | lists | {"split_seed": self.split_options().seed}


# What may differ when a run goes on: none of it changes the meaning of the result.
MAY_CHANGE = frozenset(
    {"epochs", "device", "save_every", "tables", "compile", "deterministic", "store"}
)

_CHOICES = {
    "label": Label, "replicates": Replicates, "floor": Floor, "preset": PresetName,
    "head": HeadName, "loss": LossName, "rank_scope": RankScope, "select": Select,
    "precision": Precision, "tables": TablesPlace, "compile": Compile,
    "adapter_rows": AdapterRows,
}  # fmt: skip

# name: (smallest, largest or None); None values are the preset's and pass
_RANGES: Mapping[str, tuple[float, float | None]] = {
    "limit": (1, None), "threads": (1, None), "folds": (0, None), "repeats": (1, None),
    "rank": (1, None),
    "dropout": (0, 0.95), "epochs": (1, None), "batch_size": (1, None), "accumulate": (1, None),
    "lr": (1e-12, 10), "weight_decay": (0, None), "warmup": (0, 1), "clip": (0, None),
    "validate_every": (1, None), "validate_pairs": (0, None), "patience": (0, None),
    "members": (1, 1024), "save_every": (1, None), "seed": (0, None), "split_seed": (0, None),
}  # fmt: skip


def _check_choices(config: FitConfig) -> None:
    for name, choices in _CHOICES.items():
        value, allowed = getattr(config, name), get_args(choices)
        if value is not None and value not in allowed:
            msg = f"{flag(name)}: {value!r} is unknown; expected one of {', '.join(allowed)}."
            raise BadOption(msg)


def _check_ranges(config: FitConfig) -> None:
    if config.widths is not None and (not config.widths or min(config.widths) < 1):
        msg = f"--widths: {config.widths} is no list of hidden widths; expected numbers from 1."
        raise BadOption(msg)
    for name, (low, high) in _RANGES.items():
        value = getattr(config, name)
        if value is not None and not (low <= value and (high is None or value <= high)):
            top = "" if high is None else f" and at most {high:g}"
            msg = f"{flag(name)}: {value} is out of range; expected at least {low:g}{top}."
            raise BadOption(msg)


def flag(name: str) -> str:
    """Spell a field as its command-line option."""
    return "--" + name.replace("_", "-")


def check_same(
    run: object,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    may_change: frozenset[str] = MAY_CHANGE,
    option: str = "--run",
) -> None:
    """Refuse to go on with a run that was started differently, naming each difference.

    Raises
    ------
    RunMismatch
        If any value outside `may_change` differs.
    """
    names = sorted((before.keys() | now.keys()) - may_change, key=lambda n: ("digest" in n, n))
    different = [n for n in names if before.get(n) != now.get(n)]
    if different:
        said = "; ".join(f"{n} {before.get(n)!r} then, {now.get(n)!r} now" for n in different)
        msg = (
            f"{run}: was started differently: {said}. "
            f"Give the same options and table, or another {option} folder."
        )
        raise RunMismatch(msg)
