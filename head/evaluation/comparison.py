"""Compare models on the test part: bootstrap intervals, verdicts and warnings.

Intervals come from a paired bootstrap over clusters: whole groups of the split are resampled,
identically for both models and for all folds, and each fold is scored separately. Where antigens
occur in several groups (random, mutations, antibody ...), clusters of antigens are resampled as
well, and a model is called better only if both intervals agree. Intervals are widened for few
clusters, see `widening`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from abag.head.evaluation import metrics
from abag.head.evaluation.label_problems import label_problems
from abag.head.evaluation.metrics import METRICS, direction, headline_metrics, metric_label
from abag.head.evaluation.resampling import (
    OF_MEAN_ERROR,
    mean_errors,
    median_of_samples,
    score_samples,
)
from abag.head.splits.splits import TEST, Split, total_leaks

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

DRAWS = 500
"""Bootstrap samples per interval."""
SAMPLED_AT_ONCE = 2 * 10**6
"""Rows times samples that are scored in one go: 16 MB per matrix."""
MIN_CLUSTERS = 5
"""With fewer clusters, resampling them says little about new clusters: no interval."""
MIN_ROWS = 10
"""With fewer test rows, no interval: five rows can form five clusters."""
LEVEL = 0.95
SMALL_TEST_ROWS = 50


class MeasuredPairs(Protocol):
    """What scoring needs of P pairs, each of shape (P,)."""

    @property
    def pkd(self) -> Floats: ...
    @property
    def censored(self) -> NDArray[np.int8]: ...
    @property
    def antigen(self) -> Ints: ...
    @property
    def antigen_cluster(self) -> Ints | None: ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Difference of two models' scores, averaged over folds, with its bootstrap interval."""

    difference: float
    low: float | None
    high: float | None
    clusters: int
    rows: int
    unit: str = "clusters"
    """What was resampled: ``pairs``, ``clusters`` or ``antigen clusters``."""
    by_antigen: Interval | None = None
    """The same from clusters of antigens, if the groups of the split are not made of them."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def known(self) -> list[tuple[Interval, float, float]]:
        """The intervals that have limits: itself and `by_antigen`."""
        found = [one for one in (self, self.by_antigen) if one is not None]
        return [(i, i.low, i.high) for i in found if i.low is not None and i.high is not None]


@dataclass(frozen=True, slots=True)
class _Fold:
    """The part of a fold that is resampled."""

    cluster: Ints
    """Cluster of each row or of each antigen; clusters are resampled as a whole."""
    difference: Callable[[Floats], Floats]
    """Differences of the two scores in D samples, of which (D, R) has the count of each entry."""


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
        either. ``low`` and ``high`` are None with fewer than `MIN_CLUSTERS` clusters or `MIN_ROWS`
        test rows.
    """
    tests = [np.flatnonzero((s.part == TEST) & (pairs.censored == 0)) for s in splits]
    n_rows, clusters = len(np.unique(np.concatenate(tests))), antigen_clusters(pairs)
    folds = [
        _TestRows(pairs.pkd[rows], a[rows], b[rows], antigen_groups(pairs, rows))
        for rows, a, b in zip(tests, predicted, reference, strict=True)
    ]
    of_split = [split.group[rows] for split, rows in zip(splits, tests, strict=True)]
    of_antigen = [clusters[rows] for rows in tests]
    nested = _is_nested(np.concatenate(of_antigen), np.concatenate(of_split))
    several = len(np.unique(np.concatenate(of_antigen))) > 1

    def interval(cluster: Sequence[Ints], unit: str) -> Interval | None:
        drawn = [fold.resampled_by(one, metric) for fold, one in zip(folds, cluster, strict=True)]
        return _bootstrap(drawn, seed, n_rows, unit)

    if metric == "spearman_within_antigen" and several and not nested:
        return interval(of_antigen, "antigen clusters")
    found = interval(of_split, "clusters")
    if found is None or nested or not several:
        return found
    return replace(found, by_antigen=interval(of_antigen, "antigen clusters"))


