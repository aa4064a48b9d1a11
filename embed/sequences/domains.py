"""An antibody string without separator -> its heavy and light chain.

The variable domains are found by immunum; the boundary is then set by the end of the first domain's
framework 4 and, if there is one, the end of the linker. Promises that a string is split only where
both domains are whole and nothing else of any size is left over; the rest is refused.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal, NamedTuple

from abag import AbagError

StringForm = Literal["one chain", "no domain", "glued", "linker"]

WHOLE_DOMAIN = 85
"""Residues; the shortest variable domain is about 95, and ends may be trimmed."""
SIDE_RESIDUES = 60
"""Signal peptides, linkers and tags are shorter, a second variable domain is longer."""
SHORTEST_LINKER = 8
"""Residues between two domains that are no linker known here and fewer may be a chain's own."""
LONE_RESIDUES = 190
"""The longest string without any known domain that cannot hide two: one domain and a tag."""
ALIGNMENT_SLACK = 4
"""The library misses the first residue of a domain by fewer residues than this."""
CYSTEINE_104 = 70
"""Residues from a domain's start within which framework 4 cannot begin."""

# [WF]-G-x-G opens framework 4 (IMGT 118-121), which ends at 128 in a heavy, 127 in a light chain.
# The end of VTVSS is often trimmed; kappa may carry the R, lambda the G of its constant domain.
# Look-ahead, because a CDR3 may hold the motif too (...RWGGWGFGAFDYWGQGTLVTVSS).
_FRAMEWORK_4 = {
    "heavy": re.compile("(?=([WF]G.G.{5}(?:S[SAP]?)?))"),
    "light": re.compile("(?=([WF]G.G.{6}(?:R|G(?![GS]))?))"),
}
_LINKER = re.compile("(?:G{2,5}S)+|X{2,}|GSTSGSGKPGSGEGSTKG")
# The start of CH1, C-kappa and C-lambda: PSVFPLAP, PSVYPLAP, PSVFIFPP, PTVSIFPP, PSVTLFPP ...
_CONSTANT_DOMAIN = re.compile(".{0,25}P[ST]V..[LF].P")


class UnsureDomains(AbagError):
    """An antibody string that cannot be told apart into heavy and light with certainty."""


class DomainSplit(NamedTuple):
    """Heavy and light chain of one string (either may be empty), and what the string was."""

    heavy: str
    light: str
    form: StringForm


class _Domain(NamedTuple):
    chain: Literal["heavy", "light"]
    start: int
    end: int


def split_domains(sequence: str) -> DomainSplit:
    """Split an antibody string at the boundary of its two variable domains.

    Parameters
    ----------
    sequence : str
        Upper-case residues: a heavy or a light chain, both glued, or a single-chain Fv, with the
        domains in either order.

    Returns
    -------
    Split
        Every residue of the string but a linker's. A string without a known domain is taken for a
        heavy chain (say, a nanobody too unlike those known).

    Raises
    ------
    UnsureDomains
        Two domains of one type, more than two, a fragment of one, or a stretch that no domain,
        linker, tag or constant domain explains.
    """
    domains = _find_domains(sequence)
    if not domains:
        _check_side(sequence, LONE_RESIDUES)
        return DomainSplit(sequence, "", "no domain")
    _check_side(sequence[: domains[0].start], SIDE_RESIDUES)
    tail = sequence[domains[-1].end :]
    if not _CONSTANT_DOMAIN.match(tail):
        _check_side(tail, SIDE_RESIDUES)
    if len(domains) == 1:
        return _arranged(domains[0].chain, sequence, "", "one chain")
    return _split_at_boundary(sequence, *_checked_pair(domains))


def _find_domains(sequence: str) -> list[_Domain]:
    found = (d for d in _annotator().number_domains(sequence) if d.error is None)
    return [
        _Domain("heavy" if d.chain == "H" else "light", d.query_start, d.query_end + 1)
        for d in found
    ]


@cache
def _annotator() -> Any:  # noqa: ANN401  # immunum ships no types
    try:
        from immunum import Annotator
    except ImportError as error:
        msg = (
            "immunum: not installed; it finds heavy and light in an antibody string without "
            "separator. pip install immunum, or give two columns, or heavy|light."
        )
        raise AbagError(msg) from error
    return Annotator(["IGH", "IGK", "IGL"], "imgt")


def _check_side(side: str, most: int) -> None:
    if len(side) > most:
        msg = (
            f"{len(side)} residues are no known variable domain, linker, tag or constant domain; "
            "heavy and light cannot be told apart. Give them in two columns or as heavy|light "
            "(heavy| for a heavy chain alone)."
        )
        raise UnsureDomains(msg)


def _checked_pair(domains: list[_Domain]) -> tuple[_Domain, _Domain]:
    chains = [domain.chain for domain in domains]
    if sorted(chains) != ["heavy", "light"]:
        msg = (
            f"holds the variable domains {' + '.join(chains)}; expected one heavy and one light. "
            "Give them in two columns or as heavy|light."
        )
        raise UnsureDomains(msg)
    if min(domain.end - domain.start for domain in domains) < WHOLE_DOMAIN:
        msg = (
            "holds one whole variable domain and a fragment of another; expected two whole ones. "
            "Give heavy and light in two columns or as heavy|light."
        )
        raise UnsureDomains(msg)
    return domains[0], domains[1]


def _split_at_boundary(sequence: str, first: _Domain, second: _Domain) -> DomainSplit:
    end, start = _boundary(sequence, first, second)
    between = sequence[end:start]
    short = 0 < len(between) < SHORTEST_LINKER and not _LINKER.fullmatch(between)
    if short or start < end:
        msg = (
            "holds two variable domains whose boundary is not clear. "
            "Give them in two columns or as heavy|light."
        )
        raise UnsureDomains(msg)
    _check_side(between, SIDE_RESIDUES)
    form: StringForm = "linker" if between else "glued"
    return _arranged(first.chain, sequence[:end], sequence[start:], form)


def _boundary(sequence: str, first: _Domain, second: _Domain) -> tuple[int, int]:
    """Give the end of the first chain and the start of the second, with at most a linker between.

    The library may take residues of a linker, or of a neighbour with a trimmed end, for those of a
    domain. So a known linker goes before it, and so does the end of the motif where both are close.
    """
    earliest, latest = first.start + CYSTEINE_104, second.start + ALIGNMENT_SLACK
    for linker in _LINKER.finditer(sequence, earliest, latest):
        if abs(linker.end() - second.start) < ALIGNMENT_SLACK:
            return linker.span()
    motifs = _FRAMEWORK_4[first.chain].finditer(sequence, earliest, latest)
    ends = (motif.end(1) for motif in motifs)
    end = max((e for e in ends if abs(e - first.end) < ALIGNMENT_SLACK), default=first.end)
    return end, end if abs(end - second.start) < ALIGNMENT_SLACK else second.start


def _arranged(first_chain: str, first: str, second: str, form: StringForm) -> DomainSplit:
    heavy, light = (first, second) if first_chain == "heavy" else (second, first)
    return DomainSplit(heavy, light, form)
