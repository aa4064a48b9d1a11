"""How well probabilities of classes rank pairs, and how true they are.

The prediction of a pair of two classes is the probability of the second, and its squared error the
Brier score, which `scores` compares with that of the frequency of the class (the prevalence) and of
the best baseline. Here is what is said of classes beside it: average precision and the area under
the ROC curve, overall and within antigens and antibodies, and the log loss. Of ordered classes,
pairs of the highest one are the positive ones, and two pairs are compared if their classes differ.

Pairs of one fold are compared with each other, for the reason that `scores` gives. R tested pairs.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from abag.core.arrays import Bools, Floats, Ints
from abag.head.evaluation.scores import (
    BoundedPairs,
    RegimeScore,
    TestedPairs,
    cells,
    concordance_claim,
    mean_claim,
)
from abag.head.regimes.sides import LEAST_GROUPS, LEAST_ROWS

DRAWS = 200
"""Draws of groups from which the interval of the average precision comes."""
LEAST_PROBABILITY = 1e-6
"""Least probability of what happened: one that was excluded has a finite log loss."""


class ClassScores(TypedDict):
    """Hold what is said of classes in a row of the table of regimes; JSON."""

    positive: str
    """Name of the highest class."""
    positives: int
    """Different pairs of it among the tested ones."""
    prevalence: float
    average_precision: dict[str, float | None] | None
    auc: dict[str, float | None] | None
    auc_within_antigen: dict[str, float | None] | None
    auc_within_antibody: dict[str, float | None] | None
    brier: float
    """Mean squared error of the number of the class."""
    brier_of_mean: float
    brier_of_best: float
    log_loss: float | None
    """In nats, of two classes."""
    log_loss_of_mean: float | None
    log_loss_gain: dict[str, float | None] | None
    """By how much the log loss is smaller than that of the prevalence, with its interval."""


def add_classes(
    score: RegimeScore,
    tested: TestedPairs,
    predicted: Floats,
    mean: Floats,
    classes: tuple[str, ...],
) -> None:
    """Add to the score of a regime what is said of classes.

    `predicted` and `mean`, (R,) each, are the predictions and the frequencies in training.
    """
    is_positive = tested.pkd == len(classes) - 1
    weight = np.ones(len(is_positive)) if tested.weight is None else tested.weight
    scores: ClassScores = {
        "positive": classes[-1],
        "positives": len(np.unique(tested.rows[is_positive])),
        "prevalence": float(np.average(is_positive, weights=weight)),
        "average_precision": _average_precision(tested, is_positive, predicted),
        "auc": _auc(tested, predicted, tested.fold),
        "auc_within_antigen": _auc(tested, predicted, cells(tested.fold, tested.antigen)),
        "auc_within_antibody": _auc(tested, predicted, cells(tested.fold, tested.antibody)),
        "brier": score["rmse"] ** 2,
        "brier_of_mean": score["rmse_of_mean"] ** 2,
        "brier_of_best": score["rmse_of_best"] ** 2,
        "log_loss": None,
        "log_loss_of_mean": None,
        "log_loss_gain": None,
    }
    if len(classes) == 2:
        loss = log_losses(tested.pkd, predicted)
        of_mean = log_losses(tested.pkd, mean)
        gain = mean_claim(of_mean - loss, tested.groups, weight=tested.weight)
        scores["log_loss"] = float(np.average(loss, weights=weight))
        scores["log_loss_of_mean"] = float(np.average(of_mean, weights=weight))
        scores["log_loss_gain"] = gain._asdict()
    score["classes"] = {**scores}


def log_losses(level: Floats, probability: Floats) -> Floats:
    """Return minus the logarithm of the probability of what happened, (R,), in nats."""
    happened = np.where(level > 0, probability, 1 - probability)
    return np.asarray(-np.log(np.clip(happened, LEAST_PROBABILITY, 1.0)))


def _auc(tested: TestedPairs, predicted: Floats, cell: Ints) -> dict[str, float | None] | None:
    """Return the share of pairs of one cell in the right order, and its interval."""
    bounded = BoundedPairs(
        pkd=tested.pkd,
        censored=np.zeros(len(cell), np.int8),
        predicted=predicted,
        fold=cell,
        groups=tested.groups,
        weight=tested.weight,
    )
    if _compared(cell, tested.pkd) < LEAST_ROWS:
        return None
    claim = concordance_claim(bounded, several=len(np.unique(tested.fold)) > 1)
    return None if claim is None else claim._asdict()


def _compared(cell: Ints, level: Floats) -> int:
    """Count the pairs whose cell has another class, too."""
    _, number = np.unique(cell, return_inverse=True)
    least = np.full(number.max(initial=0) + 1, np.inf)
    most = np.full(len(least), -np.inf)
    np.minimum.at(least, number, level)
    np.maximum.at(most, number, level)
    return int((least < most)[number].sum())


def _average_precision(
    tested: TestedPairs, is_positive: Bools, predicted: Floats
) -> dict[str, float | None] | None:
    """Return the average precision, the mean over folds by their positive pairs, and its interval.

    The interval is that of draws of groups, with replacement; it counts a pair of groups of which
    one depends on the other as the one that has fewer groups.
    """
    if not is_positive.any():
        return None
    weight = np.ones(len(predicted)) if tested.weight is None else tested.weight
    folds = [np.flatnonzero(tested.fold == number) for number in np.unique(tested.fold)]
    ordered = [_Ordered.of(rows, is_positive[rows], predicted[rows]) for rows in folds]
    value = _mean_of_folds(ordered, weight)
    fewest = min(tested.groups, key=lambda group: len(np.unique(group)))
    _, number = np.unique(fewest, return_inverse=True)
    groups = int(number.max()) + 1
    if tested.effective < LEAST_GROUPS:
        return {"value": value, "low": None, "high": None}
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        times = np.bincount(rng.integers(0, groups, groups), minlength=groups)[number]
        drawn.append(_mean_of_folds(ordered, weight * times))
    low, high = np.nanquantile(drawn, [0.025, 0.975]).tolist()
    return {"value": value, "low": low, "high": high}


class _Ordered:
    """Rows of a fold in the order of their predictions, the highest first."""

    def __init__(self, rows: Ints, is_positive: Bools, last: Ints) -> None:
        self.rows = rows
        self.is_positive = is_positive
        self.last = last

    @classmethod
    def of(cls, rows: Ints, is_positive: Bools, predicted: Floats) -> _Ordered:
        """Sort rows, (R,); ties go together: no cut-off divides equal predictions."""
        order = np.argsort(-predicted, kind="stable")
        last = np.flatnonzero(np.append(np.diff(predicted[order]) != 0, True))
        return cls(rows[order], is_positive[order], last)

    def average_precision(self, weight: Floats) -> tuple[float, float]:
        """Return the average precision of weighted rows, and the weight of the positive ones."""
        w = weight[self.rows]
        hits = np.cumsum(w * self.is_positive)[self.last]
        picked = np.cumsum(w)[self.last]
        if not len(hits) or not hits[-1]:
            return 0.0, 0.0
        precision = hits / np.maximum(picked, 1e-300)
        return float(np.diff(hits, prepend=0.0) @ precision / hits[-1]), float(hits[-1])


def _mean_of_folds(folds: list[_Ordered], weight: Floats) -> float:
    scored = [fold.average_precision(weight) for fold in folds]
    total = sum(of_positives for _, of_positives in scored)
    return sum(value * share for value, share in scored) / total if total else float("nan")
