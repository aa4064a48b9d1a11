"""The log of a training: one line of JSON per step and fold.

It is synced before a checkpoint that stores its size, and truncated to that size on resuming: each
step has exactly one line per fold, whenever the process was killed.
"""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

from abag import AbagError
from abag.core.files import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

NAME = "log.jsonl"
"""Of the log beside the checkpoints of a training."""


class LogDamaged(AbagError):
    """The log is shorter than the newest checkpoint says, or a line of it is not valid."""


def append_lines(log: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Add lines at the end."""
    with log.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def sync_log(log: Path) -> int:
    """Write what was appended, and the log's name, to the disk; return the size in bytes."""
    with log.open("a", encoding="utf-8") as file:
        os.fsync(file.fileno())
        sync_folder(log.parent)
        return file.tell()


def truncate_log(log: Path, size: int) -> None:
    """Cut off the lines after the checkpoint, which stores the size in bytes."""
    if not log.exists() or log.stat().st_size < size:
        msg = (
            f"{log}: lines are missing that were written before the checkpoint; expected "
            f"{size} bytes. Restore the file, or use another --run folder."
        )
        raise LogDamaged(msg)
    os.truncate(log, size)
    read_lines(log)


def read_lines(log: Path) -> list[dict[str, Any]]:
    """Read a log; raise `LogDamaged` if a line is not valid."""
    return [
        parse_line(log, number, text)
        for number, text in enumerate(log.read_bytes().splitlines(), 1)
    ]


def parse_line(log: Path, number: int, text: bytes) -> dict[str, Any]:
    """Read a line of a log; its number, from 1, is for the message."""
    try:
        line: dict[str, Any] = json.loads(text)
        known = {"seconds": 0} | line
        whole = all(math.isfinite(known[name]) for name in ("step", "epoch", "loss", "seconds"))
    except (ValueError, LookupError, TypeError, OverflowError):
        whole = False
    if not whole:
        msg = (
            f"{log}: line {number} is damaged ({text[:40]!r}); expected a JSON object with step, "
            "epoch and loss. Restore the file, or use another --run folder."
        )
        raise LogDamaged(msg)
    return line
