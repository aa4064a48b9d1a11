"""Ridge regression on the joined vectors of pairs, without building a vector per pair.

The sums that a ridge needs follow from the unique vectors and how often two are paired; those of
inner folds add up, and all that does not depend on labels is computed once. The matrix is brought
to tridiagonal form by reflections. This takes as long as about two factorisations, and then a
strength costs D operations and labels D^2, where a factorisation per strength costs D^3 / 3. Large
matrices are factorised per strength by torch instead, which uses all cores or a GPU.

Censored labels are replaced by expected ones: by turns a ridge is fitted, and the mean of a normal
distribution cut off at the bound taken. The noise of a prediction is
sigma^2 = (spread x the standard deviation of the prediction)^2 + noise^2; spread and noise are
fitted to errors on pairs that no model had seen.

P pairs, R rows of them, F training pairs, N sequences, D joined columns, W with a 1 behind them, E
those of another block, S strengths, K ratios that are tried.

References
----------
Elden, BIT 17, 1977, and Golub and Van Loan, Matrix Computations, 8.3, for the tridiagonal form;
Tobin, Econometrica 26, 1958, for censored labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints, Matrix, distinct
from abag.core.cores import limit_blas
from abag.embed.tables.chains import KINDS, Kind
from abag.head.models.pair_vectors import (
    Arrays,
    FeatureScaling,
    PairModel,
    PairVectors,
    Standardizer,
    TrainingRows,
    given_features,
    once,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


PARALLEL_COLUMNS = 1500
"""Columns from which a ridge uses all cores. A smaller one is faster on one core, and with several
it waits for threads wherever another process keeps a core busy: 57 s instead of 6."""
ROUNDING = 1e-10
"""Scatter, relative to the sums it is computed from, below which it may be rounding alone."""
REFLECTED = 64
"""Columns of reflections that are applied at a time, in LAPACK's workspace."""
CHUNK = 8192
"""Rows, or unique sequences, converted to float64 at a time."""
STRENGTHS = np.logspace(-4, 3, 8)
"""Ridge strengths, in units of the mean eigenvalue of the training rows' scatter matrix."""
ROUNDS = 20
"""Ridges that are fitted to censored labels, at most."""
CLOSE = 0.01
"""Change of all censored labels at which no more ridges are fitted: in pKd, or in standard
deviations of the labels of another quantity."""
LEAST_SIGMA = 1e-6
"""Least standard deviation of errors, with which labels are expected."""
FEATURE_RATIOS = (0.1, 1.0, 10.0)
"""Variances of the features, relative to that of the vectors, that a ridge tries beside 0."""


def expected_labels(
    label: Floats, censored: NDArray[np.int8], mean: Floats, sigma: Floats | float
) -> tuple[Floats, Floats]:
    """Return mean and variance of the labels behind bounds, (R,) each, in pKd and pKd^2.

    A label is normal around `mean` with `sigma`, cut off at the bound `label` where `censored` is
    -1 (below it) or 1 (above). Where it is 0, the label is exact and its variance 0.
    """
    from scipy.special import erfcx  # takes 0.1 s, and --help lists the models that use it

    allowed = censored * (mean - label) / sigma  # sigmas from the bound, above 0 if it is satisfied
    # erfcx: far beyond the bound, density and probability are both 0 in floating point
    ratio = np.sqrt(2 / np.pi) / erfcx(-allowed / np.sqrt(2))  # normal density / probability
    expected = np.where(censored == 0, label, mean + censored * sigma * ratio)
    left = np.clip(1 - ratio * (allowed + ratio), 0, 1)  # share of the variance
    return expected, np.where(censored == 0, 0.0, np.square(sigma) * left)


