"""A slow, flaky file system between a run and its store, such as a mounted Drive.

System calls on paths under the store are slow and fail at random. The next run publishes the shards
in the local spool.
"""

import errno
import os
import random
import re
import time
from pathlib import Path

import pytest
from drawn import COMPOSITION, demo_table
from embedding import assert_same_vectors
from stores import StoreUnreachable, set_patience, spooled_rows, verify

from abag import embed_table, open_store

CODES = (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT)


class Drive:
    """System calls on paths under `root` are slow and fail at random, or all of them do."""

    CALLS = ("open", "stat", "lstat", "scandir", "listdir", "mkdir", "replace", "unlink", "fsync")

    def __init__(self, root: Path, monkeypatch, *, fails=0.0, delay_s=0.0):
        self.root = str(root)
        self.fails = fails
        self.delay_s = delay_s
        self.goes_away_at: tuple[str, str] | None = None  # a call, and a pattern of its path
        self.is_away = False
        self.failures = 0
        self._random = random.Random(1)
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self.through(name, getattr(os, name)))
        monkeypatch.setattr("io.open", self.through("open", open))

    def through(self, call_name, call):
        def flaky(path=".", *args, **kwargs):
            name = str(Path(f"/proc/self/fd/{path}").readlink() if isinstance(path, int) else path)
            if name.startswith(self.root):
                at = self.goes_away_at
                self.is_away |= bool(at and at[0] == call_name and re.search(at[1], name))
                self.answer()
            return call(path, *args, **kwargs)

        return flaky

    def answer(self):
        time.sleep(self._random.random() * self.delay_s)
        if self.is_away or self._random.random() < self.fails:
            self.failures += 1
            code = self._random.choice(CODES)
            raise OSError(code, os.strerror(code))


def embed(store, table):
    return embed_table(table, store, commit_seconds=0.0, batch_tokens=1500, **COMPOSITION)


@pytest.mark.ci
def test_a_slow_flaky_drive_receives_everything(machine, monkeypatch):
    table = demo_table().head(150)
    store = machine / "drive" / "MyDrive" / "store"
    drive = Drive(machine / "drive", monkeypatch, fails=0.08, delay_s=0.001)
    first = embed(store, table)
    again = embed(store, table)
    monkeypatch.undo()
    assert drive.failures > 10
    assert first["antibodies"]["encoded"] == first["antibodies"]["unique"] > 10
    assert again["antibodies"]["encoded"] == again["antigens"]["encoded"] == 0
    embed(machine / "whole", table)
    assert_same_vectors(store, machine / "whole")
    assert verify(open_store(store)) == []
    assert spooled_rows(store) == 0


@pytest.mark.parametrize("kind", ["antibody", "antigen"])
@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_the_next_run_publishes_what_a_drive_that_goes_away_did_not_accept(
    machine, monkeypatch, kind, call
):
    table = demo_table().head(150)
    store = machine / "drive" / "store"
    whole = machine / "drive" / "whole"
    with monkeypatch.context() as patched:
        drive = Drive(machine / "drive", patched)
        embed(whole, table)
        drive.goes_away_at = call, rf"/{kind}-[^/]+/[0-9a-f]{{32}}\."
        set_patience(patched, read_s=0.1, write_s=0.1)
        with pytest.raises(StoreUnreachable) as caught:
            embed(store, table)
    committed, spooled = map(int, COUNTS.search(str(caught.value)).groups())
    assert spooled == spooled_rows(store) > 0
    resumed = embed(store, table)
    reused = resumed["antibodies"]["reused"] + resumed["antigens"]["reused"]
    assert reused == sum(folder.rows for folder in open_store(whole).folders()) - sum(
        resumed[plural]["encoded"] for plural in ("antibodies", "antigens")
    )
    assert reused >= committed + spooled
    assert_same_vectors(store, whole)
    assert spooled_rows(store) == 0


COUNTS = re.compile(
    r"Of this run, (\d+) sequences are committed and (\d+) are kept in \S+\. .*same command"
)
