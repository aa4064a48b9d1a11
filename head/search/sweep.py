"""``sweep``: search for a head on inner folds, the test part locked away until the end.

A sweep is a folder: ``sweep.json`` says what is searched, ``journal.log`` holds every trial (an
Optuna journal, so that any number of processes may join and a kill loses the batch in work alone),
``trials.csv`` and ``importance.png`` are written at the end, and ``final/`` is the run folder of
the winner, refitted as an ensemble and scored on the test part, once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import warnings
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from abag import AbagError, cache_dir
from abag.core.device import resolve_device
from abag.core.files import is_partial, write_json
from abag.core.messages import reporting
from abag.core.options import BadOption, flag
from abag.embed.sequences.pairs import read_pairs
from abag.embed.store.store import open_store
from abag.head.data.labels import label_pairs, report_counts
from abag.head.data.partition import make_splits
from abag.head.data.splits import BadSplit
from abag.head.data.vectors import read_vectors
from abag.head.evaluation.metrics import METRICS
from abag.head.fit import (
    describe_inputs,
    fit,
    torch_switches,
)
from abag.head.model.config import MAY_CHANGE, FitConfig, RunMismatch, check_same
from abag.head.search.options import CHOSEN_BY_SWEEP, SweepOptions
from abag.head.search.search import (
    LOGARITHMIC,
    RANGES,
    SHAPES,
    SHARED,
    Problem,
    best_value,
    fit_options,
    inner_folds,
    score_batch,
    unlocked,
)
from abag.head.search.trials import describe_winner, summarise_trials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial

    from abag.embed.sequences.chains import Kind
    from abag.head.data.labels import LabelledPairs
    from abag.head.data.splits import Split

TRIALS = 50
AT_ONCE = 8
"""Trials a batch."""
RANDOM_TRIALS = 16
"""Trials before the sampler draws on earlier ones."""
SPARED_TRIALS = 8
"""Complete trials before a bad one is stopped early."""
STUDY, OWNER = "abag", "process"
STALE_S, UNOWNED_S = 86_400, 60


class OptunaMissing(AbagError):
    """The extra that a sweep needs is not installed."""


class NoTrials(AbagError):
    """A final was asked for and no trial is complete."""


class SweepClosed(AbagError):
    """The test part has been scored: going on would choose with that knowledge."""


def sweep(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    folder: Path | str,
    *,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Search for the head that predicts new groups best, without looking at the test part.

    Parameters
    ----------
    table : path or DataFrame
        Pairs with a measured affinity.
    store : path
        Holds a vector for every sequence of the table.
    folder : path
        The sweep's; made if it is not there. The same call goes on where it was, and several
        processes may work in it at once.
    say : callable, optional
        Takes each message; by default they go to stderr.
    progress : bool
        Whether to draw a bar on stderr.
    **options
        Fields of `SweepOptions`, and of `FitConfig` those that are not searched.

    Returns
    -------
    dict
        The keys of ``abag sweep --json``.

    Raises
    ------
    AbagError
        In one line, before anything is written if an input is at fault.
    """
    _require_optuna()
    folder, say = Path(folder), say or _to_stderr
    chosen, options = SweepOptions.take(options)
    config = _config(options)
    pairs = label_pairs(read_pairs(table, config), config)
    with reporting(say):
        report_counts(pairs)
    config, split = _outer_split(pairs, config, say)
    problem, record = _pose(pairs, split, store, config, chosen.folds, say)
    wanted = chosen.trials or (0 if chosen.final else TRIALS)
    if not wanted and not (folder / "sweep.json").exists():
        raise _no_winner(folder)
    closed = (folder / "final" / "summary.json").exists()
    _open_folder(folder, record)
    with _quiet_optuna():
        study = _open_study(folder, config.select)
        _free_the_dead(study)
        if _taken(study) >= wanted:
            say(f"{folder}: nothing to search, {_taken(study)} trials are there")
        elif closed:
            msg = (
                f"{folder / 'final'}: has scored the test part; more trials would be chosen with "
                "that knowledge. Start another --sweep folder."
            )
            raise SweepClosed(msg)
        else:
            _search(study, problem, wanted, bar=progress)
        summary = summarise_trials(folder, study, config.select)
    if "best" in summary:
        say(f"{folder}: {describe_winner(summary)}")
    if chosen.final:
        if "best" not in summary:
            raise _no_winner(folder)
        winner = {**options, "split": config.split, **fit_options(summary["best"]["params"])}
        summary["final"] = fit(
            table,
            store,
            folder / "final",
            say=say,
            progress=progress,
            members=chosen.members,
            **winner,
        )
    return summary


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def _no_winner(folder: Path) -> NoTrials:
    return NoTrials(
        f"{folder}: no trial is complete, so there is no winner to refit. Run the sweep without "
        "--final first."
    )


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        msg = "abag sweep: needs Optuna, which is not installed. Run: pip install 'abag[sweep]'"
        raise OptunaMissing(msg) from error


