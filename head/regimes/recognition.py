"""Recognition of what is new about sequences of other tables, by the comparisons of a fit.

A predictor keeps its training sequences. One that was shared without them keeps their keys: an
exact repeat is known, and everything else counts as new. N sequences, T training sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Bools, Ints, checked_array
from abag.core.files import cache_dir
from abag.core.messages import LONGEST_QUOTE
from abag.embed.tables.chains import RESIDUES, keys_array
from abag.embed.tables.numbering import CHAINS, number_antibodies
from abag.head.regimes.clusters import (
    PEPTIDE,
    cdr3_of_chains,
    identity_of_chains,
    search_clones,
)
from abag.head.regimes.nearest import NONE, Nearest, nearest_as_long, nearest_of_other_lengths
from abag.head.regimes.regimes import KNOWN, MUTATED, NEW, VARIANT, NewSequences
from abag.head.regimes.sides import REGIONS, Aligner, SeenResidues
from abag.head.regimes.similar import (
    Strings,
    contained_near,
    count_edits,
    lengths_of,
    whole_near,
)

if TYPE_CHECKING:
    from abag.embed.tables.chains import ChainName, Chains, Kind
    from abag.embed.tables.numbering import Numbered
    from abag.head.regimes.sides import Side

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
SEPARATOR = "|"
"""Stands between the chains of a stored sequence."""
END = "\n"
"""Stands after each stored sequence."""


@dataclass(frozen=True)  # no slots: the cached property is kept in __dict__
class KnownSequences:
    """Hold the training sequences of one kind."""

    kind: Kind
    keys: NDArray[np.uint8]
    """Keys of the sequences, (T, 16)."""
    identity: float
    """Identity from which sequences are of one family."""
    chains: Sequence[Chains] | None = None
    """The T sequences; None if the predictor was shared without them."""
    residues: SeenResidues | None = None
    """Of a library; None if the training sequences are not one."""
    names: Sequence[str] | None = None
    """What the table calls each of them, or the row that has it first, (T,); None: not known."""
    loops: NDArray[np.int32] | None = None
    """First and last residue of CDR H3 in each heavy chain, (T, 2), equal if there is none."""

    @classmethod
    def of(cls, side: Side, names: Mapping[int, str], identity: float) -> KnownSequences:
        """Keep some of a table's sequences, given their names by index."""
        used = np.array([*names], np.int64)
        chains = _take(side.chains, used)
        residues = side.seen(used) if side.is_library else None
        keys = keys_array(side.kind, chains)
        loops = None
        if side.kind == "antibody":
            of_chain = cdr3_of_chains(side.numbered["heavy"])
            loops = np.zeros((len(chains), 2), np.int32)
            for row, (heavy, _) in enumerate(chains):
                loop = of_chain.get(heavy, "")
                start = heavy.find(loop)  # 0 without a loop, which ends there, too
                loops[row] = start, start + len(loop)
        return cls(
            side.kind,
            keys,
            identity,
            chains,
            residues,
            names=[*names.values()],
            loops=loops,
        )

    def without_sequences(self) -> KnownSequences:
        """Keep nothing that tells what the sequences are."""
        return replace(self, chains=None, residues=None, names=None, loops=None)

    def compare(self, chains: Sequence[Chains]) -> NewSequences:
        """Tell what is new about N sequences."""
        trained = {key.tobytes(): row for row, key in enumerate(self.keys)}
        keys = [key.tobytes() for key in keys_array(self.kind, chains)]
        nearest = np.array([trained.get(key, NONE) for key in keys], np.int64)
        level = np.where(nearest == NONE, NEW, KNOWN).astype(np.int8)
        distance = np.zeros(len(chains), np.int64)
        rows = np.flatnonzero(level == NEW)
        if self.chains is None or not len(rows):
            return NewSequences(level, distance, nearest)
        asked = _take(chains, rows)
        found = nearest_as_long(self.kind, asked, self.chains)
        in_family = self._are_near_by(found.distance, asked)
        apart = np.flatnonzero(~in_family)
        in_family[apart] = self._in_family(_take(asked, apart))
        of_asked = np.flatnonzero(in_family)
        rows = rows[of_asked]
        related = _take(asked, of_asked)
        level[rows] = VARIANT
        if self.residues is not None and len(rows):
            numbered = None if self.kind == "antigen" else _number(related)
            residues = self.residues.aligner.residues(related, numbered)
            level[rows[self.residues.are_new(residues)]] = MUTATED
        as_long = Nearest(found.distance[of_asked], found.row[of_asked])
        found = nearest_of_other_lengths(self.kind, related, self.chains, as_long)
        distance[rows] = np.maximum(found.distance, 0)
        nearest[rows] = found.row
        return NewSequences(level, distance, nearest)

    def _are_near_by(self, distance: Ints, chains: Sequence[Chains]) -> Bools:
        """Return which of N sequences are related to one as long, given how far that is, (N,).

        Such two have as many chains, of equal lengths. Replacing the residues that differ turns one
        into the other, so no alignment takes more edits than the distance: not that of both chains
        of an antibody in one string, nor that of an antigen's longest chain, nor of a chain inside
        another. The edits that an identity allows depend on the lengths alone, which are equal.
        """
        if self.kind == "antibody":
            lengths = np.array([sum(map(len, sequence)) for sequence in chains], np.int64)
            edits = count_edits(lengths, self.identity)
            return np.asarray((distance != NONE) & (distance <= edits))
        lengths = np.array([max(map(len, sequence), default=0) for sequence in chains], np.int64)
        edits = np.zeros(len(chains), np.int64)
        for peptides in (False, True):
            rows = (lengths < PEPTIDE) == peptides
            identity = identity_of_chains(self.identity, is_peptide=peptides)
            edits[rows] = count_edits(lengths[rows], identity)
        return np.asarray((distance != NONE) & (distance <= edits))

    def _in_family(self, chains: Sequence[Chains]) -> Bools:
        """Return which of N sequences are related to one in training, by alignment, (N,)."""
        assert self.chains is not None
        if self.kind == "antigen":
            return _antigens_near(chains, self.chains, self.identity)
        near = _antibodies_near(chains, self.chains, self.identity)
        apart = np.flatnonzero(~near)
        near[apart] = _clones_of(_take(chains, apart), self._loops)
        return near

    @cached_property
    def _loops(self) -> dict[str, str]:
        """Return the CDR H3 of each training heavy chain that has one."""
        assert self.chains is not None
        assert self.loops is not None
        loops = {}
        for (heavy, _), (start, end) in zip(self.chains, self.loops.tolist(), strict=True):
            if end > start:
                loops[heavy] = heavy[start:end]
        return loops

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `load` restores, by name."""
        name = f"seen.{self.kind}"
        arrays: dict[str, NDArray[Any]] = {f"{name}.keys": self.keys}
        arrays[f"{name}.identity"] = np.array([self.identity])
        if self.chains is not None:
            lines = [SEPARATOR.join(chains) + END for chains in self.chains]
            text = "".join(lines)
            arrays[f"{name}.sequences"] = np.frombuffer(text.encode("ascii"), np.uint8)
        if self.names is not None:
            text = "".join(f"{line}{END}" for line in self.names)
            arrays[f"{name}.names"] = np.frombuffer(text.encode("utf-8"), np.uint8)
        if self.loops is not None:
            arrays[f"{name}.loops"] = self.loops
        if self.residues is not None:
            reference = SEPARATOR.join(self.residues.aligner.reference).encode("ascii")
            # a space stands for the reference that antibodies lack
            arrays[f"{name}.reference"] = np.frombuffer(reference or b" ", np.uint8)
            arrays[f"{name}.tokens"] = self.residues.tokens
            arrays[f"{name}.consensus"] = self.residues.consensus
            arrays[f"{name}.changed"] = self.residues.changed
        return arrays

    @classmethod
    def load(cls, kind: Kind, arrays: Arrays) -> KnownSequences:
        """Restore from arrays of a file; ValueError or LookupError if they do not fit."""
        name = f"seen.{kind}"
        keys = checked_array(arrays, f"{name}.keys", (None, 16), np.uint8)
        (identity,) = checked_array(arrays, f"{name}.identity", (1,), np.float64).tolist()
        if not 0 < identity <= 1:
            msg = f"{name}.identity is {identity}"
            raise ValueError(msg)
        chains = None
        names = None
        loops = None
        if f"{name}.sequences" in arrays:
            text = checked_array(arrays, f"{name}.sequences", (None,), np.uint8)
            chains = _parsed(kind, text.tobytes().decode("ascii"))
            if not np.array_equal(keys_array(kind, chains), keys):
                msg = f"{name}.sequences and {name}.keys are of other sequences"
                raise ValueError(msg)
            names = _load_names(kind, arrays, len(chains))
            if kind == "antibody":
                loops = checked_array(arrays, f"{name}.loops", (len(chains), 2), np.int32)
        residues = _load_residues(kind, arrays) if f"{name}.tokens" in arrays else None
        return cls(kind, keys, identity, chains, residues, names, loops)


@dataclass(frozen=True, slots=True)
class Recogniser:
    """Hold the training sequences of both sides."""

    antibodies: KnownSequences
    antigens: KnownSequences

    def of_kind(self, kind: Kind) -> KnownSequences:
        """Return the training sequences of one kind."""
        return self.antibodies if kind == "antibody" else self.antigens

    @property
    def has_sequences(self) -> bool:
        """Return whether near-duplicates can be found, not only repeats."""
        return self.antibodies.chains is not None and self.antigens.chains is not None

    def without_sequences(self) -> Recogniser:
        """Keep keys only."""
        return Recogniser(self.antibodies.without_sequences(), self.antigens.without_sequences())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `load` restores, by name."""
        return self.antibodies.arrays() | self.antigens.arrays()

    @classmethod
    def load(cls, arrays: Arrays) -> Recogniser:
        """Restore from arrays of a file; ValueError or LookupError if they do not fit."""
        return cls(KnownSequences.load("antibody", arrays), KnownSequences.load("antigen", arrays))


