"""Antibodies given as two chains: chains in the other one's place, and constant domains.

Chains are recognized by their J segment, where that is clear, else by immunum, which is slow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.sequences.chains import Chains, ParsedSequence
from abag.embed.sequences.domains import (
    CONSTANT_MOTIF,
    WHOLE_DOMAIN,
    find_domains,
    split_domains,
    variable_domain,
)
from abag.embed.sequences.options import AntibodyRegion, ChainPlaces

# framework 4: WGQGTLVTVSS, FGQGTKVEIK, FGGGTKLTVL; Arrow, which reads these too, has no look-ahead
_J_SEGMENT = {
    "heavy": re.compile("WG.G.{4}V[ST][SAP]"),
    "light": re.compile("FG.G[TS].[LV].[IVL](?:[^S]|$)"),
}
_VARIABLE_DOMAIN = re.compile(
    "[^C]{18,23}C.{7,25}W.{45,85}C.{3,40}(?:WG.G.{4}V[ST][SAP]|FG.G[TS].[LV].[IVL][KLE])"
)
"""A chain that `variable_domain` need not look at."""
_CONSTANT_DOMAIN = re.compile(CONSTANT_MOTIF)
EARLIEST_CONSTANT = 95
"""Residues before which no constant domain starts."""
TYPED_FORMS = frozenset({"one chain", "no domain", "glued", "linker", "repeated"})
"""What `split_domains` has looked at already."""
UNCLEAR = "unclear"
"""The form of an antibody whose chains were not numbered, although their motifs do not decide."""
_CLEAR_TYPES: tuple[list[str], ...] = ([], ["heavy"], ["light"])


class ChainsMisplaced(AbagError):
    """Most rows hold a chain in the place of another: heavy, light or antigen."""


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


def forms_as_given(antibodies: Sequence[Chains]) -> list[str]:
    """Return the forms that `arrange` gives to antibodies left as they are, without numbering."""
    heavy_N, heavy_constant_N = _find_motifs([heavy for heavy, _ in antibodies])
    light_N, light_constant_N = _find_motifs([light for _, light in antibodies])
    n = len(_CLEAR_TYPES) + 1
    words = [_form(heavy, light) for heavy in range(n) for light in range(n)]
    words += [f"{word}+constant".lstrip("+") for word in words]
    constant_N = heavy_constant_N | light_constant_N
    return [words[at] for at in (constant_N * n * n + heavy_N * n + light_N).tolist()]


def _form(heavy: int, light: int) -> str:
    """Return the form of two chains whose types are these of `_CLEAR_TYPES`, or unclear."""
    if len(_CLEAR_TYPES) in (heavy, light):
        return UNCLEAR
    types = _CLEAR_TYPES[heavy], _CLEAR_TYPES[light]
    return "+".join(_placed(("", ""), types, "as-given")[1])


def _find_motifs(chains: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """As `_clear_types` of N chains, in numbers, and which of them have a constant domain."""
    array = pa.array(chains, pa.large_string())
    lengths_N = np.asarray(pc.binary_length(array))
    heavy_N, light_N = (having(_J_SEGMENT[name], array) for name in ("heavy", "light"))
    constant_N = having(_CONSTANT_DOMAIN, pc.utf8_slice_codeunits(array, EARLIEST_CONSTANT))
    one_N = (lengths_N < 2 * WHOLE_DOMAIN) | constant_N
    types_N = np.where(one_N & (heavy_N ^ light_N), np.where(heavy_N, 1, 2), len(_CLEAR_TYPES))
    return np.where(lengths_N < WHOLE_DOMAIN, 0, types_N), constant_N


def having(motif: re.Pattern[str], texts: pa.Array) -> NDArray[np.bool_]:
    """Tell which texts have a motif, in half the time of a search per text."""
    return np.asarray(pc.match_substring_regex(texts, motif.pattern))


def refuse_misplaced(misplaced: NDArray[np.bool_], source: str) -> None:
    """Refuse a table if most of its checked rows, (R,), have heavy and light exchanged."""
    if 2 * misplaced.sum() > len(misplaced):
        msg = (
            f"{source}: {misplaced.sum():,} of {len(misplaced):,} checked rows hold a light "
            "chain in the place of the heavy one, or the reverse; expected heavy and light. "
            "Exchange the columns with --column heavy=NAME and light=NAME, or use --chains auto."
        )
        raise ChainsMisplaced(msg)
