"""Batches: candidates in the order of their scores, and the best of them, or the best that differ.

R candidates in all, B pairs of a batch; D and E are the widths of their vectors.

References
----------
Ravi, Rosenkrantz, Tayi: Heuristic and special case algorithms for dispersion problems, Oper. Res.
42:299 (1994): the smallest distance of the farthest-first choice is at least half of the largest
possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Bools, Floats, Ints
from abag.embed.store.store import open_store
from abag.head.design.candidates import Candidates, CannotRank, Measured, Pool
from abag.head.design.options import RankOptions
from abag.head.design.rules import RULES, Aim, best_first, expect, probability_above
from abag.head.prediction.bundle import load_predictor
from abag.head.regimes.clusters import antibody_clusters

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind

PER_CLUSTER, IDENTITY, EXPLORE = 8, 0.98, 1.0
"""Defaults of options that are read for one rule or diversity only."""


class BatchSummary(TypedDict):
    """One batch, and what measuring it is expected to give; None without sigma."""

    antigen: str | None
    """Name of the antigen; None if the batch is of all antigens."""
    pairs: int
    candidates: int
    predicted: tuple[float, float]
    """Smallest and largest predicted pKd."""
    best_measured: float | None
    expected_best: float | None
    best_interval: tuple[float, float] | None
    """Central 90 % of the best pKd."""
    expected_above: float | None
    above_interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Order:
    """The candidates of one batch, best first."""

    antigen: int | None
    """Index of their antigen; None: candidates of all antigens."""
    rows: Ints
    """Indices of the candidates."""
    score: Floats
    """What the rule gives, in the order of `rows`."""
    best_measured: float | None


@dataclass(frozen=True, slots=True)
class Batch:
    """The chosen pairs."""

    rows: Ints
    """Indices among the candidates, best first, (B,)."""
    frame: pd.DataFrame
    """Their columns and those that `rank` adds."""
    summary: BatchSummary


def order_groups(
    candidates: Candidates, eligible: Bools, measured: Measured | None, options: RankOptions
) -> list[Order]:
    """Score the eligible candidates, (R,), and order those of all antigens, or of each.

    Antigens come in the order of their numbers, that of their first rows.
    """
    if not options.per_antigen:
        return [_order(candidates, np.flatnonzero(eligible), None, measured, options)]
    return [
        _order(
            candidates, np.flatnonzero(eligible & (candidates.antigen == n)), n, measured, options
        )
        for n in range(len(candidates.antigen_keys))
    ]


def _order(
    candidates: Candidates,
    rows: Ints,
    antigen: int | None,
    measured: Measured | None,
    options: RankOptions,
) -> Order:
    rule, best = RULES[options.rule], options.best
    if rule.needs == "best" and best is None and measured is not None:
        best = measured.best(antigen)
    explore = EXPLORE if options.explore is None else options.explore
    aim = Aim(explore, *(np.nan if x is None else x for x in (best, options.above)))
    mean = candidates.mean[rows]
    sigma = np.zeros_like(mean) if candidates.sigma is None else candidates.sigma[rows]
    score = rule.score(mean, sigma, aim)
    order = best_first(score, mean)
    return Order(antigen, rows[order], score[order], best)


def pool_size(options: RankOptions) -> int:
    """Return how many of the best candidates a batch is chosen from."""
    return options.batch * (options.pool if options.diversity != "none" else 1)


def choose_batch(candidates: Candidates, order: Order, pool: Pool, options: RankOptions) -> Batch:
    """Choose a batch and lay out its rows; `pool` has the best candidates of every order.

    Raises
    ------
    CannotRank
        If near-duplicates leave fewer pairs than the batch needs.
    AbagError
        If the vectors that `options` asks for cannot be read.
    """
    best = order.rows[: pool_size(options)]
    chosen = np.arange(options.batch)
    if options.diversity == "clusters":
        chosen = _cap(candidates, best, pool, options)
    elif options.diversity == "distance":
        chosen = choose_far_apart(_vectors(candidates, best, options), options.batch)
    rows = best[chosen]
    frame = pool.frame.iloc[pool.find(rows)].reset_index(drop=True)
    frame = frame.assign(rank=np.arange(1, len(rows) + 1), score=order.score[chosen])
    mean = candidates.mean[rows]
    summary: BatchSummary = {
        "antigen": None if order.antigen is None else pool.antigen_name(rows[0], order.antigen),
        "pairs": len(rows),
        "candidates": len(order.rows),
        "predicted": (float(mean.min()), float(mean.max())),
        "best_measured": order.best_measured,
        "expected_best": None, "best_interval": None,
        "expected_above": None, "above_interval": None,
    }  # fmt: skip
    if candidates.sigma is not None:
        frame, summary = _add_expected(frame, summary, mean, candidates.sigma[rows], options)
    return Batch(rows, frame, summary)


def _add_expected(
    frame: pd.DataFrame, summary: BatchSummary, mean: Floats, sigma: Floats, options: RankOptions
) -> tuple[pd.DataFrame, BatchSummary]:
    """Add what measuring the batch is expected to give."""
    above = np.nan if options.above is None else options.above
    found = expect(mean, sigma, correlation=options.correlation, above=above)
    frame = frame.assign(expected_best=found.best_of_first)
    summary["expected_best"] = float(found.best_of_first[-1])
    summary["best_interval"] = found.best_interval
    if options.above is not None:
        frame["probability_above"] = probability_above(mean, sigma, Aim(above=above))
        summary["expected_above"], summary["above_interval"] = found.above, found.above_interval
    return frame, summary


def _cap(candidates: Candidates, best: Ints, pool: Pool, options: RankOptions) -> Ints:
    """Choose at most some pairs per cluster of near-duplicate antibodies of the pool."""
    identity, most = options.identity or IDENTITY, options.per_cluster or PER_CLUSTER
    chains = [pool.chains[i] for i in pool.find(best).tolist()]
    cluster = antibody_clusters(chains, identity)
    chosen = cap_clusters(cluster, options.batch, most)
    if len(chosen) < options.batch:
        msg = (
            f"{candidates.source}: --per-cluster {most} allows {len(chosen):,} of the best "
            f"{len(best):,} candidates, by clusters of antibodies at {identity:.0%} identity; "
            f"expected {options.batch:,}. Raise --per-cluster, --pool or --identity, or use a "
            "smaller --batch."
        )
        raise CannotRank(msg)
    return chosen


def _vectors(candidates: Candidates, best: Ints, options: RankOptions) -> Floats:
    """Read the vectors of candidates as the heads of the run see them, (B, D)."""
    assert options.run is not None
    predictor = load_predictor(options.run)
    store = open_store(predictor.resolve_store(options.store))
    sides: tuple[tuple[Kind, NDArray[np.uint8], NDArray[np.int32]], ...] = (
        ("antibody", candidates.antibody_keys, candidates.antibody[best]),
        ("antigen", candidates.antigen_keys, candidates.antigen[best]),
    )
    vectors = []
    for kind, keys, index in sides:
        used, of_row = np.unique(index, return_inverse=True)
        vectors.append(predictor.read(store, kind, keys[used])[of_row])
    return join_sides(*vectors)


def join_sides(antibody_BD: NDArray[np.floating], antigen_BE: NDArray[np.floating]) -> Floats:
    """Join the vectors of both sides so that both contribute equally to a distance.

    Each side is divided by the square root of its variance; a constant side adds nothing.

    Returns
    -------
    NDArray, shape=(B, D + E), dtype=float64
    """
    sides = []
    for side in (antibody_BD, antigen_BE):
        x_BD = side.astype(np.float64)
        unit = np.sqrt(x_BD.var(axis=0).sum())
        sides.append((x_BD - x_BD.mean(axis=0)) / (unit or 1.0))
    return np.concatenate(sides, axis=1)


def cap_clusters(cluster: Ints, size: int, most: int) -> Ints:
    """Choose the best candidates with at most `most` of each cluster.

    Parameters
    ----------
    cluster : NDArray, shape=(B,), dtype=int64
        Cluster of each candidate.
    size : int
        Candidates to choose; fewer are chosen if the clusters do not hold as many.

    Returns
    -------
    NDArray, shape=(at most size,), dtype=int64
        Chosen candidates, best first.
    """
    better_of_cluster = pd.Series(cluster).groupby(cluster).cumcount().to_numpy()
    return np.flatnonzero(better_of_cluster < most)[:size]


def choose_far_apart(x_BD: NDArray[np.floating], size: int) -> Ints:
    """Choose the best candidate, and then always the one farthest from those chosen.

    Parameters
    ----------
    x_BD : NDArray, shape=(B, D), dtype=floating
    size : int
        Candidates to choose, at most B.

    Returns
    -------
    NDArray, shape=(size,), dtype=int64
        Chosen candidates, best first; of equally far ones the best is chosen.
    """
    x_BD = x_BD.astype(np.float64)
    chosen = [0]
    squares_B = np.full(len(x_BD), np.inf)
    while len(chosen) < size:
        squares_B = np.minimum(squares_B, np.square(x_BD - x_BD[chosen[-1]]).sum(axis=1))
        squares_B[chosen] = -1.0  # equal vectors have the distance 0, too
        chosen.append(int(np.argmax(squares_B)))
    return np.sort(np.array(chosen, np.int64))
