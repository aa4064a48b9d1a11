"""What the charts of a report show, as numbers that the script of the page draws.

Curves and bars are computed from every row, points are a sample.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.special import ndtri

from abag.core.arrays import Floats, Ints
from abag.head.evaluation import metrics
from abag.head.evaluation.metrics import antigen_groups, spearman_by_group

if TYPE_CHECKING:
    from abag.head.runs.saved_run import SavedRun

Series: TypeAlias = dict[str, Any]

MAX_POINTS = 4000
"""Test rows drawn, over all folds."""
MAP_POINTS = 1500
"""Pairs on the map."""
MAX_ANTIGENS = 20
LONGEST = 40
"""Characters of a name that are shown."""
CURVE_POINTS = 150
"""Points per curve of the training loss, each the mean of as many steps."""
COVERAGE = np.linspace(0.02, 0.98, 49)
"""Nominal coverages of prediction intervals."""


class AntigenNames(NamedTuple):
    """Names of the antigens of a run, in the order of their keys."""

    own: list[str]
    """With the start of the key where several antigens have the same name."""
    shared: list[str]
    """The same for all antigens with one name, such as variants."""

    @classmethod
    def of(cls, saved: SavedRun) -> AntigenNames:
        """Take the names from the table of the run."""
        rows = saved.frame.drop_duplicates("antigen_key").sort_values("antigen_key")
        keys = [key[:6] for key in rows["antigen_key"]]
        names = map(shorten, rows["antigen_name"]) if "antigen_name" in rows else [""] * len(keys)
        shared = [name or f"antigen {key}" for name, key in zip(names, keys, strict=True)]
        found = Counter(shared)
        own = [n if found[n] == 1 else f"{n} {key}" for n, key in zip(shared, keys, strict=True)]
        return cls(own, shared)


def shorten(text: str) -> str:
    """Cut a long name."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def chart_data(
    saved: SavedRun, vectors: Callable[[pd.DataFrame], Sequence[NDArray[np.float32]]]
) -> dict[str, Any]:
    """Return what the page draws, as JSON values.

    Parameters
    ----------
    vectors : callable
        Returns the standardised antibody and antigen vectors of some pairs, (P, D) and (P, E);
        nothing without the store.

    Returns
    -------
    dict
        ``views``: the curves of each regime. ``tests``: sampled test rows of each regime; ``map``:
        sampled pairs in the plane; ``tested_pairs``: which of these are tested in each regime, one
        digit each. Both refer to ``pairs``.
    """
    names, log = AntigenNames.of(saved), saved.run / "metrics.jsonl"
    texts = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    lines = [json.loads(text) for text in texts]
    tests = [rows for _, rows in saved.tested.groupby("regime", sort=False)]
    rng = np.random.default_rng(0)
    limit = MAX_POINTS // len(tests)
    drawn = [rows.iloc[rng.permutation(len(rows))[:limit]] for rows in tests]
    mapped = rng.permutation(len(saved.frame))[:MAP_POINTS]
    found = vectors(saved.frame.iloc[mapped])
    mapped = mapped if found else mapped[:0]
    plane, share = principal_plane(np.hstack(found) if found else np.zeros((0, 2), np.float32))
    pairs = np.unique(np.concatenate([*(one["pair"] for one in drawn), mapped]))
    return {
        "pairs": _describe_pairs(saved, names, pairs),
        "tests": [
            {
                "pair": np.searchsorted(pairs, one["pair"]).tolist(),
                "predicted": _numbers(one["pkd_predicted"]),
                "sigma": _numbers(one["sigma"]),
            }
            for one in drawn
        ],
        "map": {
            "pair": np.searchsorted(pairs, mapped).tolist(),
            "x": _numbers(plane[:, 0]),
            "y": _numbers(plane[:, 1]),
            "share": round(share, 3),
        },
        "tested_pairs": [
            "".join(map(str, np.isin(mapped, rows["pair"]).astype(int))) for rows in tests
        ],
        "views": [_view(saved, names, rows, lines) for rows in tests],
    }


