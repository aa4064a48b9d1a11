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
