"""Pairs -> training, validation and test parts that do not leak into each other.

What must stay together is a group: a cluster of antigens or antibodies (`head.clustering`), a
value of a column, or, under ``random``, just the pair. No group is ever cut, and the same pairs
and seed give the same parts whatever the order of the rows. Each split carries the count of what
leaks in spite of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.core.keys import hex_keys
from abag.head.data.groups import PairGroups
from abag.head.data.options import SplitOptions

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs

Ints: TypeAlias = NDArray[np.int64]
Parts: TypeAlias = NDArray[np.int8]

TRAIN, VALIDATION, TEST, UNUSED = 0, 1, 2, -1
PART_NAMES = {"train": TRAIN, "validation": VALIDATION, "test": TEST, "unused": UNUSED}
FRACTIONS = (0.8, 0.1, 0.1)
HELD_OUT = 0.1
"""Share of the rows in test, and then in validation."""
MANY_GROUPS = 30
"""From this many on, one split is a fair sample of the groups; below, folds are repeated."""
FEW_GROUPS = 5
"""Below this there are not even folds to be had."""
FOLDS, REPEATS = 5, 4
"""What is done where one split would be luck: 20 of them."""
COLLAPSED = 0.5
"""A cluster with more of the rows than this leaves nothing to hold out beside it."""


ATTEMPTS = 20
"""Draws before a cold-both split is given up for its empty part."""


class BadSplit(AbagError):
    """What was asked for is not a split of this table."""


class TooFewGroups(BadSplit):
    """More folds were asked for than there are groups to keep apart."""


class EmptyPart(BadSplit):
    """A split would leave training, validation or test without a row."""


class SplitFileMismatch(BadSplit):
    """A split file and the table do not hold the same pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which part each pair belongs to."""

    name: str
    part: Parts
    """Shape (P,): 0 training, 1 validation, 2 test, -1 unused."""
    group: Ints
    """Shape (P,): what is kept together; also the unit of inner folds and of the bootstrap."""
    fold: int = 0
    """Number among all folds of all repeats."""
    description: dict[str, Any] = field(default_factory=dict)
    """What was done and why, and what leaks, in numbers that the report prints."""

    def rows(self, part: int) -> Ints:
        """Indices of the pairs of one part."""
        return np.flatnonzero(self.part == part)


def make_splits(
    pairs: LabelledPairs, options: SplitOptions | None = None, *, cache: Path | None = None
) -> list[Split]:
    """Split the pairs: one split, or folds times repeats of them.

    Parameters
    ----------
    pairs : LabelledPairs
    options : SplitOptions, optional
    cache : path, optional
        Folder that keeps computed clusters for the next call; None: they are not kept.

    Returns
    -------
    list of Split
        Each with its ``description``: the choice and its reason, rows a part, groups, clusters at
        several identities, and leaks.

    Raises
    ------
    BadSplit
        If a part would be empty, there are too few groups, or a column or file does not fit.
    """
    options = options or SplitOptions()
    grouping = group_pairs(pairs, options, cache)
    if options.split == "auto":
        options, why = _choose(grouping, options)
    else:
        why = "asked for"
    kind, _, value = options.split.partition("=")
    if kind in ("random", "antigen", "antibody"):
        splits = _by_group(grouping.of(kind), kind, options)
    elif kind == "both":
        splits = _cold_both(grouping, options)
    elif kind == "mutations":
        splits = [_by_mutations(pairs, grouping, value, options)]
    elif kind == "column":
        splits = _by_column(pairs, value, options)
    else:
        splits = read_splits(Path(value), pairs)
    shared = {
        "split": options.split,
        "why": why,
        "seed": options.effective_split_seed,
        "of": len(splits),
    }
    shared |= {"clusters": grouping.clusters(), "cluster_tool": grouping.tools}
    return [_described(_checked(split), shared, grouping) for split in splits]


def random_split(
    antibody: Ints,
    antigen: Ints,
    seed: int,
    fractions: tuple[float, float, float] = FRACTIONS,
) -> Split:
    """Split unique (antibody, antigen) pairs at random.

    Replicates of a pair stay together. The result depends on the ids and the seed, not on the
    order of the rows.

    Parameters
    ----------
    antibody, antigen : NDArray, shape=(P,), dtype=int64
    seed : int
    fractions : tuple of float
        Shares of training, validation and test.

    Raises
    ------
    EmptyPart
    """
    group = pair_ids(antibody, antigen)
    n_groups = int(group.max(initial=-1)) + 1
    bounds = np.round(np.cumsum(fractions)[:2] / np.sum(fractions) * n_groups).astype(int)
    dealt = np.full(n_groups, TEST, np.int8)
    order = np.random.default_rng(seed).permutation(n_groups)
    dealt[order[: bounds[1]]] = VALIDATION
    dealt[order[: bounds[0]]] = TRAIN
    return _checked(Split(name="random", part=dealt[group], group=group))


def pair_ids(antibody: Ints, antigen: Ints) -> Ints:
    """Number the unique (antibody, antigen) pairs in the order of their ids, shape (P,)."""
    joined = antibody * (antigen.max(initial=0) + 1) + antigen
    return np.unique(joined, return_inverse=True)[1].astype(np.int64)


def grouped_folds(group: Ints, folds: int, seed: int | Sequence[int]) -> Ints:
    """Deal whole groups to folds of about equal rows.

    Large groups go first, each to the fold with the fewest rows; the order is blurred by the
    seed, so that repeats differ even where every group has its own size.

    Parameters
    ----------
    group : NDArray, shape=(P,), dtype=int64
        Group of each row; only which rows share one matters, and the order of the ids.
    folds : int
    seed : int or sequence of int

    Returns
    -------
    NDArray, shape=(P,), dtype=int64
        Fold of each row, in ``range(folds)``.

    Raises
    ------
    TooFewGroups
    """
    _, dense, sizes = np.unique(group, return_inverse=True, return_counts=True)
    if len(sizes) < folds:
        msg = f"{folds} folds need at least as many groups; the rows form {len(sizes)}. "
        msg += "Give fewer --folds or another --split."
        raise TooFewGroups(msg)
    rng = np.random.default_rng(seed)
    if len(sizes) == len(group):
        # Single rows, maybe a million: no need to weigh them.
        return rng.permutation(len(group))[dense] % folds
    order = np.argsort(-sizes * rng.uniform(0.5, 1.0, len(sizes)), kind="stable")
    fold_of_group = np.empty(len(sizes), np.int64)
    loads = [(0, fold) for fold in rng.permutation(folds).tolist()]
    heapq.heapify(loads)
    for index, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        load, fold = loads[0]
        fold_of_group[index] = fold
        heapq.heapreplace(loads, (load + size, fold))
    return fold_of_group[dense]


def group_pairs(
    pairs: LabelledPairs, options: SplitOptions, cache: Path | None = None
) -> PairGroups:
    """Prepare the groups of the pairs' sequences; clusters are computed when first asked for."""
    return PairGroups(
        pairs=pairs,
        identity={"antibody": options.antibody_identity, "antigen": options.antigen_identity},
        antibody_by=options.antibody_by,
        tool=options.cluster_tool,
        cache=cache,
    )


