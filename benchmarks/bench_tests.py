"""Count the CPU seconds of each test, those of its child processes included.

    PYTHONPATH=benchmarks python -m pytest -p bench_tests --cpu-times FILE ...
    python benchmarks/bench_tests.py FILE [--tests 20]

The first line is a run of tests with this plugin, also in several processes: it adds a line of JSON
per test to FILE. The second one prints the sums of the modules and the longest tests, as Markdown.
CPU seconds mean the same on a busy machine. Children count while they run, with their own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections import Counter
from pathlib import Path

import psutil
import pytest


def pytest_addoption(parser):
    """Add the option that names the file."""
    parser.addoption("--cpu-times", type=os.path.abspath, help="file that gets a line per test")


def running_seconds():
    """Return the CPU seconds of all running children, and of theirs."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # its parent has waited for it
            seconds += sum(process.cpu_times()[:4])
    return seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run a test with its fixtures, and note the time."""
    # children first and last: looking for them takes a few milliseconds of this process
    of_children = running_seconds()
    of_this = sum(os.times()[:4])
    result = yield
    of_this = sum(os.times()[:4]) - of_this
    seconds = of_this + running_seconds() - of_children
    if item.config.option.cpu_times:
        line = json.dumps({"test": item.nodeid, "cpu_s": round(seconds, 2)})
        with Path(item.config.option.cpu_times).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    return result


def main(arguments=None):
    """Print the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--tests", type=int, default=20, help="how many of the longest")
    given = parser.parse_args(arguments)
    lines = [json.loads(line) for line in given.file.read_text(encoding="utf-8").splitlines()]
    seconds = Counter()
    counts = Counter()
    for line in lines:
        module = line["test"].partition("::")[0]
        seconds[module] += line["cpu_s"]
        counts[module] += 1
    print(f"{len(lines)} tests, {seconds.total():.0f} CPU s\n")
    print("| module | tests | CPU s |\n|---|--:|--:|")
    for module, total in seconds.most_common():
        print(f"| {module} | {counts[module]} | {total:.1f} |")
    print("\n| test | CPU s |\n|---|--:|")
    for line in sorted(lines, key=lambda line: -line["cpu_s"])[: given.tests]:
        print(f"| {line['test']} | {line['cpu_s']:.1f} |")


if __name__ == "__main__":
    main()
