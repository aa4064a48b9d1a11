"""Compare what abag reads of a table of other people with a reading by pandas alone.

    python benchmarks/bench_public_tables.py TABLE --column heavy=NAME --column antigen=NAME
        --column pkd=NAME --label kd_m [--no-antigen | --antigen SEQ] [--sequences FILE]
        [--hold-out .3] --out lines.jsonl
    python benchmarks/bench_public_tables.py --tiny --out lines.jsonl     # seconds, on a CPU

The columns have to be named, so that pandas needs no rule of abag to find them. pandas reads every
cell as text and converts the labels by the plain formula of their unit, without the error behind
+/-. It takes the median over rows with the same cells of sequences, or of names of --sequences,
bounds apart; of abag it is told only which rows were skipped for a sequence.
Then the table is embedded with residue composition and fitted with ridge, as a new user would.
One JSON object is written: counts and labels of both, and whether they agree.

With --hold-out, pandas puts the rows of this share of antibodies aside before abag sees the table.
The rest is fitted with the defaults; what `evaluate` says of the rows aside is computed again by
pandas and SciPy from the file of `predict`, and the best label of 8 pairs that `rank` chooses is
written beside the one that it expects.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

import abag
from abag.head.demo import demo_table

FORMULAS = {
    "pkd": lambda x: x, "value": lambda x: x, "kd_m": lambda x: -np.log10(x),
    "kd_um": lambda x: 6 - np.log10(x), "kd_nm": lambda x: 9 - np.log10(x),
    "kd_pm": lambda x: 12 - np.log10(x), "log10_kd_m": lambda x: -x, "log10_kd_nm": lambda x: 9 - x,
    "ng_ml": lambda x: 6 - np.log10(x / 150e3), "ug_ml": lambda x: 3 - np.log10(x / 150e3),
    "dg_kcal": lambda x: -x / (1.987204259e-3 * 298.15 * np.log(10)),
}  # fmt: skip
SEQUENCES = ("heavy", "light", "antibody", "antigen")
COMPOSITION = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
SAME = 1e-9
"""Difference of labels from rounding alone."""
ROUNDED = 2e-3
"""Difference of scores from predictions that are rounded, and may then be equal, in files."""


def read_with_pandas(path, columns, unit, skipped):
    """Return rows, and the label of each pair by its cells of sequences; no code of abag runs."""
    if path.suffix == ".xlsx":
        frame = pd.read_excel(path, dtype=str)
    else:
        frame = pd.read_csv(path, dtype=str, sep="\t" if path.suffix == ".tsv" else ",")
    label = columns.get("pkd", columns.get("label"))
    with np.errstate(invalid="ignore", divide="ignore"):
        number = frame[label].str.partition("+/-")[0].str.lstrip("<> ")
        value = FORMULAS[unit](pd.to_numeric(number, errors="coerce"))
    named = [columns[role] for role in SEQUENCES if role in columns]
    valid = np.isfinite(value) & ~frame.index.isin([row - 2 for row in skipped])  # 1: the header
    is_bound = frame[label].str.startswith((">", "<"), na=False)
    rows = frame[valid].assign(value=value, is_bound=is_bound)
    cells = rows[named].fillna("").apply(lambda cell: cell.str.strip().str.upper())
    keys = [*(cells[name] for name in named), rows["is_bound"]]
    return len(frame), len(rows), rows["value"].groupby(keys).median()


def read_with_abag(path, reading, columns, store, skipped):
    """Return what plan says of the rows, and the label of each pair by its cells of sequences."""
    planned = abag.plan(path, **reading, **COMPOSITION, skipped=skipped)
    encoders = {"antibody_encoder": "composition"} if reading["no_antigen"] else COMPOSITION
    abag.embed_table(path, store, **encoders, **of_sequences(reading))
    pairs = abag.dataset(store, path, **reading)
    named = [columns[role] for role in SEQUENCES if role in columns]
    cells = (
        pairs.frame[named].fillna("").astype(str).apply(lambda cell: cell.str.strip().str.upper())
    )
    keys = [*(cells[name] for name in named), pd.Series(pairs.censored != 0)]
    labels = pd.Series(pairs.y).groupby(keys).median()
    return planned, labels


def of_sequences(reading):
    """Leave out the options of labels, which embed does not have."""
    columns = {role: name for role, name in reading["columns"].items() if role in SEQUENCES}
    kept = {name: value for name, value in reading.items() if name not in ("label", "better")}
    return kept | {"columns": columns}


def reading_of(given):
    """Return the options with which abag reads the table, and the columns among them."""
    columns = dict(text.partition("=")[::2] for text in given.column)
    reading = {"columns": columns, "bad_rows": "skip", "label": given.label}
    reading |= {"no_antigen": given.no_antigen, "antigen": given.antigen}
    reading |= {"sequences": given.sequences}
    return reading | {"better": given.better}, columns


def compare(path, given):
    """Read a table both ways, fit it, and return what is written about it."""
    reading, columns = reading_of(given)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        planned, read = read_with_abag(path, reading, columns, at / "store", at / "skipped.csv")
        listed = pd.read_csv(at / "skipped.csv")
        of_sequence = listed.loc[listed["kind"] != "label", "row"].tolist()
        rows, used, expected = read_with_pandas(path, columns, given.label, of_sequence)
        summary = abag.fit(path, at / "store", at / "run", head="ridge", report=False, **reading)
    same_pairs = read.index.sort_values().equals(expected.index.sort_values())
    difference = float((read - expected).abs().max()) if same_pairs else None
    skipped = rows - used
    said = (
        f"{rows:,} rows read, {skipped:,} skipped, {used:,} used" if skipped else f"{rows:,} rows"
    )
    measured = [regime for regime in summary["regimes"] if regime.get("rmse") is not None]
    return {
        "table": path.name,
        "rows": rows,
        "skipped_for_sequences": len(of_sequence),
        "used": used,
        "pairs": len(expected),
        "abag_read": planned["read"],
        "abag_pairs": len(read),
        "label_difference": difference,
        "low": float(expected.min()),
        "high": float(expected.max()),
        "rmse": {regime["regime"]: round(regime["rmse"], 3) for regime in measured},
        "agree": planned["read"] == said and same_pairs and difference <= SAME,
    }


def hold_out(path, given, reading, columns, share, seed=1):
    """Return what `evaluate` and `rank` say of rows that abag never saw, and what is true."""
    frame = pd.read_excel(path) if path.suffix == ".xlsx" else pd.read_csv(path)
    label = columns.get("pkd", columns.get("label"))
    names = [columns[role] for role in ("heavy", "light", "antibody") if role in columns]
    group = frame.groupby(names, dropna=False).ngroup()
    antibodies = group.max() + 1
    chosen = np.random.default_rng(seed).permutation(antibodies)[: int(share * antibodies)]
    aside = frame[group.isin(chosen)].assign(place=lambda rows: np.arange(len(rows)))
    encoders = {"antibody_encoder": "composition"} if reading["no_antigen"] else COMPOSITION
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        train = frame[~group.isin(chosen)]
        abag.embed_table(train, at / "store", **encoders, **of_sequences(reading))
        abag.fit(train, at / "store", at / "run", report=False, **reading)
        abag.predict(aside.drop(columns=label), at / "run", at / "aside.csv")
        said = abag.evaluate(at / "run", table=aside)["table"]["regimes"]
        order = at / "order.csv"
        rank = abag.rank(at / "aside.csv", order, run=at / "run", batch=8, keep_far=True)
        rows = pd.read_csv(at / "aside.csv")
        best = pd.read_csv(order)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = FORMULAS[given.label](pd.to_numeric(aside[label], errors="coerce"))
    rows["true"] = value.to_numpy()[rows["place"]]  # rows with bad sequences are not predicted
    names += [columns["antigen"]] if "antigen" in columns else []
    predicted = "pkd_predicted" if "pkd_predicted" in rows else "predicted"
    kept = [predicted, "sigma", "regime"]
    pairs = rows.groupby(names, dropna=False)[[*kept, "true"]].agg(
        {name: "first" for name in kept} | {"true": "median"}
    )
    lines = []
    for regime in said:
        tested = pairs[pairs["regime"] == regime["regime"]].dropna(subset="true")
        error = tested["true"] - tested[predicted]
        truth = {
            "rmse": float(np.sqrt((error**2).mean())),
            "coverage": float((error.abs() <= 1.6448536 * tested["sigma"]).mean()),
            "spearman": float(spearmanr(tested["true"], tested[predicted])[0]),
        }
        claimed = {"rmse": regime["rmse"], "coverage": regime["coverage"]}
        claimed["spearman"] = (regime["spearman"] or {}).get("value")
        agree = all(
            claimed[key] is None or abs(claimed[key] - truth[key]) <= ROUNDED for key in truth
        )
        lines.append({"regime": regime["regime"], "pairs": len(tested), **truth, "agree": agree})
    lower_first = best[predicted].iloc[0] <= best[predicted].iloc[-1]
    found = best.merge(pairs["true"].reset_index(), on=names)["true"]
    return {
        "train": len(train),
        "regimes": lines,
        "expected_best": rank["expected_best"],
        "best_interval": rank["best_interval"],
        "best": float(found.min() if lower_first else found.max()),
        "agree": all(line["agree"] for line in lines),
    }


def write_tiny(path):
    """Write a small table with replicates, empty and bad cells."""
    frame = demo_table(0).head(60)
    frame = pd.concat([frame, frame.head(3).assign(pKd=7.5)], ignore_index=True)
    frame["K (nM)"] = (10 ** (9 - frame.pop("pKd"))).map("{:.6g}".format)
    frame.loc[3, "K (nM)"] = ""
    frame.loc[4, "K (nM)"] = "n.d."
    frame.loc[5, "heavy"] = "EV*Q"
    frame.to_csv(path, index=False)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--column", action="append", default=[], metavar="ROLE=NAME")
    parser.add_argument("--label", choices=FORMULAS, default="pkd")
    parser.add_argument("--better", choices=["higher", "lower"])
    parser.add_argument("--antigen")
    parser.add_argument("--sequences", action="append", default=[], metavar="FILE")
    parser.add_argument("--no-antigen", action="store_true")
    parser.add_argument("--hold-out", type=float, metavar="SHARE")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if given.tiny:
            given.table = Path(folder) / "tiny.csv"
            write_tiny(given.table)
            given.column = ["heavy=heavy", "light=light", "antigen=antigen", "pkd=K (nM)"]
            given.label = "kd_nm"
        line = compare(given.table, given)
        if given.hold_out or given.tiny:
            reading, columns = reading_of(given)
            line["held_out"] = hold_out(given.table, given, reading, columns, given.hold_out or 0.3)
            line["agree"] = line["agree"] and line["held_out"]["agree"]
    with given.out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line, indent=1))
    if not line["agree"]:
        sys.exit("abag and pandas disagree")


if __name__ == "__main__":
    main()
