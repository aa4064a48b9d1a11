"""AIRR Rearrangement files: the chains of a cell joined to an antibody.

Promises that chains are joined only within one cell of one sample, and that whatever is not read is
a problem of its row or counted in a remark.

References
----------
AIRR Rearrangement schema 1.5, docs.airr-community.org.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from abag.core.messages import counted, quoted
from abag.embed.tables.chains import CHAIN_ROLES, MISSING_TEXT, ChainPlaces

_CALLS = ("v_call", "c_call", "j_call")
"""Columns of genes, whose names begin with the locus."""
_RESIDUES = ("sequence_alignment_aa", "sequence_aa")
_TEXTS = ("sequence_id", "locus", "cell_id", *_RESIDUES, *_CALLS, "productive")
"""Columns that are read as text."""
_REPLACED = ("sequence_id", "locus", "cell_id", *_RESIDUES)
"""Columns that become ``id``, ``heavy`` and ``light``."""
_BREAK = "\x1f"
"""Ends the name of a cell. Not NUL: pandas before 3 compares texts up to their first one."""
_COUNTS = ("umi_count", "duplicate_count", "consensus_count")
"""How much of a chain was seen, the most telling number first."""
_SOURCES = re.compile(
    "(study|subject|donor|patient|repertoire|sample|sampleprocessing|dataprocessing|"
    "rearrangementset|library)(id|name)?|gemgroup|origident"
)
"""Columns, by the letters of their names, of what a ``cell_id`` is unique in."""
_LOCI = {"IGH": "heavy", "IGK": "light", "IGL": "light"}
_LOCI_OF_OAS = {"H": "IGH", "K": "IGK", "L": "IGL"}
_PRODUCTIVE = frozenset(("t", "true", "1", "1.0", "y", "yes", "productive", ""))
_NOT_PRODUCTIVE = frozenset(
    ("f", "false", "0", "0.0", "n", "no", "unproductive", "nonproductive", "non-productive")
)
NOT_PRODUCTIVE = "not productive"
"""Reason of a row that is skipped whatever ``--bad-rows`` is."""


class RowProblem(NamedTuple):
    """Problem for which a row that a reader made cannot be used."""

    reason: str
    text: str
    error: str


class ReaderNotes(NamedTuple):
    """Notes of a reader on its rows, beside their cells."""

    problems: Mapping[int, RowProblem] = {}  # by the number of the row, from 0
    remarks: tuple[str, ...] = ()
    cut: bool = False
    """Whether chains may hold more than the variable domain, which alone the format means."""
    numbers: Sequence[int] | None = None
    """Number of each row in the file; None: they follow each other."""


NO_NOTES = ReaderNotes()


def is_airr(names: Iterable[str]) -> bool:
    """Tell by its columns whether a table is an AIRR file."""
    present = {*names}
    has_call = not present.isdisjoint(_CALLS)
    if "sequence_id" not in present:  # as in OAS
        return has_call and {"locus", "sequence_alignment_aa"} <= present
    return "locus" in present or (has_call and not present.isdisjoint((*_RESIDUES, "sequence")))


def join_cells(
    rearrangements: pd.DataFrame, chains: ChainPlaces
) -> tuple[pd.DataFrame, ReaderNotes]:
    """Join the chains of each cell, if the file names cells, to an antibody.

    Columns that differ between the chains of a cell are left out, but not those that only one has.
    """
    if "sequence_id" not in rearrangements:
        numbers = map(str, range(1, len(rearrangements) + 1))
        rearrangements = rearrangements.assign(sequence_id=[*numbers])
    if {*_RESIDUES}.isdisjoint(rearrangements.columns):
        first = rearrangements["sequence_id"].map(quoted).get(0, "")
        msg = f"sequence {first} has no amino acids; expected a column {' or '.join(_RESIDUES)}"
        raise ValueError(msg)
    # cells that were read as written may hold the texts of missing values
    values = rearrangements.mask(rearrangements.isin({"", *MISSING_TEXT}))
    sources = []
    for name in map(str, values):
        letters = re.sub("[^a-z]", "", name.lower())
        if _SOURCES.fullmatch(letters):
            sources.append(name)
    records = _read_records(values, sources)
    count_columns = [name for name in _COUNTS if name in values]
    counts = values[count_columns].apply(pd.to_numeric, errors="coerce")

    # a cell expresses its productive chains: the others are no choice
    expressed = records["productive"] & records["filled"]
    records["expressed"] = expressed.groupby(records["cell"]).transform("any")
    beside = records["filled"] & records["expressed"] & ~records["productive"]
    chosen = records[~beside]
    is_repeated = chosen.duplicated(["cell", "role", "residues", "problem"])
    repeated = chosen.index[chosen["filled"] & is_repeated]
    chosen = chosen.drop(index=repeated)
    fewer, conflicts = _compare_chains(chosen[chosen["filled"]], counts, chains)
    chosen = chosen.drop(index=fewer)

    problems, read_anyway = _find_problems(chosen, conflicts, chains)
    cut = bool((chosen["is_whole"] & chosen["filled"]).any())
    left_out = {
        "not productive: left out, beside productive ones of the cell": beside.sum(),
        "repeating a chain of the cell: left out": len(repeated),
        f"of less {' or '.join(counts)} than another of the cell: left out": len(fewer),
    }
    remarks = []
    for reason, number in left_out.items():
        if number:
            remarks.append(f"{counted(int(number), 'rearrangement')} {reason}")
    if read_anyway:
        remarks.append(
            f"{counted(read_anyway, 'antibody')} only of rearrangements that are not productive, "
            "read as written; --chains most skips them"
        )
    if cut:
        remarks.append("chains of sequence_aa are cut to the variable domain")
    frame = _join(rearrangements.loc[chosen.index], values.loc[chosen.index], chosen)
    return frame, ReaderNotes(problems, tuple(remarks), cut)


def _read_records(values: pd.DataFrame, sources: list[str]) -> pd.DataFrame:
    """Read the cell of each rearrangement, its chain and what is wrong with it."""
    text = values.reindex(columns=_TEXTS).astype(object).fillna("").astype(str)
    aligned, whole = (text[name].str.replace(r"[.-]", "", regex=True) for name in _RESIDUES)
    locus = text["locus"].str.upper().str.strip().replace(_LOCI_OF_OAS)
    for name in _CALLS:
        called = text[name].str.upper().str.extract("(?<![A-Z])((?:IG|TR)[A-Z])", expand=False)
        locus = locus.mask(locus == "", called.fillna(""))
    # names of sequences may occur twice, or be that of a cell, so they do not tell cells
    alone = pd.Series([f"{_BREAK}{row}" for row in range(len(text))], text.index, dtype=str)
    has_no_cell = text["cell_id"] == ""
    names = text["cell_id"].mask(has_no_cell, text["sequence_id"])
    cell = text["cell_id"]
    cell_title = names.map(lambda name: f"cell {name!r}")
    for name in sources:
        source = values[name].astype(object).fillna("").astype(str)
        cell = cell + _BREAK + source
        cell_title = cell_title + (f" of {name} " + source).mask(source == "", "")
    sequence_title = "sequence " + text["sequence_id"].map(quoted)
    is_aligned = aligned != ""
    records = pd.DataFrame(
        {
            "id": names,
            "cell": cell.mask(has_no_cell, alone),
            "title": cell_title.mask(has_no_cell, sequence_title),
            "sequence": text["sequence_id"],
            "role": locus.map(_LOCI).fillna(""),
            "residues": aligned.where(is_aligned, whole),
            "is_whole": ~is_aligned & (whole != ""),
            "filled": values.notna().any(axis=1),  # empty rows stay: the caller reports them
        }
    )
    productive = text["productive"].str.lower().str.strip()
    records["productive"] = ~productive.isin(_NOT_PRODUCTIVE)
    unknown = ~productive.isin(_PRODUCTIVE | _NOT_PRODUCTIVE)
    locus_columns = ", ".join(("locus", *_CALLS))
    no_locus = sequence_title + f" names no locus; expected IGH, IGK or IGL in {locus_columns}"
    named_locus = sequence_title + " is of locus " + locus.map(quoted)
    other_locus = named_locus + ", not of an antibody; expected IGH, IGK, IGL"
    residue_columns = " or ".join(_RESIDUES)
    no_residues = sequence_title + f" has no amino acids; expected them in {residue_columns}"
    named_flag = sequence_title + " has productive " + text["productive"].map(quoted)
    strange_flag = named_flag + "; expected T or F"
    has_no_role = records["role"].eq("")
    records["problem"] = np.select(
        [has_no_role & locus.eq(""), has_no_role, records["residues"].eq(""), unknown],
        [no_locus, other_locus, no_residues, strange_flag],
        "",
    )
    return records


def _compare_chains(
    chosen: pd.DataFrame, counts: pd.DataFrame, chains: ChainPlaces
) -> tuple[list[int], dict[int, str]]:
    """List the chains to leave out where a cell has several of a type, or say what is wrong."""
    fewer: list[int] = []
    conflicts: dict[int, str] = {}
    several = chosen[chosen.duplicated(["cell", "role"], keep=False) & chosen["problem"].eq("")]
    for (_, role), group in several.groupby(["cell", "role"], sort=False):
        seen = counts.loc[group.index].fillna(0.0)
        has_counts = len(seen.columns) > 0
        ranked = seen.sort_values([*seen], ascending=False, kind="stable") if has_counts else seen
        is_clear = has_counts and len(ranked) > 1 and not ranked.iloc[0].equals(ranked.iloc[1])
        if chains == "most" and is_clear:
            fewer += ranked.index[1:].tolist()
            continue
        number = "two" if len(group) == 2 else str(len(group))
        listed = ", ".join(map(quoted, group["sequence"]))
        why = " of equal or no counts" if chains == "most" else ""
        take = f", or take those of most {seen.columns[0]} by --chains most" if is_clear else ""
        conflicts[int(group.index[0])] = (
            f"has {number} {role} chains ({listed}){why}; expected one of each. Remove the "
            f"others{take}."
        )
    return fewer, conflicts


def _find_problems(
    chosen: pd.DataFrame, conflicts: Mapping[int, str], chains: ChainPlaces
) -> tuple[dict[int, RowProblem], int]:
    """Find the rows that cannot be used, and count the others that are not productive."""
    row = pd.Series(pd.factorize(chosen["cell"])[0], chosen.index)
    has_problem = chosen["problem"].ne("") | chosen.index.isin([*conflicts])
    problems: dict[int, RowProblem] = {}
    read_anyway: set[int] = set()
    for at in chosen.index[chosen["filled"] & (has_problem | ~chosen["expressed"])]:
        place = int(row[at])
        record = chosen.loc[at]
        title = str(record["title"])
        conflict = conflicts.get(at)
        if not record["expressed"]:
            is_readable = not has_problem[at] and "*" not in record["residues"]
            if is_readable and chains != "most":
                read_anyway.add(place)
            else:
                error = f"{title} has no productive chain"
                problems[place] = RowProblem(NOT_PRODUCTIVE, title, error)
        elif conflict:
            problems.setdefault(place, RowProblem("several chains", title, f"{title} {conflict}"))
        else:
            problem = RowProblem("rearrangement", title, f"{record['problem']}. Correct it.")
            problems.setdefault(place, problem)
    return problems, len(read_anyway - problems.keys())


def _join(
    rearrangements: pd.DataFrame, values: pd.DataFrame, records: pd.DataFrame
) -> pd.DataFrame:
    # of several chains of a cell, which is a problem, the first
    residues = records["residues"].mask(records.duplicated(["cell", "role"]), "")
    chains = {role: residues.where(records["role"] == role, "") for role in CHAIN_ROLES}
    joined = pd.DataFrame({"id": records["id"]} | chains).groupby(records["cell"], sort=False)
    antibodies = joined.agg({"id": "first", "heavy": "".join, "light": "".join})
    others = values.drop(columns=[*_REPLACED], errors="ignore")
    stated = others.groupby(records["cell"], sort=False)
    agree = [*others.columns[stated.nunique().le(1).all()]]
    written = rearrangements[agree].groupby(records["cell"], sort=False).first()
    kept = stated[agree].first().fillna(written)
    # as pandas renames the second of two columns with one name
    new_names = {name: f"{name}.1" for name in antibodies}
    return antibodies.join(kept.rename(columns=new_names))
