"""The training of networks: `train` fits the heads of one split, or of several folds as one stack.

After each epoch the validation pairs are scored, and the best weights of every head are kept; folds
that are out of patience stop. The steps are those of `stack`.

`ResumableTraining` is the loop of epochs and steps, for adapters too. What a step does depends only
on the seed, the step number and the checkpoint: a training that was interrupted at any point and
resumed ends like an uninterrupted one, bit for bit on a CPU. Torch's process-wide settings
(precision, threads, determinism) are set in a block and restored after it; only `keep_freed_memory`
lasts.

M heads, P pairs, R rows, S steps of an epoch.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from abag.core.cores import SMALL_FOLD_PAIRS, count_cores, keep_freed_memory
from abag.core.device import torch_threads
from abag.core.errors import RunError, TrainingError
from abag.core.files import json_text, make_folder, write_text
from abag.core.messages import detail, say, tell_share
from abag.head.evaluation import metrics
from abag.head.models.config import VALIDATION_PAIRS
from abag.head.models.pair_vectors import Labels, PairVectors, TrainedHeads
from abag.head.regimes.splits import TRAIN, VALIDATION, learned_rows
from abag.head.training.stack import (
    PairStandardizer,
    StackedHeads,
    load_tensors,
    make_training_sets,
    step_seed,
)
from abag.head.training.tasks import delayed_signals, load_newest, save_rotating

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from abag.core.options import Options
    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.models.config import FitConfig
    from abag.head.regimes.splits import Split
    from abag.head.training.stack import TrainingStep


MAX_SAVING_SHARE = 0.01
"""Share of the training time that may go into checkpoints without a `save_every`."""
MIN_SAVE_INTERVAL_S = 30.0
"""Seconds between two checkpoints at least, without a `save_every`."""
LOG = "log.jsonl"
"""Name of the log beside the checkpoints of a training: one line of JSON per epoch and fold."""
LATER_END = 0.7
"""Share of the epochs beyond its patience for which a head that has just begun trains: it improves
again."""
DRAWN = ("spearman", "rmse")
"""Validation scores in the log beside the one that selects: the report draws them."""
VALIDATION_SUBSET = 4  # stream of the seed, beside those of stack.py


@contextmanager
def torch_settings(device: torch.device, config: FitConfig) -> Iterator[None]:
    """Set torch's process-wide settings for one training, and restore them afterwards."""
    if device.type == "cpu":
        keep_freed_memory()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else "highest")  # TF32
    if config.deterministic and not deterministic:  # the call imports the compiler: 2 s
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
        torch.use_deterministic_algorithms(True)
    # CUDA graphs are captured on the current device
    current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    try:
        with torch_threads(config.threads), current:
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        if config.deterministic and not deterministic:
            torch.use_deterministic_algorithms(False)


@contextmanager
def matrix_threads(training_pairs: int) -> Iterator[None]:
    """Let torch use all cores for the matrices of a large fold, which runs beside no other."""
    with torch_threads(count_cores()) if training_pairs > SMALL_FOLD_PAIRS else nullcontext():
        yield


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
        tell_share(self._share_done(), before=True)
        with delayed_signals() as received:
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
                    tell_share(self._share_done())
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

    def _share_done(self) -> float:
        """Return the share of the work that is done, for the time left."""
        return self.progress.step / (self.epochs * self.steps_per_epoch)

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
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@dataclass(slots=True, kw_only=True)
class HeadProgress(TrainingProgress):
    """Hold the progress of the heads of a training; lists but `log` have one entry per head."""

    best_score: list[float | None]
    best_step: list[int]
    stale: list[int]
    """Epochs since the best one."""
    log: list[dict[str, Any]] = field(default_factory=list)

    def is_out_of_patience(self, head: int, config: FitConfig) -> bool:
        """Return whether a head has not improved for as many epochs as its patience allows."""
        return 0 < config.filled().patience <= self.stale[head]

    def record_score(self, head: int, score: float | None, config: FitConfig) -> bool:
        """Return whether a validation score is the best of this head so far, and record it."""
        if self.is_out_of_patience(head, config):
            return False
        best = self.best_score[head]
        # While the metric is undefined, the newest weights count as the best.
        if metrics.is_better(config.select, score, best) or (score is None and best is None):
            self.best_score[head] = score
            self.best_step[head] = self.step
            self.stale[head] = 0
            return True
        self.stale[head] += 1
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInputs:
    """Hold what a training of heads needs, and where it is kept."""

    pairs: LabelledPairs
    """All pairs of the table."""
    vectors: PairVectors
    splits: Sequence[Split]
    """One split, or the folds of a group of `stack.group_folds`."""
    labels: Sequence[Labels]
    """Those of each split, of bounds what is expected of them."""
    config: FitConfig
    device: torch.device
    folder: Path
    """Folder of the log and the checkpoints."""


