"""How sure a prediction is: sigma, made of the heads' spread and of what they all miss.

sigma^2 = (spread x standard deviation of the heads)^2 + noise^2, in pKd. Both numbers are fitted
by likelihood to errors on training groups, each predicted by the heads alone that never drew the
group into their bag: pairs that neither training nor early stopping of these heads has seen. Where
that cannot be (one head, no bags, too few groups), noise is the error on validation pairs, which
early stopping did see; sigma then says so and is somewhat too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm, t

from abag.head.data.splits import TEST, TRAIN, VALIDATION
from abag.head.evaluation import metrics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from abag.head.data.splits import Split
    from abag.head.evaluation.comparison import MeasuredPairs
    from abag.head.training.train import TrainedHeads

LEAST_GROUPS = 5
"""Fewer groups out of bag are no sample of groups."""
LEVELS = (0.68, 0.90, 0.95)
"""Nominal coverages that are reported."""
RATIOS = np.concatenate([[0.0], np.logspace(-4, 4, 161)])
"""(spread / noise)^2 that are tried: steps of 6 % in spread / noise."""
SMALLEST = 1e-6
"""Noise of heads that miss nothing, in pKd."""


@dataclass(frozen=True, slots=True)
class Sigma:
    """How sigma follows from the heads, and what it was fitted to."""

    spread: float
    """What the heads' standard deviation is multiplied by."""
    noise: float
    """In pKd."""
    calibrated: bool
    """Whether on groups that neither training nor early stopping had seen."""
    rows: int
    """Exact pairs that it was fitted to, and their groups."""
    groups: int

    def of(self, predicted_MP: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the standard deviation of each prediction, (P,), from all heads' predictions."""
        return np.asarray(np.sqrt(self.spread**2 * predicted_MP.var(axis=0) + self.noise**2))


def calibrate(pairs: MeasuredPairs, split: Split, trained: TrainedHeads) -> Sigma:
    """Fit sigma to one split's heads.

    Parameters
    ----------
    pairs : MeasuredPairs
        Censored pairs have no error and are left out.
    split : Split
    trained : Trained
        Its heads' predictions of every pair, and which pairs each was trained on.
    """
    predicted_MP = trained.predicted_MP
    heads = len(predicted_MP)
    unseen_MP = ~trained.in_bag_MP & (split.part == TRAIN) & (pairs.censored == 0)
    rows = np.flatnonzero(unseen_MP.sum(axis=0) >= 2)
    groups = len(np.unique(split.group[rows]))
    if groups >= LEAST_GROUPS:
        mean, deviation = _moments(predicted_MP[:, rows], unseen_MP[:, rows])
        spread, noise = fit_sigma(pairs.pkd[rows] - mean, deviation)
        # A mean of fewer heads errs more, by its own part of their variance.
        fewer = np.mean(1 / unseen_MP[:, rows].sum(axis=0)) - 1 / heads
        # `Sigma.of` takes the deviation around the mean of all heads, which is smaller.
        larger = heads / (heads - 1)
        spread = float(np.sqrt(max(0.0, spread**2 - fewer) * larger))
        wider = few_groups(groups)
        return Sigma(spread * wider, noise * wider, True, len(rows), groups)
    rows = np.flatnonzero((split.part == VALIDATION) & (pairs.censored == 0))
    error = pairs.pkd[rows] - trained.predicted[rows]
    noise = float(np.sqrt(np.mean(error**2))) if len(rows) else float(np.std(pairs.pkd))
    return Sigma(1.0, noise, False, len(rows), len(np.unique(split.group[rows])))


def _moments(
    predicted_MR: NDArray[np.float64], counted_MR: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and sample standard deviation over the heads that count for each pair, (R,)."""
    n_R = counted_MR.sum(axis=0)
    mean_R = np.where(counted_MR, predicted_MR, 0).sum(axis=0) / n_R
    square_R = np.where(counted_MR, (predicted_MR - mean_R) ** 2, 0).sum(axis=0)
    return mean_R, np.sqrt(square_R / (n_R - 1))


def few_groups(groups: int) -> float:
    """Return how much wider an interval must be for having been learned from so few groups.

    Student's t against the normal at 90 %: groups, not rows, are what errors vary by; 1.22 for 8
    groups, 1.05 for 30.
    """
    level = 0.95  # each side of 90 %
    return float(t.ppf(level, groups - 1) / norm.ppf(level) * np.sqrt(1 + 1 / groups))


def fit_sigma(error: NDArray[np.float64], deviation: NDArray[np.float64]) -> tuple[float, float]:
    """Find the spread and noise under which normal errors are likeliest.

    Parameters
    ----------
    error, deviation : NDArray, shape=(R,)
        Measured less predicted, and the heads' standard deviation, in pKd.

    Returns
    -------
    tuple of float
        ``spread`` (0 where the deviation tells nothing) and ``noise`` (above 0).
    """
    # sigma^2 = noise^2 (1 + ratio deviation^2): for each ratio the best noise is a mean.
    factor_KR = 1 + RATIOS[:, None] * deviation**2
    noise2_K = np.maximum(np.mean(error**2 / factor_KR, axis=1), SMALLEST**2)
    best = int(np.argmin(np.log(noise2_K) + np.mean(np.log(factor_KR), axis=1)))
    noise = np.sqrt(noise2_K[best])
    return float(noise * np.sqrt(RATIOS[best])), float(noise)


def coverage(error: NDArray[np.float64], sigma: NDArray[np.float64]) -> dict[str, float | None]:
    """Count how many errors lie within the central intervals that a normal sigma promises.

    Returns
    -------
    dict
        ``"68"``, ``"90"``, ``"95"`` to the share found; None without rows.
    """
    z = np.abs(error) / sigma
    return {
        f"{level * 100:.0f}": float(np.mean(z <= norm.ppf((1 + level) / 2))) if len(z) else None
        for level in LEVELS
    }


def combine(sigmas: Sequence[Sigma]) -> Sigma:
    """Average the sigmas of several folds, for the predictor that holds all their heads."""
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
    trained: Sequence[TrainedHeads],
    sigmas: Sequence[Sigma],
) -> dict[str, Any]:
    """Say what sigma is and how it did on the test part of each fold.

    Returns
    -------
    dict
        The fields of `Sigma` over all folds, ``coverage`` by nominal level, its ``coverage_folds``,
        and ``error_spearman``: the rank correlation of |error| with sigma; means over folds.
    """
    covered, follows = [], []
    for split, one, sigma in zip(splits, trained, sigmas, strict=True):
        rows = np.flatnonzero((split.part == TEST) & (pairs.censored == 0))
        error = pairs.pkd[rows] - one.predicted[rows]
        width = sigma.of(one.predicted_MP[:, rows])
        covered.append(coverage(error, width))
        follows.append({"error_spearman": metrics.spearman(np.abs(error), width)})
    whole = combine(sigmas)
    return {
        "calibrated": whole.calibrated,
        "spread": whole.spread,
        "noise": whole.noise,
        "rows": whole.rows,
        "groups": whole.groups,
        "coverage": {k: v["mean"] for k, v in metrics.average_folds(covered).items()},
        "coverage_folds": {level: [fold[level] for fold in covered] for level in covered[0]},
        "error_spearman": metrics.average_folds(follows)["error_spearman"]["mean"],
    }


def describe_sigma(summary: Mapping[str, Any]) -> str:
    """Say in one line what sigma rests on and how much it covered."""
    noise = f"sigma: noise {summary['noise']:.2f} pKd"
    found = ", ".join(
        f"{share:.0%} within its {level} %"
        for level, share in summary["coverage"].items()
        if share is not None
    )
    if summary["calibrated"]:
        how = f"{noise} + {summary['spread']:.2f} x the heads' spread, calibrated on {summary['rows']} pairs of {summary['groups']} groups out of bag"  # noqa: E501
    else:
        how = f"{noise}, not calibrated (early stopping saw the pairs it was measured on): too small for new groups; --members 8 or more calibrate it"  # noqa: E501
    return f"{how}; test pairs: {found}" if found else how
