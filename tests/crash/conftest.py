"""Run a script of this folder that kills with forks.py, and check its counts."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def killed_anywhere(tmp_path):
    """Return a function that runs a script with a number of kills and checks every trial."""

    def run(script, kills, *arguments):
        done = subprocess.run(
            [sys.executable, script, tmp_path, str(kills), *map(str, arguments)],
            capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        assert result["different"] == []
        assert result["killed"] == kills
        assert result["resumed"] > 0

    return run
