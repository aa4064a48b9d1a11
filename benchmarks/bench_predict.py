"""Measure time and memory of `abag predict`, for --cross and for tables of different lengths.

    python benchmarks/bench_predict.py --out FOLDER [--cross N] [--pairs P ...] [--tiny]
    python benchmarks/bench_predict.py --out FOLDER --mutants R ... [--head NAME] [--python NAME=PATH ...]

Vectors are random and have the real widths (1,024 and 1,280), and the head is trained on random labels:
speed and memory do not depend on them. Every case runs in its own process, which reports its peak
resident memory.

With --mutants, tables of R pairs and R / 5 mutants of the demo's antibodies are predicted instead, with
stored vectors of `composition`: random sequences have no IMGT numbers, whose counting takes time. Each
Python of --python, which has its own abag, predicts the same tables.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import abag
from abag.embed.store.store import open_store
from abag.embed.tables.pairs import read_pairs
from abag.head.demo import demo_table

RESIDUES = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
WIDTHS = {"antibody": 1024, "antigen": 1280}
ROWS_PER_MUTANT = 5
CHANGES = 3
# VmHWM, since getrusage and wait4 would count the peak of this process, its parent
SCRIPT = """
import atexit, sys
from pathlib import Path

def print_peak():
    print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0], file=sys.stderr)

atexit.register(print_peak)
sys.argv[0] = "abag"
from abag.cli import main
main()
"""


def random_sequences(rng, n, length):
    """Draw sequences of equal length."""
    return ["".join(row) for row in rng.choice(RESIDUES, (n, length))]


def make_tables(folder, antibodies, antigens):
    """Write two tables of distinct sequences of typical lengths."""
    rng = np.random.default_rng(0)
    left = pd.DataFrame(
        {
            "name": [f"ab-{i}" for i in range(antibodies)],
            "heavy": random_sequences(rng, antibodies, 120),
            "light": random_sequences(rng, antibodies, 108),
        }
    )
    right = pd.DataFrame({"antigen": random_sequences(rng, antigens, 300)})
    left.to_csv(folder / "antibodies.csv", index=False)
    right.to_csv(folder / "antigens.csv", index=False)
    return left, right


def fill_store(folder, left, right, widths):
    """Write random vectors of all sequences to a store; return pairs to train on."""
    rows = max(len(left), len(right))
    frame = pd.concat(
        [
            left.iloc[np.arange(rows) % len(left)].reset_index(drop=True),
            right.iloc[np.arange(rows) % len(right)].reset_index(drop=True),
        ],
        axis=1,
    )
    table = read_pairs(frame)
    store = open_store(folder / "store", create=True)
    rng = np.random.default_rng(1)
    for kind, unique in (("antibody", table.antibodies), ("antigen", table.antigens)):
        encoder = store.create_folder(kind, {"name": "drawn", "fingerprint": "ab" * 16})
        with encoder.writer(attrs={"precision": "fp32"}) as writer:
            for at in range(0, len(unique.keys), 4096):
                keys = unique.keys[at : at + 4096]
                x_ND = rng.normal(size=(len(keys), widths[kind])).astype(np.float32)
                writer.add(keys, np.full(len(keys), 200, np.int32), {"mean": x_ND})
    return frame.head(400)  # clustering more would take longer than predicting


def pairs_table(path, left, right, pairs):
    """Write a table of random pairs, in parts to limit memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(2)
    writer = None
    for at in range(0, pairs, 500_000):
        n = min(500_000, pairs - at)
        part = pd.concat(
            [
                left.iloc[rng.integers(len(left), size=n)].reset_index(drop=True),
                right.iloc[rng.integers(len(right), size=n)].reset_index(drop=True),
            ],
            axis=1,
        )
        table = pa.Table.from_pandas(part, preserve_index=False)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()


