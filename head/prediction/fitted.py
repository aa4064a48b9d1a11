"""The head of one split: the models that make up its prediction, and its uncertainty.

A stack weighs its models by their errors on pairs that they had not seen: training pairs in inner
folds that its networks left out or, for large tables, the validation pairs. The weights with the
least error on few groups fit these groups. So they are pulled toward expected weights, as strongly
as if `PRIOR_GROUPS` groups had been measured in favour of these.

P pairs, R pairs of which unseen predictions are known, K models.

References
----------
Breiman: Stacked regressions, Machine Learning 24, 1996.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats, Ints
from abag.core.messages import detail
from abag.head.closed_form.pair_model import (
    ClosedFormFit,
    ConstantModel,
    ConstantSettings,
    DoesNotApply,
    TrainingRows,
)
from abag.head.closed_form.registry import BASELINES, CLOSED_FORM, describe_left_out, stacked_models
from abag.head.evaluation.baselines import inner_folds
from abag.head.prediction.network import NetworkModel, NetworkSettings
from abag.head.prediction.predictor import Member
from abag.head.splits.splits import VALIDATION
from abag.head.training.uncertainty import calibrate, calibrate_unseen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.head.data.labels import LabelledPairs
    from abag.head.model.config import FitConfig
    from abag.head.splits.splits import Split
    from abag.head.training.train import TrainedHeads
    from abag.head.training.uncertainty import Sigma

SUM_WEIGHT = 1e4
"""Weight of the condition that the weights add up to 1, relative to the errors."""
PRIOR_GROUPS = 10.0
NETWORK, MEAN = "network", "mean"
LEAST_WEIGHT = 0.5
UNEXPECTED = ("ridge",)
"""Models that get a weight only for their errors. The others are expected to have equal weights."""


def stack_weights(error_RK: Floats, group: Ints, expected_K: Floats) -> Floats:
    """Return weights of K models, (K,), not negative and with sum 1.

    They minimise the mean squared error plus `PRIOR_GROUPS` / groups times the mean squared error
    of the best model times the squared distance from the expected weights. So the pull is as strong
    as the noise that even the best model leaves, and a bad model does not add to it.

    Parameters
    ----------
    error_RK : NDArray, shape=(R, K), dtype=float64
        Errors of each model for pairs that it has not seen.
    group : NDArray, shape=(R,), dtype=int64
        Pairs of one group have similar errors.
    expected_K : NDArray, shape=(K,), dtype=float64
        Weights before any error is known, with sum 1.
    """
    from scipy.optimize import nnls  # here: most heads need none of scipy.optimize

    models = error_RK.shape[1]
    if not error_RK.any():
        return expected_K
    # The normal equations' root has K rows, whatever R.
    root_KK = np.linalg.qr(error_RK, mode="r") / np.sqrt(len(error_RK))
    pull = np.sqrt(PRIOR_GROUPS / equal_groups(group) * np.square(root_KK).sum(axis=0).min())
    unit = SUM_WEIGHT * max(pull, float(np.abs(root_KK).max()))
    rows = np.vstack([root_KK, pull * np.eye(models), np.full((1, models), unit)])
    target = np.concatenate([np.zeros(len(root_KK)), pull * expected_K, [unit]])
    weights, _ = nnls(rows, target)
    return np.asarray(weights / weights.sum())


def equal_groups(group: Ints) -> float:
    """Return how many groups of equal size have means as uncertain as that of these."""
    _, sizes = np.unique(group, return_counts=True)
    return float(sizes.sum() ** 2 / np.square(sizes).sum())


def cross_stacked_error(error_RK: Floats, fold: Ints, group: Ints, expected_K: Floats) -> Floats:
    """Return the errors of a stack, (R,), whose weights come from the other folds of the pairs."""
    error_R = np.empty(len(error_RK))
    for k in np.unique(fold):
        others = fold != k
        weights = stack_weights(error_RK[others], group[others], expected_K)
        error_R[~others] = error_RK[~others] @ weights
    return error_R


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedHead:
    """The head of one split."""

    members: tuple[Member, ...]
    """Their weights add up to 1; those with weight 0 give their variance only."""
    predicted: Floats
    """pKd of every pair, (P,)."""
    variance: Floats
    """Variance of each prediction in pKd^2, (P,), which sigma scales."""
    sigma: Sigma
    shares: Mapping[str, float]
    """Weight of each kind of model."""
    trained: TrainedHeads | None
    """Training of the networks, if there are any."""
    seconds: float
    """Wall time of training and fitting."""


@dataclass(frozen=True, slots=True)
class ClosedForms:
    """The models in closed form of a split, and their predictions of all pairs."""

    fits: Mapping[str, ClosedFormFit]
    predicted: dict[str, Floats]
    """pKd, (P,) each; in the end also those of the networks and of the training mean."""
    variance: dict[str, Floats]
    """Of the models that have one, (P,) each in pKd^2."""
    seconds: float


def fit_closed_forms(training: TrainingRows, config: FitConfig, name: str) -> ClosedForms:
    """Fit the models in closed form that the head of a split needs, and predict all pairs.

    Parameters
    ----------
    name : str
        Name of this fit in messages.
    """
    chosen, start = config.filled().head, time.monotonic()
    names: Sequence[str] = () if chosen == config.network else (chosen,)
    if config.stacks:
        names = stacked_models(len(training.rows)) + (list(BASELINES) if chosen == "auto" else [])
        if left_out := describe_left_out(len(training.rows)):
            detail(f"{name}: {left_out}")
    fits: dict[str, ClosedFormFit] = {}
    for one in names:
        try:
            fits[one] = CLOSED_FORM[one](training)
        except DoesNotApply as error:
            if not config.stacks:
                raise
            detail(f"{name}: left out of {chosen}: {error}")
            continue
        detail(f"{name}: {one}: {fits[one].description}")
    training.shared.clear()
    predicted = {one: fit.model.predict(training.vectors) for one, fit in fits.items()}
    variance = {one: fit.model.variance(training.vectors) for one, fit in fits.items()}
    known = {one: found for one, found in variance.items() if found is not None}
    return ClosedForms(fits, predicted, known, time.monotonic() - start)


def fit_head(
    pairs: LabelledPairs,
    training: TrainingRows,
    split: Split,
    config: FitConfig,
    closed: ClosedForms,
    trained: TrainedHeads | None,
    name: str,
) -> FittedHead:
    """Put together the head of a split from its models.

    Parameters
    ----------
    pairs : LabelledPairs
        With the bounds that `training` has replaced.
    name : str
        Name of this fit in messages.
    """
    chosen, start = config.filled().head, time.monotonic()
    if chosen == config.network:
        assert trained is not None
        return FittedHead(
            members=network_members(config, trained),
            predicted=trained.predicted,
            variance=trained.variance,
            sigma=calibrate(pairs, split, trained),
            shares={chosen: 1.0},
            trained=trained,
            seconds=trained.progress.seconds,
        )
    predicted = dict(closed.predicted)
    if trained is not None:
        predicted[NETWORK] = trained.predicted
    if config.stacks:
        predicted[MEAN] = np.full(len(training.pairs), training.pkd.mean())
    models = replace(closed, predicted=predicted)
    unseen = _predict_unseen(pairs, training, split, models, trained)
    shares = dict.fromkeys(unseen.error, 1.0)
    if config.stacks:
        shares = (_choose_best if chosen == "auto" else _stack)(unseen.one_sided())
        used = ", ".join(f"{one} {share:.2f}" for one, share in shares.items() if share)
        rows = f"{unseen.complete.sum():,} {unseen.source}"
        detail(f"{name}: {chosen}: {used}, by the errors on {rows}")
    fitted = _combine(training, config, models, trained, unseen, shares)
    seconds = fitted.seconds + closed.seconds + time.monotonic() - start
    return replace(fitted, seconds=seconds)


def network_members(config: FitConfig, trained: TrainedHeads) -> tuple[Member, ...]:
    """Return the networks of one split, with equal weights."""
    filled, scaling = config.filled(), trained.scaling
    settings = NetworkSettings(
        str(config.network), filled.widths, config.rank, scaling.pkd_mean, scaling.pkd_scale
    )
    return tuple(
        Member(
            NetworkModel.of(settings, weights, scaling.antibody, scaling.antigen),
            1 / len(trained.weights),
        )
        for weights in trained.weights
    )


@dataclass(frozen=True, slots=True)
class _Unseen:
    """Errors of each model on R pairs that it has not seen."""

    source: str
    error: Mapping[str, Floats]
    """Label or bound minus predicted pKd by model, (R,); NaN where all networks saw the pair."""
    variance: Floats
    """Mean of the models that have one, (R,) in pKd^2; 0 if none has."""
    rows: Ints
    """Index of each pair, (R,)."""
    fold: NDArray[np.int64]
    """Inner fold of each pair, (R,)."""
    group: Ints
    """Group of the split of each pair, (R,)."""
    censored: NDArray[np.int8]
    """As in `LabelledPairs`, (R,)."""

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Which pairs no model has seen, (R,)."""
        return np.asarray(np.isfinite(self.table()).all(axis=1))

    @property
    def expected(self) -> Floats:
        """The weights of a stack before any error is known, (K,)."""
        expected = np.array([float(name not in UNEXPECTED) for name in self.error])
        return np.asarray(expected / expected.sum())

    def without(self, names: Collection[str]) -> _Unseen:
        """Leave out some models."""
        kept = {name: error for name, error in self.error.items() if name not in names}
        return replace(self, error=kept)

    def table(self) -> Floats:
        """Return the errors as columns, (R, K)."""
        return np.stack(list(self.error.values()), axis=1)

    def one_sided(self) -> _Unseen:
        """Set the errors of predictions that satisfy their bound to 0."""
        error = {
            name: np.where(self.censored * one < 0, 0.0, one) for name, one in self.error.items()
        }
        return replace(self, error=error)

    def calibrate(self, shares: Mapping[str, float], labels: Floats) -> Sigma:
        """Fit sigma to the errors of the weighted models.

        Where a network has seen a pair, the other models stand for the stack if they have at least
        half of the weight: more groups give a better sigma.
        """
        weight = np.array([shares[name] for name in self.error])
        known = np.isfinite(self.table())
        weight_R = known @ weight
        used = weight_R >= LEAST_WEIGHT
        error = (np.where(known, self.table(), 0) @ weight)[used] / weight_R[used]
        return calibrate_unseen(
            error,
            np.sqrt(self.variance[used]),
            self.rows[used],
            self.group[used],
            labels,
            self.censored[used],
        )


