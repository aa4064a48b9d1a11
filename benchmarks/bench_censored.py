"""Measure what censored labels do to predictions, on a table whose hidden labels are known.

    python benchmarks/bench_censored.py --out FOLDER [--pairs 600] [--seeds 3] [--splits random]
        [--head stack]

The labels of the demo's table follow a planted rule with noise; the lowest `BELOW` of them lie below
a detection limit. The same pairs and folds are fitted with all labels, with the limit in place of the
labels below it, with these rows marked as censored, and with ``--floor censor``. Each pair is
predicted by the fold that does not train on it, and compared with its hidden label. Writes
censored.md.
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
import torch
from scipy.special import ndtri

import abag
from abag.head.demo import demo_table

BELOW = 0.4
FOLDS = 3


def make_tables(pairs, seed):
    """Return the table of each variant, and the hidden label of each row."""
    table = demo_table(seed).drop_duplicates(["heavy", "light", "antigen"]).head(pairs)
    hidden = table["pKd"].to_numpy()
    limit = round(float(np.quantile(hidden, BELOW)), 2)
    below = hidden < limit
    floored = table.assign(pKd=np.maximum(hidden, limit))
    marked = floored.assign(censored=np.where(below, ">", ""))
    tables = {
        "all labels known": (table, {}),
        "limit as label": (floored, {}),
        "marked censored": (marked, {}),
        "--floor censor": (floored, {"floor": "censor"}),
    }
    return tables, hidden, below


def held_out(run, rows):
    """Return prediction and sigma of each row of the table from the fold that tests it, (R, 2)."""
    tested = pd.read_parquet(run / "predictions.parquet").set_index("pair")
    return tested.loc[np.arange(rows), ["pkd_predicted", "sigma"]].to_numpy()


def scores(predicted, sigma, hidden):
    """Return RMSE, bias and coverage of the 90 % intervals."""
    error = predicted - hidden
    covered = np.abs(error) <= ndtri(0.95) * sigma
    return np.sqrt(np.mean(error**2)), error.mean(), covered.mean()


def measure(out, pairs, seed, split, head):
    """Fit all variants of one table; return their scores over all rows and below the limit."""
    tables, hidden, below = make_tables(pairs, seed)
    results = {}
    for number, (name, (table, options)) in enumerate(tables.items()):
        folder = out / f"{split}-{seed}-{number}"
        start = time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / "pairs.csv", index=False)
        encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
        abag.embed_table(folder / "pairs.csv", out / "store", **encoders)
        summary = abag.fit(
            folder / "pairs.csv",
            out / "store",
            folder / "run",
            split=split,
            folds=FOLDS,
            head=head,
            device="cpu",
            **encoders,
            **options,
        )
        predicted, sigma = held_out(folder / "run", len(table)).T
        results[name] = [
            *scores(predicted, sigma, hidden),
            *scores(predicted[below], sigma[below], hidden[below]),
            summary["regimes"][0]["metrics"]["head"].get("beyond_bound"),
            time.perf_counter() - start,
        ]
        print(f"{split} {seed} {name}", results[name], flush=True)
    return results


def main(arguments=None):
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--splits", default="random")
    parser.add_argument("--head", default="stack")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    lines = [
        f"# Censored labels, {datetime.now(UTC).date()}",
        "",
        f"`python benchmarks/bench_censored.py {' '.join(arguments or sys.argv[1:])}`; "
        f"{a.pairs} pairs, {BELOW:.0%} below the limit, mean of {a.seeds} tables, {FOLDS} folds; "
        f"numpy {np.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}.",
    ]
    for split in a.splits.split(","):
        runs = [measure(a.out, a.pairs, seed, split, a.head) for seed in range(a.seeds)]
        lines += [
            "",
            f"| {split} folds | RMSE | bias | 90 % covers | RMSE below | bias below | 90 % covers "
            "below | beyond bound | s per fit |",
            "|" + "---|" * 9,
        ]
        for name in runs[0]:
            means = np.array([run[name] for run in runs], np.float64).mean(axis=0)
            kinds = (".3f", "+.3f", ".0%", ".3f", "+.3f", ".0%", ".0%", ".1f")
            cells = ["-" if np.isnan(x) else f"{x:{k}}" for x, k in zip(means, kinds, strict=True)]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    (a.out / "censored.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
