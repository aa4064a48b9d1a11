"""Train and score the heads of a run, and write everything into its folder.

Nothing is written before everything has been checked. Every file of the folder is written
atomically, so the same command resumes the run after an interruption at any point.

Small folds are fitted in one pool of threads. Steps and factorisations release the lock of the
interpreter most of the time, so threads suffice. They copy nothing, and work in notebooks and
scripts that a new process could not import. Results do not depend on the number of threads.
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from abag.core.cores import SMALL_FOLD_PAIRS, count_cores, count_threads
from abag.core.device import resolve_device
from abag.core.files import FolderBusy, only_writer
from abag.core.messages import counted, detail, part_of_stage, say, stage
from abag.core.options import BadOption
from abag.embed.store.status import residues_per_s
from abag.head.data.labels import NothingToLearn
from abag.head.models.baselines import (
    BaselineInputs,
    ResidueFeatures,
    inner_folds,
    predict_baselines,
)
from abag.head.models.pair_model import (
    DoesNotApply,
    PairVectors,
    TrainingRows,
    impute_censored,
)
from abag.head.prediction.bundle import save_predictor
from abag.head.prediction.fitted import (
    FittedParts,
    WeighedRegime,
    add_networks,
    fit_closed_forms,
    weigh,
)
from abag.head.regimes.regimes import all_pairs
from abag.head.regimes.splits import TRAIN, Split, thinned
from abag.head.runs.results import curve_point, join_logs, write_results
from abag.head.runs.run_folder import (
    check_training,
    finished_summary,
    fold_paths,
    split_inputs,
    stack_folder,
    start_run,
)
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch

    from abag.head.data.labels import LabelledPairs
    from abag.head.evaluation.regime_scores import RegimeScore
    from abag.head.models.config import FitConfig
    from abag.head.regimes.regimes import MeasuredRegime
    from abag.head.runs.run_folder import FoldPaths, RunInputs
    from abag.head.runs.summary import CurvePoint, RunSummary
    from abag.head.training.train import TrainedHeads

FOLDS_SHARE, ALL_SHARE, REPORT_SHARE = 0.65, 0.15, 0.1
"""Shares of the time of a fit, for the time left that the progress bar shows."""
LEARNING_CURVE_SHARES = (0.125, 0.25, 0.5)
"""Shares of the training groups that ``--learning-curve`` fits beside the whole."""
NETWORKS_PART, MODELS_PART = 0.7, 0.3
"""Parts of the time, for the progress bar."""
WAIT_S = 0.05
"""Time after which the main thread looks for signals that another thread received: these do not
end its wait."""


def complete_run(
    run: Path,
    inputs: RunInputs,
    measured: list[MeasuredRegime],
    record: Mapping[str, Any],
    config: FitConfig,
    *,
    verbose: bool,
    report: bool,
) -> RunSummary:
    """Fit the parts to every fold and to all pairs, weigh them, and write the results.

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
    splits = [split for one in measured for split in one.splits]
    with only_writer(run):
        if finished_summary(run, record) is not None:
            msg = f"{run}: another process has just finished this run. Run the command again."
            raise FolderBusy(msg)
        start_run(run, record, inputs.pairs, splits)
        start_s = time.monotonic()
        with torch_settings(device, config):
            stage("folds", _folds_share(config))
            folds = FoldFits(run, inputs, splits, config, device, verbose)
            fitted = fit_folds(folds)
            weighed = weigh_regimes(inputs.pairs, measured, fitted)
            curve = _learning_curve(folds, measured)
            stage("all pairs", ALL_SHARE)
            parts = fit_all(folds, measured, fitted)
        stage("scores and report", REPORT_SHARE)
        save_predictor(run / "predictor", inputs, parts, weighed, config.antibody_region)
        join_logs([path.log for path in fold_paths(run, len(splits))], run / "metrics.jsonl")
        summary = write_results(
            run, inputs.pairs, measured, weighed, fitted, parts, curve, report=report
        )
        shutil.rmtree(run / "checkpoints", ignore_errors=True)  # what they resume has finished
        _report_summary(run, summary, inputs, time.monotonic() - start_s)
        return summary


def fit_predictor(
    inputs: RunInputs, config: FitConfig, folder: Path, predictor: Path
) -> list[RegimeScore]:
    """Fit and write a predictor without a run; return the scores of its regimes."""
    inputs, measured = split_inputs(inputs, config)
    splits = [split for one in measured for split in one.splits]
    device = _device_for(config)
    with torch_settings(device, config):
        folds = FoldFits(folder, inputs, splits, config, device, False)
        fitted = fit_folds(folds)
        weighed = weigh_regimes(inputs.pairs, measured, fitted)
        parts = fit_all(folds, measured, fitted)
    save_predictor(predictor, inputs, parts, weighed, config.antibody_region)
    return [one.score for one in weighed]


def weigh_regimes(
    pairs: LabelledPairs, measured: Sequence[MeasuredRegime], fitted: Sequence[FittedParts]
) -> list[WeighedRegime]:
    """Weigh and calibrate every regime that was measured, by the folds that measure it."""
    found, at = [], 0
    for one in measured:
        if one.splits:
            found.append(weigh(pairs, one, fitted[at : at + len(one.splits)]))
            at += len(one.splits)
    return found


