"""The folds that measure each regime of pairs, or the parts of the split that was asked for.

Folds hold out pairs, sequences of one side, or of both; a held-out pair counts in the regime that
it is in, given the pairs that its fold trains on. A split that is asked for holds out clusters, and
counts all held-out pairs. No test part cuts a group, and the same pairs and seed give the same
parts whatever the order of the rows.
P pairs of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.core.arrays import Ints, distinct
from abag.core.errors import SplitError
from abag.core.messages import counted, say
from abag.core.options import user_path
from abag.embed.sequences.chains import KINDS
from abag.embed.sequences.columns import quote_names
from abag.head.data.cells import read_texts
from abag.head.data.label_options import SplitOptions
from abag.head.regimes.clusters import PairGroups
from abag.head.regimes.held_out import HELD_OUT_SHARE, held_out_parts, with_validation
from abag.head.regimes.leaks import count_leaks
from abag.head.regimes.regime_folds import (
    FOLDS,
    LEAST_PAIRS,
    MeasuredRegime,
    RegimesOfTable,
    is_enough,
    of_all_held_out,
    with_counts,
)
from abag.head.regimes.regimes import OF_SPLIT, REGIMES
from abag.head.regimes.sides import LEAST_GROUPS, Sides, effective_groups, sides_of
from abag.head.regimes.splits import (
    PART_NAMES,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    Split,
    describe_named,
    is_tested,
    numbered,
    part_names,
    read_splits,
)

if TYPE_CHECKING:
    from pathlib import Path

    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.data.labels import LabelledPairs


def measure_regimes(groups: PairGroups, sides: Sides | None = None) -> list[MeasuredRegime]:
    """Return the folds of every regime, or those of the split that was asked for.

    `sides` are those of the pairs, if they are known already.

    Raises
    ------
    SplitError
        If the pairs are too few or too dependent, or a part would be empty.
    """
    options = groups.options
    sides = sides or sides_of(groups)
    if options.split_name == "auto":
        regimes = RegimesOfTable(groups, sides).measured()
        if not any(measured.splits for measured in regimes):
            reasons = regimes[0].why_not.removeprefix("not measured: ")
            n_pairs = len(distinct(groups.pair))
            msg = (
                f"{groups.pairs.table.source}: {counted(n_pairs, 'distinct pair')}, too few to "
                f"measure any model on held-out ones ({reasons}); expected at least {LEAST_PAIRS} "
                "pairs. Measure more, or use --split random."
            )
            raise SplitError(msg)
        described = []
        for measured in regimes:
            splits = _describe(measured.splits, groups, measured.regime.name)
            described.append(replace(measured, splits=tuple(splits)))
        return described
    if not options.folds and options.split_name not in ("column", "file"):
        # a fit measures on folds, where others need one split
        options = replace(options, folds=FOLDS)
    splits = divide(groups, options)
    independent = _counted_groups(groups, splits[0])
    name = OF_SPLIT[options.split_name]
    if options.split_name == "mutations":
        name = RegimesOfTable(groups, sides).of_mutations
    if options.split_name == "random" and groups.pairs.no_antigen:  # each pair is an antibody
        regime, splits = of_all_held_out(splits, sides)
        return [MeasuredRegime(regime, tuple(splits), tuple(independent))]
    splits = [with_unseen(split, sides) for split in splits]
    return [MeasuredRegime(REGIMES[name], tuple(splits), tuple(independent))]


def with_unseen(split: Split, sides: Sides) -> Split:
    """Count the unseen residues of the pairs of a split, if there are libraries."""
    if split.unseen is not None or not sides.has_library:
        return split
    antibody, antigen = sides.compare(split.rows(TRAIN))
    return with_counts(split, antibody, antigen)


def make_splits(
    pairs: LabelledPairs, options: SplitOptions | None = None, *, cache: Path | None = None
) -> list[Split]:
    """Split the pairs once, or into folds times repeats; ``auto``: the folds of every regime.

    `cache` keeps clusters for the next call; ``description`` has what is held out, and leaks.
    """
    groups = PairGroups(pairs, options or SplitOptions(), cache)
    if groups.options.split_name != "auto":
        return divide(groups, groups.options)
    splits = list[Split]()
    for measured in measure_regimes(groups):
        splits += measured.splits
    return numbered(splits)


def strictest_split(groups: PairGroups) -> str:
    """Name the strictest split that a table allows by clusters of one kind, or else by variants."""
    for method in ("antigen", "antibody"):
        if effective_groups(groups.of_method(method)) >= LEAST_GROUPS:
            return method
    return "mutations" if sides_of(groups).has_library else "random"


def divide(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Split pairs that have been grouped by a method of `SPLIT_METHODS`, see `make_splits`."""
    splits = SPLIT_METHODS[options.split_name](groups, options)
    for split in splits:
        _refuse_empty_parts(split)
    if not groups.options.folds and is_enough(splits[0], _counted_groups(groups, splits[0])):
        splits = splits[:1]
    if groups.pairs.censored[is_tested(splits)].all():
        msg = (
            f"--split {options.split}: the labels of all test pairs are bounds; expected exact "
            "ones, from which errors are measured. Use another --split."
        )
        raise SplitError(msg)
    return _describe(splits, groups, options.split)