def _config(options: dict[str, Any]) -> FitConfig:
    """Check the options that are not searched."""
    given = sorted(options.keys() & CHOSEN_BY_SWEEP)
    if given:
        msg = (
            f"{flag(given[0])}: is not an option of a sweep, which searches {', '.join(RANGES)}, "
            "shape, loss and poolings on inner folds. Leave it out."
        )
        raise BadOption(msg)
    return FitConfig.from_keywords(options, "sweep")


def _outer_split(
    pairs: LabelledPairs, config: FitConfig, say: Callable[[str], None]
) -> tuple[FitConfig, Split]:
    """Lock one test part away, where a fit might take folds; return the options that repeat it."""
    splits = make_splits(pairs, config, cache=cache_dir() / "clusters")
    if len(splits) > 1 and config.split == "auto":
        name = splits[0].description["split"]
        say(f"split auto: {splits[0].description['why']}; a sweep locks one of them away")
        return _outer_split(pairs, replace(config, split=name), say)
    if len(splits) > 1:
        msg = f"--split {config.split}: gives {len(splits)} folds; a sweep locks one test part away. Give a split of one fold."  # noqa: E501
        raise BadSplit(msg)
    return config, splits[0]


def _pose(
    pairs: LabelledPairs,
    split: Split,
    store: Path | str,
    config: FitConfig,
    folds: int,
    say: Callable[[str], None],
) -> tuple[Problem, dict[str, Any]]:
    """Set the search up: its problem, and what must be the same when it goes on."""
    opened = open_store(store)
    antibody, antigen = (
        read_vectors(opened, pairs.table, kind, **config.vectors_of(kind))
        for kind in ("antibody", "antigen")
    )
    record = describe_inputs(config, opened, pairs, antibody, antigen)
    own, group = unlocked(pairs, split)
    record |= {
        "inner_folds": folds,
        "space": {"shapes": list(SHAPES), "ranges": {n: list(r) for n, r in RANGES.items()}},
        "test_pairs": len(pairs) - len(own),
    }

    @lru_cache
    def vectors(kind: Kind, pooling: str) -> NDArray[np.float32]:
        chosen: dict[str, Any] = {f"{kind}_pooling": pooling}
        return read_vectors(
            opened, pairs.table, kind, **replace(config, **chosen).vectors_of(kind)
        ).x_ND

    problem = Problem(
        pairs=own,
        fold=inner_folds(group, folds, config.seed),
        vectors=vectors,
        poolings={"antibody": antibody.folder.poolings, "antigen": antigen.folder.poolings},
        config=config,
        device=resolve_device(config.device),
    )
    say(
        f"{len(own)} pairs in {len(np.unique(group))} groups are searched on {folds} inner folds; "
        f"{record['test_pairs']} pairs are locked away"
    )
    return problem, record


def _open_folder(folder: Path, record: dict[str, Any]) -> None:
    """Make the sweep's folder, or check that it is this sweep's."""
    path = folder / "sweep.json"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        check_same(folder, before, record, may_change=MAY_CHANGE - {"epochs"}, option="--sweep")
        return
    if folder.exists() and not all(map(is_partial, folder.iterdir())):
        msg = f"{folder}: is not empty and holds no sweep. Give another --sweep folder."
        raise RunMismatch(msg)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, record, sort_keys=True)


