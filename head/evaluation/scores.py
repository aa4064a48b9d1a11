"""Verdicts of a regime: does a model rank better than chance, and predict better than the mean?

All numbers come from out-of-fold predictions, and all intervals from the groups that a regime
counts as one measurement: a jackknife over groups with Student's t of their effective number. With
two sequences new there are two groupings, and the wider interval counts.

With several folds, every two groups count twice, because each is tested by a model that has learned
from the other. Without a signal this doubles the variance of a rank correlation, as tested with
planted tables (benchmarks/bench_regimes.py): claims of 95 % would be false in 8 % of the tables.
The same holds for the comparison with the best of several baselines, which learn from the same
folds and resemble the model: 3.4 % of the claims would be false instead of 2.5 %; and for the RMSE,
whose lower end also allows for what the predictor learns from pairs that the folds held out.

R tested pairs.

The table of regimes: its columns, and the scores of each regime as a row of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from abag.core.arrays import Floats, Ints, distinct
from abag.core.messages import counted
from abag.embed.tables.chains import KINDS, Kind
from abag.head.evaluation.metrics import METRICS
from abag.head.labels.headers import PKD, Quantity
from abag.head.regimes.regimes import MUTATED
from abag.head.regimes.sides import LEAST_GROUPS, LEAST_ROWS, effective_groups
from abag.head.regimes.splits import TEST, learned_rows

if TYPE_CHECKING:
    from abag.head.evaluation.metrics import MeasuredPairs
    from abag.head.regimes.folds import MeasuredRegime


LEVEL = 0.975
"""One-sided: both ends of a 95 % interval."""
CROSS_VALIDATED = 2.0
"""Factor of the variance of ranks, and of differences to the best baseline, with several folds."""
LEARNING = 0.3
"""By how much the RMSE of a predictor may be lower, relative to the share of the pairs that its
folds did not learn from. With the factor above, its interval then holds the RMSE of new rows in
95 % of planted tables, without both in 79 % (benchmarks/bench_regimes.py)."""
FEWEST_RANKED = 3
"""Pairs of a cell below which nothing is ranked."""
ROUNDING = 9
"""Digits of predictions that are compared: sums in another order are equal."""
TRAIN_MEAN = "train_mean"
"""Name of the baseline that predicts the mean of the training labels."""
INDISTINGUISHABLE = "statistically indistinguishable from"


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


@dataclass(frozen=True, slots=True)
class TestedPairs:
    """Hold the exact test pairs of a regime, fold after fold; all of shape (R,)."""

    rows: Ints
    """Index of each pair in the table."""
    pkd: Floats
    fold: Ints
    antibody: Ints
    antigen: Ints
    groups: Sequence[Ints]
    """One or two groupings of the pairs."""
    trained_share: float = 1.0
    """Share of the pairs that the folds learned from; the predictor learns from all."""
    by_positions: bool = False
    """Whether each fold held out other positions of a library, of which there are few."""

    @classmethod
    def of(cls, pairs: MeasuredPairs, measured: MeasuredRegime) -> TestedPairs:
        """Take the exact test pairs of the folds of a regime."""
        tests = []
        trained = []
        is_used = np.zeros(len(pairs.pkd), np.bool_)
        for split in measured.splits:
            tested = split.rows(TEST)
            tests.append(tested[pairs.censored[tested] == 0])
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
        )

    def take(self, folds: Sequence[Floats]) -> Floats:
        """Take the values of these pairs from those of all pairs, (P,), of each fold; (R,)."""
        return np.stack([*folds])[self.fold, self.rows]

    @property
    def dependence(self) -> float:
        """Return the factor of a variance if pairs tested in one fold train another."""
        return CROSS_VALIDATED if len(np.unique(self.fold)) > 1 else 1.0


class RegimeScore(TypedDict):
    """Hold one row of the table of regimes; JSON."""

    regime: str
    words: str
    n: int
    """Different pairs that were tested."""
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
    """Judge out-of-fold predictions of a regime, (R,) each.

    `mean` has the means of the training parts, `baselines` the predictions of other models by name,
    and `inside` 1 where the label is within the 90 % interval.
    """
    pkd = tested.pkd
    square = np.square(pkd - predicted)
    of_mean = np.square(pkd - mean)
    best, of_best = _best_baseline(pkd, baselines) or (TRAIN_MEAN, of_mean)
    against_mean = mean_claim(of_mean - square, tested.groups)
    against_best = mean_claim(of_best - square, tested.groups, tested.dependence)
    # a mean of equal labels differs from them by rounding
    of_test_mean = np.square(pkd - pkd.mean()) if np.ptp(pkd) else np.zeros(len(pkd))
    r2_of_pairs = _avoided(square, of_test_mean)
    skill_of_pairs = _avoided(square, of_mean)
    intervals = {
        "rmse": _error_interval(square, tested),
        "r2": _interval(r2_of_pairs, tested.groups, most=1.0),
        "skill": _interval(skill_of_pairs, tested.groups, most=1.0),
        "coverage": _interval(inside, tested.groups, least=0.0, most=1.0),
        "rmse_of_mean": _root_interval(of_mean, tested.groups),
        "rmse_of_best": _root_interval(of_best, tested.groups),
    }
    antigen_cells = _cells(tested.fold, tested.antigen)
    antibody_cells = _cells(tested.fold, tested.antibody)
    within_antigen = _rank_claim(tested, predicted, antigen_cells)
    within_antibody = _rank_claim(tested, predicted, antibody_cells)
    # within folds: pooled, even the means of their training parts would be ranked
    overall = _rank_claim(tested, predicted, tested.fold)
    # the side of which the table shows more: ranking the antibodies of an antigen, or its variants
    claims = {" within antigens": within_antigen, " within antibodies": within_antibody}
    if _count_ranked(antibody_cells) > _count_ranked(antigen_cells):
        claims = dict(reversed(claims.items()))
    order = _judge_ranks({**claims, "": overall})
    errors_in_words = _judge_errors(against_mean, against_best, best)
    return {
        "regime": name,
        "words": words,
        "n": len(np.unique(tested.rows)),
        "groups": min(effective_groups(group) for group in tested.groups),
        "spearman": _as_json(overall),
        "spearman_within_antigen": _as_json(within_antigen),
        "spearman_within_antibody": _as_json(within_antibody),
        "rmse": _root(square),
        "r2": None if r2_of_pairs is None else float(r2_of_pairs.mean()),
        "skill": None if skill_of_pairs is None else float(skill_of_pairs.mean()),
        "coverage": None if inside is None else float(inside.mean()),
        "rmse_of_mean": _root(of_mean),
        "best_baseline": best,
        "rmse_of_best": _root(of_best),
        "intervals": intervals,
        "better_than_mean": against_mean._asdict(),
        "better_than_best": against_best._asdict(),
        "sentence": f"{words}: {order}; {errors_in_words}",
    }


def _best_baseline(pkd: Floats, baselines: Mapping[str, Floats]) -> tuple[str, Floats] | None:
    """Return name and squared errors, (R,), of the baseline with the smallest; None without any."""
    errors = {}
    for name, predicted in baselines.items():
        square = np.square(pkd - predicted)
        if np.isfinite(square).all():
            errors[name] = square
    if not errors:
        return None
    best = min(errors, key=lambda name: float(errors[name].mean()))
    return best, errors[best]


def _avoided(square: Floats, reference: Floats) -> Floats | None:
    """Return what each pair adds to the share of the reference's squared errors that is avoided.

    The mean of the result is that share, a ratio of two means; its deviations are those of the
    ratio to first order. None if the reference has no error.
    """
    if not reference.any():
        return None
    share = 1 - square.sum() / reference.sum()
    return np.asarray(share + ((1 - share) * reference - square) / reference.mean())


def _root(square: Floats) -> float:
    return float(np.sqrt(square.mean()))


def _interval(
    value: Floats | None, groups: Sequence[Ints], least: float = -np.inf, most: float = np.inf
) -> list[float] | None:
    claim = None if value is None else mean_claim(value, groups)
    if claim is None or claim.low is None or claim.high is None:
        return None
    return [max(least, claim.low), min(most, claim.high)]


def _root_interval(
    square: Floats, groups: Sequence[Ints], factor: float = 1.0, trained_share: float = 1.0
) -> list[float] | None:
    """Return the interval of a root mean square; `factor` multiplies its variance.

    It is one of the logarithm: a mean of squares is skewed, and never below 0.
    """
    claim = mean_claim(square, groups, factor)
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
    interval = _root_interval(square, tested.groups, tested.dependence, tested.trained_share)
    folds = distinct(tested.fold)
    if interval is None or not tested.by_positions or len(folds) < 2:
        return interval
    # variants share their few positions: those of one fold are one measurement
    roots = [_root(square[tested.fold == fold]) for fold in folds]
    logarithms = np.log(roots)
    error = logarithms.std(ddof=1) / np.sqrt(len(folds))
    half = float(stdtrit(len(folds) - 1, LEVEL) * error)
    root = _root(square)
    low = float(root * np.exp(-half) * (1 - LEARNING * (1 - tested.trained_share)))
    high = float(root * np.exp(half))
    return [min(interval[0], low), max(interval[1], high)]


def _as_json(claim: Claim | None) -> dict[str, float | None] | None:
    return None if claim is None else claim._asdict()


def _cells(fold: Ints, index: Ints) -> Ints:
    """Number the pairs of one fold and one sequence alike, (R,)."""
    return fold * (int(index.max(initial=0)) + 1) + index


def _count_ranked(cell: Ints) -> int:
    """Count the pairs that are ranked among others of their cell, (R,)."""
    _, size = np.unique(cell, return_counts=True)
    return int(size[size >= FEWEST_RANKED].sum())


def _judge_ranks(claims: Mapping[str, Claim | None]) -> str:
    """Say whether ranking is better than chance, by the first claim with an interval."""
    for where, claim in claims.items():
        if claim is not None and claim.low is not None:
            if claim.fails:
                relation = "worse"
            else:
                relation = "better" if claim.holds else "not better"
            return f"ranking{where} is {relation} than chance"
    return "ranking cannot be judged"


def _judge_errors(against_mean: Claim, against_best: Claim, best: str) -> str:
    if not against_mean.holds:
        relation = "larger" if against_mean.fails else "not smaller"
        return f"errors are {relation} than those of the mean"
    text = "errors are smaller than those of the mean"
    if best == TRAIN_MEAN:  # no other baseline
        return text
    relation = "but not clearly smaller"
    if against_best.holds or against_best.fails:
        relation = "and smaller" if against_best.holds else "but larger"
    name = best.replace("_", " ")
    return f"{text}, {relation} than those of the best baseline ({name})"


def is_by_chance(sentence: str) -> bool:
    """Return whether the sentence of a regime says that ranking is no better than chance."""
    return re.search(r"\bis (not better|worse) than chance\b", sentence) is not None


def compare_models(
    words: str,
    name: str,
    other: str,
    tested: TestedPairs,
    predicted: Floats,
    reference: Floats,
    quantity: Quantity = PKD,
) -> str:
    """Say in one sentence which of two models has smaller errors in a regime."""
    square = np.square(tested.pkd - predicted)
    other_square = np.square(tested.pkd - reference)
    claim = mean_claim(other_square - square, tested.groups)
    relation = INDISTINGUISHABLE
    if claim.holds or claim.fails:
        relation = "better than" if claim.holds else "worse than"
    rmse = quantity.show(_root(square), 3)
    other_rmse = quantity.show(_root(other_square), 3)
    return (
        f"{words}: {name} is {relation} {other} (RMSE {rmse} and {other_rmse} {quantity}, "
        f"{counted(len(tested.pkd), 'test pair')} in effectively {claim.groups:.0f} groups)"
    )


def mean_claim(
    value: Floats, groups: Sequence[Ints], factor: float = 1.0, wide: Floats | None = None
) -> Claim:
    """Return the mean of values, (R,), with the widest of its intervals over the groupings.

    `factor` multiplies the variance, and `wide`, (R,), the deviations of single values.
    """
    mean = float(value.mean())
    low = mean
    high = mean
    least = np.inf
    for group in groups:
        _, dense = np.unique(group, return_inverse=True)
        size = np.bincount(dense).astype(np.float64)
        n = effective_groups(group)
        least = min(least, n)
        if len(size) < 2 or n < LEAST_GROUPS:
            return Claim(mean, None, None, least)
        residual = np.bincount(dense, (value - mean) * (1.0 if wide is None else wide))
        without = residual / (1 - size / size.sum())
        # a jackknife: by how much the mean moves without each group
        variance = factor * np.square(without).sum() * (1 - 1 / len(size)) / size.sum() ** 2
        error = float(stdtrit(n - 1, LEVEL) * np.sqrt(variance))
        low = min(low, mean - error)
        high = max(high, mean + error)
    return Claim(mean, low, high, least)


def _rank_claim(tested: TestedPairs, predicted: Floats, cell: Ints) -> Claim | None:
    claims = list[Claim]()
    for group in tested.groups:
        value, wide = rank_values(predicted, tested.pkd, cell, group)
        ok = np.isfinite(value)
        if ok.sum() < LEAST_ROWS:
            continue
        claim = mean_claim(value[ok], [group[ok]], tested.dependence, wide[ok])
        if claim.low is None or claim.high is None:
            return claim
        claims.append(claim._replace(low=max(-1.0, claim.low), high=min(1.0, claim.high)))
    # the more cautious one, if there are two groupings
    return min(claims, key=lambda claim: claim.low or 0.0, default=None)


def rank_values(predicted: Floats, pkd: Floats, cell: Ints, group: Ints) -> tuple[Floats, Floats]:
    """Return what each pair adds to the mean Spearman correlation over cells, (R,).

    NaN in cells of fewer than `FEWEST_RANKED` pairs, or of equal labels. Ranks are centred within
    their cell, which makes the deviations of its m groups too small: the second result, (R,), is
    the factor sqrt(m / (m - 1)).
    """
    values = pd.DataFrame({"predicted": predicted, "measured": pkd}).round(ROUNDING)
    rank = values.groupby(cell).rank()
    rank -= rank.groupby(cell).transform("mean")
    predicted_rank, measured_rank = rank.to_numpy().T
    square = rank.pow(2).groupby(cell).transform("sum").to_numpy()
    length = np.sqrt(square.prod(axis=1))  # 0 if predictions are equal: they rank nothing
    by_cell = pd.Series(group).groupby(cell)
    size = by_cell.transform("size").to_numpy()
    m = by_cell.transform("nunique").to_numpy()
    product = size * predicted_rank * measured_rank
    value = np.divide(product, length, out=np.zeros(len(pkd)), where=length > 0)
    value[(size < FEWEST_RANKED) | (square[:, 1] == 0)] = np.nan
    wide = np.sqrt(m / np.maximum(1, m - 1))
    return value, wide


class Column(NamedTuple):
    """Describe a column of the table of regimes."""

    label: str
    meaning: str
    """For those who point at it in a page."""


WITHIN_COLUMNS = ("Spearman within antigen", "Spearman within antibody")


def columns(quantity: Quantity, kinds: Collection[Kind] = KINDS) -> list[Column]:
    """Return the columns of the table of regimes, after the regime itself.

    Those that compare sides within each other are left out where pairs have one of the `kinds`.
    """
    shown = [
        Column("pairs", "Different pairs that were tested."),
        Column("groups", "Effective number of independent groups of these pairs."),
        Column(
            "Spearman",
            "Rank correlation of predicted and measured values, averaged over folds by their "
            "pairs. 1 is perfect, 0 is chance.",
        ),
        Column(
            "Spearman within antigen",
            "Rank correlation of the antibodies of one antigen, averaged over antigens and folds "
            "by their pairs. 1 is perfect, 0 is chance.",
        ),
        Column(
            "Spearman within antibody",
            "Rank correlation of the antigens of one antibody, averaged over antibodies and folds "
            "by their pairs. 1 is perfect, 0 is chance.",
        ),
        Column(f"RMSE ({quantity})", METRICS["rmse"].meaning),
        Column(
            "R2",
            "As scikit-learn's r2_score of all test pairs: 1 is perfect, below 0 the mean of the "
            "test pairs would be better.",
        ),
        Column(
            "skill",
            "Share of the squared error of the training mean that is avoided. 0 or less is no "
            "better than this mean, which is known before the test.",
        ),
        Column("90 % coverage", "Share of the labels within the 90 % intervals of sigma."),
        Column(f"RMSE of mean ({quantity})", "RMSE of predicting the mean of the training labels."),
        Column(
            f"RMSE of best baseline ({quantity})",
            "RMSE of the baseline with the smallest error, which is chosen after the fact.",
        ),
        Column("best baseline", "The baseline with the smallest error."),
    ]
    return [column for column in shown if len(kinds) > 1 or column.label not in WITHIN_COLUMNS]


def describe_regimes(
    scores: Sequence[Mapping[str, Any]], quantity: Quantity = PKD, kinds: Collection[Kind] = KINDS
) -> list[list[str]]:
    """Lay out scores as rows of text, the head first; brackets hold 95 % intervals.

    The columns are those of `columns`.
    """
    head = [column.label for column in columns(quantity, kinds)]
    rows = [["", *head]]
    names = ["spearman"]
    if len(kinds) > 1:
        names += ["spearman_within_antigen", "spearman_within_antibody"]
    show = quantity.show
    for regime in scores:
        limits = regime["intervals"]
        cells = [regime["words"], f"{regime['n']:,}", f"{regime['groups']:,.0f}"]
        cells += [_claim_cell(regime[name]) for name in names]
        cells.append(_with_interval(regime["rmse"], limits["rmse"], show))
        cells += [_with_interval(regime[name], limits[name]) for name in ("r2", "skill")]
        cells.append(_coverage_cell(regime["coverage"], limits["coverage"]))
        for name in ("rmse_of_mean", "rmse_of_best"):
            cells.append(_with_interval(regime[name], limits[name], show))
        cells.append(str(regime["best_baseline"]).replace("_", " "))
        rows.append(cells)
    return rows


def _claim_cell(claim: Mapping[str, float | None] | None) -> str:
    if claim is None:
        return "-"
    return _with_interval(claim["value"], [claim["low"], claim["high"]])


def _coverage_cell(share: float | None, limits: Sequence[float] | None) -> str:
    if share is None:
        return "-"
    if limits is None:
        return f"{share:.0%}"
    return f"{share:.0%} [{limits[0]:.0%}, {limits[1]:.0%}]"


def _two_digits(value: float) -> str:
    return f"{value:z.2f}"  # z: no -0.00


def _with_interval(
    value: float | None,
    limits: Sequence[float | None] | None,
    show: Callable[[float], str] = _two_digits,
) -> str:
    if value is None:
        return "-"
    if limits is None or limits[0] is None or limits[1] is None:
        return show(value)
    return f"{show(value)} [{show(limits[0])}, {show(limits[1])}]"
