"""Checkpoints of seeded random weights, for demos, tests and benchmarks: no biology.

They have real architectures, and the names and scales of real weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.cache import cache_dir
from abag.core.files import write_bytes
from abag.embed.families.family import Config, Family
from abag.embed.families.registry import ALIASES, FAMILIES, family_of

TINY_CONFIG: dict[str, Config] = {
    name: FAMILIES[alias.family].tiny_config for name, alias in ALIASES.items() if alias.random
}
Draw: TypeAlias = Callable[[tuple[int, ...], float], NDArray[np.float32]]
"""Draws an array of a normal distribution, given its shape and its scale."""


def save_random_checkpoint(folder: Path, config: Config, seed: int) -> Path:
    """Write a checkpoint of random weights to a folder; returns the folder.

    Equal seeds give equal bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _files(config, seed).items():
        (folder / name).write_bytes(content)
    return folder


def tiny_folder(name: str) -> Path:
    """Return the cached folder of a tiny checkpoint, written on first use."""
    files = _files(TINY_CONFIG[name], seed=0)
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


def _files(config: Config, seed: int) -> dict[str, bytes]:
    from safetensors.numpy import save

    family, rng = family_of(config), np.random.default_rng(seed)
    assert family is not None

    def draw(shape: tuple[int, ...], scale: float) -> NDArray[np.float32]:
        drawn = rng.standard_normal(shape, dtype=np.float32)
        drawn *= np.float32(scale)
        return drawn

    return {
        "config.json": json.dumps(dict(config), indent=1).encode(),
        "model.safetensors": save(draw_weights(family, config, draw), metadata={"format": "pt"}),
        "vocab.json": json.dumps(dict(family.tokens)).encode(),
    }


def draw_weights(family: Family, config: Config, draw: Draw) -> dict[str, NDArray[np.float32]]:
    """Draw the weights of an encoder at the scale that training gives, by name."""
    config, shape, declared = (
        family.complete(config),
        family.shape(config),
        family.architecture_of(config),
    )
    width, inner, hidden = shape.width, shape.attention_width, shape.feed_forward_width
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
        for place, name in enumerate(declared.qkv):
            # T5 does not divide scores by the root of the head width: its queries are smaller, so
            # that the softmax is neither flat nor one-hot
            scale = (width * shape.head_width) ** -0.5
            scaled = declared.relative_bias and not place
            product(at + name, 3 * inner // len(declared.qkv), width, scale if scaled else None)
        product(at + declared.out, width, inner)
        norm(at + declared.norms[0])
        for name in declared.up:
            product(at + name, (1 + bool(declared.gate)) * hidden // len(declared.up), width)
        product(at + declared.down, width, hidden)
        norm(at + declared.norms[1])
        for name in declared.qk_norms or ():
            norm(at + name, biased=False)
    buckets = config.get("relative_attention_num_buckets", 0)
    table(declared.relative_bias, buckets, shape.heads, 0.5)
    if declared.last_norm:
        norm(declared.last_norm, biased=declared.norm == "layer" and declared.last_norm_biased)
    return weights
