"""Fit several heads on the same folds of each split; compare them with each other and all baselines.

    python benchmarks/bench_heads.py --table TABLE --store DIR --out FOLDER [--head NAME ...] [--split NAME ...]
    python benchmarks/bench_heads.py --planted 160000 --out FOLDER [--head NAME ...]

The store must hold a vector for every sequence of the table (`abag embed`). `--planted` makes a table of
that many pairs whose labels are a linear function of the vectors, a little interaction and noise. Fits run in
parallel, one process per split and head. A difference is that of the first model minus that of the second, with
abag's own paired bootstrap over clusters. For each head but single networks, SPLIT-HEAD.npz keeps the
predictions of its models (`keep_parts`).
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
import pandas as pd
import torch

import abag
from abag import AbagError
from abag.embed.sequences.pairs import read_pairs
from abag.embed.store.store import open_store
from abag.head.evaluation.comparison import compare
from abag.head.evaluation.verdicts import verdict
from abag.head.fit import fit
from abag.head.model.config import is_used
from abag.head.prediction import fitted
from abag.head.runs.saved_run import read_run

METRICS = ("spearman_within_antigen", "spearman", "rmse", "r2", "average_precision_at_9")
SPLITS = ("random", "antigen", "antibody", "both")
HEADS = ("mlp", "ridge", "kernel", "gp", "stack", "auto")
LEVELS = ("68", "90", "95")
PREDICT_UNSEEN, COMBINE = (
    fitted._predict_unseen,
    fitted._combine,
)  # a worker patches them for each fit


def planted_table(pairs, folder, seed=0):
    """A table with linear truth and the store of its vectors."""
    rng = np.random.default_rng(seed)
    residues = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    many = {"heavy": max(4, pairs // 2), "antigen": max(3, pairs // 50)}
    chains = {n: ["".join(one) for one in rng.choice(residues, (k, 40))] for n, k in many.items()}
    of = {name: rng.integers(len(chains[name]), size=pairs) for name in many}
    frame = pd.DataFrame({name: np.array(chains[name])[of[name]] for name in many})
    frame = frame.drop_duplicates(ignore_index=True)
    table, store = read_pairs(frame), open_store(folder / "store", create=True)
    sides = []
    for kind, unique in table.sequences.items():
        x_ND = rng.normal(size=(len(unique.keys), 256)).astype(np.float32)
        writer_of = store.create_folder(kind, {"name": "drawn", "fingerprint": "ab" * 16})
        with writer_of.writer(attrs={"precision": "fp32"}) as writer:
            writer.add(unique.keys, np.full(len(x_ND), 40, np.int32), {"mean": x_ND})
        sides.append((x_ND @ rng.normal(size=256) / 16)[unique.of_row])
    left, right = sides
    frame["pKd"] = 8 + left + right + 0.1 * left * right + rng.normal(0, 0.5, len(frame))
    path = folder / f"planted-{pairs}.csv"
    frame.to_csv(path, index=False)
    return path, folder / "store"


def fit_one(table, store, split, head, folder, out, options):
    """Run folder of a fit and its seconds, or the message of a refusal."""
    run, start = folder / f"{split.replace('=', '-').replace(':', '-')}-{head}", time.perf_counter()
    torch.set_num_threads(1)
    keep_parts(out / f"{run.name}.npz")
    try:
        fit(table, store, run, say=lambda _: None, report=False, split=split, head=head, **options)
    except AbagError as error:
        return str(error), 0.0
    return run, time.perf_counter() - start


def keep_parts(path):
    """Keep what a stack is weighed by, so that other weights can be tried without fitting again.

    Of fold F: `F.error` (R, K), `F.group` and `F.inner_variance` (R,); of all pairs `F.predicted` (K, P),
    `F.variance` and `F.part` (P,). `names` are those of the K models.
    """
    kept = {}

    def unseen_of(pairs, training, split, *rest):
        kept.update(pkd=pairs.pkd, censored=pairs.censored)
        kept[f"{split.fold}.part"] = split.part
        kept["fold"] = split.fold
        return PREDICT_UNSEEN(pairs, training, split, *rest)

    def combine_of(training, config, models, trained, unseen, shares):
        fold = kept["fold"]
        kept["names"] = np.array(list(unseen.error))
        kept[f"{fold}.error"] = np.stack(list(unseen.error.values()), axis=1)
        kept[f"{fold}.group"], kept[f"{fold}.inner_variance"] = unseen.group, unseen.variance
        kept[f"{fold}.predicted"] = np.stack(
            [models.predicted[name].astype(np.float32) for name in unseen.error]
        )
        head = COMBINE(training, config, models, trained, unseen, shares)
        kept[f"{fold}.variance"] = head.variance
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **kept)
        return head

    fitted._predict_unseen, fitted._combine = unseen_of, combine_of


def describe_split(split, found):
    """Markdown lines of one split: scores, differences and coverage of each head."""
    runs = {head: read_run(run) for head, (run, _) in found.items() if isinstance(run, Path)}
    lines = [f"### {split}", ""]
    lines += [f"- {head}: refused: {run}" for head, (run, _) in found.items() if head not in runs]
    if not runs:
        return [*lines, ""]
    first = next(iter(runs.values()))
    lines += [*_score_lines(runs, found, first), ""]
    lines += [*_difference_lines(runs), "", *_sigma_lines(runs), ""]
    return lines


def _score_lines(runs, found, first):
    yield "| | seconds per fold | " + " | ".join(METRICS) + " |"
    yield "|---" * (len(METRICS) + 2) + "|"
    for head, run in runs.items():
        seconds = f"{run.summary['seconds'] / len(run.splits):.2f}"
        spread = run.summary.get("cv", {}).get("head", {})
        yield _row(head, seconds, run.summary["metrics"]["test"], spread)
    for name, parts in first.summary["baselines"].items():
        yield _row(f"*{name}*", "", parts["test"], first.summary.get("cv", {}).get(name, {}))
    walls = ", ".join(f"{head} {found[head][1]:.0f} s" for head in runs)
    yield ""
    yield f"Whole commands, baselines included: {walls}."
    for head, run in runs.items():
        shares = ", ".join(f"{n} {share:.2f}" for n, share in run.summary["shares"].items())
        if len(run.summary["shares"]) > 1:
            yield f"Weights of {head}, mean of the folds: {shares}."


def _row(name, seconds, scores, spread):
    cells = []
    for metric in METRICS:
        value, sd = scores.get(metric), spread.get(metric, {}).get("sd")
        text = "-" if value is None else f"{value:.3f}"
        cells.append(text if value is None or sd is None else f"{text} ± {sd:.2f}")
    return f"| {name} | {seconds} | " + " | ".join(cells) + " |"


def _difference_lines(runs):
    """Verdicts on every two heads by RMSE, and the folds in which the first is better."""
    heads = list(runs)
    for k, head in enumerate(heads):
        for other in heads[:k]:
            a, b = runs[head], runs[other]
            interval = compare(a.pairs, a.splits, a.predicted, b.predicted, "rmse")
            tests = [np.flatnonzero((s.part == 2) & (a.pairs.censored == 0)) for s in a.splits]
            better = sum(
                np.square(x[rows] - a.pairs.pkd[rows]).mean()
                < np.square(y[rows] - a.pairs.pkd[rows]).mean()
                for x, y, rows in zip(a.predicted, b.predicted, tests, strict=True)
            )
            yield f"- {verdict(head, other, 'rmse', interval)} {better} of {len(tests)} folds."


def _sigma_lines(runs):
    yield (
        "| sigma | calibrated | "
        + " | ".join(f"{n} %" for n in LEVELS)
        + " | worst fold, 90 % | rank correlation with the error |"
    )
    yield "|---" * (len(LEVELS) + 4) + "|"
    for head, run in runs.items():
        sigma = run.summary["sigma"]
        shares = [sigma["coverage"][level] for level in LEVELS]
        worst = min((x for x in sigma["coverage_folds"]["90"] if x is not None), default=None)
        numbers = [*shares, worst, sigma["error_spearman"]]
        cells = " | ".join("-" if x is None else f"{x:.2f}" for x in numbers)
        yield f"| {head} | {'yes' if sigma['calibrated'] else 'no'} | {cells} |"


def main(arguments=None):
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--planted", type=int, default=0, metavar="PAIRS")
    parser.add_argument("--antibody-encoder")
    parser.add_argument("--antigen-encoder")
    parser.add_argument("--label", default="pkd")
    parser.add_argument("--column", nargs="*", default=[], metavar="ROLE=NAME")
    parser.add_argument("--split", nargs="+", default=list(SPLITS))
    parser.add_argument("--head", nargs="+", default=list(HEADS))
    parser.add_argument("--folds", type=int, default=5, help="0: one split")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="60 planted pairs, 2 folds")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return _measure(a, Path(folder), arguments)


def _measure(a, folder, arguments):
    options = {
        "folds": a.folds, "repeats": a.repeats if a.folds else 1, "preset": a.preset,
        "antibody_encoder": a.antibody_encoder, "antigen_encoder": a.antigen_encoder,
        "label": a.label, "columns": dict(one.split("=", 1) for one in a.column),
        "limit": a.limit, "seed": a.seed, "device": a.device,
    }  # fmt: skip
    if a.tiny:
        a.planted, a.split, a.head = 60, ["random"], ["mlp", "kernel", "stack"]
        options |= {"folds": 2, "repeats": 1, "epochs": 2, "widths": (4,), "device": "cpu"}
    table, store = planted_table(a.planted, folder) if a.planted else (a.table, a.store)
    todo = [(split, head) for split in a.split for head in a.head]
    with ProcessPoolExecutor(a.workers, mp_context=get_context("spawn")) as pool:
        jobs = {}
        for split, head in todo:
            own = dict(options)
            if split.startswith(("mutations", "column", "file")):
                own |= {"folds": 0, "repeats": 1}
            own = {name: value for name, value in own.items() if is_used(name, head)}
            jobs[split, head] = pool.submit(fit_one, table, store, split, head, folder, a.out, own)
        found = {key: job.result() for key, job in jobs.items()}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    lines = [
        f"# Heads and baselines on the same folds: {table.name}",
        "",
        f"`bench_heads.py {' '.join(map(str, arguments or sys.argv[1:]))}`, {date.today()}, "
        f"{platform.machine()} {device}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}, abag {abag.__version__}. Mean ± sd over folds, each scored by itself.",
        "",
    ]
    for split in a.split:
        lines += describe_split(split, {head: found[split, head] for head in a.head})
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "heads.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
