"""Pairs with measured affinities, and how their rows are scored.

P pairs, R rows.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints
from abag.head.evaluation.metrics import MeasuredRows, Scores
from abag.head.evaluation.ranking import MIN_ROWS_PER_ANTIGEN


class MeasuredPairs(Protocol):
    """What scoring needs of P pairs, each of shape (P,)."""

    @property
    def pkd(self) -> Floats: ...
    @property
    def censored(self) -> NDArray[np.int8]: ...
    @property
    def antigen(self) -> Ints: ...
    @property
    def antigen_cluster(self) -> Ints | None: ...
    @property
    def antibody_cluster(self) -> Ints | None: ...


def antigen_clusters(pairs: MeasuredPairs) -> Ints:
    """Return the cluster of each pair's antigen, (P,): the antigen if they were not clustered."""
    return pairs.antigen if pairs.antigen_cluster is None else pairs.antigen_cluster


def antigen_groups(pairs: MeasuredPairs, rows: Ints) -> Ints:
    """Group rows, (R,), for the metrics within antigen; the result has shape (R,).

    A group is an antigen. The antigens of one cluster that have too few exact rows for a
    correlation form one group, so that their rows count too.
    """
    antigen = np.unique(pairs.antigen[rows], return_inverse=True)[1]
    exact = np.bincount(antigen, pairs.censored[rows] == 0)
    few = exact[antigen] < MIN_ROWS_PER_ANTIGEN
    cluster = antigen_clusters(pairs)[rows]
    return np.where(few, len(antigen) + cluster, antigen)


def score_rows(pairs: MeasuredPairs, predicted: Floats, rows: Ints) -> Scores:
    """Score the predictions of some rows; `predicted`, (P,), has one for every pair."""
    return rows_to_score(pairs, rows).score(predicted[rows])


def rows_to_score(pairs: MeasuredPairs, rows: Ints) -> MeasuredRows:
    """Return rows of pairs that several models predict."""
    return MeasuredRows.of(pairs.pkd[rows], antigen_groups(pairs, rows), pairs.censored[rows])
