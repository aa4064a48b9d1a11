"""Measure features, categories, errors and weights of a table, each on and off, on unseen rows.

    python benchmarks/bench_columns.py TABLE --out columns.jsonl --features loglik [--categories C]
        [--error C | --weight C] [--rows 24 96 250] [--seeds 8] [--head kernel stack ...]
        [--column pkd=NAME] [--drop NAME ...] [--set NAME=VALUE ...] [--test 2000]
        [--encoder antiberty --loglik] [--store DIR]
    python benchmarks/bench_columns.py --join FILE ... --out columns.jsonl   # of several processes
    python benchmarks/bench_columns.py --tiny --out columns.jsonl      # seconds, on a CPU

Each seed draws rows to train with, and others that abag does not see before they are predicted. All
cases of a seed have the same rows, so differences to ``off`` are paired; their standard error is
that over seeds. Every line is one JSON object: of a fit, or of the difference of a case.

With --loglik, sequences are encoded in turns with and without it, each time into an empty store, and
the lines before the fits have the seconds and the size of each; the fits read the last store. Several
processes may share one (--store DIR, --first-seed, and --seeds 0 to encode only). --plant-errors adds
noise to the labels to train with, whose standard deviation is drawn for each row and is its --error.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

import abag
from abag.core.messages import reporting
from abag.embed.tables.chains import PLURAL
from abag.embed.tables.options import TableOptions
from abag.embed.tables.pairs import read_pairs
from abag.head.demo import demo_table
from abag.head.labels.column import decide_label
from abag.head.labels.options import LabelOptions
from abag.head.labels.values import read_affinities
from abag.head.models.config import is_used

OFF = "off"
PLANTED = "planted_error"
NO_LANGUAGE_MODEL = "composition"
ROUNDS = 2
"""Stores that are made with and without likelihoods, after a first that compiles kernels."""
KINDS = ("features", "categories", "error", "weight")
TINY_ROWS = 60


def cases_of(given) -> dict[str, dict]:
    """Return the options of each case: without columns, each kind alone, and all together."""
    columns = {name: getattr(given, name) for name in KINDS if getattr(given, name)}
    found = {OFF: {}, **{name: {name: value} for name, value in columns.items()}}
    if len(columns) > 1:
        found["all"] = columns
    return found


def measure(train, test, truth, store, given, head, options, columns):
    """Fit once, predict the unseen rows, and return their scores."""
    kept = {name: value for name, value in options.items() if is_used(name, head)}
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        abag.fit(train, store, at / "run", head=head, report=False, **kept, **columns)
        seconds = time.perf_counter() - begun
        reading = {name: given.reading[name] for name in ("antigen",) if name in given.reading}
        table = test.drop(columns=given.label)
        abag.predict(table, run=at / "run", store=store, out=at / "out.parquet", **reading)
        scores = pd.read_parquet(at / "out.parquet")
    name = "pkd_predicted" if "pkd_predicted" in scores else "predicted"
    predicted = scores[name].to_numpy(np.float64)
    return {
        "rmse": float(np.sqrt(np.mean(np.square(predicted - truth)))),
        "spearman": float(spearmanr(predicted, truth).statistic) if np.ptp(predicted) else 0.0,
        "inside_90": float(np.mean(np.abs(predicted - truth) <= 1.645 * scores["sigma"])),
        "far": int(scores["far"].sum()),
        "seconds": round(seconds, 1),
    }


def differences(lines):
    """Return what each case changes, with the standard error over seeds."""
    frame = pd.DataFrame(lines)
    found = []
    for (table, rows, head), part in frame.groupby(["table", "rows", "head"], sort=False):
        off = part[part["case"] == OFF].set_index("seed")
        for case, own in part[part["case"] != OFF].groupby("case", sort=False):
            own = own.set_index("seed")
            both = off.index.intersection(own.index)
            line = {"difference": case, "table": table, "rows": int(rows), "head": head}
            line |= {"seeds": len(both), "off": round(float(off.loc[both, "rmse"].mean()), 4)}
            line["off_spearman"] = round(float(off.loc[both, "spearman"].mean()), 4)
            for score in ("rmse", "spearman", "inside_90"):
                away = own.loc[both, score] - off.loc[both, score]
                error = away.std(ddof=1) / np.sqrt(len(away)) if len(away) > 1 else float("nan")
                line[score] = float(away.mean())
                line[f"{score}_se"] = None if np.isnan(error) else float(error)
            found.append(line)
    return found


def embed(frame, store, given):
    """Encode all sequences; with --loglik, measure also what it costs, and return lines of that."""
    encoders = {"antibody": given.encoder, "antigen": given.antigen_encoder}

    def into(folder, loglik=False):
        line = {"loglik": loglik}
        for kind, name in encoders.items():
            options = {"kind": kind, "columns": given.reading["columns"]}
            if kind == "antigen":
                options |= given.reading
            if loglik and name != NO_LANGUAGE_MODEL:
                options["loglik"] = True
            begun = time.perf_counter()
            summary = abag.embed_table(frame, folder, *encoders.values(), **options)
            files = [*folder.glob(f"{kind}-*/*.h5")]
            line[kind] = {
                "encoder": name,
                "encoded": summary[PLURAL[kind]]["encoded"],
                "seconds": round(time.perf_counter() - begun, 2),
                "store_bytes": sum(path.stat().st_size for path in files),
            }
        return line

    if not given.loglik or store.exists():
        into(store)
        return []
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        into(Path(folder) / "first", True)
        for number in range(ROUNDS):
            for loglik in (False, True):
                at = Path(folder) / f"{number}-{loglik}"
                lines.append({"round": number, **into(at, loglik)})
        shutil.copytree(at, store)
    return lines


def plant_errors(frame, labels, median):
    """Return the table with noisy labels and a column of the noise's standard deviation."""
    rng = np.random.default_rng(0)
    sd = median * np.exp(rng.normal(size=len(frame)))
    noisy = frame[labels.column] + sd * rng.normal(size=len(frame))
    return frame.assign(**{labels.column: noisy, PLANTED: sd})