def fit_all(
    folds: FoldFits, measured: Sequence[MeasuredRegime], fitted: Sequence[FittedParts]
) -> FittedParts:
    """Fit the parts to all pairs; networks take as many epochs as the best of the folds did."""
    epochs = [
        -(-one.trained.progress.best_step[0] * one.trained.epochs // one.trained.progress.step)
        for one in fitted
        if one.trained is not None
    ]
    config = folds.config
    if epochs:
        config = replace(config, epochs=max(1, round(float(np.median(epochs)))))
    own = folds._replace(
        run=folds.run / "checkpoints" / "all-pairs",
        splits=[all_pairs(measured)],
        config=config,
        verbose=False,
    )
    (parts,) = fit_folds(own, with_baselines=False)
    return parts


def _device_for(config: FitConfig) -> torch.device:
    device = resolve_device(config.device)
    if config.compile == "graph" and device.type == "cpu":
        msg = (
            "--compile graph: CUDA graphs need a CUDA device, but this run uses the CPU. "
            "Use --compile auto."
        )
        raise BadOption(msg)
    return device


def _folds_share(config: FitConfig) -> float:
    """Return the share of the time for the folds of all training groups."""
    return FOLDS_SHARE / (1 + sum(LEARNING_CURVE_SHARES) * config.learning_curve)


def _learning_curve(folds: FoldFits, measured: Sequence[MeasuredRegime]) -> list[CurvePoint]:
    """Fit the first regime to smaller shares of the training groups; test parts stay the same."""
    points, config, pairs = [], folds.config, folds.inputs.pairs
    first = next(one for one in measured if one.splits)
    for share in LEARNING_CURVE_SHARES if config.learning_curve else ():
        name = f"{share:.1%} of the training groups"
        smaller = [thinned(one, share, config.effective_split_seed) for one in first.splits]
        try:
            for split in smaller:
                check_training(pairs, split, config)
        except NothingToLearn:
            say(f"learning curve: {name} have no different labels in some fold; left out")
            continue
        except DoesNotApply as error:
            say(f"learning curve: {name} left out: {error}")
            continue
        run = folds.run / "checkpoints" / f"share-{share}"
        stage(f"learning curve, {share}", share * _folds_share(config))
        own = folds._replace(run=run, splits=smaller, verbose=False)
        regime = weigh(pairs, replace(first, splits=tuple(smaller)), fit_folds(own))
        points.append(curve_point(smaller, regime.score, share))
        detail(f"learning curve: {name}, {points[-1]['training_pairs']} pairs")
    return points


def _report_summary(run: Path, summary: RunSummary, inputs: RunInputs, seconds: float) -> None:
    for text in summary["warnings"]:
        say(text)
    epochs = summary["epochs"]
    if not epochs:  # a head in closed form
        detail(f"{run}: fitted in {seconds:.1f} s")
        return
    detail(f"{run}: {summary['steps']} steps in {seconds:.1f} s")
    if (encoding_s := _encoding_seconds(inputs)) is not None:
        detail(
            f"re-encoding every pair in {counted(epochs, 'epoch')} would have taken "
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
    """What the parts of all folds are fitted to, and where they are kept."""

    run: Path
    inputs: RunInputs
    splits: Sequence[Split]
    config: FitConfig
    device: torch.device
    verbose: bool

    @property
    def paths(self) -> list[FoldPaths]:
        """Where the training of each fold writes."""
        return fold_paths(self.run, len(self.splits))

    @property
    def names(self) -> list[str]:
        """Names of the folds in messages."""
        return [f"{split.name.replace('_', ' ')} {split.fold}" for split in self.splits]


def fit_folds(folds: FoldFits, *, with_baselines: bool = True) -> list[FittedParts]:
    """Fit the parts of every split, and the baselines that they are compared with."""
    config, names, count = folds.config, folds.names, len(folds.splits)
    training = [_training_rows(folds, split) for split in folds.splits]
    n_training = max(len(one.rows) for one in training)
    trained: dict[int, TrainedHeads] = {}
    fitted: dict[int, FittedParts] = {}
    inputs = _baseline_inputs(folds, training) if with_baselines else []

    def fit_and_predict(i: int) -> None:
        with matrix_threads(n_training):
            parts = fit_closed_forms(training[i], config, names[i], compared=with_baselines)
            if with_baselines:
                parts.predicted |= predict_baselines(inputs[i])
            fitted[i] = parts
        return_freed_memory()

    models = [Task(partial(fit_and_predict, i), MODELS_PART / count) for i in range(count)]
    tasks = [*_network_tasks(folds, training, trained), *models]
    # A GPU is used by the thread that made it the current one.
    on_cpu = folds.device.type == "cpu"
    threads = count_threads(len(tasks), n_training, count_cores()) if on_cpu else 1
    run_tasks(tasks, threads)
    for i, heads in trained.items():
        add_networks(fitted[i], heads, config)
    return [fitted[i] for i in range(count)]


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
    size = folds_per_stack(folds.config, (antibody_ND, antigen_ME), folds.device.type == "cpu")
    groups = group_folds(splits, folds.config, size)

    def train_group(group: Sequence[int]) -> None:
        first = group[0]
        stack = stack_folder(folds.run, first, len(group))
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
    chains = pairs.table.antibodies.chains, pairs.table.antigens.chains
    vectors = PairVectors(antibody_ND, antigen_ME, pairs.antibody, pairs.antigen, *chains)
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
