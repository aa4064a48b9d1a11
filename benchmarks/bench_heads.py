"""Fit several heads on the same folds of every regime, and compare each with the best.

    python benchmarks/bench_heads.py TABLE --store DIR --out FOLDER [--head NAME ...] [--limit N ...]
        [--split NAME] [--set NAME=VALUE ...] [--workers N]
    python benchmarks/bench_heads.py --tiny --out FOLDER                # seconds, on a CPU

The store must hold a vector for every sequence of the table (`abag embed`). Runs are trained in
parallel, one process and one thread each. Writes heads.md: the table of every run, and one
comparison per regime.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import abag
from abag.head.demo import demo_table
from abag.head.models.config import is_used
from abag.head.runs.compare import describe_runs

HEADS = ("stack", "mlp", "kernel", "gp", "ridge")


def fit_one(table, store, run, options) -> float | str:
    """Fit one head; return its seconds, or why it was refused."""
    begun = time.perf_counter()
    torch.set_num_threads(1)
    try:
        abag.fit(table, store, run, say=lambda _: None, report=False, device="cpu", **options)
    except abag.AbagError as error:
        return str(error)
    return time.perf_counter() - begun


def measure(a, folder, limit, pool) -> list[str]:
    """Fit all heads to the first rows of the table; return lines of Markdown."""
    shared = {"limit": limit, "split": a.split} | a.set
    jobs = {}
    for head in a.head:
        options = {name: value for name, value in shared.items() if is_used(name, head)}
        options = {name: value for name, value in options.items() if value is not None}
        run = folder / f"{limit or 'all'}" / head
        jobs[head] = run, pool.submit(fit_one, a.table, a.store, run, options | {"head": head})
    lines = [f"## {f'The first {limit:,} rows' if limit else 'All rows'}", ""]
    finished = []
    for head, (run, job) in jobs.items():
        result = job.result()
        if isinstance(result, str):
            lines.append(f"- {head}: refused: {result}")
        else:
            finished.append(run)
            lines.append(f"- {head}: {result:.1f} s")
    return [*lines, "", "```", *describe_runs(abag.runs(finished)), "```", ""]


def tiny_inputs(folder: Path) -> tuple[Path, Path]:
    """Make a small table and its store."""
    table = folder / "pairs.csv"
    store = folder / "store"
    demo_table().head(120).to_csv(table, index=False)
    abag.embed_table(table, store, antibody_encoder="composition", antigen_encoder="composition")
    return table, store


def setting(text: str) -> tuple[str, object]:
    """Read an option of `fit` and its value; text needs no quotes."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--head", nargs="+", default=list(HEADS))
    parser.add_argument("--limit", type=int, nargs="+", default=[None])
    parser.add_argument("--split")
    parser.add_argument("--set", type=setting, nargs="+", default=[])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    a.set = dict(a.set)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        if a.tiny:
            a.table, a.store = tiny_inputs(folder)
            a.head = ["mlp", "ridge"]
            a.split = "random"
            a.set = {"epochs": 2, "widths": (4,), "folds": 3}
        with ProcessPoolExecutor(a.workers, mp_context=get_context("spawn")) as pool:
            body = []
            for limit in a.limit:
                body += measure(a, folder, limit, pool)
    lines = [
        f"# Heads on the same folds: {a.table.name}, {datetime.now(UTC).date()}",
        "",
        f"`python benchmarks/bench_heads.py {' '.join(arguments or sys.argv[1:])}`, "
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}, abag {abag.__version__}.",
        "",
        *body,
    ]
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "heads.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
