"""Pairs as a dataset of torch.

R pairs, N antibodies, M antigens; D and E are the widths of their vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TorchPairs(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Items are ``(x, y)``: both vectors of a pair joined, (D + E,), and its pKd, ().

    Batches of a ``DataLoader`` are fetched as a whole. Made by `PairDataset.torch`.
    """

    def __init__(
        self,
        vectors: Sequence[NDArray[np.float32]],
        index: Sequence[NDArray[np.int64]],
        y: NDArray[np.float64],
        censored: NDArray[np.int8],
    ) -> None:
        self.y = torch.from_numpy(y.astype(np.float32))
        """pKd, shape (R,)."""
        # a copy: torch warns of arrays that are read-only
        self.censored = torch.from_numpy(censored.copy())
        """As `PairDataset.censored`, shape (R,)."""
        self._vectors = vectors
        self._index = index

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch([at])
        return x[0], y[0]

    def __getitems__(self, places: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return several pairs at once; a ``DataLoader`` calls this."""
        x_BD, y_B = self.batch(places)
        return list(zip(x_BD, y_B, strict=True))

    def batch(self, places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return several pairs as two tensors, (B, D + E) and (B,)."""
        at = np.asarray(places, np.int64)
        sides = [rows[index[at]] for rows, index in zip(self._vectors, self._index, strict=True)]
        return torch.from_numpy(np.concatenate(sides, axis=1)), self.y[at]