def _choose(grouping: PairGroups, options: SplitOptions) -> tuple[SplitOptions, str]:
    """Find the strictest split that the table can bear, and say why."""
    for kind in ("antigen", "antibody"):
        sizes = np.bincount(grouping.of(kind))
        share = sizes.max() / sizes.sum()
        clusters = f"{kind} cluster{'s' * (len(sizes) > 1)}"
        found = f"{len(sizes)} {clusters}, the largest with {share:.0%} of the rows"
        if len(sizes) >= FEW_GROUPS and share <= COLLAPSED:
            if options.folds or len(sizes) >= MANY_GROUPS:
                return replace(options, split=kind), f"{found}: held out whole"
            folds = replace(options, split=kind, folds=FOLDS, repeats=REPEATS)
            return folds, f"{found}: too few for one split, so {FOLDS} folds are dealt {REPEATS}x"
    if options.folds:
        return replace(options, split="random"), f"{found}: nothing to hold out but single pairs"
    if share > COLLAPSED and len(np.unique(grouping.mutations())) >= 3:
        return replace(options, split="mutations"), f"{found}: variants, so the far are held out"
    return replace(options, split="random"), f"{found}: nothing to hold out but single pairs"


def _by_group(group: Ints, name: str, options: SplitOptions, attempt: int = 0) -> list[Split]:
    everything = np.ones(len(group), bool)
    tests = []
    for repeat in range(options.repeats if options.folds else 0):
        fold = grouped_folds(group, options.folds, [options.effective_split_seed, repeat])
        tests += [fold == k for k in range(options.folds)]
    if not options.folds:
        tests = [_held_out(name, group, everything, [options.effective_split_seed, 0, 0])]
    splits = []
    for i, test in enumerate(tests):
        validation = _held_out(name, group, ~test, [options.effective_split_seed, i, 1, attempt])
        part = np.where(test, TEST, np.where(validation, VALIDATION, TRAIN)).astype(np.int8)
        splits.append(Split(name=name, part=part, group=group, fold=i))
    return splits


