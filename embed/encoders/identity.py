"""Encoder names to checkpoints, and to the fingerprints that identify their vectors.

A checkpoint is a folder with config.json, weights and tokenizer files. torch is not imported.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from abag import AbagError
from abag.core.messages import first_line
from abag.core.options import user_path
from abag.embed.encoders.adapters import with_adapter
from abag.embed.encoders.vocabulary import vocabulary_of
from abag.embed.families.family import Backend, EncoderShape, Family
from abag.embed.families.registry import ALIASES, FAMILIES, HubSource, family_of, hub_source
from abag.embed.packing import TOKENS_VERSION, Layout, LongPolicy
from abag.embed.sequences.chains import RESIDUES, Kind
from abag.embed.weights import (
    WHOLE_FILES,
    BadCheckpoint,
    EncoderCheckpoint,
    EncoderNotFound,
    shard_names,
    weight_files,
    weights_digest,
)

POOLING_VERSION = 1
"""Part of the fingerprint; changes if the meaning of a pooled vector changes."""
MOST_NEAR = 8
"""More names than these would hide the one that is meant."""
_SMALL_FILES = ["*.json", "*.model", "vocab.txt"]
_IN_WORDS = {int: "a whole number", float: "a number", str: "text"}
_MOST = 1 << 31
"""Of a number in config.json; what is computed from a larger one could overflow."""


class WrongBackend(AbagError):
    """A backend that cannot run the requested encoder."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An encoder that is chosen but not loaded: enough to find its vectors in a store.

    `fingerprint` has 32 hexadecimal digits and covers `meaning`: all that decides what a vector is.
    """

    checkpoint: EncoderCheckpoint
    layout: Layout
    fingerprint: str
    meaning: dict[str, object]

    @property
    def family(self) -> Family:
        """The encoder's family."""
        return FAMILIES[self.checkpoint.family]

    @property
    def shape(self) -> EncoderShape:
        """Sizes of the encoder."""
        return self.family.shape(self.checkpoint.config)

    def info(self) -> dict[str, object]:
        """Return the content of the store's encoder.json."""
        return {
            "name": self.checkpoint.name,
            "fingerprint": self.fingerprint,
            "origin": self.checkpoint.origin,
            "random_weights": self.checkpoint.random,
            **self.meaning,
        }


def identify(
    name: str, kind: Kind, long: LongPolicy = "window", adapter: Path | str | None = None
) -> Identity:
    """Find an encoder's checkpoint and compute its fingerprint, without loading weights.

    `name` is an alias, a hub name or a folder. `long` says what happens to chains longer than the
    encoder accepts. `adapter` is the folder of an adapter to merge, or a store's copy of one.

    Raises
    ------
    EncoderNotFound, BadCheckpoint
        See `find_checkpoint`.
    TokenizerMismatch
        Its files number tokens otherwise than abag does.
    AdapterNotFound, AdapterMismatch, AdapterDamaged
        See `with_adapter`.
    """
    checkpoint = find_checkpoint(name)
    weights = weights_digest(checkpoint)
    if adapter is not None:
        checkpoint = with_adapter(checkpoint, weights, Path(adapter), kind)
    family = FAMILIES[checkpoint.family]
    layout = Layout(kind, vocabulary_of(checkpoint), long)
    # "error" accepts only sequences that fit into one window
    policy = "truncate" if long == "truncate" else "window"
    meaning: dict[str, object] = {
        "weights": weights,
        "family": checkpoint.family,
        "tokens": TOKENS_VERSION,
        "pooling": POOLING_VERSION,
        "long": f"{policy}-{layout.limit}" if layout.limit else "whole",
        "adapter": checkpoint.adapter.digest if checkpoint.adapter else None,
    }
    if settings := family.settings(checkpoint.config):
        meaning["config"] = settings
    if layout.vocabulary is not family.vocabulary:
        meaning["ids"] = layout.spans((RESIDUES,))[0].ids.tolist()
    canonical = json.dumps(meaning, sort_keys=True).encode()
    fingerprint = hashlib.blake2b(canonical, digest_size=16).hexdigest()
    return Identity(checkpoint, layout, fingerprint, meaning)


