"""Run a check on many numbered cases, in several processes, and list those that failed.

A test module calls `main` to be run by hand: ``python tests/test_x.py COUNT SEED --jobs J``.
A case depends on its seed and number alone, so that ``1 SEED --first NUMBER`` repeats it. A
process that dies is a failure of the case that it worked on; another process does the next.
"""

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

PROGRESS_SECONDS = 15
"""The counts so far are printed so often, for a run that is cut off."""


def run(check, numbers):
    """Call ``check(number)``, which returns what to count; return counts and failures."""
    counts, failures = Counter(), []
    for number in numbers:
        try:
            counts.update(check(number))
        except Exception as error:  # noqa: BLE001 - listed with its case
            failures.append((number, "".join(traceback.format_exception(error))))
        counts["cases"] += 1
    return counts, failures


@dataclass
class Result:
    """What many cases came to, and which of them took the most memory."""

    counts: Counter = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    died: list[int] = field(default_factory=list)
    most_mib: int = 0
    most_of: int | None = None

    def add(self, number, counts, failures, mib):
        self.counts.update(counts)
        self.failures += failures
        if mib > self.most_mib:
            self.most_mib, self.most_of = mib, number
        for _, text in failures:
            print(f"case {number}: {text}", file=sys.stderr, flush=True)

    def add_death(self, number, exit_code):
        self.died.append(number)
        text = f"the process died with exit code {exit_code}\n"
        self.add(number, {"cases": 1, "processes that died": 1}, [(number, text)], 0)


def peak_mib():
    """Return the largest memory of this process since the last call, if the system tells it."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
        Path("/proc/self/clear_refs").write_text("5")
        return int(found[1]) >> 10
    return 0


def _work(connection, check):
    """Check each number that arrives, and answer with counts, failures and memory."""
    warnings.simplefilter("error")
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123
    with suppress(EOFError):
        while True:
            connection.send((*run(check, [connection.recv()]), peak_mib()))


def run_in_processes(check, numbers, jobs, until=float("inf"), say: Callable = lambda _: None):
    """Call `check` on the numbers in new processes, and `say` the result so far.

    No case begins after the time `until`, as of `time.time`.
    """
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    left, result, working = iter(numbers), Result(), {}

    def begin(worker=None):
        """Give the next number to a process, or to a new one."""
        number = next(left, None) if time.time() < until else None
        if number is None:
            if worker is not None:
                worker[0].close()  # which ends the process
                worker[1].join()
            return
        if worker is None:
            connection, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, check), daemon=True)
            process.start()
            theirs.close()  # its end is noticed here
            worker = connection, process
        connection, process = worker
        working[connection] = process, number
        with suppress(OSError):  # it has just died, which is found below
            connection.send(number)

    for _ in range(jobs):
        begin()
    said = time.time()
    while working:
        for connection in wait(list(working), PROGRESS_SECONDS):
            process, number = working.pop(connection)
            try:
                result.add(number, *connection.recv())
            except (EOFError, OSError):
                process.join()
                result.add_death(number, process.exitcode)
                begin()
            else:
                begin((connection, process))
        if time.time() - said > PROGRESS_SECONDS:
            said = time.time()
            say(result)
    result.failures.sort()
    return result


def main(check_of_seed, about):
    """Run by hand: ``check_of_seed(seed)`` is a picklable check. Exit with 1 if a case failed."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case later")
    given = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # read by the processes to come
    begun = time.time()

    def say(result):
        print(json.dumps({
            "seed": given.seed, "first": given.first, "of": given.count, "jobs": given.jobs,
            **dict(sorted(result.counts.items())),
            "failed": sorted(number for number, _ in result.failures), "died": result.died,
            "most_mib": result.most_mib, "most_mib_of": result.most_of,
            "seconds": round(time.time() - begun, 1),
        }), flush=True)  # fmt: skip

    numbers = range(given.first, given.first + given.count)
    result = run_in_processes(
        check_of_seed(given.seed), numbers, given.jobs, begun + given.seconds, say
    )
    say(result)
    sys.exit(bool(result.failures))
