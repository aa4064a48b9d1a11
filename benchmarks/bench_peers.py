"""`abag fit` beside regressors of scikit-learn on the same rows of any table of numbers.

Random rows are kept, others held out before abag and the regressors see them. The regressors read
one-hot columns of the residues that vary where all chains of a column are as long, otherwise shares
of residues and the length: ridge (strength by leave-one-out), a forest of 500 trees, a Gaussian process (a
smooth kernel and noise, fitted by likelihood), and the mean of the labels. abag has its default options, on
residue compositions. RMSE is in standard deviations of the held-out labels. `coverage` is the share of the
rows in abag's 90 % intervals.

    python benchmarks/bench_peers.py FILE --heavy NAME [--light NAME] [--antigen NAME] \
        --label NAME [--log] --rows 60 120 250 500 --out lines.jsonl [--seeds 3] [--cores 16]
    python benchmarks/bench_peers.py summary --out lines.jsonl
    python benchmarks/bench_peers.py tiny      60 rows of the demo table, a ridge

One thread per core; lines of a file that was written before are added to.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pandas as pd
from bench_binary import LETTERS, composition, one_hot
from outside_truth import COMPOSITION
from scipy.stats import spearmanr
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV

import abag
from abag.core.messages import reporting
from abag.head.demo import demo_table

MEASURED = "measured"
HELD_OUT = 1500
LEAST_HELD_OUT = 40
MOST_OF_PROCESS = 600
"""Rows above which the process, which takes minutes, is left out."""


def read(path, names, label, log):
    """Return the chains of a table by role and its label; rows that have both, no pair twice."""
    frame = pd.read_csv(path, comment="#")
    frame = frame[[*names.values(), label]].dropna().drop_duplicates([*names.values()])
    frame = frame.rename(columns={name: role for role, name in names.items()})
    value = pd.to_numeric(frame.pop(label), errors="coerce")
    usable = value.notna() & (value > 0 if log else True)
    for role in names:
        frame[role] = frame[role].str.strip()
        usable &= frame[role].str.fullmatch(f"[{''.join(LETTERS)}]+")
    value = value[usable].to_numpy(float)
    return frame[usable].reset_index(drop=True), np.log10(value) if log else value


def peers(x_ND, y, kept, held_out, *, trees=500, restarts=1):
    """Return the predictions of each regressor for the held-out rows, by name."""
    mean, spread = y[kept].mean(), y[kept].std() or 1.0
    z = (y[kept] - mean) / spread
    models = {
        "ridge": RidgeCV(np.logspace(-2, 4, 19)),
        "forest": RandomForestRegressor(trees, min_samples_leaf=2, random_state=0),
    }
    if len(kept) <= MOST_OF_PROCESS:
        width = float(np.sqrt(2 * x_ND[kept].var(axis=0).sum()))
        kernel = ConstantKernel(1.0) * RBF(width) + WhiteKernel(0.5)
        models["process"] = GaussianProcessRegressor(
            kernel, n_restarts_optimizer=restarts, random_state=0
        )
    found = {"mean": np.full(len(held_out), mean)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, model in models.items():
            found[name] = model.fit(x_ND[kept], z).predict(x_ND[held_out]) * spread + mean
    return found


def scores(y, predicted):
    """Score predictions of held-out rows."""
    rmse = float(np.sqrt(np.mean((predicted - y) ** 2)) / y.std())
    rank = float(spearmanr(predicted, y)[0]) if np.ptp(predicted) > 0 else 0.0
    return {"rmse": rmse, "spearman": rank}


def measure(frame, y, rows, seed, options):
    """Return a line for each model, given so many random rows."""
    order = np.random.default_rng(seed).permutation(len(y))
    kept = order[:rows]
    held_out = order[rows : rows + HELD_OUT]
    blocks = []
    for role in frame:
        has_one_length = frame[role].str.len().nunique() == 1
        blocks.append((one_hot if has_one_length else lambda c: composition(c[0]))([frame[role]]))
    lines = []
    for name, predicted in peers(np.hstack(blocks), y, kept, held_out).items():
        lines.append({"model": name, **scores(y[held_out], predicted)})
    encoders = dict(COMPOSITION)
    if "antigen" not in frame:
        encoders.pop("antigen_encoder")
        options = {**options, "no_antigen": True}
    with tempfile.TemporaryDirectory() as at, reporting(silent=True, bars=False):
        folder = Path(at)
        os.environ["XDG_CACHE_HOME"] = f"{at}/cache"
        both = frame.iloc[np.concatenate([kept, held_out])].reset_index(drop=True)
        without = {"no_antigen": True} if "antigen" not in frame else {}
        abag.embed_table(both, folder / "store", **encoders, **without)
        table = both.iloc[:rows].assign(**{MEASURED: y[kept]})
        started = time.perf_counter()
        summary = abag.fit(
            table, folder / "store", folder / "run", report=False, columns={"label": MEASURED},
            label="value", better="higher", **options,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        new = both.iloc[rows:].reset_index(drop=True)
        out = folder / "out.parquet"
        abag.predict(new, folder / "run", out, store=folder / "store")
        result = pd.read_parquet(out)
    predicted = result["predicted"].to_numpy()
    inside = np.abs(y[held_out] - predicted) <= 1.6448536 * result["sigma"].to_numpy()
    regimes = {
        regime["regime"]: round(regime["rmse"] / y.std(), 3) for regime in summary["regimes"]
    }
    lines.append(
        {
            "model": "abag", **scores(y[held_out], predicted), "coverage": float(inside.mean()),
            "promised": regimes, "regimes": result["regime"].value_counts().to_dict(),
            "weights": {r["regime"]: r.get("weights") for r in summary["regimes"]},
            "seconds": round(seconds, 1),
        }
    )  # fmt: skip
    return [{"rows": rows, "seed": seed, **line} for line in lines]


def show(frame):
    """Print abag's error over that of the best regressor and of each, by table and rows."""
    at = ["what", "rows"]
    for score in ("rmse", "spearman"):
        print(frame.pivot_table(score, at, "model", sort=False).round(3).to_string(), "\n")
    abag_lines = frame[frame["model"] == "abag"]
    print(abag_lines.groupby(at, sort=False)["coverage"].mean().round(3).to_string(), "\n")
    means = frame.pivot_table("rmse", at, "model", sort=False)
    best = means.drop(columns="abag").min(axis=1)
    ratio = means["abag"] / best
    print(
        ratio.round(3).to_string(), f"\nmean of all {ratio.mean():.3f}, largest {ratio.max():.3f}"
    )


