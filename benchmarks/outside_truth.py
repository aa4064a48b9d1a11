"""What `abag fit` promises beside what is true of rows that abag never saw.

Each table of a folder is divided by pandas: rows, antibodies, antigens, or variants with more
mutations are held out. abag fits the rest with its defaults and predicts the held-out rows, and
numpy and scipy score the file that it wrote. A line is printed for each regime that the held-out
rows are in: the promised RMSE, its 95 % interval and coverage, and the true ones. `log_score` is the
mean of log sigma + (error / sigma)^2 / 2, of which less is better; `low_tenth` and `high_tenth` are the
RMSE in units of sigma of the rows with the smallest and the largest sigma.

    python benchmarks/outside_truth.py FOLDER --out truth.jsonl [--seeds 3] [--only hiv rbd]
    python benchmarks/outside_truth.py --demo --out truth.jsonl       the table of `abag demo`
    python benchmarks/outside_truth.py --planted --out truth.jsonl    complexes, one of them scanned
    python benchmarks/outside_truth.py --means --out truth.jsonl      of what was written before

FOLDER has tables as `TABLES` names them; those that are absent are left out. Vectors are residue
compositions, which need no download.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

import abag
from abag.core.messages import reporting
from abag.head.demo import demo_table

TABLES = {
    "hiv": "hiv_ic50_seen.csv.gz",
    "her2": "alphabind_her2.csv.gz",
    "rbd": "rbd_escape.csv.gz",
    "skempi": "skempi_measurements.csv",
}
COMPOSITION = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
Z_90 = 1.6448536269514722


def read(path):
    """Read a table; antibodies and antigens get names for dividing by them."""
    frame = pd.read_csv(path)
    antibody = [name for name in ("antibody_heavy", "heavy", "antibody") if name in frame]
    light = [name for name in ("antibody_light", "light") if name in frame]
    chains = frame[[*antibody[:1], *light[:1]]].fillna("").agg("|".join, axis=1)
    label = next(name for name in ("pKd", "pIC50") if name in frame)
    truth = {"truth": frame[label], "antibody_of_row": pd.factorize(chains)[0]}
    truth["antigen_of_row"] = pd.factorize(frame["antigen"])[0]
    if "censored" in frame:
        truth["is_bound"] = frame["censored"].fillna("").astype(str).str.contains("[<>]")
    frame = frame.drop(columns=[name for name in ("ic50_ug_per_ml",) if name in frame])
    return frame, pd.DataFrame(truth), label


def hold_out(truth, column, number, rng):
    """Return which rows have one of so many random values of a column."""
    values = truth[column].unique()
    chosen = rng.choice(values, min(number, len(values) - 1), replace=False)
    return truth[column].isin(chosen).to_numpy()


def random_rows(kept):
    """Keep so many random rows, and hold out at most 10,000 others."""

    def divide(frame, truth, rng):
        order = rng.permutation(len(frame))
        return np.isin(np.arange(len(frame)), order[kept : kept + 10_000]), order[:kept]

    return divide


def of_column(column, number):
    """Hold out all rows of so many antibodies or antigens."""

    def divide(frame, truth, rng):
        is_out = hold_out(truth, column, number, rng)
        return is_out, np.flatnonzero(~is_out)

    return divide


def more_mutations(kept):
    """Keep so many variants with at most the median number of mutations; hold out the others."""

    def divide(frame, truth, rng):
        heavy = frame["antibody_heavy" if "antibody_heavy" in frame else "heavy"]
        length = heavy.str.len().mode()[0]
        letters = np.array([list(text) for text in heavy[heavy.str.len() == length]])
        parent = pd.DataFrame(letters).mode().iloc[0].to_numpy()
        count = np.full(len(frame), 99)
        count[heavy.str.len() == length] = (letters != parent).sum(axis=1)
        few = rng.permutation(np.flatnonzero(count <= np.median(count[count < 99])))
        return count > np.median(count[count < 99]) + 2, few[:kept]

    return divide


def new_sites(number, kept):
    """Hold out the antigens that are mutated at some of the sites; ``genotype`` says which are."""

    def divide(frame, truth, rng):
        sites = np.array([list(text.lstrip("g")) for text in frame["genotype"]]) == "1"
        chosen = rng.choice(sites.shape[1], number, replace=False)
        is_out = sites[:, chosen].any(axis=1)
        return is_out, rng.permutation(np.flatnonzero(~is_out))[:kept]

    return divide


RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
PLANTED = ((0.2, 1.2), (1.2, 0.2), (0.7, 0.7))
"""Standard deviations of the effects of mutations of antibodies and antigens."""
COMPLEXES = 14
"""Complexes of unrelated antibodies and antigens in the planted table."""


def planted_table(seed, of_antibodies, of_antigens):
    """Plant variants of complexes, the pairs of all of whose variants are measured for one only.

    Each mutation of an antibody or antigen changes the affinity by its own effect, of which the
    standard deviations are given. Known sequences in new pairs are nearly all of one complex, so
    that folds do not measure them.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(COMPLEXES):
        parents = ["".join(rng.choice(RESIDUES, length)) for length in (110, 140)]
        level = rng.normal(8, 0.7)
        variants = []
        for parent, spread in zip(parents, (of_antibodies, of_antigens), strict=True):
            of_side = [(parent, 0.0)]
            for site in rng.choice(len(parent), 12, replace=False):
                letter = rng.choice([letter for letter in RESIDUES if letter != parent[site]])
                of_side.append((parent[:site] + letter + parent[site + 1 :], rng.normal(0, spread)))
            variants.append(of_side)
        antibodies, antigens = variants
        cells = [(antibody, antigens[0]) for antibody in antibodies]
        cells += [(antibodies[0], antigen) for antigen in antigens[1:]]
        if number == 0:
            cells = [(antibody, antigen) for antibody in antibodies for antigen in antigens]
        for (heavy, by_antibody), (antigen, by_antigen) in cells:
            pkd = level + by_antibody + by_antigen + rng.normal(0, 0.3)
            rows.append({"heavy": heavy, "antigen": antigen, "pKd": round(pkd, 3)})
    return pd.DataFrame(rows)


