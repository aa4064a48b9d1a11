"""Every option of ``abag fit`` and the presets that fill in what is left out.

A field that is None is taken from the preset, so each can be overridden alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal

from abag.core.errors import OptionError
from abag.core.options import DeviceOptions, Options, VectorOptions, VectorsOf, flag, option
from abag.embed.tables.chains import KINDS, Kind
from abag.embed.tables.options import SkippedOptions, TableOptions
from abag.head.labels.options import AdapterRows, LabelOptions, PairColumnOptions, SplitOptions

WITH_A_NETWORK = ("mlp", "stack")
PresetName = Literal["small", "medium", "seed"]
LossName = Literal["mse", "huber", "rank"]
TrainingPrecision = Literal["auto", "fp32", "bf16"]
Compile = Literal["auto", "off", "graph", "full"]
VALIDATION_PAIRS = 2048
"""Validation pairs scored after an epoch, at most; the final scores are of all."""
EPOCH_STEPS = 16
"""Steps per epoch that a small table has at least, by smaller batches."""
SMALLEST_BATCH = 32
"""Pairs per batch below which a small table is not divided."""
_of_preset: Any = partial(option, None, default_text="from --preset")
"""Declares an option that the preset decides if it is left out."""


def _selectable_metrics() -> list[str]:
    # imported here: the registry imports numpy, which a list of commands should not wait for
    from abag.head.evaluation.metrics import selectable_metrics

    return selectable_metrics()


def head_names() -> tuple[str, ...]:
    """Return what ``--head`` accepts: the stack, and each model alone."""
    from abag.head.models.registry import HEADS

    return ("stack", *HEADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Hold a size of head and the optimization that suits it; see `FitConfig` for the fields."""

    widths: tuple[int, ...]
    epochs: int
    """Passes over the training pairs, at most."""
    batch_size: int
    """Upper limit: small tables use fewer, see `FitConfig.fitting_batch`."""
    accumulate: int = 1
    lr: float = 1e-3
    head: str = "stack"
    dropout: float = 0.3
    weight_decay: float = 0.05
    patience: int = 10


