"""What a run shows beside its scores: how well strong binders are found, and what limits scores.

Strong binders have precision and recall, cut-offs, and the probability p_strong. Recall alone can
be had by calling every pair strong: it stands beside precision and prevalence everywhere. Of many
cut-offs on the prediction, one reaches a wanted precision or recall by chance on the pairs that
choose it. So it is chosen by what is expected of new pairs, which stands beside it, or what it
reaches in another table; where as much is not expected of any, there is none.

Of a censored pair it is often known whether it is strong; where it is not, the pair is left out.
R pairs.

Summaries are JSON. Each regime has ``n`` pairs that are known to be strong or not, how many are
``strong``, their ``prevalence``, what the threshold itself picks (``at_threshold``),
``average_precision``, a ``curve`` of recall and precision by falling cut-off, ``cutoffs`` for each
wanted recall or precision with what they reach on pairs that did not choose them (``tried``), or
what is expected of new pairs with a 95 % ``interval`` of what is wanted, the number that p_strong
has ``expected``, and its ``calibration`` in bins.

The table of regimes has a row of text per regime, and in its columns what its score holds.

Scores mean less where labels, or splits, are not what they seem: sentences warn of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import ndtr

from abag.core.arrays import Bools, Floats, Ints
from abag.core.messages import align, counted, quoted
from abag.embed.tables.chains import KINDS, TEXT_ROLES, Kind
from abag.embed.tables.table import read_texts
from abag.head.evaluation.metrics import METRICS, average_precision, hits_by_cutoff
from abag.head.evaluation.scores import (
    interval_of_share,
    largest_rmse,
    two_digits,
    with_interval,
)
from abag.head.labels.headers import PKD, PROBABILITY, STRONG_COLUMN, USUAL_PKD, Quantity, outside
from abag.head.labels.options import FLOOR_SHARE
from abag.head.regimes.splits import (
    REGIMES,
    TEST,
    Shown,
    applicable,
    effective_groups,
    total_leaks,
)

if TYPE_CHECKING:
    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.regimes.splits import MeasuredRegime


WANTED = (("recall", 0.5), ("recall", 0.8), ("precision", 0.5), ("precision", 0.8))
"""What cut-offs are chosen for."""
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
"""Edges of p_strong."""
EXPECTED_PAIRS = 20
"""Pairs as which probabilities count beside picked or strong ones (benchmarks/bench_strong.py)."""
TELLING = {"precision": 1 / 2, "recall": 1 / 3}
"""Share of the pairs that tells how sure an expected precision or recall is: folds learn from each
other, and a cut-off picks more of what all pairs predict (benchmarks/bench_strong.py)."""
FEW_OF_CLASS = 20
"""Pairs of a class below which a warning says so."""
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
    quantity: Quantity = PKD,
) -> StrongSummary:
    """Score how well the pairs with a pKd of at least `threshold` are found.

    Parameters
    ----------
    tested : DataFrame
        Rows of ``predictions.parquet``: ``regime``, ``fold``, ``group``, ``pkd``, ``censored``,
        ``pkd_predicted`` and ``sigma``; with ``weight``, each row counts by it in all shares, and
        with ``probability``, that is the probability of the highest of several classes.
    regimes : sequence
        ``regime`` and ``words`` of those to score.
    chosen_on : tuple of DataFrame and sequence, optional
        Rows of a run that choose the cut-offs, and the scores of its regimes; by default the other
        folds of `tested`.
    quantity : Quantity
        Of the labels. If lower values are better, a pair is strong from the threshold on downward;
        of classes, the highest one is looked for. Cut-offs are values of the quantity.
    """
    direction = 1 if quantity.classes else quantity.sign
    decide = partial(
        _decided, threshold=threshold, direction=direction, is_binary=quantity.is_binary
    )
    summaries = []
    for regime in regimes:
        name = regime["regime"]
        rows = decide(tested[tested["regime"] == name])
        if not len(rows):
            continue
        others = None
        if chosen_on is not None:  # those of the regime that such pairs are predicted as
            rows_of_run, scores = chosen_on
            shown = {score["regime"]: Shown(0, largest_rmse(score)) for score in scores}
            _, used = applicable(REGIMES[name], shown)
            others = decide(rows_of_run[rows_of_run["regime"] == used])
        summary = _score(rows, others, name, regime["words"], direction * threshold)
        for pick in (summary["at_threshold"], *summary["cutoffs"]):
            if pick["cutoff"] is not None:
                pick["cutoff"] *= direction
        summaries.append(summary)
    return {"threshold": threshold, "regimes": summaries}


def _decided(
    rows: pd.DataFrame, *, threshold: float, direction: int, is_binary: bool
) -> pd.DataFrame:
    """Return the rows that are known to be strong or not, and p_strong of each.

    Of their values, higher ones are better.
    """
    threshold = direction * threshold
    values = ("pkd", "pkd_predicted", "censored")
    rows = rows.assign(**{name: direction * rows[name] for name in values})
    below = (rows["censored"] < 0) & (rows["pkd"] <= threshold)
    above = (rows["censored"] > 0) & (rows["pkd"] >= threshold)
    decided = rows[(rows["censored"] == 0) | below | above]
    if is_binary:
        p = decided["pkd_predicted"]
    elif PROBABILITY in decided:
        p = decided[PROBABILITY]
    else:
        p = ndtr((decided["pkd_predicted"] - threshold) / decided["sigma"])
    # a bound of <9 is weak, also for a threshold of 9
    strong = (decided["pkd"] >= threshold) & (decided["censored"] >= 0)
    return decided.assign(strong=strong, p_strong=p)


def _score(
    rows: pd.DataFrame,
    others: pd.DataFrame | None,
    regime: str,
    words: str,
    threshold: float,
) -> dict[str, Any]:
    strong = rows["strong"].to_numpy(bool)
    predicted = rows["pkd_predicted"].to_numpy(float)
    p = rows["p_strong"].to_numpy(float)
    weight = weights_in(rows)
    recall, precision, _ = _curve(strong, predicted, weight)
    step = max(1, len(recall) // POINTS)
    number = np.clip(np.digitize(p, BINS) - 1, 0, len(BINS) - 2)  # 1.0 is above the last edge
    bins = []
    for k in np.unique(number).tolist():
        inside = number == k
        bins.append(
            {
                "low": BINS[k],
                "high": BINS[k + 1],
                "pairs": int(inside.sum()),
                "expected": float(np.average(p[inside], weights=weight[inside])),
                "strong": float(np.average(strong[inside], weights=weight[inside])),
            }
        )
    return {
        "regime": regime,
        "words": words,
        "n": len(rows),
        "strong": int(strong.sum()),
        "prevalence": float(np.average(strong, weights=weight)),
        "at_threshold": _pick(strong, predicted >= threshold, threshold, weight),
        "average_precision": average_precision(strong, predicted, weight),
        "curve": np.stack([recall, precision], axis=1)[::step].tolist(),
        "cutoffs": [_try_cutoff(rows, others, wanted, level) for wanted, level in WANTED],
        "expected": float(p.sum()),
        "calibration": bins,
    }


def weights_in(rows: pd.DataFrame) -> Floats:
    """Return how much each row counts, (R,)."""
    return rows["weight"].to_numpy(float) if "weight" in rows else np.ones(len(rows))


def _curve(strong: Bools, predicted: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Return recall, precision and cut-off, each cut-off once, the highest first."""
    if not strong.any():
        return np.zeros(0), np.zeros(0), np.zeros(0)
    hits, picked, cutoff = hits_by_cutoff(strong, predicted, weight)
    return hits / hits[-1], hits / picked, cutoff


