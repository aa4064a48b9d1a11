"""What models of pairs learn from: vectors of unique sequences, standardised, pairs, and labels.

Statistics are those of training rows. The interface of a model is here, too, so that predictors can
average and store any of them. Counts and frequencies of amino acids are what a model learns without
an encoder; their columns are in the order of `STANDARD_RESIDUES`.

P pairs, F of them in training, N antibodies, M antigens; D and E are the widths of their vectors.
Of features, R pairs have F columns of numbers, C columns of 0 and 1, and K = F + C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import CONSTANT, Floats, Ints, Matrix, distinct, weights_of
from abag.core.errors import PredictionError, TrainingError
from abag.embed.tables.chains import STANDARD_RESIDUES

if TYPE_CHECKING:
    import torch

    from abag.embed.store.store import EncoderFolder
    from abag.embed.tables.chains import Chains, Kind
    from abag.head.labels.features import PairFeatures
    from abag.head.labels.headers import Quantity


BLOCK = 1 << 18
"""Numbers measured or projected at a time: a whole table in float64 may not fit into memory, and
OpenBLAS would share larger products among threads, which wait for each other."""
SPREAD_FLOOR = 0.1
"""Smallest spread used, relative to the median column: columns that hardly vary are mostly noise
and would otherwise be amplified to variance 1."""
Z_LIMIT = 10.0
"""Largest standardised input: values of 39 standard deviations occur in test rows of new
antigens."""


@dataclass(frozen=True, slots=True)
class View:
    """One of the vectors that a sequence has."""

    folder: EncoderFolder
    pooling: str
    width: int


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """The vectors of all unique antibodies, or of all unique antigens, of a table."""

    views: tuple[View, ...]
    """One or more, whose vectors are joined in this order; none of antigens that nobody encodes."""
    x_ND: NDArray[np.float32]
    """Shape (N, D), dtype float32; in the order of the unique sequences."""

    @classmethod
    def read(
        cls, folders: Sequence[tuple[EncoderFolder, str]], keys: NDArray[np.uint8]
    ) -> StoredVectors:
        """Read and join a pooling of each folder."""
        views = []
        parts = []
        for folder, pooling in folders:
            part_ND = folder.read(keys, pooling)
            views.append(View(folder, pooling, part_ND.shape[1]))
            parts.append(part_ND)
        # one view is not copied: it may take most of the memory
        x_ND = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return cls(tuple(views), x_ND)

    @classmethod
    def absent(cls, number: int = 1) -> StoredVectors:
        """Return vectors of sequences that nobody encodes: one 0 each, which says nothing."""
        return cls((), np.zeros((number, 1), np.float32))

    @property
    def folder(self) -> EncoderFolder:
        """Folder of the first view."""
        return self.views[0].folder

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of a vector of each view."""
        return tuple(view.width for view in self.views) or (self.x_ND.shape[1],)

    @property
    def names(self) -> list[str]:
        """Fingerprint and pooling of each view, as config.json records them."""
        return [f"{view.folder.fingerprint}:{view.pooling}" for view in self.views]


@dataclass(frozen=True, slots=True)
class Standardizer:
    """Mean and scale that standardise the D columns of one kind of vector."""

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    """Shape (D,); one over the standard deviation, 0 for a constant column."""

    @classmethod
    def of(
        cls,
        x_ND: NDArray[np.floating],
        rows: NDArray[np.integer] | None = None,
        widths: Sequence[int] = (),
    ) -> Standardizer:
        """Measure vectors, (N, D): those of the distinct `rows`, by default all.

        Views of `widths` are scaled by the root of their number: joined, they are as long as one.
        """
        # each sequence once: one with many pairs would decide
        used = np.arange(len(x_ND)) if rows is None else distinct(rows)
        origin = x_ND[used[0]].astype(np.float64)  # near the mean: sums of squares lose no digits
        sums = []
        sums_of_squares = []
        for part in _blocks(len(used), x_ND.shape[1]):
            away_RD = x_ND[used[part]] - origin
            sums.append(away_RD.sum(axis=0))
            sums_of_squares.append(np.einsum("rd,rd->d", away_RD, away_RD))
        away = np.sum(sums, axis=0) / len(used)
        squares = np.sum(sums_of_squares, axis=0) / len(used)
        mean = origin + away
        spread = np.sqrt(np.maximum(0, squares - away**2))
        # A smaller spread is float16 rounding (2.8e-4 of the value), not signal.
        varies = spread > 5e-4 * np.abs(mean) + 1e-12
        scale = np.zeros(len(spread))
        views = np.split(np.arange(len(spread)), np.cumsum(widths)[:-1])
        for view in views:
            used = view[varies[view]]
            if len(used):
                floor = SPREAD_FLOOR * np.median(spread[used])
                scale[used] = 1 / np.maximum(spread[used], floor)
        scale /= np.sqrt(len(views))
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    @classmethod
    def identity(cls, width: int) -> Standardizer:
        """Return one that changes nothing, for columns of 0 and 1."""
        return cls(np.zeros(width, np.float32), np.ones(width, np.float32))

    def apply(self, x_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Standardise vectors and clip them to `Z_LIMIT`, shape (N, D), dtype float32."""
        # in place from here: the vectors of a table may take most of the memory
        z_ND = np.empty(x_ND.shape, np.float32)
        np.subtract(x_ND, self.mean, out=z_ND)
        z_ND *= self.scale
        return np.clip(z_ND, -Z_LIMIT, Z_LIMIT, out=z_ND)

    def project(
        self, x_ND: NDArray[np.float32], weight_D: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Multiply standardised vectors with weights, (N,), block by block to save memory."""
        parts = [self.apply(x_ND[part]) @ weight_D for part in _blocks(*x_ND.shape)]
        return np.concatenate([np.zeros(0), *parts])

    def arrays(self, kind: str) -> dict[str, NDArray[np.float32]]:
        """Return mean and scale by the names under which a predictor stores those of a kind."""
        return {f"{kind}.mean": self.mean, f"{kind}.scale": self.scale}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], kind: str) -> Standardizer:
        """Restore from the `arrays` of a predictor; KeyError or ValueError if they do not fit."""
        return cls(*_load_scaling(arrays, kind, least=1))


