"""The figures of a run's report, drawn with matplotlib as PNG images."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.special import ndtri

from abag.head.clustering.linkage import rows_by_group
from abag.head.data.scaling import Standardizer
from abag.head.evaluation import metrics
from abag.head.splits.splits import TEST, TRAIN, VALIDATION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from abag.head.report.results import RunResults

Floats: TypeAlias = NDArray[np.float64]
Drawn: TypeAlias = "tuple[Figure, str]"
"""A figure and its caption."""

MAX_POINTS = 3000
"""Points per figure; more overlap, and make the page megabytes larger."""
MAX_ANTIGENS = 20
HEAD, BASELINE, AXIS = "#0b6e99", "#c0c7cd", "#51606e"
PARTS = {"train": BASELINE, "validation": "#edae49", "test": "#d1495b"}
"""Colours."""


class ReportFigure(NamedTuple):
    """A figure as the report's template needs it."""

    caption: str
    png: str
    """The image in base64."""


def draw_figures(results: RunResults) -> dict[str, ReportFigure | None]:
    """Draw all figures of the report by name; None where there is nothing to show."""
    drawn = {
        "measured": _measured(results),
        "residuals": _residuals(results),
        "antigens": _antigens(results),
        "calibration": _calibration(results),
        "sigma": _sigma(results),
        "curves": _curves(results),
        "map": _map(results),
    }
    return {name: one and _as_png(*one) for name, one in drawn.items()}


def _as_png(figure: Figure, caption: str) -> ReportFigure:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    return ReportFigure(caption, base64.b64encode(buffer.getvalue()).decode())


def _new_figure(columns: int = 1, width: float = 6.0) -> tuple[Figure, list[Axes]]:
    # Without pyplot there is no global state, and no display is needed.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def _exact_test(r: RunResults) -> list[NDArray[np.bool_]]:
    """Return which pairs, (P,), are exact test rows, for each split."""
    return [(split.part == TEST) & (r.pairs.censored == 0) for split in r.splits]


