"""Pairs -> the folds that measure each regime, or the parts of the split that was asked for.

Each regime has folds of its own, which hold out what is new in it; held-out pairs count only if
they are in the regime, given the pairs that their fold trains on. Antigens are held out by clusters
of the split's identity, but known from `KNOWN_ANTIGEN` on: pairs in between are not tested. A split
that is asked for holds out the same, and counts all held-out pairs. No test part cuts a group, and
the same pairs and seed give the same parts whatever the order of the rows.
P pairs of a table, N unique antibodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Ints, distinct
from abag.core.cache import cache_dir
from abag.core.messages import counted, say
from abag.core.options import user_path
from abag.embed.sequences.chains import KINDS
from abag.embed.sequences.columns import quote_names
from abag.embed.sequences.numbering import number_antibodies
from abag.head.data.options import SplitOptions
from abag.head.regimes.clusters import PairGroups
from abag.head.regimes.leaks import count_leaks
from abag.head.regimes.regimes import OF_SPLIT, REGIMES, Regime, SeenMutations
from abag.head.regimes.splits import (
    PART_NAMES,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    BadSplit,
    Parts,
    Split,
    describe_named,
    grouped_folds,
    is_trainable,
    part_names,
    read_splits,
)

if TYPE_CHECKING:
    from pathlib import Path

    from abag.embed.sequences.chains import Chains
    from abag.embed.sequences.domains import ChainName
    from abag.embed.sequences.numbering import Numbered
    from abag.embed.sequences.pairs import SequenceTable
    from abag.head.data.labels import LabelledPairs

FOLDS = 5
LEAST_GROUPS = 5.0
"""Effective groups below which a regime cannot be measured."""
ENOUGH_GROUPS = 50.0
"""Effective test groups from which one fold is enough, in tables of `LARGE_TABLE` pairs."""
LARGE_TABLE = 5_000
LEAST_ROWS = 10
LIBRARY_SHARE = 0.5
"""A cluster of antibodies with a larger share of the pairs makes the table a library."""
FULLEST = 1.2
"""Most pairs of a fold in `_beside_folds`, relative to an equal share."""
HELD_OUT_SHARE = 0.1
"""Share of the pairs in the test part of a single split, and of the others in a validation part."""


@dataclass(frozen=True, slots=True)
class MeasuredRegime:
    """The folds that measure a regime, or the reason that there are none."""

    regime: Regime
    splits: tuple[Split, ...] = ()
    groups: tuple[Ints, ...] = ()
    """Each (P,): pairs of one group are one measurement. With two sequences new, there are two."""
    why_not: str = ""


def effective_groups(group: Ints) -> float:
    """Return how many groups of equal size are as informative: (sum w)^2 / sum w^2."""
    if not len(group):
        return 0.0
    size = np.unique(group, return_counts=True)[1].astype(np.float64)
    return float(size.sum() ** 2 / np.square(size).sum())


def _informative(groups: Sequence[Ints], rows: Ints) -> float:
    return min(effective_groups(group[rows]) for group in groups)


def is_enough(split: Split, groups: Sequence[Ints]) -> bool:
    """Whether one fold measures a regime well enough: other folds only take time."""
    is_large = len(split.part) >= LARGE_TABLE
    return is_large and _informative(groups, split.rows(TEST)) >= ENOUGH_GROUPS


def measure_regimes(groups: PairGroups) -> list[MeasuredRegime]:
    """Return the folds of every regime, or those of the split that was asked for."""
    options = groups.options
    if options.split_name == "auto":
        found = RegimesOfTable(groups).measured()
        if not any(one.splits for one in found):
            reasons = "; ".join(f"{one.regime.words}: {one.why_not}" for one in found)
            msg = (
                f"{groups.pairs.table.source}: too few pairs to measure any model on held-out "
                f"ones ({reasons}). Use more pairs, or --split random."
            )
            raise BadSplit(msg)
        return [
            replace(one, splits=tuple(_describe(one.splits, groups, one.regime.name)))
            for one in found
        ]
    if not options.folds and options.split_name not in ("column", "file"):
        options = replace(options, folds=FOLDS)
    splits = divide(groups, options)
    counted = _counted_groups(groups, splits[0])
    return [MeasuredRegime(REGIMES[OF_SPLIT[options.split_name]], tuple(splits), tuple(counted))]


def make_splits(
    pairs: LabelledPairs, options: SplitOptions | None = None, *, cache: Path | None = None
) -> list[Split]:
    """Split the pairs once, or into folds times repeats; ``auto``: the folds of every regime.

    `cache` keeps clusters for the next call; ``description`` has what is held out, and leaks.
    """
    groups = PairGroups(pairs, options or SplitOptions(), cache)
    if groups.options.split_name != "auto":
        return divide(groups, groups.options)
    splits = [split for one in measure_regimes(groups) for split in one.splits]
    return [replace(split, fold=fold) for fold, split in enumerate(splits)]


def strictest_split(groups: PairGroups) -> str:
    """Name the strictest split that a table allows by clusters of one kind, or else by variants."""
    for method in ("antigen", "antibody"):
        if effective_groups(groups.of_method(method)) >= LEAST_GROUPS:
            return method
    return "mutations" if RegimesOfTable(groups).is_library else "random"


def divide(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Split pairs that have been grouped by a method of `SPLIT_METHODS`, see `make_splits`."""
    splits = SPLIT_METHODS[options.split_name](groups, options)
    for split in splits:
        _refuse_empty_parts(split)
    if not groups.options.folds and is_enough(splits[0], _counted_groups(groups, splits[0])):
        splits = splits[:1]
    if groups.pairs.censored[np.any([split.part == TEST for split in splits], axis=0)].all():
        msg = (
            f"--split {options.split}: the labels of all test pairs are bounds; expected exact "
            "ones, from which errors are measured. Use another --split."
        )
        raise BadSplit(msg)
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
        "test_pairs": int(np.any([split.part == TEST for split in splits], axis=0).sum()),
    }
    described = []
    for split in splits:
        own = {
            "rows": split.rows_per_part(),
            "groups": len(distinct(split.group)),
            "leaks": count_leaks(split.part, groups),
        }
        described.append(replace(split, description=shared | own | split.description))
    return described


