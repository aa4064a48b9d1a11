"""Encoder names to checkpoint folders, and what identifies their weights.

A checkpoint is a folder with config.json, safetensors weights and tokenizer files. It is named
by an alias, a hub name or a path. `tiny-*` checkpoints are made on the spot: the real
architectures with seeded random weights, for demos and tests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from abag import AbagError, cache_dir
from abag.core.files import write_bytes
from abag.embed.weights.legacy_files import refuse_legacy_file

if TYPE_CHECKING:
    from abag.embed.weights.low_rank import Adapter

Family = Literal["t5", "esm", "bert", "composition"]

HUB_NAMES = {
    "igt5": "Exscientia/IgT5",
    "igt5-unpaired": "Exscientia/IgT5_unpaired",
    "prott5": "Rostlab/prot_t5_xl_half_uniref50-enc",
    "esm2-8m": "facebook/esm2_t6_8M_UR50D",
    "esm2-35m": "facebook/esm2_t12_35M_UR50D",
    "esm2-150m": "facebook/esm2_t30_150M_UR50D",
    "esm2-650m": "facebook/esm2_t33_650M_UR50D",
    "esm2-3b": "facebook/esm2_t36_3B_UR50D",
}
ALIASES = (*HUB_NAMES, "antiberty", "composition", "tiny-igt5", "tiny-esm2")
_CONFIG_KEYS = {
    "t5": ("d_model", "d_kv", "d_ff", "num_layers", "num_heads", "vocab_size",
           "layer_norm_epsilon", "relative_attention_num_buckets"),
    "esm": ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "vocab_size", "layer_norm_eps", "max_position_embeddings"),
    "bert": (),
}  # fmt: skip
_SMALL_FILES = ["*.json", "*.model", "vocab.txt"]


class EncoderNotFound(AbagError):
    """A name that is no alias, no folder and not on disk."""


class BadCheckpoint(AbagError):
    """A checkpoint folder that cannot be what its config.json says."""


@dataclass(frozen=True, slots=True)
class EncoderCheckpoint:
    """An encoder's weights on disk.

    Attributes
    ----------
    name : str
        Short name, used in the store's folder names.
    family : {"t5", "esm", "bert", "composition"}
    folder : Path or None
        None where there are no weights (`composition`).
    weights : tuple of Path
        The weight files, sorted by name.
    config : dict
        Content of config.json.
    origin : str
        Alias, hub name or path as given; for reading only.
    adapter : Adapter or None
        What is merged into the weights as they are loaded.
    """

    name: str
    family: Family
    folder: Path | None
    weights: tuple[Path, ...]
    config: Mapping[str, Any]
    origin: str
    adapter: Adapter | None = None

    @property
    def random(self) -> bool:
        """Whether the weights are random and the vectors mean nothing biologically."""
        return self.origin.startswith("tiny-")


def find_checkpoint(name: str, *, download: bool = True) -> EncoderCheckpoint:
    """Locate an encoder's checkpoint, downloading hub names that are not on disk yet.

    Parameters
    ----------
    name : str
        Alias, hub name (``owner/model``) or folder.
    download : bool
        False: only what is on disk.

    Raises
    ------
    EncoderNotFound
        Unknown name, or weights neither on disk nor to be fetched.
    BadCheckpoint
        A folder without config.json, weights, or with a model type we do not know.
    """
    if name == "composition":
        return EncoderCheckpoint(name, "composition", None, (), {}, name)
    if name == "antiberty":
        return _antiberty()
    if name.startswith("tiny-") and name in ALIASES:
        return _open(_tiny_folder(name), name, name)
    refuse_legacy_file(Path(name))
    if Path(name).is_dir():
        return _open(Path(name), _slug(Path(name).resolve().name), name)
    hub_name = HUB_NAMES.get(name, name)
    if "/" not in hub_name or hub_name.startswith((".", "/")):
        msg = (
            f"encoder {name!r}: neither an alias nor a folder; "
            f"give one of {', '.join(ALIASES)}, a hub name (owner/model) or a checkpoint folder"
        )
        raise EncoderNotFound(msg)
    return _open(
        _from_hub(name, hub_name, download=download), _slug(name.rsplit("/", 1)[-1]), hub_name
    )


def weights_digest(checkpoint: EncoderCheckpoint) -> str:
    """Hash the weight files' bytes: 32 hexadecimal digits.

    Hashing 5 GB takes seconds, so the answer is cached by path, size and time of change.
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
    cached = (
        cache_dir() / "digests" / hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
    )
    if cached.is_file() and len(digest := cached.read_bytes()) == 16:
        return digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
    cached.parent.mkdir(exist_ok=True)
    write_bytes(cached, digest, concurrent=True)
    return digest


