"""Scores the mutants of parents in batches, as `abag.predict` would, and against their parents.

A mutant and its parent are predicted by the same models, whose errors they largely share, so the
sigma of a difference is not that of two predictions. It is ``spread`` (`models.sigma`)
times the standard deviation of the difference: over the joint posterior of a Gaussian process, or
else over the members of an ensemble. The residual noise is left out: what of it a mutant shares
with its parent is not known. A single network or a ridge has no such deviation.

P pairs of an antibody and an antigen in a batch: its parents, then its mutants. M mutants; V
training pairs that a variance is computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import numpy as np
import pandas as pd

from abag.core.arrays import Floats
from abag.core.messages import counted, say
from abag.embed.sequences.chains import KINDS, Chains, Kind, keys_array
from abag.embed.store.store import open_store
from abag.head.design.sites import Mutant, Parent, name_mutant
from abag.head.models.pair_model import Index, PairVectors
from abag.head.models.registry import MODELS
from abag.head.prediction.inputs import Scorer, row_bar
from abag.head.prediction.predictor import encode_new, existing_store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.store.store import Store
    from abag.head.prediction.predictor import Predictor

BATCH = 16_384
"""Mutants whose vectors are in memory at a time: 70 MB at IgT5's width."""

MutantOfParent: TypeAlias = tuple[int, Mutant]
"""Index of a parent, and what is changed."""


class EncodedCounts(TypedDict):
    """Numbers of distinct sequences of one kind, parents included."""

    reused: int
    encoded: int


@dataclass(frozen=True, slots=True)
class ScoredMutants:
    """M mutants and their scores."""

    frame: pd.DataFrame
    """Rows of the table that is written."""
    mutants: list[MutantOfParent]

    @property
    def improves(self) -> NDArray[np.bool_]:
        """Which differences exceed their sigma, or 0 where that is not known; (M,)."""
        least = self.frame.get("difference_sigma", 0.0)
        return np.asarray(self.frame["difference"] > least)

    @property
    def far(self) -> NDArray[np.bool_]:
        """Which pairs no measured regime covers, (M,)."""
        return self.frame["far"].to_numpy(bool)


