"""Verdicts of a regime: does a model rank better than chance, and predict better than the mean?

All numbers come from out-of-fold predictions, and all intervals from the groups that a regime
counts as one measurement: a jackknife over groups with Student's t of their effective number. With
two sequences new there are two groupings, and the wider interval counts.

With several folds, every two groups count twice, because each is tested by a model that has learned
from the other. Without a signal this doubles the variance of a rank correlation, as tested with
planted tables (benchmarks/bench_regimes.py): claims of 95 % would be false in 8 % of the tables.
The more of the labels is predicted, the less of it remains (benchmarks/bench_intervals.py).
The same holds for the comparison with the best of several baselines, which learn from the same
folds and resemble the model: 3.4 % of the claims would be false instead of 2.5 %; and for the RMSE,
whose lower end also allows for what the predictor learns from pairs that the folds held out.

A claim holds if its whole interval is above 0. Where none does, nothing is shown, which is no
evidence that there is nothing: the sentences say so. Ranking is judged by any clear claim, overall
or within one side. As the clearest of k claims is taken, each is asked for a k-th of the level: so
without a signal 2.5 % of the sentences at most say that ranking is better than chance, too.

Labels with a weight count as much as in the fit, in scores, intervals and effective numbers.

R tested pairs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypeAlias, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri, stdtrit

from abag.core.arrays import Floats, Ints, distinct, weights_of
from abag.core.messages import counted
from abag.head.evaluation.metrics import MIN_ROWS_PER_ANTIGEN, Order, decidable_pairs
from abag.head.labels.headers import PKD, Quantity
from abag.head.regimes.splits import (
    LEAST_GROUPS,
    LEAST_ROWS,
    MUTATED,
    TEST,
    effective_groups,
    effective_number,
    learned_rows,
)

if TYPE_CHECKING:
    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.regimes.splits import MeasuredRegime


LEVEL = 0.975
"""One-sided: both ends of a 95 % interval."""
CROSS_VALIDATED = 2.0
"""Factor of the variance of ranks without a signal, and of differences to the best baseline, with
several folds."""
LEARNING = 0.3
"""By how much the RMSE of a predictor may be lower, relative to the share of the pairs that its
folds did not learn from. With the factor above, its interval then holds the RMSE of new rows in
95 % of planted tables, without both in 79 % (benchmarks/bench_regimes.py)."""
FEWEST_OF_CLASS = 10
"""Different tested pairs that are not of the most frequent class below which nothing is judged.
Intervals of so few ranks are too narrow (benchmarks/bench_binary.py), and probabilities that are
all too low are better than the prevalence where few of a rare class happen to be tested."""
RARE = 0.2
"""Share of these pairs from which half as many are enough to judge probabilities."""
LEAST_OF_SIDE = 3.0
"""Effective groups of the lower, and of the higher rows of pairs, below which a concordance has no
interval."""
FEWEST_RANKED = 3
"""Pairs below which nothing is ranked."""
ENOUGH_RANKED = MIN_ROWS_PER_ANTIGEN
"""Pairs from which a cell has a rank correlation of its own."""
NEARLY_ALL = 0.9
"""Weight from which a part is the predictor itself, and no rival of it."""
MANY_BOUNDS = 0.2
"""Share of bounds among the tested pairs from which errors of the others are not judged: what could
be measured exactly is a selection."""
COVERED = float(ndtri(0.95))
"""Half the width of a 90 % interval, in sigmas."""
SURE = 1.96
"""Half the width of a 95 % interval, in standard deviations."""
TIED = 1e-12
"""Variance of ranks below which they are equal."""
ROUNDING = 9
"""Digits of predictions that are compared: sums in another order are equal."""
TRAIN_MEAN = "train_mean"
"""Name of the baseline that predicts the mean of the training labels."""
INDISTINGUISHABLE = "statistically indistinguishable from"
NOT_SMALLER = "errors are not shown to be smaller than those of the mean"
NOT_TRUER = "probabilities are not shown to be better than the prevalence"
"""Said of errors that no interval tells from those of the mean, and of a predictor that is it."""


class Claim(NamedTuple):
    """Hold a mean with its 95 % interval; without limits where groups are too few."""

    value: float
    low: float | None
    high: float | None
    groups: float
    """Effective number of independent groups."""

    @property
    def holds(self) -> bool:
        """Return whether the whole interval is above 0."""
        return self.low is not None and self.low > 0

    @property
    def fails(self) -> bool:
        """Return whether the whole interval is below 0."""
        return self.high is not None and self.high < 0

    def above(self, chance: float) -> Claim:
        """Return the claim about what a value is above chance."""
        low, high = (None if end is None else end - chance for end in (self.low, self.high))
        return Claim(self.value - chance, low, high, self.groups)


@dataclass(frozen=True, slots=True)
class TestedPairs:
    """Hold the test pairs of a regime, fold after fold; all of shape (R,)."""

    rows: Ints
    """Index of each pair in the table."""
    pkd: Floats
    """Labels, and bounds where `censored` says so."""
    fold: Ints
    antibody: Ints
    antigen: Ints
    groups: Sequence[Ints]
    """One or two groupings of the pairs."""
    trained_share: float = 1.0
    """Share of the pairs that the folds learned from; the predictor learns from all."""
    by_positions: bool = False
    """Whether each fold held out other positions of a library, of which there are few."""
    weight: Floats | None = None
    """How much each pair counts, as in the fit; None: all as much."""
    censored: NDArray[np.int8] | None = None
    """-1 if the label lies below its bound, 1 if above, 0 if exact; None: all are exact."""

    @classmethod
    def of(cls, pairs: LabelledPairs, measured: MeasuredRegime) -> TestedPairs:
        """Take the test pairs of the folds of a regime."""
        tests = []
        trained = []
        is_used = np.zeros(len(pairs.pkd), np.bool_)
        for split in measured.splits:
            tests.append(split.rows(TEST))
            trained.append(len(learned_rows(split)))
            is_used |= split.is_used
        rows = np.concatenate(tests)
        sizes = [len(test) for test in tests]
        return cls(
            rows=rows,
            pkd=pairs.pkd[rows],
            fold=np.repeat(np.arange(len(tests)), sizes),
            antibody=pairs.antibody[rows],
            antigen=pairs.antigen[rows],
            groups=[group[rows] for group in measured.groups],
            trained_share=float(np.mean(trained) / is_used.sum()),
            by_positions=MUTATED in measured.regime.levels,
            weight=weights_of(pairs.share, rows),
            censored=pairs.censored[rows],
        )

    @property
    def smallest_groups(self) -> Ints:
        """Return those of the groups that tell least, (R,): with two sequences new, of one side."""
        return min(self.groups, key=effective_groups)

    @property
    def is_exact(self) -> NDArray[np.bool_]:
        """Return which pairs have a label, not a bound, (R,)."""
        return np.asarray(self.side == 0)

    @property
    def side(self) -> NDArray[np.int8]:
        """Return `censored`, 0 where all are exact."""
        return np.zeros(len(self.rows), np.int8) if self.censored is None else self.censored

    def take(self, folds: Sequence[Floats]) -> Floats:
        """Take the values of these pairs from those of all pairs, (P,), of each fold; (R,)."""
        return np.stack([*folds])[self.fold, self.rows]

    def some(self, inside: NDArray[np.bool_]) -> TestedPairs:
        """Return some of these pairs, (R,) of which."""
        names = ("rows", "pkd", "fold", "antibody", "antigen")
        return replace(
            self,
            **{name: getattr(self, name)[inside] for name in names},
            groups=[group[inside] for group in self.groups],
            weight=None if self.weight is None else self.weight[inside],
            censored=self.side[inside],
        )

    @property
    def dependence(self) -> float:
        """Return the factor of a variance if pairs tested in one fold train another."""
        return CROSS_VALIDATED if len(np.unique(self.fold)) > 1 else 1.0

    @property
    def effective(self) -> float:
        """Return the effective number of independent groups, the least of the groupings."""
        return min(effective_groups(group, self.weight) for group in self.groups)


class RegimeScore(TypedDict):
    """Hold one row of the table of regimes; JSON."""

    regime: str
    words: str
    n: int
    """Different pairs that were tested."""
    effective_pairs: NotRequired[float]
    """With weights: how many pairs of equal weight are as informative as the tested ones."""
    groups: float
    """Effective number of independent groups among them."""
    spearman: dict[str, float | None] | None
    spearman_within_antigen: dict[str, float | None] | None
    spearman_within_antibody: dict[str, float | None] | None
    rmse: float
    """In pKd."""
    r2: float | None
    """Of all test pairs together, relative to their mean, as ``sklearn.metrics.r2_score``; None for
    equal labels."""
    skill: float | None
    """Share of the squared error of the means of the training parts that is avoided."""
    coverage: float | None
    """Share of the pairs within their 90 % intervals."""
    rmse_of_mean: float
    best_baseline: str
    rmse_of_best: float
    intervals: dict[str, list[float] | None]
    """95 % intervals of the scores that are plain numbers; None where groups are too few."""
    better_than_mean: dict[str, float | None]
    """Difference of squared errors, in pKd^2; above 0 if the model is better."""
    better_than_best: dict[str, float | None]
    bounds: NotRequired[float]
    """Share of bounds among the tested pairs, if there are any."""
    concordance: NotRequired[dict[str, float | None] | None]
    """Share of the pairs of rows with a known order, bounds among them, that are predicted in this
    order, with its interval; given with ``bounds``."""
    limits: NotRequired[list[dict[str, Any]]]
    """Where bounds are many: each ``limit`` of the assay, in pKd, on which ``side`` (-1 or 1) of it
    labels are not measured, and which share of the pairs predicted ``beyond`` it are there, and of
    those predicted ``within`` are not, with their intervals."""
    classes: NotRequired[dict[str, Any]]
    """Of labels that are classes: ``positive`` (name of the highest class), ``positives``
    (different pairs of it among the tested ones), ``prevalence``, ``average_precision``, ``auc``,
    ``auc_within_antigen`` and ``auc_within_antibody`` with their intervals, ``brier`` (mean squared
    error of the number of the class), ``brier_of_mean``, ``brier_of_best``, and of two classes
    ``log_loss`` and ``log_loss_of_mean`` in nats, and ``log_loss_gain``, by how much the former is
    smaller, with its interval."""
    by_round: NotRequired[list[dict[str, Any]]]
    """After ``--add``, where both have enough pairs: the same scores of the pairs of round 0, and
    of those of later rounds, which were selected."""
    sentence: str


def largest_rmse(score: Mapping[str, Any]) -> float:
    """Return the upper end of the interval of the RMSE of a regime, or the RMSE if it has none."""
    interval = score["intervals"].get("rmse")
    return float(score["rmse"] if interval is None else interval[1])


def score_regime(
    name: str,
    words: str,
    every: TestedPairs,
    predicted: Floats,
    mean: Floats,
    baselines: Mapping[str, Floats],
    inside: Floats | None,
    *,
    weights: Mapping[str, float] | None = None,
    quantity: Quantity = PKD,
) -> RegimeScore:
    """Judge out-of-fold predictions of a regime, (R,) each, by the exact labels of `every` pair.

    `mean` has the means of the training parts, `baselines` the predictions of other models by name,
    and `inside` 1 where the label is within the 90 % interval. `weights` are those of the
    predictor's parts: a baseline that has nearly all the weight is the predictor, which is not
    compared with itself. Bounds are judged by their order, and by which side of the assay's limit
    they are predicted on. Of a `quantity` of classes, predictions are probabilities, or expected
    numbers of classes.
    """
    of_classes = bool(quantity.classes)
    is_exact = every.is_exact
    tested = every.some(is_exact)
    pkd = tested.pkd
    weight = tested.weight
    square = np.square(pkd - predicted[is_exact])
    of_mean = np.square(pkd - mean[is_exact])
    covered = None if inside is None else inside[is_exact]
    itself = {part for part, share in (weights or {}).items() if share >= NEARLY_ALL}
    rivals = {part: row[is_exact] for part, row in baselines.items() if part not in itself}
    best, of_best = _best_baseline(tested, rivals) or (TRAIN_MEAN, of_mean)
    against_mean = mean_claim(of_mean - square, tested.groups, weight=weight)
    against_best = mean_claim(of_best - square, tested.groups, tested.dependence, weight)
    # a mean of equal labels differs from them by rounding
    of_test_mean = np.zeros(len(pkd))
    if np.ptp(pkd):
        of_test_mean = np.square(pkd - np.average(pkd, weights=weight))
    r2_of_pairs = _avoided(square, of_test_mean, weight)
    skill_of_pairs = _avoided(square, of_mean, weight)
    intervals = {
        "rmse": _error_interval(square, tested),
        "r2": _share_interval(r2_of_pairs, tested),
        "skill": _share_interval(skill_of_pairs, tested),
        "coverage": _share_interval(covered, tested, least=0.0),
        "rmse_of_mean": _root_interval(of_mean, tested),
        "rmse_of_best": _root_interval(of_best, tested),
    }
    claims = _rank_claims(tested, predicted[is_exact])
    score: RegimeScore = {
        "regime": name,
        "words": words,
        "n": len(np.unique(tested.rows)),
        "groups": tested.effective,
        "spearman": _as_json(claims[""]),
        "spearman_within_antigen": _as_json(claims[" within antigens"]),
        "spearman_within_antibody": _as_json(claims[" within antibodies"]),
        "rmse": _root(square, weight),
        "r2": _mean(r2_of_pairs, weight),
        "skill": _mean(skill_of_pairs, weight),
        "coverage": _mean(covered, weight),
        "rmse_of_mean": _root(of_mean, weight),
        "best_baseline": best,
        "rmse_of_best": _root(of_best, weight),
        "intervals": intervals,
        "better_than_mean": against_mean._asdict(),
        "better_than_best": against_best._asdict(),
        "sentence": "",
    }
    if weight is not None:
        score["effective_pairs"] = effective_number(weight)
    if TRAIN_MEAN in itself:
        not_better = NOT_TRUER if of_classes else NOT_SMALLER
        errors_in_words = f"{not_better}, which has nearly all the weight"
    else:
        loss_words = PROBABILITIES if of_classes else ERRORS
        errors_in_words = describe_loss(loss_words, against_mean, against_best, best)
    bounds = float(np.average(~every.is_exact, weights=every.weight)) if len(every.rows) else 0.0
    is_selection = bounds >= MANY_BOUNDS
    if bounds:
        concordance = concordance_claim(every, predicted)
        score["bounds"] = bounds
        score["concordance"] = _as_json(concordance)
        if is_selection:
            limits = limit_claims(every, predicted)
            score["limits"] = [limit.as_json() for limit in limits]
            errors_in_words = _describe_bounds(bounds, concordance, limits, quantity)
    # the sentence takes the clearest of several claims: the more there are, the more it asks for
    different = {claim for claim in claims.values() if _has_interval(claim)}
    level = 1 - (1 - LEVEL) / max(1, len(different) + is_selection)
    judged = _rank_claims(tested, predicted[is_exact], level)
    rarer = _count_rarer(tested)
    if of_classes and rarer < FEWEST_OF_CLASS:
        judged = {}
    if of_classes and _are_few(rarer, score["n"]):
        errors_in_words = (
            f"{PROBABILITIES.noun} cannot be judged, as {rarer} of {score['n']:,} tested pairs "
            f"{'is' if rarer == 1 else 'are'} not of the most frequent class"
        )
    if is_selection:
        in_order = concordance_claim(every, predicted, level)
        above_chance = None if in_order is None else in_order.above(0.5)
        judged = {" of labels and bounds": above_chance, **judged}
    score["sentence"] = f"{words}: {describe_ranking(judged)}; {errors_in_words}"
    return score


def _count_rarer(tested: TestedPairs) -> int:
    """Count the pairs that are not of the most frequent class, each once."""
    _, first = np.unique(tested.rows, return_index=True)
    return int(len(first) - np.unique(tested.pkd[first], return_counts=True)[1].max(initial=0))


def _are_few(rarer: int, pairs: int) -> bool:
    """Return whether pairs of a rare class are too few to judge probabilities by their losses."""
    least = FEWEST_OF_CLASS if rarer < RARE * pairs else FEWEST_OF_CLASS // 2
    return rarer < least


def _best_baseline(
    tested: TestedPairs, baselines: Mapping[str, Floats]
) -> tuple[str, Floats] | None:
    """Return name and squared errors, (R,), of the baseline with the smallest; None without any."""
    errors = {}
    for name, predicted in baselines.items():
        square = np.square(tested.pkd - predicted)
        if np.isfinite(square).all():
            errors[name] = square
    if not errors:
        return None
    best = min(errors, key=lambda name: float(np.average(errors[name], weights=tested.weight)))
    return best, errors[best]


def _avoided(square: Floats, reference: Floats, weight: Floats | None) -> Floats | None:
    """Return what each pair adds to the share of the reference's squared errors that is avoided.

    The mean of the result is that share, a ratio of two means; its deviations are those of the
    ratio to first order. None if the reference has no error.
    """
    if not reference.any():
        return None
    mean = np.average(reference, weights=weight)
    share = 1 - np.average(square, weights=weight) / mean
    return np.asarray(share + ((1 - share) * reference - square) / mean)


def _mean(value: Floats | None, weight: Floats | None) -> float | None:
    return None if value is None else float(np.average(value, weights=weight))


def _root(square: Floats, weight: Floats | None) -> float:
    return float(np.sqrt(np.average(square, weights=weight)))


def _share_interval(
    value: Floats | None, tested: TestedPairs, least: float = -np.inf
) -> list[float] | None:
    """Return the interval of a mean that is at most 1."""
    claim = None if value is None else mean_claim(value, tested.groups, weight=tested.weight)
    if claim is None or claim.low is None or claim.high is None:
        return None
    return [max(least, claim.low), min(1.0, claim.high)]


def _root_interval(
    square: Floats, tested: TestedPairs, factor: float = 1.0, trained_share: float = 1.0
) -> list[float] | None:
    """Return the interval of a root mean square; `factor` multiplies its variance.

    It is one of the logarithm: a mean of squares is skewed, and never below 0.
    """
    claim = mean_claim(square, tested.groups, factor, tested.weight)
    if claim.low is None or claim.high is None:
        return None
    if not claim.value:
        return [0.0, 0.0]
    share = (claim.high - claim.low) / 2 / claim.value
    root = np.sqrt(claim.value)
    low = root * np.exp(-share / 2) * (1 - LEARNING * (1 - trained_share))
    return [float(low), float(root * np.exp(share / 2))]


def _error_interval(square: Floats, tested: TestedPairs) -> list[float] | None:
    """Return the interval of the RMSE of new pairs like the tested ones."""
    interval = _root_interval(square, tested, tested.dependence, tested.trained_share)
    folds = distinct(tested.fold)
    if interval is None or not tested.by_positions or len(folds) < 2:
        return interval
    # variants share their few positions: those of one fold are one measurement
    roots = []
    for fold in folds:
        inside = tested.fold == fold
        roots.append(
            _root(square[inside], None if tested.weight is None else tested.weight[inside])
        )
    logarithms = np.log(roots)
    error = logarithms.std(ddof=1) / np.sqrt(len(folds))
    half = float(stdtrit(len(folds) - 1, LEVEL) * error)
    root = _root(square, tested.weight)
    low = float(root * np.exp(-half) * (1 - LEARNING * (1 - tested.trained_share)))
    high = float(root * np.exp(half))
    return [min(interval[0], low), max(interval[1], high)]


def _as_json(claim: Claim | None) -> dict[str, float | None] | None:
    return None if claim is None else claim._asdict()


def cells(fold: Ints, index: Ints) -> Ints:
    """Number the pairs of one fold and one sequence alike, (R,)."""
    return fold * (int(index.max(initial=0)) + 1) + index


def describe_ranking(claims: Mapping[str, Claim | None]) -> str:
    """Say what is shown of the ranking: by the first claim that is clear, better or worse.

    A claim that is not clear shows nothing: neither that ranking is better, nor that it is not.
    """
    judged = {where: claim for where, claim in claims.items() if _has_interval(claim)}
    better = [where for where, claim in judged.items() if claim is not None and claim.holds]
    worse = [where for where, claim in judged.items() if claim is not None and claim.fails]
    if better:
        text = f"ranking{better[0]} is better than chance"
        return f"{text}, but worse{worse[0] or ' overall'}" if worse else text
    if worse:
        return f"ranking{worse[0]} is worse than chance"
    if judged:
        return "ranking is not shown to be better than chance"
    return "ranking cannot be judged"


def _has_interval(claim: Claim | None) -> bool:
    return claim is not None and claim.low is not None


class LossWords(NamedTuple):
    """How a loss is spoken of."""

    noun: str
    better: str
    worse: str
    mean: str
    """What it is compared with first."""
    not_shown: str


ERRORS = LossWords("errors", "smaller", "larger", "those of the mean", NOT_SMALLER)
PROBABILITIES = LossWords("probabilities", "better", "worse", "the prevalence", NOT_TRUER)


def describe_loss(words: LossWords, against_mean: Claim, against_best: Claim, best: str) -> str:
    """Say what is shown of a loss beside that of the mean, and of the best baseline."""
    if not _has_interval(against_mean):
        return f"{words.noun} cannot be judged"
    if against_mean.fails:
        return f"{words.noun} are {words.worse} than {words.mean}"
    if not against_mean.holds:
        return words.not_shown
    text = f"{words.noun} are {words.better} than {words.mean}"
    if best == TRAIN_MEAN:  # no other baseline
        return text
    relation = f"but not clearly {words.better}"
    if against_best.holds or against_best.fails:
        relation = f"and {words.better}" if against_best.holds else f"but {words.worse}"
    name = best.replace("_", " ")
    return f"{text}, {relation} than those of the best baseline ({name})"


def _describe_bounds(
    share: float,
    concordance: Claim | None,
    limits: Sequence[LimitClaims] = (),
    quantity: Quantity = PKD,
) -> str:
    """Say why errors are not judged where many labels are bounds, and what is known instead."""
    text = f"errors cannot be judged, as {share:.0%} of the tested pairs are bounds"
    if concordance is not None:
        cell = with_interval(concordance.value, [concordance.low, concordance.high])
        text += f": of pairs of these with a known order, {cell} are predicted in this order"
    for limit in limits:
        where, other = ("below", "above") if limit.side < 0 else ("above", "below")
        untold = f"sigma does not tell how far {where}"
        at = f"{quantity} {quantity.show(limit.limit)}"
        if limit.beyond is None:
            text += f"; many labels are only known to be {where} {at}, and {untold} they are"
            continue
        text += f"; of pairs predicted {where} {at}, {_percent(limit.beyond)} are {where} it"
        if limit.within is not None:
            text += f" and of those predicted {other}, {_percent(limit.within)} {other} it"
        text += f", but {untold}"
    return text


def _percent(claim: Claim) -> str:
    return with_interval(claim.value, [claim.low, claim.high], "{:.0%}".format)


class LimitClaims(NamedTuple):
    """Hold which pairs are beyond a limit of the assay, where labels are bounds."""

    side: int
    """-1 if labels below the limit are not measured, 1 if those above are not."""
    limit: float
    beyond: Claim | None
    """Share of the pairs predicted beyond the limit that are; None of fewer than `LEAST_ROWS`."""
    within: Claim | None
    """Share of the other pairs that are not beyond it."""

    def as_json(self) -> dict[str, Any]:
        """Return this with its claims as mappings."""
        claims = {"beyond": _as_json(self.beyond), "within": _as_json(self.within)}
        return {"side": self.side, "limit": self.limit, **claims}


def limit_claims(tested: TestedPairs, predicted: Floats) -> list[LimitClaims]:
    """Return what predictions, (R,), tell of the side of each limit beyond which many labels are.

    Exact labels do not tell how far beyond the limit the others are, but whether predictions find
    them. Bounds differ in some tables: the limit is their median, and bounds that leave open on
    which side of it a label is are left out.
    """
    limits = []
    for side in (-1, 1):
        is_bound = tested.side == side
        if np.average(is_bound, weights=tested.weight) < MANY_BOUNDS:
            continue
        bounds = np.sort(tested.pkd[is_bound])
        limit = float(bounds[len(bounds) // 2])
        away = side * (tested.pkd - limit)
        # a label may be the limit itself, one that is a bound may not
        is_beyond = (side * tested.side >= 0) & np.where(is_bound, away >= 0, away > 0)
        is_within = (side * tested.side <= 0) & (away <= 0)
        is_told = is_beyond | is_within
        is_called = side * (predicted - limit) > 0
        beyond = _share_claim(tested.some(is_called & is_told), is_beyond[is_called & is_told])
        within = _share_claim(tested.some(~is_called & is_told), is_within[~is_called & is_told])
        limits.append(LimitClaims(side, limit, beyond, within))
    return limits


def _share_claim(tested: TestedPairs, is_so: NDArray[np.bool_]) -> Claim | None:
    """Return the share of pairs, (R,), of which something is so; None of too few.

    With several folds half of the pairs tell how sure it is (benchmarks/bench_promises.py).
    """
    if len(distinct(tested.rows)) < LEAST_ROWS:
        return None
    share = float(np.average(is_so, weights=tested.weight))
    if tested.effective < LEAST_GROUPS:
        return Claim(share, None, None, tested.effective)
    telling = tested.effective / tested.dependence
    return Claim(share, *interval_of_share(share, telling), tested.effective)


def interval_of_share(share: float, number: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of so many pairs."""
    less = SURE**2 / number
    middle = (share + less / 2) / (1 + less)
    half = np.sqrt(less * share * (1 - share) + (less / 2) ** 2) / (1 + less)
    return float(middle - half), float(middle + half)


