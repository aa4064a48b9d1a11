"""Weighing and calibration: how a regime mixes the parts of a predictor, and how large errors are.

A regime weighs the parts by their errors on its out-of-fold pairs, and its sigma is calibrated on
the same pairs. The weights with the least error on few groups fit these groups, so they are pulled
toward how often each part is the best one if the groups are drawn again, as strongly as if
`PRIOR_GROUPS` groups had been measured in favour of that. Unless a part is better than the training
mean by a standard error, the best may be so by chance, and the mean shares the pull.

Antibodies and antigens whose errors are smaller or larger than others' have a noise of their own:
errors of held-out pairs, in units of their sigma, are normal with a variance per sequence, drawn
from a scaled inverse chi-square distribution. The table tells its strength and scale; each variance
is shrunk toward the scale as the strength asks for. Sequences without held-out pairs have 1.

N sequences, P pairs, R tested or held-out pairs, K parts.

References
----------
Weights: Breiman, Machine Learning 24, 1996; groups that are drawn again: Buckland, Burnham and
Augustin, Biometrics 53, 1997. Noise: Gelman et al., Bayesian Data Analysis, 3rd
edition, 2.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import gammaln, ndtri, stdtrit

from abag.core.arrays import Bools, Floats, Ints, distinct, weights_of
from abag.embed.tables.chains import KINDS
from abag.head.evaluation.scores import (
    COVERED,
    RegimeScore,
    TestedPairs,
    largest_rmse,
    score_regime,
)
from abag.head.models.probit import HeldOutClasses
from abag.head.models.registry import MEAN, MODELS
from abag.head.models.ridge import expected_labels
from abag.head.predictor.parts import Growth, Mixture, SigmaLevels, UsedRegime
from abag.head.regimes.splits import (
    KNOWN,
    LEAST_GROUPS,
    LEAST_ROWS,
    effective_groups,
    grouped_folds,
    judged,
    learned_rows,
    standard_error,
)

if TYPE_CHECKING:
    from abag.embed.tables.chains import Kind
    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.predictor.parts import Predictions
    from abag.head.regimes.splits import MeasuredRegime


STRENGTHS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Degrees of freedom that are tried."""
SCALES = np.exp(np.linspace(np.log(0.2), np.log(2.0), 47))
"""Scales that are tried, in units of the mean squared error."""
CLEARLY = 4.0
"""Gain in log-likelihood, of all pairs and of pairs left out, from which sequences have noise of
their own."""
MANY_PAIRS = 50
"""Held-out pairs from which the errors of a sequence are told by the width that holds 90 % of them,
which a few large ones do not change, and may be larger than those of the mean."""
LEAST_PAIRS = 3
"""Held-out pairs without which a sequence counts for nothing."""
PRIOR_GROUPS = 10.0
USUAL_WEIGHTS = {"train_mean": 0.0, "residue_kernel": 4.0}
"""Weights of parts of classes before anything is measured, relative to 1 of all others: where
variants are compared by their residues, nothing else tells as much (benchmarks/bench_binary.py)."""
FEWEST_UNUSUAL = 5
"""Tested pairs outside the most frequent class without which the pairs of all regimes weigh the
parts of one: of 40 pairs with 1 yes, none is better than the mean, which would take most of the
weight."""
RESAMPLED = 100
"""Draws of the groups."""
MOST_DRAWN = 2_000
"""Groups above which several are drawn as one: a draw of each of 160,000 takes 100 MB and .9 s."""
EQUAL = 1e-9
"""Share by which squared errors of equal parts may differ, from rounding."""
LEAST_PART = 0.05
"""Least weight of a part."""
SUM_WEIGHT = 1e4
"""Weight of the condition that the weights add up to 1, relative to the errors."""
REACHED = 0.95
"""Share of the tested pairs within the reach of a regime."""
GROWTHS: tuple[float, ...] = (0.0, *np.geomspace(0.025, 6.4, 25).tolist())
"""Growths of sigma squared per difference from the nearest training sequences that are tried."""
POWERS = (0.5, 1.0, 2.0)
"""Powers of the differences that are tried."""
CLEAR_GROWTH = 5.0
"""Gain in log-likelihood from which sigma grows."""
LEAST_WEIGHT = 0.1
"""Weight of a label, of a mean of 1, below which its error tells nothing of sigma, unless fewer
than `LEAST_ROWS` labels count for more."""
LEAST_CALIBRATED = 20
"""Held-out pairs without which sigma does not grow."""
MOST_LEVELS = 8
"""Levels of predictions that have a sigma of their own."""
LEAST_OF_LEVEL = 40
"""Held-out pairs of a level."""
LEVEL_PRIOR = 4.0
"""Pairs with errors of the usual size that each level is taken to have, too."""
RATIOS = np.concatenate([[0.0], np.logspace(-4, 4, 161)])
"""Values of (spread / noise)^2 that are tried: steps of 6 % in spread / noise."""
LARGEST_RATIO = 8.0
"""Largest ratio of the two parts of sigma^2 at the median deviation: the noise is at least a third
of sigma, or sigma of a pair that was trained on could be a tenth of its error."""
CENSORED_ROUNDS = 20
"""Rounds of expectation maximisation if there are censored pairs."""
SMALLEST = 1e-6
"""Least noise in pKd: errors of 0 would have sigma 0."""
LEAST_TAIL = 50
"""Held-out pairs from which sigma is that of an interval rather than of the squared errors."""
THINNEST = 0.5
"""Least factor of sigma for heavy tails."""


