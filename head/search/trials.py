"""What a sweep leaves behind: the table of its trials, what mattered, and the winner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from abag.core.files import replacing
from abag.head.evaluation.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optuna.study import Study
    from optuna.trial import FrozenTrial

IMPORTANT_FROM = 10
"""Complete trials from which importances mean something."""
SHOWN = 10


def summarise_trials(folder: Path, study: Study, select: str) -> dict[str, Any]:
    """Write the table of trials and the figure; return the sweep's result."""
    trials = study.get_trials(deepcopy=False)
    states = [t.state.name for t in trials]
    sign = 1 if METRICS[select].lower_is_better else -1
    complete = [t for t in trials if t.state.name == "COMPLETE"]
    ranked = sorted(complete, key=lambda t: (sign * (t.value or 0.0), t.number))
    summary: dict[str, Any] = {
        "sweep": str(folder),
        "select": select,
        "trials": {name.lower(): states.count(name) for name in sorted(set(states))},
        "best_trials": [_line(trial) for trial in ranked[:SHOWN]],
        "importance": {},
    }
    if not ranked:
        return summary
    importance = _importance(study, len(complete))
    summary |= {"best": _line(ranked[0]), "importance": importance}
    frame = pd.DataFrame([{**_line(t), **t.params, "state": t.state.name} for t in trials])
    with replacing(folder / "trials.csv", concurrent=True) as partial:
        frame.drop(columns="params").to_csv(partial, index=False)
    with replacing(folder / "importance.png", concurrent=True) as partial:
        _draw(partial, ranked, importance, summary)
    return summary


def _line(trial: FrozenTrial) -> dict[str, Any]:
    return {"trial": trial.number, "value": trial.value, "params": dict(trial.params)}


def _importance(study: Study, complete: int) -> dict[str, float]:
    """Say what share of the differences between good and other trials each parameter explains."""
    import optuna

    if complete < IMPORTANT_FROM:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(value) for name, value in found.items()}


def _draw(
    path: Path,
    ranked: Sequence[FrozenTrial],
    importance: dict[str, float],
    summary: dict[str, Any],
) -> None:
    """Draw importances, and the value of each trial in the order in which they were tried."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.barh(list(importance)[::-1], list(importance.values())[::-1], color="#0b6e99")
    left.set(xlabel="importance", title="" if importance else "too few trials for importances")
    right.plot([t.number for t in ranked], [t.value for t in ranked], "o", ms=4, color="#0b6e99")
    right.plot(ranked[0].number, ranked[0].value, "o", ms=8, color="#d1495b")
    right.set(xlabel="trial", ylabel=summary["select"].replace("_", " "))
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png", dpi=160, metadata={"Software": None})


def describe_winner(summary: dict[str, Any]) -> str:
    best = summary["best"]
    counts = ", ".join(f"{n} {state}" for state, n in summary["trials"].items())
    chosen = ", ".join(
        f"{name} {value:.2g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in best["params"].items()
    )
    return (
        f"{counts}; best {summary['select']} {best['value']:.3f} on inner folds, trial "
        f"{best['trial']}: {chosen}. Refit it and score the test part once with the same command "
        "and --final"
    )


def describe_trials(summary: dict[str, Any]) -> str:
    """Lay out the best trials, one per line, and the importance of each parameter."""
    if not summary["best_trials"]:
        return "no trial is complete yet"
    names = list(summary["best_trials"][0]["params"])
    rows = [["trial", summary["select"], *names]]
    for one in summary["best_trials"]:
        values = [one["value"], *(one["params"][name] for name in names)]
        cells = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in values]
        rows.append([str(one["trial"]), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in summary["importance"].items())
    return "\n".join(lines + ([f"importance: {shares}"] if shares else []))
