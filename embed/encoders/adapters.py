"""Adapters on disk: low-rank changes that are merged into an encoder's weights when it is loaded.

An adapter is a folder written by `abag adapt`:

    adapter.json          written last; the encoders it changes, by the digests of their weights
    splits.parquet        the split of every pair, and the pairs that the adapter was trained on
    antibody/, antigen/   adapter_model.safetensors and adapter_config.json, as peft writes them

A store keeps a copy with the vectors, to encode further sequences and to find out which labels the
vectors have seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from abag.core.errors import DamagedFile, EncoderError
from abag.core.files import read_inside
from abag.embed.encoders.weights import Adapter, EncoderCheckpoint
from abag.embed.store.shard import (
    ADAPTER_FILE,
    ADAPTER_FOLDER,
    CONFIG_FILE,
    ROWS_FILE,
    WEIGHTS_FILE,
    adapter_digest,
    write_adapter_files,
)

if TYPE_CHECKING:
    from abag.embed.store.store import EncoderFolder
    from abag.embed.tables.chains import Kind

ADAPTER_FORMAT = {"format": "abag-adapter", "version": 1}
"""Keys of adapter.json that say how to read it."""
PEFT_PREFIX = "base_model.model."
"""Prefix of every name in peft's files."""
_SIDE_KEYS = ("encoder", "weights", "digest")
"""What a reader needs of one encoder in adapter.json."""
_INVALID = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, SafetensorError)
"""What content of the wrong kind raises where it is read."""


def with_adapter(
    checkpoint: EncoderCheckpoint, weights: str, folder: Path, kind: Kind
) -> EncoderCheckpoint:
    """Return a checkpoint that merges an adapter into its weights when it is loaded.

    Parameters
    ----------
    checkpoint : EncoderCheckpoint
    weights : str
        Digest of the checkpoint's weights, from `weights_digest`.
    folder : path
        The folder of the adapter.
    kind : {"antibody", "antigen"}
        The kind of sequence that the encoder is for.

    Raises
    ------
    EncoderError
        If the adapter is not finished, or was trained for another kind or on other weights.
    DamagedFile
        If its files are incomplete, or not those that were written.
    """
    record = _read_record(folder)
    sides = record["sides"]
    if kind not in sides:
        msg = (
            f"{folder}: adapts {' and '.join(sides)}, not {kind}; expected an adapter of "
            f"{kind} encoders. Omit --{kind}-adapter, or train one with --sides {kind}."
        )
        raise EncoderError(msg)
    trained = sides[kind]
    if trained["weights"] != weights:
        msg = (
            f"{folder}: trained on {trained['encoder']} with weights {trained['weights']}; "
            f"{checkpoint.name} has weights {weights or 'none'}. "
            f"Give --{kind}-encoder {trained['encoder']}, or an adapter of {checkpoint.name}."
        )
        raise EncoderError(msg)
    files = read_adapter_files(folder, kind)
    if adapter_digest(weights, files) != trained["digest"]:
        msg = (
            f"{folder}: the files do not match {ADAPTER_FILE} (digest differs). "
            "Copy the whole folder again."
        )
        raise DamagedFile(msg)
    adapter = _parse(folder, record, kind, files)
    return replace(checkpoint, name=f"{checkpoint.name}-{adapter.name}", adapter=adapter)


def _parse(
    folder: Path, record: Mapping[str, Any], kind: Kind, files: Mapping[str, bytes]
) -> Adapter:
    from safetensors.numpy import load

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
    except _INVALID as error:  # anybody may have written and signed them
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
    names = (f"{kind}/{CONFIG_FILE}", f"{kind}/{WEIGHTS_FILE}", ROWS_FILE)
    try:
        return {name: read_inside(folder, name) for name in names}
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


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / ADAPTER_FILE
    try:
        record = json.loads(read_inside(folder, ADAPTER_FILE))
    except (OSError, ValueError, RecursionError) as error:
        msg = (
            f"{folder}: no finished adapter (cannot read {ADAPTER_FILE}); expected the --out "
            "folder of abag adapt. Run that command until it finishes."
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
    return record
