"""Notes that a run leaves beside the vectors: what it has to encode, and how fast it was.

They only inform: a note that cannot be written or read does not stop a run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, cast, get_type_hints

from abag.core.files import Files, host_name, write_json
from abag.embed.shards.regular_files import DamagedShard
from abag.embed.store.store_files import read_json

RUN_FILE = "run.json"
SPEED_FILE = "speed.json"
LARGEST = 1e15
"""Numbers from here on are no counts, times or process ids."""


class RunPlan(TypedDict):
    """What a run of ``abag embed`` has to do for one encoder."""

    table: str
    rows: int
    sequences: int
    """Unique sequences in the table."""
    to_encode: int
    """Those that the store did not hold."""
    residues: int
    """Of the unique sequences."""
    residues_to_encode: int
    residues_of_rows: int
    """Of all rows: what encoding each row would take."""


class _StartedRun(RunPlan):
    started: float
    host: str
    pid: int


class RunRecord(_StartedRun, total=False):
    """Content of run.json; times are seconds since 1970."""

    encoding_since: float
    """When encoding began: after reading the table and loading the encoder."""


class RunNotes:
    """Reads and writes the notes in one encoder's folder."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder, self._files = folder, files

    def start_run(self, plan: RunPlan) -> None:
        """Note that this process starts a run."""
        started = round(time.time(), 3)
        record = {**plan, "started": started, "host": host_name(), "pid": os.getpid()}
        self._write(RUN_FILE, record)

    def start_encoding(self) -> None:
        """Note when the latest run began to encode."""
        if (record := self.latest_run()) is not None:
            self._write(RUN_FILE, {**record, "encoding_since": round(time.time(), 3)})

    def latest_run(self) -> RunRecord | None:
        """Return the record of the latest run, if there is a complete one."""
        record = self._read(RUN_FILE)
        return cast("RunRecord", record) if _is_run_record(record) else None

    def note_speed(self, residues: int, seconds: float, device: str) -> None:
        """Note how fast the latest run encoded."""
        speed = {"residues": residues, "seconds": round(seconds, 3), "device": device}
        self._write(SPEED_FILE, speed)

    def residues_per_s(self) -> float | None:
        """Return the speed of the latest run that encoded, if there was one."""
        speed = self._read(SPEED_FILE)
        try:
            per_s = float(speed["residues"]) / float(speed["seconds"])
        except (ValueError, KeyError, TypeError, ArithmeticError):
            return None
        return per_s if 0 < per_s < math.inf else None

    def _read(self, name: str) -> dict[str, str | int | float]:
        try:
            value = read_json(self._folder / name)
        except (OSError, DamagedShard):
            return {}
        return value if isinstance(value, dict) else {}

    def _write(self, name: str, value: object) -> None:
        with suppress(OSError):
            write_json(self._folder / name, value, files=self._files)


def _is_run_record(record: Mapping[str, object]) -> bool:
    """Whether a record has the fields of `RunRecord` with sensible values; anyone can write it."""
    for name, kind in get_type_hints(RunRecord).items():
        value = record.get(name, 0 if name in RunRecord.__optional_keys__ else None)
        if kind is str and not isinstance(value, str):
            return False
        if kind is not str and not (type(value) in (int, kind) and 0 <= value < LARGEST):  # type: ignore[operator]
            return False
    return bool(record["residues"])  # `store info` divides by them
