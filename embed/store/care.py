"""Look after stores: describe, check, merge, push to the hub and pull from there.

A source is never changed, and nothing is copied that does not match its digest. A shard is named by
the digest of its bytes, so a name that both sides have needs no comparison, a download is checked
against its own name, and any number of people can add to one repository. Both directions only add
files, and are continued by running them again.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from abag.core.errors import DamagedFile, StoreError
from abag.core.files import check_names, json_bytes, nearest_existing, write_bytes
from abag.core.hub import HubAddress, Repository, parse_address
from abag.core.messages import counted, duration_text, say, size_text
from abag.embed.store.shard import (
    ADAPTER_PATHS,
    ENCODER_FILE,
    FOLDER_NAME,
    OTHER_VERSION,
    STORE_FILE,
    STORE_MARK,
    Shard,
    check_digest,
    public_adapter_files,
    public_origin,
    read_encoder_info,
    read_record,
    retrying,
    write_adapter_files,
)
from abag.embed.store.store import EncoderFolder, Store, open_store
from abag.embed.store.writer import spooled_rows

_OWN_ATTRS = frozenset(("kind", "encoder", "fingerprint"))
DOWNLOAD_FILES = 32  # shards that an interrupted pull downloads again at most
_SHARD_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.h5"
_RECORDS = "|".join(map(re.escape, (ENCODER_FILE, *ADAPTER_PATHS)))
# files beside the folders may have any name; they are not read
_PATH = re.compile(rf"[^/]+|{FOLDER_NAME.pattern}/({_RECORDS}|{_SHARD_NAME})")


# --- store info ----------------------------------------------------------------------------------


def info(store: Path | str) -> dict[str, Any]:
    """Return what ``abag store info --json`` prints: the content of a store."""
    opened = open_store(store)
    encoders = [_encoder_info(folder) for folder in opened.folders()]
    rows = sum(encoder["rows"] for encoder in encoders)
    stored_bytes = sum(encoder["bytes"] for encoder in encoders)
    return {
        "path": str(opened.path),
        "rows": rows,
        "bytes": stored_bytes,
        "encoders": encoders,
        "waiting": spooled_rows(opened.path),
        "damaged": _reasons(opened),
    }


def _reasons(damaged: Store | EncoderFolder) -> list[str]:
    """List why folders of a store, or shards of a folder, are skipped."""
    return [reason for _, reason in damaged.damaged]


def _encoder_info(folder: EncoderFolder) -> dict[str, Any]:
    shards = folder.shards()
    # at least 0: a clock may have been set back since
    ages_s = [max(0.0, time.time() - shard.path.stat().st_mtime) for shard in shards]
    rows = 0
    stored_bytes = 0
    names: set[str] = set()
    for shard in shards:
        rows += shard.rows
        stored_bytes += sum(array.nbytes for array in shard.arrays.values())
        names.update(shard.attrs)
    attrs: dict[str, dict[str, int]] = {}
    for name in sorted(names - _OWN_ATTRS):
        attrs[name] = _rows_by(shards, [shard.attrs.get(name) for shard in shards])
    formats = _rows_by(shards, [shard.number_format for shard in shards])
    return {
        "folder": folder.path.name,
        "kind": folder.kind,
        "encoder": folder.name,
        "fingerprint": folder.fingerprint,
        "rows": rows,
        "unique": folder.count_unique(),
        "shards": len(shards),
        "bytes": stored_bytes,
        "poolings": shards[0].widths if shards else {},
        "values": formats,
        "attrs": attrs,
        "newest_seconds_ago": round(min(ages_s), 1) if ages_s else None,
        "damaged": _reasons(folder),
    }


def _rows_by(shards: Sequence[Shard], values: Sequence[object]) -> dict[str, int]:
    """Count the rows of the shards that have each value."""
    rows: Counter[str] = Counter()
    for shard, value in zip(shards, values, strict=True):
        rows[str(value)] += shard.rows
    return dict(rows)


def describe_info(store: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that ``abag store info`` prints: a short block per encoder."""
    encoders = counted(len(store["encoders"]), "encoder")
    size = size_text(store["bytes"])
    yield f"{store['path']}: {store['rows']:,} vectors of {encoders}, {size}"
    for encoder in store["encoders"]:
        yield from _describe_encoder(encoder)
    if store["waiting"]:
        yield (
            f"{counted(store['waiting'], 'sequence')} in a local spool on this machine: "
            "run abag embed again to add them"
        )
    for reason in store["damaged"]:
        yield f"damaged: {reason}"


