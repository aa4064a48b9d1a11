"""A trained network as a model of pairs, with the scaling of its inputs and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from abag.core.arrays import Floats
from abag.embed.sequences.chains import KINDS
from abag.head.closed_form.pair_model import Arrays, PairVectors
from abag.head.data.scaling import Standardizer
from abag.head.model.config import FitConfig, is_used
from abag.head.model.heads import build_head
from abag.head.prediction.factorised import factorise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

PREFIX = "model."
"""Of the names of a network's weights among its arrays."""
PAIRS_PER_BATCH = 4096
"""Pairs whose hidden layer is computed at a time, so that it stays in the CPU's cache."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Shape of a network, and the scaling of its output to pKd."""

    head: str
    widths: tuple[int, ...]
    rank: int
    pkd_mean: float
    pkd_scale: float


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """One trained network."""

    settings: NetworkSettings
    model: nn.Module
    antibody: Standardizer
    antigen: Standardizer

    @torch.no_grad()
    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); see `PairModel`."""
        parts = factorise(self.model, vectors.antibody_ND.shape[1])
        antibody_NH = parts.antibody(torch.from_numpy(self.antibody.apply(vectors.antibody_ND)))
        antigen_MH = parts.antigen(torch.from_numpy(self.antigen.apply(vectors.antigen_ME)))
        z = np.empty(len(vectors.antibody), np.float32)
        for at in range(0, len(z), PAIRS_PER_BATCH):
            pairs = slice(at, at + PAIRS_PER_BATCH)
            i, j = (
                torch.from_numpy(index[pairs].astype(np.int64))
                for index in (vectors.antibody, vectors.antigen)
            )
            z[pairs] = parts.combine(antibody_NH[i], antigen_MH[j]).numpy()
        return z.astype(np.float64) * self.settings.pkd_scale + self.settings.pkd_mean

    def variance(self, vectors: PairVectors) -> None:
        """Return None: a single network has none."""

    def arrays(self) -> Arrays:
        """Return what `load` needs as named arrays."""
        weights = {f"{PREFIX}{name}": t.numpy() for name, t in self.model.state_dict().items()}
        for kind, scaling in zip(KINDS, (self.antibody, self.antigen), strict=True):
            weights |= scaling.arrays(kind)
        return weights

    @classmethod
    def load(cls, arrays: Arrays, settings: NetworkSettings) -> NetworkModel:
        """Restore a network from `arrays` and `settings`."""
        weights = {
            name.removeprefix(PREFIX): torch.from_numpy(array)
            for name, array in arrays.items()
            if name.startswith(PREFIX)
        }
        return cls.of(settings, weights, *(Standardizer.load(arrays, kind) for kind in KINDS))

    @classmethod
    def of(
        cls,
        settings: NetworkSettings,
        weights: Mapping[str, Tensor],
        antibody: Standardizer,
        antigen: Standardizer,
    ) -> NetworkModel:
        """Make a network with these weights."""
        # Built without memory, because an altered record may have any width.
        with torch.device("meta"):
            shape = {"widths": settings.widths, "rank": settings.rank, "dropout": 0.0}
            used = {name: one for name, one in shape.items() if is_used(name, settings.head)}
            config = FitConfig(head=settings.head, **used)  # type: ignore[arg-type] # it checks
            model = build_head(config, len(antibody.mean), len(antigen.mean))
        model.load_state_dict(weights, assign=True)
        return cls(settings, model.eval(), antibody, antigen)
