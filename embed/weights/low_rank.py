"""A low-rank change of an encoder's weights, in memory."""

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
    """What is added to an encoder's weights.

    Attributes
    ----------
    folder : Path
    name : str
        Of the folder in which it was trained; for reading only.
    digest : str
        32 hexadecimal digits over the base's weights, the adapter's and its training pairs.
    scale : float
        alpha / r.
    factors : mapping of str to (A, B)
        By module: ``A`` of shape (r, in), ``B`` of shape (out, r), float32.
    """

    folder: Path
    name: str
    digest: str
    scale: float
    factors: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]

    def merge(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight with this adapter's change added in fp32; most are returned as they are.

        Parameters
        ----------
        name : str
            As in the transformers module of the encoder, such as
            ``encoder.layer.0.attention.self.query.weight``.
        """
        import torch

        module = name.removesuffix(".weight")
        if module not in self.factors or module == name:
            return weight
        a_RI, b_OR = self.factors[module]
        return weight.float() + torch.from_numpy(np.float32(self.scale) * (b_OR @ a_RI))

    def refuse_unmerged(self, merged: Iterable[str]) -> None:
        """Refuse an adapter of which a part fits no weight: it would change less than it says.

        Raises
        ------
        AdapterMismatch
        """
        left = sorted(self.factors.keys() - {name.removesuffix(".weight") for name in merged})
        if left:
            msg = (
                f"{self.folder}: {len(left)} of its {len(self.factors)} changes fit no weight of "
                f"the encoder ({left[0]}); expected all to. Train it again with abag adapt."
            )
            raise AdapterMismatch(msg)
