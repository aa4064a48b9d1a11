"""The network, its optimizer and its losses: two vectors of a pair in, one number out.

M networks of one shape are one module: its tensors, inputs and outputs have a leading axis, G for
inputs, of which each is read by M / G consecutive members. B pairs of a batch, G training sets, M
members, I inputs and O outputs of a layer; N antibodies and their width D, E antigens' width, K
that of features, H that of the first layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn import functional
from torch.optim.adamw import adamw

from abag.core.arrays import Floats
from abag.embed.tables.chains import KINDS, Kind
from abag.head.models.pair_vectors import (
    Arrays,
    FeatureScaling,
    NetworkSettings,
    PairModel,
    PairVectors,
    Standardizer,
    given_features,
)

MAX_GRADIENT_NORM = 1.0
"""Of one member; larger gradients are scaled down to it."""
NORM_EPS = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""
PREFIX = "model."
"""Of the names of a network's weights among its arrays."""
PAIRS_PER_BATCH = 4096
"""Pairs whose hidden layer is computed at a time, so that it stays in the CPU's cache."""


# a single member has the operations, and the bits, of torch's own layers


class _Linear(nn.Module):
    """Apply M linear layers, from (G, B, I) to (M, B, O)."""

    def __init__(self, members: int, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, outer, inner))
        self.bias = nn.Parameter(torch.empty(members, outer))

    def draw(self, member: int, generator: torch.Generator) -> None:
        weight_OI = self.weight[member]
        bias_O = self.bias[member]
        nn.init.kaiming_uniform_(weight_OI, a=math.sqrt(5), generator=generator)
        bound = 1 / math.sqrt(weight_OI.shape[1])
        nn.init.uniform_(bias_O, -bound, bound, generator=generator)

    def forward(self, x_GBI: Tensor) -> Tensor:
        members, outer, inner = self.weight.shape
        if members == 1:
            return functional.linear(x_GBI, self.weight[0], self.bias[0])
        # The members of a training set side by side: its vectors are read once for all of them.
        # The weights come first, or their gradient would be transposed and have to be copied.
        w_GHI = self.weight.view(len(x_GBI), -1, inner)
        y_GHB = torch.baddbmm(self.bias.view(len(x_GBI), -1, 1), w_GHI, x_GBI.mT)
        return y_GHB.view(members, outer, -1).mT.float()


class _LayerNorm(nn.Module):
    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, width))
        self.bias = nn.Parameter(torch.zeros(members, width))

    def forward(self, x_MBI: Tensor) -> Tensor:
        shape = x_MBI.shape[-1:]
        if len(self.weight) == 1:
            return functional.layer_norm(x_MBI, shape, self.weight[0], self.bias[0])
        normed_MBI = functional.layer_norm(x_MBI, shape)
        return torch.addcmul(self.bias[:, None], normed_MBI, self.weight[:, None])


class _Dropout(nn.Module):
    """Drop units by random numbers that all members share; their units are unrelated.

    A member `of_stack` has these numbers also when the others have left.
    """

    rate_M: Tensor

    def __init__(self, rates: Sequence[float], *, of_stack: bool) -> None:
        super().__init__()
        # members of one rate share a mask
        distinct = rates if len({*rates}) > 1 else rates[:1]
        self.register_buffer("rate_M", torch.tensor(distinct), persistent=False)
        self.rates = rates
        self.of_stack = of_stack
        self.generator: torch.Generator | None = None

    def forward(self, x_MBI: Tensor) -> Tensor:
        if not (self.training and max(self.rates) > 0):
            return x_MBI
        if self.of_stack:
            noise_BI = torch.rand(x_MBI.shape[1:], device=x_MBI.device, generator=self.generator)
            rate_M11 = self.rate_M[:, None, None]
            return x_MBI * ((noise_BI >= rate_M11) / (1 - rate_M11))
        if self.generator is None:  # one kernel on a GPU
            return functional.dropout(x_MBI, self.rates[0])
        kept = 1 - self.rates[0]
        return x_MBI * torch.empty_like(x_MBI).bernoulli_(kept, generator=self.generator).div_(kept)


