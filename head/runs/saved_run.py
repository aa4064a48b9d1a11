"""A finished run read back from its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.core.arrays import Floats, Ints
from abag.core.files import FileDamaged, why_unreadable
from abag.embed.sequences.chains import KINDS
from abag.head.evaluation.regime_scores import TestedPairs
from abag.head.regimes.splits import KEYS
from abag.head.runs.run_folder import read_config
from abag.head.runs.summary import read_summary

if TYPE_CHECKING:
    from abag.head.runs.summary import RunSummary


class NoFinishedRun(AbagError):
    """A folder does not contain a finished run, or it is damaged."""


@dataclass(frozen=True, slots=True)
class SavedPairs:
    """The P pairs of a run, in the order of their keys; all of shape (P,)."""

    pkd: Floats
    censored: NDArray[np.int8]
    """See `abag.head.evaluation.metrics.score`."""
    antibody: Ints
    """Antibodies and antigens are numbered in the order of their keys."""
    antigen: Ints
    antigen_cluster: Ints
    antibody_cluster: Ints | None
    """None if the antibodies were not clustered."""

    @classmethod
    def of(cls, frame: pd.DataFrame) -> SavedPairs:
        """Take the rows of ``pairs.parquet``."""
        antibody, antigen = (pd.factorize(frame[f"{kind}_key"], sort=True)[0] for kind in KINDS)
        of_antibodies = frame.get("antibody_cluster")
        return cls(
            frame["pkd"].to_numpy(np.float64),
            frame["censored"].to_numpy(np.int8),
            antibody.astype(np.int64),
            antigen.astype(np.int64),
            frame["antigen_cluster"].to_numpy(np.int64),
            None if of_antibodies is None else of_antibodies.to_numpy(np.int64),
        )


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The contents of a finished run's folder."""

    run: Path
    config: Mapping[str, Any]
    summary: RunSummary
    frame: pd.DataFrame
    """Rows of ``pairs.parquet``, (P,)."""
    pairs: SavedPairs
    tested: pd.DataFrame
    """Rows of ``predictions.parquet``: the test pairs of each fold of each regime."""

    def regimes(self) -> Iterator[tuple[Mapping[str, Any], pd.DataFrame, TestedPairs]]:
        """Yield the summary of each regime, and its exact test rows in two forms."""
        for one in self.summary["regimes"]:
            rows = self.tested[
                (self.tested["regime"] == one["regime"]) & (self.tested["censored"] == 0)
            ]
            yield one, rows, self.tested_pairs(rows)

    def tested_pairs(self, rows: pd.DataFrame) -> TestedPairs:
        """Return rows of `tested` as what is scored."""
        pair = rows["pair"].to_numpy(np.int64)
        groups = [rows[name].to_numpy(np.int64) for name in ("group", "second_group")]
        return TestedPairs(
            pair,
            self.pairs.pkd[pair],
            rows["fold"].to_numpy(np.int64),
            self.pairs.antigen[pair],
            groups[:1] if np.array_equal(groups[0], groups[1]) else groups,
        )


def read_run(run: Path) -> SavedRun:
    """Read the folder of a finished run.

    Raises
    ------
    NoFinishedRun
        If a file is missing or damaged, or the files belong to different runs, or to a run of
        another version of abag.
    """
    with naming_damage(run):
        return read_tables(run, read_config(run), read_summary(run))


def read_tables(run: Path, config: Mapping[str, Any], summary: RunSummary) -> SavedRun:
    """Read the tables of a run, whose summary may not be written yet."""
    frame = pd.read_parquet(run / "pairs.parquet")
    tested = pd.read_parquet(run / "predictions.parquet")
    labels = [*KEYS, "pkd", "censored"]
    same = frame[labels].iloc[tested["pair"]].reset_index(drop=True)
    if not same.equals(tested[labels]):
        msg = f"{run}: predictions.parquet and pairs.parquet belong to different runs"
        raise ValueError(msg)
    return SavedRun(run, config, summary, frame, SavedPairs.of(frame), tested)


@contextmanager
def naming_damage(run: Path) -> Iterator[None]:
    """Raise `NoFinishedRun`, in one line, for what missing and damaged files of a run raise."""
    try:
        yield
    except FileDamaged as error:
        raise NoFinishedRun(str(error)) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = (
            f"{run}: not a finished run ({why_unreadable(run, error)}). Check the path, or run "
            "abag fit on it until it ends."
        )
        raise NoFinishedRun(msg) from error
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = why_unreadable(run, error).rstrip(".")
        msg = f"{run}: a file of the run is damaged ({reason}). Copy the whole run folder again."
        raise NoFinishedRun(msg) from error
