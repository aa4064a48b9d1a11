"""The folds that measure each regime of pairs, or the parts of the split that was asked for.

Folds hold out pairs, sequences of one side, or of both; a held-out pair counts in the regime that
it is in, given the pairs that its fold trains on. A split that is asked for holds out clusters, and
counts all held-out pairs. No test part cuts a group, and the same pairs and seed give the same
parts whatever the order of the rows.

P pairs of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from abag.core.arrays import Bools, Floats, Ints, distinct
from abag.core.errors import SplitError
from abag.core.messages import counted, say
from abag.core.options import user_path
from abag.embed.tables.chains import KINDS, Kind
from abag.embed.tables.pairs import SequenceTable
from abag.embed.tables.table import read_texts
from abag.head.labels.labelled_pairs import LabelledPairs, number_replicates
from abag.head.labels.options import SplitOptions
from abag.head.regimes.relations import NONE
from abag.head.regimes.sides import Side, Sides, sides_of
from abag.head.regimes.similar import number_by_appearance
from abag.head.regimes.splits import (
    KNOWN,
    LEAST_GROUPS,
    LEAST_ROWS,
    MUTATED,
    NEW,
    OF_LEVELS,
    OF_SPLIT,
    PART_NAMES,
    REGIMES,
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    VARIANT,
    Levels,
    MeasuredRegime,
    PairGroups,
    PartOfPairs,
    Regime,
    Split,
    count_leaks,
    describe_named,
    effective_groups,
    grouped_folds,
    is_tested,
    is_trainable,
    learned_rows,
    numbered,
    part_names,
    read_splits,
)

FULLEST = 1.2
"""Most pairs of a fold in `_beside_folds`, relative to an equal share."""
HELD_OUT_SHARE = 0.1
"""Share of the pairs in the test part of a single split, and of the others in a validation part."""


FOLDS = 5
"""Folds if their number is not given."""
LEAST_PAIRS = 20
"""Distinct pairs from which a table is never refused."""
SINGLE_PAIRS = (
    "too few sequences are independent to measure more than pairs like those of the table, and "
    "each pair counts as one measurement: the intervals are too narrow"
)
DEPENDENT_PAIRS = (
    "too few sequences are independent for intervals: errors are those of pairs like these"
)
ENOUGH_GROUPS = 50.0
"""Effective test groups from which one fold is enough, in tables of `LARGE_TABLE` pairs."""
LARGE_TABLE = 5_000
"""Pairs from which one fold may be enough."""
FEWEST_VARIANTS = 0.1
"""Share of held-out single pairs from which they speak for new variants."""
OF_TABLE = ("column", "file")
"""Splits whose parts users name: all of them count."""
RANKS = {"test": 0, "validation": 1, "train": 2, "unused": 3}
"""Of parts: replicates of a test pair train nothing."""
SETS: tuple[tuple[Kind, ...], ...] = ((), ("antibody",), ("antigen",), KINDS)
"""What the folds of a table hold out: pairs, or sequences of one side, or of both."""


class HeldOutPairs(NamedTuple):
    """Hold what one fold does not train on, (P,) each."""

    test: Bools
    """Pairs that are held out on all sides."""
    unused: Bools
    """Pairs that are held out on some sides only: they are neither known nor new."""

    @classmethod
    def of(cls, sides: Sequence[Bools]) -> HeldOutPairs:
        """Divide pairs that some sides hold out, (P,) each."""
        test = np.all(sides, axis=0)
        return cls(test, np.any(sides, axis=0) & ~test)

    def parts(self, tested: int = TEST) -> PartOfPairs:
        """Return the part of each pair, without a validation part; `tested` is that of `test`."""
        part = np.full(len(self.test), TRAIN, np.int8)
        part[self.unused] = UNUSED
        part[self.test] = tested
        return part


def held_out_parts(
    held: Sequence[Ints], folds: int, repeats: int, seed: int, level: Floats | None
) -> Iterator[HeldOutPairs]:
    """Yield what each fold holds out; groups of `held`, (P,) each, are kept whole.

    Folds have about equally many pairs of each class, `level` (P,), if labels are classes.
    """
    first, *beside = held
    for repeat in range(repeats):
        first_fold = grouped_folds(first, folds, [seed, repeat, 0], level)
        fold_of_pairs = [first_fold]
        for group in beside:
            fold_of_pairs.append(_beside_folds(group, first_fold, [seed, repeat, 1]))
        for number in range(folds):
            yield HeldOutPairs.of([fold_P == number for fold_P in fold_of_pairs])


def _beside_folds(group: Ints, beside: Ints, seed: Sequence[int]) -> Ints:
    """Assign groups to the folds of other groups with most of their pairs, but fill none, (P,)."""
    rng = np.random.default_rng(seed)
    folds = int(beside.max()) + 1
    _, dense, size = np.unique(group, return_inverse=True, return_counts=True)
    shared = np.zeros((len(size), folds))
    np.add.at(shared, (dense, beside), 1)
    load = np.zeros(folds)
    fold = np.empty(len(size), np.int64)
    full = FULLEST * len(group) / folds
    order = np.argsort(-size * rng.uniform(0.5, 1.0, len(size)), kind="stable")
    for g in order.tolist():
        fits = load + size[g] <= full
        # most shared pairs first, then the lowest load, then by chance
        fold[g] = np.lexsort((rng.random(folds), load, -shared[g] * fits))[0]
        load[fold[g]] += size[g]
    return fold[dense]


def with_validation(
    part: PartOfPairs, group: Ints, seed: Sequence[int], level: Floats | None
) -> PartOfPairs:
    """Turn groups with `HELD_OUT_SHARE` of the training pairs, or pairs, into validation pairs.

    Each class, `level` (P,), is among them in proportion, if labels are classes.
    """
    rows = np.flatnonzero(part == TRAIN)
    n_groups = len(distinct(group[rows]))
    wanted = round(1 / HELD_OUT_SHARE)
    fold = np.zeros(len(rows), np.int64)
    if n_groups >= 2:
        of_rows = None if level is None else level[rows]
        fold = grouped_folds(group[rows], min(wanted, n_groups), [*seed, 1], of_rows)
    sizes = np.bincount(fold)
    chosen = np.abs(sizes - HELD_OUT_SHARE * len(rows)).argmin()
    if sizes[chosen] > 2 * HELD_OUT_SHARE * len(rows):  # groups are too large: single pairs then
        fold = np.random.default_rng([*seed, 2]).permutation(len(rows)) % wanted
        chosen = 0
    part = part.copy()
    part[rows[fold == chosen]] = VALIDATION
    return part


def _informative(groups: Sequence[Ints], rows: Ints) -> float:
    return min(effective_groups(group[rows]) for group in groups)


def is_enough(split: Split, groups: Sequence[Ints]) -> bool:
    """Return whether one fold measures a regime well enough: other folds only take time."""
    is_large = len(split.part) >= LARGE_TABLE
    return is_large and _informative(groups, split.rows(TEST)) >= ENOUGH_GROUPS


def with_distances(
    split: Split, sides: Sides, levels: tuple[Levels, Levels] | None = None
) -> Split:
    """Add to a split how far its tested pairs are from training, given what is new about them."""
    rows = split.rows(TEST)
    if split.apart is not None:
        rows = np.union1d(rows, split.apart)
    train = learned_rows(split)
    distance = np.zeros(len(split.part), np.int64)
    distance[rows] = sides.distances(train, rows, levels or sides.levels(train))
    if split.distance is not None:  # pairs that are as new as in another regime stay so
        distance[split.distance == NONE] = NONE
    return replace(split, distance=distance)


def of_all_held_out(splits: Sequence[Split], sides: Sides) -> tuple[Regime, list[Split]]:
    """Return the regime that folds of single pairs measure, of all held-out pairs, and the folds.

    A side is as new as most of these pairs are, such as by the mutations of a library in which each
    variant has its own; and a variant where `FEWEST_VARIANTS` of them are. The folds have their
    distances.
    """
    n_tested = 0
    n_of_level = np.zeros((len(KINDS), NEW + 1), np.int64)
    with_distance = []
    for split in splits:
        levels = sides.levels(learned_rows(split))
        tested = split.rows(TEST)
        n_tested += len(tested)
        for number, level in enumerate(levels):
            n_of_level[number] += np.bincount(level[tested], minlength=NEW + 1)
        with_distance.append(with_distances(split, sides, levels))
    found = []
    for counts in n_of_level:
        as_new = counts[::-1].cumsum()[::-1]  # pairs of a level or a newer one
        usual = int((2 * as_new > n_tested).sum()) - 1
        has_variants = as_new[VARIANT] >= FEWEST_VARIANTS * n_tested
        found.append(max(usual, VARIANT) if has_variants else usual)
    antibody, antigen = found
    return OF_LEVELS[antibody, antigen], with_distance


class RegimesOfTable:
    """Find which regimes a table allows to measure, and their folds."""

    def __init__(self, groups: PairGroups) -> None:
        options = groups.options
        self.groups = groups
        self.seed = options.effective_split_seed
        self.folds = options.folds or FOLDS
        self.repeats = options.repeats
        self.level = groups.pairs.class_of_pair

    @cached_property
    def sides(self) -> Sides:
        """Return both sides of the pairs."""
        return sides_of(self.groups)

    @property
    def of_mutations(self) -> str:
        """Name the regime of new mutations: of antibodies if they are a library, or of antigens."""
        return "new_mutations" if self.sides.antibody.is_library else "antigen_mutations"

    @property
    def usual(self) -> Regime:
        """Return what random pairs of the table are to the others: variants, where it is a library.

        There, no sequence that was not measured is known.
        """
        antibody, antigen = (VARIANT if side.is_library else KNOWN for side in self.sides)
        return OF_LEVELS[antibody, antigen]

    def measured(self) -> list[MeasuredRegime]:
        """Return every regime with its folds, or with the reason that it cannot be measured.

        Four sets of folds hold out pairs, sequences of one side, or of both. A held-out pair counts
        in the regime that it is in, so that a table takes as many fits whatever its regimes.
        """
        found: dict[str, list[tuple[tuple[Kind, ...], MeasuredRegime]]] = {}
        for held in SETS:
            for measured in self._of_set(held):
                found.setdefault(measured.regime.name, []).append((held, measured))
        by_name = {name: _best_measured(results) for name, results in found.items()}
        if not any(measured.is_independent for measured in by_name.values()):
            by_pairs = self._by_single_pairs(by_name[self.usual.name])
            del by_name[self.usual.name]
            by_name[by_pairs.regime.name] = by_pairs
        return [by_name[name] for name in REGIMES if name in by_name]

    def measure_mutations(self) -> MeasuredRegime:
        """Return the regime of new mutations with its folds, or with the reason for none."""
        regime = REGIMES[self.of_mutations]
        by_name = {
            measured.regime.name: measured for measured in self._of_set(_to_hold_out(regime))
        }
        return by_name[regime.name]

    def _of_set(self, held: tuple[Kind, ...]) -> list[MeasuredRegime]:
        """Measure the regimes of the folds that hold out sequences of some sides."""
        sides = [side for side in self.sides if side.kind in held]
        levels = [side.testable(held_out=side.kind in held) for side in self.sides]
        cells = [OF_LEVELS[cell] for cell in product(*levels)]
        reason = self._why_no_folds(sides)
        if reason:
            expected = [cell for cell in cells if self._is_expected(cell)]
            return [MeasuredRegime(cell, why_not=reason) for cell in expected]
        splits_of: dict[str, list[Split]] = {cell.name: [] for cell in cells}
        groups = {cell.name: self._counted(cell) for cell in cells}
        # in validation parts
        whole = _unit(sides[-1]) if sides else groups[self.usual.name][0]
        tested = {cell.name: np.zeros(len(whole), np.bool_) for cell in cells}
        for number, held_out in enumerate(self._tests(sides)):
            if number % self.folds == 0:  # a repeat tests each pair again
                tested = {name: np.zeros(len(whole), np.bool_) for name in tested}
            for split in self._splits_of_fold(number, held_out, groups, whole, tested):
                splits_of[split.name].append(split)
                if not sides:
                    tested[split.name] |= split.part == TEST
            latest = [splits[-1] for splits in splits_of.values() if splits]
            if self.groups.options.cross_validates or not latest:
                continue
            largest = max(latest, key=lambda split: len(split.rows(TEST)))
            if is_enough(largest, groups[largest.name]):  # the other folds only take time
                splits_of = {name: splits[-1:] for name, splits in splits_of.items()}
                break
        results = []
        for cell in cells:
            measured = self._result(cell, splits_of[cell.name], groups[cell.name])
            if measured.splits or self._is_expected(cell):
                results.append(measured)
        return results

    def _splits_of_fold(
        self,
        number: int,
        held_out: HeldOutPairs,
        groups: Mapping[str, list[Ints]],
        whole: Ints,
        tested: Mapping[str, Bools],
    ) -> Iterator[Split]:
        """Yield the split of each regime that a fold can test, given the groups of each.

        Pairs that were `tested` in a regime, (P,) each, are not tested again.
        """
        part = held_out.parts(tested=UNUSED)
        is_apart = np.zeros(len(part), np.bool_)
        test = held_out.test
        if self.usual.name in groups:
            is_apart = self._neighbourhoods(number) & ~test
            repeat, fold = divmod(number, self.folds)
            variants = np.zeros(len(self.groups.pair), np.bool_)
            for side in self.sides:
                variants |= side.variants(fold, self.folds, [self.seed, repeat])
            test = test | variants
        part[is_apart | test] = UNUSED
        train = np.flatnonzero(part == TRAIN)
        if not len(train):
            return
        part = with_validation(part, whole, [self.seed, number], self.level)
        levels = self.sides.levels(train)
        asked = np.flatnonzero(test | is_apart)
        distance = np.zeros(len(part), np.int64)
        distance[asked] = self.sides.distances(train, asked, levels)
        antibody_level, antigen_level = levels
        for name, groups_of_regime in groups.items():
            regime = REGIMES[name]
            inside = (antibody_level == regime.antibody) & (antigen_level == regime.antigen)
            asked_here = test & inside & ~tested[name]
            part_here = np.where(asked_here, np.int8(TEST), part)
            is_learnable = is_trainable(part_here)
            if is_learnable and self.level is not None:
                # a fold may hold out the residue, or the sequences, of all positive pairs
                is_learnable = bool(np.ptp(self.level[part_here == TRAIN]) > 0)
            if 0 < asked_here.sum() < len(train) and is_learnable:
                yield Split(
                    name=name,
                    part=part_here,
                    group=groups_of_regime[-1],
                    fold=number,
                    apart=np.flatnonzero(is_apart),
                    # of neighbourhoods only those that are as new
                    distance=np.where(is_apart & ~inside, NONE, distance),
                )

    def _neighbourhoods(self, number: int) -> Bools:
        """Return the pairs that a fold of single pairs holds out with those around them, (P,)."""
        libraries = [side for side in self.sides if side.is_library]
        if not libraries:
            return np.zeros(len(self.groups.pair), np.bool_)
        return libraries[number % len(libraries)].neighbourhoods([self.seed, number])

    def _why_no_folds(self, sides: Sequence[Side]) -> str:
        """Say why no folds can hold out sequences of these sides; empty if they can."""
        n_pairs = len(distinct(self.groups.pair))
        if n_pairs < LEAST_GROUPS:
            return _too_few(n_pairs, "pair")
        for side in sides:
            unit = _unit(side)
            informative = effective_groups(unit)
            if informative < LEAST_GROUPS:
                name = f"{side.kind} {'variant' if side.is_library else 'cluster'}"
                return _too_few(len(distinct(unit)), name, informative)
        return ""

    def _is_expected(self, regime: Regime) -> bool:
        """Return whether users are told that a regime is not measured: few tables have strains."""
        for side, level in zip(self.sides, regime.levels, strict=True):
            usual = (VARIANT, MUTATED) if side.is_library else (KNOWN, NEW)
            if level not in usual:
                return False
        return True

    def _result(
        self, regime: Regime, splits: Sequence[Split], groups: Sequence[Ints]
    ) -> MeasuredRegime:
        test_rows = [split.rows(TEST) for split in splits]
        tested = np.concatenate([np.zeros(0, np.int64), *test_rows])
        tested = tested[self.groups.pairs.censored[tested] == 0]  # a bound has no error
        n_pairs = len(distinct(tested))  # repeats are no further measurements
        if n_pairs < LEAST_ROWS:
            reason = _too_few(n_pairs, "held-out pair", expected=LEAST_ROWS)
            return MeasuredRegime(regime, why_not=reason)
        informative = _informative(groups, tested)
        if informative >= LEAST_GROUPS:
            return MeasuredRegime(regime, tuple(numbered(splits)), tuple(groups))
        if max(regime.levels) > VARIANT or n_pairs < LEAST_PAIRS:
            reason = _too_few(n_pairs, "held-out pair", informative)
            return MeasuredRegime(regime, why_not=reason)
        # sequences in training, or relatives of these: new ones are mostly of the same families
        return MeasuredRegime(regime, tuple(numbered(splits)), tuple(groups), note=DEPENDENT_PAIRS)

    def _counted(self, regime: Regime) -> list[Ints]:
        """Return what counts as one measurement in a regime, (P,) each."""
        if not regime.new:
            antibody = self.sides.antibody.units
            antigen = self.sides.antigen.units
            return [number_by_appearance(antibody * (antigen.max() + 1) + antigen)]
        groups = []
        for side, level in zip(self.sides, regime.levels, strict=True):
            if level != KNOWN:
                groups.append(side.counted(level))
        return groups

    def _by_single_pairs(self, usual: MeasuredRegime) -> MeasuredRegime:
        """Measure random pairs of a table in which too little is independent, pair by pair."""
        pairs = self.groups.pair
        if len(distinct(pairs)) < LEAST_PAIRS:
            return usual
        splits = list[Split]()
        for number, held_out in enumerate(self._tests(())):
            part = with_validation(held_out.parts(), pairs, [self.seed, number], self.level)
            if is_trainable(part):
                splits.append(Split(name="pairs", part=part, group=pairs, fold=len(splits)))
        if not np.any(is_tested(splits) & (self.groups.pairs.censored == 0)):
            return usual
        regime, splits = of_all_held_out(splits, self.sides)
        splits = [replace(split, name=regime.name) for split in splits]
        return MeasuredRegime(regime, tuple(splits), (pairs,), note=SINGLE_PAIRS)

    def _tests(self, sides: Sequence[Side]) -> Iterator[HeldOutPairs]:
        """Yield what each fold holds out: `test` are candidates for its test part."""
        if not any(side.is_library for side in sides):
            held = [side.held_out for side in sides] or [self.groups.pair]
            # the side with more to hold out first, so that exchanged sides give the same folds
            held.sort(key=effective_groups, reverse=True)
            yield from held_out_parts(held, self.folds, self.repeats, self.seed, self.level)
            return
        for repeat in range(self.repeats):
            masks = []
            for number, side in enumerate(sides):
                seed = [self.seed, repeat, number] if number else [self.seed, repeat]
                masks.append(side.folds(self.folds, seed))
            # not strict: a library may have residues for fewer folds
            yield from map(HeldOutPairs.of, zip(*masks, strict=False))


def _to_hold_out(regime: Regime) -> tuple[Kind, ...]:
    """Return the sides of which folds have to hold out more than single sequences for a regime."""
    levels = zip(KINDS, regime.levels, strict=True)
    return tuple(kind for kind, level in levels if level >= MUTATED)


def _best_measured(
    results: Sequence[tuple[tuple[Kind, ...], MeasuredRegime]],
) -> MeasuredRegime:
    """Choose among the sets of folds that can measure a regime.

    Those are preferred that hold out what is new in it, and then those that test most pairs.
    """

    def merit(result: tuple[tuple[Kind, ...], MeasuredRegime]) -> tuple[bool, bool, bool, int]:
        held, measured = result
        needed = _to_hold_out(measured.regime)
        tested = sum(len(split.rows(TEST)) for split in measured.splits)
        return bool(measured.splits), measured.is_independent, set(needed) <= set(held), tested

    return max(results, key=merit)[1]


def _unit(side: Side) -> Ints:
    """Return what folds of a side hold out as a whole, (P,)."""
    return side.sequence if side.is_library else side.held_out


def _too_few(n: int, name: str, informative: float = 0.0, expected: float = LEAST_GROUPS) -> str:
    """Say why a regime has no folds: too few pairs or clusters, or too unequal ones."""
    many = f"{n or 'no'} {name}{'' if n == 1 else 's'}"
    if name == "held-out pair":
        many += " of this kind"
    if informative and n >= expected:
        many += f", as informative as {informative:.1f} groups of equal size"
    return f"not measured: {many}; expected at least {expected:.0f}"


def measure_regimes(table: RegimesOfTable) -> list[MeasuredRegime]:
    """Return the folds of every regime, or those of the split that was asked for.

    Raises
    ------
    SplitError
        If the pairs are too few or too dependent, or a part would be empty.
    """
    groups = table.groups
    options = groups.options
    if options.split_name == "auto":
        regimes = table.measured()
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
    if not options.folds and options.split_name not in OF_TABLE:
        # a fit measures on folds, where others need one split
        options = replace(options, folds=FOLDS)
    splits = divide(table, options)
    independent = _counted_groups(groups, splits[0])
    if options.split_name == "random":
        regime, splits = of_all_held_out(splits, table.sides)
        return [MeasuredRegime(regime, tuple(splits), tuple(independent))]
    regime = REGIMES[OF_SPLIT[options.split_name]]
    if options.split_name == "mutations":
        regime = REGIMES[table.of_mutations]
    with_distance = []
    for split in splits:
        with_distance.append(
            with_distances(split, table.sides) if split.distance is None else split
        )
    return [MeasuredRegime(regime, tuple(with_distance), tuple(independent))]


def make_splits(groups: PairGroups) -> list[Split]:
    """Split pairs once, or into folds times repeats; ``auto``: the folds of every regime.

    ``description`` has what is held out, and leaks.
    """
    table = RegimesOfTable(groups)
    if groups.options.split_name != "auto":
        return divide(table, groups.options)
    splits = list[Split]()
    for measured in measure_regimes(table):
        splits += measured.splits
    return numbered(splits)


def strictest_split(groups: PairGroups) -> str:
    """Name the strictest split that a table allows by clusters of one kind, or else by variants."""
    for method in ("antigen", "antibody"):
        if effective_groups(groups.of_method(method)) >= LEAST_GROUPS:
            return method
    return "mutations" if sides_of(groups).has_library else "random"


def divide(table: RegimesOfTable, options: SplitOptions) -> list[Split]:
    """Split the pairs of a table by a method of `SPLIT_METHODS`, see `make_splits`."""
    groups = table.groups
    splits = SPLIT_METHODS[options.split_name](table, options)
    for split in splits:
        n = split.rows_per_part()
        n_groups = counted(len(distinct(split.group)), "group")
        for name in ("train", "test", "validation"):  # the last is taken from the first
            if not n[name]:
                msg = (
                    f"--split {split.name}: the {name} part of {counted(len(split.part), 'pair')} "
                    f"in {n_groups} is empty; expected at least one pair. Use more rows or another "
                    "--split."
                )
                raise SplitError(msg)
    is_dealt = options.split_name not in OF_TABLE and not groups.options.cross_validates
    if is_dealt and is_enough(splits[0], _counted_groups(groups, splits[0])):
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


def all_pairs(measured: Sequence[MeasuredRegime]) -> Split:
    """Return the split that trains on every pair which fits may use, with the first's groups."""
    splits = list[Split]()
    for regime in measured:
        splits += regime.splits
    used = np.any([split.is_used for split in splits], axis=0)
    part = np.where(used, TRAIN, UNUSED).astype(np.int8)
    return replace(splits[0], name="all", part=part, fold=0, description={})


