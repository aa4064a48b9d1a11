"""Numbers as people and spreadsheets write them, spelled so that Python reads them."""

from __future__ import annotations

import re
import unicodedata

_MINUS = str.maketrans(dict.fromkeys("−‐‑‒–﹣－", "-"))
"""Signs that are set for a minus."""
_GROUPED = re.compile(
    "(?<![0-9.,])[0-9]{1,3}(?:[\u00a0\u2007\u2008\u2009\u200a\u202f][0-9]{3})+(?![0-9])"
)
"""Digits in groups of three with a no-break or thin space between them."""


def plain_number(text: str) -> str:
    """Spell a number with ASCII signs: ``−1.5`` as ``-1.5``, ``12 500`` with thin spaces as 12500.

    Text of anything else keeps its meaning. Spaces in other places stay, so that it is no number.
    """
    if text.isascii():
        return text
    # invisible characters, such as a byte order mark
    visible = "".join(sign for sign in text if unicodedata.category(sign) != "Cf")
    dashed = visible.translate(_MINUS)
    return _GROUPED.sub(lambda found: re.sub(r"\s", "", found[0]), dashed).strip()
