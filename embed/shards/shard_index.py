"""Find and read rows by key in one encoder's shards, while other processes add to them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import KeyIndex
from abag.core.messages import say
from abag.embed.shards.regular_files import DamagedShard
from abag.embed.shards.shard import VectorBlock, read_table_of_contents
from abag.embed.store.filesystem import access

READERS = min(8, os.cpu_count() or 1)

S = TypeVar("S", bound=np.generic)
FileVersion = tuple[int, int]
"""Size in bytes and time of the last change in nanoseconds."""


class UnknownPooling(AbagError):
    """A pooling is not stored, or not in the requested number format."""


class MissingVectors(AbagError):
    """Sequences have no vector in the store.

    Attributes
    ----------
    rows : ndarray, shape=(n,), dtype=int64
        Their rows among the requested keys.
    """

    def __init__(self, where: Path, requested: int, rows: NDArray[np.int64]) -> None:
        self.count, self.rows = len(rows), rows
        super().__init__(
            f"{where}: {self.count} of {requested} sequences are not stored, the first is number "
            f"{int(rows[0]) + 1}; expected all. Run abag embed on the table that contains them."
        )


class RowRequest(NamedTuple):
    """Rows to read from one block."""

    block: VectorBlock
    rows: NDArray[np.int64]
    """(n,) rows of the block."""
    places: NDArray[np.int64]
    """(n,) where they belong in the result."""


class _OpenShard(NamedTuple):
    block: VectorBlock
    keys: NDArray[np.uint8]
    version: FileVersion


class ShardIndex:
    """Finds keys in the shards of a folder, or in the blocks of a packed store.

    A damaged shard is reported once and skipped; its keys count as missing. An object serves one
    thread at a time. Methods that read raise StoreUnreachable if the file system fails.

    Parameters
    ----------
    identity : mapping
        Values of the attributes ``kind`` and ``fingerprint`` of the folder's shards.
    packed : iterable of VectorBlock, optional
        The blocks in a packed store.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, str], packed: Iterable[VectorBlock] | None = None
    ) -> None:
        self.folder, self._identity = folder, identity
        self._packed = None if packed is None else {block.group: block for block in packed}
        self._open: dict[str, _OpenShard] = {}
        self._damaged: dict[str, tuple[FileVersion, str]] = {}
        self._verified: set[str] = set()
        self._order: list[str] = []
        self._keys = KeyIndex([])

    @property
    def damaged(self) -> list[tuple[Path, str]]:
        """Path of each damaged shard, and the reason."""
        return [(self.folder / name, self._damaged[name][1]) for name in sorted(self._damaged)]

    def blocks(self) -> list[VectorBlock]:
        """Return the sound blocks, in the order in which keys are looked up."""
        return [self._open[name].block for name in self._order]

    def keys(self) -> list[NDArray[np.uint8]]:
        """Return the keys of each block, shape=(n, 16), dtype=uint8."""
        return [self._open[name].keys for name in self._order]

    def find(self, keys: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Look keys up, shape (P, 16); see :meth:`abag.core.arrays.KeyIndex.find`."""
        return self._keys.find(keys)

    def verify(self, keys: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Look keys up as :meth:`find`, shape (P, 16), in shards checked byte by byte."""
        block, row = self.find(keys)
        while not self.for_each(block, row, self._verify_once):
            block, row = self.find(keys)
        return block, row

    def _verify_once(self, request: RowRequest) -> None:
        name = self._name(request.block)
        if name not in self._verified:
            request.block.check()
            self._verified.add(name)

    def check(self) -> None:
        """Check every byte of every shard; :attr:`damaged` lists those that fail."""
        every_block = np.arange(len(self._order))
        self.for_each(every_block, every_block, lambda request: request.block.check())

    def for_each(
        self, block: NDArray[np.int64], row: NDArray[np.int64], work: Callable[[RowRequest], None]
    ) -> bool:
        """Call a function once per block that holds requested rows, in several threads.

        Parameters
        ----------
        block, row : ndarray, shape=(N,), dtype=int64
            As :meth:`find` returns them; absent keys (-1) are ignored.
        work : callable
            May raise DamagedShard.

        Returns
        -------
        bool
            False if a shard was found to be damaged; it is then skipped from now on.
        """

        def attempt(request: RowRequest) -> DamagedShard | None:
            try:
                work(request)
            except DamagedShard as error:
                return error
            except FileNotFoundError:
                return DamagedShard(f"{request.block.path}: was removed while it was read.")
            return None

        requests = self._requests(block, row)
        with ThreadPoolExecutor(READERS) as pool:
            futures = [
                pool.submit(copy_context().run, access, self.folder, partial(attempt, request))
                for request in requests
            ]
            errors = [future.result() for future in futures]
        for request, damage in zip(requests, errors, strict=True):
            if damage is not None:
                name = self._name(request.block)
                self._skip(name, self._open[name].version, damage)
        if any(errors):
            self._rebuild()
        return not any(errors)

    def _requests(self, block: NDArray[np.int64], row: NDArray[np.int64]) -> list[RowRequest]:
        """Group requested rows by block."""
        order = np.argsort(block, kind="stable")
        numbers, starts = np.unique(block[order], return_index=True)
        parts = np.split(order, starts[1:]) if numbers.size else []
        blocks = self.blocks()
        return [
            RowRequest(blocks[number], row[places], places)
            for number, places in zip(numbers.tolist(), parts, strict=True)
            if number >= 0
        ]

    def _name(self, block: VectorBlock) -> str:
        return block.path.name if self._packed is None else block.group

    # --- following what other processes add ---

    def refresh(self) -> None:
        """Open shards that appeared or changed, and forget those that are gone."""
        versions = access(self.folder, self._versions)
        gone = [n for n, shard in self._open.items() if versions.get(n) != shard.version]
        self._open = {name: self._open[name] for name in self._open.keys() - gone}
        self._verified.difference_update(gone)
        self._damaged = {n: d for n, d in self._damaged.items() if versions.get(n) == d[0]}
        new = sorted(versions.keys() - self._open.keys() - self._damaged.keys())
        for name in new:
            access(self.folder, partial(self._add, name, versions[name]))
        if gone or new:
            self._rebuild()

    def _versions(self) -> dict[str, FileVersion]:
        if self._packed is not None:
            return dict.fromkeys(self._packed, (0, 0))
        versions = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(".h5"):
                    state = entry.stat(follow_symlinks=False)
                    versions[entry.name] = (state.st_size, state.st_mtime_ns)
        return versions

    def _add(self, name: str, version: FileVersion) -> None:
        """Open one shard and read its keys; remember it as damaged if that fails."""
        try:
            block = self._packed[name] if self._packed else _read_shard(self.folder / name)
            refuse_foreign(block, self._identity)
            self._open[name] = _OpenShard(block, block.load("key"), version)
        except DamagedShard as error:
            self._skip(name, version, error)
        except FileNotFoundError:  # removed since the folder was listed
            return

    def _skip(self, name: str, version: FileVersion, error: DamagedShard) -> None:
        self._open.pop(name, None)
        self._damaged[name] = version, str(error)
        say(f"{error} The shard is skipped and its sequences count as missing.")

    def _skip_other_layouts(self) -> None:
        """Skip the shards with other poolings than most rows have.

        Every byte is checked first: one forged shard must not outvote the sound ones.
        """
        found = {name: str(sorted(one.block.layout.items())) for name, one in self._open.items()}
        if len(set(found.values())) < 2:
            return
        rows: Counter[str] = Counter()
        for name, shard in sorted(self._open.items()):
            try:
                access(self.folder, shard.block.check)
                rows[found[name]] += shard.block.rows
            except (DamagedShard, FileNotFoundError) as error:
                self._skip(name, shard.version, DamagedShard(str(error)))
        for name, shard in sorted(self._open.items()):
            if found[name] != (most := rows.most_common(1)[0][0]):
                msg = f"{shard.block.path}: holds {found[name]}; most rows hold {most}."
                self._skip(name, shard.version, DamagedShard(msg))

    def _rebuild(self) -> None:
        self._skip_other_layouts()
        self._order = sorted(self._open)
        self._keys = KeyIndex(self.keys())


def refuse_foreign(block: VectorBlock, identity: Mapping[str, str]) -> None:
    """Raise DamagedShard if a shard belongs to another encoder than `identity`.

    Parameters
    ----------
    identity : mapping
        The expected attributes ``kind`` and ``fingerprint``.
    """
    kind, fingerprint = block.attrs.get("kind"), block.attrs.get("fingerprint")
    if {"kind": kind, "fingerprint": fingerprint} != identity:
        expected = identity["fingerprint"]
        msg = f"{block.path}: made by {kind} encoder {fingerprint}; expected {expected}."
        raise DamagedShard(msg)


def _read_shard(path: Path) -> VectorBlock:
    blocks = read_table_of_contents(path).blocks
    if [block.group for block in blocks] != ["/"]:
        msg = f"{path}: is not a single shard (a packed store?). Use abag store merge."
        raise DamagedShard(msg)
    return blocks[0]


def gather_rows(
    shards: ShardIndex, keys: NDArray[np.uint8], name: str, dtype: type[S]
) -> NDArray[S]:
    """Read the rows of one array, shape (N, ...), and check the CRC-32 of each block.

    A shard that proves damaged is skipped, and its rows are read from others that hold them.

    Raises
    ------
    MissingVectors, UnknownPooling, StoreUnreachable
    """
    shards.refresh()
    while True:
        block, row = shards.find(keys)
        absent = np.flatnonzero(block < 0)
        if absent.size:
            raise MissingVectors(shards.folder, len(keys), absent)
        out = np.empty((len(keys), *_row_shape(shards, name)), dtype)
        if shards.for_each(block, row, partial(_read_into, out, name)):
            return out


def _row_shape(shards: ShardIndex, name: str) -> tuple[int, ...]:
    layout = next((block.layout for block in shards.blocks()), {name: (0,)})
    if name not in layout:
        raise unknown_pooling(shards.folder, name, layout)
    return layout[name]


def unknown_pooling(folder: Path, name: str, stored: Iterable[str]) -> UnknownPooling:
    """Return the error for a name that is not among the stored ones."""
    msg = f"{folder}: {name!r} is not stored; expected one of {', '.join(stored)}."
    if "@" in name:
        layer = name.rpartition("@")[2]
        msg += f" To store it, run abag embed --layers {layer} into a new store."
    return UnknownPooling(msg)


def _read_into(out: NDArray[Any], name: str, request: RowRequest) -> None:
    """Read one block's rows to their places in `out`."""
    block, rows, places = request
    start = int(places[0])
    is_whole = np.array_equal(rows, np.arange(block.rows))
    if is_whole and np.array_equal(places, np.arange(start, start + block.rows)):
        block.load(name, out=out[start : start + block.rows])  # without a temporary array
    else:
        out[places] = block.load(name)[rows]
