"""Splits an antibody string without separator into its heavy and light chain.

immunum finds the variable domains. The boundary is the end of framework 4 of the first domain or,
if there is a linker, both of its ends. A string is split only if both domains are complete and
everything else is short or a constant domain; any other string is refused.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal, NamedTuple

from abag import AbagError

StringForm = Literal["one chain", "no domain", "glued", "linker"]
"""What a string was: one variable domain, none that is known, or two without or with a linker."""

WHOLE_DOMAIN = 85
"""Residues of a complete domain: the shortest has about 95, and its ends may be trimmed."""
MAX_EXTRA_RESIDUES = 60
"""Signal peptides, linkers and tags are shorter, a second variable domain is longer."""
SHORTEST_LINKER = 8
"""Fewer residues between two domains, unless a known linker, may belong to one of the chains."""
MAX_UNRECOGNIZED_RESIDUES = 190
"""A string without a known domain up to this length cannot hold two: one domain and a tag."""
ALIGNMENT_SLACK = 4
"""immunum misses the first residue of a domain by fewer residues than this."""
CYSTEINE_104 = 70
"""Residues from a domain's start within which framework 4 cannot begin."""

# [WF]-G-x-G opens framework 4 (IMGT 118-121), which ends at 128 in a heavy, 127 in a light chain.
# The end of VTVSS is often trimmed; kappa may include the R, lambda the G of its constant domain.
# Look-ahead, because a CDR3 may contain the motif too (...RWGGWGFGAFDYWGQGTLVTVSS).
_FRAMEWORK_4 = {
    "heavy": re.compile("(?=([WF]G.G.{5}(?:S[SAP]?)?))"),
    "light": re.compile("(?=([WF]G.G.{6}(?:R|G(?![GS]))?))"),
}
_LINKER = re.compile("(?:G{2,5}S)+|X{2,}|GSTSGSGKPGSGEGSTKG")
# The start of CH1, C-kappa and C-lambda: PSVFPLAP, PSVYPLAP, PSVFIFPP, PTVSIFPP, PSVTLFPP ...
_CONSTANT_DOMAIN = re.compile(".{0,25}P[ST]V..[LF].P")


class UnsureDomains(AbagError):
    """An antibody string that cannot be split into heavy and light with certainty."""


class DomainSplit(NamedTuple):
    """Heavy and light chain of one string, of which one may be empty."""

    heavy: str
    light: str
    form: StringForm


class _Domain(NamedTuple):
    chain: Literal["heavy", "light"]
    start: int
    end: int


def split_domains(sequence: str) -> DomainSplit:
    """Split an antibody string at the boundary of its two variable domains.

    The string is a heavy or light chain, both concatenated, or a single-chain Fv, with the domains
    in either order. Only the residues of a linker are removed. A string without a known domain is
    returned as a heavy chain, for instance a nanobody unlike the known ones.

    Raises
    ------
    UnsureDomains
        Two domains of the same type, more than two domains, a fragment of a domain, or residues
        that are not a domain, linker, tag or constant domain.
    """
    domains = _find_domains(sequence)
    if not domains:
        _refuse_unexplained(sequence, MAX_UNRECOGNIZED_RESIDUES)
        return DomainSplit(sequence, "", "no domain")
    _refuse_unexplained(sequence[: domains[0].start])
    tail = sequence[domains[-1].end :]
    if not _CONSTANT_DOMAIN.match(tail):
        _refuse_unexplained(tail)
    if len(domains) == 1:
        return _arranged(domains[0].chain, sequence, "", "one chain")
    return _split_at_boundary(sequence, *_checked_pair(domains))


def _find_domains(sequence: str) -> list[_Domain]:
    return [
        _Domain("heavy" if d.chain == "H" else "light", d.query_start, d.query_end + 1)
        for d in _annotator().number_domains(sequence)
        if d.error is None
    ]


@cache
def _annotator() -> Any:  # noqa: ANN401  # immunum ships no types
    try:
        from immunum import Annotator
    except ImportError as error:
        msg = (
            "immunum: not installed, but needed to split an antibody string without separator. "
            "Run pip install immunum, or give two columns or heavy|light."
        )
        raise AbagError(msg) from error
    return Annotator(["IGH", "IGK", "IGL"], "imgt")


def _refuse_unexplained(residues: str, most: int = MAX_EXTRA_RESIDUES) -> None:
    if len(residues) > most:
        msg = (
            f"{len(residues)} residues are not a known variable domain, linker, tag or constant "
            "domain, so the boundary between heavy and light is uncertain. Give them in two "
            "columns or as heavy|light (heavy| for a heavy chain alone)."
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
            "holds a complete variable domain and a fragment of another; expected two complete "
            "ones. Give heavy and light in two columns or as heavy|light."
        )
        raise UnsureDomains(msg)
    return domains[0], domains[1]


def _split_at_boundary(sequence: str, first: _Domain, second: _Domain) -> DomainSplit:
    end, start = _boundary(sequence, first, second)
    between = sequence[end:start]
    short = 0 < len(between) < SHORTEST_LINKER and not _LINKER.fullmatch(between)
    if short or start < end:
        msg = "holds two variable domains with an uncertain boundary. Give them in two columns or "
        msg += "as heavy|light."
        raise UnsureDomains(msg)
    _refuse_unexplained(between)
    form: StringForm = "linker" if between else "glued"
    return _arranged(first.chain, sequence[:end], sequence[start:], form)


def _boundary(sequence: str, first: _Domain, second: _Domain) -> tuple[int, int]:
    """Return the end of the first chain and the start of the second.

    immunum may assign residues of a linker, or of a neighbor with a trimmed end, to a domain. So a
    known linker takes precedence, and so does the end of the framework 4 motif if it is close.
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
