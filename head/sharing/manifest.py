"""The files of a shared predictor, and the digests of those that are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TypedDict

from abag.core.files import json_bytes
from abag.core.names import check_names, read_inside
from abag.embed.sequences.chains import KINDS
from abag.embed.store.store_files import ADAPTER_PATHS
from abag.head.prediction.bundle import RECORD, WEIGHTS
from abag.head.prediction.ensemble import PredictorDamaged

MANIFEST, CARD, LICENCE = "manifest.json", "README.md", "LICENSE"
ADAPTER_FILES = tuple(
    f"{kind}-{path}"
    for kind in KINDS
    for path in ADAPTER_PATHS  # adapter/... of a store
)
READ = (RECORD, WEIGHTS, *ADAPTER_FILES)
"""Names of the files that a predictor is read from."""
NAMES = frozenset((MANIFEST, CARD, LICENCE, *READ))
FORMAT = {"format": "abag-predictor", "version": 1}
MOST_JSON_BYTES = 64 << 20


class FileRecord(TypedDict):
    """What manifest.json says about one file."""

    bytes: int
    sha256: str


def make_manifest(files: Mapping[str, bytes]) -> bytes:
    """Return the content of manifest.json for files by name; the card may change later."""
    records = {name: _record(files[name]) for name in sorted(files) if name in READ}
    return json_bytes({**FORMAT, "files": records})


def _record(content: bytes) -> FileRecord:
    return FileRecord(bytes=len(content), sha256=sha256(content).hexdigest())


def read_manifest(folder: Path) -> dict[str, FileRecord]:
    """Read manifest.json: the files by name.

    Raises
    ------
    PredictorDamaged
        If it is not the manifest of a predictor.
    UnsafeFile
        If it contains a name that is not that of a predictor's file.
    """
    path = folder / MANIFEST
    try:
        written = json.loads(read_inside(folder, MANIFEST))
        files = {str(name): _checked(one) for name, one in written["files"].items()}
        found = {name: written[name] for name in FORMAT}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{path}: is not the manifest of a predictor ({error}). Get the predictor again."
        raise PredictorDamaged(msg) from error
    check_names(path, files, READ)
    if found != FORMAT:
        msg = (
            f"{path}: {found} is not supported; this abag reads {FORMAT}. Have the predictor "
            "shared again, or use the version of abag that wrote it."
        )
        raise PredictorDamaged(msg)
    if missing := {RECORD, WEIGHTS} - files.keys():
        msg = f"{path}: does not list {', '.join(sorted(missing))}. Get the predictor again."
        raise PredictorDamaged(msg)
    return files


def _checked(record: Mapping[str, object]) -> FileRecord:
    size, digest = record["bytes"], record["sha256"]
    if type(size) is not int or not isinstance(digest, str):
        msg = f"{dict(record)}"
        raise TypeError(msg)
    return FileRecord(bytes=size, sha256=digest)


def check_manifest(folder: Path) -> None:
    """Check every file of a shared predictor against its digest in manifest.json.

    Raises
    ------
    PredictorDamaged
        If a file is missing, was changed, or is not listed.
    UnsafeFile
        If one is a link, or its name is not that of a predictor's file.
    """
    files = read_manifest(folder)
    for name, expected in files.items():
        try:
            content = read_inside(folder, name)
        except OSError as error:
            msg = f"{folder / name}: cannot be read ({error}). Get the predictor again."
            raise PredictorDamaged(msg) from error
        if _record(content) != expected:
            msg = (
                f"{folder / name}: differs from its digest in {MANIFEST}; expected the file that "
                "was shared. Remove the folder and get it again."
            )
            raise PredictorDamaged(msg)
    for name in READ:
        if name not in files and (folder / name).exists():
            msg = f"{folder / name}: is not listed in {MANIFEST}. Get the predictor again."
            raise PredictorDamaged(msg)
