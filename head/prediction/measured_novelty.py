"""`Novelty` of training antibodies, collected from their IMGT numbering.

N antibodies, P positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import distinct
from abag.embed.sequences.domains import position_number
from abag.embed.sequences.numbering import CHAINS, ChainName, Numbered, number_antibodies
from abag.head.prediction.applicability import FAR_QUANTILE
from abag.head.prediction.combinations import GAP, measure_combinations
from abag.head.prediction.novelty import Novelty, position_span
from abag.head.splits.splits import TRAIN

if TYPE_CHECKING:
    from abag.embed.sequences.chains import Chains
    from abag.head.data.labels import LabelledPairs
    from abag.head.splits.splits import Split


def measure_novelty(
    antibodies: Sequence[Chains], numbered: Mapping[ChainName, Numbered] | None = None
) -> Novelty:
    """Collect the residues of N distinct training antibodies by position.

    The limits are the 99 % quantiles of what would be new in a training antibody if all others, but
    not this one, had been in training. `numbered` is of these antibodies and any others; by default
    they are numbered here.
    """
    numbered = numbered or number_antibodies(antibodies, None)
    seen: dict[ChainName, dict[str, str]] = {}
    alone_N2 = np.zeros((len(antibodies), 2), np.int64)
    aligned = [
        _aligned([chains[at] for chains in antibodies], numbered[name])
        for at, name in enumerate(CHAINS)
    ]
    for name, (positions, x_NP) in zip(CHAINS, aligned, strict=True):
        seen[name] = {}
        for position, x_N in zip(positions, x_NP.T, strict=True):
            rows = np.flatnonzero(x_N)
            codes, index, copies = np.unique(x_N[rows], return_inverse=True, return_counts=True)
            seen[name][position] = bytes(codes).decode()
            if len(codes) > 1:
                alone = rows[copies[index] == 1]
                alone_N2[alone] += (len(codes) == 2, 1)
    positions, residues = np.quantile(alone_N2, FAR_QUANTILE, axis=0).astype(int).tolist()
    return Novelty(seen, positions, residues, measure_combinations(aligned))


def training_novelty(
    pairs: LabelledPairs,
    splits: Sequence[Split],
    numbered: Mapping[ChainName, Numbered] | None = None,
) -> Novelty:
    """Measure the novelty of the antibodies that are in the training part of any of the splits."""
    in_training = np.any([split.part == TRAIN for split in splits], axis=0)
    trained = distinct(pairs.antibody[in_training]).tolist()
    chains = pairs.table.antibodies.chains
    return measure_novelty([chains[n] for n in trained], numbered)


def widening_of(
    antibodies: Sequence[Chains], novelty: Novelty, numbered: Mapping[ChainName, Numbered]
) -> NDArray[np.float64]:
    """Return by what factor sigma grows for N antibodies, (N,)."""
    if novelty.combinations is None:  # spares the counts
        return np.ones(len(antibodies))
    return novelty.widening(novelty.count(antibodies, numbered))


def _aligned(chains: Sequence[str], numbered: Numbered) -> tuple[list[str], NDArray[np.uint8]]:
    """Align N chains by their numbering.

    Returns
    -------
    list of P str
        All positions that occur in these chains.
    NDArray, shape=(N, P), dtype=uint8
        Residues as ASCII codes, with gaps; 0 beyond the ends of a chain.
    """
    columns = {
        p: at for at, p in enumerate(dict.fromkeys(p for one in numbered.layouts for p in one))
    }
    number_P = np.array([position_number(position) for position in columns], np.int16)
    x_MP = np.zeros((len(numbered.chains) + 1, len(columns)), np.uint8)  # the last has no domain
    for layout, rows, codes_RL in numbered.by_layout():
        first, last = position_span(layout)
        line_RP = np.tile(
            ((number_P >= first) & (number_P <= last)) * np.uint8(ord(GAP)), (len(rows), 1)
        )
        line_RP[:, [columns[position] for position in layout]] = codes_RL
        x_MP[rows] = line_RP
    row_of = {chain: row for row, chain in enumerate(numbered.chains)} | {"": len(numbered.chains)}
    x_NP = x_MP[[row_of[chain] for chain in chains]]
    # The others, which are numbered too, may have residues where these have gaps only.
    occurs_P = np.asarray((x_NP > ord(GAP)).any(axis=0))
    return [*compress(columns, occurs_P.tolist())], x_NP[:, occurs_P]
