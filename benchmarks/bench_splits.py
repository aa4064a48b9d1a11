"""Score every baseline under every split of a table.

    python benchmarks/bench_splits.py TABLE --store DIR [--split NAME ...] [--out FOLDER]

The store must hold a vector for every sequence of the table (`abag embed`).
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np

from abag import AbagError
from abag.embed.sequences.pairs import read_pairs
from abag.embed.store.store import open_store
from abag.head.data.label_options import LabelOptions
from abag.head.data.labels import label_pairs
from abag.head.evaluation.comparison import compare
from abag.head.evaluation.metrics import average_folds, score
from abag.head.evaluation.verdicts import verdict, warnings
from abag.head.models.baselines import (
    BaselineInputs,
    ResidueFeatures,
    inner_folds,
    predict_baselines,
)
from abag.head.models.pair_model import PairVectors, TrainingRows
from abag.head.regimes.leaks import total_leaks
from abag.head.regimes.split_methods import make_splits
from abag.head.regimes.split_options import SplitOptions
from abag.head.regimes.splits import TEST, TRAIN

COLUMNS = ("spearman_within_antigen", "spearman", "rmse", "r2", "concordance")
SPLITS = ("random", "antigen", "antibody", "both")


def bench(table, store, splits, folds, repeats, encoders):
    """Markdown lines: baselines under each split."""
    pairs = label_pairs(read_pairs(table), LabelOptions())
    opened = open_store(store)
    kinds = (("antibody", pairs.table.antibodies), ("antigen", pairs.table.antigens))
    vectors = [
        opened.folder(kind, encoder).read(unique.keys)
        for (kind, unique), encoder in zip(kinds, encoders, strict=True)
    ]
    names = [opened.folder(kind, e).name for (kind, _), e in zip(kinds, encoders, strict=True)]
    lines = [f"## {Path(table).name}, {' + '.join(names)}", "", f"{len(pairs)} pairs."]
    for name in splits:
        whole = name.startswith(("mutations", "column", "file"))
        options = SplitOptions(
            split=name, folds=0 if whole else folds, repeats=1 if whole else repeats
        )
        try:
            lines += ["", f"### {name}", "", *_bench_split(pairs, options, vectors)]
        except AbagError as error:
            lines += ["", f"### {name}", "", f"Refused: {error}"]
    return lines


def _inputs(pairs, split, vectors):
    rows = np.flatnonzero((split.part == TRAIN) & (pairs.censored == 0))
    tables = PairVectors(*vectors, pairs.antibody, pairs.antigen)
    training = TrainingRows(pairs, tables, rows, inner_folds(split.group[rows]))
    return BaselineInputs(training, split, ResidueFeatures(pairs.table))


def _bench_split(pairs, options, vectors):
    begun = time.perf_counter()
    splits = make_splits(pairs, options)
    split_s = time.perf_counter() - begun
    begun = time.perf_counter()
    found = [predict_baselines(_inputs(pairs, split, vectors)) for split in splits]
    how = splits[0].description
    lines = [f"- {how['split']}: {how['why']}", f"- leaks: {total_leaks(splits)}"]
    lines += [f"- warning: {line}" for line in warnings(pairs, splits)]
    lines += [f"- splits {split_s:.1f} s, baselines {time.perf_counter() - begun:.1f} s", ""]
    lines += ["| baseline | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name in found[0]:
        folds = [
            score(pairs.pkd[rows], f[name][rows], pairs.antigen[rows], pairs.censored[rows])
            for split, f in zip(splits, found, strict=True)
            for rows in [split.rows(TEST)]
        ]
        means = average_folds(folds)
        lines.append(f"| {name} | " + " | ".join(_cell(means[c]) for c in COLUMNS) + " |")
    ours, mean = ([f[name] for f in found] for name in ("ridge", "train_mean"))
    gain = compare(pairs, splits, ours, mean, "rmse")
    return [*lines, "", verdict("ridge", "train_mean", "rmse", gain)]


def _cell(value):
    if value["mean"] is None:
        return "-"
    spread = "" if value["sd"] is None else f" ± {value['sd']:.2f}"
    return f"{value['mean']:.3f}{spread}"


def main():
    """Run and print; write the report into a folder if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?")
    parser.add_argument("--store")
    parser.add_argument("--antibody-encoder")
    parser.add_argument("--antigen-encoder")
    parser.add_argument("--split", nargs="+", default=SPLITS)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = [
        "# Splits and baselines",
        "",
        f"`bench_splits.py {' '.join(Path(a).name if '/' in a else a for a in sys.argv[1:])}`, "
        f"{date.today()}, Python {platform.python_version()}, numpy {np.__version__}, "
        f"{platform.machine()} CPU.",
        "",
    ]
    encoders = (args.antibody_encoder, args.antigen_encoder)
    lines += bench(args.table, args.store, args.split, args.folds, args.repeats, encoders)
    print("\n".join(lines))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        name = f"splits_cpu_{date.today()}.md"
        (args.out / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
