"""A loop of epochs and steps that survives an interruption at any point.

What a step does depends only on the seed, the step number and the checkpoint: a training that was
interrupted at any point and resumed ends like an uninterrupted one, bit for bit on a CPU. Heads and
adapters train in this loop.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from abag.core.arrays import hash_arrays
from abag.core.errors import RunError
from abag.core.messages import bar, say
from abag.head.training.checkpoint import load_newest, save_rotating
from abag.head.training.stopping import delayed_signals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from abag.core.options import Options

MAX_SAVING_SHARE = 0.01
"""Share of the training time that may go into checkpoints without a `save_every`."""
MIN_SAVE_INTERVAL_S = 30.0
"""Seconds between two checkpoints at least, without a `save_every`."""


@dataclass(slots=True, kw_only=True)
class TrainingProgress:
    """Hold the part of a checkpoint that is not tensors; subclasses add fields."""

    training: str
    """Digest of the options and data; see `training_digest`."""
    step: int = 0
    """Steps that are done."""
    seconds: float = 0.0
    """Training time over all sessions."""


class ResumableTraining(ABC):
    """Run epochs of steps with checkpoints, early stopping and delayed signals."""

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
        self.name = name
        self.checkpoints = checkpoints
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch
        self.save_every = save_every
        self.progress = progress
        self.resumed_from_step: int | None = None
        self._started = time.monotonic()
        self._saved_at = self._started
        self._saved_step = 0
        self._saving_s = 0.0

    @abstractmethod
    def _tensors(self) -> Mapping[str, Tensor]: ...

    @abstractmethod
    def _restore(self, tensors: dict[str, Tensor] | None) -> None:
        """Load a checkpoint's tensors, `progress` being loaded; None: there is no checkpoint."""

    @abstractmethod
    def _announce(self) -> None: ...

    @abstractmethod
    def _begin_epoch(self, epoch: int, first_step: int) -> None: ...

    @abstractmethod
    def _take_step(self, step_in_epoch: int) -> None: ...

    @abstractmethod
    def _end_epoch(self, epochs_done: int) -> None: ...

    @abstractmethod
    def _is_out_of_patience(self) -> bool: ...

    def _write_checkpoint(self) -> None:
        save_rotating(self.checkpoints, self._tensors(), asdict(self.progress))

    def run(self) -> None:
        """Train from the newest whole checkpoint, or from the start, to the end.

        Raises
        ------
        RunError
            If the checkpoints belong to another training.
        Stopped
            If a block of `delayed_signals` around it has received one; the last step is saved.
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
        """Write a checkpoint, unless there is one of this step."""
        if self.progress.step == self._saved_step:
            return
        begun = time.monotonic()
        self.progress.seconds = begun - self._started
        self._write_checkpoint()
        self._saved_step = self.progress.step
        self._saved_at = time.monotonic()
        self._saving_s = self._saved_at - begun

    def elapsed_s(self) -> float:
        """Return the training time over all sessions so far, in seconds."""
        return time.monotonic() - self._started

    def _resume(self) -> None:
        tensors, state = load_newest(self.checkpoints) or (None, None)
        if state is not None:
            if state.get("training") != self.progress.training:
                msg = (
                    f"{self.checkpoints}: the checkpoints belong to another training; expected "
                    "those of these options and data. Restore them, or use another folder."
                )
                raise RunError(msg)
            self.progress = type(self.progress)(**state)
            self.resumed_from_step = self.progress.step
            self._saved_step = self.progress.step
        self._restore(tensors)
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
    may_change = config.changeable()
    options = config.to_json()
    options = {name: value for name, value in options.items() if name not in may_change}
    digest = blake2b(json.dumps(options, sort_keys=True).encode(), digest_size=16)
    hash_arrays(digest, arrays)
    return digest.hexdigest()
