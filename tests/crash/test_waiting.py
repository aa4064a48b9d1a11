"""What waits on the local disk for a store is brought in by whoever opens the store next."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from abag.core.files import Files
from abag.embed.store import filesystem as mounts
from abag.embed.store import maintenance as upkeep
from abag.embed.store.spool import list_spools, publish_spools, spooled_rows
from abag.embed.store.store import StoreUnreachable, open_store

INFO = {"name": "igt5", "fingerprint": "3f2c9b1e" * 4}
KEYS = np.random.default_rng(0).integers(0, 256, (40, 16), dtype=np.uint8)
VECTORS = np.random.default_rng(1).standard_normal((40, 8)).astype(np.float16)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder for stores, with the machine's temporary folder in it."""
    (tmp_path / "local").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "local"))
    monkeypatch.setattr(mounts, "FIRST_PAUSE_SECONDS", 0.001)
    return tmp_path


class Down(Files):
    """A store that takes nothing until it is `up`."""

    up = False

    def replace(self, source, target):
        if not self.up:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        super().replace(source, target)


def begun(store, **options):
    """A writer that was given everything, and a store that takes none of it."""
    folder = open_store(store, create=True).create_folder("antibody", INFO)
    out = folder.writer(attrs={}, commit_rows=10, stage=True, **options)
    out.add(KEYS, np.ones(40), {"mean": VECTORS})
    while spooled_rows(store) < 40:
        time.sleep(0.005)
    return out


CHILD = """
import sys, time, tempfile
tempfile.tempdir = sys.argv[2]
sys.path.insert(0, sys.argv[3])
import test_waiting
test_waiting.begun(test_waiting.Path(sys.argv[1]), files=test_waiting.Down())
print("staged", flush=True)
time.sleep(600)
"""


def test_what_waits_when_its_writer_is_killed_is_brought_in_by_the_next_run(machine):
    store, here = machine / "store", str(Path(__file__).parent)
    command = [sys.executable, "-c", CHILD, str(store), str(machine / "local"), here]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "staged\n"
        assert publish_spools(store) == 0  # its writer lives
        child.send_signal(signal.SIGKILL)
    assert publish_spools(store) == 40
    assert np.array_equal(open_store(store).folder("antibody").read(KEYS), VECTORS)
    assert publish_spools(store) == 0
    assert list_spools(store) == []


def test_the_room_of_a_living_writer_is_left_to_it(machine):
    files = Down()
    out = begun(machine / "store", files=files)
    assert publish_spools(machine / "store") == 0
    files.up = True
    out.close()
    assert out.committed == 40
    assert list_spools(machine / "store") == []


def left_over(store):
    """A room whose writer gave up."""
    out = begun(store, files=Down(), retry_seconds=0.0)
    with pytest.raises(StoreUnreachable):
        out.close()
    (room,) = list_spools(store)
    return room


def test_a_store_that_still_takes_nothing_leaves_the_room_as_it_was(machine):
    room = left_over(machine / "store")
    before = {p: p.read_bytes() for p in room.rglob("*.h5")}
    with pytest.raises(StoreUnreachable, match=f"waits in {room} stays there"):
        publish_spools(machine / "store", Down())
    assert {p: p.read_bytes() for p in room.rglob("*.h5")} == before
    assert publish_spools(machine / "store") == 40


@pytest.mark.parametrize("lost", ["store/antibody-igt5-3f2c9b1e", "store"])
def test_a_room_brings_in_its_encoder_where_the_store_lost_it(machine, lost):
    left_over(machine / "store")
    (machine / lost).rename(machine / "gone")
    assert publish_spools(machine / "store") == 40
    assert open_store(machine / "store").folder("antibody").rows == 40


def test_a_damaged_shard_that_waited_is_left_out_and_said(machine, caplog):
    room = left_over(machine / "store")
    shard = next(room.rglob("*.h5"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert publish_spools(machine / "store") == 30
    assert f"{shard.name}: " in caplog.text
    assert upkeep.verify(open_store(machine / "store")) == []


def test_rooms_of_other_stores_other_people_and_links_are_left_alone(machine, monkeypatch):
    room = left_over(machine / "store")
    assert publish_spools(machine / "other") == 0
    me = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: me + 1)
    assert list_spools(machine / "store") == []
    monkeypatch.setattr("os.getuid", lambda: me)
    room.rename(machine / "elsewhere")
    room.symlink_to(machine / "elsewhere")
    assert list_spools(machine / "store") == []
