"""The arithmetic of a ridge with torch, for GPUs.

A GPU multiplies faster than it finds out which rows share a sequence, so it sums over all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints

if TYPE_CHECKING:
    from torch import Tensor


CHUNK = 8192
"""Rows converted to float64 at a time."""


class TorchColumns:
    """`abag.head.evaluation.ridge.Columns` on a device of torch.

    Parameters
    ----------
    tables : sequence of NDArray, shape=(N, D), dtype=float32
        One per block.
    index : sequence of NDArray, shape=(P,), dtype=int64
        Row of each table for each pair.
    """

    def __init__(
        self,
        tables: Sequence[NDArray[np.float32]],
        index: Sequence[Ints],
        pkd: Floats,
        device: torch.device,
    ) -> None:
        self.device = device
        self.tables = [torch.from_numpy(table).to(device) for table in tables]
        self.index = [torch.from_numpy(one).to(device) for one in index]
        self.labels_P2 = torch.from_numpy(np.stack([np.ones(len(pkd)), pkd], axis=1)).to(device)

    def gram(self, rows: Ints) -> Tensor:
        """Sum outer products; see `Columns`."""
        columns = sum(table.shape[1] for table in self.tables) + 2
        total = torch.zeros(columns, columns, dtype=torch.float64, device=self.device)
        at = torch.from_numpy(rows).to(self.device)
        for first in range(0, len(at), CHUNK):
            some = at[first : first + CHUNK]
            parts = [t[i[some]].double() for t, i in zip(self.tables, self.index, strict=True)]
            joined = torch.cat([*parts, self.labels_P2[some]], dim=1)
            total.addmm_(joined.T, joined)
        return total

    def solve(self, scatter_DD: Tensor, penalty: float, target_D: Tensor) -> Floats:
        """Solve for the weights; see `Columns`."""
        matrix = scatter_DD.clone()
        matrix.diagonal().add_(penalty)
        factor = torch.linalg.cholesky(matrix)
        return np.asarray(torch.cholesky_solve(target_D[:, None], factor)[:, 0].cpu())

    def predict(
        self, choice: Sequence[int], weights_DS: Floats, intercept_S: Floats, rows: Ints
    ) -> Floats:
        """Predict rows; see `Columns`."""
        at = torch.from_numpy(rows).to(self.device)
        predicted = torch.from_numpy(np.tile(intercept_S, (len(rows), 1))).to(self.device)
        weights, start = torch.from_numpy(weights_DS).to(self.device), 0
        for table, index in ((self.tables[i], self.index[i]) for i in choice):
            own = weights[start : start + table.shape[1]]
            chunks = range(0, len(table), CHUNK)
            of_table = [table[first : first + CHUNK].double() @ own for first in chunks]
            predicted += torch.cat(of_table)[index[at]]
            start += table.shape[1]
        return np.asarray(predicted.cpu())
