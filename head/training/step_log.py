"""The log of a training: one line of JSON per step.

It is synced before a checkpoint that stores its size, and truncated to that size on resuming: each
step has exactly one line, whenever the process was killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from abag import AbagError


class LogDamaged(AbagError):
    """The log is shorter than the newest checkpoint says."""


def append_lines(log: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append one line of JSON for each mapping."""
    with log.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def sync_log(log: Path) -> int:
    """Write what was appended to the disk; return the size in bytes."""
    with log.open("a", encoding="utf-8") as file:
        os.fsync(file.fileno())
        return file.tell()


def truncate_log(log: Path, size: int) -> None:
    """Cut off the lines after the checkpoint, which stores the size in bytes.

    Raises
    ------
    LogDamaged
        If the log is shorter.
    """
    if not log.exists() or log.stat().st_size < size:
        msg = (
            f"{log}: lines are missing that were written before the checkpoint; expected "
            f"{size} bytes. Restore the file, or use another --run folder."
        )
        raise LogDamaged(msg)
    os.truncate(log, size)
