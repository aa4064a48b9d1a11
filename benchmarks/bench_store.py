"""Measure the cost of the store: finding keys, reading vectors, committing them.

    python benchmarks/bench_store.py --out benchmarks/results/store_HARDWARE_DATE

Each result is compared with plain reading or writing of the same bytes in the same run. Writes OUT.json
and OUT.png, and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from abag.embed.shards.shard import check_file
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.store import open_store

INFO = {"name": "bench", "fingerprint": "be" * 16}
ROWS = 4096


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best(work, times: int) -> float:
    return min(timed(work) for _ in range(times))


def keys_of(start: int, stop: int) -> np.ndarray:
    """Return distinct keys that look random, without holding all of them."""
    rows = np.arange(start, stop, dtype=np.uint64)
    words = np.stack([(rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15), rows], axis=1)
    return words.view(np.uint8).reshape(-1, 16)


def fill(folder: EncoderFolder, stop: int, width: int) -> None:
    """Add rows until there are `stop`."""
    vectors = np.random.default_rng(0).standard_normal((ROWS, width)).astype(np.float16)
    with folder.writer(attrs={"precision": "none"}) as out:
        for at in range(folder.rows, stop, ROWS):
            keys = keys_of(at, min(at + ROWS, stop))
            out.add(keys, np.full(len(keys), 100), {"mean": vectors[: len(keys)]})


def reopened(folder: EncoderFolder) -> EncoderFolder:
    return open_store(folder.path.parent).folder("antibody")


def bench_keys(root: Path, sizes: list[int]) -> list[dict]:
    """Time which of n keys, half of them absent, are missing among n stored ones."""
    folder = open_store(root, create=True).create_folder("antibody", INFO)
    figures = []
    for n in sizes:
        fill(folder, n, 2)
        asked = np.random.default_rng(1).permutation(keys_of(n // 2, n // 2 + n))
        fresh = reopened(folder)
        open_s = timed(lambda fresh=fresh: fresh.rows)
        find_s = timed(lambda fresh=fresh, asked=asked: fresh.missing(asked))
        assert fresh.missing(asked).sum() == n // 2
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        figures.append(
            {
                "keys": n,
                "shards": len(fresh.blocks()),
                "open_s": open_s,
                "find_s": find_s,
                "missing_s": open_s + find_s,
                "process_peak_gib": peak,
            }
        )
    return figures


def plain_read(folder: EncoderFolder) -> None:
    """Read the vectors' bytes, file after file, into one array."""
    arrays = [(block.path, block.arrays["mean"]) for block in folder.blocks()]
    out, at = np.empty(sum(a.nbytes for _, a in arrays), np.uint8), 0
    for path, array in arrays:
        with path.open("rb", buffering=0) as file:
            file.seek(array.offset)
            at += file.readinto(out[at : at + array.nbytes])


def evict(folder: EncoderFolder) -> None:
    """Drop the shards from the page cache, so that the next read is from the disk."""
    for block in folder.blocks():
        with block.path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bench_read(root: Path, n: int, width: int, times: int) -> dict:
    """Time reading n vectors into one array against a plain read of the same bytes."""
    folder = open_store(root, create=True).create_folder("antibody", INFO)
    fill(folder, n, width)
    fresh, keys = reopened(folder), keys_of(0, n)
    # file names are random, so shards hold arbitrary rows
    shuffled = np.random.default_rng(1).permutation(keys)
    figures = dict.fromkeys(("plain", "float16", "float32", "shuffled_float16"), 1e9)
    for _ in range(times):  # interleaved: other load on the machine affects all of them
        for name, work in (
            ("plain", lambda: plain_read(fresh)),
            ("float16", lambda: fresh.read_array(keys, "mean", np.float16)),
            ("float32", lambda: fresh.read(keys)),
            ("shuffled_float16", lambda: fresh.read_array(shuffled, "mean", np.float16)),
        ):
            figures[name] = min(figures[name], timed(work))
            evict(fresh)
            cold = f"cold_{name}"
            figures[cold] = min(figures.get(cold, 1e9), timed(work))
    gib = n * width * 2 / 2**30
    return {"vectors": n, "width": width, "gib": gib} | {f"{k}_s": v for k, v in figures.items()}


def bench_write(root: Path, n: int, width: int) -> dict:
    """Time committing n vectors against writing and syncing as many bytes."""
    folder = open_store(root, create=True).create_folder("antibody", INFO)
    store_s = timed(lambda: fill(folder, n, width))
    paths = [block.path for block in folder.blocks()]
    data = [path.read_bytes() for path in paths]

    def plain():
        for i, part in enumerate(data):
            with (root / f"plain{i}").open("wb") as file:
                file.write(part)
                file.flush()
                os.fsync(file.fileno())

    plain_s = timed(plain)
    verify_s = timed(lambda: [check_file(path) for path in paths])
    size = sum(map(len, data)) / 2**30
    return {"gib": size, "store_s": store_s, "plain_s": plain_s, "verify_one_thread_s": verify_s}


def draw(figures: list[dict], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    keys = [f["keys"] for f in figures]
    for name, label in (
        ("missing_s", "open the store and find as many keys"),
        ("open_s", "of which open and index"),
    ):
        axes.loglog(keys, [f[name] for f in figures], "o-", label=label)
    axes.axhline(3, color="0.6", lw=1, ls="--")
    axes.text(keys[0], 3.2, "3 s", color="0.4")
    axes.set(xlabel="stored keys", ylabel="seconds")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it still run?")
    parser.add_argument("--folder", type=Path, help="where to create the temporary stores")
    options = parser.parse_args()
    sizes = [1000, 5000] if options.quick else [10_000, 100_000, 1_000_000, 3_000_000, 10_000_000]
    n, width, times = (5000, 16, 1) if options.quick else (200_000, 1024, 5)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root = Path(folder)
        report = {
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "commit": subprocess.run(
                ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
            ).stdout.strip(),
            "load": os.getloadavg()[0],
            "read": bench_read(root / "read", n, width, times),
            "write": bench_write(root / "write", n // 4, width),
            "keys": bench_keys(root / "keys", sizes),
        }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    draw(report["keys"], options.out.with_suffix(".png"))
    json.dump(report, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
