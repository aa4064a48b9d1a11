"""Push a store to the hub, pull one from there: each side gets the shards that it lacks.

A shard is named by the digest of its bytes. So a name that both sides have needs no comparison,
a download is checked against its own name, and any number of people can add to one repository. Both
directions only add files, and are continued by running them again.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypedDict

from abag.core.files import adopt, json_bytes, make_folder, scratch_folder
from abag.core.hub import HubAddress, HubChanged, Repository, open_repository, parse_address
from abag.core.messages import bar, say
from abag.core.names import check_names
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.filesystem import access
from abag.embed.store.maintenance import refuse_other_poolings
from abag.embed.store.shard import DamagedShard
from abag.embed.store.store import NotAStore, StoreMismatch, open_store
from abag.embed.store.store_files import (
    ADAPTER_PATHS,
    ENCODER_FILE,
    FOLDER_NAME,
    OTHER_VERSION,
    STORE_FILE,
    STORE_MARK,
    public_adapter_files,
    public_origin,
    read_encoder_info,
    read_json,
    write_adapter_files,
)

COMMIT_FILES, DOWNLOAD_FILES = 100, 32
"""What is sent in one commit, and what an interrupted pull downloads again at most."""
MOST_CONFLICTS = 10
"""Commits of others, one after the other, after which a push gives up."""
_SHARD_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.h5"
_RECORDS = "|".join(map(re.escape, (ENCODER_FILE, *ADAPTER_PATHS)))
# files beside the folders may have any name; they are not read
_PATH = re.compile(rf"[^/]+|{FOLDER_NAME.pattern}/({_RECORDS}|{_SHARD_NAME})")


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


class PullSummary(TypedDict):
    """The keys of ``abag store pull --json``."""

    address: str
    """With the commit that was pulled."""
    store: str
    pulled: int
    """Shards."""
    present: int
    """Shards that the store held."""
    bytes: int
    """Of the shards that arrived."""


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
        If encoder folders of one name differ.
    NotAStore, StoreUnreachable, PrivatePath, UnsafeFile
    """
    to = parse_address(address, "dataset")
    source = open_store(store)
    folders = {folder.path.name: folder for folder in source.folders()}
    shards = _sound_shards(folders.values())
    if not shards:
        msg = f"{source.path}: holds no vectors; expected some to send. Run abag embed first."
        raise NotAStore(msg)
    # the records come first: what arrived of an interrupted push is a store
    contents: dict[str, Path | bytes] = {
        "README.md": _readme(to),
        **dict(_public_records(folders)),
        **shards,
    }
    with open_repository(to) as hub:
        hub.create(private=private)
        commit, sent = _send(hub, folders, contents)
        sent_shards = [shards[path] for path in sent if path in shards]
        return PushSummary(
            address=to.at(commit),
            page=hub.page,
            pushed=len(sent_shards),
            present=len(shards) - len(sent_shards),
            bytes=sum(map(_bytes_of, sent_shards)),
            damaged=[
                what
                for found in (*(folder.damaged for folder in folders.values()), source.damaged)
                for _, what in found
            ],
        )


