"""The tasks of a fit, in one pool of threads if its folds are small.

Steps and factorisations release the lock of the interpreter most of the time, so threads suffice.
They copy nothing, and work in notebooks and scripts that a new process could not import. Results do
not depend on the number of threads.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TYPE_CHECKING, NamedTuple

from threadpoolctl import threadpool_limits

from abag.core.messages import part_of_stage
from abag.head.training.loop import NO_SIGNAL, Stopped, delayed_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


WAIT_S = 0.05
"""Time after which the main thread looks for signals that another thread received: these do not
end its wait."""


class Task(NamedTuple):
    """A part of a fit that needs no other part."""

    run: Callable[[], object]
    share: float
    """Of the stage's time, for the progress bar."""


def run_tasks(tasks: Sequence[Task], threads: int) -> None:
    """Run all tasks; after a signal or an error none begins, and trainings save and stop.

    With one thread they run in this one, in their order. With several, each has one core.

    Raises
    ------
    Stopped
        If a signal has stopped the tasks and its handler did not raise an exception.
    """
    with delayed_signals() as stop:

        def run(task: Task) -> None:
            if not stop:
                with part_of_stage(task.share):
                    task.run()

        if threads == 1:
            for task in tasks:
                run(task)
        else:
            with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
                running = [pool.submit(copy_context().run, run, task) for task in tasks]
                waiting = set(running)
                while waiting:
                    ended, waiting = wait(waiting, WAIT_S, FIRST_COMPLETED)
                    if any(task.exception() is not None for task in ended):
                        stop.append(NO_SIGNAL)
            errors = [error for task in running if (error := task.exception()) is not None]
            for error in errors:
                if not isinstance(error, Stopped):
                    raise error
    if stop:
        raise Stopped
