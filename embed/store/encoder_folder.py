"""One encoder's vectors: many immutable shards, found by key, checked whenever they are read.

Other processes may add shards at any time; each call looks again. A damaged shard is named, left
in place and skipped, and its sequences count as missing, so that the next run encodes them anew.
An object serves one thread at a time.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.files import Files, host_name, is_partial, write_json
from abag.core.keys import KeyIndex
from abag.embed.sequences.chains import Kind
from abag.embed.store.adapter_files import ADAPTER_FOLDER
from abag.embed.store.filesystem import StoreUnreachable, retry_if_remote
from abag.embed.store.shard import DamagedShard, VectorBlock, read_table_of_contents
from abag.embed.store.store_files import RUN_FILE, SPEED_FILE
from abag.embed.store.writer import ShardWriter

READERS = min(8, os.cpu_count() or 1)
RUN_KEYS = {
    *("table", "rows", "sequences", "to_encode", "started", "host", "pid"),
    *("residues", "residues_to_encode", "residues_of_rows"),
}
_log = logging.getLogger("abag")

Stamp = tuple[int, int]  # bytes, nanoseconds of the last change


class ReadOnlyStore(AbagError):
    """A packed store that should have been added to."""


class UnknownPooling(AbagError):
    """A pooling that the encoder's shards do not hold."""


class MissingVectors(AbagError):
    """Sequences that the store does not hold.

    Attributes
    ----------
    count : int
    rows : ndarray, shape=(count,), dtype=int64
        Which of those asked.
    """

    def __init__(self, where: Path, asked: int, rows: NDArray[np.int64]) -> None:
        self.count = len(rows)
        self.rows = rows
        super().__init__(
            f"{where}: {self.count} of {asked} sequences are not stored, first number "
            f"{int(rows[0]) + 1}; all were expected. Run abag embed on the table that holds them."
        )


class _Held(NamedTuple):
    """A block that is in use, its keys, and the file's state when it was opened."""

    block: VectorBlock
    keys: NDArray[np.uint8]
    stamp: Stamp


class _Task(NamedTuple):
    """What to do with one block: which results, from which of its rows."""

    name: str
    at: NDArray[np.int64]
    rows: NDArray[np.int64]


