"""Commit vectors beside the encoder, which neither waits for the disk nor outruns it.

A background thread turns what was added into shards. When the store's file system fails,
finished shards wait in a store of their own on the local disk until it heals; nothing computed
is thrown away, and a writer that cannot go on stops the run with its own error.
"""

from __future__ import annotations

import logging
import math
import secrets
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.files import Chunk, Files, read_chunks, remove_quietly, sweep_partials
from abag.embed.store.filesystem import (
    LONGEST_PAUSE_SECONDS,
    RETRY_SECONDS,
    StoreUnreachable,
    is_local,
    retry_delay,
)
from abag.embed.store.hdf5_layout import BlockSource, shard_chunks
from abag.embed.store.shard import Attrs, DamagedShard, commit_shard
from abag.embed.store.spool import Spool

COMMIT_ROWS = 4096
QUEUED_COMMITS = 4  # added but not yet taken by the thread, before add() waits
HURRY_SECONDS = 4.0  # what a failing store gets after a signal or an error
_EXPONENTS = {"<f2": ("<u2", 0x7C00), "<f4": ("<u4", 0x7F800000)}
_log = logging.getLogger("abag")

Arrays = dict[str, NDArray[Any]]


class NotFinite(AbagError):
    """A vector that the chosen number format cannot hold."""


class _Finished:
    """A shard that is not in the store yet: in memory, or waiting on the local disk."""

    def __init__(self, name: str, arrays: Arrays) -> None:
        self.name = name
        self.rows = len(arrays["key"])
        self.path: Path | None = None
        self.staged_bytes = 0
        self._arrays = arrays

    def parts(self, attrs: Attrs) -> Iterator[Chunk]:
        """Yield its bytes, from wherever it is."""
        if self.path is not None:
            return read_chunks(self.path)
        return shard_chunks([BlockSource.of({**attrs, "rows": self.rows}, self._arrays)])

    def move_to(self, path: Path) -> None:
        """Forget the arrays: the file at `path` holds them."""
        self.path, self.staged_bytes = path, path.stat().st_size
        self._arrays = {}


