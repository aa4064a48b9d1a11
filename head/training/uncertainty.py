"""Uncertainty of a prediction: sigma, from the spread of the heads and a residual noise.

sigma^2 = (spread x standard deviation of the heads)^2 + noise^2, in pKd. Both numbers are fitted by
likelihood to errors on training groups, each predicted only by the heads whose bootstrap sample
does not contain it: neither training nor early stopping of these heads has seen these pairs. Where
this is impossible (one head, no bootstrap, too few groups), the noise is the error on the
validation pairs, which early stopping has seen; sigma is then reported as not calibrated and is
somewhat too small.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy.special import ndtri, stdtrit

from abag.core.arrays import distinct
from abag.head.evaluation.correlations import spearman
from abag.head.evaluation.metrics import average_folds
from abag.head.splits.splits import TEST, TRAIN, VALIDATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from abag.head.evaluation.bootstrap import MeasuredPairs
    from abag.head.splits.splits import Split
    from abag.head.training.train import TrainedHeads

LEAST_GROUPS = 5
"""Out-of-bag groups needed for a calibration."""
LEVELS = (0.68, 0.90, 0.95)
"""Nominal coverages in reports."""
RATIOS = np.concatenate([[0.0], np.logspace(-4, 4, 161)])
"""Values of (spread / noise)^2 that are tried: steps of 6 % in spread / noise."""
RANKS_ERRORS = 0.1
"""Rank correlation of |error| with sigma below which sigma says nothing of single pairs."""
SMALLEST = 1e-6
"""Smallest noise, in pKd."""


class PredictedPairs(Protocol):
    """The head of one split and its predictions of all P pairs."""

    @property
    def predicted(self) -> NDArray[np.float64]:
        """Predicted pKd, (P,)."""

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of each prediction in pKd^2, (P,), which sigma scales."""


