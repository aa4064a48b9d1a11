"""Files of the notebooks that abag replaces: known by their first bytes, never unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path

from abag import AbagError

_LEGACY_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")  # torch's magic number, pickled
_PICKLE = tuple(bytes([0x80, protocol]) for protocol in (2, 3, 4, 5))
_CHECKPOINT_NAMES = (".pt", ".pth", ".ckpt", ".bin")
_WAY_ON = "abag embed TABLE --store STORE, then abag fit TABLE --store STORE --run RUN"
_CHECKPOINT = (
    "a torch checkpoint, such as the old notebooks saved; a table, store or run of abag was "
    "expected. No head of abag can take its weights, and a new one trains in seconds once the "
    f"vectors are stored: {_WAY_ON}."
)
_ARRAYS = (
    "NumPy arrays, such as the old notebooks kept embeddings in; a table, store or run of abag "
    "was expected. They are kept by row number, which says nothing of the sequence, so encode the "
    f"table anew, each sequence once: {_WAY_ON}."
)
_PICKLED = (
    "a Python pickle, which abag never opens: it could run any code; a table, store or run of "
    "abag was expected. Save a table as CSV or Parquet where the pickle was made."
)


class LegacyFile(AbagError):
    """A file that only the old notebooks could read."""


def refuse_legacy_file(path: Path) -> None:
    """Refuse a checkpoint, array file or pickle where a table, store or run is expected.

    Raises
    ------
    LegacyFile
        Saying what the file is and how to go on.
    """
    try:
        what = _what_it_is(path) if path.is_file() else None
    except OSError:  # whoever opens it next says why it cannot be read
        return
    if what is not None:
        msg = f"{path}: {what}"
        raise LegacyFile(msg)


def _what_it_is(path: Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"\x93NUMPY"):
        return _ARRAYS
    if head.startswith(b"PK\x03\x04"):
        return _what_is_zipped(path)
    if head.startswith(_LEGACY_TORCH):
        return _CHECKPOINT
    return _PICKLED if head.startswith(_PICKLE) else None


def _what_is_zipped(path: Path) -> str | None:
    """Tell by the names in the archive, or by its own where it was cut short."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        cut_short = {**dict.fromkeys(_CHECKPOINT_NAMES, _CHECKPOINT), ".npz": _ARRAYS}
        return cut_short.get(path.suffix.lower())
    if any(name == "data.pkl" or name.endswith("/data.pkl") for name in names):
        return _CHECKPOINT
    return _ARRAYS if names and all(name.endswith(".npy") for name in names) else None
