"""Fits and trainings of a run: run in a pool of threads, stopped together, kept, and resumed.

After a signal, or an error in one of them, none begins, and those that train save their last step.

A checkpoint is a safetensors file that is written atomically: each is whole or refused. Its header
holds the state as JSON, and a digest over the state and every tensor's name, dtype, shape and
bytes. Nothing is unpickled. Of fitted parts, only the predictions of folds are kept until the run
has finished: these weigh and score them. P pairs.
"""

from __future__ import annotations

import hashlib
import json
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from heapq import heapify, heapreplace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from abag.core.cores import limit_blas, thread_pool
from abag.core.errors import DamagedFile, OutputError, TrainingError
from abag.core.files import make_folder, replacing
from abag.core.messages import Forecast, bar, detail, reporting, say, telling

if TYPE_CHECKING:
    from torch import Tensor

    from abag.core.arrays import Floats


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
    except Stopped:  # of a block inside, whose error would hide the signal
        if not any(received):
            raise
    finally:
        _received.reset(token)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if any(received):
        signal.raise_signal(next(filter(None, received)))


class Task(NamedTuple):
    """Something to run, and how long it takes relative to other tasks, of its kind above all."""

    run: Callable[[], None]
    weight: float = 1.0
    kind: str = ""


class Stage(NamedTuple):
    """Tasks that threads run side by side, once those of the stages before have ended."""

    title: str
    tasks: Sequence[Task]
    threads: int


@dataclass(slots=True)
class _Begun:
    """Hold of a task that has begun what it has told, but not what it has made."""

    kind: str
    weight: float
    begun_s: float
    took_s: float | None = None
    """None: it has not ended."""
    share: float = 0.0
    before: float = 0.0
    """Share that an earlier session has done."""

    @property
    def elapsed_s(self) -> float:
        """Return the seconds that it has taken so far."""
        return time.monotonic() - self.begun_s if self.took_s is None else self.took_s

    def left_s(self, expected_s: float) -> float:
        """Return the expected seconds until it ends, given those of the whole task."""
        forecast = Forecast.of(self.elapsed_s, self.share, self.before)
        if forecast is not None:
            return forecast.left_s
        left_s = expected_s * (1 - self.before)
        return max(left_s - self.elapsed_s, 0.1 * left_s)  # it may take longer


class Work:
    """Stages of a fit, and the time that they are expected to take.

    A unit of weight takes as long as in the tasks of the same kind that have ended, or tell what
    share of them is done. Kinds of which none has begun take the mean of the others.
    """

    def __init__(self, stages: Iterable[Stage] = ()) -> None:
        self.begun_s = time.monotonic()
        self._later = {stage.title: stage for stage in stages}
        self._waiting = list[Task]()
        self._begun = list[_Begun]()
        self._threads = 1
        self._lock = threading.Lock()

    def begin_stage(self, stage: Stage) -> None:
        """Begin a stage, which is no longer one of those to come."""
        self._later.pop(stage.title, None)
        self._waiting = [*stage.tasks]
        self._threads = stage.threads

    def begin(self, task: Task) -> _Begun:
        """Begin a task of the stage."""
        begun = _Begun(task.kind, task.weight, time.monotonic())
        with self._lock:
            self._waiting.remove(task)
            self._begun.append(begun)
        return begun

    def forecast(self) -> Forecast | None:
        """Return the expected time until all stages have ended; None: nothing is known."""
        with self._lock:
            all_begun = [*self._begun]
            waiting = [*self._waiting]
        seconds: defaultdict[str, float] = defaultdict(float)
        weights: defaultdict[str, float] = defaultdict(float)
        for begun in all_begun:
            if begun.share > begun.before:
                seconds[begun.kind] += begun.elapsed_s
                weights[begun.kind] += begun.weight * (begun.share - begun.before)
        if not weights:
            return None
        mean = sum(seconds.values()) / sum(weights.values())

        def expected_s(task: Task | _Begun) -> float:
            kind = task.kind
            return task.weight * (seconds[kind] / weights[kind] if kind in weights else mean)

        before_s = 0.0
        running = []
        for begun in all_begun:
            before_s += begun.before * expected_s(begun)
            if begun.took_s is None:
                running.append(begun.left_s(expected_s(begun)))
        left_s = _longest(running, map(expected_s, waiting), self._threads)
        for stage in self._later.values():
            left_s += _longest([], map(expected_s, stage.tasks), stage.threads)
        return Forecast(left_s, before_s)


def _longest(running: Sequence[float], waiting: Iterable[float], threads: int) -> float:
    """Return when the last of some tasks ends, each of which a free thread begins."""
    free_after = [*running, *[0.0] * (threads - len(running))]
    heapify(free_after)
    for expected_s in waiting:
        heapreplace(free_after, free_after[0] + expected_s)
    return max(free_after)


