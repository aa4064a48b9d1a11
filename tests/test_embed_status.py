"""abag store info shows, from any process, what a store holds and how far a run is."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from abag.core.files import host_name
from abag.embed.embed import embed_table
from abag.embed.store import status
from abag.embed.store.status import describe, info
from abag.embed.store.store import open_store
from abag.head.data.demo import demo_table

PLAIN = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
INFO = {"name": "igt5", "fingerprint": "3f2c9b1e" * 4}


@pytest.fixture
def folder(tmp_path):
    return open_store(tmp_path / "store", create=True).create_folder("antibody", INFO)


def add(folder, count, seed=0):
    keys = np.random.default_rng(seed).integers(0, 256, (count, 16), dtype=np.uint8)
    with folder.writer(attrs={"precision": "bf16"}) as out:
        out.add(keys, np.full(count, 200), {"mean": np.ones((count, 4), np.float16)})


def begin(folder, *, started, **changes):
    """Record a run of 40 sequences that started some seconds ago."""
    status.note_run(folder.path, 40)
    record = json.loads((folder.path / "run.json").read_text())
    record |= {"started": time.time() - started, **changes}
    (folder.path / "run.json").write_text(json.dumps(record))


def commit_ago(folder, seconds):
    """Make the newest shard look as if it was committed some seconds ago."""
    newest = max(folder.path.glob("*.h5"), key=lambda path: path.stat().st_mtime_ns)
    os.utime(newest, (time.time() - seconds,) * 2)


def progress(folder):
    (encoder,) = info(open_store(folder.path.parent))["encoders"]
    return encoder["progress"]


def test_a_running_run_is_shown_with_its_speed(folder):
    begin(folder, started=100)
    add(folder, 10)
    commit_ago(folder, 50)
    shown = progress(folder)
    assert (shown["encoded"], shown["to_encode"], shown["state"]) == (10, 40, "running")
    assert shown["process"] == f"{host_name()}:{os.getpid()}"
    assert shown["sequences_per_s"] == pytest.approx(10 / 50, rel=0.05)


def test_rows_of_earlier_runs_do_not_count_as_progress(folder):
    add(folder, 30)
    commit_ago(folder, 500)
    begin(folder, started=100)
    shown = progress(folder)
    assert (shown["encoded"], shown["sequences_per_s"]) == (0, None)


@pytest.mark.parametrize(
    ("changes", "rows", "state"),
    [
        ({}, 10, "running"),
        ({}, 40, "finished"),
        ({"pid": 999_999_999}, 10, "stopped"),
        ({"host": "elsewhere"}, 10, "running"),
        ({"host": "elsewhere", "started": 700.0}, 0, "unknown"),
    ],
)
def test_the_state_of_a_run_follows_from_its_process_and_its_rows(folder, changes, rows, state):
    begin(folder, **{"started": 100, **changes})
    if rows:
        add(folder, rows)
    assert progress(folder)["state"] == state


@pytest.mark.parametrize("text", ["", "{", "[]", '{"to_encode": 4}', "[" * 100_000])
def test_a_damaged_run_record_shows_no_progress(folder, text):
    (folder.path / "run.json").write_text(text)
    assert progress(folder) is None


@pytest.mark.parametrize("name", ["run.json", "speed.json"])
def test_a_note_that_is_a_pipe_is_not_waited_for(folder, name):
    os.mkfifo(folder.path / name)
    line = (
        "import sys, pathlib; from abag.embed.store import status; "
        "folder = pathlib.Path(sys.argv[1]); assert status.residues_per_s(folder) is None; "
        "assert status.info(status.Store(folder.parent))['encoders'][0]['progress'] is None"
    )
    command = [sys.executable, "-c", line, str(folder.path)]
    subprocess.run(command, check=True, timeout=60)


@pytest.mark.parametrize(
    "changes", [{"residues": 10**400}, {"residues": float("nan")}, {"residues": -1}, {"seconds": 0}]
)
def test_a_forged_speed_is_not_known(folder, changes):
    status.note_speed(folder.path, 100, 2.0, "cpu")
    assert status.residues_per_s(folder.path) == 50.0
    path = folder.path / "speed.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert status.residues_per_s(folder.path) is None


@pytest.mark.parametrize("value", [None, "x", [], {}, float("nan"), float("inf"), -1, 10**400])
def test_a_forged_run_record_shows_no_progress(folder, value):
    begin(folder, started=100)
    add(folder, 10)
    whole = json.loads((folder.path / "run.json").read_text())
    for name in ("to_encode", "started", "pid"):
        (folder.path / "run.json").write_text(json.dumps({**whole, name: value}))
        assert progress(folder) is None


def test_embed_records_what_it_has_to_encode(tmp_path):
    table = demo_table().head(60)
    embed_table(table, tmp_path / "store", limit=20, **PLAIN)
    summary = embed_table(table, tmp_path / "store", **PLAIN)
    shown = {e["kind"]: e["progress"] for e in info(open_store(tmp_path / "store"))["encoders"]}
    for kind, plural in (("antibody", "antibodies"), ("antigen", "antigens")):
        assert shown[kind]["state"] == "finished"
        assert shown[kind]["encoded"] == shown[kind]["to_encode"] == summary[plural]["encoded"]


def test_another_process_reads_how_a_run_is_doing_and_writes_nothing(folder):
    begin(folder, started=100)
    add(folder, 10)
    commit_ago(folder, 50)
    store = folder.path.parent
    before = {p: p.read_bytes() for p in store.rglob("*") if p.is_file()}
    call = "from abag.cli import main; main()"
    with folder.writer(attrs={}):
        for extra in ([], ["--json"]):
            command = [sys.executable, "-c", call, "store", "info", str(store), *extra]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            assert done.stderr == ""
            if extra:
                assert json.loads(done.stdout)["encoders"][0]["progress"]["state"] == "running"
                continue
            first, sequences, made, run = done.stdout.splitlines()
            assert first.endswith("10 vectors of 1 encoder, 0.0 MB")
            assert sequences == "antibody · igt5 (3f2c9b1e): 10 sequences in 1 shard"
            assert made.startswith("  mean 4 · float16, bf16 · last commit ")
            assert run.startswith(f"  running ({host_name()}:{os.getpid()}): 10 of 40 sequences")
    assert {p: p.read_bytes() for p in store.rglob("*") if p.is_file()} == before


def test_a_finished_run_is_not_mentioned(folder):
    begin(folder, started=100)
    add(folder, 40)
    assert len(list(describe(info(open_store(folder.path.parent))))) == 3


def test_damage_and_spooled_sequences_are_shown(folder, monkeypatch):
    add(folder, 10)
    next(folder.path.glob("*.h5")).write_bytes(b"")
    monkeypatch.setattr("abag.embed.store.status.spooled_rows", lambda _: 7)
    text = "\n".join(describe(info(open_store(folder.path.parent))))
    assert "7 sequences in a local spool on this machine" in text
    assert "damaged: " in text
