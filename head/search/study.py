"""The trials of a sweep: an Optuna study that several processes may share, and its results."""

from __future__ import annotations

import json
import os
import socket
import warnings
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
import pandas as pd

from abag import AbagError
from abag.core.files import FileDamaged, is_process_alive, naming_errors, replacing
from abag.core.messages import align, bar
from abag.head.evaluation.metrics import METRICS
from abag.head.runs.summary import RunSummary
from abag.head.search.search import (
    BATCH_PARAMETERS,
    LOGARITHMIC,
    POOLINGS,
    RANGES,
    SearchProblem,
    best_value,
    fit_options,
    is_closed_form,
    score_batch,
    used_parameters,
)
from abag.head.training.torch_settings import torch_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial, TrialState

BATCH_TRIALS = 8
RANDOM_TRIALS = 16
"""Trials drawn at random before the sampler uses earlier results."""
UNPRUNED_TRIALS = 8
"""Complete trials before bad ones are stopped early."""
STUDY_NAME, PROCESS_ATTRIBUTE = "abag", "process"
ABANDONED_S, UNOWNED_S = 86_400, 60
"""Age at which a running trial of another host, or of no known process, counts as abandoned."""


class OptunaMissing(AbagError):
    """The extra that a sweep needs is not installed."""


def require_optuna() -> None:
    """Raise `OptunaMissing` if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError as error:
        msg = "abag sweep: needs Optuna, which is not installed. Run: pip install 'abag[sweep]'"
        raise OptunaMissing(msg) from error


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Suppress Optuna's log and its warnings about experimental interfaces."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def open_study(journal: Path, select: str) -> Study:
    """Open the study of a journal file, or create both; `select` is the metric to optimise.

    Raises
    ------
    FileDamaged
        If the journal is not what was written.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    class Journal(JournalFileBackend):  # type: ignore[misc] # optuna has no types
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with naming_errors(journal):
                super().append_logs(logs)

    lock = JournalFileOpenLock(str(journal))  # the default one needs links: a Drive has none
    file = Journal(str(journal), lock_obj=lock)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED_TRIALS)
    direction = "minimize" if METRICS[select].lower_is_better else "maximize"
    with naming_damage(str(journal)):
        lock.acquire()
        try:
            _check_records(journal)
        finally:
            lock.release()
        storage = optuna.storages.JournalStorage(file)
        if storage.get_all_studies():
            study = optuna.load_study(storage=storage, study_name=STUDY_NAME, pruner=pruner)
            if study.directions != [optuna.study.StudyDirection[direction.upper()]]:
                msg = f"{study.directions} instead of {direction}"
                raise ValueError(msg)
            _check_complete_trials(study)
            return study
    return optuna.create_study(
        storage=storage,
        study_name=STUDY_NAME,
        load_if_exists=True,  # another process may be first
        direction=direction,
        pruner=pruner,
    )


@contextmanager
def naming_damage(journal: str) -> Iterator[None]:
    """Name the journal in errors of Optuna, which does not check what it reads."""
    try:
        yield
    except (
        LookupError,
        ValueError,
        TypeError,
        ArithmeticError,
        AttributeError,
        AssertionError,
        RecursionError,
    ) as error:
        msg = (
            f"{journal}: is damaged ({error!r}); expected a journal of trials. Restore it, or "
            "start in another folder."
        )
        raise FileDamaged(msg) from error


def _check_records(journal: Path) -> None:
    """Raise ValueError if a record is not JSON, or was cut: Optuna would append to it."""
    content = journal.read_bytes()
    if content and not content.endswith(b"\n"):
        msg = "its last record is cut: remove that line"
        raise ValueError(msg)
    for line in content.splitlines():
        json.loads(line)


def _check_complete_trials(study: Study) -> None:
    """Read what is needed of each complete trial; Optuna takes any value for it."""
    needed = {"shape", "loss", *RANGES, *POOLINGS}
    for trial in study.get_trials(deepcopy=False, states=[_state("COMPLETE")]):
        if not isinstance(trial.value, float) or not needed <= trial.params.keys():
            msg = f"trial {trial.number} has the value {trial.value!r} for {trial.params}"
            raise TypeError(msg)
        fit_options(trial.params)  # a shape that exists


