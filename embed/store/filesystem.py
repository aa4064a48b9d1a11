"""What kind of file system a path lies on, and patience with those that are away for a while."""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from abag import AbagError

RETRY_SECONDS = 300.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 30.0
COLAB_DRIVE = Path("/content/drive")
MOUNT_TABLE = Path("/proc/self/mountinfo")
# whatever is not known to be a disk is remote: fuse (a mounted Drive), nfs, cifs, 9p ...
_LOCAL = frozenset(
    "apfs bcachefs btrfs exfat ext2 ext3 ext4 f2fs hfs jfs overlay ramfs reiserfs tmpfs unknown "
    "vfat xfs zfs".split()
)
_TRANSIENT = frozenset(
    (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN)
)
_OCTAL = re.compile(rb"\\([0-7]{3})")  # how the mount table writes a space
_log = logging.getLogger("abag")
T = TypeVar("T")


class StoreUnreachable(AbagError):
    """A store that cannot be read or written; says what waits for it, and where."""


class Mount(NamedTuple):
    """Where a file system is mounted, and of which kind it is."""

    point: str
    kind: str


def mount_of(path: Path) -> Mount:
    """Find the file system that a path lies on, or will: the longest mount point counts.

    Where there is no mount table (not Linux), the kind is "unknown".
    """
    try:
        lines = MOUNT_TABLE.read_bytes().splitlines()
    except OSError:
        return Mount("/", "unknown")
    best = Mount("", "unknown")
    target = str(path.resolve()) + "/"
    for line in lines:
        left, _, right = line.partition(b" - ")
        point = os.fsdecode(_OCTAL.sub(lambda m: bytes([int(m[1], 8)]), left.split()[4]))
        if len(point) >= len(best.point) and target.startswith(point.rstrip("/") + "/"):
            best = Mount(point, os.fsdecode(right.split()[0]))
    return best


def is_local(path: Path) -> bool:
    """Say whether a path lies on a disk of this machine, as far as the mount table tells."""
    return mount_of(path).kind in _LOCAL


def is_unmounted_drive(path: Path) -> bool:
    """Say whether a path is meant for a Colab machine's Drive, and none is mounted there."""
    meant = path.resolve().is_relative_to(COLAB_DRIVE)
    return meant and not Path(mount_of(path).point).is_relative_to(COLAB_DRIVE)


def retry_if_remote(act: Callable[[], T], where: Path) -> T:
    """Do something on a remote file system, again while it fails in a way that passes.

    A mounted Drive is away for seconds at a time ("Transport endpoint is not connected"). A disk
    of this machine is not waited for: there, EIO means broken.

    Raises
    ------
    OSError
        What did not pass within `RETRY_SECONDS`, or never would.
    """
    begun: float | None = None
    while True:
        try:
            return act()
        except OSError as error:
            if error.errno not in _TRANSIENT or is_local(where):
                raise
            if begun is None:
                begun = time.monotonic()
                _log.warning("%s: does not answer (%s); trying again.", where, error.strerror)
            elapsed = time.monotonic() - begun
            if elapsed >= RETRY_SECONDS:
                raise
            time.sleep(retry_delay(elapsed))


def retry_delay(elapsed: float) -> float:
    """Seconds until the next try, after failing for that long."""
    return min(max(FIRST_PAUSE_SECONDS, elapsed / 2), LONGEST_PAUSE_SECONDS)