@dataclass(frozen=True, slots=True)
class SequenceNoise:
    """Factors of the variance of errors."""

    factor_N: Floats
    """By sequence, (N,); 1 where it is that of the regime."""
    left_out_R: Floats
    """The factor of each held-out pair's sequence without this pair, (R,)."""


def fit_sequence_noise(square: Floats, sequence: Ints, pair: Ints, number: int) -> SequenceNoise:
    """Fit the factors of N sequences.

    Parameters
    ----------
    square : ndarray, shape=(R,)
        Squared errors of held-out pairs, in units of sigma squared.
    sequence : ndarray, shape=(R,)
        Sequence of each.
    pair : ndarray, shape=(R,)
        Pair of each: one that was held out several times is left out as a whole.
    number : int
        N.
    """
    none = SequenceNoise(np.ones(number), np.ones(len(square)))
    # a pair that was held out several times is one measurement
    _, first, of_row = np.unique(pair, return_index=True, return_inverse=True)
    square = np.bincount(of_row, square) / np.bincount(of_row)
    sequence = sequence[first]
    count_N: Floats = np.asarray(np.bincount(sequence, minlength=number), np.float64)
    square = _without_tails(square, sequence, count_N)
    total_N: Floats = np.asarray(np.bincount(sequence, square, minlength=number), np.float64)
    used = count_N >= LEAST_PAIRS
    if used.sum() < 2 or not square.any():
        return none
    unit = float(total_N[used].sum() / count_N[used].sum())
    tried = []
    for strength, in_units in product(STRENGTHS, SCALES.tolist()):
        scale = in_units * unit
        likelihood = _likelihood(total_N[used], count_N[used], strength, scale)
        tried.append((likelihood, strength, scale))
    likelihood, strength, scale = max(tried)
    alike = -0.5 * float((count_N[used] * np.log(2 * np.pi * unit) + total_N[used] / unit).sum())
    if likelihood - alike < CLEARLY:
        return none

    def shrunk(total: Floats, count: Floats) -> Floats:
        # the factor is not known for sure: a 90 % interval is one of Student's t
        degrees = strength + count
        wider = np.square(stdtrit(degrees, 0.95) / ndtri(0.95))
        return np.asarray((strength * scale + total) / degrees * wider)

    factor_N = np.where(used, shrunk(total_N, count_N), 1.0)
    left_out = shrunk(total_N[sequence] - square, count_N[sequence] - 1)
    left_out = np.where(used[sequence], left_out, 1.0)
    gain = (square - np.log(left_out) - square / left_out).sum() / 2
    if gain < CLEARLY:  # it does not foretell errors of other pairs
        return none
    return SequenceNoise(factor_N, left_out[of_row])


def _without_tails(square: Floats, sequence: Ints, count_N: Floats) -> Floats:
    """Replace the squares of sequences with many pairs, (R,), by their 90 % quantile, rescaled."""
    if not (count_N >= MANY_PAIRS).any():
        return square
    quantile = np.quantile(square, 0.9)
    unit = square.mean() / quantile if quantile else 0.0
    rescaled = square.copy()
    for sequence_of_many in np.flatnonzero(count_N >= MANY_PAIRS):
        inside = sequence == sequence_of_many
        rescaled[inside] = unit * np.quantile(square[inside], 0.9)
    return rescaled


def _likelihood(total: Floats, count: Floats, strength: float, scale: float) -> float:
    """Return the log-likelihood of sums of squares with inverse chi-square variances."""
    half = strength / 2
    prior = half * np.log(strength * scale / 2) - gammaln(half)
    posterior = gammaln(half + count / 2) - (half + count / 2) * np.log(
        (strength * scale + total) / 2
    )
    return float((prior + posterior - count / 2 * np.log(2 * np.pi)).sum())


