"""The head of one split: the models that make up its prediction, and its uncertainty.

A stack weighs its models by their errors on pairs that they had not seen: training pairs predicted
from the other inner folds or, for large tables, the validation pairs.

P pairs, R pairs of which unseen predictions are known, K models.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.messages import detail
from abag.head.closed_form.pair_model import (
    ClosedFormFit,
    ConstantModel,
    ConstantSettings,
    Floats,
    Ints,
    TrainingRows,
)
from abag.head.closed_form.registry import CLOSED_FORM
from abag.head.closed_form.stacking import cross_stacked_error, stack_weights
from abag.head.evaluation.baselines import inner_folds
from abag.head.prediction.network import NetworkModel, NetworkSettings
from abag.head.prediction.predictor import Member
from abag.head.splits.splits import VALIDATION
from abag.head.training.uncertainty import calibrate, calibrate_unseen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.head.model.config import FitConfig
    from abag.head.splits.splits import Split
    from abag.head.training.train import TrainedHeads
    from abag.head.training.uncertainty import Sigma

STACKED = ("gp", "kernel", "ridge")
"""Closed-form models of a stack, beside the network and the mean."""
NETWORK, MEAN = "network", "mean"
UNEXPECTED = ("ridge",)
"""Models that get a weight only for their errors. The others are expected to have equal weights."""


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


def fit_head(
    training: TrainingRows, split: Split, config: FitConfig, trained: TrainedHeads | None, name: str
) -> FittedHead:
    """Fit what the head of a split consists of, beside the networks that are trained already.

    Parameters
    ----------
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
            sigma=calibrate(training.pairs, split, trained),
            shares={chosen: 1.0},
            trained=trained,
            seconds=trained.progress.seconds,
        )
    names = STACKED if config.stacks else (chosen,)
    fits = {one: CLOSED_FORM[one](training) for one in names}
    for one, fit in fits.items():
        detail(f"{name}: {one}: {fit.description}")
    unseen = _predict_unseen(training, split, fits, trained, config.stacks)
    shares = dict.fromkeys(unseen.error, 1.0)
    if config.stacks:
        shares = (_choose_best if chosen == "auto" else _stack)(unseen)
        used = ", ".join(f"{one} {share:.2f}" for one, share in shares.items() if share)
        detail(f"{name}: {chosen}: {used}, by the errors on {unseen.source}")
    fitted = _combine(training, config, fits, trained, unseen, shares)
    return replace(fitted, seconds=fitted.seconds + time.monotonic() - start)


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
    """Measured minus predicted pKd by model, (R,) each."""
    variance: Floats
    """Mean of the models that have one, (R,) in pKd^2; 0 if none has."""
    fold: NDArray[np.int64]
    """Inner fold of each pair, (R,)."""
    group: Ints
    """Group of the split of each pair, (R,)."""

    def table(self) -> tuple[Floats, Floats]:
        """Return the errors as columns, (R, K), and the expected weights of a stack, (K,)."""
        expected = np.array([float(name not in UNEXPECTED) for name in self.error])
        return np.stack(list(self.error.values()), axis=1), expected / expected.sum()


def _predict_unseen(
    training: TrainingRows,
    split: Split,
    fits: Mapping[str, ClosedFormFit],
    trained: TrainedHeads | None,
    with_mean: bool,
) -> _Unseen:
    """Predict the training pairs from the other inner folds, or else the validation pairs."""
    pairs, rows, fold = training.pairs, training.rows, training.fold
    columns = {name: fit.inner for name, fit in fits.items()}
    if trained is not None:
        columns |= {NETWORK: _out_of_bag(trained, rows)}
    inner = all(np.isfinite(column).all() for column in columns.values())
    if inner:
        mean = _mean_of_other_folds(training)
        variances = [f.inner_variance for f in fits.values() if f.inner_variance is not None]
    else:
        rows = split.rows(VALIDATION)
        rows = rows[pairs.censored[rows] == 0]
        fold = inner_folds(split.group[rows]) if len(rows) else rows
        vectors = training.vectors._replace(
            antibody=pairs.antibody[rows], antigen=pairs.antigen[rows]
        )
        columns = {name: fit.model.predict(vectors) for name, fit in fits.items()}
        if trained is not None:
            columns |= {NETWORK: trained.predicted[rows]}
        mean = np.full(len(rows), training.pkd.mean())
        found = (fit.model.variance(vectors) for fit in fits.values())
        variances = [variance for variance in found if variance is not None]
    if with_mean:
        columns |= {MEAN: mean}
    where = "training pairs, each predicted from other groups" if inner else "validation pairs"
    return _Unseen(
        f"{len(rows):,} {where}",
        {name: pairs.pkd[rows] - column for name, column in columns.items()},
        np.mean(variances or [np.zeros(len(rows))], axis=0),
        fold,
        split.group[rows],
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
    errors, expected = unseen.table()
    weights = stack_weights(errors, unseen.group, expected)
    return dict(zip(unseen.error, weights.tolist(), strict=True))


def _choose_best(unseen: _Unseen) -> dict[str, float]:
    """Use the model or the stack with the smallest error on pairs that it has not seen."""
    errors, expected = unseen.table()
    stacked = cross_stacked_error(errors, unseen.fold, unseen.group, expected)
    found = {**unseen.error, "stack": stacked}
    rmse = {name: float(np.sqrt(np.square(error).mean())) for name, error in found.items()}
    detail("auto: RMSE on pairs not seen: " + ", ".join(f"{n} {e:.3f}" for n, e in rmse.items()))
    best = min(rmse, key=rmse.__getitem__)
    if best == "stack":
        return _stack(unseen)
    return {name: float(name == best) for name in unseen.error}


def _combine(
    training: TrainingRows,
    config: FitConfig,
    fits: Mapping[str, ClosedFormFit],
    trained: TrainedHeads | None,
    unseen: _Unseen,
    shares: Mapping[str, float],
) -> FittedHead:
    """Put the models together; those with a variance are kept even without a share."""
    members: list[Member] = []
    predicted = np.zeros(len(training.pairs))
    variances: list[Floats] = []
    for name, fit in fits.items():
        own = fit.model.variance(training.vectors)
        if own is not None:
            variances.append(own)
        if own is not None or shares[name]:
            members.append(Member(fit.model, shares[name]))
            predicted += shares[name] * fit.model.predict(training.vectors)
    if trained is not None and (share := shares[NETWORK]):
        members += [Member(m.model, m.weight * share) for m in network_members(config, trained)]
        predicted += share * trained.predicted
    if share := shares.get(MEAN, 0.0):
        mean = ConstantModel(ConstantSettings(float(training.pkd.mean())))
        members.append(Member(mean, share))
        predicted += share * mean.settings.pkd_mean
    error = sum((shares[name] * error for name, error in unseen.error.items()), np.zeros(1))
    sigma = calibrate_unseen(error, np.sqrt(unseen.variance), unseen.group, training.pkd)
    return FittedHead(
        members=tuple(members),
        predicted=predicted,
        variance=np.mean(variances or [np.zeros(len(predicted))], axis=0),
        sigma=sigma,
        shares=shares,
        trained=trained,
        seconds=0.0 if trained is None else trained.progress.seconds,
    )