def concordance_claim(
    tested: TestedPairs,
    predicted: Floats,
    level: float = LEVEL,
    cell: Ints | None = None,
) -> Claim | None:
    """Return the share of decidable pairs of test pairs in the right order, and its interval.

    Pairs of one cell are compared, by default those of one fold; `cell` and `predicted` are (R,).
    The interval is a jackknife of the log odds: a group takes its pairs with it. There is none with
    fewer than `LEAST_OF_SIDE` groups of lower or of higher rows.

    References
    ----------
    Welch, Biometrika 34, 1947, for the degrees of freedom of two sides; Pepe, The Statistical
    Evaluation of Medical Tests for Classification and Prediction, 2003, 5.2, for the log odds.
    """
    lower = []
    upper = []
    right = []
    size = []
    of_cell = tested.fold if cell is None else cell
    in_order = np.argsort(of_cell, kind="stable")
    for rows in np.split(in_order, np.flatnonzero(np.diff(of_cell[in_order])) + 1):
        order = decidable_pairs(tested.pkd[rows], tested.side[rows])
        if not order.pairs:
            continue
        low, high, is_right = order.compare(predicted[rows])
        lower.append(rows[low])
        upper.append(rows[high])
        right.append(is_right)
        listed = np.full(len(low), order.pairs / len(low))
        if tested.weight is not None:
            listed = listed * tested.weight[rows[low]] * tested.weight[rows[high]]
        size.append(listed)
    if not size:
        return None
    low_of_pair = np.concatenate(lower)
    high_of_pair = np.concatenate(upper)
    right_of_pair = np.concatenate(right)
    times = np.concatenate(size)
    value = float(np.average(right_of_pair, weights=times))
    away = times * (right_of_pair - value) / times.sum()
    factor = 1 + (tested.dependence - 1) * (1 - (2 * value - 1) ** 2) ** 2

    def ends(group: Ints, _size: Floats, _n: float) -> tuple[float, float] | None:
        sides = (group[low_of_pair], group[high_of_pair])
        n_sides = [effective_groups(side, times) for side in sides]
        if min(n_sides) < LEAST_OF_SIDE:
            return None
        if value in (0.0, 1.0):
            away_from_value = least_perfect(min(n_sides), level)
            return (1 - away_from_value, 1.0) if value else (0.0, away_from_value)
        variance, degrees = _variance_of_sides(away, sides, n_sides)
        odds = value * (1 - value)
        half = float(stdtrit(degrees, level) * np.sqrt(factor * variance) / odds)
        low, high = expit(logit(value) + half * np.array([-1, 1])).tolist()
        return low, high

    weight = np.ones(len(of_cell)) if tested.weight is None else tested.weight
    return _widest(value, tested.groups, weight, ends)


