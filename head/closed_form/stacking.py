"""Weights of a stack: how much each model contributes to the prediction.

The weights with the least error on few groups fit these groups. So they are pulled toward expected
weights, as strongly as if `PRIOR_GROUPS` groups had been measured in favour of these.

References
----------
Breiman: Stacked regressions, Machine Learning 24, 1996.
"""

from __future__ import annotations

import numpy as np

from abag.core.arrays import Floats, Ints

SUM_WEIGHT = 1e4
"""Weight of the condition that the weights add up to 1, relative to the errors."""
PRIOR_GROUPS = 10.0


def stack_weights(error_RK: Floats, group: Ints, expected_K: Floats) -> Floats:
    """Return weights of K models, (K,), not negative and with sum 1.

    They minimise the mean squared error plus `PRIOR_GROUPS` / groups times the mean squared error
    of the best model times the squared distance from the expected weights. So the pull is as strong
    as the noise that even the best model leaves, and a bad model does not add to it.

    Parameters
    ----------
    error_RK : NDArray, shape=(R, K), dtype=float64
        Errors of each model for pairs that it has not seen.
    group : NDArray, shape=(R,), dtype=int64
        Pairs of one group have similar errors.
    expected_K : NDArray, shape=(K,), dtype=float64
        Weights before any error is known, with sum 1.
    """
    from scipy.optimize import nnls  # here: most heads need none of scipy.optimize

    models = error_RK.shape[1]
    if not error_RK.any():
        return expected_K
    # The normal equations' root has K rows, whatever R.
    root_KK = np.linalg.qr(error_RK, mode="r") / np.sqrt(len(error_RK))
    pull = np.sqrt(PRIOR_GROUPS / equal_groups(group) * np.square(root_KK).sum(axis=0).min())
    unit = SUM_WEIGHT * max(pull, float(np.abs(root_KK).max()))
    rows = np.vstack([root_KK, pull * np.eye(models), np.full((1, models), unit)])
    target = np.concatenate([np.zeros(len(root_KK)), pull * expected_K, [unit]])
    weights, _ = nnls(rows, target)
    return np.asarray(weights / weights.sum())


def equal_groups(group: Ints) -> float:
    """Return how many groups of equal size have means as uncertain as that of these."""
    _, sizes = np.unique(group, return_counts=True)
    return float(sizes.sum() ** 2 / np.square(sizes).sum())


def cross_stacked_error(error_RK: Floats, fold: Ints, group: Ints, expected_K: Floats) -> Floats:
    """Return the errors of a stack, (R,), whose weights come from the other folds of the pairs."""
    error_R = np.empty(len(error_RK))
    for k in np.unique(fold):
        others = fold != k
        weights = stack_weights(error_RK[others], group[others], expected_K)
        error_R[~others] = error_RK[~others] @ weights
    return error_R
