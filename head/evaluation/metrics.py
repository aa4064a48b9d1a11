"""Predictions and measurements -> numbers one can believe.

Everything is numpy and scipy. A metric that is not defined on the rows given is ``None``, never
0 and never NaN. Predictions of different folds are never pooled: score each fold, then average
(`average_folds`); even predicting each fold's training mean correlates when folds are pooled.

A censored row knows only a side of its label: -1 when its pKd lies below, +1 when above. It counts
in `concordance`, in the pairs whose order is certain, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Scores: TypeAlias = dict[str, float | int | None]

STRONG_PKD = 9.0
"""From this pKd on (Kd of 1 nM) an antibody counts as a strong binder."""
MIN_ROWS_PER_ANTIGEN = 5
"""Antigens with fewer exact rows have no correlation worth a place in the median."""
BUDGET_SHARE = 0.1
"""Share of the rows that one can afford to pick for the next experiment."""


def score(
    pkd: ArrayLike,
    predicted: ArrayLike,
    antigen: ArrayLike,
    censored: ArrayLike | None = None,
) -> Scores:
    """Score one set of predictions; for folds, once a fold.

    Parameters
    ----------
    pkd : array_like, shape=(N,), dtype=float
        Measured pKd; for a censored row the bound.
    predicted : array_like, shape=(N,), dtype=float
        Predicted pKd. One value that is not finite leaves every metric undefined, so that
        nothing is gained by leaving out the hard rows.
    antigen : array_like, shape=(N,), dtype=int
        Which antigen each row belongs to.
    censored : array_like, shape=(N,), dtype=int, optional
        -1: the pKd is below ``pkd``, +1: above, 0: exact. All exact when absent.

    Returns
    -------
    dict
        ``n`` rows, of which ``n_censored``; ``spearman_within_antigen`` (the median over the
        ``antigens_scored``, with its ``_q25`` and ``_q75``) and ``spearman``, ``pearson``,
        ``rmse``, ``mae``, ``r2``; ``recall``, ``precision``, ``average_precision`` and
        ``enrichment`` ``_at_9`` by threshold, ``recall_at_9_budget``, ``precision_at_9_budget``
        and ``enrichment_at_9_budget`` when the best-predicted tenth is picked; ``concordance``
        over ``decidable_pairs``; ``calibration_slope`` and ``calibration_intercept`` of
        measured on predicted.
    """
    y, p = np.asarray(pkd, np.float64), np.asarray(predicted, np.float64)
    sides = np.zeros(len(y), np.int8) if censored is None else np.asarray(censored, np.int8)
    exact = sides == 0
    if not np.isfinite(p).all():
        y, p, exact, sides = y[:0], p[:0], exact[:0], sides[:0]
        antigens = np.zeros(0, np.int64)
    else:
        antigens = np.asarray(antigen, np.int64)[exact]
    y_exact, p_exact = y[exact], p[exact]
    return {
        "n": len(np.asarray(pkd)),
        "n_censored": 0 if censored is None else int(np.count_nonzero(np.asarray(censored))),
        **within_antigen(y_exact, p_exact, antigens),
        "spearman": spearman(y_exact, p_exact),
        "pearson": pearson(y_exact, p_exact),
        "rmse": rmse(y_exact, p_exact),
        "mae": _finite(np.abs(y_exact - p_exact).mean()) if len(y_exact) else None,
        "r2": r2(y_exact, p_exact),
        **_strong_binders(y_exact >= STRONG_PKD, p_exact),
        **concordance(y, p, sides),
        **calibration(y_exact, p_exact),
    }


def one(
    name: str, pkd: Floats, predicted: Floats, antigen: Ints, censored: NDArray[np.int8]
) -> float | None:
    """Compute one of the metrics that ``--select`` can name, as `score` does, without the rest.

    Parameters
    ----------
    name : str
    pkd, predicted, antigen, censored : NDArray, shape=(N,)
        As in `score`.
    """
    exact = censored == 0 if np.isfinite(predicted).all() else np.zeros(len(pkd), bool)
    y, p = pkd[exact], predicted[exact]
    if name == "spearman_within_antigen":
        return median_within_antigen(y, p, antigen[exact])
    if name == "mae":
        return _finite(np.abs(y - p).mean()) if len(y) else None
    if name in ("spearman", "pearson", "rmse"):
        return {"spearman": spearman, "pearson": pearson, "rmse": rmse}[name](y, p)
    return _strong_binders(y >= STRONG_PKD, p)[name]


def spearman(pkd: Floats, predicted: Floats) -> float | None:
    """Rank correlation, ties sharing their mean rank; None for a constant side."""
    return pearson(_ranks(pkd), _ranks(predicted))


def _ranks(values: NDArray[np.generic]) -> Floats:
    """As ``scipy.stats.rankdata``, in half the time at the size of a validation; NaN has none."""
    _, run, size = np.unique(values, return_inverse=True, return_counts=True)
    return np.where(np.isnan(values), np.nan, (np.cumsum(size) - (size - 1) / 2)[run])


def pearson(pkd: Floats, predicted: Floats) -> float | None:
    """Linear correlation; None below two rows or for a constant side."""
    if len(pkd) < 2 or np.ptp(pkd) == 0 or np.ptp(predicted) == 0:
        return None
    y, p = pkd - pkd.mean(), predicted - predicted.mean()
    return _finite(np.clip(y @ p / (np.linalg.norm(y) * np.linalg.norm(p)), -1, 1))


def rmse(pkd: Floats, predicted: Floats) -> float | None:
    """Root mean squared error in pKd units; None without rows."""
    return _finite(np.sqrt(np.mean((pkd - predicted) ** 2))) if len(pkd) else None


def r2(pkd: Floats, predicted: Floats) -> float | None:
    """Share of the variance explained, against these rows' own mean; None for constant labels."""
    if len(pkd) < 2 or np.ptp(pkd) == 0:
        return None
    return _finite(1 - np.sum((pkd - predicted) ** 2) / np.sum((pkd - pkd.mean()) ** 2))


