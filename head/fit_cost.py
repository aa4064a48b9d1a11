"""How long ``abag fit`` takes, stage by stage, for options that are defaults but for the head.

The times of models are those of their entries in the registry. All constants were measured on 2 CPU
cores, and on an H200 with 16; ``benchmarks/bench_plan.py`` compares the estimates with fits
(benchmarks/results). Nothing is counted as cached.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from abag.core.cores import SMALL_FOLD_PAIRS, count_threads
from abag.embed.sequences.numbering import WORTH_PROCESSES
from abag.head.models.baselines import nearest_seconds
from abag.head.models.config import VALIDATION_PAIRS, FitConfig
from abag.head.models.pair_model import FitSize
from abag.head.models.registry import MODELS, closed_forms
from abag.head.regimes.split_methods import FOLDS, REPEATS

DEFAULT_FOLDS = FOLDS * REPEATS
"""Folds of ``--split auto`` where few clusters can be held out."""
GPU_CORES = 8
"""Cores assumed beside a GPU that is not of this machine."""

START_S, GPU_START_S = 2.0, 4.0
"""Imports, files and the end of the process; further start of a GPU."""
ROW_S = 1.2e-5
"""Reading and labelling a row, and its vectors."""
CLUSTER_S = 3e-4
"""Clustering an antibody."""
ANTIGEN_S = 1.2e-4
"""Clustering antigens, times their number to the power of 1.5: most pairs need no alignment."""
NUMBER_S = 1.5e-4
"""IMGT numbering of an antibody."""
VALUE_S = 2e-8
"""Standardising a value of the vectors."""
CPU_STEP_S, CPU_WEIGHT_S, CPU_FLOPS = 4e-4, 2.2e-9, 1.3e11
"""A step on a CPU beside what grows with its weights; the optimizer's step of a weight; floating-
point operations per second of its products on one core."""
GPU_STEP_S, STACKED = 1 / 2900, 0.6
"""A step of the default network on one H200 as a CUDA graph; its time in a stack, relative to
that."""
EPOCH_S, VALIDATE_S = 4e-3, 1.5e-5
"""Keeping the best weights after an epoch; scoring a validation pair."""
FOLD_S, FOLD_ROW_S = 0.03, 2e-5
"""Predicting, scoring, writing and drawing a fold, and each of its rows."""
INTERVAL_ROW_S, INTERVAL_ROWS = 1.2e-4, 2_000
"""Intervals of the scores of a fold, for each row up to a number."""


class FitTime(NamedTuple):
    """Wall times of the stages of a fit, alone and for all folds, in seconds."""

    start: float
    reading: float
    clusters: float
    """Before the training."""
    heads: float
    """Networks and other models; of small folds in several threads."""
    networks: float
    models: float
    """In closed form, and the baselines."""
    numbering: float
    """IMGT numbering of the antibodies."""
    results: float
    """Predictor, scores and report."""

    @property
    def whole(self) -> float:
        """The wall time of the fit."""
        return (
            self.start + self.reading + self.clusters + self.heads + self.numbering + self.results
        )


def fit_time(
    size: FitSize,
    *,
    on_gpu: bool,
    folds: int = 1,
    cores: int = GPU_CORES,
    head: str | None = None,
) -> FitTime:
    """Estimate the times of a fit whose clusters are not cached."""
    config, many = FitConfig(head=head), size.unique[0] >= WORTH_PROCESSES
    # each thread of a small fit has one core
    each = 1 if size.training_pairs <= SMALL_FOLD_PAIRS else cores
    networks_s, values = (
        0.0,
        sum(n * width for n, width in zip(size.unique, size.widths, strict=True)),
    )
    models_s = folds * (VALUE_S * values + nearest_seconds(size, each))
    if config.network is not None:
        networks_s = folds * _network_seconds(size, config, on_gpu=on_gpu, folds=folds)
    names = {*closed_forms(config.filled().head, size.training_pairs)}
    names |= {name for name, one in MODELS.items() if one.is_baseline}
    for one in map(MODELS.__getitem__, names):
        # the ridges of many pairs are left to the GPU
        on_device = on_gpu and not one.has_posterior and size.training_pairs > SMALL_FOLD_PAIRS
        if not on_device and (one.reads != "residues" or size.variants):
            models_s += folds * one.seconds(size, each)
    # the networks of all folds are one task, the models of each fold another
    tasks = folds + (config.network is not None)
    threads = 1 if on_gpu else count_threads(tasks, size.training_pairs, cores)
    results_s = FOLD_S + FOLD_ROW_S * size.rows
    results_s += INTERVAL_ROW_S * min(size.rows, INTERVAL_ROWS)
    return FitTime(
        start=START_S + GPU_START_S * on_gpu,
        reading=ROW_S * size.rows,
        # the rest waits for the first core
        clusters=_cluster_seconds(size) / math.sqrt(cores),
        heads=(networks_s + models_s) / threads,
        networks=networks_s,
        models=models_s,
        numbering=NUMBER_S * size.unique[0] / (cores if many else 1),
        results=folds * results_s,
    )


def _cluster_seconds(size: FitSize) -> float:
    """Estimate one core's time to cluster the antibodies and the antigens."""
    antibodies, antigens = size.unique
    return CLUSTER_S * antibodies + ANTIGEN_S * math.pow(antigens, 1.5)


def _network_seconds(size: FitSize, config: FitConfig, *, on_gpu: bool, folds: int) -> float:
    """Estimate the networks of one of the folds, which train together."""
    pairs, filled = size.training_pairs, config.filled()
    batch, accumulate = config.fitting_batch(pairs)
    steps = math.ceil(pairs / (batch * accumulate)) * filled.epochs
    layers = (sum(size.widths), *filled.widths, 1)
    weights = sum(inner * outer for inner, outer in pairwise(layers))
    step_s = CPU_STEP_S + weights * (CPU_WEIGHT_S + 6 * batch * accumulate / CPU_FLOPS)
    if on_gpu:
        step_s = GPU_STEP_S * (STACKED if folds * config.members > 1 else 1)
    epoch_s = EPOCH_S + min(VALIDATION_PAIRS, pairs // 8) * VALIDATE_S
    return config.members * (steps * step_s + filled.epochs * epoch_s)
