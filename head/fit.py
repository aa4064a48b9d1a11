"""``fit``: a table and a store in, a run folder out.

The table is read and split before torch is imported, so that errors in it are reported at once.
Nothing is written before everything has been checked. Every file of the folder is written
atomically, so the same command resumes the run after an interruption at any point.

Small folds are fitted in one pool of threads: steps and factorisations release the lock of the
interpreter most of the time. Results do not depend on the number of threads.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from abag import __version__
from abag.core.cores import SMALL_FOLD_PAIRS, count_cores, count_threads
from abag.core.errors import OptionError, OutputError
from abag.core.files import only_writer, refuse_read_only, sweep_partials
from abag.core.messages import detail, reporting, say
from abag.core.options import user_path
from abag.head.labels.labelled_pairs import NothingToLearn, encoded_features, training_labels
from abag.head.models.config import FitConfig
from abag.head.models.pair_vectors import (
    DoesNotApply,
    PairVectors,
    SideVectors,
    TrainedHeads,
    TrainingRows,
)
from abag.head.models.probit import latent_labels
from abag.head.models.registry import NETWORK
from abag.head.models.ridge import impute_censored
from abag.head.next_round import read_round
from abag.head.predictor.explain import average_contributions
from abag.head.predictor.folder import check_saved, make_predictor, save_predictor, store_of_run
from abag.head.predictor.parts import (
    BaselineInputs,
    Parts,
    RunParts,
    count_mutations,
    fit_fold,
    inner_folds,
    needed_parts,
    predict_baselines,
    with_searches,
)
from abag.head.predictor.weigh import weigh_run
from abag.head.regimes.folds import OF_TABLE, with_distances
from abag.head.regimes.splits import TEST, TRAIN, UNUSED, learned_rows, thinned
from abag.head.runs.report import curve_point, write_results
from abag.head.runs.run_folder import (
    finished_summary,
    join_logs,
    read_config,
    refuse_other_splits,
    start_run,
)
from abag.head.training.inputs import describe_inputs, read_inputs, split_inputs
from abag.head.training.tasks import Kept, Stage, Task, Work, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from abag.embed.tables.table import TableLike
    from abag.head.evaluation.scores import RegimeScore
    from abag.head.predictor.parts import Predictions
    from abag.head.predictor.weigh import WeighedRun
    from abag.head.regimes.splits import Split
    from abag.head.runs.run_folder import RunSummary
    from abag.head.training.inputs import RunInputs, SplitInputs

FOLDS = "fit: folds"
ALL_PAIRS = "fit: all pairs"
LEARNING_CURVE_SHARES = (0.125, 0.25, 0.5)
"""Shares of the training groups that ``--learning-curve`` fits beside the whole."""


def fit(
    table: TableLike,
    store: Path | str | None,
    run: Path | str,
    *,
    progress: bool = False,
    verbose: bool = False,
    report: bool = True,
    **options: Any,  # noqa: ANN401 - the fields of FitConfig
) -> RunSummary:
    """Train a head on the stored vectors of a table, or resume an interrupted run.

    Parameters
    ----------
    table : path, DataFrame or list of these
        Pairs with a measured affinity.
    store : path
        Has a vector for every sequence of the table. With ``add``, None is the store of that run.
    run : path
        Folder of the run; created if it does not exist.
    progress : bool
        Whether to draw a progress bar on stderr.
    verbose : bool
        Whether to report every message, and the scores of every validation.
    report : bool
        Whether to write ``report.html``, which takes about a second.
    **options
        Fields of `FitConfig`.

    Returns
    -------
    RunSummary
        The object that ``abag fit --json`` prints.

    Raises
    ------
    AbagError
        If an option, the table, the store or the run folder is invalid, before anything is
        written; or if training diverges.
    """
    config = FitConfig.from_keywords(options, "fit")
    with reporting(bars=progress, details=verbose):
        return _fit(table, store, Path(run), config, report=report)


def _fit(
    table: TableLike,
    store: Path | str | None,
    run: Path,
    config: FitConfig,
    *,
    report: bool,
) -> RunSummary:
    """Do the steps of docs/architecture.md, a call each; data travels forward only."""
    store = _store_of(config, store, run)
    if config.add is None:
        inputs = read_inputs(table, store, config, run)
    else:
        inputs = read_round(table, store, config)
    config = renamed_split(run, inputs.options)
    record = describe_inputs(config, inputs)
    if (finished := finished_summary(run, record)) is not None:
        if config.split_name in OF_TABLE:  # which config.json only names
            with reporting(silent=True):
                splits = split_inputs(inputs).splits
            refuse_other_splits(run, inputs.pairs, splits)
        shutil.rmtree(run / "checkpoints", ignore_errors=True)  # if killed after its last file
        sweep_partials(run)
        say(f"{run}: nothing to do, this run has finished")
        return finished
    refuse_read_only(run, run / "predictor", run / "checkpoints")
    inputs = split_inputs(inputs)
    trainings = Trainings.of(run, inputs, config)
    from abag.head.training.networks import torch_settings  # torch: not before all is checked

    with only_writer(run):
        # again, now that no other process can write: it may have finished since
        if finished_summary(run, record) is not None:
            msg = f"{run}: another process has just finished this run. Run the command again."
            raise OutputError(msg)
        start_run(run, record, inputs.pairs, inputs.splits)
        begun = time.monotonic()
        with torch_settings(trainings.device, config):
            for reason in trainings.parts.left_out:
                detail(reason)
            weighed, parts = fit_regimes(trainings)
            curve = _learning_curve(trainings)
        digest = save_checked(run / "predictor", inputs, weighed, parts)
        mixtures = {regime.measured.regime.name: regime.mixture for regime in weighed.regimes}
        residues = average_contributions(parts.models, mixtures, trainings.vectors, inputs.trained)
        join_logs(run)
        summary = write_results(
            run,
            inputs,
            weighed.regimes,
            parts,
            curve,
            predictor_digest=digest,
            report=report,
            residues=residues,
        )
        shutil.rmtree(run / "checkpoints", ignore_errors=True)  # what they resume has finished
        for text in summary["warnings"]:
            say(text)
        steps = f"{summary['steps']} steps" if summary["steps"] else "fitted"
        detail(f"{run}: {steps} in {time.monotonic() - begun:.1f} s")
        return summary


def renamed_split(run: Path, config: FitConfig) -> FitConfig:
    """Return the options, with a split file named as when the run was started.

    The run, or the file, may have moved; what is in the file has to be the same.
    """
    if config.split_name != "file" or not (run / "config.json").is_file():
        return config
    before = str(read_config(run)["split"])
    return replace(config, split=before) if before.startswith("file=") else config


def _store_of(config: FitConfig, store: Path | str | None, run: Path) -> Path | str:
    """Return the store that was given, or that of the run of ``--add``."""
    earlier = None if config.add is None else user_path(config.add, "--add")
    if earlier is not None and earlier.resolve() == run.resolve():
        msg = f"--run: {run} is the run of --add; expected a new folder. Give another."
        raise OptionError(msg)
    known_store = store if store is not None or earlier is None else store_of_run(earlier)[0]
    if known_store is None and earlier is not None:
        msg = (
            f"--add: {earlier} is not a run of abag fit whose store still exists; expected one. "
            "Check the path, or give --store DIR."
        )
        raise OptionError(msg)
    if known_store is None:
        msg = "--store: not given; expected the folder of vectors. Give --store DIR."
        raise OptionError(msg)
    return known_store


def fit_predictor(inputs: RunInputs, folder: Path, predictor: Path) -> list[RegimeScore]:
    """Fit and write a predictor without a run; return the scores of its regimes."""
    from abag.head.training.networks import torch_settings

    inputs = split_inputs(inputs)
    trainings = Trainings.of(folder, inputs, inputs.options)
    with torch_settings(trainings.device, inputs.options):
        weighed, parts = fit_regimes(trainings)
    save_checked(predictor, inputs, weighed, parts)
    return [regime.score for regime in weighed.regimes]


def save_checked(folder: Path, inputs: SplitInputs, weighed: WeighedRun, parts: Parts) -> str:
    """Save the predictor, and check that it predicts what was measured; else it is unusable.

    Returns its digest.
    """
    predictor = make_predictor(inputs, parts, weighed)
    digest = save_predictor(folder, predictor, inputs.vectors)
    check_saved(folder, predictor, inputs, weighed.regimes)
    return digest


def choose_device(config: FitConfig) -> torch.device:
    """Return the device to train on.

    Raises
    ------
    OptionError
        If networks are to be compiled with CUDA graphs, and the device is a CPU.
    """
    from abag.core.device import resolve_device

    device = resolve_device(config.device)
    if config.compile in ("graph", "full") and device.type == "cpu":
        msg = (
            f"--compile {config.compile}: CUDA graphs need a CUDA device, but this run uses the "
            "CPU. Use --compile auto."
        )
        raise OptionError(msg)
    return device


class Trainings(NamedTuple):
    """What the parts of all folds are fitted to, and where their checkpoints are."""

    folder: Path
    inputs: SplitInputs
    vectors: PairVectors
    config: FitConfig
    device: torch.device
    parts: RunParts

    @classmethod
    def of(cls, run: Path, inputs: SplitInputs, config: FitConfig) -> Self:
        """Decide the parts and the device of a run, and gather what all its fits share."""
        pairs = inputs.pairs
        sides = {}
        for kind, stored in inputs.vectors.items():
            chains = pairs.table.sequences[kind].chains
            sides[kind] = SideVectors(stored.x_ND, pairs.index(kind), chains, stored.widths)
        vectors = PairVectors(sides, encoded_features(pairs))
        parts = decide_parts(vectors, config, [inputs.last, *inputs.splits])
        if config.network is not None:  # folds have the batch that suits the pairs of the last fit
            config = replace(config, batch_size=config.fitting_batch(parts.pairs)[0])
        device = choose_device(config)
        return cls(run / "checkpoints", inputs, vectors, config, device, parts)

    @property
    def models(self) -> dict[str, int]:
        """Return how many models each part of the run has, by name."""
        counts = dict.fromkeys(self.parts.models, 1)
        return counts if self.config.network is None else {**counts, NETWORK: self.config.members}


def decide_parts(vectors: PairVectors, config: FitConfig, splits: Sequence[Split]) -> RunParts:
    """Choose the parts of all fits of a run, given their splits, that of the last fit first."""
    fits = [learned_rows(split) for split in splits]
    return RunParts.decide(config.filled().head, config.kinds, vectors, fits)


def fit_folds(
    trainings: Trainings,
    splits: Sequence[Split],
    rows: Sequence[TrainingRows] | None = None,
    title: str = FOLDS,
    work: Work | None = None,
) -> list[Predictions]:
    """Fit the parts of every fold, and the baselines that they are compared with; keep predictions.

    `rows` are what closed forms learn from, by default `training_rows` of each split.
    """
    from abag.head.training.networks import matrix_threads, training_digest

    if rows is None:
        rows = [training_rows(trainings, split) for split in splits]
    n_training = max(len(fold_rows.rows) for fold_rows in rows)
    trained: dict[int, TrainedHeads] = {}
    fitted: dict[int, Predictions] = {}
    pairs = trainings.inputs.pairs
    mutations = count_mutations(pairs)

    def fit_and_predict(i: int) -> None:
        of_fold = rows[i]
        learned = (of_fold.rows, of_fold.fold, of_fold.pkd, of_fold.noise_share)
        digest = training_digest(trainings.config, learned)
        with matrix_threads(n_training):
            kept = Kept(trainings.folder / f"fold-{i:02d}", f"{__version__} {digest}")
            fitted[i] = fit_fold(of_fold, trainings.parts, kept)
            inputs = BaselineInputs(pairs, of_fold, splits[i], mutations)
            fitted[i].predicted |= predict_baselines(inputs)

    names = [*trainings.models, *trainings.parts.compared]
    for stage in _stages(trainings, splits, rows, names, fit_and_predict, trained, title):
        run_tasks(stage, work)
    for i, heads in trained.items():
        fitted[i].add_networks(heads)
    return [fitted[i] for i in range(len(splits))]


def fit_all_pairs(
    trainings: Trainings,
    split: Split,
    rows: TrainingRows,
    names: Sequence[str],
    work: Work | None,
) -> Parts:
    """Fit the parts with these names to all pairs."""
    from abag.head.training.networks import matrix_threads

    trained: dict[int, TrainedHeads] = {}
    fitted = list[Parts]()

    def fit_parts(_: int) -> None:
        with matrix_threads(len(rows.rows)):
            fitted.append(Parts.fit(rows, [name for name in names if name != NETWORK]))
            rows.shared.clear()  # distances and kernels

    for stage in _stages(trainings, [split], [rows], names, fit_parts, trained, ALL_PAIRS):
        run_tasks(stage, work)
    (parts,) = fitted
    return parts.with_networks(trained[0]) if trained else parts


def _stages(
    trainings: Trainings,
    splits: Sequence[Split],
    rows: Sequence[TrainingRows],
    names: Sequence[str],
    fit_closed_forms: Callable[[int], None],
    trained: dict[int, TrainedHeads],
    title: str,
) -> list[Stage]:
    """Return what trains networks and fits closed forms, by the number of each split.

    They are side by side as far as memory and device allow. Weights are about the seconds on a core
    of a server.
    """
    networks = _network_tasks(trainings, splits, rows, trained) if NETWORK in names else []
    closed_forms = []
    n_closed = sum(name != NETWORK for name in names)
    for i, of_split in enumerate(rows):
        weight = 0.03 * n_closed * len(of_split.rows) / 1000
        closed_forms.append(Task(partial(fit_closed_forms, i), weight, "closed forms"))
    device = trainings.device
    n_training = max(len(of_split.rows) for of_split in rows)
    cores = count_cores()
    n_tasks = len(networks) + len(closed_forms)
    if device.type == "cpu" and (n_training <= SMALL_FOLD_PAIRS or len(networks) < 2):
        threads = count_threads(n_tasks, n_training, cores)
        # the first tells how long the others take; the long ones come next
        return [Stage(title, [*closed_forms[:1], *networks, *closed_forms[1:]], threads)]
    stages = []
    # A GPU is used by the thread that made it the current one. On a CPU, networks take little
    # memory and a core each, whatever the pairs.
    on_gpu = device.type != "cpu"
    threads = 1 if on_gpu else count_threads(len(networks), 0, cores)
    if networks:
        stages.append(Stage(f"{title}, networks", networks, threads))
    use_gpu = any(of_split.device is not None for of_split in rows)
    threads = 1 if use_gpu else count_threads(len(closed_forms), n_training, cores)
    return [*stages, Stage(title, closed_forms, threads)]


def training_rows(trainings: Trainings, split: Split) -> TrainingRows:
    """Return what models in closed form learn from, with exact labels.

    That is the validation part, too, which only networks need.
    """
    pairs = trainings.inputs.pairs
    vectors = trainings.vectors
    device = trainings.device
    rows = learned_rows(split)
    use_gpu = device.type == "cuda" and trainings.parts.pairs > SMALL_FOLD_PAIRS
    training = TrainingRows(
        latent_labels(pairs, rows),
        vectors,
        rows,
        inner_folds(split.group[rows]),
        device if use_gpu else None,
        run_pairs=trainings.parts.pairs,
        residue_sides=trainings.parts.residue_sides,
        seed=trainings.config.seed,
    )
    return impute_censored(training)


def _network_tasks(
    trainings: Trainings,
    splits: Sequence[Split],
    rows: Sequence[TrainingRows],
    trained: dict[int, TrainedHeads],
) -> list[Task]:
    """Return tasks that train the networks of every split, the longest first."""
    from abag.head.training.networks import TrainingInputs, train
    from abag.head.training.stack import folds_per_stack, group_folds

    config = trainings.config
    on_cpu = trainings.device.type == "cpu"
    groups = group_folds(splits, config, folds_per_stack(config, trainings.vectors, on_cpu))

    def train_group(group: Sequence[int]) -> None:
        # On another device stacks have other sizes, and begin again in other folders.
        name = f"stack-{group[0]:02d}-of-{len(group)}" if len(splits) > 1 else ""
        inputs = TrainingInputs(
            pairs=trainings.inputs.pairs,
            vectors=trainings.vectors,
            splits=[splits[i] for i in group],
            labels=[rows[i].labels for i in group],
            config=config,
            device=trainings.device,
            folder=trainings.folder / name,
        )
        trained.update(zip(group, train(inputs), strict=True))

    tasks = []
    for group in sorted(groups, key=len, reverse=True):
        weight = sum(0.6 * (len(rows[i].rows) / 1000) ** 0.65 for i in group)
        tasks.append(Task(partial(train_group, group), weight, "networks"))
    return tasks


def fit_regimes(trainings: Trainings) -> tuple[WeighedRun, Parts]:
    """Fit the parts to every fold, weigh them by regime, and fit those that count to all pairs."""
    regimes = trainings.inputs.regimes
    splits, fold_of_split = distinct_folds(trainings.inputs.splits)
    last = trainings.inputs.last
    rows = _rows_of_splits(trainings, [*splits, last])
    models = trainings.models
    compared = (*models, *trainings.parts.compared)
    cores = count_cores()
    rows, searches = with_searches(rows[-1], rows, compared, cores)
    choices = []
    for search, criteria in searches:
        choices.append(Task(partial(search.choose, criteria), search.seconds, "kernels"))
    kernels = [Stage("fit: kernels", choices, min(len(choices), cores))] if choices else []
    work = Work(
        [
            *kernels,
            *_stages(trainings, splits, rows[:-1], compared, _not_yet, {}, FOLDS),
            *_stages(trainings, [last], rows[-1:], [*models], _not_yet, {}, ALL_PAIRS),
        ]
    )
    for stage in kernels:
        run_tasks(stage, work)
    fitted_folds = fit_folds(trainings, splits, rows[:-1], work=work)
    fitted = [fitted_folds[fold] for fold in fold_of_split]
    remaining = iter(fitted)
    folds_of_regimes = []
    for regime in regimes:
        if regime.splits:
            folds_of_regimes.append((regime, list(islice(remaining, len(regime.splits)))))
    weighed = weigh_run(trainings.inputs.pairs, folds_of_regimes)
    # the networks of all pairs take as many epochs as the best of the folds did
    epochs = []
    for fold in fitted:
        if fold.trained is not None:
            for best_step in fold.trained.best_step:  # of each member; rounded up
                epochs.append(-(-best_step * fold.trained.epochs // fold.trained.steps))
    config = trainings.config
    if epochs:
        config = replace(config, epochs=max(1, round(float(np.median(epochs)))))
    folder = trainings.folder / "all-pairs"
    settings = trainings._replace(folder=folder, config=config)
    needed = needed_parts(models, [regime.mixture for regime in weighed.regimes])
    return weighed, fit_all_pairs(settings, last, rows[-1], needed, work)


def _not_yet(_: int) -> None:
    """Stand for a fit of a later stage."""


def _rows_of_splits(trainings: Trainings, splits: Sequence[Split]) -> list[TrainingRows]:
    """Return what closed forms learn from in each split; bounds are replaced side by side."""
    collected: dict[int, TrainingRows] = {}

    def learn(i: int) -> None:
        collected[i] = training_rows(trainings, splits[i])

    tasks = [Task(partial(learn, i)) for i in range(len(splits))]
    largest = max(len(learned_rows(split)) for split in splits)
    on_cpu = trainings.device.type == "cpu" and trainings.inputs.pairs.censored.any()
    threads = count_threads(len(tasks), largest, count_cores()) if on_cpu else 1
    run_tasks(Stage("fit: labels", tasks, threads))
    return [collected[i] for i in range(len(splits))]


def distinct_folds(splits: Sequence[Split]) -> tuple[list[Split], list[int]]:
    """Return the splits that train on different pairs, and which of them each split is."""
    first: dict[bytes, int] = {}
    of_split = []
    distinct_splits: list[Split] = []
    for split in splits:
        training = np.where(split.part == TEST, np.int8(UNUSED), split.part).tobytes()
        if training not in first:
            first[training] = len(distinct_splits)
            distinct_splits.append(split)
        of_split.append(first[training])
    return distinct_splits, of_split


def _learning_curve(trainings: Trainings) -> list[dict[str, Any]]:
    points = []
    config = trainings.config
    pairs = trainings.inputs.pairs
    regimes = trainings.inputs.regimes
    if not config.learning_curve:
        return []
    first = next(regime for regime in regimes if regime.splits)
    for share in LEARNING_CURVE_SHARES:
        name = f"{share:.1%} of the training groups"
        splits = []
        for split in first.splits:
            fewer = thinned(split, share, config.effective_split_seed)
            if split.distance is not None:
                fewer = with_distances(fewer, trainings.inputs.sides)  # further from fewer pairs
            splits.append(fewer)
        try:
            for split in splits:
                training_labels(pairs, split.rows(TRAIN))
            # a small share of the groups may lack what a part needs
            parts = decide_parts(trainings.vectors, config, [trainings.inputs.last, *splits])
        except (NothingToLearn, DoesNotApply) as error:
            say(f"learning curve: {name} left out: {error}")
            continue
        folder = trainings.folder / f"share-{share}"
        settings = trainings._replace(folder=folder, parts=parts)
        fitted = fit_folds(settings, splits, title=f"fit: learning curve, {share}")
        thinned_regime = replace(first, splits=tuple(splits))
        (regime,) = weigh_run(pairs, [(thinned_regime, fitted)]).regimes
        points.append(curve_point(splits, regime.score, share))
        detail(f"learning curve: {name}, {points[-1]['training_pairs']} pairs")
    return points
