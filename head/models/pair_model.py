"""What a model of pairs offers, so that predictors can average and store any of them.

The uncertainty of a prediction is sigma^2 = (spread x its standard deviation)^2 + noise^2, in pKd,
fitted to errors on pairs that no model had seen. ``--loss`` offers the entries of `LOSSES`.

P pairs, N antibodies, M antigens; D and E are the widths of their vectors; F training pairs, R rows
with errors, B pairs of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx

from abag.core.arrays import Floats, Ints, Matrix
from abag.core.errors import PredictionError, TrainingError
from abag.embed.sequences.chains import STANDARD_RESIDUES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from abag.embed.sequences.chains import Chains, Kind
    from abag.head.data.feature_scaling import PairFeatures
    from abag.head.data.labels import LabelledPairs

RATIOS = np.concatenate([[0.0], np.logspace(-4, 4, 161)])
"""Values of (spread / noise)^2 that are tried: steps of 6 % in spread / noise."""
LARGEST_RATIO = 8.0
"""Of the two parts of sigma^2 at the median deviation: the noise is at least a third of sigma, or
sigma of a pair that was trained on could be a tenth of its error."""
CENSORED_ROUNDS = 20
"""Rounds of expectation maximisation if there are censored pairs."""
SMALLEST = 1e-6
COUNTED = 4_096
"""Texts whose residues are counted at a time, which stay in the CPU's cache."""

Index: TypeAlias = NDArray[np.integer]
Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class DoesNotApply(TrainingError):
    """A model cannot be fitted to these pairs."""