def least_perfect(groups: float, level: float = LEVEL) -> float:
    """Return the largest share of wrong ones of which none is among so many groups by chance."""
    return float(1 - (1 - level) ** (1 / groups))


def _variance_of_sides(
    away: Floats, sides: tuple[Ints, Ints], n_sides: Sequence[float]
) -> tuple[float, float]:
    """Return the variance of a concordance, and its degrees of freedom.

    `away` is what each pair of rows adds to it, and `sides` are the groups of the lower and of the
    higher row, of which `n_sides` are effective. The side with fewer is known less.
    """
    lower, higher = sides
    groups = max(int(lower.max()), int(higher.max())) + 1
    moved = [np.bincount(side, away, groups) for side in sides]
    twice = np.bincount(lower, np.where(lower == higher, away, 0.0), groups)
    squares = np.square(moved).sum(axis=1)
    spare = squares / (np.array(n_sides) - 1)
    variance = float(np.square(moved[0] + moved[1] - twice).sum() + spare.sum())
    if not spare.any():  # all are tied
        return variance, 1.0
    degrees = float(squares.sum() ** 2 / (squares @ spare))
    return variance, min(degrees, max(n_sides) - 1)


def is_by_chance(sentence: str) -> bool:
    """Return whether the sentence of a regime says nothing for its ranking, or something against.

    Predictors of earlier versions say "not better".
    """
    relation = "not shown to be better|not better|worse"
    return re.search(rf"\bis ({relation}) than chance\b", sentence) is not None


