"""What people read of a run: ``report.html``, the model card of its predictor, scores as text.

The pages are rendered from the files in ``templates``. The report is one page that loads nothing;
its tables are HTML and its charts are drawn by a script. The card is not dated: the same run gives
the same card.
"""

from __future__ import annotations

import re
import shlex
import textwrap
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
from abag.core.messages import counted, printable
from abag.core.options import schema
from abag.embed.families.registry import ALIASES
from abag.head.evaluation import comparison
from abag.head.evaluation.metrics import METRICS, metric_label, table_metrics
from abag.head.evaluation.ranking import MIN_ROWS_PER_ANTIGEN
from abag.head.evaluation.verdicts import best_baseline, format_difference, rank_metric, relation
from abag.head.model.config import FitConfig
from abag.head.report.chart_data import chart_data
from abag.head.report.results import ModelScores, RunResults, RunSummary
from abag.head.splits.splits import PART_NAMES, TEST
from abag.head.training.uncertainty import describe_sigma

LARGEST_ERRORS = 20
"""Test pairs in the table of the largest errors."""
MAX_FOLDS = 20
"""Folds listed in the table of parts."""
LICENCES = {name: alias.licence for name, alias in ALIASES.items()}
"""Licences of the encoders that abag knows by name."""
WIDTH = 80
"""Columns of the text of a fit."""