def _counted_groups(groups: PairGroups, split: Split) -> list[Ints]:
    """Return what counts as one measurement of a split, (P,) each."""
    return [groups.antibody, groups.antigen] if split.name == "both" else [split.group]


def _describe(splits: Sequence[Split], groups: PairGroups, name: str) -> list[Split]:
    if not splits:
        return []
    shared = {
        "split": name,
        "seed": groups.options.effective_split_seed,
        "of": len(splits),
        "clusters": groups.cluster_sizes(),
        "test_pairs": int(is_tested(splits).sum()),
    }
    described = []
    for split in splits:
        counts = {
            "rows": split.rows_per_part(),
            "groups": len(distinct(split.group)),
            "leaks": count_leaks(split.part, groups),
        }
        described.append(replace(split, description=shared | counts | split.description))
    return described


def _refuse_empty_parts(split: Split) -> None:
    n = split.rows_per_part()
    groups = counted(len(distinct(split.group)), "group")
    for name in ("train", "validation", "test"):
        if not n[name]:
            msg = (
                f"--split {split.name}: the {name} part of {counted(len(split.part), 'pair')} in "
                f"{groups} is empty; expected at least one pair. Use more rows or another --split."
            )
            raise SplitError(msg)


def all_pairs(measured: Sequence[MeasuredRegime]) -> Split:
    """Return the split that trains on every pair which any fold uses, with the first's groups."""
    splits = list[Split]()
    for regime in measured:
        splits += regime.splits
    used = np.any([split.part != UNUSED for split in splits], axis=0)
    part = np.where(used, TRAIN, UNUSED).astype(np.int8)
    return replace(splits[0], name="all", part=part, fold=0, description={})


