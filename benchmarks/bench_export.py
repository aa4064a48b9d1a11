"""Measure `abag store export`: seconds, memory and size per format, and reading the files back.

    python benchmarks/bench_export.py --out benchmarks/results

Each export and each reading is a process of its own. The files are read back by NumPy, pyarrow, anndata and pandas
and compared with the store. The vectors are random.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import abag
from abag.embed.store.store import open_store

ROWS_PER_SHARD = 4096
INFO = {"name": "bench", "fingerprint": "be" * 16}


def make_store(path: Path, rows: int, width: int) -> None:
    """Fill a store with random float16 vectors under random keys."""
    rng = np.random.default_rng(0)
    folder = open_store(path, create=True).create_folder("antigen", INFO)
    with folder.writer(attrs={"precision": "none"}) as out:
        for at in range(0, rows, ROWS_PER_SHARD):
            n = min(ROWS_PER_SHARD, rows - at)
            keys = rng.integers(0, 256, (n, 16), np.uint8)
            vectors = rng.standard_normal((n, width), np.float32).astype(np.float16)
            out.add(keys, np.full(n, 100), {"mean": vectors})


def read_back(path: Path) -> np.ndarray:
    """Read the vectors, (N, D), with the usual library of each format."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return file["vectors"]
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        column = pq.read_table(path, columns=["vector"])["vector"].combine_chunks()
        return column.flatten().to_numpy().reshape(len(column), -1)
    if path.suffix == ".h5ad":
        import anndata

        return anndata.read_h5ad(path).X
    import pandas

    return pandas.read_csv(path, dtype={"antigen_key": str}).iloc[:, 2:].to_numpy(np.float32)


def work(task: str, store: Path, path: Path) -> dict:
    """Export or read in this process."""
    start = time.perf_counter()
    if task == "export":
        abag.export_vectors(store, path, say=lambda _: None)
    else:
        vectors = read_back(path)
    seconds = time.perf_counter() - start
    figures = {
        "seconds": seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if task == "read":
        folder = open_store(store).folder("antigen")
        keys = np.concatenate(folder.keys())
        figures["equal"] = bool(
            np.array_equal(vectors, folder.read_array(keys, "mean", np.float16))
        )
    return figures


def main() -> None:
    """Time the export of a store's vectors and their reading, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    parser.add_argument("--name", default="export")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=1_024)
    parser.add_argument("--tiny", action="store_true", help="a few rows, to test the script")
    parser.add_argument("--task", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(work(options.task[0], *map(Path, options.task[1:]))))
        return
    rows, width = (200, 8) if options.tiny else (options.rows, options.width)
    lines = []
    with tempfile.TemporaryDirectory(prefix="abag-export-") as folder:
        store = Path(folder) / "store"
        make_store(store, rows, width)
        idle_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        for suffix in (".npz", ".parquet", ".h5ad", ".csv"):
            path = Path(folder) / f"vectors{suffix}"
            figures = {}
            for task in ("export", "read"):
                command = [sys.executable, __file__, "--task", task, str(store), str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                figures[task] = json.loads(done.stdout)
            out = figures["export"]
            back = figures["read"]
            assert back["equal"], suffix
            lines.append(
                f"| {suffix} | {out['seconds']:.2f} | {out['peak_mib']:,.0f} | "
                f"{path.stat().st_size / 2**20:,.0f} | {back['seconds']:.2f} | {back['peak_mib']:,.0f} |"
            )
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("numpy", "pandas", "pyarrow", "h5py", "anndata")
    )
    report = f"""# Export of stored vectors: {rows:,} x {width:,}, float16

`python benchmarks/bench_export.py`, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} CPU cores ({platform.machine()}),
Python {platform.python_version()}, {versions}. The store takes {rows * width * 2 / 2**20:,.0f} MiB of vectors. Every export and
every reading is a process of its own; the seconds do not include its start. Peak is that of the process, imports included
(the process that made the store: {idle_mib:,.0f} MiB). All files were read back equal to the store, bit for bit; CSV after reading
as float32.

| file | export s | peak MiB | size MiB | read s | peak MiB |
|---|---:|---:|---:|---:|---:|
{chr(10).join(lines)}
"""
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{options.name}.md").write_text(report)
    print(report)


if __name__ == "__main__":
    main()
