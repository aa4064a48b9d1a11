"""Retry calls to a file system that fails for a moment, such as that of a mounted Drive."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

from abag.core.errors import StoreError
from abag.core.messages import say

RETRY_SECONDS = 60.0
REPORT_SECONDS = 5.0  # of failing, before the user is told that abag waits
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
COLAB_DRIVE = Path("/content/drive")
TRANSIENT = frozenset(
    (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN)
)


class StoreUnreachable(StoreError):
    """A store cannot be read or written; the message says where unwritten vectors are kept."""


def is_unmounted_drive(path: Path) -> bool:
    """Tell whether a path is under a Colab machine's Drive folder, where no Drive is mounted."""
    folders = [path.resolve(), *path.resolve().parents]
    if COLAB_DRIVE not in folders:
        return False
    inside = [folder for folder in folders if folder.is_relative_to(COLAB_DRIVE)]
    return not any(folder.is_mount() for folder in inside)


class Attempt:
    """One try to read or write a store; a context manager that may be entered several times."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.succeeded = False
        self._path = path
        self._seconds = seconds
        self._pause = FIRST_PAUSE_SECONDS
        self._failing_since = 0.0  # 0: has not failed
        self._is_reported = False

    def __enter__(self) -> None:
        """Begin an attempt."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.succeeded = error is None
        if not isinstance(error, OSError):
            return False
        self._failing_since = self._failing_since or time.monotonic()
        failing_s = time.monotonic() - self._failing_since
        if error.errno not in TRANSIENT or failing_s >= self._seconds:
            msg = (
                f"{self._path}: cannot be accessed ({error}); expected a store that can be read "
                "and written. Remove the cause, and run the command again."
            )
            raise StoreUnreachable(msg) from error
        if failing_s >= REPORT_SECONDS and not self._is_reported:
            say(f"{self._path}: does not respond ({error.strerror}); trying again.")
            self._is_reported = True
        time.sleep(min(self._pause, self._seconds - failing_s))
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return True  # the error is dropped, and `attempts` yields this attempt again


def attempts(path: Path, *, seconds: float | None = None) -> Iterator[Attempt]:
    """Repeat the body of ``for attempt in attempts(path): with attempt:`` until it succeeds.

    "Transport endpoint is not connected" and other failures of a mounted Drive may last for
    seconds.

    Raises
    ------
    StoreUnreachable
        If the error is permanent, or lasts for `seconds`, by default `RETRY_SECONDS`.
    """
    attempt = Attempt(path, RETRY_SECONDS if seconds is None else seconds)
    while not attempt.succeeded:
        yield attempt