def check_backend(identity: Identity, backend: Backend, *, layers: bool = False) -> None:
    """Check that a backend can run an encoder, and pool its inner layers if `layers` is true.

    Raises
    ------
    WrongBackend
        Unknown backend, or FAESM for another encoder than ESM-2 or for inner layers.
    BadCheckpoint
        A config.json that describes layers that abag does not have.
    FaesmUnavailable
    """
    if backend not in get_args(Backend):
        msg = f"backend {backend!r}: unknown; give one of {', '.join(get_args(Backend))}"
        raise WrongBackend(msg)
    identity.family.checked_config(identity.checkpoint)
    if backend != "faesm":
        return
    if layers:
        msg = "backend faesm with --layers: FAESM returns the last layer only; give packed"
        raise WrongBackend(msg)
    if "faesm" not in identity.family.backends:
        msg = (
            f"backend faesm with encoder {identity.checkpoint.name}: its family is "
            f"{identity.family.name}, and FAESM runs only ESM-2; give packed or reference"
        )
        raise WrongBackend(msg)
    from abag.embed.families.faesm import import_faesm

    import_faesm()


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
    """
    alias = ALIASES.get(name)
    if alias is not None and alias.random:
        from abag.embed.encoders.random_checkpoints import tiny_folder

        return _open(tiny_folder(name), name, name, random=True)
    if alias is not None and alias.hub_name is None:
        return _open_package(name, FAMILIES[alias.family])
    folder = user_path(name, "encoder")
    if folder.is_dir():
        return _open(folder, _slug(folder.resolve().name), name)
    source = hub_source(name)
    if "/" not in source.name or source.name.startswith((".", "/")):
        near = near_aliases(name)
        meant = f"did you mean {' or '.join(near)}" if near else f"give one of {', '.join(ALIASES)}"
        msg = (
            f"encoder {name!r}: not an alias and not an existing folder; {meant}, a hub name "
            "(owner/model) or a checkpoint folder"
        )
        msg += "?" * bool(near)
        raise EncoderNotFound(msg)
    folder = _hub_folder(name, source, download=download)
    return _open(folder, _slug(name.partition("@")[0].rsplit("/", 1)[-1]), str(source))


def near_aliases(name: str) -> list[str]:
    """Return the aliases that somebody who wrote this name may have meant, nearest first."""
    aliases: dict[str, str] = {}
    for alias, known in ALIASES.items():
        aliases |= {} if known.random else {_plain_name(alias): alias}
    for alias, known in ALIASES.items():
        if known.hub_name:
            aliases.setdefault(_plain_name(known.hub_name), alias)
    asked = _plain_name(name)
    if asked in aliases:
        return [aliases[asked]]
    long = len(asked) >= 3
    near = [
        known for known in aliases if long and (known.startswith(asked) or asked.startswith(known))
    ]
    near = near or get_close_matches(asked, aliases, cutoff=0.7)
    return list(dict.fromkeys(aliases[known] for known in near))[:MOST_NEAR]


def _plain_name(name: str) -> str:
    """Reduce the last part of a name to lower-case letters and digits."""
    last = name.partition("@")[0].rstrip("/").rsplit("/", 1)[-1]
    return "".join(c for c in last.lower() if c.isalnum())


def _slug(name: str) -> str:
    """Reduce a name to lower-case letters, digits and dashes, safe on any file system."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()) or "encoder"


def _open(folder: Path, name: str, origin: str, *, random: bool = False) -> EncoderCheckpoint:
    path = folder / "config.json"
    if not path.is_file():
        msg = f"{folder}: no config.json; give a checkpoint folder as transformers saves it"
        raise BadCheckpoint(msg)
    config, family = _read_config(path)
    names = family.weight_names
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


def _open_package(alias: str, family: Family) -> EncoderCheckpoint:
    """Find the weights inside an installed package, whose code is never imported.

    Raises
    ------
    EncoderNotFound
        If the package is not installed, or has not downloaded its weights.
    BadCheckpoint
        If its settings cannot be read.
    """
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
    weights, settings = folder / package.weights, folder / package.config
    if not (weights.is_file() and settings.is_file()):
        run = package.download or f"pip install -U {package.name}"
        msg = (
            f"encoder {alias}: the package {package.name} has not downloaded its weights "
            f"({weights.parent}); run {run} once"
        )
        raise EncoderNotFound(msg)
    config, _ = _read_config(settings, family)
    names = family.weight_names
    return EncoderCheckpoint(alias, family.name, folder, (weights,), config, alias, names=names)