CASES = {
    "planted": {"random": random_rows(350)},
    "hiv": {
        "40 antibodies": of_column("antibody_of_row", 40),
        "8 antibodies": of_column("antibody_of_row", 8),
        "100 antigens": of_column("antigen_of_row", 100),
    },
    "her2": {"random": random_rows(1000), "more mutations": more_mutations(1000)},
    "rbd": {"random": random_rows(2000), "two sites": new_sites(2, 2000)},
    "skempi": {
        "random": random_rows(700),
        "40 antigens": of_column("antigen_of_row", 40),
        "60 antibodies": of_column("antibody_of_row", 60),
    },
    "demo": {"random": random_rows(100), "8 antibodies": of_column("antibody_of_row", 8)},
}


def ranks(predicted, measured):
    """Return Spearman's correlation; None if it is not defined."""
    if len(measured) < 3 or predicted.nunique() < 2 or measured.nunique() < 2:
        return None
    return float(spearmanr(predicted, measured)[0])


def ranks_within(predicted, measured, sequence):
    """Return the median over sequences with ten pairs or more; None if there are none."""
    groups = [rows for rows in sequence.groupby(sequence).groups.values() if len(rows) >= 10]
    correlations = [ranks(predicted.loc[rows], measured.loc[rows]) for rows in groups]
    defined = [value for value in correlations if value is not None]
    return float(np.median(defined)) if defined else None


def judge_sigma(error, sigma):
    """Return how well sigma tells the errors of rows that are not far."""
    if len(error) < 40:
        return {}
    scaled = (error / sigma).iloc[np.argsort(sigma, kind="stable")].to_numpy()
    tenth = len(scaled) // 10
    return {
        "log_score": float((np.log(sigma) + (error / sigma) ** 2 / 2).mean()),
        "low_tenth": float(np.sqrt(np.mean(scaled[:tenth] ** 2))),
        "high_tenth": float(np.sqrt(np.mean(scaled[-tenth:] ** 2))),
    }


def measure(frame, truth, label, divide, seed, folder, options):
    """Fit without the held-out rows, predict them, and yield a line per regime."""
    rng = np.random.default_rng(seed)
    is_out, kept = divide(frame, truth, rng)
    table = frame.iloc[np.sort(kept)]
    new = frame[is_out].drop(columns=[label])
    started = time.perf_counter()
    run = folder / "run"
    column = {"columns": {"pkd": label}}
    summary = abag.fit(
        table, folder / "store", run, **column, bad_rows="skip", report=False, seed=seed, **options
    )
    seconds = time.perf_counter() - started
    out = folder / "out.parquet"
    abag.predict(
        new.assign(row_of_table=new.index),
        run,
        out,
        store=folder / "store",
        bad_rows="skip",
        force=True,
    )
    predicted = pd.read_parquet(out)
    held_out = truth.loc[predicted["row_of_table"].to_numpy()].reset_index(drop=True)
    if "is_bound" in held_out:
        exact = ~held_out["is_bound"].to_numpy()
        predicted = predicted[exact].reset_index(drop=True)
        held_out = held_out[exact].reset_index(drop=True)
    record = json.loads((run / "predictor/predictor.json").read_text())
    sums = {
        regime["name"]: sum(regime["mixture"]["weights"].values()) for regime in record["regimes"]
    }
    promises = {regime["regime"]: regime for regime in summary["regimes"]}
    predictor = abag.load_predictor(run)
    usual = float(table[label].mean())
    for regime, rows in predicted.groupby("regime"):
        y = held_out["truth"].loc[rows.index]
        error = rows["pkd_predicted"] - y
        measured_rows = held_out.loc[rows.index]
        inside = error.abs() <= Z_90 * rows["sigma"]
        by_antibody = inside.groupby(measured_rows["antibody_of_row"]).agg(["mean", "size"])
        by_antibody = by_antibody.loc[by_antibody["size"] >= 100, "mean"]
        promise = promises.get(regime, {})
        interval = promise.get("intervals", {}).get("rmse") or [None, None]
        yield {
            "regime": regime,
            "used": predictor.applied(regime)[1],
            "pairs": len(table),
            "n": len(rows),
            "far": int(rows["far"].sum()),
            "promised_rmse": promise.get("rmse"),
            "promised_low": interval[0],
            "promised_high": interval[1],
            "promised_coverage": promise.get("coverage"),
            "rmse": float(np.sqrt(np.mean(error**2))),
            "rmse_of_mean": float(np.sqrt(np.mean((usual - y) ** 2))),
            "bias": float(error.mean()),
            "coverage": float(inside.mean()),
            "coverage_of_antibodies": [float(by_antibody.min()), float(by_antibody.max())]
            if 1 < len(by_antibody) <= 10
            else None,
            "mean_sigma": float(rows["sigma"].mean()),
            **judge_sigma(error[~rows["far"]], rows["sigma"][~rows["far"]]),
            "spearman": ranks(rows["pkd_predicted"], y),
            "within_antigen": ranks_within(
                rows["pkd_predicted"], y, measured_rows["antigen_of_row"]
            ),
            "within_antibody": ranks_within(
                rows["pkd_predicted"], y, measured_rows["antibody_of_row"]
            ),
            "sum_of_weights": sums.get(regime),
            "seconds": seconds,
        }