class NormalEquations:
    """Solve the normal equations of a ridge with an unpenalised intercept, the last weight.

    `sums_WW` are the sums of products of columns, float64, of which the last is 1 in each row;
    `size` is the trace of those of the others over all rows of the problem.
    """

    def __init__(self, sums_WW: Tensor, size: float) -> None:
        self._rows = float(sums_WW[-1, -1])
        self._mean_D = sums_WW[:-1, -1] / self._rows
        scatter_DD = sums_WW[:-1, :-1] - self._rows * self._mean_D[:, None] * self._mean_D
        columns = len(self._mean_D)
        self._unit = float(scatter_DD.trace()) / min(self._rows, columns)
        if self._unit <= ROUNDING * size:  # all rows are equal
            scatter_DD = 0 * scatter_DD
            self._unit = 1.0
        is_small = 1 < columns < PARALLEL_COLUMNS and scatter_DD.device.type == "cpu"
        self._solver: Tridiagonal | Factorised
        self._solver = Tridiagonal(scatter_DD) if is_small else Factorised(scatter_DD)

    def solve(self, products_W: Tensor, strengths: Floats) -> Floats:
        """Return weights, (W, S), for S strengths.

        Parameters
        ----------
        products_W : Tensor, shape=(W,), dtype=float64
            Sums of the products of columns and labels.
        strengths : ndarray, shape=(S,)
            In units of the mean eigenvalue of the scatter of the rows.
        """
        labels = float(products_W[-1])
        target_D = products_W[:-1] - labels * self._mean_D
        weights_DS = self._solver.solve(target_D, strengths * self._unit)
        intercept_S = labels / self._rows - self._mean_D.cpu().numpy() @ weights_DS
        return np.vstack([weights_DS, intercept_S])


class Factorised:
    """Solve a symmetric matrix with S numbers added to its diagonal, by a Cholesky factor each."""

    def __init__(self, matrix_DD: Tensor) -> None:
        self._matrix_DD = matrix_DD

    def solve(self, target_D: Tensor, shift_S: Floats) -> Floats:
        """Return the solutions, (D, S)."""
        import torch

        solved = []
        for shift in shift_S.tolist():
            matrix_DD = self._matrix_DD.clone()
            matrix_DD.diagonal().add_(shift)
            factor_DD = torch.linalg.cholesky(matrix_DD)
            solved.append(torch.cholesky_solve(target_D[:, None], factor_DD))
        return np.asarray(torch.cat(solved, dim=1).cpu())


class Tridiagonal:
    """Do as `Factorised` on one core, with the matrix as reflections Q of a tridiagonal T: Q T Q^t.

    It has two or more columns. Reflections leave the first row as it is.
    """

    def __init__(self, matrix_DD: Tensor) -> None:
        from scipy.linalg import lapack

        columns = len(matrix_DD)
        # LAPACK counts along columns; the matrix is symmetric
        scratch_DD = matrix_DD.numpy().copy().T
        size, _ = lapack.dsytrd_lwork(columns, lower=1)
        reduced_DD, self._diagonal_D, self._beside, self._scale, _ = lapack.dsytrd(
            scratch_DD, lower=1, lwork=int(size), overwrite_a=1
        )
        self._reflections = np.asfortranarray(reduced_DD[1:, :-1])

    def solve(self, target_D: Tensor, shift_S: Floats) -> Floats:
        """Return the solutions, (D, S); raise `numpy.linalg.LinAlgError` if not positive."""
        from scipy.linalg import lapack

        turned_D = self._reflect(target_D.numpy()[:, None].copy(order="F"), "T")[:, 0]
        solved_DS = np.empty((len(turned_D), len(shift_S)), order="F")
        for at, shift in enumerate(shift_S.tolist()):
            _, _, solved_DS[:, at], info = lapack.dptsv(
                self._diagonal_D + shift, self._beside, turned_D
            )
            if info:
                msg = f"a ridge of {len(turned_D)} columns: row {info} is not positive definite"
                raise np.linalg.LinAlgError(msg)
        return self._reflect(solved_DS, "N")

    def _reflect(self, x_DS: Floats, transposed: str) -> Floats:
        """Multiply by Q, or by its transpose if "T"."""
        from scipy.linalg import lapack

        x_DS[1:], _, _ = lapack.dormqr(
            "L", transposed, self._reflections, self._scale, x_DS[1:], REFLECTED * x_DS.shape[1]
        )
        return x_DS


@dataclass(frozen=True, slots=True)
class LinearSettings:
    """Hold the part of a `LinearModel` that is no array."""

    intercept: float
    """Prediction in pKd where both standardised vectors are 0."""


@dataclass(frozen=True, slots=True)
class LinearSide:
    """Hold a linear function of the standardised vectors of one side."""

    scaling: Standardizer
    weight_D: Floats
    """Weights of the standardised vector, in pKd."""


