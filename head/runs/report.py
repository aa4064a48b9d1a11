"""A run as one page: `report.html`, with its figures inside it and nothing to load or run."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.stats import norm

from abag.core.files import write_text
from abag.head.clustering.linkage import rows_by_group
from abag.head.data.scaling import Standardizer
from abag.head.data.splits import PART_NAMES, TEST, TRAIN, VALIDATION, Split
from abag.head.evaluation import metrics
from abag.head.evaluation.comparison import compare, rank_metric, scores_on_test, verdicts, warnings
from abag.head.evaluation.metrics import table_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from abag.head.data.labels import LabelledPairs

Floats: TypeAlias = NDArray[np.float64]

SHOWN_ROWS = 3000
"""Points in a figure; more are a blot, and megabytes."""
SHOWN_ANTIGENS = 20
COLOURS = {"head": "#0b6e99", "baseline": "#c0c7cd", "test": "#d1495b", "validation": "#edae49"}
STYLE = """
:root { color: #1c2733; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem;
border-bottom: 1px solid #d8dee4; padding-bottom: .2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid #e7ebef; }
th { font-weight: 600; font-size: .85em; color: #51606e; } th:first-child, td:first-child
{ text-align: left; } tr.head td { font-weight: 600; background: #eef6fa; }
.scores { font-size: .84em; } .scores td { white-space: nowrap; }
.facts td { text-align: left; } .facts td:first-child { color: #51606e; width: 14rem; }
ul.said { padding: .6rem 1rem .6rem 2rem; background: #eef6fa; border-left: 4px solid #0b6e99; }
ul.warned { padding: .6rem 1rem .6rem 2rem; background: #fdf3f4; border-left: 4px solid #d1495b; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; flex: 1 1 28rem; }
figure img { width: 100%; } figcaption, .note { color: #51606e; font-size: .87em; }
@media print { body { max-width: none; margin: 0; font-size: 10pt; }
h2, figure, tr { break-inside: avoid; } h2 { break-after: avoid; } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResults:
    """What a finished run knows, for its report."""

    title: str
    facts: Mapping[str, object]
    """What was trained on what, one line each: table, encoders with fingerprints, preset ..."""
    pairs: LabelledPairs
    splits: Sequence[Split]
    predicted: Sequence[Floats]
    """pKd of every pair by the head of each split, (P,)."""
    sigma: Sequence[Floats]
    """How sure each prediction is, in pKd, (P,)."""
    baselines: Sequence[Mapping[str, Floats]]
    """The same as ``predicted`` by each baseline."""
    log: Sequence[Mapping[str, Any]]
    """Lines of metrics.jsonl."""
    antibody_ND: NDArray[np.floating]
    antigen_ND: NDArray[np.floating]


def write_report(path: Path, outcome: RunResults) -> None:
    """Write the report of a run: one file that works offline and prints.

    Parameters
    ----------
    path : Path
        Replaced whole.
    outcome : Outcome
    """
    write_text(path, render(outcome))


def render(outcome: RunResults) -> str:
    """Return the report's HTML."""
    o = outcome
    fold = " (first fold)" if len(o.splits) > 1 else ""
    sections = [
        f"<h1>{escape(o.title)}</h1>",
        '<p class="note">Predicting antibody-antigen affinity, pKd = -log10 Kd[M].</p>',
        _list("said", verdicts(o.pairs, o.splits, o.predicted, o.baselines)),
        _list("warned", warnings(o.pairs, o.splits)),
        _section("Test metrics beside baselines", _score_table(o)),
        _section("Predictions", _row(_figure(_measured(o)), _figure(_residuals(o)))),
        _section(
            f"Antigens and calibration{fold}", _row(_figure(_antigens(o)), _figure(_calibration(o)))
        ),
        _section("How sure a prediction is", _figure(_sigma(o))),
        _section(f"Training{fold}", _figure(_curves(o))),
        _section(f"Map of the embeddings{fold}", _figure(_map(o))),
        _section("What was trained on what", _facts(o)),
        _section("Split and leaks", _split_tables(o.splits)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<title>{escape(o.title)}</title><style>{STYLE}</style></head><body>"
        + "\n".join(sections)
        + "</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _list(kind: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def _row(*figures: str) -> str:
    return f'<div class="figures">{"".join(figures)}</div>'


def _table(head: Iterable[object], rows: Iterable[Sequence[object]], kind: str = "") -> str:
    top = "".join(f"<th>{escape(str(cell))}</th>" for cell in head)
    body = "".join(
        f"<tr{' class=head' if row[0] == 'head' else ''}>"
        + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _score_table(o: RunResults) -> str:
    """Metrics of the head and each baseline, and the head's gain with its interval."""
    own = scores_on_test(o.pairs, o.splits, o.predicted)
    by_rank = rank_metric(own)
    columns = table_metrics(report=True)
    rows: list[list[object]] = [["head", *(own[c] for c in columns), "", ""]]
    for name in o.baselines[0]:
        theirs = [b[name] for b in o.baselines]
        scores = scores_on_test(o.pairs, o.splits, theirs)
        gains = [_gain(o, theirs, metric) for metric in (by_rank, "rmse")]
        rows.append([name, *(scores[c] for c in columns), *gains])
    head = ["", *(c.replace("_", " ") for c in columns)]
    head += [f"head - baseline, {m.replace('_', ' ')}" for m in (by_rank, "rmse")]
    tests = sum(len(s.rows(TEST)) for s in o.splits)
    note = (
        f"{tests} test rows in {len(o.splits)} split(s); scored in each and averaged. In brackets "
        "95 % of 500 draws of whole clusters. – is not defined: a mean ranks nothing, and the mean "
        "of an antigen that training never saw does not exist."
    )
    return _table(head, rows, "scores") + f'<p class="note">{note}</p>'


def _gain(o: RunResults, theirs: Sequence[Floats], metric: str) -> str | None:
    interval = compare(o.pairs, o.splits, o.predicted, theirs, metric)
    if interval is None:
        return None
    text = f"{interval.difference:+.2f}"
    return text if interval.low is None else f"{text} [{interval.low:+.2f}, {interval.high:+.2f}]"


def _facts(o: RunResults) -> str:
    counts = {
        "pairs": len(o.pairs.pkd),
        "unique antibodies": len(np.unique(o.pairs.antibody)),
        "unique antigens": len(np.unique(o.pairs.antigen)),
        "censored": int(np.count_nonzero(o.pairs.censored)),
    }
    return _table(("", ""), [(k, str(v)) for k, v in {**o.facts, **counts}.items()], "facts")


def _split_tables(splits: Sequence[Split]) -> str:
    """Rows a part, leaks of every kind, and how the clusters depend on the identity."""
    description = splits[0].description
    if "leaks" not in description:
        return ""
    why = f"<p>{escape(description['split'])}: {escape(description['why'])}.</p>"
    parts = [
        [s.fold, *(len(s.rows(n)) for n in PART_NAMES.values())] for s in splits[:SHOWN_ANTIGENS]
    ]
    leaks = [
        (kind, at, sum(s.description["leaks"][kind][at] for s in splits))
        for kind, levels in description["leaks"].items()
        for at in levels
    ]
    sizes = [
        (kind, at, size["clusters"], f"{size['largest_share']:.0%}")
        for kind, levels in description["clusters"].items()
        for at, size in levels.items()
    ]
    return (
        why
        + _table(("fold", *PART_NAMES), parts)
        + "<h3>Test rows with a mate in training</h3>"
        + _table(("of the same", "at identity", "test rows"), leaks)
        + "<h3>Clusters by identity</h3>"
        + _table(("sequences", "identity", "clusters", "largest holds"), sizes)
    )


def _new_figure(columns: int = 1, width: float = 6.0) -> tuple[Figure, list[Axes]]:
    # Without pyplot: no state of the process is touched, and no screen is needed.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def _figure(drawn: tuple[Figure, str] | None) -> str:
    """Put a figure into the page as an image that needs no file."""
    if drawn is None:
        return ""
    figure, caption = drawn
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = escape(caption, quote=True)
    return (
        f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _tested(o: RunResults) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Measured, predicted and antigen of the exact test rows of all folds, for looking at only."""
    tests = [np.flatnonzero((s.part == TEST) & (o.pairs.censored == 0)) for s in o.splits]
    predicted = np.concatenate([p[rows] for p, rows in zip(o.predicted, tests, strict=True)])
    rows = np.concatenate(tests)
    keep = np.random.default_rng(0).permutation(len(rows))[:SHOWN_ROWS]
    return o.pairs.pkd[rows[keep]], predicted[keep], o.pairs.antigen[rows[keep]]


def _measured(o: RunResults) -> tuple[Figure, str]:
    y, p, antigen = _tested(o)
    figure, (ax,) = _new_figure()
    often = np.argsort(-np.bincount(antigen))[:9]
    for rank, which in enumerate(often):
        rows = antigen == which
        ax.scatter(
            y[rows], p[rows], s=9, alpha=0.7, color=f"C{rank}", label=_antigen_name(o, which)
        )
    rest = ~np.isin(antigen, often)
    if rest.any():
        ax.scatter(y[rest], p[rest], s=9, alpha=0.5, color="#9aa5b1", label="other antigens")
    limits = [min(y.min(), p.min()) - 0.2, max(y.max(), p.max()) + 0.2] if len(y) else [5, 10]
    ax.plot(limits, limits, color="#51606e", lw=1)
    ax.set(xlabel="measured pKd", ylabel="predicted pKd", xlim=limits, ylim=limits)
    ax.legend(fontsize=6, frameon=False, loc="best")
    return figure, f"Predicted against measured, {len(y)} test rows, by antigen."


def _antigen_name(o: RunResults, which: int) -> str:
    """First residues and length: tables rarely name their antigens."""
    text = "|".join(o.pairs.table.antigens.chains[which])
    return f"{text[:8]}… ({len(text)} aa)"


def _residuals(o: RunResults) -> tuple[Figure, str]:
    y, p, _ = _tested(o)
    figure, (left, right) = _new_figure(2)
    left.hist(p - y, bins=30, color=COLOURS["head"])
    left.axvline(0, color="#51606e", lw=1)
    left.set(xlabel="predicted - measured", ylabel="test rows")
    right.scatter(y, p - y, s=9, alpha=0.6, color=COLOURS["head"])
    right.axhline(0, color="#51606e", lw=1)
    right.set(xlabel="measured pKd", ylabel="predicted - measured")
    return figure, "Residuals: a slope on the right means that extremes are drawn to the middle."


def _calibration(o: RunResults) -> tuple[Figure, str] | None:
    rows = o.splits[0].rows(TEST)
    rows = rows[o.pairs.censored[rows] == 0]
    if len(rows) < 2:
        return None
    y, p = o.pairs.pkd[rows], o.predicted[0][rows]
    bins = np.array_split(np.argsort(p, kind="stable"), min(10, max(2, len(rows) // 10)))
    figure, (ax,) = _new_figure()
    x = [p[b].mean() for b in bins]
    ax.errorbar(
        x, [y[b].mean() for b in bins], [y[b].std() / np.sqrt(len(b)) for b in bins],
        fmt="o-", color=COLOURS["head"], capsize=3,
    )  # fmt: skip
    limits = [min(x), max(x)]
    ax.plot(limits, limits, color="#51606e", lw=1)
    ax.set(xlabel="predicted pKd, mean of a bin", ylabel="measured pKd, mean ± s.e.")
    slope = metrics.calibration(y, p)["calibration_slope"]
    return figure, f"Calibration: slope of measured on predicted {_cell(slope)}; 1 is calibrated."


def _antigens(o: RunResults) -> tuple[Figure, str] | None:
    """Bars of Spearman by antigen, head and ridge."""
    rows = o.splits[0].rows(TEST)
    rows = rows[o.pairs.censored[rows] == 0]
    found = []
    for inside in rows_by_group(o.pairs.antigen[rows]):
        at = rows[inside]
        own = metrics.spearman(o.pairs.pkd[at], o.predicted[0][at])
        if len(at) >= metrics.MIN_ROWS_PER_ANTIGEN and own is not None:
            other = metrics.spearman(o.pairs.pkd[at], o.baselines[0]["ridge"][at])
            found.append((len(at), own, other or 0.0, _antigen_name(o, o.pairs.antigen[at[0]])))
    found = sorted(found, reverse=True)[:SHOWN_ANTIGENS]
    if not found:
        return None
    figure, (ax,) = _new_figure()
    place = np.arange(len(found))
    ax.barh(place - 0.2, [f[1] for f in found], 0.4, color=COLOURS["head"], label="head")
    ax.barh(place + 0.2, [f[2] for f in found], 0.4, color=COLOURS["baseline"], label="ridge")
    ax.set_yticks(place, [f"{f[3]}, n={f[0]}" for f in found], fontsize=7)
    ax.invert_yaxis()
    ax.axvline(0, color="#51606e", lw=1)
    ax.set(xlabel="Spearman within the antigen", xlim=(-1, 1))
    ax.legend(fontsize=7, frameon=False)
    few = metrics.MIN_ROWS_PER_ANTIGEN
    return figure, f"Rank correlation within each test antigen of {few} or more exact rows."


def _sigma(o: RunResults) -> tuple[Figure, str] | None:
    """Draw how often the truth lay within sigma's intervals, and |error| against sigma."""
    parts = [(s.part == TEST) & (o.pairs.censored == 0) for s in o.splits]
    error = np.abs(
        np.concatenate([(o.pairs.pkd - p)[m] for p, m in zip(o.predicted, parts, strict=True)])
    )
    sigma = np.concatenate([w[m] for w, m in zip(o.sigma, parts, strict=True)])
    if not len(error):
        return None
    figure, (left, right) = _new_figure(2, width=9)
    nominal = np.linspace(0.02, 0.98, 49)
    found = [np.mean(error <= sigma * norm.ppf((1 + level) / 2)) for level in nominal]
    left.plot([0, 1], [0, 1], color="#51606e", lw=1, ls="--")
    left.plot(nominal, found, color=COLOURS["head"])
    left.set(xlabel="interval's nominal share", ylabel="share of test pairs inside")
    shown = np.random.default_rng(0).permutation(len(error))[:SHOWN_ROWS]
    right.scatter(sigma[shown], error[shown], s=6, color=COLOURS["baseline"])
    bins = np.array_split(np.argsort(sigma, kind="stable"), min(10, len(error)))
    right.plot(
        [sigma[b].mean() for b in bins],
        [np.sqrt(np.mean(error[b] ** 2)) for b in bins],
        "o-", color=COLOURS["test"], label="RMSE of a tenth",
    )  # fmt: skip
    right.plot([0, sigma.max()], [0, sigma.max()], color="#51606e", lw=1, ls="--")
    right.set(xlabel="sigma, pKd", ylabel="|error|, pKd")
    right.legend(fontsize=8, frameon=False)
    return figure, (
        "Left: below the diagonal sigma is too small, above it too large. Right: exact test pairs, "
        "and their error by tenths of sigma; a sigma that is right has them on the dashed line."
    )


def _curves(o: RunResults) -> tuple[Figure, str] | None:
    log = [line for line in o.log if line.get("fold", 0) == 0]
    if not log:
        return None
    figure, (left, right) = _new_figure(2, width=9)
    left.plot([x["step"] for x in log], [x["loss"] for x in log], color=COLOURS["head"], lw=0.8)
    left.set(xlabel="step", ylabel="training loss")
    scored = [line for line in log if "validation" in line]
    for name, colour in (("spearman", COLOURS["head"]), ("rmse", COLOURS["test"])):
        known = [(x["epoch"], x["validation"][name]) for x in scored]
        known = [(at, value) for at, value in known if value is not None]
        right.plot(*zip(*known, strict=True), ".-", color=colour, label=name) if known else None
    right.set(xlabel="epoch", ylabel="validation")
    right.legend(fontsize=8, frameon=False) if scored else None
    return figure, "Learning curves: loss of each step, and validation scores."


def _map(o: RunResults) -> tuple[Figure, str]:
    """Pairs in the plane of their two main components, antibody and antigen joined."""
    split = o.splits[0]
    rows = np.random.default_rng(0).permutation(len(o.pairs.pkd))[:SHOWN_ROWS]
    train = split.rows(TRAIN)
    sides = ((o.antibody_ND, o.pairs.antibody), (o.antigen_ND, o.pairs.antigen))
    x_PD = np.hstack(
        [
            Standardizer.of(np.asarray(x[np.unique(i[train])], np.float32)).apply(
                np.asarray(x[i[rows]], np.float32)
            )
            for x, i in sides
        ]
    )
    x_PD -= x_PD.mean(0)
    # By the products of rows, of which two components are a small part of a decomposition.
    gram_PP = (x_PD @ x_PD.T).astype(np.float64)
    squares, u = eigh(gram_PP, subset_by_index=[max(0, len(rows) - 2), len(rows) - 1])
    lengths = np.sqrt(np.maximum(squares, 0.0))
    plane = np.hstack([(u * lengths)[:, ::-1], np.zeros((len(rows), 1))])[:, :2]
    figure, (left, right) = _new_figure(2, width=9)
    dots = left.scatter(plane[:, 0], plane[:, 1], c=o.pairs.pkd[rows], s=8, cmap="viridis")
    figure.colorbar(dots, ax=left, label="pKd")
    for number, name in ((TRAIN, "train"), (VALIDATION, "validation"), (TEST, "test")):
        at = split.part[rows] == number
        colour = COLOURS.get(name, COLOURS["baseline"])
        right.scatter(plane[at, 0], plane[at, 1], s=8, color=colour, label=name)
    right.legend(fontsize=8, frameon=False)
    for ax in (left, right):
        ax.set(xlabel="first component", ylabel="second", xticks=[], yticks=[])
    share = (lengths**2).sum() / max(np.trace(gram_PP), 1e-30)
    return figure, f"Both vectors of a pair joined; the plane holds {share:.0%} of their variance."