def main():
    """Measure a table, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--heavy")
    parser.add_argument("--light")
    parser.add_argument("--antigen")
    parser.add_argument("--label")
    parser.add_argument("--log", action="store_true", help="use the decadic logarithm of the label")
    parser.add_argument("--rows", type=int, nargs="+", default=[60, 120, 250, 500])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--head", help="of abag; by default its own choice")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.file == "summary":
        return show(pd.read_json(given.out, lines=True))
    roles = {role: getattr(given, role) for role in ("heavy", "light", "antigen")}
    names = {role: name for role, name in roles.items() if name}
    options = {} if given.head is None else {"head": given.head}
    if given.file == "tiny":
        demo = demo_table()
        columns = demo[["heavy", "antigen"]]
        lines = measure(columns, demo["pKd"].to_numpy(), 60, 0, {"head": "ridge"})
        return show(pd.DataFrame(lines).assign(what="demo"))
    frame, y = read(given.file, names, given.label, given.log)
    what = f"{Path(given.file).stem} {given.label}"
    with ProcessPoolExecutor(given.cores) as pool, given.out.open("a") as out:
        tasks = []
        for rows in sorted(given.rows, reverse=True):
            if rows + LEAST_HELD_OUT <= len(y):
                for seed in range(given.first_seed, given.first_seed + given.seeds):
                    tasks.append(pool.submit(measure, frame, y, rows, seed, options))
        for task in as_completed(tasks):
            for line in task.result():
                out.write(json.dumps({"what": what, **line}) + "\n")
                out.flush()
    return None


if __name__ == "__main__":
    main()
