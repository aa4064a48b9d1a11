"""Weights of a stack: how much each model contributes to the prediction.

References
----------
Breiman: Stacked regressions, Machine Learning 24, 1996.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from abag.head.closed_form.pair_model import Floats

SUM_WEIGHT = 1e4
"""Weight of the condition that the weights add up to 1, relative to the errors."""


def stack_weights(error_RK: Floats) -> Floats:
    """Return weights of K models, (K,), not negative and with sum 1, of the least squared error.

    Parameters
    ----------
    error_RK : NDArray, shape=(R, K), dtype=float64
        Errors of each model for pairs that it has not seen. Without pairs all weights are equal.
    """
    models = error_RK.shape[1]
    if not error_RK.any():
        return np.full(models, 1 / models)
    # The normal equations' root has K rows, whatever R.
    root_KK = np.linalg.qr(error_RK, mode="r")
    unit = SUM_WEIGHT * float(np.abs(root_KK).max())
    weights, _ = nnls(
        np.vstack([root_KK, np.full((1, models), unit)]), np.append(np.zeros(len(root_KK)), unit)
    )
    return np.asarray(weights / weights.sum())


def cross_stacked_error(error_RK: Floats, fold: NDArray[np.int64]) -> Floats:
    """Return the errors of a stack, (R,), whose weights come from the other folds of the pairs."""
    error_R = np.empty(len(error_RK))
    for k in np.unique(fold):
        error_R[fold == k] = error_RK[fold == k] @ stack_weights(error_RK[fold != k])
    return error_R
