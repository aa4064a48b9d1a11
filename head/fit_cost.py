"""How long ``abag fit`` takes, stage by stage, for options that are defaults but for the head.

The constants were measured on 2 CPU cores, and on an H200 with 16; ``benchmarks/bench_plan.py``
compares the estimates with fits (benchmarks/results). Nothing is counted as cached.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from abag.core.cores import SMALL_FOLD_PAIRS, count_threads
from abag.embed.sequences.numbering import WORTH_PROCESSES
from abag.head.models.baselines import MAX_COMPARISONS
from abag.head.models.config import VALIDATION_PAIRS, FitConfig, HeadName
from abag.head.models.gaussian_process import INNER_PAIRS
from abag.head.models.kernels import SEARCH_PAIRS
from abag.head.models.registry import stacked_models
from abag.head.regimes.split_methods import FOLDS, REPEATS

DEFAULT_FOLDS = FOLDS * REPEATS
"""Folds of ``--split auto`` where few clusters can be held out."""
TRAIN_SHARE = 0.8
GPU_CORES = 8
"""Cores assumed beside a GPU that is not of this machine."""

START_S = 2.0
"""Imports, files and the end of the process."""
GPU_START_S = 4.0
"""Further start of a GPU: imports, the driver's libraries and the capture of a step."""
ROW_S = 1.2e-5
"""Reading and labelling a row, and its vectors."""
CLUSTER_S = 3e-4
"""Clustering an antibody."""
ANTIGEN_S = 1.2e-4
"""Clustering antigens, times their number to the power of 1.5: most pairs need no alignment."""
NUMBER_S = 1.5e-4
"""IMGT numbering of an antibody."""
CPU_STEP_S = 4e-4
"""A step of one network on a CPU, beside what grows with its weights."""
CPU_WEIGHT_S = 2.2e-9
"""The optimizer's step of a weight, and reading it."""
CPU_FLOPS = 1.3e11
"""Floating-point operations per second of a step's products, one core."""
GPU_STEP_S = 1 / 2900
"""A step of the default network on one H200, as a CUDA graph."""
STACKED = 0.6
"""Time of a network's step on a GPU in a stack, relative to a step of its own."""
EPOCH_S, VALIDATE_S = 4e-3, 1.5e-5
"""Keeping the best weights of a network after an epoch; scoring a validation pair."""
FACTORISE_S = 6e-10
"""A ridge on a CPU, times the cube of its columns: a factorisation per inner fold and strength."""
SUM_S = 3e-11
"""The Gram matrices of its inner folds, for each antibody and pair of columns."""
VALUE_S = 2e-8
"""Standardising a value of the vectors."""
COMPARE_S = 2.5e-11
"""Looking for the nearest antibody, for each pair of antibodies and column of their vectors."""
SEARCH_KERNEL_S = 1.1e-9
"""Choosing the kernels of kernel ridge and Gaussian process, times the cube of the pairs tried."""
SOLVE_S = 4e-11
"""Fitting a kernel on one core, times the cube of the training pairs."""
INNER_SOLVES = 4
"""As many fits take the time of the predictions of inner folds."""
FOLD_S, FOLD_ROW_S = 0.03, 2e-5
"""Predicting, scoring, writing and drawing a fold, and each of its rows."""
INTERVAL_ROW_S, INTERVAL_ROWS = 1.2e-4, 2_000
"""Intervals of the scores of a fold, for each row up to a number."""


class FitSize(NamedTuple):
    """What the time of a fit depends on."""

    rows: int
    unique: tuple[int, int]
    """Antibodies and antigens."""
    widths: tuple[int, int]
    """Of their vectors."""
    variants: bool = False
    """Whether the antibodies are variants of one, whose residues a stack compares."""

    @property
    def training_pairs(self) -> int:
        """Pairs that a fold is trained on."""
        return max(1, int(TRAIN_SHARE * self.rows))


class FitTime(NamedTuple):
    """Wall times of the stages of a fit, alone and for all folds, in seconds."""

    start: float
    reading: float
    clusters: float
    """Before the training."""
    heads: float
    """Networks, closed forms and baselines; of small folds in several threads."""
    networks: float
    closed_forms: float
    baselines: float
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
    head: HeadName | None = None,
) -> FitTime:
    """Estimate the times of a fit whose clusters are not cached."""
    config, many = FitConfig(head=head), size.unique[0] >= WORTH_PROCESSES
    # each thread of a small fit has one core
    each = 1 if size.training_pairs <= SMALL_FOLD_PAIRS else cores
    networks_s = folds * _network_seconds(size, config, on_gpu, folds)
    closed_s = folds * _closed_form_seconds(size, config, on_gpu, each)
    baselines_s = folds * _baseline_seconds(size, config, on_gpu, each)
    # the networks of all folds are one task, the models of each fold another
    tasks = folds + (config.network is not None)
    threads = 1 if on_gpu else count_threads(tasks, size.training_pairs, cores)
    results_s = FOLD_S + FOLD_ROW_S * size.rows
    results_s += INTERVAL_ROW_S * min(size.rows, INTERVAL_ROWS)
    return FitTime(
        start=START_S + GPU_START_S * on_gpu,
        reading=ROW_S * size.rows,
        clusters=sum(_cluster_seconds(size)) / _speedup(cores),
        heads=(networks_s + closed_s + baselines_s) / threads,
        networks=networks_s,
        closed_forms=closed_s,
        baselines=baselines_s,
        numbering=NUMBER_S * size.unique[0] / (cores if many else 1),
        results=folds * results_s,
    )


