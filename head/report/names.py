"""How a report names pairs and sequences: by the table's own ids and names where it has them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.keys import hex_keys
from abag.core.messages import printable

if TYPE_CHECKING:
    from abag.head.data.labels import LabelledPairs

NAMES = ("id", "antibody_name", "antigen_name")
"""Roles of the columns that name a pair or a sequence."""
LONGEST = 40
"""Characters of a name that are shown."""


class PairNames:
    """Names of P pairs and of their antigens."""

    row: NDArray[np.int64]
    """Number of each pair's row in the table, from 1; (P,)."""
    antigens: NDArray[np.int64]
    """Antigens of the pairs, sorted."""

    def __init__(self, pairs: LabelledPairs) -> None:
        table = pairs.table
        self.row = table.row_numbers[pairs.row]
        columns = {role: table.columns[role] for role in NAMES if role in table.columns}
        self._cells = {role: table.frame[name].iloc[pairs.row] for role, name in columns.items()}
        self.antigens, first = np.unique(pairs.antigen, return_index=True)
        keys = hex_keys(table.antigens.keys[self.antigens])
        names = self.texts("antigen_name", first) or [""] * len(first)
        self._groups = [name or f"antigen {key[:6]}" for name, key in zip(names, keys, strict=True)]
        found = Counter(self._groups)
        self._antigens = [
            group if found[group] == 1 else f"{group} {key[:6]}"
            for group, key in zip(self._groups, keys, strict=True)
        ]

    def texts(self, role: str, pairs: NDArray[np.int64]) -> list[str] | None:
        """Return the cells of some pairs, shortened; None if the table has no such column."""
        if role not in self._cells:
            return None
        return [_shorten(cell) for cell in self._cells[role].iloc[pairs]]

    def antigen(self, which: int) -> str:
        """Name an antigen; with the start of its key where others have the same name."""
        return self._antigens[int(np.searchsorted(self.antigens, which))]

    def antigen_group(self, which: int) -> str:
        """Name an antigen and all others with the same name, such as variants."""
        return self._groups[int(np.searchsorted(self.antigens, which))]


def _shorten(cell: object) -> str:
    text = "" if pd.isna(cell) else printable(str(cell).strip())  # type: ignore[call-overload]
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
