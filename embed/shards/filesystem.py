"""Which file system a path is on, and retries on remote file systems that fail temporarily."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from abag import AbagError
from abag.core.messages import say

RETRY_SECONDS = 300.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 30.0
COLAB_DRIVE = Path("/content/drive")
MOUNT_TABLE = Path("/proc/self/mountinfo")
# everything else counts as remote: fuse (a mounted Drive), nfs, cifs, 9p ...
_LOCAL = frozenset(
    "apfs bcachefs btrfs exfat ext2 ext3 ext4 f2fs hfs jfs overlay ramfs reiserfs tmpfs unknown "
    "vfat xfs zfs".split()
)
_TRANSIENT = frozenset(
    (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN)
)
_OCTAL = re.compile(rb"\\([0-7]{3})")  # how the mount table writes a space
T = TypeVar("T")


class StoreUnreachable(AbagError):
    """A store cannot be read or written; the message says where unwritten vectors are kept."""


class Mount(NamedTuple):
    """A mounted file system."""

    point: str
    kind: str


def mount_of(path: Path) -> Mount:
    """Find the file system that holds a path, which need not exist.

    Without a mount table (not Linux), the kind is "unknown".
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
    """Whether a path is on a disk of this machine, according to the mount table."""
    return mount_of(path).kind in _LOCAL


def is_unmounted_drive(path: Path) -> bool:
    """Whether a path is under a Colab machine's Drive folder and no Drive is mounted there."""
    under_drive = path.resolve().is_relative_to(COLAB_DRIVE)
    return under_drive and not Path(mount_of(path).point).is_relative_to(COLAB_DRIVE)


def retry_if_remote(act: Callable[[], T], path: Path) -> T:
    """Call a function, and call it again while a remote file system fails temporarily.

    A mounted Drive can be unavailable for seconds ("Transport endpoint is not connected"). A
    local disk is not retried: there, EIO means that it is broken.

    Raises
    ------
    OSError
        If the error is permanent, or lasts for longer than `RETRY_SECONDS`.
    """
    failing_since: float | None = None
    while True:
        try:
            return act()
        except OSError as error:
            if error.errno not in _TRANSIENT or is_local(path):
                raise
            if failing_since is None:
                failing_since = time.monotonic()
                say(f"{path}: does not respond ({error.strerror}); trying again.")
            elapsed = time.monotonic() - failing_since
            if elapsed >= RETRY_SECONDS:
                raise
            time.sleep(retry_delay(elapsed))


def access(path: Path, act: Callable[[], T]) -> T:
    """Read or write a store, as :func:`retry_if_remote`.

    Raises
    ------
    StoreUnreachable
        For an OSError that is permanent or lasts too long.
    """
    try:
        return retry_if_remote(act, path)
    except OSError as error:
        msg = f"{path}: cannot be accessed ({error}); expected a readable store. Try again."
        raise StoreUnreachable(msg) from error


def retry_delay(elapsed: float) -> float:
    """Seconds until the next attempt, after failing for `elapsed` seconds."""
    return min(max(FIRST_PAUSE_SECONDS, elapsed / 2), LONGEST_PAUSE_SECONDS)
