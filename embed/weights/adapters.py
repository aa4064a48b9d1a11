"""Adapters: low-rank changes of an encoder's weights, merged before the encoder is built.

Knows no labels. An adapter is a folder that `abag adapt` made:

    adapter.json      written last; the encoders it changes, by the digests of their weights
    splits.parquet    every pair's part, and which pairs the adapter learned from
    antibody/ antigen/    adapter_model.safetensors and adapter_config.json, as peft writes them

A store keeps a copy beside the vectors, so that whoever has the vectors can make more of them
and can tell whose labels they have seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.store.adapter_files import (
    ADAPTER_FILE,
    ADAPTER_FOLDER,
    CONFIG_FILE,
    ROWS_FILE,
    WEIGHTS_FILE,
    AdapterDamaged,
    write_adapter_files,
)
from abag.embed.weights.checkpoints import EncoderCheckpoint, weights_digest
from abag.embed.weights.low_rank import Adapter, AdapterMismatch

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind
    from abag.embed.store.store import EncoderFolder

FORMAT = {"format": "abag-adapter", "version": 1}
PEFT_PREFIX = "base_model.model."  # before every name in peft's files


class AdapterNotFound(AbagError):
    """A folder without a finished adapter, or without one for this side."""


def with_adapter(checkpoint: EncoderCheckpoint, folder: Path, kind: Kind) -> EncoderCheckpoint:
    """Return a checkpoint that is to be loaded with an adapter merged into it.

    Raises
    ------
    AdapterNotFound, AdapterMismatch, AdapterDamaged
    """
    record = _read_record(folder)
    side = record["sides"].get(kind)
    if side is None:
        msg = (
            f"{folder}: adapts {' and '.join(record['sides'])}, not {kind}; expected an adapter of "
            f"{kind} encoders. Leave --{kind}-adapter out, or train one with --sides {kind}."
        )
        raise AdapterNotFound(msg)
    weights = weights_digest(checkpoint)
    if side["weights"] != weights:
        msg = (
            f"{folder}: trained on {side['encoder']} with weights {side['weights']}; "
            f"{checkpoint.name} has weights {weights or 'none'}. "
            f"Give --{kind}-encoder {side['encoder']}, or an adapter of {checkpoint.name}."
        )
        raise AdapterMismatch(msg)
    files = adapter_files(folder, kind)
    if adapter_digest(weights, files) != side["digest"]:
        msg = (
            f"{folder}: its files are not those that {ADAPTER_FILE} was written for (digest "
            "differs). Copy the whole folder again."
        )
        raise AdapterDamaged(msg)
    config = json.loads(files[f"{kind}/{CONFIG_FILE}"])
    adapter = Adapter(
        folder=folder,
        name=record["name"],
        digest=side["digest"],
        scale=config["lora_alpha"] / config["r"],
        factors=_factors(files[f"{kind}/{WEIGHTS_FILE}"]),
    )
    return replace(checkpoint, name=f"{checkpoint.name}-{adapter.name}", adapter=adapter)


def adapter_files(folder: Path, kind: Kind) -> dict[str, bytes]:
    """Read what an adapter consists of for one kind, by the path inside its folder."""
    names = (f"{kind}/{CONFIG_FILE}", f"{kind}/{WEIGHTS_FILE}", ROWS_FILE)
    try:
        return {name: (folder / name).read_bytes() for name in names}
    except OSError as error:
        msg = f"{folder}: incomplete ({error}). Copy the whole folder again."
        raise AdapterDamaged(msg) from error


def adapter_digest(weights: str, files: Mapping[str, bytes]) -> str:
    """Hash what an adapter is: the base's weights, its own, and the pairs it learned from."""
    running = hashlib.blake2b(weights.encode(), digest_size=16)
    for name, content in sorted(files.items()):
        running.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return running.hexdigest()


def copy_adapter(checkpoint: EncoderCheckpoint, folder: EncoderFolder) -> None:
    """Copy an encoder's adapter, if it has one, beside the vectors that it will make."""
    if checkpoint.adapter is None:
        return
    source = checkpoint.adapter.folder
    files = adapter_files(source, folder.kind)
    files[ADAPTER_FILE] = (source / ADAPTER_FILE).read_bytes()  # the last: it says all is there
    write_adapter_files(
        folder.path, {f"{ADAPTER_FOLDER}/{name}": data for name, data in files.items()}
    )


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / ADAPTER_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = (
            f"{folder}: no finished adapter ({ADAPTER_FILE} cannot be read); expected the --out "
            "folder of abag adapt. Run that command to its end first."
        )
        raise AdapterNotFound(msg) from error
    if not isinstance(record, dict) or {k: record.get(k) for k in FORMAT} != FORMAT:
        msg = f"{path}: is not {FORMAT}, which this abag reads. Use the abag that wrote it."
        raise AdapterNotFound(msg)
    return record


def _factors(content: bytes) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    from safetensors.numpy import load

    tensors = {name.removeprefix(PEFT_PREFIX): x for name, x in load(content).items()}
    ends = (".lora_A.weight", ".lora_B.weight")
    modules = sorted({name.removesuffix(ends[0]) for name in tensors if name.endswith(ends[0])})
    return {module: (tensors[module + ends[0]], tensors[module + ends[1]]) for module in modules}
