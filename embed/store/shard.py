"""Shards: immutable HDF5 files of vectors, and the other files of a store.

A shard is named by the digest of its bytes. HDF5 keeps a checksum of every part and compares it at
each read; comparing the whole file with its name finds every other change. A file may come from
anybody: its links, types, sizes and filters are inspected before an array is read. Calls to a file
system that fails for a moment, such as that of a mounted Drive, are repeated.
docs/store-format.md is the specification.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from io import FileIO
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, NotRequired, TypedDict, TypeVar, cast
from uuid import uuid4

import h5py
import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import KEY_BYTES, sort_keys
from abag.core.errors import DamagedFile, OutputError, StoreError
from abag.core.files import (
    UnsafeFile,
    check_names,
    json_bytes,
    make_folder,
    open_regular,
    read_inside,
    write_bytes,
    write_json,
)
from abag.core.messages import first_line, say
from abag.core.options import names_folder, why_mistyped
from abag.embed.tables.chains import KINDS

RETRY_SECONDS = 60.0
REPORT_SECONDS = 5.0  # of failing, before the user is told that abag waits
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
COLAB_DRIVE = Path("/content/drive")
TRANSIENT = frozenset(
    (errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN)
)
VERSION = 2
FORMAT = f"abag-shard {VERSION}"
SHARD_NAME = re.compile(r"[0-9a-f]{32}\.h5")
LINKED = (
    "is a symbolic link, which is not followed; expected the file itself. Copy the store with the "
    "files that its links lead to: cp -rL or rsync -aL"
)
CHUNK_BYTES = 128 << 10  # reading a single row reads one chunk
MAX_ARRAYS = 64
MAX_ARRAY_BYTES = 256 << 20  # 4,096 rows of 16,384 float32; bounds the memory of one read
MAX_ATTR_BYTES = 1 << 16
MAX_OTHER_BYTES = 16 << 20  # of a file beside its arrays: attributes, and where the chunks are
_digest = partial(hashlib.blake2b, digest_size=16)
_FORMAT = re.compile(r"abag-shard (\d{1,9})")
_ERRNO = re.compile(r"\berrno = (\d{1,4})\b")  # in HDF5's text for a system call that failed
_ARRAY_NAME = re.compile(r"[a-z][a-z0-9_@]{0,63}")
Attrs = Mapping[str, str | int | float]
T = TypeVar("T")
STORE_FILE = "abag-store.json"
ENCODER_FILE = "encoder.json"
ADAPTER_FOLDER = "adapter"
ADAPTER_FILE = "adapter.json"
ROWS_FILE = "splits.parquet"
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
HASHED_FILES = {
    kind: (f"{kind}/{CONFIG_FILE}", f"{kind}/{WEIGHTS_FILE}", ROWS_FILE) for kind in KINDS
}
"""The files of an adapter for one kind of sequences that its digest covers."""
_ALL_FILES = {ADAPTER_FILE, *chain.from_iterable(HASHED_FILES.values())}
ADAPTER_PATHS = tuple(f"{ADAPTER_FOLDER}/{name}" for name in sorted(_ALL_FILES))
"""The files of an adapter by their paths in an encoder's folder."""
STORE_MARK = {"format": "abag-store", "version": 2}
OTHER_VERSION = (
    f"this abag reads {STORE_MARK}. Embed again into a new store, or use the version of abag that "
    "wrote it."
)
FOLDER_NAME = re.compile(r"(antibody|antigen)-([A-Za-z0-9._-]+)-([0-9a-f]{8})")
"""Name of an encoder's folder: kind, encoder, and the first 8 digits of its fingerprint."""
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
MAX_JSON_BYTES = 1 << 20


class UnreadableFile(DamagedFile):
    """The file system does not let this user read a file of a store; others may be readable."""


class StoreUnreachable(StoreError):
    """A store cannot be read or written; the message says where unwritten vectors are kept."""


