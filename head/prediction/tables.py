"""What commands that predict have in common about the tables that they read and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

import abag
from abag import AbagError
from abag.core.files import why_not_writable
from abag.core.messages import bar, say
from abag.embed.sequences.table_writer import check_writable
from abag.embed.sequences.tables import TableLike, bare_suffix
from abag.head.prediction.predictor import SCORE_COLUMNS
from abag.head.regimes.regimes import REGIMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tqdm import tqdm

    from abag.embed.sequences.options import AntibodyRegion
    from abag.head.prediction.options import ScoringOptions
    from abag.head.prediction.predictor import Predictor, RegimeCounts

ROUNDED = (
    "pkd_predicted", "pkd_measured", "sigma", "p_strong", "difference", "difference_sigma", "score",
    "expected_best", "probability_above",
)  # fmt: skip
DIGITS = 4
"""After the point, in text files; Parquet has all."""


class CannotPredict(AbagError):
    """The scores cannot be written, or the table and the options contradict each other."""


def loaded(run: Path | str | Predictor) -> Predictor:
    """Load the predictor of a run, unless it is loaded."""
    return abag.load_predictor(run) if isinstance(run, Path | str) else run


def row_bar(what: str, total: int | None = None) -> tqdm[Any]:
    """Show the progress over rows or pairs."""
    return bar(total=total, desc=what, unit=" rows", unit_scale=True, delay=1)


def refuse_score_columns(
    names: Iterable[object], source: str, added: Sequence[str] = SCORE_COLUMNS
) -> None:
    """Raise `CannotPredict` if a table has a column that the columns to add would overwrite."""
    taken = [name for name in names if name in added]
    if taken:
        msg = (
            f"{source}: already has a column {taken[0]!r}; expected none of "
            f"{', '.join(added)}. Rename or remove it."
        )
        raise CannotPredict(msg)


def file_stamps(table: TableLike) -> list[tuple[Path, int, int]]:
    """Return the sizes and times of the files of a table, for `refuse_changed`."""
    if isinstance(table, pd.DataFrame):
        return []
    path = Path(table)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    found = ((file, file.stat()) for file in files if file.exists())
    return [(file, stat.st_size, stat.st_mtime_ns) for file, stat in found]


def refuse_changed(table: TableLike, before: list[tuple[Path, int, int]]) -> None:
    """Raise `CannotPredict` if the files of a table, which is read twice, have changed."""
    if file_stamps(table) != before:
        msg = (
            f"{table}: the table changed while it was read; expected the same rows as at first. "
            "Run the command again."
        )
        raise CannotPredict(msg)


def rounded(frame: pd.DataFrame, out: Path) -> pd.DataFrame:
    """Round what was predicted, if the file that it is written to is text."""
    if bare_suffix(out) == ".parquet":
        return frame
    return frame.round(dict.fromkeys(ROUNDED, DIGITS))


def region_of_run(options: ScoringOptions, predictor: Predictor) -> AntibodyRegion:
    """Return the region of the run, which must not be contradicted."""
    if options.antibody_region not in (None, predictor.antibody_region):
        msg = (
            f"antibody_region={options.antibody_region!r}: the run used "
            f"{predictor.antibody_region!r}; expected the same. Leave it out."
        )
        raise CannotPredict(msg)
    return predictor.antibody_region


def check_out(out: Path, sources: Sequence[TableLike | None], *, force: bool) -> None:
    """Refuse a file that exists, has no folder, or is one of the files that are read."""
    if why := why_not_writable(out, sources, force=force):
        raise CannotPredict(why)


def check_table_out(out: Path, sources: Sequence[TableLike | None], *, force: bool) -> None:
    """Refuse a table that cannot be written before anything is read."""
    check_writable(out)
    check_out(out, sources, force=force)


def say_random_weights(predictor: Predictor) -> None:
    """Say if scores cannot mean anything because the encoders are random."""
    for spec in (predictor.antibody, predictor.antigen):
        if spec.random_weights:
            say(f"{spec.name} has random weights: these scores have no biological meaning")


def say_verdicts(regimes: Mapping[str, int], verdicts: Mapping[str, str], what: str) -> None:
    """Say what the run has shown for the regimes that occur, most frequent first."""
    for name, rows in sorted(regimes.items(), key=lambda item: -item[1]):
        verdict = verdicts.get(name) or f"{REGIMES[name].words}: not measured by the run"
        say(f"{rows:,} {what}: {verdict}")


def describe_far(counts: RegimeCounts, what: str) -> str:
    """Say how many pairs are outside the training data, and why."""
    why = ", ".join(f"{rows:,} because {text}" for text, rows in counts["why_far"].items())
    return f"{counts['far_rows']:,} {what} are outside the training data ({why})"
