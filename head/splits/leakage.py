"""How much of the test part the training part gives away: counted for every split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from abag.head.splits.splits import TEST, TRAIN, Split

if TYPE_CHECKING:
    from abag.head.splits.groups import PairGroups
    from abag.head.splits.splits import Ints, Parts


def count_leaks(part: Parts, groups: PairGroups) -> dict[str, dict[str, int]]:
    """Count the test rows with a training row of the same or a similar sequence.

    Parameters
    ----------
    part : NDArray, shape=(P,), dtype=int8
    groups : PairGroups

    Returns
    -------
    dict
        For ``pair``, ``antibody`` and ``antigen`` the number of test rows by closeness: ``exact``,
        or the identity at which the sequence shares a cluster with one in training. ``near`` of
        ``pair``: both sequences do, at the identities of the split.
    """
    return {
        kind: {level: _count_shared(labels, part) for level, labels in levels.items()}
        for kind, levels in groups.levels().items()
    }


def _count_shared(labels: Ints, part: Parts) -> int:
    return int(np.isin(labels[part == TEST], labels[part == TRAIN]).sum())


def describe_splits(splits: Sequence[Split]) -> list[str]:
    """Describe in lines how the pairs were split and why, and what leaks.

    Parameters
    ----------
    splits : sequence of Split
        As `make_splits` returns them.
    """
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
    for kind, levels in first["leaks"].items():
        totals = {at: sum(s.description["leaks"][kind][at] for s in splits) for at in levels}
        counts = ", ".join(f"{at} {n}" for at, n in totals.items())
        lines.append(f"test rows with a near-duplicate {kind} in training: {counts} (of {n_test})")
    for kind, levels in first["clusters"].items():
        sizes = ", ".join(f"{at} {size['clusters']}" for at, size in levels.items())
        lines.append(f"{kind} clusters by identity: {sizes}")
    return lines
