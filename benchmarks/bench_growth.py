"""Measure how the time and memory of `abag embed`, `fit --head ridge` and `predict` grow with a table.

    taskset -c 0 python benchmarks/bench_growth.py --pairs 1000 10000 100000 --out growth.jsonl
    python benchmarks/bench_growth.py --draw growth.jsonl --picture docs/growth.png
    python benchmarks/bench_growth.py --tiny --out growth.jsonl

Tables are those of bench_large_table.py, with two antibodies for three pairs and one antigen for 50 at
most; vectors are residue compositions. `predict` scores the table itself, so that all sequences are
known, and again a table of other variants, which it encodes. CPU seconds and peak memory are those of
the command and its children, its start included. Linux and macOS.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_large_table import ENCODERS, draw_table

MOST_ANTIGENS = 3_000
RUN = "import sys; from abag.cli import main; sys.argv[0] = 'abag'; main()"


def measure(*arguments):
    """Run a command of abag; return its CPU seconds, and its peak memory in MB."""
    command = [sys.executable, "-c", RUN, *map(str, arguments), "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    printed = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    if status:
        message = f"{arguments[0]} failed"
        raise SystemExit(message)
    peak_mb = round(1024 * json.loads(printed).get("peak_gib", 0))  # 0: an older abag
    return round(used.ru_utime + used.ru_stime, 2), peak_mb


def grow(pairs, folder):
    """Yield a line per command for a table with so many pairs."""
    antibodies = max(8, 2 * pairs // 3)
    antigens = max(4, min(MOST_ANTIGENS, pairs // 50))
    table = draw_table(2 * pairs, 2 * antibodies, antigens)
    known = table[:pairs]
    train = folder / "train.csv"
    new = folder / "new.csv"
    known.to_csv(train, index=False)
    table[pairs:].drop(columns="pKd").to_csv(new, index=False)
    store = folder / "store"
    run = folder / "run"
    commands = {
        "embed": ("embed", train, "--store", store, *ENCODERS),
        "fit --head ridge": ("fit", train, "--store", store, "--run", run, "--head", "ridge"),
        "predict, known": ("predict", train, "--run", run, "--out", folder / "known.csv"),
        "predict, new": ("predict", new, "--run", run, "--out", folder / "new-scores.csv"),
    }
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    for name, arguments in commands.items():
        cpu_s, peak_mb = measure(*arguments)
        yield {"command": name, "pairs": pairs, "cpu_seconds": cpu_s, "peak_mb": peak_mb}


def draw(lines, picture):
    """Draw time and memory against the number of pairs, on logarithmic axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, key, title in (
        (axes[0], "cpu_seconds", "CPU seconds"),
        (axes[1], "peak_mb", "peak memory, MB"),
    ):
        for name in dict.fromkeys(line["command"] for line in lines):
            of_command = sorted(
                (line["pairs"], line[key]) for line in lines if line["command"] == name
            )
            axis.loglog(*zip(*of_command, strict=True), "o-", label=name)
        axis.set_xlabel("pairs")
        axis.set_title(title)
        axis.grid(visible=True, alpha=0.3)
    axes[0].legend(frameon=False)
    figure.savefig(picture, dpi=110)


def main():
    """Measure tables of some sizes, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="100 pairs")
    parser.add_argument("--draw", type=Path, help="lines that were measured")
    parser.add_argument("--picture", type=Path, default=Path("growth.png"))
    given = parser.parse_args()
    if given.draw is not None:
        lines = [json.loads(line) for line in given.draw.read_text().splitlines()]
        draw(lines, given.picture)
        return
    for pairs in [100] if given.tiny else given.pairs:
        with tempfile.TemporaryDirectory() as folder:
            for measured in grow(pairs, Path(folder)):
                line = json.dumps(measured)
                print(line, flush=True)
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
