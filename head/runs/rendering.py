"""``report``: render the pages of a finished run again, from the files in its folder.

Nothing is trained. Without the store of the run, the map of its vectors is left out and reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import pandas as pd
from jinja2 import UndefinedError

from abag import AbagError
from abag.core import messages
from abag.core.arrays import keys_from_hex
from abag.core.files import write_text
from abag.embed.sequences.chains import KINDS, Kind
from abag.embed.store.store import open_store
from abag.head.prediction.bundle import store_of_run
from abag.head.regimes.splits import KEYS, TEST
from abag.head.report.report import model_card, write_report
from abag.head.report.results import NAMES, PairNames, RunResults, RunSummary
from abag.head.runs.saved_run import NoFinishedRun, SavedRun, read_run
from abag.head.runs.summary import BASELINES, CARD, REPORT
from abag.head.training.step_log import read_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

IN_CONFIG_ONLY = ("format", "store_from_run")
"""Keys of config.json that the report does not show."""


_DAMAGED = (
    ArithmeticError, AttributeError, LookupError, TypeError, UndefinedError, ValueError,
)  # fmt: skip
"""What values of the wrong kind raise, wherever they are first used."""


class ReportSummary(TypedDict):
    """What `report` returns, and ``abag report --json`` prints."""

    run: str
    report: str
    """Path of the page."""
    model_card: str | None
    """Path of the card; None if the run has no predictor."""
    left_out: list[str]
    """Parts that need the store, which is not there."""


def report(run: Path | str, *, say: Callable[[str], None] | None = None) -> ReportSummary:
    """Write the report and the model card of a finished run again; nothing else is changed.

    Use it after an update of abag, or for a run that was fitted with ``report=False``.

    Parameters
    ----------
    run : path
        Folder of a finished run. The map of the vectors needs its store, too.
    say : callable, optional
        Receives each message; by default they go to stderr.

    Returns
    -------
    ReportSummary
        Paths of the pages, and what was left out because the store is not there.

    Raises
    ------
    NoFinishedRun
        If the run is unfinished or damaged.
    """
    folder = Path(run)
    with messages.reporting(say):
        saved = read_run(folder)
        try:
            found = _SavedResults(folder, saved)
            results = found.results()
            write_report(folder / REPORT, results, saved.summary)
            card = _write_card(folder, results, saved.summary)
        except _DAMAGED as error:
            reason = " ".join(str(error).split())
            msg = (
                f"{folder}: a file of the run is damaged ({type(error).__name__}: {reason}). Copy "
                "the whole run folder again."
            )
            raise NoFinishedRun(msg) from error
        for part in found.left_out:
            messages.say(f"{folder}: left out: {part}")
    return {
        "run": str(run),
        "report": str(folder / REPORT),
        "model_card": card,
        "left_out": found.left_out,
    }


def describe_report(summary: ReportSummary) -> str:
    """Name the files that were written, one per line."""
    lines = [f"{'report':10} {summary['report']}"]
    if summary["model_card"] is not None:
        lines.append(f"{'model card':10} {summary['model_card']}")
    return "\n".join(lines)


def _write_card(run: Path, results: RunResults, summary: RunSummary) -> str | None:
    path = run / CARD
    if not path.parent.is_dir():
        return None
    write_text(path, model_card(results.source, results.facts, summary))
    return str(path)


@dataclass(slots=True)
class _SavedResults:
    """The results of a finished run, as far as its folder has them."""

    run: Path
    saved: SavedRun
    left_out: list[str] = field(default_factory=list)

    def results(self) -> RunResults:
        """Return what the report is drawn from."""
        saved, (antibody_ND, antigen_ND) = self.saved, self._vectors()
        log = self.run / "metrics.jsonl"
        frame = saved.frame
        columns = {"row": frame["row"]} | {role: frame[role] for role in NAMES if role in frame}
        return RunResults(
            title=self.run.resolve().name,
            facts={n: v for n, v in saved.config.items() if n not in IN_CONFIG_ONLY},
            source=str(saved.summary["data"]["source"]),
            pairs=saved.pairs,
            names=PairNames(columns, saved.pairs.antigen, sorted(set(frame["antigen_key"]))),
            regimes=saved.regimes,
            predicted=saved.predicted,
            sigma=saved.sigma,
            baselines=self._baselines(),
            log=read_lines(log) if log.exists() else [],
            antibody_ND=antibody_ND,
            antigen_ND=antigen_ND,
            learning_curve=saved.summary.get("learning_curve", [])[:-1],
        )

    def _baselines(self) -> list[dict[str, NDArray[np.float64]]]:
        """Read what the baselines predict for the test rows of each fold."""
        try:
            frame = pd.read_parquet(self.run / BASELINES)
        except OSError as error:  # pyarrow's for some damage; others are of the disk
            msg = f"{BASELINES} cannot be read: {error}"
            raise ValueError(msg) from error
        keys, found = [*KEYS, "fold"], []
        names = [str(name) for name in frame.columns if name not in keys]
        for split in self.saved.splits:
            rows = split.rows(TEST)
            own = frame[frame["fold"] == split.fold].reset_index(drop=True)
            if not own[KEYS].equals(self.saved.frame.loc[rows, KEYS].reset_index(drop=True)):
                msg = f"{BASELINES} and predictions.parquet belong to different runs"
                raise ValueError(msg)
            values = {name: np.full(len(self.saved.frame), np.nan) for name in names}
            for name in names:
                values[name][rows] = own[name].to_numpy(np.float64)
            found.append(values)
        return found

    def _vectors(self) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Read the vectors of the unique antibodies and antigens, if the store is there."""
        store = store_of_run(self.run)
        if store is None:
            self.left_out.append("the map of the vectors: the store of the run is not there")
            return None, None
        try:
            antibody, antigen = (self._read_kind(store, kind) for kind in KINDS)
        except AbagError as error:
            self.left_out.append(f"the map of the vectors ({error})")
            return None, None
        return antibody, antigen

    def _read_kind(self, store: Path, kind: Kind) -> NDArray[np.float32]:
        config = self.saved.config
        keys = sorted(set(self.saved.frame[f"{kind}_key"]))
        folder = open_store(store).folder(kind, config[f"{kind}_fingerprint"])
        return folder.read(keys_from_hex(keys), config[f"{kind}_pooling"])
