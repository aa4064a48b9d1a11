"""Time a ridge of 8 strengths by a factorisation per strength and by one reduction, on one core.

    taskset -c 0 python benchmarks/bench_ridge.py --out ridge.md

`again` is another vector of labels on the same rows, as in the rounds of censored labels. Times are
CPU milliseconds of one system of D columns.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from numpy.linalg import eigh

from abag.core.cores import limit_blas
from abag.head.models.ridge import STRENGTHS, Factorised, Tridiagonal


def cpu_ms(call, least_s):
    """Return the mean CPU time of a call that is repeated for `least_s`, after one to warm up."""
    call()
    begun = time.process_time()
    calls = 0
    while time.process_time() - begun < least_s:
        call()
        calls += 1
    return (time.process_time() - begun) / calls * 1000


def batched(matrix, target, shifts):
    """Solve with all shifts in one batch of factorisations."""
    several = matrix.expand(len(shifts), *matrix.shape).clone()
    several.diagonal(dim1=1, dim2=2).add_(torch.from_numpy(shifts)[:, None])
    targets = target[None, :, None].expand(len(shifts), -1, 1)
    return torch.cholesky_solve(targets, torch.linalg.cholesky(several))


def measure(columns, least_s):
    """Return the times of one matrix, in a line of Markdown."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * columns, columns)) * np.logspace(0, -3, columns)
    matrix = torch.from_numpy(x.T @ x)
    target = torch.from_numpy(x.T @ rng.normal(size=2 * columns))
    shifts = STRENGTHS * float(matrix.trace()) / columns
    plain = Factorised(matrix)
    reduced = Tridiagonal(matrix)
    expected = plain.solve(target, shifts)
    error = np.abs(reduced.solve(target, shifts) - expected).max() / np.abs(expected).max()
    ways = [
        lambda: plain.solve(target, shifts),
        lambda: batched(matrix, target, shifts),
        lambda: eigh(matrix.numpy()),
        lambda: Tridiagonal(matrix).solve(target, shifts),
        lambda: reduced.solve(target, shifts),
    ]
    cells = " | ".join(f"{cpu_ms(way, least_s):.2f}" for way in ways)
    return f"| {columns:,} | {cells} | {error:.0e} |"


def main():
    """Measure matrices of several sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, nargs="+", default=[20, 64, 256, 512, 1024, 1499])
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="of CPU time, for which each way is repeated"
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| columns | factorisation per strength | in one batch | eigenvectors | reduction | again | "
        "largest relative difference |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    with limit_blas(1):
        for columns in given.columns:
            lines.append(measure(columns, given.seconds))
            print(lines[-1], flush=True)
    given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
