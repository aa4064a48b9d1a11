"""The store: vectors of sequences by key, in one folder per encoder.

Any number of processes may read and add at the same time without locks, because every file is
written atomically. docs/store-format.md is the specification.
"""

from __future__ import annotations

import errno
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from abag.core.errors import DamagedFile, MissingVectors, OptionError, SequenceError, StoreError
from abag.core.files import UnsafeFile
from abag.core.messages import say
from abag.core.options import user_path
from abag.core.python_surface import as_html, shorten
from abag.embed.store.folder import EncoderFolder
from abag.embed.store.shard import (
    COLAB_DRIVE,
    FOLDER_NAME,
    OTHER_VERSION,
    STORE_FILE,
    STORE_MARK,
    StoreUnreachable,
    UnreadableFile,
    check_encoder_info,
    create_encoder_folder,
    folder_name,
    is_unmounted_drive,
    read_encoder_info,
    read_record,
    retrying,
)
from abag.embed.tables.chains import (
    KINDS,
    Chains,
    Kind,
    antibody,
    antigen,
    keys_array,
    parse_antibody,
    sequence_text,
)
from abag.embed.tables.pairs import SequenceTable

S = TypeVar("S", bound="Store")


class NoSuchEncoder(StoreError):
    """A store holds no vectors of an encoder."""


class Store:
    """Vectors of antibodies and antigens; made by :func:`open_store`.

    Methods raise StoreUnreachable if the file system fails, or a store that existed when it was
    opened does not any more.
    """

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        self.path = path
        self._is_new = is_new
        self.damaged: list[tuple[Path, str]] = []
        """Path of each encoder folder that is skipped, and the reason."""
        self._folders: dict[str, EncoderFolder] = {}

    def __repr__(self) -> str:
        lines = [f"Store {self.path}"]
        for folder in self.folders():
            poolings = ", ".join(folder.poolings)
            lines.append(
                f"{folder.kind}: {folder.name} ({folder.fingerprint[:8]}), {folder.rows:,} vectors "
                f"of {poolings}"
            )
        if len(lines) == 1:
            lines.append("empty")
        return shorten(lines)

    def _repr_html_(self) -> str:
        return as_html(repr(self))

    def folders(self, kind: Kind | None = None) -> list[EncoderFolder]:
        """List the folders of all encoders, or of those of one kind, sorted by name."""
        retrying(self.path, self._follow)
        folders = [self._folders[name] for name in sorted(self._folders)]
        return [folder for folder in folders if kind in (None, folder.kind)]

    def _follow(self) -> None:
        """Open the folders that other processes have created."""
        listed = _list_folder(self.path)
        if not self._is_new and not _is_store(self.path):
            # a removed or unmounted store is not an empty one
            raise FileNotFoundError(errno.ENOENT, "the store has vanished", str(self.path))
        for path in listed:
            if path.name not in self._folders and FOLDER_NAME.fullmatch(path.name):
                self._open_folder(path)

    def _open_folder(self, path: Path) -> None:
        try:
            self._folders[path.name] = EncoderFolder(path, read_encoder_info(path))
        except DamagedFile as error:
            if (path, str(error)) not in self.damaged:
                self.damaged.append((path, str(error)))
                say(f"{error} The folder is skipped.")

    def folder(self, kind: Kind, encoder: str | None = None) -> EncoderFolder:
        """Find the folder of one encoder.

        Parameters
        ----------
        encoder : str, optional
            The encoder's name, its folder's name, or the first digits of its fingerprint. By
            default, the only encoder of that kind.

        Raises
        ------
        StoreError
            If no encoder matches, or several do.
        OptionError
            If there is no such kind.
        """
        _check_kind(kind)
        folders = self.folders(kind)
        matching = folders
        if encoder is not None:
            matching = [folder for folder in folders if _matches(folder, encoder)]
            exact = [folder for folder in matching if folder.fingerprint == encoder]
            matching = exact or matching
        if len(matching) > 1:
            # an interrupted command leaves a folder before its first commit
            filled = [folder for folder in matching if folder.rows]
            matching = filled or matching
        listed = name_encoders(matching or folders)
        wanted = f"{kind} encoder {encoder!r}" if encoder else f"{kind} encoder"
        if not matching:
            msg = f"{self.path}: no {wanted}; stored: {listed}. Run abag embed first."
            raise NoSuchEncoder(msg)
        if len(matching) > 1:
            msg = f"{self.path}: more than one {wanted}: {listed}. Give --{kind}-encoder."
            raise StoreError(msg)
        return matching[0]

    def create_folder(self, kind: Kind, info: Mapping[str, object]) -> EncoderFolder:
        """Return an encoder's folder, perhaps new; `StoreError` if it is another's.

        `info` is the content of its encoder.json.
        """
        path, content, _ = self._folder_of(kind, info)
        content = retrying(path, partial(_read_or_create_info, path, content))
        fingerprint = info["fingerprint"]
        if content["fingerprint"] != fingerprint:
            msg = f"{path}: holds fingerprint {content['fingerprint']}; expected {fingerprint}."
            raise StoreError(msg)
        return self._folders.setdefault(path.name, EncoderFolder(path, content))

    def find_folder(self, kind: Kind, info: Mapping[str, object]) -> EncoderFolder:
        """Return the folder of an encoder as :meth:`create_folder`, but write nothing."""
        path, content, exists = self._folder_of(kind, info)
        if exists:
            return self.create_folder(kind, info)
        return EncoderFolder(path, content, is_new=True)

    def _folder_of(
        self, kind: Kind, info: Mapping[str, object]
    ) -> tuple[Path, dict[str, Any], bool]:
        """Return an encoder's folder, the content of its encoder.json, and whether it exists."""
        info = {**info, "kind": kind}
        path = self.path / folder_name(info)
        exists = retrying(path, path.exists)
        if retrying(path, path.is_symlink):  # its vectors would be written, but never read
            msg = f"{path}: is a link; expected a folder. Move the folder itself to this place."
            raise UnsafeFile(msg)
        return path, check_encoder_info(path, info), exists

    def vectors(
        self,
        kind: Kind,
        sequences: Iterable[str | Chains],
        *,
        pooling: str = "mean",
        encoder: str | None = None,
    ) -> NDArray[np.float32]:
        """Read the vectors of sequences.

        Parameters
        ----------
        sequences : sequence
            Antibodies as (heavy, light), one of which may be empty, or as in the antibody column
            of a table: ``heavy|light``, or one text that is split by its variable domains.
            Antigens as text, their chains joined by ``|``, or as a tuple of chains.
        encoder : str, optional
            As for :meth:`folder`.

        Returns
        -------
        ndarray, shape=(N, D), dtype=float32

        Raises
        ------
        MissingVectors
            If a sequence is not stored.
        StoreError
            If no encoder matches, several do, or the pooling is not stored.
        SequenceError
            If a sequence is not valid.
        """
        _check_kind(kind)
        chains = _all_chains(kind, sequences)
        return self.folder(kind, encoder).read(keys_array(kind, chains), pooling)


