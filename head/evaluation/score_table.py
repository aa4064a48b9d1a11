"""The table of regimes: its columns, and the scores of each regime as a row of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from abag.head.data.quantity import PKD, Quantity
from abag.head.evaluation.metrics import METRICS


class Column(NamedTuple):
    """Describe a column of the table of regimes."""

    label: str
    meaning: str
    """For those who point at it in a page."""


WITHIN_COLUMNS = ("Spearman within antigen", "Spearman within antibody")


def columns(quantity: Quantity, *, no_antigen: bool = False) -> list[Column]:
    """Return the columns of the table of regimes, after the regime itself.

    With `no_antigen` those are left out that compare antigens, or antibodies within one.
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
    return [column for column in shown if not (no_antigen and column.label in WITHIN_COLUMNS)]


def describe_regimes(
    scores: Sequence[Mapping[str, Any]], quantity: Quantity = PKD, *, no_antigen: bool = False
) -> list[list[str]]:
    """Lay out scores as rows of text, the head first; brackets hold 95 % intervals.

    The columns are those of `columns`.
    """
    head = [column.label for column in columns(quantity, no_antigen=no_antigen)]
    rows = [["", *head]]
    names = ["spearman"]
    if not no_antigen:
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
