"""Named tensors of a checkpoint, and the digest that identifies them.

Every shape is checked, and no tensor is overlooked. torch is imported when a tensor is read: a
digest that the cache holds does without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pickle import UnpicklingError  # the error of torch.load(weights_only=True)
from typing import TYPE_CHECKING, Any, Self
from zipfile import is_zipfile

from blake3 import blake3
from safetensors import SafetensorError, safe_open

from abag.core.cache import cache_dir, keep, kept
from abag.core.messages import first_line
from abag.embed.weights.checkpoints import BadCheckpoint, EncoderCheckpoint, Stored

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from abag.core.device import DevicePlan

_SAMPLES, _SAMPLE_BYTES = 64, 4096


class EncoderTensors:
    """The tensors of an encoder, by their names in its transformers module.

    A context manager. `read` maps each name to a function that returns the tensor on the CPU, as
    it is stored; safetensors are mapped into memory rather than read.

    Raises
    ------
    BadCheckpoint
        A file that cannot be read, on entry.
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
                raise BadCheckpoint(msg) from error
        names = self._checkpoint.names.of_encoder(readers)
        self.read = {n: partial(_read, readers[stored.name], stored) for n, stored in names.items()}
        return self

    def _open(self, path: Path) -> dict[str, Callable[[], torch.Tensor]]:
        if path.suffix == ".safetensors":
            file = self._files.enter_context(safe_open(path, framework="pt"))
            return {name: partial(file.get_tensor, name) for name in file.keys()}
        import torch

        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
        whole = isinstance(tensors, dict) and all(torch.is_tensor(x) for x in tensors.values())
        if not whole or not all(isinstance(name, str) for name in tensors):
            raise _other_than_tensors(path)
        return {name: partial(tensors.get, name) for name in tensors}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._files.close()


def _read(whole: Callable[[], torch.Tensor], stored: Stored) -> torch.Tensor:
    tensor = whole()
    if stored.parts == 1:
        return tensor
    # a file may hold a single number, too: parts of wrong shapes are refused where they are used
    return tensor.reshape(tensor.shape or (1,)).tensor_split(stored.parts)[stored.part]


def _other_than_tensors(path: Path) -> BadCheckpoint:
    """Return the error of a pickled file; torch's own text says how to run code from it."""
    return BadCheckpoint(
        f"{path}: holds something other than named tensors, which could run code when it is read; "
        "expected the weights of a model. Download the file again, or have its owner save the "
        "model with save_pretrained, which writes model.safetensors."
    )


class EncoderWeights(EncoderTensors):
    """Reads an encoder's tensors by name, straight to the device, with its adapter merged.

    A context manager that accounts for every tensor: one that was not read is an error at exit,
    because a checkpoint that is only partly understood gives wrong vectors.

    Raises
    ------
    BadCheckpoint
        A file that cannot be read, on entry; unknown tensors, at exit.
    AdapterMismatch
        At exit, an adapter with changes that match no tensor.
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
            raise BadCheckpoint(msg)

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Read one tensor of the given shape, in `dtype` or else in the plan's type.

        Raises
        ------
        BadCheckpoint
            A tensor that is missing or has another shape.
        """
        if name not in self.read:
            folder = self._checkpoint.folder
            msg = f"{folder}: weight {name} is missing; the download may be incomplete"
            raise BadCheckpoint(msg)
        tensor = self.read[name]()
        self._done.add(name)
        if tuple(tensor.shape) != shape:
            msg = (
                f"{self._checkpoint.folder}: weight {name} has shape {tuple(tensor.shape)}, "
                f"config.json says {shape}"
            )
            raise BadCheckpoint(msg)
        if self._checkpoint.adapter is not None:
            tensor = self._checkpoint.adapter.merge(name, tensor)
        return tensor.to(self._plan.device, dtype or self._plan.dtype)

    def norm(self, name: str, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Read weight and bias of a layer norm, each shape (width,), dtype=float32."""
        import torch

        weight, bias = (
            self(f"{name}.{part}", width, dtype=torch.float32) for part in ("weight", "bias")
        )
        return weight, bias


# --- the digest -----------------------------------------------------------------------------------


def weights_digest(checkpoint: EncoderCheckpoint) -> str:
    """Hash the encoder's tensors: 32 hexadecimal digits, or an empty string without weights.

    docs/store-format.md specifies the digest, which the cache keeps. It does not depend on file
    format, shards, order, task heads, or on whether values are stored in a half-precision type or
    in float32.

    Raises
    ------
    BadCheckpoint
        Weights that cannot be read.
    """
    if not checkpoint.weights:
        return ""
    identity = hashlib.blake2b(f"tensors\0{checkpoint.names}".encode(), digest_size=16)
    for path in checkpoint.weights:
        identity.update(_file_identity(path))
    cache, entry = cache_dir() / "digests", identity.digest()
    digest = kept(cache, entry)
    if digest is None:
        digest = _hash_tensors(checkpoint)
        keep(cache, entry, digest)
    return digest.hex()


def _hash_tensors(checkpoint: EncoderCheckpoint) -> bytes:
    with EncoderTensors(checkpoint) as tensors:
        digests = [_hash_tensor(name, tensors.read[name]()) for name in sorted(tensors.read)]
    return blake3(b"".join(digests)).digest(length=16)


def _hash_tensor(name: str, tensor: torch.Tensor) -> bytes:
    import torch

    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()
    kind = str(tensor.dtype).removeprefix("torch.")
    header = f"{name}\0{kind}\0{','.join(map(str, tensor.shape))}\0".encode()
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    # blake3 divides a large tensor among all cores
    return blake3(header, max_threads=blake3.AUTO).update(flat.numpy().data).digest()


def _file_identity(path: Path) -> bytes:
    """Describe a file by its place, its size, its times, and a sample of its bytes.

    Images that are built to be reproducible give all files the same time, so path, size and time
    alone could be those of other weights.
    """
    stat = path.stat()
    numbers = (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    return f"\0{path.resolve()}\0{numbers}\0".encode() + _sample(path, stat.st_size)


def _sample(path: Path, size: int) -> bytes:
    """Read a few bytes from all over a file."""
    with path.open("rb") as file:
        found = b""
        for i in range(_SAMPLES):
            file.seek(max(size - _SAMPLE_BYTES, 0) * i // (_SAMPLES - 1))
            found += file.read(_SAMPLE_BYTES)
    return found
