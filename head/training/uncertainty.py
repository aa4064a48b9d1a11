"""Uncertainty of a prediction: sigma, from the spread of the heads and a residual noise.

sigma^2 = (spread x standard deviation of the heads)^2 + noise^2, in pKd. Both numbers are fitted by
likelihood to errors on training groups, each predicted only by the heads whose bootstrap sample
does not contain it: neither training nor early stopping of these heads has seen these pairs. Where
this is impossible (one head, no bootstrap, too few groups), the noise is the error on the
validation pairs, which early stopping has seen; sigma is then reported as not calibrated and is
somewhat too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri, stdtrit

from abag.core.arrays import distinct
from abag.head.closed_form.pair_model import expected_labels
from abag.head.evaluation.metrics import average_folds
from abag.head.evaluation.ranking import spearman
from abag.head.splits.splits import TEST, TRAIN, VALIDATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from abag.head.evaluation.comparison import MeasuredPairs
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
CENSORED_ROUNDS = 20
"""Rounds of expectation maximisation if there are censored pairs."""
SMALLEST = 1e-6
"""Smallest noise, in pKd."""


@dataclass(frozen=True, slots=True)
class Sigma:
    """How sigma follows from the variance of a prediction, and what it was fitted to."""

    spread: float
    """Factor of the standard deviation of the prediction."""
    noise: float
    """Residual noise in pKd."""
    calibrated: bool
    """Whether fitted to groups that neither training nor early stopping had seen."""
    rows: NDArray[np.int64]
    """Pairs that it was fitted to, (R,); several folds may have predicted the same one."""
    groups: NDArray[np.int64]
    """Their groups, (R,)."""

    def of(self, variance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the uncertainty in pKd, (P,), of predictions with a variance, (P,); float64."""
        return np.asarray(np.sqrt(self.spread**2 * variance + self.noise**2))


def calibrate(pairs: MeasuredPairs, split: Split, trained: TrainedHeads) -> Sigma:
    """Fit sigma to the heads of one split."""
    predicted_MP = trained.predicted_MP
    heads = len(predicted_MP)
    unseen_MP = ~trained.in_bag_MP & (split.part == TRAIN)
    rows = np.flatnonzero(unseen_MP.sum(axis=0) >= 2)
    groups = len(distinct(split.group[rows]))
    if groups >= LEAST_GROUPS:
        mean, deviation = _moments(predicted_MP[:, rows], unseen_MP[:, rows])
        spread, noise = fit_sigma(pairs.pkd[rows] - mean, deviation, pairs.censored[rows])
        # The mean of fewer heads has a larger error, by a share of their variance.
        fewer = np.mean(1 / unseen_MP[:, rows].sum(axis=0)) - 1 / heads
        # `Sigma.of` uses the deviation from the mean of all heads, which is smaller.
        larger = heads / (heads - 1)
        spread = float(np.sqrt(max(0.0, spread**2 - fewer) * larger))
        wider = few_groups(groups)
        return Sigma(spread * wider, noise * wider, True, rows, split.group[rows])
    rows = np.flatnonzero((split.part == VALIDATION) & (pairs.censored == 0))
    error = pairs.pkd[rows] - trained.predicted[rows]
    # The shrinkage is fitted to these pairs, and fits a single one without error.
    noise = float(np.sqrt(np.mean(error**2)) if len(rows) > 1 else np.std(pairs.pkd))
    return Sigma(1.0, max(noise, SMALLEST), False, rows, split.group[rows])


def calibrate_unseen(
    error: NDArray[np.float64],
    deviation: NDArray[np.float64],
    rows: NDArray[np.int64],
    group: NDArray[np.int64],
    labels: NDArray[np.float64],
    censored: NDArray[np.int8] | None = None,
) -> Sigma:
    """Fit sigma to errors on pairs whose groups the models have not seen.

    Parameters
    ----------
    error, deviation : NDArray, shape=(R,), dtype=float64
        Measured minus predicted pKd, and the standard deviation of the prediction.
    rows, group : NDArray, shape=(R,), dtype=int64
        Index of each pair, and its group.
    labels : NDArray, dtype=float64
        Training labels; without errors, their standard deviation is the noise.
    censored : NDArray, shape=(R,), dtype=int8, optional
        See `fit_sigma`.
    """
    groups = len(distinct(group))
    if not groups:
        return Sigma(0.0, float(labels.std()), False, rows, group)
    spread, noise = fit_sigma(error, deviation, censored)
    wider = few_groups(groups) if groups >= LEAST_GROUPS else 1.0
    return Sigma(spread * wider, noise * wider, groups >= LEAST_GROUPS, rows, group)


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


