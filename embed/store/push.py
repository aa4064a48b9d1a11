"""Push a store to the hub: send the shards that a repository lacks.

Shards are immutable, so pushing only adds files, and is continued by pushing again.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

from abag.core.files import json_bytes
from abag.core.hub import (
    HubAddress,
    HubChanged,
    HubFile,
    Repository,
    open_repository,
    parse_address,
)
from abag.core.messages import bar, say
from abag.core.names import check_names
from abag.embed.store.encoder_folder import EncoderFolder, ReadOnlyStore
from abag.embed.store.hub_listing import StoreListing, StorePaths
from abag.embed.store.maintenance import plain_info, refuse_other_poolings
from abag.embed.store.store import NotAStore, Store, StoreMismatch, open_store
from abag.embed.store.store_files import (
    ENCODER_FILE,
    STORE_FILE,
    STORE_MARK,
    public_adapter_files,
    public_origin,
)

README = "README.md"
COMMIT_BYTES, COMMIT_FILES = 1 << 30, 200
"""What is sent in one commit."""
PAUSES_S = (0.2, 0.5, 1, 2, 4, 8, 8, 8, 8, 8)
"""Longest pauses before trying again after somebody else has committed."""


class PushSummary(TypedDict):
    """The keys of ``abag store push --json``."""

    address: str
    """With the commit that holds everything."""
    page: str
    pushed: int
    """Shards."""
    present: int
    """Shards that the hub held."""
    bytes: int
    """Of the shards that were sent."""
    damaged: list[str]
    """Shards that were left out."""


def push(store: Path | str, address: str, *, private: bool = False) -> PushSummary:
    """Add the shards of a store to a store on the hub, which is created if it is new.

    Only shards that the hub lacks are sent. Several people may push to one repository at the same
    time. Paths of this machine and notes of runs stay here.

    Parameters
    ----------
    address : str
        ``hf://datasets/user/name``, or with ``@branch``.
    private : bool
        Create the repository for yourself and your organization only.

    Raises
    ------
    HubError
        If the hub cannot be reached or refuses, or the repository is public despite `private`.
    StoreMismatch
        If encoder folders or shards of one name differ.
    ReadOnlyStore
        If the store is packed.
    NotAStore, StoreUnreachable, PrivatePath, UnsafeFile
    """
    to = parse_address(address, "dataset")
    source = _Source(open_store(store))
    with open_repository(to) as hub:
        hub.create(private=private)
        for pause_s in PAUSES_S:
            with suppress(HubChanged):  # another push: look again at what is missing
                return source.send(hub)
            time.sleep(random.uniform(0, pause_s))
        return source.send(hub)


class _Source:
    """A store on this machine, checked, as it is sent."""

    def __init__(self, store: Store) -> None:
        if store.path.is_file():
            msg = (
                f"{store.path}: is packed; expected a folder. Unpack it with abag store merge "
                "first."
            )
            raise ReadOnlyStore(msg)
        self._folders = {folder.path.name: folder for folder in store.folders()}
        self._shards: dict[str, Path] = {}
        for name, folder in self._folders.items():
            folder.check()
            self._shards |= {f"{name}/{b.path.name}": b.path for b in folder.blocks()}
        if not self._shards:
            msg = f"{store.path}: holds no vectors; expected some to send. Run abag embed first."
            raise NotAStore(msg)
        check_names(store.path, self._shards, StorePaths())
        self._records = dict(self._public_records())
        found = [what for f in self._folders.values() for _, what in f.damaged]
        self._damaged = found + [what for _, what in store.damaged]
        self._sent = 0
        self._sent_bytes = 0
        self._settled: set[HubFile] = set()

    def _public_records(self) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of all files but the shards."""
        yield STORE_FILE, json_bytes(STORE_MARK)
        for name, folder in self._folders.items():
            info = plain_info(folder)
            if "origin" in info:
                info["origin"] = public_origin(str(info["origin"]))
            yield f"{name}/{ENCODER_FILE}", json_bytes(info)
            for inner, content in public_adapter_files(folder.path, folder.adapter_files()).items():
                yield f"{name}/{inner}", content

    def send(self, hub: Repository) -> PushSummary:
        """Send what a repository lacks; raises HubChanged if somebody else adds to it meanwhile."""
        commit = hub.head()
        listing = StoreListing(hub, commit)
        with TemporaryDirectory() as scratch:
            for name, folder in listing.fetch_encoders(hub, Path(scratch)).items():
                if name in self._folders:
                    _refuse_other_encoder(self._folders[name], folder, hub.address)
        records = {**self._records, README: _readme(hub.address)}
        new = {p: content for p, content in records.items() if p not in listing.files}
        shards = {p: path for p, path in self._shards.items() if not self._is_there(p, listing)}
        if shards or new:
            say(_announce(hub.address, new, shards))
        total = sum(path.stat().st_size for path in shards.values())
        with bar(total=total, desc="push", unit="B", unit_scale=True) as drawn:
            for batch in _batches(shards, first=bool(new)):
                message = f"Add {len(batch)} shard{'s' * (len(batch) != 1)} with abag"
                commit = hub.commit({**new, **batch}, parent=commit, message=message)
                size = sum(path.stat().st_size for path in batch.values())
                self._sent += len(batch)
                self._sent_bytes += size
                new = {}
                drawn.update(size)
        return PushSummary(
            address=hub.address.at(commit),
            page=hub.page,
            pushed=self._sent,
            present=len(self._shards) - self._sent,
            bytes=self._sent_bytes,
            damaged=self._damaged,
        )

    def _is_there(self, path: str, listing: StoreListing) -> bool:
        """Whether the hub holds a shard.

        Raises
        ------
        StoreMismatch
            If it holds another one of this name.
        """
        file = listing.files.get(path)
        if file is None:
            return False
        if file not in self._settled and not file.matches(self._shards[path]):
            msg = (
                f"{self._shards[path]}: differs from the shard of this name in {listing.address}. "
                "Rename one of the two."
            )
            raise StoreMismatch(msg)
        self._settled.add(file)
        return True


