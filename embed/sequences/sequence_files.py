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

import pandas as pd

from abag.embed.sequences.chains import MISSING_TEXT

AIRR_MARKS = frozenset({"sequence_id", "locus"})
"""Columns by which a text table is known to be an AIRR file."""
_AIRR_RESIDUES = ("sequence_alignment_aa", "sequence_aa")
_AIRR_TEXTS = (*AIRR_MARKS, "cell_id", *_AIRR_RESIDUES)
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

    `ValueError` is raised for a record that is empty or occurs twice, and for a file in which some
    names have a role and others have none.
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
        row[role] = "".join(parts)
        if row[role] in ("", *MISSING_TEXT):
            msg = f"record {name!r} holds {row[role]!r}; expected residues"
            raise ValueError(msg)
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


def airr_text_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of an AIRR file that are text whatever they look like."""
    return [name for name in _AIRR_TEXTS if name in names]


def join_chains(rearrangements: pd.DataFrame) -> pd.DataFrame:
    """Join the rows of an AIRR file to antibodies: ``heavy``, ``light``, and the cell's columns.

    Rows with the same ``cell_id`` are one antibody; a row without one is an antibody of its own.
    Columns that differ between the chains of a cell are left out. `ValueError` is raised for a row
    without amino acids or of another locus than IGH, IGK or IGL, and for two chains of one kind.
    """
    # cells that were read as written may hold the texts of missing values
    known = rearrangements.mask(rearrangements.isin(MISSING_TEXT))
    text = known.reindex(columns=_AIRR_TEXTS).astype(object).fillna("").astype(str)
    filled = known.notna().any(axis=1)  # empty rows stay: the caller reports them
    aligned, whole = (text[n].str.replace(r"[.-]", "", regex=True) for n in _AIRR_RESIDUES)
    residues = aligned.mask(aligned == "", whole)
    if (bare := filled & (residues == "")).any():
        msg = (
            f"sequence {text['sequence_id'][bare].iloc[0]!r} has no amino acids; expected them in "
            f"one of the columns {' or '.join(_AIRR_RESIDUES)}"
        )
        raise ValueError(msg)
    role = text["locus"].str.upper().map(_LOCI)
    if (other := filled & role.isna()).any():
        row = text[other].iloc[0]
        msg = f"sequence {row['sequence_id']!r} is of locus {row['locus']!r}, not of an antibody"
        raise ValueError(msg)
    # names of sequences may occur twice, or be that of a cell, so they do not tell cells
    alone = pd.Series([f"\0{number}" for number in range(len(text))], text.index, dtype=str)
    cell = text["cell_id"].mask(text["cell_id"] == "", alone)
    names = text["cell_id"].mask(text["cell_id"] == "", text["sequence_id"])
    if (twice := pd.DataFrame({"cell": cell, "role": role}).duplicated()).any():
        at = int(twice.to_numpy().argmax())
        msg = f"cell {names.iloc[at]!r} has two {role.iloc[at]} chains; expected one of each"
        raise ValueError(msg)
    chains = {kind: residues.where(role == kind, "") for kind in ("heavy", "light")}
    joined = pd.DataFrame({"id": names} | chains).groupby(cell, sort=False)
    made = joined.agg({"id": "first", "heavy": "".join, "light": "".join})
    others = known.drop(columns=[*_AIRR_TEXTS], errors="ignore")
    agree = others.groupby(cell, sort=False).nunique(dropna=False).eq(1).all()
    kept = rearrangements[[*others.columns[agree]]].groupby(cell, sort=False).first()
    return made.join(kept.rename(columns={name: f"{name}.1" for name in made}))