@dataclass(frozen=True, slots=True)
class LinearModel(PairModel):
    """Predict by linear functions of both standardised vectors and an intercept."""

    settings: LinearSettings
    sides: Mapping[Kind, LinearSide]
    features: FeatureWeights | None = None

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,)."""
        pkd = np.full(len(vectors), self.settings.intercept)
        for kind, side in self.sides.items():
            if not side.weight_D.any():  # of a ridge of the other side
                continue
            of_kind = vectors.sides[kind]
            pkd += side.scaling.project(of_kind.x_ND, side.weight_D)[of_kind.index]
        if self.features is not None:
            pkd += self.features.project(vectors)
        return pkd

    def arrays(self) -> Arrays:
        """Return what `load` needs beside the settings, by name."""
        arrays: dict[str, NDArray[Any]] = {}
        for kind, side in self.sides.items():
            arrays |= side.scaling.arrays(kind)
            arrays[f"{kind}.weight"] = side.weight_D
        if self.features is not None:
            arrays |= self.features.arrays()
        return arrays

    @classmethod
    def load(cls, arrays: Arrays, settings: LinearSettings) -> LinearModel:
        """Restore from the `arrays` of a predictor."""
        sides = {}
        for kind in KINDS:
            scaling = Standardizer.load(arrays, kind)
            sides[kind] = LinearSide(scaling, arrays[f"{kind}.weight"])
        features = FeatureWeights.load(arrays) if "features.weight" in arrays else None
        return cls(settings, sides, features)


def fit_linear(
    training: TrainingRows,
    kinds: tuple[Kind, ...] = KINDS,
    model: type[LinearModel] = LinearModel,
) -> LinearModel:
    """Fit a ridge in which the vectors of some `kinds` have weights."""
    scalings, blocks = _blocks(training)
    best: RidgeFit | None = None
    imputed = training.shared.get("imputed")
    if kinds == KINDS and isinstance(imputed, ImputedRidge) and imputed.pkd is training.labels.pkd:
        best = imputed.fit
    fit, features = fit_beside_features([blocks[kind] for kind in kinds], training, best)
    weights = dict(zip(kinds, fit.weights, strict=True))
    sides = {}
    for kind, scaling in scalings.items():
        sides[kind] = LinearSide(scaling, weights.get(kind, np.zeros(len(scaling.mean))))
    return model(LinearSettings(fit.intercept), sides, features)


@dataclass(frozen=True, slots=True)
class FeatureWeights:
    """Hold a linear function of the features of a pair."""

    scaling: FeatureScaling
    weight_K: Floats
    """Weights of the standardised features, in pKd."""

    def project(self, vectors: PairVectors) -> Floats:
        """Return what the features add to the prediction of each pair, (P,)."""
        return np.asarray(self.scaling.apply(given_features(vectors)) @ self.weight_K)

    def arrays(self) -> Arrays:
        """Return what `load` needs, by name."""
        return {**self.scaling.arrays(), "features.weight": self.weight_K}

    @classmethod
    def load(cls, arrays: Arrays) -> FeatureWeights:
        """Restore from the `arrays` of a predictor."""
        return cls(FeatureScaling.load(arrays), arrays["features.weight"])


def fit_beside_features(
    blocks: Sequence[FeatureBlock], training: TrainingRows, best: RidgeFit | None = None
) -> tuple[RidgeFit, FeatureWeights | None]:
    """Fit a ridge to blocks and, where pairs have any, to their features.

    `best` is the ridge of the blocks alone, where that is known.

    All have one strength, so the inner folds choose the variance of the features relative to that
    of the blocks, too; without any, the features are left out.
    """
    rows = training.rows
    best = best or fit_ridge(blocks, training)
    features = training.vectors.features
    if features is None:
        return best, None
    scaling = FeatureScaling.of(features.take(rows))
    z_PK = scaling.apply(features)
    variance = float(z_PK[rows].var(axis=0, dtype=np.float64).sum())
    if not variance:
        return best, None
    block_variance = 0.0
    for block in blocks:
        used = distinct(block.index[rows])
        block_variance += float(block.table_ND[used].var(axis=0, dtype=np.float64).sum())
    feature_weights: FeatureWeights | None = None
    for ratio in FEATURE_RATIOS:
        stretch = np.sqrt(ratio * (block_variance or 1.0) / variance)
        block = FeatureBlock((stretch * z_PK).astype(np.float32), np.arange(len(z_PK)))
        fit = fit_ridge([*blocks, block], training)
        if _inner_error(fit, training) < _inner_error(best, training):
            best = fit._replace(weights=fit.weights[:-1])
            feature_weights = FeatureWeights(scaling, stretch * fit.weights[-1])
    return best, feature_weights


def _inner_error(fit: RidgeFit, training: TrainingRows) -> float:
    return float(np.average(np.square(fit.inner - training.pkd), weights=training.weight))


def _blocks(
    training: TrainingRows,
) -> tuple[dict[Kind, Standardizer], dict[Kind, FeatureBlock]]:
    """Return the scaling of each side and its block, computed once for these rows."""

    def compute() -> tuple[dict[Kind, Standardizer], dict[Kind, FeatureBlock]]:
        scalings = {}
        blocks = {}
        for kind, side in training.vectors.sides.items():
            scaling = Standardizer.of(side.x_ND, side.index[training.rows], side.widths)
            scalings[kind] = scaling
            blocks[kind] = FeatureBlock(scaling.apply(side.x_ND), side.index.astype(np.int64))
        return scalings, blocks

    return once(training, "blocks", compute)


def impute_censored(training: TrainingRows) -> TrainingRows:
    """Replace the bounds of censored training pairs by expected labels, as if these were exact.

    The labels are expected from the vectors and, where pairs have any, from their features.
    """
    labels = training.labels
    rows = training.rows
    bound = training.pkd
    censored = labels.censored[rows]
    if not censored.any():
        return training
    pkd = labels.pkd.copy()
    still_censored = labels.censored.copy()
    still_censored[rows] = 0
    training = replace(training, labels=replace(labels, pkd=pkd, censored=still_censored))
    _, of_kinds = _blocks(training)
    blocks = [*of_kinds.values()]
    sigma = float(bound.std())
    close = CLOSE if labels.quantity.affinity else CLOSE * max(sigma, LEAST_SIGMA)
    ridge = Ridge(blocks, rows, training.fold, training.device)
    for _ in range(ROUNDS):
        fit = ridge.fit(pkd)
        if training.vectors.features is not None:
            of_vectors = fit if training.weight is None else None
            fit, _ = fit_beside_features(blocks, training, of_vectors)
        sigma = max(sigma, LEAST_SIGMA)
        label, variance = expected_labels(bound, censored, fit.inner, sigma)
        sigma = float(np.sqrt(np.mean(np.square(label - fit.inner) + variance)))
        moved = np.abs(label - pkd[rows]).max()
        pkd[rows] = label
        if moved < close:
            break
    if training.weight is None:  # the baseline, which would sum and reduce the rows again
        training.shared["imputed"] = ImputedRidge(pkd, ridge.fit(pkd))
    return training


class ImputedRidge(NamedTuple):
    """Hold the ridge on the vectors of both sides, fitted to these labels."""

    pkd: Floats
    """Labels or expected labels of all pairs, (P,)."""
    fit: RidgeFit


@dataclass(frozen=True, slots=True)
class ConstantSettings:
    """Hold what a `ConstantModel` predicts."""

    pkd_mean: float
    """Mean label of the training pairs."""


@dataclass(frozen=True, slots=True)
class ConstantModel(PairModel):
    """Predict the mean label of the training pairs, which other models must be better than."""

    settings: ConstantSettings

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict the mean for each pair, (P,)."""
        return np.full(len(vectors), self.settings.pkd_mean)

    def arrays(self) -> Arrays:
        """Return no arrays: the settings are all."""
        return {}

    @classmethod
    def load(cls, _arrays: Arrays, settings: ConstantSettings) -> ConstantModel:
        """Restore from the settings."""
        return cls(settings)


