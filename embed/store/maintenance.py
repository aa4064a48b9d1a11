"""Look after stores: check every byte, merge several, pack one into a file."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.files import Files, read_chunks
from abag.core.keys import KEY_BYTES, sort_keys
from abag.embed.store.adapter_files import write_adapter_files
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.hdf5_layout import BlockSource, shard_chunks
from abag.embed.store.shard import (
    MAX_PACKED_CONTENTS_BYTES,
    DamagedShard,
    VectorBlock,
    commit_shard,
    read_table_of_contents,
)
from abag.embed.store.store import Store, StoreMismatch, open_store

PACKED_ROWS = 4096
# bf16 and fp16 runs of one encoder differ by up to 1 %, one mutation moves a vector by 3-5 %
CONFLICT_DISTANCE = 0.02


class Finding(NamedTuple):
    """Something in a store that is not as it was written."""

    path: Path
    what: str


def verify(store: Store) -> list[Finding]:
    """Check every byte of a store, names and attributes included.

    Returns
    -------
    list of Finding
        Empty when all is as it was written.
    """
    findings: list[Finding] = []
    folders = store.folders()
    for folder in folders:
        folder.check()
        findings += [Finding(path, what) for path, what in folder.damaged]
    findings += [Finding(path, what) for path, what in store.damaged]
    if store.path.is_file():
        try:
            read_table_of_contents(store.path, most_bytes=MAX_PACKED_CONTENTS_BYTES).check_rest()
        except DamagedShard as error:
            findings.append(Finding(store.path, str(error)))
    return findings


# --- merging -------------------------------------------------------------------------------------


def merge(
    sources: Sequence[Path | str], out: Path | str, *, files: Files | None = None
) -> dict[str, Any]:
    """Bring all vectors of some stores into one, which is made if it is new.

    Safe to repeat: what is there already is not copied again. Nothing is removed from `sources`.

    Returns
    -------
    dict
        ``copied`` and ``present`` (shards), ``rows``, ``duplicates`` (rows whose key an earlier
        shard of `out` holds), ``conflicts`` (duplicates whose vectors differ by more than
        rounding; the first shard's count), ``damaged`` (shards that were left out).
    """
    files = files or Files()
    stores = [open_store(source) for source in sources]
    if any(store.path.resolve() == Path(out).resolve() for store in stores):
        msg = f"{out}: both a source and the result; another path was expected. Give a new one."
        raise StoreMismatch(msg)
    target = open_store(out, create=True, files=files)
    counts: Counter[str] = Counter(copied=0, present=0)
    damaged: list[str] = []
    for store in stores:
        for folder in store.folders():
            into = target.create_folder(folder.kind, _plain(folder.info))
            _refuse_other_poolings(folder, into)
            path = into.path
            write_adapter_files(path, folder.adapter_files(), files)
            folder.check()
            for block in folder.blocks():
                counts[_bring(block, path, files)] += 1
            damaged += [what for _, what in folder.damaged]
        damaged += [what for _, what in store.damaged]
    pairs = [_compare_duplicates(folder) for folder in target.folders()]
    return {
        "out": str(out),
        **counts,
        "rows": sum(folder.rows for folder in target.folders()),
        "duplicates": sum(duplicates for duplicates, _ in pairs),
        "conflicts": sum(conflicts for _, conflicts in pairs),
        "damaged": damaged,
    }


def _refuse_other_poolings(folder: EncoderFolder, into: EncoderFolder) -> None:
    """Shards of one folder hold the same poolings: others would be taken as damaged."""
    ours, theirs = folder.info.get("layers", []), into.info.get("layers", [])
    if ours != theirs:
        msg = (
            f"{folder.path}: poolings of layers {ours or 'none'} beside the last, {into.path} has "
            f"{theirs or 'none'}; expected the same. Merge into another store."
        )
        raise StoreMismatch(msg)


def _bring(block: VectorBlock, folder: Path, files: Files) -> str:
    """Copy a block into a folder as a shard; say whether that was needed."""
    if block.group == "/":
        path = folder / block.path.name
    else:  # from a packed store: a name that merging it again gives again
        path = folder / f"{block.arrays['key'].digest[:16]}.h5"
    if path.exists() and _is_same(path, block):
        return "present"
    if block.group == "/":
        commit_shard(path, read_chunks(block.path), files)
    else:
        shapes = {name: (array.dtype, array.shape) for name, array in block.arrays.items()}
        commit_shard(path, shard_chunks([BlockSource("/", block.attrs, shapes, block.load)]), files)
    return "copied"


def _is_same(path: Path, block: VectorBlock) -> bool:
    """Say whether a shard holds the block's bytes; a damaged one is to be replaced.

    Raises
    ------
    StoreMismatch
        When it is sound and holds something else.
    """
    try:
        (there,) = read_table_of_contents(path).blocks
        there.check()
    except (DamagedShard, ValueError):
        return False
    if _digests(there) != _digests(block):
        msg = f"{path}: differs from {block.path} of the same name. Rename one of the two."
        raise StoreMismatch(msg)
    return True


def _digests(block: VectorBlock) -> Mapping[str, str]:
    return {name: array.digest for name, array in block.arrays.items()}


def _compare_duplicates(folder: EncoderFolder) -> tuple[int, int]:
    """Count the rows whose key came earlier, and those of them whose vectors differ."""
    first, later = _duplicates(folder.keys())
    blocks = folder.blocks()
    conflicts = 0
    for at in range(0, len(later), PACKED_ROWS):
        pair = first[at : at + PACKED_ROWS], later[at : at + PACKED_ROWS]
        differ = np.zeros(len(pair[0]), bool)
        for name in folder.poolings:
            one, other = (_fetch(blocks, places, name).astype(np.float32) for places in pair)
            norms = np.linalg.norm(one, axis=1)
            differ |= np.linalg.norm(one - other, axis=1) > CONFLICT_DISTANCE * norms
        conflicts += int(differ.sum())
    return len(later), conflicts


# --- packing -------------------------------------------------------------------------------------


def pack(store: Store, out: Path | str, *, files: Files | None = None) -> dict[str, Any]:
    """Write a store into one file, sorted by key, each sequence once.

    Returns
    -------
    dict
        ``out``, ``rows``, ``bytes``, ``damaged`` (shards that were left out).

    Raises
    ------
    StoreMismatch
        When `out` exists.
    """
    out = Path(out)
    if out.exists():
        msg = f"{out}: exists; a new file's path was expected. Give another, or remove it."
        raise StoreMismatch(msg)
    folders = store.folders()
    blocks = [block for folder in folders for block in _sorted_blocks(folder)]
    encoders = {folder.path.name: _packed_info(folder) for folder in folders}
    try:
        commit_shard(out, shard_chunks(blocks, {"encoders": encoders}), files or Files())
    except OSError as error:
        msg = f"{out}: cannot be written ({error}); a writable path was expected. Give another."
        raise AbagError(msg) from error
    return {
        "out": str(out),
        "rows": sum(block.shapes["key"][1][0] for block in blocks),
        "bytes": out.stat().st_size,
        "damaged": [what for folder in folders for _, what in folder.damaged],
    }


def _packed_info(folder: EncoderFolder) -> dict[str, Any]:
    """Give encoder.json the files that lie beside it: a packed store is one file."""
    extras = {n: base64.b64encode(data).decode() for n, data in folder.adapter_files().items()}
    return {**_plain(folder.info), **({"extras": extras} if extras else {})}


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return encoder.json as a folder holds it."""
    return {name: value for name, value in info.items() if name != "extras"}


def _sorted_blocks(folder: EncoderFolder) -> Iterator[BlockSource]:
    """Yield the folder's rows in the order of their keys, as blocks that load when written."""
    folder.check()
    blocks = folder.blocks()
    places = first_places(folder.keys())
    if not blocks:
        return
    attrs = _common_attrs(blocks)
    dtypes = {n: max(b.arrays[n].dtype for b in blocks) for n in blocks[0].arrays}  # <f4 over <f2
    for number, at in enumerate(range(0, len(places), PACKED_ROWS)):
        part = places[at : at + PACKED_ROWS]

        def load(name: str, part: NDArray[np.int64] = part) -> NDArray[Any]:
            return _fetch(blocks, part, name)

        shapes = {n: (dtypes[n], (len(part), *row)) for n, row in blocks[0].layout.items()}
        group = f"/{folder.path.name}/{number:06d}"
        yield BlockSource(group, {**attrs, "rows": len(part)}, shapes, load)


def _common_attrs(blocks: Sequence[VectorBlock]) -> dict[str, str | int | float]:
    """Return attributes that are true of all blocks together: what differs is joined by +."""
    names = dict.fromkeys(name for block in blocks for name in block.attrs)
    joined: dict[str, str | int | float] = {}
    for name in names:
        values = list(dict.fromkeys(block.attrs.get(name, "unknown") for block in blocks))
        joined[name] = values[0] if len(values) == 1 else "+".join(sorted(map(str, values)))
    return joined


# --- places: shape=(n, 2), which block and which of its rows -------------------------------------


def _sorted_places(
    keys: Sequence[NDArray[np.uint8]],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sort all rows by key, then block; say which have the key of the row before them."""
    places = np.concatenate(
        [np.empty((0, 2), np.int64)]
        + [np.stack([np.full(len(k), b), np.arange(len(k))], axis=1) for b, k in enumerate(keys)]
    )
    order, repeated = sort_keys(np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *keys]))
    return places[order], repeated


def first_places(keys: Sequence[NDArray[np.uint8]]) -> NDArray[np.int64]:
    """Return the place that counts of each distinct key, in the order of the keys."""
    places, repeats = _sorted_places(keys)
    return places[~repeats]


def _duplicates(keys: Sequence[NDArray[np.uint8]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of repeated keys: where each came first, and where again."""
    places, repeats = _sorted_places(keys)
    first = np.maximum.accumulate(np.where(repeats, 0, np.arange(len(places))))
    return places[first[repeats]], places[repeats]


def _fetch(blocks: Sequence[VectorBlock], places: NDArray[np.int64], name: str) -> NDArray[Any]:
    """Read rows from wherever they lie."""
    dtype = max(block.arrays[name].dtype for block in blocks)
    out: NDArray[Any] = np.empty((len(places), *blocks[0].layout[name]), dtype)
    for number in np.unique(places[:, 0]).tolist():
        at = np.flatnonzero(places[:, 0] == number)
        out[at] = blocks[number].load_rows(name, places[at, 1])
    return out
