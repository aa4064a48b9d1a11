"""A store survives SIGKILL; kills.py does the killing, and these tests check what it costs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).with_name("kills.py")
COMMIT_ROWS = 16
QUEUED = 4


def killed(kills, options):
    """Kill writers of stores, of which no acknowledged row may be lost; return the counts."""
    command = [sys.executable, KILLS, "--kills", str(kills), *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["kills"] >= kills
    assert counts["acknowledged"] > 0
    assert (counts["lost"], counts["unreadable"], counts["wrong"]) == (0, 0, 0)
    return counts


@pytest.mark.ci
def test_kills_at_random_times_lose_no_acknowledged_row():
    counts = killed(12, "--seed 1")
    assert counts["encoded_again"] == 0
    assert counts["most_at_risk"] <= (QUEUED + 2) * COMMIT_ROWS


@pytest.mark.ci
@pytest.mark.parametrize(
    ("kills", "options"),
    [(40, "--steps"), (12, "--flaky"), (12, "--flaky --steps"), (16, "--writers 8")],
)
def test_kills_at_file_operations_or_among_failures_or_writers_lose_no_acknowledged_row(
    kills, options
):
    killed(kills, options)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", [
    *(f"--seed 2 --writers {n}" for n in (1, 2, 8)), "--seed 3 --steps",
    "--seed 5 --flaky --steps", "--seed 5 --flaky --writers 2",
])  # fmt: skip
def test_a_thousand_kills_lose_no_acknowledged_row(options):
    killed(1000, options)
