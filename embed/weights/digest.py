"""The digest that identifies an encoder's weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from abag import cache_dir
from abag.core.cache import keep, kept
from abag.embed.weights.checkpoints import EncoderCheckpoint

if TYPE_CHECKING:
    import torch

_SAMPLES, _SAMPLE_BYTES = 64, 4096


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
    from abag.embed.weights.tensors import EncoderTensors

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