def _predict_unseen(
    pairs: LabelledPairs,
    training: TrainingRows,
    split: Split,
    models: ClosedForms,
    trained: TrainedHeads | None,
) -> _Unseen:
    """Predict the training pairs from the other inner folds, or else the validation pairs."""
    rows, fold = training.rows, training.fold
    fits = models.fits
    columns = {name: fit.inner for name, fit in fits.items()}
    variances = [fit.inner_variance for fit in fits.values() if fit.inner_variance is not None]
    if trained is not None:
        columns[NETWORK] = _out_of_bag(trained, rows)
    if MEAN in models.predicted:
        columns[MEAN] = _mean_of_other_folds(training)
    where = "training pairs, each predicted from other groups"
    if not np.isfinite(list(columns.values())).all(axis=0).any():
        rows = split.rows(VALIDATION)
        fold = inner_folds(split.group[rows]) if len(rows) else rows
        columns = {name: predicted[rows] for name, predicted in models.predicted.items()}
        variances = [variance[rows] for variance in models.variance.values()]
        where = "validation pairs"
    return _Unseen(
        where,
        {name: pairs.pkd[rows] - column for name, column in columns.items()},
        np.mean(variances or [np.zeros(len(rows))], axis=0),
        rows,
        fold,
        split.group[rows],
        pairs.censored[rows],
    )


