"""The predicted pairs of a table: who they are, what was predicted, and which can be ordered.

The table is read in chunks, and twice: first sequences and numbers of all rows, later the columns
of the rows that were chosen. Pairs that are measured already are found by their sequences, not by
text. R rows, N antibodies, M antigens.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats, Ints
from abag.core.errors import AbagError, PredictionError, TableError
from abag.core.messages import counted, quoted, say
from abag.embed.tables.chains import KINDS, Chains
from abag.embed.tables.columns import refuse_absent
from abag.embed.tables.formats import cell_text
from abag.embed.tables.layout import NOTHING, FileLayout, Layout, LayoutRecord, read_top_row
from abag.embed.tables.options import TableOptions
from abag.embed.tables.pairs import Sequences, SequenceTable, read_pairs
from abag.embed.tables.table import (
    NoRows,
    Table,
    TableLike,
    read_numbers,
    read_table,
    read_texts,
    with_types,
    writing_table,
)
from abag.head.design.batches import Aim, probability_above
from abag.head.labels.column import (
    ColumnMeaning,
    LabelLayout,
    UnclearLabel,
    choose_prediction,
    decide_label,
)
from abag.head.labels.headers import (
    NO_OR_YES,
    PKD,
    PROBABILITY,
    PROBABILITY_COLUMNS,
    RANK_COLUMNS,
    USUAL_PKD,
    Quantity,
    outside,
    score_column,
    to_pkd,
)
from abag.head.labels.labelled_pairs import label_pairs
from abag.head.labels.options import LabelOptions, read_molar_mass
from abag.head.labels.values import refuse_cells
from abag.head.models.pair_vectors import Index
from abag.head.models.probit import WITHIN
from abag.head.predictor.folder import load_predictor
from abag.head.predictor.options import RankOptions, refuse_antigen
from abag.head.predictor.predictor import SAME_PREDICTION_PKD, Predictor
from abag.head.predictor.scoring import PairReader
from abag.head.runs.rounds import MEASURED, SEQUENCES, read_measured_rows, read_written_pairs
from abag.head.runs.run_folder import labels_as_in_the_run, layout_of, read_config

MEASURED_ROLES = frozenset({"pkd", "label", "censored", "affinity_type"})
"""Roles of columns that only the table of measured pairs has."""
PREDICTION_ROLES = frozenset({"prediction", "sigma"})
"""Roles of columns that only the table of predictions has."""
SITE_COLUMNS = ("chain", "position")
"""Columns of a scan that tell where a mutant differs from its parent."""
UNNAMED_ANTIGEN = 20 * "X"
"""Stands for the antigen of a table that names none; fewer of X are told to be a peptide."""
_BOOLEANS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


@dataclass(frozen=True, slots=True)
class Candidates:
    """The valid rows of a table of predictions."""

    source: str
    frame: pd.DataFrame
    """R rows: ``row`` of the table from 0, ``mean`` (predicted pKd), ``far``, and what the table
    has of ``sigma``, ``sigma_model``, ``regime`` and ``site``, the places of its mutations; of
    classes, ``hit`` and ``hit_unknown``, the probability of the class that is looked for, and the
    standard deviation of what is not known of it."""
    antibodies: Sequences
    antigens: Sequences
    first_row: int
    """Number of the first row of the table, as a spreadsheet shows it."""
    quantity: Quantity
    """What is predicted."""
    same: float = SAME_PREDICTION_PKD
    """Largest difference of two predictions of one pair that is rounding."""
    score_column: str = "score"
    """Name of the column of scores to add."""

    @property
    def mean(self) -> Floats:
        """Predicted pKd, (R,)."""
        return self.frame["mean"].to_numpy(np.float64)

    @property
    def sigma(self) -> Floats | None:
        """Standard error in pKd, (R,); None if the table has none."""
        return self.frame["sigma"].to_numpy(np.float64) if "sigma" in self.frame else None

    @property
    def explored(self) -> str:
        """Column of the standard error that a measurement can reduce: the model's own part.

        Where the table has no such part, or a model without one, it is the whole sigma.
        """
        own = self.frame.get("sigma_model")
        return "sigma" if own is None or not own.any() else "sigma_model"

    @property
    def pair(self) -> Ints:
        """A number for each row, (R,), equal for equal pairs."""
        return self.number(self.antibodies.of_row, self.antigens.of_row)

    def number(self, antibody: Index, antigen: Index) -> Ints:
        """Return a number for each pair of these antibodies and antigens, (P,) each."""
        return antibody.astype(np.int64) * len(self.antigens.chains) + antigen

    def rows_of(self, others: Candidates) -> Ints:
        """Return a row with the prediction of each row of other candidates; -1: there is none.

        Rows are of the same pairs if the tables have an antigen in common; else of the antibodies.
        """
        own = np.flatnonzero(~self.repeated())
        antibody = _find(others.antibodies.chains, self.antibodies)[others.antibodies.of_row]
        antigen_of = _find(others.antigens.chains, self.antigens)
        if (antigen_of >= 0).any():
            antigen = antigen_of[others.antigens.of_row]
            wanted = np.where(antibody < 0, -1, self.number(antibody, antigen))
            wanted[antigen < 0] = -1
            numbers = self.pair[own]
        else:
            wanted = antibody
            numbers = self.antibodies.of_row[own].astype(np.int64)
            if len(np.unique(numbers)) < len(numbers):
                msg = (
                    f"{self.source}: has several antigens per antibody, none of which is in "
                    f"{others.source}; expected one prediction per antibody, or the same pairs. "
                    "Choose the rows of one antigen."
                )
                raise PredictionError(msg)
        place = pd.Index(numbers).get_indexer(pd.Index(wanted))
        return np.where(place < 0, -1, own[place])

    def repeated(self) -> Bools:
        """Return which rows repeat the pair of an earlier row, (R,)."""
        _, first, of_row = np.unique(self.pair, return_index=True, return_inverse=True)
        first_row = first[of_row]
        row = self.frame["row"].to_numpy()
        for name in self.frame.columns.intersection(["mean", "sigma"]):
            value = self.frame[name].to_numpy()
            differ = np.flatnonzero(abs(value - value[first_row]) > self.same)
            if len(differ):
                other = differ[0]
                earlier = first_row[other]
                msg = (
                    f"{self.source}: rows {row[earlier] + self.first_row} and "
                    f"{row[other] + self.first_row} are the same pair with "
                    f"different predictions, {value[earlier]:g} and {value[other]:g}; expected "
                    "one per pair. Remove the others."
                )
                raise PredictionError(msg)
        return np.asarray(first_row != np.arange(len(first_row)))


def read_candidates(
    layout: Layout, quantity: Quantity, molar_mass_kda: float, more: Sequence[str] = ()
) -> Candidates:
    """Read sequences, predictions and flags of all rows; `more` are further columns to add."""
    score = score_column(layout.names)
    added = [score if name == "score" else name for name in RANK_COLUMNS]
    added += more
    reader = PairReader(layout, added)
    numbers = [_read_numbers(chunk, quantity, molar_mass_kda) for chunk in reader]
    frame = pd.concat(numbers, ignore_index=True)
    if quantity.affinity:
        mean = frame["mean"].to_numpy(np.float64)
        unusual = outside(mean, USUAL_PKD)
        if 2 * unusual.sum() > len(mean):
            say(
                f"{reader.source}: {unusual.sum():,} of {counted(len(mean), 'prediction')} outside "
                f"the usual range of pKd (2 to 14), such as {mean[unusual][0]:g}; the largest "
                "values are taken as the best"
            )
    antibodies, antigens = reader.sequences
    same = SAME_PREDICTION_PKD
    if not quantity.affinity:
        same *= float(frame["mean"].std(ddof=0))
    return Candidates(
        reader.source, frame, antibodies, antigens, reader.first_row, quantity, same, score
    )


def far_by_chains(candidates: Candidates, predictor: Predictor) -> Candidates:
    """Mark candidates without a chain that nearly all training antibodies have; refuse these alone.

    The chains are compared as `predict` does, in a table that may not be one of its.
    """
    antibodies = candidates.antibodies
    predictor.refuse_without_chains(antibodies, candidates.source)
    is_far_N = predictor.why_far_by_chains(antibodies) != ""
    far = candidates.frame["far"].to_numpy(np.bool_) | is_far_N[antibodies.of_row]
    return replace(candidates, frame=candidates.frame.assign(far=far))


def molar_mass_of(options: RankOptions) -> float:
    """Return the molar mass of the antibodies in kDa: as given, or as in the run."""
    config = config_of_run(options.run)
    of_run = None if config is None else config["molar_mass"]
    return read_molar_mass(options.molar_mass or of_run)


def decide_reading(
    table: TableLike, options: RankOptions, predictor: Predictor | None, of: str = ""
) -> tuple[Layout, Quantity]:
    """Decide how a table of predictions is read, and what it predicts, from its first rows.

    `of` begins the names of the options of a second property, as in ``--second-run``.
    """
    reading = NOTHING
    if predictor is not None:
        reading = predictor.layout
        if options.antibody_region is None:
            options = replace(options, antibody_region=reading.antibody_region)
    options = without_labels(options)
    decide = partial(_decide_prediction, options=options, predictor=predictor, of=of)
    layout = Layout.of(table, options, as_written=True, remembered=reading, label=decide)
    meanings: list[ColumnMeaning] = [file.label for file in layout.files]
    if len({meaning.unit for meaning in meanings}) > 1:
        listed = []
        for file, meaning in zip(layout.files, meanings, strict=True):
            listed.append(f"{meaning.column!r} of {file.source} as {meaning.unit}")
        msg = (
            f"{layout.source}: the predictions are in different units: {'; '.join(listed)}; "
            "expected one unit. Convert the columns to one, such as pKd."
        )
        raise PredictionError(msg)
    first = layout.files[0]
    options = cast("RankOptions", first.options)
    completed = with_antigen(first, options, predictor)
    if completed != options:  # no antigen, or the same for all rows
        layout = Layout.of(table, completed, as_written=True, label=decide)
    return layout, meanings[0].quantity


def _decide_prediction(
    top: Table, options: RankOptions, predictor: Predictor | None, of: str
) -> ColumnMeaning:
    """Decide which column of a table holds the predictions, and what it is read as."""
    quantity = quantity_of(top, options, predictor, of)
    if quantity.affinity:
        try:
            return choose_prediction(top)
        except UnclearLabel as error:  # its advice is for labels
            msg = (
                f"{top.source}: column {top.columns.get('prediction')!r} names an affinity, but no "
                "unit that is understood; expected predictions in pKd. Convert them, or name the "
                "column with its unit, such as 'predicted KD (nM)'."
            )
            raise PredictionError(msg) from error
    if quantity.is_binary and not top.has("prediction"):
        for name in PROBABILITY_COLUMNS:
            problem = f"{top.source}: no column {name!r}, which the run predicts"
            refuse_absent(name, top.names, problem)
        column = PROBABILITY
    else:
        column = top.column("prediction")
    return ColumnMeaning(column=column, unit="value", why="", quantity=quantity)


def quantity_of(
    first: Table, options: RankOptions, predictor: Predictor | None, of: str
) -> Quantity:
    """Return what is predicted: as the `predictor` of the run says, or the options.

    A table that `predict` or `scan` wrote for another quantity than an affinity does not say which
    values are better: it is refused without a run and without ``--better``.
    """
    better = options.better
    if predictor is not None:
        quantity = predictor.quantity
        if better not in (None, quantity.better):
            msg = (
                f"--{of}better {better}: the run predicts {quantity.description}; expected the "
                f"same. Leave --{of}better out."
            )
            raise PredictionError(msg)
        return PKD if quantity.affinity else quantity
    column = first.columns.get("prediction")
    names = {*map(str, first.names)}
    if {*PROBABILITY_COLUMNS} <= names and column is None:
        if better is None:
            say(
                f"{first.source}: column {PROBABILITY!r} is taken as the probability of what is "
                f"looked for; where it is not, as of non-binders, give --{of}run or --{of}better "
                "lower"
            )
        return Quantity(name="label", better=better or "higher", affinity=False, classes=NO_OR_YES)
    if better is None and column == "predicted" and names & {"why_far", "difference_sigma"}:
        msg = (
            f"{first.source}: column 'predicted' is of a quantity that the table does not name; "
            f"expected to know which values are better. Give --{of}run DIR, the run that made the "
            f"predictions, or --{of}better higher or lower."
        )
        raise PredictionError(msg)
    return PKD if better is None else Quantity(name="value", better=better, affinity=False)


def signed(value: float | None, sign: int) -> float | None:
    """Turn a value into one of which higher is better, or back."""
    return None if value is None else sign * value


def without_labels(options: RankOptions) -> RankOptions:
    """Leave out the columns that are of the table of measured pairs."""
    if options.measured is None:
        return options
    columns = {r: name for r, name in options.columns.items() if r not in MEASURED_ROLES}
    return replace(options, columns=columns)


def with_antigen(
    first: FileLayout, options: RankOptions, predictor: Predictor | None
) -> RankOptions:
    """Give a table that names no antigen the same one in every row, or none, as the run has."""
    if predictor is not None and "antigen" not in predictor.kinds:
        refuse_antigen(options)
        return replace(options, no_antigen=True)
    if (
        options.antigen is not None
        or options.no_antigen
        or "antigen" in {**first.columns, **first.ties}
    ):
        return options
    say(f"{first.source}: no antigen column; all rows are taken as pairs with the same antigen")
    return replace(options, antigen=UNNAMED_ANTIGEN)


def _read_numbers(chunk: SequenceTable, quantity: Quantity, molar_mass_kda: float) -> pd.DataFrame:
    """Read what `Candidates.frame` has of the rows of a chunk."""
    if quantity.is_binary and not chunk.has("prediction"):
        return _read_probabilities(chunk, quantity)
    (meaning,) = chunk.labels
    unit = meaning.unit
    column = chunk.columns["pkd"]
    expected = {"pkd": "a pKd", "value": "a finite number"}.get(unit, f"a value in {unit}")
    high = np.inf
    if quantity.classes:
        high = len(quantity.classes) - 1
        expected = (
            "a probability from 0 to 1" if quantity.is_binary else f"a number from 0 to {high}"
        )
    low = 0.0 if quantity.classes else -np.inf
    value = _finite(chunk, column, "prediction", expected, low=low, high=high)
    mean = to_pkd(value, unit, molar_mass_kda)
    predictions = pd.DataFrame({"row": chunk.positions, "mean": mean})
    if quantity.is_binary:
        predictions["hit"] = mean if quantity.sign > 0 else 1 - mean
        predictions["hit_unknown"] = 0.0
    elif quantity.classes and quantity.sign > 0 and {*PROBABILITY_COLUMNS} <= {*chunk.frame}:
        probability, unknown = _read_interval(chunk)
        predictions = predictions.assign(hit=probability, hit_unknown=unknown)
    if chunk.has("sigma"):
        sigma = chunk.column("sigma")
        if unit not in ("pkd", "value"):
            msg = (
                f"{chunk.source}: column {column!r} is in {unit}, and column {sigma!r} "
                "would have to be in pKd; expected both in pKd. Convert them, or remove the latter "
                "and use --rule mean."
            )
            raise PredictionError(msg)
        least = "0 or more pKd" if quantity.affinity else "0 or more"
        predictions["sigma"] = _finite(chunk, sigma, "standard error", least, low=0.0)
    return _with_flags(predictions, chunk)


def _read_probabilities(chunk: SequenceTable, quantity: Quantity) -> pd.DataFrame:
    """Read the probabilities of a table that `predict` wrote of two classes."""
    mean, unknown = _read_interval(chunk)
    found = pd.DataFrame({"row": chunk.positions, "mean": mean})
    found["sigma"] = np.sqrt(mean * (1 - mean))
    found = _with_flags(found, chunk)
    found["sigma_model"] = unknown
    return found.assign(hit=mean if quantity.sign > 0 else 1 - mean, hit_unknown=unknown)


def _read_interval(chunk: SequenceTable) -> tuple[Floats, Floats]:
    """Return the probability of each row, and the standard deviation that its interval says."""
    mean, low, high = (
        _finite(chunk, name, "probability", "0 to 1", low=0.0, high=1.0)
        for name in PROBABILITY_COLUMNS
    )
    return mean, np.asarray((high - low) / (2 * WITHIN))


def _with_flags(found: pd.DataFrame, chunk: SequenceTable) -> pd.DataFrame:
    """Add what a table has of the model's part of sigma, flags, regimes and sites."""
    if "sigma" in found and "sigma_model" in chunk.frame:
        found["sigma_model"] = _finite(chunk, "sigma_model", "standard error", "0 or more", low=0.0)
    found["far"] = _far_flags(chunk) if "far" in chunk.frame else False
    if "regime" in chunk.frame:
        found["regime"] = chunk.frame["regime"].astype("category").to_numpy()
    if set(SITE_COLUMNS) <= {*chunk.frame}:
        chain, position = (read_texts(chunk.frame[name]) for name in SITE_COLUMNS)
        found["site"] = (chain + "/" + position).to_numpy()
    return found


