"""A machine with a Drive, and scripts of this folder that kill with forks.py."""

import json
import os
import subprocess
import sys

import pytest

from abag.embed.store import filesystem


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose Drive is mounted at `drive`, with the user's cache beside it."""
    (tmp_path / "drive").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(filesystem, "FIRST_PAUSE_SECONDS", 0.001)
    return tmp_path


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
