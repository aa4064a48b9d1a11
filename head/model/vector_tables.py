"""The vectors of a training: on the device, or in host memory next to it.

Both give the same numbers. S steps of an epoch, A batches per step, B pairs per batch, P pairs, N
antibodies with vectors of width D, M antigens with vectors of width E. Where several heads train in
one step, rows and gathered vectors have an axis of G training sets before B.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
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


def take_rows(table: Tensor, index: Tensor) -> Tensor:
    """Gather along the first axis: (N, ...) by any shape of int64 indices."""
    return table.index_select(0, index.flatten()).view(*index.shape, *table.shape[1:])


def gather_vectors(
    tables: tuple[Tensor, Tensor], index: tuple[Tensor, Tensor], rows_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Gather the vectors of pairs from the tables, by the indices of each pair's sequences.

    Returns
    -------
    tuple of Tensor, shape=(B, D) and (B, E)
    """
    (antibody_ND, antigen_ME), (antibody_P, antigen_P) = tables, index
    return (
        take_rows(antibody_ND, take_rows(antibody_P, rows_B)),
        take_rows(antigen_ME, take_rows(antigen_P, rows_B)),
    )


class DeviceVectorTables:
    """Both tables on the device; a batch is two gathers.

    Training uses a copy in the dtype of its products: bf16 halves the bytes to gather.
    """

    gathered = False
    """Whether `batch_vectors` returns gathered vectors, or the tables to gather them from."""

    def __init__(
        self,
        antibody_ND: Tensor,
        antigen_ME: Tensor,
        pairs: TrainingPairs,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.exact = antibody_ND.to(device), antigen_ME.to(device)
        self.training = self.exact[0].to(dtype), self.exact[1].to(dtype)
        self.index = pairs.antibody_P, pairs.antigen_P

    def begin_epoch(self, rows_SAB: NDArray[np.int64]) -> None:
        """Do nothing: the step gathers its rows."""

    def prepare_step(self, step: int) -> None:
        """Do nothing: the vectors are on the device."""

    def batch_vectors(self, _batch: int) -> tuple[Tensor, Tensor]:
        """Return both tables, shapes (N, D) and (M, E)."""
        return self.training

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Gather the float32 vectors of B pairs, shapes (B, D) and (B, E)."""
        return gather_vectors(self.exact, self.index, rows)


class HostVectorTables:
    """Both tables in host memory; a thread gathers the next step during the current one."""

    gathered = True

    def __init__(
        self,
        antibody_ND: Tensor,
        antigen_ME: Tensor,
        pairs: TrainingPairs,
        device: torch.device,
        shape_AB: tuple[int, ...],
    ) -> None:
        self.tables = (antibody_ND, antigen_ME)
        self.index = (pairs.antibody_P.cpu(), pairs.antigen_P.cpu())
        self.device = device
        pinned = device.type == "cuda"
        widths = (antibody_ND.shape[1], antigen_ME.shape[1])
        self.on_device = [torch.empty(*shape_AB, width, device=device) for width in widths]
        # Two buffers per kind: one is copied to the device while the other is filled.
        self.staged = [
            [torch.empty(*shape_AB, width, pin_memory=pinned) for width in widths] for _ in range(2)
        ]
        self.copied: list[torch.cuda.Event | None] = [None, None]
        self.rows_SAB = torch.empty(0, dtype=torch.int64)
        self.thread = ThreadPoolExecutor(1)
        self.ready: dict[int, Future[None]] = {}

    def begin_epoch(self, rows_SAB: NDArray[np.int64]) -> None:
        """Set the pairs of the next epoch, shape (S, A, B) or (S, A, G, B)."""
        for future in self.ready.values():
            future.result()
        self.ready.clear()
        self.rows_SAB = torch.from_numpy(rows_SAB)

    def prepare_step(self, step: int) -> None:
        """Copy a step's vectors to the device, outside the CUDA graph, and start on the next."""
        for wanted in (step, step + 1):
            if wanted < len(self.rows_SAB) and wanted not in self.ready:
                self.ready[wanted] = self.thread.submit(self._gather, wanted)
        self.ready.pop(step).result()
        for target, source in zip(self.on_device, self.staged[step % 2], strict=True):
            target.copy_(source, non_blocking=True)
        if self.device.type == "cuda":
            self.copied[step % 2] = event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()

    def _gather(self, step: int) -> None:
        event = self.copied[step % 2]
        if event is not None:
            event.synchronize()  # the copy of two steps ago may still read this buffer
        rows = self.rows_SAB[step].flatten()
        staged = self.staged[step % 2]
        for table, index, out in zip(self.tables, self.index, staged, strict=True):
            torch.index_select(table, 0, index[rows], out=out.view(len(rows), -1))

    def batch_vectors(self, batch: int) -> tuple[Tensor, Tensor]:
        """Return the prepared vectors of a batch, shapes (B, D) and (B, E)."""
        return self.on_device[0][batch], self.on_device[1][batch]

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Gather the float32 vectors of B pairs, (B, D) and (B, E), and copy them to the device."""
        antibody, antigen = gather_vectors(self.tables, self.index, rows.cpu())
        return antibody.to(self.device), antigen.to(self.device)


VectorTables = DeviceVectorTables | HostVectorTables


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
