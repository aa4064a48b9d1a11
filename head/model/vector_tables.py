"""The vectors of a training: on the device, or in host memory next to it.

Both give the same numbers. S steps of an epoch, A batches per step, B pairs per batch, P pairs, N
antibodies with vectors of width D, M antigens with vectors of width E. Where several heads train in
one step, rows and gathered vectors have an axis of G training sets before B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PREDICTION_BATCH, CPU_PREDICTION_BATCH = 16384, 2048
"""Pairs per forward pass of a prediction, on a GPU and a CPU: 150 and 19 MB of inputs at the usual
widths, and as much for each layer."""


@dataclass(frozen=True, slots=True)
class TrainingPairs:
    """The pairs on the device; every tensor has shape (P,)."""

    antibody_P: Tensor
    """Index of the antibody, int64."""
    antigen_P: Tensor
    """Index of the antigen, int64."""
    target_P: Tensor
    """Standardized label, float32."""
    censored_P: Tensor
    """int8: -1 if the true value is below the label, +1 if above, 0 if exact."""


class VectorTables:
    """The vectors of all sequences, and the two that form each pair.

    Parameters
    ----------
    host_shape : tuple of int, optional
        Keep the tables in host memory, and room on the device for the pairs of one step: (A, B) or
        (A, G, B). By default the tables are on the device.
    """

    def __init__(
        self,
        antibody_ND: Tensor,
        antigen_ME: Tensor,
        pairs: TrainingPairs,
        device: torch.device,
        host_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.device, place = device, device if host_shape is None else torch.device("cpu")
        self.tables = antibody_ND.to(place), antigen_ME.to(place)
        self.index = pairs.antibody_P.to(place), pairs.antigen_P.to(place)
        self.rows_SAB = torch.empty(0, dtype=torch.int64)
        self.of_step: list[Tensor] | None = None
        if host_shape is not None:
            self.of_step = [
                torch.empty(*host_shape, t.shape[1], device=device) for t in self.tables
            ]

    def begin_epoch(self, rows_SAB: NDArray[np.int64]) -> None:
        """Set the pairs of the next epoch, shape (S, A, B) or (S, A, G, B)."""
        self.rows_SAB = torch.from_numpy(rows_SAB)

    def prepare_step(self, step: int) -> None:
        """Copy the vectors of a step to the device if the tables are in host memory."""
        if self.of_step is not None:
            for target, source in zip(self.of_step, self._gather(self.rows_SAB[step]), strict=True):
                target.copy_(source)

    def batch_vectors(self, batch: int) -> tuple[Tensor, Tensor] | None:
        """Return the prepared vectors, (B, D) and (B, E); None if `read` can gather them."""
        return None if self.of_step is None else (self.of_step[0][batch], self.of_step[1][batch])

    def read(self, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """Gather the vectors of pairs, shapes (B, D) and (B, E), on the device."""
        if self.of_step is not None:
            rows_B = rows_B.cpu()
        antibody_BD, antigen_BE = self._gather(rows_B)
        return antibody_BD.to(self.device), antigen_BE.to(self.device)

    def _gather(self, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        (antibody_ND, antigen_ME), (antibody_P, antigen_P) = self.tables, self.index
        return embedding(antibody_P[rows_B], antibody_ND), embedding(antigen_P[rows_B], antigen_ME)


@torch.no_grad()
def predict_rows(
    model: nn.Module,
    tables: VectorTables,
    rows: NDArray[np.int64],
    device: torch.device,
    members: int,
) -> NDArray[np.float32]:
    """Predict pairs in batches, without dropout.

    Parameters
    ----------
    model : nn.Module
        One head, or `members` stacked heads.
    rows : NDArray, shape=(R,), dtype=int64
        For stacked heads (G, R): the pairs of each training set's members.

    Returns
    -------
    NDArray, shape=(members, R), dtype=float32
        In standard deviations of the training labels.
    """
    training = model.training
    model.eval()
    batch = PREDICTION_BATCH if device.type == "cuda" else CPU_PREDICTION_BATCH
    size = max(1, batch // members)
    parts = [
        model(*tables.read(torch.from_numpy(rows[..., at : at + size]).to(device)))
        for at in range(0, max(1, rows.shape[-1]), size)
    ]
    model.train(training)
    scores: NDArray[np.float32] = torch.cat(parts, -1).cpu().numpy()  # GPU sync
    return scores.reshape(members, -1)
