"""The heads of all folds of a fit, and the baselines beside them; small folds share the cores."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from abag.core.arrays import Floats
from abag.core.cores import SMALL_FOLD_PAIRS, count_cores, count_threads
from abag.core.messages import say
from abag.head.closed_form.censored import impute_censored
from abag.head.closed_form.pair_model import PairVectors, TrainingRows
from abag.head.evaluation.baselines import (
    BaselineInputs,
    ResidueFeatures,
    inner_folds,
    predict_baselines,
)
from abag.head.prediction.fitted import ClosedForms, FittedHead, fit_closed_forms, fit_head
from abag.head.runs.run_folder import stack_folder
from abag.head.splits.splits import TRAIN
from abag.head.training.checkpoint import has_checkpoint, load_newest
from abag.head.training.fold_groups import folds_per_stack, group_folds
from abag.head.training.pool import Task, run_tasks
from abag.head.training.torch_settings import matrix_threads, return_freed_memory
from abag.head.training.train import FoldInputs, TrainingInputs, train

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    from abag.head.model.config import FitConfig
    from abag.head.runs.run_folder import FoldPaths, RunInputs
    from abag.head.splits.splits import Split
    from abag.head.training.train import TrainedHeads

NETWORKS_SHARE, CLOSED_FORMS_SHARE, BASELINES_SHARE = 0.7, 0.2, 0.1
"""Parts of the time, for the progress bar."""


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
                known = closed[i].models.predicted
                baselines[i] = predict_baselines(replace(inputs[i], known=known))
        return_freed_memory()

    share = (CLOSED_FORMS_SHARE + BASELINES_SHARE * with_baselines) / count
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
        Task(partial(train_group, group), NETWORKS_SHARE * len(group) / len(splits))
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
