"""Compare models on the test part: bootstrap intervals, verdicts and warnings.

Intervals come from a paired bootstrap over clusters: whole groups of the split are resampled,
identically for both models and for all folds, and each fold is scored separately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.head.data.labels import FLOOR_SHARE
from abag.head.evaluation import metrics
from abag.head.evaluation.metrics import METRICS, ScoredRows, headline_metrics, metric_label
from abag.head.splits.splits import TEST, Split

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

DRAWS = 500
"""Bootstrap samples per interval."""
MIN_CLUSTERS = 5
"""With fewer clusters, resampling them says little about new clusters: no interval."""
LEVEL = 0.95
EXPLAINED_SHARE = 0.5
"""Share of the variance from which a label is said to follow from the antigen or assay alone."""
SMALL_TEST_ROWS = 50


class MeasuredPairs(Protocol):
    """What scoring needs of P pairs, each of shape (P,)."""

    @property
    def pkd(self) -> Floats: ...
    @property
    def censored(self) -> NDArray[np.int8]: ...
    @property
    def antigen(self) -> Ints: ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Difference of two models' scores, averaged over folds, with its bootstrap interval."""

    difference: float
    low: float | None
    high: float | None
    clusters: int

    def to_json(self) -> metrics.Scores:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Fold:
    """The part of a fold that is resampled."""

    cluster: Ints
    """Cluster of each row or of each antigen; clusters are resampled as a whole."""
    difference: Callable[[Ints], float | None]
    """Difference of the two scores if entry ``i`` of ``cluster`` occurs ``counts[i]`` times."""


def compare(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    predicted: Sequence[Floats],
    reference: Sequence[Floats],
    metric: str,
    seed: int = 0,
) -> Interval | None:
    """Compute the difference between two models on the test parts, with a bootstrap interval.

    Parameters
    ----------
    predicted, reference : sequence of NDArray, shape=(P,), dtype=float64
        pKd of every pair as predicted by the two models, for each split.
    metric : str
        A key of `abag.head.evaluation.metrics.METRICS`.

    Returns
    -------
    Interval or None
        Score of `predicted` minus score of `reference`; None if the metric is undefined for
        either. ``low`` and ``high`` are None with fewer than `MIN_CLUSTERS` clusters.
    """
    tests = [np.flatnonzero((s.part == TEST) & (pairs.censored == 0)) for s in splits]
    parts = [
        (pairs.pkd[rows], a[rows], b[rows], pairs.antigen[rows], s.group[rows])
        for s, rows, a, b in zip(splits, tests, predicted, reference, strict=True)
    ]
    antigens = np.concatenate([part[3] for part in parts])
    groups = np.concatenate([part[4] for part in parts])
    if metric == "spearman_within_antigen" and len(np.unique(antigens)) > 1:
        nested = len(np.unique(np.stack([antigens, groups]), axis=1).T) == len(np.unique(antigens))
        folds = [_fold_of_antigens(*part, nested) for part in parts]
    else:
        folds = [_fold_of_rows(*part, metric) for part in parts]
    return _bootstrap(folds, seed)


def _bootstrap(folds: Sequence[_Fold], seed: int) -> Interval | None:
    joined = np.concatenate([fold.cluster for fold in folds])
    clusters, dense = np.unique(joined, return_inverse=True)
    index = np.split(dense, np.cumsum([len(fold.cluster) for fold in folds])[:-1])
    difference = _mean_difference(folds, index, np.ones(len(clusters), np.int64))
    if difference is None:
        return None
    draws = np.random.default_rng(seed).integers(len(clusters), size=(DRAWS, len(clusters)))
    differences = (
        _mean_difference(folds, index, np.bincount(drawn, minlength=len(clusters)))
        for drawn in (draws if len(clusters) >= MIN_CLUSTERS else ())
    )
    known = [value for value in differences if value is not None]
    if not known:
        return Interval(difference, None, None, len(clusters))
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(difference, float(low), float(high), len(clusters))