def within_antigen(pkd: Floats, predicted: Floats, antigen: Ints) -> Scores:
    """Spearman of each antigen with enough rows: median and quartiles over antigens."""
    values = spearman_by_group(pkd, predicted, antigen)
    values = values[np.isfinite(values)]
    q25, median, q75 = np.percentile(values, [25, 50, 75]) if len(values) else (np.nan,) * 3
    return {
        "spearman_within_antigen": _finite(median),
        "spearman_within_antigen_q25": _finite(q25),
        "spearman_within_antigen_q75": _finite(q75),
        "antigens_scored": len(values),
    }


def spearman_by_group(pkd: Floats, predicted: Floats, group: Ints) -> Floats:
    """`spearman` of each group, in ascending order of the groups, all at once.

    Returns
    -------
    NDArray, dtype=float64
        NaN below `MIN_ROWS_PER_ANTIGEN` rows and for a constant side.
    """
    _, dense, size = np.unique(group, return_inverse=True, return_counts=True)

    def centred_ranks(values: Floats) -> Floats:
        return _ranks_by_group(values, dense) - (size[dense] + 1) / 2

    def total(products: Floats) -> Floats:
        sums: Floats = np.bincount(dense, products, minlength=len(size)).astype(np.float64)
        return sums

    y, p = centred_ranks(pkd), centred_ranks(predicted)
    scale = np.sqrt(total(y * y) * total(p * p))
    defined = (size >= MIN_ROWS_PER_ANTIGEN) & (scale > 0)
    return np.where(defined, np.clip(total(y * p) / np.where(defined, scale, 1.0), -1, 1), np.nan)


def _ranks_by_group(values: Floats, group: Ints) -> Floats:
    """Rank each value within its group from 1 on, ties sharing their mean rank."""
    _, place = np.unique(values, return_inverse=True)
    size = np.bincount(group)
    ranks = _ranks(group * len(values) + place) - (np.cumsum(size) - size)[group]
    return np.where(np.isnan(values), np.nan, ranks)


def median_within_antigen(pkd: Floats, predicted: Floats, antigen: Ints) -> float | None:
    """`within_antigen` without its spread: the headline as one number."""
    return within_antigen(pkd, predicted, antigen)["spearman_within_antigen"]


def concordance(pkd: Floats, predicted: Floats, censored: NDArray[np.int8]) -> Scores:
    """Share of the pairs of certain order that are predicted in that order, ties counting half.

    The order of two exact rows is certain when their labels differ, that of a censored row and
    another when the bound excludes the other's values.
    """
    _, rank = np.unique(pkd, return_inverse=True)
    # i is certainly below j when upper[i] < lower[j]: a bound sits just beside its label.
    upper = np.where(censored > 0, np.iinfo(np.int64).max, 3 * rank + np.where(censored < 0, 0, 1))
    lower = np.where(censored < 0, np.iinfo(np.int64).min, 3 * rank + np.where(censored > 0, 2, 1))
    keys = np.concatenate([lower, upper])
    is_upper = np.repeat([False, True], len(pkd))
    # Lower ends first where both are equal: "certainly below" is strict.
    order = np.lexsort((is_upper, keys))
    below = is_upper[order]
    seen = np.cumsum(below)
    pairs = int(seen[~below].sum())
    if pairs == 0:
        return {"concordance": None, "decidable_pairs": 0}
    _, p_rank = np.unique(predicted, return_inverse=True)
    p_order = np.tile(p_rank, 2)[order]
    strict = _earlier_and_smaller(below, 2 * p_order + below)
    with_ties = _earlier_and_smaller(below, 2 * p_order + ~below)
    return {"concordance": (strict + with_ties) / 2 / pairs, "decidable_pairs": pairs}