def _describe_encoder(encoder: Mapping[str, Any]) -> Iterator[str]:
    line = (
        f"{encoder['kind']} · {encoder['encoder']} ({encoder['fingerprint'][:8]}): "
        f"{counted(encoder['unique'], 'sequence')} in {counted(encoder['shards'], 'shard')}"
    )
    repeated = encoder["rows"] - encoder["unique"]
    yield f"{line}; {repeated:,} stored twice" if repeated else line
    if encoder["newest_seconds_ago"] is not None:
        poolings = ", ".join(f"{name} {width}" for name, width in encoder["poolings"].items())
        made = [*encoder["values"]]
        for name in ("precision", "device"):
            made += encoder["attrs"].get(name, {})
        ago = duration_text(encoder["newest_seconds_ago"])
        yield f"  {poolings} · {', '.join(made)} · last commit {ago} ago"
    for reason in encoder["damaged"]:
        yield f"  damaged: {reason}"


# --- verify and merge ----------------------------------------------------------------------------


def verify(store: Store) -> list[tuple[Path, str]]:
    """Check every byte of a store; list damaged files and folders, and what is wrong with each."""
    findings: list[tuple[Path, str]] = []
    for folder in store.folders():
        folder.check()
        findings += folder.damaged
    store.folders()  # once more: raises if the store has vanished meanwhile
    return findings + store.damaged


def merge(sources: Sequence[Path | str], out: Path | str) -> dict[str, Any]:
    """Copy shards of several stores into one, new or not; ``abag store merge --json``."""
    stores = [open_store(source) for source in sources]
    if any(store.path.resolve() == Path(out).resolve() for store in stores):
        msg = f"{out}: is both a source and the result; expected another path. Give a new one."
        raise StoreError(msg)
    target = open_store(out, create=True)
    merged = {folder.path.name: folder for folder in target.folders()}
    for store in stores:
        for folder in store.folders():  # before anything is copied
            refuse_mismatch(folder, merged.setdefault(folder.path.name, folder))
    counts: Counter[str] = Counter()
    damaged: list[str] = []
    for store in stores:
        for folder in store.folders():
            counts += copy_folder(folder, target)
            damaged += _reasons(folder)
        store.folders()  # once more: raises if the source has vanished meanwhile
        damaged += _reasons(store)
    rows = 0
    duplicates = 0
    for folder in target.folders():
        rows += folder.rows
        duplicates += folder.rows - folder.count_unique()
    return {
        "out": str(out),
        "copied": counts["copied"],
        "present": counts["present"],
        "rows": rows,
        "duplicates": duplicates,
        "damaged": damaged,
    }