def _held_out(
    name: str, group: Ints, rows: NDArray[np.bool_], seed: Sequence[int]
) -> NDArray[np.bool_]:
    """Choose whole groups of about a tenth of the rows."""
    inside = np.flatnonzero(rows)
    n_groups = len(np.unique(group[inside]))
    if n_groups < 2:
        msg = (
            f"--split {name}: {len(np.unique(group))} groups; training, validation and test need "
            "one each. Give another --split, or other identities."
        )
        raise EmptyPart(msg)
    fold = grouped_folds(group[inside], min(round(1 / HELD_OUT), n_groups), seed)
    off = np.abs(np.bincount(fold) / (HELD_OUT * len(inside)) - 1)
    # The closest is often the same one cluster: any fold of about the right size will do.
    fair = np.flatnonzero(off <= max(off.min(), 0.5))
    mask = np.zeros(len(group), bool)
    mask[inside[fold == np.random.default_rng(seed).choice(fair)]] = True
    return mask


def _cold_both(grouping: PairGroups, options: SplitOptions) -> list[Split]:
    """Split by antigens, then give each antibody cluster to one part as well.

    Where that takes a small validation part its last row, both are drawn again.
    """
    antibody_group = grouping.of("antibody")
    splits: list[Split] = []
    for attempt in range(ATTEMPTS):
        drawn = _by_group(grouping.of("both"), "both", options, attempt)
        cold = [
            _cold_antibodies(s, antibody_group, [options.effective_split_seed, s.fold, attempt])
            for s in drawn
        ]
        splits = [s if _is_whole(s) else c for s, c in zip(splits or cold, cold, strict=True)]
        if all(map(_is_whole, splits)):
            break
    return splits


def _is_whole(split: Split) -> bool:
    return all(len(split.rows(part)) for part in (TRAIN, VALIDATION, TEST))


def _cold_antibodies(split: Split, antibody_group: Ints, seed: Sequence[int]) -> Split:
    """Leave out the rows whose antibody cluster belongs to another part than their antigen.

    A cluster belongs to the part of one of its rows, drawn at random: where it was measured on
    one side only, nothing is lost.
    """
    order = np.random.default_rng(seed).permutation(len(split.part))
    _, first = np.unique(antibody_group[order], return_index=True)
    home = split.part[order[first]][np.unique(antibody_group, return_inverse=True)[1]]
    part = np.where(home == split.part, split.part, np.int8(UNUSED))
    description = split.description | {"discarded": int((part == UNUSED).sum())}
    return replace(split, part=part, description=description)


def _by_mutations(
    pairs: LabelledPairs, grouping: PairGroups, value: str, options: SplitOptions
) -> Split:
    """Train near the parents, test far from them; what lies between is for validation."""
    if options.folds:
        msg = f"--split {options.split} --folds {options.folds}: there is one such split, no folds."
        raise BadSplit(msg)
    distance = grouping.mutations()
    near, far = _given_distances(value) if value else _usual_distances(distance)
    part = np.where(distance <= near, TRAIN, np.where(distance >= far, TEST, VALIDATION))
    description = {"near": near, "far": far, "mutations": np.bincount(distance).tolist()}
    return Split(
        name="mutations",
        part=part.astype(np.int8),
        group=pairs.antibody,
        description=description,
    )


def _given_distances(value: str) -> tuple[int, int]:
    near, _, far = value.partition(":")
    if not (near.isdigit() and far.isdigit() and int(near) + 1 < int(far)):
        msg = (
            f"--split mutations={value}: expected NEAR:FAR, two numbers of mutations with at least "
            "one between them for validation, such as 5:8."
        )
        raise BadSplit(msg)
    return int(near), int(far)


