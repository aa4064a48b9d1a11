"""Regimes and splits: what is new about a pair, and which pairs train, validate and test.

Each side of a pair, antibody and antigen, has one of four levels:

known
    the sequence itself is in training;
new variant
    it is not, but a sequence of its family is: a near-duplicate, a clone, a strain;
new mutations
    it has residues that no training sequence of its library has at their positions;
new
    training has nothing of its family.

How far a known family reaches is told by a number, the distance to the nearest training sequence,
with which sigma grows. A regime is a cell of both levels. The sides are equal: a table with its
sides exchanged has the mirror image of its regimes. `abag.head.regimes.sides` finds the levels of a
table's pairs and of other pairs, by the same comparisons.

Pairs of one group belong to one part of a split. A group is a cluster of similar antigens or
antibodies, the value of a column, or, under ``random``, a single (antibody, antigen) pair. As a
table (``splits.parquet`` of a run, or a file of the user's), a split identifies pairs by the keys
of their sequences: row numbers mean nothing in another table.

Test pairs leak if a model has seen them in training, as themselves or as near-duplicates, or
through an adapted encoder (`abag.head.training.inputs`).

P pairs, N sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Bools, Floats, Ints, hex_keys
from abag.core.errors import SplitError
from abag.core.files import cache_dir
from abag.core.messages import counted, quoted, say
from abag.embed.tables.chains import KINDS, Kind
from abag.embed.tables.columns import quote_names
from abag.embed.tables.table import read_texts, with_types
from abag.head.regimes.relations import (
    KNOWN_ANTIGEN,
    antibody_clusters,
    antigen_clusters,
    cached_clusters,
    clone_clusters,
    contained_peptides,
)
from abag.head.regimes.similar import number_by_appearance

if TYPE_CHECKING:
    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.labels.options import SplitOptions


KNOWN = 0
VARIANT = 1
MUTATED = 2
NEW = 3
LEVELS = 4
"""Number of levels of a side."""
Levels: TypeAlias = NDArray[np.int8]
"""`KNOWN`, `VARIANT`, `MUTATED` or `NEW` of each sequence or pair."""
LEAST_GROUPS = 5.0
"""Effective groups below which nothing can be measured."""
LEAST_ROWS = 10
"""Tested pairs below which nothing can be measured."""


@dataclass(frozen=True, slots=True)
class Regime:
    """Describe a kind of new pairs."""

    name: str
    """Its name in files."""
    words: str
    """Its name in sentences and tables."""
    antibody: int
    """Level of the antibody."""
    antigen: int
    """Level of the antigen."""

    @property
    def levels(self) -> tuple[int, int]:
        """Return the levels of antibody and antigen."""
        return self.antibody, self.antigen

    def covers(self, other: Regime) -> bool:
        """Return whether no side of another regime is newer."""
        return self.antibody >= other.antibody and self.antigen >= other.antigen

    @property
    def new(self) -> tuple[Kind, ...]:
        """Return the sides that are not known."""
        return tuple(kind for kind, level in zip(KINDS, self.levels, strict=True) if level)


_ANTIBODIES = (
    ("", "known antibodies"),
    ("new_variant", "new variants"),
    ("new_mutations", "new mutations"),
    ("new_antibody", "new antibodies"),
)
"""Names of the levels of antibodies in files and in sentences, in the order of the levels."""
_ANTIGENS = (
    ("", "known antigens"),
    ("antigen_variant", "new antigen variants"),
    ("antigen_mutations", "new antigen mutations"),
    ("new_antigen", "new antigens"),
)
_OTHER_NAMES = {(KNOWN, KNOWN): "known", (NEW, NEW): "both_new"}


def _regime_of(antibody: int, antigen: int) -> Regime:
    name_of_antibody, antibody_words = _ANTIBODIES[antibody]
    name_of_antigen, antigen_words = _ANTIGENS[antigen]
    name = "_".join(filter(None, (name_of_antibody, name_of_antigen)))
    name = _OTHER_NAMES.get((antibody, antigen), name)
    return Regime(name, f"{antibody_words}, {antigen_words}", antibody, antigen)


OF_LEVELS = {
    levels: _regime_of(*levels)
    for levels in sorted(product(range(LEVELS), repeat=2), key=lambda both: (sum(both), both[::-1]))
}
"""By the levels of antibody and antigen; a table shows them in this order."""
GIVEN = Regime("given", "the test pairs that were given", KNOWN, KNOWN)
"""The regime of a test part that users name: what is new about its pairs is theirs to say."""
REGIMES = {regime.name: regime for regime in (*OF_LEVELS.values(), GIVEN)}
"""By name."""
OF_SPLIT = {
    "random": "known",
    "antibody": "new_antibody",
    "antigen": "new_antigen",
    "both": "both_new",
    "mutations": "new_mutations",
    "column": "given",
    "file": "given",
}
"""The regime that a split measures; ``mutations`` of an antigen library: antigen_mutations."""
OF_ANTIGENS = (", known antigens", " within antigens")
"""Words that say nothing where pairs have no antigens."""
UNMEASURED = "the run could not measure {}"
FARTHER = (
    "it differs in {} residues from the nearest training sequences, more than the {} of nearly all "
    "tested pairs"
)


def words_of(regime: str, kinds: Collection[Kind]) -> str:
    """Say what is new about the pairs of a regime, which have these kinds of sequences."""
    return without_absent(REGIMES[regime].words, kinds)


def without_absent(text: str, kinds: Collection[Kind]) -> str:
    """Leave kinds of sequences that pairs do not have out of what is said about a regime."""
    for words in () if "antigen" in kinds else OF_ANTIGENS:
        text = text.replace(words, "")
    return text


class NewSequences(NamedTuple):
    """Tell what is new about N sequences of one kind, or about those of N pairs."""

    level: Levels
    """Shape (N,)."""
    distance: Ints
    """Shape (N,); differences from the nearest training sequence, see `nearest`; 0 of new ones,
    which have no relative to be compared with."""
    nearest: Ints
    """Shape (N,); which training sequence that is; `nearest.NONE` of new ones."""

    def take(self, index: NDArray[np.integer]) -> NewSequences:
        """Return those of pairs, given the sequence of each, (P,)."""
        return NewSequences(self.level[index], self.distance[index], self.nearest[index])


class FoundRegimes(NamedTuple):
    """Hold the regimes of P pairs, (P,) each, dtype object."""

    name: NDArray[np.object_]
    """The regime that the pair is in."""
    used: NDArray[np.object_]
    """The measured regime whose weights and sigma apply."""
    why_far: NDArray[np.object_]
    """Why no tested pair was as new; empty if some were."""
    distance: Ints
    """Differences from the nearest training sequences on the sides that are not new in the measured
    regime, dtype int64: sigma grows with these."""

    @property
    def is_far(self) -> Bools:
        """Return which pairs are newer or further than all whose errors were measured."""
        return np.asarray(self.why_far != "")

    def beside(self, why_far: NDArray[np.object_] | None) -> FoundRegimes:
        """Return regimes of pairs that are far for another reason, too, (P,), where it is one."""
        if why_far is None:
            return self
        return self._replace(why_far=np.where(why_far == "", self.why_far, why_far))


class Shown(NamedTuple):
    """Hold what a run has shown of a regime, as far as other regimes depend on it."""

    reach: int
    """Differences from the nearest training sequences that nearly all tested pairs had at most."""
    error: float
    """Largest RMSE that its tested pairs allow for new ones: the end of an interval, in pKd."""


def find_regimes(
    antibody: NewSequences,
    antigen: NewSequences,
    measured: Mapping[str, Shown],
    kinds: Collection[Kind] = KINDS,
) -> FoundRegimes:
    """Find the regime of P pairs, given what is new about both sequences and the measured regimes.

    A pair is far outside every measured regime, and where it differs more from the nearest training
    sequences than nearly all tested pairs of the regime that is used, which is its reach. The words
    for this name the `kinds` of sequences that pairs have.
    """
    shape = antibody.level.shape
    name = np.full(shape, "", object)
    used = np.full(shape, "", object)
    why = np.full(shape, "", object)
    distance = np.zeros(shape, np.int64)
    for regime in OF_LEVELS.values():
        rows = (antibody.level == regime.antibody) & (antigen.level == regime.antigen)
        if not rows.any():
            continue
        covers, used_here = applicable(regime, measured)
        name[rows] = regime.name
        used[rows] = used_here
        if not covers:
            why[rows] = UNMEASURED.format(words_of(regime.name, kinds))
        for side, level in zip((antibody, antigen), REGIMES[used_here].levels, strict=True):
            if level != NEW:
                distance[rows] += side.distance[rows]
        most = measured[used_here].reach
        beyond = rows & (distance > most)
        for count in np.unique(distance[beyond]).tolist():
            why[beyond & (distance == count) & (why == "")] = FARTHER.format(count, most)
    return FoundRegimes(name, used, why, distance)


def applicable(regime: Regime, measured: Mapping[str, Shown]) -> tuple[bool, str]:
    """Return whether a measured regime covers another one, and the measured one to use.

    A regime covers those in which no side is newer: its errors bound theirs from above. So, of the
    regimes that cover this one and no other such regime, that with the smallest errors is used. If
    none covers it, those that fall short the least bound its errors from below, and that with the
    largest errors is used.
    """
    for name in ("given", regime.name):
        if name in measured:
            return True, name
    regimes = [REGIMES[name] for name in sorted(measured)]
    covering = [other for other in regimes if other.covers(regime)]
    if covering:
        closest = []
        for other in covering:
            if not any(other.covers(beside) for beside in covering if beside != other):
                closest.append(other)
        return True, min(closest, key=lambda other: measured[other.name].error).name

    def short(other: Regime) -> int:
        antibody = max(0, regime.antibody - other.antibody)
        antigen = max(0, regime.antigen - other.antigen)
        return antibody + antigen

    least = min(map(short, regimes))
    closest = [other for other in regimes if short(other) == least]
    return False, max(closest, key=lambda other: measured[other.name].error).name


PartOfPairs: TypeAlias = NDArray[np.int8]
"""`TRAIN`, `VALIDATION`, `TEST` or `UNUSED` of each pair, (P,)."""
TRAIN = 0
VALIDATION = 1
TEST = 2
UNUSED = -1
PART_NAMES = {"train": TRAIN, "validation": VALIDATION, "test": TEST, "unused": UNUSED}
PART_WORDS: dict[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "validate", "dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "holdout", "heldout"), "test"),
    **dict.fromkeys(("eval", "evaluation"), "test"),
    **dict.fromkeys(("unused", ""), "unused"),
}
"""The part that a cell names, by its letters in lower case."""
EITHER = ("eval", "evaluation")
"""The test part, but beside another name of the test part the validation part."""
KEYS = ["antibody_key", "antigen_key"]
"""Columns that identify a pair."""
COLUMNS = [*KEYS, "split", "fold", "group"]
"""Columns of a table of splits."""


@dataclass
class PairGroups:
    """Group P pairs, (P,) each: equal for pairs that belong together; computed on first use."""

    pairs: LabelledPairs
    options: SplitOptions
    is_cached: bool = True
    """Whether clusters and numbering are read from the cache, and kept there."""

    @cached_property
    def pair(self) -> Ints:
        """Group pairs with the same two sequences."""
        n_antigens = len(self.pairs.table.antigens.keys)
        return number_by_appearance(self.pairs.antibody * n_antigens + self.pairs.antigen)

    @cached_property
    def antibody(self) -> Ints:
        """Group pairs by the clusters of their antibodies, by identity and clones."""
        chains = self.pairs.table.antibodies.chains
        identity = self.options.antibody_identity
        clusters = self._cached(
            "antibody", f"{identity!r}", lambda: antibody_clusters(chains, identity, self._clones)
        )
        return self._of_pairs("antibody", clusters)

    @cached_property
    def antigen(self) -> Ints:
        """Group pairs by the clusters of their antigens, by identity."""
        return self._of_pairs("antigen", self._antigens)

    @cached_property
    def near_antigen(self) -> Ints:
        """Group pairs by clusters of antigens, of which one in training makes the others known."""
        chains = self.pairs.table.antigens.chains
        identity = self.options.antigen_identity
        if identity >= KNOWN_ANTIGEN:
            return self.antigen
        clusters = self._cached(
            "antigen",
            f"{KNOWN_ANTIGEN!r} within {identity!r}",
            lambda: antigen_clusters(chains, KNOWN_ANTIGEN, self._antigens),
        )
        return self._of_pairs("antigen", clusters)

    def of_method(self, method: str) -> Ints:
        """Return the groups that ``random``, ``antibody`` or ``antigen`` keeps in one part."""
        groups: Ints = getattr(self, "pair" if method == "random" else method)
        return groups

    def levels(self) -> dict[str, dict[str, Ints]]:
        """Return the group of each pair by kind (or ``pair``) and closeness, for leaks."""
        antibody_identity = f"{self.options.antibody_identity:g}"
        antigen_identity = f"{self.options.antigen_identity:g}"
        # group numbers are below the number of pairs, so that no two cells share one
        near = self.antibody * len(self.antigen) + self.antigen
        return {
            "pair": {"exact": self.pair, "near": near},
            "antibody": {
                "exact": self.pairs.antibody,
                antibody_identity: self.antibody,
                "clone": self._of_pairs("antibody", self._clones),
            },
            "antigen": {
                "exact": self.pairs.antigen,
                f"{KNOWN_ANTIGEN:g}": self.near_antigen,
                antigen_identity: self.antigen,
            },
        }

    def cluster_sizes(self) -> dict[str, dict[str, dict[str, float]]]:
        """Count the clusters by kind and closeness, and the share of the pairs in the largest."""
        result: dict[str, dict[str, dict[str, float]]] = {}
        levels = self.levels()
        for kind in KINDS:
            result[kind] = {}
            for closeness, labels in levels[kind].items():
                sizes = np.bincount(number_by_appearance(labels))
                share = float(sizes.max() / sizes.sum())
                result[kind][closeness] = {"clusters": len(sizes), "largest_share": share}
        return result

    @cached_property
    def peptides(self) -> Ints:
        """Find unique antigens of which the first is a peptide of the second, (K, 2)."""
        return contained_peptides(self.pairs.table.antigens.chains)

    @cached_property
    def _clones(self) -> Ints:
        chains = self.pairs.table.antibodies.chains
        numbering = cache_dir() / "numbering" if self.is_cached else None
        return self._cached("antibody", "clones", lambda: clone_clusters(chains, numbering))

    @cached_property
    def _antigens(self) -> Ints:
        chains = self.pairs.table.antigens.chains
        identity = self.options.antigen_identity
        return self._cached("antigen", f"{identity!r}", lambda: antigen_clusters(chains, identity))

    def _cached(self, kind: Kind, name: str, compute: Callable[[], Ints]) -> Ints:
        keys = self.pairs.table.sequences[kind].keys
        cache = cache_dir() / "clusters" if self.is_cached else None
        return cached_clusters(f"{kind} {name}", keys, compute, cache)

    def _of_pairs(self, kind: Kind, labels: Ints) -> Ints:
        return number_by_appearance(labels[self.pairs.index(kind)])


def with_clusters(groups: PairGroups) -> LabelledPairs:
    """Add the clusters of the sequences to the pairs."""
    return replace(groups.pairs, antibody_cluster=groups.antibody, antigen_cluster=groups.antigen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Hold the part and the group of each of P pairs."""

    name: str
    part: PartOfPairs
    """Shape (P,), dtype int8: `TRAIN`, `VALIDATION`, `TEST` or `UNUSED`."""
    group: Ints
    """Shape (P,), dtype int64; also the unit of inner folds and of the bootstrap."""
    fold: int = 0
    """Number of the fold, counted over all repeats."""
    description: dict[str, Any] = field(default_factory=dict)
    """How and why the pairs were split, and the leaks, for the summary and the report."""
    distance: Ints | None = None
    """Shape (P,): differences of tested and `apart` pairs from the nearest training sequences, and
    0 for others; -1: apart, and as new as in another regime; None: not counted."""
    apart: Ints | None = None
    """Indices of pairs of neighbourhoods that are held out beside the test part. They are further
    from training than most tested pairs, and tell only how errors grow with distance."""
    excluded: Bools | None = None
    """Shape (P,): pairs that no fit of the run may use, since the table, a split file or an adapter
    leaves them out; None: there are none. Others may be unused in a fold alone."""

    @property
    def is_used(self) -> Bools:
        """Return which pairs the fits of the run may use, (P,)."""
        if self.excluded is None:
            return np.ones(len(self.part), np.bool_)
        return ~self.excluded

    def rows(self, part: int) -> Ints:
        """Return the indices of the pairs of one part, shape (N,), dtype int64."""
        return np.flatnonzero(self.part == part)

    def rows_per_part(self) -> dict[str, int]:
        """Count the pairs of each part, by its name."""
        return {name: int((self.part == part).sum()) for name, part in PART_NAMES.items()}