def train(inputs: TrainingInputs) -> list[TrainedHeads]:
    """Train to the end, from the newest whole checkpoint if there is one; one result per fold.

    Raises
    ------
    RunError
        If the checkpoints in the folder belong to another training.
    TrainingError
        If a loss or a weight is not finite; `Stopped` if a signal stopped it.
    """
    make_folder(inputs.folder)
    training = HeadTraining(inputs)
    # the steps of a GPU draw from torch's own generator, whose state is the caller's
    on_gpu = range(torch.cuda.device_count()) if inputs.device.type == "cuda" else ()
    with torch.random.fork_rng(devices=on_gpu, enabled=bool(on_gpu)):
        training.run()
    return training.results()


def draw_validation_rows(split: Split, config: FitConfig) -> NDArray[np.int64]:
    """Return the validation rows of a split, (R,), or `VALIDATION_PAIRS` of them at random."""
    rows = split.rows(VALIDATION)
    if len(rows) <= VALIDATION_PAIRS:
        return rows
    rng = np.random.default_rng([config.seed, VALIDATION_SUBSET])
    return np.sort(rng.permutation(rows)[:VALIDATION_PAIRS])


def _stack_heads(inputs: TrainingInputs) -> StackedHeads:
    """Make one head per fold, or the members of the ensemble of one fold."""
    config = inputs.config
    training_rows = [split.rows(TRAIN) for split in inputs.splits]
    scalings = []
    for labels, rows in zip(inputs.labels, training_rows, strict=True):
        scalings.append(PairStandardizer.of(labels, rows, inputs.vectors))
    training_sets = []
    for split in inputs.splits:
        training_sets += make_training_sets(config, split)
    sets_per_fold = len(training_sets) // len(inputs.splits)
    seeds = range(config.seed, config.seed + sets_per_fold)
    members_of_fold = [replace(config, seed=seed) for seed in seeds]
    # a bootstrap sample of groups has another size; its epochs are as long as those of all pairs
    epoch_pairs = []
    for rows in training_rows:
        epoch_pairs += [len(rows)] * sets_per_fold
    return StackedHeads(
        inputs.labels,
        inputs.vectors,
        scalings,
        training_sets,
        members_of_fold * len(inputs.splits),
        epoch_pairs=epoch_pairs,
        device=inputs.device,
    )


def _digested_arrays(inputs: TrainingInputs) -> list[NDArray[Any]]:
    """Return the data that a checkpoint belongs to."""
    pairs = inputs.pairs
    arrays: list[NDArray[Any]] = [
        pairs.antibody,
        pairs.antigen,
        pairs.pkd,
        pairs.censored,
        *(side.x_ND[:1] for side in inputs.vectors.sides.values()),  # which encoders and pooling
    ]
    arrays += [split.part for split in inputs.splits]
    if pairs.share is not None:
        arrays.append(pairs.share)
    if pairs.cells is not None:
        arrays.append(pairs.cells.numbers_RF)
    return arrays


