"""Maintain stores: check every byte, merge several, pack one into a file."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import KEY_BYTES, sort_keys
from abag.core.files import Files, sweep_partials_of
from abag.embed.shards.hdf5_layout import BlockSource, shard_chunks
from abag.embed.shards.regular_files import DamagedShard
from abag.embed.shards.shard import (
    MAX_PACKED_CONTENTS_BYTES,
    VectorBlock,
    commit_shard,
    read_table_of_contents,
)
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.store import Store, StoreMismatch, open_store
from abag.embed.store.store_files import write_adapter_files

PACKED_ROWS = 4096
# bf16 and fp16 runs of one encoder differ by up to 1 %; one mutation moves a vector by 3-5 %
CONFLICT_DISTANCE = 0.02


class MergeSummary(TypedDict):
    """The keys of ``abag store merge --json``."""

    out: str
    copied: int
    """Shards."""
    present: int
    """Shards that were already in the result."""
    rows: int
    duplicates: int
    """Rows with a key that an earlier shard holds."""
    conflicts: int
    """Duplicates with vectors that differ by more than rounding; the first shard's are used."""
    damaged: list[str]
    """Shards that were left out."""


class PackSummary(TypedDict):
    """The keys of ``abag store pack --json``."""

    out: str
    rows: int
    bytes: int
    damaged: list[str]
    """Shards that were left out."""


def verify(store: Store) -> list[tuple[Path, str]]:
    """Check every byte of a store, names and attributes included.

    Returns
    -------
    list of (Path, str)
        Each damaged file or folder, and what is wrong with it.

    Raises
    ------
    StoreUnreachable
    """
    findings: list[tuple[Path, str]] = []
    for folder in store.folders():
        folder.check()
        findings += folder.damaged
    findings += store.damaged
    if store.path.is_file():
        try:
            read_table_of_contents(store.path, most_bytes=MAX_PACKED_CONTENTS_BYTES).check_rest()
        except DamagedShard as error:
            findings.append((store.path, str(error)))
    return findings


# --- merging -------------------------------------------------------------------------------------


def merge(
    sources: Sequence[Path | str], out: Path | str, *, files: Files | None = None
) -> MergeSummary:
    """Copy the vectors of several stores into one, which is created if it is new.

    Merging again copies only what is new. The sources are not changed.

    Raises
    ------
    StoreMismatch
        If `out` is one of the sources, or encoder folders or shards of one name differ.
    NotAStore, StoreUnreachable, OSError
    """
    files = files or Files()
    stores = [open_store(source) for source in sources]
    if any(store.path.resolve() == Path(out).resolve() for store in stores):
        msg = f"{out}: is both a source and the result; expected another path. Give a new one."
        raise StoreMismatch(msg)
    target = open_store(out, create=True, files=files)
    counts: Counter[str] = Counter()
    damaged: list[str] = []
    for store in stores:
        for folder in store.folders():
            into = target.create_folder(folder.kind, plain_info(folder))
            refuse_other_poolings(folder, into)
            write_adapter_files(into.path, folder.adapter_files(), files)
            folder.check()
            for block in folder.blocks():
                counts[_copy_block(block, into, files)] += 1
            damaged += [what for _, what in folder.damaged]
        damaged += [what for _, what in store.damaged]
    duplicates, conflicts = np.sum(
        [(0, 0), *map(_count_duplicates, target.folders())], axis=0
    ).tolist()
    return MergeSummary(
        out=str(out),
        copied=counts["copied"],
        present=counts["present"],
        rows=sum(folder.rows for folder in target.folders()),
        duplicates=duplicates,
        conflicts=conflicts,
        damaged=damaged,
    )


def plain_info(folder: EncoderFolder) -> dict[str, Any]:
    """Return encoder.json as it is in a folder, without the files that a packed store adds."""
    return {name: value for name, value in folder.info.items() if name != "extras"}


def refuse_other_poolings(folder: EncoderFolder, into: EncoderFolder) -> None:
    """All shards of a folder hold the same poolings; others would count as damaged."""
    ours, theirs = folder.info.get("layers", []), into.info.get("layers", [])
    if ours != theirs:
        msg = (
            f"{folder.path}: has poolings of layers {ours or 'none'} beside the last, {into.path} "
            f"of {theirs or 'none'}; expected the same. Merge into another store."
        )
        raise StoreMismatch(msg)


def _copy_block(
    block: VectorBlock, into: EncoderFolder, files: Files
) -> Literal["copied", "present"]:
    """Copy a block into a folder as a shard, unless it is there already."""
    is_shard = block.group == "/"
    # a packed block is named by its keys, so that merging it again finds it
    path = into.path / (block.path.name if is_shard else f"{block.arrays['key'].digest[:16]}.h5")
    if path.exists() and is_same_shard(path, block):
        return "present"
    if is_shard:
        commit_shard(path, [(0, block.path.read_bytes())], files)
    else:
        shapes = {name: (array.dtype, array.shape) for name, array in block.arrays.items()}
        source = BlockSource("/", block.attrs, shapes, block.load)
        commit_shard(path, shard_chunks([source]), files)
    return "copied"


def is_same_shard(path: Path, block: VectorBlock) -> bool:
    """Whether a shard holds a block's bytes; a damaged one does not, and will be replaced.

    Raises
    ------
    StoreMismatch
        If it is sound and holds something else.
    """
    try:
        (existing,) = read_table_of_contents(path).blocks
        existing.check()
    except (DamagedShard, ValueError):
        return False
    if _digests(existing) != _digests(block):
        msg = f"{path}: differs from {block.path} of the same name. Rename one of the two."
        raise StoreMismatch(msg)
    return True


