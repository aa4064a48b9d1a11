"""The copy of an adapter that a store keeps beside the vectors made with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from abag import AbagError
from abag.core.files import Files, write_bytes

ADAPTER_FOLDER = "adapter"
ADAPTER_FILE = "adapter.json"
ROWS_FILE = "splits.parquet"
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


class AdapterDamaged(AbagError):
    """An adapter's files are not those that were written."""


def write_adapter_files(
    folder: Path, extras: Mapping[str, bytes], files: Files | None = None
) -> None:
    """Write files into an encoder's folder, each whole or not at all; what is there stays."""
    known = {
        f"{ADAPTER_FOLDER}/{name}"
        for kind in ("antibody", "antigen")
        for name in (f"{kind}/{CONFIG_FILE}", f"{kind}/{WEIGHTS_FILE}", ROWS_FILE, ADAPTER_FILE)
    }
    for name, content in extras.items():
        if name not in known:  # a name from a packed store must not lead out of the folder
            msg = f"{folder}: {name!r} is no file of an adapter. Embed the sequences anew."
            raise AdapterDamaged(msg)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_bytes(path, content, concurrent=True, files=files)
