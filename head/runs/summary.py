"""What a finished run leaves in its folder: tables, report, card, and its summary, also as text."""

from __future__ import annotations

import shlex
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.core.arrays import Ints, distinct, label_weights
from abag.core.cores import limit_blas
from abag.core.files import replacing, write_json, write_text
from abag.core.messages import align, counted, printable
from abag.embed.tables.chains import KINDS
from abag.head.evaluation import metrics
from abag.head.evaluation.metrics import rows_to_score
from abag.head.evaluation.scores import describe_regimes
from abag.head.evaluation.verdicts import describe_strong, score_strong, warnings
from abag.head.labels.headers import Quantity
from abag.head.regimes.splits import KEYS, TEST, TRAIN, Split, pair_keys, total_leaks
from abag.head.runs.report import RESIDUES, write_card, write_report
from abag.head.runs.rounds import MEASURED, describe_history, describe_promises, measured_rows
from abag.head.runs.run_folder import kinds_of, read_config, read_tables, training_logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from abag.head.evaluation.scores import RegimeScore
    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.predictor.parts import Parts, Predictions
    from abag.head.predictor.weigh import WeighedRegime
    from abag.head.regimes.folds import MeasuredRegime
    from abag.head.runs.run_folder import (
        DataSummary,
        RegimeSummary,
        RunSummary,
        UnmeasuredRegime,
    )

NAMES = ("id", "antibody_name", "antigen_name")


def write_results(
    run: Path,
    pairs: LabelledPairs,
    measured: Sequence[MeasuredRegime],
    weighed: Sequence[WeighedRegime],
    fitted: Sequence[Predictions],
    parts: Parts,
    curve: Sequence[dict[str, Any]],
    *,
    predictor_digest: str,
    report: bool,
    history: list[dict[str, Any]] | None = None,
    residues: pd.DataFrame | None = None,
) -> RunSummary:
    """Write predictions, report, card and summary; the summary marks the run as finished."""
    config = read_config(run)
    tested = _prediction_frame(pairs, weighed)
    baseline_frames = []
    for fold, (_, rows, _) in zip(fitted, _tests(weighed), strict=True):
        baseline_frames.append(pd.DataFrame(fold.predicted).iloc[rows])
    baseline_frame = pd.concat(baseline_frames, ignore_index=True)
    tables = {
        "predictions.parquet": tested,
        "baselines.parquet": pd.concat([tested[[*KEYS, "fold"]], baseline_frame], axis=1),
        "pairs.parquet": _pair_frame(pairs),
        MEASURED: measured_rows(pairs),
    }
    if residues is not None:
        tables[RESIDUES] = residues
    for name, frame in tables.items():
        with replacing(run / name) as partial:
            pairs.quantity.outward(frame).to_parquet(partial, index=False)
    threshold = metrics.strong_threshold(config["select"], pairs.quantity)
    if pairs.quantity.classes:  # pairs of the highest class are found by its probability
        threshold = len(pairs.quantity.classes) - 1.5
    # products of some thousand numbers: to wake threads for them takes longer
    with limit_blas(1):
        summary = _summarise(run, pairs, measured, weighed, fitted, parts, threshold)
    if threshold is not None:
        regimes = summary["regimes"]
        sign = pairs.quantity.sign
        is_binary = pairs.quantity.is_binary
        summary["strong"] = score_strong(
            tested, regimes, threshold, sign=sign, are_probabilities=is_binary
        )
    if curve:
        first = weighed[0]
        last = curve_point(first.measured.splits, first.score, 1.0)
        summary["learning_curve"] = [*curve, last]
    summary["predictor_digest"] = predictor_digest
    if history is not None:
        summary["rounds"] = describe_history(pairs, history)
    if report:
        write_report(read_tables(run, config, summary))
    write_card(run, config, summary)
    write_json(run / "summary.json", summary)  # last: the run is finished
    return summary


