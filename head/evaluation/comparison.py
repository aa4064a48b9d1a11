"""Does the head know more than a baseline? An interval, a sentence, and warnings in words.

Intervals come from a paired bootstrap by cluster: whole groups of the split are drawn anew, the
same for both sides of a comparison and for every fold, and each fold is scored by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.head.data.splits import TEST, Split
from abag.head.evaluation import metrics

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Metric: TypeAlias = Callable[[Floats, Floats, Ints], float | None]

DRAWS = 500
FEWEST_CLUSTERS = 5
LEVEL = 0.95
HEADLINES: Mapping[str, Metric] = {
    "spearman_within_antigen": metrics.median_within_antigen,
    "spearman": lambda y, p, _: metrics.spearman(y, p),
    "rmse": lambda y, p, _: metrics.rmse(y, p),
}
LOWER_IS_BETTER = frozenset({"rmse", "mae"})
FLOOR_SHARE = 0.05
EXPLAINED = 0.5
"""Share of the variance from which a label is said to follow from the antigen or assay alone."""
SMALL_PART = 50


class Measured(Protocol):
    """What scoring needs to know of P pairs, each of shape (P,)."""

    @property
    def pkd(self) -> Floats: ...
    @property
    def censored(self) -> NDArray[np.int8]: ...
    @property
    def antigen(self) -> Ints: ...


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference of scores, head less baseline, averaged over folds."""

    difference: float
    low: float | None
    high: float | None
    clusters: int


@dataclass(frozen=True, slots=True)
class _Fold:
    """What of one fold can be drawn again."""

    unit: Ints
    """What is drawn as a whole: the cluster of each row or of each antigen."""
    difference: Callable[[Ints], float | None]
    """Ours less theirs, given how often each entry of ``unit`` was drawn."""


def compare(
    pairs: Measured,
    splits: Sequence[Split],
    ours: Sequence[Floats],
    theirs: Sequence[Floats],
    metric: str,
    seed: int = 0,
) -> Interval | None:
    """Difference of two predictions on the test parts, with its bootstrap interval.

    Parameters
    ----------
    pairs : Measured
        `abag.head.data.labels.LabelledPairs`, or what a run kept of them.
    splits : sequence of Split
    ours, theirs : sequence of NDArray, shape=(P,)
        Predicted pKd for each split.
    metric : str
        A key of `HEADLINES`.
    seed : int

    Returns
    -------
    Interval or None
        None where the metric is undefined for either side. ``low`` and ``high`` are None with
        fewer than `FEWEST_CLUSTERS`: the draws then say little of other clusters.
    """
    tests = [np.flatnonzero((s.part == TEST) & (pairs.censored == 0)) for s in splits]
    parts = [
        (pairs.pkd[rows], a[rows], b[rows], pairs.antigen[rows], s.group[rows])
        for s, rows, a, b in zip(splits, tests, ours, theirs, strict=True)
    ]
    antigens = np.concatenate([part[3] for part in parts])
    groups = np.concatenate([part[4] for part in parts])
    if metric == "spearman_within_antigen" and len(np.unique(antigens)) > 1:
        nested = len(np.unique(np.stack([antigens, groups]), axis=1).T) == len(np.unique(antigens))
        folds = [_fold_of_antigens(*part, nested) for part in parts]
    else:
        folds = [_fold_of_rows(*part, HEADLINES[metric]) for part in parts]
    return _bootstrap(folds, seed)


def _bootstrap(folds: Sequence[_Fold], seed: int) -> Interval | None:
    units, dense = np.unique(np.concatenate([fold.unit for fold in folds]), return_inverse=True)
    index = np.split(dense, np.cumsum([len(fold.unit) for fold in folds])[:-1])
    difference = _mean_difference(folds, index, np.ones(len(units), np.int64))
    if difference is None:
        return None
    if len(units) < FEWEST_CLUSTERS:
        return Interval(difference, None, None, len(units))
    rng = np.random.default_rng(seed)
    draws = [
        _mean_difference(folds, index, np.bincount(drawn, minlength=len(units)))
        for drawn in rng.integers(len(units), size=(DRAWS, len(units)))
    ]
    known = [draw for draw in draws if draw is not None]
    if not known:
        return Interval(difference, None, None, len(units))
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(difference, float(low), float(high), len(units))


