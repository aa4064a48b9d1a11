"""``fit``: a table and a store in, a run folder out.

The table is read and split before torch is imported, so that errors in it are reported at once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abag.core.messages import reporting, say, stage, whole_bar
from abag.head.models.config import FitConfig
from abag.head.runs.run_folder import describe_inputs, finished_summary, read_inputs, split_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from abag.head.runs.summary import RunSummary

READING_SHARE, CLUSTERS_SHARE = 0.03, 0.07
"""Shares of the time of a fit, for the time left that the progress bar shows."""


def fit(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    run: Path | str,
    *,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    verbose: bool = False,
    report: bool = True,
    **options: Any,  # noqa: ANN401 - the fields of FitConfig
) -> RunSummary:
    """Train a head on the stored vectors of a table, or resume an interrupted run.

    Parameters
    ----------
    table : path or DataFrame
        Pairs with a measured affinity.
    store : path
        Has a vector for every sequence of the table.
    run : path
        Folder of the run; created if it does not exist.
    say : callable, optional
        Receives each message; by default they go to stderr.
    progress : bool
        Whether to draw a progress bar on stderr.
    verbose : bool
        Whether to report the scores of every validation.
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
    with reporting(say, bars=progress), whole_bar("fit"):
        return _fit(table, store, Path(run), config, verbose=verbose, report=report)


def _fit(
    table: Path | str | pd.DataFrame,
    store: Path | str,
    run: Path,
    config: FitConfig,
    *,
    verbose: bool,
    report: bool,
) -> RunSummary:
    stage("reading", READING_SHARE)
    inputs = read_inputs(table, store, config, run)
    config = replace(config, antibody_region=inputs.region)
    record = describe_inputs(config, inputs)
    if (finished := finished_summary(run, record)) is not None:
        say(f"{run}: nothing to do, this run has finished")
        return finished
    stage("clusters", CLUSTERS_SHARE)
    inputs, measured = split_inputs(inputs, config)
    from abag.head.fit_run import complete_run  # imports torch

    return complete_run(run, inputs, measured, record, config, verbose=verbose, report=report)