def _tested(r: RunResults) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Measured and predicted pKd and antigen of a sample of the exact test rows of all folds."""
    tests = [np.flatnonzero(tested) for tested in _exact_test(r)]
    predicted = np.concatenate([p[rows] for p, rows in zip(r.predicted, tests, strict=True)])
    rows = np.concatenate(tests)
    keep = np.random.default_rng(0).permutation(len(rows))[:MAX_POINTS]
    return r.pairs.pkd[rows[keep]], predicted[keep], r.pairs.antigen[rows[keep]]


def _measured(r: RunResults) -> Drawn:
    y, p, antigen = _tested(r)
    figure, (ax,) = _new_figure()
    common = np.argsort(-np.bincount(antigen))[:9]
    for rank, which in enumerate(common):
        rows, name = antigen == which, _antigen_name(r, which)
        ax.scatter(y[rows], p[rows], s=9, alpha=0.7, color=f"C{rank}", label=name)
    rest = ~np.isin(antigen, common)
    if rest.any():
        ax.scatter(y[rest], p[rest], s=9, alpha=0.5, color="#9aa5b1", label="other antigens")
    limits = [min(y.min(), p.min()) - 0.2, max(y.max(), p.max()) + 0.2] if len(y) else [5, 10]
    ax.plot(limits, limits, color=AXIS, lw=1)
    ax.set(xlabel="measured pKd", ylabel="predicted pKd", xlim=limits, ylim=limits)
    ax.legend(fontsize=6, frameon=False, loc="best")
    return figure, f"Predicted against measured pKd of {len(y)} test rows, coloured by antigen."


def _antigen_name(r: RunResults, which: int) -> str:
    """First residues and length, because tables rarely name their antigens."""
    text = "|".join(r.pairs.table.antigens.chains[which])
    return f"{text[:8]}… ({len(text)} aa)"


def _residuals(r: RunResults) -> Drawn:
    y, p, _ = _tested(r)
    figure, (left, right) = _new_figure(2)
    left.hist(p - y, bins=30, color=HEAD)
    left.axvline(0, color=AXIS, lw=1)
    left.set(xlabel="predicted - measured", ylabel="test rows")
    right.scatter(y, p - y, s=9, alpha=0.6, color=HEAD)
    right.axhline(0, color=AXIS, lw=1)
    right.set(xlabel="measured pKd", ylabel="predicted - measured")
    return figure, (
        "Residuals. A slope in the right panel means that extreme values are predicted too close "
        "to the mean."
    )


def _calibration(r: RunResults) -> Drawn | None:
    rows = np.flatnonzero(_exact_test(r)[0])
    if len(rows) < 2:
        return None
    y, p = r.pairs.pkd[rows], r.predicted[0][rows]
    bins = np.array_split(np.argsort(p, kind="stable"), min(10, max(2, len(rows) // 10)))
    figure, (ax,) = _new_figure()
    x = [p[b].mean() for b in bins]
    ax.errorbar(
        x, [y[b].mean() for b in bins], [y[b].std() / np.sqrt(len(b)) for b in bins],
        fmt="o-", color=HEAD, capsize=3,
    )  # fmt: skip
    limits = [min(x), max(x)]
    ax.plot(limits, limits, color=AXIS, lw=1)
    ax.set(xlabel="predicted pKd, mean per bin", ylabel="measured pKd, mean ± s.e.")
    slope = metrics.calibration(y, p)["calibration_slope"]
    text = "–" if slope is None else f"{slope:.3f}"
    return figure, f"Calibration. Slope of measured on predicted pKd: {text}; 1 is calibrated."


def _antigens(r: RunResults) -> Drawn | None:
    """Draw bars of the Spearman correlation per antigen, of the head and of the ridge."""
    rows = np.flatnonzero(_exact_test(r)[0])
    found = []
    for of_antigen in rows_by_group(r.pairs.antigen[rows]):
        at = rows[of_antigen]
        own = metrics.spearman(r.pairs.pkd[at], r.predicted[0][at])
        if len(at) >= metrics.MIN_ROWS_PER_ANTIGEN and own is not None:
            other = metrics.spearman(r.pairs.pkd[at], r.baselines[0]["ridge"][at])
            found.append((len(at), own, other or 0.0, _antigen_name(r, r.pairs.antigen[at[0]])))
    found = sorted(found, reverse=True)[:MAX_ANTIGENS]
    if not found:
        return None
    figure, (ax,) = _new_figure()
    place = np.arange(len(found))
    ax.barh(place - 0.2, [f[1] for f in found], 0.4, color=HEAD, label="head")
    ax.barh(place + 0.2, [f[2] for f in found], 0.4, color=BASELINE, label="ridge")
    ax.set_yticks(place, [f"{f[3]}, n={f[0]}" for f in found], fontsize=7)
    ax.invert_yaxis()
    ax.axvline(0, color=AXIS, lw=1)
    ax.set(xlabel="Spearman within the antigen", xlim=(-1, 1))
    ax.legend(fontsize=7, frameon=False)
    least = metrics.MIN_ROWS_PER_ANTIGEN
    return figure, f"Rank correlation within each test antigen with {least} or more exact rows."


def _sigma(r: RunResults) -> Drawn | None:
    """Draw the coverage of sigma's intervals, and absolute errors against sigma."""
    folds = list(zip(r.predicted, r.sigma, _exact_test(r), strict=True))
    error = np.concatenate([np.abs(r.pairs.pkd - p)[tested] for p, _, tested in folds])
    sigma = np.concatenate([sigma[tested] for _, sigma, tested in folds])
    if not len(error):
        return None
    figure, (left, right) = _new_figure(2, width=9)
    nominal = np.linspace(0.02, 0.98, 49)
    found = [np.mean(error <= sigma * ndtri((1 + level) / 2)) for level in nominal]
    left.plot([0, 1], [0, 1], color=AXIS, lw=1, ls="--")
    left.plot(nominal, found, color=HEAD)
    left.set(xlabel="nominal coverage", ylabel="share of test pairs inside")
    shown = np.random.default_rng(0).permutation(len(error))[:MAX_POINTS]
    right.scatter(sigma[shown], error[shown], s=6, color=BASELINE)
    bins = np.array_split(np.argsort(sigma, kind="stable"), min(10, len(error)))
    right.plot(
        [sigma[b].mean() for b in bins],
        [np.sqrt(np.mean(error[b] ** 2)) for b in bins],
        "o-", color=PARTS["test"], label="RMSE per decile",
    )  # fmt: skip
    right.plot([0, sigma.max()], [0, sigma.max()], color=AXIS, lw=1, ls="--")
    right.set(xlabel="sigma, pKd", ylabel="|error|, pKd")
    right.legend(fontsize=8, frameon=False)
    return figure, (
        "Left: coverage of the prediction intervals; below the diagonal sigma is too small, above "
        "it too large. Right: errors of exact test pairs and their RMSE per decile of sigma; if "
        "sigma is calibrated, the RMSE lies on the dashed line."
    )


