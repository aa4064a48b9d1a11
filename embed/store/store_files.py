"""The files of a store that are not shards: their names, and how they are read and created."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NotRequired, TypedDict, cast

from abag.core.errors import DamagedFile, OutputError
from abag.core.files import (
    check_names,
    json_bytes,
    make_folder,
    read_inside,
    why_mistyped,
    write_bytes,
    write_json,
)
from abag.embed.store.shard import LINKED, open_file

STORE_FILE = "abag-store.json"
ENCODER_FILE = "encoder.json"
ADAPTER_FOLDER = "adapter"
ADAPTER_FILE = "adapter.json"
ROWS_FILE = "splits.parquet"
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
ADAPTER_PATHS = (
    f"{ADAPTER_FOLDER}/{ADAPTER_FILE}",
    f"{ADAPTER_FOLDER}/{ROWS_FILE}",
    f"{ADAPTER_FOLDER}/antibody/{CONFIG_FILE}",
    f"{ADAPTER_FOLDER}/antibody/{WEIGHTS_FILE}",
    f"{ADAPTER_FOLDER}/antigen/{CONFIG_FILE}",
    f"{ADAPTER_FOLDER}/antigen/{WEIGHTS_FILE}",
)
"""The files of an adapter by their paths in an encoder's folder."""
STORE_MARK = {"format": "abag-store", "version": 2}
OTHER_VERSION = (
    f"this abag reads {STORE_MARK}. Embed again into a new store, or use the version of abag that "
    "wrote it."
)
FOLDER_NAME = re.compile(r"(antibody|antigen)-([A-Za-z0-9._-]+)-([0-9a-f]{8})")
"""Name of an encoder's folder: kind, encoder, and the first 8 digits of its fingerprint."""
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
MAX_JSON_BYTES = 1 << 20


class _EncoderInfo(TypedDict):
    """What is read of encoder.json, beside the kind, the name and the fingerprint."""

    poolings: NotRequired[list[str]]
    loglik: NotRequired[str]
    adapter: NotRequired[str | None]
    origin: NotRequired[str]
    long: NotRequired[str]


def create_encoder_folder(path: Path, info: Mapping[str, object]) -> None:
    """Create the folder for the vectors of one encoder, and the store above it."""
    make_folder(path.parent)
    if not (path.parent / STORE_FILE).exists():  # first: it tells a store from any other folder
        write_json(path.parent / STORE_FILE, STORE_MARK)
    make_folder(path)
    write_json(path / ENCODER_FILE, info)


def read_encoder_info(path: Path) -> dict[str, Any]:
    """Read the encoder.json of a folder; `DamagedFile` if it has none that belongs there."""
    if path.is_symlink():
        msg = f"{path}: {LINKED}"
        raise DamagedFile(msg)
    if not path.is_dir():
        msg = f"{path}: is not a folder."
        raise DamagedFile(msg)
    try:
        return check_encoder_info(path, read_json(path / ENCODER_FILE))
    except FileNotFoundError as error:
        msg = f"{path}: has no {ENCODER_FILE}."
        raise DamagedFile(msg) from error


def folder_name(info: Mapping[str, object]) -> str:
    """Return the name of an encoder's folder, from the content of its encoder.json."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(info.get("name")))
    return f"{info.get('kind')}-{name}-{str(info.get('fingerprint'))[:8]}"


def check_encoder_info(path: Path, info: object) -> dict[str, Any]:
    """Return the content of encoder.json if it is valid and agrees with the folder's name."""
    if isinstance(info, dict) and isinstance(info.get("name"), str):
        is_its_name = FOLDER_NAME.fullmatch(path.name) and path.name == folder_name(info)
        if is_its_name and _FINGERPRINT.fullmatch(str(info.get("fingerprint"))):
            layers = info.get("layers", [])
            # type, not isinstance: true is an integer
            is_numbers = isinstance(layers, list) and all(type(n) is int and n > 0 for n in layers)
            if not is_numbers or len({*layers}) < len(layers):
                msg = (
                    f"{path}: {ENCODER_FILE} has the layers {layers!r}; expected layer numbers, "
                    "each once."
                )
                raise DamagedFile(msg)
            if reason := why_mistyped(info, _EncoderInfo):
                msg = f"{path}: {ENCODER_FILE} is invalid: {reason}. Copy the whole folder again."
                raise DamagedFile(msg)
            return info
    msg = f"{path}: {ENCODER_FILE} does not match the folder's name."
    raise DamagedFile(msg)