def stack_weights(
    error_RK: Floats,
    group: Ints,
    mean: int,
    *,
    usual_K: Floats | None = None,
    informative: float = 1.0,
) -> Floats:
    """Return weights of K parts, (K,), not negative and with sum 1.

    They minimise the mean squared error plus `PRIOR_GROUPS` / groups times that of the best part
    times the squared distance from the weights that are `usual_K`, by default from how often each
    part is the best one; half of these shares goes to the training mean if no part is better than
    it by a standard error. Weights below `LEAST_PART` are left out. Groups that tell less count as
    a share of so many, `informative`.
    """
    from scipy.optimize import nnls  # takes 0.3 s, which predictions can spare

    square_K = np.square(error_RK).mean(axis=0)
    expected_K = _shares_of_best(error_RK, group) if usual_K is None else usual_K.copy()
    gain_RK = np.square(error_RK[:, [mean]]) - np.square(error_RK)
    # of each part: that with the least error may be less surely better than the mean than another
    if not any(gain_R.mean() > standard_error(gain_R, group) for gain_R in gain_RK.T):
        expected_K /= 2
        expected_K[mean] += 0.5
    if not square_K.min():
        return expected_K
    # The normal equations' root has K rows, whatever R.
    root_KK = np.linalg.qr(error_RK, mode="r") / np.sqrt(len(error_RK))
    groups = informative * effective_groups(group)
    pull = np.sqrt(PRIOR_GROUPS / groups * square_K.min())
    unit = SUM_WEIGHT * max(pull, float(np.abs(root_KK).max()))
    rows = np.vstack([root_KK, pull * np.eye(len(square_K)), np.full((1, len(square_K)), unit)])
    target = np.concatenate([np.zeros(len(root_KK)), pull * expected_K, [unit]])
    weights, _ = nnls(rows, target)
    weights[weights < LEAST_PART * weights.sum()] = 0.0
    return np.asarray(weights / weights.sum())


def _shares_of_best(error_RK: Floats, group: Ints) -> Floats:
    """Return how often each of K parts has the smallest error, (K,), in groups drawn again."""
    _, of_row = np.unique(group, return_inverse=True)
    of_row %= MOST_DRAWN
    count_G = np.bincount(of_row)
    square_GK = np.stack([np.bincount(of_row, square_R) for square_R in np.square(error_RK).T], 1)
    rng = np.random.default_rng(0)
    drawn_SG = rng.multinomial(len(count_G), np.full(len(count_G), 1 / len(count_G)), RESAMPLED)
    loss_SK = drawn_SG @ square_GK / (drawn_SG @ count_G)[:, None]
    # the first of equals: two ridges of one antigen differ by rounding alone
    is_least_SK = loss_SK <= loss_SK.min(axis=1, keepdims=True) * (1 + EQUAL)
    return np.bincount(is_least_SK.argmax(axis=1), minlength=error_RK.shape[1]) / RESAMPLED


@dataclass(kw_only=True)
class HeldOut:
    """The R tested pairs of a regime, and what its folds predict of them."""

    pairs: LabelledPairs
    measured: MeasuredRegime
    folds: Sequence[Predictions]
    """What the parts and the baselines predict in each fold."""
    tested: TestedPairs
    part_RK: Floats
    """Of the K parts of the run, see `RunParts`."""
    group: Ints
    """By which the pairs weigh parts, (R,)."""
    distance: Ints
    """Differences from the nearest training sequences, (R,)."""

    @classmethod
    def of(
        cls, pairs: LabelledPairs, measured: MeasuredRegime, folds: Sequence[Predictions]
    ) -> HeldOut:
        """Take the tested pairs of the folds of a regime."""
        tested = TestedPairs.of(pairs, measured)
        part_KR = [tested.take([fold.predicted[name] for fold in folds]) for name in folds[0].parts]
        group = tested.smallest_groups
        if measured.note and effective_groups(group) < LEAST_GROUPS:
            group = tested.rows  # too few to weigh by: each pair counts
        distance = np.zeros(len(tested.rows), np.int64)
        distances = [split.distance for split in measured.splits if split.distance is not None]
        if distances:
            distance = np.stack(distances)[tested.fold, tested.rows]
        return cls(
            pairs=pairs,
            measured=measured,
            folds=folds,
            tested=tested,
            part_RK=np.stack(part_KR, axis=1),
            group=group,
            distance=distance,
        )

    @property
    def mean_part(self) -> int:
        """Return the number of the training mean among the parts."""
        return self.folds[0].parts.index(MEAN)

    @property
    def reach(self) -> int:
        """Return the differences from training that nearly all tested pairs had at most."""
        return int(np.quantile(self.distance, REACHED, method="higher"))

    @property
    def is_far(self) -> Bools:
        """Return which of the pairs are further than that, (R,): how well is not measured."""
        return np.asarray(self.distance > self.reach)

    @property
    def half(self) -> Ints:
        """Return the fold of each pair, (R,), or of a single fold the half: these judge others."""
        if len(self.folds) > 1:
            return self.tested.fold
        level = self.tested.pkd if self.pairs.quantity.classes else None
        return grouped_folds(self.group, min(2, len(distinct(self.group))), 0, level)

    def named(self, weights: Floats) -> dict[str, float]:
        """Return the weights above 0, of (K,), by part."""
        names = self.folds[0].parts
        return {name: float(w) for name, w in zip(names, weights, strict=True) if w > 0}