def _mean_difference(folds: Sequence[_Fold], index: Sequence[Ints], counts: Ints) -> float | None:
    found = (fold.difference(counts[i]) for fold, i in zip(folds, index, strict=True))
    values = [value for value in found if value is not None]
    return float(np.mean(values)) if values else None


def _fold_of_rows(
    pkd: Floats, predicted: Floats, reference: Floats, antigen: Ints, group: Ints, metric: str
) -> _Fold:
    score = METRICS[metric].function

    def difference(counts: Ints) -> float | None:
        rows = np.repeat(np.arange(len(pkd)), counts)
        a = score(ScoredRows.of(pkd[rows], predicted[rows], antigen[rows]))
        b = score(ScoredRows.of(pkd[rows], reference[rows], antigen[rows]))
        return None if a is None or b is None else a - b

    return _Fold(group, difference)


def _fold_of_antigens(
    pkd: Floats, predicted: Floats, reference: Floats, antigen: Ints, group: Ints, nested: bool
) -> _Fold:
    """Resample whole antigens, each with the correlation within it, which stays the same."""
    _, first = np.unique(antigen, return_index=True)
    clusters = (group if nested else antigen)[first]
    values = np.stack(
        [metrics.spearman_by_group(pkd, p, antigen) for p in (predicted, reference)], axis=1
    )
    defined = np.isfinite(values).all(axis=1)
    clusters, values = clusters[defined], values[defined]

    def difference(counts: Ints) -> float | None:
        if not counts.sum():
            return None
        a, b = np.median(np.repeat(values, counts, axis=0), axis=0)
        return float(a - b)

    return _Fold(clusters, difference)


def verdict(model: str, reference: str, metric: str, interval: Interval | None) -> str:
    """Describe in one sentence whether a model is better than another one, from `compare`."""
    label = metric_label(metric)
    if interval is None:
        return f"The {model} cannot be compared with {reference}: {label} is undefined on test."
    low, high, lower_is_better = interval.low, interval.high, METRICS[metric].lower_is_better
    gain = 0.0 + (-1 if lower_is_better else 1) * interval.difference
    note = f"positive means lower {label}; " if lower_is_better else ""
    if low is None or high is None:
        few = "1 cluster is" if interval.clusters == 1 else f"{interval.clusters} clusters are"
        return (
            f"The {model} differs from {reference}: {gain:+.3f} {label} "
            f"({note}{few} too few for an interval)."
        )
    if lower_is_better:
        low, high = -high, -low
    relation = "better than" if low > 0 else "statistically indistinguishable from"
    if high < 0:
        relation = "worse than"
    return (
        f"The {model} is {relation} {reference}: {gain:+.3f} {label} "
        f"({note}95 % interval {low:+.3f} to {high:+.3f} over {interval.clusters} clusters)."
    )