def _choose_cutoff(rows: pd.DataFrame, wanted: str, level: float) -> dict[str, Any]:
    """Choose the cut-off that is expected to reach a level on new pairs; say what is expected.

    What the pairs show that choose a cut-off is too good where few are picked, so that it counts
    beside what their probabilities expect of `EXPECTED_PAIRS` others.
    """
    strong = rows["strong"].to_numpy(bool)
    none = {"cutoff": None, "precision": None, "recall": None, "interval": None}
    if not strong.any():
        return none
    weight = weights_in(rows)
    predicted = rows["pkd_predicted"].to_numpy(float)
    hits, picked, cutoff = hits_by_cutoff(strong, predicted, weight)
    expected, _, _ = hits_by_cutoff(rows["p_strong"].to_numpy(float), predicted, weight)
    counted = {"precision": picked, "recall": np.full(len(hits), hits[-1])}
    of_others = {"precision": expected / picked, "recall": expected / expected[-1]}
    rates = {
        name: (hits + EXPECTED_PAIRS * of_others[name]) / (number + EXPECTED_PAIRS)
        for name, number in counted.items()
    }
    reached = np.flatnonzero(rates[wanted] >= level)
    if not len(reached):
        return none
    # recall rises as the cut-off falls: the first is the most precise; else the last finds the most
    at = reached[0 if wanted == "recall" else -1]
    # pairs of a group, and repeats of a pair, tell as much as fewer
    independent = effective_groups(rows["group"].to_numpy(), weight) / weight.sum()
    telling = TELLING[wanted] * (independent * counted[wanted][at] + EXPECTED_PAIRS)
    return {
        "cutoff": float(cutoff[at]),
        "precision": float(rates["precision"][at]),
        "recall": float(rates["recall"][at]),
        "interval": [*interval_of_share(float(rates[wanted][at]), float(telling))],
    }