# ---- trials --------------------------------------------------------------------------------------


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep Optuna's own lines and its notes on young interfaces to itself."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _open_study(folder: Path, select: str) -> Study:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=SPARED_TRIALS)
    if storage.get_all_studies():
        return optuna.load_study(storage=storage, study_name=STUDY, pruner=pruner)
    return optuna.create_study(
        storage=storage,
        study_name=STUDY,
        load_if_exists=True,  # another process may be the first
        direction="minimize" if METRICS[select].lower_is_better else "maximize",
        pruner=pruner,
    )


def _free_the_dead(study: Study) -> None:
    """Give up the trials of processes that are gone: of this host, or silent for a day."""
    for trial in study.get_trials(deepcopy=False, states=[_state("RUNNING")]):
        host, _, pid = trial.user_attrs.get(OWNER, "").partition(":")
        dead = host == socket.gethostname() and not _is_alive(int(pid))
        age_s = (datetime.now() - (trial.datetime_start or datetime.now())).total_seconds()
        # Without an owner it was killed in the instant before it could say whose it was.
        if dead or age_s > (STALE_S if host else UNOWNED_S):
            study.tell(trial.number, state=_state("FAIL"), skip_if_finished=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _taken(study: Study) -> int:
    """Count the trials that are finished or in work somewhere; a killed one is neither."""
    return sum(t.state.name != "FAIL" for t in study.get_trials(deepcopy=False))


def _search(study: Study, problem: Problem, wanted: int, *, bar: bool) -> None:
    """Score batches until there are as many trials as wanted."""
    drawn = tqdm(total=wanted, initial=_taken(study), desc="trials", disable=not bar)
    with drawn, torch_switches(problem.device, problem.config):
        while (left := wanted - _taken(study)) > 0:
            batch = _ask(study, problem, min(AT_ONCE, left))
            try:
                _score_and_tell(study, problem, batch)
            except BaseException:
                for trial in batch:
                    study.tell(trial, state=_state("FAIL"), skip_if_finished=True)
                raise
            drawn.update(len(batch))
            drawn.set_postfix(best=_best_so_far(study))


def _state(name: str) -> Any:  # noqa: ANN401 - optuna is imported where it is used
    from optuna.trial import TrialState

    return TrialState[name]


def _best_so_far(study: Study) -> str:
    done = study.get_trials(deepcopy=False, states=[_state("COMPLETE")])
    return f"{study.best_value:.3f}" if done else "-"


def _ask(study: Study, problem: Problem, count: int) -> list[Trial]:
    """Have a batch proposed: the first trial freely, the others of its shape."""
    from optuna.samplers import PartialFixedSampler, TPESampler

    # From the seed and how far the sweep is: neither a rerun nor a second process repeats a draw.
    seed = np.random.SeedSequence([problem.config.seed, len(study.get_trials(deepcopy=False))])
    sampler = TPESampler(
        seed=int(seed.generate_state(1)[0]), n_startup_trials=RANDOM_TRIALS, constant_liar=True
    )
    space = _distributions(problem)
    study.sampler = sampler
    batch = [_owned(study.ask(space))]
    shared = {name: batch[0].params[name] for name in SHARED}
    study.sampler = PartialFixedSampler(shared, sampler)
    return batch + [_owned(study.ask(space)) for _ in range(count - 1)]


def _owned(trial: Trial) -> Trial:
    trial.set_user_attr(OWNER, f"{socket.gethostname()}:{os.getpid()}")
    return trial


def _distributions(problem: Problem) -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    return {
        **{name: CategoricalDistribution(each) for name, each in problem.choices().items()},
        **{
            name: FloatDistribution(low, high, log=name in LOGARITHMIC)
            for name, (low, high) in RANGES.items()
        },
    }


def _score_and_tell(study: Study, problem: Problem, batch: Sequence[Trial]) -> None:
    epochs, pruned = problem.config.filled().epochs, set()

    def keep(trial: int, epoch: int, value: float | None) -> bool:
        if value is None or epoch == epochs:
            return True
        batch[trial].report(value, epoch)
        if batch[trial].should_prune():
            pruned.add(trial)
        return trial not in pruned

    found = score_batch(problem, [trial.params for trial in batch], keep)
    for k, (trial, values) in enumerate(zip(batch, found, strict=True)):
        best = best_value(problem.config.select, values)
        # No value at all: the metric is not defined there, and the trial cannot win.
        if k in pruned or best is None:
            study.tell(trial, state=_state("PRUNED"))
        else:
            study.tell(trial, best)
