"""Train the heads of one split, or of several folds, with validation, a log and checkpoints.

What a step of `ResumableTraining` does depends only on the seed, the step number and the state in
the checkpoint. A training that was interrupted at any point and resumed therefore ends like an
uninterrupted one, bit for bit on a CPU. Adapters are trained by the same loop.

Several heads (``--members``, or the folds of a cross-validation) train as one stack. Each has its
own best score, best weights and patience; a head that is out of patience keeps its best weights
while the others continue.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from abag import AbagError
from abag.core.arrays import distinct
from abag.core.files import make_folder
from abag.core.messages import bar, detail, say
from abag.head.evaluation import metrics
from abag.head.evaluation.comparison import antigen_groups
from abag.head.models.config import VALIDATION_PAIRS, RunMismatch
from abag.head.regimes.splits import TRAIN, VALIDATION
from abag.head.training.checkpoint import load_newest, save_rotating
from abag.head.training.stack import (
    PairStandardizer,
    StackedHeads,
    make_members,
    make_training_sets,
)
from abag.head.training.step import load_tensors, step_seed
from abag.head.training.step_log import StepLogs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from abag.core.options import Options
    from abag.head.data.labels import LabelledPairs
    from abag.head.models.config import FitConfig
    from abag.head.regimes.splits import Split

MAX_SAVING_SHARE = 0.01
"""Share of the training time that may go into checkpoints without a `save_every`."""
MIN_SAVE_INTERVAL_S = 30.0
NO_SIGNAL = 0
"""In a list of `delayed_signals`: stop because of an error elsewhere."""
_received: ContextVar[list[int] | None] = ContextVar("signals received", default=None)
VALIDATION_SUBSET = 4  # stream of the seed, beside those of step.py and stack.py
TORCH_RANDOM = threading.Lock()
"""Held while torch's own generator is in use."""


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

    def _bar_fields(self) -> dict[str, str]:
        """Return what the progress bar shows beside the step."""
        return {}

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
        with (
            bar(
                total=self.epochs * self.steps_per_epoch,
                initial=self.progress.step,
                desc=self.name,
                unit="step",
            ) as drawn,
            delayed_signals() as received,
        ):
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
                    if drawn.update() and (fields := self._bar_fields()):
                        drawn.set_postfix(fields, refresh=False)
                    if received:
                        break
            self.save()

    def save(self) -> None:
        """Write a checkpoint, unless there is one of this step.

        Raises
        ------
        DiskFull
            If it cannot be written.
        """
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


@dataclass(slots=True, kw_only=True)
class HeadProgress(TrainingProgress):
    """Progress of the heads of a training; the lists have one entry per head."""

    best_score: list[float | None]
    best_step: list[int]
    stale: list[int]
    """Epochs since the best one."""
    log_bytes: list[int] = field(default_factory=list)
    """Size of the log of each fold when this was saved."""

    @classmethod
    def unstarted(cls, training: str, heads: int) -> HeadProgress:
        """Return the progress of heads that have not been trained."""
        zeros = [0] * heads
        return cls(training=training, best_score=[None] * heads, best_step=zeros, stale=[*zeros])

    def of_fold(self, heads: NDArray[np.int64], folds: int) -> HeadProgress:
        """Return the progress of some heads, those of one of several folds."""
        return replace(
            self,
            seconds=self.seconds / folds,
            best_score=[self.best_score[k] for k in heads],
            best_step=[self.best_step[k] for k in heads],
            stale=[self.stale[k] for k in heads],
        )

    def is_out_of_patience(self, head: int, config: FitConfig) -> bool:
        """Whether early stopping ends the training of a head."""
        return 0 < config.patience <= self.stale[head]

    def record_score(self, head: int, score: float | None, config: FitConfig) -> bool:
        """Record a head's validation score; return whether it is the best so far."""
        if self.is_out_of_patience(head, config):
            return False
        best = self.best_score[head]
        # While the metric is undefined, the newest weights count as the best.
        if metrics.is_better(config.select, score, best) or (score is None and best is None):
            self.best_score[head], self.best_step[head] = score, self.step
            self.stale[head] = 0
            return True
        self.stale[head] += 1
        return False


