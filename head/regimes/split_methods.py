"""Pairs -> training, validation and test parts that do not leak into each other.

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

from abag.core.arrays import Ints, distinct
from abag.core.messages import say
from abag.core.options import user_path
from abag.head.regimes.groups import PairGroups
from abag.head.regimes.leaks import count_leaks
from abag.head.regimes.regimes import (
    OF_SPLIT,
    REGIMES,
    MeasuredRegime,
    RegimesOfTable,
    is_enough,
)
from abag.head.regimes.split_options import SplitOptions
from abag.head.regimes.splits import (
    PART_NAMES,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    BadSplit,
    EmptyPart,
    Split,
    TooFewGroups,
    grouped_folds,
    is_trainable,
    read_splits,
)

if TYPE_CHECKING:
    from pathlib import Path

    from abag.head.data.labels import LabelledPairs


HELD_OUT_SHARE = 0.1
"""Share of the rows in the test part, and of the others in the validation part."""
ATTEMPTS = 20
"""Draws of a split by both sequences before an empty part is accepted."""
MIN_TEST_GROUPS = 10
"""If the test part of one split holds fewer groups, ``auto`` makes repeated folds."""
FEW_GROUPS = 5
"""With fewer groups ``auto`` does not hold them out."""
FOLDS, REPEATS = 5, 4
LARGEST_SHARE = 0.5
"""A cluster with a larger share of the pairs leaves too little to hold out."""


def split_by_groups(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Hold out whole groups: pairs, clusters of antigens, or clusters of antibodies."""
    return _hold_out_groups(groups.of_method(options.split), options)