def open_store(path: Path | str, *, create: bool = False) -> Store:
    """Open a store for its vectors alone; parameters and errors are those of `abag.open_store`."""
    return open_as(Store, path, create=create)


def open_as(store_class: type[S], path: Path | str, *, create: bool = False) -> S:
    """Open a store as `open_store` does, as an object of this class."""
    path = user_path(path, "store")
    is_new = retrying(path, partial(_is_to_be_created, path, create=create))
    return store_class(path, is_new=is_new)


def _is_to_be_created(path: Path, *, create: bool) -> bool:
    """Tell whether a store is to be created; refuse a path that is none and cannot become one."""
    if path.exists() and not path.is_dir():
        msg = f"{path}: is a file; expected the folder of a store. If it is an archive, unpack it."
        raise StoreError(msg)
    entries = _list_folder(path)  # first: another process may be creating the store
    if _is_store(path):
        return False
    # on a network file system, the other files of a new store may not be visible yet
    foreign = [entry for entry in entries if not (create and FOLDER_NAME.fullmatch(entry.name))]
    if foreign:
        msg = f"{path}: is not a store, it holds {foreign[0].name}. Give a store or a new folder."
        raise StoreError(msg)
    if not create:
        state = "is empty" if path.exists() else "does not exist"
        msg = f"{path}: {state}; expected a store. Create one with abag embed."
        raise StoreError(msg)
    if is_unmounted_drive(path):
        msg = (
            f"{path}: no Drive is mounted there, and a store on this machine's disk would be "
            "lost with the machine. Mount it first: from google.colab import drive; "
            f"drive.mount({str(COLAB_DRIVE)!r})"
        )
        raise StoreUnreachable(msg)
    return True


