"""``scan``: score the mutants of antibodies, or of antigens, against their parents.

Double mutants follow once the single ones are scored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pandas as pd

from abag.core import messages
from abag.core.files import replacing
from abag.core.messages import counted
from abag.core.options import BadOption
from abag.embed.sequences.table_writer import writing_table
from abag.head.design.mutant_scores import score_mutants
from abag.head.design.options import ScanOptions
from abag.head.design.sites import pairs_of, read_parents, single_mutants
from abag.head.evaluation.ties import SamePredictions
from abag.head.prediction.reading import as_in_the_run
from abag.head.prediction.tables import (
    check_table_out,
    loaded,
    region_of_run,
    rounded,
    say_random_weights,
)
from abag.head.runs.report import render_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from abag.head.design.mutant_scores import MutantOfParent
    from abag.head.design.sites import Mutant, Parent
    from abag.head.prediction.predictor import Predictor, SequenceCounts
    from abag.head.prediction.reading import ReadAs

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
BEST, BEST_ON_PAGE = 5, 50
"""Mutants in the summary and in the table of the page."""
MOST_FAR = 0.5
"""Share of far rows above which a scan warns."""


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
    can_rank: bool
    """False if all mutants have the same prediction."""
    same_prediction: dict[str, int]
    """Rows of the regimes in which all mutants have the same prediction."""
    improved: int
    """Rows whose predicted difference exceeds its sigma, or 0 where that is not known."""
    measured: int
    """Rows that are training pairs of the run."""
    median_sigma: float | None
    """Of the differences; None if the predictor has none."""
    far_rows: int
    far_parents: int
    best: list[dict[str, Any]]
    """Of those that improve: ``parent``, ``mutation``, ``pkd_predicted``, ``difference``,
    ``difference_sigma`` and ``pkd_measured``."""
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
    doubles = f", {counted(double, 'double mutant')}" if double else ""
    sigma = found["median_sigma"]
    than = "" if sigma is None else f" by more than sigma (median {sigma:.2f} pKd)"
    several = found["parents"] > 1
    lines = [
        f"{parents}; {counted(single, 'single mutant')} of {counted(found['sites'], 'residue')}"
        f"{doubles}",
        f"predicted to improve{than}: {found['improved']:,} of {counted(found['rows'], 'mutant')}",
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
    text = f"outside the training data: {found['far_rows']:,} of {counted(found['rows'], 'mutant')}"
    if found["parents"] == found["far_parents"]:
        text += ", and so is the parent" if found["parents"] == 1 else ", and so are all parents"
    most = found["far_rows"] > MOST_FAR * found["rows"]
    return f"{text}: their order may mean nothing" if most else text


def _describe_best(one: Mapping[str, Any], *, several: bool) -> str:
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
    ScanSummary

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
        check_table_out(out, page, sources=(chosen.parents,), force=chosen.force)
        chosen = replace(chosen, antibody_region=region_of_run(chosen, predictor))
        store = predictor.resolve_store(chosen.store)
        chosen = _with_reading(chosen, predictor.reading)
        parents, skipped = read_parents(chosen)
        say_random_weights(predictor)
        measured = read_measured(predictor.pairs)
        singles = [
            (number, changes)
            for number, parent in enumerate(parents)
            for changes in single_mutants(parent, chosen.residues)
        ]
        found = score_mutants(predictor, store, parents, singles, measured, encoding)
        frame, regimes, verdicts = found.frame, found.regimes, found.verdicts
        if doubles := _doubles(singles, frame["difference"].to_numpy(), chosen.pairs_of or 0):
            both = score_mutants(predictor, store, parents, doubles, measured, encoding)
            frame = pd.concat([frame, both.frame], ignore_index=True)
            regimes, verdicts = regimes + both.regimes, verdicts | both.verdicts
            for kind, own in both.counts.items():  # parents were counted with the single mutants
                known, of_singles = len({getattr(p, kind) for p in parents}), found.counts[kind]
                of_singles["unique"] += own["unique"] - known
                of_singles["reused"] += own["reused"] - known
                of_singles["encoded"] += own["encoded"]
        same = SamePredictions()
        same.add(frame)
        for text in same.describe("mutant"):
            messages.say(text)
        sigma = frame.get("difference_sigma")
        improves = frame["difference"] > (0.0 if sigma is None else sigma)
        best = frame[improves].nlargest(BEST_ON_PAGE, "difference")
        of_parents, only = found.parents, len(parents) == 1
        summary: ScanSummary = {
            "out": str(out),
            "heat_map": str(page),
            "parents": len(parents),
            "skipped_parents": skipped,
            "sites": sum(len(parent.sites) for parent in parents),
            "rows": len(frame),
            "double_mutants": len(doubles),
            "regimes": dict(regimes),
            "verdicts": verdicts,
            "can_rank": same.can_rank,
            "same_prediction": same.regimes,
            "improved": int(improves.sum()),
            "measured": int(frame["pkd_measured"].notna().sum()) if len(measured) else 0,
            "median_sigma": None if sigma is None else float(sigma.median()),
            "far_rows": int(frame["far"].sum()),
            "far_parents": int(of_parents["far"].sum()),
            "best": _describe_rows(best.head(BEST)),
            "parent_pkd": float(of_parents["pkd_predicted"][0]) if only else None,
            "parent_measured": _or_none(of_parents["pkd_measured"][0]) if only else None,
            "antibodies": found.counts["antibody"],
            "antigens": found.counts["antigen"],
            "seconds": round(time.monotonic() - start_s, 3),
        }
        # both are written before either gets its name, so that a full disk leaves neither
        with replacing(page) as drawn, writing_table(out) as write:
            write(rounded(frame, out))
            heat_map = draw_heat_map(
                parents,
                chosen.residues,
                found.frame,
                of_parents,
                best,
                source=f"encoders {predictor.antibody.name} and {predictor.antigen.name}",
                verdicts=[*verdicts.values(), *same.describe("mutant"), describe_far(summary)],
            )
            drawn.write_text(heat_map, "utf-8")
    return summary


def _with_reading(options: ScanOptions, reading: ReadAs) -> ScanOptions:
    """Complete the options by what the run remembers, of a table or of one parent."""
    if options.parents is not None:
        return as_in_the_run(options.parents, options, reading)
    options = as_in_the_run(pd.DataFrame(), options, replace(reading, columns=(), antigen=""))
    if options.antigen is not None:
        return options
    if not reading.antigen:
        msg = "--antigen: not given; expected the antigen of the parent. Give --antigen SEQ."
        raise BadOption(msg)
    messages.say("the antigen of the run is taken")
    return replace(options, antigen=reading.antigen)


def read_measured(path: Path | None) -> pd.Series:
    """Return the exact pKd of the training pairs of a run by their keys, if they are known."""
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
    if not most:
        return []
    best: dict[int, list[Mutant]] = {}
    for row in np.argsort(-difference, kind="stable").tolist():
        number, changes = singles[row]
        if len(top := best.setdefault(number, [])) < most:
            top.append(changes)
    return [(number, both) for number in sorted(best) for both in pairs_of(best[number])]


def _or_none(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else float(value)


def _describe_rows(best: pd.DataFrame) -> list[dict[str, Any]]:
    names = ("parent", "mutation", "pkd_predicted", "difference")
    return [
        {name: row[name] for name in names}
        | {name: _or_none(row.get(name)) for name in ("difference_sigma", "pkd_measured")}
        for row in best.to_dict("records")
    ]


# ---- the page ------------------------------------------------------------------------------------
# A heat map of the single mutants of the first parents, as many as fit, and the best mutants.


def draw_heat_map(
    parents: Sequence[Parent],
    residues: str,
    singles: pd.DataFrame,
    parent_scores: pd.DataFrame,
    best: pd.DataFrame,
    *,
    source: str,
    verdicts: Sequence[str],
) -> str:
    """Draw the page of the single mutants, which come parent by parent, and of the best."""
    cells = [sum(len(residues) - (s.wild_type in residues) for s in p.sites) for p in parents]
    ends = np.cumsum(cells)
    fitting = max(1, int(np.searchsorted(ends, MAX_CELLS, side="right")))
    singles = singles.head(ends[fitting - 1])
    shown = [
        _describe(parent, scores, singles[end - size : end])
        for parent, size, end, (_, scores) in zip(
            parents[:fitting], cells, ends, parent_scores.iterrows(), strict=False
        )
    ]
    unused = {"parent"} if len(shown) == 1 else set()
    if "pkd_measured" in best and best["pkd_measured"].isna().all():
        unused.add("pkd_measured")
    columns = [name for name in BEST_COLUMNS if name in best and name not in unused]
    return render_page(
        "scan.html.j2",
        {
            "residues": residues,
            "parents": shown,
            "mostFar": bool(2 * singles["far"].sum() > len(singles)),
        },
        ("page.js", "scan.js"),
        title=f"Scan of {parents[0].name}" if len(shown) == 1 else "Scan",
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        source=source,
        parent=_in_words(shown[0]) if len(shown) == 1 else "",
        verdicts=verdicts,
        names=[parent["name"] for parent in shown],
        left_out=len(parents) - fitting,
        has_sigma="difference_sigma" in singles,
        best={
            "head": [BEST_COLUMNS[name] for name in columns],
            "rows": [list(map(_plain, row)) for row in best[columns].itertuples(index=False)],
        },
    )


def _describe(parent: Parent, scores: pd.Series, cells: pd.DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": parent.name,
        "pkd": round(scores["pkd_predicted"], 4),  # as in the table; 3 digits round 4.4752 to 4.47
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
    measured = f", measured {parent['measuredPkd']:.2f}" if "measuredPkd" in parent else ""
    return f"Parent: predicted pKd {parent['pkd']:.2f}{measured}."


def _plain(value: object) -> object:
    if pd.isna(value):  # type: ignore[call-overload]
        return None
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return value
