"""What the charts of a report show, as numbers that the script of the page draws.

Curves and bars are computed from every row, points are a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints
from abag.head.data.vectors import Standardizer
from abag.head.evaluation import metrics
from abag.head.evaluation.comparison import antigen_groups
from abag.head.evaluation.ranking import spearman_by_group
from abag.head.regimes.splits import TEST

if TYPE_CHECKING:
    from abag.head.report.results import PairNames, RunResults

Series: TypeAlias = dict[str, Any]

MAX_POINTS = 4000
"""Test rows drawn, over all folds."""
MAP_POINTS = 1500
"""Pairs on the map."""
MAX_ANTIGENS = 20
CURVE_POINTS = 150
"""Points per curve of the training loss, each the mean of as many steps."""
COVERAGE = np.linspace(0.02, 0.98, 49)
"""Nominal coverages of prediction intervals."""
ITERATIONS = 12
"""Of the search for the plane of the map."""


@dataclass(frozen=True, slots=True)
class _Tested:
    """T exact test rows of one fold, or of all folds; each field has shape (T,)."""

    pair: Ints
    measured: Floats
    predicted: Floats
    sigma: Floats

    @property
    def error(self) -> Floats:
        return self.predicted - self.measured


class _OfAntigen(NamedTuple):
    """Spearman correlation within an antigen."""

    name: str
    rows: int
    head: float
    ridge: float


def chart_data(results: RunResults) -> dict[str, Any]:
    """Return what the page draws, as JSON values.

    Returns
    -------
    dict
        ``views``: the curves of each regime. ``tests``: sampled test rows of each regime; ``map``:
        sampled pairs in the plane; ``tested_pairs``: which of these are tested in each regime, one
        digit each. Both refer to ``pairs``.
    """
    names = results.names
    measured = [one for one in results.regimes if one.splits]
    tests, views, at = list[_Tested](), list[Any](), 0
    for one in measured:
        folds = range(at, at := at + len(one.splits))
        exact = [_exact(results, _test_rows(results, fold), fold) for fold in folds]
        antigens = [
            row
            for fold, rows in zip(folds, exact, strict=True)
            for row in _by_antigen(results, names, fold, rows)
        ]
        joined = _Tested(*(np.concatenate(c) for c in zip(*map(_fields, exact), strict=True)))
        every = [_tested(results, _test_rows(results, fold), fold) for fold in folds]
        tests.append(_Tested(*(np.concatenate(c) for c in zip(*map(_fields, every), strict=True))))
        curves = [_training(results, fold) for fold in folds]
        views.append(_view(joined, _antigen_chart(antigens), curves))
    rng = np.random.default_rng(0)
    shown = [rng.permutation(len(one.pair))[: MAX_POINTS // len(tests)] for one in tests]
    mapped = rng.permutation(len(results.pairs.pkd))[:MAP_POINTS]
    vectors_PD = _joined_vectors(results, mapped)
    mapped = mapped[: len(vectors_PD)]
    drawn = [one.pair[at] for one, at in zip(tests, shown, strict=True)]
    pairs = np.unique(np.concatenate([*drawn, mapped]))
    plane, share = principal_plane(vectors_PD)
    return {
        "pairs": _describe_pairs(results, names, pairs),
        "tests": [
            {
                "pair": np.searchsorted(pairs, one.pair[at]).tolist(),
                "predicted": _numbers(one.predicted[at]),
                "sigma": _numbers(one.sigma[at]),
            }
            for one, at in zip(tests, shown, strict=True)
        ],
        "tested": [len(one.pair) for one in tests],
        "map": {
            "pair": np.searchsorted(pairs, mapped).tolist(),
            "x": _numbers(plane[:, 0]),
            "y": _numbers(plane[:, 1]),
            "share": round(share, 3),
        },
        "tested_pairs": ["".join(map(str, np.isin(mapped, one.pair).astype(int))) for one in tests],
        "views": views,
    }


def _fields(one: _Tested) -> tuple[NDArray[Any], ...]:
    return one.pair, one.measured, one.predicted, one.sigma


def _test_rows(r: RunResults, fold: int) -> Ints:
    return r.splits[fold].rows(TEST)


def _exact(r: RunResults, rows: Ints, fold: int) -> _Tested:
    return _tested(r, rows[r.pairs.censored[rows] == 0], fold)


def _tested(r: RunResults, rows: Ints, fold: int) -> _Tested:
    return _Tested(rows, r.pairs.pkd[rows], r.predicted[fold][rows], r.sigma[fold][rows])


def _describe_pairs(r: RunResults, names: PairNames, pairs: Ints) -> dict[str, Any]:
    antigens, index = np.unique(r.pairs.antigen[pairs], return_inverse=True)
    return {
        "row": names.rows(pairs),
        "id": names.texts("id", pairs),
        "antibody": names.texts("antibody_name", pairs),
        "antigen": index.tolist(),
        "antigens": [names.antigen(which) for which in antigens.tolist()],
        "groups": [names.antigen_group(which) for which in antigens.tolist()],
        "pkd": _numbers(r.pairs.pkd[pairs]),
        "bound": r.pairs.censored[pairs].tolist(),
    }


def _view(tested: _Tested, antigens: Series, training: list[Series]) -> dict[str, Any]:
    return {
        "residuals": _residuals(tested),
        "calibration": _calibration(tested),
        "coverage": _coverage(tested),
        "deciles": _deciles(tested),
        "antigens": antigens,
        "training": [one for one in training if one["step"]],
    }


def _residuals(t: _Tested) -> Series | None:
    error = t.error[np.isfinite(t.error)]
    if not len(error):
        return None
    counts, edges = np.histogram(error, min(40, max(5, int(np.sqrt(len(error))))))
    return {"edges": _numbers(edges), "counts": counts.tolist()}


def _calibration(t: _Tested) -> Series | None:
    if len(t.pair) < 2:
        return None
    bins = np.array_split(
        np.argsort(t.predicted, kind="stable"), min(10, max(2, len(t.pair) // 10))
    )
    return {
        "x": _numbers([t.predicted[b].mean() for b in bins]),
        "y": _numbers([t.measured[b].mean() for b in bins]),
        "error": _numbers([t.measured[b].std() / np.sqrt(len(b)) for b in bins]),
        "slope": metrics.calibration(t.measured, t.predicted)["calibration_slope"],
    }


def _coverage(t: _Tested) -> Series | None:
    """Return the share of the rows inside the prediction intervals by their nominal coverage."""
    from scipy.special import ndtri

    if not len(t.pair):
        return None
    distance = np.sort(np.abs(t.error) / np.maximum(t.sigma, 1e-12))
    inside = np.searchsorted(distance, ndtri((1 + COVERAGE) / 2), side="right") / len(distance)
    return {"x": _numbers(COVERAGE), "y": _numbers(inside)}


def _deciles(t: _Tested) -> Series | None:
    """Return the RMSE of rows with similar sigma."""
    if not len(t.pair):
        return None
    bins = np.array_split(np.argsort(t.sigma, kind="stable"), min(10, len(np.unique(t.sigma))))
    return {
        "x": _numbers([t.sigma[b].mean() for b in bins]),
        "y": _numbers([np.sqrt(np.mean(t.error[b] ** 2)) for b in bins]),
    }


def _by_antigen(r: RunResults, names: PairNames, fold: int, t: _Tested) -> list[_OfAntigen]:
    """Score head and ridge within each antigen, as the metrics within antigens do."""
    group, ridge = antigen_groups(r.pairs, t.pair), r.baselines[fold].get("ridge")
    groups, first, rows = np.unique(group, return_index=True, return_counts=True)
    of_head = spearman_by_group(t.measured, t.predicted, group)
    of_ridge = np.full(len(groups), np.nan)
    if ridge is not None:
        of_ridge = spearman_by_group(t.measured, ridge[t.pair], group)
    found = []
    for i in np.flatnonzero(np.isfinite(of_head)).tolist():
        which = int(r.pairs.antigen[t.pair[first[i]]])
        several = groups[i] >= len(group)  # the antigens of a cluster, of which each has few rows
        name = f"{names.antigen_group(which)} and similar" if several else names.antigen(which)
        found.append(_OfAntigen(name, int(rows[i]), float(of_head[i]), float(of_ridge[i])))
    return found


def _antigen_chart(found: Sequence[_OfAntigen]) -> Series:
    """Average each antigen over the folds it is in; the largest come first."""
    means = pd.DataFrame(found, columns=_OfAntigen._fields).groupby("name").mean().reset_index()
    means = means.sort_values(["rows", "name"], ascending=[False, True]).head(MAX_ANTIGENS)
    return {
        "names": means["name"].tolist(),
        "rows": means["rows"].round().astype(int).tolist(),
        "head": _numbers(means["head"].tolist()),
        "ridge": _numbers(means["ridge"].tolist()),
    }


def _training(r: RunResults, fold: int) -> Series:
    """Return the training loss, averaged over equal numbers of steps, and validation scores."""
    log = [line for line in r.log if line.get("fold", 0) == fold]
    scored = [line for line in log if "validation" in line]
    bins = np.array_split(np.arange(len(log)), min(CURVE_POINTS, max(1, len(log))))
    bins = bins if log else []
    loss = np.array([line["loss"] for line in log], np.float64)
    return {
        "fold": fold,
        "step": [log[b[-1]]["step"] for b in bins],
        "loss": _numbers([loss[b].mean() for b in bins], 4),
        "epoch": [line["epoch"] for line in scored],
        "validation": {
            name: _numbers([line["validation"][name] for line in scored])
            for name in ("spearman", "rmse")
        },
    }


def _joined_vectors(r: RunResults, rows: Ints) -> NDArray[np.float32]:
    """Return the standardised antibody and antigen vectors of some pairs, joined; (P, D + E).

    It has no rows if the vectors are not there.
    """
    blocks = []
    for x_ND, index in ((r.antibody_ND, r.pairs.antibody), (r.antigen_ND, r.pairs.antigen)):
        if x_ND is None:
            return np.empty((0, 2), np.float32)
        unique, place = np.unique(index[rows], return_inverse=True)
        x_UD = np.asarray(x_ND[unique], np.float32)
        blocks.append(Standardizer.of(x_UD).apply(x_UD)[place])
    return np.hstack(blocks)


def principal_plane(x_PD: NDArray[np.float32]) -> tuple[Floats, float]:
    """Project rows onto their first two principal components, found by subspace iteration.

    Returns
    -------
    NDArray, shape=(P, 2), dtype=float64
        Coordinates; 0 where there is no second component.
    float
        Share of the variance that the components hold.

    References
    ----------
    Halko, Martinsson and Tropp, SIAM Review 53 (2011), algorithm 4.4.
    """
    if not len(x_PD):
        return np.zeros((0, 2)), 0.0
    x_PD = x_PD - x_PD.mean(axis=0)
    start = np.random.default_rng(0).normal(size=(x_PD.shape[1], 10)).astype(np.float32)
    q_PK = np.linalg.qr(x_PD @ start)[0]
    for _ in range(ITERATIONS):
        q_PK = np.linalg.qr(x_PD @ np.linalg.qr(x_PD.T @ q_PK)[0])[0]
    u, s, _ = np.linalg.svd((q_PK.T @ x_PD).astype(np.float64), full_matrices=False)
    plane = np.zeros((len(x_PD), 2))
    plane[:, : len(s[:2])] = (q_PK @ u)[:, :2] * s[:2]
    total = float((x_PD.astype(np.float64) ** 2).sum())
    return plane, float((s[:2] ** 2).sum()) / max(total, 1e-30)


def _numbers(values: Sequence[float | None] | NDArray[Any], digits: int = 3) -> list[float | None]:
    """Round numbers; JSON has no NaN, and the page leaves out what is null."""
    array = np.asarray(values, np.float64)
    return [round(x, digits) if np.isfinite(x) else None for x in array.tolist()]