class Validation:
    """The validation pairs of each fold, and the best weights of the heads of a stack.

    Parameters
    ----------
    splits : sequence of Split
        Of each fold.
    """

    def __init__(
        self, pairs: LabelledPairs, splits: Sequence[Split], config: FitConfig, stack: StackedHeads
    ) -> None:
        self._config, self._stack = config, stack
        self.rows = [draw_validation_rows(split, config) for split in splits]
        """Those that are scored while training, of each fold."""
        self._labels = [
            metrics.MeasuredRows.of(
                pairs.pkd[rows], antigen_groups(pairs, rows), pairs.censored[rows]
            )
            for rows in self.rows
        ]
        weights = stack.model.state_dict()
        self.best = {name: tensor.detach().clone() for name, tensor in weights.items()}
        """The best weights of every head so far."""

    def score(self, progress: HeadProgress) -> list[metrics.Scores]:
        """Score the mean of each fold's heads, and keep the weights of the heads that improved."""
        config, of_heads, of_folds = self._config, list[float | None](), []
        predicted = self._stack.predict_parts(self.rows)
        for labels, predicted_MR in zip(self._labels, predicted, strict=True):
            of_folds.append(labels.score(predicted_MR.mean(axis=0)))
            of_heads += [labels.score_one(config.select, one) for one in predicted_MR]
        improved = [k for k, one in enumerate(of_heads) if progress.record_score(k, one, config)]
        for name, tensor in self._stack.model.state_dict().items():
            if len(improved) == len(of_heads):
                self.best[name].copy_(tensor)
            elif improved:
                self.best[name][improved] = tensor[improved]
        return of_folds


def draw_validation_rows(split: Split, config: FitConfig) -> NDArray[np.int64]:
    """Draw the fixed random subset that is scored while training."""
    rows = split.rows(VALIDATION)
    if len(rows) <= VALIDATION_PAIRS:
        return rows
    rng = np.random.default_rng([config.seed, VALIDATION_SUBSET])
    return np.sort(rng.permutation(rows)[:VALIDATION_PAIRS])


@dataclass(frozen=True, slots=True)
class TrainedHeads:
    """The result of training the M heads of one split."""

    weights: tuple[dict[str, Tensor], ...]
    """Best weights of each head, on the CPU, named as in a plain head."""
    scaling: PairStandardizer
    predicted_MP: NDArray[np.float64]
    """pKd of every pair, predicted with each head's best weights; shape (M, P)."""
    in_bag_MP: NDArray[np.bool_]
    """Which pairs each head was trained on; shape (M, P)."""
    progress: HeadProgress
    """Of these heads; the seconds of a stack of folds are divided among them."""
    epochs: int
    resumed_from_step: int | None
    used: dict[str, Any]
    """Settings that the training chose itself, by their names in config.json."""

    @property
    def predicted(self) -> NDArray[np.float64]:
        """Mean prediction of the heads, shape (P,)."""
        return np.asarray(self.predicted_MP.mean(axis=0))

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance over the heads, shape (P,)."""
        return np.asarray(self.predicted_MP.var(axis=0))


@dataclass(frozen=True, slots=True)
class FoldInputs:
    """A split to train on."""

    split: Split
    log: Path
    """File with one line of JSON per step."""
    name: str
    """Used in messages."""
    pairs: LabelledPairs
    """Those of `TrainingInputs`, with expected labels where training pairs are censored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInputs:
    """What a training needs."""

    pairs: LabelledPairs
    antibody_ND: NDArray[np.float32]
    antigen_ME: NDArray[np.float32]
    folds: Sequence[FoldInputs]
    """One split, or the folds of a group of `stack.group_folds`."""
    config: FitConfig
    device: torch.device
    checkpoints: Path
    """Folder of the checkpoints."""
    verbose: bool = False
    """Whether to report the score of every validation."""

    @property
    def name(self) -> str:
        """Name of the training in messages."""
        first, *others = self.folds
        return f"{first.name} and {len(others)} more" if others else first.name


def train(inputs: TrainingInputs) -> list[TrainedHeads]:
    """Train to the end, from the newest whole checkpoint if there is one; one result per fold.

    Raises
    ------
    NothingToLearn
        If all training labels are the same.
    LossNotFinite
        If training diverges; the last checkpoint is kept.
    LogDamaged
        If a log lacks lines that were written before the checkpoint.
    CheckpointDamaged, CheckpointVersion
        If there are checkpoints and none can be used.
    RunMismatch
        If they belong to another training.
    DiskFull
        If a checkpoint cannot be written.
    """
    for folder in (inputs.checkpoints, *(fold.log.parent for fold in inputs.folds)):
        make_folder(folder)
    with ExitStack() as held:
        held.enter_context(TORCH_RANDOM)
        # Initial weights and steps set the seed; the caller's random state must not change.
        held.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        training = HeadTraining(inputs)
        if training.training_step.owns_generator:
            held.close()
        training.run()
        return training.results()


