"""Intervals of Spearman and of the AUC as `abag fit` computes them, on planted data with a known truth.

    python benchmarks/bench_intervals.py sampled [--draws 1000]   one test part, pairs or clusters
    python benchmarks/bench_intervals.py folds [--draws 400]      ridges on five folds
    python benchmarks/bench_intervals.py cells [--draws 400]      small cells of fold and antigen
    python benchmarks/bench_intervals.py rare [--draws 400]       an AUC where few pairs are yes
    python benchmarks/bench_intervals.py precision [--draws 200]  average precisions of folds
    python benchmarks/bench_intervals.py shift [--draws 400]      mean errors of labels and bounds

``sampled`` draws normal pairs whose rank correlation is known, alone or in clusters, and compares
coverage and half width with a bootstrap of groups, and claims to rank better than chance with a
permutation test. ``folds`` fits ridges to planted rows: the truth is the mean rank correlation of
the five models on new rows. ``cells`` ranks within antigens of few pairs. ``rare`` draws normal
predictions of yes and no, half of whose variance is shared by a group where it has several pairs. ``precision`` draws
yes and no in folds, and compares with the mean of scikit-learn's average precision over folds. ``shift`` draws errors with
a mean, hides labels behind bounds, and compares with the mean error of the others. scipy and scikit-learn
are the truth: nothing else of abag is used but the intervals.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy import stats
from sklearn.linear_model import Ridge
from sklearn.metrics import average_precision_score
from sklearn.model_selection import KFold

from abag.head.evaluation.scores import (
    TestedPairs,
    concordance_claim,
    mean_claim,
    score_regime,
)
from abag.head.labels.headers import Quantity
from abag.head.runs.evaluate import errors_with_bounds

FOLDS = 5
RESAMPLES = 399
COMPARED = 100
"""Draws of which a bootstrap and a permutation test are computed."""


def intervals(predicted, pkd, group, fold=None, antigen=None):
    """Return the scores of a regime of these pairs."""
    rows = np.arange(len(pkd))
    fold = rows * 0 if fold is None else fold
    antigen = rows * 0 if antigen is None else antigen
    tested = TestedPairs(rows, pkd, fold, rows, antigen, [group])
    mean = np.full(len(pkd), pkd.mean())
    return score_regime("known", "known", tested, predicted, mean, {}, None)


def draw_pairs(rng, groups, size, rho):
    """Draw normal pairs with a rank correlation, half of whose variance is shared by a cluster."""
    linear = 2 * np.sin(np.pi * rho / 6)
    group = np.repeat(np.arange(groups), size)
    columns = []
    for _ in range(2):
        value = rng.normal(size=len(group))
        if size > 1:
            value = (value + rng.normal(size=groups)[group]) / np.sqrt(2)
        columns.append(value)
    predicted, noise = columns
    return predicted, linear * predicted + np.sqrt(1 - linear**2) * noise, group


def rank_correlations(x, y):
    """Correlate the ranks of rows of two matrices."""
    centred = [stats.rankdata(values, axis=1) - (values.shape[1] + 1) / 2 for values in (x, y)]
    a, b = centred
    return (a * b).sum(1) / np.sqrt(np.square(a).sum(1) * np.square(b).sum(1))


def bootstrap(rng, predicted, pkd, groups, size):
    """Return half the width of a 95 % interval of a bootstrap of groups."""
    drawn = rng.integers(groups, size=(RESAMPLES, groups))
    rows = (drawn[:, :, None] * size + np.arange(size)).reshape(RESAMPLES, -1)
    low, high = np.quantile(rank_correlations(predicted[rows], pkd[rows]), [0.025, 0.975])
    return (high - low) / 2


def is_clear_by_permutation(rng, predicted, pkd, groups, size):
    """Permute the labels of whole groups; return whether 2.5 % or fewer rank as well."""
    x = stats.rankdata(predicted)
    y = stats.rankdata(pkd).reshape(groups, size)
    order = rng.permuted(np.tile(np.arange(groups), (RESAMPLES, 1)), axis=1)
    permuted = y[order].reshape(RESAMPLES, -1) @ (x - x.mean())
    return (1 + np.sum(permuted >= y.ravel() @ (x - x.mean()) - 1e-9)) / (RESAMPLES + 1) <= 0.025


def print_row(means, *setting):
    """Print a row of a table: what was set, then the means over draws."""
    cells = [*map(str, setting), *(f"{value:.3f}" for value in means)]
    print(f"| {' | '.join(cells)} |", flush=True)


def sampled(draws):
    """Compare intervals of one test part with the truth, a bootstrap and a permutation test."""
    print("| groups | pairs of each | rho | coverage | truth below | above | half width | bootstrap "
          "| claims | permutation test |")  # fmt: skip
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    rng = np.random.default_rng(0)
    for groups, size in ((20, 1), (20, 5), (50, 1), (100, 1), (200, 4), (500, 1), (2000, 1)):
        for rho in (0.0, 0.3, 0.5, 0.8, 0.9):
            rows = []
            compared = []
            for number in range(draws if groups < 500 else draws // 4):
                predicted, pkd, group = draw_pairs(rng, groups, size, rho)
                claim = intervals(predicted, pkd, group)["spearman"]
                low, high = claim["low"], claim["high"]
                rows.append((low <= rho <= high, low > rho, high < rho, (high - low) / 2, low > 0))
                if number < COMPARED and groups <= 200:
                    half = bootstrap(rng, predicted, pkd, groups, size)
                    clear = is_clear_by_permutation(rng, predicted, pkd, groups, size)
                    compared.append((low > 0, half, clear))
            inside, below, above, half, claims = np.mean(rows, axis=0)
            beside = "| - | - "
            if compared:
                _, boot, clear = np.mean(compared, axis=0)
                beside = f"| {boot:.3f} | {claims:.3f} | {clear:.3f} |"
            else:
                beside = f"| - | {claims:.3f} | - |"
            print(f"| {groups} | {size} | {rho} | {inside:.3f} | {below:.3f} | {above:.3f} "
                  f"| {half:.3f} {beside}", flush=True)  # fmt: skip


def folds(draws):
    """Compare intervals of cross-validated ridges with their rank correlation on new rows."""
    print("| rows | columns | signal / noise | mean | truth | coverage | truth below | above "
          "| half width | claims |")  # fmt: skip
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    rng = np.random.default_rng(1)
    for n in (30, 100, 250):
        for width, signal in ((20, 0), (100, 0), (20, 0.2), (20, 0.5), (20, 2), (20, 8), (100, 8)):
            rows = []
            for _ in range(draws):
                slope = rng.normal(size=width) * np.sqrt(signal / width)
                x = rng.normal(size=(n, width))
                y = x @ slope + rng.normal(size=n)
                new = rng.normal(size=(2000, width))
                new_y = new @ slope + rng.normal(size=2000)
                predicted = np.empty(n)
                fold = np.empty(n, np.int64)
                truths = []
                split = KFold(FOLDS, shuffle=True, random_state=int(rng.integers(2**31)))
                for number, (train, test) in enumerate(split.split(x)):
                    model = Ridge(alpha=width / max(signal, 0.2)).fit(x[train], y[train])
                    predicted[test] = model.predict(x[test])
                    fold[test] = number
                    truths.append(stats.spearmanr(model.predict(new), new_y).statistic)
                claim = intervals(predicted, y, np.arange(n), fold)["spearman"]
                truth = np.mean(truths)
                low, high = claim["low"], claim["high"]
                inside = low <= truth <= high
                ends = (inside, low > truth, high < truth, (high - low) / 2, low > 0)
                rows.append((claim["value"], truth, *ends))
            print_row(np.mean(rows, axis=0), n, width, signal)


def cells(draws):
    """Rank within antigens of few pairs, of which a fold tests a fifth."""
    print("| antigens | pairs of each | rho | ranked | mean | coverage | half width | claims |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    rng = np.random.default_rng(2)
    for antigens, size in ((100, 2), (40, 4), (12, 10), (60, 10), (8, 60)):
        for rho in (0.0, 0.3, 0.8):
            linear = 2 * np.sin(np.pi * rho / 6)
            rows = []
            for _ in range(draws):
                antigen = np.repeat(np.arange(antigens), size)
                fold = rng.integers(FOLDS, size=len(antigen))
                level = rng.normal(size=(2, antigens))[:, antigen]
                x = rng.normal(size=len(antigen))
                y = linear * x + np.sqrt(1 - linear**2) * rng.normal(size=len(antigen))
                scores = intervals(x + level[0], y + level[1], np.arange(len(y)), fold, antigen)
                claim = scores["spearman_within_antigen"]
                low, high = claim["low"], claim["high"]
                ranked = claim["groups"] / len(y)
                inside = low <= rho <= high
                rows.append((ranked, claim["value"], inside, (high - low) / 2, low > 0))
            print_row(np.mean(rows, axis=0), antigens, size, rho)


def rare(draws):
    """Draw predictions of yes and no whose AUC is known, alone or in groups of one class."""
    print(
        "| groups | of yes | pairs of each | AUC | coverage | width | claims | without interval |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    rng = np.random.default_rng(3)
    for groups, positive in (
        (20, 2),
        (300, 3),
        (300, 5),
        (300, 10),
        (300, 30),
        (300, 150),
        (40, 20),
    ):
        for size in (1, 4):
            for auc in (0.5, 0.8, 0.95):
                rows = []
                group = np.repeat(np.arange(groups), size)
                level = (group < positive).astype(np.float64)
                for _ in range(draws):
                    predicted = rng.normal(size=len(group))
                    if size > 1:
                        predicted = (predicted + rng.normal(size=groups)[group]) / np.sqrt(2)
                    predicted += np.sqrt(2) * stats.norm.ppf(auc) * level
                    index = np.arange(len(group))
                    tested = TestedPairs(index, level, index * 0, index, index * 0, [group])
                    claim = concordance_claim(tested, predicted)
                    if claim.low is None:
                        rows.append((np.nan, np.nan, 0, 1))
                        continue
                    width = claim.high - claim.low
                    rows.append((claim.low <= auc <= claim.high, width, claim.low > 0.5, 0))
                if np.isnan(rows).all(axis=0).any():
                    continue
                print_row(np.nanmean(rows, axis=0), groups, positive, size, auc)


def precision(draws):
    """Draw predictions of yes and no in folds, whose average precision in many pairs is known."""
    print("| pairs | folds | yes | true | mean of folds | value | coverage | width |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    rng = np.random.default_rng(4)
    yes = Quantity(name="hit", affinity=False, classes=("no", "yes"))
    for pairs, folds, prevalence in (
        (40, 3, 0.45), (80, 3, 0.22), (200, 5, 0.1), (400, 5, 0.15), (400, 1, 0.15), (2000, 5, 0.05)
    ):  # fmt: skip
        for gain in (0.0, 1.0, 2.0):
            many = rng.random(200_000) < prevalence
            truth = average_precision_score(many, rng.normal(size=len(many)) + gain * many)
            rows = []
            index = np.arange(pairs)
            fold = index % folds
            for _ in range(draws):
                level = (rng.random(pairs) < prevalence).astype(np.float64)
                predicted = stats.norm.cdf(rng.normal(size=pairs) + gain * level - 1)
                tested = TestedPairs(index, level, fold, index, index * 0, [index])
                mean = np.full(pairs, prevalence)
                score = score_regime(
                    "known", "known", tested, predicted, mean, {}, None, quantity=yes
                )
                claim = score["classes"]["average_precision"]
                if claim is None or claim["low"] is None:
                    continue
                of_folds = [
                    average_precision_score(level[fold == k], predicted[fold == k])
                    for k in range(folds)
                    if level[fold == k].any()
                ]
                inside = claim["low"] <= truth <= claim["high"]
                width = claim["high"] - claim["low"]
                rows.append((np.mean(of_folds), claim["value"], inside, width))
            print_row(np.mean(rows, axis=0), pairs, folds, prevalence, f"{truth:.3f}")


def shift(draws):
    """Draw errors with a known mean, and hide the labels that are below a limit."""
    print("| pairs | bounds | shift | sigma / true | of labels alone | value | coverage | width |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    rng = np.random.default_rng(5)
    for pairs in (30, 100, 400):
        for share in (0.1, 0.4, 0.7, 0.9):
            for moved, times in ((0.0, 1.0), (1.0, 1.0), (-1.0, 1.0), (1.0, 1.4)):
                rows = []
                for _ in range(draws):
                    predicted = rng.normal(7, 0.8, pairs)
                    label = predicted - rng.normal(moved, 0.6, pairs)
                    limit = np.quantile(label, share)
                    censored = np.where(label < limit, -1, 0).astype(np.int8)
                    error = predicted - np.maximum(label, limit)
                    sigma = np.full(pairs, 0.6 * times)
                    claim = mean_claim(
                        errors_with_bounds(error, censored, sigma), [np.arange(pairs)]
                    )
                    inside = claim.low <= moved <= claim.high
                    width = claim.high - claim.low
                    rows.append((error[censored == 0].mean(), claim.value, inside, width))
                print_row(np.mean(rows, axis=0), pairs, share, moved, times)


MODES = {
    "sampled": sampled,
    "folds": folds,
    "cells": cells,
    "rare": rare,
    "precision": precision,
    "shift": shift,
}


def main():
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--draws", type=int, default=400)
    arguments = parser.parse_args()
    start_s = time.perf_counter()
    MODES[arguments.mode](arguments.draws)
    print(f"{time.perf_counter() - start_s:.0f} s")


if __name__ == "__main__":
    main()
