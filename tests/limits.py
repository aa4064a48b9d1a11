"""Limits and block sizes of abag, which tests make small: small tables then take the way of large.

Tests name them by these words, so that the move of a constant is one edit.
"""

import os

PLACES = {
    "compared_antibodies": "head.models.baselines:MAX_COMPARISONS",
    "demo_pairs": "head.data.demo:PAIRS",
    "enough_groups": "head.regimes.regime_folds:ENOUGH_GROUPS",
    "exact_pairs": "head.models.gaussian_process:EXACT_PAIRS",
    "inducing_pairs": "head.models.gaussian_process:INDUCING_PAIRS",
    "kernel_noises": "head.models.kernel_choice:NOISES",
    "kernel_products": "head.models.kernel_choice:PRODUCTS",
    "kernel_scales": "head.models.kernel_choice:SCALES",
    "kept_part_seconds": "head.training.kept_parts:LEAST_SECONDS",
    "large_table": "head.regimes.regime_folds:LARGE_TABLE",
    "map_cells": "head.design.heat_map:MAX_CELLS",
    "one_hot_products": "head.models.residues:MAX_PRODUCTS",
    "parallel_columns": "head.models.ridge:PARALLEL_COLUMNS",
    "predicted_antibodies": "head.prediction.pair_sources:ANTIBODIES",
    "predicted_pairs": "head.prediction.pair_sources:PAIRS",
    "prior_groups": "head.prediction.fitted:PRIOR_GROUPS",
    "reduced_columns": "head.models.normal_equations:PARALLEL_COLUMNS",
    "ridge_rows": "head.models.ridge:CHUNK",
    "ridge_strengths": "head.models.ridge:STRENGTHS",
    "scanned_mutants": "head.design.mutant_scores:BATCH",
    "search_pairs": "head.models.kernel_choice:SEARCH_PAIRS",
    "trained_cpu_bytes": "head.training.stack:MAX_CPU_BYTES",
    "validation_pairs": "head.training.heads:VALIDATION_PAIRS",
    "variance_pairs": "head.models.gaussian_process:VARIANCE_PAIRS",
}
"""The constant of each limit, as ``module:name`` below the package."""


def set_limits(patch, **limits):
    """Set limits until the patch of pytest is undone."""
    for name, value in limits.items():
        patch.setattr(f"abag.{PLACES[name].replace(':', '.')}", value)


def set_cores(patch, cores):
    """Let this process have a number of cores, as its operating system would say."""
    patch.setattr(os, "sched_getaffinity", lambda _process: set(range(cores)), raising=False)
    patch.setattr(os, "cpu_count", lambda: cores)


def keep_tables_on_host(patch):
    """Let training behave as if its vectors did not fit into the memory of its device."""
    patch.setattr("abag.head.training.stack.fit_on_device", lambda *_: False)


def train_without_bootstrap(patch):
    """Let each member of an ensemble train on all pairs, as a single head does."""
    patch.setattr("abag.head.training.batches.draw_bootstrap_sample", lambda rows, *_: rows)
