"""The report and the model card of a run, rendered from the files in its folder.

The report is one page; its tables are HTML and its charts are drawn by a script (`charts`). The
card is not dated: the same run gives the same card.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from jinja2 import UndefinedError
from markupsafe import Markup

from abag.core import messages
from abag.core.files import write_text
from abag.core.options import schema
from abag.embed.families.registry import ALIASES
from abag.head.data.quantity import Quantity
from abag.head.evaluation.metrics import METRICS, metric_heading
from abag.head.evaluation.ranks import MIN_ROWS_PER_ANTIGEN
from abag.head.evaluation.score_table import Column, columns, describe_regimes
from abag.head.evaluation.strong import page_of
from abag.head.models.config import FitConfig
from abag.head.models.registry import MODELS
from abag.head.prediction.shared_folder import ADAPTER_FILES, contents_of
from abag.head.prediction.specs import RECORD, WEIGHTS
from abag.head.runs.charts import chart_data, name_antigens, shorten
from abag.head.runs.pages import render_page, render_template
from abag.head.runs.rounds import COLUMN_NAMES, draw_rounds, round_cells
from abag.head.runs.run_folder import naming_damage, read_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from abag.head.runs.run_folder import RegimeSummary, RunSummary, SavedRun

LARGEST_ERRORS = 20
"""Test pairs in the table of the largest errors."""
IN_CONFIG_ONLY = ("format", "store_from_run")
"""Keys of config.json that the report does not show."""
LICENCES = {name: alias.licence for name, alias in ALIASES.items()}
"""Licences of the encoders that abag knows by name."""


class ReportSummary(TypedDict):
    """What `report` returns, and ``abag report --json`` prints."""

    run: str
    report: str
    model_card: str | None


def report(run: Path | str, *, say: Callable[[str], None] | None = None) -> ReportSummary:
    """Write the report and the model card of a finished run again; nothing else is changed.

    Use it after an update of abag, or for a run that was fitted with ``report=False``.

    Parameters
    ----------
    run : path
        Folder of a finished run.
    say : callable, optional
        Receives each message; by default they go to stderr.

    Returns
    -------
    ReportSummary
        Paths of the pages.

    Raises
    ------
    NoFinishedRun
        If the run is unfinished or damaged.
    """
    folder = Path(run)
    with messages.reporting(say), naming_damage(folder):
        saved = read_run(folder)
        try:
            write_report(saved)
            card = write_card(folder, saved.config, saved.summary)
        except UndefinedError as error:  # a value that a page shows is missing
            raise ValueError(str(error)) from error
    return {"run": str(run), "report": str(folder / "report.html"), "model_card": card}


def describe_report(summary: ReportSummary) -> str:
    """Name the files that were written, one per line."""
    lines = [f"{'report':10} {summary['report']}"]
    if summary["model_card"] is not None:
        lines.append(f"{'model card':10} {summary['model_card']}")
    return "\n".join(lines)


def write_report(saved: SavedRun) -> None:
    """Write ``report.html``."""
    summary = saved.summary
    quantity = saved.quantity
    regimes = summary["regimes"]
    charts = chart_data(saved)
    shown = sum(len(chart["pair"]) for chart in charts["tests"])
    tested = len(saved.tested)
    sampled = f"Points are a sample of {shown:,} of {tested:,} test rows." if shown < tested else ""
    page = render_page(
        "report.html.j2",
        charts,
        ("page.js", "report.js"),
        title=saved.run.resolve().name,
        quantity=quantity,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        source=summary["data"]["source"],
        digest=saved.config["pairs_digest"],
        regimes=[regime["words"] for regime in regimes],
        no_antigen=saved.no_antigen,
        head=["", *columns(quantity, no_antigen=saved.no_antigen)],
        rows=describe_regimes(regimes, quantity, no_antigen=saved.no_antigen)[1:],
        verdicts=[regime["sentence"] for regime in regimes],
        not_measured=[f"{regime['words']}: {regime['why']}" for regime in summary["not_measured"]],
        warnings=summary["warnings"],
        scores=[_score_table(regime, saved) for regime in regimes],
        sampled=sampled,
        least_rows=MIN_ROWS_PER_ANTIGEN,
        worst=_largest_errors(saved),
        strong=page_of(summary["strong"], quantity),
        rounds=_rounds(saved),
        settings=_settings(saved),
    )
    write_text(saved.run / "report.html", page)


def write_card(run: Path, config: Mapping[str, Any], summary: RunSummary) -> str | None:
    """Write the model card of a run's predictor, and return its path; None without predictor."""
    path = run / "predictor/README.md"
    if not path.parent.is_dir():
        return None
    quantity = Quantity.of_json(config["quantity"])
    head, *rows = describe_regimes(
        summary["regimes"], quantity, no_antigen=bool(config["no_antigen"])
    )
    adapters = [name for name in ADAPTER_FILES if (path.parent / name).exists()]
    with (path.parent / WEIGHTS).open("rb") as weights:
        record = (path.parent / RECORD).read_bytes()
        files = contents_of(record, weights, [*adapters, path.name])
    card = render_template(
        "model_card.md.j2",
        source=summary["data"]["source"],
        config=config,
        summary=summary,
        head=head,
        rows=rows,
        licences=LICENCES,
        quantity=quantity,
        noise=None if summary["noise"] is None else quantity.show(summary["noise"]),
        files=files,
    )
    write_text(path, card)
    return str(path)


