"""Fit heads on all 13 cases of results/heads_*.md in a pool of processes, and write its tables.

    python benchmarks/bench_all_heads.py --data FOLDER --out FOLDER [--jobs 16] [--head NAME ...] [--case TEXT ...]

FOLDER has skempi_measurements.csv, alphabind_her2.csv.gz and hiv_ic50_seen.csv.gz. Vectors are read from the
stores OUT/stores/{skempi,her2,hiv}; the missing ones are made first: composition, and AntiBERTy for the antibodies
of SKEMPI. All fits run on one core of the CPU each, but the planted table's, which use a GPU if there is one. The
longest start first: 8 minutes on 16 cores.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from bench_heads import LEVELS, fit_one, planted_table

import abag
from abag.head.evaluation.comparison import compare
from abag.head.model.config import is_used
from abag.head.runs.saved_run import read_run

HEADS = ("stack", "mlp", "kernel", "gp", "ridge")
FILES = {
    "skempi": "skempi_measurements.csv",
    "her2": "alphabind_her2.csv.gz",
    "hiv": "hiv_ic50_seen.csv.gz",
}
ENCODERS = {"skempi": "antiberty"}
HIV = {"columns": {"pkd": "pIC50"}}
ONE_FOLD = {"folds": 0, "repeats": 1}


class Case(NamedTuple):
    """A table and a split."""

    title: str
    table: str
    """Key of `FILES`, or planted."""
    split: str
    minutes: float
    """Of the stack on one core, roughly; the longest start first."""
    options: dict
    heads: tuple = HEADS


CASES = [
    *(
        Case(f"SKEMPI, {split}", "skempi", split, 2, {"repeats": 4})
        for split in ("random", "antigen", "antibody", "both")
    ),
    Case("AlphaBind HER2, random", "her2", "random", 7, {}),
    Case("AlphaBind HER2, mutations", "her2", "mutations", 3, ONE_FOLD),
    *(
        Case(f"HER2, {n:,} pairs, random", "her2", "random", n / 1000, {"limit": n}, HEADS[:-1])
        for n in (250, 1000, 4000)
    ),
    Case("HIV IC50, random", "hiv", "random", 4, HIV),
    Case("HIV IC50, antibody", "hiv", "antibody", 4, HIV),
    Case("HIV IC50, column=antigen", "hiv", "column=antigen", 1, HIV | ONE_FOLD),
    Case("Planted, 160,000 pairs, random", "planted", "random", 9, ONE_FOLD, ("stack", "mlp", "ridge")),
]  # fmt: skip


def prepare(case_tables, data, out):
    """Table and store by name; a store that is not there is made."""
    found = {}
    for name in case_tables:
        if name == "planted":
            found[name] = planted_table(160_000, out)
            continue
        table, store = data / FILES[name], out / "stores" / name
        encoder = ENCODERS.get(name, "composition")
        columns = HIV["columns"] if name == "hiv" else {}
        if not store.exists():
            abag.embed_table(
                table,
                store,
                antibody_encoder=encoder,
                antigen_encoder="composition",
                columns=columns,
            )
        found[name] = table, store
    return found


def describe(title, runs, refused):
    """Markdown lines of one case: each head against the first."""
    lines = [f"### {title}", "", *(f"- {head}: refused: {why}" for head, why in refused.items())]
    if not runs:
        return [*lines, ""]
    lines += [
        "| | seconds | RMSE | Spearman | difference | sigma covers, worst fold |",
        "|---|---|---|---|---|---|",
    ]
    first = next(iter(runs.values()))
    for head, run in runs.items():
        scores, sigma = run.summary["metrics"]["test"], run.summary["sigma"]
        worst = min((x for x in sigma["coverage_folds"]["90"] if x is not None), default=None)
        covered = " / ".join(number(sigma["coverage"][level]) for level in LEVELS)
        lines.append(
            f"| {head} | {run.summary['seconds'] / len(run.splits):.2f} | {number(scores['rmse'], 3)} | "
            f"{number(scores['spearman'], 3)} | {'' if run is first else difference(run, first)} | "
            f"{covered}, {number(worst)} |"
        )
    baselines = {name: parts["test"] for name, parts in first.summary["baselines"].items()}
    defined = [name for name, scores in baselines.items() if scores["rmse"] is not None]
    best = sorted(defined, key=lambda name: baselines[name]["rmse"])
    for name in ["train_mean", *[one for one in best if one != "train_mean"][:2]]:
        rmse, spearman = (number(baselines[name][metric], 3) for metric in ("rmse", "spearman"))
        lines.append(f"| *{name}* | | {rmse} | {spearman} | | |")
    shares = ", ".join(f"{name} {share:.2f}" for name, share in first.summary["shares"].items())
    return [*lines, "", f"Weights of the {next(iter(runs))}: {shares}.", ""]


def difference(run, first):
    """RMSE minus that of the first head, with its intervals."""
    found = compare(first.pairs, first.splits, run.predicted, first.predicted, "rmse")
    limits = ", ".join(f"[{low:+.3f}, {high:+.3f}]" for _, low, high in found.known)
    return f"{found.difference:+.3f} {limits}"


def number(value, digits=2):
    """A number, or - if it is not defined."""
    return "-" if value is None else f"{value:.{digits}f}"


def main(arguments=None):
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--head", nargs="+", default=list(HEADS))
    parser.add_argument("--case", nargs="+", help="Only cases whose title contains one of these.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--tiny", action="store_true", help="one planted case of 60 pairs")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # of the workers; this process has read them already
    a.out.mkdir(parents=True, exist_ok=True)
    cases = [one for one in CASES if not a.case or any(text in one.title for text in a.case)]
    if a.tiny:
        cases = [
            Case(
                "Planted, 60 pairs", "planted", "random", 1, {"epochs": 2, "folds": 2, "repeats": 1}
            )
        ]
        tables = {"planted": planted_table(60, a.out)}
    else:
        tables = prepare({case.table for case in cases}, a.data, a.out)
    title = [
        f"# Heads on the same folds, {date.today()}",
        "",
        f"`bench_all_heads.py {' '.join(map(str, arguments or sys.argv[1:]))}`, {platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}, numpy "
        f"{np.__version__}, abag {abag.__version__}. Seconds are per fold, on one busy core.",
        "",
    ]
    lines: dict[str, list[str]] = {}
    for finished in measure(cases, tables, a):
        lines |= finished
        own = [line for case in cases for line in lines.get(case.title, [])]
        (a.out / "all_heads.md").write_text("\n".join([*title, *own]))  # after each case
    print((a.out / "all_heads.md").read_text())


def measure(cases, tables, a):
    """Fit all heads of all cases; yield the Markdown lines of each case when it is done."""
    heads = {c.title: [h for h in a.head if h in c.heads or a.case] for c in cases}
    todo = [(case, head) for case in cases for head in heads[case.title]]
    todo.sort(key=lambda job: -job[0].minutes * (1 if job[1] == "stack" else 0.4))
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(a.jobs, mp_context=get_context("spawn")) as pool,
    ):
        jobs, found = {}, {title: {} for title in heads}
        for case, head in todo:
            options = {"folds": 5, "repeats": 1, "seed": 0} | case.options
            options["device"] = "auto" if case.table == "planted" else "cpu"
            options = {name: value for name, value in options.items() if is_used(name, head)}
            own, name = Path(folder) / case.title, case.title.replace(" ", "_").replace(",", "")
            own.mkdir(exist_ok=True)
            job = pool.submit(
                fit_one, *tables[case.table], case.split, head, own, a.out / name, options
            )
            jobs[job] = case, head
        for job in as_completed(jobs):
            case, head = jobs[job]
            done = found[case.title]
            done[head], seconds = job.result()
            print(f"{case.title}: {head}: {seconds:.0f} s", file=sys.stderr, flush=True)
            if len(done) == len(heads[case.title]):
                done = {head: done[head] for head in heads[case.title]}
                runs = {head: read_run(run) for head, run in done.items() if isinstance(run, Path)}
                refused = {head: why for head, why in done.items() if not isinstance(why, Path)}
                yield {case.title: describe(case.title, runs, refused)}


if __name__ == "__main__":
    main()