def _try_cutoff(
    rows: pd.DataFrame, others: pd.DataFrame | None, wanted: str, level: float
) -> dict[str, Any]:
    """Choose a cut-off, and try it on pairs that did not choose it; else say what to expect."""
    chosen = _choose_cutoff(rows if others is None else others, wanted, level)
    is_picked = np.zeros(len(rows), bool)  # none where no cut-off is expected to reach the level
    if chosen["cutoff"] is not None:
        is_picked = rows["pkd_predicted"].to_numpy(float) >= chosen["cutoff"]
    found = _pick(rows["strong"].to_numpy(bool), is_picked, chosen["cutoff"], weights_in(rows))
    if others is None:
        found |= chosen
    else:
        found["interval"] = None
    return {"wanted": wanted, "level": level, "tried": others is not None, **found}


def _pick(strong: Bools, is_picked: Bools, cutoff: float | None, weight: Floats) -> dict[str, Any]:
    hits = float(weight[strong & is_picked].sum())
    picked = int(is_picked.sum())
    return {
        "cutoff": cutoff,
        "picked": picked,
        "precision": hits / float(weight[is_picked].sum()) if picked else None,
        "recall": hits / float(weight[strong].sum()) if strong.any() else None,
    }


def describe_strong(summary: StrongSummary, quantity: Quantity) -> list[str]:
    """Describe how well strong binders are found, in lines of text."""
    relation = ">=" if quantity.sign > 0 or quantity.classes else "<="
    title = "Strong binders: pKd" if quantity.affinity else f"Strong pairs: {quantity}"
    lines = [f"{title} {relation} {summary['threshold']:g}"]
    of_class = "strong"
    if quantity.classes:
        of_class = quantity.named(-1)
        lines = [f"Pairs that are {of_class}: {quantity}"]
    p_strong = PROBABILITY if quantity.classes else STRONG_COLUMN
    cut_offs = ["cut-off for", f"predicted {relation}", "picked", "precision", "recall"]
    regimes = page_of(summary, quantity)["regimes"]
    for regime in regimes:
        lines += [
            f"{regime['words']}: {regime['strong']:,} of {regime['n']:,} pairs are {of_class} "
            f"(prevalence {regime['prevalence']:.0%})"
        ]
        if regime["strong"]:  # else there is nothing to find
            lines += align([cut_offs, *map(_texts, regime["rows"])])
            bins = [p_strong, "pairs", "expected", of_class]
            lines += ["", *align([bins, *map(_texts, regime["bins"])]), ""]
    if any(cut["tried"] for regime in regimes for cut in regime["cutoffs"]):
        lines.append("Cut-offs are those of the run; precision and recall are of these pairs.")
    elif regimes:
        lines += [
            "Precision and recall of chosen cut-offs are those expected of new pairs, with",
            "95 % intervals of what is wanted; -: no cut-off is expected to reach it.",
        ]
    return lines


def _texts(cells: Sequence[Any]) -> list[str]:
    return ["-" if x is None else f"{x:,}" if isinstance(x, int) else str(x) for x in cells]


def _missed(cut: Mapping[str, Any]) -> str:
    """Say that a cut-off does not do on other pairs what it was chosen for; empty if it does."""
    found = cut[cut["wanted"]]
    level = f"{cut['level']:.0%}"
    # as shown: 79.6 % is 80 %
    missed = found is not None and round(100 * found) < round(100 * cut["level"])
    return f" (not {level})" if missed else ""