def _rounds(saved: SavedRun) -> dict[str, Any] | None:
    """Return the table and the picture of a campaign; None for a run of one round."""
    rounds = saved.summary.get("rounds")
    if not rounds:
        return None
    quantity = saved.quantity
    picture = draw_rounds(saved.frame, rounds, quantity)
    return {"head": COLUMN_NAMES, "rows": round_cells(rounds, quantity), "picture": Markup(picture)}


def _settings(saved: SavedRun) -> list[tuple[str, str, str]]:
    data = saved.summary["data"]
    used = saved.summary["used"]
    counts = {
        "pairs": data["pairs"],
        "unique antibodies": data["antibodies"],
        "unique antigens": data["antigens"],
        "censored pairs": int((saved.frame["censored"] != 0).sum()),
    }
    field_names = [field.name for field in schema(FitConfig)]
    others = sorted(saved.config.keys() - {*field_names, *IN_CONFIG_ONLY})
    values = {name: saved.config[name] for name in [*field_names, *others]} | counts
    settings = []
    for name, value in values.items():
        chosen = str(used[name]) if used.get(name, value) != value else ""
        settings.append((name.replace("_", " "), str(value), chosen))
    return settings


def _largest_errors(saved: SavedRun) -> dict[str, Any]:
    exact = saved.tested[saved.tested["censored"] == 0]
    mean = exact.groupby("pair")[["pkd", "pkd_predicted", "sigma"]].mean()
    error = mean["pkd_predicted"] - mean["pkd"]
    worst = error.abs().sort_values(ascending=False, kind="stable").index[:LARGEST_ERRORS]
    rows = saved.frame.iloc[worst]
    quantity = saved.quantity
    cells = {"row": rows["row"].tolist()}
    for role in ("id", "antibody_name"):
        if role in rows:
            cells[role.replace("_name", "")] = [*map(shorten, rows[role])]
    if not saved.no_antigen:
        cells["antigen"] = name_antigens(rows).tolist()
    cells |= {
        f"measured ({quantity})": mean["pkd"][worst].tolist(),
        f"predicted ({quantity})": mean["pkd_predicted"][worst].tolist(),
        "predicted − measured": error[worst].tolist(),
        f"sigma ({quantity})": mean["sigma"][worst].tolist(),
    }
    if not quantity.affinity:  # of any scale
        for name in list(cells)[-4:]:
            cells[name] = [quantity.show(value, 3) for value in cells[name]]
    return {"head": [*cells], "rows": [*zip(*cells.values(), strict=True)]}


def _score_table(regime: RegimeSummary, saved: SavedRun) -> dict[str, Any]:
    quantity = saved.quantity
    split = regime["split"]
    names = [name for name, metric in METRICS.items() if metric.in_tables]
    absent = set[str]()
    if saved.no_antigen:  # pairs are antibodies
        names.remove("spearman_within_antigen")
        absent = {"antigen", "pair"}
    rows = []
    for model, scores in regime["metrics"].items():
        cells = [_score_cell(name, scores.get(name), quantity) for name in names]
        rows.append([model.replace("_", " "), *cells])
    leaks = []
    for kind, leaks_of_kind in split["leaks_of_all_folds"].items():
        if kind not in absent:
            leaks += [(kind, identity, count) for identity, count in leaks_of_kind.items()]
    clusters = []
    for kind, sizes in split["clusters"].items():
        if kind not in absent:
            for identity, size in sizes.items():
                largest = f"{size['largest_share']:.0%}"
                clusters.append((kind, identity, size["clusters"], largest))
    return {
        "words": regime["words"],
        "head": ["", *(_heading(name, quantity) for name in names)],
        "rows": rows,
        "weights": [(n, f"{w:.2f}", MODELS[n].help) for n, w in regime["weights"].items()],
        "folds": regime["folds"],
        "parts": [*split["rows"].items()],
        "leaks": leaks,
        "clusters": clusters,
    }


def _score_cell(metric: str, value: float | None, quantity: Quantity) -> float | str | None:
    """Return a score; one in the unit of another quantity than an affinity as text."""
    if value is None or quantity.affinity or not METRICS[metric].unit:
        return value
    return quantity.show(value, 3)


def _heading(metric: str, quantity: Quantity) -> Column:
    """Return the heading of a column of scores; an arrow marks what is better if it is lower."""
    label = metric_heading(metric, quantity)
    if METRICS[metric].lower_is_better:
        label += "\N{NO-BREAK SPACE}↓"
    return Column(label, METRICS[metric].meaning)
