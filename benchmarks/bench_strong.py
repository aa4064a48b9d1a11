"""Measure how well strong binders are found by regime, and whether label weights help.

    python benchmarks/bench_strong.py TABLE --store STORE --out FOLDER [--top 0.1] [--rows N]
        [--draws SEED ...] [--head NAME ...] [--copies K ...] [--set NAME=VALUE ...]
    python benchmarks/bench_strong.py --cutoffs FOLDER --out FOLDER [--draws SEED ...]
        [--sizes N ...] [--only TABLE ...] [--head OF_LIBRARIES OF_OTHERS]
    python benchmarks/bench_strong.py --tiny --out FOLDER            # seconds, on a CPU

A pair is strong if its label is in the ``--top`` share of the table. For each head and regime:
precision at recall 0.5 and 0.8 of out-of-fold pairs, ranked within each fold by p_strong and by the
prediction, and the mean p_strong beside the share that is strong, in bins. Ranks are of single folds,
because predictions of different folds do not compare; precision is the mean over folds.

``--copies K`` trains each strong pair of a training part K times in the models in closed form, which
is what label weights or stratified sampling of the old notebooks amount to. It is a patch of this
script, not an option of abag. ``--draws`` repeats all with other draws of the rows.

``--cutoffs`` fits random rows of the tables of a folder, of the demo and of planted laws, and compares
what a run promises of cut-offs with the other rows, which were held out before. Fits are kept in the
folder of results: a second run reads them. Strong are the top 10 and 25 % of the labels.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtr

import abag
import abag.head.fit as fitting
from abag.core.messages import reporting
from abag.head.demo import demo_table
from abag.head.evaluation.verdicts import score_strong

RECALLS = (0.5, 0.8)
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
NEW = 1_500
"""Rows at most that are held out where cut-offs are judged."""
LEAST_PICKED = 20
"""Held-out rows that a cut-off has to pick, so that it is judged."""
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
        trained = plain(trainings, split)
        strong = trained.pkd >= threshold
        times = np.where(strong, copies, 1)
        return type(trained)(
            trained.labels,
            trained.vectors,
            np.repeat(trained.rows, times),
            np.repeat(trained.fold, times),
            trained.device,
        )

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


def lines_of(predicted: pd.DataFrame, label: str, threshold: float) -> tuple[list[str], list[str]]:
    """Return the lines about ranking and about calibration, a line per regime."""
    ranking = []
    calibration = []
    predicted = predicted[predicted["censored"] == 0]
    predicted = predicted.assign(
        strong=predicted["pkd"] >= threshold,
        p_strong=ndtr((predicted["pkd_predicted"] - threshold) / predicted["sigma"]),
    )
    for regime, rows in predicted.groupby("regime", sort=False):
        folds = [fold for _, fold in rows.groupby("fold") if fold["strong"].sum() >= LEAST_STRONG]
        cells = []
        for score in ("p_strong", "pkd_predicted"):
            for recall in RECALLS:
                precisions = [
                    precision_at(fold["strong"].to_numpy(), fold[score].to_numpy(), recall)
                    for fold in folds
                ]
                cells.append(f"{np.mean(precisions):.3f}" if precisions else "")
        error = np.sqrt(np.square(rows["pkd"] - rows["pkd_predicted"]).mean())
        of_strong = rows[rows["strong"]]
        bias = (of_strong["pkd_predicted"] - of_strong["pkd"]).mean()
        ranking.append(
            f"| {label} | {regime} | {len(rows)} | {rows['strong'].mean():.3f} | "
            f"{' | '.join(cells)} | {error:.3f} | {bias:+.2f} |"
        )
        bins = pd.cut(rows["p_strong"], BINS, include_lowest=True)
        shown = []
        for _, in_bin in rows.groupby(bins, observed=False):
            if not len(in_bin):
                shown.append("")
                continue
            predicted_share = in_bin["p_strong"].mean()
            true_share = in_bin["strong"].mean()
            shown.append(f"{predicted_share:.2f} / {true_share:.2f} ({len(in_bin)})")
        calibration.append(f"| {label} | {regime} | {' | '.join(shown)} |")
    return ranking, calibration


def draws_of(folder: Path, scratch: Path, arguments: argparse.Namespace):
    """Yield the out-of-fold rows of a fit and rows that it never saw, both with predictions.

    Fits are kept in the folder of results, and read by a second run.
    """
    from bench_batches import make_libraries
    from outside_truth import COMPOSITION

    kept_in = arguments.out / "fits"
    kept_in.mkdir(exist_ok=True)
    for name, make in make_libraries(folder):
        if arguments.only and name not in arguments.only:
            continue
        frame = None
        for size, draw in itertools.product(arguments.sizes, arguments.draws):
            head = (
                arguments.head[0] if name not in ("hiv", "skempi", "demo") else arguments.head[-1]
            )
            kept = kept_in / f"{name}-{head}-{size}-{draw}.parquet"
            if not kept.exists():
                if frame is None:
                    frame = make()
                if len(frame) < 2 * size:
                    continue
                at = Path(tempfile.mkdtemp(dir=scratch))
                drawn = frame.iloc[np.random.default_rng(draw).permutation(len(frame))]
                drawn = drawn.iloc[: size + NEW].reset_index(drop=True)
                new = drawn.iloc[size:].reset_index(drop=True)
                abag.embed_table(drawn.drop(columns="pKd"), at / "store", **COMPOSITION)
                abag.fit(drawn.iloc[:size], at / "store", at / "run", head=head, report=False)
                out = at / "out.parquet"
                abag.predict(new.drop(columns="pKd"), at / "run", out, store=at / "store")
                columns = ["regime", "pkd", "pkd_predicted", "sigma"]
                predicted = pd.read_parquet(out).assign(pkd=new["pKd"])[[*columns, "far"]]
                tested = pd.read_parquet(at / "run" / "predictions.parquet")
                rows = pd.concat([tested.assign(is_new=False), predicted.assign(is_new=True)])
                rows.to_parquet(kept)
                shutil.rmtree(at)
            rows = pd.read_parquet(kept)
            is_new = rows["is_new"].to_numpy(bool)
            yield {"table": name, "size": size, "draw": draw}, rows[~is_new], rows[is_new]


def promises(folder: Path, scratch: Path, arguments: argparse.Namespace) -> pd.DataFrame:
    """Return what runs promise of cut-offs beside what is true of rows that they never saw."""
    lines = []
    for drawn, tested, new in draws_of(folder, scratch, arguments):
        labels = tested.drop_duplicates("pair")["pkd"]
        regimes = [{"regime": name, "words": name} for name in tested["regime"].unique()]
        for top in (0.1, 0.25):
            threshold = float(np.quantile(labels, 1 - top))
            for regime in score_strong(tested, regimes, threshold)["regimes"]:
                of_regime = new[new["regime"] == regime["regime"]]
                if len(of_regime) < 200 or regime["n"] < 30:
                    continue
                strong = of_regime["pkd"].to_numpy() >= threshold
                value = of_regime["pkd_predicted"].to_numpy()
                for cut in regime["cutoffs"]:
                    picked = value >= (np.inf if cut["cutoff"] is None else cut["cutoff"])
                    line = drawn | {"regime": regime["regime"], "top": top}
                    line |= {"wanted": cut["wanted"], "level": cut["level"]}
                    line |= {"promised": cut[cut["wanted"]], "picked": cut["picked"]}
                    line |= {"truly_picked": int(picked.sum())}
                    if picked.any() and strong.any():
                        of_these = (
                            strong[picked] if cut["wanted"] == "precision" else picked[strong]
                        )
                        line["true"] = of_these.mean()
                        line["noise"] = of_these.var() / len(of_these)  # of the truth itself
                    low, high = cut.get("interval") or (None, None)
                    lines.append(line | {"low": low, "high": high})
    return pd.DataFrame(lines)


def show_promises(frame: pd.DataFrame) -> None:
    """Print promises beside the truth, by what was wanted, by size and by table.

    Errors are root mean squares without the noise of the truth, which is a share of few rows.
    """
    numbers = ["promised", "true", "noise", "low", "high"]
    frame = frame.astype(dict.fromkeys(numbers, float))
    frame = frame.assign(error=frame["promised"] - frame["true"])
    frame = frame.assign(
        square=np.square(frame["error"]) - frame["noise"],
        held=(frame["low"] <= frame["true"]) & (frame["true"] <= frame["high"]),
        width=frame["high"] - frame["low"],
        is_given=frame["promised"].notna(),
    )
    # of few picked rows, the truth is not known either
    both = frame[frame["error"].notna() & (frame["truly_picked"] >= LEAST_PICKED)]
    for more in ([], ["size"], ["table"]):
        by = ["wanted", "level", *more]
        means = both.groupby(by)[["promised", "true", "error", "square", "held", "width"]].mean()
        means["square"] = np.sqrt(means["square"].clip(lower=0))
        means = means.rename(columns={"error": "bias", "square": "error"})
        means = means.assign(
            cutoffs=both.groupby(by).size(), given=frame.groupby(by)["is_given"].mean()
        )
        print(means.round(3).to_string(), end="\n\n")


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
    parser.add_argument("--cutoffs", type=Path, help="folder of tables")
    parser.add_argument("--sizes", nargs="+", type=int, default=[60, 120, 300, 1000])
    parser.add_argument("--only", nargs="+", default=[], help="tables of --cutoffs")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args(argv)
    options = {}
    for setting in arguments.set:
        name, _, value = setting.partition("=")
        options[name] = json.loads(value)
    ranking = []
    calibration = []
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, reporting(silent=True, bars=False):
        scratch = Path(folder)
        if arguments.cutoffs is not None:
            frame = promises(arguments.cutoffs, scratch, arguments)
            show_promises(frame)
            frame.to_csv(arguments.out / "cutoffs.csv", index=False)
            return
        table = scratch / "table.csv"
        store = arguments.store or scratch / "store"
        if arguments.tiny:
            demo_table().head(200).to_csv(table, index=False)
            abag.embed_table(table, store, "composition", "composition")
            arguments.head = ["ridge"]
            arguments.copies = [1, 3]
            options = {"split": "random", "folds": 2}
        for draw in arguments.draws:
            if not arguments.tiny:
                whole = pd.read_csv(arguments.table)
                drawn = whole.sample(arguments.rows, random_state=draw) if arguments.rows else whole
                drawn.to_csv(table, index=False)
            for head in arguments.head:
                threshold = None
                for copies in arguments.copies:
                    run = scratch / f"{draw}-{head}-{copies}"
                    if threshold is None:  # from the labels that a first fit has read
                        predictions = fit(table, store, run, head, 1, np.inf, options)
                        exact = predictions.drop_duplicates("pair")
                        exact = exact[exact["censored"] == 0]
                        threshold = float(np.quantile(exact["pkd"], 1 - arguments.top))
                    if copies > 1:
                        predictions = fit(table, store, run, head, copies, threshold, options)
                    label = head if copies == 1 else f"{head}, strong x {copies}"
                    label += f", draw {draw}" * (len(arguments.draws) > 1)
                    more = lines_of(predictions, label, threshold)
                    ranking = ranking + more[0]
                    calibration = calibration + more[1]
                    print(*more[0], sep="\n", flush=True)
        name = "demo" if arguments.tiny else arguments.table.name
        text = [
            f"# Strong binders, {datetime.now(UTC):%Y-%m-%d}",
            "",
            f"{name}: pKd of at least {threshold:.2f}, the top {arguments.top:.0%}.",
            "",
            "| head | regime | pairs | prevalence | precision at recall 0.5, p_strong | at 0.8 "
            "| at 0.5, prediction | at 0.8 | RMSE | mean error of strong |",
            "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
            *ranking,
            "",
            "Mean p_strong / share that is strong (pairs), in bins of p_strong:",
            "",
            "| head | regime | 0 to 0.1 | to 0.3 | to 0.5 | to 0.7 | to 1 |",
            "|---|---|---|---|---|---|---|",
            *calibration,
            "",
        ]
        (arguments.out / "strong.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