def fit_mean(training: TrainingRows) -> ConstantModel:
    """Fit the mean label of the training pairs."""
    return ConstantModel(ConstantSettings(training.mean))


class CompositionRidge(LinearModel):
    """Predict by the frequencies of the 20 residues and the lengths of sequences."""

    __slots__ = ()

    def predict(self, vectors: PairVectors) -> Floats:
        """Predict pKd, (P,), from the chains of the sequences."""
        return LinearModel.predict(self, vectors.composition)


def fit_composition_ridge(training: TrainingRows) -> LinearModel:
    """Fit a ridge to residue frequencies and lengths."""
    composition = training.with_vectors(training.vectors.composition)
    return fit_linear(composition, model=CompositionRidge)


@dataclass(frozen=True, slots=True)
class FeatureBlock:
    """Hold one input of a ridge: a vector per unique sequence."""

    table_ND: Matrix
    index: Ints
    """Row of each pair's sequence, (P,)."""


class RidgeFit(NamedTuple):
    """Hold the ridge of the strength with the smallest error on the inner folds."""

    weights: list[Floats]
    """Weights of the columns of each block, (D,), in pKd."""
    intercept: float
    inner: Floats
    """Prediction for each training pair from the other folds, (F,); the mean for a single fold."""


def fit_ridge(blocks: Sequence[FeatureBlock], training: TrainingRows) -> RidgeFit:
    """Fit a ridge to the training rows; inner folds choose its strength."""
    ridge = Ridge(blocks, training.rows, training.fold, training.device, training.weight)
    return ridge.fit(training.labels.pkd)


