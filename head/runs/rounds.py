"""Rounds of a campaign in the folder of a run: what each measured, brought and contradicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from abag.core.errors import DamagedFile, RunError
from abag.core.messages import counted, printable, quoted, say
from abag.embed.tables.chains import NO_ANTIGEN
from abag.embed.tables.options import TableOptions
from abag.embed.tables.pairs import SequenceTable, read_pairs
from abag.embed.tables.table import read_names
from abag.head.labels.column import Remembered, decide_label
from abag.head.labels.headers import Quantity
from abag.head.labels.labelled_pairs import CONFLICT_PKD, LabelledPairs, disagreement, spread_of
from abag.head.labels.options import BesideRole, LabelOptions

MEASURED = "measured.parquet"
BESIDE = ("feature:", "category:", "error:", "weight:")
"""How the names of columns begin that a run has beside labels and sequences (`beside_name`)."""
SEQUENCES = ("heavy", "light", "antigen")
NAMES = ("id", "antibody_name", "antigen_name")
COLUMNS = (*SEQUENCES, "pkd", "censored", "round", "row", *NAMES)
COLUMN_NAMES = (
    "round",
    "table",
    "new pairs",
    "best",
    "better than before",
    "best so far",
    "expected best",
    "RMSE of predictions",
)
_OF_KD = {-1: ">", 0: "", 1: "<"}
_OF_VALUE = {-1: "<", 0: "", 1: ">"}
SAME_LABEL = 1e-9
"""Largest difference of two labels that are one."""
SAME_LABEL_PKD = 0.0075
"""The same of affinities, which may be written again in another unit: a Kd of three digits and a
pKd of two are off by as much."""
LISTED = 20
"""Rows that a message names."""


def read_written_pairs(
    frame: pd.DataFrame,
    quantity: Quantity,
    beside: Sequence[tuple[str, BesideRole]] = (),
    **options: Any,  # noqa: ANN401 - the fields of LabelOptions
) -> SequenceTable:
    """Read rows that have some of `COLUMNS`, which name the roles, and columns `beside`.

    Their labels are as a run keeps them, without a unit.
    """
    no_antigen = bool((frame["antigen"] == "|".join(NO_ANTIGEN)).all())
    if no_antigen:
        frame = frame.drop(columns=["antigen", "antigen_name"], errors="ignore")
    remembered = None
    if quantity.affinity:
        column = str(quantity)
        options["label"] = "pkd"
        if "censored" in frame:
            # with its bound, a relation is known to be of Kd, at whichever end its label is
            cells = []
            for relation, pkd in zip(frame["censored"], frame["pkd"], strict=True):
                cells.append(f"{relation}{10.0**-pkd!r}" if relation else "")
            frame = frame.assign(censored=cells)
    else:
        column = quantity.column("pkd")
        # what was written are logarithms and numbers of classes, not the cells of a user
        name = f"{'log10 ' * quantity.is_log}{quantity.name}"
        classes = tuple(map(str, range(len(quantity.classes))))
        written = replace(quantity, name=name, scale="linear", classes=classes)
        remembered = Remembered(column=column, unit="value", quantity=written)
    roles = [role for role in (*SEQUENCES, *NAMES, "censored") if role in frame]
    columns = {role: role for role in roles} | {"pkd": column}
    decide = partial(
        decide_label, options=LabelOptions(**options), remembered=remembered, named=beside
    )
    reading = TableOptions(columns=columns, no_antigen=no_antigen)
    return read_pairs(frame.rename(columns={"pkd": column}), reading, label=decide)


def relations_of(quantity: Quantity) -> Mapping[int, str]:
    """Return the relation by the side on which the true label lies: of Kd, or of the value."""
    return _OF_KD if quantity.affinity else _OF_VALUE


def measured_rows(pairs: LabelledPairs) -> pd.DataFrame:
    """Return every usable measurement with its sequences; R rows of `COLUMNS`.

    Features, categories, errors and weights that come from a table follow, named as in `BESIDE`.
    Errors are in the unit of the labels here.
    """
    assert pairs.usable is not None
    rows = pairs.usable
    table = pairs.table
    relation = rows["censored"].map(relations_of(pairs.quantity))
    antibodies = pd.DataFrame(table.antibodies.chains, columns=["heavy", "light"])
    antigens = pd.Series(["|".join(chains) for chains in table.antigens.chains])
    frame = antibodies.iloc[rows["antibody"]].reset_index(drop=True)
    frame["antigen"] = antigens.iloc[rows["antigen"]].to_numpy()
    frame["pkd"] = rows["pkd"].to_numpy(np.float64)
    frame["censored"] = relation.to_numpy(str)
    at = rows["row"].to_numpy(np.int64)
    frame["round"] = 0 if pairs.round_of_row is None else pairs.round_of_row[at]
    frame["row"] = table.row_numbers[at]
    for role in NAMES:
        frame[role] = ""
        if role in table.columns:
            frame[role] = read_names(table.frame[table.columns[role]].iloc[at]).tolist()
    texts = [*SEQUENCES, *NAMES, "censored"]
    if pairs.beside is not None:
        stored = set() if pairs.features is None else set(pairs.features.in_store)
        for name, values in pairs.beside.iloc[at].items():
            if str(name).partition(":")[2] not in stored:  # a store has them for the next round
                frame[name] = values.to_numpy()
        texts += [name for name in map(str, frame) if name.startswith("category:")]
    return frame.astype(dict.fromkeys(texts, "string"))


def read_measured_rows(run: Path, quantity: Quantity) -> pd.DataFrame:
    """Read what a run measured, as `measured_rows` returns it; raise `DamagedFile`."""
    path = run / MEASURED
    try:
        frame = quantity.inward(pd.read_parquet(path), "pkd")
        columns = list(map(str, frame.columns))
        beside = columns[len(COLUMNS) :]
        are_known = all(name.startswith(BESIDE) for name in beside)
        problem = ""
        if columns != [*COLUMNS, *beside] or not are_known:
            problem = f"has the columns {columns}"
        else:
            frame = frame.astype({"pkd": np.float64, "round": np.int64, "row": np.int64})
            numbers = [name for name in beside if not name.startswith("category:")]
            frame = frame.astype(dict.fromkeys(numbers, np.float64))
            is_relation = frame["censored"].isin(list(_OF_KD.values()))
            is_whole = np.isfinite(frame["pkd"]) & is_relation & (frame["round"] >= 0)
            if quantity.classes:
                is_whole &= frame["pkd"].isin(range(len(quantity.classes)))
            if not len(frame) or not is_whole.all():
                problem = "has invalid rows"
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = f"cannot be read ({' '.join(str(error).split())})"
    if problem:
        msg = (
            f"{path}: {problem}; expected the measured pairs of a run. Copy the whole run folder "
            "again, or fit it again with this version of abag."
        )
        raise DamagedFile(msg)
    return frame


def describe_history(pairs: LabelledPairs, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what each round brought: see ``rounds`` of `RunSummary`."""
    assert pairs.round_of_row is not None
    number = pairs.round_of_row[pairs.row]
    exact = pairs.censored == 0
    sign = pairs.quantity.sign
    rows = list[dict[str, Any]]()
    best = -np.inf  # of labels of which higher is better
    for at, entry in enumerate(history):
        in_round = number == at
        labels = sign * pairs.pkd[in_round & exact]
        better = int((labels > best).sum()) if at else None
        best_of_batch = sign * float(labels.max()) if len(labels) else None
        best = max(best, labels.max(initial=-np.inf))
        row = {
            "source": entry["source"],
            "expected_best": entry["expected_best"],
            "errors": entry.get("errors"),
            "round": at,
            "pairs": int(in_round.sum()),
            "best": best_of_batch,
            "better": better,
            "best_so_far": sign * float(best) if np.isfinite(best) else None,
        }
        rows.append(row)
    return rows