def fail_abandoned_trials(study: Study) -> None:
    """Mark the running trials of processes that no longer exist as failed."""
    for trial in study.get_trials(deepcopy=False, states=[_state("RUNNING")]):
        host, _, pid = trial.user_attrs.get(PROCESS_ATTRIBUTE, "").partition(":")
        ended = host == socket.gethostname() and not is_process_alive(int(pid))
        age_s = (datetime.now() - (trial.datetime_start or datetime.now())).total_seconds()
        # A trial without a process was interrupted before its process was recorded.
        if ended or age_s > (ABANDONED_S if host else UNOWNED_S):
            study.tell(trial.number, state=_state("FAIL"), skip_if_finished=True)


def count_trials(study: Study) -> int:
    """Count the trials that are finished or running; failed ones do not count."""
    return sum(t.state.name != "FAIL" for t in study.get_trials(deepcopy=False))


def run_trials(study: Study, problem: SearchProblem, wanted: int) -> None:
    """Score batches of trials until there are as many trials as wanted."""
    progress = bar(total=wanted, initial=count_trials(study), desc="trials")
    with progress, torch_settings(problem.device, problem.config):
        while (remaining := wanted - count_trials(study)) > 0:
            with naming_damage("journal.log"):
                batch = _ask(study, problem, min(BATCH_TRIALS, remaining))
            try:
                _score_and_tell(study, problem, batch)
            except BaseException:
                for trial in batch:
                    study.tell(trial, state=_state("FAIL"), skip_if_finished=True)
                raise
            progress.update(len(batch))
            complete = study.get_trials(deepcopy=False, states=[_state("COMPLETE")])
            progress.set_postfix(best=f"{study.best_value:.3f}" if complete else "-")


def _state(name: str) -> TrialState:
    from optuna.trial import TrialState

    return TrialState[name]


def _ask(study: Study, problem: SearchProblem, count: int) -> list[Trial]:
    """Have a batch proposed: the first trial freely, the others with its batch parameters.

    A head in closed form makes a batch of one.
    """
    from optuna.samplers import PartialFixedSampler, TPESampler

    batch = [_owned(study.ask())]
    # A trial's number is part of the seed: reruns and other processes draw other trials.
    seed = np.random.SeedSequence([problem.config.seed, batch[0].number])
    sampler = TPESampler(
        seed=int(seed.generate_state(1)[0]), n_startup_trials=RANDOM_TRIALS, constant_liar=True
    )
    study.sampler = sampler
    for name, choices in problem.choices().items():
        batch[0].suggest_categorical(name, choices)
    for name, (low, high) in RANGES.items():
        batch[0].suggest_float(name, low, high, log=name in LOGARITHMIC)
    shared = {name: batch[0].params[name] for name in BATCH_PARAMETERS}
    if is_closed_form(shared):  # the others would be the same
        return batch
    study.sampler = PartialFixedSampler(shared, sampler)
    space = batch[0].distributions
    return batch + [_owned(study.ask(space)) for _ in range(count - 1)]


def _owned(trial: Trial) -> Trial:
    trial.set_user_attr(PROCESS_ATTRIBUTE, f"{socket.gethostname()}:{os.getpid()}")
    return trial


def _score_and_tell(study: Study, problem: SearchProblem, batch: Sequence[Trial]) -> None:
    epochs, pruned = problem.config.filled().epochs, set()

    def keep(trial: int, epoch: int, value: float | None) -> bool:
        if value is None or epoch == epochs:
            return True
        batch[trial].report(value, epoch)
        if batch[trial].should_prune():
            pruned.add(trial)
        return trial not in pruned

    found = score_batch(problem, [trial.params for trial in batch], keep)
    for k, (trial, values) in enumerate(zip(batch, found, strict=True)):
        best = best_value(problem.config.select, values)
        # Without a value the metric is undefined, and the trial cannot win.
        if k in pruned or best is None:
            study.tell(trial, state=_state("PRUNED"))
        else:
            study.tell(trial, best)


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
    while max(map(len, lines)) > 80:  # columns
        columns.pop()
        lines = align([*zip(*columns, strict=True)])
    if left := names[len(columns) - 2 :]:
        lines.append(f"{', '.join(left)}, and all trials: {summary['sweep']}/trials.csv")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in importance.items())
    return "\n".join(lines + ([f"importance: {shares}"] if shares else []))


def _format(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)
