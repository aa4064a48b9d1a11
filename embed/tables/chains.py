"""Antibody and antigen sequences: normalized, checked, split into chains and keyed.

Promises that the same chains get the same key whatever their case, white space or order in the
table, and that nothing is cut or dropped: a sequence is either read whole or refused.

A string of both chains without separator is split where immunum finds the variable domains. The
boundary is the end of framework 4 of the first domain or, if there is a linker, both of its ends.
Conserved residues, which immunum's alignment does not need, check it: the J segment motif
[WF]-G-x-G before the boundary, cysteine 23 after it. A string is split only if both domains are
complete and everything else is short or a constant region; any other string is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import product
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import KEY_BYTES
from abag.core.errors import SequenceError
from abag.core.messages import quoted

# ---- variable domains of a string ----------------------------------------------------------------

ChainName = Literal["heavy", "light"]
CHAIN_ROLES: tuple[ChainName, ChainName] = ("heavy", "light")
"""Roles that a user may leave empty: ``--column light=`` says that no column is the light chain."""
StringForm = Literal["one chain", "unrecognised", "glued", "linker", "repeated"]
"""What a string was: one variable domain, none that is known, two without or with a linker, or the
same heavy chain twice."""

ChainPlaces = Literal["as-given", "auto", "most"]
"""Values of ``--chains``."""
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
    "heavy": re.compile("(?=([WF][GS].G.{5}(?:S[SAPT]?|T[SA]|.S)?))"),
    "light": re.compile("(?=([WF]G.G.{6}(?:R|G(?![GS]))?))"),
}
_J_SEGMENT = {
    "heavy": ("TASPI", "LTMVKRSQ", "VL", "TI", "VA", "S", "SAPT"),
    "light": ("TS", "KRQE", "VLRM", "EDTI", "IVFLA", "KLRN", "RG"),
}
"""Usual residues after the motif of framework 4."""
_CYSTEINE_23 = re.compile("C(?=.{7,25}W)")
_CONSERVED = re.compile("C.{7,25}W.{45,85}C.{3,60}[WF]..G")
"""Cysteine 23, tryptophan 41, cysteine 104 and the J segment motif."""
_LINKER = re.compile("(?:G{1,5}S){2,}|G{2,5}S|X{2,}|GSTSGSGKPGSGEGSTKG")
_BESIDE_LINKER = re.compile("[GS]+|[GSATR]{2,}")
"""What restriction sites and incomplete repeats add to a linker, between it and a domain."""
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
        return DomainSplit(sequence, "", "unrecognised")
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
    if len(numbered.numbering) != len(places):  # immunum numbers no residue after many X
        return {}
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
    short = 0 < len(between) < SHORTEST_LINKER and not _LINKER.search(between)
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
    cysteines = _CYSTEINE_23.finditer(sequence, second.start, second.end)
    complete = {cysteine.start() - BEFORE_CYSTEINE_23[second.gene] for cysteine in cysteines}
    for linker in _LINKER.finditer(sequence, earliest, latest):
        if abs(linker.end() - second.start) < ALIGNMENT_SLACK:
            if linker.start() in complete and linker[0].startswith("X"):  # its unknown residues
                return linker.start(), linker.start()
            return _whole_linker(linker, first, complete)
    starts = {start for start in complete if abs(start - second.start) < ALIGNMENT_SLACK}
    motifs = _FRAMEWORK_4[first.chain].finditer(sequence, earliest, latest)
    ends = {_end_of_motif(motif, first.chain, starts) for motif in motifs}
    close = {end for end in ends if abs(end - first.end) < ALIGNMENT_SLACK}
    end = max(ends & starts or close, default=first.end)
    start = second.start
    constant = [
        at for at in {start - 1, start, *starts} if is_constant(sequence[end:at], first.chain)
    ]
    if constant:
        start = max(constant)
        end = start
    if not close and (start not in starts or max(ends, default=0) > end):
        raise UnsureDomains(_UNCERTAIN)
    if abs(end - start) < ALIGNMENT_SLACK:
        start = end
    return end, start


def _whole_linker(
    linker: re.Match[str], first: Domain, complete: Collection[int]
) -> tuple[int, int]:
    """Return where a known linker begins and ends, with what it has beside its repeats.

    It is between framework 4 of the first domain and the `complete` second one, if these are known.
    """
    text = linker.string
    start, end = linker.span()
    earliest = first.start + CYSTEINE_104
    motifs = _FRAMEWORK_4[first.chain].finditer(text, earliest, start)
    ends = [_end_of_motif(motif, first.chain, ()) for motif in motifs]
    before = text[max(ends, default=first.end) : start]
    is_site = _BESIDE_LINKER.fullmatch(before) and not (
        is_constant(before, first.chain) and {*before} - {*"GS"}
    )
    if is_site:
        start -= len(before)
    behind = [text[end:at] for at in complete if _BESIDE_LINKER.fullmatch(text[end:at])]
    if not behind:  # no domain begins with G
        end += len(text[end:]) - len(text[end:].lstrip("G"))
    return start, end + len(max(behind, key=len, default=""))


def _end_of_motif(motif: re.Match[str], chain: ChainName, starts: Collection[int]) -> int:
    """Return where framework 4 ends: earlier than usual if the second domain starts within it.

    Then its last residues are trimmed, or the first ones of the second domain are: those that it
    usually has are its own.
    """
    first, last = motif.start(1) + 4, motif.end(1)
    end = max((start for start in starts if first < start < last), default=last)
    while end < last and motif.string[end] in _J_SEGMENT[chain][end - first]:
        end += 1
    return end


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


# ---- sequences and their keys --------------------------------------------------------------------

Kind = Literal["antibody", "antigen"]
KINDS: tuple[Kind, Kind] = ("antibody", "antigen")
ANTIBODY_ROLES = ("heavy", "light", "antibody")
SEQUENCE_ROLES = (*ANTIBODY_ROLES, "antigen")
ROLES_OF: Mapping[Kind, tuple[str, ...]] = {"antibody": ANTIBODY_ROLES, "antigen": ("antigen",)}
MUTATIONS: Mapping[Kind, str] = {"antibody": "mutations", "antigen": "antigen_mutations"}
"""Roles of the columns of mutations."""
LIGHT_MUTATIONS = "light_mutations"
"""Role of the second of two columns of mutations, one for each chain."""
MUTATION_PARTS = ("mutation_chain", "mutation_wild", "mutation_position")
"""Roles of the columns that complete a column of single residues to mutations."""
MUTATION_ROLES = (*MUTATIONS.values(), LIGHT_MUTATIONS, *MUTATION_PARTS)
TEXT_ROLES = (*SEQUENCE_ROLES, *MUTATION_ROLES)
"""Roles of columns that are read as text, and must not be mixed up."""
PLURAL: dict[str, str] = {"antibody": "antibodies", "antigen": "antigens"}
Chains = tuple[str, ...]
"""Normalized: (heavy, light) of an antibody, the sorted chains of an antigen."""

NO_ANTIGEN: Chains = ("X",)
"""Stands for the antigen of tables without one, so that they have pairs; nobody encodes it."""
ALONE = "antibodies alone (--no-antigen)"
"""What is said of these tables."""
STANDARD_RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
RESIDUES = STANDARD_RESIDUES + "X"
STOP_CODON = "*"
REPLACED = "UZOB"  # read as X: both tokenizers know X, and neither model learned much about these

MISSING_TEXT = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|"
    "nan|null".split("|")
)
"""Cells of a text file that pandas reads as missing."""
_WORDS = (
    "na|nan|nd|nil|nill|none|null|tbd|missing|unknown|same|ditto|identical|pending|proprietary|"
    "confidential|unpublished|unavailable|heavy|light|kappa|lambda|vh|vl|vhh|vk|hc|lc|fab|scfv|igg|"
    "antigen|ag|target|sequence|nanobody|nanobodies|sdab|camelid|absent|empty|blank|failed|tba|nt|nr"
)
NO_SEQUENCE = frozenset(f"{_WORDS}|{_WORDS.upper()}|{_WORDS.title()}".split("|"))
"""Words whose letters are all residues. CoV-AbDab writes ND for the light chain of a nanobody."""
_AS_A_WORD = re.compile(
    r"[A-Z][a-z]{2,18}(\s+[A-Za-z][a-z]{0,18})*|"  # Lysozyme, Receptor binding domain
    r"(?=\S*[a-z])(?=\S*[A-Z])[A-Za-z]{3,6}|"  # scFv
    r"(?=\S{7,19}$)[A-Z][a-z]+(?:[A-Z][a-z]*)+|"  # SpikeRbd
    r"(?i:[a-z]{3,16}(mab|fusp)(\s+[a-z]{3,12})*)|"  # IMDEVIMAB, belantamab mafodotin; few
    # sequences have the residues B and U, and none so short
    r"(?i:(same|see|not|no|identical|unknown)\s[a-z\s]{2,40})|"  # same as above, not determined
    r"(?i:(antigen|variant|strain|peptide|ligand|analyte|sample|design|wildtype|parental)[a-z]?)"
)
"""A text that is written as words are. Longer sequences may have residues in lower case."""
_ANTIGENS = frozenset(
    "CEA CGRP EGF EGFR FAS FERRITIN FGF FGFR GCSF GPC HER HGF IFN IGF IGFR KRAS LAG MAGE "
    "MERS NGF NRAS PCSK PDGF PDGFR PDL PSMA RAS RSV SARS SPIKE STREPTAVIDIN TCR TIGIT TNF TNFA "
    "TNFR TRAIL TSLP VEGF VEGFA VEGFR".split()
)
"""Names of antigens whose letters are all residues."""
_THREE_LETTERS = re.compile(
    "(?:Ala|Arg|Asn|Asp|Cys|Gln|Glu|Gly|His|Ile|Leu|Lys|Met|Phe|Pro|Ser|Thr|Trp|Tyr|Val){3,}",
    re.IGNORECASE,
)
"""Residues by codes of three letters, of which each letter would be read as a residue."""
_NUCLEOTIDES = re.compile(r"[ACGTURYSWKMBDHVN|:\s]{18,}", re.IGNORECASE)
"""Bases, and letters for one of several. Shorter texts of these letters may be peptides."""
_SURE_BASES = 0.8
"""Least share of A, C, G, T and U in nucleotides, of which primers are the least sure."""
_CODONS = map("".join, product("TCAG", repeat=3))
_RESIDUE_OF_CODON = dict(
    zip(_CODONS, "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG", strict=True)
)
"""The standard genetic code; ``*`` is a stop codon."""
_BLOCK = 10
"""Least residues of the blocks in which databases print sequences; shorter ones may be words."""
_FEWEST_BLOCKS = 4  # of one length, which words of a name are not
_SHORTEST_WORD = 3  # residues with blanks between them are a sequence

# Not str.upper(): it would turn letters of other alphabets into residues.
_NORMAL = str.maketrans(RESIDUES.lower() + REPLACED + REPLACED.lower(), RESIDUES + "X" * 8)
_CLEAN = re.compile(f"[{RESIDUES}]+")
_ILLEGAL = re.compile(f"[^{RESIDUES}]")
_BECOMES_X = re.compile(f"[{REPLACED}]", re.IGNORECASE)
_SEPARATOR = re.compile("[|:]")
_LONG = 20
_LONGEST_LINE = 120  # residues of a line in files of sequences
_RUN = f"[{RESIDUES}]{{{_LONG}}}"
LONG_RUN = re.compile(_RUN, re.IGNORECASE)
"""Residues that no name has."""
_OTHER_SEPARATOR = re.compile(
    # the signs once more first: to look behind each residue would take most of the reading
    rf"(?=[\s,;/_+&\[<])(?<={_RUN})\s*(?:[,;/_+&]|[\[<]SEP[\]>])\s*(?={_RUN})",
    re.IGNORECASE,
)
"""Other signs between chains, which are no parts of a name."""
_LISTED = r"""'([A-Za-z*|:\s]*)'|"([A-Za-z*|:\s]*)"|None|nan"""
_LIST = re.compile(rf"\s*[\[(]\s*(?:{_LISTED})(?:(?:[,\s]|\\n)+(?:{_LISTED}))*\s*,?\s*[\])]\s*")
"""Chains as pandas and NumPy write a list of them: ``['EVQ', 'DIQ']``, also without the comma."""


class EmptySequence(SequenceError):
    """An antibody without a chain, or an antigen with an empty chain."""


class UnknownResidue(SequenceError):
    """A character that is not a valid residue."""


BAD_SEQUENCE = (EmptySequence, UnknownResidue, UnsureDomains)  # what reading one sequence may raise


class ParsedSequence(NamedTuple):
    """One antibody or antigen as read from text."""

    chains: Chains
    replaced: int = 0
    """Residues read as X."""
    form: str = ""
    """`StringForm` of an antibody given as one string without separator, and what was found in its
    chains (`pairs.count_changes`), joined by ``+``; empty for most."""


def are_nucleotides(text: str) -> bool:
    """Tell whether a text is DNA or RNA; repeats of a few of its letters may be proteins."""
    if _NUCLEOTIDES.fullmatch(text) is None:
        return False
    letters = re.sub(r"[N|:\s]", "", text.upper())
    sure = sum(map(letters.count, "ACGTU"))
    has_all = {*letters} >= {*"ACGT"} or {*letters} >= {*"ACGU"}
    return has_all and sure >= _SURE_BASES * len(letters)


def translated(nucleotides: str) -> str:
    """Translate nucleotides in three frames; what is between stop codons is joined by ``|``."""
    bases = "".join(nucleotides.upper().split()).replace("U", "T")
    open_frames = []
    for start in range(3):
        codons = (bases[at : at + 3] for at in range(start, len(bases) - 2, 3))
        residues = "".join(_RESIDUE_OF_CODON.get(codon, "X") for codon in codons)
        open_frames += [part for part in residues.split(STOP_CODON) if len(part) >= WHOLE_DOMAIN]
    return "|".join(open_frames)


def is_word(text: str) -> bool:
    """Tell whether a text whose letters may all be residues is written as a word is."""
    stripped = text.strip()
    is_known = stripped in NO_SEQUENCE or stripped.upper() in _ANTIGENS
    return is_known or _AS_A_WORD.fullmatch(stripped) is not None or _are_words(stripped)


def _are_words(text: str) -> bool:
    """Tell whether blanks divide a text unlike a sequence, of which all but one block are equal."""
    lengths = [*map(len, text.split())]
    if len(lengths) < 2 or LONG_RUN.search(text) or not text.replace(" ", "").isalpha():
        return False
    is_block = len(lengths) > (2 if lengths[0] >= _BLOCK else _FEWEST_BLOCKS)
    return lengths[0] >= _SHORTEST_WORD and not (is_block and _are_lines(lengths))


def _are_lines(lengths: Sequence[int]) -> bool:
    """Tell whether two or more texts of these lengths are as long, but for a shorter last one."""
    *others, last = lengths
    return {*others} == {lengths[0]} and last <= lengths[0]


def keys_array(kind: Kind, sequences: Sequence[Chains]) -> NDArray[np.uint8]:
    """Compute the keys of N normalized sequences, 16 bytes of blake2b each: shape (N, 16)."""
    # kind \0 chain \0 chain ...: different encoders may read the same chain
    blake2b = hashlib.blake2b
    texts = ["\0".join((kind, *chains)).encode() for chains in sequences]
    keys = b"".join([blake2b(text, digest_size=KEY_BYTES).digest() for text in texts])
    # bytearray: an array over bytes would be read-only
    return np.frombuffer(bytearray(keys), np.uint8).reshape(-1, KEY_BYTES)


def unlisted(text: str) -> str:
    """Return text with ``|`` between its chains, which may be a list or joined by another sign."""
    if _LIST.fullmatch(text) is None:
        return text if _CLEAN.fullmatch(text) else _OTHER_SEPARATOR.sub("|", text)
    chains = [single or double for single, double in re.findall(_LISTED, text)]
    return "|".join(filter(None, chains))


def are_joined(cell: object) -> bool:
    """Tell whether a cell has chains that `unlisted` finds by a sign that is no sure separator."""
    return isinstance(cell, str) and _OTHER_SEPARATOR.search(cell) is not None


def joined_list(cell: Any) -> Any:  # noqa: ANN401 - any cell
    """Return a list of chains as text with ``|`` between them, and any other cell as it is."""
    if not isinstance(cell, list | tuple | np.ndarray):
        return cell
    are_texts = all(chain is None or isinstance(chain, str) for chain in cell)
    return "|".join(filter(None, cell)) if are_texts else cell


def sequence_text(cell: object) -> str:
    """Return a cell as text, empty if it is missing; of a list, its chains with ``|`` between them.

    Raises
    ------
    UnknownResidue
        If the cell is a number, a word such as ``none``, or nucleotides.
    """
    if not isinstance(cell, str):  # True would be read as the residues TRXE
        if str(cell) in MISSING_TEXT:  # None, nan or pandas.NA
            return ""
        msg = f"{quoted(cell)} is not a valid sequence; expected text. Correct it."
        raise UnknownResidue(msg)
    if _THREE_LETTERS.fullmatch("".join(cell.split())):
        msg = (
            f"{_shortened(cell)} has codes of three letters; expected one letter per residue. "
            "Convert it."
        )
        raise UnknownResidue(msg)
    if is_word(cell):
        msg = (
            f"{quoted(cell)} is a word, not a sequence; expected residues, or an empty cell for a "
            "chain that is missing. Correct it, or give the sequences of names with "
            "--sequences FILE."
        )
        raise UnknownResidue(msg)
    if are_nucleotides(cell):
        msg = f"{_shortened(cell)} holds nucleotides; expected amino acids. Translate it."
        raise UnknownResidue(msg)
    return unlisted(cell)


def shown_chains(chains: Chains) -> str:
    """Return the chains of a sequence as messages show them: both ends, if they are long."""
    text = "|".join(chains)
    return text if len(text) <= 24 else f"{text[:12]}...{text[-6:]} ({len(text)} characters)"


def antibody(heavy: object = "", light: object = "") -> Chains:
    """Normalize and check one antibody: (heavy, light), of which one may be empty or missing.

    Raises
    ------
    EmptySequence
        If both are.
    UnknownResidue
        If a character is not a residue.
    """
    with located("heavy"):
        (heavy,) = parse_chain(sequence_text(heavy)).chains
    with located("light"):
        (light,) = parse_chain(sequence_text(light)).chains
    if not heavy and not light:
        msg = "antibody: heavy and light are both empty; expected at least one. Give a chain."
        raise EmptySequence(msg)
    return heavy, light


def antigen(text: object) -> Chains:
    """Normalize and check one antigen; see `parse_antigen`."""
    with located("antigen"):
        return parse_antigen(sequence_text(text)).chains


def parse_chain(text: str) -> ParsedSequence:
    """Read one chain, which may be empty.

    Raises
    ------
    UnknownResidue
        If a character is not a residue, or there are several chains.
    """
    chains = _SEPARATOR.split(text)
    if len(chains) > 1:
        msg = (
            f"{_shortened(text)} has {len(chains)} chains; expected one. Give each a column of its "
            "own, or name this one with --column antibody=NAME if it holds heavy|light."
        )
        raise UnknownResidue(msg)
    return ParsedSequence((_normalized(text),), count_replaced(text))


def parse_antibody(text: str) -> ParsedSequence:
    """Read an antibody from one string: ``heavy|light``, or split by its variable domains.

    Raises
    ------
    EmptySequence
        If there is no chain.
    UnknownResidue
        If a character is not a residue.
    UnsureDomains
        If there are more than two chains, or where one ends is uncertain.
    """
    chains = tuple(_normalized(part) for part in _SEPARATOR.split(text))
    if not any(chains):
        msg = f"{_shortened(text)} has no heavy and no light chain; expected at least one."
        raise EmptySequence(msg)
    if len(chains) > 2:
        msg = f"{_shortened(text)} has {len(chains)} chains; expected heavy|light."
        raise UnsureDomains(msg)
    if len(chains) == 2:
        return ParsedSequence(chains, count_replaced(text))
    with located(_shortened(text)):
        split = split_domains(chains[0])
    return ParsedSequence((split.heavy, split.light), count_replaced(text), split.form)


def parse_antigen(text: str) -> ParsedSequence:
    """Read an antigen, its chains joined by ``|`` or ``:``; sorted, since order has no meaning.

    Raises
    ------
    EmptySequence
        If a chain is empty.
    UnknownResidue
        If a character is not a residue.
    """
    parts = _SEPARATOR.split(text)
    chains = sorted(map(_normalized, parts))
    if "" in chains:
        msg = f"{_shortened(text)} has an empty antigen chain; expected residues. Give the chain."
        raise EmptySequence(msg)
    form = "divided antigen" if any(map(_is_divided, parts)) else ""
    return ParsedSequence(tuple(chains), count_replaced(text), form)


def _is_divided(text: str) -> bool:
    """Tell whether blanks divide long runs of residues unlike lines of one length."""
    lengths = [*map(len, text.split())]
    if sum(length >= _LONG for length in lengths) < 2:
        return False
    return not (_are_lines(lengths) and lengths[0] <= _LONGEST_LINE)


def _normalized(text: str) -> str:
    if _CLEAN.fullmatch(text):  # nearly all are
        return text
    residues = "".join(text.split()).translate(_NORMAL)
    if residues != STOP_CODON:  # behind the last residue, it is how a translation ends
        residues = residues.removesuffix(STOP_CODON)
    illegal = _ILLEGAL.search(residues)
    if illegal is None:
        return residues
    msg = (
        f"character {illegal[0]!r} at position {text.index(illegal[0]) + 1} of {_shortened(text)} "
        f"is not a valid residue; expected one of {RESIDUES} (or {REPLACED}, which are read as X). "
        "Correct or remove it."
    )
    raise UnknownResidue(msg)


def count_replaced(text: str) -> int:
    """Count the residues of a text that are read as X."""
    return len(_BECOMES_X.findall(text))


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:30]}...{text[-7:]}")


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put the place before the text of an error about a sequence."""
    try:
        yield
    except BAD_SEQUENCE as error:
        msg = f"{where}: {error}"
        raise type(error)(msg) from None
