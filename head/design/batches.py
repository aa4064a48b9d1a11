"""Rules that score predicted pairs, batches of the best, and what to expect of measuring them.

Measurements of a batch are simulated about the predictions of its pairs. Errors of one model have
something in common: how much is told by those of pairs that the folds of the run held out, as is
how sure sigma is; how far measurements reach is told by its labels. R candidates or held-out pairs,
B pairs of a batch, with a predicted pKd and its standard error sigma.

References: Jones, Schonlau, Welch, J. Global Optim. 13:455 (1998) for the expected improvement;
Srinivas et al., ICML 2010, for the upper confidence bound; Pickands, Annals of Statistics 3:119
(1975) for the tail of labels, whose shape is taken to be 0; Kish, Survey Sampling, Wiley (1965) for
the design effect.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from abag.core.arrays import Floats, Ints
from abag.embed.tables.chains import KINDS
from abag.head.labels.headers import Quantity
from abag.head.predictor.options import EXPLORE, RuleName
from abag.head.predictor.weigh import certain_labels
from abag.head.regimes.splits import mean_product


class Aim(NamedTuple):
    """Values that rules compare predictions with."""

    explore: float = EXPLORE
    """Sigmas that an upper confidence bound adds to the mean."""
    best: float = np.nan
    above: float = np.nan
    """pKd that a pair should reach."""


Rule: TypeAlias = Callable[[Floats, Floats, Aim], Floats]
"""Scores pairs with these means and sigmas, (B,) each in pKd."""


def _mean(mean: Floats, _sigma: Floats, _aim: Aim) -> Floats:
    return mean


def _upper_confidence_bound(mean: Floats, sigma: Floats, aim: Aim) -> Floats:
    return mean + aim.explore * sigma


def _expected_improvement(mean: Floats, sigma: Floats, aim: Aim) -> Floats:
    """Return by how much a pair is expected to exceed the best, in pKd; 0 for one that does not."""
    gain = mean - aim.best
    z = _standardised(gain, sigma)
    # Far below the best, both terms cancel but for rounding, which may be below 0.
    above = np.maximum(gain * ndtr(z) + sigma * _normal(z), 0)
    return np.where(sigma > 0, above, np.maximum(gain, 0))


def probability_above(mean: Floats, sigma: Floats, aim: Aim) -> Floats:
    """Return the probability that the pKd of a pair reaches ``aim.above``."""
    return np.asarray(ndtr(_standardised(mean - aim.above, sigma)))


def _standardised(gain: Floats, sigma: Floats) -> Floats:
    """Divide by sigma; without error, a gain is certain and anything else impossible."""
    certain = np.where(gain > 0, np.inf, -np.inf)
    return np.divide(gain, sigma, out=certain, where=sigma > 0)


RULES: Mapping[RuleName, Rule] = {
    "mean": _mean,
    "ucb": _upper_confidence_bound,
    "improvement": _expected_improvement,
    "probability": probability_above,
}


def best_first(score: Floats, mean: Floats, place: Ints | None = None) -> Ints:
    """Order pairs by score, shape (B,); of equal scores by mean, then by place, or as they come."""
    # lexsort sorts by its last key first
    return np.lexsort((-mean, -score) if place is None else (place, -mean, -score))


def pareto_order(first: Floats, second: Floats, place: Ints) -> tuple[Ints, Ints]:
    """Order candidates by the Pareto fronts of two properties of which higher is better.

    Parameters
    ----------
    first, second : ndarray, shape=(R,)
    place : ndarray, shape=(R,)
        Orders candidates of the same front that are equally crowded.

    Returns
    -------
    order : ndarray, shape=(R,), dtype=int64
        Front by front; of one front, those first that are far from others of it, its ends included,
        so that a part of a front is spread along it.
    front : ndarray, shape=(R,), dtype=int64
        Number of the front of each candidate, from 1: none is better than it in one property and
        as good in the other, once the fronts before are taken off.

    References
    ----------
    Deb, Pratap, Agarwal, Meyarivan, IEEE Trans. Evol. Comput. 6:182 (2002).
    """
    front = np.zeros(len(first), np.int64)
    reached = list[float]()  # the best second value of each front so far, descending
    before: tuple[float, float] | None = None
    number = 0
    for row in np.lexsort((-second, -first)).tolist():
        pair = (float(first[row]), float(second[row]))
        if pair != before:
            number = bisect_right(reached, -pair[1])
            reached[number : number + 1] = [-pair[1]]
            before = pair
        front[row] = number + 1
    crowding = np.zeros(len(first))
    for values in (first, second):
        span = float(np.ptp(values)) or 1.0
        ordered = np.lexsort((values, front))
        gap = np.diff(values[ordered]) / span
        is_same = np.diff(front[ordered]) == 0
        below = np.concatenate([[np.inf], np.where(is_same, gap, np.inf)])
        above = np.concatenate([np.where(is_same, gap, np.inf), [np.inf]])
        crowding[ordered] += below + above
    return np.lexsort((place, -crowding, front)), front


def choose_capped(order: Ints, size: int, groups: Sequence[Sequence[object]], most: int) -> Ints:
    """Choose the first candidates of an order, at most `size`, and `most` of each of their groups.

    `groups`, (R,), lists those of each candidate.
    """
    chosen: list[int] = []
    used = Counter[object]()
    for row in order.tolist():
        if len(chosen) == size:
            break
        if all(used[group] < most for group in groups[row]):
            chosen.append(row)
            used.update(groups[row])
    return np.array(chosen, np.int64)


DRAWS = 10_000
"""Simulated batches: the error of an expected pKd is about 0.01 sigma."""
BLOCK_VALUES = 1 << 22
"""Simulated measurements in memory at a time."""
INTERVAL = (0.05, 0.95)
USUAL_SHARE = 0.25
"""Share of the variance of errors that the pairs of a batch have in common, before a run says more:
with it, intervals of the best pair and of the number above a goal hold about nine tenths of both
(`bench_batches`)."""
PRIOR_GROUPS = 20.0
"""Folds, or sequences, that weigh as much as what is usual."""
LARGEST_SHARE = 0.95
FEWEST_LABELS = 20
"""Labels without which nothing is known of their distribution."""
FEWEST_BEST = 8
"""Labels that tell at least how far others may be beyond the best one."""
MOST_LABELS = 2000
"""Labels that are smoothed; of more, quantiles."""
WIDEST = 0.35
"""Largest width of the kernel of a label, in standard deviations of the labels: sparse labels at
the top say little about where they end."""
NARROWEST = 0.01
LEAST_SKEW, MOST_SKEW = 0.2, 1.2
"""Skewness of labels toward better ones from which, and up to which, the best pairs are less sure
than sigma says."""
LESS_SURE = 2.5
"""By how much the variance of their errors may be larger, per unit of skewness: so intervals hold
nine of ten best pairs where labels end at a floor, and seven without (`bench_batches`)."""
STEPS = np.linspace(-6.0, 6.0, 241)
"""Sigmas from the prediction at which the distribution of a measurement is computed."""
NEGLIGIBLE = 1e-3
"""Sigmas by which a measurement may be expected above its prediction."""
MOST_STEPS = 60
"""Of Newton's method."""


