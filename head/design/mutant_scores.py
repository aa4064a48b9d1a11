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
from abag.embed.store.store import open_store
from abag.head.design.sites import Mutant, Parent, name_mutant
from abag.head.models.pair_vectors import Index, PairVectors, given_features
from abag.head.models.registry import MODELS
from abag.head.prediction.mixture import variance_parts
from abag.head.prediction.predictor import Scorer
from abag.head.prediction.sequences import Sequences
from abag.head.prediction.tables import row_bar

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains, Kind
    from abag.head.models.gaussian_process import GaussianProcess
    from abag.head.prediction.predictor import Predictor
    from abag.head.prediction.sequences import SequenceCounts

BATCH = 16_384
"""Mutants whose vectors are in memory at a time: 70 MB at IgT5's width."""

OF_SITES = ("chain", "position", "region", "wild_type")
"""Columns with a value of each site of a mutant."""
DESCRIBED = ("parent", "mutation", *OF_SITES, "mutant", "heavy", "light", "antigen")

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
    antibodies, antigens = zip(*pairs, strict=True)
    sides = [Sequences.of("antibody", antibodies), Sequences.of("antigen", antigens)]
    counts = predictor.encode(store, *sides, **embed_options)
    scorer = Scorer(predictor, open_store(store), *sides)
    first = len(parents)
    of_mutants = [sequences.of_row[first:] for sequences in sides]
    regimes, _ = scorer.count_regimes(scorer.count_classes(*of_mutants))
    verdicts = predictor.say_verdicts(regimes, "mutant")
    pkd_measured = np.full(len(pairs), np.nan)
    if len(measured):
        keys = []
        for sequences in sides:
            unique = np.array(hex_keys(sequences.keys), object)
            keys.append(unique[sequences.of_row])
        pkd_measured = measured.reindex(pd.MultiIndex.from_arrays(keys)).to_numpy(np.float64)
    parent_scores, _ = scorer.score(*(sequences.of_row[:first] for sequences in sides))
    frames = []
    with row_bar("scoring", len(mutants)) as shown:
        for at in range(0, len(mutants), BATCH):
            batch = mutants[at : at + BATCH]
            # the parents of the batch are scored with it: differences need their vectors
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
    described = _describe(parents, mutants, pairs[first:])
    frame = pd.concat([described, frame], axis=1)
    parent_frame = parent_scores.assign(pkd_measured=pkd_measured[:first])
    return ScoredMutants(frame, parent_frame, counts, regimes, verdicts)


def _describe(
    parents: Sequence[Parent],
    mutants: Sequence[MutantOfParent],
    pairs: Sequence[tuple[Chains, Chains]],
) -> pd.DataFrame:
    """Say of each mutant what it is; what it has of each site is joined by ``+``."""
    described: dict[str, list[str]] = {name: [] for name in DESCRIBED}
    for (number, changes), (antibody, antigen) in zip(mutants, pairs, strict=True):
        sites = [site for site, _ in changes]
        described["parent"].append(parents[number].name)
        described["mutation"].append(name_mutant(changes))
        for name in OF_SITES:
            described[name].append("+".join(getattr(site, name) for site in sites))
        described["mutant"].append("+".join(residue for _, residue in changes))
        described["heavy"].append(antibody[0])
        described["light"].append(antibody[1])
        described["antigen"].append("|".join(antigen))
    return pd.DataFrame(described)


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
    added = {}
    for column, values_P in zip(predictor.features.numbers, numbers_PF.T, strict=True):
        if column.head:  # a likelihood, not a column of the table
            added[f"{column.name}_difference"] = values_P - values_P[parent]
    return scores.assign(**added)


def has_difference_sigma(predictor: Predictor) -> bool:
    """Return whether sigmas of differences can be computed."""
    models = {part.name: part.models for part in predictor.parts}
    has_variance = bool(variance_parts(models))
    return has_variance and any(regime.spread > 0 for regime in predictor.regimes.values())


def spreads(predictor: Predictor, used: NDArray[np.object_]) -> Floats:
    """Return the factor of the standard deviation in sigma, (P,), given the regimes that score."""
    return np.array([predictor.mixture(name).spread for name in used.tolist()], np.float64)


def deviation(predictor: Predictor, vectors: PairVectors, parent: Index) -> Floats:
    """Return the standard deviation of each pair's difference from its parent, (P,) in pKd."""
    variances = []
    for part in predictor.parts:
        if MODELS[part.name].has_posterior:
            processes = [cast("GaussianProcess", model) for model in part.models]
            variances += [process.difference_variance(vectors, parent) for process in processes]
    if variances:  # as for sigma, those of ensembles count only where no model has a posterior
        return np.asarray(np.sqrt(np.mean(variances, axis=0)))
    for part in predictor.parts:
        if len(part.models) > 1:
            predicted = np.stack([model.predict(vectors) for model in part.models])
            variances.append(np.var(predicted - predicted[:, parent], axis=0))
    return np.asarray(np.sqrt(np.mean(variances, axis=0)))
