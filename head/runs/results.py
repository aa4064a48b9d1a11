"""The files that a finished run leaves in its folder, and its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from abag.core.arrays import Floats, distinct
from abag.core.files import replacing, write_json, write_text
from abag.core.messages import printable
from abag.embed.sequences.chains import KINDS
from abag.head.data.labels import quantity
from abag.head.evaluation import metrics
from abag.head.evaluation.metrics import rows_to_score
from abag.head.evaluation.strong import score_strong
from abag.head.evaluation.verdicts import warnings
from abag.head.regimes.leaks import total_leaks
from abag.head.regimes.splits import TEST, TRAIN, Split, pair_keys
from abag.head.runs.report import NAMES, write_card, write_report
from abag.head.runs.run_folder import read_config, training_logs
from abag.head.runs.saved_run import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from abag.head.data.labels import LabelledPairs
    from abag.head.evaluation.regime_scores import RegimeScore
    from abag.head.prediction.fitted import FittedParts, WeighedRegime
    from abag.head.regimes.folds import MeasuredRegime
    from abag.head.runs.summary import CurvePoint, RegimeSummary, RunSummary


def write_results(
    run: Path,
    pairs: LabelledPairs,
    measured: Sequence[MeasuredRegime],
    weighed: Sequence[WeighedRegime],
    fitted: Sequence[FittedParts],
    parts: FittedParts,
    curve: Sequence[CurvePoint],
    *,
    report: bool,
) -> RunSummary:
    """Write predictions, report, model card and summary; the summary marks the run as finished.

    `fitted` has one entry per fold, and `parts` are fitted to all pairs; `report` says whether to
    write report.html.
    """
    baselines = [one.predicted for one in fitted]
    config, tested = read_config(run), _prediction_frame(pairs, weighed)
    for name, frame in (
        ("predictions.parquet", tested),
        ("baselines.parquet", _baseline_frame(pairs, weighed, baselines)),
        ("pairs.parquet", _pair_frame(pairs)),
    ):
        with replacing(run / name) as partial:
            frame.to_parquet(partial, index=False)
    # products of some thousand numbers: to wake threads for them takes longer
    with threadpool_limits(1, user_api="blas"):
        unit = quantity(pairs.table, config["affinity_type"])
        summary = _summarise(run, pairs, measured, weighed, baselines, [*fitted, parts], unit)
    threshold = metrics.strong_threshold(config["select"])
    summary["strong"] = score_strong(tested, summary["regimes"], threshold)
    if curve:
        first = weighed[0]
        last = curve_point(first.measured.splits, first.score, 1.0)
        summary["learning_curve"] = [*curve, last]
    if report:
        write_report(read_tables(run, config, summary))
    write_card(run, config, summary)
    write_json(run / "summary.json", summary)
    return summary


def _pair_frame(pairs: LabelledPairs) -> pd.DataFrame:
    """Return labels, clusters and names of all pairs, in their order, after their keys."""
    clusters = {
        f"{kind}_cluster": one
        for kind in KINDS
        if (one := getattr(pairs, f"{kind}_cluster")) is not None
    }
    columns: dict[str, Any] = {"pkd": pairs.pkd, "censored": pairs.censored}
    return pair_keys(pairs).assign(**columns, **clusters, **_names(pairs))


def _names(pairs: LabelledPairs) -> dict[str, Any]:
    """Return the number of each pair's row in the table, from 1, and its names as text."""
    table = pairs.table
    columns: dict[str, Any] = {"row": table.row_numbers[pairs.row]}
    for role in NAMES:
        if role in table.columns:
            cells = table.frame[table.columns[role]].iloc[pairs.row]
            texts = zip(cells, cells.isna(), strict=True)
            columns[role] = ["" if gap else printable(str(one).strip()) for one, gap in texts]
    return columns


def _prediction_frame(pairs: LabelledPairs, weighed: Sequence[WeighedRegime]) -> pd.DataFrame:
    """Return the test pairs of each fold of each regime, with their out-of-fold predictions."""
    keys, frames = pair_keys(pairs).assign(**_names(pairs)), list[pd.DataFrame]()
    for one in weighed:
        measured = one.measured
        for split, predicted, sigma in zip(measured.splits, one.predicted, one.sigma, strict=True):
            rows = split.rows(TEST)
            frames.append(
                keys.iloc[rows].assign(
                    regime=measured.regime.name,
                    fold=split.fold,
                    pair=rows,
                    group=measured.groups[0][rows],
                    second_group=measured.groups[-1][rows],
                    pkd=pairs.pkd[rows],
                    censored=pairs.censored[rows],
                    pkd_predicted=predicted[rows],
                    sigma=sigma[rows],
                )
            )
    return pd.concat(frames, ignore_index=True)


def _baseline_frame(
    pairs: LabelledPairs,
    weighed: Sequence[WeighedRegime],
    baselines: Sequence[Mapping[str, Floats]],
) -> pd.DataFrame:
    """Return what each baseline predicts for the rows of ``predictions.parquet``, in pKd."""
    keys, frames = pair_keys(pairs), []
    splits = [split for one in weighed for split in one.measured.splits]
    for split, found in zip(splits, baselines, strict=True):
        rows = split.rows(TEST)
        values = {name: predicted[rows] for name, predicted in found.items()}
        frames.append(keys.iloc[rows].assign(fold=split.fold, **values))
    return pd.concat(frames, ignore_index=True)


def _summarise(
    run: Path,
    pairs: LabelledPairs,
    measured: Sequence[MeasuredRegime],
    weighed: Sequence[WeighedRegime],
    baselines: Sequence[Mapping[str, Floats]],
    fitted: Sequence[FittedParts],
    unit: str,
) -> RunSummary:
    trained = [one.trained for one in fitted if one.trained is not None]
    resumed = [t.resumed_from_step for t in trained if t.resumed_from_step is not None]
    of_all = fitted[-1].trained
    regimes: list[RegimeSummary] = []
    at = 0
    for one in weighed:
        n = len(one.measured.splits)
        regimes.append(_summarise_regime(pairs, one, baselines[at : at + n]))
        at += n
    return {
        "run": str(run),
        "regimes": regimes,
        "not_measured": [
            {"regime": one.regime.name, "words": one.regime.words, "why": one.why_not}
            for one in measured
            if not one.splits
        ],
        "warnings": warnings(pairs, measured, unit),
        "steps": sum(t.steps for t in trained),
        "epochs": 0 if of_all is None else of_all.epochs,
        "seconds": sum(one.seconds for one in fitted),
        "resumed_from_step": max(resumed, default=None),
        "used": _settings_used([t.used for t in trained]),
        "data": {
            "source": pairs.table.source,
            "pairs": len(pairs),
            "antibodies": len(distinct(pairs.antibody)),
            "antigens": len(distinct(pairs.antigen)),
            "quantity": unit,
        },
        "noise": pairs.noise,
        "counts": pairs.counts,
        "strong": {"threshold": metrics.STRONG_PKD, "regimes": []},  # scored by the caller
    }


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


def join_logs(run: Path) -> None:
    """Write the logs of the trainings of all folds to one file."""
    logs = training_logs(run)
    if logs:  # a head in closed form has none
        text = "".join(log.read_text(encoding="utf-8") for log in logs)
        write_text(run / "metrics.jsonl", text)
