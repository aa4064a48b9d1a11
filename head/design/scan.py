"""``scan``: score the mutants of antibodies, or of antigens, against their parents.

The mutants are enumerated twice: first to encode what the store lacks, in one go, then to score
and write them in batches. Double mutants follow once the single ones are scored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pandas as pd

from abag.core import messages
from abag.core.files import replacing
from abag.embed.sequences.table_writer import TableWriter
from abag.head.design.heat_map import HeatMap
from abag.head.design.mutant_scores import MutantScorer
from abag.head.design.options import ScanOptions
from abag.head.design.sites import pairs_of, read_parents, single_mutants
from abag.head.prediction.inputs import (
    Scorer,
    check_out,
    check_table_out,
    loaded,
    region_of_run,
    say_random_weights,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from abag.head.design.mutant_scores import EncodedCounts, MutantOfParent, ScoredMutants
    from abag.head.design.sites import Mutant, Parent
    from abag.head.prediction.predictor import Predictor

BEST, BEST_ON_PAGE = 5, 50
"""Mutants in the summary and in the table of the page."""
MOST_FAR = 0.5
"""Share of far rows above which a scan warns."""


class BestMutant(TypedDict):
    """One of the mutants with the largest predicted improvement."""

    parent: str
    mutation: str
    pkd_predicted: float
    difference: float
    difference_sigma: float | None


class ScanSummary(TypedDict):
    """What `scan` returns, and ``abag scan --json`` prints."""

    out: str
    heat_map: str
    parents: int
    skipped_parents: int
    """Parents without a residue to mutate."""
    sites: int
    """Residues that were mutated, over all parents."""
    rows: int
    double_mutants: int
    """Rows with two mutations."""
    improved: int
    """Rows whose predicted difference exceeds its sigma, or 0 where that is not known."""
    median_sigma: float | None
    """Of the differences; None if the predictor has none."""
    far_rows: int
    far_parents: int
    best: list[BestMutant]
    parent_pkd: float | None
    """Prediction for the parent; None if there are several."""
    antibodies: EncodedCounts
    antigens: EncodedCounts
    seconds: float


def describe_scan(found: ScanSummary) -> str:
    """Describe a scan in at most twelve lines."""
    single, double = found["rows"] - found["double_mutants"], found["double_mutants"]
    parents = f"{found['parents']:,} parents"
    if found["parent_pkd"] is not None:
        parents = f"1 parent, predicted pKd {found['parent_pkd']:.2f}"
    doubles = f", {double:,} double mutants" if double else ""
    sigma = found["median_sigma"]
    than = "" if sigma is None else f" by more than sigma (median {sigma:.2f} pKd)"
    several = found["parents"] > 1
    lines = [
        f"{parents}; {single:,} single mutants of {found['sites']:,} residues{doubles}",
        f"{found['improved']:,} of {found['rows']:,} are predicted to improve{than}",
        *(
            f"{'' if at else 'best':9} {_describe_best(one, several=several)}"
            for at, one in enumerate(found["best"])
        ),
        describe_far(found),
    ]
    return "\n".join([*lines, f"table     {found['out']}", f"heat map  {found['heat_map']}"])


def describe_far(found: ScanSummary) -> str:
    """Say how many mutants are far, and what that means if most are."""
    text = f"{found['far_rows']:,} of {found['rows']:,} mutants are far from all that was measured"
    if found["parents"] == found["far_parents"]:
        text += ", and so is the parent" if found["parents"] == 1 else ", and so are all parents"
    most = found["far_rows"] > MOST_FAR * found["rows"]
    return f"{text}: their order may mean nothing" if most else text


def _describe_best(one: BestMutant, *, several: bool) -> str:
    sigma = one["difference_sigma"]
    spread = "" if sigma is None else f" ± {sigma:.2f}"
    text = f"{one['mutation']}  {one['difference']:+.2f}{spread}  pKd {one['pkd_predicted']:.2f}"
    return f"{text}  {one['parent']}" if several else text


def scan(
    run: Path | str | Predictor,
    out: Path | str,
    *,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of ScanOptions
) -> ScanSummary:
    """Score all mutants of some residues of one or more antibodies, and draw a heat map.

    Parameters
    ----------
    run : path or Predictor
        As for `abag.load_predictor`, or what it returned.
    out : path
        Table to write; the heat map gets the same name with the suffix ``.html``.
    say, progress
        As for `abag.predict`.
    **options
        Fields of `ScanOptions`.

    Returns
    -------
    dict
        See `ScanSummary`.

    Raises
    ------
    AbagError
        If anything is refused; nothing is encoded or written then.
    """
    chosen = ScanOptions.from_keywords(options, "scan")
    predictor = loaded(run)
    start_s, out = time.monotonic(), Path(out)
    with messages.reporting(say, bars=progress):
        page = out.with_name(f"{Path(out.name.removesuffix('.gz')).stem}.html")
        check_table_out(out, (chosen.parents,), force=chosen.force)
        check_out(page, (chosen.parents,), force=chosen.force)
        chosen = replace(chosen, antibody_region=region_of_run(chosen, predictor))
        scoring = Scorer(
            predictor, predictor.resolve_store(chosen.store), chosen.encoding(progress)
        )
        parents, skipped = read_parents(chosen)
        say_random_weights(predictor)
        scorer = MutantScorer(scoring, parents)
        heat_map = HeatMap(parents, chosen.residues)
        scanned = _Scanned(len(parents), chosen.pairs_of or 0)
        total = sum(1 for _ in _singles(parents, chosen.residues))
        scorer.encode(_singles(parents, chosen.residues))
        # both are written before either gets its name, so that a full disk leaves neither
        with replacing(page) as drawn, TableWriter(out) as writer:
            for scored in scorer.score(_singles(parents, chosen.residues), total):
                writer.write(scored.frame)
                heat_map.add(scored)
                scanned.add(scored)
            if doubles := scanned.doubles():
                scorer.encode(doubles)
                for scored in scorer.score(doubles, len(doubles)):
                    writer.write(scored.frame)
                    scanned.add(scored)
            summary: ScanSummary = {
                "out": str(out),
                "heat_map": str(page),
                "parents": len(parents),
                "skipped_parents": skipped,
                "sites": sum(len(parent.sites) for parent in parents),
                "rows": scanned.rows,
                "double_mutants": scanned.rows - total,
                "improved": scanned.improved,
                "median_sigma": scanned.median_sigma,
                "far_rows": scanned.far,
                "far_parents": len(scorer.far_parents),
                "best": scanned.describe_best(),
                "parent_pkd": float(scorer.parent_pkd[0]) if len(parents) == 1 else None,
                "antibodies": scorer.counts["antibody"],
                "antigens": scorer.counts["antigen"],
                "seconds": round(time.monotonic() - start_s, 3),
            }
            heat_map.write(
                drawn,
                source=f"encoders {predictor.antibody.name} and {predictor.antigen.name}",
                parent_pkd=scorer.parent_pkd,
                best=scanned.best,
                verdict=describe_far(summary),
            )
    return summary


def _singles(parents: Sequence[Parent], residues: str) -> Iterator[MutantOfParent]:
    for number, parent in enumerate(parents):
        for changes in single_mutants(parent, residues):
            yield number, changes


class _Scanned:
    """What a scan keeps of the scored mutants: counts, the best, and those to combine."""

    def __init__(self, parents: int, combined: int) -> None:
        self.rows = self.improved = self.far = 0
        self.best = pd.DataFrame()
        self._sigma: list[np.ndarray] = []
        self._combined = combined
        self._top: list[list[tuple[float, Mutant]]] = [[] for _ in range(parents)]

    def add(self, scored: ScoredMutants) -> None:
        """Count the mutants of a batch."""
        frame = scored.frame
        self.rows += len(frame)
        self.improved += int(scored.improves.sum())
        self.far += int(scored.far.sum())
        if "difference_sigma" in frame:
            self._sigma.append(frame["difference_sigma"].to_numpy())
        both = pd.concat([self.best, frame], ignore_index=True) if len(self.best) else frame
        self.best = both.nlargest(BEST_ON_PAGE, "difference")
        if self._combined:
            for difference, (number, changes) in zip(
                frame["difference"].tolist(), scored.mutants, strict=True
            ):
                if len(changes) == 1:
                    self._top[number].append((difference, changes))
            for number in {number for number, _ in scored.mutants}:
                self._top[number].sort(key=lambda one: -one[0])
                del self._top[number][self._combined :]

    def doubles(self) -> list[MutantOfParent]:
        """Return the double mutants of the best single mutants of each parent."""
        return [
            (number, changes)
            for number, top in enumerate(self._top)
            for changes in pairs_of([mutant for _, mutant in top])
        ]

    @property
    def median_sigma(self) -> float | None:
        """The median sigma of the differences, if the predictor has one."""
        return float(np.median(np.concatenate(self._sigma))) if self._sigma else None

    def describe_best(self) -> list[BestMutant]:
        """Return the best mutants for the summary."""
        return [
            {
                "parent": row["parent"],
                "mutation": row["mutation"],
                "pkd_predicted": row["pkd_predicted"],
                "difference": row["difference"],
                "difference_sigma": row.get("difference_sigma"),
            }
            for row in self.best.head(BEST).to_dict("records")
        ]