def _mean_difference(folds: Sequence[_Fold], index: Sequence[Ints], times: Ints) -> float | None:
    found = (fold.difference(times[i]) for fold, i in zip(folds, index, strict=True))
    values = [value for value in found if value is not None]
    return float(np.mean(values)) if values else None


def _fold_of_rows(
    pkd: Floats, ours: Floats, theirs: Floats, antigen: Ints, group: Ints, score: Metric
) -> _Fold:
    def difference(times: Ints) -> float | None:
        rows = np.repeat(np.arange(len(pkd)), times)
        a = score(pkd[rows], ours[rows], antigen[rows])
        b = score(pkd[rows], theirs[rows], antigen[rows])
        return None if a is None or b is None else a - b

    return _Fold(group, difference)


def _fold_of_antigens(
    pkd: Floats, ours: Floats, theirs: Floats, antigen: Ints, group: Ints, nested: bool
) -> _Fold:
    """Correlations of single antigens do not change when whole antigens are drawn again."""
    _, first = np.unique(antigen, return_index=True)
    units = (group if nested else antigen)[first]
    values = np.stack([metrics.spearman_by_group(pkd, p, antigen) for p in (ours, theirs)], axis=1)
    defined = np.isfinite(values).all(axis=1)
    units, values = units[defined], values[defined]

    def difference(times: Ints) -> float | None:
        if not times.sum():
            return None
        a, b = np.median(np.repeat(values, times, axis=0), axis=0)
        return float(a - b)

    return _Fold(units, difference)


def verdict(name: str, baseline: str, metric: str, interval: Interval | None) -> str:
    """Say in one sentence whether the head beats a baseline, and by how much."""
    what = metric.replace("_", " ")
    if interval is None:
        return f"The {name} cannot be compared with {baseline} by {what}: it is undefined on test."
    gain = 0.0 + (-1 if metric in LOWER_IS_BETTER else 1) * interval.difference
    low, high = interval.low, interval.high
    if low is None or high is None:
        return (
            f"The {name} differs from {baseline} by {gain:+.3f} {what}; "
            f"{_clusters(interval.clusters)} too few for an interval."
        )
    if metric in LOWER_IS_BETTER:
        low, high = -high, -low
    verb = "beats" if low > 0 else "loses to" if high < 0 else "is not told apart from"
    return (
        f"The {name} {verb} {baseline}: {gain:+.3f} {what} "
        f"(95 % of draws {low:+.3f} to {high:+.3f}, {interval.clusters} clusters)."
    )


def _clusters(n: int) -> str:
    return "1 cluster is" if n == 1 else f"{n} clusters are"


def verdicts(
    pairs: LabelledPairs,
    splits: Sequence[Split],
    predicted: Sequence[Floats],
    baselines: Sequence[Mapping[str, Floats]],
) -> list[str]:
    """Say whether the head beats the strongest baseline by rank, and three of them by error.

    Rank is that within antigen where it is defined, else over all rows. By error the head is held
    against the strongest baseline, the ridge on the same vectors, and knowing nothing.

    Parameters
    ----------
    predicted : sequence of NDArray, shape=(P,)
        The head's prediction for each split.
    baselines : sequence of dict
        What `abag.head.evaluation.baselines.baselines` gave for each split.
    """
    scores = {
        name: scores_on_test(pairs, splits, [b[name] for b in baselines]) for name in baselines[0]
    }
    own = scores_on_test(pairs, splits, predicted)
    by_rank = "spearman_within_antigen"
    if own[by_rank] is None or strongest(scores, by_rank) is None:
        by_rank = "spearman"
    best = {metric: strongest(scores, metric) for metric in (by_rank, "rmse")}
    against = [(by_rank, best[by_rank]), ("rmse", best["rmse"])]
    against += [("rmse", name) for name in ("ridge", "train_mean") if name != best["rmse"]]
    lines = []
    for metric, baseline in against:
        if baseline is not None:
            theirs = [b[baseline] for b in baselines]
            interval = compare(pairs, splits, predicted, theirs, metric)
            said = f"{baseline} (the strongest)" if baseline == best[metric] else baseline
            lines.append(verdict("head", said, metric, interval))
    return lines