def _refuse_empty_parts(split: Split) -> None:
    n, groups = split.rows_per_part(), counted(len(distinct(split.group)), "group")
    for name in ("train", "validation", "test"):
        if not n[name]:
            msg = (
                f"--split {split.name}: the {name} part of {counted(len(split.part), 'pair')} in "
                f"{groups} is empty; expected at least one pair. Use more rows or another --split."
            )
            raise BadSplit(msg)


class RegimesOfTable:
    """Which regimes a table allows to measure, and the regime of its pairs in a fold."""

    def __init__(self, groups: PairGroups) -> None:
        self.groups, options = groups, groups.options
        self.seed = options.effective_split_seed
        self.folds, self.repeats = options.folds or FOLDS, options.repeats
        self.antibody, self.antigen = groups.antibody, groups.antigen
        sizes = np.bincount(self.antibody)
        unique = len(distinct(groups.pairs.antibody[self.antibody == sizes.argmax()]))
        self.is_library = (
            effective_groups(self.antibody) < LEAST_GROUPS
            and sizes.max() > LIBRARY_SHARE * sizes.sum()
            and unique >= LEAST_ROWS
        )

    def measured(self) -> list[MeasuredRegime]:
        """Return every regime with its folds, or with the reason that it cannot be measured."""
        names = ["known", "new_mutations" if self.is_library else "new_antibody"]
        return [self.measure(REGIMES[name]) for name in (*names, "new_antigen", "both_new")]

    def measure(self, regime: Regime) -> MeasuredRegime:
        held = self._held_out(regime)
        for name, group in held.items():
            if (informative := effective_groups(group)) < LEAST_GROUPS:
                return _not_measured(regime, len(distinct(group)), name, informative)
        groups, found = self._counted_groups(regime), list[Split]()
        for test, unused in self._tests(regime, [*held.values()]):
            part = np.where(test | unused, UNUSED, TRAIN).astype(np.int8)
            test = test & self._is_in(regime, np.flatnonzero(part == TRAIN))
            part[test] = TEST
            if not 0 < test.sum() < (part == TRAIN).sum():
                continue
            part = _with_validation(part, groups[-1], [self.seed, len(found)])
            if not is_trainable(part):
                continue
            found.append(Split(name=regime.name, part=part, group=groups[-1], fold=len(found)))
            if not self.groups.options.folds and is_enough(found[-1], groups):
                found = found[-1:]
                break
        tested = np.concatenate([np.zeros(0, np.int64), *(split.rows(TEST) for split in found)])
        tested = tested[self.groups.pairs.censored[tested] == 0]  # a bound has no error
        informative = _informative(groups, tested)
        if len(tested) < LEAST_ROWS:
            return _not_measured(regime, len(tested), "held-out pair", expected=LEAST_ROWS)
        if informative < LEAST_GROUPS:
            return _not_measured(regime, len(tested), "held-out pair", informative)
        return MeasuredRegime(regime, tuple(found), tuple(groups))

    def _held_out(self, regime: Regime) -> dict[str, Ints]:
        """Return what the folds of a regime hold out as a whole, (P,) each, by its name."""
        if not regime.new or self._of_mutations(regime):
            by_antigen = {"antigen cluster": self.antigen} if "antigen" in regime.new else {}
            return {"pair": self.groups.pair} | by_antigen
        return {f"{kind} cluster": self.groups.of_method(kind) for kind in regime.new}

    def _of_mutations(self, regime: Regime) -> bool:
        return self.is_library and "antibody" in regime.new

    def _counted_groups(self, regime: Regime) -> list[Ints]:
        """Return what counts as one measurement in a regime, (P,) each."""
        antibody = self.groups.pairs.antibody if self.is_library else self.antibody
        if not regime.new:
            cell = antibody * (self.antigen.max() + 1) + self.antigen
            return [np.unique(cell, return_inverse=True)[1]]
        sides = {"antibody": antibody, "antigen": self.antigen}
        return [sides[kind] for kind in regime.new]

    def _tests(self, regime: Regime, held: Sequence[Ints]) -> Iterator[tuple[Bools, Bools]]:
        """Yield the candidates for the test part of each fold, and pairs not used, (P,) each."""
        if not self._of_mutations(regime):
            yield from _held_out_parts(held, self.folds, self.repeats, self.seed)
            return
        for repeat in range(self.repeats):
            seed = [self.seed, repeat]
            sides = [self._mutation_folds(seed)]
            if "antigen" in regime.new:
                fold = grouped_folds(self.antigen, self.folds, [*seed, 1])
                sides.append([fold == k for k in range(self.folds)])
            yield from map(_divide_held_out, zip(*sides, strict=True))

    def _mutation_folds(self, seed: list[int]) -> list[Bools]:
        """Hold out residues at positions, each once: pairs whose antibody has one, (P,)."""
        pairs, (chains, numbered) = self.groups.pairs, self._numbered()
        used = distinct(pairs.antibody)
        x_NT = SeenMutations.tokens_of([chains[i] for i in used.tolist()], numbered)
        rng, share = np.random.default_rng([*seed, 9]), 1 / self.folds
        count_T = x_NT.sum(axis=0)
        queue = [
            t for t in rng.permutation(len(count_T)).tolist() if 0 < count_T[t] <= share * len(used)
        ]
        found = []
        for _ in range(self.folds):
            test_N, left = np.zeros(len(used), bool), list[int]()
            for t in queue:
                if test_N.mean() < 0.9 * share and (test_N | x_NT[:, t]).mean() <= 1.1 * share:
                    test_N |= x_NT[:, t]
                else:
                    left.append(t)
            queue = left
            found.append(np.isin(pairs.antibody, used[test_N]))
        return found

    def _is_in(self, regime: Regime, train: Ints) -> Bools:
        """Return which pairs are in a regime, given the training pairs, (P,)."""
        near, pairs = np.isin(self.antibody, self.antibody[train]), self.groups.pairs
        known_antibody, new_antibody = near, ~near
        if self.is_library:
            chains, numbered = self._numbered()
            trained = [chains[i] for i in distinct(pairs.antibody[train]).tolist()]
            is_new_N = SeenMutations.of(trained, numbered).is_new(chains, numbered)
            new_antibody = near & is_new_N[pairs.antibody]
            known_antibody = near & ~new_antibody
        near_antigen = self.groups.near_antigen
        known_antigen = np.isin(near_antigen, near_antigen[train])
        new_antigen = ~np.isin(self.antigen, self.antigen[train])
        return (new_antibody if "antibody" in regime.new else known_antibody) & (
            new_antigen if "antigen" in regime.new else known_antigen
        )

    def _numbered(self) -> tuple[Sequence[Chains], Mapping[ChainName, Numbered]]:
        chains = self.groups.pairs.table.antibodies.chains
        return chains, number_antibodies(chains, cache_dir() / "numbering")