def run_tasks(stage: Stage, work: Work | None = None) -> None:
    """Run all tasks; after a signal or an error none begins, and trainings save and stop.

    The bar shows the time left of this stage and of those to come.
    """
    threads = stage.threads
    lock = threading.Lock()
    work = Work() if work is None else work
    work.begin_stage(stage)
    drawing = bar(total=1, desc=stage.title, delay=0.1, forecast=work.forecast)
    with delayed_signals() as stop, drawing as drawn:
        if not drawn.disable:  # else it has no such attribute
            drawn.start_t -= time.monotonic() - work.begun_s

        def draw() -> None:
            with lock:
                drawn.update(0)

        def run(task: Task) -> None:
            if stop:
                return
            begun = work.begin(task)

            def tell(done: float, before: bool = False) -> None:
                begun.share = done
                if before:
                    begun.before = done
                draw()

            with reporting(bars=False), telling(tell):  # tasks tell what they have done
                task.run()
            begun.took_s = begun.elapsed_s
            tell(1.0)

        if threads == 1:
            for task in stage.tasks:
                run(task)
        else:
            with limit_blas(1), thread_pool(threads) as pool:
                # threads do not inherit context variables: who receives messages, and signals
                running = [pool.submit(copy_context().run, run, task) for task in stage.tasks]
                _wait_for(running, stop, draw)
    if stop:
        raise Stopped


def _wait_for(running: Sequence[Future[None]], stop: list[int], draw: Callable[[], None]) -> None:
    """Wait until all tasks have ended; after the first error, put `NO_SIGNAL` into `stop`."""
    waiting = set(running)
    while waiting:
        ended, waiting = wait(waiting, WAIT_S, FIRST_COMPLETED)
        draw()
        if any(task.exception() is not None for task in ended):
            stop.append(NO_SIGNAL)
    for task in running:
        error = task.exception()
        # the others stopped because of this one
        if error is not None and not isinstance(error, Stopped):
            raise error


SCHEMA = 8
"""Version of the format; raise it when the tensors or the state change."""
_DELETE = "Delete it to resume from the previous checkpoint."


LEAST_SECONDS = 2.0
"""What took less is computed again rather than written."""


class Checkpoint(NamedTuple):
    """Hold tensors on the CPU, and JSON values."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save_rotating(folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write ``latest`` atomically, keeping the one before as ``previous``."""
    from safetensors.torch import save_file  # imports torch, which takes seconds

    path = folder / "latest"
    on_host = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}  # GPU sync
    text = json.dumps(state, sort_keys=True, allow_nan=False)
    header = {"schema": str(SCHEMA), "state": text, "digest": digest(on_host, text)}
    with replacing(path) as partial:
        try:
            save_file(on_host, partial, header)
        except (SafetensorError, OSError) as error:
            msg = (
                f"{path}: cannot be written ({error}); the previous checkpoint is whole. Free disk "
                "space and run the same command again."
            )
            raise OutputError(msg) from error
        if path.exists():
            path.replace(folder / "previous")  # the newest until the next rename


def load(path: Path) -> Checkpoint:
    """Read one checkpoint; raise `DamagedFile` if it is not whole or has another schema."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError, RuntimeError) as error:  # torch's, if a drive fails
        msg = f"{path}: cannot be read ({error}); expected a whole checkpoint. {_DELETE}"
        raise DamagedFile(msg) from error
    if header.get("schema") != str(SCHEMA):
        msg = (
            f"{path}: checkpoint schema {header.get('schema')!r}; this abag reads {SCHEMA}. "
            "Use the abag that wrote it, or another --run folder."
        )
        raise DamagedFile(msg)
    text = header.get("state", "")
    if header.get("digest") != digest(tensors, text):
        msg = f"{path}: is damaged (digest differs); expected the written bytes. {_DELETE}"
        raise DamagedFile(msg)
    return Checkpoint(tensors, json.loads(text))


def load_newest(folder: Path) -> Checkpoint | None:
    """Read the newest whole checkpoint, if there is any; damaged ones are reported and skipped."""
    damage: DamagedFile | None = None
    for path in (folder / "latest", folder / "previous"):
        if not path.exists():
            continue
        try:
            checkpoint = load(path)
        except DamagedFile as error:
            damage = damage or error
            continue
        if damage:
            say(f"{damage} Resuming from {path.name}, step {checkpoint.state.get('step')}.")
            # The next checkpoint must not rename the damaged file to previous.
            (folder / "latest").replace(folder / "latest.damaged")
        return checkpoint
    if damage:  # starting again would hide the loss
        msg = (
            f"{folder}: no checkpoint is whole ({damage}); expected latest or previous to be. "
            "Run the same command again if the drive failed for a moment; else delete the run "
            "folder to start again."
        )
        raise DamagedFile(msg)
    return None


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Hash a text, and the name, dtype, shape and bytes of each CPU tensor."""
    import torch

    running = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        running.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        running.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return running.hexdigest()


@dataclass(frozen=True, slots=True)
class Kept:
    """Read and write arrays that took long to compute, such as what a part of a fold predicts."""

    folder: Path
    digest: str
    """Digest of what they were computed from; those of another one are computed again."""

    def read(self, name: str) -> dict[str, Floats] | None:
        """Return arrays by name, if they were kept whole."""
        folder = self.folder / name
        if not folder.is_dir():
            return None
        try:
            checkpoint = load_newest(folder)
        except DamagedFile:
            say(f"{folder}: what was kept is damaged; it is fitted again")
            return None
        if checkpoint is None or checkpoint.state.get("digest") != self.digest:
            return None
        detail(f"{folder}: kept, not fitted again")
        return {key: tensor.numpy() for key, tensor in checkpoint.tensors.items()}

    def write(self, name: str, arrays: Mapping[str, Floats], seconds: float) -> None:
        """Keep arrays that took so long to compute, if that is long."""
        if seconds < LEAST_SECONDS:
            return
        import torch

        folder = self.folder / name
        make_folder(folder)
        tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
        save_rotating(folder, tensors, {"digest": self.digest, "step": 0})
