"""How well strong binders are found: precision and recall, cut-offs, and the probability p_strong.

Recall alone can be had by calling every pair strong: it stands beside precision and prevalence
everywhere. A cut-off on the prediction that reaches a wanted precision or recall does so by chance
on the pairs that it was chosen on; its own results are those on other pairs: of other folds, of the
other half of the groups if there is one fold, or of another table.

Of a censored pair it is often known whether it is strong; where it is not, the pair is left out.
R pairs.

Summaries are JSON. Each regime has ``n`` pairs that are known to be strong or not, how many are
``strong``, their ``prevalence``, what the threshold itself picks (``at_threshold``),
``average_precision``, a ``curve`` of recall and precision by falling cut-off, ``cutoffs`` for each
wanted recall or precision with their results on pairs that did not choose them, the number that
p_strong has ``expected``, and its ``calibration`` in bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import ndtr

from abag.core.arrays import Bools, Floats, Ints
from abag.head.data.quantity import PKD, Quantity
from abag.head.evaluation.metrics import average_precision
from abag.head.regimes.splits import grouped_folds

WANTED = (("recall", 0.5), ("recall", 0.8), ("precision", 0.5), ("precision", 0.8))
"""What cut-offs are chosen for."""
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
"""Edges of p_strong."""
POINTS = 100
StrongSummary: TypeAlias = dict[str, Any]


def score_strong(
    tested: pd.DataFrame,
    regimes: Sequence[Mapping[str, Any]],
    threshold: float,
    chosen_on: pd.DataFrame | None = None,
    *,
    sign: int = 1,
) -> StrongSummary:
    """Score how well the pairs with a pKd of at least `threshold` are found.

    Parameters
    ----------
    tested : DataFrame
        Rows of ``predictions.parquet``: ``regime``, ``fold``, ``group``, ``pkd``, ``censored``,
        ``pkd_predicted`` and ``sigma``.
    regimes : sequence
        ``regime`` and ``words`` of those to score.
    chosen_on : DataFrame, optional
        Rows that choose the cut-offs; by default the other folds of `tested`.
    sign : int
        -1 if lower values are better: a pair is strong from the threshold on downward. Cut-offs
        are values of the quantity.
    """
    if sign < 0:  # the highest of the negative are the lowest
        others = None if chosen_on is None else _mirrored(chosen_on)
        return _mirrored_back(score_strong(_mirrored(tested), regimes, -threshold, others))
    found = []
    for one in regimes:
        rows = _decided(tested[tested["regime"] == one["regime"]], threshold)
        if len(rows):
            others = None
            if chosen_on is not None:
                others = _decided(chosen_on[chosen_on["regime"] == one["regime"]], threshold)
            found.append(_score(rows, others, one["regime"], one["words"], threshold))
    return {"threshold": threshold, "regimes": found}


def _mirrored(rows: pd.DataFrame) -> pd.DataFrame:
    """Reverse the direction of labels, bounds and predictions."""
    return rows.assign(**{name: -rows[name] for name in ("pkd", "pkd_predicted", "censored")})


def _mirrored_back(found: StrongSummary) -> StrongSummary:
    """Return a summary of mirrored rows with thresholds and cut-offs as values again."""
    for one in found["regimes"]:
        for cut in (one["at_threshold"], *one["cutoffs"]):
            cut["cutoff"] = None if cut["cutoff"] is None else -cut["cutoff"]
    return {**found, "threshold": -found["threshold"]}


def _decided(rows: pd.DataFrame, threshold: float) -> pd.DataFrame:
    below = (rows["censored"] < 0) & (rows["pkd"] <= threshold)
    above = (rows["censored"] > 0) & (rows["pkd"] >= threshold)
    known = rows[(rows["censored"] == 0) | below | above]
    return known.assign(strong=(known["pkd"] >= threshold) & (known["censored"] >= 0))


def _score(
    rows: pd.DataFrame, others: pd.DataFrame | None, regime: str, words: str, threshold: float
) -> dict[str, Any]:
    strong, predicted = rows["strong"].to_numpy(bool), rows["pkd_predicted"].to_numpy(float)
    p = ndtr((predicted - threshold) / rows["sigma"].to_numpy(float))
    recall, precision, _ = _curve(strong, predicted)
    step = max(1, len(recall) // POINTS)
    return {
        "regime": regime,
        "words": words,
        "n": len(rows),
        "strong": int(strong.sum()),
        "prevalence": float(strong.mean()),
        "at_threshold": _pick(strong, predicted >= threshold, threshold),
        "average_precision": average_precision(strong, predicted),
        "curve": np.stack([recall, precision], axis=1)[::step].tolist(),
        "cutoffs": [_try_cutoff(rows, others, wanted, level) for wanted, level in WANTED],
        "expected": float(p.sum()),
        "calibration": _calibration(strong, p),
    }


def _curve(strong: Bools, predicted: Floats) -> tuple[Floats, Floats, Floats]:
    """Return recall, precision and cut-off, each cut-off once, the highest first."""
    if not strong.any():
        return np.zeros(0), np.zeros(0), np.zeros(0)
    order = np.argsort(-predicted, kind="stable")
    last = np.flatnonzero(np.append(np.diff(predicted[order]) != 0, True))  # ties go together
    hits = np.cumsum(strong[order])[last]
    return hits / hits[-1], hits / (last + 1), predicted[order][last]


def _choose_cutoff(rows: pd.DataFrame, wanted: str, level: float) -> float | None:
    recall, precision, cutoff = _curve(
        rows["strong"].to_numpy(bool), rows["pkd_predicted"].to_numpy(float)
    )
    reached = np.flatnonzero((recall if wanted == "recall" else precision) >= level)
    return float(cutoff[reached[0 if wanted == "recall" else -1]]) if len(reached) else None


def _try_cutoff(
    rows: pd.DataFrame, others: pd.DataFrame | None, wanted: str, level: float
) -> dict[str, Any]:
    """Choose a cut-off, and try it on pairs that did not choose it."""
    chosen = _choose_cutoff(rows if others is None else others, wanted, level)
    strong, predicted = rows["strong"].to_numpy(bool), rows["pkd_predicted"].to_numpy(float)
    if others is not None:
        is_picked = predicted >= (np.inf if chosen is None else chosen)
    else:
        part, is_picked = _parts(rows), np.zeros(len(rows), bool)
        for k in np.unique(part):
            own = _choose_cutoff(rows[part != k], wanted, level)
            is_picked[part == k] = predicted[part == k] >= (np.inf if own is None else own)
    return {"wanted": wanted, "level": level, **_pick(strong, is_picked, chosen)}


def _parts(rows: pd.DataFrame) -> Ints:
    """Divide rows into folds, or into halves by groups if there is one fold."""
    fold, group = rows["fold"].to_numpy(np.int64), rows["group"].to_numpy(np.int64)
    if len(np.unique(fold)) > 1:
        return fold
    return grouped_folds(group, min(2, len(np.unique(group))), 0)


def _pick(strong: Bools, is_picked: Bools, cutoff: float | None) -> dict[str, Any]:
    hits, picked = int((strong & is_picked).sum()), int(is_picked.sum())
    return {
        "cutoff": cutoff,
        "picked": picked,
        "precision": hits / picked if picked else None,
        "recall": hits / int(strong.sum()) if strong.any() else None,
    }


def _calibration(strong: Bools, p: Floats) -> list[dict[str, Any]]:
    number = np.clip(np.digitize(p, BINS) - 1, 0, len(BINS) - 2)
    return [
        {
            "low": BINS[k],
            "high": BINS[k + 1],
            "pairs": int((number == k).sum()),
            "expected": float(p[number == k].mean()),
            "strong": float(strong[number == k].mean()),
        }
        for k in np.unique(number).tolist()
    ]


def describe_strong(found: StrongSummary, quantity: Quantity = PKD) -> list[str]:
    """Describe how well strong binders are found, in lines of text."""
    relation = ">=" if quantity.sign > 0 else "<="
    show = quantity.show
    what = "Strong binders: pKd" if quantity.affinity else f"Strong pairs: {quantity}"
    lines = [f"{what} {relation} {found['threshold']:g}"]
    for one in found["regimes"]:
        lines += [
            f"{one['words']}: {one['strong']:,} of {one['n']:,} pairs are strong (prevalence "
            f"{one['prevalence']:.0%})",
            f"  predicted {relation} {found['threshold']:g}: {_describe_pick(one['at_threshold'])}",
        ]
        for cut in one["cutoffs"] if one["strong"] else ():
            cutoff = cut["cutoff"]
            reached = "none" if cutoff is None else f"predicted {relation} {show(cutoff)}"
            lines.append(
                f"  cut-off for a {cut['wanted']} of {cut['level']:.0%}: {reached}; on pairs that "
                f"did not choose it: {_describe_pick(cut)}"
            )
        bins = ", ".join(
            f"{bin_['low']:.0%}-{bin_['high']:.0%}: {bin_['strong']:.0%} of {bin_['pairs']:,}"
            for bin_ in one["calibration"]
        )
        lines.append(
            f"  p_strong expects {one['expected']:.0f} strong pairs; share that is strong by "
            f"p_strong: {bins}"
        )
    return lines


def _describe_pick(one: Mapping[str, Any]) -> str:
    """Say what was picked; recall never stands alone."""
    if not one["picked"]:
        return "no pair"
    recall = "none to find" if one["recall"] is None else f"recall {one['recall']:.0%}"
    return f"{one['picked']:,} picked, precision {one['precision']:.0%}, {recall}"


def page_of(found: StrongSummary, quantity: Quantity = PKD) -> dict[str, Any]:
    """Return what the report shows of a summary."""
    regimes = []
    for one in found["regimes"]:
        shown = {"the threshold itself": one["at_threshold"]}
        shown |= {f"{cut['wanted']} {cut['level']:.0%}": cut for cut in one["cutoffs"]}
        rows = [
            [
                name,
                None if cut["cutoff"] is None else _rounded(cut["cutoff"], quantity),
                cut["picked"],
                *(None if cut[of] is None else f"{cut[of]:.0%}" for of in ("precision", "recall")),
            ]
            for name, cut in shown.items()
        ]
        bins = [
            [
                f"{bin_['low']:g} to {bin_['high']:g}",
                bin_["pairs"],
                f"{bin_['expected']:.0%}",
                f"{bin_['strong']:.0%}",
            ]
            for bin_ in one["calibration"]
        ]
        regimes.append({**one, "rows": rows, "bins": bins})
    threshold = found["threshold"]
    return {"threshold": "" if threshold is None else f"{threshold:g}", "regimes": regimes}


def _rounded(cutoff: float, quantity: Quantity) -> float | str:
    return round(cutoff, 2) if quantity.affinity else quantity.show(cutoff)
