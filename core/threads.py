"""Calls in threads: on all cores, or beside what the caller does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Event
from typing import TypeVar

from abag.core.workers import count_cores

Task = TypeVar("Task")
Result = TypeVar("Result")

_abandoned: ContextVar[Event | None] = ContextVar("abandoned", default=None)


@contextmanager
def meanwhile(call: Callable[[], Result]) -> Iterator[Callable[[], Result]]:
    """Begin a call beside the block, which gets a function that waits for the result.

    Its messages go where those of the block go. If the block is left before, the call is abandoned:
    it ends where it looks at `abandoned` or gets the next result of `in_order`.
    """
    stop, inside = Event(), copy_context()
    inside.run(_abandoned.set, stop)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(inside.run, call)
        try:
            yield running.result
        finally:
            stop.set()


def abandoned() -> Event:
    """Return what is set when the call of `meanwhile` that this runs in is abandoned."""
    return _abandoned.get() or Event()


def in_order(call: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """Yield the results of calls that run in threads, few of them ahead of time.

    Pays only where a call releases the lock of the interpreter most of the time. Raises
    CancelledError if nobody waits for the results, see `meanwhile`.
    """
    cores, stop = count_cores(), abandoned()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(cores) as threads:
        for task in tasks:
            if stop.is_set():
                raise CancelledError
            waiting.append(threads.submit(call, task))
            if len(waiting) > cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