class HeadTraining(ResumableTraining):
    """Train the heads of one split, or one head for each of several folds."""

    progress: HeadProgress

    def __init__(self, inputs: TrainingInputs) -> None:
        config = inputs.config
        splits = inputs.splits
        self.inputs = inputs
        self.config = config
        self.splits = splits
        self.stack = _stack_heads(inputs)
        self.heads = range(len(self.stack.members))
        self.heads_of_folds: list[list[int]] = (
            np.array(self.heads).reshape(len(splits), -1).tolist()
        )
        digest = training_digest(config, _digested_arrays(inputs))
        name = f"{splits[0].name.replace('_', ' ')} {splits[0].fold}"
        if len(splits) > 1:
            name += f" and {len(splits) - 1} more"
        n_heads = len(self.heads)
        super().__init__(
            name=name,
            checkpoints=inputs.folder,
            epochs=self.stack.epochs,
            steps_per_epoch=self.stack.steps,
            save_every=config.save_every,
            progress=HeadProgress(
                training=digest,
                best_score=[None] * n_heads,
                best_step=[0] * n_heads,
                stale=[0] * n_heads,
            ),
        )
        self.scored_rows = [draw_validation_rows(split, config) for split in splits]
        """Validation pairs that are scored while training, of each fold."""
        self._labels = [metrics.rows_to_score(inputs.pairs, rows) for rows in self.scored_rows]
        weights = self.stack.model.state_dict()
        self.best = {name: tensor.detach().clone() for name, tensor in weights.items()}
        """The best weights of every head so far."""

    @property
    def training_step(self) -> TrainingStep:
        """Return the step of the folds that still train."""
        return self.stack.training_step

    def results(self) -> list[TrainedHeads]:
        """Return the best heads of each fold, and what they predict."""
        folds = len(self.splits)
        if len(self.stack.folds) < folds:
            self.stack.keep_folds(range(folds), with_state=False)
        self.stack.model.load_state_dict(self.best)
        all_pairs = np.arange(len(self.inputs.pairs))
        held_out = [np.setdiff1d(all_pairs, learned_rows(split)) for split in self.splits]
        predicted = self.stack.predict_parts(held_out)
        weights = {name: tensor.cpu() for name, tensor in self.best.items()}
        widths = self.config.filled().widths
        used = {
            "batch_size": self.stack.batch_size,
            "accumulate": self.stack.accumulate,
            "compile": self.training_step.mode,
            "precision": "bf16" if self.training_step.in_bf16 else "fp32",
            "device": str(self.inputs.device),
        }
        results = []
        for scaling, rows, of_rows_MR, heads, steps in zip(
            self.stack.scalings,
            held_out,
            predicted,
            self.heads_of_folds,
            self._steps(),
            strict=True,
        ):
            predicted_MP = np.full((len(heads), len(all_pairs)), np.nan)
            predicted_MP[:, rows] = of_rows_MR
            models = []
            for head in heads:
                head_weights = {name: tensor_M[head] for name, tensor_M in weights.items()}
                models.append(scaling.model(widths, head_weights))
            epochs = steps // self.steps_per_epoch
            trained = TrainedHeads(
                models=tuple(models),
                predicted_MP=predicted_MP,
                best_step=[self.progress.best_step[head] for head in heads],
                steps=steps,
                epochs=epochs,
                seconds=self.progress.seconds / folds,
                resumed_from_step=self.resumed_from_step,
                used=used | {"epochs": epochs},
            )
            results.append(trained)
        return results

    def _steps(self) -> list[int]:
        """Return the steps that each fold took until its last head was out of patience."""
        progress = self.progress
        steps = []
        for heads in self.heads_of_folds:
            last_steps = (
                progress.best_step[head] + progress.stale[head] * self.steps_per_epoch
                for head in heads
            )
            steps.append(max(last_steps))
        return steps

    def _announce(self) -> None:
        epochs = f"{self.epochs} epochs of {self.steps_per_epoch} steps"
        step = f"{self.stack.batch_size} x {self.stack.accumulate} pairs per step"
        if self.training_step.in_bf16:
            step += ", bf16"
        scored = sum(map(len, self.scored_rows))
        detail(
            f"{self.name}: {len(self.heads)} heads, {epochs}, {step}, "
            f"--compile {self.training_step.mode}; validation every epoch on {scored} pairs"
        )

    def _begin_epoch(self, epoch: int, first_step: int) -> None:
        self.stack.begin_epoch(epoch, first_step)

    def _take_step(self, step_in_epoch: int) -> None:
        self.training_step.run(step_seed(self.config.seed, self.progress.step))

    def _end_epoch(self, epochs_done: int) -> None:
        training_folds = self._training_folds()
        fold_scores = self._validate()
        losses_SM = self._losses()
        fold_losses = np.split(losses_SM.mean(axis=0), len(self.stack.folds))
        seconds = round(self.elapsed_s() / len(self.splits), 3)  # each fold took its share
        lines = []
        for fold, losses, scores in zip(self.stack.folds, fold_losses, fold_scores, strict=True):
            if fold not in training_folds:
                continue
            line: dict[str, Any] = {
                "fold": self.splits[fold].fold,
                "step": self.progress.step,
                "epoch": epochs_done,
                "loss": float(losses.mean()),
            }
            if len(losses) > 1:
                line["losses"] = losses.tolist()
            line["validation"] = scores
            line["validation_pairs"] = len(self.scored_rows[fold])
            line["seconds"] = seconds
            lines.append(line)
        self.progress.log += lines
        with (self.checkpoints / LOG).open("a", encoding="utf-8") as file:
            file.write(_as_text(lines))
        if any(map(len, self.scored_rows)):  # a fit to all pairs has none
            select = self.config.select
            mean = metrics.average_folds(fold_scores)[select]
            shown = "undefined" if mean is None else f"{mean:.3f}"
            heading = metrics.metric_heading(select, self.inputs.pairs.quantity)
            detail(f"{self.name}: epoch {epochs_done}: validation {heading} {shown}")
        self._drop_finished_folds()

    def _validate(self) -> list[metrics.Scores]:
        """Score the mean of each fold's heads; keep the weights of heads that improved."""
        select = self.config.select
        shown = dict.fromkeys((*DRAWN, select))
        folds = self.stack.folds
        predicted = self.stack.predict_parts([self.scored_rows[fold] for fold in folds])
        fold_scores: list[metrics.Scores] = []
        head_scores: list[float | None] = []
        for fold, predicted_MR in zip(folds, predicted, strict=True):
            labels = self._labels[fold]
            predicted_R = predicted_MR.mean(axis=0)
            fold_scores.append({key: labels.score_one(key, predicted_R) for key in shown})
            head_scores += [labels.score_one(select, of_head_R) for of_head_R in predicted_MR]
        self._keep_best_weights(head_scores)
        return fold_scores

    def _keep_best_weights(self, head_scores: Sequence[float | None]) -> None:
        """Keep the weights of the heads that train and whose validation score is their best."""
        heads = self.stack.heads.tolist()
        positions = []  # in the model, which holds only the heads that train
        for position, (head, score) in enumerate(zip(heads, head_scores, strict=True)):
            if self.progress.record_score(head, score, self.config):
                positions.append(position)
        improved_heads = [heads[position] for position in positions]
        for name, tensor in self.stack.model.state_dict().items():
            if len(improved_heads) == len(self.heads):
                self.best[name].copy_(tensor)
            elif improved_heads:
                self.best[name][improved_heads] = tensor[positions]

    def _is_out_of_patience(self) -> bool:
        return not self._training_folds()

    def _share_done(self) -> float:
        """Return the share done, as far as it can be told when folds will be out of patience.

        A fold that is out of it is trained no longer on a CPU; on a GPU, with the others.
        """
        progress = self.progress
        total = self.epochs * self.steps_per_epoch
        patience = self.config.filled().patience
        if not patience or not all(map(len, self.scored_rows)):
            return progress.step / total
        done = []
        ends = []
        for heads in self.heads_of_folds:
            last = 0.0
            for head in heads:
                least = min(total, progress.best_step[head] + patience * self.steps_per_epoch)
                waits = max(0.0, 1.0 - progress.stale[head] / patience)
                # the longer a head has trained, the less it improves again
                later = LATER_END * waits * (1 - progress.step / total)
                last = max(last, least + later * (total - least))
            ends.append(last)
            done.append(min(progress.step, last))
        if self.inputs.device.type == "cpu":
            return sum(done) / sum(ends)
        return progress.step / max(ends)

    def _training_folds(self) -> list[int]:
        """Return the folds with a head that is not out of patience."""
        folds = []
        for fold, heads in enumerate(self.heads_of_folds):
            if not all(self.progress.is_out_of_patience(head, self.config) for head in heads):
                folds.append(fold)
        return folds

    def _drop_finished_folds(self, *, with_state: bool = True) -> None:
        """Train without the folds that are out of patience: on a CPU they take time for nothing."""
        folds = range(len(self.splits))
        # a GPU would have to capture its step again
        if self.inputs.device.type != "cpu" or len(folds) == 1:
            return
        steps = self._steps()
        training = self._training_folds()
        if not training:  # the stack ended with the folds that ended last, as its checkpoint has it
            training = [fold for fold in folds if steps[fold] == max(steps)]
        if len(training) < len(self.stack.folds):
            self.stack.keep_folds(training, with_state=with_state)

    def _tensors(self) -> dict[str, Tensor]:
        return self.training_step.tensors() | {f"best.{name}": t for name, t in self.best.items()}

    def _write_checkpoint(self) -> None:
        self._losses()
        # an update may break the weights after a finite loss
        state = self.stack.model.state_dict().values()
        if not torch.stack([t.isfinite().all() for t in state]).all():  # GPU sync
            raise self._diverged(self.progress.step - 1, float("nan"))
        super()._write_checkpoint()

    def _restore(self, tensors: dict[str, Tensor] | None) -> None:
        if tensors is not None:
            self._drop_finished_folds(with_state=False)
            self.training_step.load(tensors)
            load_tensors(self.best, {name: tensors[f"best.{name}"] for name in self.best})
        # the log of the checkpoint: a killed process may have written more
        write_text(self.checkpoints / LOG, _as_text(self.progress.log))

    def _losses(self) -> NDArray[np.float64]:
        """Return the losses of this epoch so far, (S, M); refuse what is not finite."""
        first = (self.progress.step - 1) // self.steps_per_epoch * self.steps_per_epoch
        losses_SM = self.training_step.loss_SM[: self.progress.step - first]
        on_host_SM: NDArray[np.float64] = losses_SM.double().cpu().numpy()  # GPU sync
        for step, head in np.argwhere(~np.isfinite(on_host_SM)).tolist():
            raise self._diverged(first + step, float(on_host_SM[step, head]))
        return on_host_SM

    def _diverged(self, step: int, loss: float) -> TrainingError:
        return TrainingError(
            f"{self.checkpoints}: the loss is {loss} at step {step + 1}; expected a finite number. "
            f"The checkpoint of step {self._saved_step} is kept. Use a lower --lr with another "
            "--run folder, or check the labels."
        )


def _as_text(lines: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json_text(line) + "\n" for line in lines)
