"""The store: vectors of sequences, by key, in one folder for each encoder.

Any number of processes may read and add at the same time, without locks: every file is either
whole under its name or not there. docs/store-format.md is the specification.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.files import Files
from abag.embed.sequences.chains import Chains, Kind, antibody, antigen, keys_array
from abag.embed.store.encoder_folder import (
    EncoderFolder,
    MissingVectors,
    ReadOnlyStore,
    UnknownPooling,
)
from abag.embed.store.filesystem import (
    COLAB_DRIVE,
    StoreUnreachable,
    is_unmounted_drive,
    retry_if_remote,
)
from abag.embed.store.shard import (
    MAX_PACKED_CONTENTS_BYTES,
    DamagedShard,
    read_plain,
    read_table_of_contents,
)
from abag.embed.store.store_files import (
    ENCODER_FILE,
    STORE_FILE,
    STORE_MARK,
    create_encoder_folder,
    create_store,
)
from abag.embed.store.writer import NotFinite, ShardWriter

__all__ = [
    "AmbiguousEncoder",
    "EncoderFolder",
    "Files",
    "MissingVectors",
    "NoSuchEncoder",
    "NotAStore",
    "NotFinite",
    "ReadOnlyStore",
    "ShardWriter",
    "Store",
    "StoreMismatch",
    "StoreUnreachable",
    "UnknownPooling",
    "open_store",
]

_FOLDER = re.compile(r"(antibody|antigen)-([A-Za-z0-9._-]+)-([0-9a-f]{8})")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_MAX_JSON_BYTES = 1 << 20
_log = logging.getLogger("abag")
T = TypeVar("T")


class NotAStore(AbagError):
    """A path that holds no store."""


class NoSuchEncoder(AbagError):
    """An encoder of which the store holds nothing."""


class AmbiguousEncoder(AbagError):
    """Several encoders where one had to be chosen."""


class StoreMismatch(AbagError):
    """Two things that claim to be the same and are not."""


class Store:
    """Vectors of antibodies and antigens; made by :func:`open_store`.

    Attributes
    ----------
    path : Path
    damaged : list of (Path, str)
        Encoders' folders that were skipped, and why.
    """

    def __init__(
        self,
        path: Path,
        *,
        packed: Iterable[EncoderFolder] | None = None,
        files: Files | None = None,
    ) -> None:
        self.path = path
        self.damaged: list[tuple[Path, str]] = []
        self._files = files or Files()
        self._is_packed = packed is not None
        self._folders = {folder.path.name: folder for folder in packed or ()}

    def folders(self, kind: Kind | None = None) -> list[EncoderFolder]:
        """Return the encoders of which something is or will be stored, by folder name."""
        if not self._is_packed:
            self._refresh()
        folders = [self._folders[name] for name in sorted(self._folders)]
        return [folder for folder in folders if kind in (None, folder.kind)]

    def _refresh(self) -> None:
        """Take note of folders that others made."""
        for path in _reach(self.path, lambda: _listed(self.path)):
            if path.name not in self._folders and _FOLDER.fullmatch(path.name):
                _reach(path, partial(self._take_in, path))

    def _take_in(self, path: Path) -> None:
        try:
            self._folders[path.name] = EncoderFolder(path, _read_info(path), files=self._files)
        except DamagedShard as error:
            if (path, str(error)) not in self.damaged:
                self.damaged.append((path, str(error)))
                _log.warning("%s The folder is skipped.", error)

    def folder(self, kind: Kind, encoder: str | None = None) -> EncoderFolder:
        """Find one encoder's vectors.

        Parameters
        ----------
        kind : {"antibody", "antigen"}
        encoder : str, optional
            Its name, its folder's name, or how its fingerprint begins. None: the only one.

        Raises
        ------
        NoSuchEncoder, AmbiguousEncoder
        """
        folders = self.folders(kind)
        found = [f for f in folders if encoder is None or _answers_to(f, encoder)]
        if len(found) > 1:
            found = [f for f in found if f.rows] or found
        listed = ", ".join(f.path.name for f in folders) or "none"
        wanted = f"{kind} encoder {encoder!r}" if encoder else f"{kind} encoder"
        if not found:
            msg = f"{self.path}: no {wanted}; stored: {listed}. Run abag embed first."
            raise NoSuchEncoder(msg)
        if len(found) > 1:
            listed = ", ".join(f.path.name for f in found)
            msg = f"{self.path}: more than one {wanted}: {listed}. Give --{kind}-encoder."
            raise AmbiguousEncoder(msg)
        return found[0]

    def create_folder(self, kind: Kind, info: Mapping[str, object]) -> EncoderFolder:
        """Return the folder of an encoder, made if it is new.

        Parameters
        ----------
        kind : {"antibody", "antigen"}
        info : mapping
            Goes into encoder.json; at least ``name`` and ``fingerprint`` (32 hex digits).

        Raises
        ------
        StoreMismatch
            When the folder belongs to another encoder.
        """
        path, known = self._place(kind, info)
        if not _reach(self.path, partial(_is_store, self.path)):
            _reach(self.path, partial(create_store, self.path, self._files))
        known = _reach(path, partial(_made, path, known, self._files))
        fingerprint = info["fingerprint"]
        if known["fingerprint"] != fingerprint:
            msg = f"{path}: holds fingerprint {known['fingerprint']}; {fingerprint} was expected."
            raise StoreMismatch(msg)
        return self._folders.setdefault(path.name, EncoderFolder(path, known, files=self._files))

    def find_folder(self, kind: Kind, info: Mapping[str, object]) -> EncoderFolder:
        """Return the folder of an encoder; where it is new, an empty one that is not on disk.

        As :meth:`create_folder`, for whoever may yet refuse to go on.
        """
        path, known = self._place(kind, info)
        if _reach(path, path.exists):
            return self.create_folder(kind, info)
        return EncoderFolder(path, known, packed=())

    def _place(self, kind: Kind, info: Mapping[str, object]) -> tuple[Path, dict[str, Any]]:
        """Tell where an encoder's folder lies or will lie, and what its encoder.json says."""
        if self._is_packed:
            msg = f"{self.path}: packed; a folder was expected. Add to the store it was made from."
            raise ReadOnlyStore(msg)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(info["name"]))
        path = self.path / f"{kind}-{name}-{str(info['fingerprint'])[:8]}"
        return path, _checked_info(path, {**info, "kind": kind})

    def vectors(
        self,
        kind: Kind,
        sequences: Sequence[str | Chains],
        *,
        pooling: str = "mean",
        encoder: str | None = None,
    ) -> NDArray[np.float32]:
        """Read the vectors of sequences.

        Parameters
        ----------
        kind : {"antibody", "antigen"}
        sequences : sequence
            Antibodies as (heavy, light), either of which may be empty; antigens as text, their
            chains joined by ``|``.
        pooling : str
        encoder : str, optional
            As in :meth:`folder`.

        Returns
        -------
        ndarray, shape=(N, D), dtype=float32

        Raises
        ------
        MissingVectors, NoSuchEncoder, AmbiguousEncoder, UnknownPooling
        """
        chains = [_chains(kind, sequence) for sequence in sequences]
        return self.folder(kind, encoder).read(keys_array(kind, chains), pooling)


