"""A machine with a Drive, and scripts of this folder that kill with forks.py."""

import json

import pytest
from stores import set_patience


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose Drive is mounted at `drive`, with the user's cache beside it."""
    (tmp_path / "drive").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    set_patience(monkeypatch, first_pause_s=0.001)
    return tmp_path


@pytest.fixture
def result_of(run_script, tmp_path):
    """Return a function that runs a script and returns the JSON of its last line."""

    def run(script, *arguments):
        log = tmp_path / "log"
        status = run_script(log, script, tmp_path / "trials", *arguments)
        assert status == 0, log.read_text()
        return json.loads(log.read_text().splitlines()[-1])

    return run


@pytest.fixture
def killed_anywhere(result_of):
    """Return a function that runs a script with a number of kills and checks every trial."""

    def run(script, kills, *arguments):
        result = result_of(script, kills, *arguments)
        assert result["different"] == []
        assert result["killed"] == kills
        assert result["resumed"] > 0

    return run
