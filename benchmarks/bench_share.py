"""Measure how long a store takes to the hub and back, against a hub on this machine.

    python benchmarks/bench_share.py --out DIR [--gib 1] [--tiny]

The hub is tests/hub/fake_hub.py in another process, so that the times are those of abag, huggingface_hub
and the disk, without a network: an upper bound on the speed. Writes DIR/share.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

FAKE_HUB = Path(__file__).parent.parent / "tests" / "hub" / "fake_hub.py"
ADDRESS = "hf://datasets/lab/vectors"
WIDTH = 1280


def timed(work):
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def fill(store, shards, rows):
    """Write shards of float16 vectors, as `abag embed` does."""
    from abag.embed.store.store import open_store

    about = {"name": "bench", "fingerprint": "be" * 16}
    folder = open_store(store, create=True).create_folder("antigen", about)
    rng = np.random.default_rng(0)
    for _ in range(shards):
        with folder.writer(attrs={"precision": "none"}) as out:
            keys = rng.integers(0, 256, (rows, 16), np.uint8)
            x_ND = rng.standard_normal((rows, WIDTH), np.float32).astype(np.float16)
            out.add(keys, np.full(rows, 100), {"mean": x_ND, "cls": x_ND})


def main():
    """Measure, and print a report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the store")
    parser.add_argument("--folder", type=Path, help="where the stores and the hub are written")
    parser.add_argument("--tiny", action="store_true", help="two small shards")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = 32 if args.tiny else 4096
    shard_bytes = rows * WIDTH * 4
    shards = 2 if args.tiny else round(args.gib * 2**30 / shard_bytes)
    with tempfile.TemporaryDirectory(dir=args.folder) as work:
        at = Path(work)
        (at / "hub").mkdir()
        hub = subprocess.Popen(
            [sys.executable, FAKE_HUB, at / "hub"], stdout=subprocess.PIPE, text=True
        )
        try:
            os.environ |= {
                "HF_ENDPOINT": hub.stdout.readline().strip(),
                "HF_HOME": str(at / "home"),
                "HF_TOKEN": "hf_fake",
                "HF_HUB_DISABLE_XET": "1",
            }
            fill(at / "store", shards, rows)
            lines, size = measure(at)
        finally:
            hub.kill()
            hub.wait()
    import huggingface_hub

    import abag

    used = f"abag {abag.__version__}, Python {platform.python_version()}"
    report = [
        f"# Stores to the hub and back, {date.today()}",
        "",
        f"`python benchmarks/bench_share.py --out DIR{' --tiny' * args.tiny}`: {shards} shards, "
        f"{size / 2**30:.2f} GiB; hub on the same machine, plain HTTP; {os.cpu_count()} cores of "
        f"{platform.processor() or platform.machine()}, {used}, huggingface_hub "
        f"{huggingface_hub.__version__}.",
        "",
        "| | s | MiB/s |",
        "|---|---|---|",
        *lines,
    ]
    (args.out / "share.md").write_text("\n".join(report) + "\n")
    print("\n".join(report))


def measure(at):
    """Return lines about the times of merging and exporting, and the size of the store."""
    from abag.core.messages import reporting
    from abag.embed.store.care import pull, push, verify
    from abag.embed.store.store import open_store

    store = at / "store"
    new = at / "new"
    size = sum(path.stat().st_size for path in store.rglob("*.h5"))
    runs = [
        ("copy the files (`shutil.copytree`)", lambda: shutil.copytree(store, at / "copy")),
        ("`abag store verify`", lambda: verify(open_store(store))),
        ("`abag store push`, everything is new", lambda: push(store, ADDRESS)),
        ("push again, nothing is new", lambda: push(store, ADDRESS)),
        ("`abag store pull`, everything is new", lambda: pull(ADDRESS, new)),
        ("pull again, nothing is new", lambda: pull(ADDRESS, new)),
    ]
    lines = []
    with reporting(silent=True):
        for name, work in runs:
            seconds = timed(work)
            lines.append(f"| {name} | {seconds:.2f} | {size / 2**20 / seconds:,.0f} |")
    assert verify(open_store(new)) == []
    return lines, size


if __name__ == "__main__":
    main()
