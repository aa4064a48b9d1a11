"""Score the network and the stack with fewer epochs and with early stopping; time them, too.

Vectors are residue compositions, which need no download. Each line of the output is one fit.

    python benchmarks/bench_patience.py TABLE ... --label pKd --rows 2000 --out scores.jsonl
        [--head stack] [--setting 0 1]
    python benchmarks/bench_patience.py --tiny --out scores.jsonl

Early stopping pays if the errors of no regime rise by more than half a percent. Errors of networks
with other seeds (``--seeds``) say how large chance is.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import pandas as pd

import abag
from abag.core.messages import reporting
from abag.head.demo import demo_table

COMPOSITION = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
HEADS = ("mlp", "stack")
SETTINGS = ((50, 0), (50, 10), (30, 0), (30, 10), (20, 0), (20, 10), (30, 6), (30, 7))
"""Epochs and patience; the first are compared with."""


def measure(name, frame, label, settings, given, split):
    """Yield a line for each head, number of epochs, patience and seed."""
    with tempfile.TemporaryDirectory() as folder, reporting(silent=True, bars=False):
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        abag.embed_table(frame, f"{folder}/store", bad_rows="skip", **COMPOSITION)
        number = 0
        for head in given.head:
            for seed in range(given.seeds):
                for epochs, patience in settings:
                    number += 1
                    started = time.perf_counter()
                    cpu = time.process_time()
                    summary = abag.fit(
                        frame,
                        f"{folder}/store",
                        f"{folder}/run-{number}",
                        head=head,
                        epochs=epochs,
                        patience=patience,
                        seed=seed,
                        split=split,
                        split_seed=0,
                        report=False,
                        columns={"pkd": label},
                        bad_rows="skip",
                    )
                    yield {
                        "table": name,
                        "pairs": len(frame),
                        "head": head,
                        "epochs": epochs,
                        "patience": patience,
                        "seed": seed,
                        "steps": summary["steps"],
                        "epochs_of_all_pairs": summary["epochs"],
                        "cores": len(os.sched_getaffinity(0)),
                        "seconds": round(time.perf_counter() - started, 1),
                        "cpu_seconds": round(time.process_time() - cpu, 1),
                        "rmse": {
                            regime["regime"]: round(regime["rmse"], 4)
                            for regime in summary["regimes"]
                        },
                    }


def main():
    """Measure the tables given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="*", help="CSV files, or .csv.gz")
    parser.add_argument("--label", default="pKd", help="column of the label")
    parser.add_argument("--drop", nargs="*", default=[], help="columns that are not read")
    parser.add_argument("--rows", type=int, default=2_000, help="random rows of each table")
    parser.add_argument("--seeds", type=int, default=1, help="networks with other seeds")
    parser.add_argument("--head", nargs="+", choices=HEADS, default=HEADS)
    parser.add_argument(
        "--setting",
        type=int,
        nargs="+",
        choices=range(len(SETTINGS)),
        default=range(len(SETTINGS)),
        help="numbers in SETTINGS",
    )
    parser.add_argument("--tiny", action="store_true", help="60 rows of the demo table, 2 epochs")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    tables = [
        (path.name, pd.read_csv(path).drop(columns=arguments.drop), arguments.label)
        for path in arguments.tables
    ]
    settings = [SETTINGS[at] for at in arguments.setting]
    rows = arguments.rows
    split = "auto"  # all regimes
    if arguments.tiny:
        split = "random"
        tables = [("demo", demo_table(), "pKd")]
        settings = ((2, 0), (2, 1))
        rows = 60
    for name, frame, label in tables:
        sample = frame.sample(min(rows, len(frame)), random_state=0).reset_index(drop=True)
        for row in measure(name, sample, label, settings, arguments, split):
            line = json.dumps(row)
            print(line, flush=True)
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
