"""How long ``abag fit`` takes: start, training, baselines and report.

The constants were measured with ``benchmarks/bench_time_to_answer.py`` and ``bench_fit.py``
(benchmarks/results). Clusters that are not cached yet come on top.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from abag.head.model.config import FitConfig
from abag.head.splits.partition import FOLDS, REPEATS

TRAIN_SHARE = 0.8
START_S = 4.5
"""Imports, tables, scores, files and report."""
GPU_START_S = 6.0
"""Further start of a GPU: the driver's libraries and the capture of a step."""
SPLIT_S = 0.05
"""Scores and files of each fold."""
CPU_STEP_S = 1.3e-3
"""Overhead of a step of one head on a CPU, beside its products."""
CPU_FLOPS = 4e10
"""Floating-point operations per second of a step's products, one core."""
GPU_STEP_S = 1 / 2900
"""A step of the default head on one H200, as a CUDA graph."""
STACKED = 0.6
"""Time of a fold's step in a stack of folds, relative to a step of its own."""
BASELINES_S, BASELINES_COLUMNS = 0.35, 600
"""Time of the baselines of a split with so many columns; it grows with their cube."""


class FitSize(NamedTuple):
    """What the time of a fit depends on."""

    rows: int
    unique: tuple[int, int]
    """Antibodies and antigens."""
    widths: tuple[int, int]
    """Of their vectors."""


def fit_seconds(size: FitSize, *, on_gpu: bool, folds: int = 1) -> float:
    """Estimate the wall time of a default fit with cached clusters, in seconds."""
    config, pairs = FitConfig(), max(1, int(TRAIN_SHARE * size.rows))
    batch, accumulate = config.fitting_batch(pairs)
    filled = config.filled()
    steps = math.ceil(pairs / (batch * accumulate)) * filled.epochs
    layers = (sum(size.widths), *filled.widths, 1)
    weights = sum(inner * outer for inner, outer in pairwise(layers))
    step_s = CPU_STEP_S + 6 * weights * batch / CPU_FLOPS
    step_s = (GPU_STEP_S if on_gpu else step_s) * (STACKED if folds > 1 else 1)
    columns = sum(min(both) for both in zip(size.unique, size.widths, strict=True))
    split_s = SPLIT_S + BASELINES_S * (columns / BASELINES_COLUMNS) ** 3
    return START_S + GPU_START_S * on_gpu + folds * (steps * step_s + split_s)


DEFAULT_FOLDS = FOLDS * REPEATS
"""Folds of ``--split auto`` where few clusters can be held out."""
