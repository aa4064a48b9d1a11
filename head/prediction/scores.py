"""The columns of a prediction: pKd, sigma, and what sets each pair apart from the training set.

All that is scored gets its columns here: tables, all pairs, lists of sequences and mutants.
N sequences, C counts; P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd

from abag.head.prediction.antigen_changes import COLUMN as ANTIGEN_CHANGES
from abag.head.prediction.antigen_changes import TrainingAntigens
from abag.head.prediction.novelty import COLUMNS as NOVELTY_COLUMNS
from abag.head.prediction.novelty import Novelty

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.core.arrays import Bools, Floats
    from abag.embed.sequences.chains import Chains, Kind

SCORE_COLUMNS = (
    "pkd_predicted", "sigma", "far_antibody", "far_antigen", *NOVELTY_COLUMNS, ANTIGEN_CHANGES,
)  # fmt: skip

NewCounter: TypeAlias = Novelty | TrainingAntigens
"""What counts new things in antibodies, or in antigens."""


@dataclass(frozen=True, slots=True)
class Compared:
    """N sequences of one kind, compared with those of the training set."""

    kind: Kind
    far_vector: Bools
    """Whose vectors are far, (N,)."""
    counter: NewCounter | None
    new_NC: NDArray[np.int16]
    """What `counter` counts in them; see `count_new`."""

    def of_rows(self, index: NDArray[np.integer]) -> Compared:
        """Return the sequences of the rows of a table, given their indices."""
        return replace(self, far_vector=self.far_vector[index], new_NC=self.new_NC[index])

    def reasons(self) -> dict[str, Bools]:
        """Return which sequences are far for each reason, (N,) each."""
        by_counts = {} if self.counter is None else self.counter.reasons(self.new_NC)
        return {f"{self.kind}_vector": self.far_vector, **by_counts}

    def far(self) -> Bools:
        """Return which sequences are far for any reason, (N,)."""
        return np.asarray(np.any([*self.reasons().values()], axis=0))

    def far_rows(self, rows_N: NDArray[np.integer]) -> dict[str, int]:
        """Count the rows of far sequences by reason; each sequence has `rows_N`."""
        return {name: int(rows_N[far_N].sum()) for name, far_N in self.reasons().items()}


def count_new(counter: NewCounter | None, sequences: Sequence[Chains]) -> NDArray[np.int16]:
    """Count what is new in N sequences, (N, C); without a counter C is 0."""
    return np.zeros((len(sequences), 0), np.int16) if counter is None else counter.count(sequences)


def score_columns(
    pkd: Floats, sigma: Floats, antibodies: Compared, antigens: Compared
) -> pd.DataFrame:
    """Return the columns of P pairs, given their predictions and their sequences, P of each kind.

    Sigma grows where few training antibodies change the same regions; see `Novelty.widening`.
    """
    if isinstance(antibodies.counter, Novelty):
        sigma = sigma * antibodies.counter.widening(antibodies.new_NC)
    found = {
        "pkd_predicted": pkd,
        "sigma": sigma,
        "far_antibody": antibodies.far(),
        "far_antigen": antigens.far(),
    }
    for side in (antibodies, antigens):
        if side.counter is not None:
            found |= side.counter.columns(side.new_NC)
    return pd.DataFrame(found)