def page_of(summary: StrongSummary, quantity: Quantity) -> dict[str, Any]:
    """Lay out a summary: a row per regime, and of each its cut-offs and bins of p_strong."""
    regimes = []
    overview = list[list[Any]]()
    for regime in summary["regimes"]:
        at_threshold = regime["at_threshold"]
        # that of classes is among their scores, over folds
        names = ["prevalence"] if quantity.classes else ["prevalence", "average_precision"]
        shares = [_percent(regime[name]) for name in names]
        _, *picked = _pick_cells(at_threshold, quantity)
        overview.append([regime["words"], regime["n"], regime["strong"], *shares, *picked])
        rows = [["none: the threshold itself", *_pick_cells(at_threshold, quantity)]]
        for cut in regime["cutoffs"]:
            cells = _pick_cells(cut, quantity)
            at = -2 if cut["wanted"] == "precision" else -1
            if cells[at] is not None:
                interval = cut.get("interval")  # runs of earlier versions have none
                found = with_interval(cut[cut["wanted"]], interval, "{:.0%}".format)
                cells[at] = f"{found}{_missed(cut)}"
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
    cutoff = None if pick["cutoff"] is None else quantity.show(pick["cutoff"])
    return [cutoff, pick["picked"], _percent(pick["precision"]), _percent(pick["recall"])]


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


# ---- the table of regimes ------------------------------------------------------------------------


Cell: TypeAlias = Callable[[Mapping[str, Any]], str]
"""Lays out what a column shows of the score of a regime."""


class ShownColumn(NamedTuple):
    """Describe a column of the table of regimes."""

    label: str
    meaning: str
    """For those who point at it in a page."""
    cell: Cell
    of_both: bool = False
    """Whether it compares sequences of one side, which pairs of one kind do not have."""


LAST_DECIDING = "pairs"
"""The columns up to this one say whether a head is worth using."""
BEST_BASELINE = ShownColumn(
    "best baseline",
    "The baseline with the smallest error.",
    lambda regime: str(regime["best_baseline"]).replace("_", " "),
)
GROUPS = ShownColumn(
    "groups",
    "Effective number of independent groups of these pairs.",
    lambda regime: f"{regime['groups']:,.0f}",
)


def columns(quantity: Quantity, kinds: Collection[Kind] = KINDS) -> list[ShownColumn]:
    """Return the columns of the table of regimes, after the regime itself; what decides is first.

    Those that compare sides within each other are left out where pairs have one of the `kinds`.
    """
    shown = _columns_of_classes(quantity) if quantity.classes else _columns_of_numbers(quantity)
    return [column for column in shown if len(kinds) > 1 or not column.of_both]


def describe_regimes(
    scores: Sequence[Mapping[str, Any]],
    quantity: Quantity = PKD,
    kinds: Collection[Kind] = KINDS,
    *,
    deciding: bool = False,
) -> list[list[str]]:
    """Lay out scores as rows of text, the head first; brackets hold 95 % intervals.

    The columns are those of `columns`; with `deciding` only those up to `LAST_DECIDING`.
    """
    shown = columns(quantity, kinds)
    labels = [column.label for column in shown]
    if deciding:
        shown = shown[: labels.index(LAST_DECIDING) + 1]
    rows = [["", *labels[: len(shown)]]]
    for regime in scores:
        rows.append([regime["words"], *(column.cell(regime) for column in shown)])
    return rows