def _not_measured(
    regime: Regime, n: int, name: str, informative: float = 0.0, expected: float = LEAST_GROUPS
) -> MeasuredRegime:
    """Say why a regime has no folds: too few pairs or clusters, or too unequal ones."""
    many = f"{n or 'no'} {name}{'s' * (n != 1)}"
    if name == "held-out pair":
        many += " of this kind"
    if informative and n >= expected:
        many += f", as informative as {informative:.1f} groups of equal size"
    return MeasuredRegime(regime, why_not=f"not measured: {many}; expected at least {expected:.0f}")


def _held_out_parts(
    held: Sequence[Ints], folds: int, repeats: int, seed: int
) -> Iterator[tuple[Bools, Bools]]:
    """Yield the test part of each fold, and pairs not used, (P,) each; `held` are kept whole."""
    first, *beside = held
    for repeat in range(repeats):
        of_pairs = [grouped_folds(first, folds, [seed, repeat, 0])]
        of_pairs += [_beside_folds(group, of_pairs[0], [seed, repeat, 1]) for group in beside]
        for k in range(folds):
            yield _divide_held_out([fold == k for fold in of_pairs])


def _divide_held_out(sides: Sequence[Bools]) -> tuple[Bools, Bools]:
    """Test pairs that are held out on all sides; do not use those of some sides only."""
    test = np.all(sides, axis=0)
    return test, np.any(sides, axis=0) & ~test