def antigen_clusters(pairs: MeasuredPairs) -> Ints:
    """Return the cluster of each pair's antigen, (P,): the antigen if they were not clustered."""
    return pairs.antigen if pairs.antigen_cluster is None else pairs.antigen_cluster


def antigen_groups(pairs: MeasuredPairs, rows: Ints) -> Ints:
    """Group rows, (R,), for the metrics within antigen; the result has shape (R,).

    A group is an antigen. The antigens of one cluster that have too few exact rows for a
    correlation form one group, so that their rows count too.
    """
    antigen = np.unique(pairs.antigen[rows], return_inverse=True)[1]
    exact = np.bincount(antigen, pairs.censored[rows] == 0)
    few = exact[antigen] < metrics.MIN_ROWS_PER_ANTIGEN
    cluster = antigen_clusters(pairs)[rows]
    return np.where(few, len(antigen) + cluster, antigen)


def _is_nested(inner: Ints, outer: Ints) -> bool:
    """Whether each value of `inner`, (R,), occurs with one value of `outer`, (R,), only."""
    values, dense = np.unique(inner, return_inverse=True)
    return len(np.unique(outer * len(values) + dense)) == len(values)


def widening(clusters: int) -> float:
    """Return the factor by which a 95 % bootstrap interval over few clusters is too narrow.

    Student's t relative to the normal distribution, and the bootstrap's standard error relative
    to the unbiased one: 1.58 for 5 clusters, 1.04 for 30.
    """
    level = (1 + LEVEL) / 2
    return float(stdtrit(clusters - 1, level) / ndtri(level) * np.sqrt(clusters / (clusters - 1)))