def round_cells(rounds: Sequence[Mapping[str, Any]], quantity: Quantity) -> list[tuple[str, ...]]:
    """Return the cells of `COLUMN_NAMES`, a row per round."""

    def number(value: float | None) -> str:
        return "-" if value is None else quantity.show(value)

    rows = list[tuple[str, ...]]()
    for entry in rounds:
        errors = entry.get("errors")
        cells = (
            str(entry["round"]),
            printable(str(entry["source"])),
            f"{entry['pairs']:,}",
            number(entry["best"]),
            "-" if entry["better"] is None else f"{entry['better']:,}",
            number(entry["best_so_far"]),
            number(entry["expected_best"]),
            number(None if errors is None else errors["rmse"]),
        )
        rows.append(cells)
    return rows


def describe_promises(
    regimes: Sequence[Mapping[str, Any]], rounds: Sequence[Mapping[str, Any]], quantity: Quantity
) -> list[str]:
    """Say which pairs the scores of a campaign speak for; nothing of a run of one round."""
    lines = []
    for regime in regimes:
        if "by_round" in regime:
            first, later = (_apart_in_words(score, quantity) for score in regime["by_round"])
            words = regime["by_round"][0]["words"]
            lines.append(f"{words}: round 0: {first}; later rounds: {later}")
    if lines:
        lines.append(
            "The scores of all rounds together mix two kinds of pairs: those of round 0 speak for "
            "pairs like its own, those of later rounds for selected ones, such as the next batch."
        )
    return [*lines, *describe_batches(rounds, quantity)]