def describe_merge(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that ``abag store merge`` prints."""
    copied = f"{counted(summary['copied'], 'shard')} copied, {summary['present']:,} already there"
    line = f"{summary['out']}: {copied}; {counted(summary['rows'], 'vector')}"
    repeated = summary["duplicates"]
    yield f"{line}, {repeated:,} of them stored twice" if repeated else line
    yield from _describe_damage(summary)


def _describe_damage(summary: Mapping[str, Any]) -> Iterator[str]:
    for reason in summary["damaged"]:
        yield f"damaged: {reason}"


def copy_folder(folder: EncoderFolder, target: Store) -> Counter[str]:
    """Copy what a store lacks of a folder, every byte checked; count shards copied and present."""
    into = target.create_folder(folder.kind, folder.info)
    refuse_mismatch(folder, into)
    counts: Counter[str] = Counter()
    retrying(into.path, partial(write_adapter_files, into.path, folder.adapter_files()))
    folder.check()  # `shards` leaves out what it finds damaged
    for shard in folder.shards():
        path = into.path / shard.path.name
        is_present = _is_whole(path)
        counts["present" if is_present else "copied"] += 1
        if is_present:
            continue
        image = retrying(folder.path, shard.path.read_bytes)
        retrying(into.path, partial(write_bytes, path, image))
    return counts


def refuse_mismatch(folder: EncoderFolder, into: EncoderFolder) -> None:
    """Refuse shards that would count as damaged beside those of `into`."""
    for key in ("fingerprint", "layers", "poolings", "loglik"):
        ours = folder.info.get(key, [])
        theirs = into.info.get(key, [])
        if ours != theirs:
            msg = (
                f"{folder.path}: has the {key} {ours or 'none'}, {into.path} has "
                f"{theirs or 'none'}; expected the same. Use another store."
            )
            raise StoreError(msg)


def _is_whole(path: Path) -> bool:
    """Tell whether a shard is there and its bytes are those that its name says."""
    try:
        check_digest(path)
    except (DamagedFile, FileNotFoundError):
        return False
    return True


def push(store: Path | str, address: str, *, private: bool = False) -> dict[str, Any]:
    """Add shards that the hub lacks to a store there, new or not; ``abag store push --json``."""
    # paths of this machine and notes of runs stay here
    to = parse_address(address, "dataset")
    source = open_store(store)
    folders = {folder.path.name: folder for folder in source.folders()}
    for folder in folders.values():
        _refuse_incomplete(folder)
    shards = _sound_shards(folders.values())
    damaged: list[tuple[Path, str]] = []
    for folder in folders.values():
        damaged += folder.damaged
    damaged += source.damaged
    if not shards:
        why = f" ({damaged[0][1]})" if damaged else ""
        msg = f"{source.path}: holds no vectors{why}; expected some to send. Run abag embed first."
        raise StoreError(msg)
    contents: dict[str, Path | bytes] = {"README.md": _readme(to), **shards}
    contents |= _public_records(folders)
    hub = Repository(to)
    hub.create(private=private)
    with TemporaryDirectory() as scratch:
        commit, sizes, theirs = _read_store(hub, Path(scratch) / "records", {ENCODER_FILE})
    for name in theirs.keys() & folders.keys():
        refuse_mismatch(folders[name], theirs[name])
    missing = {path: content for path, content in contents.items() if path not in sizes}
    sent = [path for name, path in shards.items() if name in missing]
    sent_bytes = sum(path.stat().st_size for path in sent)
    if missing:
        records = [name for name in missing if name not in shards]
        size = f"{len(sent)} shards ({sent_bytes:,} bytes)"
        say(f"{to}: sending {', '.join([*records, size])}")
        commit = hub.commit(missing, message=f"Add {len(missing)} files with abag")
    return {
        "address": to.at(commit),
        "page": hub.page,
        "pushed": len(sent),
        "present": len(shards) - len(sent),
        "bytes": sent_bytes,
        "damaged": [reason for _, reason in damaged],
    }


def describe_push(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that ``abag store push`` prints."""
    sent = f"{counted(summary['pushed'], 'shard')} ({size_text(summary['bytes'])}) sent"
    yield f"{summary['address']}: {sent}, {summary['present']:,} already there"
    yield f"page  {summary['page']}"
    yield from _describe_damage(summary)


def _public_records(folders: Mapping[str, EncoderFolder]) -> dict[str, bytes]:
    records = {STORE_FILE: json_bytes(STORE_MARK)}
    for name, folder in folders.items():
        info = dict(folder.info)
        if "origin" in info:
            info["origin"] = public_origin(str(info["origin"]))
        records[f"{name}/{ENCODER_FILE}"] = json_bytes(info)
        adapter = public_adapter_files(folder.path, folder.adapter_files())
        records |= {f"{name}/{inner}": content for inner, content in adapter.items()}
    return records


def pull(address: str, store: Path | str, *, batch_files: int = DOWNLOAD_FILES) -> dict[str, Any]:
    """Add shards of a store on the hub, each checked, to a store; ``abag store pull --json``.

    Parameters
    ----------
    address : str
        ``hf://user/name``, optionally with ``@`` and a branch, tag or commit.
    store : path
        Made if it does not exist.
    batch_files : int
        Shards that are downloaded before they are added.
    """
    source = parse_address(address, "dataset")
    target = open_store(store, create=True)
    # a repository that is refused leaves no folder
    hub = Repository(source)
    with TemporaryDirectory() as scratch:
        arrived = Path(scratch) / "store"
        commit, sizes, theirs = _read_store(hub, arrived, {ENCODER_FILE, *ADAPTER_PATHS})
        where = source.at(commit)
        if not theirs:
            msg = f"{source}: holds no store; expected the folders of encoders. Check the address."
            raise StoreError(msg)
        if source.commit is None:
            say(f"{source}: commit {commit}; to pull exactly this again, add @{commit}.")
        ours = []
        for their_folder in theirs.values():
            _refuse_incomplete(their_folder)
            our_folder = target.find_folder(their_folder.kind, their_folder.info)
            refuse_mismatch(their_folder, our_folder)
            ours.append(our_folder)
        shards = [path for path in sizes if "/" in path and path.endswith(".h5")]
        present = _sound_shards(ours)  # damaged ones are replaced
        missing = {path: sizes[path] for path in shards if path not in present}
        hub.check_room(missing, nearest_existing(target.path))
        paths = list(missing)
        # at least once: the records of a store without shards are copied too
        for start in range(0, max(1, len(paths)), batch_files):
            batch = {path: missing[path] for path in paths[start : start + batch_files]}
            hub.download(batch, commit, arrived)
            for their_folder in theirs.values():
                copy_folder(their_folder, target)
                if their_folder.damaged:  # a shard that is not what its name says
                    damaged_path, _ = their_folder.damaged[0]
                    msg = (
                        f"{where}: {damaged_path.relative_to(arrived)} is damaged or of another "
                        "encoder. Try again; if it happens again, do not use the repository."
                    )
                    raise DamagedFile(msg)
            for path in batch:
                (arrived / path).unlink()
    return {
        "address": where,
        "store": str(target.path),
        "pulled": len(missing),
        "present": len(shards) - len(missing),
        "bytes": sum(missing.values()),
    }


def describe_pull(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the line that ``abag store pull`` prints."""
    added = f"{counted(summary['pulled'], 'shard')} ({size_text(summary['bytes'])}) added"
    yield f"{summary['store']}: {added}, {summary['present']:,} already there"
    yield f"from  {summary['address']}"


def _refuse_incomplete(folder: EncoderFolder) -> None:
    """Refuse a folder without the adapter that its encoder.json promises."""
    if problem := folder.why_adapter_lacks():
        raise DamagedFile(problem)


def _sound_shards(folders: Iterable[EncoderFolder]) -> dict[str, Path]:
    """Check every byte of every shard; return the sound ones by their paths in the store."""
    paths: dict[str, Path] = {}
    for folder in folders:
        folder.check()
        for shard in folder.shards():
            paths[f"{folder.path.name}/{shard.path.name}"] = shard.path
    return paths


def _read_store(
    hub: Repository, into: Path, records: Container[str]
) -> tuple[str, dict[str, int], dict[str, EncoderFolder]]:
    """Return a repository's newest commit, files, and folders; download `records` of these."""
    commit = hub.head()
    where = hub.address.at(commit)
    sizes = hub.files(commit)
    allowed = {path for path in sizes if _PATH.fullmatch(path)}
    check_names(Path(where), sizes, allowed)
    names = sorted({path.partition("/")[0] for path in sizes if "/" in path})
    for name in names:
        if f"{name}/{ENCODER_FILE}" not in sizes:
            msg = f"{where}: {name} has no {ENCODER_FILE}; expected a store. Push it again."
            raise StoreError(msg)
    wanted = {}
    for path, size in sizes.items():
        _, _, inner = path.partition("/")
        if path == STORE_FILE or inner in records:
            wanted[path] = size
    hub.download(wanted, commit, into)
    if STORE_FILE in wanted:
        mark = read_record(into / STORE_FILE)
        if mark != STORE_MARK:
            msg = f"{where}: {mark}; {OTHER_VERSION}"
            raise StoreError(msg)
    folders = {name: EncoderFolder(into / name, read_encoder_info(into / name)) for name in names}
    return commit, sizes, folders


def _readme(address: HubAddress) -> bytes:
    """Return the card of a repository; it is written once, and its owner may change it."""
    return f"""---
tags: [abag, protein, antibody, embeddings]
viewer: false
---

# Vectors of protein sequences

Vectors of antibodies and antigens from protein language models: one folder per encoder. To add
them to a store, or to make one: `abag store pull {address} --store store`

The sequences themselves are not here. Vectors are found by a digest of the sequence, so that
everybody can find out whether a sequence that they know is among them. The terms of the language
models and of the source of the sequences apply.
""".encode()
