"""Train the heads of one split: steps, validation, log and checkpoints, resumable to the bit.

What a step does depends on (seed, step) and the state alone, so going on from any checkpoint
replays nothing. The log is synced before a checkpoint that counts its bytes, and cut back to that
count on resuming: each step has exactly one line, whenever the process was killed.

Several heads (``--members``) train as one stack. Each has its own best score, best weights and
patience; a head that has run out of patience keeps its best weights while the others go on.
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
from abag.head.data.splits import TRAIN, VALIDATION
from abag.head.evaluation import metrics
from abag.head.training import checkpoint
from abag.head.training.stack import Scaling, StackedHeads, make_members, make_training_sets
from abag.head.training.step import load_tensors, step_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from abag.head.data.labels import LabelledPairs
    from abag.head.data.splits import Split
    from abag.head.model.config import FitConfig

SUBSET = 4  # stream of the seed, beside those of step.py and ensemble.py
SAVING_SHARE = 0.01
SAVE_SECONDS = 30.0
REDRAW_SECONDS = 0.5
MIN_SHRINKAGE = 0.1
"""Share of their distance from the training mean that predictions keep at least: an order stays."""


class LossNotFinite(AbagError):
    """Training diverged."""


class LogDamaged(AbagError):
    """The log is shorter than the newest checkpoint says."""


@dataclass(slots=True)
class HeadProgress:
    """Where training stands: the part of a checkpoint that is not tensors."""

    best_score: list[float | None]
    """Of each head, and so the next two."""
    best_step: list[int]
    stale: list[int]
    """Validations since the best one."""
    step: int = 0
    log_bytes: int = 0
    """Size of the log when this was saved."""
    seconds: float = 0.0
    """Time spent training, all sessions together."""


@dataclass(frozen=True, slots=True)
class TrainedHeads:
    """The outcome of one split."""

    weights: tuple[dict[str, Tensor], ...]
    """The best weights of each head, by the plain model's own names."""
    scaling: Scaling
    predicted_MP: NDArray[np.float64]
    """pKd of every pair by each head's best weights."""
    in_bag_MP: NDArray[np.bool_]
    """Which pairs each head was trained on."""
    shrinkage: float
    """What `fit_shrinkage` left of the predictions' distance from the training mean."""
    progress: HeadProgress
    epochs: int
    resumed_from_step: int | None

    @property
    def predicted(self) -> NDArray[np.float64]:
        """The heads' mean, (P,)."""
        return np.asarray(self.predicted_MP.mean(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInputs:
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
    known = [name for name in metrics.headline_metrics() if scores[name] is not None]
    return ", ".join(f"{name} {scores[name]:.3f}" for name in known)


def train(task: TrainingInputs) -> TrainedHeads:
    """Train to the end, from the newest whole checkpoint if there is one."""
    task.checkpoints.mkdir(parents=True, exist_ok=True)
    # Seeds are set for every step: the caller's random state is put back afterwards.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        return HeadTraining(task).run()


class HeadTraining:
    """The heads of one split in the making."""

    def __init__(self, task: TrainingInputs) -> None:
        config = task.config
        self.task, self.config = task, config
        training = task.split.rows(TRAIN)
        self.stack = StackedHeads(
            task.pairs,
            task.antibody_ND,
            task.antigen_ME,
            Scaling.of(task.pairs, training, task.antibody_ND, task.antigen_ME),
            make_training_sets(config, task.split),
            make_members(config, len(training)),
            config=config,
            n_training=len(training),
            device=task.device,
            say=task.say,
        )
        self.training_step, self.model = self.stack.training_step, self.stack.model
        self.steps, self.epochs = self.stack.steps, self.stack.epochs
        heads = config.members
        self.progress = HeadProgress([None] * heads, [0] * heads, [0] * heads)
        self.best = _clones(self.model.state_dict())
        self.resumed_from_step = self._restore()
        self.validation = self._validation_rows()
        self._announce()
        self.logged = self.saved_step = self.progress.step
        self.saved_at, self.saving_s = time.monotonic(), 0.0
        self.started = time.monotonic() - self.progress.seconds

    def run(self) -> TrainedHeads:
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
        shrinkage = self._shrink()
        everything = np.arange(len(self.task.pairs))
        drawn_GP = np.stack([np.isin(everything, feed) for feed in self.stack.feeds])
        return TrainedHeads(
            weights=tuple(self._own(_clones(self.best, "cpu"), k) for k in self._heads()),
            scaling=self.stack.scaling,
            predicted_MP=self.stack.predict(everything),
            in_bag_MP=np.repeat(drawn_GP, len(self._heads()) // len(drawn_GP), axis=0),
            shrinkage=shrinkage,
            progress=self.progress,
            epochs=self.progress.step // self.steps,
            resumed_from_step=self.resumed_from_step,
        )

    def _shrink(self) -> float:
        """Pull predictions towards the training mean as far as validation asks for; once."""
        pairs, rows = self.task.pairs, self.task.split.rows(VALIDATION)
        rows = rows[pairs.censored[rows] == 0]
        scaling = self.stack.scaling
        mean = scaling.pkd_mean
        shrinkage = fit_shrinkage(
            self.stack.predict(rows).mean(axis=0) - mean, pairs.pkd[rows] - mean
        )
        self.stack.scaling = replace(scaling, pkd_scale=scaling.pkd_scale * shrinkage)
        if shrinkage < 1:
            self.task.say(
                f"{self.task.label}: predictions keep {shrinkage:.0%} of their distance from the "
                "training mean, which is what fits the validation pairs"
            )
        return shrinkage

    def _heads(self) -> range:
        return range(self.config.members)

    def _own(self, tensors: dict[str, Tensor], head: int) -> dict[str, Tensor]:
        """Return the part of a stack's tensors that is one head's."""
        return tensors if len(self._heads()) == 1 else {n: t[head] for n, t in tensors.items()}

    def _announce(self) -> None:
        """Say what is about to happen, unless it has happened already."""
        if self._finished():
            return
        every, seen = self.config.validate_every, len(self.validation)
        whole = len(self.task.split.rows(VALIDATION))
        self.task.say(
            f"{self.task.label}: {self._named()}{self.epochs} epochs of {self.steps} steps of "
            f"{self.stack.batch_size} x {self.stack.accumulate} pairs; validation every "
            f"{every} epoch{'s' * (every > 1)} on {seen} of {whole} pairs, on all at the end"
        )
        if self.resumed_from_step is not None:
            self.task.say(f"{self.task.label}: going on from step {self.progress.step}")

    def _named(self) -> str:
        """Say how many heads train and on what, if there are several."""
        if self.config.members == 1:
            return ""
        how = "each on its bag of groups, " if self.config.bootstrap else ""
        how += "products in bf16, " if self.training_step.half else ""
        return f"{self.config.members} heads in one step, {how}"

    def _gave_up(self, head: int) -> bool:
        return 0 < self.config.patience <= self.progress.stale[head]

    def _finished(self) -> bool:
        stopped = all(map(self._gave_up, self._heads()))
        return stopped or self.progress.step >= self.epochs * self.steps

    def _run_epoch(self, bar: tqdm[Any], held: list[int]) -> None:
        """Take the rest of the current epoch's steps, or stop between two when signalled."""
        config, progress = self.config, self.progress
        epoch, first = divmod(progress.step, self.steps)
        self.stack.begin_epoch(epoch, first)
        for at in range(first, self.steps):
            self.training_step.run(at, step_seed(config.seed, progress.step))
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
        """Score the fixed subset, and keep each head's weights where they are its best so far.

        Returns
        -------
        dict
            Scores of the heads' mean.
        """
        pairs, rows = self.task.pairs, self.validation
        pkd, antigen, censored = pairs.pkd[rows], pairs.antigen[rows], pairs.censored[rows]
        predicted_MR = self.stack.predict(rows)
        scores = metrics.score(pkd, predicted_MR.mean(axis=0), antigen, censored)
        values = [
            metrics.score_one(self.config.select, pkd, predicted_R, antigen, censored)
            for predicted_R in predicted_MR
        ]
        improved = [k for k in self._heads() if self._improves(k, values[k])]
        for name, tensor in self.model.state_dict().items():
            if len(improved) == len(values):
                self.best[name].copy_(tensor)
            elif improved:
                self.best[name][improved] = tensor[improved]
        return scores

    def _improves(self, head: int, value: float | None) -> bool:
        """Note a head's validation; tell whether its weights are the best so far."""
        progress = self.progress
        if self._gave_up(head):
            return False
        best = progress.best_score[head]
        # While the metric is undefined the newest weights stand in for the best.
        if metrics.is_better(self.config.select, value, best) or (value is None and best is None):
            progress.best_score[head], progress.best_step[head] = value, progress.step
            progress.stale[head] = 0
            return True
        progress.stale[head] += 1
        return False

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
        losses_SM = self.training_step.loss_S[first:last].double().cpu().numpy()  # GPU sync
        losses_SM = losses_SM.reshape(last - first, -1)
        broken_S = ~np.isfinite(losses_SM).all(axis=1)
        if broken_S.any():
            at = int(broken_S.argmax())
            loss = losses_SM[at][~np.isfinite(losses_SM[at])][0]
            raise self._diverged(epoch, first + at, float(loss))
        lines: list[dict[str, Any]] = []
        for at, losses in enumerate(losses_SM.tolist()):
            line: dict[str, Any] = {"step": self.logged + at + 1, "epoch": epoch + 1}
            line["loss"] = sum(losses) / len(losses)
            line["lr"] = float(self.stack.rates_S[first + at].flat[0])
            lines.append(line | ({"losses": losses} if len(losses) > 1 else {}))
        lines[-1] |= extra or {}
        with self.task.log.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        self.logged = self.progress.step

    def _diverged(self, epoch: int, at: int, loss: float) -> LossNotFinite:
        plan = self.stack.plan(epoch)
        pairs = plan.rows_SAGB[at].swapaxes(0, 1)[:, plan.weight_SAB[at] > 0]
        rows = np.unique(self.task.pairs.table.row_numbers[self.task.pairs.row[pairs]])
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
        checkpoint.save_rotating(self.task.checkpoints, self.training_step.tensors() | best, state)
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
        self.training_step.load(found.tensors)
        load_tensors(self.best, {n: found.tensors[f"best.{n}"] for n in self.best})
        self.progress = HeadProgress(**found.state)
        _cut_log(self.task.log, self.progress.log_bytes)
        return self.progress.step

    def _redraw(self, bar: tqdm[Any], epoch: int) -> None:
        at = self.progress.step - epoch * self.steps - 1
        best = self.progress.best_score[0]
        bar.set_postfix(
            epoch=f"{epoch + 1}/{self.epochs}",
            loss=f"{self.training_step.loss_S[at].mean().item():.3f}",  # GPU sync
            best="-" if best is None else f"{self.config.select} {best:.3f}",
            refresh=False,
        )


def fit_shrinkage(away: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
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
        The least-squares slope, at least `MIN_SHRINKAGE` and at most 1; 1 if nothing was predicted.
    """
    length = float(away @ away)
    return float(np.clip(away @ measured / length, MIN_SHRINKAGE, 1.0)) if length else 1.0


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


def _clones(tensors: dict[str, Tensor], device: str | None = None) -> dict[str, Tensor]:
    return {name: t.detach().clone().to(device or t.device) for name, t in tensors.items()}
