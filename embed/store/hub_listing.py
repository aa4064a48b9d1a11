"""What a repository of the hub that holds a store lists: the files of docs/store-format.md."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from abag.core.hub import HubError, HubFile, Repository
from abag.core.names import check_names
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.store import NotAStore
from abag.embed.store.store_files import (
    ADAPTER_PATHS,
    ENCODER_FILE,
    FOLDER_NAME,
    MAX_JSON_BYTES,
    OTHER_VERSION,
    STORE_FILE,
    STORE_MARK,
    read_encoder_info,
    read_json,
)

_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.h5")


class StorePaths:
    """Paths in a repository that the format allows; files beside the folders are not read."""

    def __contains__(self, path: object) -> bool:
        folder, _, inner = str(path).partition("/")
        if not inner:
            return True
        known = inner == ENCODER_FILE or inner in ADAPTER_PATHS or _SHARD_NAME.fullmatch(inner)
        return bool(FOLDER_NAME.fullmatch(folder) and known)


class StoreListing:
    """The store that a repository lists at one commit."""

    def __init__(self, hub: Repository, commit: str) -> None:
        self.address, self.commit = hub.address.at(commit), commit
        self.files = hub.files(commit)
        check_names(Path(self.address), self.files, StorePaths())
        self.folders: dict[str, dict[str, HubFile]] = defaultdict(dict)
        """Files by encoder folder and path in it."""
        for path, file in self.files.items():
            folder, _, inner = path.partition("/")
            if inner:
                self.folders[folder][inner] = file

    def shards(self) -> list[HubFile]:
        """Return the shards of all folders."""
        return [file for path, file in self.files.items() if path.endswith(".h5") and "/" in path]

    def fetch_encoders(self, hub: Repository, into: Path) -> dict[str, EncoderFolder]:
        """Download the records of the encoders, and return their (empty) folders by name.

        Raises
        ------
        DamagedShard, NotAStore
        """
        found = {}
        for name in sorted(self.folders):
            if ENCODER_FILE not in self.folders[name]:
                msg = (
                    f"{self.address}: {name} has no {ENCODER_FILE}; expected a store. Push it "
                    "again."
                )
                raise NotAStore(msg)
            self._fetch_record(hub, f"{name}/{ENCODER_FILE}", into)
            found[name] = EncoderFolder(into / name, read_encoder_info(into / name))
        if STORE_FILE in self.files:
            self._fetch_record(hub, STORE_FILE, into)
            if (mark := read_json(into / STORE_FILE)) != STORE_MARK:
                msg = f"{self.address}: {mark}; {OTHER_VERSION}"
                raise NotAStore(msg)
        return found

    def _fetch_record(self, hub: Repository, path: str, into: Path) -> None:
        file = self.files[path]
        if file.size > MAX_JSON_BYTES:
            msg = (
                f"{self.address}: {path} has {file.size:,} bytes; expected at most "
                f"{MAX_JSON_BYTES:,}. Do not use the repository."
            )
            raise HubError(msg)
        hub.fetch(file, self.commit, into)
