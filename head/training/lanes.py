"""The tasks of a fit in several threads: folds that train, and models that are fitted meanwhile.

Steps and factorisations of torch release the lock of the interpreter most of the time, so that
threads suffice. They copy nothing, and work in notebooks and scripts that a new process could not
import. Results do not depend on the number of lanes.
"""

from __future__ import annotations

import threading
from collections import deque
from contextvars import copy_context
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from threadpoolctl import threadpool_limits

from abag.core.messages import part_of_stage
from abag.core.workers import count_cores
from abag.head.training.lane_count import LANE_PAIRS, count_lanes
from abag.head.training.loop import NO_SIGNAL, Stopped, delayed_signals
from abag.head.training.torch_settings import return_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

WAIT_S = 0.05
"""Time after which the main thread looks for signals that another thread received."""


class Task(NamedTuple):
    """A part of a fit that needs no other part."""

    run: Callable[[], object]
    share: float
    """Of the stage's time, for the progress bar."""


def run_in_lanes(
    own: Sequence[Task], others: Sequence[Task], n_training: int, *, beside: Sequence[Task] = ()
) -> None:
    """Run all tasks; only this thread runs its `own`, in their order, before it helps with others.

    One more thread runs those `beside`, in their order, whatever the number of lanes.

    After a signal or an error no task begins, and trainings stop after their step and save.

    Parameters
    ----------
    n_training : int
        Training pairs of the largest fold.

    Raises
    ------
    Stopped
        If a signal has stopped the tasks and its handler did not raise an exception.
    """
    waiting, errors = deque(others), list[BaseException]()
    small = n_training <= LANE_PAIRS
    lanes = count_lanes(len(others) + bool(own), n_training, count_cores())
    with delayed_signals() as stop:

        def lane(tasks: Iterable[Task]) -> None:
            try:
                for task in tasks:
                    if stop:
                        return
                    with part_of_stage(task.share):
                        task.run()
                    return_freed_memory()
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)
                stop.append(NO_SIGNAL)

        # Each lane has a core, and its results are those of one core.
        with threadpool_limits(1 if small else None, user_api="blas"):
            further = [_taken(waiting) for _ in range(lanes - 1)] + ([beside] if beside else [])
            threads = [
                threading.Thread(target=copy_context().run, args=(lane, tasks)) for tasks in further
            ]
            for thread in threads:
                thread.start()
            lane(chain(own, _taken(waiting)))
            for thread in threads:
                while thread.is_alive():  # on Windows a signal does not end a wait
                    thread.join(WAIT_S)
        errors = [error for error in errors if not isinstance(error, Stopped)]
        if errors:
            raise errors[0]
    if stop:
        raise Stopped


def _taken(waiting: deque[Task]) -> Iterator[Task]:
    """Take tasks until none is left; other lanes take them, too."""
    while waiting:
        try:
            yield waiting.popleft()
        except IndexError:  # another lane was faster
            return