def fit_sigma(
    error: NDArray[np.float64],
    deviation: NDArray[np.float64],
    censored: NDArray[np.int8] | None = None,
) -> tuple[float, float]:
    """Fit spread and noise by the likelihood of normally distributed errors.

    The spread is 0 if the deviation is uninformative; the noise is above 0.

    Parameters
    ----------
    error, deviation : NDArray, shape=(R,)
        Label or bound minus predicted, and the standard deviation of the heads, in pKd.
    censored : NDArray, shape=(R,), dtype=int8, optional
        -1: the error is below the bound minus predicted; +1: above; 0 or None: exact.
    """
    square = error**2
    spread, noise = _fit_squares(square, deviation)
    if censored is None or not censored.any():
        return spread, noise
    for _ in range(CENSORED_ROUNDS):
        sigma = np.sqrt(spread**2 * deviation**2 + noise**2)
        mean, variance = expected_labels(error, censored, np.zeros_like(error), sigma)
        spread, noise = _fit_squares(mean**2 + variance, deviation)
    return spread, noise


def _fit_squares(
    square: NDArray[np.float64], deviation: NDArray[np.float64]
) -> tuple[float, float]:
    """Fit spread and noise to squared errors, see `fit_sigma`."""
    # sigma^2 = noise^2 (1 + ratio x deviation^2): the best noise for a given ratio is a mean.
    factor_KR = 1 + RATIOS[:, None] * deviation**2
    noise2_K = np.maximum(np.mean(square / factor_KR, axis=1), SMALLEST**2)
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
        rows=np.concatenate([s.rows for s in sigmas]),
        groups=np.concatenate([s.groups for s in sigmas]),
    )


def summarise(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    predicted: Sequence[NDArray[np.float64]],
    sigmas: Sequence[NDArray[np.float64]],
    fitted: Sequence[Sigma],
) -> dict[str, Any]:
    """Summarize sigma and its coverage on the exact test pairs of each fold.

    `predicted` and `sigmas`, (P,), are those of ``predictions.parquet``; `fitted` is what they
    follow from. The keys are the fields of `Sigma` over all folds, with the number of different
    pairs and groups, and of ``predictions`` of these pairs; ``coverage`` by nominal level, its
    ``coverage_folds``, and ``error_spearman``: the rank correlation of |error| with sigma; means
    over folds.
    """
    covered, follows = [], []
    for split, pkd, sigma in zip(splits, predicted, sigmas, strict=True):
        rows = np.flatnonzero((split.part == TEST) & (pairs.censored == 0))
        error = pairs.pkd[rows] - pkd[rows]
        covered.append(coverage(error, sigma[rows]))
        follows.append({"error_spearman": spearman(np.abs(error), sigma[rows])})
    whole = combine(fitted)
    return {
        "calibrated": whole.calibrated,  # first in the report
        "spread": whole.spread,
        "noise": whole.noise,
        "rows": len(distinct(whole.rows)),
        "predictions": len(whole.rows),
        "groups": len(distinct(whole.groups)),
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
            f"on {_calibration_pairs(summary)}"
        )
    else:
        noise += (
            ", not calibrated (early stopping saw the validation pairs it was fitted to): too "
            "small for new groups; use --members 8 or more to calibrate it"
        )
    return f"{noise}; test pairs: {found}" if found else noise


def _calibration_pairs(summary: Mapping[str, Any]) -> str:
    rows, predictions = summary["rows"], summary["predictions"]
    text = f"{rows} pairs of {summary['groups']} groups that it had not seen"
    if predictions == rows:
        return text
    average = " on average" if predictions % rows else ""
    return f"{text}, each predicted {predictions / rows:.3g} times{average}"


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
