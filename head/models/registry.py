"""The models of pairs, by name: what ``--head`` offers, a stack weighs and a predictor stores.

A model that is added here is a head, a part of the stack, an entry of ``abag plan``'s estimate and
a part that predictors save and load. Write its module, its entry and its test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from abag.head.models.composition import CompositionRidge, fit_composition_ridge
from abag.head.models.constant import ConstantModel, ConstantSettings, fit_mean
from abag.head.models.gaussian_process import (
    GaussianProcess,
    ProcessSettings,
    fit_gaussian_process,
    search_seconds,
    solve_seconds,
)
from abag.head.models.network import NetworkModel, NetworkSettings
from abag.head.models.residues import (
    OneHotKernel,
    OneHotRidge,
    OneHotRidgeSettings,
    OneHotSettings,
    ResidueKernel,
    columns_of,
    find_reference,
    fit_one_hot_kernel,
    fit_one_hot_ridge,
    fit_residue_kernel,
    residue_ridge_seconds,
)
from abag.head.models.ridge import LinearModel, LinearSettings, fit_linear, linear_seconds

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains
    from abag.head.models.pair_model import Fit, FitSize, Index

MEAN, NETWORK = "train_mean", "mlp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A kind of model."""

    help: str
    model: type[Any]
    """A `PairModel` with ``load(arrays, settings)``."""
    settings: type[Any]
    """Dataclass of JSON values."""
    fit: Fit | None = None
    """None: a network, which trains with those of other folds."""
    check: Callable[[Sequence[Chains], Index], object] | None = None
    """Raises `DoesNotApply` before a fit, given antibodies and those of the training pairs, (F,);
    None: it applies to every table."""
    reads: Literal["vectors", "residues", "composition", "nothing"] = "vectors"
    is_stacked: bool = True
    """Whether it is a part of the default head."""
    most_pairs: float = float("inf")
    """Training pairs above which a stack leaves it out, because it would take minutes."""
    is_baseline: bool = False
    """Whether every fit is compared with it, also if it is no part of the head."""
    has_posterior: bool = False
    """Whether it gives a variance for each prediction."""
    seconds: Callable[[FitSize, int], float] = lambda _size, _cores: 0.0
    """Estimated time on some cores of a fit in a stack; networks are in `plan`."""


MODELS: Mapping[str, ModelEntry] = {
    MEAN: ModelEntry(
        help="mean label of the training pairs", reads="nothing",
        model=ConstantModel, settings=ConstantSettings, fit=fit_mean, is_baseline=True,
    ),
    "kernel": ModelEntry(
        help="kernel ridge, the kernel chosen by inner folds",
        model=GaussianProcess, settings=ProcessSettings, has_posterior=True, most_pairs=12_000,
        fit=partial(fit_gaussian_process, criterion="error"), seconds=search_seconds,
    ),
    "gp": ModelEntry(
        help="Gaussian process, the kernel chosen by the evidence",
        model=GaussianProcess, settings=ProcessSettings, has_posterior=True, most_pairs=5_000,
        fit=partial(fit_gaussian_process, criterion="evidence"), seconds=solve_seconds,
    ),
    "one_hot_kernel": ModelEntry(
        help="kernel ridge on the residues of variants of one antibody", reads="residues",
        model=OneHotKernel, settings=OneHotSettings, has_posterior=True, most_pairs=12_000,
        fit=fit_one_hot_kernel, check=partial(find_reference, "one_hot_kernel"),
        seconds=search_seconds,
    ),
    "residue_kernel": ModelEntry(
        help="kernel ridge on substitutions of residues of variants", reads="residues",
        model=ResidueKernel, settings=OneHotSettings, has_posterior=True, most_pairs=12_000,
        fit=fit_residue_kernel, check=partial(find_reference, "residue_kernel"),
        seconds=search_seconds, is_stacked=False,
    ),
    "ridge": ModelEntry(
        help="ridge on the vectors of antibody and antigen", is_baseline=True,
        model=LinearModel, settings=LinearSettings, fit=fit_linear, seconds=linear_seconds,
    ),
    "antibody_ridge": ModelEntry(
        help="ridge on the vectors of antibodies", is_baseline=True,
        model=LinearModel, settings=LinearSettings, fit=partial(fit_linear, sides=(0,)),
    ),
    "antigen_ridge": ModelEntry(
        help="ridge on the vectors of antigens", is_baseline=True,
        model=LinearModel, settings=LinearSettings, fit=partial(fit_linear, sides=(1,)),
    ),
    "one_hot_ridge": ModelEntry(
        help="ridge on the residues of variants of one antibody", reads="residues",
        model=OneHotRidge, settings=OneHotRidgeSettings, is_baseline=True,
        fit=fit_one_hot_ridge, check=columns_of, seconds=residue_ridge_seconds,
    ),
    "composition_ridge": ModelEntry(
        help="ridge on residue frequencies and lengths", reads="composition",
        model=CompositionRidge, settings=LinearSettings, is_baseline=True,
        fit=fit_composition_ridge,
    ),
    NETWORK: ModelEntry(
        help="network on both vectors joined", model=NetworkModel, settings=NetworkSettings,
    ),
}  # fmt: skip
"""In the order of a stack. What kernel ridge tried saves the Gaussian process its search."""
HEADS = tuple(name for name in MODELS if name != MEAN)
"""Heads of one model; the mean is a part of every head."""


def closed_forms(head: str, n_training: int) -> list[str]:
    """Return the models in closed form of a head with this many training pairs."""
    if head != "stack":
        return [name for name in (MEAN, head) if MODELS[name].fit is not None]
    return [
        name
        for name, one in MODELS.items()
        if one.fit is not None and one.is_stacked and n_training <= one.most_pairs
    ]


def describe_left_out(n_training: int) -> str:
    """Name the models that a stack leaves out for its training pairs; empty if there are none."""
    limits = [
        f"{name} (at most {one.most_pairs:,.0f})"
        for name, one in MODELS.items()
        if one.is_stacked and n_training > one.most_pairs
    ]
    if not limits:
        return ""
    return f"left out, with {n_training:,} training pairs: {', '.join(limits)}"
