"""``sweep``: hyperparameter search on inner folds, with the test part held back until the end.

A sweep is a folder. ``sweep.json`` records what is searched, ``journal.log`` holds every trial (an
Optuna journal: several processes can share it, and an interruption loses only unfinished trials),
``trials.csv`` is written at the end, and ``final/`` is the run folder of the winner, refitted as an
ensemble and scored once on the test part.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
import pandas as pd

from abag.core.arrays import distinct
from abag.core.cache import cache_dir
from abag.core.device import resolve_device
from abag.core.errors import DamagedFile, MissingPackage, OptionError, RunError, SplitError
from abag.core.files import (
    is_partial,
    make_folder,
    read_json,
    replacing,
    sweep_partials,
    write_json,
)
from abag.core.messages import align, bar, counted, reporting, say
from abag.core.options import flag
from abag.embed.sequences.chains import KINDS
from abag.head.data.labels import training_labels
from abag.head.evaluation.metrics import find_metric
from abag.head.fit import fit
from abag.head.inputs import describe_inputs, read_inputs
from abag.head.models.config import MAY_CHANGE, FitConfig, check_same, is_used
from abag.head.regimes.clusters import PairGroups
from abag.head.regimes.folds import make_splits, strictest_split
from abag.head.regimes.splits import split_frame
from abag.head.search.search import (
    BATCH_PARAMETERS,
    LOGARITHMIC,
    RANGES,
    SHAPES,
    SearchProblem,
    fit_options,
    inner_folds,
    is_closed_form,
    score_batch,
    used_parameters,
    without_test_part,
)
from abag.head.search.sweep_options import CHOSEN_BY_SWEEP, SweepOptions, refusal
from abag.head.training.torch_settings import torch_settings

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

    from abag.head.data.labels import LabelledPairs
    from abag.head.inputs import RunInputs
    from abag.head.regimes.splits import Split
    from abag.head.runs.run_folder import RunSummary

SWEEP_FORMAT = "abag-sweep 1"
TRIALS = 50
"""Trials of a new sweep."""
BATCH_TRIALS = 8
RANDOM_TRIALS = 16
"""Trials drawn at random before the sampler uses earlier results."""
BEST_TRIALS = 10
"""Trials that the summary lists."""
SHOWN_TRIALS = 5
"""Trials that are printed."""


class SweepSummary(TypedDict):
    """The object that ``abag sweep --json`` prints."""

    sweep: str
    select: str
    trials: dict[str, int]
    best_trials: list[dict[str, Any]]
    """``trial``, ``value`` (the selecting metric on the inner folds) and ``params``, those that its
    head uses."""
    best: NotRequired[dict[str, Any]]
    final: NotRequired[RunSummary]


def sweep(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    folder: Path | str,
    *,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of SweepOptions and FitConfig
) -> SweepSummary:
    """Search for the head that predicts new groups best, without using the test part.

    Parameters
    ----------
    table, store
        As for `fit`.
    folder : path
        Folder of the sweep; created if it does not exist. The same call resumes the sweep, and
        several processes may work on it at once.
    say, progress
        As for `fit`.
    **options
        Fields of `SweepOptions`, and those of `FitConfig` that are not searched.

    Returns
    -------
    SweepSummary
        The object that ``abag sweep --json`` prints.

    Raises
    ------
    MissingPackage
        If the extra ``sweep`` is not installed.
    RunError
        If a final run is requested but no trial is complete.
    RunError
        If more trials are requested after the final run.
    AbagError
        If an option, the table, the store or the folder is invalid, before anything is written.
    """
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError as error:
        msg = "abag sweep: needs Optuna, which is not installed. Run: pip install optuna"
        raise MissingPackage(msg) from error
    search_options, fit_options = SweepOptions.take(options)
    with reporting(say, bars=progress):
        return _sweep(table, store, Path(folder), search_options, fit_options, progress=progress)


def _sweep(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    folder: Path,
    search_options: SweepOptions,
    options: dict[str, Any],
    *,
    progress: bool,
) -> SweepSummary:
    chosen_by_sweep = sorted(options.keys() & CHOSEN_BY_SWEEP)
    if chosen_by_sweep:
        raise OptionError(refusal(flag(chosen_by_sweep[0])))
    config = FitConfig.from_keywords(options, "sweep")
    inputs = read_inputs(table, store, config)
    config = replace(config, antibody_region=inputs.region)
    config, split = _hold_out_test(inputs.pairs, config)
    problem, record = _define_search(inputs, config, split, search_options.folds)
    trials = search_options.trials or (0 if search_options.final else TRIALS)
    if not trials and not (folder / "sweep.json").exists():
        raise _no_trials(folder)
    closed = (folder / "final" / "summary.json").exists()
    _open_folder(folder, record)
    with _quiet_optuna():
        journal = folder / "journal.log"
        with _naming_damage(journal):
            study = open_study(journal, config.select)
        if _count_finished(study) >= trials:
            say(f"{folder}: nothing to do, {counted(_count_finished(study), 'trial')} finished")
        elif closed:
            msg = (
                f"{folder / 'final'}: the test part has been scored, so more trials would be "
                "chosen with that knowledge. Use another folder."
            )
            raise RunError(msg)
        else:
            _run_trials(study, problem, trials)
        with _naming_damage(journal):
            summary = _summarise_trials(folder, study, config.select)
    if search_options.final:
        if "best" not in summary:
            raise _no_trials(folder)
        winner = fit_options(summary["best"]["params"])
        head = winner["head"]
        if head == "mlp":
            winner["head"] = None  # the default, a stack with this network
        else:
            say(f"{folder}: the best trial is {head}, which is used alone, not in a stack")
        held_out = folder / "split.parquet"
        with replacing(held_out) as partial:
            split_frame(inputs.pairs, [split]).to_parquet(partial, index=False)
        rest = {**options, "split": f"file={held_out}", "members": search_options.members}
        options = {n: value for n, value in rest.items() if is_used(n, head)} | winner
        summary["final"] = fit(table, store, folder / "final", progress=progress, **options)
    return summary


def _no_trials(folder: Path) -> RunError:
    return RunError(
        f"{folder}: no trial is complete, so there is none to refit. Run the sweep without "
        "--final first."
    )


def _hold_out_test(pairs: LabelledPairs, config: FitConfig) -> tuple[FitConfig, Split]:
    """Choose a single split, also where ``fit`` would use folds; return options that repeat it."""
    cache = cache_dir() / "clusters"
    if config.split == "auto":
        config = replace(config, split=strictest_split(PairGroups(pairs, config, cache)))
        say(f"split auto: {config.split}; a sweep holds out a single test part")
    splits = make_splits(pairs, config, cache=cache)
    if len(splits) > 1:
        msg = (
            f"--split {config.split}: gives {len(splits)} folds; a sweep holds out a single test "
            "part. Use a split without folds."
        )
        raise SplitError(msg)
    return config, splits[0]


def _define_search(
    inputs: RunInputs, config: FitConfig, split: Split, folds: int
) -> tuple[SearchProblem, dict[str, Any]]:
    pairs, group = without_test_part(inputs.pairs, split)
    record = describe_inputs(config, inputs) | {
        "format": SWEEP_FORMAT,
        "inner_folds": folds,
        "space": {"shapes": list(SHAPES), "ranges": {n: list(r) for n, r in RANGES.items()}},
        "test_pairs": len(inputs.pairs) - len(pairs),
    }
    fixed = [kind for kind in KINDS if getattr(config, f"{kind}_vectors") is not None]
    antibody_widths, antigen_widths = (vectors.widths for vectors in inputs.vectors.values())
    problem = SearchProblem(
        pairs=pairs,
        fold=inner_folds(group, folds, config.seed),
        group=group,
        store=inputs.store,
        poolings={
            kind: (
                vectors.folder.vector_poolings if vectors.views and kind not in fixed else ("mean",)
            )
            for kind, vectors in inputs.vectors.items()
        },
        views=(antibody_widths, antigen_widths)
        if len(antibody_widths) + len(antigen_widths) > 2
        else None,
        config=config,
        device=resolve_device(config.device),
    )
    for fold in range(folds):  # raises before anything is written
        training_labels(pairs, np.flatnonzero(problem.fold != fold))
    say(
        f"searching on {counted(len(pairs), 'pair')} in {counted(len(distinct(group)), 'group')}, "
        f"{folds} inner folds; {counted(record['test_pairs'], 'test pair')} held out"
    )
    return problem, record


def _open_folder(folder: Path, record: Mapping[str, Any]) -> None:
    path = folder / "sweep.json"
    sweep_partials(folder)
    if path.exists():
        before = read_json(path)
        may_change = MAY_CHANGE - {"epochs", "format"}
        check_same(folder, before, record, may_change=may_change, option="--sweep")
        return
    if folder.exists() and not all(map(is_partial, folder.iterdir())):
        msg = f"{folder}: is not empty and contains no sweep. Use another folder."
        raise RunError(msg)
    make_folder(folder)
    write_json(path, record, sort_keys=True)


# --- trials: an Optuna study that several processes may share -------------------------------------


@contextmanager
def _quiet_optuna() -> Iterator[None]:
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
def _naming_damage(journal: Path) -> Iterator[None]:
    """Name the journal in errors of Optuna, which does not check what it reads."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, AssertionError) as error:
        msg = (
            f"{journal}: damaged ({error!r}); expected a journal of trials. Restore it, or use "
            "another folder."
        )
        raise DamagedFile(msg) from error