@dataclass(frozen=True)
class PairVectors:
    """Vectors of unique sequences, and the two that form each pair."""

    antibody_ND: NDArray[np.float32]
    antigen_ME: NDArray[np.float32]
    antibody: Index
    """Row of `antibody_ND` of each pair, (P,)."""
    antigen: Index
    antibody_chains: Sequence[Chains] | None = None
    """The N antibodies, for models that read residues."""
    antigen_chains: Sequence[Chains] | None = None
    views: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Columns of each view of antibodies and of antigens; None: each side has one view."""
    features: PairFeatures | None = None
    """Columns of the P pairs themselves, if there are any."""

    def widths(self, side: int) -> tuple[int, ...]:
        if self.views is not None:
            return self.views[side]
        return ((self.antigen_ME if side else self.antibody_ND).shape[1],)

    def index(self, kind: Kind) -> Index:
        """Return the row of the antibody or the antigen of each pair, (P,)."""
        return self.antibody if kind == "antibody" else self.antigen

    def chains(self, kind: Kind = "antibody") -> Sequence[Chains]:
        """Return the unique antibodies or antigens; raise `PredictionError` if not known."""
        found = self.antibody_chains if kind == "antibody" else self.antigen_chains
        if found is None:
            msg = (
                "the model reads residues, but only vectors were given; expected the chains of "
                f"each {kind}, too."
            )
            raise PredictionError(msg)
        return found

    @cached_property
    def composition(self) -> PairVectors:
        """Frequencies and lengths in place of vectors, (N, 42) of antibodies and (M, 21)."""
        x_ND = _frequencies(*([chains[at] for chains in self.chains()] for at in (0, 1)))
        y_ME = _frequencies(["".join(chains) for chains in self.chains("antigen")])
        return replace(self, antibody_ND=x_ND, antigen_ME=y_ME, views=None)


def given_features(vectors: PairVectors) -> PairFeatures:
    """Return the features of pairs; raise `PredictionError` if none were given."""
    if vectors.features is None:
        msg = "the model reads features, but none were given; expected those of each pair, too."
        raise PredictionError(msg)
    return vectors.features


def _frequencies(*columns: Sequence[str]) -> Matrix:
    counts = [count_residues(texts) for texts in columns]
    lengths = [count.sum(1, keepdims=True) for count in counts]
    frequencies = [c / np.maximum(1, n) for c, n in zip(counts, lengths, strict=True)]
    return np.hstack([*frequencies, *lengths])


def count_residues(texts: Sequence[str]) -> Matrix:
    """Count each of the 20 `STANDARD_RESIDUES` in N texts, (N, 20); other letters are left out."""
    letters = len(STANDARD_RESIDUES)
    column = np.full(256, letters, np.int64)
    column[np.frombuffer(STANDARD_RESIDUES.encode(), np.uint8)] = np.arange(letters)
    counts = np.empty((len(texts), letters), np.float32)
    for at in range(0, len(texts), COUNTED):
        some = texts[at : at + COUNTED]
        cells = column.take(np.frombuffer("".join(some).encode("ascii"), np.uint8))
        row = np.repeat(np.arange(len(some)), [len(text) for text in some])
        cells += row * (letters + 1)
        found = np.bincount(cells, minlength=len(some) * (letters + 1))
        counts[at : at + COUNTED] = found.reshape(len(some), -1)[:, :-1]
    return counts


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """The training pairs that a model learns from; `ridge.impute_censored` makes all exact."""

    pairs: LabelledPairs
    vectors: PairVectors
    """Of all P pairs."""
    rows: Ints
    """Training pairs, (F,)."""
    fold: Ints
    """Inner fold of each training pair, (F,); the groups of the split stay together."""
    device: torch.device | None = None
    """GPU for the sums of a ridge; by default, and for all else, the CPU."""
    shared: dict[str, object] = field(default_factory=dict, compare=False)
    """What several models compute from these rows, so that only the first does."""
    run_pairs: int = 0
    """Training pairs of the run's fit to all pairs, by which every fold decides how it fits; 0:
    those of this fit."""
    residue_sides: tuple[Kind, ...] | None = None
    """Sides that models of residues compare by these, as the run decided; None: as suits these
    rows."""
    searches: Mapping[str, object] = field(default_factory=dict, compare=False)
    """What chooses the kernels of this fold by the columns that they see; see `kernel_search`."""

    def with_vectors(self, vectors: PairVectors) -> TrainingRows:
        return replace(self, vectors=vectors, shared={})

    @property
    def pkd(self) -> Floats:
        return self.pairs.pkd[self.rows]

    @property
    def mean(self) -> float:
        """The mean label, in which each counts as much as its weight."""
        weight = self.weight
        return float(self.pkd.mean() if weight is None else np.average(self.pkd, weights=weight))

    @property
    def size(self) -> int:
        """The number of pairs by which a model decides how to fit."""
        return self.run_pairs or len(self.rows)

    @property
    def noise_share(self) -> Floats:
        """Variance of the noise of each label, in units of that of one measurement, (F,)."""
        if self.pairs.share is not None:
            return self.pairs.share[self.rows]
        return np.asarray(1 / self.pairs.measurements[self.rows])

    @property
    def weight(self) -> Floats | None:
        """How much each label counts, with mean 1, (F,); None: all as much."""
        return None if self.pairs.share is None else label_weights(self.pairs.share[self.rows])


def label_weights(share: Floats) -> Floats:
    """Return how much labels count, with mean 1, given the variances of their noise."""
    return np.asarray(1 / share / np.mean(1 / share))


class PairModel(Protocol):
    """Predicts pairs of vectors; ``load(arrays, settings)`` of its class restores it."""

    @property
    def settings(self) -> Any:  # noqa: ANN401 - a dataclass of JSON values
        """What `load` needs beside the arrays."""

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,) in float64."""

    def variance(self, vectors: PairVectors) -> Floats | None:
        """Return the variance of each prediction in pKd^2, (P,); None if the model has none."""

    def arrays(self) -> Arrays:
        """Return what `load` needs beside the settings, by name."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Hidden widths of a network, and the scaling of its output to pKd."""

    widths: tuple[int, ...]
    pkd_mean: float
    pkd_scale: float


Fit: TypeAlias = Callable[[TrainingRows], PairModel]


def expected_labels(
    label: Floats, censored: NDArray[np.int8], mean: Floats, sigma: Floats | float
) -> tuple[Floats, Floats]:
    """Return mean and variance of hidden labels, (R,): normal, cut off at the bound if censored."""
    allowed = censored * (mean - label) / sigma  # sigmas from the bound, above 0 if it is satisfied
    ratio = np.sqrt(2 / np.pi) / erfcx(-allowed / np.sqrt(2))  # normal density / probability
    expected = np.where(censored == 0, label, mean + censored * sigma * ratio)
    left = np.clip(1 - ratio * (allowed + ratio), 0, 1)  # share of the variance
    return expected, np.where(censored == 0, 0.0, np.square(sigma) * left)