def _read_config(path: Path, family: Family | None = None) -> tuple[dict[str, Any], Family]:
    """Read config.json, find its family if none is given, and check the values that it needs."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        msg = f"{path}: not valid JSON ({error}); the download may be incomplete"
        raise BadCheckpoint(msg) from error
    config = config if isinstance(config, dict) else {}
    name, family = config.get("model_type"), family or family_of(config)
    if family is None:
        known = ", ".join(dict.fromkeys(f.model_type for f in FAMILIES.values() if f.model_type))
        msg = f"{path}: model_type {name!r} is not supported; expected one of {known}"
        raise BadCheckpoint(msg)
    if family.translate is not None:
        config = dict(family.translate(config))
    needed = (*family.config_keys, "vocab_size")
    if missing := [key for key in dict.fromkeys(needed) if config.get(key) is None]:
        msg = (
            f"{path}: missing {', '.join(missing)}; "
            f"give the config.json of a complete {family.name} model"
        )
        raise BadCheckpoint(msg)
    for key, example in family.tiny_config.items():
        value, words = config.get(key), _IN_WORDS.get(type(example))
        if value is not None and words is not None and not _is_like(value, example):
            msg = f"{path}: {key} {value!r}; expected {words}. Copy the file again."
            raise BadCheckpoint(msg)
    try:
        shape = family.shape(config)
    except (TypeError, ValueError, ArithmeticError) as error:  # of a value that may be null
        msg = f"{path}: gives no sizes of layers ({first_line(error)}); copy the file again"
        raise BadCheckpoint(msg) from error
    if min(shape.heads, shape.attention_width) < 1 or shape.attention_width % shape.heads:
        msg = (
            f"{path}: {shape.heads} attention heads do not divide a width of "
            f"{shape.attention_width}; copy the file again"
        )
        raise BadCheckpoint(msg)
    return config, family


def _is_like(value: object, example: object) -> bool:
    """Whether a value of config.json is of the type of the same one in a tiny config."""
    known = (int, float) if type(example) is float else (type(example),)
    return type(value) in known and (isinstance(value, str) or abs(value) < _MOST)  # type: ignore[arg-type]


class _NotACheckpoint(Exception):
    """A repository without the files of a checkpoint; the text says which."""


def _hub_folder(name: str, source: HubSource, *, download: bool) -> Path:
    """Return the folder of a hub checkpoint: the local copy if complete, else a download."""
    reason = Exception()
    for local in (True, False) if download else (True,):
        try:
            return _fetch(source, local=local)
        except Exception as error:
            if isinstance(error, BadCheckpoint) and not local:
                raise  # a model that abag does not read, however often it is downloaded
            reason = error
    raise EncoderNotFound(_unavailable(name, source, reason)) from reason


def _unavailable(name: str, source: HubSource, reason: Exception) -> str:
    """Say why a hub checkpoint cannot be had, and what to do."""
    from huggingface_hub import errors

    near = near_aliases(source.name)
    known = any(alias.hub_name == source.name for alias in ALIASES.values())
    meant = "" if known or not near else f" Did you mean {' or '.join(near)}?"
    if isinstance(reason, _NotACheckpoint):
        return (
            f"encoder {name}: {source} has no {reason} on the hub; expected a model as "
            f"transformers saves it.{meant}"
        )
    if isinstance(reason, errors.GatedRepoError):
        return (
            f"encoder {name}: the owner of {source.name} has to grant access to it. Ask for "
            "access on its page on the hub, then log in: hf auth login."
        )
    if isinstance(reason, errors.RepositoryNotFoundError):
        return (
            f"encoder {name}: {source.name} does not exist on the hub, or you may not see it. "
            f"Check the name, or log in: hf auth login.{meant}"
        )
    if isinstance(reason, errors.RevisionNotFoundError):
        return (
            f"encoder {name}: {source.name} has no revision {source.revision}; expected a branch, "
            "a tag or a whole commit id. Check what follows the @."
        )
    return (
        f"encoder {name}: the weights of {source} are not on disk and could not be downloaded "
        f"({first_line(reason)}); run `{source.download_command}` on a machine with network "
        "access, give the folder of a downloaded checkpoint, or use an encoder that needs no "
        f"download: antiberty (pip install 'abag[antiberty]') or composition.{meant}"
    )


def _fetch(source: HubSource, *, local: bool) -> Path:
    """Fetch config, tokenizer and the encoder's weights, without the shards of a decoder."""
    from huggingface_hub import snapshot_download

    options = {"revision": source.revision, "local_files_only": local}
    get = partial(snapshot_download, source.name, **options)
    folder = Path(get(allow_patterns=_SMALL_FILES))
    if not (folder / "config.json").is_file():
        msg = "config.json"
        raise _NotACheckpoint(msg)
    _, family = _read_config(folder / "config.json")
    names = family.weight_names
    for whole in WHOLE_FILES:
        get(allow_patterns=["config.json", whole])  # huggingface_hub warns if nothing matches
        if (folder / whole).is_file():
            break
        if (index := folder / f"{whole}.index.json").is_file():
            get(allow_patterns=shard_names(index, names))
            break
    if not weight_files(folder, names):
        raise _NotACheckpoint(" or ".join(WHOLE_FILES))
    return folder
