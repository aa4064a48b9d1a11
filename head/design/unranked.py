"""Candidates that a model does not rank: their one score, the draws among them, and what is said.

Candidates with the same prediction differ in sigma, and by rounding: an order by these is none of
the model. They get one score, and places that are drawn. R rows; B pairs of a batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from abag.core import messages
from abag.core.arrays import Floats, Ints
from abag.core.messages import counted
from abag.head.evaluation.regime_scores import is_by_chance
from abag.head.evaluation.ties import equal_groups
from abag.head.regimes.regimes import REGIMES, applicable

if TYPE_CHECKING:
    from abag.head.data.quantity import Quantity
    from abag.head.design.candidates import Candidates
    from abag.head.prediction.predictor import Predictor

SEED = 0
"""Of the draws among pairs with the same prediction."""
MOST_DRAWN = 0.5
"""Share of a batch that may be drawn, or ranked by chance, for its best pair to be expected."""


def number_equal(candidates: Candidates, eligible: Ints) -> Ints:
    """Number the groups of eligible candidates with the same prediction, (R,); -1: in none."""
    mean = candidates.mean[eligible]
    sigma = np.zeros(len(mean)) if candidates.sigma is None else candidates.sigma[eligible]
    groupings = list[Ints]()
    if "regime" in candidates.frame:
        regime = pd.factorize(candidates.frame["regime"].iloc[eligible])[0]
        antigen = candidates.antigens.of_row[eligible]
        groupings = [regime, regime * (antigen.max(initial=0) + 1) + antigen]
    group = np.full(len(candidates.mean), -1)
    group[eligible] = equal_groups(mean, sigma, groupings)
    return group


def levelled(candidates: Candidates, equal: Ints) -> Candidates:
    """Return candidates of which a group has one prediction and one sigma, its medians."""
    frame = candidates.frame
    levels = {}
    for name in frame.columns.intersection(["mean", "sigma"]):
        medians = frame[name].groupby(equal).transform("median")
        # those in no group have the number -1, and keep their values
        levels[name] = frame[name].mask(equal >= 0, medians)
    return replace(candidates, frame=frame.assign(**levels))


def draw_places(equal: Ints) -> Floats:
    """Return what orders candidates of the same score: as they come, or drawn if in a group."""
    place = np.arange(len(equal), dtype=np.float64)
    grouped = np.flatnonzero(equal >= 0)
    place[grouped] = np.random.default_rng(SEED).permutation(len(equal))[: len(grouped)]
    return place


def count_drawn(equal: Ints, chosen: Ints) -> int:
    """Count the chosen pairs of groups of which others could have been chosen as well."""
    if (equal == 0).all():
        return len(chosen)  # their order is drawn, even if there are no others
    groups, drawn = np.unique(chosen[chosen >= 0], return_counts=True)
    sizes = np.bincount(equal[equal >= 0])[groups]
    return int(drawn[drawn < sizes].sum())


def say_unranked(
    candidates: Candidates,
    equal: Ints,
    batch: Ints,
    drawn: int,
    quantity: Quantity,
    predictor: Predictor | None,
) -> str | None:
    """Say what the model does not rank; return why the batch is no choice of it, if so."""
    pairs = len(equal)
    size = len(batch)
    if pairs > 1 and (equal == 0).all():
        why = f"all {counted(pairs, 'candidate')} have the same prediction"
        prediction = quantity.show(quantity.sign * candidates.mean[batch[0]])
        messages.say(
            f"{candidates.source}: {why}, {quantity} {prediction}: the model cannot rank them, and "
            f"the batch is drawn at random (seed {SEED}). Measure it and fit again, or fit with "
            "other encoders"
        )
        return why
    if drawn:
        tied = int((equal >= 0).sum())
        why = (
            f"{drawn:,} of {counted(size, 'pair')} are drawn at random (seed {SEED}) from "
            f"{counted(tied, 'candidate')} with the same predictions, which the model cannot rank"
        )
        messages.say(f"{candidates.source}: {why}")
        if drawn > MOST_DRAWN * size:
            return why
    if predictor is None or "regime" not in candidates.frame:
        return None
    rows_of = candidates.frame["regime"].iloc[batch].astype(str).value_counts().to_dict()
    by_chance = [name for name in rows_of if name in REGIMES and not _is_ranked(name, predictor)]
    unranked = sum(rows_of[name] for name in by_chance)
    if not unranked:
        return None
    words = ", ".join(map(predictor.words, by_chance))
    why = (
        f"{unranked:,} of {counted(size, 'pair')} are of a kind that the run has not ranked better "
        f"than chance ({words})"
    )
    messages.say(f"{candidates.source}: {why}")
    return why if unranked > MOST_DRAWN * size else None


def _is_ranked(regime: str, predictor: Predictor) -> bool:
    """Return whether nothing says that the run ranks pairs of a regime by chance.

    The evidence is of the regime itself, or of a newer one that was measured in its place.
    """
    is_covered, used = applicable(REGIMES[regime], predictor.regimes)
    return is_covered and not is_by_chance(predictor.regimes[used].verdict)