def _load_residues(kind: Kind, arrays: Arrays) -> SeenResidues:
    """Restore the residues of a library; ValueError or LookupError if they do not fit."""
    name = f"seen.{kind}"
    text = checked_array(arrays, f"{name}.reference", (None,), np.uint8)
    reference = text.tobytes().decode("ascii").strip()
    reference_chains = tuple(reference.split(SEPARATOR)) if reference else ()
    if set(reference) - {*RESIDUES, SEPARATOR} or (kind == "antigen") != bool(reference):
        msg = f"{name}.reference is not a sequence"
        raise ValueError(msg)
    residues = SeenResidues(
        aligner=Aligner(kind, reference_chains),
        tokens=checked_array(arrays, f"{name}.tokens", (None,), np.uint64),
        consensus=checked_array(arrays, f"{name}.consensus", (None,), np.uint64),
        changed=checked_array(arrays, f"{name}.changed", (None,), np.int64),
    )
    expected = 0 if kind == "antigen" else len(CHAINS) * REGIONS
    if len(residues.consensus) != expected:
        msg = f"{name}.consensus has {len(residues.consensus)} regions"
        raise ValueError(msg)
    return residues


def _load_names(kind: Kind, arrays: Arrays, number: int) -> list[str]:
    """Restore the names of sequences; ValueError or LookupError if there are not so many."""
    text = checked_array(arrays, f"seen.{kind}.names", (None,), np.uint8)
    names = text.tobytes().decode("utf-8").split(END)
    is_long = any(len(name) > LONGEST_QUOTE or not name.isprintable() for name in names)
    if len(names) != number + 1 or names[-1] or is_long:
        msg = f"seen.{kind}.names are not {number} names of sequences"
        raise ValueError(msg)
    return names[:-1]


