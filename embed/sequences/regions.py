"""Antibodies given as two chains: chains in the other one's place, and constant domains.

Chains are recognized by their J segment, where that is clear, else by immunum, which is slow.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.sequences.chains import ParsedSequence
from abag.embed.sequences.domains import (
    WHOLE_DOMAIN,
    find_domains,
    split_domains,
    variable_domain,
)
from abag.embed.sequences.options import AntibodyRegion, ChainPlaces

# framework 4: WGQGTLVTVSS, FGQGTKVEIK, FGGGTKLTVL
_J_SEGMENT = {
    "heavy": re.compile("WG.G.{4}V[ST][SAP]"),
    "light": re.compile("FG.G[TS].[LV].[IVL](?!S)"),
}
_VARIABLE_DOMAIN = re.compile(
    "[^C]{18,23}C.{7,25}W.{45,85}C.{3,40}(?:WG.G.{4}V[ST][SAP]|FG.G[TS].[LV].[IVL][KLE])"
)
"""A chain that `variable_domain` need not look at."""
_CONSTANT_DOMAIN = re.compile("P[ST]V..[LF].P")
EARLIEST_CONSTANT = 95
"""Residues before which no constant domain starts."""
TYPED_FORMS = frozenset({"one chain", "no domain", "glued", "linker", "repeated"})
"""What `split_domains` has looked at already."""
UNCLEAR = "unclear"
"""The form of an antibody whose chains were not numbered, although their motifs do not decide."""


class ChainsMisplaced(AbagError):
    """Most rows hold a light chain in the place of the heavy one, or the reverse."""


def chain_types(chain: str) -> list[str]:
    """Tell the type, heavy or light, of each variable domain of a chain."""
    clear = _clear_types(chain)
    return [domain.chain for domain in find_domains(chain)] if clear is None else clear


def _clear_types(chain: str) -> list[str] | None:
    """As `chain_types`, by motifs only; None if these do not decide."""
    if len(chain) < WHOLE_DOMAIN:
        return []
    found = [name for name, motif in _J_SEGMENT.items() if motif.search(chain)]
    # a longer chain may have a second domain, unless a constant one follows the first
    one = len(chain) < 2 * WHOLE_DOMAIN or _CONSTANT_DOMAIN.search(chain, EARLIEST_CONSTANT)
    return found if one and len(found) == 1 else None


def arrange(
    antibody: ParsedSequence,
    *,
    places: ChainPlaces = "as-given",
    region: AntibodyRegion,
    number: bool = True,
) -> ParsedSequence:
    """Put the chains of an antibody into their places and cut them to a region, if asked to.

    What was done, or found and left alone, is added to `ParsedSequence.form`. Without `number`,
    `UNCLEAR` is added where only numbering would tell the types, and the chains stay in place.

    Raises
    ------
    UnsureDomains
        If two domains in one chain cannot be split with certainty.
    """
    chains = antibody.chains
    found = [word for word in (antibody.form,) if word]
    if antibody.form not in TYPED_FORMS:
        heavy, light = map(chain_types if number else _clear_types, chains)
        if heavy is None or light is None:
            found.append(UNCLEAR)
        else:
            chains, place = _placed(chains, (heavy, light), places)
            found += place
    if region == "fv":
        cut = [variable_domain(c) if c and not _VARIABLE_DOMAIN.fullmatch(c) else c for c in chains]
        if None in cut:
            found.append("not cut")
        kept = tuple(old if new is None else new for old, new in zip(chains, cut, strict=True))
        if kept != chains:
            found.append("cut")
        chains = kept
    elif any(_CONSTANT_DOMAIN.search(chain, EARLIEST_CONSTANT) for chain in chains):
        found.append("constant")
    return antibody._replace(chains=chains, form="+".join(found))


def _placed(
    chains: tuple[str, ...], types: tuple[list[str], list[str]], places: ChainPlaces
) -> tuple[tuple[str, ...], list[str]]:
    """Return the chains of these types in their places, and what was found."""
    heavy, light = chains
    if types in ((["light"], ["heavy"]), (["light"], []), ([], ["heavy"])):
        return ((light, heavy), ["exchanged"]) if places == "auto" else (chains, ["misplaced"])
    if types in ((["heavy"], ["heavy"]), (["light"], ["light"])):
        return chains, ["same type"]
    if max(map(len, types)) > 1:
        if places == "auto" and not (heavy and light):
            split = split_domains(heavy or light)
            return (split.heavy, split.light), [split.form]
        return chains, ["two domains"]
    return chains, []


def refuse_misplaced(misplaced: NDArray[np.bool_], source: str) -> None:
    """Refuse a table if most of its checked rows, (R,), have heavy and light exchanged."""
    if 2 * misplaced.sum() > len(misplaced):
        msg = (
            f"{source}: {misplaced.sum():,} of {len(misplaced):,} checked rows hold a light "
            "chain in the place of the heavy one, or the reverse; expected heavy and light. "
            "Exchange the columns with --column heavy=NAME and light=NAME, or use --chains auto."
        )
        raise ChainsMisplaced(msg)
