"""Sentences about labels, splits and equal predictions that limit what scores mean.

Where no model is better than the mean, the mean has all the weight: every pair of such a regime has
the same prediction but for rounding, and an order of them follows from sigma or from the order of
the rows alone. R pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from abag.core.arrays import Floats, Ints
from abag.core.messages import counted, quoted
from abag.embed.tables.chains import KINDS, Kind
from abag.head.labels.headers import PKD, USUAL_PKD, Quantity, outside
from abag.head.labels.labelled_pairs import FLOOR_SHARE
from abag.head.regimes.regimes import words_of
from abag.head.regimes.splits import TEST, total_leaks

if TYPE_CHECKING:
    from abag.head.labels.labelled_pairs import LabelledPairs, LabelReading
    from abag.head.regimes.folds import MeasuredRegime


NEGLIGIBLE = 0.01
"""Share of sigma below which a range of predictions tells nothing."""
ROUNDED = 2e-5
"""Share of a pKd of 5 or more that its rounding to 4 digits after the point changes at most."""
LEAST_EQUAL = 10
"""Pairs of a regime that must have the same prediction: of fewer this may be chance."""
LARGE_SHARE = 0.25
"""Share of all pairs that must have the same prediction, whatever their regimes."""
FEW_OF_CLASS = 20
"""Pairs of a class below which a warning says so."""
UNRANKED = "the run cannot rank them"
"""End of a sentence about pairs with the same prediction."""


def is_negligible(low: float, high: float, sigma: float) -> bool:
    """Return whether predictions between two values are the same; `sigma` is typical of them."""
    return high - low <= max(NEGLIGIBLE * sigma, ROUNDED * max(abs(low), abs(high)))


def equal_groups(mean: Floats, sigma: Floats, groupings: Sequence[Ints] = ()) -> Ints:
    """Number the groups of pairs that have the same prediction, (R,); -1 is in none.

    All pairs are one group, or else those of a group of a grouping, (R,) each, or else a large
    share of the pairs.
    """
    if not len(mean) or is_negligible(mean.min(), mean.max(), float(np.median(sigma))):
        return np.zeros(len(mean), np.int64)
    number = np.full(len(mean), -1)
    values = pd.DataFrame({"mean": mean, "sigma": sigma})
    for grouping in groupings:
        grouped = values.groupby(grouping)
        size = grouped.size()
        sigmas = grouped["sigma"].median()
        low = grouped["mean"].min()
        high = grouped["mean"].max()
        limit = np.maximum(NEGLIGIBLE * sigmas, ROUNDED * np.maximum(low.abs(), high.abs()))
        same = size.index[(size >= LEAST_EQUAL) & (high - low <= limit)]
        _extend(number, np.asarray(grouping), same.to_numpy())
    place = np.round(mean / (ROUNDED * np.abs(mean).max()))
    of_place, count = np.unique(place[number < 0], return_counts=True)
    _extend(number, place, of_place[count > max(2, LARGE_SHARE * len(mean))])
    return number


def _extend(number: Ints, group: Floats | Ints, same: Floats | Ints) -> None:
    """Number the rows of the groups `same` that have no number yet, in place."""
    rows = np.flatnonzero((number < 0) & np.isin(group, same))
    _, number_of_same = np.unique(group[rows], return_inverse=True)
    number[rows] = number.max(initial=-1) + 1 + number_of_same


class _Range(NamedTuple):
    rows: int
    low: float
    high: float
    sum_of_sigmas: float

    def join(self, other: _Range) -> _Range:
        """Return the range of the rows of both."""
        return _Range(
            rows=self.rows + other.rows,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            sum_of_sigmas=self.sum_of_sigmas + other.sum_of_sigmas,
        )

    @property
    def is_one_value(self) -> bool:
        """Return whether all rows have the same prediction."""
        return is_negligible(self.low, self.high, self.sum_of_sigmas / self.rows)


class SamePredictions:
    """Find the regimes whose rows all have the same prediction; scores come in parts."""

    def __init__(self, quantity: Quantity = PKD, kinds: Collection[Kind] = KINDS) -> None:
        self._quantity = quantity
        self._kinds = kinds
        self._ranges: dict[str, _Range] = {}

    def add(self, scores: pd.DataFrame) -> None:
        """Add rows with ``regime``, ``pkd_predicted`` and ``sigma``."""
        for name, rows in scores.groupby("regime", observed=True):
            pkd = rows["pkd_predicted"]
            added = _Range(len(rows), pkd.min(), pkd.max(), rows["sigma"].sum())
            before = self._ranges.get(str(name))
            self._ranges[str(name)] = added if before is None else before.join(added)

    def _whole(self) -> _Range | None:
        whole: _Range | None = None
        for part in self._ranges.values():
            whole = part if whole is None else whole.join(part)
        return whole

    @property
    def can_rank(self) -> bool:
        """Return whether any two rows have different predictions, or there is only one."""
        whole = self._whole()
        return whole is None or whole.rows < 2 or not whole.is_one_value

    @property
    def regimes(self) -> dict[str, int]:
        """Count the rows of the regimes in which no two rows have different predictions."""
        can_rank = self.can_rank
        rows = {}
        for name, part in self._ranges.items():
            if not can_rank or (part.rows >= LEAST_EQUAL and part.is_one_value):
                rows[name] = part.rows
        return rows

    def describe(self, noun: str) -> list[str]:
        """Say of which rows, called `noun`, the predictions are the same."""
        whole = self._whole()
        if whole is not None and not self.can_rank:
            rows = counted(whole.rows, noun)
            value = self._shown(whole.low)
            return [f"all {rows} have the same prediction, {value}: {UNRANKED}"]
        lines = []
        for name, n_rows in self.regimes.items():
            rows = f"{counted(n_rows, noun)} ({words_of(name, self._kinds)})"
            value = self._shown(self._ranges[name].low)
            lines.append(f"{rows} have the same prediction, {value}: {UNRANKED}")
        return lines

    def _shown(self, value: float) -> str:
        name = "pKd" if self._quantity.affinity else self._quantity
        return f"{name} {self._quantity.show(value)}"


MANY_CENSORED = 0.05
"""Share of censored test rows above which scores of the others are not those of the table."""
WIDE = 100.0
"""Ratio of the largest label to the median from which logarithms are proposed."""
EXPLAINED_SHARE = 0.5
"""Share of the variance from which a label is said to follow from the antigen or assay alone."""


def warnings(pairs: LabelledPairs, measured: Sequence[MeasuredRegime]) -> list[str]:
    """Describe what limits the meaning of the scores: labels, censored rows, leaks."""
    return [*label_problems(pairs), *_split_warnings(pairs, measured), *_censored_rows(pairs)]


def _censored_rows(pairs: LabelledPairs) -> list[str]:
    censored = int(np.count_nonzero(pairs.censored))
    if censored <= MANY_CENSORED * len(pairs):
        return []
    return [
        f"{censored:,} of {len(pairs):,} labels are censored: RMSE, correlations and coverage "
        "are those of the other pairs."
    ]


def _split_warnings(pairs: LabelledPairs, measured: Sequence[MeasuredRegime]) -> list[str]:
    lines = []
    if "antigen" not in pairs.kinds:
        near_in_words = "a near-duplicate in training"
        new = "antibodies"
    else:
        near_in_words = "a near-duplicate in training (both antibody and antigen)"
        new = "antibodies or antigens"
    for regime in measured:
        if not regime.splits:
            continue
        lines += regime.splits[0].description.get("adapters", ())
        leaks = total_leaks(regime.splits).get("pair", {})
        tests = sum(len(split.rows(TEST)) for split in regime.splits)
        if leaks.get("exact"):
            lines.append(f"Leak: {leaks['exact']} of {tests} test rows are also in training.")
        near = leaks.get("near", 0)
        if near and regime.regime.name == "given":
            lines.append(
                f"{near} of {tests} test rows have {near_in_words}: their scores say little about "
                f"new {new}."
            )
    return list(dict.fromkeys(lines))  # regimes share the notes on adapters


def summarize_labels(pairs: LabelledPairs) -> dict[str, Any]:
    """Count what `label_problems` judges, and what ``plan`` prints.

    ``pairs`` are counted as ``fit`` does: exact labels and bounds of an antibody and an antigen are
    apart. ``commonest`` is the most frequent label and its number of rows.
    """
    pkd = pairs.pkd
    exact = pairs.censored == 0
    values, counts = np.unique(pkd[exact], return_counts=True)
    return {
        "pairs": len(pairs),
        "range": [float(pkd.min()), float(pkd.max())],
        "duplicate_rows": pairs.counts.get("replicate_rows", 0),
        "conflicting_pairs": pairs.counts.get("conflicting_pairs", 0),
        "censored": pairs.counts.get("censored_pairs", 0),
        "commonest": [float(values[counts.argmax()]), int(counts.max())] if len(values) else None,
        "out_of_range": int(outside(pkd, USUAL_PKD).sum()) if pairs.quantity.affinity else 0,
        "replicate_noise": pairs.noise,
        "disputed_antigens": _count_disputed_antigens(pairs),
    }


def label_problems(pairs: LabelledPairs) -> list[str]:
    """Describe properties of the labels that limit what a model learns or what its scores mean."""
    summary = summarize_labels(pairs)
    exact = pairs.censored == 0
    pkd = pairs.pkd[exact]
    quantity = pairs.quantity
    if quantity.classes:
        lines = _problems_of_classes(pairs, summary["conflicting_pairs"])
    else:
        lines = _repeated_label(pkd, summary["commonest"], pairs)
        lines += _implausible_labels(summary, pairs.reading)
        if not quantity.affinity:
            lines += _wide_scale(pkd, quantity)
    groups = {"antigen": pairs.antigen}
    if pairs.assay is not None:
        groups["assay"] = pairs.assay
    for name, group in groups.items():
        used = exact & (group >= 0)
        share = explained(pairs.pkd[used], group[used])
        if share is not None and share >= EXPLAINED_SHARE:
            lines.append(
                f"The {name} alone explains {share:.0%} of the variance of the labels: look at "
                "metrics within antigen, and at new antigens."
            )
    if pairs.noise is not None:
        lines.append(
            f"Replicates have a standard deviation of {quantity.show(pairs.noise)} {quantity}: the "
            "error of a label that was measured once. The median of several has a smaller error."
        )
    return lines


def _problems_of_classes(pairs: LabelledPairs, conflicting: int) -> list[str]:
    """Say of which class there are few pairs, and which replicates disagree."""
    lines = []
    for number, name in enumerate(pairs.quantity.classes):
        rows = int((pairs.pkd == number).sum())
        if rows < FEW_OF_CLASS:
            lines.append(
                f"Only {counted(rows, 'pair')} of {len(pairs):,} {'is' if rows == 1 else 'are'} "
                f"{quoted(name)}: probabilities are known roughly, and their intervals are wide."
            )
    if conflicting:
        which = "1 pair has" if conflicting == 1 else f"{conflicting:,} pairs have"
        lines.append(f"{which} replicates of different classes, which are counted on both sides.")
    return lines


def _wide_scale(value: Floats, quantity: Quantity) -> list[str]:
    """Say if the labels should be logarithms: some are far larger than most.

    Values of 0 or less are no reason to stay silent, unless many are: those are differences.
    """
    size = np.abs(value[value != 0])
    negative = value[value < 0]
    if not len(size) or (len(negative) > len(value) / 10 and -10 * value.min() > value.max()):
        return []
    median = float(np.median(size))
    without_logarithm = int((value <= 0).sum())
    is_near_zero = without_logarithm or value.max() >= WIDE**1.5 * value.min()
    if value.max() < WIDE * median or not is_near_zero:
        return []
    line = (
        f"The largest label, {quantity.show(float(value.max()))} {quantity}, is "
        f"{value.max() / median:,.0f} times the median: errors on a few large ones decide. A "
        "column of logarithms is usually learned better."
    )
    if without_logarithm:
        none = "has none" if without_logarithm == 1 else "have none"
        line += (
            f" {counted(without_logarithm, 'label')} of 0 or less {none}: write the limit of "
            "detection there, such as <0.1."
        )
    return [line]


def _repeated_label(
    pkd: Floats, commonest: list[float | int] | None, pairs: LabelledPairs
) -> list[str]:
    if commonest is None or commonest[1] <= max(1, FLOOR_SHARE * len(pkd)):
        return []
    value, n = commonest
    sign = pairs.quantity.sign
    shown = f"{pairs.quantity.show(value)} {pairs.quantity}{_as_written(pairs, value)}"
    if n == len(pkd):
        return [f"All exact labels are {shown}: there is nothing to learn."]
    start = f"{n} of {len(pkd)} exact labels equal {shown}"
    limit = "telling these rows from the others inflates the scores. If it is a detection limit,"
    if sign * value == (sign * pkd).min():
        return [f"{start}, a floor: {limit} see --floor censor|drop."]
    if sign * value == (sign * pkd).max():
        return [f"{start}, a ceiling: {limit} mark them in a column censored."]
    return [f"{start}, neither the lowest nor the highest: check whether it is a default value."]


def _as_written(pairs: LabelledPairs, value: float) -> str:
    """Return the cell that a label was converted from, in brackets; nothing if it is the label."""
    is_label = (pairs.censored == 0) & (pairs.pkd == value) & (pairs.measurements == 1)
    if pairs.unit in ("pkd", "value") or not is_label.any():
        return ""
    column = pairs.table.column("pkd")
    cell = pairs.table.frame[column].iloc[pairs.row[is_label.argmax()]]
    written = cell.strip() if isinstance(cell, str) else f"{cell:.12g}"
    return f" ({written} in column {column!r})"


def _implausible_labels(summary: dict[str, Any], reading: LabelReading) -> list[str]:
    quantity = reading.quantity
    amount = f"{reading.conflict:.3g} {quantity}"
    apart = f"more than {amount}{'' if quantity.affinity else ', a standard deviation,'} apart"
    lines = []
    n = summary["out_of_range"]
    if n:
        labels = "1 label is" if n == 1 else f"{n} labels are"
        lines.append(f"{labels} outside the usual range of {quantity} (2 to 14). See --label.")
    n = summary["conflicting_pairs"]
    if n:
        conflicting = "1 pair has" if n == 1 else f"{n} pairs have"
        lines.append(f"{conflicting} labels or bounds {apart}. See --replicates.")
    n = summary["disputed_antigens"]
    if n:
        antigens = "1 antigen has" if n == 1 else f"{n} antigens have"
        lines.append(f"{antigens} means of assays {apart}: do not mix these assays.")
    return lines


def _count_disputed_antigens(pairs: LabelledPairs) -> int:
    if pairs.assay is None:
        return 0
    frame = pd.DataFrame({"antigen": pairs.antigen, "assay": pairs.assay, "pkd": pairs.pkd})
    frame = frame[frame["assay"] >= 0]
    means = frame.groupby(["antigen", "assay"])["pkd"].mean().groupby("antigen")
    is_disputed = (means.max() - means.min()) > pairs.reading.conflict
    return int(is_disputed.sum())


def explained(pkd: Floats, group: Ints) -> float | None:
    """Return the share of the variance of labels, (N,), that is between groups, (N,).

    It is adjusted for the number of groups.

    None if undefined: fewer than two groups, no repeated group, or constant labels.
    """
    _, dense, sizes = np.unique(group, return_inverse=True, return_counts=True)
    free = len(pkd) - len(sizes)
    if free < 1 or len(sizes) < 2 or np.ptp(pkd) == 0:
        return None
    mean = np.bincount(dense, pkd) / sizes
    within = np.sum((pkd - mean[dense]) ** 2) / free
    return float(1 - within / np.var(pkd, ddof=1))
