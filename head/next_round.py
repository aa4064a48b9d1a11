"""The next round of a campaign: results of an order join the measured pairs of an earlier run.

A finished run keeps what was measured, with sequences, in ``measured.parquet``, so that a round
needs the folder of the run and the table of new results only. Rounds that contradict each other are
refused, with the rows, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from abag.core.arrays import Floats
from abag.core.errors import DamagedFile, RunError
from abag.core.messages import reporting, say
from abag.core.options import flag, schema, user_path
from abag.embed.store.store import LOGLIK, Store, open_store
from abag.embed.tables.layout import OF_LABELS, with_numbers
from abag.embed.tables.options import BadRows
from abag.embed.tables.pairs import read_pairs
from abag.embed.tables.table import Table, TableLike, read_numbers
from abag.head.design.batches import known_errors
from abag.head.labels.classes import read_classes
from abag.head.labels.column import AS_IN_THE_RUN, Columns, LabelLayout, Remembered, decide_label
from abag.head.labels.features import LOGLIKS, MISSING
from abag.head.labels.headers import USUAL_PKD, Quantity, outside, written_by
from abag.head.labels.labelled_pairs import (
    LabelledPairs,
    beside_name,
    label_pairs,
    report_counts,
    with_feature_columns,
)
from abag.head.labels.options import (
    BesideRole,
    LabelOptions,
    PairColumnOptions,
    named_beside,
)
from abag.head.models.config import PRESETS, FitConfig, Preset
from abag.head.predictor.options import is_run_alone
from abag.head.regimes.folds import OF_TABLE
from abag.head.runs.rounds import (
    MEASURED,
    NAMES,
    columns_of_pair,
    measured_rows,
    read_measured_rows,
    read_written_pairs,
    refuse_contradictions,
    relations_of,
    without_repeats,
)
from abag.head.runs.run_folder import SavedRun, naming_damage, read_run
from abag.head.training.inputs import RunInputs, first_folders, layout_of_run, vectors_of_pairs

NOT_INHERITED = frozenset(
    {"add", "columns", "antigen", "limit", "skipped", "label", "split_seed", "bad_rows"}
)
"""Options that are of one table, or that `of_earlier_run` takes in its own way."""

PREDICTED = "predicted before"
"""Column of predictions beside measured rows, as long as errors of a batch are computed."""
SIGMA = "sigma before"


def read_round(table: TableLike, store: Path | str, config: FitConfig) -> RunInputs:
    """Read what a fit with ``--add`` needs: pairs of all rounds, their vectors, and the options.

    The options are those of the earlier run where none are given. Likelihoods that the run has as
    features are those of the store.

    Raises
    ------
    RunError
        If rounds contradict each other, or all results are in the earlier run.
    AbagError
        If the table or the run cannot be read, or the store lacks a sequence.
    """
    assert config.add is not None
    opened = open_store(store)
    saved = read_run(user_path(config.add, "--add"))
    measured = read_measured_rows(saved.run, saved.quantity)
    history = [*saved.summary.get("rounds", ())]
    if not history:  # the first run has no list of rounds
        history = [
            {"source": saved.summary["data"]["source"], "expected_best": None, "errors": None}
        ]
    if int(measured["round"].max()) != len(history) - 1:
        msg = (
            f"{saved.run}: {MEASURED} and summary.json have different rounds. Copy the whole run "
            "folder again."
        )
        raise DamagedFile(msg)
    given = config
    _refuse_other_columns(given, saved)
    is_run_alone(given, saved.kinds)
    config = of_earlier_run(given, saved)
    measured = _with_new_categories(measured, given, saved)
    named = _columns_of_tables(config, measured, saved)
    new = _read_results(table, config, saved, given, named)
    rows = measured_rows(new)
    refuse_contradictions(measured, rows, new)
    predicted = _predictions_of(new)
    rows = rows.assign(**predicted)
    rows = without_repeats(measured, rows, new.table.source, saved.quantity)
    errors = _errors_of_batch(rows, saved.quantity)
    rows = rows.drop(columns=list(predicted))
    rows["round"] = int(measured["round"].max()) + 1
    joined = pd.concat([measured, rows], ignore_index=True)
    pairs = _label_joined(joined, opened, config, saved, new, named)
    entry = {
        "source": new.table.source,
        "expected_best": _expected_best(new, rows.index, saved.run),
        "errors": errors,
    }
    history.append(entry)
    before = saved.layout
    columns = {role: name for role, name in config.columns.items() if role not in OF_LABELS}
    given_names = [str(Path(path).expanduser().absolute()) for path in config.sequences]
    remembered = replace(
        with_numbers(config, before),
        columns={**before.named(), **columns},
        # of earlier rounds those that exist
        sequences=tuple(dict.fromkeys([*before.files_of_names, *given_names])),
        # the bound itself is that of the run, whose unit that of the results may not be
        no_binding=saved.config["no_binding"],
        no_binding_empty=saved.config["no_binding_empty"],
    )
    references = new.table.files[0].references
    found = {column.role: column.name for column in before.columns}
    return RunInputs(
        pairs,
        opened,
        vectors_of_pairs(pairs, opened, remembered, saved.config),
        layout_of_run(remembered, pairs, found, references, before),
        remembered,
        history=history,
    )


def of_earlier_run(config: FitConfig, saved: SavedRun) -> FitConfig:
    """Return options with those of an earlier run in place of those that were not given."""
    before = saved.config
    given = {}
    preset = PRESETS[config.preset if config.preset != "small" else before["preset"]]
    of_preset = {field.name for field in fields(Preset)}
    for option in schema(FitConfig):
        name = option.name
        of_machine = option.declaration.get("may_change") and name != "epochs"
        if name in NOT_INHERITED or of_machine:
            continue
        if getattr(config, name) != option.default or name not in before:
            continue
        value = option.parse(before[name])
        if name in of_preset and value == getattr(preset, name):
            continue  # it was not given then, either
        given[name] = value
    if str(given.get("split", "")).partition("=")[0] in OF_TABLE:
        say(f"{saved.run}: --split {given['split']} is of its table; this run uses --split auto")
        given["split"] = "auto"
    if config.split_name in OF_TABLE:  # which names all folds
        given = {name: value for name, value in given.items() if name not in ("folds", "repeats")}
    bad_rows: BadRows = "skip" if "skip" in (config.bad_rows, before["bad_rows"]) else "error"
    return replace(config, bad_rows=bad_rows, **given)


def _refuse_other_columns(given: FitConfig, saved: SavedRun) -> None:
    """Refuse features, categories, errors and weights that the measured pairs of a run lack."""
    for option in schema(PairColumnOptions):
        asked = getattr(given, option.name)
        before = option.parse(saved.config[option.name])
        if asked is None or asked == before:
            continue
        if option.name == "categories" and {*asked} >= {*(before or ())}:
            continue  # `_with_new_categories`
        msg = (
            f"{flag(option.name)} {_listed(asked)}: the run {saved.run} has {_listed(before)}; "
            "expected the columns of the run, whose pairs have no others. Leave the option out, "
            "or fit one table of all rounds."
        )
        raise RunError(msg)


def _with_new_categories(measured: pd.DataFrame, given: FitConfig, saved: SavedRun) -> pd.DataFrame:
    """Leave the cells of categories empty that this round is the first to have."""
    before = saved.config["categories"] or ()
    new = [name for name in given.categories or () if name not in before]
    if new:
        say(
            f"{saved.run}: has no column {_listed(new)}; its pairs are of the category {MISSING}, "
            "as empty cells are"
        )
    columns = {
        beside_name("category", name): pd.Series("", measured.index, "string") for name in new
    }
    return measured.assign(**columns)


def _listed(names: str | Sequence[str] | None) -> str:
    """List names as on the command line."""
    if isinstance(names, str):
        return names
    return ",".join(names or ()) or "none"


def _columns_of_tables(
    config: FitConfig, measured: pd.DataFrame, saved: SavedRun
) -> PairColumnOptions:
    """Return the columns beside labels that tables of rounds have, without what the store has.

    Raises `DamagedFile` if the measured pairs of the run lack one.
    """
    features = []
    for name in config.features or ():
        is_kept = beside_name("feature", name) in measured
        if is_kept or name not in (LOGLIK, *LOGLIKS):
            features.append(name)
    named = PairColumnOptions.of(config, features=tuple(features) or None)
    for name, what in named_beside(named):
        if beside_name(what, name) not in measured:
            msg = (
                f"{saved.run / MEASURED}: has no {what} {name!r}; expected what the run was "
                "trained with. Fit it again with this version of abag."
            )
            raise DamagedFile(msg)
    return named


# ---- the new results -----------------------------------------------------------------------------


def _read_results(
    table: TableLike,
    config: FitConfig,
    saved: SavedRun,
    given: FitConfig,
    named: PairColumnOptions,
) -> LabelledPairs:
    """Read the results of a round by options of which only those of `given` are of this table.

    `named` are the features, categories, errors and weights that it has to have.
    """

    def decide(top: Table) -> LabelLayout:
        column = top.columns.get("label", top.columns.get("pkd"))
        if column is None:
            column = _results_column(top, named, saved.layout.label)
        remembered = saved.layout.label
        if column is not None:
            if "label" not in top.columns:
                top = replace(top, columns={**top.columns, "pkd": column})
            if config.label is None:
                remembered = replace(remembered, column=column)
        options = LabelOptions.of(config)
        if options.affinity_type is not None and not top.has("affinity_type"):
            options = replace(options, affinity_type=None)
        # a bound of non-binders, if not given, is that of the run, which `remembered` has in pKd
        options = replace(
            options,
            no_binding=given.no_binding,
            no_binding_empty=given.no_binding_empty,
            floor="keep",
        )
        return decide_label(top, options, remembered, named=named_beside(named), run=saved.run)

    reading = replace(config, add=None)
    read = read_pairs(table, reading, remembered=saved.layout, label=decide, refuse=False)
    pairs = label_pairs(read)
    if config.skipped is not None:
        pairs.table.skipped.write(Path(config.skipped))
    pairs.table.report_notes()
    say(pairs.reading.line)
    if pairs.quantity.affinity:
        _say_if_pkd_is_possible(pairs, saved.layout.label.column)
    pairs.report_problems()
    return pairs


def _say_if_pkd_is_possible(pairs: LabelledPairs, column_of_run: str) -> None:
    reading = pairs.reading
    if reading.unit == "pkd" or reading.why != AS_IN_THE_RUN or reading.column == column_of_run:
        return
    assert pairs.usable is not None
    rows = pairs.usable[pairs.usable["censored"] == 0]
    numbers = read_numbers(pairs.table.frame[reading.column].iloc[rows["row"]])
    if len(numbers) and not outside(numbers, USUAL_PKD).any():
        say(
            f"{pairs.table.source}: column {reading.column!r} states no unit, and all its numbers "
            "could be pKd as well; add --label pkd if they are"
        )


def _expected_best(pairs: LabelledPairs, new: pd.Index[int], run: Path) -> float | None:
    """Return the best label that `rank` expected of the pairs that came back with a result.

    `new` are the measurements that no earlier round has, by their places among all.
    """
    table = pairs.table
    quantity = pairs.quantity
    assert pairs.usable is not None
    rows = np.unique(pairs.usable["row"].to_numpy(np.int64)[new])
    sides = (table.antibodies, table.antigens)
    pair_of_row = pd.MultiIndex.from_arrays([side.of_row[rows] for side in sides])
    rows = rows[~pair_of_row.duplicated()]  # replicates are one measurement of what was expected
    frame = table.frame.iloc[rows].reset_index(drop=True)
    names = ["expected_best", "rank", quantity.predicted, "sigma"]
    if not {*names} <= {*frame}:
        return None
    numbers = frame[names].apply(read_numbers).dropna().sort_values("rank")
    if not len(numbers) or not np.isfinite(numbers).all(axis=None):
        return None
    of_first, place, mean, sigma = numbers.to_numpy(np.float64).T
    sign = quantity.sign
    # all of the order came back
    if place.max() == len(place):
        return sign * float((sign * of_first).max())
    with naming_damage(run):
        known = known_errors(run, {*frame.get("regime", pd.Series(dtype=str))}, quantity)
    used = rows[numbers.index]  # some have no result
    index = (side.of_row[used] for side in sides)
    return sign * float(known.expect(sign * mean, sigma, *index).best_of_first[-1])


def _predictions_of(pairs: LabelledPairs) -> dict[str, Floats]:
    """Return prediction and sigma that `rank` wrote beside each result, (R,) each, NaN without."""
    assert pairs.usable is not None
    frame = pairs.table.frame.iloc[pairs.usable["row"]]
    columns = {PREDICTED: pairs.quantity.predicted, SIGMA: "sigma"}
    predictions = {}
    if pairs.quantity.is_binary:  # a probability has the standard deviation of its answer
        del columns[SIGMA]
    for name, column in columns.items():
        numbers = np.full(len(frame), np.nan)
        if {*columns.values()} <= {*frame}:
            numbers = read_numbers(frame[column])
        predictions[name] = numbers
    if pairs.quantity.is_binary:
        p = np.clip(predictions[PREDICTED], 0.0, 1.0)
        predictions[SIGMA] = np.asarray(np.sqrt(p * (1 - p)), np.float64)
    return predictions


def _errors_of_batch(rows: pd.DataFrame, quantity: Quantity) -> dict[str, float] | None:
    """Return how far off the predictions of a batch were before it was measured; None without.

    They are those of exact labels. Bounds that predictions are beyond are counted beside them.
    """
    is_known = np.isfinite(rows[[PREDICTED, SIGMA]].to_numpy(np.float64)).all(axis=1)
    exact = rows[(rows["censored"] == "").to_numpy(np.bool_) & is_known]
    if not len(exact):
        return None
    exact = exact.groupby(columns_of_pair(rows))[["pkd", PREDICTED, SIGMA]].median()
    error = (exact[PREDICTED] - exact["pkd"]).to_numpy(np.float64)
    side_of = {text: side for side, text in relations_of(quantity).items()}
    side = np.array([side_of[text] for text in rows["censored"]])
    beyond_bound = side * (rows["pkd"] - rows[PREDICTED]).to_numpy(np.float64) > 0
    is_missed = is_known & beyond_bound
    missed = len(rows.loc[is_missed, columns_of_pair(rows)].drop_duplicates())
    beyond = {"missed_bounds": missed} if missed else {}
    return {
        **beyond,
        "pairs": len(error),
        "rmse": float(np.sqrt(np.square(error).mean())),
        "bias": float(error.mean()),
        "sigma": float(np.sqrt(np.square(exact[SIGMA]).mean())),
    }


def _results_column(table: Table, named: PairColumnOptions, label: Remembered) -> str | None:
    """Return the only column of results behind those that `rank` wrote, whatever its name is.

    Results are numbers, or classes of the run. Those that are `named` are none; a column that is
    named as the `label` of the run and not empty is found by its name.
    """
    names = [*map(str, table.names)]
    of_rank = [at for at, name in enumerate(names) if written_by(name, names) == "rank"]
    if not of_rank:
        return None
    behind = {*names[max(of_rank) + 1 :]} - {name for name, _ in named_beside(named)}
    free = Columns(table).free
    if any(x.name == label.column and table.frame[x.name].notna().any() for x in free):
        return None
    free = [column for column in free if column.name in behind]
    classes = label.quantity.classes
    results = []
    for column in free:
        cells = table.frame[column.name]
        is_of_run = np.isfinite(read_classes(cells, classes)).any() if classes else False
        if is_of_run or (not classes and column.holds_numbers):
            results.append(column.name)
    return results[0] if len(results) == 1 else None


# ---- all rounds ----------------------------------------------------------------------------------


def _label_joined(
    joined: pd.DataFrame,
    store: Store,
    config: FitConfig,
    saved: SavedRun,
    new: LabelledPairs,
    named: PairColumnOptions,
) -> LabelledPairs:
    """Label the measurements of all rounds, with the columns that are `named` and likelihoods."""
    empty = [role for role in NAMES if (joined[role] == "").all()]
    # columns as in the joined rows; likelihoods, which are not `named`, as in the store
    in_joined: list[tuple[str, BesideRole]] = []
    for name, role in named_beside(config):
        is_stored = role == "feature" and name not in (named.features or ())
        is_as_given = is_stored or role == "split"
        in_joined.append((name if is_as_given else beside_name(role, name), role))
    read = read_written_pairs(
        joined.drop(columns=empty),
        saved.quantity,
        in_joined,
        replicates=config.replicates,
        floor=config.floor,
    )
    source = f"{saved.run.name} + {new.table.source}"
    row_numbers = joined["row"].to_numpy(np.int64)
    read = replace(read, source=source, row_numbers=row_numbers, kinds=config.kinds)
    folders = partial(first_folders, read, store, config, saved.config)
    with reporting(silent=True):  # each round has been described with its own table
        pairs = label_pairs(read, folders=folders)
    label_of_run = saved.layout.label
    reading = replace(
        pairs.reading,
        column=label_of_run.column,
        unit=label_of_run.unit,
        why=label_of_run.why,
        quantity=label_of_run.quantity,
        line=f"labels: those of {source}",
        no_binding_pkd=label_of_run.no_binding_pkd,
    )
    kept = [beside_name(what, name) for name, what in named_beside(named)]
    as_named = []
    for column in pairs.named:
        as_named.append(replace(column, name=column.name.removeprefix(f"{column.role}:")))
    pairs = replace(
        pairs,
        reading=reading,
        round_of_row=joined["round"].to_numpy(np.int64),
        named=tuple(as_named),
        beside=joined[kept] if kept else None,
    )
    report_counts(pairs)
    return with_feature_columns(pairs)
