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
    from numpy.typing import NDArray

    from abag.head.design.mutant_scores import ScoredMutants
    from abag.head.design.sites import Parent

MAX_CELLS = 60_000
"""Single mutants on the page: 1 MB."""
BEST_COLUMNS = (
    "parent", "mutation", "region", "difference", "difference_sigma", "pkd_predicted",
    "regime", "far",
)  # fmt: skip


class HeatMap:
    """Collects the single mutants that the page shows.

    Parameters
    ----------
    parents : sequence of Parent
    residues : str
        The residues that were mutated to, in the order of the mutants of a site.
    """

    def __init__(self, parents: Sequence[Parent], residues: str) -> None:
        self._residues = residues
        cells = np.cumsum([self._cells(parent) for parent in parents])
        shown = max(1, int(np.searchsorted(cells, MAX_CELLS, side="right")))
        self._parents, self._left_out = parents[:shown], len(parents) - shown
        self._room = int(cells[shown - 1])
        self._frames: list[pd.DataFrame] = []

    def _cells(self, parent: Parent) -> int:
        return sum(len(self._residues) - (s.wild_type in self._residues) for s in parent.sites)

    def add(self, scored: ScoredMutants) -> None:
        """Keep what is shown of the next single mutants, which come in the order of the parents."""
        if self._room:
            kept = scored.frame.head(self._room)
            names = [n for n in kept if str(n).startswith(("difference", "far"))]
            self._frames.append(kept[names])
            self._room -= len(kept)

    def write(
        self, path: Path, *, source: str, parent_pkd: NDArray[np.float64], best: pd.DataFrame,
        verdict: str,
    ) -> None:  # fmt: skip
        """Write the page."""
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        path.write_text(self.render(source, parent_pkd, best, verdict, now), "utf-8")

    def render(
        self,
        source: str,
        parent_pkd: NDArray[np.float64],
        best: pd.DataFrame,
        verdict: str,
        date: str,
    ) -> str:
        """Return the page as HTML."""
        cells = pd.concat(self._frames, ignore_index=True)
        ends = np.cumsum([self._cells(parent) for parent in self._parents])
        parents = [
            _describe(
                parent, float(parent_pkd[number]), cells.iloc[end - self._cells(parent) : end]
            )
            for number, (parent, end) in enumerate(zip(self._parents, ends.tolist(), strict=True))
        ]
        far = cells["far"]
        unused = {"parent"} if len(parents) == 1 else set()
        columns = [name for name in BEST_COLUMNS if name in best and name not in unused]
        return render_page(
            "scan.html.j2",
            {
                "residues": self._residues,
                "parents": parents,
                "mostFar": bool(2 * far.sum() > len(far)),
            },
            ("page.js", "scan.js"),
            title=f"Scan of {self._parents[0].name}" if len(parents) == 1 else "Scan",
            date=date,
            source=source,
            verdict=verdict,
            names=[parent.name for parent in self._parents],
            left_out=self._left_out,
            has_sigma="difference_sigma" in cells,
            best={
                "head": [name.replace("_", " ") for name in columns],
                "rows": [list(map(_plain, row)) for row in best[columns].itertuples(index=False)],
            },
        )


def _describe(parent: Parent, pkd: float, cells: pd.DataFrame) -> dict[str, Any]:
    """Return a parent's sites and the numbers of its cells, in the order of the mutants."""
    found: dict[str, Any] = {
        "name": parent.name,
        "pkd": round(pkd, 3),
        "sites": [[s.chain, s.prefix, s.position, s.region, s.wild_type] for s in parent.sites],
        "difference": cells["difference"].round(3).tolist(),
        "far": "".join(map(str, cells["far"].astype(int).tolist())),
    }
    if "difference_sigma" in cells:
        found["sigma"] = cells["difference_sigma"].round(3).tolist()
    return found


def _plain(value: object) -> object:
    """Return a cell as text where it is a flag or missing."""
    if value is pd.NA:
        return None
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return value
