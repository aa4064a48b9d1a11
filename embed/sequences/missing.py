"""Texts that stand for a missing value in tables."""

from __future__ import annotations

MISSING_TEXT = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|"
    "nan|null".split("|")
)
"""Cells of a text file that pandas reads as missing."""
