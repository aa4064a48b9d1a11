"""``sweep``: hyperparameter search on inner folds, with the test part held back until the end.

A sweep is a folder. ``sweep.json`` records what is searched, ``journal.log`` holds every trial (an
Optuna journal: several processes can share it, and an interruption loses only unfinished trials),
``trials.csv`` is written at the end, and ``final/`` is the run folder of the winner, refitted as an
ensemble and scored once on the test part.

The problem consists of the pairs outside the test part, assigned to inner folds by group. A trial
trains one head per inner fold on the other folds and scores it on that fold. All networks of a
batch have the same shape and loss, so they train as one stack, each with its own learning rate,
weight decay and dropout. A head in closed form is a batch of its own, and chooses its kernel and
penalty itself. Labels that are classes are learned on their latent scale, and a trial predicts them
by the link that the other inner folds fit.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict, cast

import numpy as np
import pandas as pd

from abag.core.arrays import distinct, weights_of
from abag.core.device import resolve_device
from abag.core.errors import DamagedFile, MissingPackage, OptionError, RunError, SplitError
from abag.core.files import (
    check_same,
    host_name,
    is_begun,
    is_process_alive,
    make_folder,
    only_writer,
    read_json,
    refuse_read_only,
    replacing,
    sweep_partials,
    write_json,
)
from abag.core.messages import align, bar, counted, reporting, say
from abag.embed.tables.chains import KINDS, Kind
from abag.head.evaluation.metrics import MeasuredRows, find_metric, score_folds
from abag.head.fit import fit
from abag.head.labels.labelled_pairs import LabelledPairs, encoded_features, training_labels
from abag.head.models.config import MAY_CHANGE, VALIDATION_PAIRS, FitConfig, is_used
from abag.head.models.network import LOSSES
from abag.head.models.pair_vectors import (
    Fit,
    PairVectors,
    SideVectors,
    StoredVectors,
    TrainingRows,
)
from abag.head.models.probit import HeldOutClasses, latent_labels
from abag.head.models.registry import MODELS
from abag.head.models.ridge import impute_censored
from abag.head.predictor.options import CHOSEN_BY_SWEEP, SweepOptions
from abag.head.predictor.parts import inner_folds
from abag.head.regimes.folds import make_splits, strictest_split
from abag.head.regimes.splits import PairGroups, Split, grouped_folds, learned_rows, split_frame
from abag.head.runs.run_folder import described, read_config
from abag.head.training.inputs import describe_inputs, read_inputs, read_vectors
from abag.head.training.networks import matrix_threads, torch_settings
from abag.head.training.stack import PairStandardizer, StackedHeads, step_seed

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from abag.embed.store.store import Store
    from abag.embed.tables.table import TableLike
    from abag.head.runs.run_folder import RunSummary
    from abag.head.training.inputs import RunInputs


Params: TypeAlias = Mapping[str, Any]
ON_VECTORS = ("ridge", "kernel", "gp")
"""Heads in closed form whose results depend on the pooling of both vectors."""
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "mlp 64": {"head": "mlp", "widths": (64,)},
    "mlp 256": {"head": "mlp", "widths": (256,)},
    "mlp 320-128 (small)": {"head": "mlp", "widths": (320, 128)},
    "mlp 512-256-128": {"head": "mlp", "widths": (512, 256, 128)},
    "mlp 1280-640-256 (medium)": {"head": "mlp", "widths": (1280, 640, 256)},
    **{name: {"head": name} for name in ON_VECTORS},
}
RANGES: Mapping[str, tuple[float, float]] = {
    "dropout": (0.0, 0.5),
    "lr": (1e-4, 1e-2),
    "weight_decay": (1e-3, 1.0),
}
LOGARITHMIC = frozenset({"lr", "weight_decay"})
POOLINGS = ("antibody_pooling", "antigen_pooling")
BATCH_PARAMETERS = ("shape", "loss", *POOLINGS)
"""Parameters that all trials of a batch share."""
RUNGS = 8
BATCH_TRIALS = 8
RANDOM_TRIALS = 16
"""Trials drawn at random before the sampler uses earlier results."""
SWEEP_FORMAT = "abag-sweep 1"
TRIALS = 50
"""Trials of a new sweep."""
BEST_TRIALS = 10
"""Trials that the summary lists."""
SHOWN_TRIALS = 5
"""Trials that are printed."""
LOG_LOSS = "log_loss"
"""Objective of two or more classes unless a metric is asked for."""
FOLD_SUBSET = 6  # stream of the seed, beside those of stack.py and networks.py


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProblem:
    """Everything needed to score trials, without the test part."""

    pairs: LabelledPairs
    fold: NDArray[np.int64]
    """Shape (P,); inner fold of each pair."""
    store: Store
    poolings: Mapping[Kind, tuple[str, ...]]
    group: NDArray[np.int64]
    """Shape (P,); group of each pair, which the inner folds keep together."""
    config: FitConfig
    device: torch.device
    objective: str
    """Key of the metric, or `LOG_LOSS`."""
    read: dict[tuple[Kind, str], StoredVectors] = field(default_factory=dict)

    def vectors(self, kind: Kind, pooling: str) -> StoredVectors:
        """Read the vectors of a kind and pooling, one row per unique sequence of the table."""
        if (kind, pooling) not in self.read:
            views = self.config.views_of(kind)
            if getattr(self.config, f"{kind}_vectors") is None:  # else nothing is left to choose
                views = [{**views[0], "pooling": pooling}]
            self.read[kind, pooling] = read_vectors(self.store, self.pairs.table, kind, views)
        return self.read[kind, pooling]

    @property
    def folds(self) -> int:
        """Number of folds that each trial is scored on."""
        return int(self.fold.max()) + 1

    def choices(self) -> dict[str, tuple[str, ...]]:
        """Return the values to choose from, by the name of a categorical parameter."""
        return {
            "shape": tuple(SHAPES),
            "loss": tuple(LOSSES),
            "antibody_pooling": self.poolings["antibody"],
            "antigen_pooling": self.poolings["antigen"],
        }


def without_test_part(
    pairs: LabelledPairs, split: Split
) -> tuple[LabelledPairs, NDArray[np.int64]]:
    """Return the other pairs than the test part, whose labels are then lost, and their groups."""
    rows = learned_rows(split)
    columns = ("antibody", "antigen", "pkd", "censored", "row", "measurements")
    other_pairs = replace(
        pairs,
        **{name: getattr(pairs, name)[rows] for name in columns},
        cells=None if pairs.cells is None else pairs.cells.take(rows),
        share=None if pairs.share is None else pairs.share[rows],
    )
    return other_pairs, split.group[rows]


def is_lower_better(objective: str) -> bool:
    """Tell whether lower values of an objective are better."""
    return objective == LOG_LOSS or find_metric(objective).lower_is_better


def is_closed_form(params: Params) -> bool:
    """Tell whether a trial fits a head in closed form, for which only the poolings count."""
    return MODELS[SHAPES[params["shape"]]["head"]].fit is not None


def used_parameters(params: Params) -> dict[str, Any]:
    """Leave out the parameters of a trial that its head does not use."""
    if not params:  # of a trial that ended before any was drawn
        return {}
    head = SHAPES[params["shape"]]["head"]
    return {name: value for name, value in params.items() if is_used(name, head)}


def fit_options(params: Params) -> dict[str, Any]:
    """Convert the parameters of a trial to options of ``fit``."""
    used = used_parameters(params)
    shape = SHAPES[used.pop("shape")]
    return {**used, **shape}


def score_batch(problem: SearchProblem, batch: Sequence[Params]) -> list[float | None]:
    """Score trials with the same `BATCH_PARAMETERS`, which train in one stack.

    A score is the best one of the inner folds over all rungs; None if it is not defined.
    """
    if is_closed_form(batch[0]):
        return [_score_closed_form(problem, params) for params in batch]
    stack = _make_stack(problem, batch)
    scored, labels = _scored(problem)
    sign = 1 if is_lower_better(problem.objective) else -1
    best: list[float | None] = [None] * len(batch)
    rungs = {round(stack.epochs * rung / RUNGS) for rung in range(1, RUNGS + 1)}
    for epoch in range(stack.epochs):
        stack.begin_epoch(epoch)
        for at in range(stack.steps):
            stack.training_step.run(step_seed(problem.config.seed, epoch * stack.steps + at))
        if epoch + 1 in rungs:
            for trial, of_folds in enumerate(zip(*stack.predict_parts(scored), strict=True)):
                value = _score_of_folds(problem, scored, labels, of_folds)
                before = best[trial]
                if value is not None and (before is None or sign * value < sign * before):
                    best[trial] = value
    return best


def _score_closed_form(problem: SearchProblem, params: Params) -> float | None:
    pairs = problem.pairs
    scored, labels = _scored(problem)
    fit_head = cast("Fit", MODELS[fit_options(params)["head"]].fit)
    vectors = _vectors(problem, params)
    predicted = []
    for fold in range(problem.folds):
        rows = np.flatnonzero(problem.fold != fold)
        inner = inner_folds(problem.group[rows])
        training = TrainingRows(latent_labels(pairs, rows), vectors, rows, inner)
        with matrix_threads(len(rows)):
            fitted = fit_head(impute_censored(training))
        predicted.append(fitted.predict(vectors)[scored[fold]])
    return _score_of_folds(problem, scored, labels, predicted)


def _vectors(problem: SearchProblem, params: Params) -> PairVectors:
    pairs = problem.pairs
    sides = {}
    for kind in KINDS:
        stored = problem.vectors(kind, params[f"{kind}_pooling"])
        sides[kind] = SideVectors(stored.x_ND, pairs.index(kind), views=stored.widths)
    return PairVectors(sides, encoded_features(pairs))


def _make_stack(problem: SearchProblem, batch: Sequence[Params]) -> StackedHeads:
    """Stack the heads of a batch ordered by fold, because those of a fold read the same pairs."""
    configs = [replace(problem.config, **fit_options(params)) for params in batch]
    training = []
    members = []
    for fold in range(problem.folds):
        training.append(np.flatnonzero(problem.fold != fold))
        members += [replace(config, seed=config.seed + fold) for config in configs]
    n_training = max(map(len, training))
    vectors = _vectors(problem, batch[0])
    every = np.arange(len(problem.pairs))
    labels = latent_labels(problem.pairs, every)
    scaling = PairStandardizer.of(labels, every, vectors)
    with reporting(silent=True):  # else every batch reports where its vectors are
        return StackedHeads(
            [labels],
            vectors,
            [scaling],
            training,
            members,
            epoch_pairs=[n_training] * len(training),
            device=problem.device,
        )


def _score_of_folds(
    problem: SearchProblem,
    scored: Sequence[NDArray[np.int64]],
    labels: Sequence[MeasuredRows],
    predicted: Sequence[NDArray[np.float64]],
) -> float | None:
    pairs = problem.pairs
    if pairs.quantity.classes:
        latent = np.concatenate(predicted)
        if not np.isfinite(latent).all():
            return None
        rows = np.concatenate(scored)
        held_out = HeldOutClasses.of(pairs, rows, latent[:, None], problem.group[rows])
        fold = problem.fold[rows]
        if problem.objective == LOG_LOSS:
            weight = weights_of(pairs.share, rows)
            return float(np.average(held_out.log_losses(fold), weights=weight))
        expected = held_out.expected(fold)
        predicted = np.split(expected, np.cumsum([len(part) for part in predicted])[:-1])
    return score_folds(labels, predicted, problem.objective)


def _scored(problem: SearchProblem) -> tuple[list[NDArray[np.int64]], list[MeasuredRows]]:
    """Return at most `VALIDATION_PAIRS` pairs on which each fold is scored, and their labels."""
    pairs = problem.pairs
    sign = pairs.quantity.sign
    rows = []
    labels = []
    for fold in range(problem.folds):
        rng = np.random.default_rng([problem.config.seed, FOLD_SUBSET, fold])
        drawn = rng.permutation(np.flatnonzero(problem.fold == fold))[:VALIDATION_PAIRS]
        scored = np.sort(drawn)
        rows.append(scored)
        columns = (pairs.pkd[scored], pairs.antigen[scored], pairs.censored[scored])
        weight = weights_of(pairs.share, scored)
        labels.append(MeasuredRows.of(*columns, sign, weight))
    return rows, labels


# ---- trials in a journal -------------------------------------------------------------------------


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


def open_study(journal: Path, objective: str) -> Study:
    """Open the study of a journal file, or create both; `objective` is the metric to optimise."""
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
        direction="minimize" if is_lower_better(objective) else "maximize",
    )


@contextmanager
def naming_journal(journal: Path) -> Iterator[None]:
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


# ---- a sweep -------------------------------------------------------------------------------------


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
    table: TableLike,
    store: Path | str,
    folder: Path | str,
    *,
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
    progress
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
    search_options, of_fit = SweepOptions.take(options)
    with reporting(bars=progress):
        return _sweep(table, store, Path(folder), search_options, of_fit, progress=progress)


def _sweep(
    table: TableLike,
    store: Path | str,
    folder: Path,
    search_options: SweepOptions,
    options: dict[str, Any],
    *,
    progress: bool,
) -> SweepSummary:
    for name in sorted(options.keys() & CHOSEN_BY_SWEEP):
        why = "is chosen by sweep itself, among networks, ridge, kernel and gp"
        advice = "or use abag fit, which trains the head that you choose"
        if name == "add":
            why = "is of abag fit, which starts the next round"
            advice = "and give the tables of all rounds"
        msg = f"{name}: {why}. Leave it out, {advice}."
        raise OptionError(msg)
    config = FitConfig.from_keywords(options, "sweep")
    if not (folder / "final" / "summary.json").exists():
        refuse_read_only(folder, folder / "final")
    inputs = read_inputs(table, store, config)
    objective = config.select
    if inputs.pairs.quantity.classes and "select" not in options:
        objective = LOG_LOSS
    config, split = _hold_out_test(inputs.pairs, inputs.options)
    problem, record = _define_search(
        inputs, config, split, folds=search_options.folds, objective=objective
    )
    trials = search_options.trials or (0 if search_options.final else TRIALS)
    if not trials and not (folder / "sweep.json").exists():
        raise _no_trials(folder)
    is_closed = (folder / "final" / "summary.json").exists()
    _open_folder(folder, record)
    with quiet_optuna():
        journal = folder / "journal.log"
        with naming_journal(journal):
            study = open_study(journal, objective)
        if count_finished(study) >= trials:
            say(f"{folder}: nothing to do, {counted(count_finished(study), 'trial')} finished")
        elif is_closed:
            msg = (
                f"{folder / 'final'}: the test part has been scored, so more trials would be "
                "chosen with that knowledge. Use another folder."
            )
            raise RunError(msg)
        else:
            run_trials(study, problem, trials)
        with naming_journal(journal):
            summary = _summarise_trials(folder, study, objective)
    if search_options.final:
        if "best" not in summary:
            raise _no_trials(folder)
        held_out = folder / "split.parquet"
        with replacing(held_out) as partial:
            split_frame(inputs.pairs, [split]).to_parquet(partial, index=False)
        given = {**options, "split": f"file={held_out}", "members": search_options.members}
        winner = _options_of_winner(folder, summary["best"]["params"], given)
        _remove_outdated_final(folder, winner)
        summary["final"] = fit(table, store, folder / "final", progress=progress, **winner)
    return summary


def _options_of_winner(
    folder: Path, params: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options with which the best trial is refitted: its own, and those given."""
    winner = fit_options(params)
    head = winner["head"]
    if head == "mlp":
        winner["head"] = None  # the default, a stack with this network
    else:
        say(f"{folder}: the best trial is {head}, which is used alone, not in a stack")
    used = {name: value for name, value in given.items() if is_used(name, head)}
    return used | winner


