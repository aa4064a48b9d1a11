"""Scores the mutants of parents in batches, as `abag.predict` would, and against their parents.

P pairs of an antibody and an antigen in a batch: its parents, then its mutants. M mutants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import numpy as np
import pandas as pd

from abag.core.messages import counted, say
from abag.embed.sequences.chains import KINDS, Chains, Kind, keys_array
from abag.embed.store.store import open_store
from abag.head.design.difference import difference_sigma, has_difference_sigma
from abag.head.design.sites import Mutant, Parent, name_mutant
from abag.head.prediction.inputs import Scorer, row_bar
from abag.head.prediction.predictor import encode_new, existing_store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.store.store import Store

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
        """Which antibodies or antigens are far from the training set, (M,)."""
        return np.asarray(self.frame["far_antibody"] | self.frame["far_antigen"])


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
        far = (scores["far_antibody"] | scores["far_antigen"]).to_numpy()
        scores = predictor.without_bad_sigma(scores)
        at = scores.columns.get_loc("far_antibody")
        scores.insert(at, "difference", pkd - pkd[parent])
        if self.has_sigma:
            scores.insert(at + 1, "difference_sigma", difference_sigma(predictor, vectors, parent))
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
