"""Streams, signals, homes and names as they are at odd places: one line, or none, and no loss."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from drawn import COMPOSITION, demo_table
from faults import raising
from invoke import PLAIN_ENCODERS
from marks import in_ci

from abag import embed_table, open_store
from abag.core.files import cache_dir
from abag.core.messages import printable


@pytest.fixture
def pairs(tmp_path):
    demo_table().head(30).to_csv(tmp_path / "pairs.csv", index=False)
    return tmp_path / "pairs.csv"


def abag(*arguments, shell="", before=(), **options):
    line = [*before, sys.executable, "-m", "abag.cli", *map(os.fspath, arguments)]
    if shell:
        line = ["bash", "-c", f'"$@" {shell}', "bash", *line]
    return subprocess.run(line, capture_output=True, check=False, timeout=120, **options)


def rows(store):
    return open_store(store).folder("antibody").rows


@pytest.mark.ci
def test_a_closed_stderr_changes_neither_the_store_nor_the_output(pairs, tmp_path):
    done = abag("embed", pairs, "--store", tmp_path / "s", *PLAIN_ENCODERS, "--json", shell="2>&-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["rows"] == 30
    assert rows(tmp_path / "s") == json.loads(done.stdout)["antibodies"]["unique"]


@pytest.mark.ci
def test_a_full_output_is_one_line(pairs, tmp_path):
    line = ["embed", pairs, "--store", tmp_path / "s", *PLAIN_ENCODERS, "--json"]
    done = abag(*line, shell=">/dev/full")
    assert done.returncode == 1
    assert b"the disk is full" in done.stderr
    assert b"Traceback" not in done.stderr
    assert rows(tmp_path / "s")


@pytest.mark.parametrize(
    "line", [["--help"], *in_ci(["--version"], ["fit", "--help"], ["plan", "pairs.csv"])]
)
def test_a_full_output_of_help_is_one_line(pairs, line):
    done = abag(*line, shell=">/dev/full", cwd=pairs.parent)
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: ")
    assert done.stderr.count(b"\n") == 1


WAIT = """
import atexit, signal, time, click
from abag.core.command_line import CommandGroup
@click.group(cls=CommandGroup)
def main(): pass
@main.command()
def wait():
    print("ready", flush=True); time.sleep({seconds}); print("done", flush=True)
{before}
main(["wait"])
"""


def start_waiting(before, seconds):
    """Start a command that waits; return its process once it does."""
    child = subprocess.Popen(
        [sys.executable, "-c", WAIT.format(before=before, seconds=seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("ignored", [True, False])
def test_a_signal_that_was_ignored_stays_ignored(tmp_path, ignored):
    handler = "SIG_IGN" if ignored else "SIG_DFL"
    child = start_waiting(f"signal.signal(signal.SIGHUP, signal.{handler})", seconds=1)
    time.sleep(0.1)
    child.send_signal(signal.SIGHUP)
    out, err = child.communicate(timeout=60)
    assert (out, child.returncode) == (("done\n", 0) if ignored else ("", 128 + signal.SIGHUP))
    assert ("Stopped by SIGHUP" in err) is not ignored


def test_ctrl_c_at_the_exit_of_a_stopped_command_gives_no_traceback():
    child = start_waiting("atexit.register(time.sleep, 30)", seconds=30)
    child.send_signal(signal.SIGINT)
    assert child.stderr.readline().startswith("Stopped by SIGINT")
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert err == ""


@pytest.mark.ci
def test_names_that_are_not_utf8_are_read_or_refused_in_one_line(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    demo_table().head(30).to_csv(folder / "pairs.csv", index=False)
    done = abag("embed", folder / "pairs.csv", "--store", folder / "s", *PLAIN_ENCODERS)
    assert done.returncode == 0, done.stderr
    fit = ["--split", "random", "--epochs", "1", "--widths", "4", "--compile", "off"]
    done = abag("fit", folder / "pairs.csv", "--store", folder / "s", "--run", folder / "r", *fit)
    assert done.returncode == 1
    assert b"caf\\udce9/r" in done.stderr
    assert b"a name that is not UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr
    assert not (folder / "r").exists()
    done = abag("store", "export", folder / "s", "--to", folder / "a.npz", "--kind", "antibody")
    assert done.returncode == 0, done.stderr
    line = ["--table", folder / "pairs.csv", "--to", folder / "a.parquet"]
    done = abag("store", "export", folder / "s", *line)
    assert done.returncode == 1
    assert b"caf\\udce9/a." in done.stderr
    assert b"a name that is not UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr
    assert not list(folder.glob("*.parquet*"))
    done = abag("embed", folder / "nowhere.csv", "--store", folder / "s")
    assert done.returncode == 1
    assert b"caf\\udce9/nowhere.csv: does not exist" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_missing_home_uses_the_temporary_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", raising(RuntimeError("Could not determine home directory.")))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache_dir() == tmp_path / f"abag-{os.getuid()}"
    monkeypatch.setattr("os.getuid", lambda: 4711)
    (tmp_path / "abag-4711").mkdir()  # by another user
    assert cache_dir() != tmp_path / "abag-4711"
    assert cache_dir().parent == tmp_path


@pytest.mark.ci
def test_a_missing_temporary_folder_does_not_stop_embed(pairs, tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path / "no")}
    code = (
        "import sys, tempfile\n"
        f"tempfile._candidate_tempdir_list = lambda: [{str(tmp_path / 'no')!r}]\n"
        "from abag.cli import main\nmain()\n"
    )
    line = [sys.executable, "-c", code, "embed", pairs, "--store", tmp_path / "s", *PLAIN_ENCODERS]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_control_characters_of_a_table_do_not_reach_the_terminal(tmp_path):
    (tmp_path / "a.csv").write_text("heavy,antigen,\x1b]0;pwned\x07\nEV\x1b[2JQ,MKT,x\n")
    done = abag("embed", tmp_path / "a.csv", "--store", tmp_path / "s", *PLAIN_ENCODERS)
    assert done.returncode == 1
    assert b"\x1b" not in done.stderr + done.stdout
    assert printable("a\x1b[2J\x07\udce9\nb é") == "a\\x1b[2J\\x07\\udce9\nb é"


AS_USER = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
"""Without these capabilities, root may not write everywhere either."""


@pytest.mark.ci
@pytest.mark.skipif(bool(AS_USER) and not shutil.which("setpriv"), reason="needs setpriv for root")
def test_a_store_without_rights_is_found_before_anything_is_encoded(pairs, tmp_path):
    embed_table(pairs, tmp_path / "s", limit=5, **COMPOSITION)
    for folder in (tmp_path / "s").iterdir():
        folder.chmod(0o500) if folder.is_dir() else None
    done = abag("embed", pairs, "--store", tmp_path / "s", *PLAIN_ENCODERS, before=AS_USER)
    assert done.returncode == 1
    assert b"is read-only for this user; expected a folder to write into" in done.stderr
