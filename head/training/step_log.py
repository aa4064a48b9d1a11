"""The log of a training: one line of JSON per step.

It is synced before a checkpoint that stores its size, and truncated to that size on resuming: each
step has exactly one line, whenever the process was killed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.files import Files


class LogDamaged(AbagError):
    """The log is shorter than the newest checkpoint says, or a line of it is not valid."""


class StepLogs:
    """The logs of a training whose steps train the heads of one or several folds.

    Parameters
    ----------
    logs : sequence of Path
        The log of each fold.
    """

    def __init__(self, logs: Sequence[Path], steps_per_epoch: int) -> None:
        self._logs, self._steps_per_epoch = logs, steps_per_epoch
        self.step = 0
        """How many steps are in the logs."""

    def write(
        self,
        losses_SM: NDArray[np.float64],
        rates_S: NDArray[np.float32],
        fields: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write a line for each further step.

        Parameters
        ----------
        losses_SM : NDArray, shape=(S, M), dtype=float64
            Of the heads of the first fold, then those of the second ...
        rates_S : NDArray, dtype=float32
            Learning rates of each step.
        fields : sequence of mappings, optional
            What the last line of each fold says besides.
        """
        if not len(losses_SM):
            return
        each = np.split(losses_SM, len(self._logs), axis=1)
        for number, (log, losses_SK) in enumerate(zip(self._logs, each, strict=True)):
            lines: list[dict[str, Any]] = [
                {
                    "step": self.step + at + 1,
                    "epoch": (self.step + at) // self._steps_per_epoch + 1,
                    "loss": sum(losses) / len(losses),
                    "lr": float(rates_S[at].flat[0]),
                }
                | ({"losses": losses} if len(losses) > 1 else {})
                for at, losses in enumerate(losses_SK.tolist())
            ]
            lines[-1] |= fields[number] if fields else {}
            with log.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        self.step += len(losses_SM)

    def sync(self) -> list[int]:
        """Write what was appended to the disk; return the size of each log in bytes."""
        return [sync_log(log) for log in self._logs]

    def delete(self) -> None:
        """Begin without the lines of an earlier training."""
        for log in self._logs:
            log.unlink(missing_ok=True)

    def resume(self, step: int, sizes: Sequence[int]) -> None:
        """Cut off what was written after a checkpoint, see `truncate_log`."""
        self.step = step
        for log, size in zip(self._logs, sizes, strict=True):
            truncate_log(log, size)


def sync_log(log: Path) -> int:
    """Write what was appended, and the log's name, to the disk; return the size in bytes."""
    with log.open("a", encoding="utf-8") as file:
        os.fsync(file.fileno())
        Files().sync_folder(log.parent)
        return file.tell()


def read_lines(log: Path) -> list[dict[str, Any]]:
    """Read a log; raise `LogDamaged` if a line is not valid."""
    return [
        parse_line(log, number, text)
        for number, text in enumerate(log.read_bytes().splitlines(), 1)
    ]


def parse_line(log: Path, number: int, text: bytes) -> dict[str, Any]:
    """Read a line of a log; its number, from 1, is for the message.

    Raises
    ------
    LogDamaged
        If it is not a JSON object with numbers for its step, epoch and loss.
    """
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


def truncate_log(log: Path, size: int) -> None:
    """Cut off the lines after the checkpoint, which stores the size in bytes.

    Raises
    ------
    LogDamaged
        If the log is shorter, or a line is damaged.
    """
    if not log.exists() or log.stat().st_size < size:
        msg = (
            f"{log}: lines are missing that were written before the checkpoint; expected "
            f"{size} bytes. Restore the file, or use another --run folder."
        )
        raise LogDamaged(msg)
    os.truncate(log, size)
    read_lines(log)
