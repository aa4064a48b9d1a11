"""Checkpoints of seeded random weights: real architectures and tokenizer files, no biology.

For demos, tests, parity checks and benchmarks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from abag.embed.families.family import Config
from abag.embed.families.registry import ALIASES, FAMILIES, family_of

TINY_CONFIG: dict[str, Config] = {
    name: FAMILIES[alias.family].tiny_config for name, alias in ALIASES.items() if alias.random
}


def save_random_checkpoint(folder: Path, config: Config, seed: int) -> Path:
    """Write a T5 or ESM-2 checkpoint of random weights to a folder; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in random_checkpoint_files(config, seed).items():
        (folder / name).write_bytes(content)
    return folder


def random_checkpoint_files(config: Config, seed: int) -> dict[str, bytes]:
    """Return names and bytes of a random checkpoint's files; equal seeds give equal bytes."""
    from safetensors.numpy import save

    family, rng = family_of(config), np.random.default_rng(seed)
    assert family is not None

    def draw(shape: Sequence[int], scale: float) -> NDArray[np.float32]:
        drawn = rng.standard_normal(tuple(shape), dtype=np.float32)
        drawn *= np.float32(scale)
        return drawn

    return {
        "config.json": json.dumps(dict(config), indent=1).encode(),
        "model.safetensors": save(family.random_weights(config, draw), metadata={"format": "pt"}),
        **family.tokenizer_files(),
    }
