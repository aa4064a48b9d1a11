"""Verdicts of a regime: does a model rank better than chance, and predict better than the mean?

All numbers come from out-of-fold predictions, and all intervals from the groups that a regime
counts as one measurement: a jackknife over groups with Student's t of their effective number. With
two sequences new there are two groupings, and the wider interval counts.

With several folds, every two groups count twice, because each is tested by a model that has learned
from the other. Without a signal this doubles the variance of a rank correlation, as tested with
planted tables (benchmarks/bench_regimes.py): claims of 95 % would be false in 8 % of the tables.
The same holds for the comparison with the best of several baselines, which learn from the same
folds and resemble the model: 3.4 % of the claims would be false instead of 2.5 %.

R tested pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
from scipy.special import stdtrit
from scipy.stats import rankdata

from abag.core.arrays import Floats, Ints
from abag.head.regimes.regimes import LEAST_GROUPS, LEAST_ROWS, effective_groups
from abag.head.regimes.splits import TEST

if TYPE_CHECKING:
    from abag.head.evaluation.comparison import MeasuredPairs
    from abag.head.regimes.regimes import MeasuredRegime

LEVEL = 0.975
"""One-sided: both ends of a 95 % interval."""
CROSS_VALIDATED = 2.0
"""Factor of the variance of ranks, and of differences to the best baseline, with several folds."""
FEWEST_RANKED = 3
"""Pairs of a cell below which nothing is ranked."""
ROUNDING = 9
"""Digits of predictions that are compared: sums in another order are equal."""


class Claim(NamedTuple):
    """A mean with its 95 % interval; without limits where groups are too few."""

    value: float
    low: float | None
    high: float | None
    groups: float
    """Effective number."""

    @property
    def holds(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low is not None and self.low > 0

    @property
    def fails(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high is not None and self.high < 0


@dataclass(frozen=True, slots=True)
class TestedPairs:
    """The exact test pairs of a regime, fold after fold; all of shape (R,)."""

    rows: Ints
    """Index of each pair in the table."""
    pkd: Floats
    fold: Ints
    """Index among the folds of the regime."""
    antigen: Ints
    groups: Sequence[Ints]
    """One or two groupings of the pairs."""

    @classmethod
    def of(cls, pairs: MeasuredPairs, measured: MeasuredRegime) -> TestedPairs:
        """Take the exact test pairs of the folds of a regime."""
        tests = [split.rows(TEST) for split in measured.splits]
        tests = [rows[pairs.censored[rows] == 0] for rows in tests]
        rows = np.concatenate(tests)
        fold = np.repeat(np.arange(len(tests)), [len(one) for one in tests])
        groups = [group[rows] for group in measured.groups]
        return cls(rows, pairs.pkd[rows], fold, pairs.antigen[rows], groups)

    def take(self, folds: Sequence[Floats]) -> Floats:
        """Take the values of these pairs from those of all pairs, (P,), of each fold; (R,)."""
        return np.stack([*folds])[self.fold, self.rows]

    @property
    def dependence(self) -> float:
        """Factor of a variance if pairs that are tested in one fold are learned from in another."""
        return CROSS_VALIDATED if len(np.unique(self.fold)) > 1 else 1.0


class RegimeScore(TypedDict):
    """One row of the table that everybody sees; JSON."""

    regime: str
    words: str
    n: int
    """Different pairs that were tested."""
    groups: float
    """Effective number of independent groups among them."""
    spearman: dict[str, float | None] | None
    spearman_within_antigen: dict[str, float | None] | None
    rmse: float
    """In pKd."""
    r2: float
    """Relative to the means of the training parts."""
    coverage: float | None
    """Share of the pairs within their 90 % intervals."""
    rmse_of_mean: float
    best_baseline: str
    rmse_of_best: float
    better_than_mean: dict[str, float | None]
    """Difference of squared errors, in pKd^2; above 0 if the model is better."""
    better_than_best: dict[str, float | None]
    sentence: str


def score_regime(
    name: str,
    words: str,
    tested: TestedPairs,
    predicted: Floats,
    mean: Floats,
    baselines: Mapping[str, Floats],
    inside: Floats | None,
) -> RegimeScore:
    """Judge out-of-fold predictions of a regime.

    Parameters
    ----------
    predicted, mean : NDArray, shape=(R,), dtype=float64
        Of the model, and the means of the training parts.
    baselines : mapping
        Predictions of other models, (R,) each, by name.
    inside : NDArray, shape=(R,), dtype=float64, optional
        1 where the label is within the 90 % interval.
    """
    pkd = tested.pkd
    square, of_mean = np.square(pkd - predicted), np.square(pkd - mean)
    errors = {one: np.square(pkd - found) for one, found in baselines.items()}
    errors = {one: e for one, e in errors.items() if np.isfinite(e).all()}
    best = min(errors, key=lambda one: float(errors[one].mean())) if errors else "train_mean"
    of_best = errors.get(best, of_mean)
    against_mean = mean_claim(of_mean - square, tested.groups)
    against_best = mean_claim(of_best - square, tested.groups, tested.dependence)
    cells = tested.fold * (int(tested.antigen.max(initial=0)) + 1) + tested.antigen
    within, overall = (_rank_claim(tested, predicted, cell) for cell in (cells, tested.fold))
    return {
        "regime": name,
        "words": words,
        "n": len(np.unique(tested.rows)),
        "groups": min(effective_groups(group) for group in tested.groups),
        "spearman": None if overall is None else overall._asdict(),
        "spearman_within_antigen": None if within is None else within._asdict(),
        "rmse": _root(square),
        "r2": float(1 - square.sum() / of_mean.sum()) if of_mean.any() else 0.0,
        "coverage": None if inside is None else float(inside.mean()),
        "rmse_of_mean": _root(of_mean),
        "best_baseline": best,
        "rmse_of_best": _root(of_best),
        "better_than_mean": against_mean._asdict(),
        "better_than_best": against_best._asdict(),
        "sentence": f"{words}: {_judge(within, overall, against_mean, against_best, best)}",
    }


def _root(square: Floats) -> float:
    return float(np.sqrt(square.mean()))


def _judge(
    within: Claim | None, overall: Claim | None, against_mean: Claim, against_best: Claim, best: str
) -> str:
    """Say in one sentence what was shown."""
    order = "ranking cannot be judged"
    for claim, where in ((within, " within antigens"), (overall, "")):
        if claim is not None and claim.low is not None:
            order = f"ranks{where} {'' if claim.holds else 'not '}better than chance"
            break
    values = "better than" if against_mean.holds else "not better than"
    if against_mean.fails:
        values = "worse than"
    text = f"{order}, values {values} the mean"
    if not against_mean.holds:
        return text
    beside = "better than" if against_best.holds else "worse than" if against_best.fails else ""
    name = best.replace("_", " ")
    return f"{text}, {beside or 'not clearly better than'} the best baseline ({name})"


def compare_models(
    words: str, name: str, other: str, tested: TestedPairs, predicted: Floats, reference: Floats
) -> str:
    """Say in one sentence which of two models has smaller errors in a regime."""
    square = np.square(tested.pkd - predicted)
    claim = mean_claim(np.square(tested.pkd - reference) - square, tested.groups)
    relation = "better than" if claim.holds else "worse than" if claim.fails else ""
    rmse = _root(square), _root(np.square(tested.pkd - reference))
    return (
        f"{words}: {name} is {relation or 'statistically indistinguishable from'} {other}: RMSE "
        f"{rmse[0]:.3f} and {rmse[1]:.3f} pKd, {len(tested.pkd):,} tested pairs as informative as "
        f"{claim.groups:.0f} groups."
    )


def mean_claim(
    value: Floats,
    groups: Sequence[Ints],
    factor: float = 1.0,
    wide: Floats | None = None,
) -> Claim:
    """Return the mean of values, (R,), with the widest of its intervals over the groupings.

    Parameters
    ----------
    groups : sequence of NDArray, shape=(R,), dtype=int64
    factor : float
        Of the variance.
    wide : NDArray, shape=(R,), dtype=float64, optional
        Factors of the deviations of single values.
    """
    mean = float(value.mean())
    low, high, least = mean, mean, np.inf
    for group in groups:
        _, dense = np.unique(group, return_inverse=True)
        size = np.bincount(dense).astype(np.float64)
        n = effective_groups(group)
        least = min(least, n)
        if len(size) < 2 or n < LEAST_GROUPS:
            return Claim(mean, None, None, least)
        residual = np.bincount(dense, (value - mean) * (1.0 if wide is None else wide))
        without = residual / (1 - size / size.sum())
        variance = factor * np.square(without).sum() * (1 - 1 / len(size)) / size.sum() ** 2
        error = float(stdtrit(n - 1, LEVEL) * np.sqrt(variance))
        low, high = min(low, mean - error), max(high, mean + error)
    return Claim(mean, low, high, least)


def _rank_claim(tested: TestedPairs, predicted: Floats, cell: Ints) -> Claim | None:
    """Return the mean Spearman correlation over cells, with its interval; None if undefined."""
    found = list[Claim]()
    for group in tested.groups:
        value, wide = rank_values(predicted, tested.pkd, cell, group)
        ok = np.isfinite(value)
        if ok.sum() >= LEAST_ROWS:
            found.append(mean_claim(value[ok], [group[ok]], tested.dependence, wide[ok]))
    unknown = [one for one in found if one.low is None or one.high is None]
    if unknown or not found:
        return unknown[0] if unknown else None
    widest = min(found, key=lambda one: one.low or 0.0)
    return widest._replace(low=max(-1.0, widest.low or 0.0), high=min(1.0, widest.high or 0.0))


def rank_values(predicted: Floats, pkd: Floats, cell: Ints, group: Ints) -> tuple[Floats, Floats]:
    """Return what each pair adds to the mean Spearman correlation over cells, (R,).

    NaN in cells of fewer than `FEWEST_RANKED` pairs, or of equal labels. Ranks are centred within
    their cell, which makes the deviations of its m groups too small: the second result, (R,), is
    the factor sqrt(m / (m - 1)).
    """
    value, wide = np.full(len(pkd), np.nan), np.ones(len(pkd))
    order = np.argsort(cell, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(cell[order])) + 1):
        if len(rows) < FEWEST_RANKED or np.ptp(pkd[rows]) == 0:
            continue
        own, truth = (rankdata(np.round(x[rows], ROUNDING)) for x in (predicted, pkd))
        own, truth = own - own.mean(), truth - truth.mean()
        length = np.sqrt((own**2).sum() * (truth**2).sum())
        value[rows] = len(rows) * own * truth / length if length else 0.0
        if (m := len(np.unique(group[rows]))) > 1:
            wide[rows] = np.sqrt(m / (m - 1))
    return value, wide


def describe_regimes(scores: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Lay out scores as rows of text, the head first."""
    ranked = ("spearman", "spearman_within_antigen")
    rows = [
        [
            "", "pairs", "groups", "Spearman", "within antigen", "RMSE (pKd)", "of the mean",
            "of the best baseline", "90 % covers",
        ]
    ]  # fmt: skip
    for one in scores:
        best = f"{one['rmse_of_best']:.2f} ({str(one['best_baseline']).replace('_', ' ')})"
        covers = "-" if one["coverage"] is None else f"{one['coverage']:.0%}"
        errors = [f"{one['rmse']:.2f}", f"{one['rmse_of_mean']:.2f}", best]
        ranks = [_with_interval(one[name]) for name in ranked]
        rows.append(
            [one["words"], f"{one['n']:,}", f"{one['groups']:.0f}", *ranks, *errors, covers]
        )
    return rows


def _with_interval(claim: Mapping[str, float | None] | None) -> str:
    if claim is None or claim["value"] is None:
        return "-"
    if claim["low"] is None or claim["high"] is None:
        return f"{claim['value']:.2f}"
    return f"{claim['value']:.2f} [{claim['low']:.2f}, {claim['high']:.2f}]"