class Ridge:
    """Fit ridges to the same rows, (F,), with any labels; inner folds choose their strength.

    `weight`, (F,) with mean 1, says how much each label counts; None: all as much.
    """

    def __init__(
        self,
        blocks: Sequence[FeatureBlock],
        fit_rows: Ints,
        fold: Ints,
        device: torch.device | None = None,
        weight: Floats | None = None,
    ) -> None:
        columns = sum(min(block.table_ND.shape) for block in blocks)
        self._blas_threads = 1 if columns < PARALLEL_COLUMNS else None
        self._fit_rows = fit_rows
        self._weight_F = np.ones(len(fit_rows)) if weight is None else weight
        self._folds = [np.flatnonzero(fold == k) for k in range(int(fold.max()) + 1)]
        with limit_blas(self._blas_threads):
            self._bases = [_training_span(block, fit_rows) for block in blocks]
            spanned = []
            for block, basis in zip(blocks, self._bases, strict=True):
                table_ND = block.table_ND if basis is None else block.table_ND @ basis
                spanned.append(FeatureBlock(table_ND, block.index))
            self._widths = [block.table_ND.shape[1] for block in spanned]
            self._columns = _Columns(spanned, device)
            sums = []
            for tested in self._folds:
                of_tested = None if weight is None else weight[tested]
                sums.append(self._columns.sums(fit_rows[tested], of_tested))
            total = sum(sums[1:], sums[0])
            # What rounding errors are relative to, also where rows are subtracted.
            size = float(total.diagonal()[:-1].sum())
            self._of_others = list[NormalEquations]()
            # D^2 numbers each, so those of a fold are freed before the next is factorised
            while len(self._folds) > 1 and sums:
                self._of_others.append(NormalEquations(total - sums.pop(0), size))
            self._of_all = NormalEquations(total, size)

    def fit(self, pkd: Floats) -> RidgeFit:
        """Fit to the labels of P pairs; inner folds choose the strength."""
        with limit_blas(self._blas_threads):
            y_F = pkd[self._fit_rows]
            labels_F = y_F * self._weight_F
            products = [
                self._columns.times(self._fit_rows[tested], labels_F[tested])
                for tested in self._folds
            ]
            products_W = sum(products[1:], products[0])
            inner_FS = np.full((len(y_F), len(STRENGTHS)), y_F.mean())
            for k, equations in enumerate(self._of_others):
                tested = self._folds[k]
                weights_WS = equations.solve(products_W - products[k], STRENGTHS)
                inner_FS[tested] = self._columns.predict(weights_WS, self._fit_rows[tested])
            error = ((inner_FS - y_F[:, None]) ** 2 * self._weight_F[:, None]).sum(0)
            # Among equals the strongest, which gives the mean for a single fold or pure noise.
            best = len(STRENGTHS) - 1 - int(np.argmin(error[::-1]))
            weights_W = self._of_all.solve(products_W, STRENGTHS[[best]])[:, 0]
            parts = np.split(weights_W[:-1], np.cumsum(self._widths)[:-1])
            weights = []
            for weight_R, basis in zip(parts, self._bases, strict=True):
                weights.append(weight_R if basis is None else basis @ weight_R)
            return RidgeFit(weights, float(weights_W[-1]), inner_FS[:, best])


