"""``runs``: the state of runs, their configurations, and whether one is better than another.

Runs are compared only if their test rows are the same pairs with the same labels, in every fold of
every regime. The one with the smallest errors is so partly by chance, if there are many.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from abag.core.errors import DamagedFile, RunError
from abag.core.files import read_json
from abag.core.messages import align
from abag.core.options import user_path
from abag.head.evaluation.scores import INDISTINGUISHABLE, compare_models
from abag.head.evaluation.verdicts import describe_regimes
from abag.head.regimes.splits import KEYS
from abag.head.runs.rounds import COLUMN_NAMES, round_cells
from abag.head.runs.run_folder import (
    NoFinishedRun,
    SavedRun,
    described,
    naming_damage,
    read_config,
    read_run,
    recorded_quantity,
    training_logs,
)

ALIVE_SECONDS = 120
"""Time without writing after which a run counts as stopped where files cannot be locked; it saves
every 30 s."""


class RunsSummary(TypedDict):
    """What `runs` returns."""

    runs: list[dict[str, Any]]
    """By score: ``run``, ``state`` (``finished``, ``starting``, ``training``, ``stopped`` or
    ``unreadable``, then with a ``reason``) and ``epochs``. A finished run has ``folds``, ``steps``,
    ``regimes``, ``quantity`` and ``rounds`` (those of `RunSummary`); another one the ``epoch`` of
    the fold that is furthest, and the seconds since its files were written, ``written_s_ago``."""
    differences: dict[str, dict[str, Any]]
    """Configuration key to run to value, where runs differ."""
    comparisons: list[dict[str, Any]]
    """A finished ``run`` beside the best run ``with`` the same test rows, and ``verdicts``, one per
    regime; or ``with`` None and the ``reason``."""


def runs(folders: Path | str | Sequence[Path | str]) -> RunsSummary:
    """Compare runs, finished or in progress; nothing is written.

    Parameters
    ----------
    folders : path or sequence of path
        Runs, or folders that contain runs at any depth.

    Raises
    ------
    RunError
        If a folder contains no run.
    """
    roots = [folders] if isinstance(folders, Path | str) else folders
    runs_of_roots = [find_runs(user_path(folder)) for folder in roots]
    paths = list(dict.fromkeys(chain.from_iterable(runs_of_roots)))
    configs = {}
    states = []
    finished = dict[str, SavedRun]()
    for path in paths:
        with suppress(OSError, DamagedFile):  # its state says it
            configs[str(path)] = read_config(path)
        state, saved = _describe_run(path)
        states.append(state)
        if saved is not None:
            finished[str(path)] = saved
    # only scores of one quantity are comparable: the quantity of the best score comes first
    place: dict[str, int] = {}
    for state in sorted(states, key=_score):
        place.setdefault(str(state.get("quantity")), len(place))
    # stable: runs without a score stay in the order of their names
    states.sort(key=lambda state: (place[str(state.get("quantity"))], _score(state)))
    return {
        "runs": states,
        "differences": _differences(configs),
        "comparisons": _compare_with_best(finished),
    }


def find_runs(folder: Path) -> list[Path]:
    """Return the runs at or below a folder, sorted by name, or raise `RunError`."""
    folders = [folder] if _is_run(folder) else sorted(_below(folder))
    if not folders:
        problem = "contains no run" if folder.is_dir() else "not a folder"
        msg = (
            f"{folder}: {problem}; expected a run folder of abag fit, or a folder of run "
            "folders. Check the path."
        )
        raise RunError(msg)
    return folders


def _below(folder: Path) -> Iterator[Path]:
    try:
        inside = [*folder.iterdir()] if folder.is_dir() else []
    except PermissionError:
        yield folder  # listed as unreadable
        return
    for inner in inside:
        if _is_run(inner):
            yield inner
        elif inner.is_dir() and not inner.is_symlink():  # links may lead in a circle
            yield from _below(inner)


def _is_run(folder: Path) -> bool:
    """Tell whether a folder is a run, or may be one that is damaged or cannot be read."""
    try:
        return str(read_json(folder / "config.json").get("format")).startswith("abag-run")
    except PermissionError:
        return True
    except OSError:
        return False
    except DamagedFile:
        return (folder / "splits.parquet").exists()


def _differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the options that differ; an option that a run lacks is None."""
    differences = {}
    configs = {run: described(config) for run, config in configs.items()}
    names = set(chain.from_iterable(configs.values()))
    for name in sorted(names - {"store_from_run"}):  # says where the run is
        values = {run: config.get(name) for run, config in configs.items()}
        texts = {json.dumps(value, sort_keys=True) for value in values.values()}
        if len(texts) > 1:
            differences[name] = values
    return differences


