"""The vectors of one encoder: many immutable shards, read by key and checked at each read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.files import Files
from abag.embed.sequences.chains import Kind
from abag.embed.shards.shard import Attrs, VectorBlock
from abag.embed.shards.shard_index import ShardIndex, UnknownPooling, gather_rows, unknown_pooling
from abag.embed.store.filesystem import StoreUnreachable, access
from abag.embed.store.store_files import (
    ADAPTER_FOLDER,
    read_adapter_files,
    unpack_adapter_files,
)
from abag.embed.store.writer import COMMIT_ROWS, ShardWriter

S = TypeVar("S", bound=np.generic)


class ReadOnlyStore(AbagError):
    """A packed store cannot be added to."""


class EncoderFolder:
    """The vectors that one encoder computed for one kind of sequence.

    Other processes may add shards at any time; each call looks for new ones. A damaged shard is
    reported, left in place and skipped; the next run encodes its sequences again. An object serves
    one thread at a time. Methods that read raise StoreUnreachable if the file system fails.

    Parameters
    ----------
    path : Path
        The folder; in a packed store, the file's path followed by the folder's name.
    info : mapping
        Content of encoder.json.
    packed : iterable of VectorBlock, optional
        The blocks in a packed store.
    files : Files, optional

    """

    def __init__(
        self,
        path: Path,
        info: Mapping[str, Any],
        *,
        packed: Iterable[VectorBlock] | None = None,
        files: Files | None = None,
    ) -> None:
        self.path = path
        self.info = dict(info)
        self.kind: Kind = info["kind"]
        self.name: str = info["name"]
        self.fingerprint: str = info["fingerprint"]
        self._is_packed = packed is not None
        self._files = files or Files()
        identity = {"kind": self.kind, "fingerprint": self.fingerprint}
        self._shards = ShardIndex(path, identity, packed)

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
        return sum(block.rows for block in self.blocks())

    @property
    def damaged(self) -> list[tuple[Path, str]]:
        """Path of each damaged shard, and the reason."""
        return self._shards.damaged

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose poolings are stored beside those of the last layer."""
        return tuple(self.info.get("layers", ()))

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of the stored poolings; empty if nothing is stored."""
        return next((tuple(block.widths) for block in self.blocks()), ())

    def blocks(self) -> list[VectorBlock]:
        """Return the sound blocks, in the order in which keys are looked up."""
        self._shards.refresh()
        return self._shards.blocks()

    def keys(self) -> list[NDArray[np.uint8]]:
        """Return the keys of each of :meth:`blocks`, shape=(n, 16), dtype=uint8."""
        self._shards.refresh()
        return self._shards.keys()

    def missing(self, keys: NDArray[np.uint8], *, verify: bool = False) -> NDArray[np.bool_]:
        """Find out which sequences have no vector.

        Parameters
        ----------
        keys : ndarray, shape=(N, 16), dtype=uint8
        verify : bool
            First check every byte of the shards that hold the keys; damaged rows count as missing.

        Returns
        -------
        ndarray, shape=(N,), dtype=bool
        """
        self._shards.refresh()
        block, _ = self._shards.verify(keys) if verify else self._shards.find(keys)
        return block < 0

    def find(self, keys: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of :meth:`blocks`, and which of its rows, holds each key; -1 if none does.

        Both have the shape (N,), for keys of the shape (N, 16). Other processes may add shards, so
        call :meth:`blocks` next, and keep the result.
        """
        return self._shards.find(keys)

    def stored_order(self, keys: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the order in which sequences are stored: reading in it opens each shard once.

        Parameters
        ----------
        keys : ndarray, shape=(N, 16), dtype=uint8

        Returns
        -------
        ndarray, shape=(N,), dtype=int64
            A permutation; missing sequences come first.
        """
        self._shards.refresh()
        block, row = self._shards.find(keys)
        return np.lexsort((row, block))

    def read(self, keys: NDArray[np.uint8], pooling: str = "mean") -> NDArray[np.float32]:
        """Read vectors and check their CRC-32.

        Parameters
        ----------
        keys : ndarray, shape=(N, 16), dtype=uint8

        Returns
        -------
        ndarray, shape=(N, D), dtype=float32

        Raises
        ------
        MissingVectors, UnknownPooling
        """
        if (names := self.poolings) and pooling not in names:  # key, length or a flag, or nothing
            raise unknown_pooling(self.path, pooling, names)
        return gather_rows(self._shards, keys, pooling, np.float32)

    def read_array(self, keys: NDArray[np.uint8], name: str, dtype: type[S]) -> NDArray[S]:
        """Read a pooling, a flag such as ``has_light``, or ``length``, as another dtype.

        Parameters
        ----------
        keys : ndarray, shape=(N, 16), dtype=uint8
        dtype : type
            For a pooling stored as float16, ``numpy.float16`` takes half the memory of
            :meth:`read` and is faster; ``numpy.uint8`` for a flag, ``numpy.int32`` for ``length``.

        Returns
        -------
        ndarray, shape=(N, ...), dtype=`dtype`

        Raises
        ------
        MissingVectors
        UnknownPooling
            If the array is not stored, or is stored as float32 and float16 is requested.
        """
        stored = {block.arrays[name].dtype for block in self.blocks() if name in block.arrays}
        if dtype is np.float16 and "<f4" in stored:
            msg = f"{self.path}: {name!r} is stored as float32, not float16. Use read()."
            raise UnknownPooling(msg)
        return gather_rows(self._shards, keys, name, dtype)

    def check(self) -> None:
        """Check every byte of every shard; :attr:`damaged` lists those that fail."""
        self._shards.refresh()
        self._shards.check()

    def adapter_files(self) -> dict[str, bytes]:
        """Read the adapter's files, by their path in the folder; empty without an adapter.

        Raises
        ------
        DamagedShard
            If a packed store's copy is invalid.
        """
        if self._is_packed:
            return unpack_adapter_files(self.path, self.info.get("extras", {}))
        return access(self.path, partial(read_adapter_files, self.path))

    def writer(
        self,
        *,
        attrs: Attrs,
        commit_seconds: float = 30.0,
        commit_rows: int = COMMIT_ROWS,
        **options: Any,  # noqa: ANN401
    ) -> ShardWriter:
        """Start adding vectors.

        Parameters
        ----------
        attrs : mapping
            How the vectors are made (precision, device); written into each shard.
        commit_seconds : float
            Longest time that added vectors stay uncommitted.
        commit_rows : int
            Sequences per shard; as many are committed early.
        **options
            ``retry_seconds``: how long to retry a failing store in the end; ``files``.

        Raises
        ------
        ReadOnlyStore
        ValueError
            If `attrs` contains an attribute that the store sets itself.
        """
        if self._is_packed:
            msg = f"{self.path}: is packed; expected a folder. Add to the store it was made from."
            raise ReadOnlyStore(msg)
        if not os.access(self.path, os.W_OK):  # found out before anything is encoded
            msg = f"{self.path}: cannot be written to; expected a writable store. Change that."
            raise StoreUnreachable(msg)
        own = {"kind": self.kind, "encoder": self.name, "fingerprint": self.fingerprint}
        if taken := {*own, "rows"} & set(attrs):
            msg = f"attributes {sorted(taken)} are set by the store"
            raise ValueError(msg)
        options = {"files": self._files, **options}
        return ShardWriter(
            self.path,
            self.info,
            attrs={**attrs, **own},
            commit_seconds=commit_seconds,
            commit_rows=commit_rows,
            **options,
        )