def _digests(block: VectorBlock) -> Mapping[str, str]:
    return {name: array.digest for name, array in block.arrays.items()}


def _count_duplicates(folder: EncoderFolder) -> tuple[int, int]:
    """Count the rows with a repeated key, and those of them with a different vector."""
    places, repeated = _sorted_places(folder.keys())
    first_of_run = np.maximum.accumulate(np.where(repeated, 0, np.arange(len(places))))
    first, later = places[first_of_run[repeated]], places[repeated]
    blocks = folder.blocks()
    conflicts = 0
    for at in range(0, len(later), PACKED_ROWS):
        pair = first[at : at + PACKED_ROWS], later[at : at + PACKED_ROWS]
        differ = np.zeros(len(pair[0]), bool)
        for name in folder.poolings:
            one, other = (_read_places(blocks, part, name).astype(np.float32) for part in pair)
            norms = np.linalg.norm(one, axis=1)
            differ |= np.linalg.norm(one - other, axis=1) > CONFLICT_DISTANCE * norms
        conflicts += int(differ.sum())
    return len(later), conflicts


# --- packing -------------------------------------------------------------------------------------


def pack(store: Store, out: Path | str, *, files: Files | None = None) -> PackSummary:
    """Write a store into one file, sorted by key, each sequence once.

    Raises
    ------
    StoreMismatch
        If `out` exists.
    AbagError
        If `out` cannot be written.
    """
    out = Path(out)
    if out.exists():
        msg = f"{out}: already exists; expected the path of a new file. Give another, or remove it."
        raise StoreMismatch(msg)
    folders = store.folders()
    blocks = [block for folder in folders for block in _sorted_blocks(folder)]
    encoders = {folder.path.name: _packed_info(folder) for folder in folders}
    sweep_partials_of(out)
    try:
        commit_shard(out, shard_chunks(blocks, {"encoders": encoders}), files or Files())
    except OSError as error:
        msg = f"{out}: cannot be written ({error}); expected a writable path. Give another."
        raise AbagError(msg) from error
    return PackSummary(
        out=str(out),
        rows=sum(block.shapes["key"][1][0] for block in blocks),
        bytes=out.stat().st_size,
        damaged=[what for folder in folders for _, what in folder.damaged],
    )


def _packed_info(folder: EncoderFolder) -> dict[str, Any]:
    """Return encoder.json with the adapter's files in it, since a packed store is one file."""
    contents = folder.adapter_files()
    adapter = {name: base64.b64encode(content).decode() for name, content in contents.items()}
    return {**plain_info(folder), **({"extras": adapter} if adapter else {})}


def _sorted_blocks(folder: EncoderFolder) -> Iterator[BlockSource]:
    """Yield the folder's rows sorted by key, as blocks that are loaded when written."""
    folder.check()
    blocks = folder.blocks()
    places, repeated = _sorted_places(folder.keys())
    places = places[~repeated]
    if not blocks:
        return
    attrs = _common_attrs(blocks)
    dtypes = {n: max(b.arrays[n].dtype for b in blocks) for n in blocks[0].arrays}  # <f4 over <f2
    for number, at in enumerate(range(0, len(places), PACKED_ROWS)):
        part = places[at : at + PACKED_ROWS]

        def load(name: str, part: NDArray[np.int64] = part) -> NDArray[Any]:
            return _read_places(blocks, part, name)

        shapes = {n: (dtypes[n], (len(part), *row)) for n, row in blocks[0].layout.items()}
        group = f"/{folder.path.name}/{number:06d}"
        yield BlockSource(group, {**attrs, "rows": len(part)}, shapes, load)


def _common_attrs(blocks: Sequence[VectorBlock]) -> dict[str, str | int | float]:
    """Return attributes that are true of all blocks; different values are joined by +."""
    names = dict.fromkeys(name for block in blocks for name in block.attrs)
    names.pop("job", None)  # as many values as jobs, and of no use once they have ended
    joined: dict[str, str | int | float] = {}
    for name in names:
        values = list(dict.fromkeys(block.attrs.get(name, "unknown") for block in blocks))
        joined[name] = values[0] if len(values) == 1 else "+".join(sorted(map(str, values)))
    return joined


# --- places: shape=(n, 2), a block and one of its rows -------------------------------------------


def _sorted_places(
    keys: Sequence[NDArray[np.uint8]],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sort all rows by key, then block; mark those with the same key as the row before."""
    places = [np.stack([np.full(len(k), b), np.arange(len(k))], axis=1) for b, k in enumerate(keys)]
    order, repeated = sort_keys(np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *keys]))
    return np.concatenate([np.empty((0, 2), np.int64), *places])[order], repeated


def _read_places(
    blocks: Sequence[VectorBlock], places: NDArray[np.int64], name: str
) -> NDArray[Any]:
    """Read one array's rows from several blocks."""
    dtype = max(block.arrays[name].dtype for block in blocks)
    out: NDArray[Any] = np.empty((len(places), *blocks[0].layout[name]), dtype)
    for number in np.unique(places[:, 0]).tolist():
        at = np.flatnonzero(places[:, 0] == number)
        out[at] = blocks[number].load_rows(name, places[at, 1])
    return out
