"""Results of a sweep: the table of trials, the importance of parameters, and the winner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import pandas as pd

from abag.core.files import replacing
from abag.core.messages import align
from abag.head.evaluation.metrics import METRICS
from abag.head.report.results import RunSummary
from abag.head.report.score_table import WIDTH
from abag.head.search.search import used_parameters

if TYPE_CHECKING:
    from pathlib import Path

    from optuna.study import Study
    from optuna.trial import FrozenTrial

IMPORTANT_FROM = 10
"""Complete trials from which importances are meaningful."""
BEST_TRIALS, SHOWN_TRIALS = 10, 5
"""Trials listed in the summary, and in its text."""


class TrialSummary(TypedDict):
    """One trial of a sweep."""

    trial: int
    value: float | None
    """The selecting metric on the inner folds."""
    params: dict[str, Any]
    """Those that its head uses."""


class SweepSummary(TypedDict):
    """The object that ``abag sweep --json`` prints."""

    sweep: str
    select: str
    trials: dict[str, int]
    """Number of trials by state."""
    best_trials: list[TrialSummary]
    importance: dict[str, float]
    """Share of the differences between good and other trials that each parameter explains."""
    best: NotRequired[TrialSummary]
    final: NotRequired[RunSummary]


def summarise_trials(folder: Path, study: Study, select: str) -> SweepSummary:
    """Summarise the trials of a study, and write ``trials.csv``."""
    trials = study.get_trials(deepcopy=False)
    states = [t.state.name for t in trials]
    sign = 1 if METRICS[select].lower_is_better else -1
    complete = [t for t in trials if t.state.name == "COMPLETE"]
    ranked = sorted(complete, key=lambda t: (sign * (t.value or 0.0), t.number))
    summary: SweepSummary = {
        "sweep": str(folder),
        "select": select,
        "trials": {name.lower(): states.count(name) for name in sorted(set(states))},
        "best_trials": [_summarise(trial) for trial in ranked[:BEST_TRIALS]],
        "importance": {},
    }
    if not ranked:
        return summary
    importance = _importance(study) if len(complete) >= IMPORTANT_FROM else {}
    summary["best"], summary["importance"] = _summarise(ranked[0]), importance
    rows = []
    for trial in trials:
        row: dict[str, Any] = {**_summarise(trial)}
        rows.append(row | row.pop("params") | {"state": trial.state.name})
    with replacing(folder / "trials.csv") as partial:
        pd.DataFrame(rows).to_csv(partial, index=False)
    return summary


def _summarise(trial: FrozenTrial) -> TrialSummary:
    return {"trial": trial.number, "value": trial.value, "params": used_parameters(trial.params)}


def _importance(study: Study) -> dict[str, float]:
    import optuna

    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(value) for name, value in found.items()}


def describe_winner(summary: SweepSummary) -> str:
    """Describe the best trial in one line."""
    best = summary["best"]
    words = {"fail": "interrupted"}  # optuna's state of trials whose process ended
    counts = ", ".join(f"{n} {words.get(one, one)}" for one, n in summary["trials"].items())
    chosen = ", ".join(
        f"{name} {value:.2g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in best["params"].items()
    )
    return (
        f"{counts}; best {summary['select']} {best['value']:.3f} on inner folds, trial "
        f"{best['trial']}: {chosen}. To refit it and score the test part once, add --final to the "
        "same command"
    )


def describe_trials(summary: SweepSummary) -> str:
    """Lay out the best trials, and the importance of each parameter.

    The columns are the parameters that fit into 80 columns, the most important ones first.
    """
    if not summary["best_trials"]:
        return "no trial is complete yet"
    shown, importance = summary["best_trials"][:SHOWN_TRIALS], summary["importance"]
    used = dict.fromkeys(name for one in shown for name in one["params"])
    names = sorted(used, key=lambda name: -importance.get(name, 0.0))
    columns = [
        ["trial", *(str(one["trial"]) for one in shown)],
        [summary["select"], *(f"{one['value']:.3f}" for one in shown)],
        *([name, *(_format(one["params"].get(name, "-")) for one in shown)] for name in names),
    ]
    lines = align([*zip(*columns, strict=True)])
    while max(map(len, lines)) > WIDTH:
        columns.pop()
        lines = align([*zip(*columns, strict=True)])
    if left := names[len(columns) - 2 :]:
        lines.append(f"{', '.join(left)}, and all trials: {summary['sweep']}/trials.csv")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in importance.items())
    return "\n".join(lines + ([f"importance: {shares}"] if shares else []))


def _format(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)
