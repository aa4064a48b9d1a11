"""The vectors of one encoder: many immutable shards, found by key, while others add to them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import KEY_BYTES, KeyIndex, distinct_keys
from abag.core.messages import say
from abag.embed.sequences.chains import Kind
from abag.embed.store.filesystem import RETRY_SECONDS, StoreUnreachable, access
from abag.embed.store.shard import (
    SHARD_NAME,
    Attrs,
    DamagedShard,
    Shard,
    check_shard,
    open_shard,
)
from abag.embed.store.store_files import ADAPTER_FOLDER, read_adapter_files
from abag.embed.store.writer import COMMIT_ROWS, ShardWriter

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


class _OpenShard(NamedTuple):
    shard: Shard
    keys: NDArray[np.uint8]
    version: FileVersion


class EncoderFolder:
    """The vectors that one encoder computed for one kind of sequence.

    Other processes may add shards at any time; each call looks for new ones. A damaged shard is
    reported once, left in place and skipped; the next run encodes its sequences again. An object
    serves one thread at a time, and holds no open file. Methods that read raise StoreUnreachable if
    the file system fails.

    `info` is the content of encoder.json. A folder that `is_new` need not exist, and counts as
    empty.
    """

    def __init__(self, path: Path, info: Mapping[str, Any], *, is_new: bool = False) -> None:
        self.path = path
        self.info = dict(info)
        self.kind: Kind = info["kind"]
        self.name: str = info["name"]
        self.fingerprint: str = info["fingerprint"]
        self._is_new = is_new
        self._open: dict[str, _OpenShard] = {}
        self._damaged: dict[str, tuple[FileVersion, str]] = {}
        self._verified: set[str] = set()
        self._order: list[str] = []
        self._index = KeyIndex([])

    @property
    def embed_options(self) -> str:
        """The options of ``abag embed`` that add to this folder."""
        if not self.info.get("adapter"):
            return f"--{self.kind}-encoder {self.name}"
        adapter, origin = self.path / ADAPTER_FOLDER, self.info.get("origin", self.name)
        return f"--{self.kind}-encoder {origin} --{self.kind}-adapter {adapter}"

    @property
    def rows(self) -> int:
        """Number of stored rows; a sequence that is stored twice counts twice."""
        return sum(shard.rows for shard in self.shards())

    @property
    def damaged(self) -> list[tuple[Path, str]]:
        """Path of each damaged shard, and the reason."""
        return [(self.path / name, self._damaged[name][1]) for name in sorted(self._damaged)]

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose poolings are stored beside those of the last layer."""
        return tuple(self.info.get("layers", ()))

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of the stored poolings; empty if nothing is stored."""
        return next((tuple(shard.widths) for shard in self.shards()), ())

    def shards(self) -> list[Shard]:
        """Return the sound shards, in the order in which keys are looked up."""
        self._refresh()
        return [self._open[name].shard for name in self._order]

    def keys(self) -> list[NDArray[np.uint8]]:
        """Return the keys of each of :meth:`shards`, shape=(n, 16), dtype=uint8."""
        self._refresh()
        return [self._open[name].keys for name in self._order]

    def count_unique(self) -> int:
        """Count the sequences; one that is stored twice counts once."""
        keys = np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *self.keys()])
        return len(distinct_keys(keys)[0])

    def missing(self, keys: NDArray[np.uint8], *, verify: bool = False) -> NDArray[np.bool_]:
        """Find out which sequences, keys of shape (N, 16), have no vector; shape (N,).

        If `verify`, first check every byte of the shards that hold the keys; damaged rows count as
        missing.
        """
        self._refresh()
        shard, row = self.find(keys)
        while verify and not self._for_each(shard, row, self._verify_once):
            shard, row = self.find(keys)
        return shard < 0

    def find(self, keys: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of :meth:`shards`, and which of its rows, holds each key; -1 if none does.

        Other processes may add shards, so call :meth:`shards` next, and keep the result.
        """
        return self._index.find(keys)

    def stored_order(self, keys: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the order in which sequences are stored: reading in it opens each shard once.

        Missing sequences come first.
        """
        self._refresh()
        shard, row = self.find(keys)
        return np.lexsort((row, shard))

    def read(self, keys: NDArray[np.uint8], pooling: str = "mean") -> NDArray[np.float32]:
        """Read the vectors of N sequences, (N, D), and compare them with their checksums."""
        if (names := self.poolings) and pooling not in names:  # key, length or a flag, or nothing
            raise self._unknown(pooling, names)
        return self.read_array(keys, pooling, np.float32)

    def read_array(self, keys: NDArray[np.uint8], name: str, dtype: type[S]) -> NDArray[S]:
        """Read a pooling, a flag such as ``has_light``, or ``length``, as another dtype.

        A shard that proves damaged is skipped, and its rows are read from others that hold them.
        A pooling stored as float32 is not read as float16, which would round it.
        """
        shards = self.shards()
        stored = {shard.arrays[name].dtype for shard in shards if name in shard.arrays}
        if dtype is np.float16 and "<f4" in stored:
            msg = f"{self.path}: {name!r} is stored as float32, not float16. Use read()."
            raise UnknownPooling(msg)
        while True:
            shard, row = self.find(keys)
            absent = np.flatnonzero(shard < 0)
            if absent.size:
                raise MissingVectors(self.path, len(keys), absent)
            layout: dict[str, tuple[int, ...]] = shards[0].layout if shards else {name: (0,)}
            if name not in layout:
                raise self._unknown(name, layout)
            out = np.empty((len(keys), *layout[name]), dtype)
            if self._for_each(shard, row, partial(_read_into, out, name)):
                return out

    def check(self) -> None:
        """Check every byte of every shard; :attr:`damaged` lists those that fail."""
        self._refresh()
        every_shard = np.arange(len(self._order))
        self._verified.clear()
        self._for_each(every_shard, np.zeros_like(every_shard), self._verify_once)

    def adapter_files(self) -> dict[str, bytes]:
        """Read the adapter's files, by their path in the folder; empty without an adapter."""
        return access(self.path, partial(read_adapter_files, self.path))

    def writer(
        self,
        *,
        attrs: Attrs,
        commit_seconds: float = 30.0,
        commit_rows: int = COMMIT_ROWS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> ShardWriter:
        """Start adding vectors; `attrs`, how they are made, are written into each shard.

        Added vectors are committed after `commit_seconds`, or when there are `commit_rows`, those
        of a shard. A store that fails in the end is retried for `retry_seconds`.
        """
        if not os.access(self.path, os.W_OK):  # found out before anything is encoded
            msg = f"{self.path}: cannot be written to; expected a writable store. Change that."
            raise StoreUnreachable(msg)
        own = {"kind": self.kind, "encoder": self.name, "fingerprint": self.fingerprint}
        if taken := {*own, "format"} & set(attrs):
            msg = f"attributes {sorted(taken)} are set by the store"
            raise ValueError(msg)
        return ShardWriter(
            self.path,
            self.info,
            attrs={**own, **attrs},
            commit_seconds=commit_seconds,
            commit_rows=commit_rows,
            retry_seconds=retry_seconds,
        )

    def _unknown(self, name: str, stored: Iterable[str]) -> UnknownPooling:
        msg = f"{self.path}: {name!r} is not stored; expected one of {', '.join(stored)}."
        if "@" in name:
            layer = name.rpartition("@")[2]
            msg += f" To store it, run abag embed --layers {layer} into a new store."
        return UnknownPooling(msg)

    # --- following what other processes add ---

    def _refresh(self) -> None:
        """Open shards that appeared or changed, and forget those that are gone."""
        versions = access(self.path, self._versions)
        gone = [n for n, one in self._open.items() if versions.get(n) != one.version]
        self._open = {name: self._open[name] for name in self._open.keys() - gone}
        self._verified.difference_update(gone)
        self._damaged = {n: d for n, d in self._damaged.items() if versions.get(n) == d[0]}
        new = sorted(versions.keys() - self._open.keys() - self._damaged.keys())
        for name in new:
            access(self.path, partial(self._add, name, versions[name]))
        if gone or new:
            self._rebuild()

    def _versions(self) -> dict[str, FileVersion]:
        versions: dict[str, FileVersion] = {}
        if self._is_new:
            return versions
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(".h5"):
                    state = entry.stat(follow_symlinks=False)
                    versions[entry.name] = (state.st_size, state.st_mtime_ns)
        return versions

    def _add(self, name: str, version: FileVersion) -> None:
        """Open one shard and read its keys; remember it as damaged if that fails."""
        try:
            shard, keys = open_shard(self.path / name)
            self._refuse_foreign(shard)
            self._open[name] = _OpenShard(shard, keys, version)
        except DamagedShard as error:
            self._skip(name, version, error)
        except FileNotFoundError:  # removed since the folder was listed
            return

    def _refuse_foreign(self, shard: Shard) -> None:
        if not SHARD_NAME.fullmatch(shard.path.name):
            msg = f"{shard.path}: its name is not a digest; expected 32 hexadecimal digits and .h5."
            raise DamagedShard(msg)
        kind, fingerprint = shard.attrs.get("kind"), shard.attrs.get("fingerprint")
        if (kind, fingerprint) != (self.kind, self.fingerprint):
            msg = (
                f"{shard.path}: made by {kind} encoder {fingerprint}; expected {self.fingerprint}."
            )
            raise DamagedShard(msg)

    def _skip(self, name: str, version: FileVersion, error: DamagedShard) -> None:
        self._open.pop(name, None)
        self._damaged[name] = version, str(error)
        say(f"{error} The shard is skipped and its sequences count as missing.")

    def _rebuild(self) -> None:
        """Index the keys, without the shards that have other poolings than most rows have."""
        rows: Counter[str] = Counter()
        for _, one in sorted(self._open.items()):
            rows[str(one.shard.layout)] += one.shard.rows
        for name, one in sorted(self._open.items()):
            if (layout := str(one.shard.layout)) != (most := rows.most_common(1)[0][0]):
                msg = f"{one.shard.path}: holds {layout}; most rows hold {most}."
                self._skip(name, one.version, DamagedShard(msg))
        self._order = sorted(self._open)
        self._index = KeyIndex([self._open[name].keys for name in self._order])

    # --- reading ---

    def _verify_once(self, shard: Shard, _rows: object, _places: object) -> None:
        if shard.path.name not in self._verified:
            check_shard(shard.path)
            self._verified.add(shard.path.name)

    def _for_each(
        self,
        shard: NDArray[np.int64],
        row: NDArray[np.int64],
        work: Callable[[Shard, NDArray[np.int64], NDArray[np.int64]], None],
    ) -> bool:
        """Call a function with each shard, the rows to read from it, and their places.

        Shards and rows are as :meth:`find` returns them. Returns False if a shard was found to be
        damaged; it is then skipped from now on.
        """

        def attempt(one: Shard, places: NDArray[np.int64]) -> DamagedShard | None:
            try:
                work(one, row[places], places)
            except DamagedShard as error:
                return error
            except FileNotFoundError:
                return DamagedShard(f"{one.path}: was removed while it was read.")
            return None

        order = np.argsort(shard, kind="stable")
        numbers, starts = np.unique(shard[order], return_index=True)
        names, sound = self._order, True
        for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=False):
            if number < 0:
                continue
            one = self._open[names[number]]
            if damage := access(self.path, partial(attempt, one.shard, places)):
                self._skip(names[number], one.version, damage)
                sound = False
        if not sound:
            self._rebuild()
        return sound


def _read_into(
    out: NDArray[Any], name: str, shard: Shard, rows: NDArray[np.int64], places: NDArray[np.int64]
) -> None:
    """Read rows of one shard to their places in `out`."""
    if (np.diff(rows) == 1).all() and (np.diff(places) == 1).all():  # without a temporary array
        at = int(places[0])
        shard.load(name, start=int(rows[0]), out=out[at : at + len(places)])
    else:
        out[places] = shard.load_rows(name, rows)
