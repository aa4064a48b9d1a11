"""Residue composition: the family that needs no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abag.embed.families.family import Encoder, Family
from abag.embed.packing.tokens import Vocabulary, residue_ids

if TYPE_CHECKING:
    from abag.core.device import DevicePlan
    from abag.embed.weights.checkpoints import EncoderCheckpoint


class _CompositionFamily(Family):
    def build(
        self, backend: str, checkpoint: EncoderCheckpoint, plan: DevicePlan, attention: str
    ) -> Encoder:
        from abag.embed.families.residue_composition import ResidueComposition

        return ResidueComposition(plan.device)


COMPOSITION = _CompositionFamily(
    name="composition",
    vocabulary=Vocabulary(residue_ids("ACDEFGHIKLMNPQRSTVWYX", 0), window=None),
    backends=("composition",),
)