def split_by_both(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Hold out antigens, and assign each antibody cluster to one part as well.

    Where this empties a part, antigens and antibodies are drawn again.
    """
    antibody_group, seed = groups.antibody, options.effective_split_seed
    if (n := len(distinct(antibody_group))) < 3:
        msg = (
            f"--split both: the pairs have {n} antibody cluster{'s' * (n != 1)}; expected at least "
            "one for each of training, validation and test. Use --split antigen."
        )
        raise EmptyPart(msg)
    splits: list[Split] = []
    for attempt in range(ATTEMPTS):
        drawn = _hold_out_groups(groups.antigen, options, attempt)
        cold = [
            _assign_antibodies(split, antibody_group, [seed, split.fold, attempt])
            for split in drawn
        ]
        splits = [
            kept if is_trainable(kept.part) else other
            for kept, other in zip(splits or cold, cold, strict=True)
        ]
        if all(is_trainable(split.part) for split in splits):
            break
    return splits


def split_by_mutations(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Hold out residues at positions of a library, see `abag.head.regimes.regimes`."""
    folds = options.folds or FOLDS
    table = RegimesOfTable(groups, options.effective_split_seed, folds, options.repeats)
    if not table.is_library:
        msg = (
            "--split mutations: the antibodies are not variants of one; expected one cluster with "
            "more than half of the pairs. Use another --split."
        )
        raise BadSplit(msg)
    found = table.measure(REGIMES["new_mutations"])
    if found.why_not:
        msg = f"--split mutations: {found.why_not}. Use another --split."
        raise BadSplit(msg)
    splits = found.splits if options.folds else found.splits[:1]
    return [replace(split, name="mutations") for split in splits]


def split_by_column(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Use the parts named in a column; other values are groups to hold out."""
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
        return [Split(name=options.split, part=part, group=groups.pair)]
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


SPLIT_METHODS: dict[str, Callable[[PairGroups, SplitOptions], list[Split]]] = {
    "random": split_by_groups,
    "antigen": split_by_groups,
    "antibody": split_by_groups,
    "both": split_by_both,
    "mutations": split_by_mutations,
    "column": split_by_column,
    "file": split_by_file,
}


def make_splits(
    pairs: LabelledPairs, options: SplitOptions | None = None, *, cache: Path | None = None
) -> list[Split]:
    """Split the pairs once, or into folds times repeats.

    The folder `cache` keeps clusters for the next call. ``description`` of the splits holds the
    method and its reason, rows per part, the number of groups, clusters, and leaks. Raises
    `BadSplit` if a part would be empty, there are too few groups, or a column or file does not fit.
    """
    options = options or SplitOptions()
    return divide(PairGroups(pairs, options, cache), options)


def divide(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Split pairs that have been grouped, see `make_splits`."""
    why = "as requested"
    if options.split_name == "auto":
        options, why = choose_split(groups, options)
    splits = SPLIT_METHODS[options.split_name](groups, options)
    is_given = options.split_name in ("column", "file")
    for split in splits:
        _refuse_bad_parts(split, is_given)
    if not groups.options.folds and is_enough(splits[0], _counted_groups(groups, splits[0])):
        splits = splits[:1]
    return _describe(splits, groups, options.split, why)


def _counted_groups(groups: PairGroups, split: Split) -> list[Ints]:
    """Return what counts as one measurement of a split, (P,) each."""
    return [groups.antibody, groups.antigen] if split.name == "both" else [split.group]


def _describe(splits: Sequence[Split], groups: PairGroups, name: str, why: str = "") -> list[Split]:
    """Add to splits what they hold out and what leaks."""
    shared = {
        "split": name,
        "why": why,
        "seed": groups.options.effective_split_seed,
        "of": len(splits),
        "clusters": groups.cluster_sizes(),
        "test_pairs": int(np.any([split.part == TEST for split in splits], axis=0).sum()),
    }
    described = []
    for split in splits:
        own = {"rows": split.rows_per_part(), "groups": len(distinct(split.group))}
        own |= {"leaks": count_leaks(split.part, groups)} | split.description
        described.append(replace(split, description=shared | own))
    return described


def measure_regimes(groups: PairGroups) -> list[MeasuredRegime]:
    """Return the folds of every regime, or those of the split that was asked for.

    Raises `BadSplit` if that is impossible, or no regime can be measured.
    """
    options = groups.options
    if options.split_name == "auto":
        folds = {"folds": options.folds} if options.folds else {}
        table = RegimesOfTable(
            groups, options.effective_split_seed, repeats=options.repeats, **folds
        )
        found = table.measured()
        if not any(one.splits for one in found):
            reasons = "; ".join(f"{one.regime.words}: {one.why_not}" for one in found)
            msg = (
                f"{groups.pairs.table.source}: too few pairs to measure any model on held-out "
                f"ones ({reasons}). Use more pairs, or --split random."
            )
            raise TooFewGroups(msg)
        return [
            replace(one, splits=tuple(_describe(one.splits, groups, one.regime.name)))
            if one.splits
            else one
            for one in found
        ]
    regime = REGIMES[OF_SPLIT[options.split_name]]
    if not options.folds and options.split_name not in ("column", "file"):
        options = replace(options, folds=FOLDS)
    splits = divide(groups, options)
    return [MeasuredRegime(regime, tuple(splits), tuple(_counted_groups(groups, splits[0])))]


def choose_split(groups: PairGroups, options: SplitOptions) -> tuple[SplitOptions, str]:
    """Find the strictest split by clusters of one kind, or else by variants; give the reason."""
    for method in ("antigen", "antibody"):
        sizes = np.bincount(groups.of_method(method))
        share = sizes.max() / sizes.sum()
        clusters = f"{method} cluster{'s' * (len(sizes) > 1)}"
        found = f"{len(sizes)} {clusters}, the largest with {share:.0%} of the rows"
        if len(sizes) >= FEW_GROUPS and share <= LARGEST_SHARE:
            options = replace(options, split=method)
            if options.folds:
                return options, f"{found}; whole clusters are held out"
            (single,) = SPLIT_METHODS[method](groups, options)
            tested = len(distinct(single.group[single.rows(TEST)]))
            if tested >= MIN_TEST_GROUPS:
                return options, f"{found}; {tested} whole clusters are tested"
            why = f"{found}; one test part would hold {tested}, fewer than {MIN_TEST_GROUPS}"
            why += f": {FOLDS}-fold, repeated {REPEATS} times"
            return replace(options, folds=FOLDS, repeats=REPEATS), why
    if share > LARGEST_SHARE and RegimesOfTable(groups, 0).is_library:
        return replace(options, split="mutations"), f"{found}; new mutations are held out"
    return replace(options, split="random"), f"{found}; only single pairs can be held out"


def _refuse_bad_parts(split: Split, is_given: bool) -> None:
    """Raise if a part is empty, or validation pairs outnumber training pairs that were drawn."""
    n = {part: len(split.rows(part)) for part in (TRAIN, VALIDATION, TEST)}
    what = f"of {len(split.part)} pairs in {len(distinct(split.group))} groups"
    for part, name in ((TRAIN, "training"), (VALIDATION, "validation"), (TEST, "test")):
        if not n[part]:
            msg = (
                f"--split {split.name}: the {name} part {what} is empty; expected at least one "
                "pair. Use more rows or another --split."
            )
            raise EmptyPart(msg)
    if not is_given and n[TRAIN] <= n[VALIDATION]:
        msg = (
            f"--split {split.name}: a fold {what} trains on {n[TRAIN]} pairs and validates on "
            f"{n[VALIDATION]}; expected more for training. Use more rows or another --split."
        )
        raise EmptyPart(msg)
