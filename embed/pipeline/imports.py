"""What encoding imports, started while a table is still being read.

On a cold machine torch, transformers and the start of CUDA take longer than reading the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from threading import Thread

from abag.embed.families.registry import ALIASES, FAMILIES


def import_ahead(encoders: Iterable[str], *, on_gpu: bool) -> Thread:
    """Start importing torch, what else these encoders need and, unless it is False, CUDA.

    Join the thread before anything else may import them: transformers cannot be imported by two
    threads at once. Errors are left to the code that needs the imports.
    """
    aliases = (ALIASES.get(name) for name in encoders)
    packed = any(one is None or "packed" in FAMILIES[one.family].backends for one in aliases)
    thread = Thread(target=_import, args=(packed, on_gpu))
    thread.start()
    return thread


def _import(packed: bool, on_gpu: bool) -> None:
    with suppress(Exception):
        import torch

        if on_gpu and torch.cuda.is_available():
            torch.empty(1, device="cuda")
        if packed:
            from transformers import AutoTokenizer  # noqa: F401 - checks the vocabulary
