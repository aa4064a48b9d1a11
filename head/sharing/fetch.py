"""Read a shared predictor: from a folder, or from the hub through a folder of the cache.

A commit that was downloaded once is read without a network connection. Its folder gets its name
when all files are whole; their digests are checked each time.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from abag import cache_dir
from abag.core.files import adopt, make_folder, scratch_folder, write_text
from abag.core.hub import (
    COMMIT,
    HubAddress,
    HubError,
    HubFile,
    HubUnreachable,
    Repository,
    check_room,
    is_hub_address,
    open_repository,
    parse_address,
)
from abag.core.messages import say
from abag.core.options import user_path
from abag.head.prediction.bundle import RECORD
from abag.head.prediction.ensemble import PredictorDamaged
from abag.head.sharing.manifest import MANIFEST, MOST_JSON_BYTES, check_manifest, read_manifest


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
            make_folder(place)
            with scratch_folder(place) as scratch:
                whole = _Snapshot(hub, commit, hub.files(commit), scratch / "arrived").save(scratch)
                with suppress(OSError):  # another process may be faster
                    whole.rename(place / commit)
    write_text(note, commit)
    return commit


def _read_commit(note: Path) -> str | None:
    try:
        commit = note.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


class _Snapshot(NamedTuple):
    """The predictor in one commit of a repository."""

    hub: Repository
    commit: str
    listed: dict[str, HubFile]
    arrived: Path

    def save(self, scratch: Path) -> Path:
        """Download the files that the manifest lists, and check them; return their folder."""
        where = self.hub.address.at(self.commit)
        if MANIFEST not in self.listed or RECORD not in self.listed:
            msg = f"{where}: holds no predictor; expected a repository written by abag share."
            raise PredictorDamaged(msg)
        self._refuse_large(MANIFEST, RECORD)
        fetch = partial(self.hub.fetch, commit=self.commit, folder=self.arrived)
        fetch(self.listed[MANIFEST])
        names = [*read_manifest(self.arrived), MANIFEST]
        if missing := [name for name in names if name not in self.listed]:
            msg = f"{where}: lacks {missing[0]}, which its {MANIFEST} lists. Share it again."
            raise PredictorDamaged(msg)
        check_room(scratch, [self.listed[name] for name in names], self.hub.address)
        whole = scratch / "whole"
        for name in names:
            make_folder((whole / name).parent)
            adopt(fetch(self.listed[name]), whole / name)
        check_manifest(whole)
        return whole

    def _refuse_large(self, *names: str) -> None:
        for name in names:
            if self.listed[name].size > MOST_JSON_BYTES:
                msg = (
                    f"{self.hub.address}: {name} has {self.listed[name].size:,} bytes; expected at "
                    f"most {MOST_JSON_BYTES:,}. Do not use the repository."
                )
                raise HubError(msg)