def main():
    """Measure every table, case and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--tables", type=int, default=1, help="planted tables of each law")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cases", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, help="use so many random rows of each table")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--tiny", action="store_true", help="a ridge on 150 rows of the demo table")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--means", action="store_true")
    arguments = parser.parse_args()
    if arguments.means:
        show_means(pd.read_json(arguments.out, lines=True))
        return
    options = {} if arguments.epochs is None else {"epochs": arguments.epochs}
    if arguments.tiny:
        options = {"head": "ridge"}
        arguments.demo = True
        arguments.rows = 150
        arguments.seeds = 1
    paths = {} if arguments.folder is None else {n: arguments.folder / f for n, f in TABLES.items()}
    tables = {name: path for name, path in paths.items() if path.exists()}
    tables = {
        name: path for name, path in tables.items() if not arguments.only or name in arguments.only
    }
    with tempfile.TemporaryDirectory() as folder:
        if arguments.demo:
            tables = {"demo": Path(folder) / "demo.csv"}
            demo_table().to_csv(tables["demo"], index=False)
        if arguments.planted:
            for number in range(arguments.tables * len(PLANTED)):
                again, law = divmod(number, len(PLANTED))
                spreads = PLANTED[law]
                name = f"planted, {spreads[0]:g} and {spreads[1]:g}" + f", {again}" * (again > 0)
                tables[name] = Path(folder) / f"planted-{number}.csv"
                planted_table(number, *spreads).to_csv(tables[name], index=False)
        for name, path in tables.items():
            frame, truth, label = read(path)
            if arguments.rows is not None and arguments.rows < len(frame):
                kept = np.random.default_rng(0).permutation(len(frame))[: arguments.rows]
                frame = frame.iloc[kept].reset_index(drop=True)
                truth = truth.iloc[kept].reset_index(drop=True)
            at = Path(folder) / name
            with reporting(silent=True, bars=False):
                abag.embed_table(frame, at / "store", bad_rows="skip", **COMPOSITION)
            for case, divide in CASES[name.partition(",")[0]].items():
                if arguments.cases and case not in arguments.cases:
                    continue
                for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                    show(name, case, seed, frame, truth, label, divide, at, options, arguments.out)


def show_means(lines):
    """Print the means over seeds of what sigma says, by table, case and regime."""
    columns = ["n", "rmse", "mean_sigma", "coverage", "log_score", "low_tenth", "high_tenth"]
    lines = lines.dropna(subset=["log_score"])
    print(lines.groupby(["table", "case", "regime"])[columns].mean().round(3).to_string())
    print(lines[columns[1:]].mean().round(3).to_string())


def show(name, case, seed, frame, truth, label, divide, at, options, out):
    """Measure one case with one seed; print and append its lines."""
    place = at / f"{case}-{seed}".replace(" ", "-")
    place.mkdir(parents=True)
    (place / "store").symlink_to(at / "store")
    try:
        with reporting(silent=True, bars=False):
            lines = list(measure(frame, truth, label, divide, seed, place, options))
    except abag.AbagError as error:
        lines = [{"regime": "refused", "why": str(error)}]
    for line in lines:
        line = {"table": name, "case": case, "seed": seed, **line}
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        shown = {
            key: np.round(value, 3).tolist() if isinstance(value, float | list) else value
            for key, value in line.items()
        }
        print(" ".join(f"{key}={value}" for key, value in shown.items()), flush=True)


if __name__ == "__main__":
    main()
