"""Measure the size of a run's report and the time to write it.

    python benchmarks/bench_report.py --out FOLDER [--rows 160000] [--folds 20]
    python benchmarks/bench_report.py --tiny --out FOLDER               # seconds

Labels, predictions and vectors are random. Writes report.md, and the page of each case beside it.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from abag.embed.sequences.pairs import read_pairs
from abag.head.data.labels import label_pairs
from abag.head.model.config import FitConfig
from abag.head.report.chart_data import chart_data
from abag.head.report.report import write_report
from abag.head.report.results import PairNames, RunResults
from abag.head.runs.summary import score_models, split_facts
from abag.head.splits.splits import TEST, TRAIN, VALIDATION, Split

RESIDUES = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
WIDTHS = (1024, 1280)
"""Of the vectors of IgT5 and ESM-2 650M."""

SIGMA = {"noise": 1.0, "spread": 0.0, "calibrated": False, "coverage": {}, "coverage_folds": {}}
SIGMA["error_spearman"] = None


def make_results(rows, folds):
    """Draw a run; of one split a tenth of the pairs is tested, of several all."""
    rng = np.random.default_rng(0)
    antigens = ["".join(rng.choice(RESIDUES, 40)) for _ in range(max(2, rows // 50))]
    which = rng.integers(len(antigens), size=rows)
    frame = pd.DataFrame(
        {
            "id": [f"measurement {i}" for i in range(rows)],
            "heavy": ["".join(one) for one in rng.choice(RESIDUES, (rows, 30))],
            "antigen": [antigens[i] for i in which],
            "antigen_name": [f"antigen number {i}" for i in which],
            "pkd": rng.normal(8, 1, rows),
        }
    )
    pairs = label_pairs(read_pairs(frame))
    place, n = rng.permutation(len(pairs)) % max(folds, 10), len(pairs)
    splits = [
        Split(
            name="random",
            part=np.where(place == fold, TEST, np.where(place == fold + 1, VALIDATION, TRAIN)),
            group=np.arange(n),
            fold=fold,
            description={
                "split": "random",
                "why": "as requested",
                "test_pairs": n,
                "clusters": {},
                "leaks": {},
            },
        )
        for fold in range(folds)
    ]
    log = [
        {"fold": fold, "step": step, "epoch": step // 50, "loss": float(loss)}
        for fold in range(folds)
        for step, loss in enumerate(rng.random(2000))
    ]
    predicted = [pairs.pkd + rng.normal(0, 1, n) for _ in splits]
    return RunResults(
        title=f"{rows:,} rows, {folds} folds",
        facts=FitConfig().to_json() | {"store": "store", "pairs_digest": "0" * 32},
        source=pairs.table.source,
        pairs=pairs,
        names=PairNames.of(pairs),
        split=split_facts(splits),
        splits=splits,
        predicted=predicted,
        sigma=[rng.uniform(0.5, 1.5, n) for _ in splits],
        baselines=[{"train_mean": np.full(n, 8.0), "ridge": p + 0.1} for p in predicted],
        log=log,
        antibody_ND=rng.standard_normal((len(pairs.table.antibodies.chains), WIDTHS[0]), "f4"),
        antigen_ND=rng.standard_normal((len(antigens), WIDTHS[1]), "f4"),
    )


def measure(rows, folds, out):
    """Return the cells of one case: rows, folds, seconds of charts and of the page, size."""
    results = make_results(rows, folds)
    summary = score_models(results.pairs, results)
    summary |= {"run": "run", "used": {}, "sigma": SIGMA}
    start = time.perf_counter()
    chart_data(results)
    charts_s = time.perf_counter() - start
    path = out / f"report-{rows}-{folds}.html"
    start = time.perf_counter()
    write_report(path, results, summary)
    page_s = time.perf_counter() - start
    return f"{rows:,} | {folds} | {charts_s:.2f} | {page_s:.2f} | {path.stat().st_size / 1e6:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=160_000)
    parser.add_argument("--folds", type=int, default=20)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    small, large = (100, 200) if args.tiny else (1000, args.rows)
    cases = [(small, 1), (small, 2 if args.tiny else args.folds), (large, 1)]
    lines = [
        f"# Report of a run, CPU, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"`python {' '.join(sys.argv)}`; numpy {np.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}. Seconds to compute the numbers of the charts, and to write the "
        "whole page, comparisons with baselines that the summary has computed not included.",
        "",
        "| rows | folds | charts, s | page, s | size, MB |",
        "|---|---|---|---|---|",
        *(f"| {measure(*case, args.out)} |" for case in cases),
    ]
    (args.out / "report.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
