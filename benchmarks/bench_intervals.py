"""Measure how often intervals of the difference between equally good models exclude 0.

    python benchmarks/bench_intervals.py --out FOLDER [--draws 1500] [--workers N]
    python benchmarks/bench_intervals.py --tiny --out FOLDER               # seconds

Errors of a model have a part that is shared within a cluster of antigens and a part of each pair;
half of the variance of both is common to all models. The nominal error is 5 %. Writes intervals.md.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from abag.head.evaluation.comparison import compare, widening
from abag.head.evaluation.metrics import rmse
from abag.head.splits.splits import TEST, Split

CLUSTERS = (5, 8, 14, 30)
SIZES = {"20 rows each": (20, 20), "5 to 80 rows": (5, 80)}
MODELS = 9
"""The head and eight baselines."""


def draw_models(cluster, rng):
    """Draw the errors of equally good models, one row per model."""
    shared = rng.normal(size=cluster.max() + 1)[cluster] + rng.normal(size=len(cluster))
    own = rng.normal(size=(MODELS, cluster.max() + 1))[:, cluster]
    return (shared + own + rng.normal(size=(MODELS, len(cluster)))) / np.sqrt(2)


def excludes_0(found, factor=1.0):
    """Whether an interval that is `factor` times as wide excludes 0."""
    low, high = (
        found.difference + factor * (e - found.difference) for e in (found.low, found.high)
    )
    return low > 0 or high < 0


def simulate(clusters, sizes, seed):
    """Compare equally good models once; what was claimed of them."""
    rng = np.random.default_rng([seed, clusters])
    low, high = sizes
    rows = np.exp(rng.uniform(np.log(low), np.log(high + 1e-9), clusters)).round().astype(int)
    cluster = np.repeat(np.arange(clusters), rows)
    test, validation = draw_models(cluster, rng), draw_models(cluster, rng)
    pairs = SimpleNamespace(
        pkd=np.zeros(len(cluster)),
        censored=np.zeros(len(cluster), np.int8),
        antigen=cluster,
        antigen_cluster=cluster,
        antibody_cluster=None,
    )

    def against(model, group):
        part = np.full(len(cluster), TEST, np.int8)
        split = Split(name="drawn", part=part, group=group)
        return compare(pairs, [split], [test[0]], [test[model]], "rmse", seed=seed)

    def strongest(errors):
        return 1 + int(np.argmin([rmse(pairs.pkd, one) for one in errors[1:]]))

    by_cluster, by_pair = against(1, cluster), against(1, np.arange(len(cluster)))
    on_test, on_validation = (against(strongest(e), cluster) for e in (test, validation))
    return {
        "not widened": excludes_0(by_cluster, 1 / widening(clusters)),
        "widened": excludes_0(by_cluster),
        "pairs drawn": excludes_0(by_pair),
        "pairs and clusters drawn": excludes_0(by_pair) and excludes_0(by_pair.by_antigen),
        "worse than the strongest on test": on_test.low > 0,
        "worse than the strongest on validation": on_validation.low > 0,
    }


def measure(clusters, sizes, draws):
    """Share of the draws in which each procedure claimed a difference."""
    found = [simulate(clusters, SIZES[sizes], seed) for seed in range(draws)]
    shares = {name: np.mean([one[name] for one in found]) for name in found[0]}
    return {"clusters": clusters, "sizes": sizes} | {n: f"{s:.1%}" for n, s in shares.items()}


def main(arguments=None):
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1500)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    draws, start = 10 if a.tiny else a.draws, time.perf_counter()
    asked = [(n, sizes) for sizes in SIZES for n in CLUSTERS]
    with ProcessPoolExecutor(a.workers) as pool:
        pending = [pool.submit(measure, n, sizes, draws) for n, sizes in asked]
        rows = [done.result() for done in pending]
    lines = [
        f"# Intervals between equally good models, CPU, {datetime.now(UTC).date()}",
        "",
        f"`python benchmarks/bench_intervals.py {' '.join(arguments or sys.argv[1:])}`; "
        f"numpy {np.__version__}, Python {platform.python_version()}, {platform.machine()}; "
        f"{time.perf_counter() - start:.0f} s.",
        f"Share of {draws:,} draws in which a difference in RMSE was claimed: two-sided for the first "
        "four columns (nominal 5 %), only against the head for the last two (nominal 2.5 %).",
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|" + "---|" * len(rows[0]),
        *("| " + " | ".join(map(str, row.values())) + " |" for row in rows),
    ]
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "intervals.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