class HeadTraining(ResumableTraining):
    """Training of the heads of one split, or of one head for each of several folds."""

    progress: HeadProgress

    def __init__(self, inputs: TrainingInputs) -> None:
        config, pairs = inputs.config, inputs.pairs
        vectors = (inputs.antibody_ND, inputs.antigen_ME)
        training = [fold.split.rows(TRAIN) for fold in inputs.folds]
        sets = [
            one for fold in inputs.folds for one in make_training_sets(config, pairs, fold.split)
        ]
        sets_per_fold = len(sets) // len(training)
        self.inputs, self.config = inputs, config
        of_folds = [fold.pairs for fold in inputs.folds]
        self.stack = StackedHeads(
            of_folds,
            *vectors,
            [
                PairStandardizer.of(one, rows, *vectors)
                for one, rows in zip(of_folds, training, strict=True)
            ],
            sets,
            [member for _ in training for member in make_members(config, sets_per_fold)],
            config=config,
            epoch_pairs=np.repeat([len(rows) for rows in training], sets_per_fold).tolist(),
            device=inputs.device,
            batch=config.fitting_batch(len(training[0])),
        )
        self.training_step, self.model = self.stack.training_step, self.stack.model
        self.heads = range(len(self.stack.members))
        super().__init__(
            name=inputs.name,
            checkpoints=inputs.checkpoints,
            epochs=self.stack.epochs,
            steps_per_epoch=self.stack.steps,
            save_every=config.save_every,
            progress=HeadProgress.unstarted(self._digest(), len(self.heads)),
        )
        splits = [fold.split for fold in inputs.folds]
        self.validation = Validation(pairs, splits, config, self.stack)
        self.logs = StepLogs([fold.log for fold in inputs.folds], self.steps_per_epoch)

    def _digest(self) -> str:
        inputs, pairs = self.inputs, self.inputs.pairs
        vectors = inputs.antibody_ND[:1], inputs.antigen_ME[:1]  # which encoders and pooling
        rows = pairs.antibody, pairs.antigen, pairs.pkd, pairs.censored
        parts = [fold.split.part for fold in inputs.folds]
        return training_digest(self.config, (*rows, *vectors, *parts))

    def results(self) -> list[TrainedHeads]:
        """Predict every pair with the best weights."""
        self.model.load_state_dict(self.validation.best)
        every_pair = np.arange(len(self.inputs.pairs))
        predicted = self._by_fold(self.stack.predict(every_pair))
        in_bag_GP = np.stack([np.isin(every_pair, rows) for rows in self.stack.training_sets])
        in_bag = self._by_fold(np.repeat(in_bag_GP, len(self.heads) // len(in_bag_GP), axis=0))
        best = {name: tensor.cpu() for name, tensor in self.validation.best.items()}
        weights = [
            best if len(self.heads) == 1 else {name: t[k] for name, t in best.items()}
            for k in self.heads
        ]
        return [
            TrainedHeads(
                weights=tuple(weights[k] for k in heads),
                scaling=self.stack.scalings[fold],
                predicted_MP=predicted[fold],
                in_bag_MP=in_bag[fold],
                progress=self.progress.of_fold(heads, len(self.inputs.folds)),
                epochs=self.progress.step // self.steps_per_epoch,
                resumed_from_step=self.resumed_from_step,
                used=self._settings_used(),
            )
            for fold, heads in enumerate(self._by_fold(np.array(self.heads)))
        ]

    def _settings_used(self) -> dict[str, Any]:
        return {
            "batch_size": self.stack.batch_size,
            "accumulate": self.stack.accumulate,
            "epochs": self.progress.step // self.steps_per_epoch,
            "compile": self.training_step.mode,
            "precision": "bf16" if self.training_step.in_bf16 else "fp32",
            "device": str(self.inputs.device),
        }

    def _by_fold(self, of_heads: NDArray[Any]) -> list[NDArray[Any]]:
        return np.split(of_heads, len(self.inputs.folds))

    def _announce(self) -> None:
        members, folds = "", self.inputs.folds
        if len(self.heads) > 1:
            kind = "folds" if len(folds) > 1 else "heads"
            members = f"{len(self.heads)} {kind} in one step, "
            if len(self.stack.training_sets) > len(folds):
                members += "each on its own bootstrap sample, "
            members += "in bf16, " * self.training_step.in_bf16
        if self.inputs.device.type != "cpu":
            detail(f"{self.name}: --compile {self.training_step.mode}")
        total = sum(len(fold.split.rows(VALIDATION)) for fold in folds)
        detail(
            f"{self.name}: {members}{self.epochs} epochs of {self.steps_per_epoch} steps, "
            f"{self.stack.batch_size} x {self.stack.accumulate} pairs per step; validation every "
            f"epoch on {sum(map(len, self.validation.rows))} of {total} pairs, at the end on all"
        )

    def _begin_epoch(self, epoch: int, first_step: int) -> None:
        self.stack.begin_epoch(epoch, first_step)

    def _take_step(self, step_in_epoch: int) -> None:
        self.training_step.run(step_in_epoch, step_seed(self.config.seed, self.progress.step))

    def _end_epoch(self, epochs_done: int) -> None:
        fields: list[dict[str, Any]] = []
        seconds = round(self.elapsed_s() / len(self.inputs.folds), 3)  # each fold took its share
        scored = self.validation.score(self.progress)
        validated = zip(self.inputs.folds, scored, self.validation.rows, strict=True)
        for fold, scores, rows in validated:
            fields.append({"validation": scores, "validation_pairs": len(rows), "seconds": seconds})
            if self.inputs.verbose:
                headline = ", ".join(
                    f"{name} {value:.3f}"
                    for name in metrics.headline_metrics()
                    if (value := scores[name]) is not None
                )
                detail(f"{fold.name}: epoch {epochs_done}: validation {headline}")
        self._write_log(fields)

    def _is_out_of_patience(self) -> bool:
        return all(self.progress.is_out_of_patience(k, self.config) for k in self.heads)

    def _tensors(self) -> dict[str, Tensor]:
        best = {f"best.{name}": t for name, t in self.validation.best.items()}
        return self.training_step.tensors() | best

    def _write_checkpoint(self) -> None:
        self._write_log()
        self._refuse_broken_weights()
        self.progress.log_bytes = self.logs.sync()
        super()._write_checkpoint()

    def _restore(self, tensors: dict[str, Tensor] | None) -> None:
        if tensors is None:
            self.logs.delete()
            return
        self.training_step.load(tensors)
        best, progress = self.validation.best, self.progress
        load_tensors(best, {name: tensors[f"best.{name}"] for name in best})
        self.logs.resume(progress.step, progress.log_bytes)

    def _bar_fields(self) -> dict[str, str]:
        epoch, step_in_epoch = divmod(self.progress.step - 1, self.steps_per_epoch)
        best = self.progress.best_score[0]
        return {
            "epoch": f"{epoch + 1}/{self.epochs}",
            "loss": f"{self.training_step.loss_S[step_in_epoch].mean().item():.3f}",  # GPU sync
            "best": "-" if best is None else f"validation {self.config.select} {best:.3f}",
        }

    def _write_log(self, fields: Sequence[dict[str, Any]] = ()) -> None:
        """Write a line per step since the last call, the last one with fields of each fold."""
        new = self.progress.step - self.logs.step
        first = self.logs.step % self.steps_per_epoch
        of_steps = slice(first, first + new)
        losses_S = self.training_step.loss_S[of_steps].double().cpu().numpy()  # GPU sync
        losses_SM = losses_S.reshape(new, len(self.heads))
        for step, head in np.argwhere(~np.isfinite(losses_SM)).tolist():
            raise self._diverged(self.logs.step + step, head, float(losses_SM[step, head]))
        self.logs.write(losses_SM, self.stack.rates_S[of_steps], fields)

    def _refuse_broken_weights(self) -> None:
        """Refuse to save weights that an update broke after a finite loss."""
        shape = (len(self.heads), -1)
        state = self.model.state_dict().values()
        finite_M = torch.stack([t.isfinite().view(shape).all(1) for t in state]).all(0)
        for head in np.flatnonzero(~finite_M.cpu().numpy()):  # GPU sync
            raise self._diverged(self.progress.step - 1, int(head), float("nan"))

    def _diverged(self, step: int, head: int, loss: float) -> LossNotFinite:
        """Name the table's rows of a step, counted from 0, whose loss is not finite."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        batches = self.stack.epoch_batches(epoch)
        own = head * len(self.stack.training_sets) // len(self.heads)
        weighted = batches.weight_SAGB[step_in_epoch, :, own] > 0
        taken = batches.rows_SAGB[step_in_epoch, :, own][weighted] % len(self.inputs.pairs)
        table = self.inputs.pairs.table
        rows = distinct(table.row_numbers[self.inputs.pairs.row[taken]])
        fold = self.inputs.folds[head * len(self.inputs.folds) // len(self.heads)]
        shown = ", ".join(map(str, rows[:5])) + (f" and {len(rows) - 5} more" * (len(rows) > 5))
        return LossNotFinite(
            f"{fold.log.parent}: the loss is {loss} at step {step + 1} (table rows {shown}); "
            f"expected a finite number. The checkpoint of step {self._saved_step} is kept. Use a "
            "lower --lr with another --run folder, or check those rows."
        )
