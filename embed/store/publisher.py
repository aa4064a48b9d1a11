"""Commit finished shards to a store that may fail, and keep them in a spool until it recovers."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from abag.core.files import Chunk, Files, read_chunks, remove_quietly, sweep_partials
from abag.core.messages import say
from abag.embed.shards.filesystem import RETRY_SECONDS, StoreUnreachable, is_local, retry_delay
from abag.embed.shards.hdf5_layout import BlockSource, shard_chunks
from abag.embed.shards.regular_files import DamagedShard
from abag.embed.shards.shard import Attrs, commit_shard
from abag.embed.store.spool import Spool

NamedArrays = dict[str, NDArray[Any]]
"""The arrays of some sequences, each with one row per sequence."""


class _PendingShard:
    """A finished shard that the store does not hold yet: in memory, or in the spool."""

    def __init__(self, arrays: NamedArrays) -> None:
        self.name = f"{secrets.token_hex(8)}.h5"
        self.rows = len(arrays["key"])
        self.path: Path | None = None
        self.spooled_bytes = 0
        self._arrays = arrays

    def chunks(self, attrs: Attrs) -> Iterator[Chunk]:
        """Yield the bytes of its file."""
        if self.path is not None:
            return read_chunks(self.path)
        return shard_chunks([BlockSource.of({**attrs, "rows": self.rows}, self._arrays)])

    def move_to(self, path: Path) -> None:
        """Release the arrays, since the file at `path` holds them."""
        self.path, self.spooled_bytes = path, path.stat().st_size
        self._arrays = {}


class ShardPublisher:
    """Commits shards in the order in which they were finished; used by one thread.

    Parameters
    ----------
    folder : Path
        The encoder's folder in the store.
    info : mapping
        Content of encoder.json.
    attrs : mapping
        How the vectors were made; written into every shard.
    retry_seconds : float
        How long to retry a failing store before giving up.
    spool_bytes : int
        Size of the shards on the local disk above which the encoder has to wait.
    spool_first : bool, optional
        Write every shard to the local disk first. By default, if the store is remote.

    Attributes
    ----------
    committed : int
        Sequences in the store.
    retry_at : float
        Time (``time.monotonic``) of the next attempt, after a failure.
    """

    def __init__(
        self,
        folder: Path,
        info: Mapping[str, object],
        *,
        attrs: Attrs,
        retry_seconds: float = RETRY_SECONDS,
        spool_bytes: int = 8 << 30,
        spool_first: bool | None = None,
        files: Files | None = None,
    ) -> None:
        self.committed = 0
        self.retry_at = 0.0
        self._folder, self._attrs, self._files = folder, dict(attrs), files or Files()
        self._retry_seconds, self._spool_bytes = retry_seconds, spool_bytes
        self._spool_first = not is_local(folder) if spool_first is None else spool_first
        self._pending: deque[_PendingShard] = deque()
        self._spool = Spool(folder, info)
        self._failing_since: float | None = None
        sweep_partials(folder, self._files)

    @property
    def is_empty(self) -> bool:
        """Whether all finished shards are in the store."""
        return not self._pending

    @property
    def is_full(self) -> bool:
        """Whether no further shard should be finished for now."""
        in_memory = sum(shard.path is None for shard in self._pending)
        spooled = sum(shard.spooled_bytes for shard in self._pending)
        return in_memory > 1 or spooled >= self._spool_bytes

    def append(self, arrays: NamedArrays) -> None:
        """Add a finished shard."""
        self._pending.append(_PendingShard(arrays))

    def hurry(self, seconds: float) -> None:
        """Try again at once, and for no longer than `seconds`."""
        self._retry_seconds, self.retry_at = min(seconds, self._retry_seconds), 0.0

    def publish(self) -> None:
        """Commit pending shards until none is left or one fails.

        Raises
        ------
        OSError, DamagedShard
            If the store has failed for `retry_seconds`.
        """
        if self._spool_first or self._failing_since is not None:
            self.spool()
        while self._pending and time.monotonic() >= self.retry_at:
            shard = self._pending[0]
            try:
                commit_shard(self._folder / shard.name, shard.chunks(self._attrs), self._files)
            except (OSError, DamagedShard) as error:
                if not self._schedule_retry(error):
                    raise
                return
            self._pending.popleft()
            if self._failing_since is not None:
                say(f"{self._folder}: is writable again.")
                self._failing_since = None
            self.committed += shard.rows
            if shard.path is not None:
                remove_quietly(shard.path)

    def _schedule_retry(self, error: OSError | DamagedShard) -> bool:
        """Report the first failure and plan the next attempt; return False if it was the last."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            pending = sum(shard.rows for shard in self._pending)
            say(
                f"{self._folder}: cannot be written to ({error}); trying again. Of this run, "
                f"{self.committed} sequences are committed and {pending} are not yet."
            )
        elapsed = now - self._failing_since
        self.retry_at = now + min(retry_delay(elapsed), self._retry_seconds - elapsed)
        return elapsed < self._retry_seconds

    def spool(self) -> None:
        """Move pending shards from memory to the spool, as long as the local disk has space."""
        try:
            for shard in self._pending:
                if shard.path is None:
                    path = self._spool.folder() / shard.name
                    commit_shard(path, shard.chunks(self._attrs), Files())
                    shard.move_to(path)
        except (OSError, DamagedShard) as error:
            say(f"{tempfile.gettempdir()}: cannot be written to either ({error}).")

    def unreachable(self, problem: str, *, unfinished_rows: int) -> StoreUnreachable:
        """Return the error that says where uncommitted sequences are, and what to do."""
        pending = list(self._pending)
        spooled = sum(shard.rows for shard in pending if shard.path is not None)
        lost = unfinished_rows + sum(shard.rows for shard in pending if shard.path is None)
        msg = f"{self._folder}: {problem}; expected a writable store."
        if spooled:
            spool = self._spool.path
            msg += (
                f" Of this run, {self.committed} sequences are committed and {spooled} are kept in "
                f"{spool}. When the store is available, run the same command again on this "
                f"machine, or: abag store merge {spool} --out {self._folder.parent}"
            )
        if lost:
            msg += f" {lost} sequences could not be kept and have to be encoded again."
        return StoreUnreachable(msg)

    def close(self) -> None:
        """Remove the spool, or leave what it holds to the next run."""
        self._spool.close(empty=self.is_empty)