def _finite(
    chunk: SequenceTable,
    column: str,
    noun: str,
    expected: str,
    low: float = -np.inf,
    high: float = np.inf,
) -> Floats:
    value = read_numbers(chunk.frame[column])
    is_bad = ~np.isfinite(value) | (value < low) | (value > high)
    problem = f"is not a valid {noun}; expected {expected}. Fix or remove them."
    refuse_cells(chunk, is_bad, column, problem, PredictionError)
    return value


def _far_flags(chunk: SequenceTable) -> Bools:
    flags = read_texts(chunk.frame["far"]).str.lower().map(_BOOLEANS)
    problem = "is not a valid flag; expected True or False. Fix it, or remove the column."
    refuse_cells(chunk, flags.isna().to_numpy(), "far", problem, PredictionError)
    return flags.to_numpy(np.bool_)


def sites_of(sites: pd.Series) -> list[list[str]]:
    """List the places of the mutations of each candidate, such as ``heavy 107``."""
    places = {text: _places_of(text) for text in sites.unique()}
    return [places[text] for text in sites]


def _places_of(text: str) -> list[str]:
    """Join the chain and the position of each mutation of one candidate; none of empty cells."""
    columns = [part.split("+") for part in text.split("/")]
    return [" ".join(place) for place in zip(*columns, strict=False) if all(place)]


