"""What people read of a run: ``report.html``, the model card of its predictor, scores as text.

The pages are rendered from the files in ``templates``. The report is one page that loads nothing;
its tables are HTML and its charts are drawn by a script. The card is not dated: the same run gives
the same card.
"""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from abag import __version__
from abag.core.arrays import distinct
from abag.core.files import write_text
from abag.core.messages import align, counted, printable
from abag.core.options import schema
from abag.embed.families.registry import ALIASES
from abag.head.evaluation.metrics import METRICS, metric_label, table_metrics
from abag.head.evaluation.ranking import MIN_ROWS_PER_ANTIGEN
from abag.head.evaluation.regime_scores import describe_regimes
from abag.head.models.config import FitConfig
from abag.head.regimes.splits import TEST
from abag.head.report.chart_data import chart_data
from abag.head.report.results import RegimeSummary, RunResults, RunSummary

LARGEST_ERRORS = 20
"""Test pairs in the table of the largest errors."""
LICENCES = {name: alias.licence for name, alias in ALIASES.items()}
"""Licences of the encoders that abag knows by name."""


def write_report(path: Path, results: RunResults, summary: RunSummary) -> None:
    """Write the report of a run atomically; it needs no network."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    write_text(path, render(results, summary, now))


def render(results: RunResults, summary: RunSummary, date: str) -> str:
    """Return the report as HTML; its script is the only one that the page lets a browser run."""
    r = results
    charts = chart_data(r)
    charts["learningCurve"] = [
        [point["training_pairs"], _value(point["score"]["spearman"]), point["score"]["rmse"]]
        for point in summary.get("learning_curve", ())
    ]
    charts["quantity"] = _quantity(summary)
    shown, tested = sum(len(one["pair"]) for one in charts["tests"]), sum(charts["tested"])
    return render_page(
        "report.html.j2",
        charts,
        ("page.js", "report.js"),
        title=r.title,
        quantity=charts["quantity"],
        date=date,
        source=r.source,
        digest=r.facts["pairs_digest"],
        command=_command(r, summary["run"]),
        regimes=[one["words"] for one in summary["regimes"]],
        head=describe_regimes(summary["regimes"])[0],
        rows=describe_regimes(summary["regimes"])[1:],
        verdicts=[one["sentence"] for one in summary["regimes"]],
        not_measured=[f"{one['words']}: {one['why']}" for one in summary["not_measured"]],
        warnings=summary["warnings"],
        scores=[_score_table(one) for one in summary["regimes"]],
        sampled=f"Points are a sample of {shown:,} of {tested:,} test rows." * (shown < tested),
        least_rows=MIN_ROWS_PER_ANTIGEN,
        map_share=f"{charts['map']['share']:.0%}",
        worst=_largest_errors(r),
        settings=_settings(r, summary["used"]),
    )


def _command(r: RunResults, run: str) -> str:
    """Return a command that repeats the run: its table, and the options that are not defaults."""
    store, here = Path(r.facts["store"]), Path.cwd()
    store = store.relative_to(here) if store.is_relative_to(here) else store
    words = ["abag", "fit", r.source, "--store", str(store), "--run", run]
    default = FitConfig(preset=r.facts["preset"]).to_json()
    for one in schema(FitConfig):
        value = r.facts[one.name]
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


def _settings(r: RunResults, used: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """Return the contents of config.json and counts, with what the run made of each setting."""
    counts = {
        "pairs": len(r.pairs.pkd),
        "unique antibodies": len(distinct(r.pairs.antibody)),
        "unique antigens": len(distinct(r.pairs.antigen)),
        "censored pairs": int(np.count_nonzero(r.pairs.censored)),
    }
    known = [one.name for one in schema(FitConfig)]
    values = {n: r.facts[n] for n in [*known, *sorted(r.facts.keys() - known)]} | counts
    return [
        (
            name.replace("_", " "),
            str(value),
            str(used[name]) if used.get(name, value) != value else "",
        )
        for name, value in values.items()
    ]


def _largest_errors(r: RunResults) -> dict[str, Any]:
    """Return the exact test pairs with the largest errors of their mean predictions."""
    in_test = np.array([split.part == TEST for split in r.splits]) & (r.pairs.censored == 0)
    pairs, tests = np.flatnonzero(in_test.any(axis=0)), in_test.sum(axis=0)
    predicted, sigma = (
        np.where(in_test, values, 0.0).sum(axis=0)[pairs] / tests[pairs]
        for values in (r.predicted, r.sigma)
    )
    error = predicted - r.pairs.pkd[pairs]
    worst = np.argsort(-np.abs(error), kind="stable")[:LARGEST_ERRORS]
    columns: dict[str, Sequence[object]] = {"row": r.names.rows(pairs[worst])}
    for role in ("id", "antibody_name"):
        if (texts := r.names.texts(role, pairs[worst])) is not None:
            columns[role.replace("_name", "")] = texts
    columns["antigen"] = [r.names.antigen(i) for i in r.pairs.antigen[pairs[worst]].tolist()]
    columns |= {
        "measured": r.pairs.pkd[pairs[worst]].tolist(),
        "predicted": predicted[worst].tolist(),
        "predicted - measured": error[worst].tolist(),
        "sigma": sigma[worst].tolist(),
    }
    return {"head": [*columns], "rows": list(zip(*columns.values(), strict=True))}


def model_card(source: str, config: Mapping[str, object], summary: RunSummary) -> str:
    """Return the model card of a run on the table `source`, as Markdown."""
    head, *rows = describe_regimes(summary["regimes"])
    return render_template(
        "model_card.md.j2",
        source=source,
        config=config,
        summary=summary,
        head=head,
        rows=rows,
        licences=LICENCES,
        quantity=_quantity(summary),
    )


def _quantity(summary: RunSummary) -> str:
    return str(summary.get("data", {}).get("quantity", "pKd"))


def _value(claim: Mapping[str, Any] | None) -> float | None:
    return None if claim is None else claim["value"]


def _score_table(regime: RegimeSummary) -> dict[str, Any]:
    """Scores of the head and each baseline of a regime, its parts, and its folds."""
    columns, split = table_metrics(report=True), regime["split"]
    return {
        "words": regime["words"],
        "head": ["", *map(_label_with_direction, columns)],
        "rows": [
            (name, *(scores.get(column) for column in columns))
            for name, scores in regime["metrics"].items()
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


def _label_with_direction(metric: str) -> str:
    return metric_label(metric) + "\N{NO-BREAK SPACE}↓" * METRICS[metric].lower_is_better


def render_page(
    template: str, data: Mapping[str, object], scripts: Sequence[str], **values: object
) -> str:
    """Render a page of ``templates``; values are escaped, and `data` is JSON for its scripts."""
    script = "\n".join(map(_read, scripts))
    return render_template(
        template,
        version=__version__,
        style=Markup(_read("report.css")),
        data=htmlsafe_json_dumps(data, allow_nan=False, separators=(",", ":")),
        script=Markup(script),
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        **values,
    )


def render_template(name: str, **values: object) -> str:
    """Render a file of ``templates``; values are escaped in HTML."""
    return _environment().get_template(name).render(**values)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("abag.head.report", "templates"),
        autoescape=select_autoescape(["html.j2"], default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": _format_cell,
        "label": lambda name: str(name).replace("_", " "),
        "plain": _plain_markdown,
        "code": _code_span,
    }
    return environment


def _read(name: str) -> str:
    """Return a file of ``templates`` as it is."""
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _plain_markdown(text: object) -> str:
    """Escape what Markdown reads as HTML, emphasis, code or a link: names are not ours."""
    return re.sub(r"[\\`*<&|]|(?<=\])\(", r"\\\g<0>", " ".join(printable(str(text)).split()))


def _code_span(text: object) -> str:
    """Write text as code in Markdown, between more backticks than it has in a row."""
    shown = printable(str(text)).replace("\n", " ")
    runs = re.findall("`+", shown)
    fence = "`" * (len(max(runs, default="")) + 1)
    return f"{fence} {shown} {fence}" if runs else f"{fence}{shown}{fence}"


def _format_cell(value: object) -> object:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else value


def describe_scores(summary: Mapping[str, Any]) -> str:
    """Lay out the scores in a summary of `fit` or `evaluate`: by regime, then on another table."""
    lines = _describe_regimes(summary["regimes"])
    if "predictions" in summary:
        found = summary["predictions"]
        lines += ["", f"{found['source']}:", *_describe_regimes(found["regimes"])]
        lines += found["verdicts"]
    if "table" in summary:
        found = summary["table"]
        lines += ["", f"{found['source']}:", *_describe_regimes(found["regimes"])]
        if found["far"]:
            lines.append(f"{found['far']:,} pairs are far from all that the run has measured")
        if found["bias"] is not None:
            side = "high" if found["bias"] > 0 else "low"
            lines.append(f"predictions are {abs(found['bias']):.2f} pKd too {side} on average")
    return "\n".join(lines)


def describe_fit(summary: Mapping[str, Any]) -> str:
    """Describe a finished fit: the table that everybody should see, and what it means."""
    lines = [*_describe_data(summary), *_describe_regimes(summary["regimes"])]
    lines += [f"{one['words']}: {one['why']}" for one in summary["not_measured"]]
    run = Path(summary["run"])
    places = {"report": run / "report.html", "predictor": run / "predictor"}
    return "\n".join(lines + [f"{n:10} {path}" for n, path in places.items() if path.exists()])


def describe_briefly(summary: Mapping[str, Any]) -> list[str]:
    """Describe a finished fit in a line per regime."""
    return [*_describe_data(summary), *(one["sentence"] for one in summary["regimes"])]


def _describe_data(summary: Mapping[str, Any]) -> list[str]:
    data = summary["data"]
    return [
        f"{summary['run']}: {counted(data['pairs'], 'pair')} of "
        f"{counted(data['antibodies'], 'antibody')} and {counted(data['antigens'], 'antigen')}"
    ]


def _describe_regimes(regimes: Sequence[Mapping[str, Any]]) -> list[str]:
    return [*align(describe_regimes(regimes)), *(one["sentence"] for one in regimes)]
