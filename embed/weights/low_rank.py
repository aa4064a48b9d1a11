"""Low-rank changes to an encoder's weights, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abag import AbagError

if TYPE_CHECKING:
    import torch


class AdapterMismatch(AbagError):
    """An adapter that was trained on another encoder."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Low-rank matrices that are added to an encoder's weights.

    Attributes
    ----------
    folder : Path
    name : str
        Name of the folder in which it was trained; for display only.
    digest : str
        32 hexadecimal digits over the encoder's weights, the adapter's and its training pairs.
    scale : float
        alpha / r.
    factors : mapping of str to (A, B)
        By module: ``A``, shape=(r, in), and ``B``, shape=(out, r), dtype=float32.
    """

    folder: Path
    name: str
    digest: str
    scale: float
    factors: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]

    def merge(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Add this adapter's change, if it has one for this weight.

        Parameters
        ----------
        name : str
            Name in the transformers module, such as
            ``encoder.layer.0.attention.self.query.weight``.
        weight : Tensor, shape=(out, in)

        Returns
        -------
        Tensor, shape=(out, in)
            float32 if changed, else `weight` itself.
        """
        import torch

        module = name.removesuffix(".weight")
        if module not in self.factors or module == name:
            return weight
        a_RI, b_OR = self.factors[module]
        return weight.float() + torch.from_numpy(np.float32(self.scale) * (b_OR @ a_RI))

    def check_all_merged(self, merged: Iterable[str]) -> None:
        """Check that every change was merged into one of these weights.

        Raises
        ------
        AdapterMismatch
            If a change matches no weight.
        """
        unmerged = sorted(self.factors.keys() - {name.removesuffix(".weight") for name in merged})
        if unmerged:
            msg = (
                f"{self.folder}: {len(unmerged)} of its {len(self.factors)} changes match no "
                f"weight of the encoder ({unmerged[0]}); train the adapter again with abag adapt."
            )
            raise AdapterMismatch(msg)
