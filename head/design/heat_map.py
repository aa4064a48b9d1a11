"""The page of a scan: a heat map of single mutants and a table of the best mutants.

It shows the first parents, as many as fit, each a map of residues by positions.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.head.labels.headers import INSIDE, PKD, Quantity
from abag.head.runs.report import render_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from abag.head.design.sites import Parent

MAX_CELLS = 60_000
"""Single mutants on the page: 1 MB."""
BEST_COLUMNS = {
    "parent": "parent",
    "mutation": "mutation",
    "region": "region",
    "difference": "difference ({})",
    "difference_sigma": "its sigma",
    "pkd_predicted": "predicted {}",
    "pkd_measured": "measured {}",
    "regime": "regime",
    "far": "outside training data",
}
"""Columns of the table of the best mutants, and their headings, with the quantity."""
BEST_ON_PAGE = 50
"""Mutants in that table."""


def count_shown(parents: Sequence[Parent], residues: str) -> int:
    """Return how many parents fit on the page."""
    ends = np.cumsum([parent.count_mutants(residues) for parent in parents])
    return max(1, int(np.searchsorted(ends, MAX_CELLS, side="right")))


def draw_heat_map(
    parents: Sequence[Parent],
    residues: str,
    singles: pd.DataFrame,
    parent_scores: pd.DataFrame,
    best: pd.DataFrame,
    *,
    source: str,
    verdicts: Sequence[str],
    quantity: Quantity = PKD,
    digits: int = 3,
    contributions: Sequence[Sequence[float]] = (),
) -> str:
    """Draw the page of the single mutants, which come parent by parent, and of the best.

    `contributions` are those of the residues of the parents that fit, site by site, NaN where they
    are not known; empty if the predictor has no parts that compare residues.
    """
    ends = np.cumsum([parent.count_mutants(residues) for parent in parents])
    fitting = count_shown(parents, residues)
    singles = singles.head(ends[fitting - 1])
    shown = []
    start = 0
    for number in range(fitting):
        end = int(ends[number])
        cells = singles[start:end]
        described = _describe(parents[number], parent_scores.iloc[number], cells, quantity, digits)
        if contributions and not np.isnan(contributions[number]).all():
            of_sites = np.round(contributions[number], digits)
            described["contribution"] = [None if np.isnan(x) else x for x in of_sites.tolist()]
        shown.append(described)
        start = end
    content: dict[str, Any] = {"residues": residues, "parents": shown}
    if not quantity.affinity:
        content["quantity"] = str(quantity)
        content["sign"] = quantity.sign
        content["digits"] = digits
        content["columns"] = {name: quantity.column(name) for name in INSIDE}
    content["mostFar"] = bool(2 * singles["far"].sum() > len(singles))
    only = len(shown) == 1
    return render_page(
        "scan.html.j2",
        content,
        ("page.js", "scan.js"),
        title=f"Scan of {parents[0].name}" if only else "Scan",
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        source=source,
        parent=_in_words(shown[0], quantity) if only else "",
        quantity=quantity,
        verdicts=verdicts,
        names=[parent["name"] for parent in shown],
        left_out=len(parents) - fitting,
        has_sigma="difference_sigma" in singles,
        has_contributions=any("contribution" in parent for parent in shown),
        best=_table_of_best(best, quantity, with_parent=not only),
    )


def _table_of_best(best: pd.DataFrame, quantity: Quantity, *, with_parent: bool) -> dict[str, Any]:
    """Return the headings and the rows of the best mutants, without columns that say nothing."""
    unused = set() if with_parent else {"parent"}
    if "pkd_measured" in best and best["pkd_measured"].isna().all():
        unused.add("pkd_measured")
    columns = [name for name in BEST_COLUMNS if name in best and name not in unused]
    rows = []
    for row in best[columns].itertuples(index=False):
        rows.append([_plain(cell) for cell in row])
    return {"head": [BEST_COLUMNS[name].format(quantity) for name in columns], "rows": rows}


def _describe(
    parent: Parent, scores: pd.Series, cells: pd.DataFrame, quantity: Quantity, digits: int
) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "name": parent.name,
        # as in the table: with 3 digits 4.4752 would be 4.475, and shown as 4.47
        "pkd": round(scores["pkd_predicted"], digits + 1),
        "sites": [[s.chain, s.prefix, s.position, s.region, s.wild_type] for s in parent.sites],
        "predicted": cells["pkd_predicted"].round(digits + 1).tolist(),
        "difference": cells["difference"].round(digits).tolist(),
        "far": "".join(np.where(cells["far"], "1", "0")),
    }
    if "difference_sigma" in cells:
        summary["sigma"] = cells["difference_sigma"].round(digits).tolist()
    text = describe_compared(scores["pkd_predicted"], scores["pkd_compared"], quantity)
    if text:
        summary["compared"] = text
    if not np.isnan(scores["pkd_measured"]):
        summary["measuredPkd"] = round(scores["pkd_measured"], digits)
    if "pkd_measured" in cells:
        measured = cells["pkd_measured"].reset_index(drop=True).dropna()
        summary["measured"] = {str(at): round(value, digits) for at, value in measured.items()}
    return summary


def describe_compared(predicted: float, compared: float | None, quantity: Quantity) -> str:
    """Say what is predicted for a parent as if it were as new as its mutants, if that differs."""
    if compared is None or quantity.show(compared) == quantity.show(predicted):
        return ""
    return f" ({quantity.show(compared)} as if unmeasured, like the mutants compared with it)"


def _in_words(parent: dict[str, Any], quantity: Quantity) -> str:
    text = (
        f"Parent: predicted {quantity} {quantity.show(parent['pkd'])}{parent.get('compared', '')}"
    )
    if "measuredPkd" in parent:
        text += f", measured {quantity.show(parent['measuredPkd'])}"
    return f"{text}."


def _plain(value: object) -> object:
    if pd.isna(value):  # type: ignore[call-overload]
        return None
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return value
