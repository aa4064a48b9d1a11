"""The store: vectors of sequences by key, in one folder per encoder.

The folder of an encoder has many immutable shards, which are found by key while others add to them.
What is returned was compared with its checksums; a damaged shard is never used and never removed.
Any number of processes may read and add at the same time without locks, because every file is
written atomically. docs/store-format.md is the specification.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import KEY_BYTES, KeyIndex, distinct, sort_keys
from abag.core.errors import DamagedFile, MissingVectors, OptionError, SequenceError, StoreError
from abag.core.files import UnsafeFile
from abag.core.messages import counted, quoted, say
from abag.core.options import flag, names_folder, user_path
from abag.core.python_surface import shorten
from abag.embed.store.shard import (
    ADAPTER_FOLDER,
    COLAB_DRIVE,
    ENCODER_FILE,
    FOLDER_NAME,
    OTHER_VERSION,
    SHARD_NAME,
    STORE_FILE,
    STORE_MARK,
    Attrs,
    Shard,
    StoreUnreachable,
    UnreadableFile,
    check_encoder_info,
    create_encoder_folder,
    damaged_file,
    folder_name,
    is_unmounted_drive,
    open_shard,
    read_adapter_copy,
    read_encoder_info,
    read_record,
    retrying,
    why_adapter_lacks,
)
from abag.embed.store.writer import ShardWriter
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

LOGLIK = "loglik"
"""The mean log-probability of all residues: a stored value of width 1, and its key in `info`."""
Scalar = TypeVar("Scalar", bound=np.generic)
T = TypeVar("T")
FileVersion = tuple[int, int]
"""Size in bytes and time of the last change in nanoseconds."""


class EncoderFolder:
    """The vectors that one encoder computed for one kind of sequence.

    Other processes may add shards at any time; each call looks for new ones. A damaged shard is
    reported once, left in place and skipped; the next run encodes its sequences again. Methods that
    read raise StoreUnreachable if the file system fails.

    Parameters
    ----------
    info : mapping
        The content of encoder.json.
    is_new : bool
        Whether the folder does not exist yet and counts as empty.
    """

    def __init__(self, path: Path, info: Mapping[str, Any], *, is_new: bool = False) -> None:
        self.path = path
        self.info = dict(info)
        self.kind: Kind = info["kind"]
        self.name: str = info["name"]
        self.fingerprint: str = info["fingerprint"]
        self._is_new = is_new
        self._open: dict[str, tuple[FileVersion, Shard]] = {}
        self._damaged: dict[str, tuple[FileVersion, str]] = {}
        self._verified: set[Shard] = set()
        self._adapter_problem = ""
        self._shards: list[Shard] = []  # in the order of the index
        self._index = KeyIndex([])

    @property
    def encoder_options(self) -> dict[str, str]:
        """The options of ``abag embed`` that add to this folder: its encoder, and its adapter."""
        options = {f"{self.kind}_encoder": str(self.info.get("origin", self.name))}
        if self.info.get("adapter"):
            options[f"{self.kind}_adapter"] = str(self.path / ADAPTER_FOLDER)
        return options

    @property
    def rows(self) -> int:
        """Number of stored rows; a sequence that is stored twice counts twice."""
        return sum(shard.rows for shard in self.shards())

    @property
    def damaged(self) -> list[tuple[Path, str]]:
        """Path of each shard that is skipped, and the reason; sorted by name.

        After `check`, also that of an adapter that is not whole.
        """
        skipped = []
        if self._adapter_problem:
            skipped.append((self.path / ADAPTER_FOLDER, self._adapter_problem))
        for name, (_, problem) in sorted(self._damaged.items()):
            skipped.append((self.path / name, problem))
        return skipped

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose poolings are stored beside those of the last layer."""
        return tuple(self.info.get("layers", ()))

    @property
    def head(self) -> str:
        """Digest of the head that gives `loglik`; empty if that is not stored."""
        return str(self.info.get(LOGLIK, ""))

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of the stored poolings; empty if nothing is stored."""
        shards = self.shards()
        return tuple(shards[0].widths) if shards else ()

    @property
    def vector_poolings(self) -> tuple[str, ...]:
        """Names of the stored poolings that are vectors, which a likelihood is not."""
        return tuple(name for name in self.poolings if name != LOGLIK)

    def shards(self) -> list[Shard]:
        """Return the sound shards, in the order in which keys are looked up."""
        self._refresh()
        return self._shards

    def keys(self) -> list[NDArray[np.uint8]]:
        """Return the keys of each of :meth:`shards`, shape=(n, 16), dtype=uint8."""
        return [shard.keys for shard in self.shards()]

    def count_unique(self) -> int:
        """Count the sequences; one that is stored twice counts once."""
        keys = np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *self.keys()])
        _, is_repeated = sort_keys(keys)
        return int((~is_repeated).sum())

    def missing(self, keys: NDArray[np.uint8], *, verify: bool = False) -> NDArray[np.bool_]:
        """Tell which sequences have no vector, (N,); `verify` checks every byte of their shards."""
        while True:
            shards = self.shards()
            number, _ = self._index.find(keys)
            if not verify:
                return number < 0
            used = [shards[i] for i in distinct(number).tolist() if i >= 0]
            # all are checked, so that all damaged ones are found at once
            damaged = [shard for shard in used if not self._is_whole(shard)]
            if not damaged:
                return number < 0

    def read(self, keys: NDArray[np.uint8], pooling: str = "mean") -> NDArray[np.float32]:
        """Read the vectors of N sequences, (N, D), and compare them with their checksums.

        Raises
        ------
        MissingVectors
            If a sequence is not stored.
        StoreError
            If the pooling is not stored.
        """
        names = self.poolings
        if names and pooling not in names:  # key, length or a flag, or nothing
            raise self._unknown(pooling, names)
        return self.read_array(keys, pooling, np.float32)

    def read_array(
        self, keys: NDArray[np.uint8], name: str, dtype: type[Scalar]
    ) -> NDArray[Scalar]:
        """Read a pooling, a flag such as ``has_light``, or ``length``, as `dtype`.

        The result has one row per key; errors as for :meth:`read`.
        """
        shards = self.shards()
        while True:
            number, row = self._index.find(keys)
            absent = np.flatnonzero(number < 0)
            if absent.size:
                msg = (
                    f"{self.path}: {len(absent)} of {len(keys)} sequences are not stored, the "
                    f"first is number {int(absent[0]) + 1}; expected all. Run abag embed on the "
                    "table that contains them."
                )
                raise MissingVectors(msg, absent)
            layout: dict[str, tuple[int, ...]] = shards[0].layout if shards else {name: (0,)}
            if name not in layout:
                raise self._unknown(name, layout)
            out = np.empty((len(keys), *layout[name]), dtype)
            order = np.argsort(number, kind="stable")
            used, starts = np.unique(number[order], return_index=True)
            is_sound = True
            for i, places in zip(used.tolist(), np.split(order, starts[1:]), strict=False):
                read = partial(_read_into, out, places, shards[i], name, row)
                # the others are read too, so that all damaged ones are found at once
                is_sound &= self._is_sound(shards[i], read)
            if is_sound:
                return out
            # the rows of a damaged shard may be in others
            shards = self.shards()

    def check(self) -> None:
        """Check every byte of every shard; :attr:`damaged` lists those that fail.

        `StoreUnreachable` if one is removed meanwhile: what is left is not the whole folder.
        """
        before = retrying(self.path, self._versions)
        self._adapter_problem = self.why_adapter_lacks()
        self._verified.clear()
        for shard in self.shards():
            self._is_whole(shard)
        removed = sorted(before.keys() - retrying(self.path, self._versions).keys())
        if removed:
            msg = (
                f"{self.path}: {counted(len(removed), 'shard')} disappeared while it was read, the "
                f"first is {removed[0]}; expected a store from which nothing is removed. Restore "
                "it, and run the command again."
            )
            raise StoreUnreachable(msg)

    def adapter_files(self) -> dict[str, bytes]:
        """Read the adapter's files, by their path in the folder; empty without an adapter."""
        return retrying(self.path, partial(read_adapter_copy, self.path))

    def why_adapter_lacks(self) -> str:
        """Say what is missing or damaged of the adapter in encoder.json; empty if nothing is."""
        return retrying(self.path, partial(why_adapter_lacks, self.path, self.info))

    def writer(
        self,
        *,
        attrs: Attrs,
        **limits: Any,  # noqa: ANN401 - those of `ShardWriter`
    ) -> ShardWriter:
        """Start adding vectors; `attrs`, how they are made, are written into each shard."""
        if not os.access(self.path, os.W_OK):  # before anything is encoded
            msg = f"{self.path}: cannot be written to; expected a writable store. Change that."
            raise StoreUnreachable(msg)
        origin = {"kind": self.kind, "encoder": self.name, "fingerprint": self.fingerprint}
        return ShardWriter(self.path, self.info, attrs={**origin, **attrs}, **limits)

    def _unknown(self, name: str, stored: Iterable[str]) -> StoreError:
        msg = f"{self.path}: {name!r} is not stored; expected {' or '.join(stored)}."
        if "@" in name:
            layer = name.rpartition("@")[2]
            msg += f" To store it, run abag embed --layers {layer} into a new store."
        if name == LOGLIK:
            msg += " To store it, run abag embed --loglik into a new store."
        return StoreError(msg)

    # --- following what other processes add ---

    def _refresh(self) -> None:
        """Look for shards that other processes have added, and index all."""
        retrying(self.path, self._follow)
        shards = [self._open[name][1] for name in sorted(self._open)]
        if shards == self._shards:
            return
        self._skip_other_layouts(shards)
        self._shards = [shard for shard in shards if shard.path.name in self._open]
        self._index = KeyIndex([shard.keys for shard in self._shards])

    def _follow(self) -> None:
        """Open shards that appeared or changed, and forget those that are gone."""
        versions = self._versions()
        self._open = _unchanged(self._open, versions)
        self._damaged = _unchanged(self._damaged, versions)
        for name in sorted(versions.keys() - self._open.keys() - self._damaged.keys()):
            self._add(name, versions[name])

    def _skip_other_layouts(self, shards: Sequence[Shard]) -> None:
        """Skip shards whose arrays differ from those of most rows."""
        rows: Counter[str] = Counter()
        for shard in shards:
            rows[str(shard.layout)] += shard.rows
        for shard in shards:
            layout = str(shard.layout)
            most = rows.most_common(1)[0][0]
            if layout != most:
                self._skip(shard.path.name, f"{shard.path}: holds {layout}; most rows hold {most}.")

    def _versions(self) -> dict[str, FileVersion]:
        versions: dict[str, FileVersion] = {}
        if self._is_new:
            return versions
        with os.scandir(self.path) as entries:
            for entry in entries:
                # ._X.h5 are macOS' notes about the files X.h5 on a foreign disk
                if entry.name.endswith(".h5") and not entry.name.startswith("."):
                    state = entry.stat(follow_symlinks=False)
                    versions[entry.name] = (state.st_size, state.st_mtime_ns)
        return versions

    def _add(self, name: str, version: FileVersion) -> None:
        try:
            shard = open_shard(self.path / name)
            self._refuse_foreign(shard)
        except DamagedFile as error:
            self._skip(name, str(error), version)
        except FileNotFoundError:  # removed since the folder was listed
            return
        else:
            self._open[name] = (version, shard)

    def _refuse_foreign(self, shard: Shard) -> None:
        if not SHARD_NAME.fullmatch(shard.path.name):
            reason = (
                "is not the name of a shard; expected 32 hexadecimal digits and .h5. Remove a "
                "copy, or give it its name if the original is lost"
            )
            raise damaged_file(shard.path, reason)
        kind = shard.attrs.get("kind")
        fingerprint = shard.attrs.get("fingerprint")
        if kind != self.kind or fingerprint != self.fingerprint:
            reason = f"made by {kind} encoder {fingerprint}; expected {self.fingerprint}"
            raise damaged_file(shard.path, reason)
        head = shard.attrs.get("head", "")
        if head != self.head:
            reason = f"likelihoods of head {head or 'none'}; expected {self.head or 'none'}"
            raise damaged_file(shard.path, reason)
        stored = shard.widths
        last_layer = [name for name in stored if "@" not in name and name != LOGLIK]
        promised = [*last_layer, *self.info.get("poolings", ()), *([LOGLIK] if self.head else [])]
        for layer in self.layers:
            promised += [f"{name}@{layer}" for name in last_layer]
        lacking = [name for name in promised if name not in stored]
        if lacking:
            reason = (
                f"has no {lacking[0]}; {ENCODER_FILE} has the layers {list(self.layers) or 'none'} "
                f"and the poolings {self.info.get('poolings') or 'none'}, which all shards have to "
                "hold. Copy the whole folder again"
            )
            raise damaged_file(shard.path, reason)

    def _skip(self, name: str, problem: str, version: FileVersion | None = None) -> None:
        """Leave a damaged shard out until its file changes; `version` if it is not open."""
        if version is None:
            version, _ = self._open.pop(name)
        self._damaged[name] = (version, problem)
        say(f"{problem} It is skipped; what no other shard holds counts as missing.")

    def _is_whole(self, shard: Shard) -> bool:
        if shard not in self._verified and self._is_sound(shard, shard.check):
            self._verified.add(shard)
        return shard in self._verified

    def _is_sound(self, shard: Shard, read: Callable[[], None]) -> bool:
        """Read from a shard; one that proves damaged is skipped from now on."""

        def try_to_read() -> str:
            try:
                read()
            except DamagedFile as error:
                return str(error)
            except FileNotFoundError:
                return f"{shard.path}: was removed while it was read."
            return ""

        problem = retrying(self.path, try_to_read)
        if problem:
            self._skip(shard.path.name, problem)
        return not problem


