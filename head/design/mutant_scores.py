"""Scores the mutants of parents in batches, as `abag.predict` would, and against their parents.

A mutant and its parent are predicted by the same models, whose errors they largely share, so the
sigma of a difference is not that of two predictions. It is ``spread`` (`models.sigma`)
times the standard deviation of the difference: over the joint posterior of a Gaussian process, or
else over the members of an ensemble. The residual noise is left out: what of it a mutant shares
with its parent is not known. A single network or a ridge has no such deviation.
P pairs of an antibody and an antigen in a batch: its parents, then its mutants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Floats, hex_keys
from abag.embed.sequences.chains import KINDS
from abag.embed.store.store import open_store
from abag.head.design.sites import Mutant, Parent, name_mutant
from abag.head.models.pair_vectors import Index, PairVectors, given_features
from abag.head.models.registry import MODELS
from abag.head.prediction.predictor import Scorer
from abag.head.prediction.sequences import Sequences
from abag.head.prediction.tables import row_bar

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Kind
    from abag.head.models.gaussian_process import GaussianProcess
    from abag.head.prediction.predictor import Predictor
    from abag.head.prediction.sequences import SequenceCounts

BATCH = 16_384
"""Mutants whose vectors are in memory at a time: 70 MB at IgT5's width."""

MutantOfParent: TypeAlias = tuple[int, Mutant]
"""Index of a parent, and what is changed."""


class ScoredMutants(NamedTuple):
    """Scores of mutants and of their parents."""

    frame: pd.DataFrame
    """A row per mutant: what it is, its sequences and its scores."""
    parents: pd.DataFrame
    """The columns of `Predictor.score` and ``pkd_measured`` of each parent."""
    counts: dict[Kind, SequenceCounts]
    regimes: Counter[str]
    """Mutants by regime."""
    verdicts: dict[str, str]
    """What the run has shown for these."""


def score_mutants(
    predictor: Predictor,
    store: Path,
    parents: Sequence[Parent],
    mutants: Sequence[MutantOfParent],
    measured: pd.Series,
    embed_options: Mapping[str, Any],
) -> ScoredMutants:
    """Encode what the store lacks, and score mutants; `measured` is of `read_measured`."""
    pairs = [(parent.antibody, parent.antigen) for parent in parents]
    pairs += [parents[number].mutant(changes) for number, changes in mutants]
    sides = [Sequences.of(kind, [pair[at] for pair in pairs]) for at, kind in enumerate(KINDS)]
    counts = predictor.encode(store, *sides, **embed_options)
    scorer = Scorer(predictor, open_store(store), *sides)
    first = len(parents)
    regimes, _ = scorer.count_regimes(
        scorer.count_classes(*(sequences.of_row[first:] for sequences in sides))
    )
    verdicts = predictor.say_verdicts(regimes, "mutant")
    pkd_measured = np.full(len(pairs), np.nan)
    if len(measured):
        keys = [np.array(hex_keys(sequences.keys), object)[sequences.of_row] for sequences in sides]
        pkd_measured = measured.reindex(pd.MultiIndex.from_arrays(keys)).to_numpy(np.float64)
    parent_scores, _ = scorer.score(*(sequences.of_row[:first] for sequences in sides))
    frames = []
    with row_bar("scoring", len(mutants)) as shown:
        for at in range(0, len(mutants), BATCH):
            batch = mutants[at : at + BATCH]
            numbers, parent = np.unique([number for number, _ in batch], return_inverse=True)
            rows = np.concatenate([numbers, np.arange(len(batch)) + first + at])
            index = [sequences.of_row[rows] for sequences in sides]
            scores, vectors = scorer.score(*index)
            of_pair = np.concatenate([np.arange(len(numbers)), parent])
            used = scorer.find_regimes(*index).used
            scores = _with_differences(predictor, scores, vectors, of_pair, used)
            scores = _with_likelihoods(predictor, scores, vectors, of_pair)
            frames.append(scores[len(numbers) :])
            shown.update(len(batch))
    frame = pd.concat(frames, ignore_index=True)
    if len(measured):
        frame.insert(0, "pkd_measured", pkd_measured[first:])
    described = {
        "parent": [parents[number].name for number, _ in mutants],
        "mutation": [name_mutant(changes) for _, changes in mutants],
        "chain": _joined(mutants, "chain"),
        "position": _joined(mutants, "position"),
        "region": _joined(mutants, "region"),
        "wild_type": _joined(mutants, "wild_type"),
        "mutant": ["+".join(new for _, new in changes) for _, changes in mutants],
        "heavy": [antibody[0] for antibody, _ in pairs[first:]],
        "light": [antibody[1] for antibody, _ in pairs[first:]],
        "antigen": ["|".join(antigen) for _, antigen in pairs[first:]],
    }
    frame = pd.concat([pd.DataFrame(described), frame], axis=1)
    parent_frame = parent_scores.assign(pkd_measured=pkd_measured[:first])
    return ScoredMutants(frame, parent_frame, counts, regimes, verdicts)


