"""Time the default `abag fit` of tables: seconds, CPU seconds, memory, and the errors it promises.

Vectors are residue compositions, which need no download, or random ones as wide as those of language
models. Clusters and numbering are not cached.

    python benchmarks/bench_default_fit.py FOLDER --out times.jsonl [--only hiv rbd] [--widths 1024 1280]
    python benchmarks/bench_default_fit.py --tiny --out times.jsonl

FOLDER has tables as `TABLES` names them. To compare two versions, run the script once with each of
them on PYTHONPATH, on as many cores (`taskset -c 0,1`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import bench_rows
import pandas as pd

import abag
from abag.core.messages import reporting
from abag.head.demo import demo_table

TABLES = {
    "skempi": ("skempi_measurements.csv", "pKd", 10_000),
    "rbd": ("rbd_escape.csv.gz", "pKd", 2_000),
    "hiv": ("hiv_ic50_seen.csv.gz", "pIC50", 4_900),
    "her2": ("alphabind_her2.csv.gz", "pKd", 11_000),
    "her2, 100 pairs": ("alphabind_her2.csv.gz", "pKd", 100),
}
"""File, column of the label, and random rows that are used."""
COMPOSITION = {"antibody_encoder": "composition", "antigen_encoder": "composition"}


def measure(name, frame, label, widths):
    """Fit a table in an empty folder; return times and promised errors."""
    columns = {"columns": {"pkd": label}, "bad_rows": "skip"}
    with tempfile.TemporaryDirectory() as folder, reporting(silent=True, bars=False):
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        if widths:
            bench_rows.WIDTHS = dict(zip(("antibody", "antigen"), widths, strict=True))
            bench_rows.fill(f"{folder}/store", frame)
        else:
            abag.embed_table(frame, f"{folder}/store", bad_rows="skip", **COMPOSITION)
        started = time.perf_counter()
        cpu = time.process_time()
        summary = abag.fit(frame, f"{folder}/store", f"{folder}/run", **columns)
        return {
            "table": name,
            "pairs": len(frame),
            "widths": widths,
            "cores": len(os.sched_getaffinity(0)),
            "seconds": round(time.perf_counter() - started, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "rmse": {one["regime"]: round(one["rmse"], 4) for one in summary["regimes"]},
        }


def main():
    """Measure the tables that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", default=[*TABLES])
    parser.add_argument("--tiny", action="store_true", help="60 rows of the demo table")
    parser.add_argument("--widths", type=int, nargs=2, help="of random vectors of both sides")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    tables = {"demo": (demo_table(), "pKd", 60)} if given.tiny else {}
    for name, (file, label, rows) in TABLES.items():
        if given.folder is not None and name in given.only:
            frame = pd.read_csv(given.folder / file).drop(columns="ic50_ug_per_ml", errors="ignore")
            tables[name] = frame, label, rows
    for name, (frame, label, rows) in tables.items():
        sample = frame.sample(min(rows, len(frame)), random_state=0).reset_index(drop=True)
        line = json.dumps(measure(name, sample, label, given.widths))
        print(line, flush=True)
        with given.out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
