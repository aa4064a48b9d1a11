"""One training state a file: whole or refused, and never half of two.

A checkpoint is a safetensors file, written under a partial name, synced and renamed. Its header
holds the state as JSON and a digest over every name, dtype, shape, byte and the state itself.
Nothing is unpickled. ``latest`` and ``previous`` hold all that training needs, the best weights
so far included, so one rename moves everything at once; ``best`` holds those weights alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from abag import AbagError
from abag.core.files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

SCHEMA = 3


class CheckpointDamaged(AbagError):
    """A checkpoint file is not what was written."""


class CheckpointVersion(AbagError):
    """A checkpoint was written by another version of abag."""


class DiskFull(AbagError):
    """A file of the run could not be written."""


@dataclass(frozen=True, slots=True)
class TrainingCheckpoint:
    """A whole checkpoint, read and checked."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save_rotating(folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> int:
    """Write ``latest``, keeping the one before as ``previous``.

    Between the two renames there is no ``latest``; ``previous`` is then the newest.

    Parameters
    ----------
    folder : Path
        Exists already.
    tensors : mapping of str to Tensor
        Any device.
    state : mapping
        JSON values.

    Returns
    -------
    int
        Bytes written.
    """
    latest = folder / "latest"
    with replacing(latest) as partial:
        _write(latest, partial, tensors, state)
        size = partial.stat().st_size
        if latest.exists():
            latest.replace(folder / "previous")
    return size


def save(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write one checkpoint under its final name, atomically."""
    with replacing(path) as partial:
        _write(path, partial, tensors, state)


def load(path: Path) -> TrainingCheckpoint:
    """Read and check one checkpoint.

    Raises
    ------
    CheckpointDamaged
        If it is truncated, altered, or no safetensors file (a pickle is never opened).
    CheckpointVersion
        If its schema is another.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        msg = f"{path}: not a whole checkpoint ({error}); expected a safetensors file. {_MEND}"
        raise CheckpointDamaged(msg) from error
    if header.get("schema") != str(SCHEMA):
        msg = (
            f"{path}: checkpoint schema {header.get('schema')!r}; this abag reads {SCHEMA}. "
            "Use the abag that wrote it, or another --run folder."
        )
        raise CheckpointVersion(msg)
    text = header.get("state", "")
    if header.get("digest") != digest(tensors, text):
        msg = f"{path}: its bytes are not those written (digest differs). {_MEND}"
        raise CheckpointDamaged(msg)
    return TrainingCheckpoint(tensors, json.loads(text))


_MEND = "Delete it to go on from the one before."


def load_newest(folder: Path, say: Callable[[str], None]) -> TrainingCheckpoint | None:
    """Read the newest whole checkpoint, saying which damaged one was passed over.

    Returns
    -------
    Checkpoint or None
        None if there never was one.

    Raises
    ------
    CheckpointDamaged
        If there are checkpoints and none is whole: starting again would hide the loss.
    """
    damage: list[CheckpointDamaged] = []
    for path in (folder / "latest", folder / "previous"):
        if not path.exists():
            continue
        try:
            found = load(path)
        except CheckpointDamaged as error:
            damage.append(error)
            continue
        for passed in damage:
            say(f"{passed} Going on from {path.name}, step {found.state.get('step')}.")
            # Out of the rotation: renamed to previous it would replace the last whole one.
            (folder / "latest").replace(folder / "latest.damaged")
        return found
    if damage:
        msg = (
            f"{folder}: no checkpoint is whole ({damage[0]}); expected latest or previous to be. "
            "Delete the run folder to start again."
        )
        raise CheckpointDamaged(msg)
    return None


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Hash every name, dtype, shape and byte, and a text: 32 hex digits."""
    running = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        running.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        running.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return running.hexdigest()


def _write(
    path: Path, partial: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    # On the host, contiguous and owning their bytes: safetensors refuses shared memory.
    own = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}  # GPU sync
    text = json.dumps(state, sort_keys=True, allow_nan=False)
    header = {"schema": str(SCHEMA), "state": text, "digest": digest(own, text)}
    try:
        save_file(own, partial, header)
    except (SafetensorError, OSError) as error:
        msg = f"{path}: could not be written ({error}). Free space and run the same command again; the checkpoint before is whole."  # noqa: E501
        raise DiskFull(msg) from error
