"""Measure views of antibodies, each on and off, by regime.

    python benchmarks/bench_views.py TABLE --out FOLDER [--rows N ...] [--head NAME ...]
        [--case NAME ...] [--set NAME=VALUE ...] [--seeds K] [--store FOLDER]
    python benchmarks/bench_views.py --tiny --out FOLDER                # seconds, on a CPU

Antibodies have AntiBERTy vectors of all layers and their composition, antigens their composition.
Every case is a fit of its own on the same folds; weights of views are chosen by its inner
folds, so the comparison is nested. ``--rows`` draws that many pairs of the table first, by
default it takes all; ``--seeds`` repeats draw and split. A difference is that of the RMSE of
out-of-fold predictions to the reference of the head, in pKd, with the standard error of a jackknife
over the groups that a regime counts as one measurement; of several seeds the mean. ``--store`` keeps
the vectors for the next call; with ``--stored`` they are all there.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

import abag
from abag.core.messages import reporting
from abag.head.demo import demo_table
from abag.head.models.config import is_used

LAYERS = range(1, 8)
"""Of AntiBERTy below the last, which `mean` is of."""
VIEWS = {
    "mean": ["{lm}:mean"],
    "chains": ["{lm}:mean", "{lm}:heavy_mean", "{lm}:light_mean"],
    "layers": ["{lm}:mean", *(f"{{lm}}:mean@{n}" for n in LAYERS)],
    "two layers": ["{lm}:mean", "{lm}:mean@{middle}"],
    "encoders": ["{lm}:mean", "composition:mean"],
    "all": [
        "{lm}:mean",
        "{lm}:heavy_mean",
        "{lm}:light_mean",
        "composition:mean",
        *(f"{{lm}}:mean@{n}" for n in LAYERS),
    ],
}
"""Vectors of antibodies by case; the first case is the reference."""
REFERENCE = "mean"


def embed(table: Path, store: Path, lm: str, layers: tuple[int, ...], options: dict) -> None:
    """Encode antibodies twice, and antigens once."""
    read = {name: options[name] for name in ("columns", "antigen", "chains") if name in options}
    for encoder, numbers in ((lm, layers), ("composition", None)):
        abag.embed_table(table, store, encoder, "composition", layers=numbers, **read)


def predictions(table: Path, store: Path, run: Path, head: str, views: list, options: dict):
    """Fit once; return the out-of-fold predictions and the seconds."""
    begun = time.perf_counter()
    used = {name: value for name, value in options.items() if is_used(name, head)}
    abag.fit(
        table,
        store,
        run,
        head=head,
        antibody_vectors=tuple(views),
        report=False,
        say=lambda _text: None,
        **used,
    )
    return pd.read_parquet(run / "predictions.parquet"), time.perf_counter() - begun


def compare(predicted: pd.DataFrame, reference: pd.DataFrame) -> tuple[float, float, float, int]:
    """Return both RMSEs' difference with its jackknife error, the RMSE, and the groups."""
    exact = (predicted["censored"] == 0).to_numpy()
    square, before = (
        np.square(rows["pkd"] - rows["pkd_predicted"]).to_numpy()[exact]
        for rows in (predicted, reference)
    )
    widest = (0.0, 0)
    for column in ("group", "second_group"):
        _, group = np.unique(predicted[column].to_numpy()[exact], return_inverse=True)
        n = int(group.max()) + 1
        sums = [np.bincount(group, squares, minlength=n) for squares in (square, before)]
        left = len(square) - np.bincount(group, minlength=n)
        kept = left > 0
        without = [
            np.sqrt((group_sums.sum() - group_sums)[kept] / left[kept]) for group_sums in sums
        ]
        difference = without[0] - without[1]
        error = np.sqrt((n - 1) / n * np.square(difference - difference.mean()).sum())
        widest = max(widest, (float(error), n))
    rmse = np.sqrt(square.mean())
    return float(rmse - np.sqrt(before.mean())), widest[0], float(rmse), widest[1]


def main(argv: list[str] | None = None) -> None:
    """Fit every case and write views.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[0])
    parser.add_argument("--head", nargs="+", default=["kernel", "stack"])
    parser.add_argument("--case", nargs="+", default=[*VIEWS], choices=[*VIEWS])
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args(argv)
    lm = "antiberty"
    layers = tuple(LAYERS)
    middle = 4
    options = {name: _value(value) for name, _, value in (s.partition("=") for s in arguments.set)}
    if arguments.tiny:
        lm = "tiny-igt5"
        layers = (1,)
        middle = 1
        arguments.rows = [60]
        arguments.head = ["kernel"]
        arguments.case = ["mean", "chains", "two layers"]
        options |= {"split": "random", "folds": 2}
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines = []
    with tempfile.TemporaryDirectory() as folder, reporting(silent=True, bars=False):
        scratch = Path(folder)
        whole = demo_table() if arguments.tiny else pd.read_csv(arguments.table)
        for rows in arguments.rows:
            lines += measure(whole, rows, arguments, options, scratch, (lm, layers, middle))
            write(arguments.out / "views.md", arguments, lines)


def measure(whole, rows, arguments, options, scratch, encoder) -> list[str]:
    """Fit every case to a number of rows; return the lines of its table."""
    lm, layers, middle = encoder
    results: dict[tuple[str, str, str], list] = {}
    for seed in range(arguments.seeds):
        drawn = whole.sample(rows, random_state=seed) if rows else whole
        table = scratch / f"{rows}-{seed}.csv"
        drawn.to_csv(table, index=False)
        store = arguments.store or scratch / f"store-{rows}-{seed}"
        if not arguments.stored:
            embed(table, store, lm, layers, options)
        for head in arguments.head:
            for case in arguments.case:
                views = [name.format(lm=lm, middle=middle) for name in VIEWS[case]]
                run = scratch / f"run-{rows}-{seed}-{head}-{case}"
                try:
                    predicted, seconds = predictions(
                        table, store, run, head, views, options | {"seed": seed}
                    )
                except abag.AbagError as error:  # no variants, or no such head
                    print(f"{head}, {case}: {error}", file=sys.stderr)
                    continue
                for regime, part in predicted.groupby("regime", sort=False):
                    results.setdefault((head, case, str(regime)), []).append((part, seconds))
                print(rows or "all", seed, head, case, f"{seconds:.0f} s", file=sys.stderr)
    lines = [
        "",
        f"## {rows or 'all'} rows",
        "",
        "| regime | head | antibodies | RMSE | difference | standard error | groups | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (head, case, regime), parts in results.items():
        first = (head, REFERENCE, regime)
        if len(results.get(first, [])) != len(parts):
            continue
        comparisons = [
            compare(predicted, reference)
            for (predicted, _), (reference, _) in zip(parts, results[first], strict=True)
        ]
        difference, error, rmse, groups = np.mean(comparisons, axis=0)
        seconds = np.mean([s for _, s in parts])
        lines.append(
            f"| {regime} | {head} | {case} | {rmse:.3f} | {difference:+.3f} | {error:.3f} | "
            f"{groups:.0f} | {seconds:.0f} |"
        )
    return lines


def _value(text: str):
    """Read a value of an option, as JSON where it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def write(path: Path, arguments, lines: list[str]) -> None:
    """Write what has been measured so far."""
    name = "the demo table" if arguments.table is None else arguments.table.name
    head = [
        f"# Views, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"{name}, {arguments.seeds} seed(s), on {platform.processor() or platform.machine()}, Python "
        f"{platform.python_version()}. Difference: RMSE minus that of the head on "
        f"`{REFERENCE}`, in pKd.",
    ]
    path.write_text("\n".join([*head, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
