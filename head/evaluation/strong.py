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
from abag.head.evaluation.metrics import average_precision
from abag.head.evaluation.scores import largest_rmse
from abag.head.labels.headers import PKD, PROBABILITY, STRONG_COLUMN, Quantity
from abag.head.regimes.regimes import REGIMES, Shown, applicable
from abag.head.regimes.splits import grouped_folds

WANTED = (("recall", 0.5), ("recall", 0.8), ("precision", 0.5), ("precision", 0.8))
"""What cut-offs are chosen for."""
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
"""Edges of p_strong."""
POINTS = 100
"""Points of a curve, at least, if it has as many."""
StrongSummary: TypeAlias = dict[str, Any]
"""JSON; the keys are described above."""


def score_strong(
    tested: pd.DataFrame,
    regimes: Sequence[Mapping[str, Any]],
    threshold: float,
    chosen_on: tuple[pd.DataFrame, Sequence[Mapping[str, Any]]] | None = None,
    *,
    sign: int = 1,
    are_probabilities: bool = False,
) -> StrongSummary:
    """Score how well the pairs with a pKd of at least `threshold` are found.

    Parameters
    ----------
    tested : DataFrame
        Rows of ``predictions.parquet``: ``regime``, ``fold``, ``group``, ``pkd``, ``censored``,
        ``pkd_predicted`` and ``sigma``.
    regimes : sequence
        ``regime`` and ``words`` of those to score.
    chosen_on : tuple of DataFrame and sequence, optional
        Rows of a run that choose the cut-offs, and the scores of its regimes; by default the other
        folds of `tested`.
    sign : int
        -1 if lower values are better: a pair is strong from the threshold on downward. Cut-offs
        are values of the quantity.
    are_probabilities : bool
        Whether labels are 0 and 1, and predictions the probabilities of 1.
    """
    if sign < 0 and not are_probabilities:  # the highest of the negative are the lowest
        if chosen_on is not None:
            chosen_on = _mirrored(chosen_on[0]), chosen_on[1]
        return _mirrored_back(score_strong(_mirrored(tested), regimes, -threshold, chosen_on))
    summaries = []
    for regime in regimes:
        name = regime["regime"]
        rows = _decided(tested[tested["regime"] == name], threshold)
        if not len(rows):
            continue
        others = None
        if chosen_on is not None:  # those of the regime that such pairs are predicted as
            rows_of_run, scores = chosen_on
            shown = {score["regime"]: Shown(0, largest_rmse(score)) for score in scores}
            _, used = applicable(REGIMES[name], shown)
            others = _decided(rows_of_run[rows_of_run["regime"] == used], threshold)
        summary = _score(
            rows,
            others,
            name,
            regime["words"],
            threshold,
            are_probabilities=are_probabilities,
        )
        summaries.append(summary)
    return {"threshold": threshold, "regimes": summaries}


def _mirrored(rows: pd.DataFrame) -> pd.DataFrame:
    """Reverse the direction of labels, bounds and predictions."""
    return rows.assign(**{name: -rows[name] for name in ("pkd", "pkd_predicted", "censored")})


def _mirrored_back(summary: StrongSummary) -> StrongSummary:
    """Return a summary of mirrored rows with thresholds and cut-offs as values again."""
    for regime in summary["regimes"]:
        for cut in (regime["at_threshold"], *regime["cutoffs"]):
            if cut["cutoff"] is not None:
                cut["cutoff"] = -cut["cutoff"]
    return {**summary, "threshold": -summary["threshold"]}


def _decided(rows: pd.DataFrame, threshold: float) -> pd.DataFrame:
    below = (rows["censored"] < 0) & (rows["pkd"] <= threshold)
    above = (rows["censored"] > 0) & (rows["pkd"] >= threshold)
    decided = rows[(rows["censored"] == 0) | below | above]
    # a bound of <9 is weak, also for a threshold of 9
    return decided.assign(strong=(decided["pkd"] >= threshold) & (decided["censored"] >= 0))


