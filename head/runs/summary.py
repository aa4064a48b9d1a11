"""The files that a finished run leaves in its folder, and its summary."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from abag.core.arrays import Floats, distinct
from abag.core.files import replacing, write_json, write_text
from abag.embed.sequences.chains import KINDS
from abag.head.data.label_units import quantity
from abag.head.evaluation import metrics
from abag.head.evaluation.comparison import MeasuredPairs, rows_to_score, score_intervals
from abag.head.evaluation.verdicts import plain_verdict, verdicts, warnings
from abag.head.report.report import model_card, write_report
from abag.head.report.results import CurvePoint, ModelScores, RunResults, RunSummary
from abag.head.runs.run_folder import sequence_frame
from abag.head.splits.splits import (
    TEST,
    TRAIN,
    VALIDATION,
    Split,
    pair_keys,
    split_assignments,
    total_leaks,
)
from abag.head.training import uncertainty
from abag.head.training.step_log import read_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from abag.head.data.labels import LabelledPairs
    from abag.head.prediction.fitted import FittedHead

REPORT, CARD, BASELINES = "report.html", "predictor/README.md", "baselines.parquet"
"""Files of a run folder."""
SCORED_PARTS = {"validation": VALIDATION, "test": TEST}


def write_results(
    run: Path,
    pairs: LabelledPairs,
    results: RunResults,
    fitted: Sequence[FittedHead],
    *,
    report: bool,
) -> RunSummary:
    """Write predictions, report, model card and summary; the summary marks the run as finished.

    `results` are those of `pairs`; `fitted` has one entry per split; `report` says whether to
    write report.html.
    """
    _write_tables(run, pairs, results)
    # products of some thousand numbers: to wake threads for them takes longer
    with threadpool_limits(1, user_api="blas"):
        summary = _summarise(run, pairs, results, fitted)
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
        ("sequences.parquet", sequence_frame(pairs)),
    ):
        with replacing(run / name) as partial:
            frame.to_parquet(partial, index=False)


def _prediction_frame(pairs: LabelledPairs, results: RunResults) -> pd.DataFrame:
    """Return the split and the predictions of all pairs, for each fold."""
    folds = zip(results.splits, results.predicted, results.sigma, strict=True)
    clusters = {
        f"{kind}_cluster": one
        for kind in KINDS
        if (one := getattr(pairs, f"{kind}_cluster")) is not None
    }
    frames = [
        split_assignments(pairs, split).assign(
            pkd=pairs.pkd,
            censored=pairs.censored,
            **clusters,
            pkd_predicted=predicted,
            sigma=sigma,
            **results.names.columns,
        )
        for split, predicted, sigma in folds
    ]
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


def split_facts(splits: Sequence[Split]) -> dict[str, Any]:
    """Return how the pairs were split, as summary.json has it: that of the first fold, and sums."""
    facts = {"name": splits[0].name, "folds": len(splits)} | splits[0].description
    return facts | {"leaks_of_all_folds": total_leaks(splits)}


def _summarise(
    run: Path, pairs: LabelledPairs, results: RunResults, fitted: Sequence[FittedHead]
) -> RunSummary:
    splits = results.splits
    trained = [one.trained for one in fitted if one.trained is not None]
    resumed = [t.resumed_from_step for t in trained if t.resumed_from_step is not None]
    own = {
        "run": str(run),
        "steps": sum(t.progress.step for t in trained),
        "epochs": max((t.epochs for t in trained), default=0),
        "seconds": sum(one.seconds for one in fitted),
        "resumed_from_step": max(resumed, default=None),
        "best_step": trained[0].progress.best_step[0] if trained else 0,
        "used": {"split": splits[0].name} | _settings_used([t.used for t in trained]),
        "kept": float(np.mean([t.shrinkage for t in trained])) if trained else 1.0,
        "split": results.split,
        "data": {
            "source": pairs.table.source,
            "pairs": len(pairs),
            "antibodies": len(distinct(pairs.antibody)),
            "antigens": len(distinct(pairs.antigen)),
            "quantity": quantity(pairs.table, results.facts.get("affinity_type")),
        },
        "noise": pairs.noise,
        "counts": pairs.counts,
        "members": len(fitted[0].members),
        "shares": {
            # folds may differ in the models that apply to them
            name: float(np.mean([one.shares.get(name, 0.0) for one in fitted]))
            for name in dict.fromkeys(name for one in fitted for name in one.shares)
        },
        "sigma": uncertainty.summarise(
            pairs, splits, results.predicted, results.sigma, [one.sigma for one in fitted]
        ),
    }
    summary = cast("RunSummary", own | score_models(pairs, results))
    if results.learning_curve:
        last = curve_point(pairs, splits, results.predicted, 1.0)
        summary["learning_curve"] = [*results.learning_curve, last]
    return summary


def curve_point(
    pairs: MeasuredPairs, splits: Sequence[Split], predicted: Sequence[Floats], share: float
) -> CurvePoint:
    """Score heads that were fitted to a share of the groups, on the test parts."""
    folds = [score_parts(pairs, split, p) for split, p in zip(splits, predicted, strict=True)]
    return {
        "share": share,
        "training_pairs": round(float(np.mean([len(split.rows(TRAIN)) for split in splits]))),
        "test": average_parts(folds)["test"],
    }


def _settings_used(folds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the settings that the folds used; where these differ, their values in one text."""
    values = {name: [fold[name] for fold in folds] for name in (folds[0] if folds else ())}
    return {
        name: each[0] if len(set(each)) == 1 else ", ".join(map(str, dict.fromkeys(each)))
        for name, each in values.items()
    }