def read_chosen_rows(layout: Layout, rows: Ints, *, typed: bool) -> pd.DataFrame:
    """Read all columns of some rows of a table, in the order of `rows`, as they are written.

    The index of the result is `rows`. With `typed`, columns of a text table that are numbers are
    returned so.
    """
    ordered = np.sort(rows)
    parts = []
    for chunk in layout.chunks():
        parts.append(chunk.frame.loc[ordered[np.isin(ordered, chunk.frame.index)]])
    read = pd.concat(parts).reindex(rows)
    return with_types(read, layout.columns) if typed and layout.holds_texts else read


@dataclass(frozen=True, slots=True)
class Measured:
    """A table of measured pairs, in terms of the candidates."""

    table: SequenceTable
    """Its sequences are in the order of their keys, as those of `label_pairs`."""
    antigen_of: Ints
    """Index of each distinct antigen of the table among those of the candidates; -1: not there."""
    is_measured: Bools
    """Which candidates are in the table, (R,)."""
    is_of_run: bool = False
    """Whether a run has written the table: then nobody asks how its label is read."""

    def best(self, quantity: Quantity) -> float | None:
        """Return the best measured label, of which higher is better, as of the candidates.

        None if no measured pair has the antigen of the predictions.
        """
        pairs = label_pairs(self.table)
        if not self.is_of_run:
            say(pairs.reading.line)
            pairs.report_problems()
        sign = quantity.sign
        used = (self.antigen_of[pairs.antigen] >= 0) & (sign * pairs.censored >= 0)
        return float((sign * pairs.pkd[used]).max()) if used.any() else None


