"""Speeds of encoders that ``abag doctor --bench`` measured, kept in the cache folder."""

from __future__ import annotations

import hashlib
import json
from datetime import date
from pathlib import Path
from typing import NamedTuple

from abag import cache_dir
from abag.core.files import write_json


class MeasuredSpeed(NamedTuple):
    """The speed of one encoder on one device."""

    tokens_per_s: float
    day: str
    """ISO date of the measurement."""


def record_speed(device: str, encoder: str, tokens_per_s: float) -> None:
    """Remember a speed under the name of the device and the name given for the encoder."""
    path = _path(device, encoder)
    path.parent.mkdir(exist_ok=True)
    speed = MeasuredSpeed(tokens_per_s, date.today().isoformat())
    write_json(path, {"device": device, "encoder": encoder, **speed._asdict()})


def recorded_speed(device: str, encoder: str) -> MeasuredSpeed | None:
    """Return the latest speed that was measured; None if there is none."""
    try:
        found = json.loads(_path(device, encoder).read_text(encoding="utf-8"))
        speed = MeasuredSpeed(float(found["tokens_per_s"]), str(found["day"]))
    except (OSError, ValueError, KeyError, TypeError):  # it can be measured again
        return None
    return speed if 0 < speed.tokens_per_s < float("inf") else None


def _path(device: str, encoder: str) -> Path:
    digest = hashlib.blake2b(f"{device}\0{encoder}".encode(), digest_size=16).hexdigest()
    return cache_dir() / "speeds" / f"{digest}.json"
