"""Libraries of variants: which variants have mutations that training lacks.

The antibodies of a library are near-duplicates of each other, so that *new* cannot mean *without a
near-duplicate in training*. A variant has new mutations if it has a residue at an IMGT position
that no training antibody has there, or if it differs from the consensus in a set of regions that no
training antibody differs in.

What is kept are digests: a file tells whether a guessed residue occurs at a position in training,
but not in which antibody. N antibodies, L positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import Bools, Ints
from abag.embed.sequences.domains import IMGT_REGIONS, ChainName, position_number
from abag.embed.sequences.numbering import CHAINS, Numbered, number_antibodies

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains

GAP = ord("-")
UNKNOWN = ord("X")
REGIONS = len(IMGT_REGIONS)
"""Of one chain."""


@dataclass(frozen=True, slots=True)
class SeenMutations:
    """Residues by position, and sets of changed regions, of the antibodies of a library."""

    tokens: NDArray[np.uint64]
    """Sorted digests of (chain, position, residue)."""
    consensus: NDArray[np.uint64]
    """Digest of the most frequent text of each region of both chains, (2 `REGIONS`,)."""
    changed: Ints
    """Sorted sets of changed regions, one bit each."""

    @classmethod
    def of(
        cls,
        antibodies: Sequence[Chains],
        numbered: Mapping[ChainName, Numbered] | None = None,
    ) -> SeenMutations:
        """Collect what occurs in N antibodies; `numbered` has them and any others."""
        tokens_NL, regions_NR = _digests(antibodies, numbered)
        consensus = np.array([_most_frequent(column) for column in regions_NR.T], np.uint64)
        seen = np.unique(tokens_NL)
        return cls(seen, consensus, np.unique(_changed(regions_NR, consensus)))

    def is_new(
        self,
        antibodies: Sequence[Chains],
        numbered: Mapping[ChainName, Numbered] | None = None,
    ) -> Bools:
        """Return which of N antibodies have new mutations, (N,), or no domain to number."""
        tokens_NL, regions_NR = _digests(antibodies, numbered)
        is_known_NL = np.isin(tokens_NL, self.tokens) | (tokens_NL == 0)
        changed_N = _changed(regions_NR, self.consensus)
        is_known_N = is_known_NL.all(axis=1) & np.isin(changed_N, self.changed)
        return np.asarray(~is_known_N | ~tokens_NL.any(axis=1))

    @staticmethod
    def tokens_of(antibodies: Sequence[Chains], numbered: Mapping[ChainName, Numbered]) -> Bools:
        """Return which residues at a position each of N antibodies has, (N, T)."""
        tokens_NL, _ = _digests(antibodies, numbered)
        found, index = np.unique(tokens_NL, return_inverse=True)
        has_NT = np.zeros((len(antibodies), len(found)), bool)
        has_NT[np.arange(len(antibodies))[:, None], index.reshape(tokens_NL.shape)] = True
        return has_NT[:, found != 0]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `load` needs."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]]) -> SeenMutations:
        """Restore from arrays of a file; ValueError if they are not those of `arrays`."""
        expected = {"tokens": None, "consensus": (2 * REGIONS,), "changed": None}
        for name, shape in expected.items():
            found = arrays[name]
            dtype = np.int64 if name == "changed" else np.uint64
            if found.ndim != 1 or found.dtype != dtype or shape not in (None, found.shape):
                msg = f"the mutations have {name} of {found.dtype} and shape {found.shape}"
                raise ValueError(msg)
        return cls(**{name: arrays[name] for name in expected})


def align(chains: Sequence[str], numbered: Numbered) -> tuple[list[str], NDArray[np.uint8]]:
    """Align N chains by their numbering: the L positions that occur, and residues, (N, L).

    Residues are ASCII codes, with gaps; 0 beyond the ends of a chain.
    """
    columns = {
        p: at for at, p in enumerate(dict.fromkeys(p for one in numbered.layouts for p in one))
    }
    number_L = np.array([position_number(position) for position in columns], np.int16)
    x_ML = np.zeros((len(numbered.chains) + 1, len(columns)), np.uint8)  # the last has no domain
    for layout, rows, codes_RL in numbered.by_layout():
        numbers = [position_number(position) for position in layout]
        inside = (number_L >= min(numbers, default=0)) & (number_L <= max(numbers, default=0))
        line_RL = np.tile(inside * np.uint8(GAP), (len(rows), 1))
        line_RL[:, [columns[position] for position in layout]] = codes_RL
        x_ML[rows] = line_RL
    row_of = {chain: row for row, chain in enumerate(numbered.chains)} | {"": len(numbered.chains)}
    x_NL = x_ML[[row_of[chain] for chain in chains]]
    # the others, which are numbered too, may have residues where these have gaps only
    occurs_L = np.asarray((x_NL > GAP).any(axis=0))
    return [*compress(columns, occurs_L.tolist())], x_NL[:, occurs_L]


def _digests(
    antibodies: Sequence[Chains], numbered: Mapping[ChainName, Numbered] | None
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Digest the residues, (N, L), 0 for none, and the regions, (N, 2 `REGIONS`)."""
    numbered = numbered or number_antibodies(antibodies, None)
    tokens, regions = [], []
    for at, name in enumerate(CHAINS):
        positions, x_NL = align([chains[at] for chains in antibodies], numbered[name])
        place_L = np.array([_place(at, position) for position in positions], np.uint64)
        code_NL = x_NL.astype(np.uint64)
        token_NL = mix(place_L << np.uint64(8) | code_NL)
        token_NL[(x_NL <= GAP) | (x_NL == UNKNOWN)] = 0
        tokens.append(token_NL)
        number_L = np.array([position_number(position) for position in positions], np.int64)
        region_L = np.searchsorted([end for _, end in IMGT_REGIONS[:-1]], number_L)
        with np.errstate(over="ignore"):
            regions += [token_NL[:, region_L == r].sum(axis=1) for r in range(REGIONS)]
    return np.concatenate(tokens, axis=1), np.stack(regions, axis=1).astype(np.uint64)


def _place(chain: int, position: str) -> int:
    """Number a position of a chain, insertions included."""
    number = position_number(position)
    insertion = sum(map(ord, position[len(str(number)) :]))
    return (chain << 24) | (number << 12) | insertion


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit numbers; the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _most_frequent(values: NDArray[np.uint64]) -> np.uint64:
    found, counts = np.unique(values, return_counts=True)
    return np.uint64(found[counts.argmax()])


def _changed(regions_NR: NDArray[np.uint64], consensus_R: NDArray[np.uint64]) -> Ints:
    """Return the set of regions of each antibody that differ from the consensus, (N,)."""
    bits = 1 << np.arange(len(consensus_R), dtype=np.int64)
    return np.asarray((regions_NR != consensus_R) @ bits)
