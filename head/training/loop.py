"""Epochs of steps that can be resumed: checkpoints, early stopping and delayed signals.

What a step of a `ResumableTraining` does depends only on the seed, the step number and the state in
the checkpoint. A training that was interrupted at any point and resumed therefore ends like an
uninterrupted one, bit for bit on a CPU. Heads and adapters are trained by the same loop.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from abag import AbagError
from abag.core.messages import bar, say
from abag.head.models.config import RunMismatch
from abag.head.training.checkpoint import load_newest, save_rotating

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from abag.core.options import Options

MAX_SAVING_SHARE = 0.01
"""Share of the training time that may go into checkpoints without a `save_every`."""
MIN_SAVE_INTERVAL_S = 30.0
NO_SIGNAL = 0
"""In a list of `delayed_signals`: stop because of an error elsewhere."""
_received: ContextVar[list[int] | None] = ContextVar("signals received", default=None)


class LossNotFinite(AbagError):
    """Training diverged."""


class Stopped(AbagError):
    """A signal or an error elsewhere has stopped this training; its last step is saved."""

    def __init__(self) -> None:
        super().__init__(
            "training: stopped by a signal; its last step is saved. Run the same command again to "
            "resume."
        )


@dataclass(slots=True, kw_only=True)
class TrainingProgress:
    """The part of a checkpoint that is not tensors; subclasses add fields."""

    training: str
    """Digest of `training_digest`."""
    step: int = 0
    seconds: float = 0.0
    """Training time over all sessions."""


class ResumableTraining(ABC):
    """Epochs of steps with checkpoints, early stopping and delayed signals.

    Parameters
    ----------
    name : str
        Used in messages and on the progress bar.
    checkpoints : Path
        Folder of the checkpoints ``latest`` and ``previous``.
    save_every : int or None
        Steps between checkpoints; None: at least `MIN_SAVE_INTERVAL_S` apart, and no more often
        than `MAX_SAVING_SHARE` allows.
    progress : TrainingProgress
        The progress of a training that has not started.
    """

    def __init__(
        self,
        *,
        name: str,
        checkpoints: Path,
        epochs: int,
        steps_per_epoch: int,
        save_every: int | None,
        progress: TrainingProgress,
    ) -> None:
        self.name, self.checkpoints, self.save_every = name, checkpoints, save_every
        self.epochs, self.steps_per_epoch = epochs, steps_per_epoch
        self.progress = progress
        self.resumed_from_step: int | None = None
        self._started = self._saved_at = time.monotonic()
        self._saved_step, self._saving_s = 0, 0.0

    @abstractmethod
    def _tensors(self) -> Mapping[str, Tensor]:
        """Return every tensor that a checkpoint stores."""

    @abstractmethod
    def _restore(self, tensors: dict[str, Tensor] | None) -> None:
        """Load a checkpoint's tensors, `progress` being loaded; None: there is no checkpoint."""

    @abstractmethod
    def _announce(self) -> None:
        """Report what is about to be trained."""

    @abstractmethod
    def _begin_epoch(self, epoch: int, first_step: int) -> None:
        """Prepare the steps of an epoch, counted from 0, from `first_step` on."""

    @abstractmethod
    def _take_step(self, step_in_epoch: int) -> None:
        """Take one optimizer step."""

    @abstractmethod
    def _end_epoch(self, epochs_done: int) -> None:
        """Validate and log."""

    @abstractmethod
    def _is_out_of_patience(self) -> bool:
        """Whether early stopping ends the training."""

    def _write_checkpoint(self) -> None:
        """Write the checkpoint; subclasses add what has to be written before and after it."""
        save_rotating(self.checkpoints, self._tensors(), asdict(self.progress))

    def run(self) -> None:
        """Train from the newest whole checkpoint, or from the start, to the end.

        A signal takes effect after the current step, when the state is saved.

        Raises
        ------
        CheckpointDamaged, CheckpointVersion
            If there are checkpoints and none can be used.
        RunMismatch
            If they belong to another training.
        LossNotFinite
            If training diverges.
        DiskFull
            If a checkpoint cannot be written.
        """
        self._resume()
        if not self._is_finished():
            self._announce()
            if self.resumed_from_step is not None:
                say(f"{self.name}: resuming from step {self.resumed_from_step}")
        steps = {"total": self.epochs * self.steps_per_epoch, "initial": self.progress.step}
        with bar(**steps, desc=self.name, unit="step") as drawn, delayed_signals() as received:
            while not received and not self._is_finished():
                epoch, first_step = divmod(self.progress.step, self.steps_per_epoch)
                self._begin_epoch(epoch, first_step)
                for step_in_epoch in range(first_step, self.steps_per_epoch):
                    self._take_step(step_in_epoch)
                    self.progress.step += 1
                    if step_in_epoch == self.steps_per_epoch - 1:
                        self._end_epoch(epoch + 1)
                    if self._save_is_due():
                        self.save()
                    drawn.update()
                    if received:
                        break
            self.save()

    def save(self) -> None:
        """Write a checkpoint, unless there is one of this step; raise `DiskFull` if it cannot."""
        if self.progress.step == self._saved_step:
            return
        begun = time.monotonic()
        self.progress.seconds = begun - self._started
        self._write_checkpoint()
        self._saved_step, self._saved_at = self.progress.step, time.monotonic()
        self._saving_s = self._saved_at - begun

    def elapsed_s(self) -> float:
        """Return the training time over all sessions."""
        return time.monotonic() - self._started

    def _resume(self) -> None:
        found = load_newest(self.checkpoints)
        if found is not None:
            if found.state.get("training") != self.progress.training:
                msg = (
                    f"{self.checkpoints}: the checkpoints belong to another training; expected "
                    "those of these options and data. Restore them, or use another folder."
                )
                raise RunMismatch(msg)
            self.progress = type(self.progress)(**found.state)
            self.resumed_from_step = self._saved_step = self.progress.step
        self._restore(None if found is None else found.tensors)
        self._saved_at = time.monotonic()
        self._started = self._saved_at - self.progress.seconds

    def _is_finished(self) -> bool:
        done = self.progress.step >= self.epochs * self.steps_per_epoch
        return done or self._is_out_of_patience()

    def _save_is_due(self) -> bool:
        if self.save_every is not None:
            return self.progress.step % self.save_every == 0
        waited_s = time.monotonic() - self._saved_at
        return waited_s >= max(MIN_SAVE_INTERVAL_S, self._saving_s / MAX_SAVING_SHARE)


def training_digest(config: Options, arrays: Iterable[NDArray[Any]]) -> str:
    """Hash what a training resumes with: options that may not change, and its data."""
    options = {n: x for n, x in config.to_json().items() if n not in config.changeable()}
    digest = blake2b(json.dumps(options, sort_keys=True).encode(), digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@contextmanager
def delayed_signals() -> Iterator[list[int]]:
    """Collect signals in a list instead of acting on them; raise the first when the block ends.

    A signal that interrupts a step leaves weights that must not be saved. A block inside another
    one, also in a thread, has the same list and raises `Stopped` if there is anything in it.
    Outside the main thread signals are not collected, and ignored ones stay ignored.
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
        found = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        handlers = {n: one for n, one in found.items() if one != signal.SIG_IGN}
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
