"""Encoder weights on disk, the digest that identifies them, and low-rank changes to them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from abag import AbagError, cache_dir
from abag.core.files import write_bytes

if TYPE_CHECKING:
    import torch


class EncoderNotFound(AbagError):
    """An encoder name that is not an alias, a folder or an available hub name."""


class BadCheckpoint(AbagError):
    """A checkpoint folder that is incomplete or contradicts its config.json."""


class AdapterMismatch(AbagError):
    """An adapter that was trained on another encoder."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Low-rank matrices that are added to an encoder's weights."""

    folder: Path
    name: str  # of the folder in which it was trained; for display only
    digest: str  # covers the encoder's weights, the adapter's and its training pairs
    scale: float  # alpha / r
    # by module: A, shape (r, in), and B, shape (out, r)
    factors: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]

    def merge(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Add the change of a weight, named as in the transformers module.

        Returns
        -------
        Tensor, shape=(out, in)
            float32 if changed, else `weight` itself.
        """
        import torch

        module = name.removesuffix(".weight")
        if module not in self.factors or module == name:
            return weight
        a_RI, b_OR = self.factors[module]
        return weight.float() + torch.from_numpy(np.float32(self.scale) * (b_OR @ a_RI))

    def check_all_merged(self, merged: Iterable[str]) -> None:
        """Check that every change was merged into one of these weights.

        Raises
        ------
        AdapterMismatch
        """
        unmerged = sorted(self.factors.keys() - {name.removesuffix(".weight") for name in merged})
        if unmerged:
            msg = (
                f"{self.folder}: {len(unmerged)} of its {len(self.factors)} changes match no "
                f"weight of the encoder ({unmerged[0]}); train the adapter again with abag adapt."
            )
            raise AdapterMismatch(msg)


@dataclass(frozen=True, slots=True)
class EncoderCheckpoint:
    """An encoder's weights on disk."""

    name: str  # used in the store's folder names
    family: str  # see `abag.embed.families.registry`
    folder: Path | None  # None if there are no weights
    weights: tuple[Path, ...]  # sorted by name
    config: Mapping[str, Any]  # content of config.json
    origin: str  # alias, hub name or path as given; for display only
    random: bool = False  # whether the weights are random, so that the vectors carry no biology
    adapter: Adapter | None = None  # added to the weights when they are loaded

    def require(self, **settings: object) -> None:
        """Check that config.json, where it has these settings, gives them these values.

        Raises
        ------
        BadCheckpoint
        """
        for key, value in settings.items():
            if (found := self.config.get(key, value)) != value:
                msg = f"{self.folder}/config.json: {key} {found!r}; only {value!r} is supported"
                raise BadCheckpoint(msg)


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
    write_bytes(cached, digest)
    return digest