def _bootstrap(folds: Sequence[_Fold], seed: int, rows: int, unit: str) -> Interval | None:
    joined = np.concatenate([fold.cluster for fold in folds])
    clusters, dense = np.unique(joined, return_inverse=True)
    index = np.split(dense, np.cumsum([len(fold.cluster) for fold in folds])[:-1])
    difference = float(_mean_difference(folds, index, np.ones((1, len(clusters))))[0])
    if np.isnan(difference):
        return None
    draws = np.random.default_rng(seed).integers(len(clusters), size=(DRAWS, len(clusters)))
    enough = len(clusters) >= MIN_CLUSTERS and rows >= MIN_ROWS
    n_parts = max(1, DRAWS * max(map(len, index)) // SAMPLED_AT_ONCE)
    parts = np.array_split(draws[: DRAWS if enough else 0], n_parts)
    known = np.concatenate([_mean_difference(folds, index, _count(part)) for part in parts])
    known = known[~np.isnan(known)]
    unit = "pairs" if len(clusters) == rows else unit
    if not len(known):
        return Interval(difference, None, None, len(clusters), rows, unit)
    ends = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = difference + widening(len(clusters)) * (ends - difference)
    return Interval(difference, float(low), float(high), len(clusters), rows, unit)


def _count(draws_DC: Ints) -> Floats:
    """Count how often each of C clusters is drawn in each of D samples; shape (D, C)."""
    cells = draws_DC + draws_DC.shape[1] * np.arange(len(draws_DC))[:, None]
    return np.bincount(cells.ravel(), minlength=cells.size).reshape(cells.shape).astype(np.float64)


def _mean_difference(folds: Sequence[_Fold], index: Sequence[Ints], counts_DC: Floats) -> Floats:
    """Average over the folds where the difference is defined; NaN where it is in none; (D,)."""
    all_of_them = np.arange(counts_DC.shape[1])
    found = np.array(
        [
            fold.difference(counts_DC if np.array_equal(i, all_of_them) else counts_DC[:, i])
            for fold, i in zip(folds, index, strict=True)
        ]
    )
    defined = ~np.isnan(found)
    n_D = defined.sum(axis=0)
    return np.where(n_D > 0, np.where(defined, found, 0).sum(axis=0) / np.maximum(1, n_D), np.nan)


@dataclass(frozen=True, slots=True)
class _TestRows:
    """The exact test rows of a fold, each of shape (R,)."""

    pkd: Floats
    predicted: Floats
    reference: Floats
    antigen: Ints
    """See `antigen_groups`."""

    def resampled_by(self, cluster: Ints, metric: str) -> _Fold:
        """Resample clusters, (R,); whole antigens if no antigen is in two of them."""
        if metric == "spearman_within_antigen" and _is_nested(self.antigen, cluster):
            return self._of_antigens(cluster)
        if metric in OF_MEAN_ERROR:
            return self._of_sums(cluster, *OF_MEAN_ERROR[metric])

        def difference(counts_DR: Floats) -> Floats:
            both = (self.predicted, self.reference)
            a, b = (score_samples(metric, self.pkd, p, self.antigen, counts_DR) for p in both)
            return a - b

        return _Fold(cluster, difference)

    def _of_sums(
        self,
        cluster: Ints,
        error: Callable[[Floats], Floats],
        finish: Callable[[Floats], Floats],
    ) -> _Fold:
        """Resample clusters, (R,), by the sums of their rows' errors."""
        clusters, dense = np.unique(cluster, return_inverse=True)
        size_K = np.bincount(dense).astype(np.float64)
        a_K, b_K = (
            np.bincount(dense, error(self.pkd - p)).astype(np.float64)
            for p in (self.predicted, self.reference)
        )

        def difference(counts_DK: Floats) -> Floats:
            a, b = (finish(mean_errors(one, size_K, counts_DK)) for one in (a_K, b_K))
            return a - b

        return _Fold(clusters, difference)

    def _of_antigens(self, cluster: Ints) -> _Fold:
        """Resample whole antigens, each with the correlation within it, which stays the same."""
        _, first = np.unique(self.antigen, return_index=True)
        both = (self.predicted, self.reference)
        values = np.array([metrics.spearman_by_group(self.pkd, p, self.antigen) for p in both])
        defined = np.isfinite(values).all(axis=0)
        a, b = values[:, defined]
        return _Fold(
            cluster[first][defined],
            lambda counts_DR: median_of_samples(a, counts_DR) - median_of_samples(b, counts_DR),
        )


def relation(interval: Interval, metric: str) -> Literal["better", "worse"] | None:
    """Tell which model is better, from `compare`; None if an interval includes 0 or is unknown."""
    signs = {(low > 0) - (high < 0) for _, low, high in interval.known}
    if signs == {1} or signs == {-1}:
        return "better" if (signs == {-1}) == METRICS[metric].lower_is_better else "worse"
    return None


def format_difference(interval: Interval) -> str:
    """Format a difference, first model minus second, with its 95 % intervals in brackets.

    The report, the terminal and all sentences show differences in this form.
    """
    limits = [f"[{low:+.3f}, {high:+.3f}]" for _, low, high in interval.known]
    return f"{interval.difference:+.3f} {' and '.join(limits)}".rstrip()


def verdict(
    model: str, reference: str, metric: str, interval: Interval | None, note: str = ""
) -> str:
    """Describe in one sentence whether a model is better than another one, from `compare`.

    `note` describes the reference.
    """
    label, subject = metric_label(metric), "The head" if model == "head" else model
    if interval is None:
        return f"{subject} cannot be compared with {reference}: {label} is undefined on test."
    words = {"better": "is better than", "worse": "is worse than"}
    unknown = "is statistically indistinguishable from" if interval.known else "differs from"
    found = words.get(relation(interval, metric) or "", unknown)
    units = [f"{one.clusters} {one.unit}" for one, *_ in interval.known]
    basis = f"95 % interval over {' and '.join(units)}"
    if not units:
        few = "cluster" if interval.clusters == 1 else interval.unit
        within = "" if interval.unit == "pairs" else f" in {interval.clusters} {few}"
        rows = f"{interval.rows} test row{'s' * (interval.rows != 1)}"
        basis = f"{rows}{within}, too few for an interval"
    return (
        f"{subject} {found} {reference}{note}: {label} {format_difference(interval)} "
        f"({model} minus {reference}; {direction(metric)}; {basis})."
    )


def verdicts(
    compared: Callable[[str, str], Interval | None],
    scores: Mapping[str, Mapping[str, metrics.Scores]],
) -> list[str]:
    """Compare the head with the strongest baselines, with the ridge and with the training mean.

    The first comparison is by rank correlation, within antigens where that is defined, with the
    baseline that is strongest by it. The others are by RMSE: the strongest baseline, the ridge on
    the same vectors, and the training mean. The strongest is chosen on the validation parts: the
    strongest of many on the test parts would be so partly by chance.

    Parameters
    ----------
    compared : callable
        Returns the `Interval` of the head minus a baseline, given its name and a metric.
    scores : dict
        Scores on ``validation`` and ``test`` of ``head`` and each baseline, averaged over splits.
    """
    by_rank = "spearman_within_antigen"
    if scores["head"]["test"][by_rank] is None or best_baseline(scores, by_rank) is None:
        by_rank = "spearman"
    best = {metric: best_baseline(scores, metric) for metric in (by_rank, "rmse")}
    against = [(by_rank, best[by_rank]), ("rmse", best["rmse"])]
    against += [("rmse", name) for name in ("ridge", "train_mean") if name != best["rmse"]]
    lines = []
    for metric, baseline in against:
        if baseline is not None:
            interval = compared(baseline, metric)
            note = ", the strongest baseline on validation" if baseline == best[metric] else ""
            lines.append(verdict("head", baseline, metric, interval, note))
    # A model that is no better than a constant has no other merit.
    lines.sort(key=lambda line: " train_mean" not in line or " is better than " in line)
    mean = scores["train_mean"]["test"] if "train_mean" in scores else None
    return [*against_mean(scores["head"]["test"], mean), *lines]


def best_baseline(scores: Mapping[str, Mapping[str, metrics.Scores]], metric: str) -> str | None:
    """Name of the baseline that is strongest on validation, of those with a score on test."""
    baselines = (name for name in scores if name != "head")
    defined = [name for name in baselines if scores[name]["test"][metric] is not None]
    return strongest({name: scores[name]["validation"] for name in defined}, metric)


def against_mean(own: metrics.Scores, train_mean: metrics.Scores | None) -> list[str]:
    """Say where the head's scores are no better than those of a constant prediction."""
    lines, error, r2 = [], own["rmse"], own["r2"]
    constant = None if train_mean is None else train_mean["rmse"]
    if error is not None and constant is not None and error >= constant:
        lines.append(
            "The head is not better than predicting the training mean: "
            f"RMSE {error:.3f}, training mean {constant:.3f}."
        )
    if r2 is not None and r2 < 0:
        lines.append(
            f"The head is worse than predicting the mean of the scored labels: R2 is {r2:.2f}."
        )
    return lines


def score_rows(pairs: MeasuredPairs, predicted: Floats, rows: Ints) -> metrics.Scores:
    """Score the predictions of some rows; `predicted`, (P,), has one for every pair."""
    groups = antigen_groups(pairs, rows)
    return metrics.score(pairs.pkd[rows], predicted[rows], groups, pairs.censored[rows])


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
    return [*label_problems(pairs), *_split_warnings(splits)]


def _split_warnings(splits: Sequence[Split]) -> list[str]:
    description = splits[0].description
    lines = list(description.get("adapters", ()))
    leaks = total_leaks(splits).get("pair", {})
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
