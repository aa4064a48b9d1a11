"""Write vectors to a store on a background thread, while the encoder continues.

The thread collects added vectors into shards and commits them. A shard that the store does not
accept goes into the local spool, and is tried again at each commit and in the end. A writer that
has to give up stops the run with its own error.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from abag.core.errors import AbagError
from abag.core.files import (
    cache_dir,
    make_folder,
    remove_quietly,
    sweep_partials,
    write_bytes,
    write_json,
)
from abag.core.messages import say
from abag.embed.store.shard import (
    ENCODER_FILE,
    RETRY_SECONDS,
    Attrs,
    StoreUnreachable,
    create_encoder_folder,
    read_encoder_info,
    retrying,
    shard_image,
    shard_name,
)

COMMIT_ROWS = 4096
QUEUED_COMMITS = 4  # shards' worth of added vectors before add() blocks
HURRY_SECONDS = 4.0  # time for the last commits after a signal or an error
HANG_SECONDS = 300.0  # without any progress, after which close() gives up

NamedArrays = dict[str, NDArray[Any]]
"""The arrays of some sequences, each with one row per sequence."""


class ShardWriter:
    """Collects vectors and commits them as shards on a thread of its own.

    Made by `EncoderFolder.writer`; a context manager. Leaving the block, also by an exception or
    a signal, commits everything that was added. `committed` counts the added sequences that are in
    the store.
    """

    def __init__(
        self,
        folder: Path,
        info: Mapping[str, object],
        *,
        attrs: Attrs,
        commit_seconds: float = 30.0,
        commit_rows: int = COMMIT_ROWS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.committed = 0
        self._folder = folder
        self._info = info
        self._attrs = dict(attrs)
        self._commit_seconds = commit_seconds
        self._commit_rows = commit_rows
        self._retry_seconds = retry_seconds
        self._added: list[tuple[float, NamedArrays]] = []  # when, and what
        self._added_rows = 0  # rows of `_added`
        self._received = 0  # rows ever added
        self._spooled: dict[Path, int] = {}  # rows of this writer's shards in the spool
        self._closing = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        sweep_partials(folder)
        # its context: messages go where this thread's go; a daemon: one that hangs in a call to
        # the file system does not keep the process alive
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="abag-writer", daemon=True
        )
        self._thread.start()

    # --- called by the encoder ---

    def add(
        self,
        keys: NDArray[np.uint8],
        lengths: NDArray[np.integer[Any]],
        poolings: Mapping[str, NDArray[np.floating[Any]]],
        flags: Mapping[str, NDArray[np.uint8]] | None = None,
    ) -> None:
        """Queue vectors; block while too many wait, and raise the thread's error.

        Parameters
        ----------
        keys : ndarray, shape=(n, 16), dtype=uint8
        lengths : ndarray, shape=(n,)
            Residues per sequence.
        poolings : mapping
            Vectors by name, (n, D) each, float16 or float32.
        flags : mapping, optional
            Flags by name, (n,) each, uint8.
        """
        # copies, converted to the dtypes of the format
        arrays: NamedArrays = {"key": np.array(keys, "|u1"), "length": np.array(lengths, "<i4")}
        for name, values in poolings.items():
            arrays[name] = np.array(values, values.dtype.newbyteorder("<"), order="C")
            # the encoder's are checked where they are named
            assert np.isfinite(arrays[name]).all(), name
        for name, flag in (flags or {}).items():
            arrays[name] = np.array(flag, "|u1")
        if not len(keys):
            return
        with self._changed:
            limit = QUEUED_COMMITS * self._commit_rows
            while self._error is None and self._added_rows >= limit:
                self._changed.wait()
            self._raise_error()
            self._added.append((time.monotonic(), arrays))
            self._added_rows += len(keys)
            self._received += len(keys)
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(patience=HURRY_SECONDS)
        except (AbagError, OSError) as close_error:
            if close_error is not error:  # the caller must see the error of the block
                say(str(close_error))
                error.add_note(str(close_error))

    def close(self, *, patience: float | None = None) -> None:
        """Commit the rest and end the thread; give up after `patience` seconds, if given."""
        with self._changed:
            self._closing = True
            if patience is not None:
                self._retry_seconds = min(patience, self._retry_seconds)
            self._changed.notify_all()
        while self._thread.is_alive():
            before = self._progress()
            self._thread.join(HANG_SECONDS if patience is None else patience + 0.5)
            stands_still = patience is not None or self._progress() == before
            if self._thread.is_alive() and stands_still:  # in a call that cannot be interrupted
                problem = "does not respond"
                raise self._unreachable(problem)
        self._raise_error()

    def _progress(self) -> tuple[int, int]:
        return self.committed, len(self._spooled)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _unreachable(self, problem: str) -> StoreUnreachable:
        """Return the error that says where uncommitted sequences are, and what to do."""
        msg = f"{self._folder}: {problem}; expected a writable store."
        spooled = sum(list(self._spooled.values()))  # the other thread may change it
        if spooled:
            msg += (
                f" Of this run, {self.committed} sequences are committed and {spooled} are kept in "
                f"{spool_of(self._folder)}. When the store is available, run the same command "
                "again on this machine."
            )
        lost = self._received - self.committed - spooled
        if lost:
            msg += f" {lost} sequences could not be kept and have to be encoded again."
        return StoreUnreachable(msg)

    # --- the thread ---

    def _run(self) -> None:
        try:
            while (arrays := self._take()) is not None:
                self._commit(arrays)
            self._empty_spool()
        except BaseException as error:  # noqa: BLE001 -- raised by add() or close()
            self._error = error
        finally:
            with self._changed:
                self._changed.notify_all()

    def _commit(self, arrays: NamedArrays) -> None:
        """Commit a shard, after those in the spool; put it there if that fails."""
        rows = len(arrays["key"])
        image = shard_image(arrays, self._attrs)
        name = shard_name(image)
        try:
            self._publish_spooled()
            write_bytes(self._folder / name, image)
            self.committed += rows
        except OSError as error:
            is_first = not self._spooled
            try:
                path = spool_shard(self._folder, self._info, name, image, rows)
                self._spooled[path] = rows
            except OSError as local:
                problem = f"cannot be written to ({error}), nor can the local spool ({local})"
                raise self._unreachable(problem) from error
            if is_first:
                say(
                    f"{self._folder}: cannot be written to ({error}); trying again at each commit. "
                    f"Until then, finished shards are kept in {spool_of(self._folder)}."
                )

    def _publish_spooled(self) -> None:
        """Move this writer's spooled shards into the store, unless another process did."""
        if not self._spooled:
            return
        for shard, rows in [*self._spooled.items()]:
            stored = self._folder / shard.name.partition("-")[2]
            if publish_shard(shard, self._folder) or stored.exists():
                self.committed += rows
            del self._spooled[shard]
        say(f"{self._folder}: is writable again.")

    def _empty_spool(self) -> None:
        try:
            retrying(self._folder, self._publish_spooled, seconds=self._retry_seconds)
        except StoreUnreachable as error:
            problem = f"cannot be written to ({error.__cause__})"
            raise self._unreachable(problem) from error
        if self.committed < self._received:
            problem = "a shard in the local spool was damaged"
            raise self._unreachable(problem)

    def _take(self) -> NamedArrays | None:
        """Wait until a shard is due and return its arrays; None after the last."""
        with self._changed:
            while self._added or not self._closing:
                wait_s = None
                if self._added:
                    oldest_s, _ = self._added[0]
                    wait_s = oldest_s + self._commit_seconds - time.monotonic()
                    if self._closing or self._added_rows >= self._commit_rows or wait_s <= 0:
                        return self._cut()
                self._changed.wait(wait_s)
        return None

    def _cut(self) -> NamedArrays:
        """Take the rows of one shard from what was added; the rest stays as old as it is."""
        since, first = self._added[0]
        shard: NamedArrays = {}
        rest: NamedArrays = {}
        for name in first:
            joined = np.concatenate([arrays[name] for _, arrays in self._added])
            shard[name] = joined[: self._commit_rows]
            rest[name] = joined[self._commit_rows :]
        self._added.clear()
        self._added_rows = len(rest["key"])
        if self._added_rows:
            self._added.append((since, rest))
        self._changed.notify_all()
        return shard


