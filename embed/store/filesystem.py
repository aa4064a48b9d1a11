"""Retry calls to a file system that fails for a moment, such as that of a mounted Drive."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from abag import AbagError
from abag.core.messages import say

T = TypeVar("T")

RETRY_SECONDS = 60.0
REPORT_SECONDS = 5.0  # of failing, before the user is told that abag waits
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
COLAB_DRIVE = Path("/content/drive")
TRANSIENT = frozenset(
    (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN)
)


class StoreUnreachable(AbagError):
    """A store cannot be read or written; the message says where unwritten vectors are kept."""


def is_unmounted_drive(path: Path) -> bool:
    """Whether a path is under a Colab machine's Drive folder and no Drive is mounted there."""
    folders = [path.resolve(), *path.resolve().parents]
    return COLAB_DRIVE in folders and not any(
        folder.is_mount() for folder in folders if folder.is_relative_to(COLAB_DRIVE)
    )


def retried(path: Path, action: Callable[[], T], *, seconds: float | None = None) -> T:
    """Call a function that reads or writes a store, again and again until it succeeds.

    "Transport endpoint is not connected" and other failures of a mounted Drive may last for
    seconds. `StoreUnreachable` if the error is permanent, or lasts for `seconds`, by default
    `RETRY_SECONDS`.
    """
    seconds = RETRY_SECONDS if seconds is None else seconds
    pause, failing_since, is_reported = FIRST_PAUSE_SECONDS, 0.0, False
    while True:
        try:
            return action()
        except OSError as error:
            failing_since = failing_since or time.monotonic()
            failing_s = time.monotonic() - failing_since
            if error.errno not in TRANSIENT or failing_s >= seconds:
                msg = f"{path}: cannot be accessed ({error}); expected a readable store. Try again."
                raise StoreUnreachable(msg) from error
            if failing_s >= REPORT_SECONDS and not is_reported:
                say(f"{path}: does not respond ({error.strerror}); trying again.")
                is_reported = True
            time.sleep(min(pause, seconds - failing_s))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
