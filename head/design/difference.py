"""Differences between the predictions of mutants and of their parents, with a sigma of their own.

A mutant and its parent are predicted by the same models, whose errors they largely share, so the
sigma of a difference is not that of two predictions. It is ``spread`` (`training.uncertainty`)
times the standard deviation of the difference: over the joint posterior of a Gaussian process, or
else over the members of an ensemble. The residual noise is left out: what of it a mutant shares
with its parent is not known. A single network or a ridge has no such deviation.

P pairs; V training pairs that a variance is computed from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats
from abag.head.closed_form.gaussian_process import GaussianProcess
from abag.head.closed_form.kernels import BLOCK
from abag.head.closed_form.one_hot_kernel import OneHotKernel
from abag.head.closed_form.pair_model import Index, PairVectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.head.closed_form.kernels import Side
    from abag.head.prediction.predictor import Predictor


def has_difference_sigma(predictor: Predictor) -> bool:
    """Whether sigmas of differences can be computed."""
    kinds = GaussianProcess, OneHotKernel
    processes = [m for m in predictor.members if isinstance(m.model, kinds)]
    several = sum(member.weight > 0 for member in predictor.members) > 1
    return predictor.spread > 0 and (bool(processes) or several)


def difference_sigma(predictor: Predictor, vectors: PairVectors, parent: Index) -> Floats:
    """Return the sigma of the difference between each pair and another one, in pKd.

    Parameters
    ----------
    predictor : Predictor
        One that `has_difference_sigma`.
    vectors : PairVectors
        P pairs.
    parent : NDArray, shape=(P,), dtype=integer
        The pair that each is compared with; for itself the sigma is 0.

    Returns
    -------
    NDArray, shape=(P,), dtype=float64
    """
    models = [member.model for member in predictor.members]
    processes = [(model, vectors) for model in models if isinstance(model, GaussianProcess)]
    of_residues = [model for model in models if isinstance(model, OneHotKernel)]
    processes += [(model.process, model.encode(vectors)) for model in of_residues]
    if processes:
        own = [process_variance(process, read, parent) for process, read in processes]
        return np.asarray(predictor.spread * np.sqrt(np.mean(own, axis=0)))
    weight = np.array([member.weight for member in predictor.members])
    predicted = np.stack([model.predict(vectors) for model in models])
    difference = predicted - predicted[:, parent]
    variance = weight @ np.square(difference - weight @ difference)
    return np.asarray(predictor.spread * np.sqrt(variance))


def process_variance(process: GaussianProcess, vectors: PairVectors, parent: Index) -> Floats:
    """Return the posterior variance of the difference between each pair and another, (P,) in pKd^2.

    With the prior kernel k, the kernel row of a pair and the training pairs k_V, and the root R of
    `GaussianProcess`, it is amplitude x (2 - 2 k(pair, parent) - |(k_V - k_V of the parent) R|^2).
    """
    kernel, root_VV = process.kernel, process.root.astype(np.float64)
    train = process.train.select(slice(len(root_VV)))
    antibody_NA = train.antibodies.kernel(kernel, vectors.antibody_ND)
    antigen_MG = train.antigens.kernel(kernel, vectors.antigen_ME)
    sides = (
        (_in_units(train.antibodies, vectors.antibody_ND), vectors.antibody),
        (_in_units(train.antigens, vectors.antigen_ME), vectors.antigen),
    )
    variance = np.empty(len(parent))
    for at in range(0, len(parent), BLOCK):
        rows = np.arange(at, min(at + BLOCK, len(parent)))
        of_pair, of_parent = (
            kernel.mix(
                antibody_NA[vectors.antibody[pairs]][:, train.antibody],
                antigen_MG[vectors.antigen[pairs]][:, train.antigen],
            )
            for pairs in (rows, parent[rows])
        )
        joint = kernel.mix(
            *(
                kernel.of_distances(
                    np.square(z_ND[index[rows]] - z_ND[index[parent[rows]]]).sum(axis=1)
                )
                for z_ND, index in sides
            )
        )
        known = np.square((of_pair - of_parent) @ root_VV).sum(axis=1)
        variance[rows] = 2 - 2 * joint - known
    return np.asarray(process.settings.amplitude * np.maximum(variance, 0))


def _in_units(side: Side, x_ND: NDArray[np.float32]) -> Floats:
    """Scale vectors, (N, D), so that their squared distances are those of `Side.distances`."""
    return np.asarray(side.scaling.apply(x_ND).astype(np.float64) / np.sqrt(side.unit))