def _out_of_bag(trained: TrainedHeads, rows: Ints) -> Floats:
    """Average the networks that were not trained on each pair, (R,); NaN if there are none."""
    unseen_MR = ~trained.in_bag_MP[:, rows]
    total = np.where(unseen_MR, trained.predicted_MP[:, rows], 0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / unseen_MR.sum(axis=0))


def _mean_of_other_folds(training: TrainingRows) -> Floats:
    """Return the mean label outside the inner fold of each training pair, (F,)."""
    total, count = np.bincount(training.fold, training.pkd), np.bincount(training.fold)
    return np.asarray(((total.sum() - total) / (count.sum() - count))[training.fold])


def _stack(unseen: _Unseen) -> dict[str, float]:
    """Weigh all models."""
    rows = unseen.complete
    weights = stack_weights(unseen.table()[rows], unseen.group[rows], unseen.expected)
    return dict(zip(unseen.error, weights.tolist(), strict=True))


def _choose_best(unseen: _Unseen) -> dict[str, float]:
    """Use the model or the stack with the smallest error on pairs that it has not seen."""
    rows = unseen.complete
    parts = unseen.without(BASELINES)
    fold, group = unseen.fold[rows], unseen.group[rows]
    found = {name: error[rows] for name, error in unseen.error.items()}
    found["stack"] = cross_stacked_error(parts.table()[rows], fold, group, parts.expected)
    rmse = {name: float(np.sqrt(np.square(error).mean())) for name, error in found.items()}
    detail("auto: RMSE on pairs not seen: " + ", ".join(f"{n} {e:.3f}" for n, e in rmse.items()))
    best = min(rmse, key=rmse.__getitem__)
    chosen = _stack(parts) if best == "stack" else {best: 1.0}
    return {name: chosen.get(name, 0.0) for name in unseen.error}


def _combine(
    training: TrainingRows,
    config: FitConfig,
    models: ClosedForms,
    trained: TrainedHeads | None,
    unseen: _Unseen,
    shares: Mapping[str, float],
) -> FittedHead:
    """Put the models together; those with a variance are kept even without a share."""
    members = [
        Member(fit.model, shares[name])
        for name, fit in models.fits.items()
        if name in models.variance or shares[name]
    ]
    if trained is not None and (share := shares[NETWORK]):
        members += [Member(m.model, m.weight * share) for m in network_members(config, trained)]
    if share := shares.get(MEAN, 0.0):
        members.append(Member(ConstantModel(ConstantSettings(float(training.pkd.mean()))), share))
    of_pair = np.zeros(len(training.pairs))
    return FittedHead(
        members=tuple(members),
        predicted=sum((shares[name] * one for name, one in models.predicted.items()), of_pair),
        variance=np.mean(list(models.variance.values()) or [of_pair], axis=0),
        sigma=unseen.calibrate(shares, training.pkd),
        shares=shares,
        trained=trained,
        seconds=0.0 if trained is None else trained.progress.seconds,
    )
