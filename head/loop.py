"""Train one head on one split: steps, validation, log and checkpoints, resumable to the bit.

What a step does depends on (seed, step) and the state alone, so going on from any checkpoint
replays nothing. The log is synced before a checkpoint that counts its bytes, and cut back to that
count on resuming: each step has exactly one line, whenever the process was killed.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm import tqdm

from abag import AbagError
from abag.head import checkpoint, metrics
from abag.head.config import LOWER_IS_BETTER
from abag.head.model import build_head
from abag.head.placement import DeviceTables, HostTables, Tables, TrainingPairs, predict_rows
from abag.head.splits import TRAIN, VALIDATION
from abag.head.step import (
    Stepper,
    cosine_rates,
    load_tensors,
    plan_epoch,
    step_seed,
    steps_an_epoch,
)
from abag.head.table import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from abag.head.config import FitConfig
    from abag.head.splits import Split
    from abag.head.table import LabelledPairs

INITIAL, SUBSET = 3, 4  # streams of the seed, beside those of step.py
SAVING_SHARE = 0.01
SAVE_SECONDS = 30.0
REDRAW_SECONDS = 0.5
LEAST_KEPT = 0.1
"""Share of their distance from the training mean that predictions keep at least: an order stays."""


class LossNotFinite(AbagError):
    """Training diverged."""


class LogDamaged(AbagError):
    """The log is shorter than the newest checkpoint says."""


class NothingToLearn(AbagError):
    """All training labels are one value."""


@dataclass(slots=True)
class Progress:
    """Where training stands: the part of a checkpoint that is not tensors."""

    step: int = 0
    best_score: float | None = None
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    log_bytes: int = 0
    """Size of the log when this was saved."""
    seconds: float = 0.0
    """Time spent training, all sessions together."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What turns stored vectors into inputs, and outputs into pKd."""

    antibody: Statistics
    antigen: Statistics
    pkd_mean: float
    pkd_scale: float

    @classmethod
    def of(
        cls,
        pairs: LabelledPairs,
        training: NDArray[np.int64],
        antibody_ND: NDArray[np.float32],
        antigen_ME: NDArray[np.float32],
    ) -> Scaling:
        """Measure the training pairs: each unique sequence counts once, each exact label once."""
        exact = training[pairs.censored[training] == 0]
        labels = pairs.pkd[exact if len(exact) else training]
        if np.ptp(labels) == 0:
            msg = (
                f"{pairs.table.source}: all {len(labels)} training labels are {labels[0]:g}; "
                "expected them to vary. Check --label, --column pkd=NAME and --split."
            )
            raise NothingToLearn(msg)
        return cls(
            Statistics.of(antibody_ND[np.unique(pairs.antibody[training])]),
            Statistics.of(antigen_ME[np.unique(pairs.antigen[training])]),
            float(labels.mean()),
            float(labels.std()),
        )


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of one split."""

    weights: dict[str, Tensor]
    """The best weights, by the model's own names."""
    scaling: Scaling
    predicted: NDArray[np.float64]
    """(P,) pKd of every pair, by the best weights."""
    kept: float
    """What `kept_share` left of the predictions' distance from the training mean."""
    progress: Progress
    epochs: int
    resumed_from_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything that one training needs."""

    pairs: LabelledPairs
    antibody_ND: NDArray[np.float32]
    antigen_ME: NDArray[np.float32]
    split: Split
    config: FitConfig
    device: torch.device
    checkpoints: Path
    log: Path
    label: str
    """What the bar calls this training."""
    say: Callable[[str], None]
    bar: bool = True
    verbose: bool = False
    """Whether to say each validation's score, not only draw it on the bar."""


def _said(scores: metrics.Scores) -> str:
    """Lay a validation's scores out in a line."""
    shown = ("spearman_within_antigen", "spearman", "rmse")
    return ", ".join(f"{name} {scores[name]:.3f}" for name in shown if scores[name] is not None)


def train(task: Task) -> Trained:
    """Train to the end, from the newest whole checkpoint if there is one."""
    task.checkpoints.mkdir(parents=True, exist_ok=True)
    # Seeds are set for every step: the caller's random state is put back afterwards.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        return Training(task).run()


