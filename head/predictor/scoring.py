"""``predict``: score a table of pairs, or every antibody against every antigen, into a file.

A table of pairs is read twice, in chunks: first to check every row and to collect the sequences,
then to write the rows beside their scores. In between are kept the distinct sequences, and two
indices and the scores of each pair. Antibodies of a table that is crossed come in its order, each
with all antigens in the order of theirs, and scores are written as they come. Vectors are read in
blocks. Other commands that predict read and write their tables by the same functions.

Where no model is better than the mean, the mean has all the weight: every pair of such a regime has
the same prediction but for rounding, and an order of them follows from sigma or from the order of
the rows alone.

Of `head`, only this module and `estimators.scikit` import what runs encoders. Everything else
takes a function that encodes, or scores what a store holds.

P pairs, R pairs of some, N antibodies, M antigens.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from abag.core.arrays import Floats, Ints, sort_keys
from abag.core.cores import keep_freed_memory
from abag.core.errors import OutputError, PredictionError
from abag.core.files import why_not_writable
from abag.core.messages import bar, counted, reporting, say
from abag.core.options import flag
from abag.embed.store.store import open_store
from abag.embed.tables.chains import (
    KINDS,
    LIGHT_MUTATIONS,
    MUTATION_PARTS,
    MUTATIONS,
    ROLES_OF,
    Kind,
)
from abag.embed.tables.content import is_sequence
from abag.embed.tables.formats import bare_suffix
from abag.embed.tables.layout import (
    OF_LABELS,
    Layout,
    LayoutRecord,
    one_table,
    tables_of,
)
from abag.embed.tables.options import refuse_together
from abag.embed.tables.pairs import (
    SequenceCollector,
    Sequences,
    SequenceTable,
    Tally,
    UniqueSequences,
    check_chunks,
    read_pairs,
)
from abag.embed.tables.references import read_antigen
from abag.embed.tables.table import (
    ColumnTypes,
    OneTable,
    TableLike,
    WriteFrame,
    check_writable,
    with_types,
    writing_table,
)
from abag.head.labels.features import (
    FeatureCells,
    FeatureColumns,
    ReadFeatures,
    cells_of_run,
    features_of,
)
from abag.head.labels.headers import (
    DIGITS,
    OWN_SCORE,
    PKD,
    PROBABILITY_COLUMNS,
    STRONG_COLUMN,
    Quantity,
    read_header,
)
from abag.head.predictor import folder
from abag.head.predictor.explain import Explanation, explain, refuse_unexplained
from abag.head.predictor.options import PredictOptions, ScoringOptions, is_run_alone
from abag.head.predictor.predictor import (
    SCORE_COLUMNS,
    Predictor,
    Scorer,
)
from abag.head.regimes.splits import words_of

if TYPE_CHECKING:
    from tqdm import tqdm


def load_predictor(path: Path | str) -> Predictor:
    """Load the predictor of a run.

    Parameters
    ----------
    path : path
        Folder of a run, a copy of its folder ``predictor``, or the address of a shared one:
        ``hf://user/name``, optionally with ``@`` and a branch, tag or commit.

    Returns
    -------
    Predictor
        Its ``predict(heavy, light, antigen)`` scores pairs, and encodes sequences that are not in
        the store.

    Raises
    ------
    AbagError
        If a file is missing, damaged or of another version, or the hub cannot be reached.
    """
    return folder.load_predictor(folder.predictor_folder(path), embed=_encode)


def _encode(*arguments: Any, **options: Any) -> object:  # noqa: ANN401 - see the function
    """Encode what a store lacks, with `embed_with_same_encoders`."""
    from abag.embed.embed import embed_with_same_encoders  # few predictions need it

    return embed_with_same_encoders(*arguments, **options)


def loaded(run: Path | str | Predictor) -> Predictor:
    """Load the predictor of a run, unless it is loaded."""
    return load_predictor(run) if isinstance(run, Path | str) else run


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
PROBABILITIES = ("p_strong", "probability_above", *PROBABILITY_COLUMNS)


ROUNDED_CONTRIBUTIONS = {"contribution": 6, "against_reference": 6}
PAIRS = 1 << 16
"""Most pairs scored at a time: up to 400 MB of vectors at the real widths."""
ANTIBODIES = 1 << 14
"""Most antibodies scored at a time."""
PAIR_OPTIONS = {"store", "antibody_encoder", "antigen_encoder", "device", "batch_tokens"}
"""Options of one pair, as in `Predictor.predict`."""


def row_bar(what: str, total: int | None = None) -> tqdm[Any]:
    """Show the progress over rows or pairs."""
    return bar(total=total, desc=what, unit=" rows", unit_scale=True, delay=1)


def refuse_score_columns(names: Iterable[object], source: str, added: Sequence[str]) -> None:
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
        columns: FeatureColumns | None = None,
    ) -> None:
        self._layout = layout
        self._added = added
        self._columns = columns
        self.features: ReadFeatures | None = None
        """Of all rows, once all chunks are read, if the run reads any."""
        self.sequences: list[Sequences] = []
        """The antibodies and the antigens, once all chunks are read."""
        self.source = ""
        """Name of the table, once it is read."""
        self.first_row = 1
        self.skipped = 0

    def __iter__(self) -> Iterator[SequenceTable]:
        """Yield the chunks; say at the end what was skipped and changed."""
        collected = [SequenceCollector(kind) for kind in KINDS]
        tally = Tally()
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
                tally.add(chunk)
                shown.update(len(chunk.frame))
                self.source = tally.source
                self.first_row = chunk.first_row
                yield chunk
        for note in tally.notes:
            say(f"{self.source}: {note}")
        self.sequences = [collector.finish() for collector in collected]
        self.skipped = len(tally.skipped)
        if self._columns is not None:
            numbers_RF = np.concatenate([chunk.numbers_RF for chunk in cells])
            words_RG = np.concatenate([chunk.words_RG for chunk in cells])
            joined = FeatureCells(numbers_RF, words_RG)
            self.features = features_of(self._columns, joined, self.source)


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
    frame: pd.DataFrame, out: Path | None, added: Iterable[str], digits: int = DIGITS
) -> pd.DataFrame:
    """Round the columns that were `added`, if the file that they are written to is text.

    `digits` after the point are those of the quantity; Parquet and frames in memory have all.
    """
    if has_types(out):
        return frame
    digits_of = dict.fromkeys(ROUNDED, digits) | dict.fromkeys(PROBABILITIES, DIGITS)
    return frame.round({name: digits_of[name] for name in added if name in digits_of})


@contextmanager
def writing(out: Path | None, frames: list[pd.DataFrame]) -> Iterator[WriteFrame]:
    """Yield a function that takes rows of a result: to a file, or into `frames` if `out` is None.

    Raises as `writing_table`.
    """
    if out is None:
        yield frames.append
        return
    with writing_table(out) as write:
        yield write


def in_memory(frames: Sequence[pd.DataFrame], table: TableLike) -> pd.DataFrame:
    """Join the rows of a result, whose index counts those of a table.

    Give them the index of the table, and its columns the names that are no text.
    """
    result = pd.concat(frames)
    source, *others = tables_of(table)
    if isinstance(source, pd.DataFrame) and not others:
        result.index = source.index[result.index]
        own_names = {str(name): name for name in source.columns}
        result = result.rename(columns=own_names)
    return result


def has_types(out: Path | None) -> bool:
    """Tell whether what is written has types: in memory and in Parquet, not in a text file."""
    return out is None or bare_suffix(out) == ".parquet"


T = TypeVar("T", bound=ScoringOptions)


def as_in_the_run(options: T, predictor: Predictor) -> T:
    """Complete the options by region and kinds of the run, which must not be contradicted."""
    region = predictor.layout.antibody_region
    if options.antibody_region not in (None, region):
        msg = (
            f"antibody_region={options.antibody_region!r}: the run used {region!r}; expected the "
            "same. Leave it out."
        )
        raise PredictionError(msg)
    is_alone = is_run_alone(options, predictor.kinds)
    return replace(options, antibody_region=region, no_antigen=is_alone)


def check_table_out(
    out: Path | None,
    *more: Path,
    sources: Sequence[TableLike | None],
    force: bool,
    option: str = "--out",
) -> None:
    """Refuse a table that cannot be written, before anything is read.

    `more` files are written beside it, and `sources` are what the command reads and writes, too.
    """
    if out is None:
        return
    check_writable(out)
    others: list[OneTable | None] = []
    for source in sources:
        others += [None] if source is None else tables_of(source)
    for path in (out, *more):
        if why := why_not_writable(path, others, force=force, option=option):
            raise OutputError(why)


def say_random_weights(predictor: Predictor) -> None:
    """Say if scores cannot mean anything because the encoders are random."""
    for spec in (predictor.antibody, predictor.antigen):
        if spec.random_weights:
            say(f"{spec.name} has random weights: these scores have no biological meaning")


class PairTable(PairReader):
    """The pairs of a table, in the order of its rows, which are scored."""

    def __init__(
        self,
        layout: Layout,
        added: tuple[str, ...],
        columns: FeatureColumns | None,
        *,
        typed: bool,
    ) -> None:
        """Take the layout; `typed`: columns of a text table that are numbers are yielded so."""
        super().__init__(layout, added, columns)
        self._types = _types_in_run(columns) if typed and layout.holds_texts else None
        self.rows = 0
        self._row = np.zeros(0, np.int64)
        """Rows of the table to score, from 0, (P,)."""

    def explain(self, predictor: Predictor, scorer: Scorer) -> Explanation:
        """Compute what the residues of all pairs contribute to their predictions."""
        index = [sequences.of_row for sequences in self.sequences]
        row = self._row + self.first_row
        return explain(predictor, scorer, index, row, self.features)

    def read(self) -> list[Sequences]:
        """Read and check all rows; return the antibodies and the antigens."""
        positions = []
        for chunk in self:
            positions.append(chunk.positions)
            if self._types is not None:
                self._types.add(chunk.frame, chunk.columns)
        self._row = np.concatenate(positions)
        self.rows = len(self._row)
        return self.sequences

    def score(self, scorer: Scorer) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
        """Yield rows of the table and their scores, chunk by chunk, in the order of the table."""
        antibody, antigen = (sequences.of_row for sequences in self.sequences)
        order = by_antibody(self.sequences[0], pairs=PAIRS, most=ANTIBODIES)
        parts = []
        with row_bar("scoring", self.rows) as shown:
            for rows in order:
                features = None if self.features is None else self.features.take(rows)
                scored = scorer.score(antibody[rows], antigen[rows], features=features)
                parts.append(scored.scores)
                shown.update(len(rows))
        # from the order of antibodies to that of the rows
        scores = pd.concat(parts, ignore_index=True).set_axis(np.concatenate(order)).sort_index()
        with row_bar("writing", self.rows) as shown:
            for chunk in self._layout.chunks():
                first = chunk.frame.index[:1].to_numpy()
                frame = chunk.frame
                # rows that were skipped are in the chunk, and not among those to score
                start, end = np.searchsorted(self._row, [*first, *(first + len(frame))])
                kept = frame.loc[self._row[start:end]]
                yield kept if self._types is None else self._types.apply(kept), scores[start:end]
                shown.update(end - start)


def _types_in_run(columns: FeatureColumns | None) -> ColumnTypes:
    """Return types of columns, of which those of the run's features and categories are known."""
    if columns is None:
        return ColumnTypes()
    text = [category.name for category in columns.categories]
    return ColumnTypes(text=text, numbers=[number.name for number in columns.numbers])


