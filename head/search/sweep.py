"""``sweep``: hyperparameter search on inner folds, with the test part held back until the end.

A sweep is a folder. ``sweep.json`` records what is searched, ``journal.log`` holds every trial (an
Optuna journal: several processes can share it, and an interruption loses only unfinished trials),
``trials.csv`` is written at the end, and ``final/`` is the run folder of the winner, refitted as an
ensemble and scored once on the test part.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from abag import AbagError
from abag.core.arrays import distinct
from abag.core.cache import cache_dir
from abag.core.device import resolve_device
from abag.core.files import (
    is_partial,
    make_folder,
    read_json,
    replacing,
    sweep_partials,
    write_json,
)
from abag.core.messages import reporting, say
from abag.core.options import BadOption, flag
from abag.head.data.labels import training_labels
from abag.head.data.vectors import read_vectors
from abag.head.fit import fit
from abag.head.models.config import MAY_CHANGE, FitConfig, RunMismatch, check_same, is_used
from abag.head.regimes.split_methods import make_splits
from abag.head.regimes.splits import BadSplit, split_frame
from abag.head.runs.run_folder import describe_inputs, read_inputs
from abag.head.search.options import CHOSEN_BY_SWEEP, SweepOptions, refusal
from abag.head.search.search import (
    RANGES,
    SHAPES,
    SearchProblem,
    fit_options,
    inner_folds,
    without_test_part,
)
from abag.head.search.study import (
    SweepSummary,
    count_trials,
    describe_winner,
    fail_abandoned_trials,
    naming_damage,
    open_study,
    quiet_optuna,
    require_optuna,
    run_trials,
    summarise_trials,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs
    from abag.head.regimes.splits import Split
    from abag.head.runs.run_folder import RunInputs

SWEEP_FORMAT, TRIALS = "abag-sweep 1", 50
SPLIT = "split.parquet"
"""The test part that was held back, for the final run."""


class NoTrials(AbagError):
    """A final run was requested but no trial is complete."""


class SweepClosed(AbagError):
    """The test part has been scored; more trials would be chosen with that knowledge."""


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
    OptunaMissing
        If the extra ``sweep`` is not installed.
    NoTrials
        If a final run is requested but no trial is complete.
    SweepClosed
        If more trials are requested after the final run.
    AbagError
        If an option, the table, the store or the folder is invalid, before anything is written.
    """
    require_optuna()
    own, others = SweepOptions.take(options)
    with reporting(say, bars=progress):
        return _sweep(table, store, Path(folder), own, others, progress=progress)


def _sweep(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    folder: Path,
    own: SweepOptions,
    options: dict[str, Any],
    *,
    progress: bool,
) -> SweepSummary:
    given = sorted(options.keys() & CHOSEN_BY_SWEEP)
    if given:
        raise BadOption(refusal(flag(given[0])))
    config = FitConfig.from_keywords(options, "sweep")
    inputs = read_inputs(table, store, config)
    config, split = _hold_out_test(inputs.pairs, config)
    problem, record = _define_search(inputs, config, split, own.folds)
    wanted = own.trials or (0 if own.final else TRIALS)
    if not wanted and not (folder / "sweep.json").exists():
        raise _no_trials(folder)
    closed = (folder / "final" / "summary.json").exists()
    _open_folder(folder, record)
    with quiet_optuna():
        journal = folder / "journal.log"
        study = open_study(journal, config.select)
        with naming_damage(str(journal)):
            fail_abandoned_trials(study)
        if count_trials(study) >= wanted:
            say(f"{folder}: nothing to search, already has {count_trials(study)} trials")
        elif closed:
            msg = (
                f"{folder / 'final'}: the test part has been scored, so more trials would be "
                "chosen with that knowledge. Use another --sweep folder."
            )
            raise SweepClosed(msg)
        else:
            run_trials(study, problem, wanted)
        with naming_damage(str(journal)):
            summary = summarise_trials(folder, study, config.select)
    if "best" in summary:
        say(f"{folder}: {describe_winner(summary)}")
    if own.final:
        if "best" not in summary:
            raise _no_trials(folder)
        winner = fit_options(summary["best"]["params"])
        head = winner["head"]
        if head == "mlp":
            winner["head"] = None  # the default, a stack with this network
        else:
            say(f"{folder}: the winner, {head}, predicts alone, not in a stack")
        with replacing(folder / SPLIT) as partial:
            split_frame(inputs.pairs, [split]).to_parquet(partial, index=False)
        others = {**options, "split": f"file={folder / SPLIT}", "members": own.members}
        options = {n: one for n, one in others.items() if is_used(n, head)} | winner
        summary["final"] = fit(table, store, folder / "final", progress=progress, **options)
    return summary


def _no_trials(folder: Path) -> NoTrials:
    return NoTrials(
        f"{folder}: no trial is complete, so there is no winner to refit. Run the sweep without "
        "--final first."
    )


def _hold_out_test(pairs: LabelledPairs, config: FitConfig) -> tuple[FitConfig, Split]:
    """Choose a single split, also where ``fit`` would use folds; return options that repeat it."""
    splits = make_splits(pairs, config, cache=cache_dir() / "clusters")
    if len(splits) == 1:
        return config, splits[0]
    if config.split != "auto":
        msg = (
            f"--split {config.split}: gives {len(splits)} folds; a sweep holds out a single test "
            "part. Use a split without folds."
        )
        raise BadSplit(msg)
    description = splits[0].description
    say(f"split auto: {description['why']}; a sweep holds out a single test part")
    return _hold_out_test(pairs, replace(config, split=description["split"]))


def _define_search(
    inputs: RunInputs, config: FitConfig, split: Split, folds: int
) -> tuple[SearchProblem, dict[str, Any]]:
    """Return the search problem, and the record of what must be the same on resuming."""
    pairs, group = without_test_part(inputs.pairs, split)
    record = describe_inputs(config, inputs) | {
        "format": SWEEP_FORMAT,
        "inner_folds": folds,
        "space": {"shapes": list(SHAPES), "ranges": {n: list(r) for n, r in RANGES.items()}},
        "test_pairs": len(inputs.pairs) - len(pairs),
    }

    @lru_cache
    def vectors(kind: Kind, pooling: str) -> NDArray[np.float32]:
        chosen = config.vectors_of(kind) | {"pooling": pooling}
        return read_vectors(inputs.store, inputs.pairs.table, kind, **chosen).x_ND

    problem = SearchProblem(
        pairs=pairs,
        fold=inner_folds(group, folds, config.seed),
        group=group,
        vectors=vectors,
        poolings={kind: found.folder.poolings for kind, found in inputs.vectors.items()},
        config=config,
        device=resolve_device(config.device),
    )
    for fold in range(folds):  # raises before anything is written
        training_labels(pairs, np.flatnonzero(problem.fold != fold))
    say(
        f"{len(pairs)} pairs in {len(distinct(group))} groups are searched on {folds} inner "
        f"folds; {record['test_pairs']} test pairs are held out"
    )
    return problem, record


def _open_folder(folder: Path, record: Mapping[str, Any]) -> None:
    """Create the folder of a sweep, or check that it belongs to this one."""
    path = folder / "sweep.json"
    sweep_partials(folder)
    if path.exists():
        before, may_change = read_json(path), MAY_CHANGE - {"epochs", "format"}
        check_same(folder, before, record, may_change=may_change, option="--sweep")
        return
    if folder.exists() and not all(map(is_partial, folder.iterdir())):
        msg = f"{folder}: is not empty and contains no sweep. Use another --sweep folder."
        raise RunMismatch(msg)
    make_folder(folder)
    write_json(path, record, sort_keys=True)
