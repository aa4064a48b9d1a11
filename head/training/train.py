"""Train the heads of one split, with validation, a log and checkpoints.

The log is synced before a checkpoint that stores its size, and truncated to that size on resuming:
each step has exactly one line, whenever the process was killed.

Several heads (``--members``) train as one stack. Each has its own best score, best weights and
patience; a head that is out of patience keeps its best weights while the others continue.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from abag import AbagError
from abag.core.messages import say
from abag.head.evaluation import metrics
from abag.head.evaluation.comparison import antigen_groups
from abag.head.splits.splits import TRAIN, VALIDATION
from abag.head.training.checkpoint import save
from abag.head.training.loop import LossNotFinite, ResumableTraining, TrainingProgress
from abag.head.training.stack import (
    PairStandardizer,
    StackedHeads,
    make_members,
    make_training_sets,
)
from abag.head.training.step import load_tensors, step_seed

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from abag.head.data.labels import LabelledPairs
    from abag.head.model.config import FitConfig
    from abag.head.splits.splits import Split

VALIDATION_SUBSET = 4  # stream of the seed, beside those of step.py and stack.py
MIN_SHRINKAGE = 0.1
"""Smallest shrinkage factor; it is above 0 so that predictions keep their order."""


class LogDamaged(AbagError):
    """The log is shorter than the newest checkpoint says."""


@dataclass(slots=True, kw_only=True)
class HeadProgress(TrainingProgress):
    """Progress of the heads of one split; the lists have one entry per head."""

    best_score: list[float | None]
    best_step: list[int]
    stale: list[int]
    """Validations since the best one."""
    log_bytes: int = 0
    """Size of the log when this was saved."""


@dataclass(frozen=True, slots=True)
class TrainedHeads:
    """The result of training the M heads of one split."""

    weights: tuple[dict[str, Tensor], ...]
    """Best weights of each head, on the CPU, named as in a plain head."""
    scaling: PairStandardizer
    """Includes the shrinkage."""
    predicted_MP: NDArray[np.float64]
    """pKd of every pair, predicted with each head's best weights; shape (M, P)."""
    in_bag_MP: NDArray[np.bool_]
    """Which pairs each head was trained on; shape (M, P)."""
    shrinkage: float
    """Factor by which predictions were shrunk toward the training mean, see `fit_shrinkage`."""
    progress: HeadProgress
    epochs: int
    resumed_from_step: int | None

    @property
    def predicted(self) -> NDArray[np.float64]:
        """Mean prediction of the heads, shape (P,)."""
        return np.asarray(self.predicted_MP.mean(axis=0))

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance over the heads, shape (P,)."""
        return np.asarray(self.predicted_MP.var(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInputs:
    """What the training of one split's heads needs."""

    pairs: LabelledPairs
    antibody_ND: NDArray[np.float32]
    antigen_ME: NDArray[np.float32]
    split: Split
    config: FitConfig
    device: torch.device
    checkpoints: Path
    """Folder of the checkpoints."""
    log: Path
    """File with one line of JSON per step."""
    label: str
    """Name of this training in messages."""
    verbose: bool = False
    """Whether to report the score of every validation."""


def train(inputs: TrainingInputs) -> TrainedHeads:
    """Train to the end, from the newest whole checkpoint if there is one.

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
    DiskFull
        If a checkpoint cannot be written.
    """
    inputs.checkpoints.mkdir(parents=True, exist_ok=True)
    # Every step sets the seed; the caller's random state must not change.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        training = HeadTraining(inputs)
        training.run()
        return training.result()