def read_all_measured(
    candidates: Candidates, options: RankOptions, of_run: LayoutRecord
) -> list[Measured]:
    """Read the measured pairs of the run, which a predictor alone lacks, and those of a table."""
    tables = list[Measured]()
    if options.run is not None and (Path(options.run) / MEASURED).exists():
        run = Path(options.run)
        quantity = layout_of(read_config(run)).label.quantity
        frame = read_measured_rows(run, quantity)[[*SEQUENCES, "pkd", "censored"]]
        if options.antigen == UNNAMED_ANTIGEN:
            frame["antigen"] = UNNAMED_ANTIGEN
        # its sequences are cut to the region of the run
        pairs = read_written_pairs(frame, quantity).sorted_by_key()
        pairs = replace(pairs, source=str(run / MEASURED))
        tables.append(replace(_among(candidates, pairs), is_of_run=True))
    if options.measured is not None:
        tables.append(read_measured(options.measured, candidates, options, of_run))
    return tables


def config_of_run(run: Path | str | None) -> dict[str, Any] | None:
    """Return the content of config.json; None without a run, or of a predictor alone."""
    if run is None or not (Path(run) / "config.json").exists():
        return None
    return read_config(Path(run))


def read_measured(
    table: TableLike, candidates: Candidates, options: RankOptions, of_run: LayoutRecord
) -> Measured:
    """Read a table of measured pairs and find its pairs among the candidates."""
    first = read_top_row(table, options)
    columns = {}
    for role, name in options.columns.items():
        is_of_both = role not in MEASURED_ROLES | PREDICTION_ROLES
        if role in MEASURED_ROLES or (is_of_both and (not name or name in first.names)):
            columns[role] = name
    antigen = options.antigen
    if antigen != UNNAMED_ANTIGEN and ("antigen" in columns or first.has("antigen")):
        antigen = None
    reading = replace(options, columns=columns, antigen=antigen, limit=None)
    decide = partial(_label_of_measured, options=options)
    pairs = read_pairs(table, reading, remembered=of_run, label=decide).sorted_by_key()
    pairs.report_notes()
    return _among(candidates, pairs, _has_label(pairs))