def open_store(path: Path | str, *, create: bool = False, files: Files | None = None) -> Store:
    """Open a store: a folder, or a file made by ``abag store pack``.

    Parameters
    ----------
    path : path
    create : bool
        Take a path where nothing is yet: the store is made with its first encoder's folder.
    files : Files, optional
        The file system that is written to.

    Raises
    ------
    NotAStore
        When there is nothing, or something else.
    """
    path, files = Path(path), files or Files()
    return _reach(path, lambda: _open(path, files, create=create))


def _open(path: Path, files: Files, *, create: bool) -> Store:
    if path.is_file():
        return _open_packed(path)
    found = _listed(path)  # before the look for a store, which another process may just make
    if not _is_store(path):
        if found:
            msg = f"{path}: holds {found[0].name}, and no store. Give a store's or a new folder."
            raise NotAStore(msg)
        if not create:
            what = "is empty" if path.exists() else "does not exist"
            msg = f"{path}: {what}; a store was expected. Make one with abag embed."
            raise NotAStore(msg)
        _refuse_unmounted_drive(path)
    return Store(path, files=files)


def _refuse_unmounted_drive(path: Path) -> None:
    if is_unmounted_drive(path):
        msg = (
            f"{path}: no Drive is mounted there, and a store on this machine's own disk would be "
            "lost with it. Mount it first: from google.colab import drive; "
            f"drive.mount({str(COLAB_DRIVE)!r})"
        )
        raise StoreUnreachable(msg)