@dataclass(frozen=True, slots=True)
class Sigma:
    """How sigma follows from the variance of a prediction, and what it was fitted to."""

    spread: float
    """Factor of the standard deviation of the prediction."""
    noise: float
    """Residual noise in pKd."""
    calibrated: bool
    """Whether fitted to groups that neither training nor early stopping had seen."""
    rows: int
    """Number of exact pairs that it was fitted to, and of their groups."""
    groups: int

    def of(self, variance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the uncertainty in pKd, (P,), of predictions with a variance, (P,); float64."""
        return np.asarray(np.sqrt(self.spread**2 * variance + self.noise**2))


def calibrate(pairs: MeasuredPairs, split: Split, trained: TrainedHeads) -> Sigma:
    """Fit sigma to the heads of one split; censored pairs are left out."""
    predicted_MP = trained.predicted_MP
    heads = len(predicted_MP)
    unseen_MP = ~trained.in_bag_MP & (split.part == TRAIN) & (pairs.censored == 0)
    rows = np.flatnonzero(unseen_MP.sum(axis=0) >= 2)
    groups = len(distinct(split.group[rows]))
    if groups >= LEAST_GROUPS:
        mean, deviation = _moments(predicted_MP[:, rows], unseen_MP[:, rows])
        spread, noise = fit_sigma(pairs.pkd[rows] - mean, deviation)
        # The mean of fewer heads has a larger error, by a share of their variance.
        fewer = np.mean(1 / unseen_MP[:, rows].sum(axis=0)) - 1 / heads
        # `Sigma.of` uses the deviation from the mean of all heads, which is smaller.
        larger = heads / (heads - 1)
        spread = float(np.sqrt(max(0.0, spread**2 - fewer) * larger))
        wider = few_groups(groups)
        return Sigma(spread * wider, noise * wider, True, len(rows), groups)
    rows = np.flatnonzero((split.part == VALIDATION) & (pairs.censored == 0))
    error = pairs.pkd[rows] - trained.predicted[rows]
    # The shrinkage is fitted to these pairs, and fits a single one without error.
    noise = float(np.sqrt(np.mean(error**2)) if len(rows) > 1 else np.std(pairs.pkd))
    return Sigma(1.0, max(noise, SMALLEST), False, len(rows), len(distinct(split.group[rows])))


def calibrate_unseen(
    error: NDArray[np.float64],
    deviation: NDArray[np.float64],
    group: NDArray[np.int64],
    labels: NDArray[np.float64],
) -> Sigma:
    """Fit sigma to errors on pairs whose groups the models have not seen.

    Parameters
    ----------
    error, deviation : NDArray, shape=(R,), dtype=float64
        Measured minus predicted pKd, and the standard deviation of the prediction.
    group : NDArray, shape=(R,), dtype=int64
    labels : NDArray, dtype=float64
        Training labels; without errors, their standard deviation is the noise.
    """
    groups = len(distinct(group))
    if not groups:
        return Sigma(0.0, float(labels.std()), False, 0, 0)
    spread, noise = fit_sigma(error, deviation)
    wider = few_groups(groups) if groups >= LEAST_GROUPS else 1.0
    return Sigma(spread * wider, noise * wider, groups >= LEAST_GROUPS, len(error), groups)


def _moments(
    predicted_MR: NDArray[np.float64], counted_MR: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and sample standard deviation over the counted heads of each pair, (R,)."""
    n_R = counted_MR.sum(axis=0)
    mean_R = np.where(counted_MR, predicted_MR, 0).sum(axis=0) / n_R
    square_R = np.where(counted_MR, (predicted_MR - mean_R) ** 2, 0).sum(axis=0)
    return mean_R, np.sqrt(square_R / (n_R - 1))


def few_groups(groups: int) -> float:
    """Return the factor by which intervals fitted to few groups must be widened.

    Student's t relative to the normal distribution at 90 %: 1.22 for 8 groups, 1.05 for 30. Groups
    count, not rows, because errors within a group are similar.
    """
    level = 0.95  # each side of 90 %
    return float(stdtrit(groups - 1, level) / ndtri(level) * np.sqrt(1 + 1 / groups))


def fit_sigma(error: NDArray[np.float64], deviation: NDArray[np.float64]) -> tuple[float, float]:
    """Fit spread and noise by the likelihood of normally distributed errors.

    The spread is 0 if the deviation is uninformative; the noise is above 0.

    Parameters
    ----------
    error, deviation : NDArray, shape=(R,)
        Measured minus predicted, and the standard deviation of the heads, in pKd.
    """
    # sigma^2 = noise^2 (1 + ratio x deviation^2): the best noise for a given ratio is a mean.
    factor_KR = 1 + RATIOS[:, None] * deviation**2
    noise2_K = np.maximum(np.mean(error**2 / factor_KR, axis=1), SMALLEST**2)
    best = int(np.argmin(np.log(noise2_K) + np.mean(np.log(factor_KR), axis=1)))
    noise = np.sqrt(noise2_K[best])
    return float(noise * np.sqrt(RATIOS[best])), float(noise)


def coverage(error: NDArray[np.float64], sigma: NDArray[np.float64]) -> dict[str, float | None]:
    """Return the fraction of errors, (R,), inside the central intervals of a normal distribution.

    The keys are the nominal levels ``"68"``, ``"90"``, ``"95"``; the values are None without rows.
    """
    z = np.abs(error) / sigma
    return {
        f"{level * 100:.0f}": float(np.mean(z <= ndtri((1 + level) / 2))) if len(z) else None
        for level in LEVELS
    }


def combine(sigmas: Sequence[Sigma]) -> Sigma:
    """Average the sigmas of several folds, for the predictor with all their heads."""
    return Sigma(
        spread=float(np.mean([s.spread for s in sigmas])),
        noise=float(np.sqrt(np.mean([s.noise**2 for s in sigmas]))),
        calibrated=all(s.calibrated for s in sigmas),
        rows=sum(s.rows for s in sigmas),
        groups=sum(s.groups for s in sigmas),
    )


def summarise(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    heads: Sequence[PredictedPairs],
    sigmas: Sequence[Sigma],
) -> dict[str, Any]:
    """Summarize sigma and its coverage on the test part of each fold.

    The keys are the fields of `Sigma` over all folds, ``coverage`` by nominal level, its
    ``coverage_folds``, and ``error_spearman``: the rank correlation of |error| with sigma; means
    over folds.
    """
    covered, follows = [], []
    for split, one, sigma in zip(splits, heads, sigmas, strict=True):
        rows = np.flatnonzero((split.part == TEST) & (pairs.censored == 0))
        error = pairs.pkd[rows] - one.predicted[rows]
        width = sigma.of(one.variance[rows])
        covered.append(coverage(error, width))
        follows.append({"error_spearman": spearman(np.abs(error), width)})
    whole = combine(sigmas)
    return {
        "calibrated": whole.calibrated,  # first in the report
        **asdict(whole),
        "coverage": {k: v["mean"] for k, v in average_folds(covered).items()},
        "coverage_folds": {level: [fold[level] for fold in covered] for level in covered[0]},
        "error_spearman": average_folds(follows)["error_spearman"]["mean"],
    }


def describe_sigma(summary: Mapping[str, Any]) -> str:
    """Describe in one line how sigma was fitted and what it covers."""
    noise = f"sigma: residual noise {summary['noise']:.2f}"
    found = ", ".join(
        f"{share:.0%}{_worst_fold(summary['coverage_folds'][level])} within its {level} % interval"
        for level, share in summary["coverage"].items()
        if share is not None
    )
    found += describe_ranking(summary["error_spearman"]) if found else ""
    if summary["calibrated"]:
        noise += (
            f" + {summary['spread']:.2f} x the standard deviation of the prediction, calibrated "
            f"on {summary['rows']} pairs of {summary['groups']} groups that it had not seen"
        )
    else:
        noise += (
            ", not calibrated (early stopping saw the validation pairs it was fitted to): too "
            "small for new groups; use --members 8 or more to calibrate it"
        )
    return f"{noise}; test pairs: {found}" if found else noise


def _worst_fold(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f" (worst fold {min(known):.0%})" if len(known) > 1 else ""


def describe_ranking(error_spearman: float | None) -> str:
    """Say whether a larger sigma means a larger error."""
    if error_spearman is None:
        return "; sigma is a level, equal for all pairs: it does not tell good predictions from bad"
    text = f"; rank correlation of |error| with sigma {error_spearman:.2f}"
    level = ": sigma is a level, and does not tell good predictions from bad"
    return text + (level if error_spearman < RANKS_ERRORS else "")