def compare_models(
    words: str,
    name: str,
    other: str,
    tested: TestedPairs,
    predicted: Floats,
    reference: Floats,
    quantity: Quantity,
) -> str:
    """Say in one sentence which of two models has smaller errors in a regime."""
    is_exact = tested.is_exact
    tested = tested.some(is_exact)
    square = np.square(tested.pkd - predicted[is_exact])
    other_square = np.square(tested.pkd - reference[is_exact])
    claim = mean_claim(other_square - square, tested.groups, weight=tested.weight)
    relation = INDISTINGUISHABLE
    tests = len(distinct(tested.rows))
    are_few = bool(quantity.classes) and _are_few(_count_rarer(tested), tests)
    if (claim.holds or claim.fails) and not are_few:
        relation = "better than" if claim.holds else "worse than"
    errors = [_root(square, tested.weight), _root(other_square, tested.weight)]
    shown = " and ".join(quantity.show(error, 3) for error in errors)
    in_words = f"RMSE {shown} {quantity}"
    if quantity.classes:
        in_words = f"{quantity.squared_error} {errors[0] ** 2:.3f} and {errors[1] ** 2:.3f}"
    groups = f"{counted(tests, 'test pair')} in effectively {claim.groups:.0f} groups"
    return f"{words}: {name} is {relation} {other} ({in_words}, {groups})"


