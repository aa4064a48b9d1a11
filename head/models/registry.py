"""Closed-form heads by name, and those that are part of a stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from abag.head.models.composition import fit_composition_ridge
from abag.head.models.gaussian_process import INNER_PAIRS, fit_gaussian_process
from abag.head.models.pair_model import Fit, fit_linear
from abag.head.models.residue_model import (
    columns_of,
    find_reference,
    fit_one_hot_kernel,
    fit_one_hot_ridge,
)

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains
    from abag.head.models.pair_model import Index

CLOSED_FORM: Mapping[str, Fit] = {
    "ridge": fit_linear,
    "kernel": partial(fit_gaussian_process, criterion="error"),
    "gp": partial(fit_gaussian_process, criterion="evidence"),
    "one_hot_kernel": fit_one_hot_kernel,
    "antibody_ridge": partial(fit_linear, sides=(0,)),
    "antigen_ridge": partial(fit_linear, sides=(1,)),
    "one_hot_ridge": fit_one_hot_ridge,
    "composition_ridge": fit_composition_ridge,
}
"""How to fit each; `abag.head.models.config.HeadName` lists the same names for ``--head``."""
CHECKS: Mapping[str, Callable[[Sequence[Chains], Index], object]] = {
    "one_hot_kernel": partial(find_reference, "one_hot_kernel"),
    "one_hot_ridge": columns_of,
}
"""What raises `DoesNotApply` before a fit, given chains and those of the training pairs, (F,)."""
STACKED = (
    "kernel", "gp", "one_hot_kernel", "ridge", "antibody_ridge", "antigen_ridge", "one_hot_ridge",
    "composition_ridge",
)  # fmt: skip
"""Closed-form parts of a stack, beside the network and the mean; the last five are baselines, too.
What kernel ridge tried saves the Gaussian process most of its search."""
COMPARED = ("ridge", "antibody_ridge", "antigen_ridge", "one_hot_ridge", "composition_ridge")
"""Parts that every fit is compared with, also if they are not part of it."""
ON_VECTORS = ("ridge", "kernel", "gp")
"""Heads whose results depend on the pooling of both vectors, which a sweep tries."""
LARGEST = {"kernel": 12_000, "gp": INNER_PAIRS, "one_hot_kernel": 12_000}
"""Most training pairs with which a model is part of a stack. On more pairs the errors of both
processes differ little; kernel ridge takes longer than the network, and was not measured."""


def stacked_models(n_training: int) -> list[str]:
    """Return the closed-form models of a stack with this many exact training pairs."""
    return [one for one in STACKED if n_training <= LARGEST.get(one, n_training)]


def describe_left_out(n_training: int) -> str:
    """Name the models that a stack leaves out for its training pairs; empty if there are none."""
    used = stacked_models(n_training)
    limits = [f"{one} (at most {LARGEST[one]:,})" for one in STACKED if one not in used]
    if not limits:
        return ""
    return f"left out, with {n_training:,} training pairs: {', '.join(limits)}"