def fit_sigma(
    error: Floats, deviation: Floats, censored: NDArray[np.int8] | None = None
) -> tuple[float, float]:
    """Fit spread and noise to errors, (R,) in pKd, label or bound minus prediction."""
    square = error**2
    spread, noise = _fit_squares(square, deviation)
    if censored is None or not censored.any():
        return spread, noise
    for _ in range(CENSORED_ROUNDS):
        sigma = np.sqrt(spread**2 * deviation**2 + noise**2)
        mean, variance = expected_labels(error, censored, np.zeros_like(error), sigma)
        spread, noise = _fit_squares(mean**2 + variance, deviation)
    return spread, noise


def _fit_squares(square: Floats, deviation: Floats) -> tuple[float, float]:
    # sigma^2 = noise^2 (1 + ratio x deviation^2): the best noise for a given ratio is a mean.
    factor_KR = 1 + RATIOS[:, None] * deviation**2
    noise2_K = np.maximum(np.mean(square / factor_KR, axis=1), SMALLEST**2)
    loss_K = np.log(noise2_K) + np.mean(np.log(factor_KR), axis=1)
    loss_K[RATIOS * np.median(deviation**2) > LARGEST_RATIO] = np.inf
    best = int(np.argmin(loss_K))
    noise = np.sqrt(noise2_K[best])
    return float(noise * np.sqrt(RATIOS[best])), float(noise)


# torch is imported when a loss is computed: --help needs none


class PredictedPairs(NamedTuple):
    """The predictions and labels of a batch, each (B,); heads of a stack have an axis before B."""

    predicted_B: Tensor
    """In standard deviations of the training labels, float32."""
    target_B: Tensor
    """Labels or bounds in the same unit, float32."""
    censored_B: Tensor
    """int8: -1 if the true value is below the target, +1 if above, 0 if exact."""
    antigen_B: Tensor
    weight_B: Tensor
    """0 for padding."""


def one_sided_errors(predicted_B: Tensor, target_B: Tensor, censored_B: Tensor) -> Tensor:
    """Subtract the targets, (B,); an error on the allowed side of a bound is 0."""
    error_B = predicted_B - target_B
    error_B = error_B.clamp(min=0).where(censored_B < 0, error_B)
    return error_B.clamp(max=0).where(censored_B > 0, error_B)


def mse(pairs: PredictedPairs) -> Tensor:
    return one_sided_errors(pairs.predicted_B, pairs.target_B, pairs.censored_B).square()


def huber(pairs: PredictedPairs) -> Tensor:
    import torch
    from torch.nn.functional import huber_loss

    error_B = one_sided_errors(pairs.predicted_B, pairs.target_B, pairs.censored_B)
    return huber_loss(error_B, torch.zeros_like(error_B), reduction="none")


def rank(pairs: PredictedPairs) -> Tensor:
    """Add to the squared error the pairwise logistic loss over weaker pairs of its antigen."""
    from torch.nn.functional import softplus

    predicted_B, target_B, censored_B = pairs.predicted_B, pairs.target_B, pairs.censored_B
    # Before the ranking: autograd adds up gradients in this order, and rounding depends on it.
    error_B = one_sided_errors(predicted_B, target_B, censored_B)
    stronger = target_B[..., :, None] > target_B[..., None, :]
    certain = (censored_B >= 0)[..., :, None] & (censored_B <= 0)[..., None, :]
    same_antigen = pairs.antigen_B[..., :, None] == pairs.antigen_B[..., None, :]
    comparable = stronger & certain & same_antigen & (pairs.weight_B > 0)[..., None, :]
    losses_BB = softplus(predicted_B[..., None, :] - predicted_B[..., :, None]) * comparable
    return losses_BB.sum(-1) / comparable.sum(-1).clamp(min=1) + error_B.square()


LOSSES: dict[str, Callable[[PredictedPairs], Tensor]] = {"mse": mse, "huber": huber, "rank": rank}
