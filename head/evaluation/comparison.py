"""Compare models on the test part: bootstrap intervals, verdicts and warnings.

Intervals come from a paired bootstrap over clusters, identical for both models, see `bootstrap`. A
model is called better only if all intervals agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import distinct
from abag.head.evaluation import metrics
from abag.head.evaluation.bootstrap import (
    Interval,
    MeasuredPairs,
    Resampled,
    antigen_clusters,
    is_nested,
    resample,
    tested_rows,
)
from abag.head.evaluation.label_problems import label_problems
from abag.head.evaluation.metrics import METRICS, direction, headline_metrics, metric_label
from abag.head.evaluation.pair_order import SCOPES, ClusterPairs, ordered_by_cluster
from abag.head.evaluation.resampling import (
    OF_MEAN_ERROR,
    accuracies,
    mean_errors,
    median_of_samples,
    scorer,
)
from abag.head.splits.splits import TEST, Split, total_leaks

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

SMALL_TEST_ROWS = 50
ROUNDING = 1e-5
"""Difference of scores, in pKd or shares, that the same model fitted twice can have."""
PAIRED_ROWS, MOST_CLUSTERS = 1500, 300
"""Of a fold, for intervals of scores of pairs of rows, whose number grows with the square. Fewer
rows make the interval wider; 300 clusters give nearly the same as more."""


class ScoreInterval(TypedDict):
    """A score with its interval."""

    value: float
    low: float | None
    high: float | None
    clusters: int


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
    return _resample(pairs, splits, [*zip(predicted, reference, strict=True)], metric, seed)


def score_interval(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    predicted: Sequence[Floats],
    metric: str,
    value: float | None = None,
) -> ScoreInterval | None:
    """Compute the score of one model on the test parts, with its bootstrap interval.

    The other arguments and None are as in `compare`. The interval is the smallest that includes
    those over groups of the split and over clusters of antigens.

    Parameters
    ----------
    value : float, optional
        The score if it is known, with which intervals that were found on some rows are centred.
    """
    found = _resample(pairs, splits, [(one,) for one in predicted], metric)
    if found is None:
        return None
    value = found.difference if value is None else value
    shift = value - found.difference
    return {
        "value": value,
        "low": _passed(min, metric, [low + shift for _, low, _ in found.known]),
        "high": _passed(max, metric, [high + shift for *_, high in found.known]),
        "clusters": found.clusters,
    }


def score_intervals(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    predicted: Sequence[Floats],
    scores: metrics.Scores,
) -> dict[str, ScoreInterval]:
    """Compute `score_interval` of each metric that is reported with one, where it is defined.

    `scores` are those on the test parts, averaged over the splits.
    """
    tested = np.concatenate(tested_rows(pairs, splits))
    names = [name for name, one in METRICS.items() if one.headline or one.with_interval]
    if len(distinct(antigen_clusters(pairs)[tested])) <= 1:
        # nearly the same as the Spearman correlation
        names.remove("spearman_within_antigen")
    known = {name: value for name in names if (value := scores.get(name)) is not None}
    found = {
        name: score_interval(pairs, splits, predicted, name, value) for name, value in known.items()
    }
    return {name: one for name, one in found.items() if one is not None}


def _passed(outer: Callable[..., float], metric: str, ends: Sequence[float]) -> float | None:
    """Return the outermost end of intervals, if it is possible, or else the possible end."""
    if not ends:
        return None
    end, best, least = outer(ends), METRICS[metric].best, METRICS[metric].least
    if least is not None:
        end = max(end, least)
    if best is None:
        return end
    return max(end, best) if METRICS[metric].lower_is_better else min(end, best)


def _resample(
    pairs: MeasuredPairs,
    splits: Sequence[Split],
    models: Sequence[Sequence[Floats]],
    metric: str,
    seed: int = 0,
) -> Interval | None:
    tests = tested_rows(pairs, splits)
    folds = [_TestRows.of(pairs, rows, one) for rows, one in zip(tests, models, strict=True)]
    return resample(
        pairs,
        splits,
        lambda k, cluster: folds[k].resampled_by(cluster, metric),
        antigens_only=metric == "spearman_within_antigen",
        seed=seed,
    )


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


@dataclass(frozen=True, slots=True)
class _TestRows:
    """The exact test rows of a fold, each of shape (R,), and the predictions of one or two models.

    What is resampled is the score of the model, or that of the first minus that of the second.
    """

    pkd: Floats
    models: Sequence[Floats]
    antigen: Ints
    """See `antigen_groups`."""
    clusters: ClusterPairs | None

    @classmethod
    def of(cls, pairs: MeasuredPairs, rows: Ints, models: Sequence[Floats]) -> _TestRows:
        """Select rows of predictions of all pairs, (P,)."""
        predicted = [one[rows] for one in models]
        groups = antigen_groups(pairs, rows)
        return cls(pairs.pkd[rows], predicted, groups, cluster_pairs(pairs, rows))

    def resampled_by(self, cluster: Ints, metric: str) -> Resampled:
        """Resample clusters, (R,); whole antigens if no antigen is in two of them."""
        if metric == "spearman_within_antigen" and is_nested(self.antigen, cluster):
            return self._of_antigens(cluster)
        if metric in OF_MEAN_ERROR:
            return self._of_sums(cluster, *OF_MEAN_ERROR[metric])
        if metric in SCOPES:
            return self._of_pairs(cluster, metric)
        scores = [scorer(metric, self.pkd, one, self.antigen) for one in self.models]
        return Resampled(
            cluster, lambda counts_DR: _difference(score(counts_DR) for score in scores)
        )

    def _of_sums(
        self,
        cluster: Ints,
        error: Callable[[Floats], Floats],
        finish: Callable[[Floats], Floats],
    ) -> Resampled:
        """Resample clusters, (R,), by the sums of their rows' errors."""
        clusters, dense = np.unique(cluster, return_inverse=True)
        size_K = np.bincount(dense).astype(np.float64)
        sums = [np.bincount(dense, error(self.pkd - p)).astype(np.float64) for p in self.models]

        def score(counts_DK: Floats) -> Floats:
            return _difference(finish(mean_errors(one, size_K, counts_DK)) for one in sums)

        return Resampled(clusters, score)

    def _of_pairs(self, cluster: Ints, metric: str) -> Resampled:
        """Resample clusters, (R,), joined into `MOST_CLUSTERS`, of at most `PAIRED_ROWS` rows.

        Clusters without a pair that counts are left out: the others may be too few for an interval.
        """
        rows = np.random.default_rng(0).permutation(len(self.pkd))[:PAIRED_ROWS]
        clusters, dense = np.unique(cluster[rows] % MOST_CLUSTERS, return_inverse=True)
        shown = None if self.clusters is None else self.clusters.of(rows)
        counts = [
            ordered_by_cluster(metric, self.pkd[rows], p[rows], self.antigen[rows], shown, dense)
            for p in self.models
        ]
        _, pairs_KK = counts[0]
        kept = np.flatnonzero(pairs_KK.any(axis=0) | pairs_KK.any(axis=1))
        counts = [(right[np.ix_(kept, kept)], every[np.ix_(kept, kept)]) for right, every in counts]
        defined = all(np.isfinite(p).all() for p in self.models)

        def score(counts_DK: Floats) -> Floats:
            found = _difference(accuracies(*one, counts_DK) for one in counts)
            return found if defined else np.full_like(found, np.nan)

        return Resampled(clusters[kept], score)

    def _of_antigens(self, cluster: Ints) -> Resampled:
        """Resample whole antigens, each with the correlation within it, which stays the same."""
        _, first = np.unique(self.antigen, return_index=True)
        values = np.array(
            [metrics.spearman_by_group(self.pkd, p, self.antigen) for p in self.models]
        )
        defined = np.isfinite(values).all(axis=0)
        return Resampled(
            cluster[first][defined],
            lambda counts_DR: _difference(
                median_of_samples(one, counts_DR) for one in values[:, defined]
            ),
        )


