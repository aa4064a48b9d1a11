"""Predictions of fitted parts, kept until the run has finished, so that a stopped one loses little.

Only folds are kept: what weighs and scores them is their predictions. P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from abag.core.files import make_folder
from abag.core.messages import detail, say

if TYPE_CHECKING:
    from pathlib import Path

    from abag.core.arrays import Floats

LEAST_SECONDS = 2.0
"""A part that took less is fitted again rather than written."""


@dataclass(frozen=True, slots=True)
class PartPredictions:
    """What a part of a fold predicts."""

    predicted: Floats
    """pKd of every pair, (P,)."""
    variance: Floats | None
    """Of the predictions in pKd^2, (P,), if the part has one."""


@dataclass(frozen=True, slots=True)
class KeptParts:
    """The parts of one fold that are kept."""

    folder: Path
    digest: str
    """Of what they were fitted to; parts of another digest are fitted again."""

    def read(self, name: str) -> PartPredictions | None:
        """Return what a part predicts, if it was kept whole."""
        folder = self.folder / name
        if not folder.is_dir():
            return None
        from abag.head.training.checkpoint import CheckpointDamaged, load_newest  # torch

        try:
            found = load_newest(folder)
        except CheckpointDamaged:
            say(f"{folder}: what was kept is damaged; it is fitted again")
            return None
        if found is None or found.state.get("digest") != self.digest:
            return None
        arrays = {name: tensor.numpy() for name, tensor in found.tensors.items()}
        detail(f"{folder}: kept, not fitted again")
        return PartPredictions(arrays["predicted"], arrays.get("variance"))

    def write(self, name: str, part: PartPredictions, seconds: float) -> None:
        """Keep what a part predicts if it took long to fit."""
        if seconds < LEAST_SECONDS:
            return
        import torch

        from abag.head.training.checkpoint import save_rotating

        arrays = {"predicted": part.predicted}
        if part.variance is not None:
            arrays["variance"] = part.variance
        folder = self.folder / name
        make_folder(folder)
        tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
        save_rotating(folder, tensors, {"digest": self.digest, "step": 0})