def _usual_distances(distance: Ints) -> tuple[int, int]:
    """The farthest tenth for test, the next tenth for validation; shells stay whole."""
    shells = np.unique(distance)
    if len(shells) < 3:
        msg = (
            f"--split mutations: the antibodies lie at {len(shells)} distances from their parents; "
            "near, between and far need three. Give another --split."
        )
        raise EmptyPart(msg)
    far = max(shells[2], int(np.quantile(distance, 1 - HELD_OUT)))
    rest = distance[distance < far]
    middle = min(max(shells[1], int(np.quantile(rest, 1 - HELD_OUT))), rest.max())
    return int(middle) - 1, int(far)


def _by_column(pairs: LabelledPairs, name: str, options: SplitOptions) -> list[Split]:
    """Take the parts that a column names; any other values are groups to hold out whole."""
    frame = pairs.table.frame
    if name not in frame.columns:
        msg = f"--split column={name}: no such column; found {', '.join(map(str, frame.columns))}."
        raise BadSplit(msg)
    values = frame[name].iloc[pairs.row]
    values = values.astype(str).where(values.notna(), "").str.strip()
    synonyms = {"training": "train", "valid": "validation", "val": "validation", "": "unused"}
    named = values.str.lower().replace(synonyms)
    group, _ = pd.factorize(values, sort=True)
    if not set(named) <= set(PART_NAMES):
        return _by_group(group.astype(np.int64), f"column={name}", options)
    part = named.map(PART_NAMES).to_numpy().astype(np.int8)
    ids = pair_ids(pairs.antibody, pairs.antigen)
    return [Split(name=f"column={name}", part=part, group=ids)]


def split_frame(pairs: LabelledPairs, splits: Sequence[Split]) -> pd.DataFrame:
    """Write splits down by key, one row a pair and fold: what ``file=PATH`` reads.

    Returns
    -------
    DataFrame
        ``antibody_key``, ``antigen_key`` (hex), ``split``, ``fold``, ``group``.
    """
    frames = [split_assignments(pairs, split) for split in splits]
    return pd.concat(frames, ignore_index=True).drop_duplicates(ignore_index=True)


def split_assignments(pairs: LabelledPairs, split: Split) -> pd.DataFrame:
    """Tell the part of every pair, by key: row numbers would mean nothing in another table.

    Returns
    -------
    DataFrame, P rows
        The columns of :func:`split_frame`; a pair that was measured twice has two rows.
    """
    names = np.array(list(PART_NAMES))  # UNUSED, -1, is the last
    return pd.DataFrame(
        {
            "antibody_key": hex_keys(pairs.antibody_keys()),
            "antigen_key": hex_keys(pairs.antigen_keys()),
            "split": names[split.part],
            "fold": split.fold,
            "group": split.group,
        }
    )


def read_splits(path: Path, pairs: LabelledPairs) -> list[Split]:
    """Read the splits of another run, or anyone's, and lay them over these pairs.

    Parameters
    ----------
    path : Path
        Parquet or CSV with ``antibody_key``, ``antigen_key``, ``split`` and, if there are several,
        ``fold``; ``group`` if it has one.
    pairs : LabelledPairs

    Raises
    ------
    SplitFileMismatch
        If the file misses a pair of the table or holds one that the table has not.
    """
    frame = _read_frame(path)
    wanted = pd.DataFrame(
        {
            "antibody_key": hex_keys(pairs.antibody_keys()),
            "antigen_key": hex_keys(pairs.antigen_keys()),
        }
    )
    splits = []
    for number, (_, fold) in enumerate(frame.groupby("fold", sort=True)):
        laid = wanted.merge(fold, how="outer", indicator="side", validate="m:1", sort=False)
        missed, unknown = (
            int((laid["side"] == side).sum()) for side in ("left_only", "right_only")
        )
        if missed or unknown:
            msg = (
                f"{path}: fold {number} misses {missed} pairs of the table and holds {unknown} "
                "that it has not; expected the same pairs. Split the table anew with --split."
            )
            raise SplitFileMismatch(msg)
        laid = wanted.merge(fold, how="left", validate="m:1")
        group, _ = pd.factorize(laid["group"], sort=True)
        part = laid["split"].map(PART_NAMES).to_numpy().astype(np.int8)
        name = f"file={path.name}"
        splits.append(Split(name=name, part=part, group=group.astype(np.int64), fold=number))
    return splits


