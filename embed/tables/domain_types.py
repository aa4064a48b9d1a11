"""Types of the chains of antibodies, and what is beside their variable domains."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from abag.embed.tables.chains import Chains
from abag.embed.tables.domains import (
    BEFORE_CYSTEINE_23,
    CONSTANT_MOTIF,
    J_SEGMENT,
    LONGEST_REMNANT,
    WHOLE_DOMAIN,
    ChainName,
    find_domains,
    is_constant,
    split_domains,
    variable_domain,
)
from abag.embed.tables.options import ChainPlaces

J_MOTIFS: Mapping[ChainName, str] = {
    "heavy": "WG.G.{4}V[ST][SAP]",
    "light": "FG.G[TS].[LV].[IVL](?:[^S]|$)",
}
"""Framework 4: WGQGTLVTVSS, FGQGTKVEIK, FGGGTKLTVL. Arrow reads these too, without look-ahead."""
_ANY_J = re.compile("|".join(J_MOTIFS.values()))
_CONSERVED = re.compile("C.{7,25}W.{45,85}C.{3,60}[WF]G.G")
"""Cysteine 23, tryptophan 41, cysteine 104 and the J segment motif."""
LEAST_FLANK = 4  # fewer residues may be those by which the ends of domains vary
HISTIDINE_TAG = "^.{0,24}HHHHHH|HHHHHH.{0,12}$"
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


def find_leaders(chains: Sequence[str], name: ChainName) -> dict[int, str]:
    """Find the chains with residues before their variable domain, and return these."""
    leaders: dict[int, str] = {}
    usual = BEFORE_CYSTEINE_23["H" if name == "heavy" else "K"]
    for number, chain in enumerate(chains):
        domain = _CONSERVED.search(chain)
        if domain and domain.start() - usual >= LEAST_FLANK:
            leaders[number] = chain[: domain.start() - usual]
    return leaders


def find_tails(chains: Sequence[str]) -> dict[int, str]:
    """Find the chains with other residues than constant ones behind their variable domain."""
    tails: dict[int, str] = {}
    array = pa.array(chains, pa.large_string())
    length_N = np.asarray(pc.binary_length(array))
    for name, motif in J_MOTIFS.items():
        start_N = np.asarray(pc.find_substring_regex(array, motif))
        end_N = start_N + J_SEGMENT[name]
        for number in np.flatnonzero((start_N >= 0) & (length_N - end_N >= LEAST_FLANK)).tolist():
            tail = chains[number][end_N[number] :]
            is_second_domain = _ANY_J.search(tail) is not None
            if not is_second_domain and not is_constant(tail[:LONGEST_REMNANT], name):
                tails[number] = tail
    return tails


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
