"""The pooling ``cdr_mean``: the mean over the CDR residues of both chains of an antibody.

IMGT numbering says which residues these are. A chain without one, such as an unusual or a cut
domain, contributes none; if that holds for both chains, all residues count, as in ``mean``.
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

_CDRS = [
    (before, last)
    for (_, before), (region, last) in pairwise(IMGT_REGIONS)
    if region.startswith("cdr")
]
"""IMGT position before each CDR, and its last."""


def weigh_cdrs(antibodies: Sequence[Chains]) -> tuple[list[ResidueWeights], int]:
    """Weigh the residues of antibodies in the pooling over their CDRs.

    Returns
    -------
    weights : list of ResidueWeights
        Of each antibody; the weights of its residues sum to 1.
    unnumbered : int
        Antibodies with a chain whose CDRs are unknown.
    """
    numbered = number_antibodies(antibodies, cache_dir() / "numbering")
    cdrs_by_chain = [_find_cdrs(numbered[name]) for name in CHAINS]  # heavy, then light
    no_chain = np.zeros(0, bool)
    weights = []
    unnumbered = 0
    for chains in antibodies:
        masks = []
        is_numbered = True
        for cdrs, chain in zip(cdrs_by_chain, chains, strict=True):
            mask = cdrs.get(chain, no_chain)
            is_numbered = is_numbered and bool(mask.any() or not len(mask))
            masks.append(mask)
        unnumbered += not is_numbered
        total = sum(map(np.count_nonzero, masks))
        if not total:
            masks = [np.ones_like(mask) for mask in masks]
            total = sum(map(len, masks))
        weights.append(tuple((mask / total).astype(np.float32) for mask in masks))
    return weights, unnumbered


def _find_cdrs(numbered: Numbered) -> dict[str, NDArray[np.bool_]]:
    """Return, for each chain, which of its residues are in a CDR: shape (L,), dtype bool."""
    masks_of_layouts = []
    for layout_positions in numbered.layouts:
        numbers_L = np.array([*map(position_number, layout_positions)])
        is_in_cdr_L = np.zeros(len(numbers_L), bool)
        for before, last in _CDRS:
            is_in_cdr_L |= (before < numbers_L) & (numbers_L <= last)
        masks_of_layouts.append(is_in_cdr_L)
    masks = {}
    for chain, layout, start in zip(numbered.chains, numbered.layout, numbered.start, strict=True):
        mask = np.zeros(len(chain), bool)
        if layout != NO_DOMAIN:
            mask_of_domain = masks_of_layouts[layout]
            mask[start : start + len(mask_of_domain)] = mask_of_domain
        masks[chain] = mask
    return masks
