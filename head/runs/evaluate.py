"""``evaluate``: score a finished run on its own split, on another table or against predictions.

Nothing is trained. The run folder has the split and the predictions by key; predictions from
elsewhere for the same pairs are scored with the same split and metrics, fold by fold.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
from abag.head.evaluation import metrics
from abag.head.evaluation.comparison import compare, score_intervals
from abag.head.evaluation.metrics import headline_metrics
from abag.head.evaluation.verdicts import verdict
from abag.head.prediction.inputs import SAME_PREDICTION_PKD
from abag.head.runs.external_table import key_frame, score_table
from abag.head.runs.options import EvaluateOptions
from abag.head.runs.saved_run import SavedRun, read_run
from abag.head.runs.summary import average_parts, score_parts
from abag.head.splits.splits import KEYS, TEST

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
        The result of `fit`, with the scores of the head computed again. ``table`` adds
        ``metrics.table``, ``metrics.table_new_antibodies`` and ``metrics.table_new_antigens`` (None
        without such pairs), ``baselines.NAME.table`` for baselines fitted to the training pairs of
        the run, and ``table`` (how many of its ``pairs`` are ``in_training``, by pair, antibody and
        antigen). ``predictions`` adds ``predictions`` (scores, ``head_minus_predictions``,
        ``verdicts``).

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
        scores, cv = _score_folds(saved, saved.predicted)
        summary: RunSummary = {**saved.summary, "run": str(run), "metrics": {**scores}}
        summary["intervals"] = score_intervals(
            saved.pairs, saved.splits, saved.predicted, scores["test"]
        )
        if cv is not None:
            summary["cv"] = saved.summary["cv"] | {"head": cv}
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


def _score_folds(
    saved: SavedRun, predicted: list[Floats]
) -> tuple[dict[str, metrics.Scores], dict[str, metrics.FoldAverage] | None]:
    """Return the scores averaged over folds and, if there are several, their spread on test."""
    parts = zip(saved.splits, predicted, strict=True)
    folds = [score_parts(saved.pairs, split, one) for split, one in parts]
    cv = metrics.average_folds([fold["test"] for fold in folds]) if len(folds) > 1 else None
    return average_parts(folds), cv


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
    """Score predictions from elsewhere on the split of the run, and compare the head with them."""
    reference = _align_predictions(saved, table)
    scores, cv = _score_folds(saved, reference)
    found = {
        metric: compare(saved.pairs, saved.splits, saved.predicted, reference, metric)
        for metric in headline_metrics()
    }
    verdicts = [verdict("head", table.source, metric, one) for metric, one in found.items()]
    for line in verdicts:
        messages.say(line)
    result = {"source": table.source, **scores} | ({} if cv is None else {"cv": cv})
    result["head_minus_predictions"] = {m: one and one.to_json() for m, one in found.items()}
    return cast("PredictionsSummary", result | {"verdicts": verdicts})


def _align_predictions(saved: SavedRun, table: SequenceTable) -> list[Floats]:
    """Return a table's predictions for the pairs of the run, (P,) per fold; NaN if it has none."""
    given, on = _read_predictions(saved, table)
    known = pd.MultiIndex.from_frame(pd.concat(saved.folds, ignore_index=True)[on])
    unknown = int((~pd.MultiIndex.from_frame(given[on]).isin(known)).sum())
    merged = [rows.merge(given, how="left", on=on, validate="m:1") for rows in saved.folds]
    aligned = [rows["prediction"].to_numpy(np.float64) for rows in merged]
    parts = zip(saved.splits, aligned, strict=True)
    missing = sum(int(np.isnan(one[split.rows(TEST)]).sum()) for split, one in parts)
    if missing or unknown:
        by = " and fold" if "fold" in on else ""
        msg = (
            f"{table.source}: predictions are missing for {missing} of the run's test rows, and "
            f"{unknown} pairs are not in the run (matched by antibody, antigen{by}); expected all "
            "test rows and no other pairs. Predict the test rows of the run's splits.parquet."
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
    if len(saved.folds) > 1 and "fold" in table.frame.columns:
        fold = pd.Series(read_numbers(table.frame["fold"]), table.frame.index)
        given["fold"] = fold.where(fold.isin(range(len(saved.folds))), -1).astype(np.int64)
        on.append("fold")
    first = given.groupby(on)["prediction"].transform("first")
    repeated = int((abs(given["prediction"] - first) > SAME_PREDICTION_PKD).sum())
    if repeated:
        hint = ", or a column fold" if len(saved.folds) > 1 else ""
        msg = (
            f"{table.source}: column {column} has more than one prediction for the same pair "
            f"({repeated} extra rows); expected one per pair{hint}. Remove the others."
        )
        raise PredictionsMismatch(msg)
    return given.drop_duplicates(on, ignore_index=True), on
