"""Labels that are classes, on a latent scale: a class is where a normal variable falls.

A yes is a latent value above a threshold, a no one below it, and ordered classes are intervals
between thresholds; the latent value is a function of the pair plus noise of standard deviation 1
(probit). Models in closed form learn from what is expected of the latent value of each class, the
first step of expectation maximisation from a model that knows the frequencies of the classes alone.
It is as well the first step of Fisher scoring, and changes nothing but the scale of two classes. So
they stay the models of any label; `ClassLink` turns what they predict into probabilities, and is
fitted, as the weights of the models are, to the log loss of held-out pairs.

R rows, C classes, K parts of a predictor.

References
----------
McCullagh, Regression models for ordinal data, J. R. Stat. Soc. B 42, 1980; Rasmussen and Williams,
Gaussian Processes for Machine Learning, chapter 3; Albert and Chib, J. Am. Stat. Assoc. 88, 1993.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from abag.core.arrays import Bools, Floats, Ints, weights_of
from abag.head.models.pair_vectors import Labels
from abag.head.regimes.splits import effective_groups, effective_number, judged, mean_product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from abag.head.labels.labelled_pairs import LabelledPairs


LEAST_SHARE = 1e-6
"""Least share of a class: one that training rows lack has a threshold, too."""
SLOPE_SPREAD = 0.35
"""Standard deviation of the slope, relative to that of expected latent values."""
THRESHOLD_SPREAD = 0.35
"""Standard deviation of the thresholds of a regime around those of all pairs."""
BEYOND = 0.1
"""Share by which predictions count that are further out than those of held-out pairs."""
OUTERMOST = 3
"""Held-out pairs that lie beyond the ends of a link on either side, or on it."""
MOST_RATIO = 20.0
"""Largest slope, relative to that of expected latent values."""
MOST_LATENT = 6.0
"""Largest latent value, beyond which a probability is 0 or 1 in single precision."""
ENDS = (1e-15, 1 - 1e-15)
"""Probabilities that have a latent value."""
STEPS = 2
"""Steps of Fisher scoring in which parts are weighed."""
WITHIN = float(ndtri(0.95))
"""Half the width of a 90 % interval, in standard deviations."""
LEAST_NOISE = 0.2
"""Least share of noise in the variance of latent values."""
CROSS_VALIDATED = 4.0
"""Factor of the variance of slope and thresholds: each held-out pair is in training elsewhere, and
the models of all pairs are others than those of the folds (benchmarks/bench_binary.py)."""
OF_ALL_PAIRS = 0.3
"""Standard deviation of the slope that suits models of all pairs, relative to that of the folds,
however many pairs are held out: planted laws ask for up to 1.4 times as much, measured tables for
.8 to 1.8 (benchmarks/bench_trees.py)."""
ROUNDED = 2.0
"""How widely shares of the highest class are rounded off toward 0, in units of its usual share, and
toward 1; the larger, the straighter is the link (benchmarks/bench_trees.py)."""
USUAL_SHARE = 0.2
"""Share of what a link leaves unexplained that pairs of one group have in common, before a table
says more: that of new sequences of measured and planted tables."""
PRIOR_GROUPS = 10.0
"""Groups that weigh as much as what is usual."""
FAR = 0.5
"""What is left of the distance from the frequencies of the classes where a regime was not measured:
as if errors were as large as all that models tell apart."""


def class_thresholds(level: Floats, classes: int, weight: Floats | None = None) -> Floats:
    """Return the thresholds of a standard normal variable, (C - 1,), from class frequencies.

    Parameters
    ----------
    level : ndarray, shape=(R,)
        Number of the class of each row.
    classes : int
        C.
    weight : ndarray, shape=(R,), optional
        How much each row counts.
    """
    counts = np.bincount(level.astype(np.int64), weight, minlength=classes).astype(np.float64)
    share = np.maximum(counts / counts.sum(), LEAST_SHARE)
    return np.asarray(ndtri(np.cumsum(share / share.sum())[:-1]))


def expected_latent(thresholds: Floats) -> Floats:
    """Return the mean of a standard normal variable within each class, (C,)."""
    density = np.concatenate([[0.0], _density(thresholds), [0.0]])
    share = np.diff(np.concatenate([[0.0], ndtr(thresholds), [1.0]]))
    return np.asarray((density[:-1] - density[1:]) / share)


def _density(x: Floats) -> Floats:
    return np.asarray(np.exp(-np.square(x) / 2) / np.sqrt(2 * np.pi))


def latent_labels(pairs: LabelledPairs, rows: Ints) -> Labels:
    """Return the labels of all P pairs, of classes what is expected of their latent values.

    The frequencies of the classes are those of the rows to learn from, (R,). Measurements stay as
    they are.
    """
    pkd = pairs.pkd
    if classes := len(pairs.quantity.classes):
        thresholds = class_thresholds(pkd[rows], classes, weights_of(pairs.share, rows))
        pkd = expected_latent(thresholds)[pkd.astype(np.int64)]
    return Labels(
        pkd=pkd,
        censored=pairs.censored,
        measurements=pairs.measurements,
        share=pairs.share,
        quantity=pairs.quantity,
    )


@dataclass(frozen=True, slots=True)
class Bend:
    """Bend predictions, which are means of latent values of classes, so that a link is a line.

    A prediction between the latent values of the lowest and the highest class says which share of
    such pairs is of the highest. Where that is rare, a prediction in the middle says one half, and
    a line that is right near the usual share would say nearly all (benchmarks/bench_binary.py).
    Shares below 0 and above 1 are rounded off.
    """

    low: float
    """Expected latent value of the lowest class."""
    high: float
    """Of the highest class."""

    @property
    def usual(self) -> float:
        """Return the share that a prediction of 0 says."""
        return -self.low / (self.high - self.low)

    @property
    def unit(self) -> float:
        """Return by how much a prediction changes per normal quantile of the share, near 0."""
        density = float(_density(ndtri(np.array([self.usual])))[0])
        return float(np.hypot(1.0, ROUNDED)) * density * (self.high - self.low)

    def of(self, mixed: Floats) -> Floats:
        """Return the bent predictions, (P,): ascending, and near 0 as they are."""
        _, (above, below) = self._sides(mixed)
        is_rare = above < below
        quantile = ndtri(np.where(is_rare, above, below) / (above + below))
        quantile = np.where(is_rare, quantile, -quantile)
        return np.asarray(self.unit * (quantile - ndtri(self.usual)))

    def inverse(self, bent: Floats) -> Floats:
        """Return the predictions, (P,), that are bent so."""
        tried = np.linspace(2 * self.low - self.high, 2 * self.high - self.low, 8001)
        return np.asarray(np.interp(bent, self.of(tried), tried))

    def slope(self, mixed: Floats) -> Floats:
        """Return the derivatives of the bent predictions, (P,)."""
        share, (above, below) = self._sides(mixed)
        width_above, width_below = self._widths
        # those of the logarithm of (x + root) / 2 are 1 / root
        by_share = 1 / np.hypot(share, width_above) + 1 / np.hypot(1 - share, width_below)
        by_share *= above * below / np.square(above + below)
        density = _density(ndtri(self.usual) + self.of(mixed) / self.unit)
        return np.asarray(self.unit * by_share / density / (self.high - self.low))

    @property
    def _widths(self) -> tuple[float, float]:
        """Return how widely shares of the highest class and of the others are rounded off."""
        return ROUNDED * self.usual, ROUNDED * (1 - self.usual)

    def _sides(self, mixed: Floats) -> tuple[Floats, tuple[Floats, Floats]]:
        """Return the share that predictions say, (P,), and it and its rest, rounded off."""
        share = (mixed - self.low) / (self.high - self.low)
        width_above, width_below = self._widths
        return share, (_rounded(share, width_above), _rounded(1 - share, width_below))


def _rounded(x: Floats, width: float) -> Floats:
    """Return x where it is far above 0, (P,), and a positive number that falls to 0 below."""
    root = np.hypot(x, width)
    return np.asarray(np.where(x > 0, x + root, width**2 / (root - np.minimum(x, 0.0))) / 2)


class _Steps(NamedTuple):
    """Hold derivatives of the log-likelihood by the latent value of each row, (R,)."""

    log_likelihood: Floats
    gradient: Floats
    information: Floats
    """Minus its expected second derivative."""
    share_CR: Floats
    """Probability of each class."""
    density_TR: Floats
    """Of the latent value with its noise, at each of T thresholds."""

    def by_thresholds(self, level: Ints, weight: Floats) -> Floats:
        """Return the derivatives of minus the log-likelihood by the thresholds, (T,)."""
        derivative = []
        own_R = self.share_CR[level, np.arange(len(level))]
        for at, density_R in enumerate(self.density_TR * weight / own_R):
            above = density_R @ (level == at + 1).astype(float)
            derivative.append(above - density_R @ (level == at).astype(float))
        return np.array(derivative)


def _steps(latent: Floats, level: Ints, thresholds: Floats) -> _Steps:
    """Return the derivatives at latent values, (R,), given thresholds, (C - 1,)."""
    inner = thresholds[:, None] - latent
    ends = np.vstack([np.full_like(latent, -np.inf), inner, np.full_like(latent, np.inf)])
    density = _density(ends)
    share = np.maximum(_between(ends[:-1], ends[1:]), 1e-300)
    slope = density[:-1] - density[1:]
    at = np.arange(len(latent))
    own = share[level, at]
    return _Steps(
        log_likelihood=np.log(own),
        gradient=slope[level, at] / own,
        information=np.square(slope / np.sqrt(share)).sum(axis=0),
        share_CR=share,
        density_TR=density[1:-1],
    )


def _between(low: Floats, high: Floats) -> Floats:
    """Return the probability between two ends, on the side of 0 where it keeps its digits."""
    is_right = low > 0
    first = np.where(is_right, -high, low)
    second = np.where(is_right, -low, high)
    return np.asarray(ndtr(second) - ndtr(first))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLink:
    """Turn what parts predict into latent values and probabilities of classes."""

    slope: float
    """Latent value per unit of the bent prediction."""
    thresholds: tuple[float, ...]
    """Between the classes, C - 1, ascending."""
    unit: float
    """Expected prediction of a pair whose latent value is 1 standard deviation of all these and
    their noise above the mean."""
    told: float
    """Share of the variance of latent values and their noise that predictions tell."""
    bend: Bend
    ends: tuple[float, float]
    """Predictions of nearly all held-out pairs lie between them."""
    errors: tuple[float, float, float]
    """Variance of the highest threshold, of the slope, and their covariance; a model that knows the
    frequencies of the classes alone predicts 0."""

    def check(self) -> None:
        """Raise ValueError for what no fit has written."""
        if len(self.ends) != 2 or len(self.errors) != 3:
            msg = f"a link has ends {self.ends} and errors {self.errors}"
            raise ValueError(msg)
        bend = (self.bend.low, self.bend.high)
        numbers = (self.slope, *self.thresholds, *self.ends, *bend, *self.errors)
        is_ascending = bool((np.diff(self.thresholds) >= 0).all()) and self.ends[0] <= self.ends[1]
        is_around_zero = self.bend.low < 0 < self.bend.high
        is_positive = min(self.slope, self.errors[0], self.errors[1]) >= 0 and self.unit > 0
        is_valid = is_ascending and is_around_zero and is_positive
        if not is_valid or not np.isfinite(numbers).all():
            msg = f"classes have thresholds {self.thresholds}, slope {self.slope}, {self.errors}"
            raise ValueError(msg)

    def latent(self, mixed: Floats) -> Floats:
        """Return the latent values of P predictions, (P,).

        Those of pairs that are in training themselves follow their own labels, further than
        held-out pairs show that they should: beyond these, predictions count by `BEYOND`.
        """
        inside = np.clip(mixed, *self.ends)
        latent = self.slope * self.bend.of(inside + BEYOND * (mixed - inside))
        return np.asarray(np.clip(latent, -MOST_LATENT, MOST_LATENT))

    def latent_of(self, expected: Floats) -> Floats:
        """Return the latent values that have expected numbers of the class, (P,)."""
        if len(self.thresholds) == 1:
            return np.asarray(self.thresholds[0] + ndtri(np.clip(expected, *ENDS)))
        tried = np.linspace(-2 * MOST_LATENT, 2 * MOST_LATENT, 4001)
        return np.asarray(np.interp(expected, self.expected(tried), tried))

    def pulled(self, expected: Floats) -> Floats:
        """Return expected numbers of the class where nothing was measured, (P,).

        They are nearer to that of a model that knows the frequencies of the classes alone.
        """
        return self.expected(FAR * self.latent_of(expected))

    def expected(self, latent: Floats) -> Floats:
        """Return the expected number of the class, (P,): of two, the probability of the second."""
        above = [ndtr(latent - threshold) for threshold in self.thresholds]
        return np.asarray(np.sum(above, axis=0))

    def spread(self, latent: Floats) -> Floats:
        """Return the standard deviation of the class number around the expected one, (P,)."""
        above = np.array([ndtr(latent - threshold) for threshold in self.thresholds])
        odd = 2 * np.arange(len(self.thresholds)) + 1
        square = odd @ above - np.square(above.sum(axis=0))
        return np.asarray(np.sqrt(np.maximum(square, 0.0)))

    def top(self, expected: Floats) -> Floats:
        """Return the probability of the highest class, (P,), given the expected numbers."""
        return np.asarray(ndtr(self.latent_of(expected) - self.thresholds[-1]))

    def interval(self, expected: Floats) -> tuple[Floats, Floats]:
        """Return the 90 % interval of the share of such pairs that are of the highest class, (P,).

        It is as wide as the held-out pairs that slope and thresholds were fitted to are few.
        """
        latent = self.latent_of(expected)
        away = latent / self.slope if self.slope else np.zeros(len(latent))
        of_threshold, of_slope, both = self.errors
        square = of_threshold - 2 * both * away + of_slope * np.square(away)
        half = WITHIN * np.sqrt(np.maximum(square, 0.0))
        centre = latent - self.thresholds[-1]
        return np.asarray(ndtr(centre - half)), np.asarray(ndtr(centre + half))

    def bend_at(self, expected: Floats) -> Floats:
        """Return the slope of the bend, (P,), where pairs have these expected numbers."""
        if not self.slope:
            return np.ones(len(expected))
        return self.bend.slope(self.bend.inverse(self.latent_of(expected) / self.slope))

    def deviation(self, expected: Floats, variance: Floats) -> Floats:
        """Return the standard deviation of `expected` that the models do not know, (P,).

        `variance`, (P,), is that of their predictions.
        """
        latent = self.latent_of(expected)
        # shares of the variance of latent values and their noise together
        unknown = variance * np.square(self.bend_at(expected) / self.unit)
        noise = np.maximum(1 - self.told - unknown, LEAST_NOISE)
        known = np.sqrt(1 + unknown / noise)
        step = np.sqrt(unknown / noise)
        away = [(latent - threshold) * known for threshold in self.thresholds]
        return np.asarray(np.sum([ndtr(x + step) - ndtr(x - step) for x in away], axis=0) / 2)


def fit_link(
    predicted: Floats,
    level: Floats,
    prior: Floats,
    *,
    weight: Floats | None = None,
    pair: Ints | None = None,
    group: Ints | None = None,
) -> ClassLink:
    """Fit slope and thresholds to held-out predictions by the log loss.

    Few pairs say little of both. The slope is pulled toward that of a model whose predictions are
    expected latent values, and the thresholds toward those of all training pairs, as if both were
    known to `SLOPE_SPREAD` and `THRESHOLD_SPREAD`. The slope is never negative.

    Pairs of one group, such as an antigen, tell less than as many others: by the share that they
    have in common of what the link leaves unexplained (design effect; Kish, Survey Sampling, 1965).
    It is pulled toward `USUAL_SHARE`, as few groups hardly tell it.

    Parameters
    ----------
    predicted : ndarray, shape=(R,)
        Predictions of pairs that the models had not seen.
    level : ndarray, shape=(R,)
        Their classes.
    prior : ndarray, shape=(C - 1,)
        `class_thresholds` of all pairs.
    weight : ndarray, shape=(R,), optional
        How much each pair counts, with mean 1.
    pair, group : ndarray, shape=(R,), optional
        Number of each pair, which may be held out several times, and of its group; None: all are
        others.
    """
    values = expected_latent(prior)
    bend = Bend(float(values[0]), float(values[-1]))
    mixed = bend.of(predicted)
    weight_R = np.ones(len(mixed)) if weight is None else weight
    # of the expected latent values of a standard normal variable, the variance that they explain
    shares = np.diff(np.concatenate([[0.0], ndtr(prior), [1.0]]))
    unit = float(shares @ np.square(values))
    told = float(np.average(np.square(mixed / unit), weights=weight_R))
    loss = _LinkLoss(mixed, level.astype(np.int64), weight_R, prior, unit, told)
    pair = np.arange(len(mixed)) if pair is None else pair
    group = pair if group is None else group
    pairs = effective_groups(pair, weight)
    # a pair of several regimes has a group in each
    groups = min(pairs, effective_groups(group, weight))

    def trust_if(share: float) -> float:
        # dependent pairs count for less beside what is known before
        return len(mixed) / pairs * (1 + (pairs / groups - 1) * share)

    trust = trust_if(USUAL_SHARE)
    ratio, ends = loss.least(trust)
    if pairs > groups:
        gradient = loss.steps(ratio, ends).gradient
        trust = trust_if(_share_in_common(gradient, weight_R, pair, group))
        ratio, ends = loss.least(trust)
    ordered = np.sort(predicted)
    outermost = min(OUTERMOST, (len(ordered) + 1) // 2) - 1
    return ClassLink(
        slope=ratio / unit,
        unit=unit,
        told=min(1.0, told),
        thresholds=tuple(ends.tolist()),
        bend=bend,
        ends=(float(ordered[outermost]), float(ordered[-1 - outermost])),
        errors=loss.errors(ratio, ends, trust, groups),
    )


class _LinkLoss(NamedTuple):
    """Hold the R held-out pairs of a link, whose log loss it has, and what it is pulled to.

    A link is given by its slope relative to that of expected latent values, and its thresholds.
    """

    mixed: Floats
    """Bent predictions."""
    level: Ints
    weight: Floats
    prior: Floats
    """`class_thresholds` of all pairs, (C - 1,)."""
    unit: float
    """Variance that expected latent values explain."""
    told: float
    """Mean square of the predictions in this unit."""

    @property
    def is_flat(self) -> bool:
        """Return whether predictions distinguish nothing."""
        return self.told < LEAST_SHARE

    def steps(self, ratio: float, ends: Floats) -> _Steps:
        """Return the derivatives of the log-likelihood of each pair."""
        return _steps(ratio / self.unit * self.mixed, self.level, ends)

    def least(self, trust: float) -> tuple[float, Floats]:
        """Return the link with the least loss; what is known before counts as `trust` says."""
        from scipy.optimize import minimize  # takes 0.3 s, which predictions can spare

        ends = self._usual_thresholds(1.0)
        start = np.concatenate([[1.0, ends[0]], np.log(np.maximum(np.diff(ends), 1e-3))])
        slopes = (1.0, 1.0) if self.is_flat else (0.0, MOST_RATIO)
        gaps = [(-12.0, 3.0)] * (len(ends) - 1)
        bounds = [slopes, (-MOST_LATENT, MOST_LATENT), *gaps]
        found = minimize(self._of, start, (trust,), jac=True, method="L-BFGS-B", bounds=bounds)
        return self._unpack(np.asarray(found.x, np.float64))

    def errors(
        self, ratio: float, ends: Floats, trust: float, groups: float
    ) -> tuple[float, float, float]:
        """Return the `ClassLink.errors` of a link of so many effective groups."""
        # few groups hardly tell what they have in common: an interval is one of Student's t
        factor = CROSS_VALIDATED * (stdtrit(PRIOR_GROUPS + groups - 1, 0.95) / WITHIN) ** 2
        step = self.steps(ratio, ends)
        # derivatives of the probability of each class by the slope and each threshold
        by_all_PCR = np.zeros((1 + len(ends), *step.share_CR.shape))
        for at, density_R in enumerate(step.density_TR):
            by_all_PCR[1 + at, at : at + 2] = density_R, -density_R
        by_all_PCR[0] = -self.mixed * by_all_PCR[1:].sum(axis=0)
        counted_CR = self.weight / trust / step.share_CR
        information_PP = np.einsum("pcr,qcr,cr->pq", by_all_PCR, by_all_PCR, counted_CR)
        known = [self.unit / SLOPE_SPREAD, *np.full(len(ends), 1 / THRESHOLD_SPREAD)]
        information_PP += np.diag(np.square(known))
        if self.is_flat:
            return float(factor * np.linalg.inv(information_PP[1:, 1:])[-1, -1]), 0.0, 0.0
        error_PP = factor * np.linalg.inv(information_PP)
        of_all_pairs = np.square(OF_ALL_PAIRS * (ratio / self.unit))
        return float(error_PP[-1, -1]), float(error_PP[0, 0] + of_all_pairs), float(error_PP[0, -1])

    def _usual_thresholds(self, ratio: float) -> Floats:
        # latent values that vary more have thresholds that are further out for the same shares
        return np.asarray(self.prior * np.sqrt(1 + ratio**2 * self.told))

    @staticmethod
    def _unpack(values: Floats) -> tuple[float, Floats]:
        gaps = np.exp(values[2:])
        return float(values[0]), values[1] + np.concatenate([[0.0], np.cumsum(gaps)])

    def _of(self, values: Floats, trust: float) -> tuple[float, Floats]:
        """Return the loss and its derivatives by slope, first threshold and logarithms of gaps."""
        ratio, ends = self._unpack(values)
        step = self.steps(ratio, ends)
        off = (ends - self._usual_thresholds(ratio)) / THRESHOLD_SPREAD**2
        total = -float(self.weight @ step.log_likelihood)
        total += trust * (ratio - 1) ** 2 / (2 * SLOPE_SPREAD**2)
        total += trust * THRESHOLD_SPREAD**2 * float(off @ off) / 2
        by_ratio = -float((self.weight * step.gradient) @ self.mixed) / self.unit
        by_ratio += trust * (ratio - 1) / SLOPE_SPREAD**2
        widening = np.sqrt(1 + ratio**2 * self.told)
        by_ratio -= trust * float(off @ self.prior) * ratio * self.told / widening
        by_ends = step.by_thresholds(self.level, self.weight) + trust * off
        from_end = np.cumsum(by_ends[::-1])[::-1]
        by_gaps = from_end[1:] * np.exp(values[2:])
        return total, np.concatenate([[by_ratio, from_end[0]], by_gaps])


def _share_in_common(gradient: Floats, weight: Floats, pair: Ints, group: Ints) -> float:
    """Return the share of the squares of gradients, (R,), that pairs of a group have in common."""
    _, first, of_row = np.unique(pair, return_index=True, return_inverse=True)
    weight_of_pair: Floats = np.asarray(np.bincount(of_row, weight))
    mean: Floats = np.bincount(of_row, weight * gradient) / weight_of_pair
    group = group[first]
    pairs = effective_number(weight_of_pair)
    groups = effective_groups(group, weight_of_pair)
    common = mean_product(mean, group, weight_of_pair)
    common /= float(np.average(np.square(mean), weights=weight_of_pair))
    # the thresholds are fitted to the same pairs, which have a mean of 0 then
    common = (common + 1 / pairs) / (1 + 1 / pairs - 1 / groups)
    told = groups - 1
    return (PRIOR_GROUPS * USUAL_SHARE + told * min(max(common, 0.0), 1.0)) / (PRIOR_GROUPS + told)


def working_errors(part_RK: Floats, level: Floats, link: ClassLink, mixed: Floats) -> Floats:
    """Return errors of parts, (R, K), whose squares are to first order their log losses.

    They are those of the latent values that a step of Fisher scoring from the mixture of the parts,
    (R,), asks for; parts are on the scale of the mixture.
    """
    thresholds = np.array(link.thresholds)
    latent = link.latent(mixed)
    step = _steps(latent, level.astype(np.int64), thresholds)
    information = np.maximum(step.information, LEAST_SHARE)
    slope = link.slope * link.bend.slope(mixed)
    away_RK = slope[:, None] * (mixed[:, None] - part_RK) + (step.gradient / information)[:, None]
    return np.asarray(away_RK * np.sqrt(information)[:, None])


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties are kept in __dict__
class HeldOutClasses:
    """Hold the classes of R held-out pairs, and what K parts predict of them."""

    pairs: LabelledPairs
    """All P pairs of the table."""
    rows: Ints
    """Index of each held-out pair, (R,)."""
    part_RK: Floats
    group: Ints
    """Pairs of one group are one measurement where parts are weighed, (R,)."""
    dependent: Ints
    """Pairs of one group have something in common that a link does not explain, (R,)."""
    prior: Floats
    """`class_thresholds` of all pairs, (C - 1,)."""

    @classmethod
    def of(
        cls,
        pairs: LabelledPairs,
        rows: Ints,
        part_RK: Floats,
        group: Ints,
        dependent: Ints | None = None,
    ) -> HeldOutClasses:
        """Take R of the pairs; `group`, (R,), is that of each, and of dependent ones by default."""
        prior = class_thresholds(pairs.pkd, len(pairs.quantity.classes), weights_of(pairs.share))
        dependent = group if dependent is None else dependent
        return cls(
            pairs=pairs,
            rows=rows,
            part_RK=part_RK,
            group=group,
            dependent=dependent,
            prior=prior,
        )

    @classmethod
    def joined(cls, several: Sequence[HeldOutClasses]) -> HeldOutClasses:
        """Join the pairs of several regimes of one table, whose groups stay apart."""
        regime = np.repeat(np.arange(len(several)), [len(one.rows) for one in several])

        def apart(groups: Iterable[Ints]) -> Ints:
            both = np.stack([regime, np.concatenate([*groups])])
            _, group = np.unique(both, axis=1, return_inverse=True)
            return group.reshape(-1)  # of two dimensions in numpy 2.0.0

        return replace(
            several[0],
            rows=np.concatenate([one.rows for one in several]),
            part_RK=np.concatenate([one.part_RK for one in several]),
            group=apart(one.group for one in several),
            dependent=apart(one.dependent for one in several),
        )

    @cached_property
    def level(self) -> Floats:
        """Return the classes, (R,)."""
        return self.pairs.pkd[self.rows]

    @cached_property
    def weight(self) -> Floats | None:
        """Return how much each pair counts, (R,)."""
        return weights_of(self.pairs.share, self.rows)

    def judges(self, fold: Ints) -> Iterator[tuple[Bools, HeldOutClasses]]:
        """Yield the pairs of each fold, as a mask (R,), and those that judge them.

        The thresholds of all pairs to which links are pulled are then those of the other pairs:
        else a fold would know how frequent the classes are in itself.
        """
        for inside, judging in judged(fold, self.rows):
            others = np.delete(np.arange(len(self.pairs.pkd)), self.rows[inside])
            weight = weights_of(self.pairs.share, others)
            prior = class_thresholds(self.pairs.pkd[others], len(self.prior) + 1, weight)
            yield inside, replace(self.take(judging), prior=prior)

    def _alone(self, fold: Ints) -> Iterator[tuple[Bools, Floats, ClassLink]]:
        """Yield the pairs of each fold, their latent values by a single part, and the link."""
        for inside, others in self.judges(fold):
            link = others.link(np.ones(1))
            yield inside, link.latent(self.part_RK[inside, 0]), link

    def expected(self, fold: Ints) -> Floats:
        """Return what a single part expects of each pair, (R,), by the link of the other folds."""
        expected_R = np.empty(len(self.rows))
        for inside, latent, link in self._alone(fold):
            expected_R[inside] = link.expected(latent)
        return expected_R

    def log_losses(self, fold: Ints) -> Floats:
        """Return the log loss of a single part for each pair, (R,), by the same links, in nats."""
        loss_R = np.empty(len(self.rows))
        for inside, latent, link in self._alone(fold):
            loss_R[inside] = log_loss(self.level[inside], latent, link)
        return loss_R

    def take(self, some: Bools) -> HeldOutClasses:
        """Return some of these pairs."""
        return replace(
            self,
            rows=self.rows[some],
            part_RK=self.part_RK[some],
            group=self.group[some],
            dependent=self.dependent[some],
        )

    @property
    def unusual(self) -> int:
        """Return how many different pairs are not of the most frequent class."""
        level = self.pairs.pkd[np.unique(self.rows)].astype(np.int64)
        return len(level) - int(np.bincount(level).max())

    @property
    def informative(self) -> float:
        """Return how often two pairs differ in class, relative to two equally frequent classes."""
        share = np.bincount(self.level.astype(np.int64), self.weight) / max(1, len(self.level))
        least = 1 / max(1, len(self.level))  # all are of one class
        return float(np.clip(2 * (1 - np.square(share).sum()), least, 1.0))

    def link(self, weights: Floats) -> ClassLink:
        """Fit the link of a mixture of the parts."""
        return fit_link(
            self.part_RK @ weights,
            self.level,
            self.prior,
            weight=self.weight,
            pair=self.rows,
            group=self.dependent,
        )

    def weigh(self, stack: Callable[[Floats, Ints], Floats]) -> tuple[Floats, ClassLink]:
        """Weigh the parts by their log losses; return the weights, (K,), and their link.

        `stack` returns the weights that errors, (R, K), of groups, (R,), ask for. The first errors
        are those of expected latent values, the others follow from the link of the mixture.
        """
        wanted = expected_latent(self.prior)[self.level.astype(np.int64)]
        error_RK = wanted[:, None] - self.part_RK
        root = np.ones(len(self.level)) if self.weight is None else np.sqrt(self.weight)
        weights = stack(error_RK * root[:, None], self.group)
        for _ in range(STEPS):
            link = self.link(weights)
            error_RK = working_errors(self.part_RK, self.level, link, self.part_RK @ weights)
            weights = stack(error_RK * root[:, None], self.group)
        return weights, self.link(weights)


def log_loss(level: Floats, latent: Floats, link: ClassLink) -> Floats:
    """Return the log loss of each row, (R,), in nats."""
    steps = _steps(latent, level.astype(np.int64), np.array(link.thresholds))
    return np.asarray(-steps.log_likelihood)
