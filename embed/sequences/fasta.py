"""FASTA as a table: one chain per record.

Chains belong together by the endings of their names: ``ab1_H``, ``ab1_L``, ``ab1_antigen``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import IO

import pandas as pd

from abag.core.messages import quoted
from abag.embed.sequences.chains import MISSING_TEXT
from abag.embed.sequences.delimited import Chunk, ReadOptions, in_chunks

_ROLES = ("heavy", "light", "antigen")
_NAME = re.compile(
    r"(.+)[_|:./-](?:(?P<heavy>h|vh|hc|heavy)|(?P<light>l|vl|lc|light|k|vk|kappa|lambda)|"
    r"(?P<antigen>ag|antigen))",
    re.IGNORECASE,
)
"""A name that ends in the role of its chain."""


def read_fasta(file: IO[bytes], options: ReadOptions) -> Iterator[Chunk]:
    """Read the records of a file as one table."""
    text = re.sub("\r\n?", "\n", file.read().decode("utf-8-sig"))
    role = ""
    if [*options.kinds] == ["antigen"]:
        role = options.columns.get("antigen", "antigen")
    yield from in_chunks(_parse_fasta(text, role), options.rows)


def _parse_fasta(text: str, only: str = "") -> pd.DataFrame:
    """Read FASTA: columns ``id`` and ``sequence``, or ``heavy``, ``light``, ``antigen``.

    Where antigens are asked for alone, each record is one, in the column `only`: what ends in -L or
    -H is a name (cathepsin-L). Unless an antigen shares its name with chains of an antibody.
    """
    first, *records = re.split(r"^\s*>", text, flags=re.MULTILINE)
    if first.strip():
        line = first.strip().partition("\n")[0]
        msg = f"it begins with {line[:20]!r}, not with '>'"
        raise ValueError(msg)
    names = [_first_word(record.partition("\n")[0]) for record in records]
    ends = [_NAME.fullmatch(name) for name in names]
    if only and not _names_pairs(ends):
        ends = [None] * len(names)
    without_end = "sequence" if not only or any(ends) else only
    rows: dict[str, dict[str, str]] = {}
    for record, name, end in zip(records, names, ends, strict=True):
        lines = record.split("\n")[1:]
        stem = end[1] if end else name
        role = str(end.lastgroup) if end else without_end
        row = rows.setdefault(stem, {})
        if role in row:
            msg = (
                f"record {quoted(name)} is the second {role} of {quoted(stem)}; expected "
                "distinct names"
            )
            raise ValueError(msg)
        row[role] = "".join(map(str.strip, lines))
        # the table is read as CSV is, where these are empty cells
        if row[role] in ("", *MISSING_TEXT):
            msg = f"record {quoted(name)} holds {quoted(row[role])}; expected residues"
            raise ValueError(msg)
    roles = set[str]().union(*rows.values())
    if "sequence" in roles and len(roles) > 1:
        without_role = [stem for stem, row in rows.items() if "sequence" in row]
        name = without_role[0]
        msg = (
            f"record {quoted(name)} does not end in a role as the others do, such as _H, _L "
            "or _antigen"
        )
        raise ValueError(msg)
    columns = {"id": [*rows]}
    for role in (*_ROLES, "sequence", without_end):
        if role in roles:
            columns[role] = [row.get(role, "") for row in rows.values()]
    return pd.DataFrame(columns, dtype=str)


def _first_word(line: str) -> str:
    """Return the name in a header, which a description may follow; empty without one."""
    words = line.split(maxsplit=1)
    return words[0] if words else ""


def _names_pairs(ends: Sequence[re.Match[str] | None]) -> bool:
    """Tell whether an antigen has the name of an antibody's chain, less the ending."""
    endings = [end for end in ends if end]
    antigens = {end[1] for end in endings if end.lastgroup == "antigen"}
    chains = {end[1] for end in endings if end.lastgroup != "antigen"}
    return not antigens.isdisjoint(chains)
