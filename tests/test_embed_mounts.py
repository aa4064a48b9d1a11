"""Remote file systems are recognized and retried; local disks are not retried."""

import errno
import os
from pathlib import Path

import pytest

from abag.core.messages import reporting
from abag.embed.shards import filesystem
from abag.embed.shards.filesystem import (
    Mount,
    StoreUnreachable,
    is_local,
    mount_of,
    retry_if_remote,
)
from abag.embed.store.store import open_store

TABLE = r"""22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
40 22 0:40 / /content/drive rw,nosuid - fuse.drive drive rw,user_id=0
41 22 0:41 / /mnt/lab\040disk rw shared:1 - nfs4 server:/lab rw
42 41 8:2 / /mnt/lab\040disk/scratch rw - xfs /dev/sdb1 rw
43 22 0:43 / /mnt/win rw - cifs //server/share rw
44 22 0:44 / /mnt/wsl rw - 9p drvfs rw
45 22 0:45 / /mnt/over rw - tmpfs tmpfs rw
46 45 0:46 / /mnt/over rw - fuse.sshfs lab: rw
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A machine with these filesystem."""
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    monkeypatch.setattr(filesystem, "MOUNT_TABLE", path)
    return path


@pytest.mark.parametrize(
    ("path", "kind", "local"),
    [
        ("/home/me/store", "ext4", True),
        ("/content/drive/MyDrive/abag/store", "fuse.drive", False),
        ("/content/drive2/store", "ext4", True),
        ("/mnt/lab disk/store", "nfs4", False),
        ("/mnt/lab disk/scratch/store", "xfs", True),
        ("/mnt/win/store", "cifs", False),
        ("/mnt/wsl/store", "9p", False),
        ("/mnt/over/store", "fuse.sshfs", False),
    ],
)
def test_the_longest_and_latest_mount_point_decides_the_file_system(table, path, kind, local):
    assert mount_of(Path(path)).kind == kind
    assert is_local(Path(path)) is local


def test_without_a_mount_table_every_path_is_local(table):
    table.unlink()
    assert mount_of(Path("/anywhere")) == Mount("/", "unknown")
    assert is_local(Path("/anywhere"))


def test_this_machines_mount_table_is_parsed(tmp_path):
    assert not is_local(Path("/proc"))
    assert Path(mount_of(tmp_path).point).is_dir()


def test_a_store_for_a_drive_that_is_not_mounted_is_refused(table, tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "COLAB_DRIVE", tmp_path / "drive")
    store = tmp_path / "drive" / "MyDrive" / "store"
    with pytest.raises(StoreUnreachable, match=r"no Drive is mounted.*drive\.mount"):
        open_store(store, create=True)
    assert not (tmp_path / "drive").exists()
    table.write_text(f"{TABLE}50 1 0:50 / {tmp_path}/drive rw - fuse.drive drive rw\n")
    assert open_store(store, create=True).folders() == []


class Away:
    """Fails a number of times, then answers."""

    def __init__(self, times, code):
        self.left, self.code = times, code

    def __call__(self):
        self.left -= 1
        if self.left >= 0:
            raise OSError(self.code, os.strerror(self.code))
        return "here"


@pytest.fixture
def no_delay(monkeypatch):
    """No pause between attempts."""
    monkeypatch.setattr(filesystem, "FIRST_PAUSE_SECONDS", 0.0)


def test_a_remote_file_system_is_retried_and_the_wait_is_reported_once(table, no_delay):
    path, messages = Path("/content/drive/MyDrive/store"), []
    with reporting(messages.append):
        assert retry_if_remote(Away(3, errno.ENOTCONN), path) == "here"
    assert len(messages) == 1
    assert "trying again" in messages[0]


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("/home/me/store", errno.EIO),
        ("/content/drive/store", errno.ENOSPC),
        ("/content/drive/store", errno.EACCES),
    ],
)
def test_a_permanent_error_is_raised_at_once(table, no_delay, where, code):
    act = Away(1, code)
    with pytest.raises(OSError, match=os.strerror(code)):
        retry_if_remote(act, Path(where))
    assert act.left == 0


def test_a_remote_file_system_is_not_retried_for_ever(table, no_delay, monkeypatch):
    monkeypatch.setattr(filesystem, "RETRY_SECONDS", 0.05)
    with pytest.raises(OSError, match="not connected"):
        retry_if_remote(Away(10**9, errno.ENOTCONN), Path("/content/drive/store"))
