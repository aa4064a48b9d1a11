"""Antibody and antigen sequences: normalized, checked and keyed.

Promises that the same chains get the same key whatever their case, white space or order in the
table, and that nothing is cut or dropped: a sequence is either read whole or refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abag.core.arrays import KEY_BYTES
from abag.core.errors import SequenceError
from abag.core.messages import quoted
from abag.embed.tables.domains import UnsureDomains, split_domains

Kind = Literal["antibody", "antigen"]
KINDS: tuple[Kind, Kind] = ("antibody", "antigen")
PLURAL: dict[Kind, str] = {"antibody": "antibodies", "antigen": "antigens"}
Chains = tuple[str, ...]
"""Normalized: (heavy, light) of an antibody, the sorted chains of an antigen."""

NO_ANTIGEN: Chains = ("X",)
"""Stands for the antigen of tables without one, so that they have pairs; nobody encodes it."""
ALONE = "antibodies alone (--no-antigen)"
"""What is said of these tables."""
STANDARD_RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
RESIDUES = STANDARD_RESIDUES + "X"
REPLACED = "UZOB"  # read as X: both tokenizers know X, and neither model learned much about these

MISSING_TEXT = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|"
    "nan|null".split("|")
)
"""Cells of a text file that pandas reads as missing."""
_WORDS = "na|nan|nd|nil|nill|none|null|tbd|missing|unknown|heavy|light|kappa|lambda"
NO_SEQUENCE = frozenset(f"{_WORDS}|{_WORDS.upper()}|{_WORDS.title()}".split("|"))
"""Words whose letters are all residues. CoV-AbDab writes ND for the light chain of a nanobody."""
_AS_A_WORD = re.compile(
    r"[A-Z][a-z]{2,18}(\s+[A-Za-z][a-z]{0,18})*|"  # Lysozyme, Receptor binding domain
    r"(?=\S*[a-z])(?=\S*[A-Z])[A-Za-z]{3,6}|"  # scFv
    r"(?i:[a-z]{3,16}mab)"  # IMDEVIMAB; few sequences have the residue B, and none so short
)
"""A text that is written as words are. Longer sequences may have residues in lower case."""
_ANTIGENS = frozenset(
    "CEA CGRP EGF EGFR FAS FERRITIN FGF FGFR GCSF GPC HER HGF IFN IGF IGFR KRAS LAG MAGE "
    "MERS NGF NRAS PCSK PDGF PDGFR PDL PSMA RAS RSV SARS SPIKE STREPTAVIDIN TCR TIGIT TNF TNFA "
    "TNFR TRAIL TSLP VEGF VEGFA VEGFR".split()
)
"""Names of antigens whose letters are all residues."""
_NUCLEOTIDES = re.compile(r"[ACGTUN|:\s]{30,}", re.IGNORECASE)
"""Shorter texts of these letters may be peptides."""

# Not str.upper(): it would turn letters of other alphabets into residues.
_NORMAL = str.maketrans(RESIDUES.lower() + REPLACED + REPLACED.lower(), RESIDUES + "X" * 8)
_CLEAN = re.compile(f"[{RESIDUES}]+")
_ILLEGAL = re.compile(f"[^{RESIDUES}]")
_BECOMES_X = re.compile(f"[{REPLACED}]", re.IGNORECASE)
_SEPARATOR = re.compile("[|:]")


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
    chains (`notes.count_changes`), joined by ``+``; empty for most."""


def are_nucleotides(text: str) -> bool:
    """Tell whether a text is DNA or RNA; repeats of a few of its letters may be proteins."""
    if _NUCLEOTIDES.fullmatch(text) is None:
        return False
    letters = set(text.upper())
    return letters >= set("ACGT") or letters >= set("ACGU")


def is_word(text: str) -> bool:
    """Tell whether a text whose letters may all be residues is written as a word is."""
    stripped = text.strip()
    is_known = stripped in NO_SEQUENCE or stripped.upper() in _ANTIGENS
    return is_known or _AS_A_WORD.fullmatch(stripped) is not None


def keys_array(kind: Kind, sequences: Sequence[Chains]) -> NDArray[np.uint8]:
    """Compute the keys of N normalized sequences, 16 bytes of blake2b each: shape (N, 16)."""
    # kind \0 chain \0 chain ...: different encoders may read the same chain
    blake2b = hashlib.blake2b
    texts = ["\0".join((kind, *chains)).encode() for chains in sequences]
    keys = b"".join([blake2b(text, digest_size=KEY_BYTES).digest() for text in texts])
    # bytearray: an array over bytes would be read-only
    return np.frombuffer(bytearray(keys), np.uint8).reshape(-1, KEY_BYTES)


def sequence_text(cell: object) -> str:
    """Return a cell as text, empty if it is missing.

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
    return cell


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
    with _located("heavy"):
        heavy = _normalized(sequence_text(heavy))
    with _located("light"):
        light = _normalized(sequence_text(light))
    if not heavy and not light:
        msg = "antibody: heavy and light are both empty; expected at least one. Give a chain."
        raise EmptySequence(msg)
    return heavy, light


def antigen(text: object) -> Chains:
    """Normalize and check one antigen; see `parse_antigen`."""
    with _located("antigen"):
        return parse_antigen(sequence_text(text)).chains


def parse_chain(text: str) -> ParsedSequence:
    """Read one chain, which may be empty."""
    return ParsedSequence((_normalized(text),), _count_replaced(text))


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
        return ParsedSequence(chains, _count_replaced(text))
    with _located(_shortened(text)):
        split = split_domains(chains[0])
    return ParsedSequence((split.heavy, split.light), _count_replaced(text), split.form)


def parse_antigen(text: str) -> ParsedSequence:
    """Read an antigen, its chains joined by ``|`` or ``:``; sorted, since order has no meaning.

    Raises
    ------
    EmptySequence
        If a chain is empty.
    UnknownResidue
        If a character is not a residue.
    """
    chains = sorted(_normalized(part) for part in _SEPARATOR.split(text))
    if "" in chains:
        msg = f"{_shortened(text)} has an empty antigen chain; expected residues. Give the chain."
        raise EmptySequence(msg)
    return ParsedSequence(tuple(chains), _count_replaced(text))


def _normalized(text: str) -> str:
    if _CLEAN.fullmatch(text):  # nearly all are
        return text
    residues = "".join(text.split()).translate(_NORMAL)
    illegal = _ILLEGAL.search(residues)
    if illegal is None:
        return residues
    msg = (
        f"character {illegal[0]!r} at position {text.index(illegal[0]) + 1} of {_shortened(text)} "
        f"is not a valid residue; expected one of {RESIDUES} (or {REPLACED}, which are read as X). "
        "Correct or remove it."
    )
    raise UnknownResidue(msg)


def _count_replaced(text: str) -> int:
    return len(_BECOMES_X.findall(text))


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:30]}...{text[-7:]}")


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Put the place before the text of an error about a sequence."""
    try:
        yield
    except BAD_SEQUENCE as error:
        msg = f"{where}: {error}"
        raise type(error)(msg) from None
