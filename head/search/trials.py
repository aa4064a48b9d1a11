"""The trials of a sweep: an Optuna study in a journal file, which several processes may share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from abag.core.errors import DamagedFile
from abag.core.messages import bar
from abag.head.evaluation.metrics import find_metric
from abag.head.search.search import (
    BATCH_PARAMETERS,
    LOGARITHMIC,
    RANGES,
    SearchProblem,
    is_closed_form,
    score_batch,
)
from abag.head.training.torch_settings import torch_settings

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial


BATCH_TRIALS = 8
RANDOM_TRIALS = 16
"""Trials drawn at random before the sampler uses earlier results."""


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
    """Open the study of a journal file, or create both; `select` is the metric to optimise."""
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    # the default lock needs links, which a mounted Drive lacks
    lock = JournalFileOpenLock(str(journal))
    file = JournalFileBackend(str(journal), lock_obj=lock)
    if not journal.read_bytes().endswith(b"\n"):
        lock.acquire()  # another process may be writing
        try:  # a full disk may have cut the last record off, to which Optuna would append the next
            os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)
        finally:
            lock.release()
    storage = optuna.storages.JournalStorage(file)
    if storage.get_all_studies():
        return optuna.load_study(storage=storage, study_name="abag")
    return optuna.create_study(
        storage=storage,
        study_name="abag",
        load_if_exists=True,  # another process may be first
        direction="minimize" if find_metric(select).lower_is_better else "maximize",
    )


@contextmanager
def naming_damage(journal: Path) -> Iterator[None]:
    """Name the journal in errors of Optuna, which does not check what it reads."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, AssertionError) as error:
        msg = (
            f"{journal}: damaged ({error!r}); expected a journal of trials. Restore it, or use "
            "another folder."
        )
        raise DamagedFile(msg) from error


def count_finished(study: Study) -> int:
    """Count the trials that were scored; those of a killed process are unfinished for ever."""
    from optuna.trial import TrialState

    scored = (TrialState.COMPLETE, TrialState.PRUNED)
    return len(study.get_trials(deepcopy=False, states=scored))


def run_trials(study: Study, problem: SearchProblem, wanted: int) -> None:
    """Score batches of trials until `wanted` are finished, also by other processes."""
    from optuna.trial import TrialState

    progress = bar(total=wanted, initial=count_finished(study), desc="trials")
    with progress, torch_settings(problem.device, problem.config):
        while (remaining := wanted - count_finished(study)) > 0:
            batch = _ask(study, problem, min(BATCH_TRIALS, remaining))
            try:
                values = score_batch(problem, [trial.params for trial in batch])
                for trial, value in zip(batch, values, strict=True):
                    # Without a value the metric is undefined, and the trial cannot win.
                    scored = TrialState.PRUNED if value is None else TrialState.COMPLETE
                    study.tell(trial, value, state=scored)
            except BaseException:  # also Ctrl-C: trials that are never told run for ever
                for trial in batch:
                    study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
                raise
            progress.update(len(batch))
            complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
            progress.set_postfix(best=f"{study.best_value:.3f}" if complete else "-")


def _ask(study: Study, problem: SearchProblem, count: int) -> list[Trial]:
    """Have a batch proposed: the first trial freely, the others with its batch parameters."""
    from optuna.samplers import PartialFixedSampler, TPESampler

    batch = [study.ask()]
    # A trial's number is part of the seed: reruns and other processes draw other trials.
    seed = np.random.SeedSequence([problem.config.seed, batch[0].number])
    # constant_liar: trials that run elsewhere count as poor, so that these are not like them
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
    for _ in range(count - 1):
        batch.append(study.ask(space))
    return batch