def _reach(path: Path, act: Callable[[], T]) -> T:
    """Do something on the store's file system; what it says is for a person to mend."""
    try:
        return retry_if_remote(act, path)
    except OSError as error:
        msg = f"{path}: out of reach ({error}); a readable store was expected. Try again."
        raise StoreUnreachable(msg) from error


def _made(path: Path, info: dict[str, Any], files: Files) -> dict[str, Any]:
    """Return what encoder.json says, written if it is not there or damaged."""
    try:
        return _read_info(path)
    except DamagedShard:
        create_encoder_folder(path, info, files)
        return info


def _is_store(path: Path) -> bool:
    if not path.is_dir():
        return False
    try:
        mark = _read_json(path / STORE_FILE)
    except (FileNotFoundError, DamagedShard):  # copied folders make a store without its mark
        return any(_is_encoder_folder(folder) for folder in _listed(path))
    if mark != STORE_MARK:
        msg = f"{path / STORE_FILE}: {mark}; this abag reads {STORE_MARK}. Use a newer abag."
        raise NotAStore(msg)
    return True


def _is_encoder_folder(path: Path) -> bool:
    try:
        return bool(_read_info(path))
    except DamagedShard:
        return False


def _listed(path: Path) -> list[Path]:
    """List a folder without hidden files and what a killed creation of a store left."""
    mark = Path(STORE_FILE).stem
    if path.exists() and not path.is_dir():
        return [path]
    names = path.iterdir() if path.exists() else ()
    return sorted(entry for entry in names if not entry.name.startswith((".", mark)))


def _open_packed(path: Path) -> Store:
    try:
        contents = read_table_of_contents(path, most_bytes=MAX_PACKED_CONTENTS_BYTES)
        infos = contents.about["encoders"]
        folders = [
            EncoderFolder(
                path / name,
                _checked_info(path / name, info),
                packed=[b for b in contents.blocks if b.group.startswith(f"/{name}/")],
            )
            for name, info in infos.items()
            if _FOLDER.fullmatch(name)
        ]
    except (DamagedShard, KeyError, TypeError, AttributeError) as error:
        msg = f"{path}: not a packed store ({error}). Give a store's folder or a packed store."
        raise NotAStore(msg) from error
    return Store(path, packed=folders)


def _read_info(path: Path) -> dict[str, Any]:
    """Read an encoder's folder's encoder.json.

    Raises
    ------
    DamagedShard
        When it is no folder, has none, or has one that belongs elsewhere.
    """
    if path.is_symlink() or not path.is_dir():
        msg = f"{path}: not a folder."
        raise DamagedShard(msg)
    try:
        return _checked_info(path, _read_json(path / ENCODER_FILE))
    except FileNotFoundError as error:
        msg = f"{path}: no {ENCODER_FILE}."
        raise DamagedShard(msg) from error


def _checked_info(path: Path, info: object) -> dict[str, Any]:
    """Return `info` if it agrees with the folder's name."""
    match = _FOLDER.fullmatch(path.name)
    if match and isinstance(info, dict) and isinstance(info.get("name"), str):
        fingerprint = str(info.get("fingerprint"))
        known = info.get("kind") == match[1] and _FINGERPRINT.fullmatch(fingerprint)
        if known and fingerprint.startswith(match[3]):
            return info
    msg = f"{path}: {ENCODER_FILE} does not fit the folder's name."
    raise DamagedShard(msg)


def _read_json(path: Path) -> object:
    text = read_plain(path, _MAX_JSON_BYTES)
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError) as error:
        msg = f"{path}: not JSON ({error})."
        raise DamagedShard(msg) from error


def _answers_to(folder: EncoderFolder, encoder: str) -> bool:
    return encoder in (folder.name, folder.path.name) or (
        len(encoder) >= 4 and folder.fingerprint.startswith(encoder)
    )


def _chains(kind: Kind, sequence: str | Chains) -> Chains:
    if kind == "antibody":
        heavy, light = (sequence, "") if isinstance(sequence, str) else sequence
        return antibody(heavy, light)
    return antigen(sequence if isinstance(sequence, str) else "|".join(sequence))