def _refuse_other_encoder(ours: EncoderFolder, theirs: EncoderFolder, where: HubAddress) -> None:
    if ours.fingerprint != theirs.fingerprint:
        msg = (
            f"{ours.path}: holds fingerprint {ours.fingerprint}; {where} holds "
            f"{theirs.fingerprint}. Use another repository."
        )
        raise StoreMismatch(msg)
    refuse_other_poolings(ours, theirs)


def _batches(shards: Mapping[str, Path], *, first: bool) -> Iterator[dict[str, Path]]:
    """Divide shards into commits; the first may be empty, if it has other files to send."""
    batch: dict[str, Path] = {}
    size = 0
    for name, path in shards.items():
        batch[name] = path
        size += path.stat().st_size
        if size >= COMMIT_BYTES or len(batch) == COMMIT_FILES:
            yield batch
            batch, size, first = {}, 0, False
    if batch or first:
        yield batch


def _announce(address: HubAddress, new: Mapping[str, bytes], shards: Mapping[str, Path]) -> str:
    """Say exactly what is about to be sent."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for name, path in shards.items():
        sizes[name.partition("/")[0]].append(path.stat().st_size)
    parts = [f"{len(s):,} shards of {name} ({sum(s):,} bytes)" for name, s in sizes.items()]
    parts += [f"{name} ({len(content):,} bytes)" for name, content in new.items()]
    return f"{address}: sending {', '.join(parts)}"


def _readme(address: HubAddress) -> bytes:
    """Return the card of a repository; it is written once, and its owner may change it."""
    text = f"""---
tags:
- abag
- protein
- antibody
- embeddings
viewer: false
---

# Vectors of protein sequences

Vectors of antibodies and antigens from protein language models, stored by abag: one folder per
encoder, described by its `{ENCODER_FILE}`. To add them to a store, or to make one:

```sh
abag store pull {address} --store store
```

The sequences themselves are not here. Vectors are found by a digest of the sequence, so that
everybody can find out whether a sequence that they know is among them.

The terms of the language models and of the source of the sequences apply.
"""
    return text.encode()
