"""abag: encode each antibody and antigen once, train affinity heads in seconds."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from abag.adapt.train import adapt_encoders as adapt_encoders
    from abag.embed.run import embed_table as embed_table
    from abag.embed.store import open_store as open_store
    from abag.head.predictor import load_predictor as load_predictor
    from abag.head.sweep import sweep as sweep
    from abag.head.train import fit as fit

__version__ = "0.1.0"
__all__ = [
    "AbagError",
    "__version__",
    "adapt_encoders",
    "embed_table",
    "fit",
    "load_predictor",
    "open_store",
    "sweep",
]

_HOMES = {
    "adapt_encoders": "abag.adapt.train",
    "embed_table": "abag.embed.run",
    "open_store": "abag.embed.store",
    "fit": "abag.head.train",
    "sweep": "abag.head.sweep",
    "load_predictor": "abag.head.predictor",
}


class AbagError(Exception):
    """Something a person can mend; its text says where, what, what was expected and what to do."""


def cache_dir() -> Path:
    """Folder for what can be made again: digests of weights, tiny checkpoints, clusters."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "abag"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"abag-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def __getattr__(name: str) -> object:
    """Import the public functions on first use, so that ``import abag`` loads no torch."""
    if name not in _HOMES:
        msg = f"module 'abag' has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
