"""What the heads on residues of variants share: antibodies are columns of residues, not vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abag.core.arrays import distinct
from abag.head.closed_form.pair_model import DoesNotApply, PairVectors
from abag.head.data.one_hot import SHARED_LENGTH, OneHot, common_reference, identity

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains
    from abag.head.closed_form.pair_model import Index

LEAST_IDENTITY = 0.5
"""Mean share of residues in common with the consensus; unrelated domains have about half."""


@dataclass(frozen=True, slots=True)
class ResidueModel:
    """Base of the models that read residues; `PairVectors` must have the chains."""

    one_hot: OneHot

    def encode(self, vectors: PairVectors) -> PairVectors:
        """Put columns of residues in place of the vectors of antibodies."""
        return vectors._replace(antibody_ND=self.one_hot.encode(vectors.chains()))


def find_reference(head: str, chains: Sequence[Chains], of_pair: Index) -> tuple[str, str]:
    """Return what the antibodies of the training pairs, (F,), are compared with by a head.

    Raises
    ------
    DoesNotApply
        If they have no common length, or are unlike each other.
    """
    reference = common_reference(chains, of_pair)
    if reference is None:
        msg = (
            f"{head}: fewer than {SHARED_LENGTH:.0%} of the training pairs have antibodies "
            "of the same lengths; expected variants of one antibody, or another --head"
        )
        raise DoesNotApply(msg)
    used = trained_antibodies(chains, of_pair)
    if len(used) == 1:
        msg = (
            f"{head}: all training pairs have the same antibody; expected variants of one "
            "antibody, or another --head"
        )
        raise DoesNotApply(msg)
    shared = identity(used, reference)
    if shared < LEAST_IDENTITY:
        msg = (
            f"{head}: the training antibodies share {shared:.0%} of their residues with "
            f"their consensus; expected variants of one antibody (at least {LEAST_IDENTITY:.0%}), "
            "or another --head"
        )
        raise DoesNotApply(msg)
    return reference


def trained_antibodies(chains: Sequence[Chains], of_pair: Index) -> list[Chains]:
    """Return the distinct antibodies of the training pairs, (F,)."""
    return [chains[i] for i in distinct(of_pair).tolist()]
