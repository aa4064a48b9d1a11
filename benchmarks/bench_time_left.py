"""Compare the time left that bars show with the time that was left, at each tenth of the work.

    python benchmarks/bench_time_left.py --repeats 3 --out time_left.jsonl
    python benchmarks/bench_time_left.py --tiny
    taskset -c 0 python benchmarks/bench_time_left.py --cpu --case "fit, 100 pairs"

Each command draws on a pseudo-terminal. Of each bar, the line that was on the screen when a tenth of its time was
over counts, from 10 % to 90 %, if at least --least seconds were left: whole seconds are shown. A bar ends with the
last thing that it draws, or with the command. The ratio is that of the seconds shown to those that were left; the
worst of a bar is the furthest from 1, on either side. Tables are data/demo_pairs.csv, parts of it, and pairs of
random sequences; encoders count residues, but for a case of two small language models. With --cpu, all clocks are the CPU seconds of the command: so on one core
of a machine that others use, each second is one of a quiet core. Linux.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pandas as pd
from bench_large_table import CONTROL, ENCODERS, draw_table

TINY = ("--antibody-encoder", "tiny-igt5", "--antigen-encoder", "tiny-esm2")
DEMO = Path(__file__).parents[1] / "data/demo_pairs.csv"
LINE = re.compile(r"(?P<name>[^|]*?) +(?P<done>\d+)% \|[^|]*\| [\d:]+, (?P<left>[^,]*) left")
FIT = ("fit", "{table}", "--store", "{store}", "--run", "{out}")
CASES = {
    "fit, demo": ("demo", *FIT),
    "fit, demo, random": ("demo", *FIT, "--split", "random"),
    "fit, demo, ridge": ("demo", *FIT, "--head", "ridge"),
    "fit, 1,000 pairs": ("drawn", *FIT),
    "fit, 1,000 pairs, random": ("drawn", *FIT, "--split", "random"),
    "fit, 100 pairs": ("small", *FIT),
    "fit, classes": ("classes", *FIT),
    "fit, 20,000 pairs, ridge": ("large", *FIT, "--head", "ridge"),
    "embed, 200,000 pairs": ("huge", "embed", "{table}", "--store", "{out}", *ENCODERS),
    "embed, language models": ("wide", "embed", "{table}", "--store", "{out}", *TINY),
    "predict, 200,000 pairs": (
        "huge",
        "predict",
        "{table}",
        "--run",
        "{run}",
        "--out",
        "{out}.csv",
    ),
}
TABLES = {
    "drawn": (1_000, 200, 40),
    "large": (20_000, 4_000, 200),
    "wide": (20_000, 6_000, 1_500),
    "huge": (200_000, 60_000, 3_000),
}
UNEMBEDDED = ("wide", "huge")


def write_table(name, folder):
    """Write a table, and a store of its vectors; return both."""
    table = folder / f"{name}.csv"
    store = folder / f"{name}-store"
    if table.exists():
        return table, store
    if name in TABLES:
        pairs = draw_table(*TABLES[name])
    else:
        pairs = pd.read_csv(DEMO, keep_default_na=False)
        if name == "small":
            pairs = pairs[:100]
        if name == "classes":
            measured = pairs["pKd"]
            pairs["pKd"] = (measured > measured.median()).map({True: "yes", False: "no"})
            pairs = pairs.rename(columns={"pKd": "binds"})
    pairs.to_csv(table, index=False)
    if name not in UNEMBEDDED:
        subprocess.run(
            [*ABAG, "embed", table, "--store", store, *ENCODERS], check=True, capture_output=True
        )
    return table, store


ABAG = (sys.executable, "-m", "abag.cli")
BY_CPU = """
import sys, time
import tqdm.std
tqdm.std.time = time.monotonic = time.process_time
from abag.cli import main
sys.argv[0] = "abag"
main()
"""
TICKS = os.sysconf("SC_CLK_TCK")


def watch(command, *, by_cpu=False):
    """Run a command on a pseudo-terminal; return what it drew as (seconds, line), and its end."""
    abag = [sys.executable, "-c", BY_CPU] if by_cpu else ABAG
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    begun = time.monotonic()
    process = subprocess.Popen([*abag, *command], stdout=subprocess.DEVNULL, stderr=writing)
    os.close(writing)
    drawn = []

    def now_s():
        if not by_cpu:
            return time.monotonic() - begun
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    while True:
        try:
            text = os.read(reading, 1 << 16)
        except OSError:  # the other end is closed
            break
        for line in re.split(r"[\r\n]+", CONTROL.sub("", text.decode(errors="replace"))):
            drawn.append((now_s(), line))
    end_s = now_s()
    os.close(reading)
    if process.wait():
        sys.exit(f"{' '.join(map(str, command))} failed: {drawn[-5:]}")
    return drawn, end_s


def seconds_of(shown):
    """Return the seconds of a time such as 01:02:03; None where it is not known."""
    parts = re.findall(r"\d+", shown)
    return (
        sum(int(part) * 60**power for power, part in enumerate(reversed(parts))) if parts else None
    )


def ratios(drawn, end_s, least_s):
    """Return, by the name of each bar, its seconds and the ratio at each tenth of them."""
    bars = {}
    for at_s, line in drawn:
        if (match := LINE.search(line)) is not None:
            name = match["name"].split(":")[0].strip()  # stages of a fit are one bar
            bars.setdefault(name, []).append((at_s, seconds_of(match["left"])))
    results = {}
    for name, shown in bars.items():
        first_s = shown[0][0]
        last_s = shown[-1][0]
        # the next thing drawn clears the bar
        last_s = next((at_s for at_s, line in drawn if at_s > last_s and line), end_s)
        whole_s = last_s - first_s
        of_tenths = {}
        for tenth in range(1, 10):
            now_s = first_s + whole_s * tenth / 10
            left_s = last_s - now_s
            _, shown_s = [entry for entry in shown if entry[0] <= now_s][-1]
            if left_s >= least_s:
                of_tenths[tenth] = None if shown_s is None else round(shown_s / left_s, 2)
        if of_tenths:
            results[name] = {"seconds": round(whole_s, 1), "ratios": of_tenths}
    return results


def main():
    """Watch the bars of some commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="by default all")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--least", type=float, default=2.0)
    parser.add_argument("--cpu", action="store_true", help="by CPU seconds")
    parser.add_argument("--tiny", action="store_true", help="the fit of 100 pairs only")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.case = ["fit, 100 pairs"] if given.tiny else given.case
    given.least = 0.5 if given.tiny else given.least
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        for case in given.case or CASES:
            kind, *arguments = CASES[case]
            table, store = write_table(kind, folder)
            run = folder / "large-run"
            if "{run}" in arguments and not run.exists():
                of_run, vectors = write_table("large", folder)
                fit = (*ABAG, "fit", of_run, "--store", vectors, "--run", run, "--head", "ridge")
                subprocess.run([*fit, "--split", "random"], check=True, capture_output=True)
            for repeat in range(given.repeats):
                out = folder / f"{case}-{repeat}"
                places = {"table": table, "store": store, "out": out, "run": run}
                command = [part.format(**places) for part in arguments]
                drawn, end_s = watch(command, by_cpu=given.cpu)
                found = ratios(drawn, end_s, given.least)
                line = json.dumps({"case": case, "seconds": round(end_s, 1), "bars": found})
                print(line, flush=True)
                if given.out:
                    with given.out.open("a", encoding="utf-8") as file:
                        file.write(line + "\n")
        if given.out:
            summarize(given.out)


def summarize(path):
    """Print, by case, the median ratio at each tenth of its longest bar, and the worst of these."""
    by_case = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        measured = json.loads(line)
        bars = measured["bars"].values()
        longest = max(bars, key=lambda bar: bar["seconds"], default={"seconds": 0, "ratios": {}})
        by_case.setdefault(measured["case"], []).append(longest)
    for case, longest in by_case.items():
        medians = []
        for tenth in map(str, range(1, 10)):
            known = [bar["ratios"].get(tenth) for bar in longest]
            known = [ratio for ratio in known if ratio]
            medians.append(statistics.median(known) if known else None)
        worst = max((max(ratio, 1 / ratio) for ratio in medians if ratio), default=None)
        seconds = statistics.median(bar["seconds"] for bar in longest)
        print(f"{case}: {seconds} s, {medians}, worst {worst and round(worst, 2)}")


if __name__ == "__main__":
    main()