class MutantScorer:
    """Encodes and scores mutants of some parents."""

    def __init__(self, scorer: Scorer, parents: Sequence[Parent]) -> None:
        self._scorer, self._parents = scorer, parents
        self.parent_pkd = np.full(len(parents), np.nan)
        """Predictions for the parents, once their mutants are scored."""
        self.far_parents: set[int] = set()
        """Parents that are far from the training set themselves."""
        self.has_sigma = has_difference_sigma(scorer.predictor)
        self.counts: dict[Kind, EncodedCounts] = {
            kind: {"reused": 0, "encoded": 0} for kind in KINDS
        }

    def encode(self, mutants: Iterable[MutantOfParent]) -> None:
        """Encode the mutants and parents that the store lacks, all in one go."""
        predictor = self._scorer.predictor
        store = existing_store(self._scorer.store_path)
        new: dict[Kind, dict[bytes, Chains]] = {"antibody": {}, "antigen": {}}
        stored: dict[Kind, set[bytes]] = {"antibody": set(), "antigen": set()}
        for batch in _batches(mutants):
            pairs, _ = self._pairs(batch)
            for kind, chains in zip(KINDS, zip(*pairs, strict=True), strict=True):
                distinct = list(dict.fromkeys(chains))
                keys = keys_array(kind, distinct)
                missing = predictor.missing(store, kind, keys)
                for one, key, lacks in zip(distinct, keys, missing, strict=True):
                    if lacks:
                        new[kind][key.tobytes()] = one
                    else:
                        stored[kind].add(key.tobytes())
        for kind in KINDS:
            self.counts[kind]["reused"] += len(stored[kind])
            self.counts[kind]["encoded"] += len(new[kind])
            total = counted(len(stored[kind]) + len(new[kind]), kind)
            say(f"{total} to score: {len(stored[kind]):,} stored, {len(new[kind]):,} to encode")
        if any(new.values()) and predictor.embed is not None:
            first = self._parents[0]
            encode_new(
                predictor,
                self._scorer.store_path,
                [*new["antibody"].values()],
                [*new["antigen"].values()],
                (first.antibody, first.antigen),
                **self._scorer.embed_options,
            )

    def score(self, mutants: Iterable[MutantOfParent], total: int) -> Iterator[ScoredMutants]:
        """Yield the scores of mutants whose sequences are stored, `BATCH` at a time."""
        store = open_store(self._scorer.store_path)
        with row_bar("scoring", total) as shown:
            for batch in _batches(mutants):
                yield ScoredMutants(self._score(batch, store), batch)
                shown.update(len(batch))

    def _pairs(
        self, batch: list[MutantOfParent]
    ) -> tuple[list[tuple[Chains, Chains]], NDArray[np.int64]]:
        """Return P pairs, the parents of the batch first, and the pair of each one's parent."""
        place = {number: at for at, number in enumerate(dict.fromkeys(n for n, _ in batch))}
        parents = [self._parents[number] for number in place]
        pairs = [(parent.antibody, parent.antigen) for parent in parents]
        pairs += [self._parents[number].mutant(changes) for number, changes in batch]
        of_pair = [*range(len(parents)), *(place[number] for number, _ in batch)]
        return pairs, np.array(of_pair, np.int64)

    def _score(self, batch: list[MutantOfParent], store: Store) -> pd.DataFrame:
        predictor = self._scorer.predictor
        pairs, parent = self._pairs(batch)
        scores, vectors = predictor.score_stored(store, *zip(*pairs, strict=True))
        pkd = scores["pkd_predicted"].to_numpy()
        far = scores["far"].to_numpy()
        at = list(scores).index("regime")
        scores.insert(at, "difference", pkd - pkd[parent])
        if self.has_sigma:
            spread = spreads(predictor, scores)
            scores.insert(
                at + 1, "difference_sigma", spread * deviation(predictor, vectors, parent)
            )
        for row, number in enumerate(dict.fromkeys(n for n, _ in batch)):
            self.parent_pkd[number] = pkd[row]
            if far[row]:
                self.far_parents.add(number)
        first = len(pairs) - len(batch)
        described = self._describe(batch, pairs[first:])
        return pd.concat([described, scores[first:].reset_index(drop=True)], axis=1)

    def _describe(
        self, batch: list[MutantOfParent], pairs: list[tuple[Chains, Chains]]
    ) -> pd.DataFrame:
        """Return the columns that say what each mutant is, and its sequences."""
        columns: dict[str, list[str]] = {
            "parent": [self._parents[number].name for number, _ in batch],
            "mutation": [name_mutant(changes) for _, changes in batch],
        }
        for name in ("chain", "position", "region", "wild_type"):
            columns[name] = [
                "+".join(getattr(site, name) for site, _ in changes) for _, changes in batch
            ]
        columns["mutant"] = ["+".join(new for _, new in changes) for _, changes in batch]
        columns["heavy"] = [antibody[0] for antibody, _ in pairs]
        columns["light"] = [antibody[1] for antibody, _ in pairs]
        columns["antigen"] = ["|".join(antigen) for _, antigen in pairs]
        return pd.DataFrame(columns)


def _batches(mutants: Iterable[MutantOfParent]) -> Iterator[list[MutantOfParent]]:
    remaining = iter(mutants)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def has_difference_sigma(predictor: Predictor) -> bool:
    """Whether sigmas of differences can be computed."""
    several = any(len(part.models) > 1 for part in predictor.parts)
    known = several or any(MODELS[part.name].has_posterior for part in predictor.parts)
    return known and any(one.spread > 0 for one in predictor.regimes.values())


def spreads(predictor: Predictor, scores: pd.DataFrame) -> Floats:
    """Return the factor of the standard deviation in sigma of each scored pair, (P,)."""
    fallback = max(predictor.regimes.values(), key=lambda one: one.noise)
    found = {name: predictor.regimes.get(name, fallback).spread for name in set(scores["regime"])}
    return scores["regime"].map(found).to_numpy(np.float64)


def deviation(predictor: Predictor, vectors: PairVectors, parent: Index) -> Floats:
    """Return the standard deviation of the difference between each pair and another one, in pKd.

    Parameters
    ----------
    predictor : Predictor
        One that `has_difference_sigma`.
    vectors : PairVectors
        P pairs.
    parent : NDArray, shape=(P,), dtype=integer
        The pair that each is compared with; for itself the result is 0.

    Returns
    -------
    NDArray, shape=(P,), dtype=float64
    """
    own = [
        model.difference_variance(vectors, parent)
        for part in predictor.parts
        for model in part.models
        if MODELS[part.name].has_posterior
    ]
    if own:
        return np.asarray(np.sqrt(np.mean(own, axis=0)))
    several = [part.models for part in predictor.parts if len(part.models) > 1]
    variances = []
    for each in several:
        predicted = np.stack([model.predict(vectors) for model in each])
        variances.append(np.var(predicted - predicted[:, parent], axis=0))
    return np.asarray(np.sqrt(np.mean(variances, axis=0)))