def score_models(pairs: LabelledPairs, results: RunResults) -> ModelScores:
    """Score the head and the baselines on the full validation and test parts, and compare them."""
    splits = results.splits
    predicted = {"head": results.predicted} | {
        name: [fold[name] for fold in results.baselines] for name in results.baselines[0]
    }
    of_folds = [
        score_models_of_fold(pairs, split, {name: each[k] for name, each in predicted.items()})
        for k, split in enumerate(splits)
    ]
    scores = {name: [fold[name] for fold in of_folds] for name in predicted}
    means = {name: average_parts(folds) for name, folds in scores.items()}
    found: ModelScores = {
        "warnings": warnings(pairs, splits, means["head"]["test"]),
        "verdict": plain_verdict(results.compared_with, means, splits[0].name),
        "verdicts": verdicts(results.compared_with, means),
        "metrics": {**(own := means.pop("head"))},
        "intervals": score_intervals(pairs, splits, results.predicted, own["test"]),
        "baselines": means,
    }
    if len(splits) > 1:
        found["cv"] = {
            name: metrics.average_folds([fold["test"] for fold in folds])
            for name, folds in scores.items()
        }
    return found


def score_parts(
    pairs: MeasuredPairs, split: Split, predicted: NDArray[np.float64]
) -> dict[str, metrics.Scores]:
    """Score predictions, (P,), on the validation and the test part."""
    return score_models_of_fold(pairs, split, {"": predicted})[""]


def score_models_of_fold(
    pairs: MeasuredPairs, split: Split, predicted: Mapping[str, Floats]
) -> dict[str, dict[str, metrics.Scores]]:
    """Compute `score_parts` of several models by name."""
    parts = {part: split.rows(number) for part, number in SCORED_PARTS.items()}
    measured = {part: rows_to_score(pairs, rows) for part, rows in parts.items()}
    return {
        name: {part: measured[part].score(one[rows]) for part, rows in parts.items()}
        for name, one in predicted.items()
    }


def average_parts(folds: list[dict[str, metrics.Scores]]) -> dict[str, metrics.Scores]:
    """Average the scores of `score_parts` over folds; numbers of rows are sums over folds."""
    if len(folds) == 1:
        return folds[0]
    means = {}
    for part in SCORED_PARTS:
        scores = [fold[part] for fold in folds]
        means[part] = {k: v["mean"] for k, v in metrics.average_folds(scores).items()}
        for count in ("n", "n_censored"):
            means[part][count] = sum(int(score[count] or 0) for score in scores)
    return means


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
