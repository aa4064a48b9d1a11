"""The records that leave this machine when a store or a predictor is shared, without its paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from abag import AbagError
from abag.core.files import json_bytes
from abag.embed.store.store_files import ADAPTER_FILE, CONFIG_FILE, AdapterDamaged


class PrivatePath(AbagError):
    """A file that is to be shared contains a path of this machine."""


def public_origin(origin: str) -> str:
    """Return where an encoder is from: its alias or hub name, or the last part of its folder."""
    is_folder = origin.startswith((".", "~", "/")) or origin.count("/") > 1 or Path(origin).is_dir()
    return Path(origin).resolve().name if is_folder else origin


def public_adapter_files(where: Path, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return an adapter's files by path, with the part of adapter.json that readers need.

    Raises
    ------
    PrivatePath
        If the encoder is a folder of this machine: its path is part of the adapter's digest.
    AdapterDamaged
        If a file cannot be read.
    """
    try:
        return {name: _public(where, name, content) for name, content in files.items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        msg = f"{where}: its adapter cannot be read ({error}). Copy the whole folder again."
        raise AdapterDamaged(msg) from error


def _public(where: Path, name: str, content: bytes) -> bytes:
    last = PurePosixPath(name).name
    if last == ADAPTER_FILE:
        return _public_adapter_record(json.loads(content))
    if last == CONFIG_FILE:
        origin = str(json.loads(content)["base_model_name_or_path"])
        if public_origin(origin) != origin:
            msg = (
                f"{where}: {name} names the folder {origin}, which the adapter's digest covers; "
                "expected an encoder of the hub. Adapt one from the hub, or share without adapter."
            )
            raise PrivatePath(msg)
    return content


def _public_adapter_record(record: Mapping[str, Any]) -> bytes:
    sides = {
        kind: {**side, "encoder": public_origin(str(side["encoder"]))}
        for kind, side in record["sides"].items()
    }
    kept = {name: record[name] for name in ("format", "version", "name")}
    return json_bytes({**kept, "sides": sides})
