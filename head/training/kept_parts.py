"""Keep what took long to compute until the run has finished, so that a stopped one loses little.

Of fitted parts, only the predictions of folds are kept: these weigh and score them. P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from abag.core.files import make_folder
from abag.core.messages import detail, say

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from abag.core.arrays import Floats

LEAST_SECONDS = 2.0
"""What took less is computed again rather than written."""


def read_kept(folder: Path, digest: str) -> dict[str, Floats] | None:
    """Return arrays by name, if they were kept whole and depend on what `digest` hashes."""
    if not folder.is_dir():
        return None
    from abag.core.errors import DamagedFile
    from abag.head.training.checkpoint import load_newest

    try:
        checkpoint = load_newest(folder)
    except DamagedFile:
        say(f"{folder}: what was kept is damaged; it is fitted again")
        return None
    if checkpoint is None or checkpoint.state.get("digest") != digest:
        return None
    detail(f"{folder}: kept, not fitted again")
    return {name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}


def write_kept(folder: Path, digest: str, arrays: Mapping[str, Floats], seconds: float) -> None:
    """Keep arrays that took so long to compute, if that is long."""
    if seconds < LEAST_SECONDS:
        return
    import torch

    from abag.head.training.checkpoint import save_rotating

    make_folder(folder)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    save_rotating(folder, tensors, {"digest": digest, "step": 0})


@dataclass(frozen=True, slots=True)
class PartPredictions:
    """Hold what a part of a fold predicts."""

    predicted: Floats
    """pKd of every pair, (P,)."""
    variance: Floats | None
    """Variance of the predictions in pKd^2, (P,), if the part has one."""


@dataclass(frozen=True, slots=True)
class KeptParts:
    """Read and write the parts of one fold that are kept."""

    folder: Path
    digest: str
    """Digest of what they were fitted to; parts of another one are fitted again."""

    def read(self, name: str) -> PartPredictions | None:
        """Return what a part predicts, if it was kept whole."""
        arrays = read_kept(self.folder / name, self.digest)
        if arrays is None:
            return None
        return PartPredictions(arrays["predicted"], arrays.get("variance"))

    def write(self, name: str, part: PartPredictions, seconds: float) -> None:
        """Keep what a part predicts if it took long to fit."""
        arrays = {"predicted": part.predicted}
        if part.variance is not None:
            arrays["variance"] = part.variance
        write_kept(self.folder / name, self.digest, arrays, seconds)
