"""Run a script of this folder that kills by forks.py, and check what it counted."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def killed_anywhere(tmp_path):
    """Run a script with a folder, a number of kills and more; every trial must end alike."""

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
