"""What commands that predict have in common about the tables that they read and write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from abag.core.errors import OutputError, PredictionError
from abag.core.files import why_not_writable
from abag.core.messages import bar, say
from abag.embed.tables.chains import KINDS
from abag.embed.tables.formats import bare_suffix
from abag.embed.tables.layout import one_table, tables_of
from abag.embed.tables.notes import SkippedRows, describe_counts
from abag.embed.tables.pairs import check_chunks
from abag.embed.tables.table import OneTable, TableLike
from abag.embed.tables.table_writer import check_writable
from abag.head.labels.features import FeatureCells, cells_of_run, features_of, joined_cells
from abag.head.labels.headers import DIGITS, OWN_SCORE
from abag.head.predictor.predictor import SCORE_COLUMNS, SequenceCollector

if TYPE_CHECKING:
    from tqdm import tqdm

    from abag.embed.tables.layout import Layout
    from abag.embed.tables.options import AntibodyRegion
    from abag.embed.tables.pairs import SequenceTable
    from abag.head.labels.features import FeatureColumns, ReadFeatures
    from abag.head.predictor.options import ScoringOptions
    from abag.head.predictor.predictor import Predictor, Sequences

ROUNDED = (
    "pkd_predicted",
    "pkd_measured",
    "predicted",
    "measured",
    "sigma",
    "sigma_model",
    "difference",
    "difference_sigma",
    "score",
    OWN_SCORE,
    "expected_best",
)
PROBABILITIES = ("p_strong", "probability_above")


def row_bar(what: str, total: int | None = None) -> tqdm[Any]:
    """Show the progress over rows or pairs."""
    return bar(total=total, desc=what, unit=" rows", unit_scale=True, delay=1)


def refuse_score_columns(
    names: Iterable[object], source: str, added: Sequence[str] = SCORE_COLUMNS
) -> None:
    """Raise `PredictionError` if a table has a column that the columns to add would overwrite."""
    taken = [name for name in names if name in added]
    if taken:
        msg = (
            f"{source}: already has a column {taken[0]!r}; expected none of "
            f"{', '.join(added)}. Rename or remove it."
        )
        raise PredictionError(msg)


class PairReader:
    """Reads and checks all rows of a table of pairs in chunks, and collects their sequences."""

    def __init__(
        self,
        layout: Layout,
        added: Sequence[str],
        features: FeatureColumns | None = None,
    ) -> None:
        self._layout = layout
        self._added = added
        self._columns = features
        self.features: ReadFeatures | None = None
        """Of all rows, once all chunks are read, if the run reads any."""
        self.sequences: list[Sequences] = []
        """The antibodies and the antigens, once all chunks are read."""
        self.source = ""
        self.first_row = 1
        self.skipped = 0

    def __iter__(self) -> Iterator[SequenceTable]:
        """Yield the chunks; say at the end what was skipped and changed."""
        collected = [SequenceCollector(kind) for kind in KINDS]
        counts = Counter[str]()
        skipped = SkippedRows()
        ignored = list[str]()
        examples = dict[str, str]()
        cells = list[FeatureCells]()
        with row_bar("reading") as shown:
            for chunk in check_chunks(self._layout):
                refuse_score_columns(chunk.names, chunk.source, self._added)
                for collector, kind in zip(collected, KINDS, strict=True):
                    collector.add(chunk.sequences[kind].chains, chunk.sequences[kind].of_row)
                if self._columns is not None:
                    columns = self._columns
                    source = chunk.source
                    cells.append(cells_of_run(columns, chunk.frame, source, chunk.row_name))
                skipped.update(chunk.skipped)
                counts.update(chunk.counts)
                shown.update(len(chunk.frame))
                self.source = chunk.all_sources
                self.first_row = chunk.first_row
                ignored += [note for note in chunk.ignored if note not in ignored]
                examples = {**chunk.examples, **examples}
                yield chunk
        for note in ignored + describe_counts(counts, skipped, examples):
            say(f"{self.source}: {note}")
        self.sequences = [collector.finish() for collector in collected]
        self.skipped = len(skipped)
        if self._columns is not None:
            self.features = features_of(self._columns, joined_cells(cells), self.source)


def file_stamps(table: TableLike) -> list[tuple[Path, int, int]]:
    """Return the sizes and times of the files of a table, for `refuse_changed`."""
    if isinstance(table, pd.DataFrame):
        return []
    if isinstance(table, list | tuple):
        return [stamp for part in table for stamp in file_stamps(part)]
    path = Path(cast("Path | str", one_table(table)))
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    # a digest would read the table once more
    stats = ((file, file.stat()) for file in files if file.exists())
    return [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]


def refuse_changed(table: TableLike, before: list[tuple[Path, int, int]]) -> None:
    """Raise `PredictionError` if the files of a table, which is read twice, have changed."""
    if file_stamps(table) != before:
        msg = (
            f"{table}: the table changed while it was read; expected the same rows as at first. "
            "Run the command again."
        )
        raise PredictionError(msg)


def rounded(
    frame: pd.DataFrame, out: Path, added: Iterable[str], digits: int = DIGITS
) -> pd.DataFrame:
    """Round the columns that were `added`, if the file that they are written to is text.

    `digits` after the point are those of the quantity; Parquet has all.
    """
    if bare_suffix(out) == ".parquet":
        return frame
    digits_of = dict.fromkeys(ROUNDED, digits) | dict.fromkeys(PROBABILITIES, DIGITS)
    return frame.round({name: digits_of[name] for name in added if name in digits_of})


def region_of_run(options: ScoringOptions, predictor: Predictor) -> AntibodyRegion:
    """Return the region of the run, which must not be contradicted."""
    if options.antibody_region not in (None, predictor.antibody_region):
        msg = (
            f"antibody_region={options.antibody_region!r}: the run used "
            f"{predictor.antibody_region!r}; expected the same. Leave it out."
        )
        raise PredictionError(msg)
    return predictor.antibody_region


def antigen_of_run(options: ScoringOptions, predictor: Predictor) -> bool:
    """Return whether the run is of antibodies alone, which must not be contradicted."""
    is_alone = "antigen" not in predictor.kinds
    if is_alone and (options.antigen is not None or "antigen" in options.columns):
        option = "--column antigen=NAME" if options.antigen is None else "--antigen"
        msg = f"{option}: the run is of antibodies alone; expected no antigen. Leave it out."
        raise PredictionError(msg)
    if options.no_antigen and not is_alone:
        msg = (
            "no_antigen=True: the run was trained with antigens; expected the antigen of each "
            "pair. Leave it out."
        )
        raise PredictionError(msg)
    return is_alone


def check_table_out(
    out: Path, *more: Path, sources: Sequence[TableLike | None], force: bool
) -> None:
    """Refuse a table, and `more` files, that cannot be written, before anything is read."""
    check_writable(out)
    flat: list[OneTable | None] = []
    for source in sources:
        flat += [None] if source is None else tables_of(source)
    for path in (out, *more):
        if why := why_not_writable(path, flat, force=force):
            raise OutputError(why)


def say_random_weights(predictor: Predictor) -> None:
    """Say if scores cannot mean anything because the encoders are random."""
    for spec in (predictor.antibody, predictor.antigen):
        if spec.random_weights:
            say(f"{spec.name} has random weights: these scores have no biological meaning")