def _has_label(pairs: SequenceTable) -> Bools:
    """Return which rows have a label, (R,): all of a table without a column of labels."""
    column = pairs.columns.get("pkd")
    remembered = pairs.labels[0].remembered
    if column is None or (remembered is not None and remembered.no_binding_empty):
        return np.ones(len(pairs.frame), np.bool_)
    has_label = (read_texts(pairs.frame[column]) != "").to_numpy(np.bool_)
    empty = int((~has_label).sum())
    if empty:
        say(
            f"{pairs.source}: {counted(empty, 'row')} without a value in column {column!r} "
            f"{'is' if empty == 1 else 'are'} not measured"
        )
    return has_label


def _label_of_measured(top: Table, options: RankOptions) -> LabelLayout:
    """Decide what the label of measured pairs is, as the run of the predictions does."""
    config = config_of_run(options.run)
    if config is None:
        states_better = options.run is None and options.label in (None, "value")
        labels = LabelOptions(
            label=options.label,
            molar_mass=options.molar_mass,
            better=options.better if states_better else None,
        )
        remembered = None
    else:
        labels = labels_as_in_the_run(
            config, top, label=options.label, molar_mass=options.molar_mass
        )
        remembered = layout_of(config).label
    return decide_label(top, replace(labels, bad_rows=options.bad_rows or "error"), remembered)


