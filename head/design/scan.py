"""``scan``: score the mutants of antibodies, or of antigens, against their parents.

Double mutants follow once the single ones are scored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pandas as pd

from abag.core import messages
from abag.core.files import replacing
from abag.core.messages import counted
from abag.embed.sequences.table_writer import TableWriter
from abag.head.design.heat_map import HeatMap
from abag.head.design.mutant_scores import MutantScorer
from abag.head.design.options import ScanOptions
from abag.head.design.sites import pairs_of, read_parents, single_mutants
from abag.head.prediction.tables import (
    check_out,
    check_table_out,
    loaded,
    region_of_run,
    rounded,
    say_random_weights,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from abag.head.design.mutant_scores import MutantOfParent
    from abag.head.design.sites import Mutant
    from abag.head.prediction.predictor import Predictor, SequenceCounts

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
    pkd_measured: float | None


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
    regimes: dict[str, int]
    """Rows by what is new about them."""
    verdicts: dict[str, str]
    """What the run has shown for these regimes."""
    improved: int
    """Rows whose predicted difference exceeds its sigma, or 0 where that is not known."""
    measured: int
    """Rows that are training pairs of the run."""
    median_sigma: float | None
    """Of the differences; None if the predictor has none."""
    far_rows: int
    far_parents: int
    best: list[BestMutant]
    """Of those that improve."""
    parent_pkd: float | None
    """Prediction for the parent; None if there are several."""
    parent_measured: float | None
    """Measured pKd of the parent, if it is a training pair; None if there are several."""
    antibodies: SequenceCounts
    antigens: SequenceCounts
    seconds: float


def describe_scan(found: ScanSummary) -> str:
    """Describe a scan in at most twelve lines."""
    single, double = found["rows"] - found["double_mutants"], found["double_mutants"]
    parents = counted(found["parents"], "parent")
    if found["parent_pkd"] is not None:
        parents += f", predicted pKd {found['parent_pkd']:.2f}"
    if found["parent_measured"] is not None:
        parents += f", measured {found['parent_measured']:.2f}"
    doubles = f", {double:,} double mutants" if double else ""
    sigma = found["median_sigma"]
    than = "" if sigma is None else f" by more than sigma (median {sigma:.2f} pKd)"
    several = found["parents"] > 1
    lines = [
        f"{parents}; {single:,} single mutants of {counted(found['sites'], 'residue')}{doubles}",
        f"{found['improved']:,} of {found['rows']:,} are predicted to improve{than}",
        *(
            f"{'' if at else 'best':9} {_describe_best(one, several=several)}"
            for at, one in enumerate(found["best"])
        ),
    ]
    if found["best"]:
        lines.append("The largest of many predicted improvements are usually too large.")
    lines.append(describe_far(found))
    return "\n".join([*lines, f"table     {found['out']}", f"heat map  {found['heat_map']}"])


def describe_far(found: ScanSummary) -> str:
    """Say how many mutants are outside the training data, and what that means if most are."""
    text = f"{found['far_rows']:,} of {found['rows']:,} mutants are outside the training data"
    if found["parents"] == found["far_parents"]:
        text += ", and so is the parent" if found["parents"] == 1 else ", and so are all parents"
    most = found["far_rows"] > MOST_FAR * found["rows"]
    return f"{text}: their order may mean nothing" if most else text


def _describe_best(one: BestMutant, *, several: bool) -> str:
    sigma, measured = one["difference_sigma"], one["pkd_measured"]
    spread = "" if sigma is None else f" ± {sigma:.2f}"
    text = f"{one['mutation']}  {one['difference']:+.2f}{spread}  pKd {one['pkd_predicted']:.2f}"
    if measured is not None:
        text += f" (measured {measured:.2f})"
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
    predictor, encoding = loaded(run), chosen.encoding(progress)
    start_s, out = time.monotonic(), Path(out)
    with messages.reporting(say, bars=progress):
        page = out.with_name(f"{Path(out.name.removesuffix('.gz')).stem}.html")
        check_table_out(out, (chosen.parents,), force=chosen.force)
        check_out(page, (chosen.parents,), force=chosen.force)
        chosen = replace(chosen, antibody_region=region_of_run(chosen, predictor))
        store = predictor.resolve_store(chosen.store)
        parents, skipped = read_parents(chosen)
        say_random_weights(predictor)
        scorer = MutantScorer(predictor, store, parents, read_measured(predictor.pairs))
        heat_map, scanned = HeatMap(parents, chosen.residues), _Scanned()
        singles = [
            (number, changes)
            for number, parent in enumerate(parents)
            for changes in single_mutants(parent, chosen.residues)
        ]
        differences: list[np.ndarray] = []
        # both are written before either gets its name, so that a full disk leaves neither
        with replacing(page) as drawn, TableWriter(out) as writer:
            for frame in scorer.score(singles, **encoding):
                writer.write(rounded(frame, out))
                heat_map.add(frame)
                scanned.add(frame)
                differences.append(frame["difference"].to_numpy())
            if doubles := _doubles(singles, np.concatenate(differences), chosen.pairs_of or 0):
                for frame in scorer.score(doubles, **encoding):
                    writer.write(rounded(frame, out))
                    scanned.add(frame)
            own, only = scorer.parent_scores, len(parents) == 1
            verdicts = {name: one.verdict for name, one in predictor.regimes.items()}
            summary: ScanSummary = {
                "out": str(out),
                "heat_map": str(page),
                "parents": len(parents),
                "skipped_parents": skipped,
                "sites": sum(len(parent.sites) for parent in parents),
                "rows": scanned.rows,
                "double_mutants": len(doubles),
                "regimes": dict(scorer.regimes),
                "verdicts": {one: verdicts[one] for one in scorer.regimes if one in verdicts},
                "improved": scanned.improved,
                "measured": scanned.measured,
                "median_sigma": scanned.median_sigma,
                "far_rows": scanned.far,
                "far_parents": int(own["far"].sum()),
                "best": scanned.describe_best(),
                "parent_pkd": float(own["pkd_predicted"][0]) if only else None,
                "parent_measured": _or_none(own["pkd_measured"][0]) if only else None,
                "antibodies": scorer.counts["antibody"],
                "antigens": scorer.counts["antigen"],
                "seconds": round(time.monotonic() - start_s, 3),
            }
            heat_map.write(
                drawn,
                source=f"encoders {predictor.antibody.name} and {predictor.antigen.name}",
                parent_scores=own,
                best=scanned.best,
                verdicts=[*summary["verdicts"].values(), describe_far(summary)],
            )
    return summary


def read_measured(path: Path | None) -> pd.Series:
    """Return the pKd of the training pairs of a run by their keys; empty if they are not known.

    Those with a censored label are left out.
    """
    none = pd.Series(dtype=float)
    if path is None:
        return none
    try:
        pairs = pd.read_parquet(path, columns=["antibody_key", "antigen_key", "pkd", "censored"])
        exact = pairs[pairs["censored"] == 0].astype({"pkd": float})
        return exact.groupby(["antibody_key", "antigen_key"])["pkd"].mean()
    except (OSError, ValueError, KeyError, TypeError) as error:
        messages.say(f"{path}: cannot be read ({error}); measured values are not shown")
        return none


def _doubles(
    singles: Sequence[MutantOfParent], difference: np.ndarray, most: int
) -> list[MutantOfParent]:
    """Return the double mutants of the best single mutants of each parent."""
    if not most:
        return []
    best: dict[int, list[Mutant]] = {}
    for row in np.argsort(-difference, kind="stable").tolist():
        number, changes = singles[row]
        if len(top := best.setdefault(number, [])) < most:
            top.append(changes)
    return [(number, both) for number in sorted(best) for both in pairs_of(best[number])]


def _or_none(value: float) -> float | None:
    """Return a number of a table, None where there is none."""
    return None if pd.isna(value) else float(value)


class _Scanned:
    """What a scan keeps of the scored mutants: counts and the best."""

    def __init__(self) -> None:
        self.rows = self.improved = self.far = self.measured = 0
        self.best = pd.DataFrame()
        """Of those that improve."""
        self._sigma: list[np.ndarray] = []

    def add(self, frame: pd.DataFrame) -> None:
        """Count the mutants of a batch."""
        improves = frame["difference"] > frame.get("difference_sigma", 0.0)
        self.rows += len(frame)
        self.improved += int(improves.sum())
        self.far += int(frame["far"].sum())
        self.measured += int(frame["pkd_measured"].notna().sum()) if "pkd_measured" in frame else 0
        if "difference_sigma" in frame:
            self._sigma.append(frame["difference_sigma"].to_numpy())
        both = [part for part in (self.best, frame[improves]) if len(part)]
        if both:
            self.best = pd.concat(both, ignore_index=True).nlargest(BEST_ON_PAGE, "difference")

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
                "pkd_measured": _or_none(row.get("pkd_measured", np.nan)),
            }
            for row in self.best.head(BEST).to_dict("records")
        ]
