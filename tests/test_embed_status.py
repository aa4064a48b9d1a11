"""abag store info shows, from any process, how far a run is and what it saves."""

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
PLAN = {
    "table": "pairs.csv", "rows": 400, "sequences": 50, "to_encode": 40,
    "residues": 10_000, "residues_to_encode": 8000, "residues_of_rows": 80_000,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    return open_store(tmp_path / "store", create=True).create_folder("antibody", INFO)


def add(folder, count, seed=0):
    keys = np.random.default_rng(seed).integers(0, 256, (count, 16), dtype=np.uint8)
    with folder.writer(attrs={"precision": "bf16"}) as out:
        out.add(keys, np.full(count, 200), {"mean": np.ones((count, 4), np.float16)})


def begin(folder, *, started, **changes):
    """Record a run that started some seconds ago."""
    status.start_run(folder.path, PLAN)
    record = json.loads((folder.path / "run.json").read_text())
    started = time.time() - started
    record |= {"started": started, "encoding_since": started, **changes}
    (folder.path / "run.json").write_text(json.dumps(record))


def commit_ago(folder, seconds):
    """Make the newest shard look as if it was committed some seconds ago."""
    newest = max(folder.path.glob("*.h5"), key=lambda path: path.stat().st_mtime_ns)
    os.utime(newest, (time.time() - seconds,) * 2)


def progress(folder):
    (encoder,) = info(open_store(folder.path.parent))["encoders"]
    return encoder["progress"]


def test_a_running_run_is_shown_with_its_speed_and_the_time_left(folder):
    begin(folder, started=100)
    add(folder, 10)
    commit_ago(folder, 50)
    shown = progress(folder)
    assert (shown["encoded"], shown["to_encode"], shown["state"]) == (10, 40, "running")
    assert shown["process"] == f"{host_name()}:{os.getpid()}"
    assert shown["sequences_per_s"] == pytest.approx(10 / 50, rel=0.05)
    assert shown["residues_per_s"] == pytest.approx(2000 / 50, rel=0.05)
    assert shown["seconds_left"] == pytest.approx((8000 - 2000) / 40 - 50, rel=0.1)
    assert shown["factor"] == 50 * 80_000 / 10_000
    assert shown["seconds_spared"] == pytest.approx((50 * 80_000 - 10_000) / 40, rel=0.05)


def test_speed_covers_the_last_ten_minutes_and_progress_all_rows(folder):
    begin(folder, started=3000)
    add(folder, 20)
    commit_ago(folder, 2000)
    add(folder, 6, seed=1)
    commit_ago(folder, 100)
    shown = progress(folder)
    assert shown["encoded"] == 26
    assert shown["sequences_per_s"] == pytest.approx(6 / 600, rel=0.05)


def test_the_time_before_the_first_commit_does_not_lower_the_speed(folder):
    begin(folder, started=500)
    for seed, ago in enumerate((90, 60, 30)):
        add(folder, 9, seed)
        commit_ago(folder, ago)
    assert progress(folder)["sequences_per_s"] == pytest.approx(18 / 60, rel=0.05)


def test_the_time_before_encoding_does_not_lower_the_speed_of_a_single_commit(folder):
    begin(folder, started=500)
    status.start_encoding(folder.path)
    record = json.loads((folder.path / "run.json").read_text())
    assert record["encoding_since"] == pytest.approx(time.time(), abs=5)
    begin(folder, started=500, encoding_since=time.time() - 40)
    add(folder, 10)
    commit_ago(folder, 30)
    assert progress(folder)["sequences_per_s"] == pytest.approx(10 / 10, rel=0.05)


def test_rows_of_earlier_runs_do_not_count_as_progress(folder):
    add(folder, 30)
    commit_ago(folder, 500)
    begin(folder, started=100)
    shown = progress(folder)
    assert (shown["encoded"], shown["sequences_per_s"], shown["seconds_left"]) == (0, None, None)


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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"table": "x"}', "[" * 100_000])
def test_a_damaged_run_record_shows_no_progress(folder, text):
    (folder.path / "run.json").write_text(text)
    assert progress(folder) is None


def test_a_run_of_no_residues_shows_no_progress(folder):
    begin(folder, started=100, residues=0)
    assert progress(folder) is None


@pytest.mark.parametrize("name", ["run.json", "speed.json"])
def test_a_note_that_is_a_pipe_is_not_waited_for(folder, name):
    os.mkfifo(folder.path / name)
    line = (
        "import sys, pathlib; from abag.embed.store import status; "
        "folder = pathlib.Path(sys.argv[1]); "
        "assert status.latest_run(folder) is None and status.residues_per_s(folder) is None"
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
    for name in whole.keys() - {"table", "host"} if value == "x" else whole:
        (folder.path / "run.json").write_text(json.dumps({**whole, name: value}))
        info(open_store(folder.path.parent))
        assert progress(folder) is None


def test_embed_records_its_plan_and_the_cost_of_encoding_every_epoch(tmp_path):
    table = demo_table().head(60)
    embed_table(table, tmp_path / "store", limit=20, **PLAIN)
    summary = embed_table(table, tmp_path / "store", **PLAIN)
    shown = {e["kind"]: e["progress"] for e in info(open_store(tmp_path / "store"))["encoders"]}
    for kind, plural, chains in (
        (
            "antibody",
            "antibodies",
            [h + (s or "") for h, s in zip(table["heavy"], table["light"].fillna(""), strict=True)],
        ),
        ("antigen", "antigens", list(table["antigen"])),
    ):
        assert shown[kind]["state"] == "finished"
        assert shown[kind]["rows"] == 60
        assert shown[kind]["encoded"] == shown[kind]["to_encode"] == summary[plural]["encoded"]
        once, always = sum(map(len, set(chains))), 50 * sum(map(len, chains))
        assert shown[kind]["factor"] == pytest.approx(always / once, abs=0.1)


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
            assert len(done.stdout.splitlines()) < 24
            assert "pairs.csv: 10 of 40 sequences encoded (25%), running" in done.stdout
            assert "400 times less than encoding each of 400 rows" in done.stdout
    assert {p: p.read_bytes() for p in store.rglob("*") if p.is_file()} == before


def test_damage_and_spooled_sequences_are_shown(folder, monkeypatch):
    add(folder, 10)
    next(folder.path.glob("*.h5")).write_bytes(b"")
    monkeypatch.setattr("abag.embed.store.status.spooled_rows", lambda _: 7)
    text = "\n".join(describe(info(open_store(folder.path.parent))))
    assert "7 sequences are in a local spool on this machine" in text
    assert "damaged: " in text