class EncoderFolder:
    """The vectors that one encoder gave to one kind of sequence.

    Attributes
    ----------
    path : Path
        The folder; in a packed store, the file with the folder's name behind it.
    kind : {"antibody", "antigen"}
    name, fingerprint : str
    info : dict
        What encoder.json holds.
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
        self._packed = None if packed is None else {block.group: block for block in packed}
        self._files = files or Files()
        self._held: dict[str, _Held] = {}
        self._bad: dict[str, tuple[Stamp, str]] = {}
        self._checked: set[str] = set()
        self._order: list[str] = []
        self._index = KeyIndex([])

    @property
    def embed_options(self) -> str:
        """What tells ``abag embed`` to add to this folder."""
        if not self.info.get("adapter"):
            return f"--{self.kind}-encoder {self.name}"
        return (
            f"--{self.kind}-encoder {self.info['origin']} "
            f"--{self.kind}-adapter {self.path / ADAPTER_FOLDER}"
        )

    def adapter_files(self) -> dict[str, bytes]:
        """Read what lies beside the vectors: an adapter's files, by their path in the folder.

        Raises
        ------
        StoreUnreachable
        """
        if self._packed is not None:
            try:
                packed = dict(self.info.get("extras", {}))
                return {name: base64.b64decode(text) for name, text in packed.items()}
            except (TypeError, ValueError) as error:
                msg = f"{self.path}: its adapter cannot be read ({error})."
                raise DamagedShard(msg) from error
        try:
            return {
                path.relative_to(self.path).as_posix(): path.read_bytes()
                for path in sorted((self.path / ADAPTER_FOLDER).rglob("*"))
                if path.is_file() and not is_partial(path)
            }
        except OSError as error:
            raise self._unreadable(error) from error

    @property
    def rows(self) -> int:
        """Number of stored rows; a sequence stored twice counts twice."""
        return sum(block.rows for block in self.blocks())

    @property
    def damaged(self) -> list[tuple[Path, str]]:
        """Shards that were found damaged and are skipped, and why."""
        return [(self.path / name, self._bad[name][1]) for name in sorted(self._bad)]

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of the stored poolings; empty while nothing is stored."""
        return next((tuple(block.widths) for block in self.blocks()), ())

    def blocks(self) -> list[VectorBlock]:
        """Return what is stored and sound so far, in the order in which a key is looked for."""
        self._refresh()
        return [self._held[name].block for name in self._order]

    def keys(self) -> list[NDArray[np.uint8]]:
        """Return the keys of each of :meth:`blocks`, shape=(n, 16), dtype=uint8."""
        self._refresh()
        return [self._held[name].keys for name in self._order]

    def missing(self, keys: NDArray[np.uint8], *, verify: bool = False) -> NDArray[np.bool_]:
        """Say which sequences have no vector.

        Parameters
        ----------
        keys : ndarray, shape=(N, 16), dtype=uint8
        verify : bool
            Read the shards that hold the others whole, so that a sequence whose vector was
            damaged on the disk counts as missing too.

        Returns
        -------
        ndarray, shape=(N,), dtype=bool
        """
        self._refresh()
        block, row = self._index.find(keys)
        while verify and self._each(block, row, self._check_once):
            block, row = self._index.find(keys)
        return block < 0

    def stored_order(self, keys: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Give the order in which sequences lie here: read in it, each shard is opened once.

        Returns
        -------
        ndarray, shape=(N,), dtype=int64
            A permutation; sequences that are missing come first.
        """
        self._refresh()
        block, row = self._index.find(keys)
        return np.lexsort((row, block))

    def _check_once(self, held: _Held, task: _Task) -> None:
        """Check a block whole, unless that was done: keys asked for in parts lie in every shard."""
        if task.name not in self._checked:
            held.block.check()
            self._checked.add(task.name)

    def read(self, keys: NDArray[np.uint8], pooling: str = "mean") -> NDArray[np.float32]:
        """Read vectors; what was read is checked against its CRC-32.

        Parameters
        ----------
        keys : ndarray, shape=(N, 16), dtype=uint8
        pooling : str

        Returns
        -------
        ndarray, shape=(N, D), dtype=float32

        Raises
        ------
        MissingVectors, UnknownPooling
        """
        return cast("NDArray[np.float32]", self._gather(keys, pooling, np.float32))

    def read_half(self, keys: NDArray[np.uint8], pooling: str = "mean") -> NDArray[np.float16]:
        """Read vectors as they are usually stored: half the memory of :meth:`read`, and faster.

        Returns
        -------
        ndarray, shape=(N, D), dtype=float16

        Raises
        ------
        MissingVectors, UnknownPooling
            The latter also where vectors are stored as float32, which float16 may not hold.
        """
        if any(b.widths.get(pooling) and b.arrays[pooling].dtype != "<f2" for b in self.blocks()):
            msg = f"{self.path}: {pooling!r} is stored as float32, not float16. Use read()."
            raise UnknownPooling(msg)
        return cast("NDArray[np.float16]", self._gather(keys, pooling, np.float16))

    def lengths(self, keys: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Read the numbers of residues.

        Returns
        -------
        ndarray, shape=(N,), dtype=int32
        """
        return cast("NDArray[np.int32]", self._gather(keys, "length", np.int32))

    def flags(self, keys: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
        """Read one flag, such as ``has_light``.

        Returns
        -------
        ndarray, shape=(N,), dtype=uint8
        """
        return cast("NDArray[np.uint8]", self._gather(keys, name, np.uint8))

    def check(self) -> None:
        """Check every byte of every shard; what is damaged is in `damaged` afterwards."""
        self._refresh()
        everything = np.arange(len(self._order))
        self._each(everything, everything, lambda held, _: held.block.check())

    def writer(self, *, attrs: Mapping[str, str | int | float], **options: Any) -> ShardWriter:  # noqa: ANN401
        """Start adding vectors.

        Parameters
        ----------
        attrs : mapping
            What describes these vectors (precision, device); goes into each shard.
        **options
            Those of :class:`abag.embed.store.writer.ShardWriter`.
        """
        if self._packed is not None:
            msg = f"{self.path}: packed; a folder was expected. Add to the store it was made from."
            raise ReadOnlyStore(msg)
        if taken := {"kind", "encoder", "fingerprint", "rows"} & set(attrs):
            msg = f"attributes {sorted(taken)} are the store's own"
            raise ValueError(msg)
        own = {"kind": self.kind, "encoder": self.name, "fingerprint": self.fingerprint}
        options = {"files": self._files, **options}
        return ShardWriter(self.path, self.info, attrs={**attrs, **own}, **options)

    def note_speed(self, residues: int, seconds: float, device: str) -> None:
        """Keep how fast the latest run encoded, for whoever wants to say what storing saves."""
        speed = {"residues": residues, "seconds": round(seconds, 3), "device": device}
        self._note(SPEED_FILE, speed)

    def _note(self, name: str, value: Mapping[str, object]) -> None:
        """Write a file that informs and nothing else: no run fails for want of it."""
        try:
            write_json(self.path / name, value, concurrent=True, files=self._files)
        except OSError as error:
            _log.info("%s: not written: %s", self.path / name, error)

    def note_run(self, begun: Mapping[str, object]) -> None:
        """Keep what a run sets out to do, for whoever asks how far it is."""
        own = {"started": round(time.time(), 3), "host": host_name(), "pid": os.getpid()}
        self._note(RUN_FILE, {**begun, **own})

    def note_encoding(self) -> None:
        """Keep when the latest run began to encode: its start is before reading and loading."""
        if (noted := self.noted_run()) is not None:
            self._note(RUN_FILE, {**noted, "encoding_since": round(time.time(), 3)})

    def noted_run(self) -> dict[str, Any] | None:
        """Return what the latest run set out to do; None if that was not noted."""
        try:
            noted = json.loads((self.path / RUN_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return noted if isinstance(noted, dict) and noted.keys() >= RUN_KEYS else None

    def residues_per_s(self) -> float | None:
        """Speed of the latest run that encoded into this folder; None if none was noted."""
        try:
            noted = json.loads((self.path / SPEED_FILE).read_text(encoding="utf-8"))
            return float(noted["residues"]) / float(noted["seconds"])
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
            return None

    # --- keeping up with what others add ---

    def _refresh(self) -> None:
        """Take note of shards that appeared, changed or went since the last look."""
        try:
            stamps = retry_if_remote(self._stamps, self.path)
            gone = [name for name, held in self._held.items() if stamps.get(name) != held.stamp]
            self._held = {name: self._held[name] for name in self._held.keys() - gone}
            self._checked.difference_update(gone)
            self._bad = {n: bad for n, bad in self._bad.items() if stamps.get(n) == bad[0]}
            new = sorted(stamps.keys() - self._held.keys() - self._bad.keys())
            for name in new:
                retry_if_remote(partial(self._take_in, name, stamps[name]), self.path)
        except OSError as error:
            raise self._unreadable(error) from error
        if gone or new:
            self._rebuild()

    def _stamps(self) -> dict[str, Stamp]:
        if self._packed is not None:
            return dict.fromkeys(self._packed, (0, 0))
        stamps = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(".h5"):
                    state = entry.stat(follow_symlinks=False)
                    stamps[entry.name] = (state.st_size, state.st_mtime_ns)
        return stamps

    def _take_in(self, name: str, stamp: Stamp) -> None:
        """Open one shard and read its keys, or remember why not."""
        try:
            block = self._packed[name] if self._packed else self._open(self.path / name)
            self._refuse_foreign(block)
            self._held[name] = _Held(block, block.load("key"), stamp)
        except DamagedShard as error:
            self._skip(name, stamp, error)
        except FileNotFoundError:  # gone since the folder was listed
            return

    def _open(self, path: Path) -> VectorBlock:
        contents = read_table_of_contents(path)
        groups = [block.group for block in contents.blocks]
        if groups != ["/"]:
            msg = f"{path}: a packed store or the like, not a shard. Merge it instead."
            raise DamagedShard(msg)
        return contents.blocks[0]

    def _refuse_foreign(self, block: VectorBlock) -> None:
        """Raise if a sound shard belongs elsewhere."""
        claimed = block.attrs.get("kind"), block.attrs.get("fingerprint")
        if claimed != (self.kind, self.fingerprint):
            msg = (
                f"{block.path}: made by {claimed[0]} encoder {claimed[1]}, not {self.fingerprint}."
            )
            raise DamagedShard(msg)
        layout = next((held.block.layout for held in self._held.values()), block.layout)
        if block.layout != layout:
            msg = f"{block.path}: holds {block.layout}; the other shards hold {layout}."
            raise DamagedShard(msg)

    def _skip(self, name: str, stamp: Stamp, error: DamagedShard) -> None:
        self._held.pop(name, None)
        self._bad[name] = stamp, str(error)
        _log.warning("%s It is skipped, and its sequences count as missing.", error)

    def _rebuild(self) -> None:
        self._order = sorted(self._held)
        self._index = KeyIndex([self._held[name].keys for name in self._order])

    def _unreadable(self, error: OSError) -> StoreUnreachable:
        msg = f"{self.path}: cannot be read ({error}); a readable store was expected. Try again."
        return StoreUnreachable(msg)

    # --- reading many blocks at once ---

    def _gather(self, keys: NDArray[np.uint8], name: str, dtype: type) -> NDArray[Any]:
        """Read one array's rows from all blocks, again without the damaged ones if any is."""
        self._refresh()
        while True:
            block, row = self._index.find(keys)
            absent = np.flatnonzero(block < 0)
            if absent.size:
                raise MissingVectors(self.path, len(keys), absent)
            out: NDArray[Any] = np.empty((len(keys), *self._row_shape(name)), dtype)

            def fill(held: _Held, task: _Task, out: NDArray[Any] = out) -> None:
                _fill(out, held.block, name, task)

            if not self._each(block, row, fill):
                return out

    def _row_shape(self, name: str) -> tuple[int, ...]:
        if not self._order:
            return (0,)
        layout = self._held[self._order[0]].block.layout
        if name not in layout:
            listed = ", ".join(n for n in layout if n not in ("key", "length"))
            msg = f"{self.path}: {name!r} is not stored; expected one of {listed}."
            if "@" in name:
                layer = name.rpartition("@")[2]
                msg += f" To have it, run abag embed --layers {layer} into a new store."
            raise UnknownPooling(msg)
        return layout[name]

    def _each(
        self,
        block: NDArray[np.int64],
        row: NDArray[np.int64],
        work: Callable[[_Held, _Task], None],
    ) -> bool:
        """Work on all blocks asked for, some at a time; skip damaged ones and say if any was."""

        def attempt(task: _Task) -> DamagedShard | None:
            held = self._held[task.name]
            try:
                retry_if_remote(lambda: work(held, task), self.path)
            except DamagedShard as error:
                return error
            except FileNotFoundError:
                return DamagedShard(f"{held.block.path}: went away while it was read.")
            return None

        tasks = self._tasks(block, row)
        try:
            with ThreadPoolExecutor(READERS) as pool:
                errors = list(pool.map(attempt, tasks))
        except OSError as error:
            raise self._unreadable(error) from error
        for task, damage in zip(tasks, errors, strict=True):
            if damage is not None:
                self._skip(task.name, self._held[task.name].stamp, damage)
        if any(errors):
            self._rebuild()
        return any(errors)

    def _tasks(self, block: NDArray[np.int64], row: NDArray[np.int64]) -> list[_Task]:
        """Split what is asked for by block; absent keys (-1) ask for nothing."""
        order = np.argsort(block, kind="stable")
        asked, starts = np.unique(block[order], return_index=True)
        parts = np.split(order, starts[1:]) if asked.size else []
        return [
            _Task(self._order[number], at, row[at])
            for number, at in zip(asked.tolist(), parts, strict=True)
            if number >= 0
        ]


def _fill(out: NDArray[Any], block: VectorBlock, name: str, task: _Task) -> None:
    """Bring one block's rows to their places; a whole block in order is read straight there."""
    start = int(task.at[0])
    in_order = np.array_equal(task.rows, np.arange(block.rows))
    if not in_order or not np.array_equal(task.at, np.arange(start, start + block.rows)):
        out[task.at] = block.load(name)[task.rows]
    else:
        block.load(name, out=out[start : start + block.rows])
