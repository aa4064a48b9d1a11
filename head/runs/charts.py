"""What the charts of a report draw: curves and bars of every row, points of a sample."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import ndtri

from abag.core.arrays import Floats, Ints
from abag.head.data.quantity import DIGITS
from abag.head.evaluation.metrics import calibration
from abag.head.evaluation.ranks import spearman_by_group

if TYPE_CHECKING:
    from abag.head.runs.run_folder import SavedRun

Series: TypeAlias = dict[str, Any]
MAX_POINTS = 4000
"""Test rows drawn, over all folds."""
MAX_ANTIGENS = 20
LONGEST = 40
"""Characters of a name that are shown."""
CHART_DIGITS = 3
"""After the point, of pKd in charts."""
CURVE_POINTS = 150
"""Points per curve of the training loss, each the mean of as many steps."""
COVERAGE = np.linspace(0.02, 0.98, 49)
"""Nominal coverages of prediction intervals."""


def shorten(text: str) -> str:
    """Cut a long name."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def name_antigens(frame: pd.DataFrame) -> pd.Series:
    """Name the antigen of each pair of a run; variants with one name have it in common."""
    keys = "antigen " + frame["antigen_key"].str[:6]
    if "antigen_name" not in frame:
        return keys
    names = frame["antigen_name"].map(shorten)
    return names.where(names != "", keys)