def write_report(path: Path, results: RunResults, summary: RunSummary) -> None:
    """Write the report of a run atomically; it needs no network."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    write_text(path, render(results, summary, now))


def render(results: RunResults, summary: RunSummary, date: str) -> str:
    """Return the report as HTML; its script is the only one that the page lets a browser run."""
    r = results
    charts = chart_data(r)
    charts["learningCurve"] = [
        [point["training_pairs"], *(point["test"][name] for name in ("spearman", "rmse"))]
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
        folds=len(r.splits),
        draws=comparison.DRAWS,
        verdict=summary["verdict"],
        verdicts=summary["verdicts"],
        warnings=summary["warnings"],
        sigma=describe_sigma(summary["sigma"]),
        shares={name: share for name, share in summary.get("shares", {}).items() if share < 1},
        scores=_score_tables(r, summary),
        sampled=f"Points are a sample of {shown:,} of {tested:,} test rows." * (shown < tested),
        least_rows=MIN_ROWS_PER_ANTIGEN,
        map_share=f"{charts['map']['share']:.0%}",
        worst=_largest_errors(r),
        split=_split_tables(r),
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
            words.append(one.flag if value else f"--no-{one.flag[2:]}")
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
    scores = {"**this predictor**": summary["metrics"]["test"]}
    scores |= {name: parts["test"] for name, parts in summary["baselines"].items()}
    return render_template(
        "model_card.md.j2",
        source=source,
        config=config,
        summary=summary,
        split=summary["split"],
        scores=scores,
        metrics=table_metrics(),
        metric_label=metric_label,
        licences=LICENCES,
        quantity=_quantity(summary),
    )


def _quantity(summary: RunSummary) -> str:
    return str(summary.get("data", {}).get("quantity", "pKd"))


def _score_tables(r: RunResults, found: ModelScores) -> dict[str, Any]:
    """Scores of the head and each baseline, and their differences with intervals."""
    own = found["metrics"]["test"] or {}
    columns = table_metrics(report=True)
    compared = dict.fromkeys([rank_metric(own), "rmse"])
    rows = {"head": own} | {name: parts["test"] for name, parts in found["baselines"].items()}
    n, intervals = sum(len(split.rows(TEST)) for split in r.splits), found["intervals"]
    tested = describe_test_rows(n, r.split)
    return {
        "intervals": [
            (metric_label(name), one["value"], f"[{one['low']:.3f}, {one['high']:.3f}]")
            for name, one in intervals.items()
            if one["low"] is not None
        ],
        "head": ["", *map(_label_with_direction, columns)],
        "rows": [(name, *(scores.get(c) for c in columns)) for name, scores in rows.items()],
        "compared": ["head minus", *map(_label_with_direction, compared)],
        "differences": [
            (name, *(_difference(r, name, metric) for metric in compared))
            for name in found["baselines"]
        ],
        "tested": tested or f"{n:,} test row{'s' * (n != 1)}",
    }


def _difference(r: RunResults, baseline: str, metric: str) -> str:
    interval = r.compared_with(baseline, metric)
    if interval is None:
        return "–"
    better = relation(interval, metric) == "better"
    return Markup("<b>{}</b>" if better else "{}").format(format_difference(interval))


def _label_with_direction(metric: str) -> str:
    return metric_label(metric) + "\N{NO-BREAK SPACE}↓" * METRICS[metric].lower_is_better


def _split_tables(r: RunResults) -> dict[str, Any]:
    """Rows per part, leaked rows by kind and identity, and clusters by identity."""
    return {
        "why": f"{r.split['name']}: {r.split['why']}.",
        "part_names": ["fold", *PART_NAMES],
        "parts": [
            [split.fold, *(len(split.rows(part)) for part in PART_NAMES.values())]
            for split in r.splits[:MAX_FOLDS]
        ],
        "leaks": [
            (kind, identity, rows)
            for kind, levels in r.split["leaks_of_all_folds"].items()
            for identity, rows in levels.items()
        ],
        "clusters": [
            (kind, identity, size["clusters"], f"{size['largest_share']:.0%}")
            for kind, levels in r.split["clusters"].items()
            for identity, size in levels.items()
        ],
    }


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
    """Lay out the scores in a summary of `fit` or `evaluate`: on test, then on another table."""
    rows = {"head": summary["metrics"]["test"]}
    if "predictions" in summary:
        rows[summary["predictions"]["source"]] = summary["predictions"]["test"]
    rows |= {name: s["test"] for name, s in summary["baselines"].items() if "test" in s}
    text = _lay_out("test rows", rows)
    if explained := describe_test_rows(int(rows["head"]["n"] or 0), summary["split"]):
        text += f"\n{explained}"
    text += _describe_intervals(summary["intervals"])
    text += "".join(f"\n{line}" for line in textwrap.wrap(describe_sigma(summary["sigma"]), WIDTH))
    if "table" not in summary:
        return text
    parts = ("table", "table_new_antibodies", "table_new_antigens")
    found = {name.replace("table", "head", 1): summary["metrics"][name] for name in parts}
    found |= {name: scores.get("table") for name, scores in summary["baselines"].items()}
    known = {name: scores for name, scores in found.items() if scores}
    below = [_lay_out("table rows", known), *summary["table"]["verdicts"]]
    intervals = _describe_intervals(summary["table"]["intervals"])
    return text + "\n\n" + "\n".join(below) + intervals


def _describe_intervals(intervals: Mapping[str, Any]) -> str:
    """List the scores of the head that have an interval, on lines of `WIDTH`."""
    shown = ", ".join(
        f"{metric} {one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"
        for metric, one in intervals.items()
        if one["low"] is not None
    )
    lines = textwrap.wrap(f"head, 95 % intervals: {shown}", WIDTH) if shown else []
    return "".join(f"\n{line}" for line in lines)


def describe_test_rows(n: int, split: Mapping[str, Any]) -> str:
    """Explain why there are more test rows than tested pairs; empty if there are not.

    `n` is summed over folds; `split` is that of a summary.
    """
    pairs = split["test_pairs"]
    if pairs == n:
        return ""
    times = f"each tested in {n // pairs} of" if n % pairs == 0 else "some tested in several of"
    return f"{n:,} test rows: {pairs:,} pairs, {times} {split['folds']} folds"


def describe_fit(summary: Mapping[str, Any]) -> str:
    """Describe a finished fit in at most twelve lines of 80 columns."""
    lines = [*_describe_data(summary), *_main_scores(summary).splitlines()]
    test = int(summary["metrics"]["test"]["n"] or 0)
    if explained := describe_test_rows(test, summary["split"]):
        lines.append(explained)
    lines += textwrap.wrap(summary["verdict"], WIDTH)
    run = Path(summary["run"])
    places = {"report": run / "report.html", "predictor": run / "predictor"}
    return "\n".join(lines + [f"{n:10} {path}" for n, path in places.items() if path.exists()])


def describe_briefly(summary: Mapping[str, Any]) -> list[str]:
    """Describe a finished fit in four lines."""
    shown = {n: summary["metrics"]["test"][n] for n in table_metrics()}
    scores = ", ".join(f"{n} {value:.3f}" for n, value in shown.items() if value is not None)
    return [*_describe_data(summary), f"test: {scores}", summary["verdict"]]


def _describe_data(summary: Mapping[str, Any]) -> list[str]:
    split, data = summary["split"], summary["data"]
    rows = ", ".join(f"{n:,} {part}" for part, n in split["rows"].items() if n)
    return [
        f"{summary['run']}: {counted(data['pairs'], 'pair')} of "
        f"{counted(data['antibodies'], 'antibody')} and {counted(data['antigens'], 'antigen')}",
        f"split {split['name']}: "
        + (f"{split['folds']} folds" if split["folds"] > 1 else f"{rows} pairs"),
    ]


def _main_scores(summary: Mapping[str, Any]) -> str:
    """Lay out the scores of the head, of the strongest baseline and of the training mean."""
    of_all = {"head": summary["metrics"], **summary["baselines"]}
    best = best_baseline(of_all, "rmse")
    names = dict.fromkeys(n for n in (best, "train_mean") if n in summary["baselines"])
    rows = {"head": summary["metrics"]["test"]}
    return _lay_out("test rows", rows | {str(n): of_all[str(n)]["test"] for n in names})


def _lay_out(title: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    headings = {metric: metric.removeprefix("spearman_") for metric in table_metrics()}
    widths = {metric: max(8, len(heading) + 2) for metric, heading in headings.items()}
    titles = f"{title}: {rows['head']['n']:,}"
    first = max(map(len, (titles, *(name[:24] for name in rows))))
    lines = [f"{titles:{first}}" + "".join(f"{h:>{widths[m]}}" for m, h in headings.items())]
    for name, scores in rows.items():
        values = {metric: scores.get(metric) for metric in widths}
        cells = {metric: "-" if x is None else f"{x:.3f}" for metric, x in values.items()}
        lines.append(
            f"{name:{first}.{first}}" + "".join(f"{cells[m]:>{w}}" for m, w in widths.items())
        )
    return "\n".join(lines)