def _remove_outdated_final(folder: Path, winner: Mapping[str, Any]) -> None:
    """Remove a final run that was stopped, if further trials have found a better one."""
    final = folder / "final"
    if not (final / "config.json").is_file() or (final / "summary.json").exists():
        return
    before = read_config(final)
    now = FitConfig.from_keywords(dict(winner), "fit").to_json()
    searched = {"head", "widths", *RANGES, *BATCH_PARAMETERS} & now.keys()
    if all(before[name] == now[name] for name in searched):
        return
    with only_writer(final):  # another process may be fitting it
        say(f"{final}: another trial is the best by now; the stopped refit begins again")
        shutil.rmtree(final)


def _no_trials(folder: Path) -> RunError:
    return RunError(
        f"{folder}: no trial is complete, so there is none to refit. Run the sweep without "
        "--final first."
    )


def _hold_out_test(pairs: LabelledPairs, config: FitConfig) -> tuple[FitConfig, Split]:
    """Choose a single split, also where ``fit`` would use folds; return options that repeat it."""
    if config.split == "auto":
        config = replace(config, split=strictest_split(PairGroups(pairs, config)))
        say(f"split auto: {config.split}; a sweep holds out a single test part")
    splits = make_splits(PairGroups(pairs, config))
    if len(splits) > 1:
        msg = (
            f"--split {config.split}: gives {len(splits)} folds; a sweep holds out a single test "
            "part. Use a split without folds."
        )
        raise SplitError(msg)
    return config, splits[0]


