"""The copy of an adapter that a store keeps beside the vectors made with it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from abag import AbagError
from abag.core.files import Files, is_partial, write_bytes
from abag.embed.shards.shard import DamagedShard

ADAPTER_FOLDER = "adapter"
ADAPTER_FILE = "adapter.json"
ROWS_FILE = "splits.parquet"
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


class AdapterDamaged(AbagError):
    """An adapter's files are not those that were written."""


def write_adapter_files(
    folder: Path, contents: Mapping[str, bytes], files: Files | None = None
) -> None:
    """Write an adapter's files, by path, into an encoder's folder; existing files are kept.

    Raises
    ------
    AdapterDamaged
        If a path is not that of an adapter's file.
    """
    known = {
        f"{ADAPTER_FOLDER}/{name}"
        for kind in ("antibody", "antigen")
        for name in (f"{kind}/{CONFIG_FILE}", f"{kind}/{WEIGHTS_FILE}", ROWS_FILE, ADAPTER_FILE)
    }
    for name, content in contents.items():
        if name not in known:  # a path from a packed store must not lead out of the folder
            msg = f"{folder}: {name!r} is not a file of an adapter. Embed the sequences again."
            raise AdapterDamaged(msg)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_bytes(path, content, concurrent=True, files=files)


def read_adapter_files(folder: Path) -> dict[str, bytes]:
    """Read an adapter's files from an encoder's folder, by path; empty without an adapter."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted((folder / ADAPTER_FOLDER).rglob("*"))
        if path.is_file() and not is_partial(path)
    }


def unpack_adapter_files(folder: Path, packed: Mapping[str, str]) -> dict[str, bytes]:
    """Decode an adapter's files from the JSON of a packed store.

    Raises
    ------
    DamagedShard
    """
    try:
        return {name: base64.b64decode(text) for name, text in dict(packed).items()}
    except (TypeError, ValueError) as error:
        msg = f"{folder}: its adapter cannot be read ({error})."
        raise DamagedShard(msg) from error