def _unchanged(
    files: Mapping[str, tuple[FileVersion, T]], versions: Mapping[str, FileVersion]
) -> dict[str, tuple[FileVersion, T]]:
    """Return the files that are not gone and have no other version now."""
    return {name: file for name, file in files.items() if versions.get(name) == file[0]}


def _read_into(
    out: NDArray[Any],
    places: NDArray[np.int64],
    shard: Shard,
    name: str,
    rows: NDArray[np.int64],
) -> None:
    """Read the rows of one shard that belong to these places of `out`."""
    out[places] = shard.load_rows(name, rows[places])


# ---- all encoders --------------------------------------------------------------------------------

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
            The encoder's name, its folder's name, what ``abag embed`` was given, or the first
            digits of its fingerprint. By default, the only encoder of that kind.

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


def as_store(store: Store | Path | str | None) -> Store:
    """Open a store, unless it is open; raise `OptionError` if none is given."""
    if store is None:
        msg = "store=None: not given; expected a store with vectors. Pass store='PATH'."
        raise OptionError(msg)
    return store if isinstance(store, Store) else open_store(store)


def open_as(store_class: type[S], path: Path | str, *, create: bool) -> S:
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
    names = [folder.name, folder.path.name]
    if not folder.info.get("adapter"):  # which was made of an encoder with the same origin
        origin = str(folder.info.get("origin", folder.name))
        names.append(origin)
        if not names_folder(origin):  # of the hub, perhaps at a revision
            names.append(origin.partition("@")[0])
    if {Path(encoder), user_path(encoder, "encoder").resolve()} & {*map(Path, names)}:
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
        shown = f"a {type(sequences).__name__}" if is_table else quoted(sequences)
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
        msg = f"{quoted(sequence)} is not an {kind}; expected {expected}. Correct it."
        raise SequenceError(msg)
    if kind == "antibody":
        return parse_antibody(sequence_text(sequence)).chains
    return antigen(sequence)


def folder_with(
    store: Store, kind: Kind, encoder: str | None, keys: NDArray[np.uint8], source: str
) -> EncoderFolder:
    """Find the folder of an encoder, or of the only one, that holds every sequence of a table.

    Parameters
    ----------
    encoder : str, optional
        As for :meth:`Store.folder`.
    keys : ndarray, shape=(N, 16)
        Those of the sequences.
    source : str
        Name of the table, for messages.

    Raises
    ------
    MissingVectors
        If a sequence is not stored.
    StoreError
        If no encoder matches, or several do.
    """
    folder = store.folder(kind, encoder)
    missing = int(folder.missing(keys).sum())
    if missing:
        given = ["--store", str(store.path), "--kind", kind]
        for name, value in folder.encoder_options.items():
            given += [flag(name), value]
        msg = (
            f"{store.path}: {missing} of {len(keys)} {kind} sequences of {source} "
            f"have no vector from {folder.name}. Run abag embed on it with {shlex.join(given)}, "
            "and with the options that read its columns."
        )
        raise MissingVectors(msg)
    return folder
