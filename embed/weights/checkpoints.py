"""Encoder weights on disk, the names of their tensors, and low-rank changes to them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.core.names import check_names

if TYPE_CHECKING:
    import torch


WHOLE_FILES = ("model.safetensors", "pytorch_model.bin")
"""Weight files of a checkpoint that is not sharded, in the order of preference."""
_SHARD = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\.(safetensors|bin)")
"""Name of a file in an index of shards."""
_NOT_LEARNED = ("inv_freq", "rotary_emb.freqs", "position_ids", "_extra_state")
"""Ends of names of tensors that are computed from config.json, or are the state of a library."""
_TENSORFLOW_NAMES = {
    # transformers reads, and some of its versions write, TensorFlow's names of the norms
    "LayerNorm.gamma": ("LayerNorm.weight",),
    "LayerNorm.beta": ("LayerNorm.bias",),
}


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

        Raises
        ------
        AdapterMismatch
            If the change has another shape.
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
            raise AdapterMismatch(msg)
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


class Stored(NamedTuple):
    """Where a tensor is in the files: under this name, alone or as one of equal parts by rows."""

    name: str
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Which tensors of a checkpoint belong to the encoder, and their names in its module.

    A model with a task head holds the encoder as one of its parts: its files have a prefix that
    those of the encoder alone lack.
    """

    prefix: str = ""
    unused: tuple[str, ...] = ()  # prefixes, inside the encoder, of tensors that it does not need
    tied: Mapping[str, str] = field(default_factory=dict)  # second names of one tensor
    # parts of names in another layout, and what the module has instead: several, if fused by rows
    other_layout: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of_encoder(self, names: Collection[str]) -> dict[str, Stored]:
        """Map names in the encoder's module, as transformers defines it, to places in the files.

        Raises
        ------
        BadCheckpoint
            If two tensors have the same name in the module.
        """
        inside = [name for name in names if name.startswith(self.prefix)] or names
        found: dict[str, Stored] = {}
        for name in sorted(inside):
            in_module = self._in_module(name.removeprefix(self.prefix))
            for part, own in enumerate(in_module):
                if own.startswith(self.unused) or own.endswith(_NOT_LEARNED):
                    continue
                if own in found:
                    msg = f"{found[own].name} and {name} are both weight {own} of the encoder"
                    raise BadCheckpoint(msg)
                found[own] = Stored(name, part, len(in_module))
        for second, first in self.tied.items():
            if second in found:
                found.setdefault(first, found.pop(second))
        return found

    def _in_module(self, name: str) -> list[str]:
        """Return the module's names of what a tensor of the files holds."""
        names = [name]
        for other, own in {**_TENSORFLOW_NAMES, **self.other_layout}.items():
            if other in name:
                names = [n.replace(other, part) for n in names for part in own]
        return names


@dataclass(frozen=True, slots=True)
class EncoderCheckpoint:
    """An encoder's weights on disk."""

    name: str  # used in the store's folder names
    family: str  # see `abag.embed.families.registry`
    folder: Path | None  # None if there are no weights
    weights: tuple[Path, ...]  # files that hold tensors of the encoder, sorted by name
    config: Mapping[str, Any]  # content of config.json
    origin: str  # alias, hub name or path as given; for display only
    random: bool = False  # whether the weights are random, so that the vectors carry no biology
    adapter: Adapter | None = None  # added to the weights when they are loaded
    names: WeightNames = WeightNames()


def weight_files(folder: Path, names: WeightNames) -> tuple[Path, ...]:
    """Return the files of a folder that hold encoder weights, in the format transformers prefers.

    Of a sharded checkpoint, these are the shards that its index names for the encoder. Without
    any weights the result is empty.

    Raises
    ------
    BadCheckpoint, UnsafeFile
        An index that cannot be read, or names a shard that is missing or not in the folder.
    """
    for whole in WHOLE_FILES:
        if (folder / whole).is_file():
            return (folder / whole,)
        if (index := folder / f"{whole}.index.json").is_file():
            shards = tuple(folder / name for name in shard_names(index, names))
            if missing := [shard.name for shard in shards if not shard.is_file()]:
                msg = (
                    f"{folder}: {len(missing)} of {len(shards)} shards in {index.name} are "
                    f"missing ({', '.join(missing[:3])}); the download may be incomplete"
                )
                raise BadCheckpoint(msg)
            return shards
    return ()


def shard_names(index: Path, names: WeightNames) -> list[str]:
    """Return the names of the shards that hold encoder weights, from a checkpoint's index.

    Raises
    ------
    BadCheckpoint
        If the file is not an index.
    UnsafeFile
        If it contains a name that is not that of a weight file.
    """
    try:
        shards: Mapping[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        found = sorted({str(shards[stored.name]) for stored in names.of_encoder(shards).values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{index}: not an index of weights ({error!r}); copy the file again"
        raise BadCheckpoint(msg) from error
    check_names(index, found, {name for name in found if _SHARD.fullmatch(name)})
    return found
