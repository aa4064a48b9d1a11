"""Every option of ``abag fit`` and the presets that fill in what is left out.

A field that is None is taken from the preset, so each can be overridden alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, cast, get_args

from abag import AbagError
from abag.core.options import BadOption, DeviceOptions, Options, flag, option
from abag.embed.sequences.options import TableOptions
from abag.embed.store.options import VectorOptions
from abag.head.data.label_options import LabelOptions
from abag.head.model.losses import RankScope, loss_names
from abag.head.regimes.split_options import AdapterRows, SplitOptions

Network = Literal["mlp", "lowrank", "notebook"]
HeadName = Literal[
    "mlp", "lowrank", "notebook", "ridge", "kernel", "gp", "one_hot_kernel", "antibody_ridge",
    "antigen_ridge", "one_hot_ridge", "composition_ridge", "stack"
]  # fmt: skip
STACKS = ("stack",)
PresetName = Literal["small", "medium", "large", "seed"]
Precision = Literal["auto", "fp32", "bf16"]
Compile = Literal["auto", "off", "graph", "full"]
CompileCache = Literal["user", "store"]
TablesPlace = Literal["auto", "device", "host"]
NOTEBOOK_BATCH = 48
"""Pairs per optimizer step of the old notebooks, which the linear learning-rate rule refers to."""
EPOCH_STEPS = 16
SMALLEST_BATCH = 32
FROM_PRESET = "from --preset"


def _selectable_metrics() -> list[str]:
    # imported here: the registry imports numpy, which a list of commands should not wait for
    from abag.head.evaluation.metrics import selectable_metrics

    return selectable_metrics()


class RunMismatch(AbagError):
    """The run folder belongs to another configuration, table or encoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A size of head and the optimization that suits it; `FitConfig` describes the fields."""

    widths: tuple[int, ...]
    epochs: int
    batch_size: int
    """Upper limit: small tables use fewer, see `FitConfig.fitting_batch`."""
    accumulate: int = 1
    lr: float = 1e-3
    head: HeadName = "stack"
    dropout: float = 0.3
    weight_decay: float = 0.05
    warmup: float = 0.05


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


@dataclass(frozen=True, kw_only=True)
class HeadOptions(Options, group="Head"):
    """Shape of the head."""

    preset: PresetName = option("small", help="Size of the head and its optimization.")
    head: HeadName | None = option(
        None, default_text=FROM_PRESET,
        help="stack: all of these and the mean, weighed in each regime by held-out errors. "
        "One of them and the mean: mlp on both vectors joined, lowrank antibody x antigen "
        "interaction, the old notebooks' regressor; in closed form kernel ridge, Gaussian process "
        "(gp), ridge, antibody_ridge, antigen_ridge, composition_ridge and, for variants of one "
        "antibody, one_hot_kernel and one_hot_ridge.",
    )  # fmt: skip
    rank: int = option(64, low=1, rare=True, help="Width of the low-rank interaction.")
    widths: tuple[int, ...] | None = option(
        None, low=1, metavar="NUMBERS", default_text=FROM_PRESET,
        help="Hidden widths of the mlp, such as 320,128.",
    )  # fmt: skip
    dropout: float | None = option(
        None, low=0, high=0.95, default_text=FROM_PRESET,
        rare=True, help="Share of hidden units dropped per training step.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OptimizationOptions(Options, group="Training"):
    """How the head is trained."""

    epochs: int | None = option(
        None, low=1, may_change=True, default_text=FROM_PRESET,
        help="Passes over the training pairs.",
    )  # fmt: skip
    batch_size: int | None = option(
        None, low=1, default_text="from --preset, or fewer for a small table",
        help="Pairs per batch.",
    )  # fmt: skip
    accumulate: int | None = option(
        None, low=1, default_text=FROM_PRESET, rare=True, help="Batches per optimizer step."
    )
    lr: float | None = option(
        None, above=0, high=10, default_text=FROM_PRESET, help="Peak learning rate."
    )
    scale_lr: bool = option(
        False, rare=True, help=f"Multiply --lr by pairs per optimizer step / {NOTEBOOK_BATCH}."
    )
    weight_decay: float | None = option(
        None, low=0, default_text=FROM_PRESET, help="AdamW weight decay of the weight matrices."
    )
    warmup: float | None = option(
        None, low=0, high=1, default_text=FROM_PRESET,
        rare=True, help="Share of all steps in which the learning rate rises from 0.",
    )  # fmt: skip
    clip: float = option(1.0, low=0, rare=True, help="Largest gradient norm; 0: no clipping.")
    loss: str = option(
        "mse",
        choices=loss_names,
        help="Training loss; rank: pairwise logistic plus mse.",
    )
    rank_scope: RankScope = option(
        "antigen",
        rare=True,
        help="Pairs that --loss rank compares: of one antigen, or of the whole batch.",
    )
    members: int = option(
        1, low=1, high=1024, metavar="K",
        help="Heads trained together; their mean predicts and their spread adds to sigma.",
    )  # fmt: skip
    bootstrap: bool = option(
        True, rare=True, help="Train each of several members on its own bootstrap sample of groups."
    )


_WITH_A_NETWORK = (*get_args(Network), *STACKS)
HEADS_WITH: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys([one.name for one in fields(OptimizationOptions)], _WITH_A_NETWORK),
    **dict.fromkeys(
        ["preset", "dropout", "select", "validate_every", "validate_pairs", "patience"],
        _WITH_A_NETWORK,
    ),
    "widths": ("mlp", "notebook", *STACKS),
    "rank": ("lowrank",),
}
"""Heads that use an option; every head accepts the others. Among these are options of the hardware:
they do not change what is fitted, and may stay in a command that is run with several heads."""


def is_used(name: str, head: str) -> bool:
    """Tell whether an option of ``fit`` has an effect on a head."""
    return head in HEADS_WITH.get(name, (head,))


@dataclass(frozen=True, kw_only=True)
class FitConfig(
    VectorOptions,
    DeviceOptions,
    OptimizationOptions,
    HeadOptions,
    SplitOptions,
    LabelOptions,
    TableOptions,
    group="Training",
):
    """All options of ``fit``; None means the preset's value unless the field says otherwise."""

    adapter_rows: AdapterRows = option(
        "leave-out",
        rare=True,
        group="Split",
        help="What to do with training pairs that an encoder's adapter was trained on.",
    )
    allow_adapter_leak: bool = option(
        False,
        rare=True,
        group="Split",
        help="Continue, with a warning, if held-out pairs trained an encoder's adapter.",
    )
    select: str = option(
        "spearman",
        choices=_selectable_metrics,
        help="Validation metric that selects the best checkpoint.",
    )
    validate_every: int = option(
        1, low=1, metavar="N", rare=True, help="Epochs between validations."
    )
    validate_pairs: int = option(
        2048, low=0, metavar="N", rare=True, help="Validation pairs scored while training; 0: all."
    )
    patience: int = option(
        0, low=0, metavar="N",
        help="Validations without improvement before training stops; 0: never stop early.",
    )  # fmt: skip
    save_every: int | None = option(
        None, low=1, metavar="N", may_change=True,
        default_text="at most 1 % of the time, and every 30 s", rare=True, group="Hardware",
        help="Steps between checkpoints.",
    )  # fmt: skip
    threads: int = option(
        1,
        low=1,
        metavar="N",
        rare=True,
        group="Hardware",
        help="CPU threads; results depend on it in the last bit.",
    )
    precision: Precision = option(
        "auto",
        group="Hardware",
        help="Precision of matrix products, fp32 being TF32 on a GPU; auto: bf16 for several "
        "members on a GPU that supports it, else fp32.",
    )
    tables: TablesPlace = option(
        "auto", may_change=True,
        rare=True, group="Hardware",
        help="Memory that holds the vectors; auto: the device if they fit in half of its free "
        "memory.",
    )  # fmt: skip
    compile: Compile = option(
        "auto", may_change=True,
        rare=True, group="Hardware",
        help="off: eager; graph: CUDA graph; full: CUDA graph and torch.compile; auto: on a GPU "
        "full if that saves more time than it takes, else graph; off on a CPU.",
    )  # fmt: skip
    compile_cache: CompileCache = option(
        "user", may_change=True,
        rare=True, group="Hardware",
        help="Folder of compiled kernels, which are programs: the user's cache, or STORE-compiled "
        "beside the store, where a new session finds them.",
    )  # fmt: skip
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

    def filled(self) -> Preset:
        """Return the preset with the fields given here in place of its own."""
        given = {f.name: getattr(self, f.name) for f in fields(Preset)}
        chosen = {name: value for name, value in given.items() if value is not None}
        return replace(PRESETS[self.preset], **chosen)

    @property
    def network(self) -> Network | None:
        """The network to train; None for a head in closed form."""
        head = self.filled().head
        if head in STACKS:
            return "mlp"
        return cast("Network", head) if head in get_args(Network) else None

    @property
    def stacks(self) -> bool:
        """Whether the head weighs several models."""
        return self.filled().head in STACKS

    def __post_init__(self) -> None:
        """Refuse options that the head does not use."""
        super().__post_init__()
        head = self.filled().head
        for one in fields(self):
            if not is_used(one.name, head) and getattr(self, one.name) != one.default:
                heads, name = ", ".join(HEADS_WITH[one.name]), flag(one.name)
                msg = (
                    f"{name}: has no effect on the head {head}; it is an option of {heads}. Leave "
                    f"out {name}, or choose another --head."
                )
                raise BadOption(msg)

    def fitting_batch(self, n_training: int) -> tuple[int, int]:
        """Return pairs per batch and batches per optimizer step for a training set.

        A given batch size is used as far as there are pairs to fill it. A preset's is reduced so
        that an epoch has at least `EPOCH_STEPS` steps, which a small table needs.
        """
        filled = self.filled()
        size = filled.batch_size
        if self.batch_size is None:
            fair = max(SMALLEST_BATCH, 2 ** int(math.log2(max(1, n_training / EPOCH_STEPS))))
            size = min(size, fair)
        size = min(size, n_training)
        return size, min(filled.accumulate, -(-n_training // size))

    def peak_lr(self, pairs_per_step: int) -> float:
        """Return the peak learning rate, scaled linearly if ``scale_lr`` is set."""
        return self.filled().lr * (pairs_per_step / NOTEBOOK_BATCH if self.scale_lr else 1.0)

    def filled_in(self) -> dict[str, Any]:
        """Return the fields of the preset, and the seed of the split."""
        return asdict(self.filled()) | {"split_seed": self.effective_split_seed}


MAY_CHANGE = FitConfig.changeable() | {"format", "store", "store_from_run"}
"""What may differ when a run is resumed: none of it changes the meaning of the result, and the
format is checked when config.json is read."""


def check_same(
    run: object,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    may_change: frozenset[str] = MAY_CHANGE,
    option: str = "--run",
) -> None:
    """Raise `RunMismatch` if any value outside `may_change` differs, naming each difference."""
    names = sorted((before.keys() | now.keys()) - may_change, key=lambda n: ("digest" in n, n))
    values = [(n, before.get(n), now.get(n)) for n in names]
    changes = [f"{n} was {old!r} and is now {new!r}" for n, old, new in values if old != new]
    if changes:
        msg = (
            f"{run}: started with other options or data: {'; '.join(changes)}. "
            f"Use the same options and table, or another {option} folder."
        )
        raise RunMismatch(msg)
