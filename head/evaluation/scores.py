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

The prediction of a pair of two classes is the probability of the second, and its squared error the
Brier score, which is compared with that of the frequency of the class (the prevalence) and of the
best baseline. Beside it stand average precision, the area under the ROC curve, overall and within
antigens and antibodies, and the log loss. Of ordered classes, pairs of the highest one are the
positive ones, and two pairs are compared if their classes differ.

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

from abag.core.arrays import Bools, Floats, Ints, distinct, weights_of
from abag.core.messages import counted
from abag.embed.tables.chains import KINDS, Kind
from abag.head.evaluation.metrics import (
    average_precision,
    decidable_pairs,
    level_folds,
    rank_units,
    rank_values,
)
from abag.head.labels.headers import PKD, Quantity
from abag.head.regimes.splits import (
    LEAST_GROUPS,
    LEAST_ROWS,
    MUTATED,
    TEST,
    effective_groups,
    effective_number,
    learned_rows,
    without_absent,
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
NEARLY_ALL = 0.9
"""Weight from which a part is the predictor itself, and no rival of it."""
DRAWS = 200
"""Draws of groups from which the interval of the average precision comes."""
LEAST_PROBABILITY = 1e-6
"""Least probability of what happened: one that was excluded has a finite log loss."""
MANY_BOUNDS = 0.2
"""Share of bounds among the tested pairs from which errors of the others are not judged: what could
be measured exactly is a selection."""
COVERED = float(ndtri(0.95))
"""Half the width of a 90 % interval, in sigmas."""
SURE = 1.96
"""Half the width of a 95 % interval, in standard deviations."""
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
    kinds: tuple[Kind, ...] = KINDS
    """Kinds of sequences that the pairs have."""

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
            kinds=pairs.kinds,
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


class ErrorScore(TypedDict):
    """Hold what the errors of a regime are; JSON."""

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
    rmse_of_best: float
    intervals: dict[str, list[float] | None]
    """95 % intervals of the scores that are plain numbers; None where groups are too few."""


class RegimeScore(ErrorScore):
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
    best_baseline: str
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
    error of the number of the class), and of two classes ``log_loss`` and ``log_loss_of_mean`` in
    nats."""
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
    sigma: Floats | None,
    *,
    weights: Mapping[str, float] | None = None,
    quantity: Quantity = PKD,
) -> RegimeScore:
    """Judge out-of-fold predictions of a regime, (R,) each, by the exact labels of `every` pair.

    `mean` has the means of the training parts, and `baselines` the predictions of other models by
    name. `weights` are those of the predictor's parts: a baseline that has nearly all the weight is
    the predictor, which is not compared with itself. Bounds are judged by their order, and by which
    side of the assay's limit they are predicted on. Of a `quantity` of classes, predictions are
    probabilities, or expected numbers of classes, and `mean` has the frequencies in training.
    """
    is_exact = every.is_exact
    tested = every.some(is_exact)
    weight = tested.weight
    of_tested = predicted[is_exact]
    square = np.square(tested.pkd - of_tested)
    of_mean = np.square(tested.pkd - mean[is_exact])
    itself = {part for part, share in (weights or {}).items() if share >= NEARLY_ALL}
    rivals = {part: row[is_exact] for part, row in baselines.items() if part not in itself}
    best, of_best = _best_baseline(tested, rivals) or (TRAIN_MEAN, of_mean)
    against_mean = mean_claim(of_mean - square, tested.groups, weight=weight)
    against_best = mean_claim(of_best - square, tested.groups, tested.dependence, weight)
    covered = None
    if sigma is not None and not quantity.classes:
        inside = np.abs(every.pkd - predicted) <= COVERED * sigma
        covered = inside[is_exact].astype(np.float64)
    claims = _rank_claims(tested, of_tested)
    score: RegimeScore = {
        "regime": name,
        "words": without_absent(words, every.kinds),
        "n": len(np.unique(tested.rows)),
        "groups": tested.effective,
        "spearman": _as_json(claims[""]),
        "spearman_within_antigen": _as_json(claims[" within antigens"]),
        "spearman_within_antibody": _as_json(claims[" within antibodies"]),
        **_score_errors(tested, square, of_mean, of_best, covered),  # type: ignore[typeddict-item]
        "best_baseline": best,
        "better_than_mean": against_mean._asdict(),
        "better_than_best": against_best._asdict(),
        "sentence": "",
    }
    if weight is not None:
        score["effective_pairs"] = effective_number(weight)
    if quantity.classes:
        _add_classes(score, tested, of_tested, mean[is_exact], quantity.classes)
    loss_words = PROBABILITIES if quantity.classes else ERRORS
    in_words = describe_loss(loss_words, against_mean, against_best, best)
    if TRAIN_MEAN in itself:
        in_words = f"{loss_words.not_shown}, which has nearly all the weight"
    bounds = float(np.average(~is_exact, weights=every.weight)) if len(every.rows) else 0.0
    is_selection = bounds >= MANY_BOUNDS
    if bounds:
        concordance = concordance_claim(every, predicted)
        score["bounds"] = bounds
        score["concordance"] = _as_json(concordance)
        if is_selection:
            limits = limit_claims(every, predicted)
            score["limits"] = [limit.as_json() for limit in limits]
            in_words = _describe_bounds(bounds, concordance, limits, quantity)
    judged = _judged_claims(every, predicted, claims, with_bounds=is_selection)
    if quantity.classes:
        rarer = _count_rarer(tested)
        judged = {} if rarer < FEWEST_OF_CLASS else judged
        if _are_few(rarer, score["n"]):
            in_words = (
                f"{loss_words.noun} cannot be judged, as {rarer} of {score['n']:,} tested pairs "
                f"{'is' if rarer == 1 else 'are'} not of the most frequent class"
            )
    sentence = f"{words}: {describe_ranking(judged)}; {in_words}"
    score["sentence"] = without_absent(sentence, every.kinds)
    return score


def _score_errors(
    tested: TestedPairs, square: Floats, of_mean: Floats, of_best: Floats, covered: Floats | None
) -> ErrorScore:
    """Score squared errors, (R,), beside those of the mean and of the best baseline.

    `covered` is 1 where the label is within the 90 % interval, None where there are none.
    """
    weight = tested.weight
    # a mean of equal labels differs from them by rounding
    of_test_mean = np.zeros(len(square))
    if np.ptp(tested.pkd):
        of_test_mean = np.square(tested.pkd - np.average(tested.pkd, weights=weight))
    r2_of_pairs = _avoided(square, of_test_mean, weight)
    skill_of_pairs = _avoided(square, of_mean, weight)
    return {
        "rmse": _root(square, weight),
        "r2": _mean(r2_of_pairs, weight),
        "skill": _mean(skill_of_pairs, weight),
        "coverage": _mean(covered, weight),
        "rmse_of_mean": _root(of_mean, weight),
        "rmse_of_best": _root(of_best, weight),
        "intervals": {
            "rmse": _error_interval(square, tested),
            "r2": _share_interval(r2_of_pairs, tested),
            "skill": _share_interval(skill_of_pairs, tested),
            "coverage": _share_interval(covered, tested, least=0.0),
            "rmse_of_mean": _root_interval(of_mean, tested),
            "rmse_of_best": _root_interval(of_best, tested),
        },
    }


def _judged_claims(
    every: TestedPairs, predicted: Floats, claims: Mapping[str, Claim | None], *, with_bounds: bool
) -> dict[str, Claim | None]:
    """Return the claims about ranking at the level that the clearest of so many is asked for.

    With bounds, that about the order of labels and bounds comes first.
    """
    different = {claim for claim in claims.values() if _has_interval(claim)}
    level = 1 - (1 - LEVEL) / max(1, len(different) + with_bounds)
    judged = _rank_claims(every.some(every.is_exact), predicted[every.is_exact], level)
    if with_bounds:
        in_order = concordance_claim(every, predicted, level)
        above_chance = None if in_order is None else in_order.above(0.5)
        judged = {" of labels and bounds": above_chance, **judged}
    return judged


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
    """Return whether the sentence of a regime says nothing for its ranking, or against it."""
    return re.search(r"\bis (not shown to be better|worse) than chance\b", sentence) is not None


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


# ---- probabilities of classes --------------------------------------------------------------------


def _add_classes(
    score: RegimeScore, tested: TestedPairs, predicted: Floats, mean: Floats, classes: Sequence[str]
) -> None:
    """Add to the score of a regime what is said of classes; `predicted` and `mean`: (R,)."""
    is_positive = tested.pkd == len(classes) - 1
    scores: dict[str, Any] = {
        "positive": classes[-1],
        "positives": len(np.unique(tested.rows[is_positive])),
        "prevalence": float(np.average(is_positive, weights=tested.weight)),
        "average_precision": _average_precision(tested, is_positive, predicted),
        "auc": _auc(tested, predicted, tested.fold),
        "auc_within_antigen": _auc(tested, predicted, cells(tested.fold, tested.antigen)),
        "auc_within_antibody": _auc(tested, predicted, cells(tested.fold, tested.antibody)),
        "brier": score["rmse"] ** 2,
        "log_loss": None,
        "log_loss_of_mean": None,
    }
    if len(classes) == 2:
        scores["log_loss"] = _mean(log_losses(tested.pkd, predicted), tested.weight)
        scores["log_loss_of_mean"] = _mean(log_losses(tested.pkd, mean), tested.weight)
    score["classes"] = scores
    for name, interval in score["intervals"].items():
        if name.startswith("rmse") and interval is not None:  # no error is larger than all classes
            score["intervals"][name] = [min(float(end), len(classes) - 1) for end in interval]


def log_losses(level: Floats, probability: Floats) -> Floats:
    """Return minus the logarithm of the probability of what happened, (R,), in nats."""
    happened = np.where(level > 0, probability, 1 - probability)
    return np.asarray(-np.log(np.clip(happened, LEAST_PROBABILITY, 1.0)))


def _auc(tested: TestedPairs, predicted: Floats, cell: Ints) -> dict[str, float | None] | None:
    """Return the share of pairs of one cell in the right order, and its interval."""
    if _compared(cell, tested.pkd) < LEAST_ROWS:
        return None
    claim = concordance_claim(tested, predicted, cell=cell)
    return None if claim is None else claim._asdict()


def _compared(cell: Ints, level: Floats) -> int:
    """Count the pairs whose cell has another class, too."""
    classes = pd.Series(level).groupby(cell).transform("nunique")
    return int((classes > 1).sum())


def _average_precision(
    tested: TestedPairs, is_positive: Bools, predicted: Floats
) -> dict[str, float | None] | None:
    """Return the average precision, and its interval.

    That of a fold with few positive pairs is far above chance, whatever is predicted: folds are
    scored together, once the mean of each is taken off its predictions.

    The interval is that of draws of groups, with replacement; it counts a pair of groups of which
    one depends on the other as the one that has fewer groups. Pairs that are drawn twice stand
    together, which makes draws too good: by as much the lower end is lowered. Few groups of
    positive pairs have none, as in `concordance_claim`.
    """
    if not is_positive.any():
        return None
    weight = np.ones(len(predicted)) if tested.weight is None else tested.weight
    above = level_folds(predicted, tested.fold, weight)
    value = average_precision(is_positive, above, weight)
    assert value is not None
    fewest = min(tested.groups, key=lambda group: len(np.unique(group)))
    _, number = np.unique(fewest, return_inverse=True)
    groups = int(number.max()) + 1
    sides = [
        effective_groups(number[of_class], weight[of_class])
        for of_class in (is_positive, ~is_positive)
    ]
    if tested.effective < LEAST_GROUPS or min(sides) < LEAST_OF_SIDE:
        return {"value": value, "low": None, "high": None}
    if value == 1:  # no draw is worse
        return {"value": value, "low": 1 - least_perfect(sides[0]), "high": 1.0}
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        times = np.bincount(rng.integers(0, groups, groups), minlength=groups)[number]
        rows = times > 0
        of_draw = average_precision(is_positive[rows], above[rows], (weight * times)[rows])
        if of_draw is not None:
            drawn.append(of_draw)
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    too_good = max(0.0, float(np.mean(drawn)) - value)
    return {"value": value, "low": max(0.0, min(low - too_good, value)), "high": max(high, value)}


# ---- as text -------------------------------------------------------------------------------------


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
