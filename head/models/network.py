"""A trained network as a model of pairs, with the scaling of its inputs and output.

The first layer is linear in the joined vectors, so its product splits into a term per antibody and
a term per antigen, computed once per sequence. Per pair there remain their sum and the narrow
layers behind it, a twentieth of the arithmetic. torch is imported when a network is used.

N antibodies, M antigens, D and E their widths; B pairs; H width of the first layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from abag.core.arrays import Floats
from abag.embed.sequences.chains import KINDS
from abag.head.data.vectors import Standardizer
from abag.head.models.pair_model import Arrays, PairVectors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from abag.head.models.layers import Mlp

PREFIX = "model."
"""Of the names of a network's weights among its arrays."""
PAIRS_PER_BATCH = 4096
"""Pairs whose hidden layer is computed at a time, so that it stays in the CPU's cache."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Hidden widths of a network, and the scaling of its output to pKd."""

    widths: tuple[int, ...]
    pkd_mean: float
    pkd_scale: float


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """One trained network."""

    settings: NetworkSettings
    model: Mlp
    antibody: Standardizer
    antigen: Standardizer

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,); see `PairModel`."""
        import torch

        z = np.empty(len(vectors.antibody), np.float32)
        with torch.no_grad():
            antibodies, antigens, combine = factorise(self.model, vectors.antibody_ND.shape[1])
            antibody_NH = antibodies(torch.from_numpy(self.antibody.apply(vectors.antibody_ND)))
            antigen_MH = antigens(torch.from_numpy(self.antigen.apply(vectors.antigen_ME)))
            for at in range(0, len(z), PAIRS_PER_BATCH):
                pairs = slice(at, at + PAIRS_PER_BATCH)
                i, j = (
                    torch.from_numpy(index[pairs].astype(np.int64))
                    for index in (vectors.antibody, vectors.antigen)
                )
                z[pairs] = combine(antibody_NH[i], antigen_MH[j]).numpy()
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
        import torch

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
        import torch

        from abag.head.models.layers import Mlp, plain_layers

        if min(settings.widths, default=0) < 1:
            msg = f"widths are {settings.widths}; expected one or more, each at least 1"
            raise ValueError(msg)
        inputs = len(antibody.mean), len(antigen.mean)
        # Built without memory, because an altered record may have any width.
        with torch.device("meta"):
            model = Mlp(*inputs, settings.widths, plain_layers(dropout=0.0))
        model.load_state_dict(weights, assign=True)
        return cls(settings, model.eval(), antibody, antigen)


def factorise(model: Mlp, antibody_width: int) -> tuple[Callable[..., Tensor], ...]:
    """Factorise a network in evaluation mode into functions: antibodies, antigens and combine.

    ``combine(antibodies(x_ND)[i], antigens(x_ME)[j])``, of vectors (N, H) and (M, H), is the output
    of the network for the pairs (i, j), (B,), up to rounding.
    """
    first, rest = cast("nn.Linear", model.layers[0]), model.layers[1:]
    left_DH, right_EH = first.weight[:, :antibody_width].T, first.weight[:, antibody_width:].T
    return (
        lambda x_ND: x_ND @ left_DH,
        lambda x_ME: x_ME @ right_EH + first.bias,
        lambda a_BH, g_BH: cast("Tensor", rest(a_BH + g_BH)).squeeze(1),
    )