def split_by_groups(table: RegimesOfTable, options: SplitOptions) -> list[Split]:
    """Hold out whole groups: pairs, clusters of antigens, of antibodies, or of both."""
    kinds = KINDS if options.split == "both" else (options.split,)
    held = [table.groups.of_method(kind) for kind in kinds]
    return _hold_out(held, options, table.level)


def split_by_mutations(table: RegimesOfTable, options: SplitOptions) -> list[Split]:
    """Hold out mutations of a library; raise `SplitError` if no side is one."""
    if not table.sides.has_library:
        msg = (
            "--split mutations: neither the antibodies nor the antigens are variants of one; "
            "expected one cluster with more than half of the pairs. Use another --split."
        )
        raise SplitError(msg)
    measured = table.measure_mutations()
    if measured.why_not:
        msg = f"--split mutations: {measured.why_not}. Use another --split."
        raise SplitError(msg)
    splits = measured.splits if options.cross_validates else measured.splits[:1]
    return [replace(split, name="mutations") for split in splits]


def split_by_column(table: RegimesOfTable, options: SplitOptions) -> list[Split]:
    """Use the parts named in a column; if no cell names one, its values are groups to hold out."""
    groups = table.groups
    pairs = groups.pairs
    column = options.split_value
    frame = pairs.table.frame
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
    chosen = pairs.row
    if divided and pairs.counts["replicate_rows"]:
        order = "of test, validation, train and unused" if has_parts else "in alphabetical order"
        say(
            f"column {column!r}: {divided} pairs have replicates with different values; each pair "
            f"is where the first of these is, {order}"
        )
        rank = values.map(RANKS) if has_parts else values
        chosen = _rows_of_least(pairs, rank.reindex(cells.index))
    values = values.reindex(cells.index).iloc[chosen]
    if has_parts:
        _refuse_cross_validation(options, f"column {column!r}")
        say(f"split: column {column!r}: {describe_named(cells.iloc[chosen], values)}")
        part = values.map(PART_NAMES).to_numpy().astype(np.int8)
        is_unused = part == UNUSED
        named = Split(name=options.split, part=part, group=groups.pair, excluded=is_unused)
        return [_with_validation_part(named, groups, f"column {column!r}")]
    # sorted: the folds do not depend on the order of the rows
    group, names = pd.factorize(values, sort=True)
    splits = _hold_out([group.astype(np.int64)], options, table.level)
    held_out = f"no train or test in it; its {len(names):,} values are groups"
    if "" in names:
        empty = int((group == names.get_loc("")).sum())
        held_out += f", one of them {counted(empty, 'pair')} with an empty cell"
    say(f"split: column {column!r}: {held_out}")
    return splits


