"""Calls in threads on all cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from abag.core.workers import count_cores

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_order(call: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """Yield the results of calls that run in threads, few of them ahead of time.

    Pays only where a call releases the lock of the interpreter most of the time.
    """
    cores = count_cores()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(cores) as threads:
        for task in tasks:
            waiting.append(threads.submit(call, task))
            if len(waiting) > cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