def mean_claim(
    value: Floats, groups: Sequence[Ints], factor: float = 1.0, weight: Floats | None = None
) -> Claim:
    """Return the mean of values, (R,), with the widest of its intervals over the groupings.

    `factor` multiplies the variance, and `weight`, (R,), is how much each value counts.
    """
    w = np.ones(len(value)) if weight is None else weight
    mean = float(np.average(value, weights=weight))

    def ends(group: Ints, size: Floats, n: float) -> tuple[float, float]:
        residual = np.bincount(group, (value - mean) * w)
        without = residual / (1 - size / size.sum())
        # a jackknife: by how much the mean moves without each group
        variance = factor * np.square(without).sum() * (1 - 1 / len(size)) / size.sum() ** 2
        error = float(stdtrit(n - 1, LEVEL) * np.sqrt(variance))
        return mean - error, mean + error

    return _widest(mean, groups, w, ends)


Ends: TypeAlias = Callable[[Ints, Floats, float], tuple[float, float] | None]
"""Returns an interval, or None, given the group of each row, (R,), the sizes of the groups, (G,),
and their effective number."""


def _widest(value: float, groups: Sequence[Ints], weight: Floats, ends: Ends) -> Claim:
    """Claim a value with the widest of its intervals over the groupings; few groups have none."""
    low = value
    high = value
    least = np.inf
    for group in groups:
        _, dense = np.unique(group, return_inverse=True)
        size: Floats = np.asarray(np.bincount(dense, weight), np.float64)
        n = effective_number(size)
        least = min(least, n)
        limits = ends(dense, size, n) if n >= LEAST_GROUPS else None
        if limits is None:
            return Claim(value, None, None, least)
        low = min(low, limits[0])
        high = max(high, limits[1])
    return Claim(value, low, high, least)