class _Columns:
    """Hold the joined columns of blocks on a device, then a 1, and sum over their rows."""

    def __init__(self, blocks: Sequence[FeatureBlock], device: torch.device | None) -> None:
        import torch  # here: commands that fit no ridge start without torch

        self.device = device or torch.device("cpu")
        self.blocks = [
            (self._tensor(block.table_ND), self._tensor(block.index)) for block in blocks
        ]

    def _tensor(self, array: Floats | Matrix | Ints) -> Tensor:
        import torch

        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def sums(self, rows: Ints, weight: Floats | None) -> Tensor:
        """Sum products of columns over rows, (R,), each as often as its weight says: (W, W)."""
        import torch

        at = self._tensor(rows)
        seen = [(table, index[at]) for table, index in self.blocks]
        weight_R = None if weight is None else self._tensor(weight)
        grid = [[torch.empty(0)] * len(seen) for _ in seen]
        for i, left in enumerate(seen):
            grid[i][i] = _sum_squares(*left, weight_R)
            for j, right in enumerate(seen[:i]):
                grid[i][j] = _sum_products(left, right, weight_R)
                grid[j][i] = grid[i][j].T
        sums_W = self.times(rows, np.ones(len(rows)) if weight is None else weight)
        sums_DW = torch.cat([*(torch.cat(line, dim=1) for line in grid), sums_W[None, :-1]])
        return torch.cat([sums_DW, sums_W[:, None]], dim=1)

    def times(self, rows: Ints, value_R: Floats) -> Tensor:
        """Sum joined rows, (R,), times a value of each: (W,) in float64."""
        import torch

        at = self._tensor(rows)
        values = self._tensor(value_R)
        sums = []
        for table, index in self.blocks:
            used, of_row = index[at].unique(return_inverse=True)  # type: ignore[no-untyped-call]
            of_used = values.new_zeros(len(used)).index_add_(0, of_row, values)
            total = values.new_zeros(table.shape[1])
            for start in range(0, len(used), CHUNK):
                part = slice(start, start + CHUNK)
                total += of_used[part] @ table[used[part]].double()
            sums.append(total)
        return torch.cat([*sums, values.sum()[None]])

    def predict(self, weights_WS: Floats, rows: Ints) -> Floats:
        """Predict joined rows, (R,): (R, S)."""
        import torch

        at = self._tensor(rows)
        widths = [table.shape[1] for table, _ in self.blocks]
        *weights, intercept_1S = torch.split(self._tensor(weights_WS), [*widths, 1])
        predicted = intercept_1S.repeat(len(rows), 1)
        for (table, index), block_weights in zip(self.blocks, weights, strict=True):
            used, of_row = index[at].unique(return_inverse=True)  # type: ignore[no-untyped-call]
            chunks = [table[some].double() @ block_weights for some in used.split(CHUNK)]
            predicted += torch.cat(chunks)[of_row]
        return np.asarray(predicted.cpu())


def _training_span(block: FeatureBlock, fit_rows: Ints) -> Matrix | None:
    """Return a basis, (D, R), of the training sequences' span; None if these span all columns."""
    # a ridge gives no weight to directions outside this span
    rows = distinct(block.index[fit_rows])
    if len(rows) >= block.table_ND.shape[1]:
        return None
    basis_DN, _ = np.linalg.qr(block.table_ND[rows].T)
    return basis_DN


def _sum_squares(table_ND: Tensor, row_R: Tensor, weight_R: Tensor | None) -> Tensor:
    """Sum the outer products of vectors with themselves, (D, D), given the sequence of each row."""
    import torch

    weight_N = table_ND.new_zeros(len(table_ND)).double()
    ones_R = weight_N.new_ones(len(row_R))
    weight_N.index_add_(0, row_R, ones_R if weight_R is None else weight_R)
    total = weight_N.new_zeros(table_ND.shape[1], table_ND.shape[1])
    for used in weight_N.nonzero()[:, 0].split(CHUNK):  # type: ignore[no-untyped-call]
        root_UD = table_ND[used].double() * weight_N[used].sqrt()[:, None]
        if root_UD.is_cuda:
            total.addmm_(root_UD.T, root_UD)
        else:  # numpy computes one triangle of a matrix times itself, in half of the time
            root = root_UD.numpy()
            total += torch.from_numpy(root.T @ root)
    return total


def _sum_products(
    left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], weight_R: Tensor | None
) -> Tensor:
    """Sum the outer products of vectors, (D, E), given a table and the sequence of each row."""
    left_ND, left_R = left
    right_ME, right_R = right
    if len(left_R.unique()) > len(right_R.unique()):  # type: ignore[no-untyped-call]
        return _sum_products(right, left, weight_R).T
    total = left_ND.new_zeros(left_ND.shape[1], right_ME.shape[1]).double()
    # a term of the product per left sequence, not per row
    for rows in left_R.argsort(stable=True).split(CHUNK):  # type: ignore[no-untyped-call]
        used, of_row = left_R[rows].unique_consecutive(return_inverse=True)  # type: ignore[no-untyped-call]
        sums = total.new_zeros(len(used), total.shape[1])
        own_RE = right_ME[right_R[rows]].double()
        if weight_R is not None:
            own_RE *= weight_R[rows, None]
        sums.index_add_(0, of_row, own_RE)
        total.addmm_(left_ND[used].double().T, sums)
    return total