def _pair_frame(pairs: LabelledPairs) -> pd.DataFrame:
    """Return what ``pairs.parquet`` has of each pair: keys, label, clusters, names and round."""
    frame = pair_keys(pairs).assign(pkd=pairs.pkd, censored=pairs.censored)
    for kind in KINDS:
        cluster_of_pair = getattr(pairs, f"{kind}_cluster")
        if cluster_of_pair is not None:
            frame[f"{kind}_cluster"] = cluster_of_pair
    frame = frame.assign(**_names(pairs))
    if pairs.share is not None:
        frame["weight"] = label_weights(pairs.share)
    if pairs.round_of_row is not None:  # in which each pair was measured first
        frame["round"] = pairs.round_of_row[pairs.row]
    return frame


def _names(pairs: LabelledPairs) -> dict[str, Any]:
    table = pairs.table
    columns: dict[str, Any] = {"row": table.row_numbers[pairs.row]}
    for role in NAMES:
        if role in table.columns:
            cells = table.frame[table.columns[role]].iloc[pairs.row]
            texts = zip(cells, cells.isna(), strict=True)
            columns[role] = ["" if gap else printable(str(cell).strip()) for cell, gap in texts]
    return columns


def _tests(weighed: Sequence[WeighedRegime]) -> Iterator[tuple[WeighedRegime, Ints, int]]:
    """Yield regime, test pairs and number of each fold, in the order of the fits."""
    for regime in weighed:
        for at, split in enumerate(regime.measured.splits):
            yield regime, split.rows(TEST), at


def _prediction_frame(pairs: LabelledPairs, weighed: Sequence[WeighedRegime]) -> pd.DataFrame:
    keys = pair_keys(pairs).assign(**_names(pairs))
    frames = []
    for regime, rows, at in _tests(weighed):
        measured = regime.measured
        frame = keys.iloc[rows].assign(
            regime=measured.regime.name,
            fold=measured.splits[at].fold,
            pair=rows,
            group=measured.groups[0][rows],
            second_group=measured.groups[-1][rows],
            pkd=pairs.pkd[rows],
            censored=pairs.censored[rows],
            pkd_predicted=regime.predicted[regime.in_fold(at)],
            sigma=regime.sigma[regime.in_fold(at)],
        )
        if pairs.share is not None:
            frame = frame.assign(weight=label_weights(pairs.share)[rows])
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _summarise(
    run: Path,
    pairs: LabelledPairs,
    measured: Sequence[MeasuredRegime],
    weighed: Sequence[WeighedRegime],
    fitted: Sequence[Predictions],
    parts: Parts,
    threshold: float | None,
) -> RunSummary:
    distinct_folds = {id(fold): fold for fold in fitted}  # regimes share folds
    fits: list[Predictions | Parts] = [*distinct_folds.values(), parts]
    trained = [fold.trained for fold in fits if fold.trained is not None]
    resumed = [heads.resumed_from_step for heads in trained if heads.resumed_from_step is not None]
    final_heads = parts.trained
    regimes: list[RegimeSummary] = []
    remaining = iter(fitted)  # in the order of the regimes
    for regime in weighed:
        of_regime = list(islice(remaining, len(regime.measured.splits)))
        regimes.append(_summarise_regime(pairs, regime, of_regime, threshold))
    not_measured: list[UnmeasuredRegime] = []
    for regime_of_table in measured:
        if not regime_of_table.splits:
            name = regime_of_table.regime.name
            words = regime_of_table.regime.words
            not_measured.append({"regime": name, "words": words, "why": regime_of_table.why_not})
    return {
        "run": str(run),
        "regimes": regimes,
        "not_measured": not_measured,
        "warnings": warnings(pairs, measured),
        "steps": sum(heads.steps for heads in trained),
        "epochs": 0 if final_heads is None else final_heads.epochs,
        "seconds": sum(fold.seconds for fold in fits),
        "resumed_from_step": max(resumed, default=None),
        "used": _settings_used([heads.used for heads in trained]),
        "data": _describe_source(pairs),
        "noise": pairs.noise,
        "counts": pairs.counts,
        "strong": {"threshold": threshold, "regimes": []},  # scored by the caller
    }


def _describe_source(pairs: LabelledPairs) -> DataSummary:
    data: DataSummary = {
        "source": pairs.table.source,
        "pairs": len(pairs),
        "antibodies": len(distinct(pairs.antibody)),
        "antigens": len(distinct(pairs.antigen)) if "antigen" in pairs.kinds else 0,
        "quantity": str(pairs.quantity),
    }
    if not pairs.quantity.affinity:
        data["better"] = pairs.quantity.better
    if pairs.quantity.classes:
        data["classes"] = [*pairs.quantity.classes]
    return data