class RankValues(NamedTuple):
    """Hold rank correlations, and what each of R pairs adds to them; all of shape (R,)."""

    unit: Ints
    """What a pair is ranked in, see `rank_units`; -1 of pairs that are not ranked."""
    correlation: Floats
    """Spearman correlation of its unit; NaN of pairs that are not ranked."""
    influence: Floats
    """By how much the correlation grows with the weight of the pair, with mean 0 in a unit."""
    shortfall: Floats
    """By how much the correlation of so few pairs is expected to be below that of many."""


def rank_units(cell: Ints, sequence: Ints) -> Ints:
    """Number the sets of pairs within which pairs are ranked, (R,); -1 where nothing is.

    Only pairs of one cell are compared: those of one fold, and of one antigen or antibody where one
    is held fixed. Labels and predictions of two folds differ in level, because each fold learns
    from the labels that the others test: pooled as they are, even training means would be ranked,
    in the wrong order. A cell of `ENOUGH_RANKED` pairs is a unit. Smaller ones would leave most
    pairs of many tables unranked, and their correlations are coarse and too small: so cells of one
    `sequence`, (R,), are pooled once the mean of each cell is taken off its labels and predictions,
    and the cells of sequences that have too few pairs for that are pooled together.
    """
    _, dense, size = np.unique(cell, return_inverse=True, return_counts=True)
    of_cell = size[dense]
    unit = np.where(of_cell >= ENOUGH_RANKED, dense, -1)
    is_pooled = (of_cell >= 2) & (of_cell < ENOUGH_RANKED)
    if not is_pooled.any():
        return unit
    _, number, pairs = np.unique(sequence[is_pooled], return_inverse=True, return_counts=True)
    rest = len(size) + len(pairs)
    unit[is_pooled] = np.where(pairs[number] >= ENOUGH_RANKED, len(size) + number, rest)
    if np.count_nonzero(unit == rest) < FEWEST_RANKED:
        unit[unit == rest] = -1
    return unit