def _earlier_and_smaller(inserted: NDArray[np.bool_], value: Ints) -> int:
    """Count pairs (inserted row, query) where the inserted comes earlier and is smaller.

    A merge sort unrolled over its levels, so that a million rows take seconds and no loop.
    """
    count, width = 0, 1
    by_value = np.argsort(value, kind="stable")
    while width < len(value):
        # the smallest type that holds the pairs of blocks: numpy sorts 16 bits and fewer by radix
        pair = (by_value // (2 * width)).astype(np.min_scalar_type(len(value) // (2 * width)))
        order = by_value[np.argsort(pair, kind="stable")]
        left = order // width % 2 == 0
        earlier = np.concatenate([[0], np.cumsum(inserted[order] & left)])
        # Earlier pairs of blocks are whole: subtract what they had put in.
        before = earlier[order // (2 * width) * (2 * width)]
        count += int((earlier[1:] - before)[~inserted[order] & ~left].sum())
        width *= 2
    return count


def calibration(pkd: Floats, predicted: Floats) -> Scores:
    """Least-squares line of measured on predicted: slope below 1 means overconfident spread."""
    if len(pkd) < 2 or np.ptp(predicted) == 0:
        return {"calibration_slope": None, "calibration_intercept": None}
    p = predicted - predicted.mean()
    slope = p @ (pkd - pkd.mean()) / (p @ p)
    intercept = pkd.mean() - slope * predicted.mean()
    return {"calibration_slope": _finite(slope), "calibration_intercept": _finite(intercept)}


def _strong_binders(strong: NDArray[np.bool_], predicted: Floats) -> Scores:
    picked = predicted >= STRONG_PKD
    hits = np.count_nonzero(strong & picked)
    base = float(strong.mean()) if len(strong) else 0.0
    precision = hits / picked.sum() if picked.any() else None
    budget = max(1, round(BUDGET_SHARE * len(strong)))
    found = _expected_hits(strong, predicted, budget)
    return {
        "recall_at_9": hits / strong.sum() if strong.any() else None,
        "precision_at_9": precision,
        "average_precision_at_9": average_precision(strong, predicted),
        "enrichment_at_9": precision / base if precision is not None and base else None,
        "recall_at_9_budget": found / strong.sum() if strong.any() else None,
        "precision_at_9_budget": found / budget if len(strong) else None,
        "enrichment_at_9_budget": found / budget / base if base else None,
    }


def average_precision(strong: NDArray[np.bool_], predicted: Floats) -> float | None:
    """Mean of the precision at each strong binder, equal predictions being picked together."""
    if not strong.any():
        return None
    order = np.argsort(-predicted, kind="stable")
    last = np.append(np.diff(predicted[order]) != 0, True)
    hits = np.cumsum(strong[order])[last]
    picked = np.flatnonzero(last) + 1
    return _finite(np.sum(np.diff(hits, prepend=0) * hits / picked) / hits[-1])


def _expected_hits(strong: NDArray[np.bool_], predicted: Floats, budget: int) -> float:
    """Strong binders among the ``budget`` best; equal predictions at the cut share its places."""
    if not len(strong):
        return 0.0
    cut = np.sort(predicted)[-budget]
    above, tied = predicted > cut, predicted == cut
    share = (budget - above.sum()) / tied.sum()
    return float(strong[above].sum() + share * strong[tied].sum())


def average_folds(folds: Sequence[Scores]) -> dict[str, dict[str, float | int | None]]:
    """Mean and spread of each metric over the folds in which it is defined.

    Returns
    -------
    dict
        Metric to ``mean``, ``sd`` (None for one fold) and ``n`` folds.
    """
    result: dict[str, dict[str, float | int | None]] = {}
    for name in folds[0] if folds else ():
        values = [value for fold in folds if (value := fold[name]) is not None]
        result[name] = {
            "mean": float(np.mean(values)) if values else None,
            "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "n": len(values),
        }
    return result


def _finite(value: float | np.floating) -> float | None:
    return float(value) if np.isfinite(value) else None