def _columns_of_numbers(quantity: Quantity) -> list[ShownColumn]:
    show = quantity.show
    return [
        ShownColumn(f"RMSE ({quantity})", METRICS["rmse"].meaning, _value("rmse", show)),
        ShownColumn(
            f"RMSE of mean ({quantity})", "RMSE of predicting the mean of the training labels.",
            _value("rmse_of_mean", show),
        ),
        ShownColumn(
            f"RMSE of best baseline ({quantity})",
            "RMSE of the baseline with the smallest error, which is chosen after the fact.",
            _value("rmse_of_best", show),
        ),
        ShownColumn(
            "Spearman", "Rank correlation of predicted and measured values, averaged over folds by "
            "their pairs. 1 is perfect, 0 is chance.", _claim("spearman"),
        ),
        ShownColumn(
            "Spearman within antigen", "Rank correlation of the antibodies of one antigen, "
            "averaged over antigens and folds by their pairs; small ones are pooled. 1 is perfect, "
            "0 is chance.", _claim("spearman_within_antigen"), of_both=True,
        ),
        ShownColumn("pairs", "Different pairs that were tested.", _pairs),
        BEST_BASELINE,
        ShownColumn(
            "Spearman within antibody", "Rank correlation of the antigens of one antibody, "
            "averaged over antibodies and folds by their pairs; small ones are pooled. 1 is "
            "perfect, 0 is chance.", _claim("spearman_within_antibody"), of_both=True,
        ),
        ShownColumn(
            "R2", "As scikit-learn's r2_score of all test pairs: 1 is perfect, below 0 the mean of "
            "the test pairs would be better.", _value("r2", two_digits),
        ),
        ShownColumn(
            "90 % coverage", "Share of the labels within the 90 % intervals of sigma.",
            _value("coverage", "{:.0%}".format),
        ),
        GROUPS,
    ]  # fmt: skip


def _columns_of_classes(quantity: Quantity) -> list[ShownColumn]:
    error = quantity.squared_error
    predicted = "probability" if quantity.is_binary else "expected number of the class"
    positive = quantity.named(-1)
    return [
        ShownColumn(error, f"Mean squared error of the {predicted}.", _value("rmse", _squared)),
        ShownColumn(
            f"{error} of prevalence", "The same of the frequency of the class in training.",
            _value("rmse_of_mean", _squared),
        ),
        ShownColumn(
            f"{error} of best baseline", "The same of the best baseline, chosen after the fact.",
            _value("rmse_of_best", _squared),
        ),
        ShownColumn(
            "average precision", f"Mean share of {positive} among the first pairs, at each of "
            "them, once the mean of each fold is taken off its predictions; chance is the "
            "prevalence.", _claim_of_classes("average_precision"),
        ),
        ShownColumn(
            "AUC within antigen", "Share of two pairs of one antigen and different classes that "
            "are in the right order. 0.5 is chance.", _claim_of_classes("auc_within_antigen"),
            of_both=True,
        ),
        ShownColumn(
            "pairs", f"Different pairs that were tested, and how many are {positive}.",
            lambda regime: f"{regime['n']:,} ({regime['classes']['positives']:,})",
        ),
        BEST_BASELINE,
        ShownColumn(
            "AUC within antibody", "The same of the antigens of one antibody. 0.5 is chance.",
            _claim_of_classes("auc_within_antibody"), of_both=True,
        ),
        ShownColumn(
            "AUC", "Area under the ROC curve: of all pairs of one fold. 0.5 is chance.",
            _claim_of_classes("auc"),
        ),
        ShownColumn(
            "log loss", "Mean of minus the logarithm of the probability of the class, in nats.",
            lambda regime: with_interval(regime["classes"]["log_loss"], None, _three_digits),
        ),
        GROUPS,
    ]  # fmt: skip


def _value(name: str, show: Callable[[float], str]) -> Cell:
    return lambda regime: with_interval(regime[name], regime["intervals"][name], show)


def _show_claim(claim: Mapping[str, float | None] | None) -> str:
    """Show a claim with its interval; a dash if there is none."""
    if claim is None:
        return "-"
    return with_interval(claim["value"], [claim["low"], claim["high"]])


def _claim(name: str) -> Cell:
    return lambda regime: _show_claim(regime[name])


def _claim_of_classes(name: str) -> Cell:
    return lambda regime: _show_claim(regime["classes"][name])


def _pairs(regime: Mapping[str, Any]) -> str:
    effective = regime.get("effective_pairs")
    return f"{regime['n']:,}" + ("" if effective is None else f" ({effective:,.0f} effective)")


def _squared(root: float) -> str:
    return _three_digits(root**2)


def _three_digits(value: float) -> str:
    return f"{value:z.3f}"


# ---- what limits scores --------------------------------------------------------------------------


MANY_CENSORED = 0.05
"""Share of censored test rows above which scores of the others are not those of the table."""
WIDE = 100.0
"""Ratio of the largest label to the median from which logarithms are proposed."""
EXPLAINED_SHARE = 0.5
"""Share of the variance from which a label is said to follow from the antigen or assay alone."""