def _define_search(
    inputs: RunInputs, config: FitConfig, split: Split, *, folds: int, objective: str
) -> tuple[SearchProblem, dict[str, Any]]:
    pairs, group = without_test_part(inputs.pairs, split)
    ranges = {name: list(limits) for name, limits in RANGES.items()}
    record = describe_inputs(config, inputs) | {
        "format": SWEEP_FORMAT,
        "inner_folds": folds,
        "space": {"shapes": list(SHAPES), "ranges": ranges},
        "test_pairs": len(inputs.pairs) - len(pairs),
    }
    classes = pairs.quantity.classes
    if classes:
        record["objective"] = objective
    if objective != LOG_LOSS and find_metric(objective).of_levelled_folds:
        record["folds_scored"] = "together"  # the first sweeps have a mean of folds instead
    poolings: dict[Kind, tuple[str, ...]] = {}
    for kind, vectors in inputs.vectors.items():
        is_fixed = getattr(config, f"{kind}_vectors") is not None
        is_chosen = vectors.views and not is_fixed
        poolings[kind] = vectors.folder.vector_poolings if is_chosen else ("mean",)
    problem = SearchProblem(
        pairs=pairs,
        fold=grouped_folds(group, folds, config.seed, pairs.class_of_pair, option="--inner-folds"),
        group=group,
        store=inputs.store,
        poolings=poolings,
        config=config,
        device=resolve_device(config.device),
        objective=objective,
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
    if is_begun(folder, path.name, "sweep", "--sweep"):
        before = read_json(path)
        # trials of other epochs cannot be compared
        may_change = MAY_CHANGE - {"epochs", "format"}
        now = described(record)
        check_same(folder, described(before), now, may_change, "--sweep")
        return
    make_folder(folder)
    write_json(path, record, sort_keys=True)


def _summarise_trials(folder: Path, study: Study, objective: str) -> SweepSummary:
    states = Counter[str]()
    rows = []
    complete = list[dict[str, Any]]()
    for frozen in study.get_trials(deepcopy=False):
        state = frozen.state.name.lower()
        states[state] += 1
        params = used_parameters(frozen.params)
        trial = {"trial": frozen.number, "value": frozen.value}
        rows.append({**trial, **params, "state": state})
        if state == "complete":
            complete.append({**trial, "params": params})
    sign = 1 if is_lower_better(objective) else -1
    ranked = sorted(complete, key=lambda trial: (sign * trial["value"], trial["trial"]))
    summary: SweepSummary = {
        "sweep": str(folder),
        "select": objective,
        "trials": dict(sorted(states.items())),
        "best_trials": ranked[:BEST_TRIALS],
    }
    if ranked:
        summary["best"] = ranked[0]
        with replacing(folder / "trials.csv") as partial:
            pd.DataFrame(rows).to_csv(partial, index=False)
    return summary


def describe_trials(summary: SweepSummary) -> str:
    """Lay out the best trials: a row for each parameter, a column for each trial."""
    # optuna's names of trials that an error ended, that run or were stopped, without a score
    words = {"fail": "failed", "running": "unfinished", "pruned": "without a score"}
    counted_states = [f"{n} {words.get(state, state)}" for state, n in summary["trials"].items()]
    counts = ", ".join(counted_states)
    shown = summary["best_trials"][:SHOWN_TRIALS]
    if not shown:
        return f"no trial is complete yet ({counts})"
    columns = []
    for trial in shown:
        column = {"trial": str(trial["trial"]), summary["select"]: f"{trial['value']:.3f}"}
        for name, value in trial["params"].items():
            column[name] = f"{value:.2g}" if isinstance(value, float) else str(value)
        columns.append(column)
    names = dict.fromkeys(chain.from_iterable(columns))
    rows = []
    for name in names:
        rows.append([name, *(column.get(name, "-") for column in columns)])
    lines = align(rows)
    if "final" not in summary:
        lines.append("To refit the best trial and score the test part once, add --final.")
    return "\n".join([*lines, f"all trials: {summary['sweep']}/trials.csv ({counts})"])