def by_antibody(antibodies: Sequences, *, pairs: int, most: int) -> list[NDArray[np.int64]]:
    """Divide rows into blocks of at most `pairs` rows, with at most `most` antibodies each."""
    # in the order of keys, in which shards hold them: a block reads few places of a shard
    place = np.empty(len(antibodies.keys), np.int64)
    place[sort_keys(antibodies.keys)[0]] = np.arange(len(place))
    place_of_row = place[antibodies.of_row]
    rows = np.argsort(place_of_row, kind="stable")
    ends = np.searchsorted(place_of_row[rows], np.arange(most, len(place), most))
    blocks = []
    for part in np.split(rows, ends):
        blocks += [part[start : start + pairs] for start in range(0, len(part), pairs)]
    return blocks


# ---- all pairs of two tables ---------------------------------------------------------------------


class CrossedTables:
    """All pairs of an antibody of one table and an antigen of another."""

    def __init__(
        self,
        antibodies: TableLike,
        antigens: TableLike,
        options: PredictOptions,
        added: tuple[str, ...],
        reading: LayoutRecord,
        *,
        typed: bool,
    ) -> None:
        """Take two tables; `typed` is that of `PairTable`."""
        given = {"--antigen": options.antigen is not None, "--cross": True}
        refuse_together("each defines the antigens", given)
        antibodies = one_table(antibodies)
        antigens = one_table(antigens)
        self._tables = (antibodies, antigens)
        self._options = options
        self._added = added
        self._typed = typed
        self._reading = replace(reading, antigen="")  # the antigens are those of their table
        self._same = antibodies is antigens
        if not (isinstance(antibodies, pd.DataFrame) or isinstance(antigens, pd.DataFrame)):
            # one file may be given by two paths
            self._same = Path(antibodies).samefile(antigens)
        self._columns: list[pd.DataFrame] = []
        self.rows = self.skipped = 0
        self.source = ""
        """Name of the table of antibodies, once it is read."""

    def read(self) -> list[UniqueSequences]:
        """Read and check both tables; return the antibodies and the antigens."""
        antibodies = self._read_kind(self._tables[0], "antibody")
        antigens = self._read_kind(self._tables[1], "antigen")
        self.source = antibodies.source
        self._columns = self._select_columns(antibodies, antigens)
        for table, columns in zip((antibodies, antigens), self._columns, strict=True):
            refuse_score_columns(columns, table.source, self._added)
        self.skipped = len(antibodies.skipped) + len(antigens.skipped)
        self.rows = len(antibodies.antibodies.chains) * len(antigens.antigens.chains)
        return [antibodies.antibodies, antigens.antigens]

    def _read_kind(self, table: TableLike, kind: Kind) -> SequenceTable:
        named_columns = self._options.columns.items()
        roles = {*ROLES_OF[kind], MUTATIONS[kind], LIGHT_MUTATIONS, *MUTATION_PARTS}
        columns = {role: name for role, name in named_columns if role in roles}
        columns_of_kind = tuple(column for column in self._reading.columns if column.role in roles)
        options = replace(self._options, columns=columns)
        remembered = replace(self._reading, columns=columns_of_kind)
        read = read_pairs(table, options, kinds=(kind,), as_written=True, remembered=remembered)
        read.report_notes()
        if self._typed and read.holds_texts:
            return replace(read, frame=with_types(read.frame, read.columns))
        return read

    def _select_columns(
        self, antibodies: SequenceTable, antigens: SequenceTable
    ) -> list[pd.DataFrame]:
        left = _columns_of(antibodies, "antibody")
        right = _columns_of(antigens, "antigen")
        ids = {antibodies.columns.get("id"), antigens.columns.get("id")}
        if self._same:  # a column of both, such as a constant one, is written once
            right = right.drop(columns=[name for name in right if name in left and name not in ids])
        shown = {*left, *right} if self._same else {*left}
        dropped = [name for name in antibodies.frame if name not in shown]
        if not self._same:
            dropped += [name for name in antigens.frame if name not in right]
        if dropped:
            say(
                "columns left out, because they describe a pair or differ between rows of the same "
                f"sequence: {', '.join(map(str, dropped))}"
            )
        on_both_sides = left.columns.intersection(right.columns)
        return [
            left.rename(columns={name: f"{name}_antibody" for name in on_both_sides}),
            right.rename(columns={name: f"{name}_antigen" for name in on_both_sides}),
        ]

    def score(self, scorer: Scorer) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
        """Yield the columns of pairs and their scores, block by block."""
        left, right = self._columns
        step = min(ANTIBODIES, max(1, PAIRS // len(right)))
        with row_bar("scoring", self.rows) as shown:
            for first in range(0, len(left), step):
                some = np.arange(first, min(first + step, len(left)))
                i = np.repeat(some, len(right))
                j = np.tile(np.arange(len(right)), len(some))
                antibodies = left.iloc[i].reset_index(drop=True)
                antigens = right.iloc[j].reset_index(drop=True)
                columns = pd.concat([antibodies, antigens], axis=1)
                yield columns, scorer.score(i, j).scores
                shown.update(len(i))


def _columns_of(table: SequenceTable, kind: Kind) -> pd.DataFrame:
    # what describes one pair would be wrong beside another
    foreign = OF_LABELS.union(ROLES_OF["antigen" if kind == "antibody" else "antibody"])
    excluded = {name for role, name in table.columns.items() if role in foreign}
    for name in map(str, table.frame.columns):
        header = read_header(name)
        if header.names_affinity or header.plain:
            excluded.add(name)
    mutated = (MUTATIONS[kind], LIGHT_MUTATIONS, *MUTATION_PARTS)
    naming = (*ROLES_OF[kind], *mutated, f"{kind}_name", "id")
    always = {table.columns.get(role) for role in naming}
    of_row = table.sequences[kind].of_row
    _, first = np.unique(of_row, return_index=True)
    selected = []
    for name in table.frame.columns:
        value = pd.factorize(table.frame[name], use_na_sentinel=False)[0]
        constant = (value == value[first[of_row]]).all()
        if name in always or (name not in excluded and constant):
            selected.append(name)
    return table.frame[selected].iloc[first].reset_index(drop=True)


class PredictSummary(TypedDict):
    """Result of `predict`: the keys of ``abag predict --json``."""

    out: str
    rows: int
    skipped_rows: int
    regimes: dict[str, int]
    """Rows by what is new about them."""
    far_rows: int
    """Those that no measured regime covers."""
    why_far: dict[str, int]
    """These by reason."""
    verdicts: dict[str, str]
    """What the run has shown for the regimes that occur."""
    can_rank: bool
    """False if all rows have the same prediction."""
    same_prediction: dict[str, int]
    """Rows of the regimes in which all rows have the same prediction."""
    seconds: float
    explanation: NotRequired[str]
    """Table of what residues contribute."""
    explained_share: NotRequired[dict[str, float]]
    """Weight of the parts that it explains, by the regime as which pairs were predicted."""


def describe_prediction(summary: PredictSummary) -> str:
    """Describe what was written."""
    skipped = summary["skipped_rows"]
    rest = f"; {counted(skipped, 'row')} skipped" if skipped else ""
    text = f"{counted(summary['rows'], 'row')} in {summary['out']}{rest}"
    if "explanation" in summary:
        text += f"\nwhat residues contribute: {summary['explanation']}"
    return text


def predict(
    table: TableLike,
    run: Path | str | Predictor,
    out: Path | str | None = None,
    *,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of PredictOptions
) -> PredictSummary | pd.DataFrame:
    """Score the pairs of a table: return, or write, its rows and columns beside their scores.

    Labels in the table are copied, never read. Nothing is written before every row is checked.

    Parameters
    ----------
    table : path, DataFrame or list of these
        Pairs; with ``cross``, antibodies. See `abag.embed.tables.table.read_table`.
    run : path or Predictor
        As for `abag.load_predictor`, or what it returned.
    out : path, optional
        Its suffix decides on the format; written whole or not at all. In text files, predictions
        have 4 digits after the point.
    progress : bool
        Show progress bars on stderr.
    **options
        Fields of `PredictOptions`.

    Returns
    -------
    PredictSummary or DataFrame
        Without ``out``, a table of the kind that `table` is, with its index, less invalid rows if
        ``bad_rows`` is ``skip``; pandas for files and for several tables. With ``cross``, it has a
        row per antibody and antigen.

    Raises
    ------
    AbagError
        If anything is refused; ``out`` is then unchanged.
    """
    chosen = PredictOptions.from_keywords(options, "predict")
    predictor = loaded(run)
    start_s = time.monotonic()
    out = None if out is None else Path(out)
    keep_freed_memory()
    with reporting(bars=progress):
        read = (table, chosen.cross, *chosen.sequences)
        check_table_out(out, sources=read, force=chosen.force)
        explained = None if chosen.explain is None else Path(chosen.explain)
        check_table_out(explained, sources=(*read, out), force=chosen.force, option="--explain")
        quantity = predictor.quantity
        quantity.check_strong(chosen.strong)
        chosen = _fitting(chosen, predictor)
        store = predictor.resolve_store(chosen.store)
        say_random_weights(predictor)
        strong = () if chosen.strong is None else (STRONG_COLUMN,)
        added = quantity.columns((*SCORE_COLUMNS, *strong))
        source = _open_source(table, chosen, predictor, added, typed=has_types(out))
        before = file_stamps(table)
        antibodies, antigens = source.read()
        predictor.refuse_without_chains(antibodies, source.source)
        if explained is not None:
            refuse_unexplained(predictor, source.rows)
        predictor.encode(store, antibodies, antigens, **chosen.encoding(progress))
        scorer = Scorer(predictor, open_store(store), antibodies, antigens)
        why_far = Counter[Any]()
        by_regime = PredictionsByRegime(quantity, predictor.kinds)
        frames = list[pd.DataFrame]()
        share: dict[str, float] | None = None
        with writing(out, frames) as write:
            for rows, scores in source.score(scorer):
                by_regime.add(scores)
                why_far.update(scores.loc[scores["far"], "why_far"].value_counts().to_dict())
                shown_scores = quantity.outward(with_p_strong(scores, chosen.strong, quantity))
                columns = pd.concat([rows, shown_scores.set_axis(rows.index)], axis=1)
                write(rounded(columns, out, added, predictor.digits))
            verdicts = predictor.say_verdicts(by_regime.rows, "row")
            _say_far(why_far)
            refuse_changed(table, before)
            if explained is not None and isinstance(source, PairTable):
                share = _write_explanation(source.explain(predictor, scorer), explained)
        several = max(len(antibodies.keys), len(antigens.keys)) > 1
        if several:
            for text in by_regime.describe("row"):
                say(f"{out or source.source}: {text}")
    if out is None:
        is_crossed = chosen.cross is not None
        return pd.concat(frames, ignore_index=True) if is_crossed else in_memory(frames, table)
    summary: PredictSummary = {
        "out": str(out),
        "rows": source.rows,
        "skipped_rows": source.skipped,
        "regimes": by_regime.rows,
        "far_rows": why_far.total(),
        "why_far": dict(why_far),
        "verdicts": verdicts,
        "can_rank": by_regime.can_rank or not several,
        "same_prediction": by_regime.same if several else {},
        "seconds": round(time.monotonic() - start_s, 3),
    }
    if share is not None:
        summary["explanation"] = str(explained)
        summary["explained_share"] = share
    return summary


def _open_source(
    table: TableLike,
    options: PredictOptions,
    predictor: Predictor,
    added: tuple[str, ...],
    *,
    typed: bool,
) -> PairTable | CrossedTables:
    """Lay out what is scored; nothing but the top of the files is read."""
    remembered = predictor.layout
    if options.cross is not None:
        return CrossedTables(table, options.cross, options, added, remembered, typed=typed)
    layout = Layout.of(table, options, as_written=True, remembered=remembered)
    return PairTable(layout, added, predictor.features, typed=typed)


def _write_explanation(explanation: Explanation, path: Path) -> dict[str, float] | None:
    """Write what residues contribute; return the share that is explained, None if nothing is."""
    if explanation.table.empty:
        say(f"{path}: not written, because nothing is explained")
        return None
    with writing_table(path) as write:
        write(explanation.table.round(ROUNDED_CONTRIBUTIONS))
    return explanation.share


def _fitting(options: PredictOptions, predictor: Predictor) -> PredictOptions:
    """Complete the options by those of the run; refuse those that do not fit it."""
    options = as_in_the_run(options, predictor)
    if options.cross is None:
        return options
    given = {"--explain": options.explain is not None, "--cross": True}
    refuse_together("pairs of a table are explained", given)
    if options.no_antigen:
        msg = "--cross: the run is of antibodies alone; expected no antigens. Leave it out."
        raise PredictionError(msg)
    predictor.refuse_without_features("--cross", "Predict a table of pairs that has them.")
    return options


_REASONS_SAID = 3


def _say_far(why_far: Counter[str]) -> None:
    """Say how many rows no measured regime covers, by reason."""
    if not why_far:
        return
    far = counted(why_far.total(), "row")
    common = why_far.most_common(_REASONS_SAID)
    reasons = [f"{rows:,} because {text}" for text, rows in common]
    others = why_far.total() - sum(rows for _, rows in common)
    if others:
        reasons.append(f"{others:,} for other reasons, in column 'why_far'")
    why = ", ".join(reasons)
    say(
        f"outside the training data: {far} ({why}); measure some of these pairs before you use "
        "their scores"
    )


def with_p_strong(scores: pd.DataFrame, strong: float | None, quantity: Quantity) -> pd.DataFrame:
    """Add the probability that a pair is at least as good as `strong`, if that is given."""
    if strong is None:
        return scores
    z = (scores["pkd_predicted"] - strong) / scores["sigma"]
    return scores.assign(p_strong=ndtr(quantity.sign * z))


# ---- one pair ------------------------------------------------------------------------------------


def predict_pair(
    predictor: Predictor,
    heavy: str,
    light: str,
    *,
    antigen: str | None = None,
    strong: float | None = None,
    sequences: Sequence[str] = (),
    **options: Any,  # noqa: ANN401 - the options of Predictor.predict
) -> dict[str, Any]:
    """Predict one pair, see `Predictor.predict`, and say what the run has shown for its regime.

    The antigen may be a name in the files `sequences`, or else in those of the run.
    """
    quantity = predictor.quantity
    if antigen is None and "antigen" in predictor.kinds and not predictor.layout.antigen:
        msg = "A pair needs an antigen. Add --antigen SEQUENCE."
        raise PredictionError(msg)
    if antigen and "antigen" in predictor.kinds and not is_sequence(antigen):
        antigen = read_antigen(antigen, sequences or predictor.layout.files_of_names)
    if unused := sorted(options.keys() - PAIR_OPTIONS):
        msg = f"{flag(unused[0])}: is an option of tables; one pair does not use it. Leave it out."
        raise PredictionError(msg)
    advice = "Put the pair in a table that has them, and give --out FILE."
    predictor.refuse_without_features("one pair", advice)
    strong = PredictOptions(strong=strong).strong
    quantity.check_strong(strong)
    scores = predictor.predict([heavy], [light], antigen or "", **options)
    scores = quantity.inward(scores, "pkd_predicted")
    row = with_p_strong(scores, strong, quantity).iloc[0]
    regime = str(row["regime"])
    of_prediction = quantity.columns(("pkd_predicted", "sigma"))
    shown = quantity.outward(scores).iloc[0]
    values: dict[str, Any] = {name: float(shown[name]) for name in of_prediction}
    pair = values | {
        "regime": regime,
        "far": bool(row["far"]),
        "why_far": str(row["why_far"]),
        "nearest": str(row["nearest"]),
        "distance": None if pd.isna(row["distance"]) else int(row["distance"]),
        "verdict": predictor.verdict(regime),
    }
    if not quantity.affinity:
        pair["quantity"] = quantity.to_json()
    if strong is not None:
        pair |= {"strong": strong, "p_strong": float(row["p_strong"])}
    return pair


def describe_pair(pair: dict[str, Any]) -> str:
    """Say what was predicted of one pair, and how far it can be trusted."""
    quantity = Quantity.of_json(pair["quantity"]) if "quantity" in pair else PKD
    show = quantity.show
    if quantity.classes:
        low = pair["probability_low"]
        high = pair["probability_high"]
        words = (
            f"{quantity}: {quantity.named(-1)} with a probability of {pair['probability']:.0%}; of "
            f"pairs with such a prediction, {low:.0%} to {high:.0%} are (90 % interval)"
        )
        return f"{words}\n{pair['verdict']}{_describe_place(pair)}"
    value = pair[quantity.predicted]
    sigma = pair["sigma"]
    away = ndtri(0.95) * sigma
    interval = f"{show(value - away)} to {show(value + away)} (sigma {show(sigma)})"
    if quantity.affinity:  # a predictor of pIC50 gives the pKd that this stands for
        kd_nm = float(f"{10 ** (9 - value):.3g}")
        text = f"pKd {show(value)}, Kd {kd_nm:,g} nM; 90 % interval of pKd {interval}"
    else:
        text = f"{quantity} {show(value)}; 90 % interval {interval}"
        if quantity.is_log:
            low, middle, high = (f"{10**x:.3g}" for x in (value - away, value, value + away))
            text += f"\n{replace(quantity, scale='linear')} {middle}; 90 % interval {low} to {high}"
    text += f"\n{pair['verdict']}"
    if "p_strong" in pair:
        side = "more" if quantity.sign > 0 else "less"
        threshold = f"a pKd of {pair['strong']:g}" if quantity.affinity else f"{pair['strong']:g}"
        text += f"\nProbability of {threshold} or {side}: {pair['p_strong']:.0%}."
    return text + _describe_place(pair)


def _describe_place(pair: dict[str, Any]) -> str:
    """Say which training sequences are nearest to one pair, and whether it is far from them."""
    text = ""
    if pair["nearest"]:
        away = pair["distance"]
        differs = "" if away is None else f", {counted(away, 'residue')} away"
        text += f"\nNearest in training: {pair['nearest']}{differs}."
    if pair["far"]:
        text += f"\nOutside the training data: {pair['why_far']}."
    return text


# ---- equal predictions ---------------------------------------------------------------------------


NEGLIGIBLE = 0.01
"""Share of sigma below which a range of predictions tells nothing."""
ROUNDING = 2e-5
"""Share of a pKd of 5 or more that its rounding to 4 digits after the point changes at most."""
LEAST_EQUAL = 10
"""Pairs of a regime that must have the same prediction: of fewer this may be chance."""
UNRANKED = "the run cannot rank them"
"""End of a sentence about pairs with the same prediction."""


def is_negligible(low: Any, high: Any, sigma: Any) -> Any:  # noqa: ANN401 - numbers or columns
    """Return whether predictions between two values are the same; `sigma` is typical of them."""
    size = np.maximum(abs(low), abs(high))
    return high - low <= np.maximum(NEGLIGIBLE * sigma, ROUNDING * size)


def equal_groups(mean: Floats, sigma: Floats, groupings: Sequence[Ints] = ()) -> Ints:
    """Number the groups of pairs that have the same prediction, (R,); -1 is in none.

    All pairs are one group, or else those of a group of a grouping, (R,) each.
    """
    if not len(mean) or is_negligible(mean.min(), mean.max(), float(np.median(sigma))):
        return np.zeros(len(mean), np.int64)
    number = np.full(len(mean), -1)
    for grouping in groupings:
        ranges = _ranges(mean, sigma, grouping)
        same = ranges.index[_hold_one_value(ranges)]
        rows = np.flatnonzero((number < 0) & np.isin(grouping, same))
        _, number_of_same = np.unique(grouping[rows], return_inverse=True)
        number[rows] = number.max(initial=-1) + 1 + number_of_same
    return number


def _ranges(
    mean: Floats | pd.Series, sigma: Floats | pd.Series, group: Ints | pd.Series
) -> pd.DataFrame:
    """Return the rows of each group, the range of their predictions and the sum of their sigmas."""
    values = pd.DataFrame({"mean": mean, "sigma": sigma})
    return values.groupby(group, observed=True).agg(
        rows=("sigma", "size"), low=("mean", "min"), high=("mean", "max"), sigma=("sigma", "sum")
    )


def _hold_one_value(ranges: pd.DataFrame) -> pd.Series:
    """Return which groups are of enough rows, all with the same prediction."""
    sigma = ranges["sigma"] / ranges["rows"]
    is_one: pd.Series = is_negligible(ranges["low"], ranges["high"], sigma)
    return is_one & (ranges["rows"] >= LEAST_EQUAL)


def _count_rows(ranges: pd.DataFrame) -> dict[str, int]:
    return {str(name): int(rows) for name, rows in ranges["rows"].items()}


class PredictionsByRegime:
    """Count rows by regime, and find those that all have the same prediction.

    Scores come in parts.
    """

    def __init__(self, quantity: Quantity, kinds: Collection[Kind]) -> None:
        self._quantity = quantity
        self._kinds = kinds
        self._parts: list[pd.DataFrame] = []

    def add(self, scores: pd.DataFrame) -> None:
        """Add rows with ``regime``, ``pkd_predicted`` and ``sigma``."""
        ranges = _ranges(scores["pkd_predicted"], scores["sigma"], scores["regime"])
        self._parts.append(ranges.rename(index=str))

    @property
    def _ranges(self) -> pd.DataFrame:
        """The range of predictions, the rows and the sum of their sigmas, by regime."""
        of_parts = pd.concat(self._parts).groupby(level=0, sort=False)
        return of_parts.agg({"rows": "sum", "low": "min", "high": "max", "sigma": "sum"})

    @property
    def can_rank(self) -> bool:
        """Return whether any two rows have different predictions, or there is only one."""
        ranges = self._ranges
        rows = ranges["rows"].sum()
        sigma = ranges["sigma"].sum() / rows
        is_one = is_negligible(ranges["low"].min(), ranges["high"].max(), sigma)
        return bool(rows < 2 or not is_one)

    @property
    def rows(self) -> dict[str, int]:
        """Count the rows of each regime."""
        return _count_rows(self._ranges)

    @property
    def same(self) -> dict[str, int]:
        """Count the rows of the regimes in which no two rows have different predictions."""
        ranges = self._ranges
        return _count_rows(ranges[_hold_one_value(ranges)] if self.can_rank else ranges)

    def describe(self, noun: str) -> list[str]:
        """Say of which rows, called `noun`, the predictions are the same."""
        ranges = self._ranges
        if not self.can_rank:
            rows = counted(int(ranges["rows"].sum()), noun)
            value = self._shown(ranges["low"].min())
            return [f"all {rows} have the same prediction, {value}: {UNRANKED}"]
        lines = []
        for name, n_rows in self.same.items():
            rows = f"{counted(n_rows, noun)} ({words_of(name, self._kinds)})"
            value = self._shown(ranges["low"][name])
            lines.append(f"{rows} have the same prediction, {value}: {UNRANKED}")
        return lines

    def _shown(self, value: float) -> str:
        name = "pKd" if self._quantity.affinity else self._quantity
        return f"{name} {self._quantity.show(value)}"
