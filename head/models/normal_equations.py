"""The normal equations of a ridge, solved for many strengths and many vectors of labels.

A symmetric matrix is brought to tridiagonal form by reflections. This takes as long as about two
factorisations, and then a strength costs D operations and labels D^2, where a factorisation per
strength costs D^3 / 3 (Elden, BIT 17, 1977; Golub and Van Loan, Matrix Computations, 8.3). Large
matrices are factorised per strength by torch instead, which uses all cores or a GPU. D columns, S
strengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from abag.core.arrays import Floats

if TYPE_CHECKING:
    from torch import Tensor

PARALLEL_COLUMNS = 1500
"""Columns from which a ridge uses all cores. A smaller one is faster on one core, and with several
it waits for threads wherever another process keeps a core busy: 57 s instead of 6."""
ROUNDING = 1e-10
"""Scatter, relative to the sums it is computed from, below which it may be rounding alone."""
REFLECTED = 64
"""Columns of reflections that are applied at a time, in LAPACK's workspace."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over rows, each as often as its weight says."""

    products_DD: Tensor
    """Of the products of columns, float64."""
    columns_D: Tensor
    """Of the columns, float64."""
    rows: float
    """Of the weights."""

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.products_DD + other.products_DD,
            self.columns_D + other.columns_D,
            self.rows + other.rows,
        )

    def __sub__(self, other: Sums) -> Sums:
        return Sums(
            self.products_DD - other.products_DD,
            self.columns_D - other.columns_D,
            self.rows - other.rows,
        )


class NormalEquations:
    """The normal equations of a ridge with an unpenalised intercept.

    `size` is the trace of the products of columns over all rows of the problem.
    """

    def __init__(self, sums: Sums, size: float) -> None:
        self._rows = sums.rows
        self._mean_D = sums.columns_D / sums.rows
        scatter_DD = sums.products_DD - sums.rows * self._mean_D[:, None] * self._mean_D
        columns = len(self._mean_D)
        self._unit = float(scatter_DD.trace()) / min(sums.rows, columns)
        if self._unit <= ROUNDING * size:  # all rows are equal
            scatter_DD = 0 * scatter_DD
            self._unit = 1.0
        is_small = 1 < columns < PARALLEL_COLUMNS and scatter_DD.device.type == "cpu"
        self._solver: ShiftedSolver = (
            Tridiagonal(scatter_DD) if is_small else Factorised(scatter_DD)
        )

    def solve(self, products_D: Tensor, labels: float, strengths: Floats) -> tuple[Floats, Floats]:
        """Return weights, (D, S), and intercepts, (S,), for S strengths.

        Parameters
        ----------
        products_D : Tensor, shape=(D,), dtype=float64
            Sums of the products of columns and labels.
        labels : float
            Sum of the labels.
        strengths : ndarray, shape=(S,)
            In units of the mean eigenvalue of the scatter of the rows.
        """
        target_D = products_D - labels * self._mean_D
        weights_DS = self._solver.solve(target_D, strengths * self._unit)
        intercept_S = labels / self._rows - self._mean_D.cpu().numpy() @ weights_DS
        return weights_DS, intercept_S


class ShiftedSolver(Protocol):
    """Solves a symmetric matrix with S numbers added to its diagonal."""

    def solve(self, target_D: Tensor, shift_S: Floats) -> Floats:
        """Return the solutions, (D, S)."""


class Factorised:
    """A Cholesky factorisation per number: the plain way."""

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
    """A matrix of two or more columns as reflections Q of a tridiagonal T: Q T Q^t, on one core.

    Reflections leave the first row as it is.
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
