"""What each residue contributes to a prediction: ``predict --explain``.

The parts that compare variants by their residues (a ridge on these, and kernels) predict again with
one residue exchanged. What a residue contributes is the difference of the prediction from that
with the other residues that training has in its place, weighted as the regime of the pair weighs
these parts. Where labels are classes, it is that of the latent value (probit), in standard
deviations of its noise. The other parts, which read vectors of whole sequences, have no positions;
their share of the weight is reported. P pairs.
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
    OneHotRidge,
    PlaceLosses,
    ResidueKernel,
    place_losses,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from abag.core.arrays import Floats, Ints
    from abag.embed.tables.chains import Kind
    from abag.head.labels.features import ReadFeatures
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


class Explanation(NamedTuple):
    """Contributions of residues to P predictions."""

    table: pd.DataFrame
    """A row per residue that contributes, with `COLUMNS`."""
    share: dict[str, float]
    """Weight of the parts that were explained, by the regime of pairs."""


def residue_parts(predictor: Predictor) -> list[str]:
    """Return the names of the parts that compare variants by their residues."""
    names = []
    for name, models in predictor.parts.models.items():
        if all(isinstance(model, OneHotRidge | ResidueKernel) for model in models):
            names.append(name)
    return names


def refuse_unexplained(predictor: Predictor, pairs: int) -> None:
    """Raise `PredictionError` if no part of a predictor has positions, or there are many pairs."""
    if not residue_parts(predictor):
        msg = (
            "--explain: no part of the predictor compares variants by their residues; expected "
            "one of them, as of a table of variants. Leave it out, or fit with --head stack or "
            "one_hot_ridge on a table of variants."
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
    _, vectors = scorer.score(*index, features=features)
    used = scorer.find_regimes(*index).used
    weight_of = {name: regime.mixture.weights for name, regime in predictor.regimes.items()}
    links = {name: regime.mixture.link for name, regime in predictor.regimes.items()}
    # of classes, contributions are to latent values, whose noise has a standard deviation of 1
    unit_of = {name: 1.0 if link is None else link.slope for name, link in links.items()}
    unit_P = np.array([unit_of[regime] for regime in used.tolist()])
    total: dict[tuple[Kind, int], PlaceLosses] = {}
    names: dict[Kind, list[tuple[str, str]]] = {}
    for name in residue_parts(predictor):
        weight_P = np.array([weight_of[regime].get(name, 0.0) for regime in used.tolist()])
        weight_P *= unit_P
        if not weight_P.any():
            continue
        models: Any = predictor.parts.models[name]
        for model in models:
            for side in model.compared:
                names[side.kind] = _names_of_places(side.kind, side.one_hot.reference)
            _add(total, place_losses(model, vectors), weight_P / len(models))
    share = _shares(predictor, used)
    _say_shares(predictor, used, share)
    return Explanation(_table(total, names, row), share)


def _add(
    total: dict[tuple[Kind, int], PlaceLosses], more: Iterable[PlaceLosses], weight_P: Floats
) -> None:
    """Add the losses of one model, times its weight for each pair; NaN where there is none."""
    for losses in more:
        weight = np.where(weight_P > 0, weight_P, np.nan)
        weighed = losses._replace(
            against_others_P=weight * losses.against_others_P,
            against_reference_P=weight * losses.against_reference_P,
        )
        key = (losses.kind, losses.place)
        before = total.get(key)
        if before is not None:
            weighed = weighed._replace(
                against_others_P=_sum(before.against_others_P, weighed.against_others_P),
                against_reference_P=_sum(before.against_reference_P, weighed.against_reference_P),
            )
        total[key] = weighed


def _sum(left: Floats, right: Floats) -> Floats:
    """Add values of which one may be missing."""
    both = np.nansum([left, right], axis=0)
    return np.where(np.isnan(left) & np.isnan(right), np.nan, both)


def _table(
    total: Mapping[tuple[Kind, int], PlaceLosses],
    names: Mapping[Kind, Sequence[tuple[str, str]]],
    row: Ints,
) -> pd.DataFrame:
    """Make a row per pair and place, in the order of the pairs, and of the places in a pair."""
    frames = []
    for number, ((kind, place), losses) in enumerate(sorted(total.items(), key=_order_of)):
        chain, position = names[kind][place]
        columns = {
            "row": row,
            "chain": chain,
            "position": position,
            "residue": losses.own_P.view("S1").astype(str),
            "contribution": losses.against_others_P,
            "reference": chr(losses.reference),
            "against_reference": losses.against_reference_P,
        }
        frame = pd.DataFrame(columns).assign(pair=np.arange(len(row)), place=number)
        frames.append(frame[frame["contribution"].notna()])
    if not frames:
        return pd.DataFrame(columns=[*COLUMNS])
    table = pd.concat(frames).sort_values(["pair", "place"], ignore_index=True)
    return table[[*COLUMNS]]


def _order_of(item: tuple[tuple[Kind, int], PlaceLosses]) -> tuple[int, int]:
    (kind, place), _ = item
    return KINDS.index(kind), place


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


def _shares(predictor: Predictor, used: NDArray[np.object_]) -> dict[str, float]:
    names = residue_parts(predictor)
    shares = {}
    for regime in dict.fromkeys(used.tolist()):
        weights = predictor.regimes[regime].mixture.weights
        shares[str(regime)] = float(sum(weights.get(name, 0.0) for name in names))
    return shares


def _say_shares(predictor: Predictor, used: NDArray[np.object_], shares: dict[str, float]) -> None:
    pairs = Counter(used.tolist())
    for regime, share in shares.items():
        where = f"{counted(pairs[regime], 'row')} predicted as {predictor.words(regime)}"
        if share > 0:
            say(f"{where}: residues explain the parts with {share:.0%} of the weight")
        else:
            say(
                f"{where}: the parts that compare residues have no weight there, and nothing is "
                "explained"
            )
