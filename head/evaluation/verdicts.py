"""Sentences about scores: which model is better, what it can be used for, what limits its scores.

A model is called better only if all intervals of the difference agree (`relation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np
import pandas as pd

from abag.core.arrays import Floats, Ints
from abag.head.data.label_units import DOUBLE_LOG, USUAL_PKD, outside
from abag.head.data.labels import CONFLICT_PKD, FLOOR_SHARE
from abag.head.evaluation.comparison import Interval
from abag.head.evaluation.metrics import (
    METRICS,
    Scores,
    direction,
    headline_metrics,
    metric_label,
)
from abag.head.splits.split_options import HELD_OUT, PARTS_GIVEN
from abag.head.splits.splits import TEST, Split, total_leaks

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs


SMALL_TEST_ROWS = 50
MANY_CENSORED = 0.05
"""Share of censored test rows above which scores of the others are not those of the table."""
ROUNDING = 1e-5
"""Difference of scores, in pKd or shares, that the same model fitted twice can have."""
EXPLAINED_SHARE = 0.5
"""Share of the variance from which a label is said to follow from the antigen or assay alone."""


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
    scores: Mapping[str, Mapping[str, Scores]],
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


def best_baseline(scores: Mapping[str, Mapping[str, Scores]], metric: str) -> str | None:
    """Name of the baseline that is strongest on validation, of those with a score on test."""
    baselines = (name for name in scores if name != "head")
    defined = [name for name in baselines if scores[name]["test"][metric] is not None]
    return strongest({name: scores[name]["validation"] for name in defined}, metric)


def strongest(scores: Mapping[str, Scores], metric: str) -> str | None:
    """Name of the model with the best score, or None if the metric is undefined for all."""
    known = {name: value for name, s in scores.items() if (value := s.get(metric)) is not None}
    if not known:
        return None
    best = min if METRICS[metric].lower_is_better else max
    # A group mean that is undefined for new groups equals the training mean up to rounding.
    return best(known, key=lambda name: round(known[name], 9))


def rank_metric(scores: Scores) -> str:
    """Return the most important headline metric that is defined, or else the RMSE."""
    return next((name for name in headline_metrics() if scores[name] is not None), "rmse")


def against_mean(own: Scores, train_mean: Scores | None) -> list[str]:
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


def plain_verdict(
    compared: Callable[[str, str], Interval | None],
    scores: Mapping[str, Mapping[str, Scores]],
    split: str,
) -> str:
    """Judge the head by its errors against the training mean and the strongest baseline.

    A head that is no better than the mean can still order the antibodies of an antigen.

    Parameters
    ----------
    compared, scores
        As for `verdicts`.
    split : str
        Name of the split method.
    """
    where, use = HELD_OUT.get(split, PARTS_GIVEN)
    difference = compared("train_mean", "rmse") if "train_mean" in scores else None
    if difference is None or not difference.known:
        return (
            f"{where} there are too few test rows to tell whether this model is better than "
            f"predicting the mean: do not use it to {use}."
        )
    found = relation(difference, "rmse")
    if found == "better":
        r2, beside = scores["head"]["test"]["r2"], _beside(compared, scores)
        if r2 is not None and r2 < 0:
            return (
                f"{where} this model is worse than predicting the mean of the test labels (R2 is "
                f"{r2:.2f}). It is better than the mean of the training labels{beside}."
            )
        return f"{where} this model is better than predicting the mean{beside}."
    words = {"worse": "worse than", "equal": "not better than"}
    than = f"{words.get(found or '', 'not clearly better than')} predicting the mean"
    within = "spearman_within_antigen"
    order = compared("train_mean", within)
    if order is not None and relation(order, within) == "better":
        return (
            f"{where} this model orders the antibodies of one antigen better than chance, but its "
            f"values are {than}: use the order, not the values."
        )
    return f"{where} this model is {than}: do not use it to {use}."


def _beside(
    compared: Callable[[str, str], Interval | None], scores: Mapping[str, Mapping[str, Scores]]
) -> str:
    """Compare the head with the strongest baseline, if that is not the mean."""
    best = best_baseline(scores, "rmse")
    interval = None if best in (None, "train_mean") else compared(str(best), "rmse")
    if interval is None:
        return ""
    found = relation(interval, "rmse")
    words = {"better": "and better than", "worse": "but worse than", "equal": "and equals"}
    return f", {words.get(found or '', 'but not clearly better than')} the best baseline, {best}"


def warnings(
    pairs: LabelledPairs, splits: Sequence[Split], test: Scores | None = None
) -> list[str]:
    """Describe what limits the meaning of the scores on test: labels, censored rows, the split."""
    lines = [*label_problems(pairs), *_split_warnings(splits)]
    return lines + _censored_test_rows(test) if test else lines


def _censored_test_rows(test: Scores) -> list[str]:
    n, censored, beyond = test["n"] or 0, test["n_censored"] or 0, test["beyond_bound"]
    if censored <= MANY_CENSORED * n:
        return []
    wrong = "" if beyond is None else f" {beyond:.0%} of these are predicted beyond their bound."
    return [
        f"{censored:,} of {n:,} test rows are censored.{wrong} RMSE, correlations and coverage "
        "describe the other rows only."
    ]


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


class LabelSummary(TypedDict):
    """What the labels look like."""

    pairs: int
    """As ``fit`` counts them: exact labels and bounds of an antibody and an antigen are apart."""
    range: list[float]
    duplicate_rows: int
    """Rows that are merged into the pairs."""
    conflicting_pairs: int
    censored: int
    """Pairs whose label is a bound."""
    commonest: list[float | int] | None
    """The most frequent label and its number of rows."""
    out_of_range: int
    double_logs: int
    replicate_noise: float | None
    disputed_antigens: int


def summarize_labels(pairs: LabelledPairs, labels: LabelledPairs) -> LabelSummary:
    """Count what `label_problems` judges, and what ``plan`` prints.

    `pairs` are those of a fit; `labels` may be the same with each replicate on its own.
    """
    pkd, exact = labels.pkd, labels.censored == 0
    values, counts = np.unique(pkd[exact], return_counts=True)
    return {
        "pairs": len(pairs),
        "range": [float(pkd.min()), float(pkd.max())],
        "duplicate_rows": pairs.counts.get("replicate_rows", 0),
        "conflicting_pairs": pairs.counts.get("conflicting_pairs", 0),
        "censored": pairs.counts.get("censored_pairs", 0),
        "commonest": [float(values[counts.argmax()]), int(counts.max())] if len(values) else None,
        "out_of_range": int(outside(pkd, USUAL_PKD).sum()),
        "double_logs": int((~outside(pkd, DOUBLE_LOG)).sum()),
        "replicate_noise": pairs.noise,
        "disputed_antigens": _count_disputed_antigens(labels),
    }


def label_problems(pairs: LabelledPairs) -> list[str]:
    """Describe properties of the labels that limit what a model learns or what its scores mean."""
    found, pkd = summarize_labels(pairs, pairs), pairs.pkd[pairs.censored == 0]
    lines = [*_repeated_label(pkd, found["commonest"]), *_implausible_labels(found, len(pairs))]
    groups, assay = {"antigen": pairs.antigen}, _assays(pairs)
    if assay is not None:
        groups["assay"] = assay
    for name, group in groups.items():
        share = explained(pkd, group[pairs.censored == 0])
        if share is not None and share >= EXPLAINED_SHARE:
            lines.append(
                f"The {name} alone explains {share:.0%} of the labels' variance: use the metrics "
                "within antigen, and a split that holds out antigens."
            )
    if pairs.noise is not None:
        lines.append(
            f"Replicates have a standard deviation of {pairs.noise:.2f} pKd: the error of a label "
            "that was measured once. That of a median of several is smaller."
        )
    return lines


def _repeated_label(pkd: Floats, commonest: list[float | int] | None) -> list[str]:
    if commonest is None or commonest[1] <= max(1, FLOOR_SHARE * len(pkd)):
        return []
    value, n = commonest
    if n == len(pkd):
        return [f"All exact labels are {value:.3g}: there is nothing to learn."]
    start = f"{n} of {len(pkd)} exact labels equal {value:.4g}"
    limit = "separating these rows from the others inflates the scores. If it is a detection limit,"
    if value == pkd.min():
        return [f"{start}, a floor: {limit} see --floor censor|drop."]
    if value == pkd.max():
        return [f"{start}, a ceiling: {limit} mark them in a column censored."]
    return [f"{start}, neither the lowest nor the highest: check whether it is a default value."]


def _implausible_labels(found: LabelSummary, rows: int) -> list[str]:
    lines, apart = [], f"more than {CONFLICT_PKD:g} pKd apart"
    if (n := found["double_logs"]) > FLOOR_SHARE * rows:
        lines.append(f"{n} labels are between 0.3 and 1.2: was the logarithm taken twice?")
    if n := found["out_of_range"]:
        what = "1 label is" if n == 1 else f"{n} labels are"
        lines.append(f"{what} outside the usual range of pKd (2 to 14). See --label.")
    if n := found["conflicting_pairs"]:
        what = "1 pair has" if n == 1 else f"{n} pairs have"
        lines.append(f"{what} labels or bounds {apart}. See --replicates.")
    if n := found["disputed_antigens"]:
        lines.append(f"{n} antigens have assay means {apart}: do not mix these assays.")
    return lines


def _assays(pairs: LabelledPairs) -> Ints | None:
    """Return the assay of each pair, (P,); None without such a column."""
    column = pairs.table.columns.get("assay")
    if column is None:
        return None
    names = pairs.table.frame[column].iloc[pairs.row].astype(str)
    return np.unique(names, return_inverse=True)[1]


def _count_disputed_antigens(pairs: LabelledPairs) -> int:
    """Count the antigens with conflicting label means in different assays."""
    assay = _assays(pairs)
    if assay is None:
        return 0
    frame = pd.DataFrame({"antigen": pairs.antigen, "assay": assay, "pkd": pairs.pkd})
    means = frame.groupby(["antigen", "assay"])["pkd"].mean().groupby("antigen")
    return int(((means.max() - means.min()) > CONFLICT_PKD).sum())


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
