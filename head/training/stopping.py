"""Stop a training between two steps: signals wait until its weights are whole and saved."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from abag.core.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_SIGNAL = 0
"""In a list of `delayed_signals`: stop because of an error elsewhere."""
_received: ContextVar[list[int] | None] = ContextVar("signals received", default=None)


class Stopped(TrainingError):
    """A signal or an error elsewhere has stopped this training; its last step is saved."""

    def __init__(self) -> None:
        super().__init__("training: stopped, its last step saved. Run the same command again.")


@contextmanager
def delayed_signals() -> Iterator[list[int]]:
    """Collect signals in a list, and raise the first when the block ends; weights stay whole.

    A block inside another one has the same list, and raises `Stopped` if there is anything in it.
    """
    outer = _received.get()
    if outer is not None:
        yield outer
        if outer:
            raise Stopped
        return
    received: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if handler != signal.SIG_IGN:
                handlers[number] = handler
    token = _received.set(received)
    for number in handlers:
        signal.signal(number, lambda number, _frame: received.append(number))
    try:
        yield received
    finally:
        _received.reset(token)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if any(received):
        signal.raise_signal(next(filter(None, received)))