@dataclass(frozen=True, slots=True)
class MeasuredRegime:
    """Hold the folds that measure a regime, or the reason that there are none."""

    regime: Regime
    splits: tuple[Split, ...] = ()
    groups: tuple[Ints, ...] = ()
    """Each (P,): pairs of one group are one measurement. With two sequences new, there are two."""
    why_not: str = ""
    """Why the regime has no folds; empty if it has."""
    note: str = ""
    """What limits the measurement; added to the sentence of the regime."""

    @property
    def is_independent(self) -> bool:
        """Return whether enough independent groups have been tested for intervals."""
        return bool(self.splits) and not self.note


def effective_groups(group: Ints, weight: Floats | None = None) -> float:
    """Return how many groups of equal size are as informative: (sum w)^2 / sum w^2.

    The size of a group is its rows, or their `weight`, (R,).
    """
    if not len(group):
        return 0.0
    _, dense = np.unique(group, return_inverse=True)
    return effective_number(np.asarray(np.bincount(dense, weight), np.float64))


def effective_number(size: Floats) -> float:
    """Return how many of equal size are as informative as those of these sizes, (G,)."""
    return float(size.sum() ** 2 / np.square(size).sum())


def standard_error(value_R: Floats, group: Ints) -> float:
    """Return the standard error of the mean of R values, of which those of a group are one."""
    _, dense = np.unique(group, return_inverse=True)
    away_G = np.bincount(dense, value_R - value_R.mean())
    n = effective_groups(group)
    return float(np.sqrt(np.square(away_G).sum() * n / max(n - 1, 1e-9)) / len(value_R))