def _load_scaling(
    arrays: Mapping[str, NDArray[Any]], name: str, *, least: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return mean and scale of columns; KeyError or ValueError if too few or not as many."""
    mean = arrays[f"{name}.mean"]
    scale = arrays[f"{name}.scale"]
    if not mean.ndim == scale.ndim == 1 or not len(mean) == len(scale) >= least:
        msg = f"{name}.mean and {name}.scale have shapes {mean.shape} and {scale.shape}"
        raise ValueError(msg)
    return mean, scale


def _blocks(rows: int, width: int) -> list[slice]:
    """Return slices of rows that hold about `BLOCK` numbers."""
    size = max(1, BLOCK // max(1, width))
    return [slice(first, first + size) for first in range(0, rows, size)]


@dataclass(frozen=True, slots=True)
class FeatureScaling:
    """Mean and scale of F columns of numbers, of training pairs."""

    mean: Floats
    scale: Floats
    """One over the standard deviation; 0 for a column that is constant or missing in training."""

    @classmethod
    def of(cls, features: PairFeatures) -> FeatureScaling:
        """Measure the features of training pairs; missing values do not count."""
        numbers_RF = features.numbers_RF
        known_RF = np.isfinite(numbers_RF)
        count_F = np.maximum(1, known_RF.sum(axis=0))
        mean_F = np.where(known_RF, numbers_RF, 0.0).sum(axis=0) / count_F
        away_RF = np.where(known_RF, numbers_RF - mean_F, 0.0)
        spread_F = np.sqrt(np.square(away_RF).sum(axis=0) / count_F)
        varies = spread_F > CONSTANT * np.abs(mean_F)
        divisor_F = np.where(varies, spread_F, 1.0)
        scale_F = np.where(varies, 1.0 / divisor_F, 0.0)
        return cls(mean_F, scale_F)

    def apply(self, features: PairFeatures) -> Matrix:
        """Return standardised numbers, 0 where one is missing, then columns of 0 and 1: (R, K)."""
        z_RF = (features.numbers_RF - self.mean) * self.scale
        z_RF = np.clip(np.nan_to_num(z_RF, nan=0.0), -Z_LIMIT, Z_LIMIT)
        return np.hstack([z_RF.astype(np.float32), features.marks_RC])

    def arrays(self) -> dict[str, Floats]:
        """Return mean and scale by the names under which a predictor stores them."""
        return {"features.mean": self.mean, "features.scale": self.scale}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]]) -> FeatureScaling:
        """Restore from the `arrays` of a predictor; KeyError or ValueError if they do not fit."""
        return cls(*_load_scaling(arrays, "features", least=0))


COUNTED = 4_096
"""Texts whose residues are counted at a time, which stay in the CPU's cache."""
T = TypeVar("T")
Index: TypeAlias = NDArray[np.integer]
"""Rows of unique sequences, (P,)."""
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays of a model by name, as they are stored."""


def frequencies_and_lengths(*columns: Sequence[str]) -> Matrix:
    """Return the residue frequencies of each column of N texts, and then the length of each.

    The result has 21 columns per column of texts: (N, 21) for one.
    Letters other than the 20 `STANDARD_RESIDUES` count in neither.
    """
    frequencies = []
    lengths = []
    for texts in columns:
        counts = count_residues(texts)
        length = counts.sum(1, keepdims=True)
        frequencies.append(counts / np.maximum(1, length))
        lengths.append(length)
    return np.hstack([*frequencies, *lengths])


def count_residues(texts: Sequence[str]) -> Matrix:
    """Count each of the 20 `STANDARD_RESIDUES` in N texts, (N, 20); other letters are left out."""
    letters = len(STANDARD_RESIDUES)
    column = np.full(256, letters, np.int64)
    column[np.frombuffer(STANDARD_RESIDUES.encode(), np.uint8)] = np.arange(letters)
    counts = np.empty((len(texts), letters), np.float32)
    for at in range(0, len(texts), COUNTED):
        batch = texts[at : at + COUNTED]
        cells = column.take(np.frombuffer("".join(batch).encode("ascii"), np.uint8))
        row = np.repeat(np.arange(len(batch)), [len(text) for text in batch])
        cells += row * (letters + 1)
        cell_counts = np.bincount(cells, minlength=len(batch) * (letters + 1))
        counts[at : at + COUNTED] = cell_counts.reshape(len(batch), -1)[:, :-1]
    return counts


@dataclass(frozen=True, slots=True)
class SideVectors:
    """Hold the vectors of the unique sequences of one kind, and the one that each pair has."""

    x_ND: NDArray[np.float32]
    index: Index
    """Row of `x_ND` of each pair, (P,)."""
    chains: Sequence[Chains] | None = None
    """The N sequences, for models that read residues."""
    views: tuple[int, ...] = ()
    """Columns of each view; empty: there is one view."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the columns of each view."""
        return self.views or (self.x_ND.shape[1],)


@dataclass(frozen=True)
class PairVectors:
    """Hold the vectors of unique sequences, and the two that form each pair."""

    sides: Mapping[Kind, SideVectors]
    """Of antibodies, then of antigens."""
    features: PairFeatures | None = None
    """Columns of the P pairs themselves, if there are any."""

    def __len__(self) -> int:
        return len(self.sides["antibody"].index)

    def chains(self, kind: Kind) -> Sequence[Chains]:
        """Return the unique antibodies or antigens; raise `PredictionError` if not known."""
        chains = self.sides[kind].chains
        if chains is None:
            msg = (
                "the model reads residues, but only vectors were given; expected the chains of "
                f"each {kind}, too."
            )
            raise PredictionError(msg)
        return chains

    def take(self, rows: Ints) -> PairVectors:
        """Return some pairs, with the sequences of these only."""
        sides = {}
        for kind, side in self.sides.items():
            used, index = np.unique(side.index[rows], return_inverse=True)
            chains = None if side.chains is None else [side.chains[i] for i in used.tolist()]
            sides[kind] = replace(side, x_ND=side.x_ND[used], index=index, chains=chains)
        features = None if self.features is None else self.features.take(rows)
        return PairVectors(sides, features)

    def distinct(self) -> tuple[PairVectors, Ints]:
        """Return the pairs that are not alike, and the number of each pair among them, (P,)."""
        if self.features is not None:  # which may tell two pairs of the same sequences apart
            return self, np.arange(len(self))
        antibody, antigen = (side.index.astype(np.int64) for side in self.sides.values())
        number = antibody * (1 + antigen.max(initial=0)) + antigen
        _, first, of_pair = np.unique(number, return_index=True, return_inverse=True)
        if len(first) == len(self):
            return self, np.arange(len(self))
        sides = {kind: replace(side, index=side.index[first]) for kind, side in self.sides.items()}
        return PairVectors(sides), of_pair

    @cached_property
    def composition(self) -> PairVectors:
        """Replace vectors by residue frequencies and lengths, (N, 42) and (M, 21)."""
        heavy = [chains[0] for chains in self.chains("antibody")]
        light = [chains[1] for chains in self.chains("antibody")]
        antigens = ["".join(chains) for chains in self.chains("antigen")]
        columns: dict[Kind, tuple[Sequence[str], ...]]
        columns = {"antibody": (heavy, light), "antigen": (antigens,)}
        sides = {}
        for kind, texts in columns.items():
            x_ND = frequencies_and_lengths(*texts)
            sides[kind] = replace(self.sides[kind], x_ND=x_ND, views=())
        return replace(self, sides=sides)


def given_features(vectors: PairVectors) -> PairFeatures:
    """Return the features of pairs; raise `PredictionError` if none were given."""
    if vectors.features is None:
        msg = "the model reads features, but none were given; expected those of each pair, too."
        raise PredictionError(msg)
    return vectors.features


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Hold the labels of P pairs as models learn them: of classes, these are latent values."""

    pkd: Floats
    """Shape (P,); in pKd, or values of another `quantity`."""
    censored: NDArray[np.int8]
    """Shape (P,); 0: exact, -1: the true value is below the label, +1: above."""
    measurements: Ints
    """Shape (P,); how many measurements each label is of."""
    share: Floats | None
    """Shape (P,); variance of the noise of each relative to the mean; None: it is not known."""
    quantity: Quantity


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Hold the pairs that a model learns from; `ridge.impute_censored` makes all labels exact."""

    labels: Labels
    vectors: PairVectors
    """Of all P pairs."""
    rows: Ints
    """Training pairs, (F,)."""
    fold: Ints
    """Inner fold of each training pair, (F,); the groups of the split stay together."""
    device: torch.device | None = None
    """GPU for the sums of a ridge; by default, and for all else, the CPU."""
    shared: dict[str, object] = field(default_factory=dict, compare=False)
    """Values of `once` by name."""
    run_pairs: int = 0
    """Training pairs of the run's fit to all pairs, by which every fold decides how it fits; 0:
    those of this fit."""
    residue_sides: tuple[Kind, ...] | None = None
    """Sides that models of residues compare by these, as the run decided; None: as suits these
    rows."""
    seed: int = 0
    """Of what is drawn at random while a model is fitted."""
    searches: Mapping[str, Callable[[Any], Any] | None] = field(default_factory=dict, compare=False)
    """What chooses the kernels of this fold by the columns that they see: `KernelChoice`."""

    def with_vectors(self, vectors: PairVectors) -> TrainingRows:
        """Return the same rows with other vectors, and without what was computed from these."""
        return replace(self, vectors=vectors, shared={})

    @property
    def pkd(self) -> Floats:
        """Return the labels of the rows, (F,), in pKd."""
        return self.labels.pkd[self.rows]

    @property
    def mean(self) -> float:
        """Return the mean label, in which each counts as much as its weight."""
        weight = self.weight
        return float(self.pkd.mean() if weight is None else np.average(self.pkd, weights=weight))

    @property
    def size(self) -> int:
        """Return the number of pairs by which a model decides how to fit."""
        return self.run_pairs or len(self.rows)

    @property
    def noise_share(self) -> Floats:
        """Return the variance of the noise of each label relative to one measurement, (F,)."""
        if self.labels.share is not None:
            return self.labels.share[self.rows]
        return np.asarray(1 / self.labels.measurements[self.rows])

    @property
    def weight(self) -> Floats | None:
        """Return how much each label counts, with mean 1, (F,); None: all as much."""
        return weights_of(self.labels.share, self.rows)


def once(training: TrainingRows, name: str, compute: Callable[[], T]) -> T:
    """Return a value that several models need of the same rows, so that only the first computes it.

    A name has one type of value.
    """
    if name not in training.shared:
        training.shared[name] = compute()
    return cast("T", training.shared[name])


class DoesNotApply(TrainingError):
    """A model cannot be fitted to these pairs."""


class PairModel(Protocol):
    """Predict pairs of vectors; ``load(arrays, settings)`` of the class restores a model."""

    if TYPE_CHECKING:  # dataclasses would take it as the default of their field

        @property
        def settings(self) -> Any:  # noqa: ANN401 - a dataclass of JSON values
            """Return what `load` needs beside the arrays."""

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,) in float64."""

    def variance(self, vectors: PairVectors) -> Floats | None:
        """Return the variance of each prediction in pKd^2, (P,); None if the model has none."""
        return None

    def reading(self, vectors: PairVectors) -> tuple[PairModel, PairVectors]:
        """Return a model that predicts the same of what it reads of pairs, which is read once."""
        return self, vectors

    def arrays(self) -> Arrays:
        """Return what `load` needs beside the settings, by name."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Describe a network: its hidden widths, and the scaling of its output to pKd.

    It is here, and not in `network`, because that module imports torch.
    """

    widths: tuple[int, ...]
    pkd_mean: float
    """pKd of an output of 0."""
    pkd_scale: float
    """pKd per unit of the output."""


@dataclass(frozen=True, slots=True)
class TrainedHeads:
    """Hold the M heads of one split, with the best weights of each, on the CPU."""

    models: tuple[PairModel, ...]
    predicted_MP: Floats
    """pKd of every pair, predicted by each head; NaN where they have learned."""
    best_step: list[int]
    """Step of the best weights of each head."""
    steps: int
    """Steps until the last head was out of patience."""
    epochs: int
    seconds: float
    """Training time over all sessions; that of a stack of folds is divided among them."""
    resumed_from_step: int | None
    """Step of the checkpoint that this session started from; None: there was no checkpoint."""
    used: dict[str, Any]
    """Settings that the training chose itself, by their names in config.json."""


Fit: TypeAlias = Callable[[TrainingRows], PairModel]
"""Fits a model; raises `DoesNotApply` if these rows do not suit it."""
