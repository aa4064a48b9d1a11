"""Train and score the heads of a run, and write everything into its folder.

Nothing is written before everything has been checked. Every file of the folder is written
atomically, so the same command resumes the run after an interruption at any point.

Small folds are fitted in one pool of threads. Steps and factorisations release the lock of the
interpreter most of the time, so threads suffice. They copy nothing, and work in notebooks and
scripts that a new process could not import. Results do not depend on the number of threads.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from abag.core.arrays import Floats
from abag.core.cache import cache_dir
from abag.core.cores import SMALL_FOLD_PAIRS, count_cores, count_threads
from abag.core.device import resolve_device
from abag.core.files import FolderBusy, only_writer
from abag.core.messages import detail, part_of_stage, say, stage
from abag.core.options import BadOption
from abag.embed.sequences.numbering import number_antibodies
from abag.embed.store.status import residues_per_s
from abag.head.closed_form.pair_model import (
    DoesNotApply,
    PairVectors,
    TrainingRows,
    impute_censored,
)
from abag.head.data.labels import NothingToLearn
from abag.head.evaluation.baselines import (
    BaselineInputs,
    ResidueFeatures,
    inner_folds,
    predict_baselines,
)
from abag.head.prediction.bundle import save_predictor
from abag.head.prediction.fitted import ClosedForms, FittedHead, fit_closed_forms, fit_head
from abag.head.prediction.novelty import training_novelty, widening_of
from abag.head.prediction.predictor import Member
from abag.head.report.results import CurvePoint, PairNames, RunResults
from abag.head.runs.run_folder import (
    check_training,
    finished_summary,
    fold_paths,
    stack_folder,
    start_run,
)
from abag.head.runs.summary import curve_point, join_logs, split_facts, write_results
from abag.head.splits.splits import TRAIN, Split, thinned
from abag.head.training.checkpoint import has_checkpoint, load_newest
from abag.head.training.stack import folds_per_stack, group_folds
from abag.head.training.torch_settings import matrix_threads, return_freed_memory, torch_settings
from abag.head.training.train import (
    NO_SIGNAL,
    FoldInputs,
    Stopped,
    TrainingInputs,
    delayed_signals,
    train,
)
from abag.head.training.uncertainty import combine, describe_sigma

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from abag.embed.sequences.numbering import ChainName, Numbered
    from abag.head.data.labels import LabelledPairs
    from abag.head.model.config import FitConfig
    from abag.head.prediction.novelty import Novelty
    from abag.head.report.results import RunSummary
    from abag.head.runs.run_folder import FoldPaths, RunInputs
    from abag.head.training.train import TrainedHeads

HEADS_SHARE, BASELINES_SHARE, REPORT_SHARE = 0.7, 0.1, 0.1
"""Shares of the time of a fit, for the time left that the progress bar shows."""
LEARNING_CURVE_SHARES = (0.125, 0.25, 0.5)
"""Shares of the training groups that ``--learning-curve`` fits beside the whole."""
NETWORKS_PART, CLOSED_FORMS_PART, BASELINES_PART = 0.7, 0.2, 0.1
"""Parts of the time, for the progress bar."""
WAIT_S = 0.05
"""Time after which the main thread looks for signals that another thread received: these do not
end its wait."""


def complete_run(
    run: Path,
    inputs: RunInputs,
    splits: list[Split],
    record: Mapping[str, Any],
    config: FitConfig,
    *,
    verbose: bool,
    report: bool,
) -> RunSummary:
    """Train the heads of all splits, compare them with baselines, and write the results.

    Parameters
    ----------
    record : mapping
        Content of config.json, see `describe_inputs`.

    Raises
    ------
    AbagError
        If the device is invalid, before anything is written; or if training diverges.
    """
    device = _device_for(config)
    with only_writer(run):
        if finished_summary(run, record) is not None:
            msg = f"{run}: another process has just finished this run. Run the command again."
            raise FolderBusy(msg)
        start_run(run, record, inputs.pairs, splits)
        return _train_and_write(
            run, inputs, splits, record, config, device, verbose=verbose, report=report
        )


def _train_and_write(
    run: Path,
    inputs: RunInputs,
    splits: list[Split],
    record: Mapping[str, Any],
    config: FitConfig,
    device: torch.device,
    *,
    verbose: bool,
    report: bool,
) -> RunSummary:
    antibody, antigen = inputs.vectors["antibody"], inputs.vectors["antigen"]
    paths, start = fold_paths(run, len(splits)), time.monotonic()
    names = [run.name if len(splits) == 1 else f"{run.name} fold {i}" for i in range(len(splits))]
    with torch_settings(device, config, inputs.store.path):
        folds = FoldFits(run, inputs, splits, paths, names, config, device, verbose)
        stage("training", _heads_share(config) + BASELINES_SHARE)
        fitted, baselines = fit_heads(folds)
        curve = _learning_curve(folds)
    pairs = inputs.pairs
    numbered = number_antibodies(pairs.table.antibodies.chains, cache_dir() / "numbering")
    novelty = training_novelty(pairs, splits, numbered)
    widenings = _widenings(pairs, splits, novelty, numbered)
    results = RunResults(
        title=run.name,
        facts=record,
        source=pairs.table.source,
        pairs=pairs,
        names=PairNames.of(pairs),
        split=split_facts(splits),
        splits=splits,
        predicted=[one.predicted for one in fitted],
        sigma=[
            one.sigma.of(one.variance) * widening
            for one, widening in zip(fitted, widenings, strict=True)
        ],
        baselines=baselines,
        log=join_logs([fold.log for fold in paths], run / "metrics.jsonl"),
        antibody_ND=antibody.x_ND,
        antigen_ND=antigen.x_ND,
        learning_curve=curve,
    )
    stage("scores and report", REPORT_SHARE)
    members = [Member(m.model, m.weight / len(fitted)) for one in fitted for m in one.members]
    sigma = combine([one.sigma for one in fitted])
    save_predictor(
        run / "predictor",
        pairs,
        splits,
        members,
        inputs.vectors,
        sigma,
        config.antibody_region,
        novelty,
    )
    summary = write_results(run, pairs, results, fitted, report=report)
    _report_summary(run, summary, inputs, time.monotonic() - start)
    return summary


def _device_for(config: FitConfig) -> torch.device:
    device = resolve_device(config.device)
    if config.compile == "graph" and device.type == "cpu":
        msg = (
            "--compile graph: CUDA graphs need a CUDA device, but this run uses the CPU. "
            "Use --compile auto."
        )
        raise BadOption(msg)
    return device


def _heads_share(config: FitConfig) -> float:
    """Return the share of the time for the heads of all training groups."""
    return HEADS_SHARE / (1 + sum(LEARNING_CURVE_SHARES) * config.learning_curve)


def _learning_curve(folds: FoldFits) -> list[CurvePoint]:
    """Fit the head to smaller shares of the training groups; test parts stay the same."""
    points, config, pairs = [], folds.config, folds.inputs.pairs
    for share in LEARNING_CURVE_SHARES if config.learning_curve else ():
        name = f"{share:.1%} of the training groups"
        seed = config.effective_split_seed
        smaller = [thinned(split, share, seed) for split in folds.splits]
        try:
            for split in smaller:
                check_training(pairs, split, config)
        except NothingToLearn:
            say(f"learning curve: {name} have no different labels in some fold; left out")
            continue
        except DoesNotApply as error:
            say(f"learning curve: {name} left out: {error}")
            continue
        run = folds.run / "learning_curve" / str(share)
        stage(f"learning curve, {share}", share * _heads_share(config))
        fitted, _ = fit_heads(
            folds._replace(
                run=run,
                splits=smaller,
                paths=fold_paths(run, len(smaller)),
                names=[name] * len(smaller),
                verbose=False,
            ),
            with_baselines=False,
        )
        point = curve_point(pairs, smaller, [one.predicted for one in fitted], share)
        detail(f"learning curve: {name}, {point['training_pairs']} pairs")
        points.append(point)
    return points


def fit_split(inputs: RunInputs, split: Split, config: FitConfig, folder: Path) -> FittedHead:
    """Train and fit the head of one split; checkpoints and logs are left in `folder`."""
    device = resolve_device(config.device)
    fold = FoldFits(folder, inputs, [split], fold_paths(folder, 1), ["fit"], config, device, False)
    with torch_settings(device, config, inputs.store.path):
        (fitted,), _ = fit_heads(fold, with_baselines=False)
    return fitted


def _widenings(
    pairs: LabelledPairs,
    splits: Sequence[Split],
    of_all: Novelty,
    numbered: Mapping[ChainName, Numbered],
) -> list[NDArray[np.float64]]:
    """Return by what factor sigma grows for each pair, (P,), as in a predictor of each fold."""
    found = []
    for split in splits:
        own = of_all if len(splits) == 1 else training_novelty(pairs, [split], numbered)
        growth_N = widening_of(pairs.table.antibodies.chains, own, numbered)
        found.append(growth_N[pairs.antibody])
    return found


def _report_summary(run: Path, summary: RunSummary, inputs: RunInputs, seconds: float) -> None:
    for text in summary["warnings"]:
        say(text)
    for text in (*summary["verdicts"], describe_sigma(summary["sigma"])):
        detail(text)
    epochs = summary["epochs"]
    if not epochs:  # a head in closed form
        detail(f"{run}: fitted in {seconds:.1f} s")
        return
    size = sum(path.stat().st_size for path in (run / "checkpoints").rglob("*") if path.is_file())
    detail(
        f"{run}: {summary['steps']} steps in {seconds:.1f} s; "
        f"the checkpoints take {size / 2**20:.1f} MiB"
    )
    if (encoding_s := _encoding_seconds(inputs)) is not None:
        detail(
            f"re-encoding every pair in all {epochs} epochs would have taken "
            f"{epochs * encoding_s / 3600:,.1f} h at the speed of the latest abag embed"
        )


def _encoding_seconds(inputs: RunInputs) -> float | None:
    """Estimate the time to encode both sequences of every pair; None if no speed is stored."""
    seconds = 0.0
    for kind, vectors in inputs.vectors.items():
        speed = residues_per_s(vectors.folder.path)
        if speed is None:
            return None
        lengths = vectors.folder.read_array(inputs.pairs.keys(kind), "length", np.int32)
        seconds += float(lengths.sum()) / speed
    return seconds


class FoldFits(NamedTuple):
    """What the heads of all folds are fitted to, and where they are kept."""

    run: Path
    inputs: RunInputs
    splits: Sequence[Split]
    paths: Sequence[FoldPaths]
    names: Sequence[str]
    """Used in messages."""
    config: FitConfig
    device: torch.device
    verbose: bool


def fit_heads(
    folds: FoldFits, *, with_baselines: bool = True
) -> tuple[list[FittedHead], list[Mapping[str, Floats]]]:
    """Fit the head of every split; also predict all pairs by the baselines of every split."""
    config, names, count = folds.config, folds.names, len(folds.splits)
    pairs = folds.inputs.pairs
    training = [_training_rows(folds, split) for split in folds.splits]
    n_training = max(len(one.rows) for one in training)
    trained: dict[int, TrainedHeads] = {}
    closed: dict[int, ClosedForms] = {}
    baselines: dict[int, Mapping[str, Floats]] = {}

    inputs = _baseline_inputs(folds, training) if with_baselines else []

    def fit_and_predict(i: int) -> None:
        with matrix_threads(n_training):
            closed[i] = fit_closed_forms(training[i], config, names[i])
            if with_baselines:  # some are models of the head, too
                known = closed[i].predicted
                baselines[i] = predict_baselines(replace(inputs[i], known=known))
        return_freed_memory()

    share = (CLOSED_FORMS_PART + BASELINES_PART * with_baselines) / count
    models = [Task(partial(fit_and_predict, i), share) for i in range(count)]
    tasks = [*_network_tasks(folds, training, trained), *models]
    # A GPU is used by the thread that made it the current one.
    on_cpu = folds.device.type == "cpu"
    threads = count_threads(len(tasks), n_training, count_cores()) if on_cpu else 1
    run_tasks(tasks, threads)
    fitted = [
        fit_head(pairs, one, split, config, closed[i], trained.get(i), names[i])
        for i, (one, split) in enumerate(zip(training, folds.splits, strict=True))
    ]
    return fitted, _of_every_fold([baselines[i] for i in sorted(baselines)])


def _of_every_fold(baselines: list[Mapping[str, Floats]]) -> list[Mapping[str, Floats]]:
    """Leave out the baselines that do not apply to each fold: they have no mean over folds."""
    everywhere = set.intersection(*map(set, baselines)) if baselines else set()
    for name in dict.fromkeys(name for one in baselines for name in one):
        if name not in everywhere:
            say(f"baseline {name}: left out, because it does not apply to all folds")
    return [{name: one[name] for name in one if name in everywhere} for one in baselines]


def _network_tasks(
    folds: FoldFits, training: Sequence[TrainingRows], trained: dict[int, TrainedHeads]
) -> list[Task]:
    """Return tasks that train the networks of every split, the longest first.

    Folds whose steps have the same shapes train as one stack.
    """
    inputs, splits, paths = folds.inputs, folds.splits, folds.paths
    if folds.config.network is None:
        return []
    antibody_ND, antigen_ME = (vectors.x_ND for vectors in inputs.vectors.values())
    alone = [i for i, path in enumerate(paths) if has_checkpoint(path.checkpoints)]
    begun = {
        i: 1 + len(further)
        for i in range(len(splits))
        if (found := load_newest(stack_folder(folds.run, i)))
        and (further := found.state.get("further_log_bytes"))
    }
    size = folds_per_stack(folds.config, (antibody_ND, antigen_ME), folds.device.type == "cpu")
    groups = group_folds(splits, folds.config, size, alone, begun)

    def train_group(group: Sequence[int]) -> None:
        first = group[0]
        stack = stack_folder(folds.run, first)
        found = train(
            TrainingInputs(
                pairs=inputs.pairs,
                antibody_ND=antibody_ND,
                antigen_ME=antigen_ME,
                folds=[
                    FoldInputs(splits[i], paths[i].log, folds.names[i], training[i].pairs)
                    for i in group
                ],
                config=folds.config,
                device=folds.device,
                checkpoints=stack if group[1:] else paths[first].checkpoints,
                verbose=folds.verbose,
            )
        )
        trained.update(zip(group, found, strict=True))
        return_freed_memory()

    return [
        Task(partial(train_group, group), NETWORKS_PART * len(group) / len(splits))
        for group in sorted(groups, key=len, reverse=True)
    ]


def _training_rows(folds: FoldFits, split: Split) -> TrainingRows:
    """Return the training pairs of a split; censored ones have expected labels."""
    pairs = folds.inputs.pairs
    antibody_ND, antigen_ME = (vectors.x_ND for vectors in folds.inputs.vectors.values())
    rows = split.rows(TRAIN)
    chains = pairs.table.antibodies.chains
    vectors = PairVectors(antibody_ND, antigen_ME, pairs.antibody, pairs.antigen, chains)
    inner = inner_folds(split.group[rows])
    use_gpu = folds.device.type == "cuda" and len(rows) > SMALL_FOLD_PAIRS
    device = folds.device if use_gpu else None
    return impute_censored(TrainingRows(pairs, vectors, rows, inner, device))


def _baseline_inputs(folds: FoldFits, training: Sequence[TrainingRows]) -> list[BaselineInputs]:
    """Return what the baselines of each split learn from."""
    antibody_ND, antigen_ME = (vectors.x_ND for vectors in folds.inputs.vectors.values())
    residues = ResidueFeatures(folds.inputs.pairs.table)
    return [
        BaselineInputs(
            one.pairs,
            split,
            antibody_ND,
            antigen_ME,
            device=folds.device if folds.device.type == "cuda" else None,
            residues=residues,
        )
        for one, split in zip(training, folds.splits, strict=True)
    ]


class Task(NamedTuple):
    """A part of a fit that needs no other part."""

    run: Callable[[], object]
    share: float
    """Of the stage's time, for the progress bar."""


def run_tasks(tasks: Sequence[Task], threads: int) -> None:
    """Run all tasks; after a signal or an error none begins, and trainings save and stop.

    With one thread they run in this one, in their order. With several, each has one core.

    Raises
    ------
    Stopped
        If a signal has stopped the tasks and its handler did not raise an exception.
    """
    with delayed_signals() as stop:

        def run(task: Task) -> None:
            if not stop:
                with part_of_stage(task.share):
                    task.run()

        if threads == 1:
            for task in tasks:
                run(task)
        else:
            with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
                running = [pool.submit(copy_context().run, run, task) for task in tasks]
                waiting = set(running)
                while waiting:
                    ended, waiting = wait(waiting, WAIT_S, FIRST_COMPLETED)
                    if any(task.exception() is not None for task in ended):
                        stop.append(NO_SIGNAL)
            errors = [error for task in running if (error := task.exception()) is not None]
            for error in errors:
                if not isinstance(error, Stopped):
                    raise error
    if stop:
        raise Stopped
