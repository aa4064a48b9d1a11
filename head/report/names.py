"""How a report names pairs and sequences: by the table's own ids and names where it has them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import distinct, hex_keys
from abag.core.messages import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from abag.head.data.labels import LabelledPairs

NAMES = ("id", "antibody_name", "antigen_name")
"""Roles of the columns that name a pair or a sequence."""
LONGEST = 40
"""Characters of a name that are shown."""


class PairNames:
    """Names of P pairs and of their antigens."""

    columns: dict[str, pd.Series[Any]]
    """``row``, the number of each pair's row in the table, from 1, and those of `NAMES` that the
    table has, as text; each has P rows."""
    antigens: NDArray[np.int64]
    """Antigens of the pairs, sorted."""

    def __init__(
        self,
        columns: Mapping[str, pd.Series[Any]],
        antigen: NDArray[np.int64],
        antigen_keys: Sequence[str],
    ) -> None:
        """Take the columns, the antigen of each pair, and the hex key of each unique antigen."""
        self.columns = dict(columns)
        self.antigens, first = np.unique(antigen, return_index=True)
        names = self.texts("antigen_name", first) or [""] * len(first)
        self._groups = [
            name or f"antigen {key[:6]}" for name, key in zip(names, antigen_keys, strict=True)
        ]
        found = Counter(self._groups)
        self._antigens = [
            group if found[group] == 1 else f"{group} {key[:6]}"
            for group, key in zip(self._groups, antigen_keys, strict=True)
        ]

    @classmethod
    def of(cls, pairs: LabelledPairs) -> PairNames:
        """Take the names from the table of the pairs."""
        table = pairs.table
        columns: dict[str, pd.Series[Any]] = {"row": pd.Series(table.row_numbers[pairs.row])}
        for role in NAMES:
            if role in table.columns:
                columns[role] = _texts(table.frame[table.columns[role]].iloc[pairs.row])
        used = distinct(pairs.antigen)
        return cls(columns, pairs.antigen, hex_keys(table.antigens.keys[used]))

    def rows(self, pairs: NDArray[np.int64]) -> list[int]:
        """Return the row numbers of some pairs."""
        return [int(row) for row in self.columns["row"].iloc[pairs]]

    def texts(self, role: str, pairs: NDArray[np.int64]) -> list[str] | None:
        """Return the cells of some pairs, shortened; None if the table has no such column."""
        if role not in self.columns:
            return None
        return [_shorten(text) for text in _texts(self.columns[role].iloc[pairs])]

    def antigen(self, which: int) -> str:
        """Name an antigen; with the start of its key where others have the same name."""
        return self._antigens[int(np.searchsorted(self.antigens, which))]

    def antigen_group(self, which: int) -> str:
        """Name an antigen and all others with the same name, such as variants."""
        return self._groups[int(np.searchsorted(self.antigens, which))]


def _texts(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Spell cells as printable text; missing ones are empty."""
    found = zip(cells, cells.isna(), strict=True)
    texts = ["" if missing else printable(str(cell).strip()) for cell, missing in found]
    return pd.Series(texts, dtype=object)


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