def mean_product(value_R: Floats, group: Ints, weight: Floats | None = None) -> float:
    """Return the mean product of the values of two rows of a group; 0 if none has two.

    Of values with variance 1, it is an intraclass correlation. `weight`, (R,), is that of each row.
    """
    _, dense = np.unique(group, return_inverse=True)
    weight_R = np.ones(len(value_R)) if weight is None else weight
    sums = np.bincount(dense, weight_R * value_R)
    sizes = np.square(np.bincount(dense, weight_R)).sum()
    number = float(sizes - np.square(weight_R).sum())
    if number <= 1e-9 * float(sizes):  # but for rounding
        return 0.0
    return float(np.square(sums).sum() - np.square(weight_R * value_R).sum()) / number


def learned_rows(split: Split) -> Ints:
    """Return the pairs that models in closed form learn from: training and validation, (F,)."""
    return np.flatnonzero((split.part == TRAIN) | (split.part == VALIDATION))


def part_names(cells: pd.Series[Any], source: str) -> pd.Series[Any]:
    """Return the part that each cell names, a key of `PART_NAMES`; missing where it names none.

    Upper case, spaces, hyphens and an ending "set" do not count. `SplitError` if "eval" may be
    either of two parts.
    """
    words = cells.str.lower().str.replace(r"(?<=\w)[\s_-]+(?=\w)|[\s_-]*set$", "", regex=True)
    parts = words.map(PART_WORDS).mask((words == "") & (cells != ""))
    is_either = words.isin(EITHER)
    if is_either.any() and "test" in set(parts[~is_either]):
        if "validation" in set(parts):
            msg = (
                f"{source}: names the parts {quote_names(cells[parts.notna()].unique())}; expected "
                "one name for the validation part and one for the test part. Rename "
                f"{quoted(cells[is_either].iloc[0])}."
            )
            raise SplitError(msg)
        parts = parts.mask(is_either, "validation")
    return parts


