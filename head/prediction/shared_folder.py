"""Folders of predictors that were shared: their layout, their manifest, and their download.

A manifest lists the files that are read, with their digests, which are checked each time. What was
downloaded of a commit once is read without a network connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from abag.core.cache import cache_dir
from abag.core.errors import DamagedFile
from abag.core.files import check_names, json_bytes, make_folder, read_inside, write_bytes
from abag.core.hub import Repository, is_hub_address, parse_address
from abag.core.messages import say
from abag.core.options import user_path
from abag.embed.sequences.chains import KINDS
from abag.embed.store.store_files import ADAPTER_PATHS
from abag.head.prediction.specs import RECORD, WEIGHTS

MANIFEST = "manifest.json"
ADAPTER_FILES = tuple(f"{kind}-{path}" for kind in KINDS for path in ADAPTER_PATHS)
"""Files of the adapters, whose paths in a store are ``adapter/...``, by kind."""
READ = (RECORD, WEIGHTS, *ADAPTER_FILES)
"""Files that are read; the card and the licence are for people."""
FORMAT = {"format": "abag-predictor", "version": 1}


def make_manifest(files: Mapping[str, bytes]) -> bytes:
    """Return the content of manifest.json for files by name; the card may change later."""
    records = {name: _record(files[name]) for name in sorted(files) if name in READ}
    return json_bytes({**FORMAT, "files": records})


def _record(content: bytes) -> dict[str, object]:
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}


def check_manifest(folder: Path) -> None:
    """Check the names of the files of a shared predictor, and each against its digest."""
    path = folder / MANIFEST
    try:
        written = json.loads(read_inside(folder, MANIFEST))
        files = dict(written["files"])
        format_fields = {name: written[name] for name in FORMAT}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{path}: is not the manifest of a predictor ({error}). Get the predictor again."
        raise DamagedFile(msg) from error
    check_names(path, files, READ)
    if format_fields != FORMAT:
        msg = (
            f"{path}: {format_fields} is not supported; this abag reads {FORMAT}. Have the "
            "predictor shared again, or use the version of abag that wrote it."
        )
        raise DamagedFile(msg)
    unlisted = {name for name in READ if name in (RECORD, WEIGHTS) or (folder / name).exists()}
    for name in sorted(unlisted - files.keys()):
        msg = f"{folder / name}: is not listed in {MANIFEST}. Get the predictor again."
        raise DamagedFile(msg)
    for name, expected in files.items():
        try:
            is_same = _record(read_inside(folder, name)) == expected
        except OSError as error:
            msg = f"{folder / name}: cannot be read ({error}). Get the predictor again."
            raise DamagedFile(msg) from error
        if not is_same:
            msg = (
                f"{folder / name}: differs from its digest in {MANIFEST}; expected the file that "
                "was shared. Remove the folder and get it again."
            )
            raise DamagedFile(msg)


def predictor_folder(path: Path | str) -> Path:
    """Return the folder of a predictor, or of a run; download it if `path` is an address."""
    if not is_hub_address(path):
        folder = user_path(path, "run")
        if (folder / MANIFEST).exists():
            check_manifest(folder)
        return folder
    address = parse_address(path, "model")
    place = cache_dir() / "hub" / address.name
    commit = address.commit
    if commit is None or not (place / commit / MANIFEST).exists():
        hub = Repository(address)
        commit = hub.head()
        if address.commit is None:
            say(f"{address}: commit {commit}; for exactly this predictor, add @{commit}.")
        if not (place / commit / MANIFEST).exists():
            _save(hub, commit, place / commit)
    check_manifest(place / commit)
    return place / commit


def _save(hub: Repository, commit: str, folder: Path) -> None:
    listed = hub.files(commit)
    if MANIFEST not in listed or RECORD not in listed:
        where = hub.address.at(commit)
        msg = f"{where}: holds no predictor; expected a repository written by abag share."
        raise DamagedFile(msg)
    with TemporaryDirectory() as scratch:
        arrived = Path(scratch) / "arrived"
        names = [name for name in (*READ, MANIFEST) if name in listed]
        hub.download({name: listed[name] for name in names}, commit, arrived)
        # before any of it is in the cache
        check_manifest(arrived)
        # the manifest comes last: without it, the folder is downloaded again
        for name in names:
            make_folder((folder / name).parent)
            write_bytes(folder / name, read_inside(arrived, name))
