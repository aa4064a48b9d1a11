"""The files that a finished run leaves in its folder, and its summary."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from abag.core.arrays import Floats, distinct
from abag.core.files import replacing, write_json, write_text
from abag.head.data.label_units import quantity
from abag.head.evaluation import metrics
from abag.head.evaluation.comparison import rows_to_score
from abag.head.evaluation.verdicts import warnings
from abag.head.regimes.splits import (
    TEST,
    TRAIN,
    Split,
    pair_keys,
    total_leaks,
)
from abag.head.report.report import model_card, write_report
from abag.head.report.results import CurvePoint, RegimeSummary, RunResults, RunSummary
from abag.head.runs.run_folder import pair_frame, sequence_frame
from abag.head.training.step_log import read_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from abag.head.data.labels import LabelledPairs
    from abag.head.evaluation.regime_scores import RegimeScore
    from abag.head.prediction.fitted import FittedParts, WeighedRegime

REPORT, CARD, BASELINES = "report.html", "predictor/README.md", "baselines.parquet"
"""Files of a run folder."""


def write_results(
    run: Path,
    pairs: LabelledPairs,
    results: RunResults,
    weighed: Sequence[WeighedRegime],
    fitted: Sequence[FittedParts],
    parts: FittedParts,
    *,
    report: bool,
) -> RunSummary:
    """Write predictions, report, model card and summary; the summary marks the run as finished.

    `results` are those of `pairs`; `fitted` has one entry per fold, and `parts` are fitted to all
    pairs; `report` says whether to write report.html.
    """
    _write_tables(run, pairs, results)
    # products of some thousand numbers: to wake threads for them takes longer
    with threadpool_limits(1, user_api="blas"):
        summary = _summarise(run, pairs, results, weighed, fitted, parts)
    if report:
        write_report(run / REPORT, results, summary)
    card = model_card(results.source, results.facts, summary)
    write_text(run / CARD, card)
    write_json(run / "summary.json", summary)
    return summary


def _write_tables(run: Path, pairs: LabelledPairs, results: RunResults) -> None:
    for name, frame in (
        ("predictions.parquet", _prediction_frame(pairs, results)),
        (BASELINES, baseline_frame(pairs, results)),
        ("pairs.parquet", pair_frame(pairs, results.names)),
        ("sequences.parquet", sequence_frame(pairs)),
    ):
        with replacing(run / name) as partial:
            frame.to_parquet(partial, index=False)


def _prediction_frame(pairs: LabelledPairs, results: RunResults) -> pd.DataFrame:
    """Return the test pairs of each fold of each regime, with their out-of-fold predictions."""
    keys, names, frames = pair_keys(pairs), results.names.columns, list[pd.DataFrame]()
    regimes = [one for one in results.regimes for _ in one.splits]
    folds = zip(results.splits, regimes, results.predicted, results.sigma, strict=True)
    for split, one, predicted, sigma in folds:
        rows = split.rows(TEST)
        frames.append(
            keys.iloc[rows].assign(
                regime=one.regime.name,
                fold=split.fold,
                pair=rows,
                group=one.groups[0][rows],
                second_group=one.groups[-1][rows],
                pkd=pairs.pkd[rows],
                censored=pairs.censored[rows],
                pkd_predicted=predicted[rows],
                sigma=sigma[rows],
                **{name: cells.iloc[rows].to_numpy() for name, cells in names.items()},
            )
        )
    return pd.concat(frames, ignore_index=True)


def baseline_frame(pairs: LabelledPairs, results: RunResults) -> pd.DataFrame:
    """Return what each baseline predicts for the test rows of each fold, in pKd.

    The rows are the test rows of ``predictions.parquet``, in their order; each baseline has a
    column of its name, after the keys and the fold.
    """
    keys, frames = pair_keys(pairs), []
    for split, found in zip(results.splits, results.baselines, strict=True):
        rows = split.rows(TEST)
        values = {name: predicted[rows] for name, predicted in found.items()}
        frames.append(keys.iloc[rows].assign(fold=split.fold, **values))
    return pd.concat(frames, ignore_index=True)


def _summarise(
    run: Path,
    pairs: LabelledPairs,
    results: RunResults,
    weighed: Sequence[WeighedRegime],
    fitted: Sequence[FittedParts],
    parts: FittedParts,
) -> RunSummary:
    trained = [one.trained for one in (*fitted, parts) if one.trained is not None]
    resumed = [t.resumed_from_step for t in trained if t.resumed_from_step is not None]
    at, regimes = 0, list[RegimeSummary]()
    for one in weighed:
        n = len(one.measured.splits)
        regimes.append(_summarise_regime(pairs, one, results.baselines[at : at + n]))
        at += n
    summary: RunSummary = {
        "run": str(run),
        "regimes": regimes,
        "not_measured": [
            {"regime": one.regime.name, "words": one.regime.words, "why": one.why_not}
            for one in results.regimes
            if not one.splits
        ],
        "warnings": warnings(pairs, results.regimes),
        "steps": sum(t.progress.step for t in trained),
        "epochs": 0 if parts.trained is None else parts.trained.epochs,
        "seconds": sum(one.seconds for one in (*fitted, parts)),
        "resumed_from_step": max(resumed, default=None),
        "used": _settings_used([t.used for t in trained]),
        "data": {
            "source": pairs.table.source,
            "pairs": len(pairs),
            "antibodies": len(distinct(pairs.antibody)),
            "antigens": len(distinct(pairs.antigen)),
            "quantity": quantity(pairs.table, results.facts.get("affinity_type")),
        },
        "noise": pairs.noise,
        "counts": pairs.counts,
    }
    if results.learning_curve:
        first = weighed[0]
        last = curve_point(first.measured.splits, first.score, 1.0)
        summary["learning_curve"] = [*results.learning_curve, last]
    return summary


def _summarise_regime(
    pairs: LabelledPairs, weighed: WeighedRegime, baselines: Sequence[Mapping[str, Floats]]
) -> RegimeSummary:
    splits = weighed.measured.splits
    names = [one for one in baselines[0] if all(one in fold for fold in baselines)]
    models = {"head": weighed.predicted} | {one: [f[one] for f in baselines] for one in names}
    rows = [split.rows(TEST) for split in splits]
    measured = [rows_to_score(pairs, one) for one in rows]
    scores: dict[str, metrics.Scores] = {}
    for name, folds in models.items():
        found = [m.score(p[r]) for m, p, r in zip(measured, folds, rows, strict=True)]
        scores[name] = {key: one["mean"] for key, one in metrics.average_folds(found).items()}
        for count in ("n", "n_censored"):
            scores[name][count] = sum(int(one[count] or 0) for one in found)
    return {
        **weighed.score,
        "folds": len(splits),
        "weights": weighed.weights,
        "spread": weighed.spread,
        "noise": weighed.noise,
        "split": splits[0].description | {"leaks_of_all_folds": total_leaks(splits)},
        "metrics": scores,
    }


def curve_point(splits: Sequence[Split], score: RegimeScore, share: float) -> CurvePoint:
    """Return the scores of heads that were fitted to a share of the groups."""
    pairs = round(float(np.mean([len(split.rows(TRAIN)) for split in splits])))
    return {"share": share, "training_pairs": pairs, "score": score}


def _settings_used(folds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the settings that the folds used; where these differ, their values in one text."""
    values = {name: [fold[name] for fold in folds] for name in (folds[0] if folds else ())}
    return {
        name: each[0] if len(set(each)) == 1 else ", ".join(map(str, dict.fromkeys(each)))
        for name, each in values.items()
    }


def join_logs(logs: Sequence[Path], path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's logs; write the logs of several folds to one file, `path`."""
    lines = [
        ({"fold": fold} if len(logs) > 1 else {}) | line
        for fold, log in enumerate(logs)
        if log.exists()  # a head in closed form has none
        for line in read_lines(log)
    ]
    if len(logs) > 1:
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
    return lines