@dataclass(frozen=True, slots=True)
class SecondProperty:
    """Predictions of a second property of the candidates."""

    source: str
    quantity: Quantity
    mean: Floats
    """In the unit of the quantity, (R,); NaN of a candidate without one."""
    sigma: Floats | None
    """(R,)."""
    far: Bools
    """Which candidates are outside the training data of the second run, (R,)."""
    above: float | None
    """What a pair has to reach."""

    @classmethod
    def read(cls, table: TableLike, candidates: Candidates, options: RankOptions) -> SecondProperty:
        """Read predictions, and find those of the candidates.

        They are of the same pairs if the tables have an antigen in common; else of the antibodies.

        Raises
        ------
        PredictionError
            If no candidate has one, or an antibody has several.
        """
        run = options.second_run
        predictor = None if run is None else load_predictor(run)
        reading = RankOptions(
            run=run,
            better=options.second_better,
            sequences=options.sequences,
            parent=options.parent,
            numbering=options.numbering,
            first_residue=options.first_residue,
            bad_rows=options.bad_rows,
            chains=options.chains,
            antibody_region=options.antibody_region,
        )
        layout, quantity = decide_reading(table, reading, predictor, "second-")
        second = read_candidates(layout, quantity, molar_mass_of(reading))
        if predictor is not None:
            second = far_by_chains(second, predictor)
            quantity = predictor.quantity
        quantity.check_threshold(options.second_above, "--second-above")
        row = second.rows_of(candidates)
        if (row < 0).all():
            msg = (
                f"{second.source}: has no prediction of the antibodies of {candidates.source}; "
                "expected predictions of the same antibodies. Give another --second."
            )
            raise PredictionError(msg)
        has_one = row >= 0
        sigma = None if second.sigma is None else np.where(has_one, second.sigma[row], np.nan)
        return cls(
            source=second.source,
            quantity=quantity,
            mean=np.where(has_one, second.mean[row], np.nan),
            sigma=sigma,
            far=has_one & second.frame["far"].to_numpy(np.bool_)[row],
            above=options.second_above,
        )

    @property
    def value(self) -> Floats:
        """Predictions of which higher is better, (R,)."""
        return self.quantity.sign * self.mean

    def reasons(self) -> dict[str, tuple[Bools, str]]:
        """Return which candidates cannot be chosen, (R,), and in words, by reason."""
        missing = np.isnan(self.mean)
        found = {"unpredicted": (missing, f"without a prediction in {self.source}")}
        if self.above is not None:
            side = "below" if self.quantity.sign > 0 else "above"
            is_worse = ~missing & (self.value < self.quantity.sign * self.above)
            found["second"] = (is_worse, f"predicted {side} {self.above:g} in {self.source}")
        return found

    def columns(self, chosen: Ints, front: Ints | None) -> dict[str, Any]:
        """Return the columns to add to the rows of a batch."""
        columns: dict[str, Any] = {"second_predicted": self.mean[chosen]}
        if self.sigma is not None:
            columns["second_sigma"] = self.sigma[chosen]
            if self.above is not None:
                aim = Aim(above=self.quantity.sign * self.above)
                above = probability_above(self.value[chosen], self.sigma[chosen], aim)
                columns["second_probability_above"] = above
        if front is not None:
            columns["front"] = front[chosen]
        return columns