def rank_values(
    predicted: Floats,
    pkd: Floats,
    cell: Ints,
    sequence: Ints,
    weight: Floats | None,
) -> RankValues:
    """Return the Spearman correlation of each unit of `rank_units`, and what pairs add to it.

    Pairs with a weight, (R,), count as so many pairs. Units of equal labels are not ranked; equal
    predictions have a correlation of 0. The influence of a pair is the derivative of the
    correlation by its weight: of the product of ranks, of both variances, and of the ranks of all
    others.

    References
    ----------
    Croux and Dehon, Statistical Methods & Applications 19, 2010, for the influence function;
    Hoeffding, Annals of Mathematical Statistics 19, 1948, for the expectation in small samples.
    """
    nowhere = np.full(len(pkd), np.nan)
    unit = rank_units(cell, sequence)
    rows = np.flatnonzero(unit >= 0)
    _, dense = np.unique(unit[rows], return_inverse=True)
    _, cell_of_row = np.unique(cell[rows], return_inverse=True)
    w = np.ones(len(rows)) if weight is None else weight[rows]
    within = _Within(dense, cell_of_row, w)
    x = within.ranked(predicted[rows])
    y = within.ranked(pkd[rows])
    length = np.sqrt(x.variance * y.variance)  # 0 if predictions are equal: they rank nothing
    scale = np.where(length > 0, length, 1.0)
    correlation = np.clip(within.mean(x.rank * y.rank) / scale, -1, 1) * (length > 0)
    product = x.rank * y.rank + x.order.above(w * y.rank) + y.order.above(w * x.rank)
    influence = (product - within.mean(product)) / scale
    for ranked in (x, y):
        square = np.square(ranked.rank) + 2 * ranked.order.above(w * ranked.rank)
        relative = (square - within.mean(square)) / np.where(length > 0, ranked.variance, 1.0)
        influence -= correlation / 2 * relative
    is_ranked = y.variance > 0
    result = RankValues(unit.copy(), nowhere, np.zeros(len(pkd)), np.zeros(len(pkd)))
    result.unit[rows[~is_ranked]] = -1
    rows = rows[is_ranked]
    result.correlation[rows] = correlation[is_ranked]
    result.influence[rows] = np.where(length > 0, influence, 0.0)[is_ranked]
    shortfall = _shortfall(correlation, within.informative)
    result.shortfall[rows] = shortfall[is_ranked]
    return result


def _shortfall(correlation: Floats, pairs: Floats) -> Floats:
    """Return by how much sample correlations are below those of many pairs, if labels are normal.

    The expectation of a sample's is 3 (tau - rho) / (n + 1) above rho, and tau follows from rho.
    """
    tau = 2 / np.pi * np.arcsin(np.clip(2 * np.sin(np.pi * correlation / 6), -1, 1))
    return np.asarray(3 * (correlation - tau) / (pairs + 1))


class _Ranked(NamedTuple):
    """Hold the ranks of one column within units, (R,) each."""

    rank: Floats
    """Mean rank of ties, minus the mean rank of the cell."""
    variance: Floats
    """Of the ranks of its unit."""
    order: Order


