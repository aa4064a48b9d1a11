"""``sweep``: hyperparameter search on inner folds, with the test part held back until the end.

A sweep is a folder. ``sweep.json`` records what is searched, ``journal.log`` holds every trial (an
Optuna journal: several processes can share it, and trials that were stopped are continued),
``trials.csv`` is written at the end, and ``final/`` is the run folder of the winner, refitted as an
ensemble and scored once on the test part.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
import pandas as pd

from abag.core.arrays import distinct
from abag.core.cache import cache_dir
from abag.core.device import resolve_device
from abag.core.errors import MissingPackage, OptionError, RunError, SplitError
from abag.core.files import (
    is_partial,
    make_folder,
    only_writer,
    read_json,
    replacing,
    sweep_partials,
    write_json,
)
from abag.core.messages import align, counted, reporting, say
from abag.core.options import flag
from abag.head.data.labels import training_labels
from abag.head.evaluation.metrics import find_metric
from abag.head.fit import fit
from abag.head.inputs import describe_inputs, read_inputs
from abag.head.models.config import MAY_CHANGE, FitConfig, check_same, is_used
from abag.head.regimes.clusters import PairGroups
from abag.head.regimes.folds import make_splits, strictest_split
from abag.head.regimes.splits import split_frame
from abag.head.runs.run_folder import read_config
from abag.head.search.search import (
    BATCH_PARAMETERS,
    RANGES,
    SHAPES,
    SearchProblem,
    fit_options,
    inner_folds,
    used_parameters,
    without_test_part,
)
from abag.head.search.sweep_options import CHOSEN_BY_SWEEP, SweepOptions, refusal
from abag.head.search.trials import (
    count_finished,
    naming_damage,
    open_study,
    quiet_optuna,
    run_trials,
)

if TYPE_CHECKING:
    from optuna.study import Study

    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs
    from abag.head.inputs import RunInputs
    from abag.head.regimes.splits import Split
    from abag.head.runs.run_folder import RunSummary

SWEEP_FORMAT = "abag-sweep 1"
TRIALS = 50
"""Trials of a new sweep."""
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
    is_closed = (folder / "final" / "summary.json").exists()
    _open_folder(folder, record)
    with quiet_optuna():
        journal = folder / "journal.log"
        with naming_damage(journal):
            study = open_study(journal, config.select)
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
        with naming_damage(journal):
            summary = _summarise_trials(folder, study, config.select)
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
    ranges = {name: list(limits) for name, limits in RANGES.items()}
    record = describe_inputs(config, inputs) | {
        "format": SWEEP_FORMAT,
        "inner_folds": folds,
        "space": {"shapes": list(SHAPES), "ranges": ranges},
        "test_pairs": len(inputs.pairs) - len(pairs),
    }
    poolings: dict[Kind, tuple[str, ...]] = {}
    for kind, vectors in inputs.vectors.items():
        is_fixed = getattr(config, f"{kind}_vectors") is not None
        is_chosen = vectors.views and not is_fixed
        poolings[kind] = vectors.folder.vector_poolings if is_chosen else ("mean",)
    antibody_widths, antigen_widths = (vectors.widths for vectors in inputs.vectors.values())
    has_several_views = len(antibody_widths) + len(antigen_widths) > 2
    problem = SearchProblem(
        pairs=pairs,
        fold=inner_folds(group, folds, config.seed),
        group=group,
        store=inputs.store,
        poolings=poolings,
        views=(antibody_widths, antigen_widths) if has_several_views else None,
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
        # trials of other epochs cannot be compared
        may_change = MAY_CHANGE - {"epochs", "format"}
        check_same(folder, before, record, may_change=may_change, option="--sweep")
        return
    if folder.exists() and not all(map(is_partial, folder.iterdir())):
        msg = f"{folder}: is not empty and contains no sweep. Use another folder."
        raise RunError(msg)
    make_folder(folder)
    write_json(path, record, sort_keys=True)


def _summarise_trials(folder: Path, study: Study, select: str) -> SweepSummary:
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
    sign = 1 if find_metric(select).lower_is_better else -1
    ranked = sorted(complete, key=lambda trial: (sign * trial["value"], trial["trial"]))
    summary: SweepSummary = {
        "sweep": str(folder),
        "select": select,
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