def _describe_pairs(saved: SavedRun, names: AntigenNames, pairs: Ints) -> dict[str, Any]:
    frame = saved.frame.iloc[pairs]
    antigens, index = np.unique(saved.pairs.antigen[pairs], return_inverse=True)
    return {
        "row": frame["row"].astype(int).tolist(),
        "id": [*map(shorten, frame["id"])] if "id" in frame else None,
        "antibody": [*map(shorten, frame["antibody_name"])] if "antibody_name" in frame else None,
        "antigen": index.tolist(),
        "antigens": [names.own[which] for which in antigens],
        "groups": [names.shared[which] for which in antigens],
        "pkd": _numbers(saved.pairs.pkd[pairs]),
        "bound": saved.pairs.censored[pairs].tolist(),
    }


def _view(
    saved: SavedRun, names: AntigenNames, rows: pd.DataFrame, log: Sequence[Series]
) -> Series:
    exact = rows[rows["censored"] == 0]
    measured, predicted, sigma = (
        exact[name].to_numpy(np.float64) for name in ("pkd", "pkd_predicted", "sigma")
    )
    return {
        "residuals": _residuals(predicted - measured),
        "calibration": _calibration(measured, predicted),
        "coverage": _coverage(predicted - measured, sigma),
        "deciles": _deciles(predicted - measured, sigma),
        "antigens": _antigens(saved, names, exact),
        "training": _training(log, set(rows["fold"].tolist())),
    }


def _residuals(error: Floats) -> Series | None:
    if not len(error):
        return None
    counts, edges = np.histogram(error, min(40, max(5, int(np.sqrt(len(error))))))
    return {"edges": _numbers(edges), "counts": counts.tolist()}


