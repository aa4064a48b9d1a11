"""The ways to split a table of pairs, by name.

``--split NAME`` or ``--split NAME=VALUE`` selects a method of `SPLIT_METHODS`; `split_options` says
which values there are. No method cuts a group, and the same pairs and seed give the same parts
whatever the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Ints
from abag.core.messages import say
from abag.core.options import user_path
from abag.head.splits.groups import PairGroups
from abag.head.splits.split_files import read_splits
from abag.head.splits.split_options import SplitOptions
from abag.head.splits.splits import (
    PART_NAMES,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    BadSplit,
    EmptyPart,
    Split,
    grouped_folds,
)

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs

HELD_OUT_SHARE = 0.1
"""Share of the rows in the test part, and of the others in the validation part."""
ATTEMPTS = 20
"""Draws of a split by both sequences before an empty part is accepted."""


def split_by_groups(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Hold out whole groups: pairs, clusters of antigens, or clusters of antibodies."""
    return _hold_out_groups(groups.of_method(options.split), options)


def split_by_both(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Hold out antigens, and assign each antibody cluster to one part as well.

    Where this empties a part, antigens and antibodies are drawn again.
    """
    antibody_group, seed = groups.of_method("antibody"), options.effective_split_seed
    splits: list[Split] = []
    for attempt in range(ATTEMPTS):
        drawn = _hold_out_groups(groups.of_method("antigen"), options, attempt)
        cold = [
            _assign_antibodies(split, antibody_group, [seed, split.fold, attempt])
            for split in drawn
        ]
        splits = [s if _is_complete(s) else c for s, c in zip(splits or cold, cold, strict=True)]
        if all(map(_is_complete, splits)):
            break
    return splits


def split_by_mutations(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Train on variants near their parent, test on distant ones, validate on those between.

    Raises
    ------
    BadSplit
        With folds, or if the distances leave a part empty.
    """
    if options.folds:
        msg = (
            f"--split {options.split} --folds {options.folds}: this split has no folds. "
            "Leave out --folds or use another --split."
        )
        raise BadSplit(msg)
    distance = groups.mutations()
    near, far = _parse_distances(options) if options.split_value else _choose_distances(distance)
    part = np.where(distance <= near, TRAIN, np.where(distance >= far, TEST, VALIDATION))
    about = {"near": near, "far": far, "mutations": np.bincount(distance).tolist()}
    antibody, part = groups.pairs.antibody, part.astype(np.int8)
    return [Split(name="mutations", part=part, group=antibody, description=about)]


def split_by_column(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Use the parts named in a column; other values are groups to hold out.

    Raises
    ------
    BadSplit
        If there is no such column, or it cannot be used with these options.
    """
    pairs, column = groups.pairs, options.split_value
    frame = pairs.table.frame
    if column not in frame.columns:
        msg = (
            f"--split {options.split}: no such column; found {', '.join(map(str, frame.columns))}."
        )
        raise BadSplit(msg)
    cells = frame[column].astype(str).where(frame[column].notna(), "").str.strip()
    if divided := _count_divided(pairs, cells.to_numpy()):
        say(
            f"column {column!r}: {divided} pairs have replicates with different values; each pair "
            "is where its first row is"
        )
    values = cells.iloc[pairs.row]
    synonyms = {"training": "train", "valid": "validation", "val": "validation", "": "unused"}
    named = values.str.lower().replace(synonyms)
    if set(named) <= set(PART_NAMES):
        part = named.map(PART_NAMES).to_numpy().astype(np.int8)
        return [Split(name=options.split, part=part, group=groups.of_method("random"))]
    group, _ = pd.factorize(values, sort=True)
    return _hold_out_groups(group.astype(np.int64), options)


def _count_divided(pairs: LabelledPairs, value: NDArray[np.object_]) -> int:
    """Count the pairs whose replicates, merged into one, differ in a value of each row, (R,)."""
    if not pairs.counts.get("replicate_rows"):
        return 0
    table = pairs.table
    n_antigens = len(table.antigens.keys)
    of_row = table.antibodies.of_row * n_antigens + table.antigens.of_row
    # exact and censored labels of a pair are not merged
    found, times = np.unique(pairs.antibody * n_antigens + pairs.antigen, return_counts=True)
    used = np.isin(of_row, found[times == 1]) & table.frame[table.column("pkd")].notna().to_numpy()
    return int((pd.Series(value[used]).groupby(of_row[used]).nunique() > 1).sum())


def split_by_file(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Use the parts of a split file, see `read_splits`."""
    return read_splits(user_path(options.split_value, "--split file"), groups.pairs)


def _hold_out_groups(group: Ints, options: SplitOptions, attempt: int = 0) -> list[Split]:
    seed, splits = options.effective_split_seed, []
    if options.folds:
        repeats = [grouped_folds(group, options.folds, [seed, r]) for r in range(options.repeats)]
        tests = [fold == k for fold in repeats for k in range(options.folds)]
    else:
        tests = [_hold_out(group, np.ones(len(group), bool), options, [seed, 0, 0])]
    for i, test in enumerate(tests):
        validation = _hold_out(group, ~test, options, [seed, i, 1, attempt])
        part = np.where(test, TEST, np.where(validation, VALIDATION, TRAIN)).astype(np.int8)
        splits.append(Split(name=options.split, part=part, group=group, fold=i))
    return splits


def _hold_out(
    group: Ints, available: NDArray[np.bool_], options: SplitOptions, seed: Sequence[int]
) -> NDArray[np.bool_]:
    """Choose whole groups with about `HELD_OUT_SHARE` of the available rows; a mask, (P,)."""
    rows = np.flatnonzero(available)
    n_groups = len(np.unique(group[rows]))
    if n_groups < 2:
        msg = (
            f"--split {options.split}: the pairs form {len(np.unique(group))} groups; expected at "
            "least one for each of training, validation and test. Use another --split or other "
            "identities."
        )
        raise EmptyPart(msg)
    fold = grouped_folds(group[rows], min(round(1 / HELD_OUT_SHARE), n_groups), seed)
    deviation = np.abs(np.bincount(fold) / (HELD_OUT_SHARE * len(rows)) - 1)
    # The best fit is often the same single cluster: draw among all folds of about the right size.
    suitable = np.flatnonzero(deviation <= max(deviation.min(), 0.5))
    mask = np.zeros(len(group), bool)
    mask[rows[fold == np.random.default_rng(seed).choice(suitable)]] = True
    return mask


def _is_complete(split: Split) -> bool:
    return all(len(split.rows(part)) for part in (TRAIN, VALIDATION, TEST))


def _assign_antibodies(split: Split, antibody_group: Ints, seed: Sequence[int]) -> Split:
    """Discard the pairs whose antibody cluster is assigned to another part than their antigen.

    A cluster is assigned to the part of one of its pairs, drawn at random: a cluster that occurs
    in one part only loses nothing.
    """
    order = np.random.default_rng(seed).permutation(len(split.part))
    _, first = np.unique(antibody_group[order], return_index=True)
    assigned = split.part[order[first]][np.unique(antibody_group, return_inverse=True)[1]]
    part = np.where(assigned == split.part, split.part, np.int8(UNUSED))
    description = split.description | {"discarded": int((part == UNUSED).sum())}
    return replace(split, part=part, description=description)


def _parse_distances(options: SplitOptions) -> tuple[int, int]:
    near, _, far = options.split_value.partition(":")
    if not (near.isdigit() and far.isdigit() and int(near) + 1 < int(far)):
        msg = (
            f"--split {options.split}: expected NEAR:FAR, two numbers of mutations with at least "
            "one between them for validation, such as 5:8."
        )
        raise BadSplit(msg)
    return int(near), int(far)


def _choose_distances(distance: Ints) -> tuple[int, int]:
    """Choose the farthest tenth for test and the next tenth for validation, by whole distances."""
    distances = np.unique(distance)
    if len(distances) < 3:
        msg = (
            f"--split mutations: the antibodies have only {len(distances)} different distances to "
            "their parents; expected at least three. Use another --split."
        )
        raise EmptyPart(msg)
    far = max(distances[2], int(np.quantile(distance, 1 - HELD_OUT_SHARE)))
    rest = distance[distance < far]
    between = min(max(distances[1], int(np.quantile(rest, 1 - HELD_OUT_SHARE))), rest.max())
    return int(between) - 1, int(far)


SPLIT_METHODS: dict[str, Callable[[PairGroups, SplitOptions], list[Split]]] = {
    "random": split_by_groups,
    "antigen": split_by_groups,
    "antibody": split_by_groups,
    "both": split_by_both,
    "mutations": split_by_mutations,
    "column": split_by_column,
    "file": split_by_file,
}
