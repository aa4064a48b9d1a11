"""Pairs -> training, validation and test parts that do not leak into each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from abag.head.splits.groups import PairGroups
from abag.head.splits.leakage import count_leaks
from abag.head.splits.split_methods import SPLIT_METHODS, SplitRequest
from abag.head.splits.split_options import SplitOptions
from abag.head.splits.splits import TEST, TRAIN, VALIDATION, EmptyPart, Split

if TYPE_CHECKING:
    from pathlib import Path

    from abag.head.data.labels import LabelledPairs

MANY_GROUPS = 30
"""From this many groups on, ``auto`` makes a single split; with fewer it makes repeated folds."""
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
    options = options or SplitOptions()
    groups = group_pairs(pairs, options, cache)
    request = SplitRequest(
        options.split, options.folds, options.repeats, options.effective_split_seed
    )
    why = "as requested"
    if request.name == "auto":
        request, why = _choose(groups, request)
    splits = SPLIT_METHODS[request.name].split(groups, request)
    for split in splits:
        _refuse_empty_parts(split)
    shared = {"split": request.text, "why": why, "seed": request.seed, "of": len(splits)}
    shared |= {"clusters": groups.cluster_sizes(), "cluster_tool": groups.tools}
    return [
        replace(
            split,
            description=shared
            | {
                "rows": split.rows_per_part(),
                "groups": len(np.unique(split.group)),
                "leaks": count_leaks(split.part, groups),
            }
            | split.description,
        )
        for split in splits
    ]


def group_pairs(
    pairs: LabelledPairs, options: SplitOptions, cache: Path | None = None
) -> PairGroups:
    """Prepare the groups of the pairs' sequences, which are computed on first use."""
    return PairGroups(
        pairs=pairs,
        identity={"antibody": options.antibody_identity, "antigen": options.antigen_identity},
        antibody_by=options.antibody_by,
        tool=options.cluster_tool,
        cache=cache,
    )


def _choose(groups: PairGroups, request: SplitRequest) -> tuple[SplitRequest, str]:
    """Find the strictest split that the table allows, and give the reason."""
    for method in ("antigen", "antibody"):
        sizes = np.bincount(groups.of_method(method))
        share = sizes.max() / sizes.sum()
        clusters = f"{method} cluster{'s' * (len(sizes) > 1)}"
        found = f"{len(sizes)} {clusters}, the largest with {share:.0%} of the rows"
        if len(sizes) >= FEW_GROUPS and share <= LARGEST_SHARE:
            request = request._replace(text=method)
            if request.folds or len(sizes) >= MANY_GROUPS:
                return request, f"{found}; whole clusters are held out"
            why = f"{found}; too few for one split: {FOLDS}-fold, repeated {REPEATS} times"
            return request._replace(folds=FOLDS, repeats=REPEATS), why
    if not request.folds and share > LARGEST_SHARE and len(np.unique(groups.mutations())) >= 3:
        return request._replace(text="mutations"), f"{found}; distant variants are held out"
    return request._replace(text="random"), f"{found}; only single pairs can be held out"


def _refuse_empty_parts(split: Split) -> None:
    for part, name in ((TRAIN, "training"), (VALIDATION, "validation"), (TEST, "test")):
        if not len(split.rows(part)):
            msg = (
                f"--split {split.name}: the {name} part of {len(split.part)} pairs in "
                f"{len(np.unique(split.group))} groups is empty; expected at least one pair. "
                "Use more rows or another --split."
            )
            raise EmptyPart(msg)
