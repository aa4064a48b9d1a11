"""Scores the mutants of parents in batches, as `abag.predict` would, and against their parents.

A mutant and its parent are predicted by the same models, whose errors they largely share, so the
sigma of a difference is not that of two predictions. It is ``spread`` (`models.pair_model`)
times the standard deviation of the difference: over the joint posterior of a Gaussian process, or
else over the members of an ensemble. The residual noise is left out: what of it a mutant shares
with its parent is not known. A single network or a ridge has no such deviation.

P pairs of an antibody and an antigen in a batch: its parents, then its mutants. M mutants; V
training pairs that a variance is computed from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pandas as pd

from abag.core.arrays import Floats, hex_keys
from abag.embed.sequences.chains import Chains
from abag.embed.store.store import open_store
from abag.head.design.sites import Mutant, Parent, name_mutant
from abag.head.models.pair_model import Index, PairVectors, Posterior
from abag.head.models.registry import MODELS
from abag.head.prediction.predictor import STATES, Scorer, Sequences
from abag.head.prediction.tables import row_bar, say_verdicts

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind
    from abag.head.prediction.predictor import Predictor, SequenceCounts

BATCH = 16_384
"""Mutants whose vectors are in memory at a time: 70 MB at IgT5's width."""

MutantOfParent: TypeAlias = tuple[int, Mutant]
"""Index of a parent, and what is changed."""


class MutantScorer:
    """Encodes and scores mutants of some parents.

    `measured` has the pKd of training pairs by the keys of antibody and antigen, as hex digits, for
    the column ``pkd_measured``; if it is empty, there is no such column.
    """

    def __init__(
        self, predictor: Predictor, store: Path, parents: Sequence[Parent], measured: pd.Series
    ) -> None:
        self._predictor, self._store, self._parents = predictor, store, parents
        self._measured = measured
        self.parent_scores = pd.DataFrame()
        """The columns of `Predictor.score` and ``pkd_measured`` of each parent, once scored."""
        self.counts: dict[Kind, SequenceCounts] = {}
        self.regimes = Counter[str]()
        """Mutants by regime."""

    def score(
        self, mutants: Sequence[MutantOfParent], **embed_options: Any  # noqa: ANN401
    ) -> Iterator[pd.DataFrame]:  # fmt: skip
        """Encode what the store lacks, in one go, and yield rows of the table, `BATCH` at a time.

        What the run has shown for the regimes of the mutants is said first.
        """
        pairs = [(parent.antibody, parent.antigen) for parent in self._parents]
        pairs += [self._parents[number].mutant(changes) for number, changes in mutants]
        antibodies = Sequences.of("antibody", [one for one, _ in pairs])
        antigens = Sequences.of("antigen", [one for _, one in pairs])
        counts = self._predictor.encode(self._store, antibodies, antigens, **embed_options)
        self._add(counts)
        scorer = Scorer(self._predictor, open_store(self._store), antibodies, antigens)
        self._count_regimes(scorer, antibodies, antigens)
        measured = self._find_measured(antibodies, antigens)
        first, sides = len(self._parents), (antibodies.of_row, antigens.of_row)
        own, _ = scorer.score(*(index[:first] for index in sides))
        self.parent_scores = own.assign(pkd_measured=measured[:first])
        with row_bar("scoring", len(mutants)) as shown:
            for at in range(0, len(mutants), BATCH):
                batch = mutants[at : at + BATCH]
                numbers, parent = np.unique([number for number, _ in batch], return_inverse=True)
                rows = np.concatenate([numbers, np.arange(len(batch)) + first + at])
                scores, vectors = scorer.score(*(index[rows] for index in sides))
                of_pair = np.concatenate([np.arange(len(numbers)), parent])
                frame = _with_differences(self._predictor, scores, vectors, of_pair)
                if len(self._measured):
                    frame.insert(0, "pkd_measured", measured[rows])
                described = _describe(
                    batch, self._parents, [pairs[row] for row in rows[len(numbers) :]]
                )
                kept = frame[len(numbers) :].reset_index(drop=True)
                yield pd.concat([described, kept], axis=1)
                shown.update(len(batch))

    def _add(self, counts: Mapping[Kind, SequenceCounts]) -> None:
        """Add the counts of new mutants; their parents were counted with the first ones."""
        for kind, found in counts.items():
            if kind not in self.counts:
                self.counts[kind] = found
                continue
            before, known = self.counts[kind], len({getattr(one, kind) for one in self._parents})
            before["unique"] += found["unique"] - known
            before["reused"] += found["reused"] - known
            before["encoded"] += found["encoded"]

    def _count_regimes(self, scorer: Scorer, antibodies: Sequences, antigens: Sequences) -> None:
        """Count the mutants by regime, and say what the run has shown for these."""
        first = len(self._parents)
        a = scorer.new.antibody[antibodies.of_row[first:]].astype(np.int64)
        g = scorer.new.antigen[antigens.of_row[first:]]
        pairs = np.bincount(STATES * a + g, minlength=STATES**2).reshape(STATES, STATES)
        counts = scorer.count_regimes(pairs)["regimes"]
        verdicts = {name: one.verdict for name, one in self._predictor.regimes.items()}
        say_verdicts(counts, verdicts, "mutants")
        self.regimes.update(counts)

    def _find_measured(self, antibodies: Sequences, antigens: Sequences) -> Floats:
        """Return the measured pKd of each pair, NaN where there is none."""
        keys = [np.array(hex_keys(one.keys), object)[one.of_row] for one in (antibodies, antigens)]
        if not len(self._measured):
            return np.full(len(keys[0]), np.nan)
        return self._measured.reindex(pd.MultiIndex.from_arrays(keys)).to_numpy(np.float64)


def _with_differences(
    predictor: Predictor, scores: pd.DataFrame, vectors: PairVectors, parent: Index
) -> pd.DataFrame:
    """Add the difference of each pair from its parent, (P,), and its sigma if there is one."""
    pkd, at = scores["pkd_predicted"].to_numpy(), list(scores).index("regime")
    scores.insert(at, "difference", pkd - pkd[parent])
    if has_difference_sigma(predictor):
        sigma = spreads(predictor, scores) * deviation(predictor, vectors, parent)
        scores.insert(at + 1, "difference_sigma", sigma)
    return scores


def _describe(
    batch: Sequence[MutantOfParent],
    parents: Sequence[Parent],
    pairs: Sequence[tuple[Chains, Chains]],
) -> pd.DataFrame:
    """Return the columns that say what each mutant is, and its sequences."""
    columns: dict[str, list[str]] = {
        "parent": [parents[number].name for number, _ in batch],
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
    """Return the standard deviation of the difference of each pair from its parent, (P,) in pKd.

    The predictor must be one that `has_difference_sigma`.
    """
    own = [
        cast("Posterior", model).difference_variance(vectors, parent)
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