def _slug(name: str) -> str:
    """Lower-case letters, digits and dashes: safe in a folder name on any system."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()) or "encoder"


def _open(folder: Path, name: str, origin: str) -> EncoderCheckpoint:
    config_path = folder / "config.json"
    if not config_path.is_file():
        msg = f"{folder}: no config.json; give a checkpoint folder as transformers saves it"
        raise BadCheckpoint(msg)
    config = _config(config_path)
    family = config["model_type"]
    weights = _weight_files(folder)
    if not weights:
        msg = f"{folder}: no *.safetensors or pytorch_model*.bin; the download may be incomplete"
        raise BadCheckpoint(msg)
    return EncoderCheckpoint(name, family, folder, weights, config, origin)


def _config(path: Path) -> dict[str, Any]:
    """Read a config.json that says what its family's encoder needs to know."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        msg = f"{path}: not JSON ({error}); the download may be incomplete"
        raise BadCheckpoint(msg) from error
    family = config.get("model_type") if isinstance(config, dict) else None
    if family not in _CONFIG_KEYS:
        msg = f"{path}: model_type {family!r} is not supported; expected t5, esm or bert"
        raise BadCheckpoint(msg)
    if absent := [key for key in _CONFIG_KEYS[family] if key not in config]:
        msg = f"{path}: does not say {', '.join(absent)}; give the config.json of a {family} model"
        raise BadCheckpoint(msg)
    return dict(config)


def _from_hub(name: str, hub_name: str, *, download: bool) -> Path:
    """Folder of a hub checkpoint: from the local cache if whole, else fetched."""
    from huggingface_hub import snapshot_download

    for local_only in (True, False) if download else (True,):
        for weights in ("*.safetensors", "pytorch_model*.bin"):
            try:
                folder = Path(
                    snapshot_download(
                        hub_name,
                        allow_patterns=[*_SMALL_FILES, weights],
                        local_files_only=local_only,
                    )
                )
            except Exception as error:  # noqa: BLE001 - many kinds, one meaning: not to be had
                reason = error
                continue
            if _weight_files(folder):
                return folder
    first_line = (str(reason).splitlines() or [type(reason).__name__])[0]
    msg = (
        f"encoder {name}: weights of {hub_name} are not on disk and could not be fetched "
        f"({first_line}); run `hf download {hub_name}` where there is a network, "
        "or give the folder of a downloaded checkpoint instead of the name"
    )
    raise EncoderNotFound(msg) from reason


def _weight_files(folder: Path) -> tuple[Path, ...]:
    """Weight files of a checkpoint folder; safetensors where both forms are there."""
    safe = sorted(folder.glob("*.safetensors"))
    return tuple(safe or sorted(folder.glob("pytorch_model*.bin")))


def _antiberty() -> EncoderCheckpoint:
    """Weights inside the package antiberty; its code is never imported."""
    from importlib.util import find_spec

    spec = find_spec("antiberty")
    if spec is None or not spec.submodule_search_locations:
        msg = (
            "encoder antiberty: the package antiberty is not installed; "
            "pip install 'abag[antiberty]'"
        )
        raise EncoderNotFound(msg)
    root = Path(spec.submodule_search_locations[0]) / "trained_models"
    folder = root / "AntiBERTy_md_smooth"
    config = json.loads((folder / "config.json").read_text())
    return EncoderCheckpoint(
        "antiberty", "bert", root, (folder / "pytorch_model.bin",), config, "antiberty"
    )


def _tiny_folder(name: str) -> Path:
    """Folder of a tiny checkpoint in the cache, made on first use."""
    from abag.embed.weights.random_weights import tiny_content

    content = tiny_content(name)
    version = hashlib.blake2b(digest_size=6)
    for file_name, data in sorted(content.items()):
        version.update(file_name.encode() + b"\0" + data)
    folder = cache_dir() / "tiny" / f"{name}-{version.hexdigest()}"
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, data in content.items():
        path = folder / file_name
        if not path.is_file() or path.stat().st_size != len(data):
            write_bytes(path, data, concurrent=True)
    return folder
