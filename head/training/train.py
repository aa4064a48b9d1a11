"""Train the heads of one split, or of several folds, with validation, a log and checkpoints.

Several heads (``--members``, or the folds of a cross-validation) train as one stack, with one
checkpoint and one log. Each has its own best score, best weights and patience; a head that is out
of patience keeps its best weights while the others continue.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from abag.core.arrays import distinct
from abag.core.files import make_folder
from abag.core.messages import detail
from abag.head.evaluation import metrics
from abag.head.evaluation.metrics import antigen_groups
from abag.head.models.config import VALIDATION_PAIRS
from abag.head.regimes.splits import TRAIN, VALIDATION
from abag.head.training import log
from abag.head.training.loop import (
    LossNotFinite,
    ResumableTraining,
    TrainingProgress,
    training_digest,
)
from abag.head.training.stack import Member, PairStandardizer, StackedHeads, make_training_sets
from abag.head.training.step import load_tensors, step_seed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from abag.head.data.labels import LabelledPairs
    from abag.head.models.config import FitConfig
    from abag.head.regimes.splits import Split

VALIDATION_SUBSET = 4  # stream of the seed, beside those of step.py and stack.py
TORCH_RANDOM = threading.Lock()
"""Held while torch's own generator is in use."""


@dataclass(slots=True, kw_only=True)
class HeadProgress(TrainingProgress):
    """Progress of the heads of a training; the lists have one entry per head."""

    best_score: list[float | None]
    best_step: list[int]
    stale: list[int]
    """Epochs since the best one."""
    log_bytes: int = 0
    """Size of the log when this was saved."""

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
    views: tuple[Sequence[int], Sequence[int]] | None = None
    """Columns of each view of both sides; None: each has one."""
    folds: Sequence[FoldInputs]
    """One split, or the folds of a group of `stack.group_folds`."""
    config: FitConfig
    device: torch.device
    folder: Path
    """Of the checkpoints and the log."""
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
        If the log lacks lines that were written before the checkpoint.
    CheckpointDamaged, CheckpointVersion
        If there are checkpoints and none can be used.
    RunMismatch
        If they belong to another training.
    DiskFull
        If a checkpoint cannot be written.
    """
    make_folder(inputs.folder)
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
        config, folds = inputs.config, inputs.folds
        vectors = (inputs.antibody_ND, inputs.antigen_ME)
        training = [fold.split.rows(TRAIN) for fold in folds]
        sets = [one for fold in folds for one in make_training_sets(config, fold.split)]
        sets_per_fold = len(sets) // len(folds)
        seeds = range(config.seed, config.seed + sets_per_fold)
        self.inputs, self.config = inputs, config
        self.stack = StackedHeads(
            [fold.pairs for fold in folds],
            *vectors,
            [
                PairStandardizer.of(fold.pairs, rows, *vectors, inputs.views)
                for fold, rows in zip(folds, training, strict=True)
            ],
            sets,
            [Member.of(config, seed) for _ in folds for seed in seeds],
            config=config,
            epoch_pairs=np.repeat([len(rows) for rows in training], sets_per_fold).tolist(),
            device=inputs.device,
        )
        self.training_step, self.model = self.stack.training_step, self.stack.model
        self.heads = range(len(self.stack.members))
        super().__init__(
            name=inputs.name,
            checkpoints=inputs.folder,
            epochs=self.stack.epochs,
            steps_per_epoch=self.stack.steps,
            save_every=config.save_every,
            progress=HeadProgress.unstarted(self._digest(), len(self.heads)),
        )
        self.log, self.logged_step = inputs.folder / log.NAME, 0
        self.scored_rows = [draw_validation_rows(fold.split, config) for fold in folds]
        """Validation pairs that are scored while training, of each fold."""
        pairs = inputs.pairs
        self._labels = [
            metrics.MeasuredRows.of(
                pairs.pkd[rows], antigen_groups(pairs, rows), pairs.censored[rows]
            )
            for rows in self.scored_rows
        ]
        self.best = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        """The best weights of every head so far."""

    def _digest(self) -> str:
        inputs, pairs = self.inputs, self.inputs.pairs
        vectors = inputs.antibody_ND[:1], inputs.antigen_ME[:1]  # which encoders and pooling
        rows = pairs.antibody, pairs.antigen, pairs.pkd, pairs.censored
        parts = [fold.split.part for fold in inputs.folds]
        return training_digest(self.config, (*rows, *vectors, *parts))

    def results(self) -> list[TrainedHeads]:
        """Predict every pair with the best weights."""
        self.model.load_state_dict(self.best)
        folds, every_pair = len(self.inputs.folds), np.arange(len(self.inputs.pairs))
        predicted = np.split(self.stack.predict(every_pair), folds)
        best = {name: tensor.cpu() for name, tensor in self.best.items()}
        weights = [
            best if len(self.heads) == 1 else {name: t[k] for name, t in best.items()}
            for k in self.heads
        ]
        return [
            TrainedHeads(
                weights=tuple(weights[k] for k in heads),
                scaling=self.stack.scalings[fold],
                predicted_MP=predicted[fold],
                progress=self.progress.of_fold(heads, folds),
                epochs=self.progress.step // self.steps_per_epoch,
                resumed_from_step=self.resumed_from_step,
                used=self._settings_used(),
            )
            for fold, heads in enumerate(np.split(np.array(self.heads), folds))
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
            f"{self.stack.batch_size} x {self.stack.accumulate} pairs per step"
            + (
                f"; validation every epoch on {sum(map(len, self.scored_rows))} of {total} pairs, "
                "at the end on all"
            )
            * bool(total)  # the fit on all pairs has none
        )

    def _begin_epoch(self, epoch: int, first_step: int) -> None:
        self.stack.begin_epoch(epoch, first_step)

    def _take_step(self, step_in_epoch: int) -> None:
        self.training_step.run(step_seed(self.config.seed, self.progress.step))

    def _end_epoch(self, epochs_done: int) -> None:
        scored, folds = self._validate(), self.inputs.folds
        seconds = round(self.elapsed_s() / len(folds), 3)  # each fold took its share
        self._write_log(
            [
                {"validation": scores, "validation_pairs": len(rows), "seconds": seconds}
                for scores, rows in zip(scored, self.scored_rows, strict=True)
            ]
        )
        if self.inputs.verbose:
            means = metrics.average_folds(scored)
            known = {name: means[name]["mean"] for name in metrics.headline_metrics()}
            headline = ", ".join(
                f"{metrics.metric_heading(name)} {mean:.3f}"
                for name, mean in known.items()
                if mean is not None
            )
            of = f", mean of {len(scored)} folds" if len(scored) > 1 else ""
            detail(f"{self.name}: epoch {epochs_done}: validation {headline}{of}")

    def _validate(self) -> list[metrics.Scores]:
        """Score the mean of each fold's heads, and keep the weights of the heads that improved."""
        select, of_heads, of_folds = self.config.select, list[float | None](), []
        predicted = self.stack.predict_parts(self.scored_rows)
        for labels, predicted_MR in zip(self._labels, predicted, strict=True):
            of_folds.append(labels.score(predicted_MR.mean(axis=0)))
            of_heads += [labels.score_one(select, one) for one in predicted_MR]
        scores = enumerate(of_heads)
        improved = [k for k, one in scores if self.progress.record_score(k, one, self.config)]
        for name, tensor in self.model.state_dict().items():
            if len(improved) == len(of_heads):
                self.best[name].copy_(tensor)
            elif improved:
                self.best[name][improved] = tensor[improved]
        return of_folds

    def _is_out_of_patience(self) -> bool:
        return all(self.progress.is_out_of_patience(k, self.config) for k in self.heads)

    def _tensors(self) -> dict[str, Tensor]:
        return self.training_step.tensors() | {f"best.{name}": t for name, t in self.best.items()}

    def _write_checkpoint(self) -> None:
        self._write_log()
        self._refuse_broken_weights()
        self.progress.log_bytes = log.sync_log(self.log)
        super()._write_checkpoint()

    def _restore(self, tensors: dict[str, Tensor] | None) -> None:
        if tensors is None:
            self.log.unlink(missing_ok=True)
            return
        self.training_step.load(tensors)
        load_tensors(self.best, {name: tensors[f"best.{name}"] for name in self.best})
        log.truncate_log(self.log, self.progress.log_bytes)
        self.logged_step = self.progress.step

    def _write_log(self, fields: Sequence[dict[str, Any]] = ()) -> None:
        """Write the lines since the last call, those of the last step with fields of each fold."""
        first, new = self.logged_step, self.progress.step - self.logged_step
        of_steps = slice(first % self.steps_per_epoch, first % self.steps_per_epoch + new)
        losses_S = self.training_step.loss_S[of_steps].double().cpu().numpy()  # GPU sync
        losses_SM = losses_S.reshape(new, len(self.heads))
        for step, head in np.argwhere(~np.isfinite(losses_SM)).tolist():
            raise self._diverged(first + step, head, float(losses_SM[step, head]))
        lines = []
        for at, losses_M in enumerate(losses_SM):
            step, rate = first + at, float(self.stack.rates_S[of_steps][at].flat[0])
            of_folds = np.split(losses_M, len(self.inputs.folds))
            for number, (fold, losses) in enumerate(zip(self.inputs.folds, of_folds, strict=True)):
                line: dict[str, Any] = {
                    "fold": fold.split.fold,
                    "step": step + 1,
                    "epoch": step // self.steps_per_epoch + 1,
                    "loss": sum(losses.tolist()) / len(losses),
                    "lr": rate,
                }
                if len(losses) > 1:
                    line["losses"] = losses.tolist()
                lines.append(line | (fields[number] if fields and at == new - 1 else {}))
        log.append_lines(self.log, lines)
        self.logged_step = self.progress.step

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
        shown = ", ".join(map(str, rows[:5])) + (f" and {len(rows) - 5} more" * (len(rows) > 5))
        return LossNotFinite(
            f"{self.checkpoints}: the loss is {loss} at step {step + 1} (table rows {shown}); "
            f"expected a finite number. The checkpoint of step {self._saved_step} is kept. Use a "
            "lower --lr with another --run folder, or check those rows."
        )