def _score(
    rows: pd.DataFrame,
    others: pd.DataFrame | None,
    regime: str,
    words: str,
    threshold: float,
    *,
    are_probabilities: bool,
) -> dict[str, Any]:
    strong = rows["strong"].to_numpy(bool)
    predicted = rows["pkd_predicted"].to_numpy(float)
    p = (
        predicted
        if are_probabilities
        else ndtr((predicted - threshold) / rows["sigma"].to_numpy(float))
    )
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
    falling = predicted[order]
    last = np.flatnonzero(np.append(np.diff(falling) != 0, True))  # ties go together
    hits = np.cumsum(strong[order])[last]
    return hits / hits[-1], hits / (last + 1), falling[last]


def _choose_cutoff(rows: pd.DataFrame, wanted: str, level: float) -> float | None:
    strong = rows["strong"].to_numpy(bool)
    predicted = rows["pkd_predicted"].to_numpy(float)
    recall, precision, cutoff = _curve(strong, predicted)
    if wanted == "recall":  # rises as the cut-off falls: the first is the most precise
        reached = cutoff[recall >= level][:1]
    else:  # the last finds the most
        reached = cutoff[precision >= level][-1:]
    return float(reached[0]) if len(reached) else None


def _try_cutoff(
    rows: pd.DataFrame, others: pd.DataFrame | None, wanted: str, level: float
) -> dict[str, Any]:
    """Choose a cut-off, and try it on pairs that did not choose it."""
    chosen = _choose_cutoff(rows if others is None else others, wanted, level)
    strong = rows["strong"].to_numpy(bool)
    predicted = rows["pkd_predicted"].to_numpy(float)
    is_picked = np.zeros(len(rows), bool)  # none where no cut-off reaches the level
    if others is None:
        part = _parts(rows)
        for number in np.unique(part):
            cutoff = _choose_cutoff(rows[part != number], wanted, level)
            if cutoff is not None:
                is_picked |= (part == number) & (predicted >= cutoff)
    elif chosen is not None:
        is_picked = predicted >= chosen
    return {"wanted": wanted, "level": level, **_pick(strong, is_picked, chosen)}


def _parts(rows: pd.DataFrame) -> Ints:
    """Divide rows into folds, or into halves by groups if there is one fold."""
    fold = rows["fold"].to_numpy(np.int64)
    if len(np.unique(fold)) > 1:
        return fold
    group = rows["group"].to_numpy(np.int64)
    return grouped_folds(group, min(2, len(np.unique(group))), 0)


def _pick(strong: Bools, is_picked: Bools, cutoff: float | None) -> dict[str, Any]:
    hits = int((strong & is_picked).sum())
    picked = int(is_picked.sum())
    n_strong = int(strong.sum())
    return {
        "cutoff": cutoff,
        "picked": picked,
        "precision": hits / picked if picked else None,
        "recall": hits / n_strong if n_strong else None,
    }


def _calibration(strong: Bools, p: Floats) -> list[dict[str, Any]]:
    number = np.clip(np.digitize(p, BINS) - 1, 0, len(BINS) - 2)  # 1.0 is above the last edge
    bins = []
    for k in np.unique(number).tolist():
        inside = number == k
        bins.append(
            {
                "low": BINS[k],
                "high": BINS[k + 1],
                "pairs": int(inside.sum()),
                "expected": float(p[inside].mean()),
                "strong": float(strong[inside].mean()),
            }
        )
    return bins


