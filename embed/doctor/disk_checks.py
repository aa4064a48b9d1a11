"""Checks of the disks that a run writes to."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from abag import AbagError
from abag.core.files import Files, partial_path, remove_quietly
from abag.core.messages import first_line
from abag.embed.doctor.check import MIN_FREE_BYTES, Check
from abag.embed.shards.filesystem import is_local, is_unmounted_drive, mount_of
from abag.embed.store.spool import spooled_rows
from abag.embed.store.store import open_store

BYTES_PER_SEQUENCE = 6 << 10
"""Three poolings of 1,024 float16 values."""


def check_temporary_folder() -> Check:
    """Check that shards can be prepared in the temporary folder."""
    try:
        folder = Path(tempfile.gettempdir())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"no writable folder ({error}); set TMPDIR to a writable one"
        return Check("temporary files", "FAIL", text)
    text, enough = f"{folder}, {free / 1e9:,.1f} GB free", free >= MIN_FREE_BYTES
    if not enough:
        text += "; shards are prepared there: free some space, or set TMPDIR to a larger disk"
    values = {"path": str(folder), "free_bytes": free}
    return Check("temporary files", "ok" if enough else "FAIL", text, values)


def check_store(store: Path, files: Files | None = None) -> Iterator[Check]:
    """Check the file system of a store, existing or not; leaves nothing behind."""
    files = files or Files()
    if is_unmounted_drive(store):
        text = f"{store}: no Drive is mounted there; files would be lost with this machine"
        yield Check("store", "FAIL", text)
        return
    try:
        content = _describe_content(store)
        folder = next(path for path in (store, *store.absolute().parents) if path.exists())
    except (AbagError, OSError) as error:
        yield Check("store", "FAIL", first_line(error))
        return
    if not folder.is_dir():
        yield Check("store", "FAIL", f"{folder}: a file; expected a folder; choose another --store")
        return
    yield Check("store", "ok", f"{store}: {content}", {"path": str(store)})
    yield _check_writing(folder, files)
    yield _check_space(folder)
    yield _check_file_system(store)


def _describe_content(store: Path) -> str:
    if not store.exists():
        return "does not exist yet; abag embed creates it"
    if store.is_dir() and not any(store.iterdir()):
        return "empty; abag embed creates a store in it"
    folders = open_store(store).folders()
    names = ", ".join(f"{folder.path.name} ({folder.rows:,})" for folder in folders)
    return f"holds {names or 'no vectors yet'}"


def _check_writing(folder: Path, files: Files) -> Check:
    """Run the steps of a commit one by one, to name the one that fails."""
    # hidden: if doctor is killed, the file left behind is not mistaken for part of a store
    path = folder / f".abag-doctor-{os.getpid()}.probe"
    partial, data = partial_path(path), os.urandom(1 << 16)
    steps: dict[str, Callable[[], object]] = {
        "write and sync": lambda: files.write(partial, [(0, data)]),
        "rename": lambda: files.replace(partial, path),
        "sync the folder": lambda: files.sync_folder(folder),
        "read back": lambda: _expect_same(path.read_bytes(), data),
        "remove": lambda: files.remove(path),
    }
    start_s = time.perf_counter()
    for name, step in steps.items():
        try:
            step()
        except OSError as error:
            for leftover in (partial, path):
                remove_quietly(leftover, Files())
            text = (
                f"{folder}: cannot {name} ({error}); committing a shard needs {', '.join(steps)}. "
                "Choose another folder, or change how it is mounted."
            )
            return Check("store: writing", "FAIL", text, {"step": name})
    ms = (time.perf_counter() - start_s) * 1000
    text = f"{', '.join(steps)} work, in {ms:,.0f} ms"
    return Check("store: writing", "ok", text, {"milliseconds": round(ms, 1)})


def _expect_same(found: bytes, written: bytes) -> None:
    if found != written:
        msg = "the bytes read differ from those written"
        raise OSError(msg)


def _check_space(folder: Path) -> Check:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check("store: space", "note", f"{folder}: free space unknown ({error})")
    enough = free >= MIN_FREE_BYTES
    text = f"{free / 1e9:,.1f} GB free: room for about {free // BYTES_PER_SEQUENCE:,} sequences"
    if not enough:
        text += "; free some space, or choose another disk"
    return Check("store: space", "ok" if enough else "FAIL", text, {"free_bytes": free})


def _check_file_system(store: Path) -> Check:
    mount, spooled = mount_of(store), spooled_rows(store)
    values = {"mount": mount.point, "kind": mount.kind, "waiting": spooled}
    text = f"{mount.kind} at {mount.point}, "
    text += "local" if is_local(store) else "remote: each shard is written locally first"
    if spooled:
        text += (
            f"; {spooled:,} sequences of an earlier run are spooled on this machine, and the next "
            "abag embed into this store commits them"
        )
    return Check("store: kind", "note" if spooled else "ok", text, values)