class Mlp(nn.Module):
    """Predict from joined vectors by blocks of linear, LayerNorm, GELU and dropout; M networks."""

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int],
        dropout_M: Sequence[float],
        *,
        of_stack: bool = False,
    ) -> None:
        super().__init__()
        members = len(dropout_M)
        blocks = list[nn.Module]()
        for inner, outer in pairwise((inputs, *widths)):
            blocks += [_Linear(members, inner, outer), _LayerNorm(members, outer)]
            blocks += [nn.GELU(), _Dropout(dropout_M, of_stack=of_stack)]
        self.layers = nn.Sequential(*blocks, _Linear(members, widths[-1], 1))

    @torch.no_grad()
    def draw(self, seeds: Sequence[int]) -> None:
        """Draw the initial weights of each member, which depend on its seed alone."""
        for member, seed in enumerate(seeds):
            generator = torch.Generator().manual_seed(seed)
            for layer in self.layers:
                if isinstance(layer, _Linear):
                    layer.draw(member, generator)

    def use_generator(self, generator: torch.Generator) -> None:
        """Draw dropout from this generator, so that other threads can draw meanwhile."""
        for layer in self.layers:
            if isinstance(layer, _Dropout):
                layer.generator = generator

    def forward(self, *inputs: Tensor) -> Tensor:
        """Predict pairs: (G, B, D), (G, B, E) and perhaps (G, B, K) in, (M, B) in float32 out."""
        scores_MB1: Tensor = self.layers(torch.cat(inputs, dim=-1))
        return scores_MB1.squeeze(-1).float()


class AdamW:
    """Update M members by AdamW with torch's fused kernel; biases and norms do not decay.

    With `alike`, all members have the decay and rate of the first, and one call updates them.

    References
    ----------
    Loshchilov and Hutter, Decoupled weight decay regularization, arXiv 1711.05101.
    """

    def __init__(
        self, model: nn.Module, decay_M: Sequence[float], lr_M: Tensor, *, alike: bool
    ) -> None:
        self.lr_M = lr_M
        self.alike = alike
        self.named = dict(model.named_parameters())
        self.state = dict[str, Tensor]()
        for name, parameter in self.named.items():
            device = parameter.device
            self.state[f"{name}.mean"] = torch.zeros(parameter.shape, device=device)
            self.state[f"{name}.square"] = torch.zeros(parameter.shape, device=device)
            self.state[f"{name}.step"] = torch.zeros(lr_M.shape, device=device)
        matrices = [name for name, parameter in self.named.items() if parameter.ndim > 2]
        rest = [name for name in self.named if name not in matrices]
        self.groups = list[tuple[int, list[str], float]]()
        for member, decay in enumerate(decay_M[:1] if alike else decay_M):
            self.groups.append((member, matrices, decay))
            self.groups.append((member, rest, 0.0))

    def tensors(self) -> dict[str, Tensor]:
        """Return the moments and steps of all members by name: the live tensors."""
        if self.alike:  # the kernel counts the steps of the first member
            for name in self.named:
                self.state[f"{name}.step"][1:] = self.state[f"{name}.step"][0]
        return self.state

    def clear(self) -> None:
        """Drop the gradients of the last step."""
        for parameter in self.named.values():
            parameter.grad = None

    @torch.no_grad()
    def update(self) -> None:
        """Clip the gradients of each member and take a step with them."""
        clip_members([p.grad for p in self.named.values() if p.grad is not None])
        for member, names, decay in self.groups:
            parameters = [self.named[name] for name in names]
            gradients = [parameter.grad for parameter in parameters]
            means = [self.state[f"{name}.mean"] for name in names]
            squares = [self.state[f"{name}.square"] for name in names]
            steps = [self.state[f"{name}.step"] for name in names]
            adamw(
                self._of_member(member, parameters),
                self._of_member(member, gradients),
                self._of_member(member, means),
                self._of_member(member, squares),
                [],  # the maxima of AMSGrad, which is off
                [step[member] for step in steps],
                fused=True,
                capturable=self.lr_M.is_cuda,
                amsgrad=False,
                maximize=False,
                lr=self.lr_M[member],
                beta1=0.9,
                beta2=0.999,
                weight_decay=decay,
                eps=1e-8,
            )

    def _of_member(self, member: int, tensors: Iterable[Tensor | None]) -> list[Tensor]:
        return [t if self.alike else t[member] for t in tensors if t is not None]


