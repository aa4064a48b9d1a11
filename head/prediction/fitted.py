"""The parts of a predictor, and how they are weighed in each regime.

Every part is fitted to each fold, and in the end to all pairs. A regime weighs them by their errors
on its out-of-fold pairs; its sigma is calibrated on the same pairs. The weights with the least
error on few groups fit these groups. So they are pulled toward the best part, as strongly as if
`PRIOR_GROUPS` groups had been measured in favour of it. Unless it is better than the training mean
by a standard error, it is the best by chance, and they are pulled toward the mean.
P pairs, R tested pairs of a regime, K parts. References: Breiman, Machine Learning 24, 1996;
for the rule of one standard error Breiman et al.: Classification and Regression Trees, 3.4.3.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtri

from abag.core.arrays import Floats, Ints, distinct
from abag.head.evaluation.regime_scores import RegimeScore, TestedPairs, score_regime
from abag.head.models.pair_model import DoesNotApply, PairModel, TrainingRows, fit_sigma
from abag.head.models.registry import MEAN, MODELS, NETWORK, closed_forms, describe_left_out
from abag.head.regimes.folds import effective_groups
from abag.head.regimes.splits import TEST, grouped_folds

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs
    from abag.head.models.config import FitConfig
    from abag.head.models.pair_model import Fit
    from abag.head.regimes.folds import MeasuredRegime
    from abag.head.training.train import TrainedHeads

PRIOR_GROUPS = 3.0
SUM_WEIGHT = 1e4
"""Weight of the condition that the weights add up to 1, relative to the errors."""
COVERED = float(ndtri(0.95))
"""Half the width of a 90 % interval, in sigmas."""


@dataclass(slots=True)
class FittedParts:
    """The parts that were fitted to the training pairs of one split."""

    models: dict[str, tuple[PairModel, ...]]
    """By name; the mean of its models is the prediction of a part."""
    predicted: dict[str, Floats]
    """pKd of every pair, (P,), by part or baseline."""
    variance: Floats
    """Variance of the predictions in pKd^2, (P,), which sigma scales; 0 if no part has one."""
    trained: TrainedHeads | None = None
    seconds: float = 0.0
    notes: Sequence[str] = ()
    """What was fitted and left out, for ``fit -v``; mostly the same for all folds."""


def fit_closed_forms(
    training: TrainingRows, config: FitConfig, *, compared: bool = True
) -> FittedParts:
    """Fit the parts in closed form, the mean among them, and if `compared` other baselines."""
    start_s, head, pairs = time.monotonic(), config.filled().head, len(training.rows)
    notes = list[str]()
    if config.stacks and (left_out := describe_left_out(pairs)):
        notes.append(left_out)
    parts = closed_forms(head, pairs)
    baselines = [one for one, entry in MODELS.items() if compared and entry.is_baseline]
    fitted: dict[str, PairModel] = {}
    for one in dict.fromkeys((*parts, *baselines)):
        fit = cast("Fit", MODELS[one].fit)
        try:
            fitted[one] = fit(training)
        except DoesNotApply as error:
            if one == head:
                raise
            notes.append(f"{one} left out: {str(error).removeprefix(f'{one}: ')}")
    training.shared.clear()
    predicted = {one: model.predict(training.vectors) for one, model in fitted.items()}
    models: dict[str, tuple[PairModel, ...]] = {
        one: (model,) for one, model in fitted.items() if one in parts
    }
    found = (each[0].variance(training.vectors) for each in models.values())
    known = [variance for variance in found if variance is not None]
    variance = np.mean(known or [np.zeros(len(training.pairs))], axis=0)
    seconds = time.monotonic() - start_s
    return FittedParts(models, predicted, variance, seconds=seconds, notes=notes)


def add_networks(parts: FittedParts, trained: TrainedHeads) -> None:
    """Add the trained networks of the same split."""
    parts.models[NETWORK] = trained.models
    parts.predicted[NETWORK] = trained.predicted_MP.mean(axis=0)
    if not parts.variance.any():
        parts.variance = trained.predicted_MP.var(axis=0)
    parts.trained, parts.seconds = trained, parts.seconds + trained.seconds


def stack_weights(error_RK: Floats, group: Ints, mean: int) -> Floats:
    """Return weights of K parts, (K,), not negative and with sum 1.

    They minimise the mean squared error plus `PRIOR_GROUPS` / groups times that of the best part
    times the squared distance from one part alone: the best, or the training mean if the best is
    not better by a standard error.
    """
    square_K = np.square(error_RK).mean(axis=0)
    best = int(np.argmin(square_K))
    gain_R = np.square(error_RK[:, mean]) - np.square(error_RK[:, best])
    if gain_R.mean() <= _standard_error(gain_R, group):
        best = mean
    expected_K = np.eye(len(square_K))[best]
    if not square_K.min():
        return np.asarray(expected_K)
    # The normal equations' root has K rows, whatever R.
    root_KK = np.linalg.qr(error_RK, mode="r") / np.sqrt(len(error_RK))
    pull = np.sqrt(PRIOR_GROUPS / effective_groups(group) * square_K.min())
    unit = SUM_WEIGHT * max(pull, float(np.abs(root_KK).max()))
    rows = np.vstack([root_KK, pull * np.eye(len(square_K)), np.full((1, len(square_K)), unit)])
    target = np.concatenate([np.zeros(len(root_KK)), pull * expected_K, [unit]])
    weights, _ = nnls(rows, target)
    return np.asarray(weights / weights.sum())


def _standard_error(value_R: Floats, group: Ints) -> float:
    _, dense = np.unique(group, return_inverse=True)
    away_G = np.bincount(dense, value_R - value_R.mean())
    n = effective_groups(group)
    return float(np.sqrt(np.square(away_G).sum() * n / max(n - 1, 1e-9)) / len(value_R))


@dataclass(frozen=True, slots=True)
class WeighedRegime:
    """What a predictor does in one regime, and how well that was in its folds."""

    measured: MeasuredRegime
    weights: dict[str, float]
    """By part, with sum 1; parts without weight are left out."""
    spread: float
    noise: float
    predicted: list[Floats]
    """Out-of-fold predictions of each fold, (P,), with the weights of the other folds."""
    sigma: list[Floats]
    score: RegimeScore


def weigh(
    pairs: LabelledPairs, measured: MeasuredRegime, folds: Sequence[FittedParts]
) -> WeighedRegime:
    """Weigh the parts by their errors on the tested pairs of a regime; calibrate sigma on them."""
    splits, regime = measured.splits, measured.regime
    names = [one for one in folds[0].models if all(one in fold.models for fold in folds)]
    rows_F = [split.rows(TEST) for split in splits]
    rows = np.concatenate(rows_F)
    of_fold = np.repeat(np.arange(len(rows_F)), [len(one) for one in rows_F])
    groups = [group[rows] for group in measured.groups]
    smallest = min(groups, key=effective_groups)
    half = of_fold
    if len(splits) == 1:  # the halves of its groups weigh each other
        half = grouped_folds(smallest, min(2, len(distinct(smallest))), 0)
    parts = [np.stack([fold.predicted[name] for name in names], axis=1) for fold in folds]
    part_RK = np.concatenate([one[own] for one, own in zip(parts, rows_F, strict=True)])
    variance = np.concatenate([fold.variance[one] for fold, one in zip(folds, rows_F, strict=True)])
    pkd, censored = pairs.pkd[rows], pairs.censored[rows]
    error_RK = pkd[:, None] - part_RK
    error_RK[censored[:, None] * error_RK < 0] = 0.0  # the bound is satisfied
    mean = names.index(MEAN)
    weights = stack_weights(error_RK, smallest, mean)
    own, sigma = np.empty(len(rows)), np.empty(len(rows))
    insides = [half == k for k in np.unique(half)]
    judges = [(one, ~one if len(insides) > 1 else one) for one in insides]
    for inside, others in judges:
        known = stack_weights(error_RK[others], smallest[others], mean)
        own[inside] = part_RK[inside] @ known
    error = pkd - own
    for inside, others in judges:
        found = fit_sigma(error[others], np.sqrt(variance[others]), censored[others])
        sigma[inside] = np.sqrt(found[0] ** 2 * variance[inside] + found[1] ** 2)
    spread, noise = fit_sigma(error, np.sqrt(variance), censored)
    predicted, sigmas = [], []
    for k, (fold, own_rows) in enumerate(zip(folds, rows_F, strict=True)):
        whole = parts[k] @ weights
        deviation = np.sqrt(spread**2 * fold.variance + noise**2)
        whole[own_rows], deviation[own_rows] = own[of_fold == k], sigma[of_fold == k]
        predicted.append(whole)
        sigmas.append(deviation)
    exact = censored == 0
    tested = TestedPairs.of(pairs, measured)
    baselines = {
        name: tested.take([fold.predicted[name] for fold in folds])
        for name in folds[0].predicted
        if name != MEAN  # which is compared on its own
        and (len(names) > 2 or name not in names)  # a head of one model is not its own baseline
        and (name not in MODELS or MODELS[name].is_baseline)
        and all(name in fold.predicted for fold in folds)
    }
    score = score_regime(
        regime.name,
        regime.words,
        tested,
        own[exact],
        part_RK[exact, mean],
        baselines,
        (np.abs(error) <= COVERED * sigma)[exact].astype(np.float64),
    )
    used = {name: float(w) for name, w in zip(names, weights, strict=True) if w > 0}
    return WeighedRegime(measured, used, spread, noise, predicted, sigmas, score)