class Training:
    """One head in the making."""

    def __init__(self, task: Task) -> None:
        config = task.config
        self.task, self.config = task, config
        self.training = task.split.rows(TRAIN)
        self.scaling = Scaling.of(task.pairs, self.training, task.antibody_ND, task.antigen_ME)
        self.batch_size, self.accumulate = config.fitting_batch(len(self.training))
        self.steps = steps_an_epoch(len(self.training), self.batch_size, self.accumulate)
        self.epochs = config.filled().epochs
        shape = (self.steps, self.accumulate, self.batch_size)
        self.on_device = _training_pairs(task.pairs, self.scaling, task.device)
        self.tables = _place_tables(task, self.scaling, self.on_device, shape[1:])
        torch.manual_seed(int(np.random.SeedSequence([config.seed, INITIAL]).generate_state(1)[0]))
        widths = (task.antibody_ND.shape[1], task.antigen_ME.shape[1])
        self.model = build_head(config, *widths).to(task.device)
        self.stepper = Stepper(self.model, self.tables, self.on_device, config, shape, task.device)
        self.progress = Progress()
        self.best = _clones(self.model.state_dict())
        self.resumed_from_step = self._restore()
        self.validation = self._validation_rows()
        self._announce()
        self.rates_S = np.zeros(self.steps, np.float32)
        self.logged = self.saved_step = self.progress.step
        self.saved_at, self.saving_s = time.monotonic(), 0.0
        self.started = time.monotonic() - self.progress.seconds

    def run(self) -> Trained:
        """Train what is left, then score every pair with the best weights."""
        bar = tqdm(
            total=self.epochs * self.steps,
            initial=self.progress.step,
            desc=self.task.label,
            unit="step",
            disable=not self.task.bar,
            mininterval=REDRAW_SECONDS,
        )
        with bar, signals_held_back() as held:
            while not held and not self._finished():
                self._run_epoch(bar, held)
            if self.progress.step != self.saved_step:
                self._save()
        self.model.load_state_dict(self.best)
        kept = self._shrink()
        return Trained(
            weights=_clones(self.model.state_dict(), "cpu"),
            scaling=self.scaling,
            predicted=self._predict(np.arange(len(self.task.pairs))),
            kept=kept,
            progress=self.progress,
            epochs=self.progress.step // self.steps,
            resumed_from_step=self.resumed_from_step,
        )

    def _shrink(self) -> float:
        """Pull predictions towards the training mean as far as validation asks for; once."""
        pairs, rows = self.task.pairs, self.task.split.rows(VALIDATION)
        rows = rows[pairs.censored[rows] == 0]
        mean = self.scaling.pkd_mean
        kept = kept_share(self._predict(rows) - mean, pairs.pkd[rows] - mean)
        self.scaling = replace(self.scaling, pkd_scale=self.scaling.pkd_scale * kept)
        if kept < 1:
            self.task.say(
                f"{self.task.label}: predictions keep {kept:.0%} of their distance from the "
                "training mean, which is what fits the validation pairs"
            )
        return kept

    def _announce(self) -> None:
        """Say what is about to happen, unless it has happened already."""
        if self._finished():
            return
        every, seen = self.config.validate_every, len(self.validation)
        whole = len(self.task.split.rows(VALIDATION))
        self.task.say(
            f"{self.task.label}: {self.epochs} epochs of {self.steps} steps of "
            f"{self.batch_size} x {self.accumulate} pairs; validation every "
            f"{every} epoch{'s' * (every > 1)} on {seen} of {whole} pairs, on all at the end"
        )
        if self.resumed_from_step is not None:
            self.task.say(f"{self.task.label}: going on from step {self.progress.step}")

    def _finished(self) -> bool:
        stopped = 0 < self.config.patience <= self.progress.stale
        return stopped or self.progress.step >= self.epochs * self.steps

    def _run_epoch(self, bar: tqdm[Any], held: list[int]) -> None:
        """Take the rest of the current epoch's steps, or stop between two when signalled."""
        config, progress = self.config, self.progress
        epoch, first = divmod(progress.step, self.steps)
        plan = plan_epoch(self.training, config.seed, epoch, self.batch_size, self.accumulate)
        self.rates_S = cosine_rates(
            epoch * self.steps,
            self.steps,
            self.epochs * self.steps,
            config.filled().warmup,
            config.peak_lr(self.batch_size * self.accumulate),
        )
        self.stepper.begin_epoch(plan, self.rates_S, first)
        for at in range(first, self.steps):
            self.stepper.step(at, step_seed(config.seed, progress.step))
            progress.step += 1
            if at == self.steps - 1:
                self._end_epoch(epoch + 1)
            if self._save_is_due():
                self._save()
            if bar.update():
                self._redraw(bar, epoch)
            if held:
                return

    def _end_epoch(self, done: int) -> None:
        """Validate when it is time, and bring the epoch's log lines to the file."""
        extra: dict[str, Any] = {}
        if done == self.epochs or done % self.config.validate_every == 0:
            scores = self._validate()
            extra = {"validation": scores, "validation_pairs": len(self.validation)}
            if self.task.verbose:
                self.task.say(f"{self.task.label}: epoch {done}: {_said(scores)}")
        self.progress.seconds = time.monotonic() - self.started
        self._flush(extra | {"seconds": round(self.progress.seconds, 3)})

    def _validate(self) -> metrics.Scores:
        """Score the fixed subset and keep the weights if they are the best so far."""
        pairs, rows = self.task.pairs, self.validation
        scores = metrics.score(
            pairs.pkd[rows], self._predict(rows), pairs.antigen[rows], pairs.censored[rows]
        )
        value, best = scores[self.config.select], self.progress.best_score
        # While the metric is undefined the newest weights stand in for the best.
        if is_better(self.config.select, value, best) or (value is None and best is None):
            self.best = _clones(self.model.state_dict())
            self.progress.best_score, self.progress.best_step = value, self.progress.step
            self.progress.stale = 0
        else:
            self.progress.stale += 1
        return scores

    def _predict(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        scores = predict_rows(self.model, self.tables, rows, self.task.device)
        return scores.astype(np.float64) * self.scaling.pkd_scale + self.scaling.pkd_mean

    def _validation_rows(self) -> NDArray[np.int64]:
        """Draw the fixed random subset that is scored while training."""
        rows = self.task.split.rows(VALIDATION)
        size = self.config.validate_pairs
        if size == 0 or size >= len(rows):
            return rows
        return np.sort(np.random.default_rng([self.config.seed, SUBSET]).permutation(rows)[:size])

    def _flush(self, extra: dict[str, Any] | None = None) -> None:
        """Write a line for each step since the last flush; stop at a loss that is no number."""
        if self.logged == self.progress.step:
            return
        epoch, first = divmod(self.logged, self.steps)
        last = first + self.progress.step - self.logged
        losses = self.stepper.loss_S[first:last].tolist()  # GPU sync
        lines: list[dict[str, Any]] = []
        for at, loss in zip(range(first, last), losses, strict=True):
            if not np.isfinite(loss):
                raise self._diverged(epoch, at, loss)
            step = epoch * self.steps + at + 1
            lines.append(
                {"step": step, "epoch": epoch + 1, "loss": loss, "lr": float(self.rates_S[at])}
            )
        lines[-1] |= extra or {}
        with self.task.log.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        self.logged = self.progress.step

    def _diverged(self, epoch: int, at: int, loss: float) -> LossNotFinite:
        plan = plan_epoch(self.training, self.config.seed, epoch, self.batch_size, self.accumulate)
        pairs = plan.rows_SAB[at][plan.weight_SAB[at] > 0]
        rows = np.sort(self.task.pairs.table.row_numbers[self.task.pairs.row[pairs]])
        shown = ", ".join(map(str, rows[:5])) + (f" and {len(rows) - 5} more" * (len(rows) > 5))
        return LossNotFinite(
            f"{self.task.log.parent}: the loss is {loss} at step {epoch * self.steps + at + 1} "
            f"(table rows {shown}); expected a number. The checkpoint of step {self.saved_step} is "
            "kept. Try a lower --lr in another --run, or look at those rows."
        )

    def _save_is_due(self) -> bool:
        """Decide by steps when asked to, else by time: at most 1 % of it goes into saving."""
        if self.config.save_every is not None:
            return self.progress.step % self.config.save_every == 0
        waited = time.monotonic() - self.saved_at
        return waited >= max(SAVE_SECONDS, self.saving_s / SAVING_SHARE)

    def _save(self) -> None:
        """Write the log, then the best weights, then the checkpoint that counts the log's bytes."""
        begun = time.monotonic()
        self._flush()
        self._refuse_broken_weights()
        with self.task.log.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())
            self.progress.log_bytes = file.tell()
        self.progress.seconds = begun - self.started
        best = {f"best.{name}": t for name, t in self.best.items()}
        state = asdict(self.progress)
        # ``best`` first: whoever finds the last ``latest`` finds the weights that it speaks of.
        checkpoint.save(self.task.checkpoints / "best", self.best, state)
        checkpoint.save_rotating(self.task.checkpoints, self.stepper.tensors() | best, state)
        self.saved_step, self.saved_at = self.progress.step, time.monotonic()
        self.saving_s = self.saved_at - begun

    def _refuse_broken_weights(self) -> None:
        """Catch an update that broke the weights after a finite loss: never save those."""
        finite = [t.isfinite().all() for t in self.model.state_dict().values()]
        if not torch.stack(finite).all():  # GPU sync
            epoch, at = divmod(self.progress.step - 1, self.steps)
            raise self._diverged(epoch, at, float("nan"))

    def _restore(self) -> int | None:
        """Take up the newest whole checkpoint and cut the log back to it."""
        found = checkpoint.load_newest(self.task.checkpoints, self.task.say)
        if found is None:
            self.task.log.unlink(missing_ok=True)
            return None
        load_tensors(self.stepper.tensors(), found.tensors)
        load_tensors(self.best, {n: found.tensors[f"best.{n}"] for n in self.best})
        self.progress = Progress(**found.state)
        _cut_log(self.task.log, self.progress.log_bytes)
        return self.progress.step

    def _redraw(self, bar: tqdm[Any], epoch: int) -> None:
        at = self.progress.step - epoch * self.steps - 1
        best = self.progress.best_score
        bar.set_postfix(
            epoch=f"{epoch + 1}/{self.epochs}",
            loss=f"{self.stepper.loss_S[at].item():.3f}",  # GPU sync, at most twice a second
            best="-" if best is None else f"{self.config.select} {best:.3f}",
            refresh=False,
        )