def _speedup(cores: int) -> float:
    """Return how many times faster all cores are than one: the rest waits for the first."""
    return math.sqrt(cores)


def _cluster_seconds(size: FitSize) -> tuple[float, float]:
    """Estimate one core's time to cluster the antibodies, and the antigens."""
    antibodies, antigens = size.unique
    return CLUSTER_S * antibodies, ANTIGEN_S * antigens**1.5


def _network_seconds(size: FitSize, config: FitConfig, on_gpu: bool, folds: int) -> float:
    """Estimate the networks of one of the folds, which train together."""
    if config.network is None:
        return 0.0
    pairs = size.training_pairs
    networks = config.members
    batch, accumulate = config.fitting_batch(pairs)
    filled = config.filled()
    steps = math.ceil(pairs / (batch * accumulate)) * filled.epochs
    layers = (sum(size.widths), *filled.widths, 1)
    weights = sum(inner * outer for inner, outer in pairwise(layers))
    step_s = CPU_STEP_S + weights * (CPU_WEIGHT_S + 6 * batch * accumulate / CPU_FLOPS)
    if on_gpu:
        step_s = GPU_STEP_S * (STACKED if folds * networks > 1 else 1)
    validated = min(VALIDATION_PAIRS, pairs // 8)
    epoch_s = EPOCH_S + validated * VALIDATE_S
    return networks * (steps * step_s + filled.epochs * epoch_s)


def _columns(size: FitSize) -> list[int]:
    """Return how many columns of the vectors of each kind a ridge factorises."""
    pairs = size.training_pairs
    return [min(*both, pairs) for both in zip(size.unique, size.widths, strict=True)]


def _ridge_seconds(columns: int, size: FitSize, cores: int) -> float:
    factorised_s = FACTORISE_S * columns**3 + SUM_S * max(size.unique) * columns**2
    return factorised_s / _speedup(cores)


def _baseline_seconds(size: FitSize, config: FitConfig, on_gpu: bool, cores: int) -> float:
    """Estimate the baselines of a split."""
    antibodies, width = size.unique[0], size.widths[0]
    values = sum(n * width for n, width in zip(size.unique, size.widths, strict=True))
    found = VALUE_S * values
    comparisons = TRAIN_SHARE * antibodies**2
    if comparisons <= MAX_COMPARISONS:
        found += COMPARE_S * comparisons * width / _speedup(cores)
    if on_gpu:
        return found
    columns = _columns(size)
    on_both = [] if "ridge" in _closed_forms(size, config) else [sum(columns)]
    return found + sum(_ridge_seconds(n, size, cores) for n in columns + on_both)


def _closed_forms(size: FitSize, config: FitConfig) -> list[str]:
    """Return the models in closed form of a split's head."""
    if not config.stacks:
        return [] if config.network else [str(config.filled().head)]
    names = stacked_models(size.training_pairs)
    return [one for one in names if one != "one_hot_kernel" or size.variants]


def _closed_form_seconds(size: FitSize, config: FitConfig, on_gpu: bool, cores: int) -> float:
    """Estimate the models in closed form of a split's head."""
    pairs, names, found = size.training_pairs, _closed_forms(size, config), 0.0
    # many pairs are left to the GPU
    if "ridge" in names and not (on_gpu and pairs > SMALL_FOLD_PAIRS):
        found = _ridge_seconds(sum(_columns(size)), size, cores)
    processes = [one for one in names if one in ("kernel", "gp", "one_hot_kernel")]
    # kernel ridge and Gaussian process share a search
    searches = len({one == "one_hot_kernel" for one in processes})
    solves = len(processes) * (INNER_SOLVES if SEARCH_PAIRS < pairs <= INNER_PAIRS else 1)
    found += SEARCH_KERNEL_S * searches * min(pairs, SEARCH_PAIRS) ** 3
    return found + SOLVE_S * solves * pairs**3 / cores
