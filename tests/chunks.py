"""Small chunks, blocks and limits: a table of a few rows is then treated as a large one is."""

import functools
import os
from pkgutil import resolve_name

from abag.embed import embed
from abag.embed.sequences import joined, pairs
from abag.embed.sequences.partitions import Partitions


def set_chunk_rows(patch, rows):
    """Let commands read tables by this many rows at a time, until the patch of pytest is undone.

    Tests that call a reader give it `rows`.
    """
    for module in (pairs, joined):
        patch.setattr(module, "CHUNK_ROWS", rows)


def set_part_bytes(patch, *, held, part):
    """Let `embed` hold so many bytes of sequences in memory, and encode so many at a time."""
    small = functools.partial(Partitions, held_bytes=held, part_bytes=part)
    patch.setattr(embed, "Partitions", small)


SIZES = {
    "aligned_residues": "head.regimes.contained:BLOCK",
    "aligned_parts": "head.regimes.contained:PARTS",
    "aligned_first": "head.regimes.contained:FIRST_PATTERNS",
    "substituted_share": "head.regimes.contained:SUBSTITUTED",
    "compared_batch": "head.regimes.near_duplicates:BATCH_PAIRS",
    "compared_columns": "head.regimes.near_duplicates:COLUMNS",
    "compared_rows": "head.regimes.near_duplicates:ROWS",
    "neighbours": "head.regimes.near_duplicates:NEIGHBOURS",
    "projected_sample": "head.regimes.near_duplicates:SAMPLE",
    "clustered_sequences": "head.regimes.clusters:MANY_SEQUENCES",
    "standardised_numbers": "head.data.vectors:BLOCK",
    "recognised_cells": "embed.sequences.contents:CHECKED_AT_MOST",
    "large_table": "head.regimes.regime_folds:LARGE_TABLE",
    "compared_antibodies": "head.models.baselines:MAX_COMPARISONS",
    "demo_pairs": "head.data.demo:PAIRS",
    "enough_groups": "head.regimes.regime_folds:ENOUGH_GROUPS",
    "exact_pairs": "head.models.gaussian_process:EXACT_PAIRS",
    "inducing_pairs": "head.models.gaussian_process:INDUCING_PAIRS",
    "kernel_noises": "head.models.kernel_choice:NOISES",
    "kernel_products": "head.models.kernel_choice:PRODUCTS",
    "kernel_scales": "head.models.kernel_choice:SCALES",
    "kept_part_seconds": "head.training.kept_parts:LEAST_SECONDS",
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
"""The constant of each block, sample or limit, as ``module:name`` below the package."""


def set_sizes(patch, **sizes):
    """Set blocks, samples and limits, until the patch of pytest is undone."""
    for name, size in sizes.items():
        module, constant = SIZES[name].split(":")
        patch.setattr(resolve_name(f"abag.{module}"), constant, size)


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
