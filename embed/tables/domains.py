"""Split an antibody string without separator into its heavy and light chain.

immunum finds the variable domains. The boundary is the end of framework 4 of the first domain or,
if there is a linker, both of its ends. Conserved residues, which immunum's alignment does not need,
check it: the J segment motif [WF]-G-x-G before the boundary, cysteine 23 after it. A string is
split only if both domains are complete and everything else is short or a constant region; any other
string is refused."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple

from abag.core.errors import SequenceError

ChainName = Literal["heavy", "light"]
StringForm = Literal["one chain", "no domain", "glued", "linker", "repeated"]
"""What a string was: one variable domain, none that is known, two without or with a linker, or the
same heavy chain twice."""

WHOLE_DOMAIN = 85
"""Residues of a complete domain: the shortest has about 95, and its ends may be trimmed."""
MIN_CONFIDENCE = 0.35
"""Of immunum. Random residues reach 0.2, antibodies with long insertions only 0.47."""
SURE_CONFIDENCE = 0.5
"""Of immunum, its default; below, a domain must also have the conserved residues."""
MAX_EXTRA_RESIDUES = 60
"""Signal peptides, linkers and tags are shorter, a second variable domain is longer."""
SHORTEST_LINKER = 8
"""Fewer residues between two domains, unless a known linker, may belong to one of the chains."""
MAX_UNRECOGNIZED_RESIDUES = 190
"""A string without a known domain up to this length cannot hold two: one domain and a tag."""
ALIGNMENT_SLACK = 4  # immunum misses the first residue of a domain by fewer residues than this
CYSTEINE_104 = 70  # residues from a domain's start within which framework 4 cannot begin
J_SEGMENT = {"heavy": 11, "light": 10}  # residues from [WF]-G-x-G to the end of the variable domain
BEFORE_CYSTEINE_23 = {"H": 21, "K": 22, "L": 21}
"""Residues of a complete domain before its first conserved cysteine."""

# [WF]-G-x-G opens framework 4 (IMGT 118-121), which ends at 128 in a heavy, 127 in a light chain.
# The end of VTVSS is often trimmed; kappa may include the R, lambda the G of its constant domain.
# Look-ahead, because a CDR3 may contain the motif too (...RWGGWGFGAFDYWGQGTLVTVSS).
_FRAMEWORK_4 = {
    "heavy": re.compile("(?=([WF][GS].G.{5}(?:S[SAPT]?|T[SA])?))"),
    "light": re.compile("(?=([WF]G.G.{6}(?:R|G(?![GS]))?))"),
}
_CYSTEINE_23 = re.compile("C(?=.{7,25}W)")
_CONSERVED = re.compile("C.{7,25}W.{45,85}C.{3,60}[WF]..G")
"""Cysteine 23, tryptophan 41, cysteine 104 and the J segment motif."""
_LINKER = re.compile("(?:G{2,5}S)+|X{2,}|GSTSGSGKPGSGEGSTKG")
# The start of CH1, C-kappa and C-lambda: PSVFPLAP, PSVYPLAP, PSVFIFPP, PTVSIFPP, PSVTLFPP ...
CONSTANT_MOTIF = "P[ST]V..[LF].P"
CONSTANT_STARTS = {
    "heavy": ("ASTKGPSVFPLAPSSKS", "AKTTPPSVYPLAPGSAA"),
    "light": ("RTVAAPSVFIFPPSDEQ", "RADAAPTVSIFPPSSEQ", "GQPKAAPSVTLFPPSSE", "GQPKSSPSVTLFPPSSE"),
}
"""First 17 residues of the constant regions of human and mouse IgG, kappa and lambda (IMGT)."""
_CLEAR_STARTS = {
    "heavy": tuple(start[:6] for start in CONSTANT_STARTS["heavy"]),
    "light": tuple(start[:6] for start in CONSTANT_STARTS["light"]),
}
LONGEST_REMNANT = 16  # residues of a constant region that are compared with the known ones
_UNCERTAIN = (
    "holds two variable domains with an uncertain boundary. Give them in two columns or as "
    "heavy|light."
)
IMGT_REGIONS = (
    ("fr{}1", 26), ("cdr{}1", 38), ("fr{}2", 55), ("cdr{}2", 65), ("fr{}3", 104), ("cdr{}3", 117),
    ("fr{}4", 129),
)  # fmt: skip
"""Regions of a variable domain and the last position of each."""


class UnsureDomains(SequenceError):
    """An antibody string that cannot be split into heavy and light with certainty."""


class DomainSplit(NamedTuple):
    """Heavy and light chain of one string, of which one may be empty."""

    heavy: str
    light: str
    form: StringForm


class Domain(NamedTuple):
    """A variable domain in a string."""

    gene: Literal["H", "K", "L"]
    start: int
    """Index of the first residue, from 0."""
    end: int
    """Index after the last residue."""

    @property
    def chain(self) -> ChainName:
        """The type of the chain; kappa and lambda are both light."""
        return "heavy" if self.gene == "H" else "light"


def split_domains(sequence: str) -> DomainSplit:
    """Split an antibody string (one chain, glued or scFv, with constants) into its chains.

    Raises
    ------
    UnsureDomains
        If it holds other domains than one heavy and one light, or where one ends is uncertain.
    """
    # only a linker and the second copy of a heavy chain are removed; without a known domain, as in
    # some nanobodies, it is a heavy chain
    half = sequence[: len(sequence) // 2]
    if half * 2 == sequence:
        chains = [domain.chain for domain in find_domains(half)]
        if chains == ["heavy"]:
            return DomainSplit(half, "", "repeated")
    domains = find_domains(sequence)
    if not domains:
        _refuse_unexplained(sequence, MAX_UNRECOGNIZED_RESIDUES)
        return DomainSplit(sequence, "", "no domain")
    _refuse_unexplained(sequence[: domains[0].start])
    tail = sequence[domains[-1].end :]
    if not re.match(f".{{0,25}}{CONSTANT_MOTIF}", tail):
        _refuse_unexplained(tail)
    if len(domains) == 1:
        return _arranged(domains[0].chain, sequence, "", "one chain")
    return _split_at_boundary(sequence, domains)


def variable_domain(chain: str) -> str | None:
    """Cut a chain to its variable domain; None without exactly one, or if its end is uncertain."""
    domains = find_domains(chain)
    end = _end_of(domains[0], chain) if len(domains) == 1 else None
    if end is None:
        return None
    start = domains[0].start
    return chain[start if start >= ALIGNMENT_SLACK else 0 : end]


def _end_of(domain: Domain, chain: str) -> int | None:
    """Return where the constant region starts, a J segment of usual length or the chain ends."""
    likely = []
    for motif in _FRAMEWORK_4[domain.chain].finditer(chain, domain.start + CYSTEINE_104):
        end = motif.start() + J_SEGMENT[domain.chain]
        behind = chain[end : end + LONGEST_REMNANT]
        if abs(end - domain.end) < ALIGNMENT_SLACK or is_constant(behind, domain.chain):
            likely.append(end)
    end = max(likely, default=domain.end)
    # the domain may lack its last residues, or its J segment the motif
    around = range(end - ALIGNMENT_SLACK + 1, end + ALIGNMENT_SLACK)
    for at in sorted(around, key=lambda at: abs(at - end)):
        if chain.startswith(_CLEAR_STARTS[domain.chain], at):
            return at
    if likely:
        return end
    return len(chain) if abs(len(chain) - end) < ALIGNMENT_SLACK else None


@lru_cache(4096)  # a library often has one light chain
def find_domains(sequence: str) -> tuple[Domain, ...]:
    """Find the variable domains of a chain or string, in their order."""
    domains = []
    for numbered in _annotator().number_domains(sequence):
        if _is_domain(numbered, sequence):
            end = numbered.query_end + 1  # immunum counts the last residue
            domains.append(Domain(numbered.chain, numbered.query_start, end))
    return tuple(domains)


def locate_positions(sequence: str, chain: ChainName, scheme: str = "imgt") -> dict[str, int]:
    """Map the positions of a variable domain, such as ``"112A"``, to indices, from 0.

    Takes 0.1 ms. Empty without a domain. `scheme` is imgt, kabat or chothia.
    """
    genes = ("IGH",) if chain == "heavy" else ("IGK", "IGL")
    numbered = _annotator(genes, scheme).number(sequence)
    if not _is_domain(numbered, sequence):
        return {}
    places = range(numbered.query_start, numbered.query_end + 1)
    return dict(zip(numbered.numbering, places, strict=True))


def position_number(position: str) -> int:
    """Return the number of an IMGT position without the letters of an insertion."""
    return int(position.rstrip(ascii_uppercase))


def _is_domain(numbered: Any, sequence: str) -> bool:  # noqa: ANN401  # immunum ships no types
    if numbered.error is not None:
        return False
    if numbered.confidence >= SURE_CONFIDENCE:
        return True
    match = _CONSERVED.search(sequence, numbered.query_start, numbered.query_end + 1)
    return match is not None


@cache
def _annotator(genes: tuple[str, ...] = ("IGH", "IGK", "IGL"), scheme: str = "imgt") -> Any:  # noqa: ANN401  # immunum ships no types
    from immunum import Annotator

    return Annotator(list(genes), scheme, MIN_CONFIDENCE)


def _refuse_unexplained(residues: str, most: int = MAX_EXTRA_RESIDUES) -> None:
    if len(residues) > most:
        msg = (
            f"{len(residues)} residues are not a known variable domain, linker, tag or constant "
            "domain, so the boundary between heavy and light is uncertain. Give them in two "
            "columns or as heavy|light (heavy| for a heavy chain alone)."
        )
        raise UnsureDomains(msg)


def _split_at_boundary(sequence: str, domains: tuple[Domain, ...]) -> DomainSplit:
    chains = [domain.chain for domain in domains]
    shortest = min(domain.end - domain.start for domain in domains)
    has_fragment = shortest < WHOLE_DOMAIN
    if sorted(chains) != ["heavy", "light"] or has_fragment:
        fragment = ", one a fragment" if has_fragment else ""
        msg = (
            f"holds the variable domains {' + '.join(chains)}{fragment}; "
            "expected one heavy and one light. Give complete ones in two columns or as heavy|light."
        )
        raise UnsureDomains(msg)
    first, second = domains
    end, start = _boundary(sequence, first, second)
    between = sequence[end:start]
    short = 0 < len(between) < SHORTEST_LINKER and not _LINKER.fullmatch(between)
    # a longer part of a constant region is no linker, and where it ends cannot be told
    long = len(between) > LONGEST_REMNANT and is_constant(between[:LONGEST_REMNANT], first.chain)
    if short or long or start < end:
        raise UnsureDomains(_UNCERTAIN)
    _refuse_unexplained(between)
    form: StringForm = "linker" if between else "glued"
    return _arranged(first.chain, sequence[:end], sequence[start:], form)


def _boundary(sequence: str, first: Domain, second: Domain) -> tuple[int, int]:
    # immunum may assign residues of a linker, or of a neighbor with a trimmed end, to a domain, and
    # end a domain within a long CDR3: a known linker takes precedence, and so does the end of the
    # framework 4 motif if it is close to immunum's or where cysteine 23 places the second domain
    earliest = first.start + CYSTEINE_104
    latest = second.start + ALIGNMENT_SLACK
    for linker in _LINKER.finditer(sequence, earliest, latest):
        if abs(linker.end() - second.start) < ALIGNMENT_SLACK:
            return linker.span()
    starts = _starts_by_cysteine(sequence, second)
    motifs = _FRAMEWORK_4[first.chain].finditer(sequence, earliest, latest)
    ends = {motif.end(1) for motif in motifs}
    close = {end for end in ends if abs(end - first.end) < ALIGNMENT_SLACK}
    end = max(ends & starts or close, default=first.end)
    start = second.start
    constant = [at for at in {start, *starts} if is_constant(sequence[end:at], first.chain)]
    if constant:
        start = max(constant)
        end = start
    if not close and (start not in starts or max(ends, default=0) > end):
        raise UnsureDomains(_UNCERTAIN)
    if abs(end - start) < ALIGNMENT_SLACK:
        start = end
    return end, start


def _starts_by_cysteine(sequence: str, domain: Domain) -> set[int]:
    """Return where a complete domain would start, close to where immunum says."""
    cysteines = _CYSTEINE_23.finditer(sequence, domain.start, domain.end)
    starts = {cysteine.start() - BEFORE_CYSTEINE_23[domain.gene] for cysteine in cysteines}
    return {start for start in starts if abs(start - domain.start) < ALIGNMENT_SLACK}


def is_constant(residues: str, chain: ChainName) -> bool:
    """Tell whether residues after a variable domain are the start of its constant region."""
    if not 0 < len(residues) <= LONGEST_REMNANT:
        return False
    whole = CONSTANT_STARTS[chain]
    # the first residue, R or G, may belong to framework 4
    starts = [*whole, *(start[1:] for start in whole)]
    least = min(_count_differences(residues, start) for start in starts)
    return least <= len(residues) // 5


def _count_differences(residues: str, start: str) -> int:
    """Count the residues that differ from those of a constant region; X differs from none."""
    return sum(a not in (b, "X") for a, b in zip(residues, start, strict=False))


def _arranged(first_chain: str, first: str, second: str, form: StringForm) -> DomainSplit:
    heavy, light = (first, second) if first_chain == "heavy" else (second, first)
    return DomainSplit(heavy, light, form)
