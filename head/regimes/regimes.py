"""Regimes: what is new about a pair, and the folds that measure models on such pairs.

A pair is *known* if training holds near-duplicates of both its sequences; otherwise its antibody,
its antigen or both are new. In a library of variants of one antibody, new mutations take the place
of a new antibody. Each regime is measured by folds of its own, which hold out what is new in it;
held-out pairs count only if they are in the regime, given the pairs that their fold trains on.

Near-duplicates of antibodies are those of `abag.head.regimes.groups`. A fold holds out antigens by
clusters of the split's identity, but an antigen is known only if training has one that is identical
by `KNOWN_ANTIGEN`. Pairs with an antigen in between are not tested, and predicted like new ones.

P pairs of a table, N unique antibodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Bools, Ints, distinct
from abag.core.cache import cache_dir
from abag.embed.sequences.numbering import number_antibodies
from abag.head.regimes.library import SeenMutations
from abag.head.regimes.splits import (
    TEST,
    TRAIN,
    UNUSED,
    VALIDATION,
    Split,
    grouped_folds,
    is_trainable,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abag.embed.sequences.chains import Kind
    from abag.head.regimes.groups import PairGroups

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
VALIDATION_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Regime:
    """A kind of new pairs."""

    name: str
    words: str
    new: tuple[Kind, ...]
    """Kinds of sequences that are new in it."""


REGIMES = {
    one.name: one
    for one in (
        Regime("known", "known antibodies, known antigens", ()),
        Regime("new_antibody", "new antibodies, known antigens", ("antibody",)),
        Regime("new_mutations", "new mutations, known antigens", ("antibody",)),
        Regime("new_antigen", "known antibodies, new antigens", ("antigen",)),
        Regime("both_new", "new antibodies, new antigens", ("antibody", "antigen")),
        Regime("given", "the test pairs that were given", ()),
    )
}
"""By name; a table shows them in this order."""
OF_SPLIT = {
    "random": "known", "antibody": "new_antibody", "antigen": "new_antigen", "both": "both_new",
    "mutations": "new_mutations", "column": "given", "file": "given",
}  # fmt: skip
"""The regime that a split measures."""


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


def is_enough(split: Split, groups: Sequence[Ints]) -> bool:
    """Whether one fold measures a regime well enough: other folds only take time."""
    test = split.rows(TEST)
    informative = min(effective_groups(group[test]) for group in groups)
    return len(split.part) >= LARGE_TABLE and informative >= ENOUGH_GROUPS


@dataclass(slots=True)
class RegimesOfTable:
    """Which regimes a table allows to measure, and the regime of its pairs in a fold."""

    groups: PairGroups
    seed: int
    folds: int = 5
    repeats: int = 1
    antibody: Ints = field(init=False)
    antigen: Ints = field(init=False)
    is_library: bool = field(init=False)

    def __post_init__(self) -> None:
        groups = self.groups
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
        for test, unused in self._tests(regime, held):
            fold = len(found)
            part = np.where(unused, UNUSED, TRAIN).astype(np.int8)
            part[test] = UNUSED
            test = test & self._is_in(regime, np.flatnonzero(part == TRAIN))
            part[test] = TEST
            if not 0 < test.sum() < (part == TRAIN).sum():
                continue
            part = _with_validation(part, groups[-1], [self.seed, fold])
            if not is_trainable(part):
                continue
            found.append(Split(name=regime.name, part=part, group=groups[-1], fold=fold))
            if not self.groups.options.folds and is_enough(found[-1], groups):
                found = found[-1:]
                break
        tests = [split.rows(TEST) for split in found]
        tested = np.concatenate([np.zeros(0, np.int64), *tests])
        informative = min(effective_groups(group[tested]) for group in groups)
        if len(tested) < LEAST_ROWS:
            return _not_measured(regime, len(tested), "held-out pair", expected=LEAST_ROWS)
        if informative < LEAST_GROUPS:
            return _not_measured(regime, len(tested), "held-out pair", informative)
        return MeasuredRegime(regime, tuple(found), tuple(groups))

    def _held_out(self, regime: Regime) -> dict[str, Ints]:
        """Return what the folds of a regime hold out as a whole, (P,) each, by its name."""
        if regime.name == "known" or self._of_mutations(regime):
            return {"pair": self.groups.pair} | (
                {"antigen cluster": self.antigen} if "antigen" in regime.new else {}
            )
        held = {"antibody": self.antibody, "antigen": self.antigen}
        return {f"{kind} cluster": held[kind] for kind in regime.new}

    def _of_mutations(self, regime: Regime) -> bool:
        return self.is_library and "antibody" in regime.new

    def _counted_groups(self, regime: Regime) -> list[Ints]:
        """Return what counts as one measurement in a regime, (P,) each."""
        antibody = self.groups.pairs.antibody if self.is_library else self.antibody
        if regime.name == "known":
            return [
                np.unique(antibody * (self.antigen.max() + 1) + self.antigen, return_inverse=True)[
                    1
                ]
            ]
        sides = {"antibody": antibody, "antigen": self.antigen}
        return [sides[kind] for kind in regime.new]

    def _tests(self, regime: Regime, held: dict[str, Ints]) -> Iterator[tuple[Bools, Bools]]:
        """Yield the candidates for the test part of each fold, and pairs not used, (P,) each."""
        for repeat in range(self.repeats):
            yield from self._tests_once(regime, held, [self.seed, repeat])

    def _tests_once(
        self, regime: Regime, held: dict[str, Ints], seed: list[int]
    ) -> Iterator[tuple[Bools, Bools]]:
        if self._of_mutations(regime):
            tests = self._mutation_folds(seed)
            others = tests
            if "antigen" in regime.new:
                antigen_fold = grouped_folds(self.antigen, self.folds, [*seed, 1])
                others = [antigen_fold == k for k in range(self.folds)]
            for test, other in zip(tests, others, strict=True):
                yield test & other, test ^ other
            return
        first, *beside = held.values()
        of_pairs = [grouped_folds(first, self.folds, [*seed, 0])]
        of_pairs += [_beside_folds(group, of_pairs[0], [*seed, 1]) for group in beside]
        for k in range(self.folds):
            held_out = np.stack([fold == k for fold in of_pairs])
            test = np.asarray(held_out.all(axis=0))
            yield test, held_out.any(axis=0) & ~test

    def _mutation_folds(self, seed: list[int]) -> list[Bools]:
        """Hold out residues at positions: test pairs whose antibody has one, (P,) per fold.

        Each fold draws tokens, none in more than its share of the antibodies, until a fold's share
        of them has one; a token is held out once.
        """
        pairs = self.groups.pairs
        chains = pairs.table.antibodies.chains
        used = distinct(pairs.antibody)
        numbered = number_antibodies(chains, cache_dir() / "numbering")
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
            of_antibody = np.zeros(len(chains), bool)
            of_antibody[used] = test_N
            found.append(of_antibody[pairs.antibody])
        return found

    def _is_in(self, regime: Regime, train: Ints) -> Bools:
        """Return which pairs are in a regime, given the training pairs, (P,)."""
        if self.is_library:
            pairs = self.groups.pairs
            chains = pairs.table.antibodies.chains
            numbered = number_antibodies(chains, cache_dir() / "numbering")
            trained = [chains[i] for i in distinct(pairs.antibody[train]).tolist()]
            new_N = SeenMutations.of(trained, numbered).is_new(chains, numbered)
            near = np.isin(self.antibody, self.antibody[train])
            new_antibody, known_antibody = (
                near & new_N[pairs.antibody],
                near & ~new_N[pairs.antibody],
            )
        else:
            known_antibody = np.isin(self.antibody, self.antibody[train])
            new_antibody = ~known_antibody
        near_antigen = self.groups.near_antigen
        known_antigen = np.isin(near_antigen, near_antigen[train])
        new_antigen = ~np.isin(self.antigen, self.antigen[train])
        return (new_antibody if "antibody" in regime.new else known_antibody) & (
            new_antigen if "antigen" in regime.new else known_antigen
        )


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


def _beside_folds(group: Ints, beside: Ints, seed: Sequence[int]) -> Ints:
    """Assign groups to the folds of other groups with most of their pairs, (P,).

    So blocks of equal folds hold as many pairs as they can; a fold that is `FULLEST` gets no more.
    """
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


def _with_validation(part: NDArray[np.int8], group: Ints, seed: Sequence[int]) -> NDArray[np.int8]:
    """Turn whole groups with about `VALIDATION_SHARE` of the training pairs into validation pairs.

    Where groups are too large for that, single pairs are drawn.
    """
    rows = np.flatnonzero(part == TRAIN)
    n_groups, wanted = len(distinct(group[rows])), round(1 / VALIDATION_SHARE)
    fold = np.zeros(len(rows), np.int64)
    if n_groups >= 2:
        fold = grouped_folds(group[rows], min(wanted, n_groups), [*seed, 1])
    sizes = np.bincount(fold)
    chosen = np.abs(sizes - VALIDATION_SHARE * len(rows)).argmin()
    if sizes[chosen] > 2 * VALIDATION_SHARE * len(rows):
        fold = np.random.default_rng([*seed, 2]).permutation(len(rows)) % wanted
        chosen = 0
    part = part.copy()
    part[rows[fold == chosen]] = VALIDATION
    return part


def all_pairs(measured: Sequence[MeasuredRegime]) -> Split:
    """Return the split that trains on every pair which any fold uses.

    Its groups are those of the first regime that was measured.
    """
    splits = [split for one in measured for split in one.splits]
    used = np.any([split.part != UNUSED for split in splits], axis=0)
    part = np.where(used, TRAIN, UNUSED).astype(np.int8)
    return replace(splits[0], name="all", part=part, fold=0, description={})