def split_by_groups(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Hold out whole groups: pairs, clusters of antigens, of antibodies, or of both."""
    kinds = KINDS if options.split == "both" else (options.split,)
    held = [groups.of_method(kind) for kind in kinds]
    return _hold_out(held, options)


def split_by_mutations(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Hold out mutations of a library; raise `SplitError` if no side is one."""
    table = RegimesOfTable(groups)
    if not table.sides.has_library:
        msg = (
            "--split mutations: neither the antibodies nor the antigens are variants of one; "
            "expected one cluster with more than half of the pairs. Use another --split."
        )
        raise SplitError(msg)
    measured = table.measure(REGIMES[table.of_mutations])
    if measured.why_not:
        msg = f"--split mutations: {measured.why_not}. Use another --split."
        raise SplitError(msg)
    splits = measured.splits if options.folds else measured.splits[:1]
    return [replace(split, name="mutations") for split in splits]


def split_by_column(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Use the parts named in a column; if no cell names one, its values are groups to hold out."""
    pairs = groups.pairs
    column = options.split_value
    frame = pairs.table.frame
    if column not in frame.columns:
        columns = ", ".join(map(str, frame.columns))
        msg = f"--split {options.split}: no such column; found {columns}."
        raise SplitError(msg)
    cells = read_texts(frame[column])
    labelled = frame[pairs.table.column("pkd")].notna().to_numpy()
    parts = part_names(cells[labelled], f"{pairs.table.source}: column {column!r}")
    has_parts = bool((parts.notna() & (parts != "unused")).any())
    if has_parts:
        _refuse_other_names(pairs.table, column, parts)
    values = parts if has_parts else cells[labelled]
    of_row = pairs.table.antibodies.of_row * len(frame) + pairs.table.antigens.of_row
    values_per_pair = values.groupby(of_row[labelled]).nunique()
    divided = int((values_per_pair > 1).sum())
    if divided and pairs.counts["replicate_rows"]:
        say(
            f"column {column!r}: {divided} pairs have replicates with different values; each pair "
            "is where its first row is"
        )
    values = values.reindex(cells.index).iloc[pairs.row]
    if has_parts:
        say(f"split: column {column!r}: {describe_named(cells.iloc[pairs.row], values)}")
        part = values.map(PART_NAMES).to_numpy().astype(np.int8)
        named = Split(name=options.split, part=part, group=groups.pair)
        return [_with_validation_part(named, groups, f"column {column!r}")]
    # sorted: the folds do not depend on the order of the rows
    group, names = pd.factorize(values, sort=True)
    splits = _hold_out([group.astype(np.int64)], options)
    say(f"split: column {column!r}: no train or test in it; {_describe_held_out(splits, names)}")
    return splits


def _refuse_other_names(table: SequenceTable, column: str, parts: pd.Series[Any]) -> None:
    """Refuse cells that name no part in a column of parts: as groups, they would mix its parts."""
    other = parts.index[parts.isna()]
    if len(other):
        at = int(table.frame.index.get_indexer(other[:1])[0])
        others = f" ({counted(len(other), 'such row')})" if len(other) > 1 else ""
        msg = (
            f"{table.describe_cell(at, column)} is not the name of a part, as other cells are; "
            f"expected train, validation, test or an empty cell{others}. Correct it."
        )
        raise SplitError(msg)


def _describe_held_out(splits: Sequence[Split], names: pd.Index) -> str:
    """Say that the values of a column are groups, and which of them are tested."""
    text = f"its {len(names):,} values are groups"
    if "" in names:
        empty = int((splits[0].group == names.get_loc("")).sum())
        text += f", one of them {counted(empty, 'pair')} with an empty cell"
    if len(splits) > 1:
        return f"{text}, held out in {len(splits)} folds"
    test_groups = distinct(splits[0].group[splits[0].rows(TEST)])
    tested = names[test_groups]
    more = ", ..." if len(tested) > 3 else ""
    return f"{text}; the test part is {quote_names(tested[:3])}{more}"


def split_by_file(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Use the parts of a split file, which has to hold the same pairs."""
    path = user_path(options.split_value, "--split file")
    splits = read_splits(path, groups.pairs)
    return [_with_validation_part(split, groups, str(path)) for split in splits]


def _with_validation_part(split: Split, groups: PairGroups, where: str) -> Split:
    """Take a validation part from the training part of a split that names only train and test.

    It is as new to the rest as the test part is to both: of other clusters of antigens, or else of
    antibodies, or of other groups of the split.
    """
    rows = split.rows_per_part()
    if rows["validation"] or not (rows["train"] and rows["test"]):
        return split
    group = split.group
    held_out = "groups of the split"
    for kind in ("antigen", "antibody"):
        if not groups.are_clustered(kind):
            continue
        clusters = groups.of_method(kind)
        if not np.isin(clusters[split.rows(TEST)], clusters[split.rows(TRAIN)]).any():
            group = clusters
            held_out = f"{kind} clusters, as the test part is"
            break
    seed = [groups.options.effective_split_seed, split.fold]
    part = with_validation(split.part, group, seed)
    taken = np.flatnonzero(part == VALIDATION)
    rest = np.flatnonzero(part == TRAIN)
    if np.isin(group[taken], group[rest]).any():
        held_out = "single pairs: its groups are too large"
    elif group is split.group and len(distinct(group[taken])) == len(taken):
        held_out = "single pairs"
    say(
        f"split: {where}: no validation part; {len(taken):,} of {rows['train']:,} train pairs are "
        f"taken for it ({held_out})"
    )
    return replace(split, part=part)


def _hold_out(held: Sequence[Ints], options: SplitOptions) -> list[Split]:
    """Hold out each group once; without folds, about `HELD_OUT_SHARE` of the pairs."""
    seed = options.effective_split_seed
    folds = options.folds
    fewest = min(len(distinct(group)) for group in held)
    if fewest < 2:
        msg = (
            f"--split {options.split}: the pairs form {counted(fewest, 'group')}; expected 2 or "
            "more, one to hold out. Use another --split or other identities."
        )
        raise SplitError(msg)
    n = folds or min(round(1 / HELD_OUT_SHARE), fewest)
    held_out = [*held_out_parts(held, n, options.repeats, seed)]
    if not folds:
        held_out = [min(held_out, key=lambda fold: abs(fold.test.mean() - HELD_OUT_SHARE))]
    splits = list[Split]()
    for fold in held_out:
        part = with_validation(fold.parts(), held[-1], [seed, len(splits)])
        splits.append(Split(name=options.split, part=part, group=held[-1], fold=len(splits)))
    return splits


SPLIT_METHODS: dict[str, Callable[[PairGroups, SplitOptions], list[Split]]] = {
    **dict.fromkeys(("random", "antigen", "antibody", "both"), split_by_groups),
    "mutations": split_by_mutations,
    "column": split_by_column,
    "file": split_by_file,
}
"""Methods of ``--split`` by name; `measure_regimes` has the folds of ``auto``."""
