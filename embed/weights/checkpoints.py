"""Encoder weights on disk, and the digest that identifies them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abag import AbagError, cache_dir
from abag.core.files import write_bytes

if TYPE_CHECKING:
    from abag.embed.weights.low_rank import Adapter


class EncoderNotFound(AbagError):
    """An encoder name that is not an alias, a folder or an available hub name."""


class BadCheckpoint(AbagError):
    """A checkpoint folder that is incomplete or contradicts its config.json."""


@dataclass(frozen=True, slots=True)
class EncoderCheckpoint:
    """An encoder's weights on disk.

    Attributes
    ----------
    name : str
        Short name, used in the store's folder names.
    family : str
        Name of its family; see `abag.embed.families.registry`.
    folder : Path or None
        None if there are no weights.
    weights : tuple of Path
        The weight files, sorted by name.
    config : mapping
        Content of config.json.
    origin : str
        Alias, hub name or path as given; for display only.
    random : bool
        Whether the weights are random, so that the vectors carry no biology.
    adapter : Adapter or None
        Added to the weights when they are loaded.
    """

    name: str
    family: str
    folder: Path | None
    weights: tuple[Path, ...]
    config: Mapping[str, Any]
    origin: str
    random: bool = False
    adapter: Adapter | None = None


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the weight files of a checkpoint folder, safetensors if it has both formats."""
    safetensors = sorted(folder.glob("*.safetensors"))
    return tuple(safetensors or sorted(folder.glob("pytorch_model*.bin")))


def weights_digest(checkpoint: EncoderCheckpoint) -> str:
    """Hash the weight files: 32 hexadecimal digits, or an empty string without weights.

    Hashing 5 GB takes seconds, so each file's digest is cached by path, size and modification
    time.
    """
    if not checkpoint.weights:
        return ""
    total = hashlib.blake2b(digest_size=16)
    for path in checkpoint.weights:
        total.update(_file_digest(path))
    return total.hexdigest()


def _file_digest(path: Path) -> bytes:
    stat = path.stat()
    identity = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    name = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
    cached = cache_dir() / "digests" / name
    if cached.is_file() and len(digest := cached.read_bytes()) == 16:
        return digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
    cached.parent.mkdir(exist_ok=True)
    write_bytes(cached, digest, concurrent=True)
    return digest