def _describe_run(run: Path) -> tuple[dict[str, Any], SavedRun | None]:
    try:
        with naming_damage(run):
            if not (run / "summary.json").exists():
                return read_progress(run, read_config(run)), None
            saved = read_run(run)
    except NoFinishedRun as error:
        return {"run": str(run), "state": "unreadable", "reason": str(error)}, None
    state = {
        "run": str(run),
        "state": "finished",
        "epochs": saved.summary["epochs"],
        "steps": saved.summary["steps"],
        "folds": int(saved.tested["fold"].max()) + 1,
        "regimes": saved.summary["regimes"],
        "rounds": saved.summary.get("rounds", []),
    }
    data = saved.summary["data"]
    for name in ("quantity", "better", "classes"):  # the last two not of an affinity
        if name in data:
            state[name] = data[name]
    return state, saved


def _score(state: Mapping[str, Any]) -> float:
    errors = [regime["rmse"] for regime in state.get("regimes", ())]
    return float(np.mean(errors)) if errors else np.inf


def _compare_with_best(finished: Mapping[str, SavedRun]) -> list[dict[str, Any]]:
    comparisons = list[dict[str, Any]]()
    runs_of_digest: dict[bytes, list[str]] = {}
    for run, saved in finished.items():
        rows = saved.tested[["regime", "fold", *KEYS, "pkd", "censored"]]
        hashes = pd.util.hash_pandas_object(rows, index=False)
        digest = blake2b(hashes.to_numpy().tobytes(), digest_size=16).digest()
        runs_of_digest.setdefault(digest, []).append(run)
    for comparable in runs_of_digest.values():
        best, *others = sorted(comparable, key=lambda run: _score(finished[run].summary))
        if not others and len(finished) > 1:
            reason = "no other run has the same test rows with the same labels"
            comparisons.append({"run": best, "with": None, "reason": reason})
        for run in others:
            verdicts = _compare_runs(finished[run], finished[best], run, best)
            comparisons.append({"run": run, "with": best, "verdicts": verdicts})
    return comparisons


def _compare_runs(saved: SavedRun, best: SavedRun, name: str, other: str) -> list[str]:
    verdicts = []
    regimes_of_both = zip(saved.regimes(), best.regimes(), strict=True)
    for (regime, rows, tested), (_, rows_of_best, _) in regimes_of_both:
        predicted = rows["pkd_predicted"].to_numpy(np.float64)
        reference = rows_of_best["pkd_predicted"].to_numpy(np.float64)
        verdict = compare_models(
            regime["words"], name, other, tested, predicted, reference, saved.quantity
        )
        verdicts.append(verdict)
    return verdicts


def describe_runs(summary: RunsSummary, *, verbose: bool = False) -> list[str]:
    """Format the result of `runs` as lines of text, without `verbose` with the deciding scores."""
    states = summary["runs"]
    names = _short_names([state["run"] for state in states])
    lines = [*_describe_campaigns(states, names), *_score_tables(states, names, verbose)]
    for state in states:
        if state["state"] != "finished":
            lines.append(f"{names[state['run']]}: {state['state']}, {_describe_unfinished(state)}")
    for line in _describe_comparisons(summary["comparisons"]):
        for path in sorted(names, key=len, reverse=True):
            line = line.replace(path, names[path])
        lines.append(line)
    if summary["differences"]:
        compared = [run for run in names if run in next(iter(summary["differences"].values()))]
        options = [["option", *(names[run] for run in compared)]]
        for option, values in summary["differences"].items():
            options.append([option, *(_shorten(values[run]) for run in compared)])
        lines += ["", *align(options)]
    elif len(states) > 1:
        lines += ["", "The runs have the same configuration."]
    return lines


