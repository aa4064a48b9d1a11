"""The page of a scan: a heat map of its single mutants, and its best mutants.

The map shows the first parents, as many as fit into `MAX_CELLS`; the table has all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.head.runs.pages import render_page

if TYPE_CHECKING:
    from abag.head.design.sites import Parent

MAX_CELLS = 60_000
"""Single mutants on the page: 1 MB."""
BEST_COLUMNS = {
    "parent": "parent",
    "mutation": "mutation",
    "region": "region",
    "difference": "difference (pKd)",
    "difference_sigma": "its sigma",
    "pkd_predicted": "predicted pKd",
    "pkd_measured": "measured pKd",
    "regime": "regime",
    "far": "outside training data",
}
"""Columns of the table of the best mutants, and their headings."""
SHOWN = ("difference", "difference_sigma", "far", "pkd_measured")
"""Columns of the cells."""


class HeatMap:
    """Collects the single mutants that the page shows, in the order of the `residues` of a site."""

    def __init__(self, parents: Sequence[Parent], residues: str) -> None:
        self._residues = residues
        cells = np.cumsum([self._cells(parent) for parent in parents])
        shown = max(1, int(np.searchsorted(cells, MAX_CELLS, side="right")))
        self._parents, self._left_out = parents[:shown], len(parents) - shown
        self._room = int(cells[shown - 1])
        self._frames: list[pd.DataFrame] = []

    def _cells(self, parent: Parent) -> int:
        return sum(len(self._residues) - (s.wild_type in self._residues) for s in parent.sites)

    def add(self, frame: pd.DataFrame) -> None:
        """Keep what is shown of the next single mutants, which come in the order of the parents."""
        if self._room:
            kept = frame.head(self._room)
            self._frames.append(kept[[name for name in SHOWN if name in kept]])
            self._room -= len(kept)

    def write(
        self, path: Path, *, source: str, parent_scores: pd.DataFrame, best: pd.DataFrame,
        verdicts: Sequence[str],
    ) -> None:  # fmt: skip
        """Write the page."""
        cells = pd.concat(self._frames, ignore_index=True)
        ends = np.cumsum([self._cells(parent) for parent in self._parents]).tolist()
        parents = [
            _describe(parent, scores, cells[end - self._cells(parent) : end])
            for parent, end, (_, scores) in zip(
                self._parents, ends, parent_scores.iterrows(), strict=False
            )
        ]
        unused = {"parent"} if len(parents) == 1 else set()
        if "pkd_measured" in best and best["pkd_measured"].isna().all():
            unused.add("pkd_measured")
        columns = [name for name in BEST_COLUMNS if name in best and name not in unused]
        page = render_page(
            "scan.html.j2",
            {
                "residues": self._residues,
                "parents": parents,
                "mostFar": bool(2 * cells["far"].sum() > len(cells)),
            },
            ("page.js", "scan.js"),
            title=f"Scan of {self._parents[0].name}" if len(parents) == 1 else "Scan",
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            source=source,
            parent=_in_words(parents[0]) if len(parents) == 1 else "",
            verdicts=verdicts,
            names=[parent.name for parent in self._parents],
            left_out=self._left_out,
            has_sigma="difference_sigma" in cells,
            best={
                "head": [BEST_COLUMNS[name] for name in columns],
                "rows": [list(map(_plain, row)) for row in best[columns].itertuples(index=False)]
                if len(best)
                else [],
            },
        )
        path.write_text(page, "utf-8")


def _describe(parent: Parent, scores: pd.Series, cells: pd.DataFrame) -> dict[str, Any]:
    """Return a parent's sites and the numbers of its cells, in the order of the mutants."""
    found: dict[str, Any] = {
        "name": parent.name,
        "pkd": round(scores["pkd_predicted"], 3),
        "sites": [[s.chain, s.prefix, s.position, s.region, s.wild_type] for s in parent.sites],
        "difference": cells["difference"].round(3).tolist(),
        "far": "".join(map(str, cells["far"].astype(int).tolist())),
    }
    if "difference_sigma" in cells:
        found["sigma"] = cells["difference_sigma"].round(3).tolist()
    if not np.isnan(scores["pkd_measured"]):
        found["measuredPkd"] = round(scores["pkd_measured"], 3)
    if "pkd_measured" in cells:
        measured = cells["pkd_measured"].reset_index(drop=True).dropna()
        found["measured"] = {str(at): round(value, 3) for at, value in measured.items()}
    return found


def _in_words(parent: dict[str, Any]) -> str:
    """Say what is known of a parent."""
    measured = f", measured {parent['measuredPkd']:.2f}" if "measuredPkd" in parent else ""
    return f"Parent: predicted pKd {parent['pkd']:.2f}{measured}."


def _plain(value: object) -> object:
    """Return a cell as text where it is a flag or missing."""
    if pd.isna(value):  # type: ignore[call-overload]
        return None
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return value