def _parsed(kind: Kind, text: str) -> list[Chains]:
    if set(text) - {*RESIDUES, SEPARATOR, END} or not text.endswith(END):
        msg = f"seen.{kind}.sequences holds other letters than residues"
        raise ValueError(msg)
    sequences = [tuple(line.split(SEPARATOR)) for line in text[:-1].split(END)]
    for chains in sequences:
        is_whole = len(chains) == len(CHAINS) if kind == "antibody" else all(chains)
        if not is_whole:
            msg = f"seen.{kind}.sequences has chains missing"
            raise ValueError(msg)
    return sequences


def _number(antibodies: Sequence[Chains]) -> Mapping[ChainName, Numbered]:
    """Number antibodies; the next command with the same ones reads the numbering from the cache."""
    return number_antibodies(antibodies, cache_dir() / "numbering")


def _take(sequences: Sequence[Chains], rows: Ints) -> list[Chains]:
    return [sequences[row] for row in rows.tolist()]


# ---- comparisons, as in `clusters` ---------------------------------------------------------------


def _antibodies_near(
    queries: Sequence[Chains], targets: Sequence[Chains], identity: float
) -> Bools:
    """Return which of N antibodies are near-duplicates of others over the chains both have."""
    queries_N2 = np.array(queries, object).reshape(-1, len(CHAINS))
    targets_T2 = np.array(targets, object).reshape(-1, len(CHAINS))
    near = np.zeros(len(queries_N2), np.bool_)
    is_paired = (queries_N2 != "").all(axis=1)
    is_target_paired = (targets_T2 != "").all(axis=1)
    joined = queries_N2[is_paired, 0] + queries_N2[is_paired, 1]
    joined_targets = targets_T2[is_target_paired, 0] + targets_T2[is_target_paired, 1]
    near[is_paired] = _whole_near(joined, joined_targets, identity)
    for texts, target_texts in zip(queries_N2.T, targets_T2.T, strict=True):
        # two paired antibodies are never near by one chain, even if it is identical
        has_chain = target_texts != ""
        alone = target_texts[has_chain & ~is_target_paired]
        rows = ~near & is_paired
        near[rows] = _whole_near(texts[rows], alone, identity)
        rows = ~near & ~is_paired & (texts != "")
        near[rows] = _whole_near(texts[rows], target_texts[has_chain], identity)
    return near


