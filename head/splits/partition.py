"""Pairs -> training, validation and test parts that do not leak into each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import distinct
from abag.head.splits.groups import PairGroups
from abag.head.splits.split_methods import SPLIT_METHODS
from abag.head.splits.split_options import SplitOptions
from abag.head.splits.splits import TEST, TRAIN, VALIDATION, EmptyPart, Split, total_leaks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from abag.head.data.labels import LabelledPairs
    from abag.head.splits.splits import Parts

MIN_TEST_GROUPS = 10
"""If the test part of one split holds fewer groups, ``auto`` makes repeated folds."""
FEW_GROUPS = 5
"""With fewer groups ``auto`` does not hold them out."""
FOLDS, REPEATS = 5, 4
LARGEST_SHARE = 0.5
"""A cluster with a larger share of the pairs leaves too little to hold out."""


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
    shared = {
        "split": options.split,
        "why": why,
        "seed": options.effective_split_seed,
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


def _count_leaks(part: Parts, groups: PairGroups) -> dict[str, dict[str, int]]:
    """Count the test rows with a training row of the same or a similar sequence, by closeness.

    ``exact``: the same sequence. A number: the identity at which the sequences share a cluster.
    ``near`` of ``pair``: both sequences share one, at the identities of the split. ``contained`` of
    ``antigen``: one is a peptide of the other, see `contained_peptides`.
    """
    test, train = part == TEST, part == TRAIN
    leaks = {
        kind: {at: int(np.isin(ids[test], ids[train]).sum()) for at, ids in levels.items()}
        for kind, levels in groups.levels().items()
    }
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
    if not options.folds and share > LARGEST_SHARE and len(np.unique(groups.mutations())) >= 3:
        return replace(options, split="mutations"), f"{found}; distant variants are held out"
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
        f"split {first['split']}: {first['why']}",
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