class ShardWriter:
    """Collects vectors and commits them as shards on a thread of its own.

    Made by `EncoderFolder.writer`; a context manager. Leaving the block,
    also by an exception or a signal's, commits everything that was added.

    Parameters
    ----------
    folder : Path
        The encoder's folder in the store.
    info : mapping
        What encoder.json holds.
    attrs : mapping
        Written into every shard: what describes its vectors.
    commit_seconds : float
        The longest that added vectors stay uncommitted.
    commit_rows : int
        Sequences after which a shard is committed early.
    retry_seconds : float
        How long a failing store is retried before the writer gives up.
    waiting_bytes : int
        How much may wait on the local disk before the encoder has to wait as well.
    stage : bool or None
        Write on the local disk first; None: if the store lies on another machine's.
    files : Files or None
        The file system.

    Attributes
    ----------
    committed : int
        Sequences safe in the store.
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
        waiting_bytes: int = 8 << 30,
        stage: bool | None = None,
        files: Files | None = None,
    ) -> None:
        self.committed = 0
        self._folder, self._attrs = folder, dict(attrs)
        self._commit_seconds, self._commit_rows = commit_seconds, commit_rows
        self._retry_seconds, self._waiting_bytes = retry_seconds, waiting_bytes
        self._stage = not is_local(folder) if stage is None else stage
        self._files = files or Files()
        self._added: deque[tuple[float, Arrays]] = deque()
        self._added_rows = 0
        self._finished: deque[_Finished] = deque()
        self._room = Spool(folder, info)  # where finished shards wait
        self._failing_since: float | None = None
        self._retry_at = 0.0
        self._closing = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        sweep_partials(folder, self._files)
        self._thread = threading.Thread(target=self._run, name="abag-writer", daemon=True)
        self._thread.start()

    # --- the caller's side ---

    def add(
        self,
        keys: NDArray[np.uint8],
        lengths: NDArray[np.integer[Any]],
        poolings: Mapping[str, NDArray[np.floating[Any]]],
        flags: Mapping[str, NDArray[np.uint8]] | None = None,
    ) -> None:
        """Hand over the vectors of some sequences; waits while too many are still unwritten.

        Parameters
        ----------
        keys : ndarray, shape=(n, 16), dtype=uint8
        lengths : ndarray, shape=(n,), dtype=int32
            Residues.
        poolings : mapping of str to ndarray, each shape=(n, D), dtype=float16 or float32
        flags : mapping of str to ndarray, each shape=(n,), dtype=uint8, optional

        Raises
        ------
        NotFinite
            When a value overflowed, or was no number to begin with.
        AbagError, OSError
            The writer's own, when it can no longer commit.
        """
        arrays = _as_arrays(keys, lengths, poolings, flags or {})
        if not len(keys):
            return
        with self._changed:
            most = QUEUED_COMMITS * self._commit_rows
            while self._error is None and self._added_rows >= most:
                self._changed.wait()
            self._raise_error()
            if self._closing:
                msg = "add() after close()"
                raise RuntimeError(msg)
            self._added.append((time.monotonic(), arrays))
            self._added_rows += len(keys)
            self._changed.notify_all()

    def close(self) -> None:
        """Commit the rest and end the thread; raise what stopped it, if anything did."""
        self._finish(patience=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self._finish(patience=HURRY_SECONDS)
        except (AbagError, OSError) as own:
            if own is not error:  # the block's own error is what the caller must see
                _log.error("%s", own)
                error.add_note(str(own))

    def _finish(self, *, patience: float | None) -> None:
        with self._changed:
            self._closing = True
            if patience is not None:
                self._retry_seconds, self._retry_at = min(patience, self._retry_seconds), 0.0
            self._changed.notify_all()
        self._thread.join(None if patience is None else patience + 0.5)
        if self._thread.is_alive():  # the file system hangs in a call that nothing can interrupt
            what = "does not answer"
            raise self._unreachable(what)
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # --- the thread's side ---

    def _run(self) -> None:
        try:
            while not self._is_done():
                arrays = self._take()
                if arrays is not None:
                    self._finished.append(_Finished(f"{secrets.token_hex(8)}.h5", arrays))
                self._publish()
        except BaseException as error:  # noqa: BLE001 -- handed to the caller, who raises it
            self._error = error
        finally:
            self._room.leave(empty=not self._finished)
            with self._changed:
                self._changed.notify_all()

    def _is_done(self) -> bool:
        return self._closing and not self._added and not self._finished

    def _take(self) -> Arrays | None:
        """Wait until a shard or a retry is due; return the shard's arrays, or None."""
        with self._changed:
            while not self._is_done():
                now = time.monotonic()
                if now >= self._commit_at():
                    return self._cut()
                if self._finished and now >= self._retry_at:
                    return None
                times = [self._commit_at(), self._retry_at if self._finished else math.inf]
                self._changed.wait(min(*times, now + LONGEST_PAUSE_SECONDS) - now)
            return None

    def _commit_at(self) -> float:
        """Return when what was added has to become a shard; never while too much waits."""
        in_memory = sum(shard.path is None for shard in self._finished)
        on_disk = sum(shard.staged_bytes for shard in self._finished)
        if not self._added or in_memory > 1 or on_disk >= self._waiting_bytes:
            return math.inf
        if self._closing or self._added_rows >= self._commit_rows:
            return 0.0
        return self._added[0][0] + self._commit_seconds

    def _cut(self) -> Arrays:
        """Take one shard's rows from what was added."""
        taken: list[Arrays] = []
        rows = 0
        while self._added and rows < self._commit_rows:
            since, arrays = self._added.popleft()
            room = self._commit_rows - rows
            if len(arrays["key"]) > room:
                self._added.appendleft((since, {n: a[room:] for n, a in arrays.items()}))
                arrays = {n: a[:room] for n, a in arrays.items()}
            taken.append(arrays)
            rows += len(arrays["key"])
        self._added_rows -= rows
        self._changed.notify_all()
        return {name: np.concatenate([a[name] for a in taken]) for name in taken[0]}

    def _publish(self) -> None:
        """Put finished shards into the store until none is left or one fails."""
        if self._stage or self._failing_since is not None:
            self._stage_finished()
        while self._finished and time.monotonic() >= self._retry_at:
            shard = self._finished[0]
            try:
                commit_shard(self._folder / shard.name, shard.parts(self._attrs), self._files)
            except (OSError, DamagedShard) as error:
                self._note_failure(error)
                return
            self._finished.popleft()
            self._acknowledge(shard.rows)
            if shard.path is not None:
                remove_quietly(shard.path)

    def _stage_finished(self) -> None:
        """Bring finished shards from memory to the local disk, as far as that has room."""
        try:
            for shard in self._finished:
                if shard.path is None:
                    path = self._room.folder() / shard.name
                    commit_shard(path, shard.parts(self._attrs), Files())
                    shard.move_to(path)
        except (OSError, DamagedShard) as error:
            _log.warning("%s: cannot be written to either (%s).", tempfile.gettempdir(), error)

    def _acknowledge(self, rows: int) -> None:
        if self._failing_since is not None:
            _log.warning("%s: can be written to again.", self._folder)
        self._failing_since = None
        self.committed += rows

    def _note_failure(self, error: OSError | DamagedShard) -> None:
        """Say the first failure, plan the next try; give up when there were tries enough."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            waiting = sum(shard.rows for shard in self._finished)
            _log.warning(
                "%s: cannot be written to (%s); trying again. Of this run %d sequences are safe "
                "in it, %d wait on this machine.",
                self._folder, error, self.committed, waiting,
            )  # fmt: skip
        elapsed = now - self._failing_since
        if elapsed >= self._retry_seconds:
            raise self._gave_up(error) from error
        self._retry_at = now + min(retry_delay(elapsed), self._retry_seconds - elapsed)

    def _gave_up(self, error: OSError | DamagedShard) -> StoreUnreachable:
        """Bring everything to the local disk and return the error that says where it is."""
        with self._changed:
            while self._added:
                self._finished.append(_Finished(f"{secrets.token_hex(8)}.h5", self._cut()))
        self._stage_finished()
        return self._unreachable(f"cannot be written to ({error})")

    def _unreachable(self, what: str) -> StoreUnreachable:
        """Say what waits where, which command publishes it, and what is lost."""
        finished = list(self._finished)
        staged = [shard for shard in finished if shard.path is not None]
        lost = self._added_rows + sum(shard.rows for shard in finished if shard.path is None)
        msg = f"{self._folder}: {what}; a writable store was expected."
        if staged:
            rows, room = sum(s.rows for s in staged), self._room.path
            msg += (
                f" Of this run {self.committed} sequences are safe in it, {rows} wait in {room}; "
                "when the store is back, run the same command again on this machine, or: "
                f"abag store merge {room} --out {self._folder.parent}"
            )
        if lost:
            msg += f" {lost} sequences could be kept nowhere and have to be encoded again."
        return StoreUnreachable(msg)


def _as_arrays(
    keys: NDArray[np.uint8],
    lengths: NDArray[np.integer[Any]],
    poolings: Mapping[str, NDArray[np.floating[Any]]],
    flags: Mapping[str, NDArray[np.uint8]],
) -> Arrays:
    """Copy what was handed over into the format's types; refuse what a store cannot hold."""
    arrays: Arrays = {"key": np.array(keys, "|u1"), "length": np.array(lengths, "<i4")}
    arrays |= {
        name: np.array(values, values.dtype.newbyteorder("<"), order="C")
        for name, values in poolings.items()
    }
    arrays |= {name: np.array(values, "|u1") for name, values in flags.items()}
    if any(len(values) != len(keys) for values in arrays.values()):
        msg = f"unequal lengths: { {n: a.shape for n, a in arrays.items()} }"
        raise ValueError(msg)
    for name in poolings:
        _refuse_not_finite(name, arrays[name])
    return arrays


def _refuse_not_finite(name: str, values: NDArray[Any]) -> None:
    """Raise unless every exponent is below the one that IEEE 754 keeps for inf and nan."""
    bits, exponent = _EXPONENTS[values.dtype.str]
    bad = (values.view(bits) & exponent) == exponent
    if bad.any():
        rows = int(bad.any(axis=1).sum())
        half = values.dtype == np.float16
        remedy = "--store-dtype float32" if half else "--precision fp32"
        msg = (
            f"store: {rows} of {len(values)} {name!r} vectors hold infinities or NaN as "
            f"{values.dtype.name}; finite values were expected. Give {remedy}."
        )
        raise NotFinite(msg)