PRESETS: Mapping[str, Preset] = {
    # The numbers of the old notebooks, for a network alone as they had it. Its layers are those of
    # every mlp, dropout after LayerNorm; the notebooks had it before, and none before the output.
    "seed": Preset(
        widths=(1024, 512, 256, 128), epochs=50, batch_size=12, accumulate=4, lr=4e-3,
        weight_decay=0.01, head="mlp", patience=0,
    ),
    "small": Preset(widths=(320, 128), epochs=30, batch_size=1024, dropout=0.1),
    "medium": Preset(widths=(1280, 640, 256), epochs=75, batch_size=1024),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HeadOptions(Options, group="Head"):
    """Shape of the head."""

    preset: PresetName = option(
        "small",
        help="Size and optimization of the head; seed: those of the old notebooks, which read "
        "cls of antigens; --antigen-vectors mean reads their mean.",
    )
    head: str | None = _of_preset(
        choices=head_names,
        help="stack: all of these and the mean, weighed in each regime by held-out errors. "
        "One of them and the mean: mlp on both vectors joined; in closed form kernel ridge, "
        "Gaussian process (gp), ridge, antibody_ridge, antigen_ridge, composition_ridge, trees "
        "and, for variants of one antibody or antigen, residue_kernel and one_hot_ridge.",
    )
    widths: tuple[int, ...] | None = _of_preset(
        low=1, metavar="NUMBERS", help="Hidden widths of the mlp, such as 320,128."
    )
    dropout: float | None = _of_preset(
        low=0, high=0.95, rare=True, help="Share of hidden units dropped per training step."
    )


@dataclass(frozen=True, kw_only=True)
class OptimizationOptions(Options, group="Training"):
    """Options of the training of a network."""

    epochs: int | None = _of_preset(low=1, may_change=True, help="Passes over the training pairs.")
    batch_size: int | None = option(
        None,
        low=1,
        default_text="from --preset, or fewer for a small table",
        help="Pairs per batch.",
    )
    accumulate: int | None = _of_preset(low=1, rare=True, help="Batches per optimizer step.")
    lr: float | None = _of_preset(above=0, high=10, help="Peak learning rate.")
    weight_decay: float | None = _of_preset(
        low=0, help="AdamW weight decay of the weight matrices."
    )
    loss: LossName = option(
        "mse",
        help="Training loss; rank: pairwise logistic within each antigen, plus mse.",
    )
    members: int = option(
        1,
        low=1,
        high=1024,
        metavar="K",
        help="Heads trained together, each on its own bootstrap sample of groups; their mean "
        "predicts and their spread adds to sigma.",
    )


OF_NETWORKS = frozenset(
    {option_field.name for option_field in fields(OptimizationOptions)}
    | {"preset", "widths", "dropout", "select", "patience"}
)
"""Options that only heads with a network use. Every head accepts the others, those of the hardware
too: they do not change what is fitted, and may stay in a command that is run with several heads."""


def is_used(name: str, head: str) -> bool:
    """Return whether an option has an effect on a head."""
    return name not in OF_NETWORKS or head in WITH_A_NETWORK


@dataclass(frozen=True, kw_only=True)
class ViewNames(Options, group="Encoders"):
    """Several vectors for each side of a pair."""

    antibody_vectors: tuple[str, ...] | None = option(
        None,
        metavar="NAMES",
        default_text="that of --antibody-pooling",
        help="Several vectors of an antibody, joined: poolings and layers of the store such as "
        "mean,heavy_mean,mean@18; with encoders igt5:mean,antiberty:mean.",
    )
    antigen_vectors: tuple[str, ...] | None = option(
        None,
        metavar="NAMES",
        default_text="that of --antigen-pooling",
        help="Several vectors of an antigen, joined, such as mean,cls.",
    )

    def named_views(self, kind: Kind) -> list[VectorsOf] | None:
        """Return encoder, if it is named, and pooling of each vector of a kind, if any is given."""
        names = self.antibody_vectors if kind == "antibody" else self.antigen_vectors
        if names is None:
            return None
        parts = [name.rpartition(":") for name in names]
        return [{"encoder": encoder or None, "pooling": pooling} for encoder, _, pooling in parts]


@dataclass(frozen=True, kw_only=True)
class ViewOptions(ViewNames, VectorOptions, group="Encoders"):
    """Stored vectors that the two sides of a pair consist of."""

    def views_of(self, kind: Kind) -> list[VectorsOf]:
        """Return encoder and pooling of each vector of a kind; usually there is one."""
        usual = self.vectors_of(kind)
        views: list[VectorsOf] = []
        for view in self.named_views(kind) or [usual]:
            encoder = view["encoder"] or usual["encoder"]
            views.append({**view, "encoder": encoder})
        return views

    def check_combination(self) -> None:
        """Raise `OptionError` for names of vectors that are empty, repeated or in two options."""
        for kind in KINDS:
            name = f"{kind}_vectors"
            pooling = f"{kind}_pooling"
            views = getattr(self, name)
            if views is None:
                continue
            if not views or not all(views) or len(set(views)) < len(views):
                msg = (
                    f"{flag(name)}: {','.join(views)!r} names no vector, or one twice; expected "
                    "different poolings such as mean,heavy_mean."
                )
                raise OptionError(msg)
            if self.vectors_of(kind)["pooling"] != "mean":
                msg = (
                    f"{flag(pooling)} and {flag(name)}: expected one of them. Leave out the first."
                )
                raise OptionError(msg)


@dataclass(frozen=True, kw_only=True)
class FitConfig(
    ViewOptions,
    DeviceOptions,
    OptimizationOptions,
    HeadOptions,
    SplitOptions,
    PairColumnOptions,
    LabelOptions,
    SkippedOptions,
    TableOptions,
    group="Training",
):
    """All options of ``fit``; None means the preset's value unless the field says otherwise."""

    add: str | None = option(
        None,
        metavar="RUN",
        may_change=True,
        group="Data",
        help="Earlier run whose measured pairs come first: TABLE has the results of the next "
        "round. Options that are not given are those of that run.",
    )
    adapter_rows: AdapterRows = option(
        "leave-out",
        rare=True,
        group="Split",
        help="What to do with training pairs that an encoder's adapter was trained on.",
    )
    select: str = option(
        "spearman",
        choices=_selectable_metrics,
        pattern=r"(recall|precision|average_precision)_at_\d{1,2}(\.\d{1,3})?",
        help="Validation metric that selects the best checkpoint. The pKd of a strong binder "
        "may be any, as in recall_at_8.5.",
    )
    patience: int | None = _of_preset(
        low=0,
        metavar="N",
        help="Epochs without improvement before a fold stops training; 0: never stop early.",
    )
    save_every: int | None = option(
        None,
        low=1,
        metavar="N",
        may_change=True,
        default_text="at most 1 % of the time, and every 30 s",
        rare=True,
        group="Hardware",
        help="Steps between checkpoints.",
    )
    threads: int = option(
        1,
        low=1,
        metavar="N",
        rare=True,
        group="Hardware",
        help="CPU threads; results depend on it in the last bit.",
    )
    precision: TrainingPrecision = option(
        "auto",
        group="Hardware",
        help="Precision of matrix products, fp32 being TF32 on a GPU; auto: bf16 for several "
        "members on a GPU that supports it, else fp32.",
    )
    compile: Compile = option(
        "auto",
        may_change=True,
        rare=True,
        group="Hardware",
        help="off: eager; graph: CUDA graph; full: CUDA graph and torch.compile, which takes 20 s "
        "and saves up to a fifth of a step; auto: graph on a GPU, off on a CPU.",
    )
    deterministic: bool = option(
        False,
        may_change=True,
        rare=True,
        group="Hardware",
        help="Use only kernels that give the same bits every time.",
    )
    learning_curve: bool = option(
        False,
        help="Also fit the head to 1/8, 1/4 and 1/2 of the training groups; the report shows the "
        "test scores.",
    )

    def named_views(self, kind: Kind) -> list[VectorsOf] | None:
        """Return the vectors that are named for a kind, or that the preset reads."""
        if kind == "antigen" and self.preset == "seed" and self.antigen_vectors is None:
            # The notebooks took the first token of ESM-2.
            pooling = "cls" if self.antigen_pooling == "mean" else self.antigen_pooling
            return [{"encoder": None, "pooling": pooling}]
        return super().named_views(kind)

    def filled(self) -> Preset:
        """Return the preset with the fields given here in place of its own."""
        options = {field.name: getattr(self, field.name) for field in fields(Preset)}
        given = {name: value for name, value in options.items() if value is not None}
        return replace(PRESETS[self.preset], **given)

    @property
    def network(self) -> Literal["mlp"] | None:
        """Return the name of the network that the head has; None if it has none."""
        return "mlp" if self.filled().head in WITH_A_NETWORK else None

    def check_combination(self) -> None:
        """Raise `OptionError` for options without an effect on the head, or that exclude others."""
        head = self.filled().head
        if self.no_antigen:
            self._refuse_antigens(head)
        for field in fields(self):
            if is_used(field.name, head) or getattr(self, field.name) == field.default:
                continue
            heads = ", ".join(WITH_A_NETWORK)
            name = flag(field.name)
            msg = (
                f"{name}: has no effect on the head {head}; it is an option of {heads}. Leave "
                f"out {name}, or choose another --head."
            )
            raise OptionError(msg)

    def _refuse_antigens(self, head: str) -> None:
        """Refuse options about antigens in a run of antibodies alone."""
        given = {
            "--antigen-encoder": self.antigen_encoder is not None,
            "--antigen-vectors": self.antigen_vectors is not None,
            f"--head {head}": head == "antigen_ridge",
            f"--split {self.split}": self.split_name in ("antigen", "both"),
        }
        for name, is_given in given.items():
            if is_given:
                msg = (
                    f"--no-antigen and {name}: antibodies alone have no antigens; expected one of "
                    "the two. Remove the other."
                )
                raise OptionError(msg)

    def fitting_batch(self, n_training: int) -> tuple[int, int]:
        """Return pairs per batch and batches per optimizer step for a training set."""
        filled = self.filled()
        size = filled.batch_size
        if self.batch_size is None:  # a small table needs at least `EPOCH_STEPS` steps per epoch
            fair = max(SMALLEST_BATCH, 2 ** int(math.log2(max(1, n_training / EPOCH_STEPS))))
            size = min(size, fair)
        size = min(size, n_training)
        return size, min(filled.accumulate, -(-n_training // size))

    def filled_in(self) -> dict[str, Any]:
        """Return the values that the preset and other options decide, by name, for config.json."""
        skipped = None if self.skipped is None else str(self.skipped)
        filled = {"split_seed": self.effective_split_seed, "skipped": skipped}
        return asdict(self.filled()) | filled


OF_EARLIER_VERSIONS = frozenset({"allow_adapter_leak"})
"""Options that config.json of an earlier version has and this one has not."""
MAY_CHANGE = FitConfig.changeable() | {"format", "store", "store_from_run"} | OF_EARLIER_VERSIONS
"""What may differ when a run is resumed: none of it changes the meaning of the result, and the
format is checked when config.json is read."""
