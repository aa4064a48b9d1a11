"""A finished run, read back from its folder."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import Floats
from abag.core.files import FileDamaged, why_unreadable
from abag.embed.sequences.chains import KINDS
from abag.head.report.summary_file import read_summary
from abag.head.runs.run_folder import read_config
from abag.head.splits.splits import PART_NAMES, Split

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from abag.head.report.results import RunSummary


class NoFinishedRun(AbagError):
    """A folder does not contain a finished run, or it is damaged."""


@dataclass(frozen=True, slots=True)
class SavedPairs:
    """The P pairs of a run, in the order of their keys."""

    pkd: Floats
    """(P,)"""
    censored: NDArray[np.int8]
    """(P,); see `abag.head.evaluation.metrics.score`."""
    antibody: NDArray[np.int64]
    """(P,); antibodies and antigens are numbered in the order of their keys."""
    antigen: NDArray[np.int64]
    """(P,)"""
    antigen_cluster: NDArray[np.int64]
    """(P,)"""
    antibody_cluster: NDArray[np.int64] | None
    """(P,); None if the antibodies were not clustered."""

    def of(self, rows: NDArray[np.bool_]) -> SavedPairs:
        """Return some of the pairs."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, one in columns.items():
            columns[name] = None if one is None else one[rows]
        return SavedPairs(**columns)


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The contents of a finished run's folder."""

    config: Mapping[str, Any]
    summary: RunSummary
    folds: list[pd.DataFrame]
    """Rows of ``predictions.parquet``, P per fold."""
    pairs: SavedPairs
    splits: list[Split]
    predicted: list[Floats]
    """pKd of every pair by the head of each fold, (P,)."""
    sequences: pd.DataFrame
    """See `abag.head.runs.run_folder.sequence_frame`."""


def read_run(run: Path) -> SavedRun:
    """Read the folder of a finished run.

    Raises
    ------
    NoFinishedRun
        If a file is missing or damaged, or the files belong to different runs, or to a run of
        another version of abag.
    """
    try:
        config, summary = read_config(run), read_summary(run)
        frame = pd.read_parquet(run / "predictions.parquet")
        split = pd.read_parquet(run / "splits.parquet")
        sequences = pd.read_parquet(run / "sequences.parquet")
        consistent = frame[list(split.columns)].drop_duplicates(ignore_index=True).equals(split)
        folds = [rows.reset_index(drop=True) for _, rows in frame.groupby("fold", sort=True)]
        antibody, antigen = (
            pd.factorize(folds[0][f"{kind}_key"], sort=True)[0].astype(np.int64) for kind in KINDS
        )
        of_antibodies = folds[0].get("antibody_cluster")
        pairs = SavedPairs(
            folds[0]["pkd"].to_numpy(np.float64),
            folds[0]["censored"].to_numpy(np.int8),
            antibody,
            antigen,
            folds[0]["antigen_cluster"].to_numpy(np.int64),
            None if of_antibodies is None else of_antibodies.to_numpy(np.int64),
        )
        splits = [_split(summary["split"]["name"], k, rows) for k, rows in enumerate(folds)]
        predicted = [rows["pkd_predicted"].to_numpy(np.float64) for rows in folds]
    except FileDamaged as error:
        raise NoFinishedRun(str(error)) from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = why_unreadable(run, error).rstrip(".")
        msg = (
            f"{run}: not a finished run ({reason}). Check the path, or run abag fit on it until it "
            "ends."
        )
        raise NoFinishedRun(msg) from error
    if not consistent:
        msg = (
            f"{run}: predictions.parquet and splits.parquet belong to different runs; expected "
            "the same pairs in the same parts. Copy the whole run folder again."
        )
        raise NoFinishedRun(msg)
    return SavedRun(config, summary, folds, pairs, splits, predicted, sequences)


def _split(name: str, fold: int, rows: pd.DataFrame) -> Split:
    part = np.array([PART_NAMES[name] for name in rows["split"]], np.int8)
    return Split(name=name, part=part, group=rows["group"].to_numpy(np.int64), fold=fold)