def describe_batches(rounds: Sequence[Mapping[str, Any]], quantity: Quantity) -> list[str]:
    """Say in a line how far off the predictions of earlier batches were, if any came back."""
    batches = []
    for entry in rounds:
        if entry.get("errors") is not None:
            errors = entry["errors"]
            in_words = (
                f"RMSE {quantity.show(errors['rmse'])} (sigma {quantity.show(errors['sigma'])})"
            )
            if quantity.classes:
                square = errors["rmse"] ** 2
                expected = errors["sigma"] ** 2
                in_words = f"{quantity.squared_error} {square:.3f} (expected {expected:.3f})"
            pairs = counted(errors["pairs"], "pair")
            if missed := errors.get("missed_bounds", 0):
                pairs += f", and {counted(missed, 'bound')} on the wrong side of the prediction"
            batches.append(f"round {entry['round']}: {in_words} of {pairs}")
    if not batches:
        return []
    return [f"predictions of batches before they were measured: {'; '.join(batches)}"]


def _apart_in_words(score: Mapping[str, Any], quantity: Quantity) -> str:
    text = f"RMSE {quantity.show(score['rmse'])} {quantity}"
    claim = score["spearman"]
    name = "Spearman"
    if "classes" in score:
        text = f"{quantity.squared_error} {score['classes']['brier']:.3f}"
        claim = score["classes"]["average_precision"]
        name = "average precision"
    if claim is not None:
        text += f", {name} {claim['value']:z.2f}"
        if claim["low"] is not None:
            text += f" [{claim['low']:z.2f}, {claim['high']:z.2f}]"
    return f"{text} ({counted(score['n'], 'pair')})"


# ---- rounds that contradict or repeat each other ------------------------------------------------


def refuse_contradictions(measured: pd.DataFrame, new: pd.DataFrame, pairs: LabelledPairs) -> None:
    """Raise `RunError` if `new` rows, those of `pairs`, contradict what was measured before."""
    source = pairs.table.source
    quantity = pairs.quantity
    labels = pd.concat([measured, new], ignore_index=True)
    exact = labels.loc[labels["censored"] == "", "pkd"]
    conflict = CONFLICT_PKD if quantity.affinity else spread_of(exact)
    conflicts = _other_antibodies(measured, new)
    if not quantity.classes:  # answers that differ are counted on both sides
        conflicts += _other_labels(measured, new, quantity, conflict)
    if not conflicts:
        return
    shown = "; ".join(conflicts[:LISTED])
    if len(conflicts) > LISTED:
        shown += f"; and {len(conflicts) - LISTED:,} more"
    rows = counted(len(conflicts), "row")
    msg = (
        f"{source}: contradicts earlier rounds in {rows}: {shown}. Expected the same antibody "
        "under one name, and labels of one pair that differ by at most "
        f"{quantity.show(conflict)} {quantity}. Correct or remove these rows."
    )
    raise RunError(msg)