@dataclass(frozen=True, slots=True)
class OrderList:
    """The pairs that are ordered, in a table that `rank` keeps; the user may delete rows."""

    path: Path
    order: str
    """Name of the batch that is chosen; what the list has of it is replaced."""
    others: pd.DataFrame
    """Rows of other orders, as they are written."""
    is_out: Bools
    """Which candidates are among these, (R,)."""

    @classmethod
    def read(
        cls, path: Path, out: Path | None, candidates: Candidates, options: RankOptions
    ) -> OrderList:
        """Read a list, if it exists, and find its pairs among the candidates.

        Raises
        ------
        TableError
            If it is no such list, or has an invalid sequence.
        """
        rows = pd.DataFrame(columns=[*ORDER_COLUMNS], dtype=str)
        if path.exists():
            with suppress(NoRows):  # the user has deleted all of them
                rows = read_table(path).frame.astype(object).map(cell_text)
            absent = [name for name in ORDER_COLUMNS if name not in rows]
            if absent:
                msg = (
                    f"{path}: has no column {absent[0]!r}; expected a list that rank keeps, or a "
                    "new file. Choose another --ordered."
                )
                raise TableError(msg)
        if out is None:
            numbered = map("order {}".format, count(rows["order"].nunique() + 1))
            order = next(name for name in numbered if name not in {*rows["order"]})
        else:  # as of the list: folders of rounds have files of one name
            order = Path(os.path.relpath(out, path.parent)).as_posix()
        others = rows[rows["order"] != order].reset_index(drop=True)
        if len(others) < len(rows):
            replaced = counted(len(rows) - len(others), "pair")
            say(
                f"{path.name}: {replaced} of {quoted(order)} are taken off, as this order replaces "
                "it; if it was sent, put its rows back, and give each order a name of its own"
            )
        return cls(path, order, others, _are_out(others, candidates, options))

    def add(self, candidates: Candidates, chosen: Ints) -> None:
        """Write the list with the chosen candidates."""
        antibodies = [candidates.antibodies.chains[n] for n in candidates.antibodies.of_row[chosen]]
        antigens = [candidates.antigens.chains[n] for n in candidates.antigens.of_row[chosen]]
        heavy, light = zip(*antibodies, strict=True)
        texts = ["|".join(chains) for chains in antigens]
        batch = pd.DataFrame({
            "order": self.order,
            "rank": [*map(str, range(1, len(chosen) + 1))],
            "heavy": heavy,
            "light": light,
            "antigen": ["" if text == UNNAMED_ANTIGEN else text for text in texts],
        })  # fmt: skip
        with writing_table(self.path) as write:
            write(pd.concat([self.others, batch], ignore_index=True).fillna(""))


