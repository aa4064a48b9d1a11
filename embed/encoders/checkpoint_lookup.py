"""Encoder names to checkpoints: folders with config.json, weights and tokenizer files."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

from abag import cache_dir
from abag.core.files import write_bytes
from abag.core.messages import first_line
from abag.embed.encoders.random_weights import TINY_CONFIG, random_checkpoint_files
from abag.embed.families.family import Family
from abag.embed.families.registry import ALIASES, FAMILIES, HubSource, family_of, hub_source
from abag.embed.weights.checkpoints import (
    WHOLE_FILES,
    BadCheckpoint,
    EncoderCheckpoint,
    EncoderNotFound,
    shard_names,
    weight_files,
)
from abag.embed.weights.legacy_files import refuse_legacy_file

_SMALL_FILES = ["*.json", "*.model", "vocab.txt"]


def find_checkpoint(name: str, *, download: bool = True) -> EncoderCheckpoint:
    """Find an encoder's checkpoint; download it if a hub name is not on disk yet.

    `name` is an alias, a hub name (``owner/model``) or a folder. ``name@revision`` chooses a
    branch, tag or commit on the hub; without it, the ESM-2 aliases have fixed commits.

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
    source = hub_source(name)
    if "/" not in source.name or source.name.startswith((".", "/")):
        msg = (
            f"encoder {name!r}: not an alias and not an existing folder; "
            f"give one of {', '.join(ALIASES)}, a hub name (owner/model) or a checkpoint folder"
        )
        raise EncoderNotFound(msg)
    folder = _hub_folder(name, source, download=download)
    return _open(folder, _slug(name.partition("@")[0].rsplit("/", 1)[-1]), str(source))


def _slug(name: str) -> str:
    """Reduce a name to lower-case letters, digits and dashes, safe on any file system."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()) or "encoder"


def _open(folder: Path, name: str, origin: str, *, random: bool = False) -> EncoderCheckpoint:
    path = folder / "config.json"
    if not path.is_file():
        msg = f"{folder}: no config.json; give a checkpoint folder as transformers saves it"
        raise BadCheckpoint(msg)
    config, family = _read_config(path)
    names = family.weight_names(config)
    weights = weight_files(folder, names)
    if not weights:
        msg = (
            f"{folder}: no {' or '.join(WHOLE_FILES)}, whole or with an index of shards; "
            "the download may be incomplete"
        )
        raise BadCheckpoint(msg)
    return EncoderCheckpoint(
        name, family.name, folder, weights, config, origin, random, names=names
    )


def _read_config(path: Path) -> tuple[dict[str, Any], Family]:
    """Read config.json, find its family, and check that it has the keys that the family needs."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        msg = f"{path}: not valid JSON ({error}); the download may be incomplete"
        raise BadCheckpoint(msg) from error
    config = config if isinstance(config, dict) else {}
    name, family = config.get("model_type"), family_of(config)
    if family is None:
        known = ", ".join(dict.fromkeys(f.model_type for f in FAMILIES.values() if f.model_type))
        msg = f"{path}: model_type {name!r} is not supported; expected one of {known}"
        raise BadCheckpoint(msg)
    if missing := [key for key in family.config_keys if key not in config]:
        msg = (
            f"{path}: missing {', '.join(missing)}; give the config.json of a complete {name} model"
        )
        raise BadCheckpoint(msg)
    return config, family


def _hub_folder(name: str, source: HubSource, *, download: bool) -> Path:
    """Return the folder of a hub checkpoint: the local copy if complete, else a download."""
    for local in (True, False) if download else (True,):
        try:
            if folder := _fetch(source, local=local):
                return folder
            reason: Exception = FileNotFoundError(f"it has no {' or '.join(WHOLE_FILES)}")
        except Exception as error:  # noqa: BLE001 - any failure means: not available
            reason = error
    msg = (
        f"encoder {name}: the weights of {source} are not on disk and could not be downloaded "
        f"({first_line(reason)}); run `{source.download_command}` on a machine with network "
        "access, or give the folder of a downloaded checkpoint"
    )
    raise EncoderNotFound(msg) from reason


def _fetch(source: HubSource, *, local: bool) -> Path | None:
    """Fetch config, tokenizer and the encoder's weights, without the shards of a decoder."""
    from huggingface_hub import snapshot_download

    options = {"revision": source.revision, "local_files_only": local}
    get = partial(snapshot_download, source.name, **options)
    folder = Path(get(allow_patterns=_SMALL_FILES))
    config, family = _read_config(folder / "config.json")
    names = family.weight_names(config)
    for whole in WHOLE_FILES:
        get(allow_patterns=[whole])
        if (folder / whole).is_file():
            break
        if (index := folder / f"{whole}.index.json").is_file():
            get(allow_patterns=shard_names(index, names))
            break
    return folder if weight_files(folder, names) else None


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
        if not path.is_file() or path.read_bytes() != data:
            write_bytes(path, data)
    return folder
