"""Encoder names to checkpoints: on disk, on the hub, in a package, or of random weights.

A checkpoint is a folder with config.json, weights and tokenizer files. Nothing in it is trusted:
every size that abag computes with is checked here. torch is not imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.errors import AbagError, EncoderError, HubError
from abag.core.files import cache_dir, make_folder, write_bytes, write_text
from abag.core.hub import HubAddress, Repository, explain_refusal
from abag.core.messages import first_line
from abag.core.options import user_path
from abag.embed.encoders.families import FAMILIES, family_of
from abag.embed.encoders.family import Config, Family
from abag.embed.encoders.registry import (
    ALIASES,
    EncoderNotFound,
    download_command,
    hub_source,
    near_aliases,
    refuse_unknown_name,
)
from abag.embed.encoders.weights import (
    WHOLE_FILES,
    EncoderCheckpoint,
    shard_names,
    weight_files,
)
from abag.embed.store.shard import CONFIG_FILE as ADAPTER_CONFIG

_SMALL_FILES = ["*.json", "*.model", "vocab.txt"]
_IN_WORDS = {int: "a whole number", float: "a number", str: "text"}
_LACKS = "{} has no {} on the hub; expected a model as transformers saves it"
_QUANTISED = ("quantization_config", "compression_config")
"""Keys of config.json that say that the numbers in the files are not the weights."""
_MOST = 1 << 31
"""Of a number in config.json; what is computed from a larger one could overflow."""
TINY_CONFIG: dict[str, Config] = {
    name: FAMILIES[alias.family].tiny_config for name, alias in ALIASES.items() if alias.random
}
"""config.json of each alias of random weights."""
Draw: TypeAlias = Callable[[tuple[int, ...], float], NDArray[np.float32]]
"""Draws an array of a normal distribution, given its shape and its scale."""


def find_checkpoint(name: str, *, download: bool = True) -> EncoderCheckpoint:
    """Find the checkpoint of an alias, hub name (``owner/model@revision``) or folder.

    With `download`, a hub name that is not on disk is downloaded.

    Raises
    ------
    EncoderNotFound
        If the name is none of these, or its files are not available.
    EncoderError
        If the files are there and abag cannot use them.
    """
    alias = ALIASES.get(name)
    if alias is not None and alias.random:
        return _open(tiny_folder(name), name, name, random=True)
    if alias is not None and alias.hub_name is None:
        return _open_package(name, FAMILIES[alias.family])
    folder = user_path(name, "encoder")
    if folder.is_dir():
        # found again from another working directory, as the store of a run is
        folder = folder.resolve()
        return _open(folder, _slug(folder.name), str(folder))
    refuse_unknown_name(name)
    source = hub_source(name)
    reason: BaseException = Exception()
    # local first: what is on disk needs no network
    for local in (True, False) if download else (True,):
        try:
            folder = _fetch(source, local=local)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, HubError) else None
            is_answer = isinstance(error, AbagError) and not isinstance(error, EncoderNotFound)
            if is_answer and cause is None and not local:
                raise  # a model that abag does not read, however often it is downloaded
            reason = cause or error
        else:
            model = name.partition("@")[0].rsplit("/", 1)[-1]
            return _open(folder, _slug(model), source.short)
    msg = f"encoder {name}: {_unavailable(source, reason)}"
    raise EncoderNotFound(msg) from reason


def _slug(name: str) -> str:
    """Reduce a name to lower-case letters, digits and dashes, safe on any file system."""
    spaced = "".join(c if c.isalnum() else " " for c in name.lower())
    return "-".join(spaced.split()) or "encoder"


def _open(folder: Path, name: str, origin: str, *, random: bool = False) -> EncoderCheckpoint:
    _refuse_adapter(folder)
    path = folder / "config.json"
    if not path.is_file():
        msg = f"{folder}: no config.json; give a checkpoint folder as transformers saves it"
        raise EncoderError(msg)
    config, family = _read_config(path)
    names = family.weight_names
    weights = weight_files(folder, names)
    if not weights:
        msg = (
            f"{folder}: no {' or '.join(WHOLE_FILES)}, whole or with an index of shards; "
            "the download may be incomplete"
        )
        raise EncoderError(msg)
    return EncoderCheckpoint(
        name, family.name, folder, weights, config, origin, random, names=names
    )


def _open_package(alias: str, family: Family) -> EncoderCheckpoint:
    """Find the weights inside an installed package, whose code is never imported."""
    if family.package is None:  # there are no weights
        return EncoderCheckpoint(alias, family.name, None, (), {}, alias)
    package = family.package
    spec = find_spec(package.name)
    if spec is None or not spec.submodule_search_locations:
        msg = (
            f"encoder {alias}: the package {package.name} is not installed; "
            f"run pip install 'abag[{package.name}]'"
        )
        raise EncoderNotFound(msg)
    folder = Path(spec.submodule_search_locations[0]) / package.folder
    weights = folder / package.weights
    settings = folder / package.config
    if not (weights.is_file() and settings.is_file()):
        problem = "has not downloaded its weights"
        remedy = f"run {package.download} once"
        if package.requirement:
            problem = "has no weights in the installed version"
            remedy = (
                f"run pip install {package.requirement}, which has them, or give the folder "
                f"{Path(package.weights).parent} of that version"
            )
        msg = f"encoder {alias}: the package {package.name} {problem} ({weights.parent}); {remedy}"
        raise EncoderNotFound(msg)
    config, _ = _read_config(settings, family)
    names = family.weight_names
    return EncoderCheckpoint(alias, family.name, folder, (weights,), config, alias, names=names)


def _refuse_adapter(folder: Path) -> None:
    """Refuse an adapter of peft: transformers would add it to the weights, or have none."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return
    msg = (
        f"{folder}: {ADAPTER_CONFIG}: an adapter, which transformers would add to the weights of a "
        "model; expected one model. Merge both with peft (merge_and_unload, save_pretrained) and "
        f"give the merged folder; or give the model alone, without {ADAPTER_CONFIG}, and the --out "
        "folder of abag adapt as --antibody-adapter or --antigen-adapter."
    )
    raise EncoderError(msg)


