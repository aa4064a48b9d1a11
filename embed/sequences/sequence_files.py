"""FASTA records and AIRR rearrangements as tables with one row per antibody or antigen.

Both store one chain per record. What says which chains belong together is the ending of a record's
name (``ab1_H``, ``ab1_L``, ``ab1_antigen``), and the column ``cell_id``.

References
----------
AIRR Rearrangement schema 1.5, docs.airr-community.org.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from abag.embed.sequences.chains import MISSING_TEXT, are_nucleotides

AIRR_MARKS = frozenset({"sequence_id", "locus"})
"""Columns by which a text table is known to be an AIRR file."""
_AIRR_RESIDUES = ("sequence_alignment_aa", "sequence_aa")
_LOCI = {"IGH": "heavy", "IGK": "light", "IGL": "light"}
_ENDINGS = {
    "heavy": "h|vh|hc|heavy",
    "light": "l|vl|lc|light|k|vk|kappa|lambda",
    "antigen": "ag|antigen",
}
_NAME = re.compile(
    r"(.+)[_|:./-](?:" + "|".join(f"(?P<{role}>{e})" for role, e in _ENDINGS.items()) + ")", re.I
)


def read_fasta(lines: Iterable[str]) -> pd.DataFrame:
    """Read FASTA: columns ``id`` and ``sequence``, or ``heavy``, ``light``, ``antigen``.

    Raises
    ------
    ValueError
        A record that is empty or missing (`MISSING_TEXT`), holds nucleotides or occurs
        twice, or names with and without a role.
    """
    records: list[tuple[str, list[str]]] = []
    for line in map(str.strip, lines):
        if line.startswith(">"):
            records.append(((line[1:].split() or [""])[0], []))
        elif line and not records:
            msg = f"it begins with {line[:20]!r}, not with '>'"
            raise ValueError(msg)
        elif line:
            records[-1][1].append(line)
    rows: dict[str, dict[str, str]] = {}
    for name, parts in records:
        found = _NAME.fullmatch(name)
        stem, role = (found[1], str(found.lastgroup)) if found else (name, "sequence")
        row = rows.setdefault(stem, {})
        if role in row:
            msg = f"record {name!r} is the second {role} of {stem!r}; expected distinct names"
            raise ValueError(msg)
        row[role] = _residues(name, "".join(parts))
    roles = {role for row in rows.values() for role in row}
    if "sequence" in roles and len(roles) > 1:
        name = next(stem for stem, row in rows.items() if "sequence" in row)
        msg = f"record {name!r} does not end in a role as the others do, such as _H, _L or _antigen"
        raise ValueError(msg)
    names = [role for role in (*_ENDINGS, "sequence") if role in roles]
    return pd.DataFrame(
        {"id": [*rows], **{role: [row.get(role, "") for row in rows.values()] for role in names}},
        dtype=str,
    )


def _residues(name: str, text: str) -> str:
    if not text:
        msg = f"record {name!r} is empty"
        raise ValueError(msg)
    if text in MISSING_TEXT:  # some are valid residues: NA, nan
        msg = f"record {name!r} holds {text!r}, as a missing value is written; expected residues"
        raise ValueError(msg)
    if are_nucleotides(text):
        msg = f"record {name!r} holds nucleotides; translate them to amino acids"
        raise ValueError(msg)
    return text


def airr_text_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of an AIRR file that are text whatever they look like."""
    return [name for name in (*AIRR_MARKS, "cell_id", *_AIRR_RESIDUES) if name in names]


def join_chains(rearrangements: pd.DataFrame) -> pd.DataFrame:
    """Join the rows of an AIRR file to antibodies: ``heavy``, ``light``, and the cell's columns.

    Rows with the same ``cell_id`` are one antibody; a row without one is an antibody of its own.
    Columns that differ between the chains of a cell are left out.

    Raises
    ------
    ValueError
        No amino acids, another locus than IGH, IGK or IGL, or two chains of one kind in a cell.
    """
    sources = [name for name in _AIRR_RESIDUES if name in rearrangements]
    known = rearrangements.mask(
        rearrangements.isin(MISSING_TEXT)
    )  # cells that were read as written
    table = known.fillna({name: "" for name in (*AIRR_MARKS, "cell_id", *sources)})
    empty = known.isna().all(axis=1)  # rows that stay empty here: the caller reports them
    residues = pd.Series("", index=table.index)
    for name in sources:
        residues = residues.mask(residues == "", table[name].str.replace(r"[.-]", "", regex=True))
    if bare := table["sequence_id"][(residues == "") & ~empty].tolist():
        msg = (
            f"sequence {bare[0]!r} has no amino acids; expected them in one of the columns "
            f"{' or '.join(_AIRR_RESIDUES)}"
        )
        raise ValueError(msg)
    role = table["locus"].str.upper().map(_LOCI)
    if (other := role.isna() & ~empty).any():
        row = table[other].iloc[0]
        msg = f"sequence {row['sequence_id']!r} is of locus {row['locus']!r}, not of an antibody"
        raise ValueError(msg)
    cell, names = _cells(table)
    twice = pd.DataFrame({"cell": cell, "role": role}).duplicated()
    if twice.any():
        at = int(twice.to_numpy().argmax())
        msg = f"cell {names.iloc[at]!r} has two {role.iloc[at]} chains; expected one of each"
        raise ValueError(msg)
    chains = {kind: residues.where(role == kind, "") for kind in ("heavy", "light")}
    joined = pd.DataFrame({"id": names} | chains).groupby(cell, sort=False)
    others = known.drop(columns=[*AIRR_MARKS, *sources, "cell_id"], errors="ignore")
    groups = others.groupby(cell, sort=False)
    agree = [name for name in map(str, others) if (groups[name].nunique(dropna=False) == 1).all()]
    kept = rearrangements[agree].groupby(cell, sort=False).first()
    made = joined.agg({"id": "first", "heavy": "".join, "light": "".join})
    return made.join(kept.rename(columns={name: f"{name}.1" for name in made}))


def _cells(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the number of each row's cell, and its name; rows without one are cells of their own.

    A name of a sequence may occur twice, or be that of a cell, so that names do not tell cells.
    """
    names = table["sequence_id"]
    cell = pd.Series(np.arange(len(table)), table.index)
    if "cell_id" in table:
        given = table["cell_id"].astype(str)
        cell = cell.mask(given != "", -1 - pd.Series(pd.factorize(given)[0], table.index))
        names = given.mask(given == "", names)
    return cell, names