def _summarise_regime(
    pairs: LabelledPairs,
    weighed: WeighedRegime,
    folds: Sequence[Predictions],
    strong_pkd: float | None,
) -> RegimeSummary:
    splits = weighed.measured.splits
    scores_of_folds: dict[str, list[metrics.Scores]] = {}
    for number, (split, fold) in enumerate(zip(splits, folds, strict=True)):
        rows = split.rows(TEST)
        to_score = rows_to_score(pairs, rows)
        tested = {"head": weighed.predicted[weighed.in_fold(number)]}
        tested |= {name: predicted_P[rows] for name, predicted_P in fold.predicted.items()}
        for name, predicted_R in tested.items():
            scores_of_fold = to_score.score(predicted_R, strong_pkd)
            scores_of_folds.setdefault(name, []).append(scores_of_fold)
    scores: dict[str, metrics.Scores] = {}
    for name, of_folds in scores_of_folds.items():
        if len(of_folds) < len(splits):  # a baseline that some folds lack
            continue
        averages = metrics.average_folds(of_folds)
        scores[name] = {metric: average["mean"] for metric, average in averages.items()}
        for count in ("n", "n_censored"):
            scores[name][count] = sum(int(of_fold[count] or 0) for of_fold in of_folds)
    return {
        **weighed.score,
        "folds": len(splits),
        "weights": weighed.mixture.weights,
        "spread": weighed.mixture.spread,
        "noise": weighed.mixture.noise,
        "split": splits[0].description | {"leaks_of_all_folds": total_leaks(splits)},
        "metrics": scores,
    }


def curve_point(splits: Sequence[Split], score: RegimeScore, share: float) -> dict[str, Any]:
    """Return the scores of heads that were fitted to a share of the groups."""
    training_pairs = [len(split.rows(TRAIN)) for split in splits]
    mean = round(float(np.mean(training_pairs)))
    return {"share": share, "training_pairs": mean, "score": score}


