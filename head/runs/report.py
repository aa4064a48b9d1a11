"""The report and the model card of a run, rendered from the files in its folder.

The report is one page that loads nothing; its tables are HTML and its charts are drawn by a
script. The card is not dated: the same run gives the same card.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pandas as pd
from jinja2 import UndefinedError
from numpy.typing import NDArray

from abag import AbagError
from abag.core import messages
from abag.core.arrays import keys_from_hex
from abag.core.files import write_text
from abag.core.options import schema
from abag.embed.families.registry import ALIASES
from abag.embed.sequences.chains import KINDS
from abag.embed.store.store import open_store
from abag.head.data.vectors import Standardizer
from abag.head.evaluation.metrics import (
    METRICS,
    MIN_ROWS_PER_ANTIGEN,
    metric_heading,
    table_metrics,
)
from abag.head.evaluation.regime_scores import Column, columns, describe_regimes
from abag.head.evaluation.strong import page_of
from abag.head.models.config import FitConfig
from abag.head.prediction.bundle import store_of_run
from abag.head.runs.charts import AntigenNames, chart_data, shorten
from abag.head.runs.pages import render_page, render_template
from abag.head.runs.saved_run import naming_damage, read_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from abag.head.runs.saved_run import SavedRun
    from abag.head.runs.summary import RegimeSummary, RunSummary

NAMES = ("id", "antibody_name", "antigen_name")
"""Roles of the columns that name a pair or a sequence."""
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
    """Path of the page."""
    model_card: str | None
    """Path of the card; None if the run has no predictor."""
    left_out: list[str]
    """Parts that need the store, which is not there."""


def report(run: Path | str, *, say: Callable[[str], None] | None = None) -> ReportSummary:
    """Write the report and the model card of a finished run again; nothing else is changed.

    Use it after an update of abag, or for a run that was fitted with ``report=False``.

    Parameters
    ----------
    run : path
        Folder of a finished run. The map of the vectors needs its store, too.
    say : callable, optional
        Receives each message; by default they go to stderr.

    Returns
    -------
    ReportSummary
        Paths of the pages, and what was left out because the store is not there.

    Raises
    ------
    NoFinishedRun
        If the run is unfinished or damaged.
    """
    folder = Path(run)
    with messages.reporting(say), naming_damage(folder):
        saved = read_run(folder)
        try:
            left_out = write_report(saved)
            card = write_card(folder, saved.config, saved.summary)
        except UndefinedError as error:  # a value that a page shows is missing
            raise ValueError(str(error)) from error
    return {
        "run": str(run),
        "report": str(folder / "report.html"),
        "model_card": card,
        "left_out": left_out,
    }


def describe_report(summary: ReportSummary) -> str:
    """Name the files that were written, one per line."""
    lines = [f"{'report':10} {summary['report']}"]
    if summary["model_card"] is not None:
        lines.append(f"{'model card':10} {summary['model_card']}")
    return "\n".join(lines)


def write_report(saved: SavedRun) -> list[str]:
    """Write ``report.html``; return what is left out, because the store is not there."""
    summary, left_out = saved.summary, list[str]()
    quantity = _quantity(summary)
    charts = chart_data(saved, lambda rows: _vectors(saved, rows, left_out))
    for part in left_out:
        messages.say(f"{saved.run}: left out: {part}")
    charts["learningCurve"] = [
        [point["training_pairs"], _value(point["score"]["spearman"]), point["score"]["rmse"]]
        for point in summary.get("learning_curve", ())
    ]
    charts["quantity"] = quantity
    shown, tested = sum(len(one["pair"]) for one in charts["tests"]), len(saved.tested)
    rows = describe_regimes(summary["regimes"], quantity)[1:]
    page = render_page(
        "report.html.j2",
        charts,
        ("page.js", "report.js"),
        title=saved.run.resolve().name,
        quantity=quantity,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        source=summary["data"]["source"],
        digest=saved.config["pairs_digest"],
        command=_command(saved),
        regimes=[one["words"] for one in summary["regimes"]],
        head=["", *columns(quantity)],
        rows=rows,
        verdicts=[one["sentence"] for one in summary["regimes"]],
        not_measured=[f"{one['words']}: {one['why']}" for one in summary["not_measured"]],
        warnings=summary["warnings"],
        scores=[_score_table(one, quantity) for one in summary["regimes"]],
        sampled=f"Points are a sample of {shown:,} of {tested:,} test rows." * (shown < tested),
        least_rows=MIN_ROWS_PER_ANTIGEN,
        map_share=f"{charts['map']['share']:.0%}",
        worst=_largest_errors(saved),
        strong=page_of(summary["strong"]),
        settings=_settings(saved),
    )
    write_text(saved.run / "report.html", page)
    return left_out


def write_card(run: Path, config: Mapping[str, Any], summary: RunSummary) -> str | None:
    """Write the model card of a run's predictor, and return its path; None without predictor."""
    path = run / "predictor/README.md"
    if not path.parent.is_dir():
        return None
    head, *rows = describe_regimes(summary["regimes"], _quantity(summary))
    card = render_template(
        "model_card.md.j2",
        source=summary["data"]["source"],
        config=config,
        summary=summary,
        head=head,
        rows=rows,
        licences=LICENCES,
        quantity=_quantity(summary),
    )
    write_text(path, card)
    return str(path)


