"""Encoder names to checkpoints: folders with config.json, weights and tokenizer files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from abag import cache_dir
from abag.core.files import write_bytes
from abag.core.messages import first_line
from abag.core.names import check_names
from abag.embed.encoders.random_weights import TINY_CONFIG, random_checkpoint_files
from abag.embed.families.registry import ALIASES, FAMILIES, hub_name_of
from abag.embed.weights.checkpoints import (
    BadCheckpoint,
    EncoderCheckpoint,
    EncoderNotFound,
    weight_files,
)
from abag.embed.weights.legacy_files import refuse_legacy_file

_SMALL_FILES = ["*.json", "*.model", "vocab.txt"]


def find_checkpoint(name: str, *, download: bool = True) -> EncoderCheckpoint:
    """Find an encoder's checkpoint; download it if a hub name is not on disk yet.

    `name` is an alias, a hub name (``owner/model``) or a folder.

    Raises
    ------
    EncoderNotFound
        Unknown name, or weights that are neither on disk nor available for download.
    BadCheckpoint
        A folder without config.json or weights, or with an unsupported model type.
    LegacyFile
        A file of the old notebooks.
    """
    alias = ALIASES.get(name)
    if alias is not None and alias.random:
        return _open(_tiny_folder(name), name, name, random=True)
    if alias is not None and alias.hub_name is None:
        return FAMILIES[alias.family].builtin_checkpoint(name)
    refuse_legacy_file(Path(name))
    if Path(name).is_dir():
        return _open(Path(name), _slug(Path(name).resolve().name), name)
    hub_name = hub_name_of(name)
    if "/" not in hub_name or hub_name.startswith((".", "/")):
        msg = (
            f"encoder {name!r}: not an alias and not an existing folder; "
            f"give one of {', '.join(ALIASES)}, a hub name (owner/model) or a checkpoint folder"
        )
        raise EncoderNotFound(msg)
    folder = _hub_folder(name, hub_name, download=download)
    return _open(folder, _slug(name.rsplit("/", 1)[-1]), hub_name)


def _slug(name: str) -> str:
    """Reduce a name to lower-case letters, digits and dashes, safe on any file system."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()) or "encoder"


def _open(folder: Path, name: str, origin: str, *, random: bool = False) -> EncoderCheckpoint:
    path = folder / "config.json"
    if not path.is_file():
        msg = f"{folder}: no config.json; give a checkpoint folder as transformers saves it"
        raise BadCheckpoint(msg)
    config, weights = _read_config(path), weight_files(folder)
    if not weights:
        msg = f"{folder}: no *.safetensors or pytorch_model*.bin; the download may be incomplete"
        raise BadCheckpoint(msg)
    _check_index(folder, weights)
    return EncoderCheckpoint(name, config["model_type"], folder, weights, config, origin, random)


def _check_index(folder: Path, weights: tuple[Path, ...]) -> None:
    """Check that an index of the weights, which transformers follows, names only these files."""
    for path in folder.glob(f"*{weights[0].suffix}.index.json"):
        try:
            named = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            msg = f"{path}: not an index of weights ({error}); the download may be incomplete"
            raise BadCheckpoint(msg) from error
        check_names(path, sorted(named), {weight.name for weight in weights})


def _read_config(path: Path) -> dict[str, Any]:
    """Read config.json and check that it has the keys that its family needs."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        msg = f"{path}: not valid JSON ({error}); the download may be incomplete"
        raise BadCheckpoint(msg) from error
    name = config.get("model_type") if isinstance(config, dict) else None
    family = FAMILIES.get(str(name))
    if family is None or not family.transformers_class:
        known = ", ".join(f.name for f in FAMILIES.values() if f.transformers_class)
        msg = f"{path}: model_type {name!r} is not supported; expected one of {known}"
        raise BadCheckpoint(msg)
    if missing := [key for key in family.config_keys if key not in config]:
        msg = (
            f"{path}: missing {', '.join(missing)}; give the config.json of a complete {name} model"
        )
        raise BadCheckpoint(msg)
    return dict(config)


def _hub_folder(name: str, hub_name: str, *, download: bool) -> Path:
    """Return the folder of a hub checkpoint: the local copy if complete, else a download."""
    from huggingface_hub import snapshot_download

    for local in (True, False) if download else (True,):
        for weights in ("*.safetensors", "pytorch_model*.bin"):
            patterns = [*_SMALL_FILES, weights]
            try:
                found = snapshot_download(hub_name, allow_patterns=patterns, local_files_only=local)
            except Exception as error:  # noqa: BLE001 - any failure means: not available
                reason = error
                continue
            if weight_files(Path(found)):
                return Path(found)
    msg = (
        f"encoder {name}: the weights of {hub_name} are not on disk and could not be downloaded "
        f"({first_line(reason)}); run `hf download {hub_name}` on a machine with network access, "
        "or give the folder of a downloaded checkpoint"
    )
    raise EncoderNotFound(msg) from reason


def _tiny_folder(name: str) -> Path:
    """Return the cached folder of a tiny checkpoint, written on first use."""
    files = random_checkpoint_files(TINY_CONFIG[name], seed=0)
    version = hashlib.blake2b(digest_size=6)
    for file_name, data in sorted(files.items()):
        version.update(file_name.encode() + b"\0" + data)
    folder = cache_dir() / "tiny" / f"{name}-{version.hexdigest()}"
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, data in files.items():
        path = folder / file_name
        if not path.is_file() or path.stat().st_size != len(data):
            write_bytes(path, data)
    return folder
