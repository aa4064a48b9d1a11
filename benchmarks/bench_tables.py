"""Measure speed and memory of `abag embed`, without the encoders, against the number of rows.

    python benchmarks/bench_tables.py --out DIR [--rows 3e5,1e6,1e7] [--gib 4] [--scratch DIR] [--tiny]

Each table is a folder of Parquet files with a new antibody in every row. A child process with at most
--gib GiB of address space reads it, finds the distinct sequences and what the empty store lacks, and
iterates over all of it like the encoders, without encoding. Another one only reads: from the file to
the distinct sequences in parts. To measure another checkout, link it as `abag` in a folder and give
that folder as PYTHONPATH. With --excel FILE, the CPU seconds that openpyxl, pandas and abag take to read
an Excel file are printed, and nothing else is done.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

LETTERS = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
FILE_ROWS = 1_000_000
ANTIGENS = 20_000


def random_chains(rng, rows, length):
    """Draw a column of sequences of equal length."""
    data = LETTERS[rng.integers(0, 20, (rows, length), dtype=np.uint8)]
    offsets = np.arange(0, (rows + 1) * length, length, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def write_table(folder, rows):
    """Heavy chains of 121 and light ones of 108 residues; antigens of 30 to 1,022."""
    rng = np.random.default_rng(0)
    lengths = np.clip(300 * np.exp(0.6 * rng.standard_normal(ANTIGENS)), 30, 1022).astype(int)
    antigens = pa.array([random_chains(rng, 1, n)[0].as_py() for n in lengths])
    folder.mkdir(parents=True)
    for start in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - start)
        columns = {
            "heavy": random_chains(rng, count, 121),
            "light": random_chains(rng, count, 108),
            "antigen": antigens.take(pa.array(rng.integers(0, ANTIGENS, count))),
            "pKd": rng.normal(8, 1, count),
        }
        path = folder / f"{start // FILE_ROWS:04}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=200_000)


def peak_mib():
    """Peak resident memory since this program started; getrusage would count its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def walk(table, store, gib):
    """Embed with the encoders left out; print what that took."""
    from abag.embed import encode as encode_module
    from abag.embed.embed import embed_table

    imported_mib = peak_mib()
    resource.setrlimit(resource.RLIMIT_AS, (int(gib * 2**30),) * 2)
    walked = []

    def encode(job, *_):
        walked.append(sum(len(part.chains) for part in job.own_parts()))
        return 0.0

    encode_module.encode_share = encode
    start_s = time.process_time()
    summary = embed_table(table, store, "composition", "composition", device="cpu")
    cpu_s = time.process_time() - start_s
    assert walked == [summary[p]["unique"] for p in ("antibodies", "antigens")]
    print(
        json.dumps(
            {
                "rows": summary["rows"],
                "unique": walked,
                "cpu_s": cpu_s,
                "imported_mib": imported_mib,
                "peak_mib": peak_mib(),
            }
        )
    )


def read(table):
    """Read a table into parts of distinct sequences; print the CPU seconds."""
    from abag.embed.tables.layout import Layout
    from abag.embed.tables.options import TableOptions
    from abag.embed.tables.pairs import Partitions, check_chunks

    start_s = time.process_time()
    with Partitions("antibody") as antibodies, Partitions("antigen") as antigens:
        for chunk in check_chunks(Layout.of(table, TableOptions())):
            antibodies.add(chunk.antibodies)
            antigens.add(chunk.antigens)
        for kind in (antibodies, antigens):
            assert sum(len(part.chains) for part in kind.parts())
    print(json.dumps({"read_cpu_s": time.process_time() - start_s, "read_peak_mib": peak_mib()}))


def read_excel(path):
    """Print the CPU seconds of an Excel file: iterating over its rows, in pandas and in abag."""
    import openpyxl

    from abag.embed.tables.pairs import read_pairs

    def iterate(path):
        (sheet,) = openpyxl.load_workbook(path, read_only=True).worksheets
        for _ in sheet.iter_rows(values_only=True):
            pass

    found = {}
    for name, function in (("openpyxl", iterate), ("pandas", pd.read_excel), ("abag", read_pairs)):
        start_s = time.process_time()
        function(path)
        found[f"{name}_cpu_s"] = round(time.process_time() - start_s, 2)
    print(json.dumps(found))


def draw(rows, path):
    """Draw time and memory by rows."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    axes.semilogx([r["rows"] for r in rows], [r["peak_mib"] for r in rows], "o-", label="peak")
    axes.axhline(rows[0]["imported_mib"], color="grey", ls=":", label="after the imports")
    axes.set(xlabel="rows, every antibody another", ylabel="resident memory, MiB", ylim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=80)


def main(argv=None):
    """Time the reading of large tables, and write a report and a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required="--excel" not in (argv or sys.argv))
    parser.add_argument("--rows", default="3e5,1e6,1e7")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--scratch", type=Path, help="Keep the tables here; 10^7 rows take 6 GB.")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--excel", type=Path, help="Read this file only.")
    parser.add_argument("--walk", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.excel:
        read_excel(args.excel)
        return
    if args.walk:
        walk(*args.walk, args.gib)
        return
    if args.read:
        read(args.read)
        return
    sizes = [1000, 2000] if args.tiny else [int(float(text)) for text in args.rows.split(",")]
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
            table = (args.scratch or Path(folder)) / f"table-{size}"
            if not table.exists():
                write_table(table, size)
            command = [sys.executable, __file__, "--out", args.out, "--gib", str(args.gib)]
            results = {}
            for stage in (["--read", table], ["--walk", table, Path(folder) / "store"]):
                done = subprocess.run(
                    [*command, *stage], check=True, capture_output=True, text=True
                )
                results |= json.loads(done.stdout)
            rows.append(results)
            print(rows[-1], file=sys.stderr, flush=True)
    lines = [
        f"# Speed and memory of reading tables on {platform.machine()}, {date.today()}",
        "",
        f"At most {args.gib:g} GiB may be mapped; "
        f"`python benchmarks/bench_tables.py --rows {args.rows} --gib {args.gib:g}`. Python "
        f"{platform.python_version()}, pyarrow {pa.__version__}, pandas {pd.__version__}",
        "",
        "| rows | unique antibodies, antigens | reading, rows per CPU second | peak resident MiB | all but the encoders, rows per CPU second | peak resident MiB | of which the imports |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['rows']:,} | {r['unique'][0]:,}, {r['unique'][1]:,} | "
        f"{r['rows'] / r['read_cpu_s']:,.0f} | {r['read_peak_mib']:,.0f} | "
        f"{r['rows'] / r['cpu_s']:,.0f} | {r['peak_mib']:,.0f} | {r['imported_mib']:,.0f} |"
        for r in rows
    ]
    if len(rows) > 1:
        slope = (rows[-1]["peak_mib"] - rows[-2]["peak_mib"]) * 2**20
        slope /= rows[-1]["rows"] - rows[-2]["rows"]
        lines += ["", f"Slope between the last two: {slope:.1f} bytes a row."]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "tables.md").write_text("\n".join(lines) + "\n")
    draw(rows, args.out / "tables.png")


if __name__ == "__main__":
    main()
