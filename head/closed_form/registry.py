"""Closed-form heads by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from abag.head.closed_form.gaussian_process import fit_gaussian_process
from abag.head.closed_form.linear import fit_linear
from abag.head.closed_form.pair_model import Fit

CLOSED_FORM: Mapping[str, Fit] = {
    "ridge": fit_linear,
    "kernel": partial(fit_gaussian_process, criterion="error"),
    "gp": partial(fit_gaussian_process, criterion="evidence"),
}
"""How to fit each; `abag.head.model.config.HeadName` lists the same names for ``--head``."""