def is_unmounted_drive(path: Path) -> bool:
    """Tell whether a path is under a Colab machine's Drive folder, where no Drive is mounted."""
    folders = [path.resolve(), *path.resolve().parents]
    if COLAB_DRIVE not in folders:
        return False
    inside = [folder for folder in folders if folder.is_relative_to(COLAB_DRIVE)]
    return not any(folder.is_mount() for folder in inside)


def retrying(path: Path, call: Callable[[], T], *, seconds: float | None = None) -> T:
    """Return what `call` returns, which is called again if the file system fails for a moment.

    "Transport endpoint is not connected" and other failures of a mounted Drive may last for
    seconds.

    Raises
    ------
    StoreUnreachable
        If the error is permanent, or lasts for `seconds`, by default `RETRY_SECONDS`.
    """
    patience_s = RETRY_SECONDS if seconds is None else seconds
    pause_s = FIRST_PAUSE_SECONDS
    failing_since_s = 0.0  # 0: has not failed
    is_reported = False
    while True:
        try:
            return call()
        except OSError as error:
            failing_since_s = failing_since_s or time.monotonic()
            failing_s = time.monotonic() - failing_since_s
            if error.errno not in TRANSIENT or failing_s >= patience_s:
                msg = (
                    f"{path}: cannot be accessed ({error}); expected a store that can be read "
                    "and written. Remove the cause, and run the command again."
                )
                raise StoreUnreachable(msg) from error
            if failing_s >= REPORT_SECONDS and not is_reported:
                say(f"{path}: does not respond ({error.strerror}); trying again.")
                is_reported = True
            time.sleep(min(pause_s, patience_s - failing_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_SECONDS)


class ArrayType(NamedTuple):
    """Dtype and shape of a stored array."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.shape[0] * self.row_bytes


@dataclass(frozen=True, eq=False)
class Shard:
    """Keys, lengths, vectors and flags of N sequences; made by :func:`open_shard`."""

    path: Path
    attrs: Attrs
    """How the vectors were made."""
    arrays: Mapping[str, ArrayType]
    """``key`` (N, 16) uint8, ``length`` (N,) int32, (N, D) floats per pooling, (N,) uint8 flags."""

    @property
    def rows(self) -> int:
        """Number of sequences, N."""
        return self.arrays["key"].shape[0]

    @property
    def widths(self) -> dict[str, int]:
        """Numbers per vector, D, of each pooling."""
        widths = {}
        for name, array in self.arrays.items():
            if len(array.shape) == 2 and name != "key":
                widths[name] = array.shape[1]
        return widths

    @property
    def number_format(self) -> str:
        """Type of the vectors: ``float16`` or ``float32``."""
        return self.number_format_of(next(iter(self.widths)))

    def number_format_of(self, pooling: str) -> str:
        """Return the type of a pooling, and that of the first for one that is not stored."""
        widths = self.widths
        name = pooling if pooling in widths else next(iter(widths))
        return np.dtype(self.arrays[name].dtype).name

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row of each array; the same in all shards of an encoder."""
        return {name: array.shape[1:] for name, array in self.arrays.items()}

    @cached_property
    def keys(self) -> NDArray[np.uint8]:
        """Keys of the sequences, shape (N, 16)."""
        return self.load("key")

    def load(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Read rows of one array; HDF5 compares them with their checksums.

        `DamagedFile` if the bytes are not those that were written, or a number is not finite.
        """
        with _opened(self.path) as file:
            values = self._read(file, name, start, stop)
        if _may_have_hole(values):
            check_digest(self.path)
        return values

    def load_rows(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read some rows of one array, shape (n,), in any order; errors as for :meth:`load`."""
        first = int(rows.min())
        return self.load(name, first, int(rows.max()) + 1)[rows - first]

    def check(self) -> None:
        """Compare every byte with the digest, and refuse NaN and infinity; `DamagedFile` if not."""
        check_digest(self.path)
        with _opened(self.path) as file:
            for name in self.widths:  # another's file may be named right and hold NaN
                self._read(file, name)

    def _read(
        self, file: h5py.File, name: str, start: int = 0, stop: int | None = None
    ) -> NDArray[Any]:
        dataset = _dataset(self.path, file, name)
        if ArrayType(dataset.dtype.str, dataset.shape) != self.arrays[name]:
            raise damaged_file(self.path, f"{name!r} has changed")
        values: NDArray[Any] = h5py.Dataset(dataset)[start:stop]
        if not np.isfinite(values).all():  # a writer refuses them, so that this is another's file
            raise damaged_file(self.path, f"{name!r} contains infinity or NaN")
        return values


# --- writing -------------------------------------------------------------------------------------


def shard_image(arrays: Mapping[str, NDArray[Any]], attrs: Attrs) -> bytes:
    """Lay out a shard; the same rows in another order give the same bytes."""
    types = {name: ArrayType(array.dtype.str, array.shape) for name, array in arrays.items()}
    _check_arrays(types)
    order, _ = sort_keys(arrays["key"])
    # earlier versions of HDF5's format have no checksums of names, types and attributes
    version = ("v110", "v110")
    # HDF5 tells files in memory apart by their names; other threads may have one open, too
    name_in_memory = f"shard-{uuid4().hex}"
    with h5py.File(
        name_in_memory, "w", driver="core", backing_store=False, libver=version, track_order=True
    ) as file:
        for name, value in {"format": FORMAT, **attrs}.items():
            file.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value
        for name, array in arrays.items():
            rows = max(1, min(len(array), CHUNK_BYTES // types[name].row_bytes))
            chunk = (rows, *array.shape[1:])
            file.create_dataset(name, data=array[order], chunks=chunk, fletcher32=True)
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def shard_name(image: bytes) -> str:
    """Name a shard by the digest of its bytes."""
    return f"{_digest(image).hexdigest()}.h5"


# --- reading -------------------------------------------------------------------------------------


def open_shard(path: Path) -> Shard:
    """Inspect a shard, and read its keys; `DamagedFile` if it is none."""
    with _opened(path) as file:
        shard = _inspect(path, file)
    _ = shard.keys
    return shard


def check_digest(path: Path) -> None:
    """Compare the bytes of a shard with its name; `DamagedFile` if they differ."""
    with open_file(path) as file:
        digest = hashlib.file_digest(file, _digest).hexdigest()
    if f"{digest}.h5" != path.name:
        raise damaged_file(path, "its bytes do not match the digest in its name")


def open_file(path: Path) -> FileIO:
    """Open a file of a store; `DamagedFile` if it is a link, a pipe, a folder, or too large."""
    try:
        file = open_regular(path)
    except UnsafeFile as error:
        if path.is_symlink():
            raise damaged_file(path, LINKED) from error
        raise damaged_file(path, "a link, a pipe or a folder; expected a regular file") from error
    except PermissionError as error:
        raise _unreadable(path) from error
    if os.fstat(file.fileno()).st_size > MAX_ARRAYS * MAX_ARRAY_BYTES:
        file.close()
        raise damaged_file(path, "larger than a shard can be")
    return file


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open a shard with HDF5, whose errors mean that it is damaged."""
    open_file(path).close()
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (DamagedFile, MemoryError):
        raise
    except Exception as error:  # HDF5 raises any kind for bytes that it does not understand
        match = _ERRNO.search(str(error))
        code = int(match[1]) if match else 0
        if code in (*TRANSIENT, errno.ENOENT):  # the file system has failed, not the file
            raise OSError(code, os.strerror(code), str(path)) from error
        raise damaged_file(path, f"HDF5 cannot read it ({first_line(error)})") from error


def _inspect(path: Path, file: h5py.File) -> Shard:
    """Read what a shard holds, and refuse what the format does not allow."""
    _refuse_large_attributes(path, file)
    attrs = _read_attrs(path, file)
    match = _FORMAT.fullmatch(str(attrs.pop("format", "")))
    if match is None:
        raise damaged_file(path, "not an abag shard")
    if int(match[1]) != VERSION:
        raise damaged_file(path, f"format version {match[1]}; this abag reads {VERSION}")
    arrays: dict[str, ArrayType] = {}
    stored_bytes: dict[str, int] = {}
    for encoded_name in file.id:
        name = encoded_name.decode()
        dataset = _dataset(path, file, name)
        arrays[name] = ArrayType(dataset.dtype.str, dataset.shape)
        stored_bytes[name] = dataset.get_storage_size()
    try:
        _check_arrays(arrays)
    except ValueError as error:
        raise damaged_file(path, str(error)) from error
    for name, array in arrays.items():
        if stored_bytes[name] < array.nbytes:  # HDF5 makes up the chunks that a file lacks
            raise damaged_file(path, f"{name!r} is not whole")
    return Shard(path, attrs, arrays)


def _refuse_large_attributes(path: Path, file: h5py.File) -> None:
    """Bound what the file holds beside arrays: HDF5 reads an attribute whole to tell its size."""
    if file.id.get_num_objs() > MAX_ARRAYS:
        raise damaged_file(path, f"more than {MAX_ARRAYS} arrays")
    other_bytes = file.id.get_filesize()
    for name in file.id:
        with suppress(DamagedFile, KeyError, ValueError):  # a link, or a group
            other_bytes -= _dataset(path, file, name.decode()).get_storage_size()
    if other_bytes > MAX_OTHER_BYTES:
        raise damaged_file(path, f"holds {other_bytes:,} bytes beside its arrays")


def _dataset(path: Path, file: h5py.File, name: str) -> h5py.h5d.DatasetID:
    """Open a dataset whose bytes are all in this file, under checksums."""
    if file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise damaged_file(path, f"{name!r} is a link")
    dataset = h5py.h5d.open(file.id, name.encode())
    created = dataset.get_create_plist()
    filters = [created.get_filter(i)[0] for i in range(created.get_nfilters())]
    # before anything else is asked: a virtual dataset opens other files to tell its shape
    if created.get_layout() != h5py.h5d.CHUNKED or filters != [h5py.h5z.FILTER_FLETCHER32]:
        raise damaged_file(path, f"{name!r} is not in chunks with the filter fletcher32 alone")
    if math.prod(created.get_chunk()) * dataset.dtype.itemsize > MAX_ARRAY_BYTES:
        raise damaged_file(path, f"{name!r} has chunks of {created.get_chunk()}")
    return dataset


def _read_attrs(path: Path, file: h5py.File) -> dict[str, str | int | float]:
    """Read the attributes of the root: numbers and strings."""
    if len(file.attrs) > MAX_ARRAYS:
        raise damaged_file(path, f"more than {MAX_ARRAYS} attributes")
    attrs: dict[str, str | int | float] = {}
    for name in file.attrs:
        stored = file.attrs.get_id(name)
        is_small = stored.shape == () and stored.get_storage_size() <= MAX_ATTR_BYTES
        value = file.attrs[name] if is_small else None
        value = value.item() if isinstance(value, np.generic) else value
        value = value.decode() if isinstance(value, bytes) else value
        if isinstance(value, str) and len(value) > MAX_ATTR_BYTES:  # of variable length
            raise damaged_file(path, f"attribute {name!r} has {len(value):,} characters")
        if not isinstance(value, str | int | float):
            raise damaged_file(path, f"attribute {name!r} is not a number or a string")
        attrs[name] = value
    return attrs


def _check_arrays(arrays: Mapping[str, ArrayType]) -> None:
    has_keys = {"key", "length"} <= arrays.keys()
    has_vectors = any(len(array.shape) == 2 and name != "key" for name, array in arrays.items())
    if not has_keys or not has_vectors or len(arrays) > MAX_ARRAYS:
        msg = f"arrays {list(arrays)[:MAX_ARRAYS]}"
        raise ValueError(msg)
    rows = arrays["key"].shape[:1]
    for name, array in arrays.items():
        is_valid = _ARRAY_NAME.fullmatch(name) and array.shape and _is_allowed(name, array)
        if not is_valid or rows < (1,) or array.shape[:1] != rows or array.nbytes > MAX_ARRAY_BYTES:
            msg = f"{name!r} is {array.dtype} of shape {array.shape} in a shard of {rows} rows"
            raise ValueError(msg)


def _is_allowed(name: str, array: ArrayType) -> bool:
    """Tell whether an array of this name may have this dtype and these rows."""
    row = array.shape[1:]
    if name == "key":
        return array.dtype == "|u1" and row == (KEY_BYTES,)
    if name == "length":
        return array.dtype == "<i4" and row == ()
    if array.dtype == "|u1":  # a flag
        return row == ()
    return array.dtype in ("<f2", "<f4") and len(row) == 1 and row[0] > 0


def _may_have_hole(part: NDArray[Any]) -> bool:
    """Tell whether rows are zero, which checksums cannot tell from a page that was never written.

    The fletcher32 of zeros is zero.
    """
    if part.ndim == 1:
        return not part.any()
    rows = part[part[:, 0] == 0]
    return not rows.any(axis=1).all()


def damaged_file(path: Path, reason: str) -> DamagedFile:
    """Make the error of a file of a store that is not what was written, and why."""
    return DamagedFile(f"{path}: {reason}.")


def _unreadable(path: Path) -> UnreadableFile:
    return UnreadableFile(
        f"{path}: cannot be read by this user (permission denied); expected the right to read it. "
        "Change its permissions."
    )


class _EncoderInfo(TypedDict):
    """What is read of encoder.json, beside the kind, the name and the fingerprint."""

    poolings: NotRequired[list[str]]
    loglik: NotRequired[str]
    adapter: NotRequired[str | None]
    origin: NotRequired[str]
    long: NotRequired[str]


def create_encoder_folder(path: Path, info: Mapping[str, object]) -> None:
    """Create the folder for the vectors of one encoder, and the store above it."""
    make_folder(path.parent)
    if not (path.parent / STORE_FILE).exists():  # first: it tells a store from any other folder
        write_json(path.parent / STORE_FILE, STORE_MARK)
    make_folder(path)
    write_json(path / ENCODER_FILE, info)


def read_encoder_info(path: Path) -> dict[str, Any]:
    """Read the encoder.json of a folder; `DamagedFile` if it has none that belongs there."""
    if path.is_symlink():
        raise damaged_file(path, LINKED)
    if not path.is_dir():
        raise damaged_file(path, "is not a folder")
    if not os.access(path, os.R_OK | os.X_OK):
        raise _unreadable(path)
    try:
        return check_encoder_info(path, read_record(path / ENCODER_FILE))
    except FileNotFoundError as error:
        raise damaged_file(path, f"has no {ENCODER_FILE}") from error


def folder_name(info: Mapping[str, object]) -> str:
    """Return the name of an encoder's folder, from the content of its encoder.json."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(info.get("name")))
    return f"{info.get('kind')}-{name}-{str(info.get('fingerprint'))[:8]}"


def check_encoder_info(path: Path, info: object) -> dict[str, Any]:
    """Return the content of encoder.json if it is valid and agrees with the folder's name."""
    if isinstance(info, dict) and isinstance(info.get("name"), str):
        is_its_name = FOLDER_NAME.fullmatch(path.name) and path.name == folder_name(info)
        if is_its_name and _FINGERPRINT.fullmatch(str(info.get("fingerprint"))):
            layers = info.get("layers", [])
            # type, not isinstance: true is an integer
            is_numbers = isinstance(layers, list) and all(type(n) is int and n > 0 for n in layers)
            if not is_numbers or len({*layers}) < len(layers):
                reason = f"has the layers {layers!r}; expected layer numbers, each once"
                raise damaged_file(path, f"{ENCODER_FILE} {reason}")
            if reason := why_mistyped(info, _EncoderInfo):
                reason = f"{ENCODER_FILE} is invalid: {reason}. Copy the whole folder again"
                raise damaged_file(path, reason)
            return info
    raise damaged_file(path, f"{ENCODER_FILE} does not match the folder's name")


def read_record(path: Path) -> object:
    """Read at most 1 MiB of JSON from a regular file; `DamagedFile` if it is something else."""
    with open_file(path) as file:
        text = file.read(MAX_JSON_BYTES)
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise damaged_file(path, f"is not valid JSON ({error})") from error


# --- the copy of an adapter, beside the vectors made with it --------------------------------------


def write_adapter_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write an adapter's files, by path, into an encoder's folder; existing files are kept."""
    check_names(folder, contents, ADAPTER_PATHS)
    for name, content in contents.items():
        path = folder / name
        make_folder(path.parent)
        if not path.exists():
            write_bytes(path, content)


def read_adapter_copy(folder: Path) -> dict[str, bytes]:
    """Read an adapter's files from an encoder's folder, by path; empty without an adapter."""
    contents = {}
    for name in ADAPTER_PATHS:
        with suppress(FileNotFoundError):
            contents[name] = read_inside(folder, name)
    return contents


def adapter_digest(weights: str, files: Mapping[str, bytes]) -> str:
    """Hash an adapter's files and the digest of its encoder's weights: 32 hexadecimal digits."""
    running = hashlib.blake2b(weights.encode(), digest_size=16)
    for name, content in sorted(files.items()):
        # with its length: else bytes could move from one file to the next
        running.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return running.hexdigest()


def why_adapter_lacks(path: Path, info: Mapping[str, Any]) -> str:
    """Say what an encoder's folder lacks of the adapter that encoder.json names; empty if nothing.

    The digest of the files is compared if encoder.json has that of the weights, too.
    """
    digest = info.get("adapter")
    if not digest:
        return ""
    hashed = HASHED_FILES[info["kind"]]
    copy = read_adapter_copy(path)
    files = {name.removeprefix(f"{ADAPTER_FOLDER}/"): content for name, content in copy.items()}
    problem = ""
    if missing := [name for name in (ADAPTER_FILE, *hashed) if name not in files]:
        problem = f"{ADAPTER_FOLDER}/{missing[0]} is missing"
    elif isinstance(weights := info.get("weights"), str):
        if adapter_digest(weights, {name: files[name] for name in hashed}) != digest:
            problem = "the files of its adapter are not those"
    if not problem:
        return ""
    named = f"{path}: {ENCODER_FILE} names the adapter {digest}"
    return f"{named}; {problem}. Copy the whole folder again."


# --- what leaves this machine when a store or a predictor is shared, without its paths ------------


def public_origin(origin: str) -> str:
    """Return where an encoder is from: its alias or hub name, or the last part of its folder."""
    return (PureWindowsPath(origin).name or origin) if names_folder(origin) else origin


def public_adapter_files(where: Path, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return an adapter's files by path, with the part of adapter.json that readers need."""
    try:
        return {name: _public(where, name, content) for name, content in files.items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        reason = f"its adapter cannot be read ({error}). Copy the whole folder again"
        raise damaged_file(where, reason) from error


def _public(where: Path, name: str, content: bytes) -> bytes:
    last = PurePosixPath(name).name
    if last == ADAPTER_FILE:
        record = json.loads(content)
        sides = {}
        for kind, side in record["sides"].items():
            sides[kind] = {**side, "encoder": public_origin(str(side["encoder"]))}
        kept = {name: record[name] for name in ("format", "version", "name")}
        return json_bytes({**kept, "sides": sides})
    if last == CONFIG_FILE:
        origin = str(json.loads(content)["base_model_name_or_path"])
        if names_folder(origin):
            msg = (
                f"{where}: {name} names the folder {origin}, which the adapter's digest covers; "
                "expected its last part alone, as abag adapt writes it. Adapt again, or share "
                "without the adapter."
            )
            raise OutputError(msg)
    return content
