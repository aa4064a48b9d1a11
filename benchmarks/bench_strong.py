"""Measure how well strong binders are found by regime, and whether label weights help.

    python benchmarks/bench_strong.py TABLE --store STORE --out FOLDER [--top 0.1] [--rows N]
        [--draws SEED ...] [--head NAME ...] [--copies K ...] [--set NAME=VALUE ...]
    python benchmarks/bench_strong.py --tiny --out FOLDER            # seconds, on a CPU

A pair is strong if its label is in the ``--top`` share of the table. For each head and regime:
precision at recall 0.5 and 0.8 of out-of-fold pairs, ranked within each fold by p_strong and by the
prediction, and the mean p_strong beside the share that is strong, in bins. Ranks are of single folds,
because predictions of different folds do not compare; precision is the mean over folds.

``--copies K`` trains each strong pair of a training part K times in the models in closed form, which
is what label weights or stratified sampling of the old notebooks amount to. It is a patch of this
script, not an option of abag. ``--draws`` repeats all with other draws of the rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtr

import abag
import abag.head.fit as fitting
from abag.core.messages import reporting
from abag.head.data.demo import demo_table

RECALLS = (0.5, 0.8)
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
LEAST_STRONG = 3
"""Folds with fewer strong pairs are left out of the means."""


def precision_at(strong: np.ndarray, score: np.ndarray, recall: float) -> float:
    """Return the precision of the highest cut-off that reaches a recall; ties count as drawn."""
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(strong[order])
    needed = int(np.ceil(recall * strong.sum()))
    return float(needed / (np.searchsorted(hits, needed) + 1))


def weigh_strong(copies: int, threshold: float):
    """Return `training_rows` of abag with each strong pair `copies` times."""
    plain = fitting.training_rows

    def training_rows(trainings, split):
        found = plain(trainings, split)
        strong = found.pairs.pkd[found.rows] >= threshold
        times = np.where(strong, copies, 1)
        return type(found)(
            found.pairs, found.vectors, np.repeat(found.rows, times),
            np.repeat(found.fold, times), found.device,
        )  # fmt: skip

    return plain, training_rows


def fit(table: Path, store: Path, run: Path, head: str, copies: int, threshold: float, options):
    """Fit once; return the out-of-fold predictions."""
    plain, weighted = weigh_strong(copies, threshold)
    fitting.training_rows = weighted if copies > 1 else plain
    try:
        abag.fit(table, store, run, head=head, report=False, **options)
    finally:
        fitting.training_rows = plain
    return pd.read_parquet(run / "predictions.parquet")


def lines_of(found: pd.DataFrame, label: str, threshold: float) -> tuple[list[str], list[str]]:
    """Return the lines about ranking and about calibration, a line per regime."""
    ranking, calibration = [], []
    found = found[found["censored"] == 0]
    found = found.assign(
        strong=found["pkd"] >= threshold,
        p_strong=ndtr((found["pkd_predicted"] - threshold) / found["sigma"]),
    )
    for regime, rows in found.groupby("regime", sort=False):
        folds = [one for _, one in rows.groupby("fold") if one["strong"].sum() >= LEAST_STRONG]
        cells = []
        for score in ("p_strong", "pkd_predicted"):
            for recall in RECALLS:
                each = [
                    precision_at(one["strong"].to_numpy(), one[score].to_numpy(), recall)
                    for one in folds
                ]
                cells.append(f"{np.mean(each):.3f}" if each else "")
        error = np.sqrt(np.square(rows["pkd"] - rows["pkd_predicted"]).mean())
        of_strong = rows[rows["strong"]]
        bias = (of_strong["pkd_predicted"] - of_strong["pkd"]).mean()
        ranking.append(
            f"| {label} | {regime} | {len(rows)} | {rows['strong'].mean():.3f} | "
            f"{' | '.join(cells)} | {error:.3f} | {bias:+.2f} |"
        )
        bins = pd.cut(rows["p_strong"], BINS, include_lowest=True)
        shown = [
            f"{one['p_strong'].mean():.2f} / {one['strong'].mean():.2f} ({len(one)})"
            if len(one)
            else ""
            for _, one in rows.groupby(bins, observed=False)
        ]
        calibration.append(f"| {label} | {regime} | {' | '.join(shown)} |")
    return ranking, calibration


def main(argv: list[str] | None = None) -> None:
    """Fit every head and write strong.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--top", type=float, default=0.1)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--draws", nargs="+", type=int, default=[0], help="seeds of the draws")
    parser.add_argument("--head", nargs="+", default=["stack", "ridge", "kernel"])
    parser.add_argument("--copies", nargs="+", type=int, default=[1])
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(argv)
    options = {name: json.loads(x) for name, _, x in (one.partition("=") for one in given.set)}
    ranking, calibration = [], []
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, reporting(silent=True, bars=False):
        scratch = Path(folder)
        table, store = scratch / "table.csv", given.store or scratch / "store"
        if given.tiny:
            demo_table().head(200).to_csv(table, index=False)
            abag.embed_table(table, store, "composition", "composition")
            given.head, given.copies, options = ["ridge"], [1, 3], {"split": "random", "folds": 2}
        for draw in given.draws:
            if not given.tiny:
                whole = pd.read_csv(given.table)
                drawn = whole.sample(given.rows, random_state=draw) if given.rows else whole
                drawn.to_csv(table, index=False)
            for head in given.head:
                threshold = None
                for copies in given.copies:
                    run = scratch / f"{draw}-{head}-{copies}"
                    if threshold is None:  # from the labels that a first fit has read
                        found = fit(table, store, run, head, 1, np.inf, options)
                        exact = found.drop_duplicates("pair")
                        exact = exact[exact["censored"] == 0]
                        threshold = float(np.quantile(exact["pkd"], 1 - given.top))
                    if copies > 1:
                        found = fit(table, store, run, head, copies, threshold, options)
                    label = head if copies == 1 else f"{head}, strong x {copies}"
                    label += f", draw {draw}" * (len(given.draws) > 1)
                    more = lines_of(found, label, threshold)
                    ranking, calibration = ranking + more[0], calibration + more[1]
                    print(*more[0], sep="\n", flush=True)
        name = "demo" if given.tiny else given.table.name
        text = [
            f"# Strong binders, {datetime.now(UTC):%Y-%m-%d}", "",
            f"{name}: pKd of at least {threshold:.2f}, the top {given.top:.0%}.", "",
            "| head | regime | pairs | prevalence | precision at recall 0.5, p_strong | at 0.8 "
            "| at 0.5, prediction | at 0.8 | RMSE | mean error of strong |",
            "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|", *ranking, "",
            "Mean p_strong / share that is strong (pairs), in bins of p_strong:", "",
            "| head | regime | 0 to 0.1 | to 0.3 | to 0.5 | to 0.7 | to 1 |",
            "|---|---|---|---|---|---|---|", *calibration, "",
        ]  # fmt: skip
        (given.out / "strong.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