def _joined(mutants: Sequence[MutantOfParent], name: str) -> list[str]:
    """Return a field of the sites of each mutant, joined by ``+``."""
    return ["+".join(getattr(site, name) for site, _ in changes) for _, changes in mutants]


def _with_differences(
    predictor: Predictor,
    scores: pd.DataFrame,
    vectors: PairVectors,
    parent: Index,
    used: NDArray[np.object_],
) -> pd.DataFrame:
    """Add the difference of each pair from its parent, (P,), and its sigma if there is one.

    `used`, (P,), is the measured regime whose mixture scores a pair.
    """
    pkd = scores["pkd_predicted"].to_numpy()
    at = list(scores).index("regime")
    scores.insert(at, "difference", pkd - pkd[parent])
    if has_difference_sigma(predictor):
        sigma = spreads(predictor, used) * deviation(predictor, vectors, parent)
        scores.insert(at + 1, "difference_sigma", sigma)
    return scores


def _with_likelihoods(
    predictor: Predictor, scores: pd.DataFrame, vectors: PairVectors, parent: Index
) -> pd.DataFrame:
    """Add how far each likelihood that the run reads from the store is from that of the parent."""
    if predictor.features is None:
        return scores
    numbers_PF = given_features(vectors).numbers_RF
    added = {
        f"{column.name}_difference": values_P - values_P[parent]
        for column, values_P in zip(predictor.features.numbers, numbers_PF.T, strict=True)
        if column.head
    }
    return scores.assign(**added)


def has_difference_sigma(predictor: Predictor) -> bool:
    """Return whether sigmas of differences can be computed."""
    several = any(len(part.models) > 1 for part in predictor.parts)
    has_variance = several or any(MODELS[part.name].has_posterior for part in predictor.parts)
    return has_variance and any(regime.spread > 0 for regime in predictor.regimes.values())


def spreads(predictor: Predictor, used: NDArray[np.object_]) -> Floats:
    """Return the factor of the standard deviation in sigma, (P,), given the regimes that score."""
    return np.array([predictor.mixture(name).spread for name in used.tolist()], np.float64)


def deviation(predictor: Predictor, vectors: PairVectors, parent: Index) -> Floats:
    """Return the standard deviation of each pair's difference from its parent, (P,) in pKd."""
    model_variances = [
        cast("GaussianProcess", model).difference_variance(vectors, parent)
        for part in predictor.parts
        for model in part.models
        if MODELS[part.name].has_posterior
    ]
    if model_variances:
        return np.asarray(np.sqrt(np.mean(model_variances, axis=0)))
    several = [part.models for part in predictor.parts if len(part.models) > 1]
    variances = []
    for models in several:
        predicted = np.stack([model.predict(vectors) for model in models])
        variances.append(np.var(predicted - predicted[:, parent], axis=0))
    return np.asarray(np.sqrt(np.mean(variances, axis=0)))
