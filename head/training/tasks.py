"""Run the fits and trainings of a run in a pool of threads, and stop all of them together.

After a signal, or an error in one of them, none begins, and those that train save their last step.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING

from abag.core.cores import limit_blas
from abag.core.errors import TrainingError
from abag.core.messages import bar, reporting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


NO_SIGNAL = 0
"""In a list of `delayed_signals`: stop because of an error elsewhere."""
_received: ContextVar[list[int] | None] = ContextVar("signals received", default=None)
WAIT_S = 0.05
"""Time after which the main thread looks for signals that another thread received: these do not
end its wait."""


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


def run_tasks(tasks: Sequence[Callable[[], None]], threads: int, title: str = "fit") -> None:
    """Run all tasks; after a signal or an error none begins, and trainings save and stop."""
    # a single training draws its own bar only; one after the other, they draw theirs below this
    # one, which a step of a large table would leave still for a minute
    alone = {"disable": True} if len(tasks) == 1 else {}
    with_bars = None if alone or threads == 1 else False
    with delayed_signals() as stop, bar(total=len(tasks), desc=title, **alone) as drawn:

        def run(task: Callable[[], None]) -> None:
            if not stop:
                with reporting(bars=with_bars):
                    task()
                drawn.update()

        if threads == 1:
            for task in tasks:
                run(task)
        else:
            with limit_blas(1), ThreadPoolExecutor(threads) as pool:
                # threads do not inherit context variables: who receives messages, and signals
                running = [pool.submit(copy_context().run, run, task) for task in tasks]
                _wait_for(running, stop)
    if stop:
        raise Stopped


def _wait_for(running: Sequence[Future[None]], stop: list[int]) -> None:
    """Wait until all tasks have ended; after the first error, put `NO_SIGNAL` into `stop`."""
    waiting = set(running)
    while waiting:
        ended, waiting = wait(waiting, WAIT_S, FIRST_COMPLETED)
        if any(task.exception() is not None for task in ended):
            stop.append(NO_SIGNAL)
    for task in running:
        error = task.exception()
        # the others stopped because of this one
        if error is not None and not isinstance(error, Stopped):
            raise error
