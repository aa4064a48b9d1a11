"""Scores of many bootstrap samples at once.

A sample is the number of times that each row occurs in it, so a score of D samples of R rows is a
few operations on a (D, R) matrix. `scorer` uses the entry of `VECTORISED` for its metric, or else
repeats the rows and scores each sample with the metric itself, which gives the same numbers.
A metric in `OF_MEAN_ERROR` needs only the sums over rows that are drawn together: `mean_errors`.
Counts are float64, because numpy multiplies no other type as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints
from abag.head.evaluation.metrics import BUDGET_SHARE, MeasuredRows
from abag.head.evaluation.ranking import MIN_ROWS_PER_ANTIGEN

ScoreOfSamples: TypeAlias = Callable[[Floats], Floats]
"""Scores of D samples, (D,), by how often each of R rows is in them, (D, R)."""

TINY = np.finfo(np.float64).tiny


def scorer(metric: str, pkd: Floats, predicted: Floats, antigen: Ints) -> ScoreOfSamples:
    """Return a function that computes a metric on D bootstrap samples at a time.

    Parameters
    ----------
    metric : str
        A key of `abag.head.evaluation.metrics.METRICS`.
    pkd, predicted : NDArray, shape=(R,), dtype=float64
    antigen : NDArray, shape=(R,), dtype=int64

    Returns
    -------
    callable
        Takes how often each row occurs in each sample, shape (D, R), and returns the scores, shape
        (D,), both float64; NaN where the metric is undefined.
    """
    if not (len(predicted) and np.isfinite(predicted).all()):
        return lambda counts_DR: np.full(len(counts_DR), np.nan)
    if metric in VECTORISED:
        return VECTORISED[metric](pkd, predicted, antigen)
    return partial(score_repeated, metric, pkd, predicted, antigen)


def score_repeated(
    metric: str, pkd: Floats, predicted: Floats, antigen: Ints, counts_DR: Floats
) -> Floats:
    """Compute what `scorer` does, one sample at a time."""
    values = []
    for counts in counts_DR:
        rows = np.repeat(np.arange(len(pkd)), counts.astype(np.int64))
        values.append(MeasuredRows.of(pkd[rows], antigen[rows]).score_one(metric, predicted[rows]))
    return np.array(values, np.float64)  # None becomes NaN


def median_of_samples(values: Floats, counts_DR: Floats) -> Floats:
    """Return the median of R values in each of D samples, NaN for empty ones; shape (D,)."""
    if not len(values):
        return np.full(len(counts_DR), np.nan)
    order = np.argsort(values)
    seen_DR, size_D = counts_DR.take(order, axis=1).cumsum(axis=1), counts_DR.sum(axis=1)
    ends = [(seen_DR > (middle // 2)[:, None]).argmax(axis=1) for middle in (size_D - 1, size_D)]
    middle_D: Floats = values[order[ends]].mean(axis=0)
    return np.where(size_D > 0, middle_D, np.nan)


def _spearman(pkd: Floats, predicted: Floats, _antigen: Ints) -> ScoreOfSamples:
    moments = _rank_moments(pkd, predicted)

    def score(counts_DR: Floats) -> Floats:
        yy_D, yp_D, pp_D = moments(counts_DR)
        scale_D = np.sqrt(yy_D * pp_D)
        defined = scale_D > 0  # the centred ranks of a constant are exactly 0
        return np.where(defined, np.clip(yp_D / np.where(defined, scale_D, 1), -1, 1), np.nan)

    return score


def _spearman_within_antigen(pkd: Floats, predicted: Floats, antigen: Ints) -> ScoreOfSamples:
    """Take the median over antigens; predictions that are constant within one rank nothing."""
    rows_G = [np.flatnonzero(antigen == one) for one in np.unique(antigen)]
    moments_G = [_rank_moments(pkd[rows], predicted[rows]) for rows in rows_G]

    def score(counts_DR: Floats) -> Floats:
        found_DG = np.full((len(counts_DR), len(rows_G)), np.nan)
        for of_samples, rows, found_D in zip(moments_G, rows_G, found_DG.T, strict=True):
            counts_DK = counts_DR.take(rows, axis=1)
            yy_D, yp_D, pp_D = of_samples(counts_DK)
            defined = (yy_D > 0) & (counts_DK.sum(axis=1) >= MIN_ROWS_PER_ANTIGEN)
            scale_D = np.sqrt(yy_D * pp_D)
            correlation_D = np.clip(yp_D / np.where(scale_D > 0, scale_D, 1), -1, 1)
            found_D[defined] = correlation_D[defined]
        found_DG.sort(axis=1)  # undefined ones to the end
        defined_D = np.isfinite(found_DG).sum(axis=1)
        middle = [np.maximum(0, defined_D - 1) // 2, np.minimum(defined_D // 2, len(rows_G) - 1)]
        return np.asarray(found_DG[np.arange(len(found_DG)), middle].mean(axis=0))

    return score


def _rank_moments(pkd: Floats, predicted: Floats) -> Callable[[Floats], tuple[Floats, ...]]:
    """Return what sums products of centred ranks in D samples: labels with labels, labels with
    predictions, and predictions with predictions; (D,) each.

    The rank of a row is the mean rank of its copies and ties in the sample.
    """
    ranks = [_centred_ranks(values) for values in (pkd, predicted)]

    def sums(counts_DR: Floats) -> tuple[Floats, ...]:
        y_DR, p_DR = (of_samples(counts_DR) for of_samples in ranks)
        return tuple(
            np.einsum("dr,dr,dr->d", counts_DR, *two)
            for two in ((y_DR, y_DR), (y_DR, p_DR), (p_DR, p_DR))
        )

    return sums


def _centred_ranks(values: Floats) -> ScoreOfSamples:
    """Rank rows in each sample, minus the mean rank, (D, R); exact, being multiples of a half."""
    order = np.argsort(values, kind="stable")
    last = np.append(np.flatnonzero(np.diff(values[order])), len(values) - 1)
    run = np.unique(values, return_inverse=True)[1]

    def rank(counts_DR: Floats) -> Floats:
        # rows up to each distinct value
        seen_DT = counts_DR.take(order, axis=1).cumsum(axis=1).take(last, axis=1)
        before_DT = np.pad(seen_DT, ((0, 0), (1, 0)))[:, :-1]
        centred_DT: Floats = (seen_DT + before_DT - seen_DT[:, -1:]) / 2
        return centred_DT.take(run, axis=1)

    return rank


def mean_errors(error_K: Floats, size_K: Floats, counts_DK: Floats) -> Floats:
    """Average errors in each of D samples of K clusters; NaN in a sample without rows; (D,).

    `error_K` is the sum of the errors of each cluster's rows, `size_K` their number.
    """
    size_D = counts_DK @ size_K
    return np.where(size_D > 0, counts_DK @ error_K / np.maximum(1, size_D), np.nan)


def accuracies(right_KK: Floats, pairs_KK: Floats, counts_DK: Floats) -> Floats:
    """Return the share of pairs of rows in order in each of D samples of K clusters, (D,).

    The counts of pairs are those of `ranking.ordered_by_cluster`. NaN in a sample without pairs.
    """
    right_D, pairs_D = (((counts_DK @ m) * counts_DK).sum(axis=1) for m in (right_KK, pairs_KK))
    return np.where(pairs_D > 0, right_D / np.maximum(1, pairs_D), np.nan)


def _spread_ratio(pkd: Floats, predicted: Floats, _antigen: Ints) -> ScoreOfSamples:
    def score(counts_DR: Floats) -> Floats:
        deviations = [_deviation(values, counts_DR) for values in (predicted, pkd)]
        varies = _varies(pkd, counts_DR)
        return np.where(varies, deviations[0] / np.where(varies, deviations[1], 1), np.nan)

    return score


def _deviation(values: Floats, counts_DR: Floats) -> Floats:
    """Return the standard deviation in each sample, (D,); 0 in an empty one."""
    size_D1 = np.maximum(1, counts_DR.sum(axis=1, keepdims=True))
    centred_DR = values - (counts_DR @ values)[:, None] / size_D1
    return np.asarray(np.sqrt((counts_DR * centred_DR**2).sum(axis=1) / size_D1[:, 0]))


def _varies(values: Floats, counts_DR: Floats) -> NDArray[np.bool_]:
    """Tell in which samples the values are not all equal, (D,)."""
    seen_DR = counts_DR > 0
    first_D1 = values[seen_DR.argmax(axis=1)][:, None]
    return np.asarray((seen_DR & (values != first_D1)).any(axis=1))


def _top_enrichment(pkd: Floats, predicted: Floats, _antigen: Ints) -> ScoreOfSamples:
    orders = np.argsort(-pkd), np.argsort(-predicted)

    def score(counts_DR: Floats) -> Floats:
        size_D = counts_DR.sum(axis=1)
        budget_D = np.maximum(1, np.round(BUDGET_SHARE * size_D))
        strongest_DR = counts_DR * (pkd >= _cut(pkd, orders[0], counts_DR, budget_D)[:, None])
        cut_D1 = _cut(predicted, orders[1], counts_DR, budget_D)[:, None]
        above_DR, tied_DR = predicted > cut_D1, predicted == cut_D1
        n_above, n_tied = ((counts_DR * rows).sum(axis=1) for rows in (above_DR, tied_DR))
        share_D = (budget_D - n_above) / np.maximum(1, n_tied)
        hits, tied_hits = ((strongest_DR * rows).sum(axis=1) for rows in (above_DR, tied_DR))
        chance_D = budget_D * strongest_DR.sum(axis=1) / np.maximum(1, size_D)
        found = (hits + share_D * tied_hits) / np.maximum(chance_D, TINY)
        return np.where(_varies(pkd, counts_DR), found, np.nan)

    return score


def _cut(values: Floats, order: Ints, counts_DR: Floats, budget_D: Floats) -> Floats:
    """Return the smallest of the ``budget`` largest values in each sample, (D,).

    `order` is of descending values.
    """
    enough_DR = counts_DR.take(order, axis=1).cumsum(axis=1) >= budget_D[:, None]
    return np.asarray(values[order[enough_DR.argmax(axis=1)]])


VECTORISED: dict[str, Callable[[Floats, Floats, Ints], ScoreOfSamples]] = {
    "spearman": _spearman,
    "spearman_within_antigen": _spearman_within_antigen,
    "spread_ratio": _spread_ratio,
    "top_enrichment": _top_enrichment,
}
"""By name: what makes of labels, predictions and antigens, (R,), a function of samples."""
OF_MEAN_ERROR: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
    "rmse": (np.square, np.sqrt),
    "mae": (np.abs, np.positive),
}
"""What is averaged of measured minus predicted pKd, and what turns its mean into the metric."""
