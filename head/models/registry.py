"""The models of pairs, by name: what ``--head`` offers, a stack weighs and a predictor stores.

A model that is added here is a head, a part of the stack and a part that predictors save and load.
Write its module, its entry and its test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from abag.core.arrays import Ints
from abag.embed.tables.chains import Kind
from abag.head.models import kernel_search, kernels, residue_kernel, ridge, trees
from abag.head.models.pair_vectors import Arrays, Fit, NetworkSettings, PairModel, PairVectors

MEAN = "train_mean"
NETWORK = "mlp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """Describe a kind of model: how it is fitted, restored and offered."""

    help: str
    """What it is, in the words of ``--help``."""
    load: Callable[[Arrays, Any], PairModel]
    """Restores a model from its arrays and settings."""
    settings: type[Any]
    """Class of its settings."""
    fit: Fit | None = None
    """Fits it to training rows; None: a network, which trains with those of other folds."""
    check: Callable[[PairVectors, Ints, tuple[Kind, ...]], object] | None = None
    """Raises `DoesNotApply` before a fit, given the pairs, those in training, (F,), and the sides
    with residues; None: it applies to every table."""
    reads: Literal["vectors", "residues", "composition", "nothing"] = "vectors"
    """One that reads residues applies where a side of the pairs consists of variants."""
    most_pairs: float = float("inf")
    """Training pairs above which a stack leaves it out, because it would take minutes."""
    is_baseline: bool = False
    """Whether every fit is compared with it, also if it is no part of the head."""
    has_variance: bool = False
    """Whether it gives a variance for each prediction."""


def _load_network(arrays: Arrays, settings: NetworkSettings) -> PairModel:
    from abag.head.models.network import NetworkModel  # imports torch, which --help does not need

    return NetworkModel.load(arrays, settings)


MODELS: Mapping[str, ModelEntry] = {
    MEAN: ModelEntry(
        help="mean label of the training pairs", reads="nothing", is_baseline=True,
        load=ridge.ConstantModel.load, settings=ridge.ConstantSettings, fit=ridge.fit_mean,
    ),
    "kernel": ModelEntry(
        help="kernel ridge, the kernel chosen by inner folds",
        load=kernels.GaussianProcess.load, settings=kernels.ProcessSettings, has_variance=True,
        fit=partial(
            kernel_search.fit_gaussian_process, criterion=kernel_search.CRITERIA["kernel"]
        ),
        most_pairs=12_000,
    ),
    "gp": ModelEntry(
        help="Gaussian process, the kernel chosen by the evidence",
        load=kernels.GaussianProcess.load, settings=kernels.ProcessSettings, has_variance=True,
        fit=partial(
            kernel_search.fit_gaussian_process, criterion=kernel_search.CRITERIA["gp"]
        ),
        most_pairs=5_000,
    ),
    residue_kernel.RESIDUE_KERNEL: ModelEntry(
        help="kernel ridge on substitutions of residues of variants", reads="residues",
        load=residue_kernel.ResidueKernel.load, settings=residue_kernel.ResidueSettings,
        has_variance=True,
        fit=residue_kernel.fit_residue_kernel, most_pairs=12_000,
    ),
    "ridge": ModelEntry(
        help="ridge on the vectors of antibody and antigen", is_baseline=True,
        load=ridge.LinearModel.load, settings=ridge.LinearSettings, fit=ridge.fit_linear,
    ),
    "antibody_ridge": ModelEntry(
        help="ridge on the vectors of antibodies", is_baseline=True,
        load=ridge.LinearModel.load, settings=ridge.LinearSettings,
        fit=partial(ridge.fit_linear, kinds=("antibody",)),
    ),
    "antigen_ridge": ModelEntry(
        help="ridge on the vectors of antigens", is_baseline=True,
        load=ridge.LinearModel.load, settings=ridge.LinearSettings,
        fit=partial(ridge.fit_linear, kinds=("antigen",)),
    ),
    "one_hot_ridge": ModelEntry(
        help="ridge on the residues of variants", reads="residues",
        load=residue_kernel.OneHotRidge.load, settings=residue_kernel.OneHotRidgeSettings,
        is_baseline=True,
        fit=residue_kernel.fit_one_hot_ridge, check=residue_kernel.ridge_columns,
    ),
    "composition_ridge": ModelEntry(
        help="ridge on residue frequencies and lengths", reads="composition", is_baseline=True,
        load=ridge.CompositionRidge.load, settings=ridge.LinearSettings,
        fit=ridge.fit_composition_ridge,
    ),
    "trees": ModelEntry(
        help="extremely randomised trees on residues of variants and residue frequencies",
        reads="composition",
        load=trees.Trees.load, settings=trees.TreeSettings, has_variance=True,
        fit=trees.fit_trees,
        most_pairs=5_000,
    ),
    NETWORK: ModelEntry(
        help="network on both vectors joined", load=_load_network, settings=NetworkSettings,
    ),
}  # fmt: skip
"""In the order of a stack. What kernel ridge tried saves the Gaussian process its search."""
HEADS = tuple(name for name in MODELS if name != MEAN)
"""Heads of one model; the mean is a part of every head."""


def closed_forms(head: str, n_training: int) -> list[str]:
    """Return the models in closed form of a head for a table with this many training pairs."""
    if head != "stack":
        return [name for name in (MEAN, head) if MODELS[name].fit is not None]
    names = []
    for name, model in MODELS.items():
        if model.fit is not None and n_training <= model.most_pairs:
            names.append(name)
    return names


def describe_left_out(n_training: int) -> str:
    """Name the models that a stack leaves out for its training pairs; empty if there are none."""
    reasons = []
    for name, model in MODELS.items():
        if n_training > model.most_pairs:
            reasons.append(f"{name} left out: it handles at most {model.most_pairs:,.0f} pairs")
    return "; ".join(reasons)