def mutants_table(path, pairs):
    """Write a table of random pairs of mutants of the demo's antibodies; return it."""
    rng = np.random.default_rng(2)
    demo = demo_table()
    parents = demo[["heavy", "light"]].drop_duplicates()
    antigens = demo["antigen"].unique()
    drawn = parents.iloc[rng.integers(len(parents), size=pairs // ROWS_PER_MUTANT)]
    mutants = drawn.map(lambda chain: mutate(rng, chain))
    table = mutants.iloc[rng.integers(len(mutants), size=pairs)]
    table = table.assign(antigen=antigens[rng.integers(len(antigens), size=pairs)])
    table.to_csv(path, index=False)
    return table


def mutate(rng, chain):
    """Change some residues of a chain."""
    residues = list(chain)
    for at in rng.integers(len(chain), size=CHANGES) if chain else ():
        residues[at] = rng.choice(RESIDUES)
    return "".join(residues)


def timed(folder, *arguments, python=sys.executable):
    """Run a command; return its seconds, processor seconds and peak GiB."""
    command = [python, "-c", SCRIPT, *map(str, arguments)]
    begun = time.perf_counter()
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = child.stderr.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(errors)
    busy = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - begun, busy, int(errors.split()[-1]) / 2**20


def main() -> None:
    """Time `abag predict` on crosses, tables and mutants, and write a report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cross", type=int, default=1000, help="antibodies, and antigens")
    parser.add_argument("--pairs", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--antibodies", type=int, default=10_000, help="distinct, in the pairs")
    parser.add_argument("--mutants", type=int, nargs="*", default=[], help="pairs of mutants")
    parser.add_argument("--head", default="ridge", help="of the predictor for --mutants")
    parser.add_argument("--python", nargs="*", default=[f"this={sys.executable}"])
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a quick check")
    args = parser.parse_args()
    if args.tiny:
        args.cross = 20
        args.pairs = [300]
        args.antibodies = 30
    if args.mutants:
        pythons = dict(argument.split("=", 1) for argument in args.python)
        with tempfile.TemporaryDirectory(prefix="abag-bench-") as name:
            rows = [*mutants(Path(name), args.mutants, args.head, pythons)]
        about = f"Stored vectors of `composition`, head `{args.head}`; tables are read as CSV"
        write_report(args.out, rows, f"{about} and written as Parquet. Times include imports.")
        return
    widths = dict.fromkeys(WIDTHS, 8) if args.tiny else WIDTHS
    rows = []
    with tempfile.TemporaryDirectory(prefix="abag-bench-") as name:
        folder = Path(name)
        left, right = make_tables(folder, args.antibodies, args.cross)
        measured = fill_store(folder, left, right, widths)
        measured["pKd"] = np.random.default_rng(3).normal(8, 1, len(measured))
        abag.fit(
            measured,
            folder / "store",
            folder / "run",
            split="random",
            head="mlp",
            epochs=1,
            device="cpu",
            report=False,
            say=lambda _: None,
        )
        rows += crosses(folder, left, args.cross)
        rows += tables(folder, left, right, args.pairs)
    about = "Random vectors of the real widths, preset `small`, one member. Times include imports. "
    write_report(args.out, rows, f"{about}Tables of pairs are read and written as Parquet.")


def crosses(folder, left, n):
    """Time the prediction of every antibody with every antigen."""
    left.head(n).to_csv(folder / "few.csv", index=False)
    for kind in ("parquet", "csv"):
        out = folder / f"crossed.{kind}"
        took = timed(
            folder, "predict", "few.csv", "--run", "run", "--cross", "antigens.csv", "--out", out
        )
        yield f"--cross, {n:,} x {n:,}, to {kind}", n * n, *took, out.stat().st_size


def tables(folder, left, right, sizes):
    """Time the prediction of tables of pairs."""
    for pairs in sizes:
        pairs_table(folder / "pairs.parquet", left, right, pairs)
        out = folder / "scored.parquet"
        took = timed(folder, "predict", "pairs.parquet", "--run", "run", "--out", out, "--force")
        yield (
            f"table of {pairs:,} pairs, {len(left):,} antibodies",
            pairs,
            *took,
            out.stat().st_size,
        )


def mutants(folder, sizes, head, pythons):
    """Time the prediction of mutants of a few antibodies, with each Python."""
    encoders = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
    abag.embed_table(demo_table(), folder / "store", **encoders)
    abag.fit(
        demo_table(), folder / "store", folder / "run", split="random", head=head, report=False
    )
    for pairs in sizes:
        table = mutants_table(folder / "mutants.csv", pairs)
        antibodies = len(table[["heavy", "light"]].drop_duplicates())
        abag.embed_table(table, folder / "store", **encoders)
        for name, python in pythons.items():
            out = folder / "scored.parquet"
            took = timed(
                folder,
                "predict",
                "mutants.csv",
                "--run",
                "run",
                "--out",
                out,
                "--force",
                python=python,
            )
            title = f"{name}: table of {pairs:,} pairs, {antibodies:,} antibodies"
            yield title, pairs, *took, out.stat().st_size


def write_report(out, rows, about):
    """Write the times as a table in Markdown."""
    lines = [
        "# abag predict: seconds and memory",
        "",
        f"{date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"torch on {torch.get_num_threads()} thread(s). Python {platform.python_version()}, "
        f"torch {torch.__version__}, pandas {pd.__version__}.",
        "",
        f"    python benchmarks/bench_predict.py {' '.join(sys.argv[1:])}",
        "",
        about,
        "",
        "| what | pairs | s | processor s | pairs per processor s | peak RSS, GiB | output, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, pairs, seconds, busy, peak, size in rows:
        lines.append(
            f"| {title} | {pairs:,} | {seconds:.1f} | {busy:.1f} | {pairs / busy:,.0f} | {peak:.2f} | "
            f"{size / 1e6:,.0f} |"
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / "predict.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