def describe_named(cells: pd.Series[Any], parts: pd.Series[Any]) -> str:
    """Count the pairs of each part, with the names that the cells give it, if these differ."""
    counts = []
    for part in PART_NAMES:
        part_cells = cells[parts == part]
        if not len(part_cells):
            continue
        words = [word for word in sorted(part_cells.unique()) if word.lower() != part]
        names = ", ".join(quoted(word) if word else "empty cells" for word in words)
        spelled = f" ({names})" if names else ""
        counts.append(f"{len(part_cells):,} {part}{spelled}")
    return f"{', '.join(counts)} pairs"


def is_tested(splits: Sequence[Split]) -> Bools:
    """Return whether each pair is in the test part of a split, (P,)."""
    return np.asarray(np.any([split.part == TEST for split in splits], axis=0))


def numbered(splits: Sequence[Split]) -> list[Split]:
    """Number splits as folds, in their order."""
    return [replace(split, fold=fold) for fold, split in enumerate(splits)]


def is_trainable(part: PartOfPairs) -> bool:
    """Return whether no part is empty and more pairs train than validate."""
    n_train = int((part == TRAIN).sum())
    n_validation = int((part == VALIDATION).sum())
    return n_train > n_validation > 0 and bool((part == TEST).any())


def thinned(split: Split, share: float, seed: int) -> Split:
    """Keep a random share of the groups that fits learn from, at least one of each part.

    Smaller shares are subsets. Models in closed form learn from the validation part, too.
    """
    rng = np.random.default_rng([seed, split.fold])
    is_left_out = np.zeros(len(split.part), np.bool_)
    for part in (TRAIN, VALIDATION):
        inside = split.part == part
        groups = rng.permutation(np.unique(split.group[inside]))
        kept = groups[: max(1, round(share * len(groups)))]
        is_left_out |= inside & ~np.isin(split.group, kept)
    rest = np.where(is_left_out, np.int8(UNUSED), split.part)
    return replace(split, part=rest, excluded=is_left_out | ~split.is_used)