def demo(given) -> pd.DataFrame:
    """Return a small table with a column of each kind, of which the label depends on one."""
    frame = demo_table().head(2 * TINY_ROWS)
    rng = np.random.default_rng(0)
    score = rng.normal(size=len(frame))
    given.features = given.features or ("score",)
    given.categories = ("laboratory",)
    given.error = "sd"
    given.rows = [TINY_ROWS]
    given.seeds = 2
    given.head = ["ridge"]
    laboratory = rng.choice(["north", "south"], len(frame))
    sd = rng.uniform(0.1, 1, len(frame))
    return frame.assign(pKd=frame["pKd"] + score, score=score, laboratory=laboratory, sd=sd)


def main(argv: list[str] | None = None) -> None:
    """Fit every case and write a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--join", type=Path, nargs="+", help="files with lines of fits")
    parser.add_argument("--out", type=Path, required=True)
    for name in ("features", "categories"):
        parser.add_argument(f"--{name}", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--error")
    parser.add_argument("--weight")
    parser.add_argument("--rows", type=int, nargs="+", default=[24, 96, 250])
    parser.add_argument("--test", type=int, default=2_000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--head", nargs="+", default=["ridge", "kernel", "residue_kernel", "stack"])
    parser.add_argument("--column", nargs="+", default=[], metavar="ROLE=NAME")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--drop", nargs="+", default=[], help="columns that are not read")
    parser.add_argument("--encoder", default="composition", help="of antibodies")
    parser.add_argument("--antigen-encoder", default="composition")
    parser.add_argument("--loglik", action="store_true", help="store likelihoods, too")
    parser.add_argument("--store", type=Path, help="made if it does not exist")
    parser.add_argument("--plant-errors", type=float, metavar="SD", help="median, as the label")
    parser.add_argument("--antigen", help="one antigen for all rows")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(argv)
    if given.join:
        texts = [text for path in given.join for text in path.read_text().splitlines()]
        fits = [line for line in map(json.loads, texts) if "case" in line]
        for line in differences(fits):
            _append(given.out, line)
        return
    options = {name: _value(text) for name, _, text in (one.partition("=") for one in given.set)}
    if given.tiny:
        frame = demo(given)
        options |= {"split": "random", "folds": 2}
    else:
        frame = pd.read_csv(given.table).drop(columns=given.drop)
    given.reading = {"columns": dict(one.split("=", 1) for one in given.column)}
    if given.antigen is not None:
        given.reading["antigen"] = given.antigen
    name = "demo" if given.tiny else given.table.name
    lines = []
    with tempfile.TemporaryDirectory() as folder, reporting(silent=True, bars=False):
        store = given.store or Path(folder) / "store"
        for line in embed(frame, store, given):
            _append(given.out, line)
        table = read_pairs(frame, TableOptions(**given.reading))
        asked = LabelOptions(label=options.get("label"), better=options.get("better"))
        labels = read_affinities(table, decide_label(table, asked))
        given.label = labels.column
        exact = np.isfinite(labels.pkd) & (labels.side == 0)
        if "censored" in table.columns:  # bounds would count as exact values
            exact &= table.frame[table.columns["censored"]].isna().to_numpy(np.bool_)
        usable = np.flatnonzero(exact)
        noisy = frame
        if given.plant_errors:
            noisy = plant_errors(frame, labels, given.plant_errors)
            given.error = PLANTED
        for rows in given.rows:
            for seed in range(given.first_seed, given.first_seed + given.seeds):
                order = np.random.default_rng(seed).permutation(usable)
                train = order[:rows]
                test = order[rows : rows + given.test]
                for head in given.head:
                    for case, columns in cases_of(given).items():
                        line = {
                            "case": case,
                            "table": name,
                            "rows": rows,
                            "seed": seed,
                            "head": head,
                        }
                        try:
                            line |= measure(
                                noisy.iloc[train],
                                frame.iloc[test],
                                labels.pkd[test],
                                store,
                                given,
                                head,
                                {**options, **given.reading, "seed": seed},
                                columns,
                            )
                        except abag.AbagError as error:  # too few pairs, or no variants
                            print(f"{line}: {error}", file=sys.stderr)
                            continue
                        lines.append(line)
                        _append(given.out, line)
    for line in differences(lines) if lines else ():
        _append(given.out, line)


def _append(path: Path, line: dict) -> None:
    text = json.dumps(line)
    print(text, flush=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def _value(text: str):
    """Read a value of an option, as JSON where it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main()
