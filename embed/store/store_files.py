"""The files of a store that are not shards: their names, and how they are created."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from abag.core.files import Files, write_json

STORE_FILE = "abag-store.json"
ENCODER_FILE = "encoder.json"
SPEED_FILE = "speed.json"
RUN_FILE = "run.json"
STORE_MARK = {"format": "abag-store", "version": 1}


def create_store(root: Path, files: Files) -> None:
    """Make a folder a store."""
    root.mkdir(parents=True, exist_ok=True)
    write_json(root / STORE_FILE, STORE_MARK, concurrent=True, files=files)
    files.sync_folder(root.resolve().parent)


def create_encoder_folder(path: Path, info: Mapping[str, object], files: Files) -> None:
    """Create the folder for the vectors of one encoder."""
    path.mkdir(exist_ok=True)
    write_json(path / ENCODER_FILE, info, concurrent=True, files=files)
    files.sync_folder(path.parent)
