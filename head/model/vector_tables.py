"""Where the vectors of a training lie: on the device, or in host memory beside it.

Both places give the same numbers. S steps of an epoch, A forward passes a step, B pairs a pass,
P pairs, N antibodies of width D, M antigens of width E. Where several heads train in one step,
rows have an axis of feeds before B, and so has all that is gathered by them.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from numpy.typing import NDArray

EVALUATED = 16384
"""Pairs a pass of an evaluation: 150 MB of inputs at the real widths."""


@dataclass(frozen=True, slots=True)
class TrainingPairs:
    """What training knows of each pair, standardised, on the device."""

    antibody_P: Tensor
    antigen_P: Tensor
    target_P: Tensor
    censored_P: Tensor


@dataclass(frozen=True, slots=True)
class VectorSource:
    """Where one forward pass finds its vectors: in tables to gather from, or gathered already."""

    antibody_ND: Tensor
    antigen_ME: Tensor
    gathered: bool

    def read(self, pairs: TrainingPairs, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of pairs; inside the compiled step, so that gathering is fused."""
        if self.gathered:
            return self.antibody_ND, self.antigen_ME
        return (
            pick(self.antibody_ND, pick(pairs.antibody_P, rows_B)),
            pick(self.antigen_ME, pick(pairs.antigen_P, rows_B)),
        )


def pick(table: Tensor, index: Tensor) -> Tensor:
    """Gather along the first axis by an index of any shape."""
    return table.index_select(0, index.flatten()).view(*index.shape, *table.shape[1:])


class VectorTables(Protocol):
    """Where the vectors lie."""

    def begin(self, rows_SAB: NDArray[np.int64]) -> None:
        """Learn the pairs of the epoch to come."""

    def prepare(self, step: int) -> None:
        """Make the vectors of one step of the epoch ready; called outside the graph."""

    def take(self, part: int) -> VectorSource:
        """Say where forward pass ``part`` finds its vectors; called inside the graph."""
        ...

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of any pairs, for evaluation."""
        ...


class DeviceVectorTables:
    """Both tables on the device; a batch is two gathers.

    Training reads them in the precision of its products: half of it is half the bytes to gather.
    """

    def __init__(
        self,
        antibody_ND: Tensor,
        antigen_ME: Tensor,
        pairs: TrainingPairs,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        antibody_ND, antigen_ME = antibody_ND.to(device), antigen_ME.to(device)
        self.source = VectorSource(antibody_ND, antigen_ME, gathered=False)
        self.training = VectorSource(antibody_ND.to(dtype), antigen_ME.to(dtype), gathered=False)
        self.pairs = pairs

    def begin(self, rows_SAB: NDArray[np.int64]) -> None:
        """Nothing to do: the step knows its rows."""

    def prepare(self, step: int) -> None:
        """Nothing to do: the vectors are there."""

    def take(self, part: int) -> VectorSource:
        """Every pass gathers from the tables."""
        return self.training

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return any pairs."""
        return self.source.read(self.pairs, rows)


class HostVectorTables:
    """Both tables in host memory; a thread gathers the next step while this one computes."""

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
        # Two of each: one is copied to the device while the other is filled.
        self.staged = [
            [torch.empty(*shape_AB, width, pin_memory=pinned) for width in widths] for _ in range(2)
        ]
        self.copied: list[torch.cuda.Event | None] = [None, None]
        self.rows_SAB = torch.empty(0, dtype=torch.int64)
        self.thread = ThreadPoolExecutor(1)
        self.ready: dict[int, Future[None]] = {}

    def begin(self, rows_SAB: NDArray[np.int64]) -> None:
        """Learn the epoch's rows."""
        for future in self.ready.values():
            future.result()
        self.ready.clear()
        self.rows_SAB = torch.from_numpy(rows_SAB)

    def prepare(self, step: int) -> None:
        """Send one step to the device and start gathering the next."""
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
            event.synchronize()  # the copy of two steps ago still reads this buffer
        rows = self.rows_SAB[step].flatten()
        for table, index, staged in zip(
            self.tables, self.index, self.staged[step % 2], strict=True
        ):
            torch.index_select(table, 0, index[rows], out=staged.view(len(rows), -1))

    def take(self, part: int) -> VectorSource:
        """Return what ``prepare`` sent."""
        return VectorSource(self.on_device[0][part], self.on_device[1][part], gathered=True)

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Gather any pairs and send them."""
        rows = rows.cpu()
        antibody, antigen = (pick(t, i[rows]) for t, i in zip(self.tables, self.index, strict=True))
        return antibody.to(self.device), antigen.to(self.device)


@torch.no_grad()
def predict_rows(
    model: nn.Module,
    tables: VectorTables,
    rows: NDArray[np.int64],
    device: torch.device,
    members: int,
) -> NDArray[np.float32]:
    """Score pairs in batched passes, without dropout.

    Parameters
    ----------
    model : nn.Module
        One head, or a stack of ``members``.
    tables : Tables
    rows : NDArray, shape=(R,), dtype=int64
        Of a stack (G, R): the pairs of each feed.
    device : torch.device
    members : int

    Returns
    -------
    NDArray, shape=(members, R), dtype=float32
        In training standard deviations.
    """
    training = model.training
    model.eval()
    size = max(1, EVALUATED // members)
    parts = [
        model(*tables.read(torch.from_numpy(rows[..., at : at + size]).to(device)))
        for at in range(0, max(1, rows.shape[-1]), size)
    ]
    model.train(training)
    scores: NDArray[np.float32] = torch.cat(parts, -1).cpu().numpy()  # an evaluation's one sync
    return scores.reshape(members, -1)