def _rows_of_least(pairs: LabelledPairs, rank: pd.Series[Any]) -> Ints:
    """Return the replicate of each pair with the least rank, (P,), whatever the order of the rows.

    `rank`, (R,), is that of all rows of the table.
    """
    assert pairs.usable is not None
    rows = pairs.usable[["row"]].assign(pair=number_replicates(pairs.usable))
    rows["rank"] = rank.iloc[rows["row"]].to_numpy()
    first = rows.sort_values(["rank", "row"]).groupby("pair")["row"].first()
    of_pairs = rows.set_index("row")["pair"].reindex(pairs.row)
    return np.asarray(first.reindex(of_pairs), np.int64)


def _refuse_cross_validation(options: SplitOptions, where: str) -> None:
    """Refuse folds and repetitions beside parts that are named: they would divide nothing."""
    if options.cross_validates:
        msg = (
            f"--split {options.split}: {where} names the parts; expected no --folds or --repeats "
            "beside it (0 and 1). Leave them out."
        )
        raise SplitError(msg)


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


def split_by_file(table: RegimesOfTable, options: SplitOptions) -> list[Split]:
    """Use the parts of a split file, which has to hold the same pairs."""
    path = user_path(options.split_value, "--split file")
    _refuse_cross_validation(options, str(path))
    splits = read_splits(path, table.groups.pairs)
    return [_with_validation_part(split, table.groups, str(path)) for split in splits]


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
        clusters = groups.of_method(kind)
        if not np.isin(clusters[split.rows(TEST)], clusters[split.rows(TRAIN)]).any():
            group = clusters
            held_out = f"{kind} clusters, as the test part is"
            break
    seed = [groups.options.effective_split_seed, split.fold]
    part = with_validation(split.part, group, seed, groups.pairs.class_of_pair)
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


