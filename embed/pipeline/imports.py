"""What encoding imports, started while a table is still being read.

On a cold machine torch and the start of CUDA take longer than reading the table.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Thread


def import_ahead(*, on_gpu: bool) -> Thread:
    """Start importing torch and, if asked, CUDA; errors are left to the code that needs them."""
    thread = Thread(target=_import, args=(on_gpu,))
    thread.start()
    return thread


def _import(on_gpu: bool) -> None:
    with suppress(Exception):
        import torch

        if on_gpu and torch.cuda.is_available():
            torch.empty(1, device="cuda")
