"""Residues beside the variable domain that are no constant domain: leaders, linkers, tags.

They are told by conserved residues alone, which costs 4 us per chain: what is not clear is not
told. N chains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from abag.embed.sequences.domains import (
    BEFORE_CYSTEINE_23,
    J_SEGMENT,
    LONGEST_REMNANT,
    ChainName,
    is_constant,
)

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
