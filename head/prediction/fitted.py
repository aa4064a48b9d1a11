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
from abag.head.models.pair_model import PairModel, TrainingRows, fit_sigma
from abag.head.models.parts import PartsDiffer
from abag.head.models.registry import MEAN, MODELS, NETWORK
from abag.head.prediction.mixture import Mixture, variance_of
from abag.head.regimes.folds import effective_groups
from abag.head.regimes.splits import TEST, grouped_folds

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs
    from abag.head.models.pair_model import Fit
    from abag.head.models.parts import RunParts
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


def fit_closed_forms(
    training: TrainingRows, parts: RunParts, *, compared: bool = True
) -> FittedParts:
    """Fit the parts in closed form that a run has, and if `compared` its baselines."""
    start_s = time.monotonic()
    fitted: dict[str, PairModel] = {}
    for name in (*parts.models, *(parts.compared if compared else ())):
        fit = cast("Fit", MODELS[name].fit)
        fitted[name] = fit(training)
    training.shared.clear()
    predicted = {name: model.predict(training.vectors) for name, model in fitted.items()}
    models: dict[str, tuple[PairModel, ...]] = {name: (fitted[name],) for name in parts.models}
    variance = variance_of(models.values(), training.vectors)
    return FittedParts(models, predicted, variance, seconds=time.monotonic() - start_s)


def add_networks(parts: FittedParts, trained: TrainedHeads) -> None:
    """Add the trained networks of the same split."""
    parts.models[NETWORK] = trained.models
    parts.predicted[NETWORK] = trained.predicted_MP.mean(axis=0)
    if not any(MODELS[name].has_posterior for name in parts.models):
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
    if gain_R.mean() <= standard_error(gain_R, group):
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


def standard_error(value_R: Floats, group: Ints) -> float:
    """Return the standard error of the mean of R values, of which those of a group are one."""
    _, dense = np.unique(group, return_inverse=True)
    away_G = np.bincount(dense, value_R - value_R.mean())
    n = effective_groups(group)
    return float(np.sqrt(np.square(away_G).sum() * n / max(n - 1, 1e-9)) / len(value_R))


@dataclass(frozen=True, slots=True)
class WeighedRegime:
    """What a predictor does in one regime, and how well that was in its folds."""

    measured: MeasuredRegime
    mixture: Mixture
    """Weights of the parts, those without weight left out, and the calibration of sigma."""
    predicted: list[Floats]
    """Out-of-fold predictions of each fold, (P,), with the weights of the other folds."""
    sigma: list[Floats]
    score: RegimeScore


def weigh(
    pairs: LabelledPairs, measured: MeasuredRegime, folds: Sequence[FittedParts]
) -> WeighedRegime:
    """Weigh the parts by their errors on the tested pairs of a regime; calibrate sigma on them."""
    splits, regime = measured.splits, measured.regime
    names = list(folds[0].models)
    if any(fold.models.keys() != folds[0].models.keys() for fold in folds):
        msg = f"{regime.name}: the folds have different parts; expected those of the run"
        raise PartsDiffer(msg)
    rows_F = [split.rows(TEST) for split in splits]
    rows = np.concatenate(rows_F)
    of_fold = np.repeat(np.arange(len(rows_F)), [len(fold_rows) for fold_rows in rows_F])
    groups = [group[rows] for group in measured.groups]
    smallest = min(groups, key=effective_groups)
    half = of_fold
    if len(splits) == 1:  # the halves of its groups weigh each other
        half = grouped_folds(smallest, min(2, len(distinct(smallest))), 0)
    tested_folds = list(zip(folds, rows_F, strict=True))
    part_RK = np.concatenate(
        [
            np.stack([fold.predicted[name][fold_rows] for name in names], axis=1)
            for fold, fold_rows in tested_folds
        ]
    )
    variance = np.concatenate([fold.variance[fold_rows] for fold, fold_rows in tested_folds])
    pkd = pairs.pkd[rows]
    censored = pairs.censored[rows]
    error_RK = pkd[:, None] - part_RK
    error_RK[censored[:, None] * error_RK < 0] = 0.0  # the bound is satisfied
    mean = names.index(MEAN)
    weights = stack_weights(error_RK, smallest, mean)
    predicted_R = np.empty(len(rows))
    sigma_R = np.empty(len(rows))
    insides = [half == k for k in np.unique(half)]
    judges = [(inside, ~inside if len(insides) > 1 else inside) for inside in insides]
    for inside, others in judges:
        of_others = stack_weights(error_RK[others], smallest[others], mean)
        predicted_R[inside] = part_RK[inside] @ of_others
    error = pkd - predicted_R
    for inside, others in judges:
        calibrated = fit_sigma(error[others], np.sqrt(variance[others]), censored[others])
        sigma_R[inside] = Mixture({}, *calibrated).sigma(variance[inside])
    spread, noise = fit_sigma(error, np.sqrt(variance), censored)
    used = {name: float(w) for name, w in zip(names, weights, strict=True) if w > 0}
    mixture = Mixture(used, spread, noise)
    predicted, sigmas = [], []
    for k, (fold, fold_rows) in enumerate(tested_folds):
        whole = mixture.pkd(fold.predicted)
        whole[fold_rows] = predicted_R[of_fold == k]
        predicted.append(whole)
        deviation = mixture.sigma(fold.variance)
        deviation[fold_rows] = sigma_R[of_fold == k]
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
        predicted_R[exact],
        part_RK[exact, mean],
        baselines,
        (np.abs(error) <= COVERED * sigma_R)[exact].astype(np.float64),
    )
    return WeighedRegime(measured, mixture, predicted, sigmas, score)
