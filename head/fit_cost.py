"""How long ``abag fit`` takes: start, table, clusters, training, baselines, scores and report.

The constants were measured with ``benchmarks/bench_time_to_answer.py``, ``bench_clusters.py`` and
``bench_fit.py`` (benchmarks/results). Clusters are counted as if they were not cached.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from abag.head.closed_form.gaussian_process import INNER_PAIRS
from abag.head.closed_form.kernel_search import SEARCH_PAIRS
from abag.head.closed_form.registry import stacked_models
from abag.head.evaluation.baselines import INNER_FOLDS
from abag.head.model.config import STACK_NETWORKS, FitConfig, HeadName
from abag.head.splits.partition import FOLDS, REPEATS
from abag.head.training.lane_count import count_lanes

TRAIN_SHARE = 0.8
START_S = 3.0
"""Imports and files."""
GPU_START_S = 4.0
"""Further start of a GPU: imports, the driver's libraries and the capture of a step."""
ROW_S = 3e-5
"""Reading, labelling and drawing a row."""
FOLD_ROW_S = 1.5e-5
"""Predicting and scoring a row with the head and all baselines of a fold."""
SPLIT_S = 0.05
"""Scores and files of each fold."""
CLUSTER_S, ALIGN_S = 5e-4, 1.5e-6
"""One core's time to cluster an antibody, and to compare a pair of antigens (both orders)."""
CORES_USED = 0.75
"""Share of the cores that clustering keeps busy."""
GPU_CORES = 8
"""Cores assumed beside a GPU that is not of this machine."""
CPU_STEP_S = 1.3e-3
"""Overhead of a step of one head on a CPU, beside its products."""
CPU_FLOPS = 4e10
"""Floating-point operations per second of a step's products, one core."""
GPU_STEP_S = 1 / 2900
"""A step of the default head on one H200, as a CUDA graph."""
STACKED = 0.6
"""Time of a fold's step in a stack of folds, relative to a step of its own."""
VALIDATE_S = 1.5e-5
"""Scoring a validation pair after an epoch."""
FACTORISE_S = 7e-10
"""Baselines of a split on a CPU, times the cube of the columns: 0.32 s for 768."""
SUM_S = 2e-11
"""Their sums on a CPU, for each antibody and pair of columns."""
SEARCH_KERNEL_S = 1.5e-9
"""Choosing the kernels of kernel ridge and Gaussian process, times the cube of the pairs tried."""
SOLVE_S = 4e-11
"""One core's time to fit a kernel, times the cube of the training pairs: 27 s for 8,900."""
INNER_SOLVES = 6
"""As many fits take the time of the predictions of inner folds."""
VALUE_S = 3.5e-8
"""Standardising a value of the vectors."""


class FitSize(NamedTuple):
    """What the time of a fit depends on."""

    rows: int
    unique: tuple[int, int]
    """Antibodies and antigens."""
    widths: tuple[int, int]
    """Of their vectors."""
    variants: bool = False
    """Whether the antibodies are variants of one, whose residues a stack compares."""


def fit_seconds(
    size: FitSize,
    *,
    on_gpu: bool,
    folds: int = 1,
    cores: int = GPU_CORES,
    head: HeadName | None = None,
) -> float:
    """Estimate the wall time of a fit whose clusters are not cached, in seconds.

    Its options are defaults, but for the `head`.
    """
    config = FitConfig(head=head)
    once_s = START_S + GPU_START_S * on_gpu + ROW_S * size.rows + _cluster_seconds(size, cores)
    network_s = _training_seconds(size, config, on_gpu, folds)
    lanes = count_lanes(folds * (2 + config.stacks), _training_pairs(size), cores)
    beside_s = _baseline_seconds(size, on_gpu)
    if config.stacks:
        # a lane has one core
        beside_s += _closed_form_seconds(size, cores if lanes == 1 else 1)
    # the networks of a fold, and all of them on a GPU, are one after the other
    alone_s = network_s * (folds if on_gpu else 1)
    heads_s = max(alone_s, folds * (network_s + beside_s) / lanes)
    return once_s + heads_s + folds * (SPLIT_S + FOLD_ROW_S * size.rows)


def _cluster_seconds(size: FitSize, cores: int) -> float:
    antibodies, antigens = size.unique
    return (CLUSTER_S * antibodies + ALIGN_S * antigens**2) / max(1, CORES_USED * cores)


def _training_pairs(size: FitSize) -> int:
    return max(1, int(TRAIN_SHARE * size.rows))


def _training_seconds(size: FitSize, config: FitConfig, on_gpu: bool, folds: int) -> float:
    pairs = _training_pairs(size)
    networks = STACK_NETWORKS if config.stacks and pairs <= INNER_PAIRS else 1
    batch, accumulate = config.fitting_batch(pairs)
    filled = config.filled()
    per_epoch = pairs - (pairs // INNER_FOLDS if networks > 1 else 0)
    steps = math.ceil(per_epoch / (batch * accumulate)) * filled.epochs
    layers = (sum(size.widths), *filled.widths, 1)
    weights = sum(inner * outer for inner, outer in pairwise(layers))
    step_s = CPU_STEP_S + 6 * weights * batch / CPU_FLOPS
    step_s = (GPU_STEP_S if on_gpu else step_s) * (STACKED if folds * networks > 1 else 1)
    validated = min(config.validate_pairs, pairs // 8)
    return networks * (steps * step_s + filled.epochs * validated * VALIDATE_S)


def _baseline_seconds(size: FitSize, on_gpu: bool) -> float:
    standardise_s = VALUE_S * sum(
        n * width for n, width in zip(size.unique, size.widths, strict=True)
    )
    if on_gpu:
        return standardise_s
    return standardise_s + _ridge_seconds(size)


def _ridge_seconds(size: FitSize) -> float:
    """Estimate the ridges on stored vectors of a split on a CPU."""
    columns = sum(min(both) for both in zip(size.unique, size.widths, strict=True))
    return FACTORISE_S * columns**3 + SUM_S * max(size.unique) * columns**2


def _closed_form_seconds(size: FitSize, cores: int) -> float:
    """Estimate the models in closed form of a stack's split."""
    pairs = _training_pairs(size)
    left_out = {"ridge"} if size.variants else {"ridge", "one_hot_kernel"}
    processes = [one for one in stacked_models(pairs) if one not in left_out]
    # kernel ridge and Gaussian process share a search
    searches = len({one == "one_hot_kernel" for one in processes})
    search_s = SEARCH_KERNEL_S * searches * min(pairs, SEARCH_PAIRS) ** 3
    solved = len(processes)
    if pairs > SEARCH_PAIRS and pairs <= INNER_PAIRS:
        solved *= INNER_SOLVES
    solve_s = SOLVE_S * solved * pairs**3 / max(1, CORES_USED * cores)
    return search_s + solve_s + _ridge_seconds(size)


DEFAULT_FOLDS = FOLDS * REPEATS
"""Folds of ``--split auto`` where few clusters can be held out."""