def _count_finished(study: Study) -> int:
    """Count the trials that were scored; those of a killed process are unfinished for ever."""
    return sum(t.state.name in ("COMPLETE", "PRUNED") for t in study.get_trials(deepcopy=False))


def _run_trials(study: Study, problem: SearchProblem, wanted: int) -> None:
    from optuna.trial import TrialState

    progress = bar(total=wanted, initial=_count_finished(study), desc="trials")
    with progress, torch_settings(problem.device, problem.config):
        while (remaining := wanted - _count_finished(study)) > 0:
            batch = _ask(study, problem, min(BATCH_TRIALS, remaining))
            try:
                values = score_batch(problem, [trial.params for trial in batch])
                for trial, value in zip(batch, values, strict=True):
                    # Without a value the metric is undefined, and the trial cannot win.
                    scored = TrialState.PRUNED if value is None else TrialState.COMPLETE
                    study.tell(trial, value, state=scored)
            except BaseException:
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
    return batch + [study.ask(space) for _ in range(count - 1)]


def _summarise_trials(folder: Path, study: Study, select: str) -> SweepSummary:
    frozen = study.get_trials(deepcopy=False)
    states = [t.state.name.lower() for t in frozen]
    trials = [
        {"trial": t.number, "value": t.value, "params": used_parameters(t.params)} for t in frozen
    ]
    sign = 1 if find_metric(select).lower_is_better else -1
    complete = [trial for trial, state in zip(trials, states, strict=True) if state == "complete"]
    ranked = sorted(complete, key=lambda trial: (sign * trial["value"], trial["trial"]))
    summary: SweepSummary = {
        "sweep": str(folder),
        "select": select,
        "trials": {name: states.count(name) for name in sorted(set(states))},
        "best_trials": ranked[:BEST_TRIALS],
    }
    if ranked:
        summary["best"] = ranked[0]
        rows = [
            {"trial": trial["trial"], "value": trial["value"], **trial["params"], "state": state}
            for trial, state in zip(trials, states, strict=True)
        ]
        with replacing(folder / "trials.csv") as partial:
            pd.DataFrame(rows).to_csv(partial, index=False)
    return summary


def describe_trials(summary: SweepSummary) -> str:
    """Lay out the best trials: a row for each parameter, a column for each trial."""
    # optuna's names of trials that were stopped, whose process was killed or runs, without a score
    words = {"fail": "interrupted", "running": "unfinished", "pruned": "without a score"}
    counts = ", ".join(f"{n} {words.get(state, state)}" for state, n in summary["trials"].items())
    shown = summary["best_trials"][:SHOWN_TRIALS]
    if not shown:
        return f"no trial is complete yet ({counts})"
    names = dict.fromkeys(name for trial in shown for name in trial["params"])
    lines = align(
        [
            ["trial", *(str(trial["trial"]) for trial in shown)],
            [summary["select"], *(f"{trial['value']:.3f}" for trial in shown)],
            *(
                [name, *(_format(trial["params"].get(name, "-")) for trial in shown)]
                for name in names
            ),
        ]
    )
    if "final" not in summary:
        lines.append("To refit the best trial and score the test part once, add --final.")
    return "\n".join([*lines, f"all trials: {summary['sweep']}/trials.csv ({counts})"])


def _format(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)