def kept_share(away: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    """Find the share of predicted distances from a mean that fits the measured ones best.

    A head that is sure of itself on clusters it never saw has large errors; on a split like that
    this is most of what can be learned there.

    Parameters
    ----------
    away, measured : NDArray, shape=(V,), dtype=float64
        Predicted and measured pKd of validation pairs, both less the training mean.

    Returns
    -------
    float
        The least-squares slope, at least `LEAST_KEPT` and at most 1; 1 if nothing was predicted.
    """
    length = float(away @ away)
    return float(np.clip(away @ measured / length, LEAST_KEPT, 1.0)) if length else 1.0


@contextmanager
def signals_held_back() -> Iterator[list[int]]:
    """Collect signals instead of acting on them; the first one acts when the block is left.

    A step that a signal cuts short leaves weights that no checkpoint may hold, so a signal waits
    until the step is over and the state is saved. Outside the main thread nothing changes.
    """
    held: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, lambda number, _frame: held.append(number))
    try:
        yield held
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if held:
        signal.raise_signal(held[0])


def _cut_log(log: Path, size: int) -> None:
    """Drop the lines of steps that will be taken again."""
    if not log.exists() or log.stat().st_size < size:
        msg = f"{log}: lines are missing that were written before the checkpoint; expected {size} bytes. Restore the file, or start another --run."  # noqa: E501
        raise LogDamaged(msg)
    os.truncate(log, size)


