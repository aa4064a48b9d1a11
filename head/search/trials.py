"""The trials of a sweep: an Optuna study in a journal file, which several processes may share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from abag.core.errors import DamagedFile
from abag.core.files import host_name, is_process_alive
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
    from optuna.trial import FrozenTrial, Trial


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
    """Count the trials that were scored."""
    from optuna.trial import TrialState

    scored = (TrialState.COMPLETE, TrialState.PRUNED)
    return len(study.get_trials(deepcopy=False, states=scored))


def run_trials(study: Study, problem: SearchProblem, wanted: int) -> None:
    """Score batches of trials until `wanted` are finished, also by other processes.

    A batch that a stopped process left is continued: its trials, and all later ones, are those of
    a sweep that was not stopped.
    """
    from optuna.trial import TrialState

    progress = bar(total=wanted, initial=count_finished(study), desc="trials")
    with progress, torch_settings(problem.device, problem.config):
        while (remaining := wanted - count_finished(study)) > 0:
            batch = _ask(study, problem, min(BATCH_TRIALS, remaining))
            before = count_finished(study)
            try:
                values = score_batch(problem, [trial.params for trial in batch])
            except Exception:  # not of a signal: the same would fail again
                for trial in batch:
                    study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
                raise
            for trial, value in zip(batch, values, strict=True):
                # Without a value the metric is undefined, and the trial cannot win.
                scored = TrialState.PRUNED if value is None else TrialState.COMPLETE
                study.tell(trial, value, state=scored, skip_if_finished=True)
            progress.update(count_finished(study) - before)
            complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
            progress.set_postfix(best=f"{study.best_value:.3f}" if complete else "-")


def _ask(study: Study, problem: SearchProblem, count: int) -> list[Trial]:
    """Have a batch proposed: the first trial freely, the others with its batch parameters.

    What a stopped process has proposed of a batch comes first.
    """
    from optuna.trial import Trial, TrialState, create_trial

    begun = _stopped_batch(study)
    name = begun[0].user_attrs["batch"] if begun else token_hex(8)
    count = int(begun[0].user_attrs["size"]) if begun else count
    attrs = {"batch": name, "size": count, "process": f"{host_name()}.{os.getpid()}"}
    batch = list[Trial]()
    shared: dict[str, Any] = {}
    for place in range(count):
        if place < len(begun):
            trial = Trial(study, begun[place]._trial_id)
            if not begun[place].state.is_finished():
                trial.set_user_attr("process", attrs["process"])
        else:  # with its attributes from the first moment
            template = create_trial(state=TrialState.RUNNING, user_attrs=attrs)
            number = study._storage.create_new_trial(study._study_id, template_trial=template)
            trial = Trial(study, number)
        _draw(study, problem, trial, shared)
        batch.append(trial)
        shared = {name: trial.params[name] for name in BATCH_PARAMETERS}
        if is_closed_form(shared):  # the others would be the same
            break
    return batch


def _draw(study: Study, problem: SearchProblem, trial: Trial, shared: Mapping[str, Any]) -> None:
    """Draw the parameters of a trial beside those that it shares with its batch."""
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
    )
    from optuna.samplers import PartialFixedSampler, TPESampler

    space: dict[str, BaseDistribution] = {}
    for name, choices in problem.choices().items():
        space[name] = CategoricalDistribution(choices)
    for name, (low, high) in RANGES.items():
        space[name] = FloatDistribution(low, high, log=name in LOGARITHMIC)
    if space.keys() <= trial.params.keys():
        return
    # A trial's number is part of the seed: reruns and other processes draw other trials.
    seed = np.random.SeedSequence([problem.config.seed, trial.number])
    # constant_liar: trials that run elsewhere count as poor, so that these are not like them
    sampler = TPESampler(
        seed=int(seed.generate_state(1)[0]), n_startup_trials=RANDOM_TRIALS, constant_liar=True
    )
    values = dict(shared)
    frozen = study._storage.get_trial(trial._trial_id)
    for name in space:
        if name in shared:
            continue
        values[name] = sampler.sample_independent(study, frozen, name, space[name])
    # drawn before the first is recorded: a process that is killed in between draws the same again
    study.sampler = PartialFixedSampler(values, sampler)
    for name, distribution in space.items():
        trial._suggest(name, distribution)


def _stopped_batch(study: Study) -> list[FrozenTrial]:
    """Return the trials of the first batch whose process has ended, by number; or none."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        attrs = trial.user_attrs
        if trial.state == TrialState.RUNNING and "batch" in attrs and _has_ended(attrs["process"]):
            return [other for other in trials if other.user_attrs.get("batch") == attrs["batch"]]
    return []


def _has_ended(process: str) -> bool:
    """Tell whether a process of this host, as ``host.number``, has ended or is this one."""
    host, _, number = process.rpartition(".")
    is_other = number != str(os.getpid())
    return host == host_name() and not (is_other and is_process_alive(int(number)))
