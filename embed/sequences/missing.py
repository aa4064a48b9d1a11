"""Texts that stand for a missing value or sequence in tables."""

from __future__ import annotations

MISSING_TEXT = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|"
    "nan|null".split("|")
)
"""Cells of a text file that pandas reads as missing."""
_WORDS = "na|nan|nd|nil|nill|none|null|tbd|missing|unknown|heavy|light|kappa|lambda".split("|")
NO_SEQUENCE = frozenset(form for word in _WORDS for form in (word, word.upper(), word.title()))
"""Words whose letters are all residues. CoV-AbDab writes ND for the light chain of a nanobody."""