FAR = 2.0
"""A label is far from the others at this multiple of their range."""
MOST_WORDS = 20
"""Distinct cells of a column that may say what the labels of its rows are of."""
LOOKED_AT = 2_000
"""Pairs of several measurements in which such a column is looked for."""
FEWEST_MEASURED = 20
"""Measurements of pairs with several, from which a column is said to explain their differences."""
LEFT_BY_SHIFT = 0.5
"""Share of the variance within pairs, at most, that is left by one shift for each value of it."""
LEFT_BY_VALUE = 0.25
"""Share that is left within each pair and value: less than replicates have by chance."""
SAME_NUMBERS = 0.95
"""Rank correlation from which such a column repeats the label."""
_WORD = re.compile("[A-Za-z]{2}")
_KEEP_ONE = ": if it says what was measured, keep the rows of one of its values."
FEWEST_BESIDE_FAR = 10  # different labels, below which none is far


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
        lines = _repeated_label(pkd, summary["commonest"], pairs) or _far_label(pkd, pairs)
        lines += _implausible_labels(summary, pairs)
        if not quantity.affinity and not quantity.is_log:
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
        repeated = int((exact & (pairs.measurements > 1)).sum())  # copies are one measurement
        of = f" of {counted(repeated, 'pair')}" if repeated else ""
        noise = f"{quantity.show(pairs.noise)} {quantity}"
        spread = f"Replicates{of} have a standard deviation of {noise}"
        column, is_shifting = _what_parts(pairs)
        if is_shifting:
            lines.append(f"{spread}, most of it between the values of column {column!r}{_KEEP_ONE}")
        else:
            lines.append(f"{spread}: the error of a label that was measured once.")
    return lines


