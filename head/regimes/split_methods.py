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
from abag.head.regimes.regimes import OF_SPLIT, REGIMES, MeasuredRegime, RegimesOfTable
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
    read_splits,
    total_leaks,
)

if TYPE_CHECKING:
    from pathlib import Path

    from abag.head.data.labels import LabelledPairs
    from abag.head.regimes.splits import Parts


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
    """Hold out residues at positions of a library, see `abag.head.regimes.regimes`.

    Raises
    ------
    BadSplit
        If the antibodies are no library, or too few have mutations of their own.
    """
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

    Parameters
    ----------
    pairs : LabelledPairs
    options : SplitOptions, optional
    cache : Path, optional
        Folder that keeps clusters for the next call; None: they are not kept.

    Returns
    -------
    list of Split
        Their ``description`` holds the method and its reason, rows per part, the number of groups,
        clusters at several identities, and leaks.

    Raises
    ------
    BadSplit
        If a part would be empty, there are too few groups, or a column or file does not fit.
    MMseqsFailed
        If MMseqs2 is asked for and missing, or fails.
    """
    return divide(PairGroups(pairs, options or SplitOptions(), cache))


def divide(groups: PairGroups) -> list[Split]:
    """Split pairs that have been grouped, see `make_splits`."""
    options, why = groups.options, "as requested"
    if options.split_name == "auto":
        options, why = choose_split(groups, options)
    splits = SPLIT_METHODS[options.split_name](groups, options)
    for split in splits:
        _refuse_empty_parts(split)
    return _describe(splits, groups, options.split, why)


def _describe(splits: Sequence[Split], groups: PairGroups, name: str, why: str = "") -> list[Split]:
    """Add to splits what they hold out and what leaks."""
    shared = {
        "split": name,
        "why": why,
        "seed": groups.options.effective_split_seed,
        "of": len(splits),
        "clusters": groups.cluster_sizes(),
        "cluster_tool": groups.tools,
        "test_pairs": int(np.any([split.part == TEST for split in splits], axis=0).sum()),
    }
    described = []
    for split in splits:
        own = {"rows": split.rows_per_part(), "groups": len(distinct(split.group))}
        own |= {"leaks": _count_leaks(split.part, groups)} | split.description
        described.append(replace(split, description=shared | own))
    return described


def measure_regimes(groups: PairGroups) -> list[MeasuredRegime]:
    """Return the folds of every regime, or those of the split that was asked for.

    Raises
    ------
    BadSplit
        If a split was asked for and is impossible, or no regime can be measured.
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
    splits = divide(replace(groups, options=options))
    counted = [splits[0].group]
    if options.split_name == "both":
        counted = [groups.of_method("antibody"), groups.of_method("antigen")]
    return [MeasuredRegime(regime, tuple(splits), tuple(counted))]


def _count_leaks(part: Parts, groups: PairGroups) -> dict[str, dict[str, int]]:
    """Count the test rows with a training row of the same or a similar sequence, by closeness.

    ``exact``: the same sequence. A number: the identity at which the sequences share a cluster.
    ``near`` of ``pair``: both sequences share one, at the identities of the split. ``contained`` of
    ``antigen``: one is a peptide of the other, see `contained_peptides`. ``clone`` of ``antibody``:
    they share a cluster of clones.
    """
    test, train = part == TEST, part == TRAIN
    leaks = {
        kind: {at: int(np.isin(ids[test], ids[train]).sum()) for at, ids in levels.items()}
        for kind, levels in groups.levels().items()
    }
    if groups.options.antibody_by == "fv" and groups.are_clustered("antibody"):
        clones = groups.clones
        leaks["antibody"]["clone"] = int(np.isin(clones[test], clones[train]).sum())
    if len(groups.peptides):
        antigen = groups.pairs.antigen
        either = np.concatenate([groups.peptides, groups.peptides[:, ::-1]])
        seen = either[np.isin(either[:, 1], antigen[train]), 0]
        leaks["antigen"]["contained"] = int(np.isin(antigen[test], seen).sum())
    return leaks


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


def _refuse_empty_parts(split: Split) -> None:
    for part, name in ((TRAIN, "training"), (VALIDATION, "validation"), (TEST, "test")):
        if not len(split.rows(part)):
            msg = (
                f"--split {split.name}: the {name} part of {len(split.part)} pairs in "
                f"{len(distinct(split.group))} groups is empty; expected at least one pair. "
                "Use more rows or another --split."
            )
            raise EmptyPart(msg)


def describe_splits(splits: Sequence[Split]) -> list[str]:
    """Describe splits of `make_splits` in lines: how the pairs were split, why, and what leaks."""
    first = splits[0].description
    rows = ", ".join(f"{n} {name}" for name, n in first["rows"].items() if n or name != "unused")
    lines = [
        f"{first['split'].replace('_', ' ')}: {len(splits)} folds"
        if not first["why"]
        else f"split {first['split']}: {first['why']}",
        f"{rows} pairs" + (f" (first of {len(splits)} folds)" if len(splits) > 1 else ""),
    ]
    if first["split"] == "both":
        n = int(np.mean([split.description["discarded"] for split in splits]))
        lines.append(f"{n} pairs discarded: antibody and antigen in different parts")
    n_test = sum(split.description["rows"]["test"] for split in splits)
    for kind, totals in total_leaks(splits).items():
        counts = ", ".join(f"{at} {n}" for at, n in totals.items())
        lines.append(f"test rows with a near-duplicate {kind} in training: {counts} (of {n_test})")
    for kind, levels in first["clusters"].items():
        sizes = ", ".join(f"{at} {size['clusters']}" for at, size in levels.items())
        lines.append(f"{kind} clusters by identity: {sizes}")
    return lines