def grouped_folds(
    group: Ints,
    folds: int,
    seed: int | Sequence[int],
    level: Floats | None = None,
    *,
    option: str = "--folds",
) -> Ints:
    """Assign whole groups to folds of about equally many rows: the fold of each row, (P,).

    The seed perturbs the order, so that repeats differ even if all groups differ in size. With the
    class of each row, `level` (P,), folds have about equally many rows of each class. `option` is
    the one by which the user asked for so many folds.
    """
    _, dense, sizes = np.unique(group, return_inverse=True, return_counts=True)
    if len(sizes) < folds:
        msg = (
            f"{folds} folds: the rows form only {counted(len(sizes), 'group')}; "
            f"expected at least one group per fold. Use fewer {option}, or another --split."
        )
        raise SplitError(msg)
    rng = np.random.default_rng(seed)
    if len(sizes) == len(group):  # groups of one row, maybe a million: no need to balance
        drawn = rng.permutation(len(group))[dense]
        if level is not None:  # class after class, in a random order each
            order = np.lexsort((drawn, level))
            drawn[order] = np.arange(len(group))
        return drawn % folds
    rare = np.zeros(len(sizes), np.int64)
    if level is not None:  # rows of other classes than the most frequent one
        _, number, rows = np.unique(level, return_inverse=True, return_counts=True)
        rare = np.bincount(dense, number != rows.argmax()).astype(np.int64)
    order = np.argsort(-sizes * rng.uniform(0.5, 1.0, len(sizes)), kind="stable")
    order = order[np.argsort(rare[order] == 0, kind="stable")]
    fold_of_group = np.empty(len(sizes), np.int64)
    load = [0] * folds
    rare_load = [0] * folds
    for index, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        fold = load.index(min(load))  # the largest groups first, each to the emptiest fold
        if rare[index]:
            fold = min(range(folds), key=lambda k: (rare_load[k], load[k]))
            rare_load[fold] += int(rare[index])
        fold_of_group[index] = fold
        load[fold] += size
    return fold_of_group[dense]