# --- spools: local folders of finished shards that their store does not accept at the moment ------
#
# All writers of this machine into one folder of a store share a spool in the cache folder. Shards
# are named by their content, so that it does no harm if several processes publish one at once, and
# no lock is needed. A spool's folder and encoder.json stay; only shards are removed.


def spool_of(folder: Path) -> Path:
    """Return the spool for an encoder's folder of a store; it may not exist."""
    store = os.fsencode(folder.parent.resolve())
    digest = hashlib.blake2b(store, digest_size=8).hexdigest()
    return cache_dir() / "spool" / digest / folder.name


def spooled_rows(store: Path) -> int:
    """Count the sequences in the spools for a store on this machine."""
    return sum(map(_rows, _spooled_shards(store)))


def spool_shard(
    folder: Path, info: Mapping[str, object], name: str, image: bytes, rows: int
) -> Path:
    """Keep a shard for an encoder's folder on the local disk; return where."""
    spool = spool_of(folder)
    make_folder(spool)
    sweep_partials(spool)
    if not (spool / ENCODER_FILE).exists():
        write_json(spool / ENCODER_FILE, info)
    shard = spool / f"{rows}-{name}"
    write_bytes(shard, image)
    return shard


def publish_spools(store: Path) -> int:
    """Move all spooled shards into their store; return how many sequences were moved.

    Raises
    ------
    StoreUnreachable
        If the store cannot be written to; the shards stay in the spool.
    """
    rows = 0
    for shard in _spooled_shards(store):
        folder = store / shard.parent.name
        try:
            rows += retrying(folder, partial(publish_shard, shard, folder))
        except StoreUnreachable as error:
            msg = (
                f"{store}: cannot be written to ({error.__cause__}); expected a writable store. "
                f"The uncommitted shards stay in {shard.parent}; run the same command again when "
                "the store is available."
            )
            raise StoreUnreachable(msg) from error
    if rows:
        say(f"{store}: added {rows} sequences of an earlier run from a local spool.")
    return rows


def publish_shard(shard: Path, folder: Path) -> int:
    """Move a shard into an encoder's folder; return its rows, 0 if it is gone or damaged."""
    try:
        image = shard.read_bytes()
    except FileNotFoundError:  # another process was faster
        return 0
    rows = _rows(shard)
    name = shard.name.partition("-")[2]
    if shard_name(image) == name:
        if not (folder / ENCODER_FILE).exists():
            create_encoder_folder(folder, read_encoder_info(shard.parent))
        write_bytes(folder / name, image)
    else:
        say(f"{shard}: is damaged. It is removed; its sequences will be encoded again.")
        rows = 0
    remove_quietly(shard)  # after the commit: a kill in between publishes it again
    return rows


def _spooled_shards(store: Path) -> list[Path]:
    return sorted(spool_of(store / "any").parent.glob("*/*.h5"))


def _rows(shard: Path) -> int:
    return int(shard.name.partition("-")[0])