class SharedErrors(NamedTuple):
    """Shares of the variance of errors that pairs have in common, beside their own."""

    by_all: float = 0.0
    by_antigen: float = 0.0
    """Beyond that, of pairs of one antigen."""
    by_antibody: float = 0.0


WITHOUT_RUN = SharedErrors(0.5)
"""Of predictions of abag whose run is not given: nothing says where labels end, which makes
independent errors promise too much."""
NOTHING_SHARED = SharedErrors()
MOST_BEYOND = 0.05
"""Share of labels that are known to be better than their bounds, from which the others do not say
how far measurements reach."""


def estimate_shares(scaled: Floats, cell: Ints, antigen: Ints, antibody: Ints) -> SharedErrors:
    """Estimate what errors of held-out pairs have in common, (R,) each.

    A share is the mean product of the errors of two pairs, an intraclass correlation. It is shrunk
    toward what is usual, as few folds, or sequences, say little.

    Parameters
    ----------
    scaled : ndarray, shape=(R,)
        Errors in units of sigma.
    cell : ndarray, shape=(R,)
        Number of the fold, whose pairs one model has predicted.
    antigen, antibody : ndarray, shape=(R,)
    """
    of_cell = mean_product(scaled, cell)
    cells = int((np.unique(cell, return_counts=True)[1] > 1).sum())
    common = max(of_cell, 0.0)
    shares = [(PRIOR_GROUPS * USUAL_SHARE + cells * common) / (PRIOR_GROUPS + cells)]
    for sequence in (antigen, antibody):
        of_sequence = mean_product(scaled, cell * (sequence.max(initial=0) + 1) + sequence)
        repeated = np.bincount(sequence)[sequence] > 1
        sequences = len(np.unique(sequence[repeated]))
        beyond = max(of_sequence - of_cell, 0.0) if sequences > 1 else 0.0
        shares.append(beyond * sequences / (PRIOR_GROUPS + sequences))
    factor = min(1.0, LARGEST_SHARE / max(sum(shares), LARGEST_SHARE))  # each pair has some own
    return SharedErrors(*(share * factor for share in shares))


