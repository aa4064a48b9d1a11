"""Types of antibody chains, told by their J segments where these are clear, else by immunum.

N chains.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from abag.embed.sequences.chains import Chains
from abag.embed.sequences.domains import (
    CONSTANT_MOTIF,
    WHOLE_DOMAIN,
    find_domains,
    split_domains,
    variable_domain,
)
from abag.embed.sequences.flanks import J_MOTIFS
from abag.embed.sequences.table_options import ChainPlaces

_VARIABLE_DOMAIN = re.compile(
    "[^C]{18,23}C.{7,25}W.{45,85}C.{3,40}(?:WG.G.{4}V[ST][SAP]|FG.G[TS].[LV].[IVL][KLE])"
)
"""A chain that `variable_domain` need not look at."""
EARLIEST_CONSTANT = 95  # residues before which no constant domain starts
CHAIN_TYPES: tuple[list[str], ...] = ([], ["heavy"], ["light"])
"""Types of the variable domains of a chain that `find_types` can tell, by number."""
HEAVY_TYPE = 1
LIGHT_TYPE = 2
UNCLEAR_TYPE = len(CHAIN_TYPES)
"""Type of a chain that only numbering can tell."""


def have_motif(motif: str, texts: pa.Array) -> NDArray[np.bool_]:
    """Tell which texts have a motif, in half the time of a search per text; shape (N,)."""
    return np.asarray(pc.match_substring_regex(texts, motif))


def have_constant_domain(chains: Sequence[str]) -> NDArray[np.bool_]:
    """Tell which chains have a constant domain, shape (N,)."""
    array = pa.array(chains, pa.large_string())
    return have_motif(CONSTANT_MOTIF, pc.utf8_slice_codeunits(array, EARLIEST_CONSTANT))


def find_types(chains: Sequence[str]) -> NDArray[np.int64]:
    """Tell the `CHAIN_TYPES` of chains by motifs, shape (N,), or `UNCLEAR_TYPE`."""
    array = pa.array(chains, pa.large_string())
    length_N = np.asarray(pc.binary_length(array))
    heavy_N = have_motif(J_MOTIFS["heavy"], array)
    light_N = have_motif(J_MOTIFS["light"], array)
    # a longer chain may have a second domain, unless a constant one follows the first
    is_single_N = length_N < 2 * WHOLE_DOMAIN
    long = np.flatnonzero(~is_single_N)
    is_single_N[long] = have_constant_domain([chains[i] for i in long.tolist()])
    is_clear_N = is_single_N & (heavy_N ^ light_N)
    type_N = np.where(heavy_N, HEAVY_TYPE, LIGHT_TYPE)
    type_N = np.where(is_clear_N, type_N, UNCLEAR_TYPE)
    return np.where(length_N < WHOLE_DOMAIN, 0, type_N)


def chain_types(chain: str, type_number: int | None = None) -> list[str]:
    """Name the type of each variable domain of a chain; `type_number` is that of `find_types`."""
    number = find_types([chain])[0] if type_number is None else type_number
    if number == UNCLEAR_TYPE:
        return [domain.chain for domain in find_domains(chain)]
    return CHAIN_TYPES[number]


def place_chains(
    chains: Chains, types: tuple[list[str], list[str]], places: ChainPlaces
) -> tuple[Chains, str]:
    """Return the chains of these types in their places, if asked to, and what was found."""
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
    """Cut chains to their variable domains if these are certain, and say what was done."""
    kept: list[str] = []
    words: list[str] = []
    for text in chains:
        is_domain = not text or _VARIABLE_DOMAIN.fullmatch(text)
        domain = text if is_domain else variable_domain(text)
        if domain is None:
            words = ["not cut"]
        kept.append(text if domain is None else domain)
    if tuple(kept) != chains:
        words.append("cut")
    return tuple(kept), words
