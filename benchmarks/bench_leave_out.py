"""Leave whole families or antigens out of a table, and see whether sigma covers them.

    python benchmarks/bench_leave_out.py TABLE --store STORE --out FOLDER [--kind antibody|antigen]
        [--groups N] [--rows N] [--least N] [--head NAME] [--seed N] [--set NAME=VALUE ...]
    python benchmarks/bench_leave_out.py --tiny --out FOLDER         # a minute, on a CPU

For each of N clusters of antibodies, or of antigens, with at least ``--least`` pairs: fit the pairs
of all others with the default options, predict the pairs of the cluster with the predictor, and
compare with the labels in the regime that the predictor says. Printed for each cluster and regime:
pairs, the share of labels within their 90 % intervals, RMSE of the predictions and of the training
mean, and what the fit itself had measured for that regime. The last lines join all clusters, and
give the mean coverage if each cluster counts once.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtri

import abag
from abag.core.messages import reporting
from abag.embed.tables.options import TableOptions
from abag.head.demo import demo_table
from abag.head.labels.labelled_pairs import read_labelled_pairs
from abag.head.labels.options import LabelOptions, SplitOptions
from abag.head.regimes.splits import PairGroups

COVERED = float(ndtri(0.95))
HEAD = (
    "| left out | regime | pairs | coverage | RMSE | RMSE of mean | measured coverage | RMSE |\n"
    "|---|---|--:|--:|--:|--:|--:|--:|"
)


def clusters_of(table: Path, kind: str) -> pd.Series:
    """Return the cluster of each row of a table, by its number from 0; unread rows are missing."""
    pairs = read_labelled_pairs(table, TableOptions(bad_rows="skip"), LabelOptions(bad_rows="skip"))
    of_pair = PairGroups(pairs, SplitOptions(), is_cached=False).of_method(kind)
    of_sequence = np.full(len(pairs.table.sequences[kind].keys), -1)
    of_sequence[pairs.index(kind)] = of_pair
    cluster_of_row = of_sequence[pairs.table.sequences[kind].of_row]
    return pd.Series(cluster_of_row, pairs.table.row_numbers - pairs.table.first_row)


def leave_out(frame: pd.DataFrame, is_out: np.ndarray, store: Path, options: dict, at: Path):
    """Fit the other rows, and predict those that are left out; return scores and the summary."""
    train = at / "train.csv"
    test = at / "test.csv"
    frame[~is_out].to_csv(train, index=False)
    frame[is_out].to_csv(test, index=False)
    summary = abag.fit(train, store, at / "run", report=False, **options)
    abag.predict(test, at / "run", at / "scores.parquet", store=store, bad_rows="skip")
    scores = pd.read_parquet(at / "scores.parquet")
    labelled = read_labelled_pairs(
        test, TableOptions(bad_rows="skip"), LabelOptions(bad_rows="skip", replicates="first")
    )
    exact = labelled.censored == 0
    row = labelled.row[exact]
    kept = scores.iloc[row].assign(label=labelled.pkd[exact])
    mean = pd.read_parquet(at / "run" / "pairs.parquet").query("censored == 0")["pkd"].mean()
    return kept.assign(mean=mean), {regime["regime"]: regime for regime in summary["regimes"]}


def describe(name: str, rows: pd.DataFrame, measured: dict | None) -> str:
    """Return one line of the table."""
    error = rows["label"] - rows["pkd_predicted"]
    covered = (error.abs() <= COVERED * rows["sigma"]).mean()
    rmse, of_mean = (
        np.sqrt(np.square(errors).mean()) for errors in (error, rows["label"] - rows["mean"])
    )
    measured_cells = "| | |"
    if measured is not None:
        measured_cells = f"| {measured['coverage']:.0%} | {measured['rmse']:.2f} |"
    regime = rows["regime"].iloc[0]
    far = f", {rows['far'].mean():.0%} far" if rows["far"].any() else ""
    numbers = f"{len(rows)} | {covered:.0%} | {rmse:.2f} | {of_mean:.2f}"
    return f"| {name} | {regime}{far} | {numbers} {measured_cells}"


def main(argv: list[str] | None = None) -> None:
    """Leave out one cluster after the other, and write leave_out.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=["antibody", "antigen"], default="antibody")
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--least", type=int, default=20)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--head")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args(argv)
    options = {}
    for setting in arguments.set:
        name, _, value = setting.partition("=")
        options[name] = json.loads(value)
    if arguments.head is not None:
        options["head"] = arguments.head
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines = [HEAD]
    predictions = []
    with tempfile.TemporaryDirectory() as folder, reporting(silent=True, bars=False):
        scratch = Path(folder)
        table = scratch / "table.csv"
        store = arguments.store or scratch / "store"
        if arguments.tiny:
            frame = demo_table().head(300)
            abag.embed_table(frame, store, "composition", "composition")
            arguments.groups = 2
            options = {"head": "ridge"}
            arguments.kind = "antigen"
            arguments.least = 5
        else:
            frame = pd.read_csv(arguments.table)
            if arguments.rows:
                frame = frame.sample(arguments.rows, random_state=arguments.seed)
        frame = frame.reset_index(drop=True)
        frame.to_csv(table, index=False)
        cluster = clusters_of(table, arguments.kind).reindex(range(len(frame)), fill_value=-1)
        sizes = cluster[cluster >= 0].value_counts()
        sizes = sizes[(sizes >= arguments.least) & (sizes <= len(frame) / 2)]
        drawn = sizes.sample(min(arguments.groups, len(sizes)), random_state=arguments.seed)
        print(HEAD, flush=True)
        for number in drawn.index.tolist():
            at = scratch / f"{number}"
            at.mkdir()
            rows, measured = leave_out(frame, (cluster == number).to_numpy(), store, options, at)
            predictions.append(rows.assign(cluster=number))
            for regime, regime_rows in rows.groupby("regime", sort=False):
                lines.append(
                    describe(
                        f"{arguments.kind} cluster {number}", regime_rows, measured.get(regime)
                    )
                )
                print(lines[-1], flush=True)
        for _, regime_rows in pd.concat(predictions).groupby("regime", sort=False):
            inside = (
                regime_rows["label"] - regime_rows["pkd_predicted"]
            ).abs() <= COVERED * regime_rows["sigma"]
            once = inside.groupby(regime_rows["cluster"]).mean().mean()
            lines.append(
                describe(f"all {len(predictions)}, once each {once:.0%}", regime_rows, None)
            )
            print(lines[-1], flush=True)
    text = [f"# {arguments.kind.capitalize()} clusters left out", "", *lines, ""]
    (arguments.out / "leave_out.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