def judged(fold: Ints, rows: Ints) -> Iterator[tuple[Bools, Bools]]:
    """Yield the held-out pairs of each fold, (R,) of all, and those of other folds that judge them.

    None of the latter is one of the former, which a repeat, or a fold of another residue, has held
    out again. A single fold judges itself.

    Parameters
    ----------
    fold : ndarray, shape=(R,)
        Fold of each held-out pair.
    rows : ndarray, shape=(R,)
        Index of each in the table.
    """
    for number in np.unique(fold):
        inside = np.asarray(fold == number)
        others = ~np.isin(rows, rows[inside])
        yield inside, others if others.any() else inside


def split_frame(pairs: LabelledPairs, splits: Sequence[Split]) -> pd.DataFrame:
    """Return splits as `read_splits` reads them: one row with `COLUMNS` per pair and fold."""
    names = np.array(list(PART_NAMES))  # UNUSED, -1, is the last name
    keys = pair_keys(pairs)
    frames = []
    for split in splits:
        frames.append(keys.assign(split=names[split.part], fold=split.fold, group=split.group))
    frame = pd.concat(frames, ignore_index=True)
    # Pairs are in the order of their keys: few tables have any to compare.
    repeated = (np.diff(pairs.antibody) == 0) & (np.diff(pairs.antigen) == 0)
    return frame.drop_duplicates(ignore_index=True) if repeated.any() else frame


