"""Measure the cost of the store: finding keys, reading vectors, committing and checking them.

    python benchmarks/bench_store.py --folder /tmp

Uses the public interface only, so that it also measures other checkouts: put one on PYTHONPATH, as
a folder that holds it under the name abag. Prints JSON; each time is the shortest of several, with
--cpu in seconds of this process's CPU time, which says more on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

import abag
from abag.embed.store.care import verify
from abag.embed.store.store import open_store

INFO = {"name": "bench", "fingerprint": "be" * 16}
BATCH = 4000


clock = time.process_time if "--cpu" in sys.argv else time.perf_counter


def timed(work) -> float:
    """Return the seconds that a call takes."""
    start = clock()
    work()
    return clock() - start


def best(work, times: int) -> float:
    """Return the seconds of the fastest of several calls."""
    return round(min(timed(work) for _ in range(times)), 4)


def keys_of(start: int, stop: int) -> np.ndarray:
    """Return distinct keys that look random, without holding all of them."""
    rows = np.arange(start, stop, dtype=np.uint64)
    words = np.stack([(rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15), rows], axis=1)
    return words.view(np.uint8).reshape(-1, 16)


def make_store(path: Path, rows: int, width: int):
    """Commit rows in shards of BATCH."""
    folder = open_store(path, create=True).create_folder("antibody", INFO)
    vectors = np.random.default_rng(0).standard_normal((BATCH, width)).astype(np.float16)
    with folder.writer(attrs={"precision": "none"}, commit_rows=BATCH) as out:
        for at in range(0, rows, BATCH):
            keys = keys_of(at, min(at + BATCH, rows))
            out.add(keys, np.full(len(keys), 100), {"mean": vectors[: len(keys)]})


def folder_of(path: Path):
    """Open a store afresh: nothing is indexed yet."""
    return open_store(path).folder("antibody")


def evict(path: Path) -> None:
    """Drop the shards from the page cache, so that the next read is from the disk."""
    for shard in path.glob("*/*.h5"):
        with shard.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bench_vectors(path: Path, rows: int, width: int, times: int) -> dict[str, object]:
    """Time reading all vectors, some of them in random order, and checking every byte."""
    write_s = timed(lambda: make_store(path, rows, width))
    rng = np.random.default_rng(1)
    keys = keys_of(0, rows)
    few = rng.choice(rows, min(rows, 20_000), replace=False)
    shuffled = rng.permutation(keys)
    first_key = keys[:1]
    folder = folder_of(path)
    folder.read(first_key)

    def cold() -> None:
        evict(path)
        cold_s.append(timed(lambda: folder.read(keys)))

    cold_s: list[float] = []
    for _ in range(times):
        cold()
    return {
        "rows": rows,
        "width": width,
        "shards": len(list(path.glob("*/*.h5"))),
        "bytes": sum(shard.stat().st_size for shard in path.glob("*/*.h5")),
        "write_s": round(write_s, 3),
        "read_float16_s": best(lambda: folder.read_array(keys, "mean", np.float16), times),
        "read_float32_s": best(lambda: folder.read(keys), times),
        "read_float32_cold_s": round(min(cold_s), 4),
        "read_shuffled_float32_s": best(lambda: folder.read(shuffled), times),
        "read_20000_random_rows_s": best(lambda: folder.read(keys[few]), times),
        "read_one_row_s": best(lambda: folder.read(first_key), 20 * times),
        "verify_s": best(lambda: verify(open_store(path)), times),
        "missing_verify_s": best(lambda: folder_of(path).missing(keys, verify=True), times),
    }


def bench_keys(path: Path, rows: int, times: int) -> dict[str, object]:
    """Time opening a store, and which of as many keys, half of them absent, it lacks."""
    make_store(path, rows, 2)
    asked = np.random.default_rng(1).permutation(keys_of(rows // 2, rows // 2 + rows))
    assert folder_of(path).missing(asked).sum() == rows // 2
    return {
        "rows": rows,
        "shards": len(list(path.glob("*/*.h5"))),
        "keys_s": best(lambda: folder_of(path).keys(), times),
        "missing_s": best(lambda: folder_of(path).missing(asked), times),
    }


def main() -> None:
    """Time the store, and print the results as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small sizes: does it still run?")
    parser.add_argument("--cpu", action="store_true", help="measure CPU time")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to create the temporary stores")
    options = parser.parse_args()
    vectors, keys = ((5000, 16), 5000) if options.quick else ((114_688, 1024), 1_000_000)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        report = {
            "checkout": str(Path(abag.__file__).parent),
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "h5py": f"{h5py.__version__}, HDF5 {h5py.version.hdf5_version}",
            "load": round(os.getloadavg()[0], 1),
            "clock": clock.__name__,
            "vectors": bench_vectors(Path(folder) / "vectors", *vectors, options.times),
            "keys": bench_keys(Path(folder) / "keys", keys, options.times),
        }
    report["peak_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    json.dump(report, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
