"""Small chunks, blocks and limits: a table of a few rows is then treated as a large one is."""

import functools
import os
from pkgutil import resolve_name

from abag.embed import embed
from abag.embed.tables.pairs import Partitions


def set_chunk_rows(patch, rows):
    """Let commands read tables by this many rows at a time, until the patch of pytest is undone.

    Tests that call a reader give it `rows`.
    """
    patch.setattr(embed, "CHUNK_ROWS", rows)


def set_part_bytes(patch, *, held, part):
    """Let `embed` hold so many bytes of sequences in memory, and encode so many at a time."""
    small = functools.partial(Partitions, held_bytes=held, part_bytes=part)
    patch.setattr(embed, "Partitions", small)


SIZES = {
    "aligned_residues": "head.regimes.similar:BLOCK",
    "aligned_parts": "head.regimes.similar:PARTS",
    "aligned_first": "head.regimes.similar:FIRST_PATTERNS",
    "substituted_share": "head.regimes.similar:SUBSTITUTED",
    "compared_batch": "head.regimes.similar:BATCH_PAIRS",
    "compared_columns": "head.regimes.similar:COLUMNS",
    "compared_rows": "head.regimes.similar:ROWS",
    "numbered_by_processes": "embed.tables.numbering:WORTH_PROCESSES",
    "numbered_part": "embed.tables.numbering:PART",
    "cached_bytes": "core.files:MOST_BYTES",
    "cached_entries": "core.files:MOST_ENTRIES",
    "scored_tokens": "embed.encoders.loading:CHUNK_TOKENS",
    "simulated_values": "head.design.batches:BLOCK_VALUES",
    "neighbours": "head.regimes.similar:NEIGHBOURS",
    "projected_sample": "head.regimes.similar:SAMPLE",
    "standardised_numbers": "head.models.pair_vectors:BLOCK",
    "recognised_cells": "embed.tables.content:CHECKED_AT_MOST",
    "large_table": "head.regimes.folds:LARGE_TABLE",
    "compared_antibodies": "head.predictor.parts:MAX_COMPARISONS",
    "demo_pairs": "head.demo:PAIRS",
    "enough_groups": "head.regimes.folds:ENOUGH_GROUPS",
    "exact_pairs": "head.models.kernel_search:EXACT_PAIRS",
    "inducing_pairs": "head.models.kernel_search:INDUCING_PAIRS",
    "kernel_noises": "head.models.kernel_search:NOISES",
    "kernel_products": "head.models.kernel_search:PRODUCTS",
    "kernel_scales": "head.models.kernel_search:SCALES",
    "kept_part_seconds": "head.training.tasks:LEAST_SECONDS",
    "map_cells": "head.design.scan:MAX_CELLS",
    "one_hot_products": "head.models.residue_kernel:MAX_PRODUCTS",
    "parallel_columns": "head.models.ridge:PARALLEL_COLUMNS",
    "predicted_antibodies": "head.predictor.scoring:ANTIBODIES",
    "predicted_pairs": "head.predictor.scoring:PAIRS",
    "prior_groups": "head.predictor.weigh:PRIOR_GROUPS",
    "reduced_columns": "head.models.ridge:PARALLEL_COLUMNS",
    "ridge_rows": "head.models.ridge:CHUNK",
    "ridge_strengths": "head.models.ridge:STRENGTHS",
    "scanned_mutants": "head.design.scan:BATCH",
    "search_pairs": "head.models.kernel_search:SEARCH_PAIRS",
    "trained_cpu_bytes": "head.training.stack:MAX_CPU_BYTES",
    "validation_pairs": "head.training.networks:VALIDATION_PAIRS",
    "variance_pairs": "head.models.kernel_search:VARIANCE_PAIRS",
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
    patch.setattr("abag.head.training.stack.draw_bootstrap_sample", lambda rows, *_: rows)