def chart_data(saved: SavedRun) -> dict[str, Any]:
    """Return what the page draws: curves of each regime, and sampled rows that refer to pairs."""
    log = saved.run / "metrics.jsonl"
    texts = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    lines = [json.loads(text) for text in texts]
    baselines = pd.read_parquet(saved.run / "baselines.parquet")  # in the order of the predictions
    ridge = baselines.get("ridge", pd.Series(np.nan, baselines.index))
    tested = saved.tested.assign(ridge=ridge)
    # sort=False: in the order of the summary
    tests = [rows for _, rows in tested.groupby("regime", sort=False)]
    rng = np.random.default_rng(0)  # the same run gives the same page
    drawn = []
    for rows in tests:
        sample = rng.permutation(len(rows))[: MAX_POINTS // len(tests)]
        drawn.append(rows.iloc[sample])
    pairs = np.unique(pd.concat(drawn)["pair"])
    names = name_antigens(saved.frame)
    if saved.no_antigen:
        names[:] = "exact"  # beside censored ones in the legend
    digits = chart_digits(saved)
    points = []
    for rows in drawn:
        of_regime = {
            "pair": np.searchsorted(pairs, rows["pair"]).tolist(),
            "predicted": _numbers(rows["pkd_predicted"], digits),
            "sigma": _numbers(rows["sigma"], digits),
        }
        points.append(of_regime)
    data: dict[str, Any] = {
        "pairs": _describe_pairs(saved.frame.iloc[pairs], names.iloc[pairs], digits),
        "tests": points,
        "views": [_view(rows, names.to_numpy(str), lines, saved) for rows in tests],
    }
    if digits != CHART_DIGITS:
        data["digits"] = digits
    data["learningCurve"] = _learning_curve(saved.summary.get("learning_curve", ()))
    data["quantity"] = str(saved.quantity)
    return data


def _learning_curve(curve: Sequence[Mapping[str, Any]]) -> list[list[float | None]]:
    """Return training pairs, Spearman correlation and RMSE of each point."""
    points = []
    for point in curve:
        score = point["score"]
        spearman = None if score["spearman"] is None else score["spearman"]["value"]
        points.append([point["training_pairs"], spearman, score["rmse"]])
    return points


def chart_digits(saved: SavedRun) -> int:
    """Return the digits after the point of labels in charts."""
    exact = saved.frame.loc[saved.frame["censored"] == 0, "pkd"]
    return max(0, saved.quantity.digits(float(exact.std())) + CHART_DIGITS - DIGITS)


def _describe_pairs(frame: pd.DataFrame, antigens: pd.Series, digits: int) -> dict[str, Any]:
    index, names = pd.factorize(antigens)
    return {
        "row": frame["row"].astype(int).tolist(),
        "id": [*map(shorten, frame["id"])] if "id" in frame else None,
        "antibody": [*map(shorten, frame["antibody_name"])] if "antibody_name" in frame else None,
        "antigen": index.tolist(),
        "antigens": names.tolist(),
        "pkd": _numbers(frame["pkd"], digits),
        "bound": frame["censored"].tolist(),
    }


def _view(rows: pd.DataFrame, names: np.ndarray, log: Sequence[Series], saved: SavedRun) -> Series:
    exact = rows[rows["censored"] == 0]
    antigen_rows = exact[:0] if saved.no_antigen else exact
    digits = chart_digits(saved)
    measured = exact["pkd"].to_numpy(np.float64)
    predicted = exact["pkd_predicted"].to_numpy(np.float64)
    sigma = exact["sigma"].to_numpy(np.float64)
    error = predicted - measured
    return {
        "calibration": _calibration(measured, predicted, digits) if len(exact) > 1 else None,
        "coverage": _coverage(error, sigma) if len(exact) else None,
        "deciles": _deciles(error, sigma, digits) if len(exact) else None,
        "antigens": _antigens(antigen_rows, names[antigen_rows["pair"]]),
        "training": _training(log, set(rows["fold"].tolist())),
    }


def _calibration(measured: Floats, predicted: Floats, digits: int) -> Series:
    order = np.argsort(predicted, kind="stable")
    bins = np.array_split(order, min(10, max(2, len(measured) // 10)))
    mean_predicted = [predicted[rows].mean() for rows in bins]
    mean_measured = [measured[rows].mean() for rows in bins]
    standard_error = [measured[rows].std() / np.sqrt(len(rows)) for rows in bins]
    return {
        "x": _numbers(mean_predicted, digits),
        "y": _numbers(mean_measured, digits),
        "error": _numbers(standard_error, digits),
        "slope": calibration(measured, predicted)["calibration_slope"],
    }


def _coverage(error: Floats, sigma: Floats) -> Series:
    distance = np.sort(np.abs(error) / np.maximum(sigma, 1e-12))
    half_width = ndtri((1 + COVERAGE) / 2)  # in sigmas
    inside = np.searchsorted(distance, half_width, side="right")
    return {"x": _numbers(COVERAGE), "y": _numbers(inside / len(distance))}


def _deciles(error: Floats, sigma: Floats, digits: int) -> Series:
    bins = np.array_split(np.argsort(sigma, kind="stable"), min(10, len(np.unique(sigma))))
    mean_sigma = [sigma[rows].mean() for rows in bins]
    rmse = [np.sqrt(np.mean(error[rows] ** 2)) for rows in bins]
    return {"x": _numbers(mean_sigma, digits), "y": _numbers(rmse, digits)}


def _antigens(exact: pd.DataFrame, names: np.ndarray) -> Series:
    """Rank within each antigen and fold; average over the folds, the largest antigens first."""
    fold = exact["fold"].to_numpy(np.int64)
    name = pd.factorize(names, sort=True)[0]
    group: Ints = fold * (name.max(initial=0) + 1) + name
    _, first, count = np.unique(group, return_index=True, return_counts=True)
    antigens = pd.DataFrame({"name": names[first], "rows": count})
    for column, predicted in (("head", "pkd_predicted"), ("ridge", "ridge")):
        values = exact[predicted].to_numpy(np.float64)
        antigens[column] = spearman_by_group(exact["pkd"].to_numpy(np.float64), values, group)
    means = antigens[antigens["head"].notna()].groupby("name").mean().reset_index()
    means = means.sort_values(["rows", "name"], ascending=[False, True]).head(MAX_ANTIGENS)
    return {
        "names": means["name"].tolist(),
        "rows": means["rows"].round().astype(int).tolist(),
        "head": _numbers(means["head"]),
        "ridge": _numbers(means["ridge"]),
    }


def _training(log: Sequence[Series], folds: set[int]) -> Series | None:
    lines = [line for line in log if line.get("fold", 0) in folds]
    if not lines:
        return None
    frame = pd.DataFrame(lines, columns=["step", "loss"])
    frame["fold"] = [line.get("fold", 0) for line in lines]  # one fold is not numbered
    last = int(frame["step"].max())
    bins = min(CURVE_POINTS, last)
    frame["bin"] = (frame["step"] - 1) * bins // last
    loss = frame.groupby(["bin", "fold"])["loss"].mean()
    scored = []
    for line in lines:
        if "validation" in line:
            scored.append({**line["validation"], "epoch": line["epoch"]})
    scores = pd.DataFrame(scored)
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
    statistics = {"low": values.min(), "median": values.median(), "high": values.max()}
    return {
        name: _numbers(statistic.astype(float), digits) for name, statistic in statistics.items()
    }


def _numbers(values: Any, digits: int = 3) -> list[float | None]:  # noqa: ANN401 - array-like
    """Round numbers; JSON has no NaN, and the page leaves out what is null."""
    array: Floats = np.asarray(values, np.float64)
    return [round(x, digits) if np.isfinite(x) else None for x in array.tolist()]