@dataclass(kw_only=True)
class WeighedRegime(HeldOut):
    """A regime as its folds have measured it: its mixture, its score, and its tested pairs."""

    mixture: Mixture
    """Weights of the parts, those without weight left out, and the calibration of sigma."""
    tells_sigma: NDArray[np.bool_]
    """Whether the label is exact, and counts for at least `LEAST_WEIGHT`, (R,) as all below."""
    predicted: Floats
    """With the weights of the other folds."""
    sigma: Floats
    """With the calibration of the other folds."""
    mean: Floats
    """Of the training labels."""
    top: Floats | None = None
    """Probabilities of the highest class, where labels are classes."""
    score: RegimeScore = field(init=False)
    """Set last, by `score_held_out`."""

    @property
    def used(self) -> UsedRegime:
        """Return what a predictor applies and says."""
        return UsedRegime(
            name=self.measured.regime.name,
            mixture=self.mixture,
            reach=self.reach,
            error=largest_rmse(self.score),
            verdict=self.score["sentence"],
        )


@dataclass(frozen=True, slots=True)
class WeighedRun:
    """The mixtures of all measured regimes, and the noise of sequences and categories."""

    regimes: Sequence[WeighedRegime]
    noise: Mapping[Kind, Floats]
    """Factor of the variance of errors by unique sequence, (N,) and (M,)."""
    category_noise: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The same by column and value of a category, such as an assay."""


def weigh_run(
    pairs: LabelledPairs, folds: Sequence[tuple[MeasuredRegime, Sequence[Predictions]]]
) -> WeighedRun:
    """Weigh the parts in each measured regime, calibrate sigma, and score the held-out pairs."""
    tested = [HeldOut.of(pairs, measured, fitted) for measured, fitted in folds]
    if pairs.quantity.classes:
        held_out = weigh_classes(tested)
    else:
        held_out = [weigh(of_regime) for of_regime in tested]
    noise = fit_noise(pairs, held_out)
    category_noise = fit_category_noise(pairs, held_out)
    for regime in held_out:
        fit_tail(regime)
    for regime in held_out:
        score_held_out(regime)
    return WeighedRun(held_out, noise, category_noise)


def weigh(held_out: HeldOut) -> WeighedRegime:
    """Weigh the parts by their errors on the tested pairs of a regime; calibrate sigma on them."""
    pairs = held_out.pairs
    tested = held_out.tested
    folds = held_out.folds
    rows = tested.rows
    part_RK = held_out.part_RK
    group = held_out.group
    mean = held_out.mean_part
    censored = pairs.censored[rows]
    error_RK = pairs.pkd[rows, None] - part_RK
    error_RK[censored[:, None] * error_RK < 0] = 0.0  # the bound is satisfied
    # labels that are hardly known say little about the parts
    weight_R = np.ones(len(rows)) if tested.weight is None else tested.weight
    error_RK *= np.sqrt(weight_R)[:, None]
    used = held_out.named(stack_weights(error_RK, group, mean))
    judges = [*judged(held_out.half, rows)]
    predicted_R = np.empty(len(rows))
    for inside, judging in judges:
        weights_of_others = stack_weights(error_RK[judging], group[judging], mean)
        predicted_R[inside] = part_RK[inside] @ weights_of_others
    error = pairs.pkd[rows] - predicted_R
    weighed = Mixture(used, 1.0, 0.0)
    variance = tested.take([weighed.variance(fold.variances, len(pairs)) for fold in folds])
    distance = held_out.distance
    of_tested = Errors(error, predicted_R, variance, distance, censored, rows)
    apart, fold_of_apart = _errors_apart(held_out, weighed)
    sigma_R = np.empty(len(rows))
    for inside, judging in judges:
        others = np.isin(fold_of_apart, tested.fold[judging])
        judged_by = of_tested.take(certain_labels(judging, weight_R))
        calibrated = calibrate(used, judged_by, apart.take(others))
        sigma_R[inside] = calibrated.sigma(predicted_R[inside], variance[inside], distance[inside])
    is_certain = certain_labels(np.ones(len(rows), np.bool_), weight_R)
    return WeighedRegime(
        **vars(held_out),
        mixture=calibrate(used, of_tested.take(is_certain), apart),
        tells_sigma=is_certain & (censored == 0),
        predicted=predicted_R,
        sigma=sigma_R,
        mean=part_RK[:, mean],
    )


def certain_labels(asked: Bools, weight_R: Floats) -> Bools:
    """Return which of some tested pairs, (R,) of which, tell sigma: all, if few labels count."""
    certain = asked & (weight_R >= LEAST_WEIGHT)
    return certain if certain.sum() >= LEAST_ROWS else asked


def weigh_classes(regimes: Sequence[HeldOut]) -> list[WeighedRegime]:
    """Weigh the parts of regimes of classes by the log losses of their tested pairs.

    Where nearly all pairs are of one class, those of all regimes weigh the parts.
    """
    classes = []
    for held_out in regimes:
        tested = held_out.tested
        smallest = tested.smallest_groups
        of_regime = HeldOutClasses.of(
            held_out.pairs, tested.rows, held_out.part_RK, held_out.group, smallest
        )
        classes.append(of_regime)
    weighed = []
    for held_out, of_regime in zip(regimes, classes, strict=True):
        is_told = of_regime.unusual >= FEWEST_UNUSUAL
        told_by = of_regime if is_told else HeldOutClasses.joined(classes)
        weighed.append(_weigh_classes(held_out, of_regime, told_by))
    return weighed


def _weigh_classes(
    held_out: HeldOut, tested: HeldOutClasses, told_by: HeldOutClasses
) -> WeighedRegime:
    """Weigh the parts of R tested pairs of classes by the pairs of `told_by`.

    Of few pairs of a class, which part ranks them best is mostly chance: pairs count by how often
    two of them differ. Each pair is predicted from the others of its `half`; those that are further
    than nearly all were not measured.
    """
    usual_K = np.array([USUAL_WEIGHTS.get(name, 1.0) for name in held_out.folds[0].parts])
    usual_K /= usual_K.sum()
    stack = partial(
        stack_weights, mean=held_out.mean_part, usual_K=usual_K, informative=told_by.informative
    )
    is_far = held_out.is_far
    predicted_R = np.empty(len(is_far))
    top_R = np.empty(len(is_far))
    for inside, others in tested.judges(held_out.half):
        if told_by is not tested:
            is_other = ~np.isin(told_by.rows, tested.rows[inside])
            others = replace(told_by.take(is_other), prior=others.prior)
        weights, link = others.weigh(stack)
        expected = link.expected(link.latent(tested.part_RK[inside] @ weights))
        predicted_R[inside] = np.where(is_far[inside], link.pulled(expected), expected)
        top_R[inside] = link.top(predicted_R[inside])
    weights, link = told_by.weigh(stack)
    mixture = Mixture(held_out.named(weights), 0.0, 0.0, link=link)
    return WeighedRegime(
        **vars(held_out),
        mixture=mixture,
        tells_sigma=np.zeros(len(is_far), np.bool_),  # a probability tells it
        predicted=predicted_R,
        sigma=mixture.sigma(predicted_R, np.zeros(len(is_far))),
        mean=_training_means(held_out.pairs, held_out.measured)[held_out.tested.fold],
        top=top_R,
    )


def _training_means(pairs: LabelledPairs, measured: MeasuredRegime) -> Floats:
    """Return the mean label that each fold of a regime learns from, (F,)."""
    means = []
    for split in measured.splits:
        learned = learned_rows(split)
        weight = weights_of(pairs.share, learned)
        means.append(np.average(pairs.pkd[learned], weights=weight))
    return np.array(means)


def _errors_apart(held_out: HeldOut, mixture: Mixture) -> tuple[Errors, Ints]:
    """Return the errors of neighbourhoods that folds hold out beside the tested pairs, by fold."""
    pairs = held_out.pairs
    splits = held_out.measured.splits
    errors = [Errors.none()]
    fold_of_row = [np.zeros(0, np.int64)]
    for number, (fold, split) in enumerate(zip(held_out.folds, splits, strict=True)):
        if split.apart is None or split.distance is None:
            continue
        rows = split.apart[split.distance[split.apart] >= 0]
        predicted = mixture.pkd(fold.predicted)[rows]
        errors.append(
            Errors(
                pairs.pkd[rows] - predicted,
                predicted,
                mixture.variance(fold.variances, len(pairs))[rows],
                split.distance[rows],
                pairs.censored[rows],
                rows + len(pairs),
            )
        )
        fold_of_row.append(np.full(len(rows), number))
    return Errors.joined(errors), np.concatenate(fold_of_row)


class Errors(NamedTuple):
    """Hold the errors of R held-out pairs, (R,) each."""

    error: Floats
    """Label minus prediction, in pKd."""
    predicted: Floats
    """In pKd."""
    variance: Floats
    """Of the predictions, in pKd^2."""
    distance: Ints
    """Differences from the nearest training sequences."""
    censored: NDArray[np.int8]
    pair: Ints
    """Number of the pair, which may be held out several times: its errors are one measurement."""

    @property
    def independent(self) -> float:
        """Return the share of the errors that are of different pairs."""
        return len(distinct(self.pair)) / max(1, len(self.pair))

    @classmethod
    def none(cls) -> Errors:
        """Return the errors of no pairs."""
        none = np.zeros(0)
        no_pair = np.zeros(0, np.int64)
        return cls(none, none, none, no_pair, np.zeros(0, np.int8), no_pair)

    @classmethod
    def joined(cls, several: Sequence[Errors]) -> Errors:
        """Join those of several folds, in their order."""
        return cls._make(map(np.concatenate, zip(*several, strict=True)))

    def take(self, rows: NDArray[np.bool_]) -> Errors:
        """Return those of some pairs."""
        return Errors._make(values[rows] for values in self)


def calibrate(weights: Mapping[str, float], tested: Errors, apart: Errors | None = None) -> Mixture:
    """Fit sigma to the errors of tested pairs: by the prediction and by distance from training.

    Those of pairs `apart` from training say how they grow, too, but not how large sigma is nearby.
    """
    spread, noise = fit_sigma(tested.error, np.sqrt(tested.variance), tested.censored)
    flat = Mixture(weights, spread, noise)
    near = tested.take(tested.censored == 0)
    if len(distinct(near.pair)) < LEAST_CALIBRATED:
        return flat
    levels = fit_levels(np.square(near.error / flat.sigma(near.predicted, near.variance)), near)
    leveled = replace(flat, levels=levels)
    square = np.square(near.error / leveled.sigma(near.predicted, near.variance))
    leveled = leveled.scaled(float(np.sqrt(square.mean())))
    far = Errors.none() if apart is None else apart.take(apart.censored == 0)
    both = Errors.joined([near, far])
    distance = both.distance
    if not square.any() or np.ptp(distance) == 0:
        return leveled
    is_tested = np.arange(len(distance)) < len(near.error)
    square = np.square(both.error / leveled.sigma(both.predicted, both.variance))
    best = _fit_growth(square, distance, is_tested, both.independent)
    if best.gain < CLEAR_GROWTH:
        return leveled
    return replace(leveled.scaled(float(np.sqrt(best.unit))), growth=best.growth)


def fit_sigma(
    error: Floats, deviation: Floats, censored: NDArray[np.int8] | None = None
) -> tuple[float, float]:
    """Fit spread and noise to errors by maximum likelihood.

    Parameters
    ----------
    error : Floats, shape=(R,)
        Label or bound minus prediction, in pKd.
    deviation : Floats, shape=(R,)
        Standard deviation of each prediction, in pKd.
    censored : NDArray, shape=(R,), dtype=int8, optional
        -1 if the label is below its bound, 1 if above, 0 if exact; None: all are exact.

    Returns
    -------
    tuple of float
        Spread, a factor of the deviation, and noise in pKd.
    """
    square = error**2
    spread, noise = _fit_squares(square, deviation)
    if censored is None or not censored.any():
        return spread, noise
    for _ in range(CENSORED_ROUNDS):
        sigma = np.sqrt(spread**2 * deviation**2 + noise**2)
        mean, variance = expected_labels(error, censored, np.zeros_like(error), sigma)
        spread, noise = _fit_squares(mean**2 + variance, deviation)
    return spread, noise


def _fit_squares(square: Floats, deviation: Floats) -> tuple[float, float]:
    # sigma^2 = noise^2 (1 + ratio x deviation^2): the best noise for a given ratio is a mean.
    factor_KR = 1 + RATIOS[:, None] * deviation**2
    noise2_K = np.maximum(np.mean(square / factor_KR, axis=1), SMALLEST**2)
    loss_K = np.log(noise2_K) + np.mean(np.log(factor_KR), axis=1)
    loss_K[RATIOS * np.median(deviation**2) > LARGEST_RATIO] = np.inf
    best = int(np.argmin(loss_K))
    noise = np.sqrt(noise2_K[best])
    return float(noise * np.sqrt(RATIOS[best])), float(noise)


def fit_levels(square: Floats, near: Errors) -> SigmaLevels:
    """Fit how the squares of R errors, in units of sigma, depend on the prediction.

    Each bin of equally many predictions has a level, pulled toward that of all; there are none
    unless levels of the errors of every other pair foretell the rest.
    """
    _, of_row = np.unique(near.pair, return_inverse=True)
    times = np.bincount(of_row)
    n_bins = min(MOST_LEVELS, len(times) // LEAST_OF_LEVEL)
    if n_bins < 2 or not square.any() or np.ptp(near.predicted) == 0:
        return SigmaLevels()
    order = np.argsort(np.bincount(of_row, near.predicted) / times, kind="stable")
    is_first = np.zeros(len(times), np.bool_)
    is_first[order[::2]] = True
    gain = 0.0
    for judging in (is_first[of_row], ~is_first[of_row]):
        rest = ~judging
        if not square[judging].any():
            return SigmaLevels()
        factor = _levels_of(square[judging], near.predicted[judging], n_bins).factor(
            near.predicted[rest]
        )
        unit = float(square[judging].mean())
        flat = np.log(unit) + square[rest] / unit
        gain += float(np.sum(flat - np.log(factor) - square[rest] / factor)) / 2
    gain *= near.independent
    return _levels_of(square, near.predicted, n_bins) if gain >= CLEAR_GROWTH else SigmaLevels()


def _levels_of(square: Floats, predicted: Floats, n_bins: int) -> SigmaLevels:
    """Return the levels of bins of equally many predictions; square, predicted: (R,)."""
    levels: dict[float, float] = {}
    unit = float(square.mean())
    for bin_rows in np.array_split(np.argsort(predicted, kind="stable"), n_bins):
        total = square[bin_rows].sum() + LEVEL_PRIOR * unit
        middle = float(np.median(predicted[bin_rows]))
        # where predictions are tied, bins have one middle: the last one stands for them
        levels[middle] = float(total / (len(bin_rows) + LEVEL_PRIOR))
    return SigmaLevels(tuple(levels), tuple(levels.values()))


class GrowthFit(NamedTuple):
    """Hold the growth of sigma that fits some errors best."""

    growth: Growth
    unit: float
    """Factor of the variance of tested pairs at the least distance."""
    gain: float
    """In log-likelihood, compared with a sigma that does not grow."""


def _fit_growth(
    square: Floats, distance: Ints, is_tested: NDArray[np.bool_], independent: float
) -> GrowthFit:
    """Fit the growth to the squares of R errors, in units of a sigma that does not grow.

    Of these, a share is `independent`.

    Further away errors may be smaller again, as where nothing binds any more: sigma stays. So each
    law is fitted up to each of D distances that has `LEAST_CALIBRATED` tested pairs within it.
    """
    distances, of_row = np.unique(distance, return_inverse=True)
    count_D = np.bincount(of_row)
    square_D = np.bincount(of_row, square)
    tested_D = np.cumsum(np.bincount(of_row[is_tested], minlength=len(distances)))
    square_of_tested_D = np.bincount(of_row, square * is_tested)
    nearest = int(distances[0])
    laws = [Growth(*law, nearest, int(distances[-1])) for law in product(GROWTHS, POWERS)]
    larger_GD = np.stack([law.factor(distances) for law in laws])
    # the factor that gives scaled errors of tested pairs a mean square of 1
    unit_GD = np.cumsum(square_of_tested_D / larger_GD, axis=1) / np.maximum(tested_D, 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # no tested pair, or none with an error
        loss_GD = (
            np.cumsum(count_D) * np.log(unit_GD)
            + np.cumsum(count_D * np.log(larger_GD), axis=1)
            + np.cumsum(square_D / larger_GD, axis=1) / unit_GD
        )
    gain_DG = (loss_GD[0] - loss_GD).T / 2 * independent
    is_enough_D = tested_D * independent >= LEAST_CALIBRATED
    is_told_D = is_enough_D & (unit_GD[0] > 0) & (distances > nearest)
    gain_DG[~is_told_D] = -np.inf
    most, law = divmod(int(gain_DG.argmax()), len(laws))
    growth = replace(laws[law], most=int(distances[most]))
    return GrowthFit(growth, float(unit_GD[law, most]), float(gain_DG[most, law]))


def fit_noise(pairs: LabelledPairs, held_out: Sequence[WeighedRegime]) -> dict[Kind, Floats]:
    """Fit factors of the variance of errors by sequence; multiply each sigma by its own.

    A sequence is judged where it is known. The factor of a held-out pair comes from other pairs.
    """
    factors: dict[Kind, Floats] = {}
    for side, kind in enumerate(KINDS):
        index = pairs.index(kind)
        factors[kind] = np.ones(int(index.max(initial=-1)) + 1)
        known = [regime for regime in held_out if regime.measured.regime.levels[side] == KNOWN]
        if known:
            factors[kind] = _fit_factors(pairs, known, index, len(factors[kind]))
    return factors


def fit_category_noise(
    pairs: LabelledPairs, held_out: Sequence[WeighedRegime]
) -> dict[str, dict[str, float]]:
    """Do as `fit_noise` by the value of each category, such as an assay or a laboratory."""
    factors: dict[str, dict[str, float]] = {}
    if pairs.features is None or pairs.cells is None or not held_out:
        return factors
    for column, words in zip(pairs.features.categories, pairs.cells.words_RG.T, strict=True):
        index = pd.Categorical(words, categories=column.values).codes.astype(np.int64)
        factors_of_values = _fit_factors(pairs, held_out, index, len(column.values))
        factors[column.name] = dict(zip(column.values, factors_of_values.tolist(), strict=True))
    return factors


def _fit_factors(
    pairs: LabelledPairs, held_out: Sequence[WeighedRegime], index: Ints, number: int
) -> Floats:
    """Return the factors of N groups of pairs, and multiply the sigma of each held-out pair.

    `index` is the group of each pair, (P,). Without `MANY_PAIRS`, a group of which folds predict
    some pairs badly does not get a larger sigma than its own mean would have, or that of all pairs.
    """
    rows = np.concatenate([regime.tested.rows for regime in held_out])
    error = pairs.pkd[rows] - np.concatenate([regime.predicted for regime in held_out])
    sigma = np.concatenate([regime.sigma for regime in held_out])
    tells = np.concatenate([regime.tells_sigma for regime in held_out])
    told = index[rows[tells]]
    noise = fit_sequence_noise(np.square(error / sigma)[tells], told, rows[tells], number)
    count_N = np.bincount(told, minlength=number)
    square_N = np.bincount(told, np.square(sigma[tells]), minlength=number)
    label = pairs.pkd[rows[tells]]
    mean_N: Floats = np.bincount(told, label, minlength=number) / np.maximum(count_N, 1)
    own_N = np.bincount(told, np.square(label - mean_N[told]), minlength=number)
    by_mean_N = np.maximum(own_N, pairs.label_sd**2 * count_N)
    most_N: Floats = np.maximum(1.0, by_mean_N / np.maximum(square_N, SMALLEST**2))
    most_N[np.bincount(index[distinct(rows[tells])], minlength=number) >= MANY_PAIRS] = np.inf
    factor_N = np.minimum(noise.factor_N, most_N)
    factor_R = factor_N[index[rows]]  # of others, which are left out anyway
    factor_R[tells] = np.minimum(noise.left_out_R, most_N[told])
    ends = np.cumsum([len(regime.tested.rows) for regime in held_out])[:-1]
    for regime, factor in zip(held_out, np.split(factor_R, ends), strict=True):
        regime.sigma = regime.sigma * np.sqrt(factor)
    return factor_N


def fit_tail(held_out: WeighedRegime) -> None:
    """Multiply sigma so that 90 % of the errors are within `COVERED` of it.

    Where few errors are large, the sigma of their squares is too wide for the others. The factor
    of a fold comes from the other folds.
    """
    tells = held_out.tells_sigma
    rows = held_out.tested.rows
    scaled = np.abs(held_out.tested.pkd - held_out.predicted) / held_out.sigma
    growth = held_out.mixture.growth
    if growth.growth:  # beyond, sigma stays, whatever the errors
        tells = tells & (held_out.distance <= growth.most)
    factor_R = np.ones(len(scaled))
    for inside, judging in judged(held_out.tested.fold, rows):
        judges = judging & tells
        factor_R[inside] = tail_factor(scaled[judges], rows[judges])
    held_out.sigma = held_out.sigma * factor_R
    held_out.mixture = held_out.mixture.scaled(tail_factor(scaled[tells], rows[tells]))


def tail_factor(scaled: Floats, pair: Ints) -> float:
    """Return the factor of sigma, given absolute errors in units of it; 1 if they are few.

    `pair`, (R,), is the number of the pair of each error: several of one pair count as one.
    """
    number = len(distinct(pair))
    if number < LEAST_TAIL:
        return 1.0
    # of N new errors, 90 % are expected within the N + 1st part of so many
    share = min(1.0, 0.9 * (1 + 1 / number))
    return max(THINNEST, float(np.quantile(scaled, share)) / COVERED)


def _expect_classes(held_out: WeighedRegime) -> None:
    """Turn latent values that folds predict of the tested pairs into expected classes, in place.

    Those of a fold come from the links that the other folds fit to each part and baseline.
    """
    tested = held_out.tested
    folds = held_out.folds
    for name in folds[0].predicted:
        if not all(name in fold.predicted for fold in folds):
            continue
        expected_R = held_out.mean
        if name != MEAN:
            latent = tested.take([fold.predicted[name] for fold in folds])
            groups = tested.smallest_groups
            alone = HeldOutClasses.of(held_out.pairs, tested.rows, latent[:, None], groups)
            expected_R = alone.expected(tested.fold)
        for number, fold in enumerate(folds):
            inside = tested.fold == number
            predicted_P = fold.predicted[name].copy()
            predicted_P[tested.rows[inside]] = expected_R[inside]
            fold.predicted[name] = predicted_P


def score_held_out(held_out: WeighedRegime) -> None:
    """Score the out-of-fold predictions of a regime beside the baselines."""
    pairs = held_out.pairs
    measured = held_out.measured
    folds = held_out.folds
    mixture = held_out.mixture
    if mixture.link is None:  # as the predictor does
        is_far = held_out.is_far
        held_out.sigma[is_far] = np.maximum(held_out.sigma[is_far], pairs.label_sd)
    names = folds[0].parts
    if pairs.quantity.classes:
        _expect_classes(held_out)
    tested = held_out.tested
    baselines = {}
    for name in folds[0].predicted:
        if name == MEAN:  # which is compared on its own
            continue
        if len(names) <= 2 and name in names:  # a head of one model is not its own baseline
            continue
        if name in MODELS and not MODELS[name].is_baseline:
            continue
        if all(name in fold.predicted for fold in folds):
            baselines[name] = tested.take([fold.predicted[name] for fold in folds])

    def scored(some: NDArray[np.bool_]) -> RegimeScore:
        return score_regime(
            measured.regime.name,
            measured.regime.words,
            tested.some(some),
            held_out.predicted[some],
            held_out.mean[some],
            {name: values[some] for name, values in baselines.items()},
            held_out.sigma[some],
            weights=mixture.weights,
            quantity=pairs.quantity,
        )

    score = scored(np.ones(len(tested.rows), np.bool_))
    if pairs.round_of_row is not None:
        is_first = pairs.round_of_row[pairs.row][tested.rows] == 0
        apart_by_round = [tested.is_exact & is_first, tested.is_exact & ~is_first]
        pairs_by_round = [distinct(tested.rows[of_round]) for of_round in apart_by_round]
        if min(map(len, pairs_by_round)) >= LEAST_ROWS:
            score["by_round"] = [{**scored(of_round)} for of_round in apart_by_round]
    if measured.note:
        score["sentence"] += f"; {measured.note}"
    held_out.score = score