def _other_antibodies(measured: pd.DataFrame, new: pd.DataFrame) -> list[str]:
    """List rows whose name is of another antibody in an earlier round."""
    conflicts = []
    for role in ("antibody_name", "id"):
        chains = [role, "heavy", "light"]
        round_of: dict[str, dict[tuple[str, str], int]] = {}
        for name, heavy, light, number in measured[[*chains, "round"]].itertuples(index=False):
            round_of.setdefault(name, {}).setdefault((heavy, light), number)
        antibodies = new[chains].drop_duplicates()[role].value_counts()
        for name, heavy, light, row in new[[*chains, "row"]].itertuples(index=False):
            earlier = round_of.get(name, {})
            is_number = name.replace(".", "", 1).isdigit()  # of rows, which each table counts anew
            if not name or is_number or not earlier or (heavy, light) in earlier:
                continue
            if len(earlier) > 1 or antibodies[name] > 1:  # of a parent or family, not of one
                continue
            number = min(earlier.values())
            conflicts.append(f"row {row}: {quoted(name)} is another antibody in round {number}")
    return list(dict.fromkeys(conflicts))


def _other_labels(
    measured: pd.DataFrame, new: pd.DataFrame, quantity: Quantity, conflict: float
) -> list[str]:
    """List rows whose label is far from that of the same pair in earlier rounds."""
    both = pd.concat([measured.assign(is_new=False), new.assign(is_new=True)], ignore_index=True)
    both["pair"] = both.groupby(columns_of_pair(both)).ngroup()
    side = both["censored"].map({text: side for side, text in relations_of(quantity).items()})
    rows = pd.DataFrame(
        {"antibody": both["pair"], "antigen": 0, "pkd": both["pkd"], "censored": side}
    )
    of_all = disagreement(rows).droplevel(1)
    # what one round contradicts itself in is for --replicates
    of_earlier = disagreement(rows[~both["is_new"]]).droplevel(1)
    of_new = disagreement(rows[both["is_new"]]).droplevel(1)
    inside = pd.concat([of_earlier, of_new]).groupby(level=0).max().reindex(of_all.index)
    far = of_all.index[(of_all > conflict) & ~(inside > conflict)]
    earlier = both[~both["is_new"]].drop_duplicates("pair")
    results = both[both["is_new"] & both["pair"].isin(far)]
    results = results.merge(earlier, on="pair", suffixes=("", "_before"))
    conflicts = []
    for row in results.to_dict("records"):
        conflicts.append(
            f"row {row['row']}: {quantity} {quantity.show(row['pkd'])}, but "
            f"{quantity.show(row['pkd_before'])} in round {row['round_before']} for the same pair "
            f"(row {row['row_before']} there)"
        )
    return conflicts


def columns_of_pair(rows: pd.DataFrame) -> list[str]:
    """Return the columns in which the measurements of a pair are equal."""
    return [*SEQUENCES, *(name for name in map(str, rows) if name.startswith("category:"))]


def without_repeats(
    measured: pd.DataFrame, new: pd.DataFrame, source: str, quantity: Quantity
) -> pd.DataFrame:
    """Leave out measurements that the earlier rounds have; refuse a table of nothing else.

    The others keep their index. Labels that were written anew are known by most of those of pairs
    that were measured before: a single one may be as near by chance.
    """
    of_pair = [*columns_of_pair(measured), "censored"]
    labels = new[[*of_pair, "pkd"]].assign(number=np.arange(len(new))).sort_values("pkd")
    before = measured[[*of_pair, "pkd"]].sort_values("pkd")
    before["before"] = before["pkd"]
    near = pd.merge_asof(
        labels,
        before,
        on="pkd",
        by=of_pair,
        direction="nearest",
    ).set_index("number")
    difference = (near["pkd"] - near["before"]).abs().sort_index().to_numpy(np.float64)
    repeated = difference <= SAME_LABEL
    if quantity.affinity:
        rewritten = difference <= SAME_LABEL_PKD
        if 2 * rewritten.sum() > np.isfinite(difference).sum():
            repeated = rewritten
    if repeated.all():
        msg = (
            f"{source}: all {counted(len(new), 'measurement')} are in the earlier run; expected "
            "the results of another round. Give the table that has them."
        )
        raise RunError(msg)
    if repeated.any():
        rows = counted(int(repeated.sum()), "measurement")
        say(f"{source}: {rows} of earlier rounds, with the same labels, count once")
    return new[~repeated]
