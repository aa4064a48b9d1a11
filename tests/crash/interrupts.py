"""Interrupt commands at random times of their life, imports included, and repeat them.

    python tests/crash/interrupts.py FOLDER ABAG NUMBER SEED

ABAG is the path of the program. Prints how often each command and signal ended in which way: done;
stopped, with one line and 128 + the number of the signal; or early, before abag was imported, where
Python itself answers. Anything else is printed, and ends with 1.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

PLAIN = ["--antibody-encoder", "composition", "--antigen-encoder", "composition"]
SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def commands(n):
    """Return the arguments of each command, whose results have the number n."""
    return {
        "plan": ["plan", "t.csv", *PLAIN],
        "embed": ["embed", "t.csv", "--store", f"embed{n}", *PLAIN],
        "fit": ["fit", "t.csv", "--store", "store", "--run", f"fit{n}"],
        "predict": ["predict", "t.csv", "--run", "run", "--out", f"predict{n}.csv"],
        "evaluate": ["evaluate", "--run", "run"],
        "scan": ["scan", "run", "--parents", "t.csv", "--limit", "2", "--region", "cdr",
                 "--store", f"scan{n}", "--out", f"scan{n}.csv"],
        "share": ["share", "run", "--to", f"share{n}"],
        "merge": ["store", "merge", "store", "--out", f"merge{n}"],
    }  # fmt: skip


def run(abag, arguments, stop_after_s=None, number=None):
    """Run a command, with a signal after some seconds; return its status, errors and seconds."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [abag, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell in the background lets its children ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    if number is not None:
        try:
            process.wait(stop_after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
    errors = process.communicate()[1]
    return process.returncode, errors, time.monotonic() - begun


def outcome(status, errors, number):
    """Say in a word how a command ended; None if it should not have."""
    if status == 0:
        return "done"
    last = (errors.splitlines() or [""])[-1]
    if status == 128 + number and "Traceback" not in errors and "Stopped by" in errors:
        return "stopped"
    return "early" if status == -number and last in ("", "KeyboardInterrupt") else None


def main(folder, abag, count, seed):
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    assert run(abag, ["demo"])[0] == 0
    lines = Path("abag-demo/pairs.csv").read_text().splitlines(keepends=True)
    Path("t.csv").write_text("".join(lines[:100]))
    assert run(abag, ["embed", "t.csv", "--store", "store", *PLAIN])[0] == 0
    quick = ["--head", "ridge", "--split", "random"]
    assert run(abag, ["fit", "t.csv", "--store", "store", "--run", "run", *quick])[0] == 0
    seconds = {name: run(abag, arguments)[2] for name, arguments in commands("").items()}
    rng = random.Random(seed)
    counts = Counter()
    for n in range(count):
        name, arguments = [*commands(n).items()][n % len(seconds)]
        number = SIGNALS[n // len(seconds) % len(SIGNALS)]
        status, errors, _ = run(abag, arguments, rng.random() * seconds[name], number)
        counts[name, number.name, outcome(status, errors, number)] += 1
        again, errors_again, _ = run(abag, arguments) if status else (0, "", 0)
        if outcome(status, errors, number) is None or again:
            print(arguments, number.name, status, errors, again, errors_again, sep="\n")
    for what, times in sorted(counts.items(), key=str):
        print(*what, times)
    sys.exit(any(ended is None for _, _, ended in counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), str(Path(sys.argv[2]).absolute()), *map(int, sys.argv[3:]))
