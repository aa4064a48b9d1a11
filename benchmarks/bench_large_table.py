"""Time `abag fit` of a large drawn table on a CPU, and find how long its bars stand still.

Antibodies are variants of a few parents, antigens have lognormal lengths from 30 to 1,022 residues,
and labels are the sum of planted effects and noise. The command draws its bars on a pseudo-terminal.
Vectors are residue compositions, which need no download. Linux and macOS.

    taskset -c 0,1 python benchmarks/bench_large_table.py --pairs 100000 --out large.jsonl
    python benchmarks/bench_large_table.py --tiny --out large.jsonl
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import resource
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import numpy as np
import pandas as pd

RESIDUES = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
EFFECT = np.linspace(-1, 1, 20)
PARENTS = 20
LENGTH = 120
"""Residues of an antibody; each variant has one to eight substitutions."""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ENCODERS = ("--antibody-encoder", "composition", "--antigen-encoder", "composition")


def draw_table(pairs, antibodies, antigens, seed=0):
    """Return a table with the columns heavy, antigen and pKd."""
    rng = np.random.default_rng(seed)
    parents = rng.integers(0, 20, (PARENTS, LENGTH))
    effects = rng.normal(size=LENGTH)
    variants = parents[np.arange(antibodies) % PARENTS].copy()
    for row in variants:
        places = rng.choice(LENGTH, rng.integers(1, 9), replace=False)
        row[places] = rng.integers(0, 20, len(places))
    lengths = np.clip(rng.lognormal(np.log(300), 0.6, antigens), 30, 1022).astype(int)
    targets = [rng.integers(0, 20, length) for length in lengths]
    of_antibody = EFFECT[variants] @ effects / np.sqrt(LENGTH)
    of_antigen = np.array([EFFECT[one].mean() for one in targets]) * 5
    cells = rng.choice(antibodies * antigens, pairs, replace=False)
    i = cells // antigens
    j = cells % antigens
    heavy = np.array(["".join(RESIDUES[one]) for one in variants])
    antigen = np.array(["".join(RESIDUES[one]) for one in targets])
    pkd = 8 + of_antibody[i] + of_antigen[j] + rng.normal(0, 0.3, pairs)
    return pd.DataFrame({"heavy": heavy[i], "antigen": antigen[j], "pKd": pkd.round(3)})


def watch(command):
    """Run a command on a pseudo-terminal; return its output, and its longest silence."""
    reading, writing = pty.openpty()
    size = struct.pack("4H", 24, 100, 0, 0)  # bars of a terminal without columns are empty
    fcntl.ioctl(writing, termios.TIOCSWINSZ, size)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, text=True)
    os.close(writing)
    shown = ""
    longest_s = 0.0
    shown_then = ""
    last = time.monotonic()
    while True:
        try:
            drawn = os.read(reading, 1 << 16)
        except OSError:  # the other end is closed
            drawn = b""
        silent_s = time.monotonic() - last
        if silent_s > longest_s:
            longest_s = silent_s
            shown_then = shown
        if not drawn:
            break
        last = time.monotonic()
        lines = re.split(r"[\r\n]+", CONTROL.sub("", drawn.decode(errors="replace")))
        shown = next((line for line in reversed(lines) if line.strip()), shown)
    os.close(reading)
    out = process.stdout.read()
    if process.wait():
        sys.exit(f"{' '.join(map(str, command))} failed: {shown}")
    return out, round(longest_s, 1), shown_then.strip()[:80]


def measure(pairs, antibodies, antigens, options):
    """Embed and fit a table in an empty folder; return times and errors."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        table = f"{folder}/pairs.csv"
        store = f"{folder}/store"
        draw_table(pairs, antibodies, antigens).to_csv(table, index=False)
        abag = [sys.executable, "-m", "abag.cli"]
        embed = [*abag, "embed", table, "--store", store, *ENCODERS, "--no-prepare-fit"]
        watch(embed)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        fit = [*abag, "fit", table, "--store", store, "--run", f"{folder}/run"]
        out, longest_s, shown_then = watch([*fit, "--device", "cpu", "--json", *options])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {
            "pairs": pairs,
            "antibodies": antibodies,
            "antigens": antigens,
            "cores": len(os.sched_getaffinity(0)),
            "seconds": round(time.perf_counter() - started, 1),
            "cpu_seconds": round(cpu_s, 1),
            "peak_mb": after.ru_maxrss // 1024,
            "longest_silence_s": longest_s,
            "shown_then": shown_then,
            "rmse": {one["regime"]: round(one["rmse"], 4) for one in json.loads(out)["regimes"]},
        }


def main():
    """Measure one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--antibodies", type=int, default=20_000)
    parser.add_argument("--antigens", type=int, default=500)
    parser.add_argument("--tiny", action="store_true", help="200 pairs, 2 epochs, one regime")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    sizes = (given.pairs, given.antibodies, given.antigens)
    options = []
    if given.tiny:
        sizes = (200, 60, 10)
        options = ["--epochs", "2", "--split", "random"]
    line = json.dumps(measure(*sizes, options))
    print(line)
    with given.out.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main()
