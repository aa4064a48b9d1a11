"""Where the vectors of a training lie: on the device, or in host memory beside it.

Both places give the same numbers. S steps of an epoch, A forward passes a step, B pairs a pass,
P pairs, N antibodies of width D, M antigens of width E.
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


class Tables(Protocol):
    """Where the vectors lie."""

    def begin(self, rows_SAB: NDArray[np.int64]) -> None:
        """Learn the pairs of the epoch to come."""

    def prepare(self, step: int) -> None:
        """Make the vectors of one step of the epoch ready; called outside the graph."""

    def take(self, part: int, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of forward pass ``part``; called inside the graph."""
        ...

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of any pairs, for evaluation."""
        ...


class DeviceTables:
    """Both tables on the device; a batch is two gathers."""

    def __init__(
        self, antibody_ND: Tensor, antigen_ME: Tensor, pairs: TrainingPairs, device: torch.device
    ) -> None:
        self.antibody_ND, self.antigen_ME = antibody_ND.to(device), antigen_ME.to(device)
        self.pairs = pairs

    def begin(self, rows_SAB: NDArray[np.int64]) -> None:
        """Nothing to do: the step knows its rows."""

    def prepare(self, step: int) -> None:
        """Nothing to do: the vectors are there."""

    def take(self, part: int, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """Gather one forward pass."""
        return self.read(rows_B)

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Gather any pairs."""
        return (
            self.antibody_ND.index_select(0, self.pairs.antibody_P.index_select(0, rows)),
            self.antigen_ME.index_select(0, self.pairs.antigen_P.index_select(0, rows)),
        )


class HostTables:
    """Both tables in host memory; a thread gathers the next step while this one computes."""

    def __init__(
        self,
        antibody_ND: Tensor,
        antigen_ME: Tensor,
        pairs: TrainingPairs,
        device: torch.device,
        shape_AB: tuple[int, int],
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

    def take(self, part: int, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return what ``prepare`` sent."""
        return self.on_device[0][part], self.on_device[1][part]

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Gather any pairs and send them."""
        rows = rows.cpu()
        antibody = self.tables[0].index_select(0, self.index[0][rows])
        antigen = self.tables[1].index_select(0, self.index[1][rows])
        return antibody.to(self.device), antigen.to(self.device)


@torch.no_grad()
def predict_rows(
    model: nn.Module, tables: Tables, rows: NDArray[np.int64], device: torch.device
) -> NDArray[np.float32]:
    """Score pairs in one batched pass, without dropout.

    Returns
    -------
    NDArray, shape=(len(rows),), dtype=float32
        In training standard deviations.
    """
    training = model.training
    model.eval()
    parts = [
        model(*tables.read(torch.from_numpy(chunk).to(device)))
        for chunk in np.split(rows, range(EVALUATED, len(rows), EVALUATED))
    ]
    model.train(training)
    scores: NDArray[np.float32] = torch.cat(parts).cpu().numpy()  # the one sync of an evaluation
    return scores
