"""What each residue contributes to a prediction: ``predict --explain``, and on average in a report.

Ridge, kernels and trees that compare residues of variants predict again with one residue exchanged.
What a residue contributes is the difference of the prediction from that with the other residues
that training has in its place, weighted as the regime of the pair weighs these parts. Where labels
are classes, it is that of the latent value (probit), in standard deviations of its noise. The other
parts, which read vectors of whole sequences, are not explained; their share of the weight is
reported. P pairs, V letters that training has at a place.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from abag.core.errors import PredictionError
from abag.core.messages import counted, say
from abag.embed.tables.chains import KINDS, locate_positions
from abag.head.models.residue_kernel import (
    ComparesResidues,
    align,
    chains_of,
    exchanges,
    places_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from abag.core.arrays import Floats, Ints
    from abag.embed.tables.chains import Kind
    from abag.head.labels.features import ReadFeatures
    from abag.head.models.pair_vectors import PairVectors
    from abag.head.models.residue_kernel import Exchange, SideColumns
    from abag.head.predictor.parts import Mixture
    from abag.head.predictor.predictor import Predictor, Scorer

MOST_PAIRS = 1_000
"""Pairs that are explained: each takes hundreds of predictions."""
COLUMNS = (
    "row",
    "chain",
    "position",
    "residue",
    "contribution",
    "reference",
    "against_reference",
)
"""Of the table of contributions."""


MOST_AVERAGED = 100
"""Training pairs over which contributions are averaged."""
LEAST_AVERAGED = 10
MOST_KERNELS = 5 * 10**7
"""Letters x training sequences x pairs from which fewer pairs are averaged: a second."""


class Explanation(NamedTuple):
    """Contributions of residues to P predictions."""

    table: pd.DataFrame
    """A row per residue that contributes, with `COLUMNS`."""
    share: dict[str, float]
    """Weight of the parts that were explained, by the regime of pairs."""


def residue_parts(models_of: Mapping[str, Sequence[object]]) -> list[str]:
    """Return the names of the parts that are explained: those that compare residues."""
    names = []
    for name, models in models_of.items():
        # trees read shares of residues where no side consists of variants
        if all(isinstance(model, ComparesResidues) and model.compared for model in models):
            names.append(name)
    return names


def refuse_unexplained(predictor: Predictor, pairs: int) -> None:
    """Raise `PredictionError` if no part of a predictor has positions, or there are many pairs."""
    if not residue_parts(predictor.parts.models):
        msg = (
            "--explain: no part of the predictor compares residues of variants; expected one "
            "that does. Leave it out, or fit with --head stack or one_hot_ridge on a table of "
            "variants."
        )
        raise PredictionError(msg)
    if pairs > MOST_PAIRS:
        msg = (
            f"--explain: {counted(pairs, 'pair')}; expected at most {MOST_PAIRS:,}, because each "
            "takes hundreds of predictions. Explain those that matter, such as an order."
        )
        raise PredictionError(msg)


def explain(
    predictor: Predictor,
    scorer: Scorer,
    index: Sequence[NDArray[np.integer]],
    row: Ints,
    features: ReadFeatures | None,
) -> Explanation:
    """Compute what the residues of pairs contribute, and say what share of the parts that explains.

    Parameters
    ----------
    predictor : Predictor
    scorer : Scorer
    index : sequence of two ndarrays, shape=(P,)
        Antibody and antigen of each pair.
    row : ndarray, shape=(P,)
        Row number of each pair in its table.
    features : ReadFeatures, optional
        Those of the pairs, if the run reads any.
    """
    contributions = _contributions(predictor, scorer, index, features)
    share = {}
    for regime, pairs in Counter(contributions.used.tolist()).items():
        explained = _share(predictor.parts.models, predictor.regimes[regime].mixture)
        share[regime] = explained
        where = f"{counted(pairs, 'row')} predicted as {predictor.words(regime)}"
        if explained > 0:
            say(f"{where}: residues explain the parts with {explained:.0%} of the weight")
        else:
            say(
                f"{where}: the parts that compare residues have no weight there, and nothing is "
                "explained"
            )
    table = contributions.table
    names = {}
    for kind, reference in contributions.references.items():
        names[KINDS.index(kind)] = _names_of_places(kind, reference)
    places = zip(table["side"].tolist(), table["place"].tolist(), strict=True)
    named = pd.DataFrame([names[side][place] for side, place in places], columns=COLUMNS[1:3])
    for letters in ("residue", "reference"):
        named[letters] = table[letters].map(chr)
    of_pair = row[table["pair"].to_numpy(np.int64)]
    named = pd.concat([table.drop(columns=_PLACE), named], axis=1).assign(row=of_pair)
    return Explanation(named[[*COLUMNS]], share)


def explain_residues(
    predictor: Predictor, scorer: Scorer, index: Sequence[NDArray[np.integer]]
) -> list[dict[tuple[Kind, int, int], float]]:
    """Compute what the residues of pairs contribute, by their places in the sequences of each.

    Parameters
    ----------
    predictor : Predictor
    scorer : Scorer
    index : sequence of two ndarrays, shape=(P,)
        Antibody and antigen of each pair.

    Returns
    -------
    list of dict
        Contribution by kind of sequence, chain and index of a residue in that chain, as they are
        ordered in the pair, (P,). There is none where training has only one residue, nor for an
        antigen of several chains.
    """
    contributions = _contributions(predictor, scorer, index, None)
    table = contributions.table.set_index(["pair", "side", "place"])["contribution"]
    values = table.to_dict()
    found: list[dict[tuple[Kind, int, int], float]] = [{} for _ in contributions.used]
    for kind, reference in contributions.references.items():
        if kind == "antigen" and len(reference) > 1:  # which are compared in another order
            continue
        chains = contributions.vectors.chains(kind)
        side = KINDS.index(kind)
        for pair, sequence in enumerate(contributions.vectors.sides[kind].index.tolist()):
            for residue, place in places_of(chains[sequence], reference).items():
                if (pair, side, place) in values:
                    found[pair][(kind, *residue)] = values[pair, side, place]
    return found


class _Contributions(NamedTuple):
    """What each letter of P pairs contributes, with the weights of the regime of the pair."""

    table: pd.DataFrame
    """A row per pair and place, in their order, with the number of the side in `KINDS`."""
    references: dict[Kind, tuple[str, ...]]
    """Consensus of the training sequences."""
    vectors: PairVectors
    used: NDArray[np.object_]
    """Regime that weighs each pair, (P,)."""


def _contributions(
    predictor: Predictor,
    scorer: Scorer,
    index: Sequence[NDArray[np.integer]],
    features: ReadFeatures | None,
) -> _Contributions:
    scored = scorer.score(*index, features=features)
    predicted_P = scored.scores["pkd_predicted"].to_numpy(np.float64)
    references: dict[Kind, tuple[str, ...]] = {}
    nothing = pd.DataFrame(columns=[*_PLACE, "contribution", "against_reference"])
    frames = []
    for name in residue_parts(predictor.parts.models):
        weight_P = np.zeros(len(predicted_P))
        for mixture, rows in predictor.mixtures(scored.regimes):
            weight = _residue_weights(predictor.parts.models, mixture).get(name, 0.0)
            bend = 1.0 if mixture.link is None else mixture.link.bend_at(predicted_P[rows])
            weight_P[rows] = weight * bend
        if not weight_P.any():
            continue
        models: Any = predictor.parts.models[name]
        for model in models:
            references |= {side.kind: side.one_hot.reference for side in model.compared}
            for exchange in exchanges(model, scored.vectors):
                frames.append(_at_place(exchange, weight_P / len(models)))
    every = pd.concat(frames) if frames else nothing
    table = every.groupby(_PLACE, as_index=False).sum()
    return _Contributions(table, references, scored.vectors, scored.regimes.used)


_PLACE = ["pair", "side", "place", "residue", "reference"]


def _at_place(exchange: Exchange, weight_P: Floats) -> pd.DataFrame:
    """Return what the letters of one place contribute to pairs in which they have weight, (P,).

    Letters without any other in training are left out.
    """
    seen_V = np.frombuffer(exchange.letters.encode(), np.uint8)
    others_P = (exchange.own_P[:, None] != seen_V).sum(axis=1)
    pairs = np.flatnonzero((weight_P > 0) & (others_P > 0))
    loss_RV = exchange.loss_PV[pairs] * weight_P[pairs, None]
    columns = {
        "pair": pairs,
        "side": KINDS.index(exchange.kind),
        "place": exchange.place,
        "residue": exchange.own_P[pairs],
        "reference": exchange.reference,
        "contribution": loss_RV.sum(axis=1) / others_P[pairs],
        "against_reference": loss_RV[:, exchange.letters.index(chr(exchange.reference))],
    }
    return pd.DataFrame(columns)


def _residue_weights(
    models_of: Mapping[str, Sequence[object]], mixture: Mixture
) -> dict[str, float]:
    """Return the weights of the parts that are explained, times the unit of contributions.

    That of classes is right near their usual shares; elsewhere predictions are bent.
    """
    # of classes, contributions are to latent values, whose noise has a standard deviation of 1
    unit = 1.0 if mixture.link is None else mixture.link.slope
    names = [name for name in residue_parts(models_of) if mixture.weights.get(name)]
    return {name: unit * mixture.weights[name] for name in names}


def _names_of_places(kind: Kind, reference: Sequence[str]) -> list[tuple[str, str]]:
    """Return the chain and the position of each place of a reference.

    Positions of antibodies are those of IMGT, where their domain is found; others count from 1. A
    place behind a residue, where some sequences have more, is called ``54+``.
    """
    names = []
    for number, text in enumerate(reference):
        if kind == "antibody":
            chain = ("heavy", "light")[number]
            imgt = locate_positions(text, "heavy" if number == 0 else "light") if text else {}
            of_index = {at: position for position, at in imgt.items()}
        else:
            chain = "antigen" if len(reference) == 1 else f"antigen {number + 1}"
            of_index = {}
        before = "0"
        names.append((chain, f"{before}+"))
        for at in range(len(text)):
            before = of_index.get(at, f"{at + 1}" if not of_index else f"residue {at + 1}")
            names += [(chain, before), (chain, f"{before}+")]
    return names


def average_contributions(
    models_of: Mapping[str, Sequence[Any]],
    mixtures: Mapping[str, Mixture],
    vectors: PairVectors,
    trained: Ints,
) -> pd.DataFrame | None:
    """Compute what residues contribute in the regime that gives most weight to residues.

    Every letter that training has at a place is put into some training pairs, drawn with a fixed
    seed; what it contributes is its mean prediction less that of the other letters.

    Parameters
    ----------
    models_of : mapping
        Models of each part, fitted to all pairs.
    mixtures : mapping
        Weights of the parts, by regime; of equal ones the last counts.
    vectors : PairVectors
        Of all pairs.
    trained : ndarray, shape=(F,)
        Pairs that the models were fitted to.

    Returns
    -------
    DataFrame or None
        A row per residue that training has at a place: ``chain``, ``position``, ``residue``, the
        training ``pairs`` with it, its ``contribution`` in the unit of labels, and in all rows the
        ``regime`` and the ``share`` of its weight that parts with positions have. None if no regime
        gives them any.
    """
    shares = {name: _share(models_of, mixture) for name, mixture in mixtures.items()}
    regime = max(reversed(shares), key=shares.__getitem__, default="")
    if not shares.get(regime):
        return None
    weights = _residue_weights(models_of, mixtures[regime])
    # fewer pairs, into which letters are put, where each takes longer
    kernels = 1
    for name in weights:
        for model in models_of[name]:
            for side in model.compared:
                letters = sum(len(seen) for seen in side.one_hot.seen if len(seen) > 1)
                kernels += letters * len(np.unique(vectors.sides[side.kind].index[trained]))
    wanted = min(MOST_AVERAGED, max(LEAST_AVERAGED, MOST_KERNELS // kernels), len(trained))
    drawn = vectors.take(np.random.default_rng(0).permutation(trained)[:wanted])
    worth: dict[tuple[Kind, int], dict[str, float]] = {}
    sides: dict[Kind, SideColumns] = {}
    for name, weight in weights.items():
        models = models_of[name]
        for model in models:
            sides |= {side.kind: side for side in model.compared}
            for exchange in exchanges(model, drawn):
                of_letter = worth.setdefault((exchange.kind, exchange.place), {})
                mean_V = exchange.loss_PV.mean(axis=0) * (weight / len(models))
                for letter, loss in zip(exchange.letters, mean_V.tolist(), strict=True):
                    of_letter[letter] = of_letter.get(letter, 0.0) - loss
    table = _average_table(worth, sides, vectors, trained)
    return table.assign(regime=regime, share=shares[regime])


def _average_table(
    worth: Mapping[tuple[Kind, int], Mapping[str, float]],
    sides: Mapping[Kind, SideColumns],
    vectors: PairVectors,
    trained: Ints,
) -> pd.DataFrame:
    """Make a row per place and letter, given the mean prediction with each, up to a constant."""
    rows = []
    for kind, side in sides.items():
        reference = side.one_hot.reference
        names = _names_of_places(kind, reference)
        used, pairs_N = np.unique(vectors.sides[kind].index[trained], return_counts=True)
        chains = chains_of(vectors, kind)
        codes_NS = align([chains[i] for i in used.tolist()], reference)
        for place, (chain, position) in enumerate(names):
            of_letter = worth.get((kind, place), {})
            if len(of_letter) < 2:
                continue
            pairs_of = np.bincount(codes_NS[:, place], pairs_N, 256)
            total = sum(of_letter.values())
            for letter, value in of_letter.items():
                others = (total - value) / (len(of_letter) - 1)
                pairs = int(pairs_of[ord(letter)])
                rows.append((chain, position, letter, pairs, value - others))
    return pd.DataFrame(rows, columns=["chain", "position", "residue", "pairs", "contribution"])


def _share(models_of: Mapping[str, Sequence[object]], mixture: Mixture) -> float:
    """Return the weight of the parts that are explained."""
    return float(sum(mixture.weights.get(name, 0.0) for name in residue_parts(models_of)))
