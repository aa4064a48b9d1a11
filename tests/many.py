"""Run a check on many numbered cases, in several processes, and list those that failed.

A test module calls `main` to be run by hand: ``python tests/test_x.py COUNT SEED --jobs J``.
A case depends on its seed and number alone, so that ``1 SEED --first NUMBER`` repeats it. A
process that dies ends the run with an error.
"""

import argparse
import json
import multiprocessing
import os
import sys
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial


def run_case(check, number):
    """Call ``check(number)``, which returns what to count; return that, or how it failed."""
    try:
        return number, check(number), ""
    except Exception as error:  # noqa: BLE001 - listed with its case
        return number, {}, "".join(traceback.format_exception(error))


def run(check, numbers, each_case=map):
    """Check all cases; return counts, and the failures by number."""
    counts = Counter()
    failures = {}
    for number, case_counts, failure in each_case(partial(run_case, check), numbers):
        counts.update(case_counts)
        if failure:
            failures[number] = failure
            print(f"case {number}: {failure}", file=sys.stderr, flush=True)
    return counts, failures


def main(check_of_seed, about):
    """Run by hand: ``check_of_seed(seed)`` is a picklable check. Exit with 1 if a case failed."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # read by the processes to come
    numbers = range(arguments.first, arguments.first + arguments.count)
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(arguments.jobs, context, warnings.simplefilter, ("error",)) as pool:
        counts, failures = run(check_of_seed(arguments.seed), numbers, pool.map)
    print(json.dumps({"cases": arguments.count, **counts, "failed": sorted(failures)}))
    sys.exit(bool(failures))