def _public_records(folders: Mapping[str, EncoderFolder]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of all files but the shards."""
    yield STORE_FILE, json_bytes(STORE_MARK)
    for name, folder in folders.items():
        info = dict(folder.info)
        if "origin" in info:
            info["origin"] = public_origin(str(info["origin"]))
        yield f"{name}/{ENCODER_FILE}", json_bytes(info)
        for inner, content in public_adapter_files(folder.path, folder.adapter_files()).items():
            yield f"{name}/{inner}", content


def _send(
    hub: Repository, folders: Mapping[str, EncoderFolder], contents: Mapping[str, Path | bytes]
) -> tuple[str, list[str]]:
    """Send the files that a repository lacks; return the last commit and their paths."""
    sent: list[str] = []
    conflicts = 0
    commit, missing = _missing(hub, folders, contents)
    if missing:
        say(_announce(hub.address, missing))
    total = sum(map(_bytes_of, missing.values()))
    with bar(total=total, desc="push", unit="B", unit_scale=True) as drawn:
        while missing:
            batch = dict(islice(missing.items(), COMMIT_FILES))
            message = f"Add {len(batch)} file{'s' * (len(batch) != 1)} with abag"
            try:
                hub.commit(batch, parent=commit, message=message)
            except HubChanged:  # another push: look again at what is missing
                conflicts += 1
                if conflicts > MOST_CONFLICTS:
                    raise
                time.sleep(random.uniform(0, min(8, 0.1 * 2**conflicts)))
            else:
                conflicts = 0
                sent += batch
                drawn.update(sum(map(_bytes_of, batch.values())))
            commit, missing = _missing(hub, folders, contents)
    return commit, sent


def _missing(
    hub: Repository, folders: Mapping[str, EncoderFolder], contents: Mapping[str, Path | bytes]
) -> tuple[str, dict[str, Path | bytes]]:
    """Return the newest commit of a repository and the files that it lacks."""
    with TemporaryDirectory() as scratch:
        theirs = _read_store(hub, Path(scratch) / "records", {ENCODER_FILE})
    for name in theirs.folders.keys() & folders.keys():
        ours, other = folders[name], theirs.folders[name]
        if ours.fingerprint != other.fingerprint:
            msg = (
                f"{ours.path}: holds fingerprint {ours.fingerprint}; {hub.address} holds "
                f"{other.fingerprint}. Use another repository."
            )
            raise StoreMismatch(msg)
        refuse_other_poolings(ours, other)
    return theirs.commit, {p: what for p, what in contents.items() if p not in theirs.sizes}


def _announce(address: HubAddress, missing: Mapping[str, Path | bytes]) -> str:
    """Say exactly what is about to be sent."""
    counts, sizes = Counter[str](), Counter[str]()
    for path, content in missing.items():
        what = f"shards of {path.partition('/')[0]}" if isinstance(content, Path) else path
        counts[what] += isinstance(content, Path)
        sizes[what] += _bytes_of(content)
    parts = [
        f"{counts[what] or ''} {what} ({size:,} bytes)".strip() for what, size in sizes.items()
    ]
    return f"{address}: sending {', '.join(parts)}"


def _bytes_of(content: Path | bytes) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def pull(address: str, store: Path | str) -> PullSummary:
    """Add the shards of a store on the hub to a store, which is created if it is new.

    Shards that are there already are not downloaded again. Each one is checked byte by byte before
    it counts; an interruption costs the ones on the way.

    Parameters
    ----------
    address : str
        ``hf://datasets/user/name``, or with ``@`` and a branch, tag or commit.

    Raises
    ------
    HubError
        If the repository cannot be read.
    UnsafeFile, DamagedShard, NotAStore
        If the repository is not a sound store.
    StoreMismatch
        If encoder folders of one name differ.
    StoreUnreachable
    """
    source = parse_address(address, "dataset")
    target = open_store(store, create=True)
    # a repository that is refused leaves no folder
    with open_repository(source) as hub, TemporaryDirectory() as records:
        theirs = _read_store(hub, Path(records) / "new", {ENCODER_FILE, *ADAPTER_PATHS})
        if not theirs.folders:
            msg = f"{source}: holds no store; expected the folders of encoders. Check the address."
            raise NotAStore(msg)
        if source.commit is None:
            pinned = f"to pull exactly this again, add @{theirs.commit}."
            say(f"{source}: commit {theirs.commit}; {pinned}")
        ours = [target.find_folder(one.kind, one.info) for one in theirs.folders.values()]
        for mine, other in zip(ours, theirs.folders.values(), strict=True):
            refuse_other_poolings(other, mine)
        present = _sound_shards(ours)  # damaged ones are replaced
        shards = {p: n for p, n in theirs.sizes.items() if "/" in p and p.endswith(".h5")}
        lacks = {path: size for path, size in shards.items() if path not in present}
        access(target.path, partial(make_folder, target.path))
        hub.check_room(lacks, target.path)
        for folder in theirs.folders.values():
            into = target.create_folder(folder.kind, folder.info).path
            access(into, partial(write_adapter_files, into, folder.adapter_files()))
        _receive(hub, theirs, lacks, target.path)
    return PullSummary(
        address=source.at(theirs.commit),
        store=str(target.path),
        pulled=len(lacks),
        present=len(shards) - len(lacks),
        bytes=sum(lacks.values()),
    )


def _receive(hub: Repository, theirs: _HubStore, sizes: Mapping[str, int], store: Path) -> None:
    """Download, check and commit shards, some at a time."""
    paths = iter(sizes)
    with (
        scratch_folder(store) as scratch,
        bar(total=sum(sizes.values()), desc="pull", unit="B", unit_scale=True) as drawn,
    ):
        while batch := {path: sizes[path] for path in islice(paths, DOWNLOAD_FILES)}:
            arrived = scratch / "arrived"
            hub.download(batch, theirs.commit, arrived)
            sound = _sound_shards(
                EncoderFolder(arrived / name, folder.info)
                for name, folder in theirs.folders.items()
                if (arrived / name).is_dir()
            )
            for path, size in batch.items():
                if path not in sound:
                    msg = (
                        f"{hub.address.at(theirs.commit)}: {path} is damaged or of another encoder."
                        " Try again; if it happens again, do not use the repository."
                    )
                    raise DamagedShard(msg)
                access(store, partial(adopt, sound[path], store / path))
                drawn.update(size)
            shutil.rmtree(arrived)


def _sound_shards(folders: Iterable[EncoderFolder]) -> dict[str, Path]:
    """Check every byte of every shard; return the sound ones by their paths in the store."""
    found: dict[str, Path] = {}
    for folder in folders:
        folder.check()
        found |= {f"{folder.path.name}/{block.path.name}": block.path for block in folder.shards()}
    return found


# --- what a repository lists ---------------------------------------------------------------------


class _HubStore(NamedTuple):
    """The store that a repository lists at one commit."""

    commit: str
    sizes: dict[str, int]
    """Bytes by path."""
    folders: dict[str, EncoderFolder]
    """Without shards, by name."""


def _read_store(hub: Repository, into: Path, records: Container[str]) -> _HubStore:
    """List the store in a repository, and download `records` of its encoder folders.

    Raises
    ------
    UnsafeFile, DamagedShard, NotAStore
    """
    commit = hub.head()
    where, sizes = hub.address.at(commit), hub.files(commit)
    check_names(Path(where), sizes, {path for path in sizes if _PATH.fullmatch(path)})
    names = sorted({path.partition("/")[0] for path in sizes if "/" in path})
    for name in names:
        if f"{name}/{ENCODER_FILE}" not in sizes:
            msg = f"{where}: {name} has no {ENCODER_FILE}; expected a store. Push it again."
            raise NotAStore(msg)
    wanted = [p for p in sizes if p == STORE_FILE or p.partition("/")[2] in records]
    hub.download({path: sizes[path] for path in wanted}, commit, into)
    if STORE_FILE in wanted and (mark := read_json(into / STORE_FILE)) != STORE_MARK:
        msg = f"{where}: {mark}; {OTHER_VERSION}"
        raise NotAStore(msg)
    folders = {name: EncoderFolder(into / name, read_encoder_info(into / name)) for name in names}
    return _HubStore(commit, sizes, folders)


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