def _read_config(path: Path, family: Family | None = None) -> tuple[dict[str, Any], Family]:
    """Read config.json, find its family if none is given, and check the values that it needs."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        msg = f"{path}: not valid JSON ({error}); the download may be incomplete"
        raise EncoderError(msg) from error
    config = config if isinstance(config, dict) else {}
    name = config.get("model_type")
    family = family or family_of(config)
    if family is None:
        types = [family.model_type for family in FAMILIES.values() if family.model_type]
        listed = ", ".join(dict.fromkeys(types))
        msg = f"{path}: model_type {name!r} is not supported; expected one of {listed}"
        raise EncoderError(msg)
    for key in filter(config.get, _QUANTISED):
        msg = (
            f"{path}: {key} is set: the weights are quantised; expected "
            "floating-point weights. Give the model that was quantised, or dequantize it with "
            "transformers, remove the key and save it again."
        )
        raise EncoderError(msg)
    needed = dict.fromkeys((*family.needed_keys, "vocab_size"))
    if missing := [key for key in needed if config.get(key) is None]:
        problem = (
            f"missing {', '.join(missing)}; give the config.json of a complete {family.name} model"
        )
    else:
        problem = _config_problem(config, family)
    if problem:
        msg = f"{path}: {problem}"
        raise EncoderError(msg)
    return config, family


def _config_problem(config: dict[str, Any], family: Family) -> str:
    """Say which value of config.json has another type than in a tiny one, or gives no layers."""
    for key, example in family.tiny_config.items():
        value = config.get(key)
        words = _IN_WORDS.get(type(example))
        types = (int, float) if type(example) is float else (type(example),)
        if value is None or words is None:
            continue
        if type(value) not in types or not (isinstance(value, str) or abs(value) < _MOST):
            return f"{key} {value!r}; expected {words}. Copy the file again."
    try:
        shape = family.shape(config)
    except (TypeError, ValueError, ArithmeticError) as error:  # of a value that may be null
        return f"gives no sizes of layers ({first_line(error)}); copy the file again"
    if min(shape.heads, shape.attention_width) < 1 or shape.attention_width % shape.heads:
        return (
            f"{shape.heads} attention heads do not divide a width of {shape.attention_width}; "
            "copy the file again"
        )
    return ""


# --- the hub --------------------------------------------------------------------------------------


def _fetch(source: HubAddress, *, local: bool) -> Path:
    """Fetch config, tokenizer and weights of encoder and head, without the shards of a decoder."""
    get = _from_disk(source) if local else _from_hub(source)
    folder = Path(get(_SMALL_FILES))
    _refuse_adapter(folder)
    if not (folder / "config.json").is_file():
        msg = _LACKS.format(source.short, "config.json")
        raise EncoderNotFound(msg)
    config, family = _read_config(folder / "config.json")
    names = family.weight_names
    for whole in WHOLE_FILES:
        get([whole])
        if (folder / whole).is_file():
            break
        if (index := folder / f"{whole}.index.json").is_file():
            needed = shard_names(index, names)
            if family.head is not None:  # small, and nearly always in one of the same shards
                needed += shard_names(index, family.head.weight_names(family.complete(config)))
            get(needed)
            break
    if not weight_files(folder, names):
        msg = _LACKS.format(source.short, " or ".join(WHOLE_FILES))
        raise EncoderNotFound(msg)
    return folder


def _from_disk(source: HubAddress) -> Callable[[Sequence[str]], Path | str]:
    """Return a function that finds files, by their patterns, in the cache of huggingface_hub."""
    from huggingface_hub import snapshot_download

    return lambda patterns: snapshot_download(
        source.name, allow_patterns=[*patterns], revision=source.revision, local_files_only=True
    )


def _from_hub(source: HubAddress) -> Callable[[Sequence[str]], Path]:
    """Return a function that downloads files, by their patterns, into that cache."""
    from huggingface_hub import constants

    hub = Repository(source)
    commit = hub.head()
    listed = hub.files(commit)
    cache = Path(constants.HF_HUB_CACHE).expanduser().resolve()
    place = cache / f"models--{source.name.replace('/', '--')}"
    folder = place / "snapshots" / commit

    def get(patterns: Sequence[str]) -> Path:
        missing = {}
        for path, size in listed.items():
            is_wanted = any(fnmatchcase(path, pattern) for pattern in patterns)
            if is_wanted and not (folder / path).is_file():
                missing[path] = size
        hub.download(missing, commit, folder)
        return folder

    # a file of the commit that a branch had, as every program that reads this cache expects it
    ref = place / "refs" / (source.revision or "main")
    if commit != source.revision and ref.resolve().is_relative_to(place):
        make_folder(ref.parent)
        write_text(ref, commit)
    return get


def _unavailable(source: HubAddress, reason: BaseException) -> str:
    near = near_aliases(source.name)
    has_alias = any(alias.hub_name == source.name for alias in ALIASES.values())
    meant = "" if has_alias or not near else f" Did you mean {' or '.join(near)}?"
    if isinstance(reason, EncoderNotFound):
        return f"{reason}.{meant}"
    if refusal := explain_refusal(reason, source):
        return refusal + meant
    return (
        f"the weights of {source.short} are not on disk and could not be downloaded "
        f"({first_line(reason)}); run `{download_command(source)}` on a machine with network "
        "access, give the folder of a downloaded checkpoint, or use an encoder that needs no "
        f"download: antiberty (pip install antiberty==0.1.3) or composition.{meant}"
    )


# --- random weights, for demos, tests and benchmarks: no biology ----------------------------------


def save_random_checkpoint(
    folder: Path, config: Config, seed: int, *, with_head: bool = False
) -> Path:
    """Write a checkpoint of random weights to a folder; equal seeds give equal bytes.

    With the head of its language model, the names of the encoder's tensors have their prefix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _random_files(config, seed, with_head=with_head).items():
        (folder / name).write_bytes(content)
    return folder