def read_json(path: Path) -> object:
    """Read at most 1 MiB of JSON from a regular file; `DamagedFile` if it is something else."""
    with open_file(path) as file:
        text = file.read(MAX_JSON_BYTES)
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError) as error:
        msg = f"{path}: is not valid JSON ({error})."
        raise DamagedFile(msg) from error


# --- the copy of an adapter, beside the vectors made with it --------------------------------------


def write_adapter_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write an adapter's files, by path, into an encoder's folder; existing files are kept."""
    check_names(folder, contents, ADAPTER_PATHS)
    for name, content in contents.items():
        path = folder / name
        make_folder(path.parent)
        if not path.exists():
            write_bytes(path, content)


def read_adapter_files(folder: Path) -> dict[str, bytes]:
    """Read an adapter's files from an encoder's folder, by path; empty without an adapter."""
    contents = {}
    for name in ADAPTER_PATHS:
        with suppress(FileNotFoundError):
            contents[name] = read_inside(folder, name)
    return contents


def adapter_digest(weights: str, files: Mapping[str, bytes]) -> str:
    """Hash an adapter's files and the digest of its encoder's weights: 32 hexadecimal digits."""
    running = hashlib.blake2b(weights.encode(), digest_size=16)
    for name, content in sorted(files.items()):
        # with its length: else bytes could move from one file to the next
        running.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return running.hexdigest()


def why_adapter_lacks(path: Path, info: Mapping[str, object]) -> str:
    """Say what an encoder's folder lacks of the adapter that encoder.json names; empty if nothing.

    The digest of the files is compared if encoder.json has that of the weights, too.
    """
    digest = info.get("adapter")
    if not digest:
        return ""
    kind = info["kind"]
    hashed = (f"{kind}/{CONFIG_FILE}", f"{kind}/{WEIGHTS_FILE}", ROWS_FILE)
    files = read_adapter_files(path)
    for name in (ADAPTER_FILE, *hashed):
        if f"{ADAPTER_FOLDER}/{name}" not in files:
            return (
                f"{path}: {ENCODER_FILE} names the adapter {digest}, and {ADAPTER_FOLDER}/{name} "
                "is missing. Copy the whole folder again."
            )
    weights = info.get("weights")
    contents = {name: files[f"{ADAPTER_FOLDER}/{name}"] for name in hashed}
    if isinstance(weights, str) and adapter_digest(weights, contents) != digest:
        return (
            f"{path}: the files of its adapter are not those that {ENCODER_FILE} names (digest "
            f"{digest}). Copy the whole folder again."
        )
    return ""


# --- what leaves this machine when a store or a predictor is shared, without its paths ------------


def public_origin(origin: str) -> str:
    """Return where an encoder is from: its alias or hub name, or the last part of its folder."""
    # the name of a model on the hub has one slash; a folder may be called so, too
    is_folder = origin.startswith((".", "~", "/")) or origin.count("/") > 1 or Path(origin).is_dir()
    return Path(origin).resolve().name if is_folder else origin


def public_adapter_files(where: Path, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return an adapter's files by path, with the part of adapter.json that readers need."""
    try:
        return {name: _public(where, name, content) for name, content in files.items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        msg = f"{where}: its adapter cannot be read ({error}). Copy the whole folder again."
        raise DamagedFile(msg) from error


def _public(where: Path, name: str, content: bytes) -> bytes:
    last = PurePosixPath(name).name
    if last == ADAPTER_FILE:
        record = json.loads(content)
        sides = {}
        for kind, side in record["sides"].items():
            sides[kind] = {**side, "encoder": public_origin(str(side["encoder"]))}
        kept = {name: record[name] for name in ("format", "version", "name")}
        return json_bytes({**kept, "sides": sides})
    if last == CONFIG_FILE:
        origin = str(json.loads(content)["base_model_name_or_path"])
        if public_origin(origin) != origin:
            msg = (
                f"{where}: {name} names the folder {origin}, which the adapter's digest covers; "
                "expected an encoder of the hub. Adapt one from the hub, or share without adapter."
            )
            raise OutputError(msg)
    return content
