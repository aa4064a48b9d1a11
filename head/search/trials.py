"""Results of a sweep: the table of trials, the importance of parameters, and the winner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import pandas as pd

from abag.core.files import replacing
from abag.head.evaluation.metrics import METRICS
from abag.head.report.results import RunSummary

if TYPE_CHECKING:
    from pathlib import Path

    from optuna.study import Study
    from optuna.trial import FrozenTrial

IMPORTANT_FROM = 10
"""Complete trials from which importances are meaningful."""
BEST_TRIALS = 10
"""Trials listed in the summary."""


class TrialSummary(TypedDict):
    """One trial of a sweep."""

    trial: int
    value: float | None
    """The selecting metric on the inner folds."""
    params: dict[str, Any]


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
    frame = pd.DataFrame([{**_summarise(t), **t.params, "state": t.state.name} for t in trials])
    with replacing(folder / "trials.csv") as partial:
        frame.drop(columns="params").to_csv(partial, index=False)
    return summary


def _summarise(trial: FrozenTrial) -> TrialSummary:
    return {"trial": trial.number, "value": trial.value, "params": dict(trial.params)}


def _importance(study: Study) -> dict[str, float]:
    import optuna

    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(value) for name, value in found.items()}


def describe_winner(summary: SweepSummary) -> str:
    """Describe the best trial in one line."""
    best = summary["best"]
    counts = ", ".join(f"{n} {state}" for state, n in summary["trials"].items())
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
    """Lay out the best trials, one per line, and the importance of each parameter."""
    if not summary["best_trials"]:
        return "no trial is complete yet"
    names = list(summary["best_trials"][0]["params"])
    rows = [["trial", summary["select"], *names]]
    for one in summary["best_trials"]:
        values = [one["trial"], one["value"], *(one["params"][name] for name in names)]
        rows.append([f"{v:.3g}" if isinstance(v, float) else str(v) for v in values])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in summary["importance"].items())
    return "\n".join(lines + ([f"importance: {shares}"] if shares else []))