def _describe_campaigns(states: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[str]:
    """Lay out the rounds of each campaign: those of its last run, which has all of them."""
    lines = list[str]()
    with_rounds = [state for state in states if state.get("rounds")]
    for state in with_rounds:
        rounds = state["rounds"]
        later = [state["rounds"] for state in with_rounds if len(state["rounds"]) > len(rounds)]
        if any(history[: len(rounds)] == rounds for history in later):
            continue
        lines += [
            f"{names[state['run']]}, rounds ({state['quantity']}):",
            *align([COLUMN_NAMES, *round_cells(rounds, recorded_quantity(state))]),
            "",
        ]
    return lines


def _score_tables(
    states: Sequence[Mapping[str, Any]], names: Mapping[str, str], verbose: bool
) -> list[str]:
    lines = list[str]()
    tables = dict[str, list[list[str]]]()
    quantities = {state["quantity"] for state in states if "quantity" in state}
    for state in states:
        quantity = recorded_quantity(state)
        scores = describe_regimes(state.get("regimes", ()), quantity, deciding=not verbose)
        for words, *cells in scores[1:]:
            words = words if len(quantities) < 2 else f"{words}, {quantity}"
            table = tables.setdefault(words, [["run", *scores[0][1:]]])
            table.append([names[state["run"]], *cells])
    for words, table in tables.items():
        lines += [f"{words}:", *align(table), ""]
    if tables and not verbose:
        lines += ["all scores: abag runs --verbose", ""]
    return lines


def _describe_comparisons(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what differs; where nothing does, once for all runs."""
    verdicts = []
    alone = []
    for comparison in comparisons:
        if comparison["with"]:
            verdicts += comparison["verdicts"]
        else:
            alone.append(comparison["run"])
    clear = [text for text in verdicts if INDISTINGUISHABLE not in text]
    lines = clear
    if verdicts and not clear:
        lines = ["no significant differences between runs with the same test rows (95 % intervals)"]
    elif len(clear) < len(verdicts):
        lines = [*clear, "no other significant differences (95 % intervals)"]
    if alone:
        names = ", ".join(alone)
        lines = [*lines, f"not compared, because no other run has the same test rows: {names}"]
    return lines


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """Leave out the folders that all paths share."""
    if len(paths) == 1:
        return {paths[0]: str(Path(paths[0]))}
    parents = [Path(path).parent.parts for path in paths]
    # of parts, not of text; `commonpath` refuses relative beside absolute paths
    shared = len(os.path.commonprefix(parents))  # noqa: RUF071
    return {path: str(Path(*Path(path).parts[shared:])) for path in paths}


def _describe_unfinished(state: Mapping[str, Any]) -> str:
    if state["state"] == "unreadable":
        return str(state["reason"])
    text = (
        f"epoch {state['epoch']} of {state['epochs']}, last written "
        f"{state['written_s_ago']:,.0f} s ago"
    )
    if state["state"] == "stopped":
        text += "; run abag fit again to resume"
    return text


def _shorten(value: object) -> str:
    """Write the value of an option in at most 24 characters."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


# --- runs in progress: nothing is locked; the log grows by whole lines, other files are renamed ---


def read_progress(run: Path, config: Mapping[str, Any], now: float | None = None) -> dict[str, Any]:
    """Read how far an unfinished run with this config.json has come, at the Unix time `now`."""
    logs = training_logs(run)
    epoch = max(map(_last_epoch, logs), default=0)
    files = [run / "config.json", *logs, *(run / "checkpoints").rglob("latest")]
    now = time.time() if now is None else now
    written_s_ago = now - max(map(_modified, files))
    running = _is_locked(run)
    if running is None:
        running = written_s_ago <= ALIVE_SECONDS
    state = "stopped"
    if running:
        state = "training" if epoch else "starting"
    return {
        "run": str(run),
        "state": state,
        "epoch": epoch,
        "epochs": config["epochs"],
        "written_s_ago": round(max(0.0, written_s_ago), 1),
    }


def _is_locked(run: Path) -> bool | None:
    """Tell whether a process holds the lock of `only_writer`; None where there are no locks."""
    descriptor = os.open(run, os.O_RDONLY)
    try:
        # shared: commands that only look do not take each other for writers
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # being rotated
        return 0.0


def _last_epoch(path: Path) -> int:
    """Return the epoch of the last whole line of a log; the one after it is being written."""
    _, *lines = reversed(path.read_bytes().split(b"\n"))
    try:
        return int(json.loads(lines[0])["epoch"]) if lines else 0
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        msg = f"{path}: is damaged ({lines[0][:40]!r}). Use another --run folder."
        raise DamagedFile(msg) from error
