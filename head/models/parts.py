"""The parts that a run has, decided once, from all its pairs, for every fold and for the last fit.

A part that only some fits had would be measured and not saved, or saved with a weight that no fold
has measured. So a fold never decides by its own size what it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from abag.core.errors import RunError
from abag.head.models.pair_model import DoesNotApply
from abag.head.models.registry import MODELS, closed_forms, describe_left_out
from abag.head.models.residues import find_residue_sides

if TYPE_CHECKING:
    from abag.core.arrays import Ints
    from abag.embed.sequences.chains import Kind
    from abag.head.models.config import FitConfig
    from abag.head.models.pair_vectors import PairVectors

SUM_TOLERANCE = 1e-6
"""Largest distance from 1 of the sum of a regime's weights."""
OF_ANTIGENS = ("antigen_ridge",)
"""Models that learn from antigens alone; runs without antigens have none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """Hold the models that a run fits to each fold and to all pairs."""

    pairs: int
    """Training pairs of the last fit; whatever depends on size depends on this one."""
    models: tuple[str, ...]
    """Parts in closed form, the mean among them, in the order of `MODELS`."""
    compared: tuple[str, ...]
    """Baselines that each fold is compared with, and that are no parts."""
    left_out: tuple[str, ...]
    """What the run does not have, and why, one sentence each."""
    residue_sides: tuple[Kind, ...]
    """Sides that models of residues compare by these."""

    @classmethod
    def decide(cls, config: FitConfig, vectors: PairVectors, fits: Sequence[Ints]) -> RunParts:
        """Choose the parts that every fit of a run can have.

        Parameters
        ----------
        config : FitConfig
            Names the head.
        vectors : PairVectors
            Of all pairs, with the chains of their sequences.
        fits : sequence of ndarray
            The training pairs of each fit, indices of pairs; those of the last fit come first.

        Raises
        ------
        DoesNotApply
            If the head that was asked for does not suit the pairs of one of the fits.
        """
        head = config.filled().head
        n_pairs = len(fits[0])
        wanted = closed_forms(head, n_pairs)
        baselines = [name for name, entry in MODELS.items() if entry.is_baseline]
        reasons = [describe_left_out(n_pairs)] if config.stacks else []
        parts = []
        sides, why_none = find_residue_sides(vectors, fits)
        absent = OF_ANTIGENS if config.no_antigen else ()
        for name in dict.fromkeys((*wanted, *baselines)):
            if name in absent:
                continue
            reason = why_none if MODELS[name].reads == "residues" else ""
            reason = reason or _why_not(name, vectors, fits, sides)
            if reason and name == head:
                msg = f"{name}: {reason}"
                raise DoesNotApply(msg)
            if reason:
                reasons.append(f"{name} left out: {reason}")
            else:
                parts.append(name)
        return cls(
            pairs=n_pairs,
            models=tuple(name for name in parts if name in wanted),
            compared=tuple(name for name in parts if name not in wanted),
            left_out=tuple(filter(None, reasons)),
            residue_sides=sides,
        )

    def training_config(self, config: FitConfig) -> FitConfig:
        """Return the options of networks, with the batch that suits the pairs of the last fit."""
        if config.network is None:
            return config
        return replace(config, batch_size=config.fitting_batch(self.pairs)[0])


def _why_not(name: str, vectors: PairVectors, fits: Sequence[Ints], sides: tuple[Kind, ...]) -> str:
    """Return why a model does not suit the training pairs of one of the fits, or nothing."""
    check = MODELS[name].check
    if check is None:
        return ""
    try:
        for rows in fits:
            check(vectors, rows, sides)
    except DoesNotApply as error:
        return str(error).removeprefix(f"{name}: ")
    return ""


def check_weights(regime: str, weights: Mapping[str, float], parts: Iterable[str]) -> None:
    """Raise `RunError` unless the weights of a regime add up to 1 over the given parts."""
    names = set(parts)
    total = sum(weight for name, weight in weights.items() if name in names)
    if abs(total - 1) > SUM_TOLERANCE:
        absent = sorted(weights.keys() - names)
        lacking = f", as {', '.join(absent)} is not there" if absent else ""
        msg = (
            f"regime {regime}: the weights of the predictor's parts add up to {total:.6g}{lacking};"
            " expected 1."
        )
        raise RunError(msg)
