"""Read a shared predictor: from a folder, or from the hub through a folder of the cache.

Its manifest lists the files that are read, with their digests.

A commit that was downloaded once is read without a network connection. Its folder gets its name
when all files are whole; their digests are checked each time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

from abag.core.cache import cache_dir
from abag.core.files import json_bytes, make_folder, scratch_folder, write_text
from abag.core.hub import (
    COMMIT,
    HubAddress,
    HubUnreachable,
    Repository,
    is_hub_address,
    open_repository,
    parse_address,
)
from abag.core.messages import say
from abag.core.names import check_names, read_inside
from abag.core.options import user_path
from abag.embed.sequences.chains import KINDS
from abag.embed.store.store_files import ADAPTER_PATHS
from abag.head.prediction.bundle import RECORD, WEIGHTS
from abag.head.prediction.predictor import PredictorDamaged

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


def predictor_folder(path: Path | str) -> Path:
    """Return the folder of a predictor, or of a run; download it if `path` is an address.

    Raises
    ------
    HubError
        If the repository cannot be read and was not downloaded before.
    PredictorDamaged, UnsafeFile
        If the files are not those of the manifest.
    """
    if not is_hub_address(path):
        folder = user_path(path, "run")
        if (folder / MANIFEST).exists():
            check_manifest(folder)
        return folder
    address = parse_address(path, "model")
    place = cache_dir() / "hub" / address.name
    commit = address.commit
    if commit is None or not (place / commit).is_dir():
        commit = _download(address, place)
    check_manifest(place / commit)
    return place / commit


def _download(address: HubAddress, place: Path) -> str:
    """Download what the revision stands for, unless it is there; return the commit."""
    note = place / f"revision-{quote(address.revision or 'main', safe='')}"
    with open_repository(address) as hub:
        try:
            commit = hub.head()
        except HubUnreachable:
            known = _read_commit(note)
            if known is None or not (place / known).is_dir():
                raise
            say(f"{address}: the hub cannot be reached; using commit {known}, downloaded before.")
            return known
        if address.commit is None:
            say(f"{address}: commit {commit}; for exactly this predictor, add @{commit}.")
        if not (place / commit).is_dir():
            _save(hub, commit, place)
    write_text(note, commit)
    return commit


def _read_commit(note: Path) -> str | None:
    try:
        commit = note.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def _save(hub: Repository, commit: str, place: Path) -> None:
    """Download the predictor of a commit; its folder gets its name once it is checked."""
    listed = hub.files(commit)
    if MANIFEST not in listed or RECORD not in listed:
        where = hub.address.at(commit)
        msg = f"{where}: holds no predictor; expected a repository written by abag share."
        raise PredictorDamaged(msg)
    make_folder(place)
    with scratch_folder(place) as scratch:
        arrived = scratch / "arrived"
        files = {name: listed[name] for name in (MANIFEST, *READ) if name in listed}
        hub.download(files, commit, arrived)
        check_manifest(arrived)
        with suppress(OSError):  # another process may be faster
            arrived.rename(place / commit)