def _difference(scores: Iterable[Floats]) -> Floats:
    """Subtract the second of two scores, if there are two, from the first."""
    first, *others = scores
    return first - others[0] if others else first


def relation(interval: Interval, metric: str) -> Literal["better", "worse", "equal"] | None:
    """Tell which model is better, from `compare`; None if an interval includes 0 or is unknown.

    Models are equal if neither their scores nor the limits of any interval differ by more than
    rounding.
    """
    limits = [limit for _, *both in interval.known for limit in both]
    if max(map(abs, [interval.difference, *limits])) < ROUNDING:
        return "equal"
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
    words = {"better": "is better than", "worse": "is worse than", "equal": "equals"}
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
    return rows_to_score(pairs, rows).score(predicted[rows])


def rows_to_score(pairs: MeasuredPairs, rows: Ints) -> metrics.MeasuredRows:
    """Return rows of pairs that several models predict."""
    return metrics.MeasuredRows.of(
        pairs.pkd[rows],
        antigen_groups(pairs, rows),
        pairs.censored[rows],
        cluster_pairs(pairs, rows),
    )


def cluster_pairs(pairs: MeasuredPairs, rows: Ints) -> ClusterPairs | None:
    """Return the clusters of the sequences of some rows, if antibodies were clustered."""
    if pairs.antibody_cluster is None:
        return None
    return ClusterPairs(pairs.antibody_cluster[rows], antigen_clusters(pairs)[rows])


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
