"""A file system that fails for a moment is tried again; a Drive has to be mounted."""

import errno
import os
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import Mock

import pytest
from stores import StoreUnreachable, mount_drives_at, set_patience

from abag import open_store
from abag.embed.store.shard import retrying


def test_a_store_for_a_drive_that_is_not_mounted_is_refused(tmp_path, monkeypatch):
    mount_drives_at(monkeypatch, tmp_path / "drive")
    store = tmp_path / "drive" / "MyDrive" / "store"
    with pytest.raises(StoreUnreachable, match=r"no Drive is mounted.*drive\.mount"):
        open_store(store, create=True)
    assert not (tmp_path / "drive").exists()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "drive")
    assert open_store(store, create=True).folders() == []


def away(times, code):
    """Return a function that fails a number of times, then answers."""
    return Mock(side_effect=chain(repeat(OSError(code, os.strerror(code)), times), ["here"]))


def access(act):
    return retrying(Path("/store"), act)


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch):
    set_patience(monkeypatch, first_pause_s=0.0)


@pytest.mark.parametrize(("seconds", "reports"), [(0.0, 1), (5.0, 0)])
def test_a_file_system_that_fails_is_tried_again_and_a_long_wait_is_reported_once(
    monkeypatch, seconds, reports, said
):
    set_patience(monkeypatch, report_s=seconds)
    assert access(away(3, errno.ENOTCONN)) == "here"
    assert len(said) == reports


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_permanent_error_is_raised_at_once(code):
    act = away(1, code)
    with pytest.raises(StoreUnreachable, match=os.strerror(code)):
        access(act)
    assert act.call_count == 1