def tiny_folder(name: str) -> Path:
    """Return the cached folder of a tiny checkpoint, written on first use."""
    folder = cache_dir() / "tiny" / name
    folder.mkdir(parents=True, exist_ok=True)
    has_head = FAMILIES[ALIASES[name].family].head is not None
    files = _random_files(TINY_CONFIG[name], seed=0, with_head=has_head)
    for file_name, data in files.items():
        path = folder / file_name
        # the cache outlives versions of abag, which may draw other weights
        if not path.is_file() or path.read_bytes() != data:
            write_bytes(path, data)
    return folder


def _random_files(config: Config, seed: int, *, with_head: bool) -> dict[str, bytes]:
    from safetensors.numpy import save

    family = family_of(config)
    rng = np.random.default_rng(seed)
    assert family is not None

    def draw(shape: tuple[int, ...], scale: float) -> NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    weights = draw_weights(family, config, draw)
    if with_head:
        weights = {f"{family.weight_prefix}{name}": x for name, x in weights.items()}
        weights |= draw_head(family, config, draw)
    return {
        "config.json": json.dumps(dict(config), indent=1).encode(),
        "model.safetensors": save(weights, metadata={"format": "pt"}),
        "vocab.json": json.dumps(dict(family.tokens)).encode(),
    }