def _calibration(measured: Floats, predicted: Floats) -> Series | None:
    if len(measured) < 2:
        return None
    order = np.argsort(predicted, kind="stable")
    bins = np.array_split(order, min(10, max(2, len(measured) // 10)))
    return {
        "x": _numbers([predicted[b].mean() for b in bins]),
        "y": _numbers([measured[b].mean() for b in bins]),
        "error": _numbers([measured[b].std() / np.sqrt(len(b)) for b in bins]),
        "slope": metrics.calibration(measured, predicted)["calibration_slope"],
    }


def _coverage(error: Floats, sigma: Floats) -> Series | None:
    """Return the share of the rows inside the prediction intervals by their nominal coverage."""
    if not len(error):
        return None
    distance = np.sort(np.abs(error) / np.maximum(sigma, 1e-12))
    inside = np.searchsorted(distance, ndtri((1 + COVERAGE) / 2), side="right") / len(distance)
    return {"x": _numbers(COVERAGE), "y": _numbers(inside)}


def _deciles(error: Floats, sigma: Floats) -> Series | None:
    """Return the RMSE of rows with similar sigma."""
    if not len(error):
        return None
    bins = np.array_split(np.argsort(sigma, kind="stable"), min(10, len(np.unique(sigma))))
    return {
        "x": _numbers([sigma[b].mean() for b in bins]),
        "y": _numbers([np.sqrt(np.mean(error[b] ** 2)) for b in bins]),
    }


def _antigens(saved: SavedRun, names: AntigenNames, exact: pd.DataFrame) -> Series:
    """Average each antigen over the folds it is in; the largest come first."""
    columns = ["name", "rows", "head", "ridge"]
    found = pd.DataFrame(_by_antigen(saved, names, exact), columns=columns)
    means = found.groupby("name").mean().reset_index()
    means = means.sort_values(["rows", "name"], ascending=[False, True]).head(MAX_ANTIGENS)
    return {
        "names": means["name"].tolist(),
        "rows": means["rows"].round().astype(int).tolist(),
        "head": _numbers(means["head"]),
        "ridge": _numbers(means["ridge"]),
    }


def _by_antigen(
    saved: SavedRun, names: AntigenNames, exact: pd.DataFrame
) -> Iterator[tuple[str, int, float, float]]:
    """Yield name, rows and scores within each antigen in each fold, as the metrics do."""
    baselines = pd.read_parquet(saved.run / "baselines.parquet")  # in the order of the predictions
    ridge = baselines.get("ridge", pd.Series(np.nan, baselines.index)).reindex(exact.index)
    for _, rows in exact.assign(ridge=ridge).groupby("fold"):
        pair, pkd = rows["pair"].to_numpy(np.int64), rows["pkd"].to_numpy(np.float64)
        group = antigen_groups(saved.pairs, pair)
        groups, first, count = np.unique(group, return_index=True, return_counts=True)
        of_head, of_ridge = (
            spearman_by_group(pkd, rows[name].to_numpy(np.float64), group)
            for name in ("pkd_predicted", "ridge")
        )
        for i in np.flatnonzero(np.isfinite(of_head)).tolist():
            which = int(saved.pairs.antigen[pair[first[i]]])
            several = groups[i] >= len(group)  # the antigens of a cluster, each with few rows
            name = f"{names.shared[which]} and similar" if several else names.own[which]
            yield name, int(count[i]), float(of_head[i]), float(of_ridge[i])


def _training(log: Sequence[Series], folds: set[int]) -> Series | None:
    """Return training loss and validation scores over the folds: median, lowest and highest."""
    lines = [line for line in log if line.get("fold", 0) in folds]
    if not lines:
        return None
    frame = pd.DataFrame({name: [line[name] for line in lines] for name in ("step", "loss")})
    frame["fold"] = [line.get("fold", 0) for line in lines]
    last = int(frame["step"].max())
    bins = min(CURVE_POINTS, last)
    frame["bin"] = (frame["step"] - 1) * bins // last
    loss = frame.groupby(["bin", "fold"])["loss"].mean()
    scored = [line for line in lines if "validation" in line]
    scores = pd.DataFrame([{**line["validation"], "epoch": line["epoch"]} for line in scored])
    by_epoch = scores.groupby("epoch")
    return {
        "folds": int(frame["fold"].nunique()),
        "step": frame.groupby("bin")["step"].max().tolist(),
        "loss": _over_folds(loss.groupby("bin"), 4),
        "epoch": sorted(scores["epoch"].unique().tolist()),
        "spearman": _over_folds(by_epoch["spearman"]),
        "rmse": _over_folds(by_epoch["rmse"]),
    }


def _over_folds(values: Any, digits: int = 3) -> Series:  # noqa: ANN401 - pandas' own
    found = {"low": values.min(), "median": values.median(), "high": values.max()}
    return {name: _numbers(one.astype(float), digits) for name, one in found.items()}


def principal_plane(x_PD: NDArray[np.float32]) -> tuple[Floats, float]:
    """Project rows onto their first two principal components.

    Returns
    -------
    NDArray, shape=(P, 2), dtype=float64
        Coordinates; 0 where there is no second component.
    float
        Share of the variance that the components hold.
    """
    size = len(x_PD)
    plane = np.zeros((size, 2))
    if not size:
        return plane, 0.0
    x_PD = x_PD - x_PD.mean(axis=0)
    # products of rows: there are more columns
    values, vectors = eigh(x_PD @ x_PD.T, subset_by_index=[max(0, size - 2), size - 1])
    values = np.maximum(values, 0)
    plane[:, : len(values)] = (vectors * np.sqrt(values))[:, ::-1]
    total = float(np.square(x_PD, dtype=np.float64).sum())
    return plane, float(values.sum()) / max(total, 1e-30)


def _numbers(values: Any, digits: int = 3) -> list[float | None]:  # noqa: ANN401 - array-like
    """Round numbers; JSON has no NaN, and the page leaves out what is null."""
    array: NDArray[np.float64] = np.asarray(values, np.float64)
    return [round(x, digits) if np.isfinite(x) else None for x in array.tolist()]