def _problems_of_classes(pairs: LabelledPairs, conflicting: int) -> list[str]:
    """Say of which class there are few pairs, and which replicates disagree."""
    lines: list[str] = []
    if len(np.unique(pairs.pkd)) == 1:
        return lines  # which is refused
    for number, name in enumerate(pairs.quantity.classes):
        rows = int((pairs.pkd == number).sum())
        if rows < FEW_OF_CLASS:
            lines.append(
                f"Only {counted(rows, 'pair')} of {len(pairs):,} {'is' if rows == 1 else 'are'} "
                f"{quoted(name)}: probabilities are known roughly, and their intervals are wide."
            )
    if conflicting:
        which = "1 pair has" if conflicting == 1 else f"{conflicting:,} pairs have"
        column, _ = _what_parts(pairs)
        more = f" Column {column!r} tells them apart{_KEEP_ONE}" if column else ""
        lines.append(
            f"{which} replicates of different classes, which are counted on both sides.{more}"
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
        f"{value.max() / median:,.0f} times the median: errors on a few large ones decide. "
        "Logarithms are usually learned better: --scale log."
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


def _far_label(pkd: Floats, pairs: LabelledPairs) -> list[str]:
    """Say if the lowest or highest label is much farther from all others than these are apart."""
    values = np.unique(pkd)
    if len(values) < FEWEST_BESIDE_FAR:
        return []
    show = pairs.quantity.show
    for which, value, others in (
        ("highest", values[-1], values[:-1]),
        ("lowest", values[0], values[1:]),
    ):
        if np.abs(others - value).min() <= FAR * np.ptp(others):
            continue
        n = int((pkd == value).sum())
        return [
            f"The {which} label, {show(float(value))} {pairs.quantity}{_as_written(pairs, value)}, "
            f"that of {n:,} of {len(pkd):,}, is far from all others, {show(float(others[0]))} to "
            f"{show(float(others[-1]))}, and decides the errors: correct it or, if it is a limit, "
            "mark it in a column censored."
        ]
    return []


def _as_written(pairs: LabelledPairs, value: float) -> str:
    """Return the cell that a label was converted from, in brackets; nothing if it is the label."""
    is_label = (pairs.censored == 0) & (pairs.pkd == value) & (pairs.measurements == 1)
    if pairs.unit in ("pkd", "value") or not is_label.any():
        return ""
    column = pairs.table.column("pkd")
    cell = pairs.table.frame[column].iloc[pairs.row[is_label.argmax()]]
    written = cell.strip() if isinstance(cell, str) else f"{cell:.12g}"
    return f" ({written} in column {column!r})"


def _implausible_labels(summary: dict[str, Any], pairs: LabelledPairs) -> list[str]:
    reading = pairs.reading
    quantity = reading.quantity
    amount = f"{reading.conflict:.3g} {quantity}"
    apart = f"more than {amount}{'' if quantity.affinity else ', a standard deviation,'} apart"
    usual = f"outside the usual range of {quantity} (2 to 14). See --label."
    problems = {
        "out_of_range": ("label", "is", "are", usual),
        "conflicting_pairs": (
            "pair", "has", "have",
            f"labels or bounds {apart}. See --replicates.",
        ),
        "disputed_antigens": (
            "antigen", "has", "have", f"means of assays {apart}: do not mix these assays."
        ),
    }  # fmt: skip
    lines = []
    for name, (noun, of_one, of_several, problem) in problems.items():
        number = summary[name]
        if number:
            verb = of_one if number == 1 else of_several
            column, _ = _what_parts(pairs) if name == "conflicting_pairs" else ("", False)
            more = f" Column {column!r} tells them apart{_KEEP_ONE}" if column else ""
            lines.append(f"{counted(number, noun)} {verb} {problem}{more}")
    return lines


def _what_parts(pairs: LabelledPairs) -> tuple[str, bool]:
    """Return the column that says what the measurements of a pair are of, as in a long table.

    And whether their labels differ by it, as those of two pH do; else it is one of words.
    """
    if pairs.usable is None:
        return "", False
    pair = ["antibody", "antigen"]
    rows = pairs.usable[pairs.usable.duplicated(pair, keep=False)]
    rows = rows.assign(pair=rows.groupby(pair, sort=False).ngroup())
    rows = rows.loc[rows["pair"] < LOOKED_AT, ["row", "pair", "pkd", "censored"]]
    read = {*TEXT_ROLES, "pkd", "censored", "id", "antibody_name"}
    used = {name for role, name in pairs.table.columns.items() if role in read}
    of_words = ""
    for name in [name for name in pairs.table.names if name not in used]:
        texts = read_texts(pairs.table.frame[name].iloc[rows["row"]])
        word, words = pd.factorize(texts)
        if not (1 < len(words) <= MOST_WORDS and 2 * len(words) < len(texts)):
            continue
        measured = rows.assign(word=word).drop_duplicates(["pair", "word", "pkd"])  # copies
        words_of_pair = measured.groupby("pair")["word"].nunique()
        if 2 * (words_of_pair > 1).sum() <= len(words_of_pair):
            continue  # most pairs have one of its values, such as a plate
        exact = measured[measured["censored"] == 0]
        numbers = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce").to_numpy()
        of_rows = pd.Series(numbers[exact["word"]], exact.index)
        if abs(exact["pkd"].rank().corr(of_rows.rank())) > SAME_NUMBERS:
            continue
        if _explains(exact):
            return name, True
        is_of_each = len(measured) == words_of_pair.sum()
        if is_of_each and not of_words and all(map(_WORD.search, words)):
            of_words = name
    return of_words, False


def _explains(rows: pd.DataFrame) -> bool:
    """Tell whether words of rows explain most of how labels of a pair differ from their mean.

    Each by one shift in all pairs, or in each pair by its own, which replicates of a word show.
    """
    differences = rows["pkd"] - rows.groupby("pair")["pkd"].transform("mean")
    left_by_shift = differences - differences.groupby(rows["word"]).transform("mean")
    of_value = rows.groupby(["pair", "word"])["pkd"]
    left_by_value = rows["pkd"] - of_value.transform("mean")
    free = len(rows) - rows["pair"].nunique()
    free_by_shift = free - rows["word"].nunique() + 1
    free_by_value = len(rows) - of_value.ngroups
    if len(rows) < FEWEST_MEASURED or free_by_shift < 1:
        return False
    variance = (differences**2).sum() / free
    is_shifted = (left_by_shift**2).sum() / free_by_shift < LEFT_BY_SHIFT * variance
    if is_shifted or free_by_value < FEWEST_MEASURED:
        return bool(is_shifted)
    return bool((left_by_value**2).sum() / free_by_value < LEFT_BY_VALUE * variance)


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