def _curves(r: RunResults) -> Drawn | None:
    log = [line for line in r.log if line.get("fold", 0) == 0]
    if not log:
        return None
    figure, (left, right) = _new_figure(2, width=9)
    left.plot([x["step"] for x in log], [x["loss"] for x in log], color=HEAD, lw=0.8)
    left.set(xlabel="step", ylabel="training loss")
    scored = [line for line in log if "validation" in line]
    for name, colour in (("spearman", HEAD), ("rmse", PARTS["test"])):
        known = [line for line in scored if line["validation"][name] is not None]
        if known:
            x, y = [one["epoch"] for one in known], [one["validation"][name] for one in known]
            right.plot(x, y, ".-", color=colour, label=metrics.metric_label(name))
    right.set(xlabel="epoch", ylabel="validation score")
    if scored:
        right.legend(fontsize=8, frameon=False)
    return figure, "Training loss per step and validation scores per epoch."


def _map(r: RunResults) -> Drawn:
    """Draw the pairs by the first two principal components of their joined vectors."""
    split = r.splits[0]
    rows = np.random.default_rng(0).permutation(len(r.pairs.pkd))[:MAX_POINTS]
    train = split.rows(TRAIN)
    vectors = ((r.antibody_ND, r.pairs.antibody), (r.antigen_ND, r.pairs.antigen))
    blocks = []
    for x_ND, i in vectors:
        scaling = Standardizer.of(np.asarray(x_ND[np.unique(i[train])], np.float32))
        blocks.append(scaling.apply(np.asarray(x_ND[i[rows]], np.float32)))
    x_PD = np.hstack(blocks)
    x_PD -= x_PD.mean(0)
    # Two eigenvectors of the Gram matrix cost less than a full decomposition.
    gram_PP = (x_PD @ x_PD.T).astype(np.float64)
    squares, u = eigh(gram_PP, subset_by_index=[max(0, len(rows) - 2), len(rows) - 1])
    lengths = np.sqrt(np.maximum(squares, 0.0))
    plane = np.hstack([(u * lengths)[:, ::-1], np.zeros((len(rows), 1))])[:, :2]
    figure, (left, right) = _new_figure(2, width=9)
    dots = left.scatter(plane[:, 0], plane[:, 1], c=r.pairs.pkd[rows], s=8, cmap="viridis")
    figure.colorbar(dots, ax=left, label="pKd")
    for number, name in ((TRAIN, "train"), (VALIDATION, "validation"), (TEST, "test")):
        at = split.part[rows] == number
        right.scatter(plane[at, 0], plane[at, 1], s=8, color=PARTS[name], label=name)
    right.legend(fontsize=8, frameon=False)
    for ax in (left, right):
        ax.set(xlabel="first component", ylabel="second component", xticks=[], yticks=[])
    share = (lengths**2).sum() / max(np.trace(gram_PP), 1e-30)
    return figure, (
        "First two principal components of the joined antibody and antigen vectors of each pair, "
        f"which hold {share:.0%} of the variance."
    )
