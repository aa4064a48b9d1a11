"""Weights of the pooling ``cdr_mean``: the mean over the CDR residues of both antibody chains.

IMGT numbering says which residues these are. A chain without one, such as an unusual or a cut
domain, contributes no residues; if that holds for both chains, all residues count, as in ``mean``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from abag.core.cache import cache_dir
from abag.embed.packing import ResidueWeights
from abag.embed.sequences.chains import Chains
from abag.embed.sequences.domains import IMGT_REGIONS, position_number
from abag.embed.sequences.numbering import CHAINS, NO_DOMAIN, Numbered, number_antibodies

_CDRS = [(a[1], b[1]) for a, b in pairwise(IMGT_REGIONS) if b[0].startswith("cdr")]
"""IMGT position before each CDR, and its last."""


def weigh_cdrs(
    antibodies: Sequence[Chains],
) -> tuple[list[ResidueWeights], int]:
    """Weigh the residues of antibodies for ``cdr_mean``.

    Returns
    -------
    weights : list of tuple of 2 ndarrays
        Of the residues of each chain; together they sum to 1.
    unnumbered : int
        Antibodies with a chain that cannot be numbered.
    """
    numbered = number_antibodies(antibodies, cache_dir() / "numbering")
    inside = [_find_cdrs(numbered[name]) for name in CHAINS]
    weights, unnumbered = [], 0
    for chains in antibodies:
        masks = [
            of_type.get(c, np.zeros(0, bool)) for of_type, c in zip(inside, chains, strict=True)
        ]
        unnumbered += any(len(mask) and not mask.any() for mask in masks)
        if not any(mask.any() for mask in masks):
            masks = [np.ones_like(mask) for mask in masks]
        total = sum(map(np.count_nonzero, masks))
        weights.append(tuple((mask / total).astype(np.float32) for mask in masks))
    return weights, unnumbered


def _find_cdrs(numbered: Numbered) -> dict[str, NDArray[np.bool_]]:
    """Select the CDR residues of each chain; none if it cannot be numbered."""
    of_layout = [
        np.array([any(a < position_number(p) <= b for a, b in _CDRS) for p in layout], bool)
        for layout in numbered.layouts
    ]
    found = {}
    for chain, layout, start in zip(numbered.chains, numbered.layout, numbered.start, strict=True):
        found[chain] = np.zeros(len(chain), bool)
        if layout != NO_DOMAIN:
            own = of_layout[layout]
            found[chain][start : start + len(own)] = own
    return found
