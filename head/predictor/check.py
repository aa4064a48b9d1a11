"""The last step of a fit: what was saved predicts what was measured.

The predictor is loaded from its folder and scores pairs of the table on the path that ``predict``
takes: vectors from the store, recognition of the regime, weights and sigma from the file. The
results have to equal those of the parts in memory, and in every regime the errors of the labels
that it has learned from may not be larger than the out-of-fold errors of the same pairs by more
than chance. P pairs of a table, R rows of the sample.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats, Ints, distinct
from abag.core.errors import RunError
from abag.embed.store.store import open_store
from abag.embed.tables.chains import KINDS, Kind
from abag.head.labels.features import ReadFeatures
from abag.head.models.pair_vectors import PairVectors, SideVectors
from abag.head.predictor.folder import load_predictor
from abag.head.predictor.predictor import Scorer, Sequences
from abag.head.predictor.weigh import standard_error
from abag.head.regimes.splits import TEST

if TYPE_CHECKING:
    from abag.embed.store.store import Store
    from abag.head.predictor.predictor import Predictor
    from abag.head.predictor.weigh import FittedParts, WeighedRegime, WeighedRun
    from abag.head.training.inputs import RunInputs

SCORED = 64
"""Most pairs that are scored as `predict` does."""
COMPARED = 512
"""Most pairs of each regime whose errors are compared."""
SAME_SHARE = 0.02
"""Largest difference between a part in memory and on disk, in standard deviations of the labels:
networks were scored with TF32 on a GPU, which has 10 bits."""
CHANCE = 5.0
"""Standard errors by which errors on learned labels may be larger than out-of-fold errors."""


HOW_TO_GO_ON = (
    "The run is not finished. Use another --head, such as ridge, and report this with the command."
)


class PredictorDiffers(RunError):
    """A saved predictor does not predict what its run has measured."""


def check_predictor(
    folder: Path,
    inputs: RunInputs,
    parts: FittedParts,
    weighed: WeighedRun,
    trained: Ints,
    seed: int,
) -> None:
    """Score pairs of the table with the predictor in a folder, and compare.

    Parameters
    ----------
    folder : path
        The predictor.
    inputs : RunInputs
        The pairs of the table, and the store with their vectors.
    parts : FittedParts
        What was fitted to all pairs, in memory.
    weighed : WeighedRun
        The mixture of each measured regime, and its out-of-fold predictions.
    trained : ndarray, shape=(T,)
        The pairs that the parts were fitted to.
    seed : int
        Of the sample.

    Raises
    ------
    PredictorDiffers
        If anything differs by more than rounding, or errors on learned labels are larger than on
        held-out ones.
    """
    predictor = load_predictor(folder)
    store = open_store(inputs.store.path)
    rng = np.random.default_rng([seed, len(trained)])
    _check_path(folder, predictor, store, inputs, parts, weighed, _sampled(rng, trained, SCORED))
    for regime in weighed.regimes:
        tested = np.concatenate([split.rows(TEST) for split in regime.measured.splits])
        exact = tested[inputs.pairs.censored[tested] == 0]
        learned = distinct(exact[np.isin(exact, trained)])
        rows = _sampled(rng, learned, COMPARED)
        if len(rows):
            _check_errors(folder, predictor, store, inputs, regime, rows)


def _sampled(rng: np.random.Generator, rows: Ints, most: int) -> Ints:
    return np.sort(rng.permutation(rows)[:most])


def _sequences(inputs: RunInputs, rows: Ints) -> list[Sequences]:
    """Return both sequences of some pairs, (R,), as `predict` collects them from a table."""
    pairs = inputs.pairs
    sides = []
    for kind in KINDS:
        chains = pairs.table.sequences[kind].chains
        index = pairs.index(kind)[rows]
        sides.append(Sequences.of(kind, [chains[i] for i in index.tolist()]))
    return sides


def _features_of(inputs: RunInputs, rows: Ints) -> ReadFeatures | None:
    """Return the features of some pairs, (R,), if the run reads any."""
    pairs = inputs.pairs
    if pairs.features is None or pairs.cells is None:
        return None
    return ReadFeatures(pairs.features, pairs.cells.take(rows))


def _check_path(
    folder: Path,
    predictor: Predictor,
    store: Store,
    inputs: RunInputs,
    parts: FittedParts,
    weighed: WeighedRun,
    rows: Ints,
) -> None:
    """Compare the scores that `predict` would write with the parts in memory."""
    pairs = inputs.pairs
    sides = _sequences(inputs, rows)
    scorer = Scorer(predictor, store, *sides)
    features = _features_of(inputs, rows)
    scores, _ = scorer.score_rows(features)
    index = pairs.antibody[rows], pairs.antigen[rows]
    regimes = scorer.find_regimes(*(sequences.of_row for sequences in sides))
    mixtures = {regime.used.name: regime.used.mixture for regime in weighed.regimes}
    factor = np.ones(len(rows))
    for kind, of_pair in zip(KINDS, index, strict=True):
        factor *= weighed.noise[kind][of_pair]
    if features is not None:
        factor *= features.factor(weighed.category_noise)
    in_memory = {name: pkd[rows] for name, pkd in parts.predicted.items()}
    expected = np.zeros(len(rows))
    sigma = np.zeros(len(rows))
    for name in set(regimes.used.tolist()):
        inside = regimes.used == name
        expected[inside] = mixtures[name].pkd(in_memory)[inside]
        of_regime = mixtures[name].sigma(expected, parts.variance[rows], factor=factor)
        sigma[inside] = of_regime[inside]
    tolerance = SAME_SHARE * float(pairs.pkd.std())
    for column, value in (("pkd_predicted", expected), ("sigma", sigma)):
        away = np.abs(scores[column].to_numpy() - value)
        if away.max() > tolerance:
            worst = int(away.argmax())
            row = pairs.table.row_numbers[pairs.row[rows[worst]]]
            msg = (
                f"{folder}: {column} of row {row} is {scores[column].iloc[worst]:.4f}, and "
                f"{value[worst]:.4f} with the parts that were fitted. {HOW_TO_GO_ON}"
            )
            raise PredictorDiffers(msg)


def _check_errors(
    folder: Path,
    predictor: Predictor,
    store: Store,
    inputs: RunInputs,
    regime: WeighedRegime,
    rows: Ints,
) -> None:
    """Compare errors on learned labels with out-of-fold errors of the same pairs."""
    pairs = inputs.pairs
    features = _features_of(inputs, rows)
    sides: dict[Kind, SideVectors] = {}
    for side in _sequences(inputs, rows):
        x_ND = predictor.read(store, side.kind, side.keys)
        sides[side.kind] = SideVectors(x_ND, side.of_row, side.chains)
    vectors = PairVectors(sides, None if features is None else features.values)
    predicted = {part.name: part.predict(vectors) for part in predictor.parts}
    name = regime.measured.regime.name
    learned = np.square(pairs.pkd[rows] - predictor.regimes[name].mixture.pkd(predicted))
    held_out = _held_out_errors(pairs.pkd, regime, rows)
    excess = learned - held_out
    chance = CHANCE * max(standard_error(excess, group[rows]) for group in regime.measured.groups)
    # a share of the labels' variance: without any signal both predict a mean
    if excess.mean() > chance + SAME_SHARE * float(pairs.pkd.var()):
        quantity = pairs.quantity
        rms_learned = quantity.show(float(np.sqrt(learned.mean())))
        rms_held_out = quantity.show(float(np.sqrt(held_out.mean())))
        msg = (
            f"{folder}: the errors of the saved predictor on {len(rows)} pairs of the regime "
            f"{name} that it was trained on have a root mean square of "
            f"{rms_learned} {quantity}, more than the {rms_held_out} of the same pairs held out. "
            f"{HOW_TO_GO_ON}"
        )
        raise PredictorDiffers(msg)


def _held_out_errors(pkd: Floats, regime: WeighedRegime, rows: Ints) -> Floats:
    """Return the mean squared out-of-fold error of each pair, (R,)."""
    total = np.zeros(len(pkd))
    count = np.zeros(len(pkd))
    for split, predicted in zip(regime.measured.splits, regime.predicted, strict=True):
        tested = split.rows(TEST)
        total[tested] += np.square(pkd[tested] - predicted[tested])
        count[tested] += 1
    return np.asarray(total[rows] / count[rows])
