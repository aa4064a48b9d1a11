"""Files of the notebooks that abag replaces: recognised by their content, never unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path

from abag import AbagError

_TORCH_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")  # of files before the zip format
_PICKLE = tuple(bytes([0x80, protocol]) for protocol in (2, 3, 4, 5))
_CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
_INSTEAD = "abag embed TABLE --store STORE, then abag fit TABLE --store STORE --run RUN"
_CHECKPOINT = (
    "a torch checkpoint, as saved by the old notebooks; expected a table, store or run of abag. "
    "abag cannot load its weights, but a new head trains in seconds once the vectors are stored: "
    f"{_INSTEAD}."
)
_ARRAYS = (
    "NumPy arrays, as the old notebooks used for embeddings; expected a table, store or run of "
    "abag. The arrays do not record which sequence a row belongs to, so encode the table again: "
    f"{_INSTEAD}."
)
_PICKLED = (
    "a Python pickle, which abag never opens because it could run any code; expected a table, "
    "store or run of abag. Save the table as CSV or Parquet instead."
)


class LegacyFile(AbagError):
    """A file that only the old notebooks can read."""


def refuse_legacy_file(path: Path) -> None:
    """Refuse a torch checkpoint, array file or pickle given as a table, store or run.

    Raises
    ------
    LegacyFile
        With the type of the file and what to do instead.
    """
    try:
        description = _describe(path) if path.is_file() else None
    except OSError:  # reported when the file is opened
        return
    if description is not None:
        msg = f"{path}: {description}"
        raise LegacyFile(msg)


def _describe(path: Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"\x93NUMPY"):
        return _ARRAYS
    if head.startswith(b"PK\x03\x04"):
        return _describe_archive(path)
    if head.startswith(_TORCH_MAGIC):
        return _CHECKPOINT
    return _PICKLED if head.startswith(_PICKLE) else None


def _describe_archive(path: Path) -> str | None:
    """Describe a zip file by the names in it, or by its own name if it is truncated."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        by_suffix = {**dict.fromkeys(_CHECKPOINT_SUFFIXES, _CHECKPOINT), ".npz": _ARRAYS}
        return by_suffix.get(path.suffix.lower())
    if any(name == "data.pkl" or name.endswith("/data.pkl") for name in names):
        return _CHECKPOINT
    return _ARRAYS if names and all(name.endswith(".npy") for name in names) else None
