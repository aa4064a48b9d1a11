"""Validation while heads train: their scores on fixed pairs, and the best weights of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from abag.head.evaluation import metrics
from abag.head.evaluation.comparison import antigen_groups
from abag.head.splits.splits import VALIDATION
from abag.head.training.loop import TrainingProgress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from abag.head.data.labels import LabelledPairs
    from abag.head.model.config import FitConfig
    from abag.head.splits.splits import Split
    from abag.head.training.stack import StackedHeads

VALIDATION_SUBSET = 4  # stream of the seed, beside those of step.py and stack.py


@dataclass(slots=True, kw_only=True)
class HeadProgress(TrainingProgress):
    """Progress of the heads of a training; the lists have one entry per head."""

    best_score: list[float | None]
    best_step: list[int]
    stale: list[int]
    """Validations since the best one."""
    log_bytes: int = 0
    """Size of the log of the first fold when this was saved."""
    compiled: str | None = None
    """How steps run, see `compile_choice`; None before the first one."""
    further_log_bytes: list[int] = field(default_factory=list)
    """Sizes of the logs of the other folds."""

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
    rows, size = split.rows(VALIDATION), config.validate_pairs
    if size == 0 or size >= len(rows):
        return rows
    rng = np.random.default_rng([config.seed, VALIDATION_SUBSET])
    return np.sort(rng.permutation(rows)[:size])
