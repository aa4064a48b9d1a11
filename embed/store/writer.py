"""Write vectors to a store on a background thread, while the encoder continues.

The thread collects added vectors into shards and commits them. If the store's file system fails,
finished shards are kept on the local disk until it recovers. A writer that has to give up stops
the run with its own error.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextvars import copy_context
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.messages import say
from abag.embed.shards.filesystem import LONGEST_PAUSE_SECONDS
from abag.embed.shards.regular_files import DamagedShard
from abag.embed.shards.shard import is_finite
from abag.embed.store.publisher import NamedArrays, ShardPublisher

COMMIT_ROWS = 4096
QUEUED_COMMITS = 4  # shards' worth of added vectors before add() blocks
HURRY_SECONDS = 4.0  # time for the last commits after a signal or an error


class NotFinite(AbagError):
    """A vector overflows the store's number format, or is NaN."""


class ShardWriter:
    """Collects vectors and commits them as shards on a thread of its own.

    Made by `EncoderFolder.writer`; a context manager. Leaving the block, also by an exception or
    a signal, commits everything that was added.
    """

    def __init__(
        self, publisher: ShardPublisher, *, commit_seconds: float, commit_rows: int
    ) -> None:
        self._publisher = publisher
        self._commit_seconds, self._commit_rows = commit_seconds, commit_rows
        self._added: deque[tuple[float, NamedArrays]] = deque()
        self._added_rows = 0
        self._closing = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        # the thread's messages go where this thread's go
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="abag-writer", daemon=True
        )
        self._thread.start()

    @property
    def committed(self) -> int:
        """Sequences in the store."""
        return self._publisher.committed

    # --- called by the encoder ---

    def add(
        self,
        keys: NDArray[np.uint8],
        lengths: NDArray[np.integer[Any]],
        poolings: Mapping[str, NDArray[np.floating[Any]]],
        flags: Mapping[str, NDArray[np.uint8]] | None = None,
    ) -> None:
        """Queue the vectors of some sequences; blocks while too many are uncommitted.

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
            If a value is infinite or NaN.
        ValueError
            If the arrays differ in length.
        RuntimeError
            If the writer is closed.
        AbagError, OSError
            If the writer has stopped because it cannot commit.
        """
        arrays = _as_arrays(keys, lengths, poolings, flags or {})
        if not len(keys):
            return
        with self._changed:
            limit = QUEUED_COMMITS * self._commit_rows
            while self._error is None and self._added_rows >= limit:
                self._changed.wait()
            self._raise_error()
            if self._closing:
                msg = "add() after close()"
                raise RuntimeError(msg)
            self._added.append((time.monotonic(), arrays))
            self._added_rows += len(keys)
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(patience=HURRY_SECONDS)
        except (AbagError, OSError) as own:
            if own is not error:  # the caller must see the block's own error
                say(str(own))
                error.add_note(str(own))

    def close(self, *, patience: float | None = None) -> None:
        """Commit the rest and end the thread; give up after `patience` seconds, if given.

        Raises
        ------
        AbagError, OSError
            If the writer cannot commit.
        """
        with self._changed:
            self._closing = True
            if patience is not None:
                self._publisher.hurry(patience)
            self._changed.notify_all()
        self._thread.join(None if patience is None else patience + 0.5)
        if self._thread.is_alive():  # the file system hangs in a call that cannot be interrupted
            problem = "does not respond"
            raise self._publisher.unreachable(problem, unfinished_rows=self._added_rows)
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._commit_all()
        except BaseException as error:  # noqa: BLE001 -- raised by add() or close()
            self._error = error
        finally:
            self._publisher.close()
            with self._changed:
                self._changed.notify_all()

    def _commit_all(self) -> None:
        try:
            while not self._is_done():
                arrays = self._take()
                if arrays is not None:
                    self._publisher.append(arrays)
                self._publisher.publish()
        except (OSError, DamagedShard) as error:  # the store failed for too long
            with self._changed:
                while self._added:
                    self._publisher.append(self._cut())
            self._publisher.spool()
            problem = f"cannot be written to ({error})"
            raise self._publisher.unreachable(problem, unfinished_rows=0) from error

    def _is_done(self) -> bool:
        return self._closing and not self._added and self._publisher.is_empty

    def _take(self) -> NamedArrays | None:
        """Wait until a shard or a retry is due; return the shard's arrays, or None."""
        with self._changed:
            while not self._is_done():
                now, commit_at = time.monotonic(), self._commit_at()
                if now >= commit_at:
                    return self._cut()
                retry_at = math.inf if self._publisher.is_empty else self._publisher.retry_at
                if now >= retry_at:
                    return None
                wake_at = min(commit_at, retry_at, now + LONGEST_PAUSE_SECONDS)
                self._changed.wait(wake_at - now)
            return None

    def _commit_at(self) -> float:
        """Return when the added vectors have to become a shard."""
        if not self._added or self._publisher.is_full:
            return math.inf
        if self._closing or self._added_rows >= self._commit_rows:
            return 0.0
        return self._added[0][0] + self._commit_seconds

    def _cut(self) -> NamedArrays:
        """Take the rows of one shard from what was added."""
        taken: list[NamedArrays] = []
        rows = 0
        while self._added and rows < self._commit_rows:
            since, arrays = self._added.popleft()
            space = self._commit_rows - rows
            if len(arrays["key"]) > space:
                self._added.appendleft((since, {n: a[space:] for n, a in arrays.items()}))
                arrays = {n: a[:space] for n, a in arrays.items()}
            taken.append(arrays)
            rows += len(arrays["key"])
        self._added_rows -= rows
        self._changed.notify_all()
        return {name: np.concatenate([a[name] for a in taken]) for name in taken[0]}


def _as_arrays(
    keys: NDArray[np.uint8],
    lengths: NDArray[np.integer[Any]],
    poolings: Mapping[str, NDArray[np.floating[Any]]],
    flags: Mapping[str, NDArray[np.uint8]],
) -> NamedArrays:
    """Copy the arrays, converted to the format's dtypes, and check them."""
    arrays: NamedArrays = {"key": np.array(keys, "|u1"), "length": np.array(lengths, "<i4")}
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
    if not is_finite(values):
        rows = int((~np.isfinite(values).all(axis=1)).sum())
        is_half = values.dtype == np.float16
        remedy = "--store-dtype float32" if is_half else "--precision fp32"
        msg = (
            f"store: {rows} of {len(values)} {name!r} vectors contain infinity or NaN as "
            f"{values.dtype.name}; expected finite values. Use {remedy}."
        )
        raise NotFinite(msg)
