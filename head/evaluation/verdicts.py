"""Sentences about labels and splits that limit what scores mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.core.arrays import Floats, Ints
from abag.core.messages import counted
from abag.head.data.labels import FLOOR_SHARE
from abag.head.data.units import USUAL_PKD, outside
from abag.head.regimes.leaks import total_leaks
from abag.head.regimes.splits import TEST

if TYPE_CHECKING:
    from abag.head.data.label_reading import LabelReading
    from abag.head.data.labels import LabelledPairs
    from abag.head.data.quantity import Quantity
    from abag.head.regimes.regime_folds import MeasuredRegime


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
    if pairs.no_antigen:
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