def clip_members(gradients: Sequence[Tensor]) -> None:
    """Clip each member's gradients, of shape (M, ...), in place by their norm."""
    norms = [vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    norm_M = vector_norm(torch.stack(norms), dim=0)
    scale_M = (MAX_GRADIENT_NORM / (norm_M + NORM_EPS)).clamp(max=1.0)
    scales = [scale_M.view(-1, *[1] * (gradient.ndim - 1)) for gradient in gradients]
    torch._foreach_mul_([*gradients], scales)


@dataclass(frozen=True, slots=True)
class NetworkModel(PairModel):
    """Hold one trained network, with the scaling of its inputs and output."""

    settings: NetworkSettings
    model: Mlp
    sides: Mapping[Kind, Standardizer]
    features: FeatureScaling | None = None
    """Of the features of pairs, whose columns follow the vectors; None: it reads none."""

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,) in float64; the first layer is applied once per unique sequence."""
        z = np.empty(len(vectors), np.float32)
        antibody, antigen = vectors.sides.values()
        z_ND = torch.from_numpy(self.sides["antibody"].apply(antibody.x_ND))
        z_ME = torch.from_numpy(self.sides["antigen"].apply(antigen.x_ND))
        z_PK = torch.empty(len(z), 0)
        if self.features is not None:
            z_PK = torch.from_numpy(self.features.apply(given_features(vectors)))
        first = cast("_Linear", self.model.layers[0])
        columns = [z_ND.shape[1], z_ME.shape[1], z_PK.shape[1]]
        with torch.no_grad():
            weights = first.weight[0].T.split(columns)  # type: ignore[no-untyped-call]
            weight_DH, weight_EH, weight_KH = weights
            antibody_NH = z_ND @ weight_DH
            antigen_MH = z_ME @ weight_EH + first.bias[0]
            for at in range(0, len(z), PAIRS_PER_BATCH):
                pairs = slice(at, at + PAIRS_PER_BATCH)
                antibody_B = torch.from_numpy(antibody.index[pairs].astype(np.int64))
                antigen_B = torch.from_numpy(antigen.index[pairs].astype(np.int64))
                hidden_BH = antigen_MH[antigen_B]
                if self.features is not None:
                    hidden_BH += z_PK[pairs] @ weight_KH
                hidden_BH += antibody_NH[antibody_B]
                z[pairs] = self.model.layers[1:](hidden_BH[None]).view(-1).numpy()
        return z.astype(np.float64) * self.settings.pkd_scale + self.settings.pkd_mean

    def arrays(self) -> Arrays:
        """Return weights and scaling by name, for `load`."""
        arrays = dict[str, NDArray[Any]]()
        for name, tensor in self.model.state_dict().items():
            arrays[f"{PREFIX}{name}"] = tensor[0].numpy()
        for kind, scaling in self.sides.items():
            arrays |= scaling.arrays(kind)
        if self.features is not None:
            arrays |= self.features.arrays()
        return arrays

    @classmethod
    def load(cls, arrays: Arrays, settings: NetworkSettings) -> NetworkModel:
        """Restore a network from its arrays and settings."""
        weights = {}
        for name, array in arrays.items():
            if name.startswith(PREFIX):
                weights[name.removeprefix(PREFIX)] = torch.from_numpy(array)
        sides = {kind: Standardizer.load(arrays, kind) for kind in KINDS}
        features = FeatureScaling.load(arrays) if "features.mean" in arrays else None
        return cls.of(settings, weights, sides, features)

    @classmethod
    def of(
        cls,
        settings: NetworkSettings,
        weights: Mapping[str, Tensor],
        sides: Mapping[Kind, Standardizer],
        features: FeatureScaling | None = None,
    ) -> NetworkModel:
        """Make a network with these weights, without an axis of members."""
        if min(settings.widths, default=0) < 1:
            msg = f"widths are {settings.widths}; expected one or more, each at least 1"
            raise ValueError(msg)
        # Built without memory, because an altered record may have any width.
        inputs = sum(len(scaling.mean) for scaling in sides.values())
        if features is not None:  # how many columns say what is missing, its weights tell
            inputs = weights["layers.0.weight"].shape[-1]
        with torch.device("meta"):
            model = Mlp(inputs, settings.widths, (0.0,))
        model.load_state_dict({name: t[None] for name, t in weights.items()}, assign=True)
        return cls(settings, model.eval(), sides, features)


class PredictedPairs(NamedTuple):
    """Hold the predictions and labels of a batch, each (B,)."""

    predicted_B: Tensor
    """In standard deviations of the training labels, float32."""
    target_B: Tensor
    """Labels or bounds in the same unit, float32."""
    censored_B: Tensor | None
    """int8: -1 if the true value is below the target, +1 if above, 0 if exact; None: all are."""
    antigen_B: Tensor
    """Number of the antigen, int64."""
    weight_B: Tensor
    """Share of the pair in the loss of the step, float32; 0 for padding."""


def one_sided_errors(predicted_B: Tensor, target_B: Tensor, censored_B: Tensor | None) -> Tensor:
    """Subtract the targets, (B,); an error on the allowed side of a bound is 0."""
    error_B = predicted_B - target_B
    if censored_B is None:
        return error_B
    error_B = error_B.clamp(min=0).where(censored_B < 0, error_B)
    return error_B.clamp(max=0).where(censored_B > 0, error_B)


def mse(pairs: PredictedPairs) -> Tensor:
    """Return the squared errors, (B,)."""
    return one_sided_errors(pairs.predicted_B, pairs.target_B, pairs.censored_B).square()


def huber(pairs: PredictedPairs) -> Tensor:
    """Return half of the squared errors, linear beyond 1 standard deviation, (B,)."""
    error_B = one_sided_errors(pairs.predicted_B, pairs.target_B, pairs.censored_B)
    return functional.huber_loss(error_B, torch.zeros_like(error_B), reduction="none")


def rank(pairs: PredictedPairs) -> Tensor:
    """Add to the squared error the pairwise logistic loss over weaker pairs of its antigen, (B,).

    References
    ----------
    RankNet: Burges et al., Learning to rank using gradient descent, ICML 2005.
    """
    predicted_B = pairs.predicted_B
    target_B = pairs.target_B
    censored_B = pairs.censored_B
    # Before the ranking: autograd adds up gradients in this order, and rounding depends on it.
    error_B = one_sided_errors(predicted_B, target_B, censored_B)
    stronger = target_B[..., :, None] > target_B[..., None, :]
    same_antigen = pairs.antigen_B[..., :, None] == pairs.antigen_B[..., None, :]
    comparable = stronger & same_antigen & (pairs.weight_B > 0)[..., None, :]
    if censored_B is not None:
        comparable &= (censored_B >= 0)[..., :, None] & (censored_B <= 0)[..., None, :]
    excess_BB = predicted_B[..., None, :] - predicted_B[..., :, None]
    losses_BB = functional.softplus(excess_BB) * comparable
    return losses_BB.sum(-1) / comparable.sum(-1).clamp(min=1) + error_B.square()


Loss: TypeAlias = Callable[[PredictedPairs], Tensor]
LOSSES: dict[str, Loss] = {"mse": mse, "huber": huber, "rank": rank}
"""What ``--loss`` offers; of a censored pair, a prediction within the bound costs nothing."""