def distribute(mean: Floats, sigma: Floats, labels: Floats) -> Floats | None:
    """Return where measurements of predicted pairs will be, at `STEPS`, (B, S) of probability.

    Measurements are distributed as the labels of the run are, weighted exponentially: if its labels
    are normal, each measurement is, too, about the prediction and with sigma. Labels that end where
    an assay does, or no variant is better, end there for new pairs, too, whose measurements are
    then expected below the prediction. Whether they end is told by how close the best labels are:
    beyond the best one, the density falls as that of normal labels with their mean excess would. A
    few labels far above the others, such as those of earlier batches, do not let expect more than
    is predicted. None if labels are few or equal.
    """
    spread = float(labels.std()) if len(labels) >= FEWEST_LABELS else 0.0
    if not spread:
        return None
    ordered = np.sort(labels)
    if len(ordered) > MOST_LABELS:
        ordered = np.quantile(ordered, np.linspace(0, 1, MOST_LABELS))
    neighbours = int(np.sqrt(len(ordered)))
    window = np.clip(np.arange(len(ordered)) - neighbours // 2, 0, len(ordered) - 1 - neighbours)
    near = (ordered[window + neighbours] - ordered[window]) / 2
    width = np.clip(near, NARROWEST * spread, WIDEST * spread)
    low = min(ordered[0], (mean - 6 * sigma).min()) - spread
    high = max(ordered[-1], (mean + 6 * sigma).max()) + spread
    grid = np.linspace(low, high, 600)
    density = (_normal((grid[:, None] - ordered) / width) / width).mean(axis=1)
    beyond = grid > ordered[-1]
    density[beyond] = np.maximum(density[beyond], _upper_tail(labels, grid[beyond]))
    middle = float(labels.mean())
    # one more pair may be anywhere
    unseen = _normal((grid - middle) / spread) / spread / (len(ordered) + 1)
    log_density = np.log(density + unseen + np.finfo(float).tiny)
    share = np.minimum(np.square(sigma / spread), 0.95)
    # of normal labels the product with this has the mean and sigma that were predicted
    tilt = (mean - middle) * sigma / spread**2
    at = mean[:, None] + sigma[:, None] * STEPS
    log_labels = np.interp(at, grid, log_density) - (1 - share)[:, None] * np.square(STEPS) / 2
    for _ in range(MOST_STEPS):
        log = log_labels + tilt[:, None] * STEPS
        weight = np.exp(log - log.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        center = weight @ STEPS
        if (center <= NEGLIGIBLE).all():
            break
        variance = weight @ np.square(STEPS) - np.square(center)
        tilt = tilt - np.clip(center / np.maximum(variance, NEGLIGIBLE), 0.0, 1.0)
    return np.asarray(np.cumsum(weight, axis=1) - weight / 2)


def unsure_of_best(labels: Floats) -> float:
    """Return up to which share the variance of errors of the best pairs may be larger.

    Labels, (F,), that are skewed toward better ones pile up at the other end, such as the floor of
    an assay. Models that are smooth pull the best pairs to it, by more than errors of others tell.
    """
    spread = float(labels.std())
    if not spread:
        return 0.0
    skewness = float(np.mean(((labels - labels.mean()) / spread) ** 3))
    return LESS_SURE * (min(max(skewness, LEAST_SKEW), MOST_SKEW) - LEAST_SKEW)


def _upper_tail(labels: Floats, at: Floats) -> Floats:
    """Return the density of labels above all known ones, such as those of normal labels.

    It falls exponentially with the mean excess of the best labels, and beyond the best one ever
    faster, as a normal density does: an exponential one would make errors of predictions wider.
    """
    number = max(FEWEST_BEST, int(np.sqrt(len(labels))))
    threshold, *best = np.sort(labels)[-number - 1 :].tolist()
    excess = float(np.mean(best)) - threshold
    if not excess:
        return np.zeros_like(at)
    exponential = np.exp(-(at - threshold) / excess) / excess * number / len(labels)
    return np.asarray(exponential * np.exp(-np.square((at - best[-1]) / labels.std()) / 2))


def _normal(z: Floats) -> Floats:
    return np.asarray(np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi))


class Hits(NamedTuple):
    """Say how many pairs of a batch are of a class."""

    expected: float
    interval: tuple[float, float]
    """Central 90 %."""


def expect_hits(probability: Floats, deviation: Floats) -> Hits:
    """Expect how many of B pairs are of a class, given the probability of each.

    Parameters
    ----------
    probability : ndarray, shape=(B,)
        Of the class.
    deviation : ndarray, shape=(B,)
        Standard deviation of what is not known of it, which pairs of one model have in common.
    """
    expected = float(probability.sum())
    square = float((probability * (1 - probability)).sum()) + float(deviation.sum()) ** 2
    half = float(ndtri(0.95)) * square**0.5
    low = max(0.0, np.floor(expected - half))
    high = min(float(len(probability)), np.ceil(expected + half))
    return Hits(expected, (float(low), float(high)))


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected results of measuring a batch."""

    best_of_first: Floats
    """Expected best pKd of the first 1, 2, ... B pairs, (B,)."""
    best_interval: tuple[float, float]
    """Central 90 % of the best pKd of the batch."""
    above: float
    """Expected number of pairs above the threshold; NaN without one."""
    above_interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class KnownErrors:
    """What is known of the errors and labels of the pairs of a batch."""

    shares: SharedErrors = NOTHING_SHARED
    """What the errors have in common."""
    labels: Floats | None = None
    """Exact labels of the run, of which higher is better, (F,); None if too much is a bound."""
    degrees: float = np.inf
    """Degrees of freedom with which held-out errors tell sigma."""

    def expect(
        self,
        mean: Floats,
        sigma: Floats,
        antibody: Ints | None = None,
        antigen: Ints | None = None,
        above: float = np.nan,
    ) -> Expectation:
        """Simulate the measurement of a batch, best first; equal arguments give equal results.

        The number above a threshold is the sum of the probabilities that `rank` writes, whatever
        the labels are.

        Parameters
        ----------
        mean, sigma : ndarray, shape=(B,)
            Predictions and their standard errors, in pKd.
        antibody, antigen : ndarray, shape=(B,), optional
            Numbers of the sequences of each pair; without them, nothing is shared by these.
        above : float
            Threshold in pKd.
        """
        rng = np.random.default_rng(0)
        cumulative = None if self.labels is None else distribute(mean, sigma, self.labels)
        less_sure = 0.0 if self.labels is None else unsure_of_best(self.labels)
        by_all, by_antigen, by_antibody = self.shares
        own_share = max(0.0, 1.0 - by_all - (by_antigen + by_antibody))
        sums = np.zeros(len(mean))
        best = np.empty(DRAWS)
        counts = np.empty(DRAWS)
        step = max(1, BLOCK_VALUES // len(mean))
        for at in range(0, DRAWS, step):
            block = slice(at, min(at + step, DRAWS))
            draws = block.stop - at
            error = np.sqrt(by_all) * rng.standard_normal((draws, 1))
            error = error + np.sqrt(own_share) * rng.standard_normal((draws, len(mean)))
            for share, group in ((by_antigen, antigen), (by_antibody, antibody)):
                if share and group is not None:
                    dense = pd.factorize(group)[0]  # in the order of the batch, not of the table
                    of_group = rng.standard_normal((draws, int(dense.max()) + 1))
                    error += np.sqrt(share) * of_group[:, dense]
            if np.isfinite(self.degrees):
                error *= np.sqrt(self.degrees / rng.chisquare(self.degrees, (draws, 1)))
            if less_sure:
                error *= np.sqrt(1 + less_sure * rng.random((draws, 1)))
            measured = mean + sigma * error  # noise of the assay included, as sigma has it
            counts[block] = (measured > above).sum(axis=1)
            if cumulative is not None:
                probability = ndtr(error)
                for pair, of_pair in enumerate(cumulative):
                    steps = np.interp(probability[:, pair], of_pair, STEPS)
                    measured[:, pair] = mean[pair] + sigma[pair] * steps
            best_so_far = np.maximum.accumulate(measured, axis=1)
            sums += best_so_far.sum(axis=0)
            best[block] = best_so_far[:, -1]
        low, high = np.quantile(best, INTERVAL).tolist()
        few, many = np.quantile(counts, INTERVAL).tolist()
        hits = probability_above(mean, sigma, Aim(above=above)) if np.isfinite(above) else np.nan
        return Expectation(sums / DRAWS, (low, high), float(np.sum(hits)), (few, many))


def known_errors(
    run: Path | None, regimes: Collection[str], quantity: Quantity, *, of_abag: bool = True
) -> KnownErrors:
    """Return what the errors of held-out pairs of these regimes, or of all, tell of new pairs.

    Without the folder of a run, errors of predictions of abag are taken to be similar, as labels
    may end anywhere; those of other tools are taken at their word.
    """
    if run is None or not (run / "predictions.parquet").exists():
        return KnownErrors(WITHOUT_RUN if of_abag else NOTHING_SHARED)
    tested = quantity.inward(pd.read_parquet(run / "predictions.parquet"), "pkd", "pkd_predicted")
    tested = _certain(tested[tested["censored"] == 0])
    if tested["regime"].isin(regimes).any():
        tested = tested[tested["regime"].isin(regimes)]
    scaled = ((tested["pkd"] - tested["pkd_predicted"]) / tested["sigma"]).to_numpy(np.float64)
    cell = np.asarray(tested.groupby(["regime", "fold"], sort=False).ngroup(), np.int64)
    antibody, antigen = (pd.factorize(tested[f"{kind}_key"])[0] for kind in KINDS)
    pairs = quantity.inward(pd.read_parquet(run / "pairs.parquet"), "pkd")
    is_beyond = quantity.sign * pairs["censored"] > 0
    labels = None
    if is_beyond.mean() <= MOST_BEYOND:
        exact = _certain(pairs[pairs["censored"] == 0])
        labels = quantity.sign * exact["pkd"].to_numpy(np.float64)
    shares = estimate_shares(scaled, cell, antigen, antibody)
    pairs_held_out = len(tested.drop_duplicates([f"{kind}_key" for kind in KINDS]))
    return KnownErrors(shares, labels, degrees_of_sigma(pairs_held_out, shares.by_all))


def degrees_of_sigma(pairs: int, share: float) -> float:
    """Return the degrees of freedom with which so many held-out errors tell sigma.

    Squares of errors that have this share of their variance in common have its square in common,
    which makes them as few as Kish's design effect says. Without any error, 2 are left.
    """
    return 2.0 + pairs / (1.0 + max(pairs - 1, 0) * share**2)


def _certain(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out rows whose labels hardly count, as where sigma is calibrated."""
    if "weight" not in rows:
        return rows
    every = np.ones(len(rows), np.bool_)
    return rows[certain_labels(every, rows["weight"].to_numpy(np.float64))]
