"""Time the choice of kernels for the folds of four regimes, and compare costs with each fold alone.

    taskset -c 0 python benchmarks/bench_kernel_search.py --out kernel_search.md

CPU seconds of one search by both criteria, on one core. The pairs are drawn; a table has no more
than 600 in its sample.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from abag.core.cores import limit_blas
from abag.head.models.kernel_search import CRITERIA, FoldLabels, KernelSearch, SolvedKernels
from abag.head.models.kernels import KernelSide, PairSet
from abag.head.regimes.splits import grouped_folds

WIDTH = 64
FOLDS = 5


def draw_search(pairs):
    """Return the search of a table with an antibody per three pairs, and with 20 antigens."""
    rng = np.random.default_rng(0)
    antibody = np.unique(rng.integers(-(-pairs // 3), size=pairs), return_inverse=True)[1]
    antigen = np.unique(rng.integers(20, size=pairs), return_inverse=True)[1]
    sides = []
    for index in (antibody, antigen):
        sides.append(
            KernelSide.of(rng.normal(size=(index.max() + 1, WIDTH)).astype("f4"), (WIDTH,))
        )
    train = PairSet(tuple(sides), (antibody, antigen))
    signal = sides[0].train_AD[antibody, 0] + np.sin(sides[1].train_AD[antigen, 0])
    target = signal + rng.normal(scale=0.5, size=pairs)
    target -= target.mean()
    inner = grouped_folds(antibody, FOLDS, 0)
    folds = []
    for group in (np.arange(pairs), antibody, antigen, antibody % 50):
        fold_of_pair = grouped_folds(group, FOLDS, 0)
        folds += [FoldLabels.sort(fold_of_pair != fold, inner, target) for fold in range(FOLDS)]
    folds.append(FoldLabels.sort(np.ones(pairs, np.bool_), inner, target))
    return KernelSearch(SolvedKernels(train, target, np.ones(pairs)), {}, folds)


def costs_alone(search, fold):
    """Return the costs that the pairs of one fold give, without the others."""
    pairs = search.solver.train
    rows = fold.learned
    inner = np.repeat(np.arange(len(fold.inner)), [s.stop - s.start for s in fold.inner])
    learned = replace(pairs, index=tuple(index[rows] for index in pairs.index))
    target = fold.target_C[rows] - fold.target_C[rows].mean()
    labels = FoldLabels.sort(np.ones(len(rows), np.bool_), inner, target)
    return KernelSearch(SolvedKernels(learned, target, np.ones(len(rows))), {}, [labels])


def measure(pairs):
    """Return the times of one size, in a line of Markdown."""
    search = draw_search(pairs)
    begun = time.process_time()
    search.choose([*CRITERIA.values()])
    seconds = time.process_time() - begun
    largest = 0.0
    computed = 0
    all_alone = [costs_alone(search, fold) for fold in search.folds]
    for chosen, costs in search._costs.items():
        computed += len(costs)
        for (at, criterion), cost in [*costs.items()][::7]:
            all_alone[at]._costs_of({chosen: {0: True}})
            expected = all_alone[at]._costs[chosen][0, criterion]
            largest = max(largest, abs(cost / expected - 1))
    kernels = len(search._costs)
    cells = (f"{len(search.folds)}", f"{kernels}", f"{computed:,}", f"{seconds:.2f}")
    per_kernel_ms = f"{1000 * seconds / kernels:.0f}"
    return f"| {pairs} | {' | '.join(cells)} | {per_kernel_ms} | {largest:.0e} |"


def main():
    """Measure tables of several sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[100, 300, 600])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| pairs | folds | kernels | costs computed | CPU s | ms per kernel | "
        "largest relative difference |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    with limit_blas(1):
        for pairs in given.pairs:
            lines.append(measure(pairs))
            print(lines[-1], flush=True)
    given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