def _quantity(summary: RunSummary) -> str:
    return str(summary["data"]["quantity"])


def _value(claim: Mapping[str, Any] | None) -> float | None:
    return None if claim is None else claim["value"]


def _vectors(
    saved: SavedRun, frame: pd.DataFrame, left_out: list[str]
) -> list[NDArray[np.float32]]:
    """Read and standardise both vectors of some pairs, if the store of the run is there."""
    store = store_of_run(saved.run)
    if store is None:
        left_out.append("the map of the vectors: the store of the run does not exist")
        return []
    try:
        found = []
        for kind in KINDS:
            place, keys = pd.factorize(frame[f"{kind}_key"])
            fingerprint, _, pooling = saved.config[f"{kind}_views"][0].partition(":")
            folder = open_store(store).folder(kind, fingerprint)
            x_ND = folder.read(keys_from_hex([*keys]), pooling)
            found.append(Standardizer.of(x_ND).apply(x_ND)[place])
    except AbagError as error:
        left_out.append(f"the map of the vectors ({error})")
        return []
    return found


def _command(saved: SavedRun) -> str:
    """Return a command that repeats the run: its table, and the options that are not defaults."""
    config = saved.config
    store, here = Path(config["store"]), Path.cwd()
    store = store.relative_to(here) if store.is_relative_to(here) else store
    source, run = str(saved.summary["data"]["source"]), saved.summary["run"]
    words = ["abag", "fit", source, "--store", str(store), "--run", run]
    default = FitConfig(preset=config["preset"]).to_json()
    for one in schema(FitConfig):
        value = config[one.name]
        if value == default[one.name]:
            continue
        if isinstance(value, dict):
            words += [word for pair in value.items() for word in (one.flag, "=".join(pair))]
        elif isinstance(value, bool):
            words.append(one.flag)
        else:
            several = isinstance(value, list)
            words += [one.flag, ",".join(map(str, value)) if several else str(value)]
    return shlex.join(words)


def _settings(saved: SavedRun) -> list[tuple[str, str, str]]:
    """Return the contents of config.json and counts, with what the run made of each setting."""
    data, used = saved.summary["data"], saved.summary["used"]
    counts = {
        "pairs": data["pairs"],
        "unique antibodies": data["antibodies"],
        "unique antigens": data["antigens"],
        "censored pairs": int((saved.pairs.censored != 0).sum()),
    }
    known = [one.name for one in schema(FitConfig)]
    others = sorted(saved.config.keys() - {*known, *IN_CONFIG_ONLY})
    values = {name: saved.config[name] for name in [*known, *others]} | counts
    return [
        (
            name.replace("_", " "),
            str(value),
            str(used[name]) if used.get(name, value) != value else "",
        )
        for name, value in values.items()
    ]


def _largest_errors(saved: SavedRun) -> dict[str, Any]:
    """Return the exact test pairs with the largest errors of their mean predictions."""
    exact = saved.tested[saved.tested["censored"] == 0]
    mean = exact.groupby("pair")[["pkd", "pkd_predicted", "sigma"]].mean()
    error = mean["pkd_predicted"] - mean["pkd"]
    worst = error.abs().sort_values(ascending=False, kind="stable").index[:LARGEST_ERRORS]
    rows, names = saved.frame.iloc[worst], AntigenNames.of(saved)
    quantity = _quantity(saved.summary)
    cells = {"row": rows["row"].tolist()}
    for role in ("id", "antibody_name"):
        if role in rows:
            cells[role.replace("_name", "")] = [*map(shorten, rows[role])]
    cells["antigen"] = [names.own[i] for i in saved.pairs.antigen[worst].tolist()]
    cells |= {
        f"measured ({quantity})": mean["pkd"][worst].tolist(),
        f"predicted ({quantity})": mean["pkd_predicted"][worst].tolist(),
        "predicted − measured": error[worst].tolist(),
        f"sigma ({quantity})": mean["sigma"][worst].tolist(),
    }
    return {"head": [*cells], "rows": [*zip(*cells.values(), strict=True)]}


def _score_table(regime: RegimeSummary, quantity: str) -> dict[str, Any]:
    """Scores of the head and each baseline of a regime, its parts, and its folds."""
    names, split = table_metrics(report=True), regime["split"]
    return {
        "words": regime["words"],
        "head": ["", *(_heading(name, quantity) for name in names)],
        "rows": [
            (model.replace("_", " "), *(scores.get(name) for name in names))
            for model, scores in regime["metrics"].items()
        ],
        "weights": [(name, f"{share:.2f}") for name, share in regime["weights"].items()],
        "folds": regime["folds"],
        "parts": [(name, n) for name, n in split["rows"].items()],
        "leaks": [
            (kind, identity, rows)
            for kind, levels in split["leaks_of_all_folds"].items()
            for identity, rows in levels.items()
        ],
        "clusters": [
            (kind, identity, size["clusters"], f"{size['largest_share']:.0%}")
            for kind, levels in split["clusters"].items()
            for identity, size in levels.items()
        ],
    }


def _heading(metric: str, quantity: str) -> Column:
    """Return the heading of a column of scores; an arrow marks what is better if it is lower."""
    label = (
        metric_heading(metric, quantity) + "\N{NO-BREAK SPACE}↓" * METRICS[metric].lower_is_better
    )
    return Column(label, METRICS[metric].meaning)
