"""``evaluate``: score a finished run on its own split, on another table or against predictions.

Nothing is trained. The run folder has the split and the predictions by key; predictions from
elsewhere for the same pairs are scored with the same split and metrics, fold by fold.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag import AbagError
from abag.core import messages
from abag.core.arrays import Floats
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.pairs import read_pairs
from abag.head.data.label_options import LabelOptions
from abag.head.data.label_units import read_numbers
from abag.head.data.labels import label_pairs, report_counts
from abag.head.evaluation.regime_scores import (
    RegimeScore,
    TestedPairs,
    compare_models,
    score_regime,
)
from abag.head.prediction.inputs import SAME_PREDICTION_PKD
from abag.head.regimes.splits import KEYS, TEST
from abag.head.runs.external_table import key_frame, score_table
from abag.head.runs.options import EvaluateOptions
from abag.head.runs.saved_run import SavedRun, read_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.report.results import PredictionsSummary, RunSummary


class NothingToEvaluate(AbagError):
    """The combination of inputs is invalid."""


class PredictionsMismatch(AbagError):
    """Predictions are invalid or not of the pairs of the run."""


def evaluate(
    run: Path | str,
    *,
    table: Path | str | pd.DataFrame | None = None,
    say: Callable[[str], None] | None = None,
    **options: Any,  # noqa: ANN401 - the fields of EvaluateOptions
) -> RunSummary:
    """Score a run on its saved split, and optionally on another table or against predictions.

    Parameters
    ----------
    run : path
        Folder of a finished run.
    table : path or DataFrame, optional
        Other measured pairs. Labels are read with the options of the run.
    say : callable, optional
        Receives each message; by default messages go to stderr.
    **options
        Fields of `EvaluateOptions`. ``predictions`` must cover all test pairs. With folds, its
        column ``fold`` assigns a row to the test part of one fold; without it, the prediction of
        a pair is used in all folds.

    Returns
    -------
    RunSummary
        The result of `fit`. A table adds ``table``: scores by the regime of its pairs, and how many
        of these are in training. ``predictions`` adds ``predictions``: their scores in each regime,
        and ``verdicts``.

    Raises
    ------
    NoFinishedRun
        If the run is unfinished or damaged.
    NothingToEvaluate
        If the combination of inputs is invalid.
    PredictionsMismatch
        If the predictions are invalid or not of the pairs of the run.
    AbagError
        If a table cannot be read, or the store lacks some of its sequences.
    """
    chosen = EvaluateOptions.from_keywords(options, "evaluate")
    _check_inputs(table, chosen)
    with messages.reporting(say):
        saved = read_run(Path(run))
        summary: RunSummary = {**saved.summary, "run": str(run)}
        reading = TableOptions(
            columns=chosen.columns, antigen=chosen.antigen,
            antibody_region=saved.config["antibody_region"],
            chains=saved.config["chains"],
            bad_rows=chosen.bad_rows or saved.config["bad_rows"],
        )  # fmt: skip
        if table is not None:
            other = read_pairs(table, reading)
            other.column("pkd")  # the advice of `label_pairs` has options that evaluate lacks
            labels = _label_options(saved, other, chosen.affinity_type)
            pairs = label_pairs(other, replace(labels, bad_rows=reading.bad_rows))
            report_counts(pairs)
            score_table(summary, Path(run), saved, pairs, chosen.store)
        if chosen.predictions is not None:
            others = read_pairs(chosen.predictions, reading)
            others.report_notes()
            summary["predictions"] = _compare_with_predictions(saved, others)
        return summary


def _check_inputs(table: object, options: EvaluateOptions) -> None:
    """Refuse inputs that would not be used."""
    if table is not None and options.predictions is not None:
        msg = (
            "evaluate: both a TABLE and --predictions are given; expected one of them. Run it "
            "once for each."
        )
        raise NothingToEvaluate(msg)
    if table is None and (options.store or options.affinity_type):
        msg = "evaluate: --store and --affinity-type need a TABLE. Give one, or omit these options."
        raise NothingToEvaluate(msg)
    of_tables = options.columns or options.antigen or options.bad_rows
    if table is None and options.predictions is None and of_tables:
        msg = (
            "evaluate: --column, --antigen and --bad-rows need a TABLE or --predictions. Give one "
            "of them."
        )
        raise NothingToEvaluate(msg)


def _label_options(
    saved: SavedRun, table: SequenceTable, affinity_type: str | None
) -> LabelOptions:
    """Return the label options of the run; without that column, affinity types do not apply."""
    options = LabelOptions(**{f.name: saved.config[f.name] for f in fields(LabelOptions)})
    if affinity_type is not None:
        return replace(options, affinity_type=affinity_type)
    if options.affinity_type is None or table.has("affinity_type"):
        return options
    messages.say(
        f"{table.source}: no column affinity_type; all rows are used as {options.affinity_type!r}"
    )
    return replace(options, affinity_type=None)


def _compare_with_predictions(saved: SavedRun, table: SequenceTable) -> PredictionsSummary:
    """Score predictions from elsewhere on the folds of the run, and compare the head with them."""
    reference, at = _align_predictions(saved, table), 0
    scores, verdicts = list[RegimeScore](), list[str]()
    for one in saved.regimes:
        tested, folds = TestedPairs.of(saved.pairs, one), slice(at, at + len(one.splits))
        at += len(one.splits)
        theirs, ours = tested.take(reference[folds]), tested.take(saved.predicted[folds])
        mean = np.full(len(theirs), saved.pairs.pkd[saved.pairs.censored == 0].mean())
        words = one.regime.words
        scores.append(score_regime(one.regime.name, words, tested, theirs, mean, {}, None))
        verdicts.append(compare_models(words, "the head", table.source, tested, ours, theirs))
        messages.say(verdicts[-1])
    return {"source": table.source, "regimes": scores, "verdicts": verdicts}


def _align_predictions(saved: SavedRun, table: SequenceTable) -> list[Floats]:
    """Return a table's predictions for the pairs of the run, (P,) per fold; NaN if it has none."""
    given, on = _read_predictions(saved, table)
    folds = [saved.frame[KEYS].assign(fold=split.fold) for split in saved.splits]
    known = pd.MultiIndex.from_frame(pd.concat(folds, ignore_index=True)[on])
    unknown = int((~pd.MultiIndex.from_frame(given[on]).isin(known)).sum())
    merged = [rows.merge(given, how="left", on=on, validate="m:1") for rows in folds]
    aligned = [rows["prediction"].to_numpy(np.float64) for rows in merged]
    parts = zip(saved.splits, aligned, strict=True)
    missing = sum(int(np.isnan(one[split.rows(TEST)]).sum()) for split, one in parts)
    if missing or unknown:
        by = " and fold" if "fold" in on else ""
        msg = (
            f"{table.source}: predictions are missing for {missing} of the run's test rows, and "
            f"{unknown} pairs are not in the run (matched by antibody, antigen{by}); expected all "
            "test rows and no other pairs. Predict the rows of the run's predictions.parquet."
        )
        raise PredictionsMismatch(msg)
    return aligned


