"""Predictions of another tool for the test pairs of a run, scored and compared with the run's own.

They are matched by the keys of both sequences, and by fold if they say one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.core import messages
from abag.core.arrays import Floats, hex_keys
from abag.core.errors import PredictionError
from abag.core.messages import counted
from abag.head.data.affinities import read_predictions
from abag.head.data.cells import read_numbers
from abag.head.data.label_options import LabelOptions
from abag.head.evaluation.regime_scores import RegimeScore, compare_models, score_regime
from abag.head.models.registry import MEAN
from abag.head.prediction.predictor import SAME_PREDICTION_PKD
from abag.head.regimes.splits import KEYS
from abag.head.runs.run_folder import SavedRun, naming_damage

if TYPE_CHECKING:
    from abag.embed.sequences.pairs import SequenceTable


def compare_with_predictions(
    saved: SavedRun, table: SequenceTable, units: LabelOptions, molar_mass: str | None = None
) -> dict[str, Any]:
    """Score predictions of another tool in each regime, and compare them with those of the run.

    Parameters
    ----------
    saved : SavedRun
    table : SequenceTable
        The pairs with a column of predictions.
    units : LabelOptions
        Unit of the predictions, if their column does not say it.
    molar_mass : str, optional
        Of the run, for predictions in ug/mL or ng/mL.

    Returns
    -------
    dict
        ``source``, and ``regimes`` (scores) and ``verdicts``, one of each regime.

    Raises
    ------
    PredictionError
        If predictions are invalid, differ for one pair, or are not of the test pairs.
    """
    reference = _align_predictions(saved, table, units, molar_mass)
    scores = list[RegimeScore]()
    verdicts = list[str]()
    with naming_damage(saved.run):  # the means that the run's own scores are compared with
        mean_of_pair = pd.read_parquet(saved.run / "baselines.parquet")[MEAN].to_numpy(np.float64)
    for regime, rows, tested in saved.regimes():
        ours = rows["pkd_predicted"].to_numpy(np.float64)
        pairs = rows.index.to_numpy()
        words = regime["words"]
        theirs = reference[pairs]
        mean = mean_of_pair[pairs]
        scores.append(score_regime(regime["regime"], words, tested, theirs, mean, {}, None))
        verdict = compare_models(
            words, "the run", table.source, tested, ours, theirs, saved.quantity
        )
        verdicts.append(verdict)
        messages.say(verdict)
    return {"source": table.source, "regimes": scores, "verdicts": verdicts}


def _align_predictions(
    saved: SavedRun, table: SequenceTable, units: LabelOptions, molar_mass: str | None
) -> Floats:
    predicted, on = _read_predictions(saved, table, units, molar_mass)
    rows = saved.tested[[*KEYS, "fold"]]
    measured_rows = pd.MultiIndex.from_frame(rows[on] if "fold" in on else saved.frame[on])
    is_known = pd.MultiIndex.from_frame(predicted[on]).isin(measured_rows)
    unknown = int((~is_known).sum())
    aligned = rows.merge(predicted, how="left", on=on)["prediction"].to_numpy(np.float64)
    missing = int(np.isnan(aligned).sum())
    if missing or unknown:
        by = " and fold" if "fold" in on else ""
        msg = (
            f"{table.source}: predictions are missing for {missing} of the run's test rows, and "
            f"{unknown} pairs are not in the run (matched by antibody, antigen{by}); expected all "
            "test rows and no other pairs. Predict the rows of the run's predictions.parquet."
        )
        raise PredictionError(msg)
    return aligned


def _read_predictions(
    saved: SavedRun, table: SequenceTable, units: LabelOptions, molar_mass: str | None
) -> tuple[pd.DataFrame, list[str]]:
    affinities = read_predictions(table, units, saved.quantity, molar_mass)
    column = affinities.column
    value = affinities.pkd
    affinities.refuse_other_units(np.isfinite(value), "predictions")
    messages.say(affinities.describe(noun="predictions"))
    invalid = np.flatnonzero(~np.isfinite(value) | (affinities.side != 0))
    if len(invalid):
        cell = table.describe_cell(invalid[0], column)
        expected = "a finite number"
        if saved.quantity.affinity:
            unit = affinities.unit
            expected = "a pKd" if unit == "pkd" else f"a number in {unit}"
        msg = (
            f"{cell} is not a valid prediction; expected {expected} "
            f"({counted(len(invalid), 'such row')}). Predict these pairs or remove them."
        )
        raise PredictionError(msg)
    columns = {}
    for kind, sequences in table.sequences.items():
        columns[f"{kind}_key"] = hex_keys(sequences.keys[sequences.of_row])
    table_keys = pd.DataFrame(columns).assign(prediction=value)
    on = list(KEYS)
    folds = saved.tested["fold"].unique()
    if len(folds) > 1 and "fold" in table.frame.columns:
        fold = pd.Series(read_numbers(table.frame["fold"]), table.frame.index)
        # rows of no fold of the run count as unknown pairs, which are refused
        table_keys["fold"] = fold.where(fold.isin(folds), -1).astype(np.int64)
        on.append("fold")
    first = table_keys.groupby(on)["prediction"].transform("first")
    # other quantities have any scale
    same = SAME_PREDICTION_PKD if saved.quantity.affinity else SAME_PREDICTION_PKD * value.std()
    differs = abs(table_keys["prediction"] - first) > same
    repeated = int(differs.sum())
    if repeated:
        hint = ", or a column fold" if len(folds) > 1 else ""
        msg = (
            f"{table.source}: column {column} has more than one prediction for the same pair "
            f"({counted(repeated, 'extra row')}); expected one per pair{hint}. Remove the others."
        )
        raise PredictionError(msg)
    return table_keys.drop_duplicates(on, ignore_index=True), on
