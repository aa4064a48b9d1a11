"""Run a check on many numbered cases, in several processes, and list those that failed.

A test module calls `main` to be run by hand: ``python tests/test_x.py COUNT SEED --jobs J``.
A case depends on its seed and number alone, so that ``1 SEED --first NUMBER`` repeats it.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

CASES_PER_TASK = 20


def run(check, numbers, until=float("inf")):
    """Call ``check(number)``, which returns what to count; return counts and failures.

    No case begins after the time `until`, as of `time.time`.
    """
    counts, failures = Counter(), []
    for number in numbers:
        if time.time() > until:
            break
        try:
            counts.update(check(number))
        except Exception as error:  # noqa: BLE001 - listed with its case
            failures.append((number, "".join(traceback.format_exception(error))))
        counts["cases"] += 1
    return counts, failures


def _start_process():
    warnings.simplefilter("error")
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123


def run_in_processes(check, numbers, jobs, until):
    """Call `run` on parts of the numbers in new processes."""
    counts, failures = Counter(), []
    tasks = [numbers[at : at + CASES_PER_TASK] for at in range(0, len(numbers), CASES_PER_TASK)]
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(jobs, context, _start_process) as pool:
        for done in as_completed([pool.submit(run, check, task, until) for task in tasks]):
            try:
                some, failed = done.result()
            except BrokenProcessPool:  # the counts of the others are worth keeping
                print(f"a process died after {counts['cases']} cases", file=sys.stderr, flush=True)
                counts["processes that died"] = 1
                break
            counts.update(some)
            failures += failed
            for number, text in failed:
                print(f"case {number}: {text}", file=sys.stderr, flush=True)
    return counts, sorted(failures)


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
    counts, failures = run_in_processes(
        check_of_seed(given.seed), range(given.first, given.first + given.count), given.jobs,
        begun + given.seconds,
    )  # fmt: skip
    for name, number in sorted(counts.items()):
        print(f"{number:9,}  {name}")
    print(json.dumps({
        "seed": given.seed, "cases": counts["cases"], "of": given.count, "jobs": given.jobs,
        "failed": [number for number, _ in failures], "seconds": round(time.time() - begun, 1),
    }))  # fmt: skip
    sys.exit(bool(failures) or bool(counts["processes that died"]))
