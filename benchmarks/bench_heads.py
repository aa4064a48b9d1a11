"""Train the default head on many folds of each split and compare it with every baseline.

    python benchmarks/bench_heads.py TABLE --store DIR [--split NAME ...] [--out FOLDER]

The store must hold a vector for every sequence of the table (`abag embed`). Splits run in parallel,
one process each.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from abag import AbagError
from abag.head.fit import fit

COLUMNS = ("spearman_within_antigen", "spearman", "rmse", "r2", "average_precision_at_9")
SPLITS = ("random", "antigen", "antibody", "both")


def bench_split(table, store, split, folds, repeats, encoders, preset):
    """Markdown lines of one split: the head's and each baseline's mean and spread over folds."""
    whole = split.startswith(("mutations", "column", "file"))
    said: list[str] = []
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as run:
        summary = fit(
            table,
            store,
            run,
            say=said.append,
            report=False,
            split=split,
            folds=0 if whole else folds,
            repeats=1 if whole else repeats,
            antibody_encoder=encoders[0],
            antigen_encoder=encoders[1],
            preset=preset,
            compile="graph" if torch.cuda.is_available() else "off",
        )
    seconds = time.perf_counter() - begun
    test = {"head": summary["metrics"]["test"]} | {
        name: parts["test"] for name, parts in summary["baselines"].items()
    }
    spread = summary.get("cv", {})
    lines = [f"### {split}", "", *(f"- {line}" for line in summary["warnings"])]
    lines += [f"- {line}" for line in said if line.startswith(("split ", "test rows with"))]
    lines += [
        f"- predictions keep {summary['kept']:.0%} of their distance from the training mean, mean of the folds"
    ]
    lines += [f"- **{line}**" for line in summary["verdicts"]]
    lines += ["", f"{seconds:.0f} s, {summary['seconds']:.0f} s of it training.", ""]
    lines += ["| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, scores in test.items():
        cells = [_cell(scores[c], spread.get(name, {}).get(c)) for c in COLUMNS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cell(value, over_folds):
    if value is None:
        return "-"
    if over_folds and over_folds["sd"] is not None:
        return f"{value:.3f} ± {over_folds['sd']:.2f}"
    return f"{value:.3f}"


def _try_split(*arguments):
    try:
        return bench_split(*arguments)
    except AbagError as error:
        return [f"### {arguments[2]}", "", f"Refused: {error}", ""]


def main(arguments=None):
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--antibody-encoder")
    parser.add_argument("--antigen-encoder")
    parser.add_argument("--split", nargs="+", default=list(SPLITS))
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args(arguments)
    encoders = (a.antibody_encoder, a.antigen_encoder)
    device = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    )
    title = f"{a.table.name}, {' + '.join(str(e or 'the only encoder') for e in encoders)}"
    lines = [
        f"## {title}",
        "",
        f"`bench_heads.py {' '.join(arguments or sys.argv[1:])}`, {date.today()}, Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, {device}.",
        f"Preset {a.preset}; mean ± sd over folds, each scored by itself.",
        "",
    ]
    todo = [(a.table, a.store, split, a.folds, a.repeats, encoders, a.preset) for split in a.split]
    with ProcessPoolExecutor(a.workers, mp_context=get_context("spawn")) as pool:
        for found in [pool.submit(_try_split, *one) for one in todo]:
            lines += found.result()
    text = "\n".join(lines)
    print(text)
    if a.out:
        a.out.mkdir(parents=True, exist_ok=True)
        (a.out / f"heads_{a.table.name.split('.')[0]}_{encoders[0]}_{date.today()}.md").write_text(
            text
        )


if __name__ == "__main__":
    main()
