"""Texts in tables that could be read as residues, but are missing values, words or nucleotides."""

from __future__ import annotations

import re

MISSING_TEXT = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|"
    "nan|null".split("|")
)
"""Cells of a text file that pandas reads as missing."""
_WORDS = "na|nan|nd|nil|nill|none|null|tbd|missing|unknown|heavy|light|kappa|lambda".split("|")
NO_SEQUENCE = frozenset(form for word in _WORDS for form in (word, word.upper(), word.title()))
"""Words whose letters are all residues. CoV-AbDab writes ND for the light chain of a nanobody."""
_NUCLEOTIDES = re.compile(r"[ACGTUN|:\s]{30,}", re.IGNORECASE)
"""Shorter texts of these letters may be peptides."""


def are_nucleotides(text: str) -> bool:
    """Tell whether a text is DNA or RNA; repeats of a few of its letters may be proteins."""
    return _NUCLEOTIDES.fullmatch(text) is not None and (
        {"A", "C", "G", "T"} <= (letters := set(text.upper())) or {"A", "C", "G", "U"} <= letters
    )
