"""Checks of the disks that a run writes to, and what a check is."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from abag import AbagError
from abag.core.files import Files, partial_path, remove_quietly
from abag.embed.store.filesystem import is_local, is_unmounted_drive, mount_of
from abag.embed.store.spool import spooled_rows
from abag.embed.store.store import open_store

State = Literal["ok", "note", "FAIL"]

LEAST_FREE_BYTES = 256 << 20
SEQUENCE_BYTES = 6 << 10  # three poolings of 1,024 float16


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
    state : {"ok", "note", "FAIL"}
        FAIL: a command would stop here later. note: works, with something to know.
    text : str
        What was found, what will be used, and why; with FAIL also what to do.
    values : dict
        The same for scripts.
    """

    name: str
    state: State
    text: str
    values: dict[str, Any] = field(default_factory=dict)


def check_temporary_folder() -> Check:
    """Say whether shards can be prepared, and wait for a store that is away."""
    try:
        folder = Path(tempfile.gettempdir())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"no folder can be written to ({error}); set TMPDIR to one that can"
        return Check("temporary files", "FAIL", text)
    text = f"{folder}, {free / 1e9:,.1f} GB free"
    values = {"path": str(folder), "free_bytes": free}
    if free < LEAST_FREE_BYTES:
        text += "; shards are prepared there: free some, or set TMPDIR to a larger disk"
        return Check("temporary files", "FAIL", text, values)
    return Check("temporary files", "ok", text, values)


def check_store(store: Path, files: Files | None = None) -> Iterator[Check]:
    """Try out the file system of a store that is there or will be; nothing stays behind."""
    files = files or Files()
    if is_unmounted_drive(store):
        text = f"{store}: no Drive is mounted there; what is written would go with this machine"
        yield Check("store", "FAIL", text)
        return
    try:
        held = _held(store)
        folder = next(path for path in (store, *store.absolute().parents) if path.exists())
    except (AbagError, OSError) as error:
        yield Check("store", "FAIL", first_line(error))
        return
    if not folder.is_dir():
        text = f"{folder}: a file; a folder was expected, which abag embed could add to"
        yield Check("store", "FAIL", text)
        return
    yield Check("store", "ok", f"{store}: {held}", {"path": str(store)})
    yield _check_writing(folder, files)
    yield _check_space(folder)
    yield _check_locality(store)


def _held(store: Path) -> str:
    if not store.exists():
        return "not there yet; abag embed makes it"
    if store.is_dir() and not any(store.iterdir()):
        return "empty; abag embed makes a store of it"
    folders = open_store(store).folders()
    names = ", ".join(f"{folder.path.name} ({folder.rows:,})" for folder in folders)
    return f"holds {names or 'no vectors yet'}"


def _check_writing(folder: Path, files: Files) -> Check:
    """Take the steps of a commit one by one, so that the one that fails can be named."""
    # hidden: what a killed doctor leaves is neither a store's nor in the way of one
    path = folder / f".abag-doctor-{os.getpid()}.probe"
    partial, data = partial_path(path, concurrent=True), os.urandom(1 << 16)
    steps: dict[str, Callable[[], object]] = {
        "write and sync": lambda: files.write(partial, [(0, data)]),
        "rename": lambda: files.replace(partial, path),
        "sync the folder": lambda: files.sync_folder(folder),
        "read back": lambda: _expect(path.read_bytes() == data),
        "remove": lambda: files.remove(path),
    }
    start_s = time.perf_counter()
    for step, take in steps.items():
        try:
            take()
        except OSError as error:
            for left in (partial, path):
                remove_quietly(left)
            text = (
                f"{folder}: cannot {step} ({error}); shards are committed by all of "
                f"{', '.join(steps)}. Choose another folder, or mount it so that it can."
            )
            return Check("store: writing", "FAIL", text, {"step": step})
    ms = (time.perf_counter() - start_s) * 1000
    text = f"{', '.join(steps)} work, in {ms:,.0f} ms"
    return Check("store: writing", "ok", text, {"milliseconds": round(ms, 1)})


def _expect(same: bool) -> None:
    if not same:
        msg = "other bytes came back than were written"
        raise OSError(msg)


def _check_space(folder: Path) -> Check:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check("store: space", "note", f"{folder} does not say what is free ({error})")
    text = f"{free / 1e9:,.1f} GB free: room for about {free // SEQUENCE_BYTES:,} sequences"
    values = {"free_bytes": free}
    if free < LEAST_FREE_BYTES:
        return Check("store: space", "FAIL", f"{text}; free some, or choose another disk", values)
    return Check("store: space", "ok", text, values)


def _check_locality(store: Path) -> Check:
    mount, waiting = mount_of(store), spooled_rows(store)
    values = {"mount": mount.point, "kind": mount.kind, "waiting": waiting}
    local = is_local(store)
    text = f"{mount.kind} at {mount.point}, "
    text += "a disk of this machine" if local else "remote: each shard is written locally first"
    if waiting:
        text += (
            f"; {waiting:,} sequences of an earlier run wait on this machine, and the next "
            "abag embed into this store takes them in"
        )
    return Check("store: kind", "note" if waiting else "ok", text, values)


def first_line(error: BaseException) -> str:
    """Say what an error says, in one line that fits a screen."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 300 else line[:300] + " ..."
