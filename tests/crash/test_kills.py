"""A store survives SIGKILL; kills.py does the killing, and these tests check what it costs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).with_name("kills.py")
COMMIT_ROWS, QUEUED = 16, 4


def killed(*options: str) -> dict[str, int]:
    command = [sys.executable, str(KILLS), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_nothing_lost(counts: dict[str, int], kills: int) -> None:
    assert counts["kills"] >= kills
    assert counts["acknowledged"] > 0
    assert (counts["lost"], counts["unreadable"], counts["wrong"]) == (0, 0, 0)


def test_kills_at_random_times_lose_no_acknowledged_row():
    counts = killed("--kills", "12", "--seed", "1")
    assert_nothing_lost(counts, 12)
    assert counts["encoded_again"] == 0
    assert counts["most_at_risk"] <= (QUEUED + 2) * COMMIT_ROWS


def test_kills_at_each_file_operation_of_a_commit_lose_no_acknowledged_row():
    assert_nothing_lost(killed("--kills", "40", "--steps"), 40)


@pytest.mark.parametrize("how", [[], ["--steps"]], ids=["any time", "steps"])
def test_kills_of_writers_with_a_local_spool_lose_no_acknowledged_row(how):
    assert_nothing_lost(killed("--kills", "12", "--flaky", *how), 12)


def test_kills_among_eight_writers_lose_no_acknowledged_row():
    assert_nothing_lost(killed("--kills", "16", "--writers", "8"), 16)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("writers", ["1", "2", "8"])
def test_a_thousand_kills_lose_no_acknowledged_row(writers):
    assert_nothing_lost(killed("--kills", "1000", "--writers", writers, "--seed", "2"), 1000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_kills_at_file_operations_lose_no_acknowledged_row():
    assert_nothing_lost(killed("--kills", "1000", "--steps", "--seed", "3"), 1000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", [["--steps"], ["--writers", "2"]], ids=["steps", "two writers"])
def test_a_thousand_kills_with_a_local_spool_lose_no_acknowledged_row(how):
    assert_nothing_lost(killed("--kills", "1000", "--flaky", "--seed", "5", *how), 1000)