def pair_keys(pairs: LabelledPairs) -> pd.DataFrame:
    """Return the keys of both sequences of P pairs as text, in the columns `KEYS`."""
    columns = {}
    for kind in KINDS:
        # each key is spelled once, however many pairs have it
        keys = pd.Series(hex_keys(pairs.table.sequences[kind].keys))
        columns[f"{kind}_key"] = keys.array.take(pairs.index(kind))
    return pd.DataFrame(columns)


def read_splits(path: Path, pairs: LabelledPairs) -> list[Split]:
    """Read a split file, as `split_frame` writes it, and apply it to these pairs.

    ``fold`` and ``group`` are optional; it has to hold the same pairs.

    Raises
    ------
    SplitError
        If the file cannot be read, lacks a column, repeats a pair or holds other pairs.
    """
    wanted = pair_keys(pairs)
    splits = []
    for number, (_, fold) in enumerate(_read_frame(path).groupby("fold", sort=True)):
        merged = wanted.merge(fold, how="outer", indicator="found_in", validate="m:1")
        missing = int((merged["found_in"] == "left_only").sum())
        unknown = int((merged["found_in"] == "right_only").sum())
        if missing or unknown:
            msg = (
                f"{path}: fold {number} lacks {missing} pairs of the table and has {unknown} pairs "
                "that are not in the table; expected the same pairs. Give the tables that it is "
                "of, or split yours with abag fit --split METHOD."
            )
            raise SplitError(msg)
        in_order = wanted.merge(fold, how="left", validate="m:1")
        part = in_order["split"].map(PART_NAMES).to_numpy().astype(np.int8)
        group = pd.factorize(in_order["group"], sort=True)[0].astype(np.int64)
        splits.append(Split(name=f"file={path.name}", part=part, group=group, fold=number))
    excluded = np.all([split.part == UNUSED for split in splits], axis=0)
    return [replace(split, excluded=excluded) for split in splits]


