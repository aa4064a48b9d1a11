"""Measure how fast an encoder's weights are hashed, and compare with the disk and with hashlib.

    python benchmarks/bench_weights.py --out DIR [--encoder igt5] [--tiny]

The checkpoint has the encoder's real size and random weights. "Cold" means that the file was dropped
from the page cache before. "Former" is the digest of the whole file until 2026-11-22: blake2b in one
thread.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from bench_encoders import config_of

import abag
from abag.embed.encoders.checkpoints import save_random_checkpoint
from abag.embed.encoders.identity import find_checkpoint
from abag.embed.encoders.weights import weights_digest


def read(path):
    """Read a file without using it."""
    buffer = bytearray(8 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def digest_anew(checkpoint):
    """Hash the tensors of a checkpoint without the digest that the cache keeps."""
    with tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", cache)
        weights_digest(checkpoint)


def seconds(run, path, *, cold):
    """Return the seconds of a call, with the file in the page cache or not."""
    if cold:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main():
    """Time the digest of weights beside reading them, and write a report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoder", choices=["igt5", "esm2-650m"], default="esm2-650m")
    parser.add_argument("--tiny", action="store_true", help="a checkpoint of 1 MB")
    parser.add_argument("--folder", type=Path, help="where the checkpoint is written")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as work:
        config = config_of(args.encoder, args.tiny)
        folder = save_random_checkpoint(Path(work), config, seed=0)
        os.sync()
        checkpoint = find_checkpoint(str(folder))
        (path,) = checkpoint.weights
        runs = {
            "read the file, one thread": partial(read, path),
            "digest of the tensors": partial(digest_anew, checkpoint),
            "look the digest up": partial(weights_digest, checkpoint),
        }
        weights_digest(checkpoint)
        gib = path.stat().st_size / 2**30
        lines = ["| | cold, s | warm, s | warm, GiB/s |", "|---|---|---|---|"]
        for name, run in runs.items():
            cold = seconds(run, path, cold=True)
            warm = min(seconds(run, path, cold=False) for _ in range(3))
            rate = f"{gib / warm:.2f}" if "look" not in name else ""
            lines.append(f"| {name} | {cold:.3f} | {warm:.3f} | {rate} |")
    report = [
        f"# Hashing weights, {date.today()}",
        "",
        f"`bench_weights.py --encoder {args.encoder}`: {gib:.2f} GiB, {os.cpu_count()} cores of "
        f"{platform.processor() or platform.machine()}, abag {abag.__version__}, Python "
        f"{platform.python_version()}.",
        "",
        *lines,
    ]
    (args.out / "weights.md").write_text("\n".join(report) + "\n")
    print("\n".join(report))


if __name__ == "__main__":
    main()