@dataclass(frozen=True, slots=True)
class _Within:
    """Take means of R rows within units, which consist of cells."""

    unit: Ints
    cell: Ints
    weight: Floats

    def mean(self, value: Floats, group: Ints | None = None) -> Floats:
        """Return the weighted mean of the group of each row, or of its unit."""
        group = self.unit if group is None else group
        total = np.bincount(group, self.weight * value) / np.bincount(group, self.weight)
        return np.asarray(total[group])

    @property
    def informative(self) -> Floats:
        """Return the effective number of pairs of the unit of each row."""
        total = np.bincount(self.unit, self.weight)
        return np.asarray((np.square(total) / np.bincount(self.unit, self.weight**2))[self.unit])

    def ranked(self, value: Floats) -> _Ranked:
        """Rank values within units; where a unit has several cells, less the mean of each."""
        first_cell = np.full(int(self.unit.max(initial=-1)) + 1, -1)
        first_cell[self.unit] = self.cell
        is_mixed = np.zeros(len(first_cell), np.bool_)
        is_mixed[self.unit[first_cell[self.unit] != self.cell]] = True
        aligned = np.where(is_mixed[self.unit], value - self.mean(value, self.cell), value)
        order = Order(np.round(aligned, ROUNDING), self.unit)
        rank = order.below(self.weight)
        rank -= self.mean(rank, self.cell)
        variance = self.mean(np.square(rank))
        # weights leave rounding errors in ranks that are all tied
        variance[variance < TIED] = 0.0
        return _Ranked(rank, variance, order)


def _rank_claims(
    tested: TestedPairs, predicted: Floats, level: float = LEVEL
) -> dict[str, Claim | None]:
    """Return the claims about ranking by what they are of, in the order in which they are said.

    The side comes first of which the table shows more: ranking the antibodies of an antigen, or its
    variants.
    """
    ranked = {}
    claims = {}
    for side, sequence in {"antigens": tested.antigen, "antibodies": tested.antibody}.items():
        cell = cells(tested.fold, sequence)
        ranked[side] = np.count_nonzero(rank_units(cell, sequence) >= 0)
        claims[f" within {side}"] = _rank_claim(tested, predicted, cell, sequence, level)
    if ranked["antibodies"] > ranked["antigens"]:
        claims = dict(reversed(claims.items()))
    everything = np.zeros_like(tested.fold)
    return {**claims, "": _rank_claim(tested, predicted, tested.fold, everything, level)}


def _rank_claim(
    tested: TestedPairs, predicted: Floats, cell: Ints, sequence: Ints, level: float
) -> Claim | None:
    """Return the mean correlation over the units of `rank_units`, by their pairs, and its interval.

    The interval is one of Fisher's z: a correlation near 1 is skewed and cannot exceed it. Both
    parts of a deviation are widened for the mean that is taken off: that of a unit by its groups,
    and that of all units by theirs. What folds add to the variance ends where predictions follow
    the labels: then little of them comes from the errors of other folds' labels.
    """
    ranked = rank_values(predicted, tested.pkd, cell, sequence, tested.weight)
    rows = np.flatnonzero(ranked.unit >= 0)
    if len(rows) < LEAST_ROWS:
        return None
    weight = np.ones(len(rows)) if tested.weight is None else tested.weight[rows]
    correlation = ranked.correlation[rows]
    value = float(np.average(correlation, weights=weight))
    centre = value + float(np.average(ranked.shortfall[rows], weights=weight))
    most = 1 - 12 / (len(rows) * (len(rows) ** 2 - 1))  # two neighbours in the wrong order
    is_perfect = abs(value) > most  # which does not vary, and tells nothing of how it could
    # the end near 0 is as far from the value as if nothing fell short
    ends = np.clip([min(value, centre), max(value, centre)], -most, most)
    z = np.arctanh(ends)
    slope = 1 - np.square(ends)
    factor = 1 + (tested.dependence - 1) * (1 - value**2) ** 2

    def limits(group: Ints, size: Floats, n: float) -> tuple[float, float]:
        m = pd.Series(group).groupby(cell[rows]).transform("nunique").to_numpy()
        # what is free in a cell: of two groups that are compared with each other only one
        free = np.where(m > 1, (m - 1) / m, (n - 1) / n)
        degrees = n * float(np.average(free, weights=weight))
        within = ranked.influence[rows] * np.sqrt(m / np.maximum(1, m - 1))
        between = (correlation - value) * np.sqrt(n / (n - 1))
        residual = np.bincount(group, weight * (within + between))
        error = np.sqrt(factor * np.square(residual).sum()) / size.sum() / slope
        half = stdtrit(degrees, level) * (1 / np.sqrt(n) if is_perfect else error)
        low, high = np.tanh(z + half * np.array([-1, 1])).tolist()
        return low, high

    return _widest(value, [group[rows] for group in tested.groups], weight, limits)


def two_digits(value: float) -> str:
    """Show a number with two digits after the point."""
    return f"{value:z.2f}"  # z: no -0.00


def with_interval(
    value: float | None,
    limits: Sequence[float | None] | None,
    show: Callable[[float], str] = two_digits,
) -> str:
    """Show a value with its limits in brackets, if it has any; a dash if there is none."""
    if value is None:
        return "-"
    if limits is None or limits[0] is None or limits[1] is None:
        return show(value)
    return f"{show(value)} [{show(limits[0])}, {show(limits[1])}]"