def _is_store(path: Path) -> bool:
    try:
        mark = read_record(path / STORE_FILE)
    except (FileNotFoundError, DamagedFile):  # copied encoder folders are a store too
        return any(_is_encoder_folder(folder) for folder in _list_folder(path))
    if mark != STORE_MARK:
        msg = f"{path / STORE_FILE}: {mark}; {OTHER_VERSION}"
        raise StoreError(msg)
    return True


def _read_or_create_info(path: Path, info: dict[str, Any]) -> dict[str, Any]:
    try:
        return read_encoder_info(path)
    except UnreadableFile:  # it may say more than a new one would
        raise
    except DamagedFile:
        create_encoder_folder(path, info)
        return info


def _is_encoder_folder(path: Path) -> bool:
    try:
        return bool(read_encoder_info(path))
    except DamagedFile:
        return False


def _list_folder(path: Path) -> list[Path]:
    """List a folder without hidden files and the store's own (partial) files."""
    mark = Path(STORE_FILE).stem
    names = path.iterdir() if path.exists() else ()
    return sorted(entry for entry in names if not entry.name.startswith((".", mark)))


def name_encoders(folders: Sequence[EncoderFolder]) -> str:
    """List encoders of one kind by name, or by fingerprint where names are equal."""
    counts = Counter(folder.name for folder in folders)
    listed = []
    for folder in folders:
        is_unique = counts[folder.name] == 1
        listed.append(folder.name if is_unique else f"{folder.fingerprint[:8]} ({folder.name})")
    return ", ".join(listed) or "none"


def _matches(folder: EncoderFolder, encoder: str) -> bool:
    if encoder in (folder.name, folder.path.name):
        return True
    return len(encoder) >= 4 and folder.fingerprint.startswith(encoder)


def _check_kind(kind: object) -> None:
    if kind not in KINDS:
        msg = f"kind: {kind!r} is unknown; expected {' or '.join(KINDS)}."
        raise OptionError(msg)


def _all_chains(kind: Kind, sequences: Iterable[str | Chains]) -> list[Chains]:
    """Read the sequences that `Store.vectors` was given; an error names the place of a bad one."""
    # a text and a table are iterables, too: of letters, and of the names of columns
    is_one = isinstance(sequences, str | bytes | Mapping) or hasattr(sequences, "columns")
    if is_one or not isinstance(sequences, Iterable):
        is_table = hasattr(sequences, "columns")
        shown = f"a {type(sequences).__name__}" if is_table else reprlib.repr(sequences)
        expected = "[(heavy, light), ...]" if kind == "antibody" else "[antigen, ...]"
        msg = (
            f"sequences: {shown} is not a list of sequences; expected "
            f"one, even of a single {kind}. Pass {expected}."
        )
        raise SequenceError(msg)
    chains = []
    for number, sequence in enumerate(sequences, 1):
        try:
            chains.append(_chains(kind, sequence))
        except SequenceError as error:
            error.args = (f"sequence {number}: {error}",)
            raise
    return chains


def _chains(kind: Kind, sequence: object) -> Chains:
    if isinstance(sequence, list | tuple | np.ndarray):
        if kind == "antibody" and len(sequence) == 2:
            return antibody(*sequence)
        if kind == "antigen" and len(sequence):
            return antigen("|".join(map(sequence_text, sequence)))
        expected = "(heavy, light), of which one may be empty" if kind == "antibody" else "chains"
        msg = f"{reprlib.repr(sequence)} is not an {kind}; expected {expected}. Correct it."
        raise SequenceError(msg)
    if kind == "antibody":
        return parse_antibody(sequence_text(sequence)).chains
    return antigen(sequence)


def folder_with(
    store: Store, table: SequenceTable, kind: Kind, encoder: str | None
) -> EncoderFolder:
    """Find the folder of an encoder, or of the only one, that holds every sequence of a table.

    Raises
    ------
    MissingVectors
        If a sequence is not stored.
    StoreError
        If no encoder matches, or several do.
    """
    sequences = table.sequences[kind]
    folder = store.folder(kind, encoder)
    missing = int(folder.missing(sequences.keys).sum())
    if missing:
        msg = (
            f"{store.path}: {missing} of {len(sequences.keys)} {kind} sequences of {table.source} "
            f"have no vector from {folder.name}. Run abag embed on it with --store "
            f"{store.path} --kind {kind} {folder.embed_options}, and with the options that read "
            "its columns."
        )
        raise MissingVectors(msg)
    return folder