def draw_weights(family: Family, config: Config, draw: Draw) -> dict[str, NDArray[np.float32]]:
    """Draw the weights of an encoder at the scale that training gives.

    Returns float32 arrays by the names of tensors in its transformers module. They are drawn in a
    fixed order, so that equal draws give equal weights.
    """
    shape = family.shape(config)
    config = family.complete(config)
    declared = family.architecture_of(config)
    width = shape.width
    inner = shape.attention_width
    hidden = shape.feed_forward_width
    weights: dict[str, NDArray[np.float32]] = {}

    def product(name: str, rows: int, columns: int, scale: float | None = None) -> None:
        weights[f"{name}.weight"] = draw((rows, columns), scale or columns**-0.5)
        if declared.biased:
            weights[f"{name}.bias"] = draw((rows,), 0.1)

    def norm(name: str, *, biased: bool = declared.norm == "layer") -> None:
        weights[f"{name}.weight"] = 1 + draw((width,), 0.1)
        if biased:
            weights[f"{name}.bias"] = draw((width,), 0.1)

    def table(name: str, rows: int, columns: int = width, scale: float = 1.0) -> None:
        if name:
            weights[f"{name}.weight"] = draw((rows, columns), scale)

    table(declared.embedding, config["vocab_size"])
    table(declared.type_embedding, config.get("type_vocab_size", 0))
    table(declared.position_embedding, config.get("max_position_embeddings", 0))
    if declared.first_norm:
        norm(declared.first_norm)
    for i in range(shape.layers):
        at = f"{declared.layers}.{i}."
        qkv_rows = 3 * inner // len(declared.qkv)
        for place, name in enumerate(declared.qkv):
            # T5 does not divide scores by the root of the head width: its queries are smaller, so
            # that the softmax is neither flat nor one-hot
            is_query_of_t5 = declared.relative_bias and not place
            scale = (width * shape.head_width) ** -0.5 if is_query_of_t5 else None
            product(at + name, qkv_rows, width, scale)
        product(at + declared.out, width, inner)
        norm(at + declared.norms[0])
        up_rows = (1 + bool(declared.gate)) * hidden // len(declared.up)
        for name in declared.up:
            product(at + name, up_rows, width)
        product(at + declared.down, width, hidden)
        norm(at + declared.norms[1])
        for name in declared.qk_norms or ():
            norm(at + name, biased=False)
    buckets = config.get("relative_attention_num_buckets", 0)
    table(declared.relative_bias, buckets, shape.heads, 0.5)
    if declared.last_norm:
        norm(declared.last_norm, biased=declared.norm == "layer" and declared.last_norm_biased)
    return weights


def draw_head(family: Family, config: Config, draw: Draw) -> dict[str, NDArray[np.float32]]:
    """Draw the weights of a language model's head: float32 arrays by their names in the files."""
    head = family.head
    assert head is not None
    config = family.complete(config)
    width = family.shape(config).width
    size = int(config["vocab_size"])
    weights: dict[str, NDArray[np.float32]] = {}
    if head.dense:
        rows = (1 + head.gated) * width
        weights[f"{head.dense}.weight"] = draw((rows, width), width**-0.5)
        weights[f"{head.dense}.bias"] = draw((rows,), 0.1)
    weights[f"{head.norm}.weight"] = 1 + draw((width,), 0.1)
    if head.norm_kind == "layer":
        weights[f"{head.norm}.bias"] = draw((width,), 0.1)
    if not head.is_tied(config):
        weights[head.decoder] = draw((size, width), width**-0.5)
    if head.bias:
        weights[head.bias] = draw((size,), 0.1)
    return weights