ORDER_COLUMNS = ("order", "heavy", "light", "antigen")
"""Columns that a list of orders needs."""


def _are_out(rows: pd.DataFrame, candidates: Candidates, options: RankOptions) -> Bools:
    """Return which candidates are on a list, (R,).

    An antibody that was ordered without an antigen, as of a table that names none, is out with all.
    """
    is_out = np.zeros(len(candidates.frame), np.bool_)
    has_antigen = rows["antigen"].str.strip() != ""
    if options.no_antigen or options.antigen == UNNAMED_ANTIGEN:
        has_antigen[:] = False
    region = options.antibody_region or "as-given"
    for some, kinds in ((rows[has_antigen], KINDS), (rows[~has_antigen], KINDS[:1])):
        if some.empty:
            continue
        columns = {"heavy": "heavy", "light": "light"}
        if "antigen" in kinds:
            columns["antigen"] = "antigen"
        reading = TableOptions(columns=columns, antibody_region=region)
        pairs = read_pairs(some[[*columns]], reading, kinds=kinds)
        if "antigen" in kinds:
            is_out |= _among(candidates, pairs).is_measured
        else:
            found = _find(pairs.antibodies.chains, candidates.antibodies)
            is_out |= np.isin(candidates.antibodies.of_row, found)
    return is_out


def say_if_measured(batch: pd.DataFrame, options: RankOptions, *, leaves_out: bool) -> None:
    """Say if rows of a batch have labels already, in the column that a fit would read.

    `leaves_out`: whether measured pairs of a run or table were left out.
    """
    try:
        decide = partial(_label_of_measured, options=options)
        layout = Layout.of(batch, without_labels(options), label=decide)
    except AbagError:  # whatever it is, it is no label
        return
    column = layout.files[0].label.column
    if not column:
        return
    measured = int((read_texts(batch[column]) != "").sum())
    if measured:
        advice = "--run DIR or --measured TABLE leaves out pairs that are measured"
        if leaves_out:
            advice = "the run and --measured do not have them"
        say(
            f"{measured:,} of the {counted(len(batch), 'chosen pair')} have a value in column "
            f"{column!r}, as if measured already: {advice}"
        )


def _among(
    candidates: Candidates, pairs: SequenceTable, has_label: Bools | None = None
) -> Measured:
    """Find measured pairs among the candidates: those of all rows, or of some of them, (R,)."""
    antibody_of = _find(pairs.antibodies.chains, candidates.antibodies)
    antigen_of = _find(pairs.antigens.chains, candidates.antigens)
    a = antibody_of[pairs.antibodies.of_row]
    g = antigen_of[pairs.antigens.of_row]
    both_known = (a >= 0) & (g >= 0)
    if has_label is not None:
        both_known &= has_label
    measured = candidates.number(a[both_known], g[both_known])
    return Measured(pairs, antigen_of, np.isin(candidates.pair, measured))


def _find(chains: Sequence[Chains], among: Sequences) -> Ints:
    """Return the index of each sequence among others, -1 if it is not there."""
    number = {sequence: n for n, sequence in enumerate(among.chains)}
    return np.array([number.get(sequence, -1) for sequence in chains], np.int64)
