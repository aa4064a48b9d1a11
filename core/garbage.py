"""Python's garbage collector, kept from walking again and again what is no garbage.

Imports leave some 300,000 objects, and a table millions of tuples. Looking for cycles among them
takes a sixth of the time of the imports, a quarter of that of reading, and 0.7 s at the exit.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

OBJECTS_PER_COLLECTION = 20_000
"""Python's own 700 suit programs that import less."""
_one_command = ContextVar("one_command", default=False)


@contextmanager
def one_command() -> Iterator[None]:
    """Collect less often in the block, and nothing at the exit of the process."""
    before = gc.get_threshold()
    token = _one_command.set(True)
    gc.set_threshold(OBJECTS_PER_COLLECTION, *before[1:])
    atexit.register(_freeze)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        _one_command.reset(token)


def freeze_imports() -> None:
    """Leave all present objects out of collections, if this process runs one command and ends.

    In a notebook the user's own garbage would stay forever.
    """
    if _one_command.get():
        _freeze()


def _freeze() -> None:
    if "triton" not in sys.modules:  # it reports what is not collected at the exit as leaks
        gc.freeze()


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