def _hold_out(held: Sequence[Ints], options: SplitOptions, level: Floats | None) -> list[Split]:
    """Hold out each group once; without a cross-validation, about `HELD_OUT_SHARE` of the pairs.

    `level`, (P,), is the class of each pair, if labels are classes.
    """
    seed = options.effective_split_seed
    folds = options.folds
    fewest = min(len(distinct(group)) for group in held)
    if fewest < 2:
        msg = (
            f"--split {options.split}: the pairs form {counted(fewest, 'group')}; expected 2 or "
            "more, one to hold out. Use another --split or other identities."
        )
        raise SplitError(msg)
    n = folds or min(FOLDS if options.repeats > 1 else round(1 / HELD_OUT_SHARE), fewest)
    held_out = [*held_out_parts(held, n, options.repeats, seed, level)]
    if not options.cross_validates:
        held_out = [min(held_out, key=lambda fold: abs(fold.test.mean() - HELD_OUT_SHARE))]
    splits = list[Split]()
    for fold in held_out:
        part = with_validation(fold.parts(), held[-1], [seed, len(splits)], level)
        splits.append(Split(name=options.split, part=part, group=held[-1], fold=len(splits)))
    return splits


SPLIT_METHODS: dict[str, Callable[[RegimesOfTable, SplitOptions], list[Split]]] = {
    **dict.fromkeys(("random", "antigen", "antibody", "both"), split_by_groups),
    "mutations": split_by_mutations,
    "column": split_by_column,
    "file": split_by_file,
}
"""Methods of ``--split`` by name; `measure_regimes` has the folds of ``auto``."""