def is_better(select: str, value: float | None, best: float | None) -> bool:
    """Compare two values of the selecting metric; an undefined one is never better."""
    if value is None or best is None:
        return value is not None
    return value < best if select in LOWER_IS_BETTER else value > best


def _training_pairs(pairs: LabelledPairs, scaling: Scaling, device: torch.device) -> TrainingPairs:
    target = (pairs.pkd - scaling.pkd_mean) / scaling.pkd_scale
    return TrainingPairs(
        torch.from_numpy(pairs.antibody).to(device),
        torch.from_numpy(pairs.antigen).to(device),
        torch.from_numpy(target.astype(np.float32)).to(device),
        torch.from_numpy(pairs.censored).to(device),
    )


def _place_tables(
    task: Task, scaling: Scaling, pairs: TrainingPairs, shape_AB: tuple[int, int]
) -> Tables:
    """Standardise both tables and put them where they fit, saying where."""
    antibody_ND = torch.from_numpy(scaling.antibody.apply(task.antibody_ND))
    antigen_ME = torch.from_numpy(scaling.antigen.apply(task.antigen_ME))
    needed = antibody_ND.nbytes + antigen_ME.nbytes
    place = task.config.tables
    if place == "auto":
        place = "device" if needed <= _room(task.device) else "host"
    if task.device.type != "cpu":
        task.say(f"vectors: {needed / 2**20:.0f} MiB on the {place}")
    if place == "host":
        return HostTables(antibody_ND, antigen_ME, pairs, task.device, shape_AB)
    return DeviceTables(antibody_ND, antigen_ME, pairs, task.device)


def _room(device: torch.device) -> float:
    """Half of the device's free bytes; a CPU's tables are there already."""
    return torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else float("inf")


def _clones(tensors: dict[str, Tensor], device: str | None = None) -> dict[str, Tensor]:
    return {name: t.detach().clone().to(device or t.device) for name, t in tensors.items()}