def _whole_near(queries: Strings, targets: Strings, identity: float) -> Bools:
    """Return which of N strings have a near-duplicate among others, each compared once."""
    if not len(queries) or not len(targets):
        return np.zeros(len(queries), np.bool_)
    unique, index = np.unique(queries, return_inverse=True)
    return np.asarray(whole_near(unique, np.unique(targets), identity)[index])


def _clones_of(queries: Sequence[Chains], trained: Mapping[str, str]) -> Bools:
    """Return which of N antibodies are clones of training heavy chains with these CDR H3."""
    if not len(queries) or not trained:
        return np.zeros(len(queries), np.bool_)
    loops = cdr3_of_chains(_number(queries)["heavy"])
    trained_by_length = _by_loop_length(trained)
    clones = set[str]()
    for length, queried in sorted(_by_loop_length(loops).items()):
        others = trained_by_length.get(length, [])
        if others:
            heavies = np.array([*queried, *others], object)
            heavy_loops = [loops[heavy] for heavy in queried]
            heavy_loops += [trained[heavy] for heavy in others]
            search = search_clones(heavies, heavy_loops)
            clones.update(itertools.compress(queried, search.near_first(len(queried))))
    return np.array([heavy in clones for heavy, _ in queries], np.bool_)


def _by_loop_length(loops: Mapping[str, str]) -> dict[int, list[str]]:
    """Sort heavy chains into those whose CDR H3 have one length."""
    chains: dict[int, list[str]] = {}
    for heavy in sorted(loops):
        chains.setdefault(len(loops[heavy]), []).append(heavy)
    return chains


def _antigens_near(queries: Sequence[Chains], targets: Sequence[Chains], identity: float) -> Bools:
    """Return which of N antigens have a chain that is a near-duplicate of one of others."""
    near = np.zeros(len(queries), np.bool_)
    n_chains = [len(chains) for chains in queries]
    owner = np.repeat(np.arange(len(queries)), n_chains)
    texts = np.array([*itertools.chain.from_iterable(queries)], object)
    others = np.unique(np.array([*itertools.chain.from_iterable(targets)], object))
    is_peptide = lengths_of(texts) < PEPTIDE
    is_other_peptide = lengths_of(others) < PEPTIDE
    for peptides in (False, True):  # peptides are compared with peptides only
        least = identity_of_chains(identity, is_peptide=peptides)
        rows = np.flatnonzero(is_peptide == peptides)
        alike = others[is_other_peptide == peptides]
        if len(rows) and len(alike):
            is_near = contained_near(texts[rows], alike, least)
            near[owner[rows[is_near]]] = True
    return near
