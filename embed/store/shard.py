"""Shards as bytes, named by their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from abag.embed.shards.hdf5_layout import BlockSource, shard_chunks
from abag.embed.shards.regular_files import DamagedShard as DamagedShard
from abag.embed.shards.shard import Attrs as Attrs
from abag.embed.shards.shard import as_image, check_file
from abag.embed.shards.shard import is_finite as is_finite


def shard_image(arrays: Mapping[str, NDArray[Any]], attrs: Attrs) -> bytes:
    """Lay out a shard."""
    attrs = {**attrs, "rows": len(arrays["key"])}
    return as_image(shard_chunks([BlockSource.of(attrs, arrays)]))


def shard_name(image: bytes) -> str:
    """Return the name of the file with these bytes."""
    return f"{hashlib.blake2b(image, digest_size=16).hexdigest()}.h5"


def check_shard(path: Path) -> None:
    """Check every byte of a shard."""
    check_file(path)