class HeadTraining(ResumableTraining):
    """Training of the heads of one split."""

    progress: HeadProgress

    def __init__(self, inputs: TrainingInputs) -> None:
        config, pairs = inputs.config, inputs.pairs
        training = inputs.split.rows(TRAIN)
        self.inputs, self.config = inputs, config
        training_sets = make_training_sets(config, pairs, inputs.split)
        self.stack = StackedHeads(
            pairs,
            inputs.antibody_ND,
            inputs.antigen_ME,
            PairStandardizer.of(pairs, training, inputs.antibody_ND, inputs.antigen_ME),
            training_sets,
            make_members(config, len(training), len(training_sets)),
            config=config,
            n_training=len(training),
            device=inputs.device,
        )
        self.training_step, self.model = self.stack.training_step, self.stack.model
        self.heads = range(len(self.stack.members))
        super().__init__(
            name=inputs.label,
            checkpoints=inputs.checkpoints,
            epochs=self.stack.epochs,
            steps_per_epoch=self.stack.steps,
            save_every=config.save_every,
            progress=HeadProgress(
                best_score=[None] * len(self.heads),
                best_step=[0] * len(self.heads),
                stale=[0] * len(self.heads),
            ),
        )
        self.best = _clones(self.model.state_dict())
        self.validation = self._validation_rows()
        self.validation_antigens = antigen_groups(inputs.pairs, self.validation)
        self._logged_step = 0

    def result(self) -> TrainedHeads:
        """Predict every pair with the best weights, shrunk toward the training mean."""
        self.model.load_state_dict(self.best)
        shrinkage = self._shrink()
        every_pair = np.arange(len(self.inputs.pairs))
        in_bag_GP = np.stack([np.isin(every_pair, rows) for rows in self.stack.training_sets])
        best = _clones(self.best, "cpu")
        return TrainedHeads(
            weights=tuple(
                best if len(self.heads) == 1 else {name: t[k] for name, t in best.items()}
                for k in self.heads
            ),
            scaling=self.stack.scaling,
            predicted_MP=self.stack.predict(every_pair),
            in_bag_MP=np.repeat(in_bag_GP, len(self.heads) // len(in_bag_GP), axis=0),
            shrinkage=shrinkage,
            progress=self.progress,
            epochs=self.progress.step // self.steps_per_epoch,
            resumed_from_step=self.resumed_from_step,
        )

    def _shrink(self) -> float:
        """Fit the shrinkage on the exact validation pairs and make it part of the scaling.

        The weights of a stack shrink its networks instead.
        """
        if self.config.stacks:
            return 1.0
        pairs, rows = self.inputs.pairs, self.inputs.split.rows(VALIDATION)
        rows = rows[pairs.censored[rows] == 0]
        scaling = self.stack.scaling
        mean = scaling.pkd_mean
        predicted = self.stack.predict(rows).mean(axis=0)
        shrinkage = fit_shrinkage(predicted - mean, pairs.pkd[rows] - mean)
        self.stack.scaling = replace(scaling, pkd_scale=scaling.pkd_scale * shrinkage)
        if shrinkage < 1:
            say(
                f"{self.name}: predictions are shrunk toward the training mean "
                f"(factor {shrinkage:.2f}, fitted on validation)"
            )
        return shrinkage

    def _announce(self) -> None:
        config, members = self.config, ""
        if len(self.heads) > 1:
            members = f"{len(self.heads)} heads in one step, "
            if len(self.stack.training_sets) > 1:
                sample = (
                    "without one inner fold" if config.stacks else "on its own bootstrap sample"
                )
                members += f"each {sample}, "
            members += "in bf16, " * self.training_step.in_bf16
        total = len(self.inputs.split.rows(VALIDATION))
        say(
            f"{self.name}: {members}{self.epochs} epochs of {self.steps_per_epoch} steps, "
            f"{self.stack.batch_size} x {self.stack.accumulate} pairs per step; validation every "
            f"{config.validate_every} epoch{'s' * (config.validate_every > 1)} on "
            f"{len(self.validation)} of {total} pairs, at the end on all"
        )

    def _begin_epoch(self, epoch: int, first_step: int) -> None:
        self.stack.begin_epoch(epoch, first_step)

    def _take_step(self, step_in_epoch: int) -> None:
        self.training_step.run(step_in_epoch, step_seed(self.config.seed, self.progress.step))

    def _end_epoch(self, epochs_done: int) -> None:
        fields: dict[str, Any] = {}
        if epochs_done == self.epochs or epochs_done % self.config.validate_every == 0:
            scores = self._validate()
            fields = {"validation": scores, "validation_pairs": len(self.validation)}
            if self.inputs.verbose:
                headline = ", ".join(
                    f"{name} {value:.3f}"
                    for name in metrics.headline_metrics()
                    if (value := scores[name]) is not None
                )
                say(f"{self.name}: epoch {epochs_done}: validation {headline}")
        self._write_log(fields | {"seconds": round(self.elapsed_s(), 3)})

    def _is_out_of_patience(self) -> bool:
        return all(map(self._has_stopped, self.heads))

    def _tensors(self) -> dict[str, Tensor]:
        best = {f"best.{name}": t for name, t in self.best.items()}
        return self.training_step.tensors() | best

    def _write_checkpoint(self) -> None:
        self._write_log()
        self._refuse_broken_weights()
        with self.inputs.log.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())
            self.progress.log_bytes = file.tell()
        # Before ``latest``: the best weights that ``latest`` refers to must exist.
        save(self.checkpoints / "best", self.best, asdict(self.progress))
        super()._write_checkpoint()

    def _restore(self, tensors: dict[str, Tensor] | None) -> None:
        log = self.inputs.log
        if tensors is None:
            log.unlink(missing_ok=True)
            return
        self.training_step.load(tensors)
        load_tensors(self.best, {name: tensors[f"best.{name}"] for name in self.best})
        self._logged_step, size = self.progress.step, self.progress.log_bytes
        if not log.exists() or log.stat().st_size < size:
            msg = (
                f"{log}: lines are missing that were written before the checkpoint; expected "
                f"{size} bytes. Restore the file, or use another --run folder."
            )
            raise LogDamaged(msg)
        os.truncate(log, size)

    def _bar_fields(self) -> dict[str, str]:
        epoch, step_in_epoch = divmod(self.progress.step - 1, self.steps_per_epoch)
        best = self.progress.best_score[0]
        return {
            "epoch": f"{epoch + 1}/{self.epochs}",
            "loss": f"{self.training_step.loss_S[step_in_epoch].mean().item():.3f}",  # GPU sync
            "best": "-" if best is None else f"validation {self.config.select} {best:.3f}",
        }

    def _validation_rows(self) -> NDArray[np.int64]:
        """Draw the fixed random subset that is scored while training."""
        rows = self.inputs.split.rows(VALIDATION)
        size = self.config.validate_pairs
        if size == 0 or size >= len(rows):
            return rows
        rng = np.random.default_rng([self.config.seed, VALIDATION_SUBSET])
        return np.sort(rng.permutation(rows)[:size])

    def _validate(self) -> metrics.Scores:
        """Score the heads' mean, and keep the weights of the heads that improved."""
        pairs, rows = self.inputs.pairs, self.validation
        pkd, antigen, censored = pairs.pkd[rows], self.validation_antigens, pairs.censored[rows]
        predicted_MR, select = self.stack.predict(rows), self.config.select
        scores = [metrics.score_one(select, pkd, one, antigen, censored) for one in predicted_MR]
        improved = [k for k, score in enumerate(scores) if self._has_improved(k, score)]
        for name, tensor in self.model.state_dict().items():
            if len(improved) == len(self.heads):
                self.best[name].copy_(tensor)
            elif improved:
                self.best[name][improved] = tensor[improved]
        return metrics.score(pkd, predicted_MR.mean(axis=0), antigen, censored)

    def _has_improved(self, head: int, score: float | None) -> bool:
        """Record a head's validation score; return whether it is the best so far."""
        progress = self.progress
        if self._has_stopped(head):
            return False
        best = progress.best_score[head]
        # While the metric is undefined, the newest weights count as the best.
        if metrics.is_better(self.config.select, score, best) or (score is None and best is None):
            progress.best_score[head], progress.best_step[head] = score, progress.step
            progress.stale[head] = 0
            return True
        progress.stale[head] += 1
        return False

    def _has_stopped(self, head: int) -> bool:
        return 0 < self.config.patience <= self.progress.stale[head]

    def _write_log(self, fields: dict[str, Any] | None = None) -> None:
        """Write a line per step since the last call, the last one with additional fields."""
        if self._logged_step == self.progress.step:
            return
        epoch, first = divmod(self._logged_step, self.steps_per_epoch)
        last = first + self.progress.step - self._logged_step
        losses_SM = self.training_step.loss_S[first:last].double().cpu().numpy()  # GPU sync
        losses_SM = losses_SM.reshape(last - first, -1)
        for at, loss_M in enumerate(losses_SM, first):
            if not np.isfinite(loss_M).all():
                raise self._diverged(epoch, at, float(loss_M[~np.isfinite(loss_M)][0]))
        lines: list[dict[str, Any]] = [
            {
                "step": epoch * self.steps_per_epoch + at + 1,
                "epoch": epoch + 1,
                "loss": sum(losses) / len(losses),
                "lr": float(self.stack.rates_S[at].flat[0]),
            }
            | ({"losses": losses} if len(losses) > 1 else {})
            for at, losses in enumerate(losses_SM.tolist(), first)
        ]
        lines[-1] |= fields or {}
        with self.inputs.log.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        self._logged_step = self.progress.step

    def _refuse_broken_weights(self) -> None:
        """Refuse to save weights that an update broke after a finite loss."""
        finite = [t.isfinite().all() for t in self.model.state_dict().values()]
        if not torch.stack(finite).all():  # GPU sync
            epoch, at = divmod(self.progress.step - 1, self.steps_per_epoch)
            raise self._diverged(epoch, at, float("nan"))

    def _diverged(self, epoch: int, step_in_epoch: int, loss: float) -> LossNotFinite:
        batches = self.stack.epoch_batches(epoch)
        weighted = batches.weight_SAB[step_in_epoch] > 0
        pairs = batches.rows_SAGB[step_in_epoch].swapaxes(0, 1)[:, weighted]
        table = self.inputs.pairs.table
        rows = np.unique(table.row_numbers[self.inputs.pairs.row[pairs]])
        shown = ", ".join(map(str, rows[:5])) + (f" and {len(rows) - 5} more" * (len(rows) > 5))
        return LossNotFinite(
            f"{self.inputs.log.parent}: the loss is {loss} at step "
            f"{epoch * self.steps_per_epoch + step_in_epoch + 1} (table rows {shown}); expected a "
            f"finite number. The checkpoint of step {self._saved_step} is kept. Use a lower --lr "
            "with another --run folder, or check those rows."
        )


def fit_shrinkage(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    """Fit the factor by which predictions are shrunk toward the training mean.

    It is the least-squares slope of `measured` on `predicted`, limited to `MIN_SHRINKAGE` to 1: a
    head that overestimates the differences between clusters it has not seen has large errors.

    Parameters
    ----------
    predicted, measured : NDArray, shape=(V,), dtype=float64
        pKd of the validation pairs minus the training mean.
    """
    squares = float(predicted @ predicted)
    slope = predicted @ measured / squares if squares else 1.0
    return float(np.clip(slope, MIN_SHRINKAGE, 1.0))


def _clones(tensors: dict[str, Tensor], device: str | None = None) -> dict[str, Tensor]:
    return {name: t.detach().clone().to(device or t.device) for name, t in tensors.items()}