def verdicts(
    pairs: LabelledPairs,
    splits: Sequence[Split],
    predicted: Sequence[Floats],
    baselines: Sequence[Mapping[str, Floats]],
) -> list[str]:
    """Compare the head with the strongest baselines, with the ridge and with the training mean.

    The first comparison is by rank correlation, within antigens where that is defined, with the
    baseline that is strongest by it. The others are by RMSE: the strongest baseline, the ridge on
    the same vectors, and the training mean.

    Parameters
    ----------
    predicted : sequence of NDArray, shape=(P,), dtype=float64
        The head's prediction of every pair, for each split.
    baselines : sequence of dict
        The result of `abag.head.evaluation.baselines.predict_baselines` for each split.
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
            interval = compare(pairs, splits, predicted, [b[baseline] for b in baselines], metric)
            note = ", the strongest baseline" if baseline == best[metric] else ""
            lines.append(verdict("head", baseline + note, metric, interval))
    return lines


def score_rows(pairs: MeasuredPairs, predicted: Floats, rows: Ints) -> metrics.Scores:
    """Score the predictions of some rows; `predicted`, (P,), has one for every pair."""
    return metrics.score(
        pairs.pkd[rows], predicted[rows], pairs.antigen[rows], pairs.censored[rows]
    )


def scores_on_test(
    pairs: MeasuredPairs, splits: Sequence[Split], predicted: Sequence[Floats]
) -> metrics.Scores:
    """Score predictions, (P,) per split, on the test part of each split; average over splits."""
    folds = [score_rows(pairs, p, s.rows(TEST)) for s, p in zip(splits, predicted, strict=True)]
    return {name: value["mean"] for name, value in metrics.average_folds(folds).items()}


def rank_metric(scores: metrics.Scores) -> str:
    """Return the most important headline metric that is defined, or else the RMSE."""
    return next((name for name in headline_metrics() if scores[name] is not None), "rmse")


def strongest(scores: Mapping[str, metrics.Scores], metric: str) -> str | None:
    """Name of the model with the best score, or None if the metric is undefined for all."""
    known = {name: value for name, s in scores.items() if (value := s.get(metric)) is not None}
    if not known:
        return None
    best = min if METRICS[metric].lower_is_better else max
    # A group mean that is undefined for new groups equals the training mean up to rounding.
    return best(known, key=lambda name: round(known[name], 9))


def warnings(pairs: LabelledPairs, splits: Sequence[Split]) -> list[str]:
    """Describe properties of the labels and of the split that limit what the scores mean."""
    return [*_label_warnings(pairs), *_split_warnings(splits)]


def _label_warnings(pairs: LabelledPairs) -> list[str]:
    lines = []
    exact = pairs.censored == 0
    values, counts = np.unique(pairs.pkd[exact], return_counts=True)
    if len(values) == 1:
        lines.append(f"All exact labels are {values[0]:.3g}: there is nothing to learn.")
    elif counts.max(initial=0) > FLOOR_SHARE * exact.sum():
        at, share = values[counts.argmax()], counts.max() / exact.sum()
        kind = "floor" if at == values[0] else "ceiling" if at == values[-1] else "repeated value"
        lines.append(
            f"{share:.0%} of the labels equal {at:.4g}, a {kind}: separating these rows from the "
            "others inflates the scores. See --floor censor|drop."
        )
    groups = {"antigen": pairs.antigen}
    assay = pairs.table.columns.get("assay")
    if assay is not None:
        groups["assay"] = np.unique(
            pairs.table.frame[assay].iloc[pairs.row].astype(str), return_inverse=True
        )[1]
    for name, group in groups.items():
        share = explained(pairs.pkd[exact], group[exact])
        if share is not None and share >= EXPLAINED_SHARE:
            lines.append(
                f"The {name} alone explains {share:.0%} of the labels' variance: use the metrics "
                "within antigen, and a split that holds out antigens."
            )
    if pairs.noise is not None:
        lines.append(
            f"Replicates have a standard deviation of {pairs.noise:.2f} pKd: an RMSE below that is "
            "not meaningful."
        )
    return lines


def explained(pkd: Floats, group: Ints) -> float | None:
    """Share of the variance of labels (N,) between groups (N,), adjusted for their number.

    None if undefined: fewer than two groups, no repeated group, or constant labels.
    """
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
    levels = description.get("leaks", {}).get("pair", {})
    leaks = {at: sum(s.description["leaks"]["pair"][at] for s in splits) for at in levels}
    tests = sum(len(s.rows(TEST)) for s in splits)
    if leaks.get("exact"):
        lines.append(f"{leaks['exact']} of {tests} test rows are also in training: a leak.")
    if leaks.get("near"):
        lines.append(
            f"{leaks['near']} of {tests} test rows have a near-duplicate in training (both "
            "antibody and antigen): their scores say little about new antibodies or antigens."
        )
    if min(len(s.rows(TEST)) for s in splits) < SMALL_TEST_ROWS:
        lines.append(
            f"A test part has fewer than {SMALL_TEST_ROWS} rows: its metrics are mostly noise."
        )
    return lines