def describe_strong(summary: StrongSummary, quantity: Quantity = PKD) -> list[str]:
    """Describe how well strong binders are found, in lines of text."""
    relation = ">=" if quantity.sign > 0 or quantity.classes else "<="
    show = quantity.show
    threshold = f"{relation} {summary['threshold']:g}"
    title = "Strong binders: pKd" if quantity.affinity else f"Strong pairs: {quantity}"
    lines = [f"{title} {threshold}"]
    of_class = "strong"
    if quantity.classes:
        of_class = quantity.named(-1)
        lines = [f"Pairs that are {of_class}: {quantity}"]
    p_strong = PROBABILITY if quantity.is_binary else STRONG_COLUMN
    for regime in summary["regimes"]:
        lines += [
            f"{regime['words']}: {regime['strong']:,} of {regime['n']:,} pairs are {of_class} "
            f"(prevalence {regime['prevalence']:.0%})",
            f"  predicted {threshold}: {_describe_pick(regime['at_threshold'])}",
        ]
        for cut in regime["cutoffs"] if regime["strong"] else ():
            cutoff = cut["cutoff"]
            reached = "none" if cutoff is None else f"predicted {relation} {show(cutoff)}"
            lines.append(
                f"  cut-off for a {cut['wanted']} of {cut['level']:.0%}: {reached}; on pairs that "
                f"did not choose it: {_describe_pick(cut)}{_missed(cut)}"
            )
        shares = []
        for bin_ in regime["calibration"]:
            limits = f"{bin_['low']:.0%}-{bin_['high']:.0%}"
            shares.append(f"{limits}: {bin_['strong']:.0%} of {bin_['pairs']:,}")
        lines.append(
            f"  {p_strong} expects {regime['expected']:.0f} {of_class} pairs; share that is "
            f"{of_class} by {p_strong}: {', '.join(shares)}"
        )
    return lines


def _describe_pick(pick: Mapping[str, Any]) -> str:
    """Say what was picked; recall never stands alone."""
    if not pick["picked"]:
        return "no pair"
    recall = "none to find" if pick["recall"] is None else f"recall {pick['recall']:.0%}"
    return f"{pick['picked']:,} picked, precision {pick['precision']:.0%}, {recall}"


def _missed(cut: Mapping[str, Any]) -> str:
    """Say that a cut-off does not do on other pairs what it was chosen for; empty if it does."""
    found = cut[cut["wanted"]]
    level = f"{cut['level']:.0%}"
    # as shown: 79.6 % is 80 %
    missed = found is not None and round(100 * found) < round(100 * cut["level"])
    return f" (not {level})" if missed else ""


def page_of(summary: StrongSummary, quantity: Quantity = PKD) -> dict[str, Any]:
    """Return what the report shows of a summary: a row per regime, and the details of each."""
    regimes = []
    overview = list[list[Any]]()
    for regime in summary["regimes"]:
        at_threshold = regime["at_threshold"]
        shares = [_percent(regime[name]) for name in ("prevalence", "average_precision")]
        _, *picked = _pick_cells(at_threshold, quantity)
        overview.append([regime["words"], regime["n"], regime["strong"], *shares, *picked])
        rows = [["none: the threshold itself", *_pick_cells(at_threshold, quantity)]]
        for cut in regime["cutoffs"]:
            cells = _pick_cells(cut, quantity)
            at = -2 if cut["wanted"] == "precision" else -1
            cells[at] = cells[at] and f"{cells[at]}{_missed(cut)}"
            rows.append([f"a {cut['wanted']} of {cut['level']:.0%}", *cells])
        bins = []
        for bin_ in regime["calibration"]:
            limits = f"{bin_['low']:g} to {bin_['high']:g}"
            shares = [f"{bin_['expected']:.0%}", f"{bin_['strong']:.0%}"]
            bins.append([limits, bin_["pairs"], *shares])
        regimes.append({**regime, "rows": rows, "bins": bins})
    threshold = summary["threshold"]
    shown = "" if threshold is None else f"{threshold:g}"
    return {"threshold": shown, "regimes": regimes, "overview": overview}


def _pick_cells(pick: Mapping[str, Any], quantity: Quantity) -> list[Any]:
    """Lay out a cut-off: its value, pairs picked, precision and recall."""
    cutoff = pick["cutoff"]
    if cutoff is not None:
        cutoff = round(cutoff, 2) if quantity.affinity else quantity.show(cutoff)
    return [cutoff, pick["picked"], _percent(pick["precision"]), _percent(pick["recall"])]


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"
