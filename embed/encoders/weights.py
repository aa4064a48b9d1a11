"""Encoder weights on disk: names, values and digest of a checkpoint's tensors, and their adapters.

Every shape is checked, and no tensor is overlooked. torch is imported when a tensor is read: a
digest that the cache holds does without it.

An adapter, low-rank changes that are merged into the weights when they are loaded, is a folder
written by `abag adapt`:

    adapter.json          written last; the encoders it changes, by the digests of their weights
    splits.parquet        the split of every pair, and the pairs that the adapter was trained on
    antibody/, antigen/   adapter_model.safetensors and adapter_config.json, as peft writes them

A store keeps a copy with the vectors, to encode further sequences and to find out which labels the
vectors have seen.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError  # the error of torch.load(weights_only=True)
from typing import TYPE_CHECKING, Any, Self
from zipfile import is_zipfile

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from abag.core.errors import DamagedFile, EncoderError
from abag.core.files import cache_dir, check_names, load_cached, read_inside, store_cached
from abag.core.messages import first_line
from abag.embed.store.shard import (
    ADAPTER_FILE,
    ADAPTER_FOLDER,
    CONFIG_FILE,
    HASHED_FILES,
    WEIGHTS_FILE,
    adapter_digest,
    write_adapter_files,
)

if TYPE_CHECKING:
    import torch

    from abag.core.device import DevicePlan
    from abag.embed.store.store import EncoderFolder
    from abag.embed.tables.chains import Kind

WHOLE_FILES = ("model.safetensors", "pytorch_model.bin")
"""Weight files of a checkpoint that is not sharded, in the order of preference."""
_SHARD = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\.(safetensors|bin)")
"""Name of a file in an index of shards."""
_NOT_LEARNED = ("inv_freq", "rotary_emb.freqs", "position_ids")
"""Ends of names of tensors that are computed from config.json."""
_WRAPPER = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
"""What torch.compile, FSDP and activation checkpointing put into names; nothing else has these."""
_PARALLEL = "module."
"""What DistributedDataParallel puts before every name."""
# transformers reads, and some of its versions write, TensorFlow's names of the norms
_TENSORFLOW_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
ADAPTER_FORMAT = {"format": "abag-adapter", "version": 1}
"""Keys of adapter.json that say how to read it."""
PEFT_PREFIX = "base_model.model."
"""Prefix of every name in peft's files."""
_SIDE_KEYS = ("encoder", "weights", "digest")
"""What a reader needs of one encoder in adapter.json."""
_INVALID_ADAPTER = (
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    RecursionError,
    SafetensorError,
)
"""What content of the wrong kind raises where it is read."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Low-rank matrices that are added to an encoder's weights."""

    folder: Path
    name: str
    """Name of the folder in which it was trained; for display only."""
    digest: str
    """Hash of the encoder's weights, the adapter's and its training pairs."""
    scale: float
    """Factor of the product B A: alpha / r."""
    factors: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
    """Of each module: A, shape (r, in), and B, shape (out, r)."""

    def merge(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight, named as in the transformers module, with its change added.

        Raises
        ------
        EncoderError
            If the shapes of its factors do not fit the weight.
        """
        import torch

        module = name.removesuffix(".weight")
        if module not in self.factors or module == name:
            return weight
        a_RI, b_OR = self.factors[module]
        rank = len(a_RI) if a_RI.ndim else 0
        if (*b_OR.shape, *a_RI.shape) != (len(weight), rank, rank, *weight.shape[1:]):
            msg = (
                f"{self.folder}: its change of {module} has the shapes {b_OR.shape} and "
                f"{a_RI.shape}, the weight {tuple(weight.shape)}; train the adapter again with "
                "abag adapt."
            )
            raise EncoderError(msg)
        return weight.float() + torch.from_numpy(np.float32(self.scale) * (b_OR @ a_RI))

    def check_all_merged(self, merged: Iterable[str]) -> None:
        """Check that every change was merged into one of these weights, or raise `EncoderError`."""
        modules = {name.removesuffix(".weight") for name in merged}
        unmerged = sorted(self.factors.keys() - modules)
        if unmerged:
            msg = (
                f"{self.folder}: {len(unmerged)} of its {len(self.factors)} changes match no "
                f"weight of the encoder ({unmerged[0]}); train the adapter again with abag adapt."
            )
            raise EncoderError(msg)


@dataclass(frozen=True, slots=True)
class WeightNames:
    """The tensors of a checkpoint that belong to the encoder, by their names."""

    prefix: str = ""
    """Prefix of the encoder's tensors in a model with a task head."""
    unused: tuple[str, ...] = ()
    """Prefixes, inside the encoder, of tensors that it does not need."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Second names of tensors, with which transformers computes, and the first name of each."""
    only: tuple[str, ...] = ()
    """Names of the only tensors that are needed; empty: all that are not `unused`."""

    def of_encoder(self, names: Collection[str]) -> dict[str, str]:
        """Map names in the encoder's module, as transformers defines it, to those in the files.

        Raises
        ------
        EncoderError
            If two tensors of the files have the same name in the module.
        """
        bare = {name: _WRAPPER.sub("", name) for name in names}
        while bare and all(name.startswith(_PARALLEL) for name in bare.values()):
            bare = {stored: name.removeprefix(_PARALLEL) for stored, name in bare.items()}
        inside = [name for name in names if bare[name].startswith(self.prefix)] or names
        stored: dict[str, str] = {}
        for name in sorted(inside):
            in_module = bare[name].removeprefix(self.prefix)
            for theirs, ours in _TENSORFLOW_NAMES.items():
                in_module = in_module.replace(theirs, ours)
            if in_module.startswith(self.unused) or in_module.endswith(_NOT_LEARNED):
                continue
            if in_module in stored:
                msg = f"{stored[in_module]} and {name} are both weight {in_module} of the encoder"
                raise EncoderError(msg)
            stored[in_module] = name
        for second, first in self.tied.items():
            if second in stored:
                stored[first] = stored.pop(second)
        if not self.only:
            return stored
        return {name: stored[name] for name in self.only if name in stored}


@dataclass(frozen=True, slots=True)
class EncoderCheckpoint:
    """An encoder's weights on disk."""

    name: str
    """Name that the store's folders have."""
    family: str
    """Name of the family, see `abag.embed.encoders.families`."""
    folder: Path | None
    """Folder of the files; None if there are no weights."""
    weights: tuple[Path, ...]
    """Files that hold tensors of the encoder, sorted by name."""
    config: Mapping[str, Any]
    """Content of config.json."""
    origin: str
    """Alias, hub name or absolute path, by which it is found again."""
    random: bool = False
    """Whether the weights are random, so that the vectors carry no biology."""
    adapter: Adapter | None = None
    """Adapter that is added to the weights when they are loaded; None without one."""
    names: WeightNames = WeightNames()


def weight_files(folder: Path, names: WeightNames) -> tuple[Path, ...]:
    """Return the files, or the shards, of a folder that hold weights of the encoder, if any.

    Raises
    ------
    EncoderError
        If an index of shards cannot be read, or some of its shards are missing.
    """
    for whole in WHOLE_FILES:
        if (folder / whole).is_file():
            return (folder / whole,)
        if (index := folder / f"{whole}.index.json").is_file():
            shards = tuple(folder / name for name in shard_names(index, names))
            missing = [shard.name for shard in shards if not shard.is_file()]
            if missing:
                msg = (
                    f"{folder}: {len(missing)} of {len(shards)} shards in {index.name} are "
                    f"missing ({', '.join(missing[:3])}); the download may be incomplete"
                )
                raise EncoderError(msg)
            return shards
    return ()


def shard_names(index: Path, names: WeightNames) -> list[str]:
    """Return the names of the shards that hold encoder weights, from a checkpoint's index.

    Raises
    ------
    EncoderError
        If the file is not an index of weights.
    UnsafeFile
        If the name of a shard is not that of a file of weights in the same folder.
    """
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        shard_of: Mapping[str, str] = content["weight_map"]
        needed = names.of_encoder(shard_of).values()
        shards = sorted({str(shard_of[stored]) for stored in needed})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{index}: not an index of weights ({error!r}); copy the file again"
        raise EncoderError(msg) from error
    allowed = [shard for shard in shards if _SHARD.fullmatch(shard)]
    check_names(index, shards, allowed)
    return shards


class EncoderTensors:
    """A context manager for the tensors of an encoder, by names in its transformers module.

    `read` maps each name to a function that returns the tensor on the CPU, as it is stored;
    safetensors are mapped into memory rather than read. Files that cannot be read, or hold
    something other than tensors, raise `EncoderError` on entry.
    """

    def __init__(self, checkpoint: EncoderCheckpoint) -> None:
        self.read: dict[str, Callable[[], torch.Tensor]] = {}
        self._checkpoint = checkpoint
        self._files = ExitStack()

    def __enter__(self) -> Self:
        readers: dict[str, Callable[[], torch.Tensor]] = {}
        for path in self._checkpoint.weights:
            try:
                readers |= self._open(path)
            except UnpicklingError as error:
                raise _other_than_tensors(path) from error
            except (OSError, SafetensorError, RuntimeError, EOFError) as error:
                msg = (
                    f"{path}: cannot be read ({first_line(error)}); the download may be incomplete"
                )
                raise EncoderError(msg) from error
        names = self._checkpoint.names.of_encoder(readers)
        self.read = {name: readers[stored] for name, stored in names.items()}
        return self

    def _open(self, path: Path) -> dict[str, Callable[[], torch.Tensor]]:
        if path.suffix == ".safetensors":
            file = self._files.enter_context(safe_open(path, framework="pt"))
            return {name: partial(file.get_tensor, name) for name in file.keys()}
        import torch

        # files of torch before 1.6 are no zip archives, and cannot be mapped
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
        if not isinstance(tensors, dict):
            raise _other_than_tensors(path)
        for name, tensor in tensors.items():
            if not (isinstance(name, str) and torch.is_tensor(tensor)):
                raise _other_than_tensors(path)
        return {name: partial(tensors.__getitem__, name) for name in tensors}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._files.close()


def _other_than_tensors(path: Path) -> EncoderError:
    # torch's own text says how to run the code
    return EncoderError(
        f"{path}: holds something other than named tensors, which could run code when it is read; "
        "expected the weights of a model. Have its owner save it with save_pretrained, which "
        "writes model.safetensors."
    )


class EncoderWeights(EncoderTensors):
    """A reader of an encoder's tensors by name, straight to the device, with its adapter merged.

    As a context manager it accounts for every tensor: one that was not read is an `EncoderError`
    at exit, because a checkpoint that is only partly understood gives wrong vectors.
    """

    def __init__(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
        super().__init__(checkpoint)
        self.config: Mapping[str, Any] = checkpoint.config
        self._plan = plan
        self._done: set[str] = set()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        super().__exit__(kind)
        if kind is not None:
            return
        if self._checkpoint.adapter is not None:
            self._checkpoint.adapter.check_all_merged(self._done)
        if unread := sorted(self.read.keys() - self._done):
            msg = (
                f"{self._checkpoint.folder}: {len(unread)} weights are not part of a "
                f"{self._checkpoint.family} encoder as config.json describes it "
                f"({', '.join(unread[:3])})"
            )
            raise EncoderError(msg)

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Read one tensor of the given shape, in `dtype` or else in the plan's type.

        Raises
        ------
        EncoderError
            If it is missing, quantised or of another shape.
        """
        if name not in self.read:
            raise EncoderError(self._explain_missing(name))
        tensor = self.read[name]()
        self._done.add(name)
        if not tensor.is_floating_point() or tensor.element_size() < 2:  # int8, float8
            msg = (
                f"{self._checkpoint.folder}: weight {name} holds {tensor.dtype}, a quantised "
                "value; expected floating-point weights. Give the model that was quantised."
            )
            raise EncoderError(msg)
        if tuple(tensor.shape) != shape:
            msg = (
                f"{self._checkpoint.folder}: weight {name} has shape {tuple(tensor.shape)}, "
                f"config.json says {shape}"
            )
            raise EncoderError(msg)
        if self._checkpoint.adapter is not None:
            tensor = self._checkpoint.adapter.merge(name, tensor)
        return tensor.to(self._plan.device, dtype or self._plan.dtype)

    def _explain_missing(self, name: str) -> str:
        folder = self._checkpoint.folder
        longer_names = [stored for stored in self.read if stored.endswith(f".{name}")]
        if not longer_names:
            return f"{folder}: weight {name} is missing; the download may be incomplete"
        example = min(longer_names, key=len)
        prefix = example.removesuffix(name)
        return (
            f"{folder}: its weights begin with {prefix!r}, as {example}; expected {name}. Save "
            "them without this prefix."
        )

    def stacked(
        self, at: str, names: Collection[str], rows: int, columns: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Read matrices of one height in a layer as one, shape (rows, columns)."""
        import torch

        part = rows // len(names)
        return torch.cat([self(f"{at}.{x}.weight", part, columns, dtype=dtype) for x in names])

    def norm(self, name: str, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Read weight and bias of a layer norm, each shape (width,), dtype=float32."""
        import torch

        weight = self(f"{name}.weight", width, dtype=torch.float32)
        bias = self(f"{name}.bias", width, dtype=torch.float32)
        return weight, bias


# --- the digest -----------------------------------------------------------------------------------


def weights_digest(checkpoint: EncoderCheckpoint) -> str:
    """Hash the encoder's tensors: 32 hexadecimal digits, or an empty string without weights.

    docs/store-format.md specifies the digest, which the cache keeps. It does not depend on file
    format, shards, order, task heads, or on whether values are stored in a half-precision type or
    in float32.
    """
    if not checkpoint.weights:
        return ""
    identity = hashlib.blake2b(f"tensors 3\0{checkpoint.names}".encode(), digest_size=16)
    for path in checkpoint.weights:
        stat = path.stat()
        # inode and change time, too: images built to be reproducible give all files the same time
        numbers = (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
        identity.update(f"\0{path.resolve()}\0{numbers}\0".encode())
    cache = cache_dir() / "digests"
    entry = identity.digest()
    digest = load_cached(cache, entry)
    if digest is None:
        with EncoderTensors(checkpoint) as tensors:
            digests = [_hash_tensor(name, tensors.read[name]()) for name in sorted(tensors.read)]
        digest = blake3(b"".join(digests)).digest(length=16)
        store_cached(cache, entry, digest)
    return digest.hex()


def _hash_tensor(name: str, tensor: torch.Tensor) -> bytes:
    import torch

    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()  # exact: the same weights have one digest in either type
    kind = str(tensor.dtype).removeprefix("torch.")
    header = f"{name}\0{kind}\0{','.join(map(str, tensor.shape))}\0".encode()
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    # blake3 divides a large tensor among all cores
    return blake3(header, max_threads=blake3.AUTO).update(flat.numpy().data).digest()


# --- adapters -------------------------------------------------------------------------------------


def with_adapter(
    checkpoint: EncoderCheckpoint,
    weights: str,
    folder: Path,
    record: Mapping[str, Any],
    kind: Kind,
) -> EncoderCheckpoint:
    """Return a checkpoint that merges an adapter into its weights when it is loaded.

    Parameters
    ----------
    checkpoint : EncoderCheckpoint
    weights : str
        Digest of the checkpoint's weights, from `weights_digest`.
    folder : path
        The folder of the adapter.
    record : mapping
        From `read_adapter_record`.
    kind : {"antibody", "antigen"}
        The kind of sequence that the encoder is for.

    Raises
    ------
    EncoderError
        If the adapter was trained on other weights.
    DamagedFile
        If its files are incomplete, or not those that were written.
    """
    trained = record["sides"][kind]
    if trained["weights"] != weights:
        msg = (
            f"{folder}: trained on {trained['encoder']} with weights {trained['weights']}; "
            f"{checkpoint.name} has weights {weights or 'none'}. Give --{kind}-encoder "
            f"{shlex.quote(trained['encoder'])}, or an adapter of {checkpoint.name}."
        )
        raise EncoderError(msg)
    files = read_adapter_files(folder, kind)
    if adapter_digest(weights, files) != trained["digest"]:
        msg = (
            f"{folder}: the files do not match {ADAPTER_FILE} (digest differs). "
            "Copy the whole folder again."
        )
        raise DamagedFile(msg)
    adapter = _parse_adapter(folder, record, kind, files)
    return replace(checkpoint, name=f"{checkpoint.name}-{adapter.name}", adapter=adapter)


def _parse_adapter(
    folder: Path, record: Mapping[str, Any], kind: Kind, files: Mapping[str, bytes]
) -> Adapter:
    a_end = ".lora_A.weight"
    b_end = ".lora_B.weight"
    try:
        config = json.loads(files[f"{kind}/{CONFIG_FILE}"])
        scale = float(config["lora_alpha"] / config["r"])
        tensors = {}
        for name, tensor in load(files[f"{kind}/{WEIGHTS_FILE}"]).items():
            tensors[name.removeprefix(PEFT_PREFIX)] = tensor
        modules = sorted(name.removesuffix(a_end) for name in tensors if name.endswith(a_end))
        factors = {module: (tensors[module + a_end], tensors[module + b_end]) for module in modules}
        if not math.isfinite(scale):
            msg = f"lora_alpha / r is {scale}"
            raise ValueError(msg)
    except _INVALID_ADAPTER as error:  # anybody may have written and signed them
        msg = f"{folder}: its files cannot be read ({error!r}). Copy the whole folder again."
        raise DamagedFile(msg) from error
    return Adapter(folder, record["name"], record["sides"][kind]["digest"], scale, factors)


def read_adapter_files(folder: Path, kind: Kind) -> dict[str, bytes]:
    """Read the files of an adapter for one kind of sequence, by path in its folder.

    Raises
    ------
    DamagedFile
        If one is missing or cannot be read.
    """
    try:
        return {name: read_inside(folder, name) for name in HASHED_FILES[kind]}
    except OSError as error:
        msg = f"{folder}: incomplete ({error}). Copy the whole folder again."
        raise DamagedFile(msg) from error


def copy_adapter(adapter: Adapter, folder: EncoderFolder) -> None:
    """Copy an encoder's adapter into its folder of a store."""
    files = read_adapter_files(adapter.folder, folder.kind)
    # written last: the copy is complete
    files[ADAPTER_FILE] = read_inside(adapter.folder, ADAPTER_FILE)
    copies = {f"{ADAPTER_FOLDER}/{name}": data for name, data in files.items()}
    write_adapter_files(folder.path, copies)


def read_adapter_record(folder: Path, kind: Kind) -> dict[str, Any]:
    """Read what an adapter of encoders of one kind is and was trained on, from adapter.json.

    Raises
    ------
    EncoderError
        If the adapter is not finished, or was trained for another kind.
    DamagedFile
        If adapter.json lacks what is needed.
    """
    path = folder / ADAPTER_FILE
    try:
        record = json.loads(read_inside(folder, ADAPTER_FILE))
    except (OSError, ValueError, RecursionError) as error:
        remedy = "Run that command until it finishes."
        if (folder.parent / ADAPTER_FILE).exists():
            remedy = f"Give {folder.parent}."
        elif (folder / CONFIG_FILE).exists():
            remedy = (
                "Merge an adapter of peft into its model (merge_and_unload, save_pretrained), and "
                f"give the merged folder as --{kind}-encoder."
            )
        msg = (
            f"{folder}: no finished adapter (cannot read {ADAPTER_FILE}); expected the --out "
            f"folder of abag adapt. {remedy}"
        )
        raise EncoderError(msg) from error
    if not isinstance(record, dict) or not ADAPTER_FORMAT.items() <= record.items():
        msg = (
            f"{path}: not a supported adapter; this abag reads {ADAPTER_FORMAT}. Adapt again, or "
            "use the version of abag that wrote it."
        )
        raise EncoderError(msg)
    sides: Any = record.get("sides")
    texts = [record.get("name")]
    for side in sides.values() if isinstance(sides, dict) else ():
        digests = side if isinstance(side, dict) else {}
        texts += [digests.get(key) for key in _SIDE_KEYS]
    if len(texts) == 1 or not all(isinstance(text, str) for text in texts):
        msg = f"{path}: lacks the name or the digests of an adapter. Copy the whole folder again."
        raise DamagedFile(msg)
    if kind not in sides:
        msg = (
            f"{folder}: adapts {' and '.join(sides)}, not {kind}; expected an adapter of "
            f"{kind} encoders. Omit --{kind}-adapter, or train one with --sides {kind}."
        )
        raise EncoderError(msg)
    return record