def _settings_used(folds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the settings that the folds used; where these differ, their values in one text."""
    used = {}
    for name in folds[0] if folds else ():
        values = list(dict.fromkeys(fold[name] for fold in folds))
        used[name] = values[0] if len(values) == 1 else ", ".join(map(str, values))
    return used


def join_logs(run: Path) -> None:
    """Write the logs of the trainings of all folds to one file."""
    logs = training_logs(run)
    if logs:  # a head in closed form has none
        text = "".join(log.read_text(encoding="utf-8") for log in logs)
        write_text(run / "metrics.jsonl", text)


# ---- as text -------------------------------------------------------------------------------------


def describe_scores(summary: Mapping[str, Any]) -> str:
    """Lay out the scores in a summary of `fit` or `evaluate`: of another table first, if given."""
    quantity = recorded_quantity(summary["data"])
    lines = list[str]()
    if "table" in summary:
        of_table = summary["table"]
        lines.append(f"{of_table['source']}:")
        lines += _describe_regimes(of_table["regimes"], summary)
        if of_table["far"]:
            lines.append(
                f"{counted(of_table['far'], 'pair')} outside training data: no measured row "
                "of the run's table covers such pairs"
            )
        lines += filter(None, [of_table["sentence"]])
    if "predictions" in summary:
        of_predictions = summary["predictions"]
        lines.append(f"{of_predictions['source']}:")
        lines += _describe_regimes(of_predictions["regimes"], summary)
        lines += of_predictions["verdicts"]
    if "strong_at" in summary:
        lines += ["", *describe_strong(summary["strong_at"], quantity)]
    if lines:
        lines += ["", f"{summary['run']}, cross-validated:"]
    return "\n".join([*lines, *_describe_regimes(summary["regimes"], summary)])


def recorded_quantity(data: Mapping[str, Any]) -> Quantity:
    """Return what a run predicts, from the data of its summary, with its unit in the name."""
    return Quantity(
        name=data.get("quantity", "pKd"),
        better=data.get("better", "higher"),
        affinity="better" not in data,
        classes=tuple(data.get("classes", ())),
    )


def describe_fit(summary: Mapping[str, Any], *, verbose: bool = False) -> str:
    """Describe a finished fit: the table that everybody should see, and what it means.

    Without `verbose` the table has the scores that decide, and says how to see all.
    """
    lines = _describe_data(summary)
    lines += _describe_regimes(summary["regimes"], summary, deciding=not verbose)
    lines += _describe_promises(summary)
    lines += [f"{regime['words']}: {regime['why']}" for regime in summary["not_measured"]]
    run = Path(summary["run"])
    places = {"report": run / "report.html", "predictor": run / "predictor"}
    lines += [f"{name:10} {path}" for name, path in places.items() if path.exists()]
    if summary["regimes"] and not verbose:
        lines.append(f"{'scores':10} abag evaluate --run {shlex.quote(summary['run'])}")
    return "\n".join(lines)


def describe_briefly(summary: Mapping[str, Any]) -> list[str]:
    """Describe a finished fit for a notebook: verdicts, problems, then the table."""
    lines = _describe_data(summary)
    lines += [regime["sentence"] for regime in summary["regimes"]]
    lines += _describe_promises(summary)
    lines += summary["warnings"]
    lines += align(_lay_out(summary["regimes"], summary, deciding=True))
    return lines


def _describe_promises(summary: Mapping[str, Any]) -> list[str]:
    quantity = recorded_quantity(summary["data"])
    return describe_promises(summary["regimes"], summary.get("rounds", ()), quantity)


def describe_evaluation(summary: Mapping[str, Any]) -> list[str]:
    """Describe an evaluation for a notebook: the scores of what was given come first."""
    lines = list[str]()
    if "table" in summary:
        of_table = summary["table"]
        far = f", {of_table['far']:,} outside training data" if of_table["far"] else ""
        lines.append(f"{of_table['source']}: {counted(of_table['pairs'], 'pair')}{far}")
        lines += _scores_first(of_table["regimes"], summary)
        lines += filter(None, [of_table["sentence"]])
    if "predictions" in summary:
        of_predictions = summary["predictions"]
        lines.append(of_predictions["source"])
        lines += [*_scores_first(of_predictions["regimes"], summary), *of_predictions["verdicts"]]
    if "strong_at" in summary:
        lines += describe_strong(summary["strong_at"], recorded_quantity(summary["data"]))
    of_run = describe_briefly(summary)
    if lines:
        run, _, data = of_run[0].rpartition(": ")
        of_run[0] = f"{run}, cross-validated: {data}"
    return [*lines, *of_run]


def _scores_first(regimes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[str]:
    if not regimes:
        return ["too few pairs of any kind to score"]
    table = align(_lay_out(regimes, summary, deciding=True))
    return [*table, *(regime["sentence"] for regime in regimes)]


def _describe_data(summary: Mapping[str, Any]) -> list[str]:
    data = summary["data"]
    antigens = f" and {counted(data['antigens'], 'antigen')}" if data["antigens"] else " alone"
    return [
        f"{summary['run']}: {counted(data['pairs'], 'pair')} of "
        f"{counted(data['antibodies'], 'antibody')}{antigens}"
    ]


def _lay_out(
    regimes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, deciding: bool
) -> list[list[str]]:
    quantity = recorded_quantity(summary["data"])
    return describe_regimes(regimes, quantity, kinds_of(summary), deciding=deciding)


def _describe_regimes(
    regimes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, deciding: bool = False
) -> list[str]:
    """Lay out scores and the verdicts."""
    if not regimes:
        return ["too few pairs of any kind to score"]
    table = _table_of_regimes(regimes, summary, deciding=deciding)
    return [*table, *(regime["sentence"] for regime in regimes)]


def _table_of_regimes(
    regimes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, deciding: bool
) -> list[str]:
    """Lay out scores with a column per regime, of which two fit into 80 columns."""
    names, *lines_of_scores = zip(*_lay_out(regimes, summary, deciding=deciding), strict=True)
    above = []
    below = []
    for words in names:  # such as "known antibodies, new antigens"
        first, comma, second = words.partition(", ")
        above.append(first + comma.strip())
        below.append(second)
    table = [above, below] if any(below) else [above]
    return align([*table, *map(list, lines_of_scores)])