def _read_predictions(saved: SavedRun, table: SequenceTable) -> tuple[pd.DataFrame, list[str]]:
    """Return the distinct predictions of a table, and the columns that identify each of them."""
    column = table.column("prediction")
    value = read_numbers(table.frame[column])
    invalid = np.flatnonzero(~np.isfinite(value))
    if len(invalid):
        cell = table.describe_cell(invalid[0], column)
        msg = (
            f"{cell} is not a valid prediction; expected a pKd ({len(invalid)} such rows). "
            "Predict these pairs or remove them."
        )
        raise PredictionsMismatch(msg)
    given = key_frame(
        table.antibodies.keys[table.antibodies.of_row], table.antigens.keys[table.antigens.of_row]
    ).assign(prediction=value)
    on = list(KEYS)
    if len(saved.splits) > 1 and "fold" in table.frame.columns:
        fold = pd.Series(read_numbers(table.frame["fold"]), table.frame.index)
        given["fold"] = fold.where(fold.isin(range(len(saved.splits))), -1).astype(np.int64)
        on.append("fold")
    first = given.groupby(on)["prediction"].transform("first")
    repeated = int((abs(given["prediction"] - first) > SAME_PREDICTION_PKD).sum())
    if repeated:
        hint = ", or a column fold" if len(saved.splits) > 1 else ""
        msg = (
            f"{table.source}: column {column} has more than one prediction for the same pair "
            f"({repeated} extra rows); expected one per pair{hint}. Remove the others."
        )
        raise PredictionsMismatch(msg)
    return given.drop_duplicates(on, ignore_index=True), on
