"""Antibodies given as two chains: chains in the other one's place, and constant domains.

Chains are recognized by their J segment, where that is clear, else by immunum, which is slow.
N chains.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.sequences.chains import Chains
from abag.embed.sequences.domains import (
    CONSTANT_MOTIF,
    WHOLE_DOMAIN,
    find_domains,
    split_domains,
    variable_domain,
)
from abag.embed.sequences.options import ChainPlaces

# framework 4: WGQGTLVTVSS, FGQGTKVEIK, FGGGTKLTVL; Arrow, which reads these too, has no look-ahead
_HEAVY_J = "WG.G.{4}V[ST][SAP]"
_LIGHT_J = "FG.G[TS].[LV].[IVL](?:[^S]|$)"
_VARIABLE_DOMAIN = re.compile(
    "[^C]{18,23}C.{7,25}W.{45,85}C.{3,40}(?:WG.G.{4}V[ST][SAP]|FG.G[TS].[LV].[IVL][KLE])"
)
"""A chain that `variable_domain` need not look at."""
EARLIEST_CONSTANT = 95
"""Residues before which no constant domain starts."""
CHAIN_TYPES: tuple[list[str], ...] = ([], ["heavy"], ["light"])
"""Types of the variable domains of a chain that `find_types` can tell."""
UNCLEAR_TYPE = len(CHAIN_TYPES)
"""Type of a chain that only numbering can tell."""


class ChainsMisplaced(AbagError):
    """Most rows hold a chain in the place of another: heavy, light or antigen."""


def having(motif: str, texts: pa.Array) -> NDArray[np.bool_]:
    """Tell which texts have a motif, in half the time of a search per text."""
    return np.asarray(pc.match_substring_regex(texts, motif))


def have_constant_domain(chains: Sequence[str]) -> NDArray[np.bool_]:
    """Tell which chains have a constant domain, shape (N,)."""
    array = pa.array(chains, pa.large_string())
    return having(CONSTANT_MOTIF, pc.utf8_slice_codeunits(array, EARLIEST_CONSTANT))


def find_types(chains: Sequence[str]) -> NDArray[np.int64]:
    """Tell the `CHAIN_TYPES` of chains by motifs, shape (N,), or `UNCLEAR_TYPE`."""
    array = pa.array(chains, pa.large_string())
    length_N = np.asarray(pc.binary_length(array))
    heavy_N, light_N = having(_HEAVY_J, array), having(_LIGHT_J, array)
    # a longer chain may have a second domain, unless a constant one follows the first
    one_N = length_N < 2 * WHOLE_DOMAIN
    long = np.flatnonzero(~one_N)
    one_N[long] = have_constant_domain([chains[i] for i in long.tolist()])
    type_N = np.where(one_N & (heavy_N ^ light_N), np.where(heavy_N, 1, 2), UNCLEAR_TYPE)
    return np.where(length_N < WHOLE_DOMAIN, 0, type_N)


def chain_types(chain: str, found: int | None = None) -> list[str]:
    """Name the type of each variable domain of a chain; `found` is that of `find_types`."""
    number = find_types([chain])[0] if found is None else found
    if number == UNCLEAR_TYPE:
        return [domain.chain for domain in find_domains(chain)]
    return CHAIN_TYPES[number]


def place_chains(
    chains: Chains, types: tuple[list[str], list[str]], places: ChainPlaces
) -> tuple[Chains, str]:
    """Return the chains of these types in their places, if asked to, and what was found.

    `UnsureDomains` is raised if two domains in one chain cannot be split with certainty.
    """
    heavy, light = chains
    if types in ((["light"], ["heavy"]), (["light"], []), ([], ["heavy"])):
        return ((light, heavy), "exchanged") if places == "auto" else (chains, "misplaced")
    if types in ((["heavy"], ["heavy"]), (["light"], ["light"])):
        return chains, "same type"
    if max(map(len, types)) > 1:
        if places == "auto" and not (heavy and light):
            split = split_domains(heavy or light)
            return (split.heavy, split.light), split.form
        return chains, "two domains"
    return chains, ""


def cut_to_domains(chains: Chains) -> tuple[Chains, list[str]]:
    """Cut both chains of an antibody to their variable domains, and say what was done.

    A chain without one certain domain is left whole.
    """
    cut = [variable_domain(c) if c and not _VARIABLE_DOMAIN.fullmatch(c) else c for c in chains]
    kept = tuple(old if new is None else new for old, new in zip(chains, cut, strict=True))
    return kept, ["not cut"] * (None in cut) + ["cut"] * (kept != chains)