def scores_on_test(
    pairs: LabelledPairs, splits: Sequence[Split], predicted: Sequence[Floats]
) -> dict[str, float | int | None]:
    """Score predictions on the test part of each split, and average."""
    folds = [
        metrics.score(pairs.pkd[rows], p[rows], pairs.antigen[rows], pairs.censored[rows])
        for split, p in zip(splits, predicted, strict=True)
        for rows in [split.rows(TEST)]
    ]
    return {name: value["mean"] for name, value in metrics.average_folds(folds).items()}


def strongest(scores: Mapping[str, Mapping[str, float | int | None]], metric: str) -> str | None:
    """Name of the best baseline by a metric, of those for which it is defined."""
    known = {name: value for name, s in scores.items() if (value := s.get(metric)) is not None}
    if not known:
        return None
    best = min if metric in LOWER_IS_BETTER else max
    # a mean that is undefined for new groups is the training mean but for rounding
    return best(known, key=lambda name: round(known[name], 9))


def warnings(pairs: LabelledPairs, splits: Sequence[Split]) -> list[str]:
    """Say in words what makes the numbers of this table or split less than they seem."""
    return [*_label_warnings(pairs), *_split_warnings(splits)]


def _label_warnings(pairs: LabelledPairs) -> list[str]:
    lines = []
    exact = pairs.censored == 0
    values, counts = np.unique(pairs.pkd[exact], return_counts=True)
    if len(values) == 1:
        lines.append(f"Every exact label is {values[0]:.3g}: there is nothing to learn.")
    elif counts.max(initial=0) > FLOOR_SHARE * exact.sum():
        at, share = values[counts.argmax()], counts.max() / exact.sum()
        side = "floor" if at == values[0] else "ceiling" if at == values[-1] else "single value"
        lines.append(
            f"{share:.0%} of the labels are {at:.4g}, a {side}: telling it from the rest passes "
            "for skill. See --floor censor|drop."
        )
    groups = {"antigen": pairs.antigen}
    assay = pairs.table.columns.get("assay")
    if assay is not None:
        groups["assay"] = np.unique(
            pairs.table.frame[assay].iloc[pairs.row].astype(str), return_inverse=True
        )[1]
    for name, group in groups.items():
        share = explained(pairs.pkd[exact], group[exact])
        if share is not None and share >= EXPLAINED:
            lines.append(
                f"The {name} alone explains {share:.0%} of the labels' variance: read the metrics "
                "within antigen, and hold antigens out."
            )
    if pairs.noise is not None:
        lines.append(
            f"Replicates differ with a standard deviation of {pairs.noise:.2f} pKd: no RMSE below "
            "that is to be believed."
        )
    return lines


def explained(pkd: Floats, group: Ints) -> float | None:
    """Share of the variance between groups, adjusted for their number; None if undefined."""
    _, dense, sizes = np.unique(group, return_inverse=True, return_counts=True)
    free = len(pkd) - len(sizes)
    if free < 1 or len(sizes) < 2 or np.ptp(pkd) == 0:
        return None
    mean = np.bincount(dense, pkd) / sizes
    within = np.sum((pkd - mean[dense]) ** 2) / free
    return float(1 - within / np.var(pkd, ddof=1))


def _split_warnings(splits: Sequence[Split]) -> list[str]:
    description = splits[0].description
    lines = list(description.get("adapters", ()))
    leaks = description.get("leaks", {}).get("pair", {})
    worst = {at: sum(s.description["leaks"]["pair"][at] for s in splits) for at in leaks}
    tests = sum(len(s.rows(TEST)) for s in splits)
    near = worst.get("near", 0)
    if worst.get("exact"):
        lines.append(f"{worst['exact']} of {tests} test rows are in training too: a leak.")
    if near:
        lines.append(
            f"{near} of {tests} test rows have a near mate in training on both sides: their scores "
            "say little about new antibodies or antigens."
        )
    if min(len(s.rows(TEST)) for s in splits) < SMALL_PART:
        lines.append(f"A test part has fewer than {SMALL_PART} rows: its metrics are mostly noise.")
    return lines