def _beside_folds(group: Ints, beside: Ints, seed: Sequence[int]) -> Ints:
    """Assign groups to the folds of other groups with most of their pairs, but fill none, (P,)."""
    rng, folds = np.random.default_rng(seed), int(beside.max()) + 1
    _, dense, size = np.unique(group, return_inverse=True, return_counts=True)
    shared = np.zeros((len(size), folds))
    np.add.at(shared, (dense, beside), 1)
    load, fold = np.zeros(folds), np.empty(len(size), np.int64)
    full = FULLEST * len(group) / folds
    for g in np.argsort(-size * rng.uniform(0.5, 1.0, len(size)), kind="stable").tolist():
        fits = load + size[g] <= full
        fold[g] = np.lexsort((rng.random(folds), load, -shared[g] * fits))[0]
        load[fold[g]] += size[g]
    return fold[dense]


def _with_validation(part: Parts, group: Ints, seed: Sequence[int]) -> Parts:
    """Turn groups with `HELD_OUT_SHARE` of the training pairs, or pairs, into validation pairs."""
    rows = np.flatnonzero(part == TRAIN)
    n_groups, wanted = len(distinct(group[rows])), round(1 / HELD_OUT_SHARE)
    fold = np.zeros(len(rows), np.int64)
    if n_groups >= 2:
        fold = grouped_folds(group[rows], min(wanted, n_groups), [*seed, 1])
    sizes = np.bincount(fold)
    chosen = np.abs(sizes - HELD_OUT_SHARE * len(rows)).argmin()
    if sizes[chosen] > 2 * HELD_OUT_SHARE * len(rows):
        fold = np.random.default_rng([*seed, 2]).permutation(len(rows)) % wanted
        chosen = 0
    part = part.copy()
    part[rows[fold == chosen]] = VALIDATION
    return part


def all_pairs(measured: Sequence[MeasuredRegime]) -> Split:
    """Return the split that trains on every pair which any fold uses, with the first's groups."""
    splits = [split for one in measured for split in one.splits]
    used = np.any([split.part != UNUSED for split in splits], axis=0)
    part = np.where(used, TRAIN, UNUSED).astype(np.int8)
    return replace(splits[0], name="all", part=part, fold=0, description={})