def _read_frame(path: Path) -> pd.DataFrame:
    if not path.is_file():
        msg = f"--split file={path}: no such file; expected the splits.parquet of a run."
        raise SplitError(msg)
    try:
        with path.open("rb") as file:  # pandas would expand ~ in a path, and open addresses
            if path.suffix == ".csv":  # keys and groups may look like numbers
                frame = with_types(pd.read_csv(file, dtype=object), {}, text=[*KEYS, "split"])
            else:
                frame = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise _bad_file(path, f"cannot be read: {reason}; expected Parquet or CSV") from error
    absent = [name for name in COLUMNS[:3] if name not in frame.columns]
    if absent:
        columns = ", ".join(map(str, frame.columns))
        raise _bad_file(path, f"no column {', '.join(absent)}; found {columns}")
    cells = read_texts(frame["split"])
    parts = part_names(cells, str(path))
    is_unknown = parts.isna().to_numpy()
    if is_unknown.any():
        row = int(is_unknown.argmax())
        problem = (
            f"row {row + 1} of the split file: split {quoted(cells.iloc[row])} is unknown; "
            f"expected one of {', '.join(PART_NAMES)}"
        )
        raise _bad_file(path, problem)
    frame = frame.assign(split=parts, fold=frame.get("fold", 0))
    has_none = frame["fold"].isna().to_numpy()
    if has_none.any():
        row = int(has_none.argmax())
        problem = f"row {row + 1} of the split file: fold is empty; expected the fold of each row"
        raise _bad_file(path, problem)
    if not set(cells) <= set(PART_NAMES):
        say(f"split: {path}: {describe_named(cells, parts)}")
    if "group" not in frame.columns:
        frame["group"] = frame.groupby(KEYS).ngroup()
    frame = frame[COLUMNS].reset_index(drop=True)
    if frame.duplicated([*KEYS, "fold"]).any():
        raise _bad_file(path, "a pair occurs twice in one fold; expected one row per pair and fold")
    return frame


def _bad_file(path: Path, problem: str) -> SplitError:
    return SplitError(f"{path}: {problem}. Use the splits.parquet of a run.")


def count_leaks(part: PartOfPairs, groups: PairGroups) -> dict[str, dict[str, int]]:
    """Count the test rows with a training row of the same or a similar sequence, by closeness.

    A number is an identity; ``near``: both sequences are similar; ``contained``: as a peptide.
    """
    test = part == TEST
    train = part == TRAIN
    leaks: dict[str, dict[str, int]] = {}
    for kind, levels in groups.levels().items():
        leaks[kind] = {}
        for closeness, group in levels.items():
            leaks[kind][closeness] = int(np.isin(group[test], group[train]).sum())
    if len(groups.peptides):
        antigen = groups.pairs.antigen
        # either antigen of a pair may be the one in training
        either = np.concatenate([groups.peptides, groups.peptides[:, ::-1]])
        in_training = np.isin(either[:, 1], antigen[train])
        seen = either[in_training, 0]
        leaks["antigen"]["contained"] = int(np.isin(antigen[test], seen).sum())
    return leaks


def total_leaks(splits: Sequence[Split]) -> dict[str, dict[str, int]]:
    """Sum the leaks of all folds, by kind and closeness; empty if they were not counted."""
    if "leaks" not in splits[0].description:
        return {}
    leaks_of_folds = [split.description["leaks"] for split in splits]
    totals: dict[str, dict[str, int]] = {}
    for kind, levels in leaks_of_folds[0].items():
        totals[kind] = {}
        for closeness in levels:
            counts = [leaks[kind][closeness] for leaks in leaks_of_folds]
            totals[kind][closeness] = sum(counts)
    return totals