def _read_frame(path: Path) -> pd.DataFrame:
    if not path.is_file():
        msg = f"--split file={path}: no such file; expected the splits.parquet of a run."
        raise BadSplit(msg)
    try:
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        msg = f"{path}: cannot be read: {' '.join(str(error).split())}; expected Parquet or CSV. "
        raise BadSplit(msg + "Give the splits.parquet of a run.") from error
    absent = [c for c in ("antibody_key", "antigen_key", "split") if c not in frame.columns]
    if absent:
        msg = f"{path}: no column {', '.join(absent)}; found {', '.join(map(str, frame.columns))}. "
        raise BadSplit(msg + "Give the splits.parquet of a run.")
    odd = sorted(set(frame["split"].astype(str)) - set(PART_NAMES))
    if odd:
        msg = f"{path}: split {odd[0]!r} is unknown; expected one of {', '.join(PART_NAMES)}."
        raise BadSplit(msg)
    frame = frame.assign(fold=frame.get("fold", 0))
    if "group" not in frame.columns:
        frame["group"] = frame.groupby(["antibody_key", "antigen_key"]).ngroup()
    columns = ["antibody_key", "antigen_key", "split", "fold", "group"]
    frame = frame[columns].reset_index(drop=True)
    if frame.duplicated(["antibody_key", "antigen_key", "fold"]).any():
        msg = f"{path}: puts one pair into two parts of one fold; expected one. Mend the file."
        raise BadSplit(msg)
    return frame


def _checked(split: Split) -> Split:
    """Return the split if every part has a row."""
    for part, name in ((TRAIN, "training"), (VALIDATION, "validation"), (TEST, "test")):
        if not len(split.rows(part)):
            msg = (
                f"--split {split.name}: the {name} part is empty, of {len(split.part)} pairs in "
                f"{len(np.unique(split.group))} groups; every part needs one. "
                "Give more rows or another --split."
            )
            raise EmptyPart(msg)
    return split


def _described(split: Split, shared: dict[str, Any], grouping: PairGroups) -> Split:
    rows = {name: len(split.rows(number)) for name, number in PART_NAMES.items()}
    leaks = count_leaks(split.part, grouping)
    own = {"rows": rows, "groups": len(np.unique(split.group)), "leaks": leaks}
    return replace(split, description=shared | own | split.description)


def count_leaks(part: Parts, grouping: PairGroups) -> dict[str, dict[str, int]]:
    """Test rows whose pair, antibody or antigen training has seen, exactly or nearly.

    Nearly means a cluster mate: another member of the same cluster at the identity named.

    Returns
    -------
    dict
        ``pair``, ``antibody`` and ``antigen`` to the number of test rows by ``exact`` and by each
        identity; ``pair`` ``near`` means both sides at the split's own identities.
    """
    return {
        kind: {level: _seen(labels, part) for level, labels in levels.items()}
        for kind, levels in grouping.levels().items()
    }


def _seen(labels: Ints, part: Parts) -> int:
    return int(np.isin(labels[part == TEST], labels[part == TRAIN]).sum())


def describe_splits(splits: Sequence[Split]) -> list[str]:
    """Say in lines what was split how, why, and what leaks; for stderr and the report."""
    first = splits[0].description
    rows = ", ".join(f"{n} {name}" for name, n in first["rows"].items() if n or name != "unused")
    lines = [
        f"split {first['split']}: {first['why']}",
        f"{rows} pairs" + (f", first of {len(splits)} folds" if len(splits) > 1 else ""),
    ]
    if first["split"] == "both":
        n = int(np.mean([s.description["discarded"] for s in splits]))
        lines.append(f"{n} pairs discarded: antibody and antigen in different parts")
    tests = sum(s.description["rows"]["test"] for s in splits)
    for kind, levels in first["leaks"].items():
        totals = {at: sum(s.description["leaks"][kind][at] for s in splits) for at in levels}
        counts = ", ".join(f"{at} {n}" for at, n in totals.items())
        lines.append(f"test rows with a training mate, {kind}: {counts} (of {tests})")
    for kind, levels in first["clusters"].items():
        sizes = ", ".join(f"{at} {size['clusters']}" for at, size in levels.items())
        lines.append(f"{kind} clusters by identity: {sizes}")
    return lines