def split_by_groups(groups: PairGroups, options: SplitOptions) -> list[Split]:
    """Hold out whole groups: pairs, clusters of antigens, of antibodies, or of both."""
    kinds = KINDS if options.split == "both" else (options.split,)
    return _hold_out([groups.of_method(kind) for kind in kinds], options)


def split_by_mutations(groups: PairGroups, options: SplitOptions) -> list[Split]:
    table = RegimesOfTable(groups)
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
    """Use the parts named in a column; if no cell names one, its values are groups to hold out."""
    pairs, column = groups.pairs, options.split_value
    frame = pairs.table.frame
    if column not in frame.columns:
        found = ", ".join(map(str, frame.columns))
        msg = f"--split {options.split}: no such column; found {found}."
        raise BadSplit(msg)
    cells = frame[column].astype(str).where(frame[column].notna(), "").str.strip()
    labelled = frame[pairs.table.column("pkd")].notna().to_numpy()
    parts = part_names(cells[labelled], f"{pairs.table.source}: column {column!r}")
    has_parts = bool((parts.notna() & (parts != "unused")).any())
    if has_parts:
        _refuse_other_names(pairs.table, column, parts)
    values = parts if has_parts else cells[labelled]
    of_row = pairs.table.antibodies.of_row * len(frame) + pairs.table.antigens.of_row
    divided = int((values.groupby(of_row[labelled]).nunique() > 1).sum())
    if divided and pairs.counts["replicate_rows"]:
        say(
            f"column {column!r}: {divided} pairs have replicates with different values; each pair "
            "is where its first row is"
        )
    values = values.reindex(cells.index).iloc[pairs.row]
    if has_parts:
        say(f"split: column {column!r}: {describe_named(cells.iloc[pairs.row], values)}")
        part = values.map(PART_NAMES).to_numpy().astype(np.int8)
        return [Split(name=options.split, part=part, group=groups.pair)]
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
        raise BadSplit(msg)


def _describe_held_out(splits: Sequence[Split], names: pd.Index) -> str:
    """Say that the values of a column are groups, and which of them are tested."""
    text = f"its {len(names):,} values are groups"
    if "" in names:
        empty = int((splits[0].group == names.get_loc("")).sum())
        text += f", one of them {counted(empty, 'pair')} with an empty cell"
    if len(splits) > 1:
        return f"{text}, held out in {len(splits)} folds"
    tested = names[distinct(splits[0].group[splits[0].part == TEST])]
    listed = quote_names(tested[:3]) + (", ..." if len(tested) > 3 else "")
    return f"{text}; the test part is {listed}"


def split_by_file(groups: PairGroups, options: SplitOptions) -> list[Split]:
    return read_splits(user_path(options.split_value, "--split file"), groups.pairs)


def _hold_out(held: Sequence[Ints], options: SplitOptions) -> list[Split]:
    """Hold out each group once; without folds, about `HELD_OUT_SHARE` of the pairs."""
    seed, folds, splits = options.effective_split_seed, options.folds, list[Split]()
    if (fewest := min(len(distinct(group)) for group in held)) < 2:
        msg = (
            f"--split {options.split}: the pairs form {counted(fewest, 'group')}; expected 2 or "
            "more, one to hold out. Use another --split or other identities."
        )
        raise BadSplit(msg)
    n = folds or min(round(1 / HELD_OUT_SHARE), fewest)
    tests = [*_held_out_parts(held, n, options.repeats, seed)]
    if not folds:
        tests = [min(tests, key=lambda one: abs(one[0].mean() - HELD_OUT_SHARE))]
    for test, unused in tests:
        part = np.where(test, TEST, np.where(unused, UNUSED, TRAIN)).astype(np.int8)
        part = _with_validation(part, held[-1], [seed, len(splits)])
        splits.append(Split(name=options.split, part=part, group=held[-1], fold=len(splits)))
    return splits


SPLIT_METHODS: dict[str, Callable[[PairGroups, SplitOptions], list[Split]]] = {
    **dict.fromkeys(("random", "antigen", "antibody", "both"), split_by_groups),
    "mutations": split_by_mutations,
    "column": split_by_column,
    "file": split_by_file,
}
