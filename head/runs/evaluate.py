"""``evaluate``: score a finished run again, on its own split, on another table, or beside others.

Nothing is trained: a run's folder holds its split and its predictions by key. Anyone's predictions
of the same pairs are scored under the same split and metrics, fold by fold.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.core.messages import reporting
from abag.embed.sequences.options import TableOptions
from abag.embed.sequences.pairs import read_pairs
from abag.head.data.label_options import LabelOptions
from abag.head.data.labels import label_pairs, report_counts
from abag.head.data.splits import TEST
from abag.head.evaluation import metrics
from abag.head.evaluation.comparison import compare, verdict
from abag.head.evaluation.metrics import headline_metrics
from abag.head.runs.external_table import KEYS, count_known, keyed, score_table
from abag.head.runs.options import EvaluateOptions
from abag.head.runs.saved_run import SavedRun, read_run
from abag.head.runs.summary import average_parts, score_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from abag.embed.sequences.pairs import SequenceTable

Floats: TypeAlias = NDArray[np.float64]


class NothingToEvaluate(AbagError):
    """The inputs do not say what is to be scored."""


class PredictionsMismatch(AbagError):
    """A file of predictions and the run do not hold the same pairs."""


def evaluate(
    run: Path | str,
    *,
    table: Path | str | pd.DataFrame | None = None,
    say: Callable[[str], None] | None = None,
    **options: Any,  # noqa: ANN401 - the fields of EvaluateOptions
) -> dict[str, Any]:
    """Score a run on its saved split, and maybe on another table or beside other predictions.

    Parameters
    ----------
    run : path
        Folder of a finished run.
    table : path or DataFrame, optional
        Other measured pairs, their labels read as the run read its own.
    say : callable, optional
        Takes each message; by default they go to stderr.
    **options
        Fields of `EvaluateOptions`. ``predictions`` must cover every test pair. With folds, its
        column ``fold`` says which fold a row is for; without it a pair's prediction is used in
        every fold.

    Returns
    -------
    dict
        What `fit` returned, the head's scores computed anew. ``table`` adds ``metrics.table``,
        ``metrics.table_new_antibodies`` and ``metrics.table_new_antigens`` (None without such
        pairs), ``baselines.NAME.table`` for what learned from the run's training pairs, and
        ``table`` (how many of its ``pairs`` are ``in_training``, by pair, antibody and antigen);
        ``predictions`` adds ``predictions`` (scores, ``head_minus_predictions``, ``verdicts``).

    Raises
    ------
    NoFinishedRun, NothingToEvaluate, PredictionsMismatch
    AbagError
        If a table cannot be read, or the store lacks some of its sequences.
    """
    chosen = EvaluateOptions.from_keywords(options, "evaluate")
    _refuse_unread(table, chosen)
    say = say or _to_stderr
    saved = read_run(Path(run))
    scores, cv = _scored(saved, saved.predicted)
    result: dict[str, Any] = {**saved.summary, "run": str(run), "metrics": scores}
    if cv is not None:
        result["cv"] = saved.summary["cv"] | {"head": cv}
    reading = TableOptions(columns=chosen.columns, antigen=chosen.antigen)
    if table is not None:
        other = read_pairs(table, replace(reading, bad_rows=saved.config["bad_rows"]))
        pairs = label_pairs(other, _label_options(saved, other, chosen.affinity_type, say))
        with reporting(say):
            report_counts(pairs)
        result["table"] = count_known(saved, pairs, say)
        score_table(result, Path(run), saved, pairs, chosen.store, say)
    if chosen.predictions is not None:
        result["predictions"] = _beside(saved, read_pairs(chosen.predictions, reading), say)
    return result


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def _refuse_unread(table: object, options: EvaluateOptions) -> None:
    """Refuse an input that would not be used."""
    if table is not None and options.predictions is not None:
        msg = "evaluate: both a TABLE and --predictions; expected one. Run it once for each."
        raise NothingToEvaluate(msg)
    if table is None and (options.store or options.affinity_type):
        msg = "evaluate: --store and --affinity-type are for a TABLE, and there is none. Give one."
        raise NothingToEvaluate(msg)
    if table is None and options.predictions is None and (options.columns or options.antigen):
        msg = "evaluate: --column and --antigen are for a TABLE or --predictions. Give one."
        raise NothingToEvaluate(msg)


def _scored(
    saved: SavedRun, predicted: list[Floats]
) -> tuple[dict[str, metrics.Scores], dict[str, Any] | None]:
    """Score predictions on each fold, then average; the spread too, where there are folds."""
    folds = [
        score_parts(saved.pairs, split, one)
        for split, one in zip(saved.splits, predicted, strict=True)
    ]
    cv = metrics.average_folds([fold["test"] for fold in folds]) if len(folds) > 1 else None
    return average_parts(folds), cv


# ---- another table -------------------------------------------------------------------------------


def _label_options(
    saved: SavedRun, table: SequenceTable, affinity_type: str | None, say: Callable[[str], None]
) -> LabelOptions:
    """Read labels as the run did; a table that knows no affinity types cannot be asked for one."""
    known = {f.name: saved.config[f.name] for f in fields(LabelOptions) if f.name in saved.config}
    options = LabelOptions(**known)
    if affinity_type is not None:
        return replace(options, affinity_type=affinity_type)
    if options.affinity_type is None or table.has("affinity_type"):
        return options
    say(f"{table.source}: has no affinity types; all are taken for {options.affinity_type!r}")
    return replace(options, affinity_type=None)


def _beside(saved: SavedRun, table: SequenceTable, say: Callable[[str], None]) -> dict[str, Any]:
    """Score the predictions of a file on the run's split, and compare the run's own with them."""
    theirs = _lay(saved, table)
    scores, cv = _scored(saved, theirs)
    found = {
        metric: compare(saved.pairs, saved.splits, saved.predicted, theirs, metric)
        for metric in headline_metrics()
    }
    lines = [verdict("head", table.source, metric, one) for metric, one in found.items()]
    for line in lines:
        say(line)
    return {
        "source": table.source,
        **scores,
        **({} if cv is None else {"cv": cv}),
        "head_minus_predictions": {m: one and asdict(one) for m, one in found.items()},
        "verdicts": lines,
    }


def _lay(saved: SavedRun, table: SequenceTable) -> list[Floats]:
    """Bring a file's predictions to the run's pairs, (P,) a fold; NaN where it has none."""
    given, on = _read_predictions(saved, table)
    everything = pd.concat(saved.folds, ignore_index=True)
    known = pd.MultiIndex.from_frame(everything[on])
    unknown = int((~pd.MultiIndex.from_frame(given[on]).isin(known)).sum())
    laid = [
        rows.merge(given, how="left", on=on, validate="m:1")["prediction"].to_numpy(np.float64)
        for rows in saved.folds
    ]
    parts = zip(saved.splits, laid, strict=True)
    missing = sum(int(np.isnan(one[split.rows(TEST)]).sum()) for split, one in parts)
    if missing or unknown:
        by = " and fold" if "fold" in on else ""
        msg = (
            f"{table.source}: lacks a prediction for {missing} of the run's test rows and holds "
            f"{unknown} pairs that the run has not (matched by antibody, antigen{by}); expected "
            "every test row and no other pairs. Predict the test rows of the run's splits.parquet."
        )
        raise PredictionsMismatch(msg)
    return laid


def _read_predictions(saved: SavedRun, table: SequenceTable) -> tuple[pd.DataFrame, list[str]]:
    """Return the distinct predictions of a file, and the columns that say what each is for."""
    column = table.column("prediction")
    value = pd.to_numeric(table.frame[column], errors="coerce").to_numpy(np.float64)
    if not np.isfinite(value).all():
        at = int(np.flatnonzero(~np.isfinite(value))[0])
        msg = (
            f"{table.source}: row {table.row_numbers[at]}, column {column}: "
            f"{table.frame[column].iloc[at]!r} is no prediction; expected a pKd "
            f"({int((~np.isfinite(value)).sum())} such rows). Predict or leave out these pairs."
        )
        raise PredictionsMismatch(msg)
    sides = (table.antibodies, table.antigens)
    given = keyed(*(side.keys[side.of_row] for side in sides)).assign(prediction=value)
    on = list(KEYS)
    if len(saved.folds) > 1 and "fold" in table.frame.columns:
        fold = pd.to_numeric(table.frame["fold"], errors="coerce")
        given["fold"] = fold.where(fold.isin(range(len(saved.folds))), -1).astype(np.int64)
        on.append("fold")
    given = given.drop_duplicates(ignore_index=True)
    twice = int(given.duplicated(on).sum())
    if twice:
        msg = (
            f"{table.source}: column {column} has {twice} second, different predictions of one "
            "pair; expected one a pair"
            + (", or a column fold that tells them apart" if len(saved.folds) > 1 else "")
            + ". Leave out the others."
        )
        raise PredictionsMismatch(msg)
    return given, on
