"""How the table of a run was read, so that later tables need none of it again.

A run remembers what the user told it: columns, the antigen, the parent of variants and how its
residues are numbered, what happens to bad rows, and where chains are put. `as_in_the_run` is the
one place that decides what of this applies to another table: what the table or the user has instead
wins, and is said in a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from abag.core.errors import TableError
from abag.core.messages import say
from abag.embed.tables.chains import KINDS, NO_SEQUENCE, Kind, parse_antibody
from abag.embed.tables.chains import antigen as antigen_chains
from abag.embed.tables.columns import CHAIN_ROLES, LONGEST_NAME, ROLES, MissingColumn
from abag.embed.tables.options import (
    MOST_RESIDUE,
    ChainPlaces,
    Numbering,
    TableOptions,
)
from abag.embed.tables.pairs import read_chunks
from abag.embed.tables.sources import (
    MUTATIONS,
    SHORT,
    are_peptides,
    distinct_texts,
    find_references,
    holds_sequences,
    names_digest,
    roles_by_content,
    with_roles,
)

if TYPE_CHECKING:
    from abag.embed.tables.tables import Table, TableLike

T = TypeVar("T", bound=TableOptions)
BadRows = Literal["error", "skip"]
ROWS_LOOKED_AT = 100
"""Rows that tell whether a column holds sequences."""
OF_LABELS = frozenset({"pkd", "label", "prediction", "sigma", "censored", "affinity_type"})
"""Roles of columns of measurements: `run_folder.remembered_label` has the label."""
OF_ANTIBODIES = frozenset({"heavy", "light", "antibody"})
OF_VARIANTS = frozenset(MUTATIONS.values())
"""Roles of columns of mutations, which are of the run's parent or antigen only together with it."""
LONGEST_PATH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumn:
    """A column that the user named for a role."""

    role: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesFile:
    """A file of ``--sequences``, in which names of the table were looked up."""

    path: str
    """Absolute; in a shared predictor the name alone."""
    digest: str
    """That of `names_digest` when the run was fitted; empty: it is not known."""

    def why_not(self) -> str:
        """Say why the file cannot be used; empty if it is the same as it was."""
        digest = names_digest(self.path)
        if not digest:
            return "does not exist or cannot be read"
        return "" if self.digest in ("", digest) else "has changed since the run was fitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAs:
    """Options by which a table was read: saved in predictor.json, and checked when it is loaded."""

    columns: tuple[NamedColumn, ...] = ()
    absent: tuple[Literal["heavy", "light"], ...] = ()
    """Chains of which the user said that no column has them."""
    antigen: str = ""
    """Of all rows; empty: the table has antigens. `abag share` leaves it out with the sequences."""
    bad_rows: BadRows = "error"
    chains: ChainPlaces = "as-given"
    parent: str = ""
    """Antibody that mutations are of; empty: none was given. Left out as `antigen` is."""
    numbering: Numbering = "sequential"
    first_residue: int = 1
    sequences: tuple[NamesFile, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Take what is remembered of the options of a fit, as in its config.json."""
        columns = []
        for role, name in sorted(options["columns"].items()):
            if name or role not in CHAIN_ROLES:
                columns.append(NamedColumn(role=role, name=name))
        absent = [role for role in CHAIN_ROLES if options["columns"].get(role) == ""]
        files = []
        digests = options.get("sequences_digests", [])
        for path, digest in zip_longest(options["sequences"], digests, fillvalue=""):
            files.append(NamesFile(path=path, digest=digest))
        return cls(
            columns=tuple(columns),
            absent=tuple(absent),
            antigen=options["antigen"] or "",
            bad_rows=options["bad_rows"],
            chains=options["chains"],
            parent=options["parent"] or "",
            numbering=options["numbering"],
            first_residue=options["first_residue"],
            sequences=tuple(files),
        )

    def named(self) -> dict[str, str]:
        """Return the columns by role, without those of labels; empty ones of absent chains."""
        named = {column.role: column.name for column in self.columns}
        present = {role: name for role, name in named.items() if role not in OF_LABELS}
        return {**dict.fromkeys(self.absent, ""), **present}

    def check(self) -> None:
        """Raise ValueError for what no predictor may have: a fit asks before it trains."""
        roles = [*self.absent, *(column.role for column in self.columns)]
        if unknown := set(roles) - set(ROLES):
            msg = f"reading has a column for {min(unknown)!r}, which is no role"
            raise ValueError(msg)
        if len(set(roles)) < len(roles):
            msg = "reading has two columns for one role"
            raise ValueError(msg)
        for column in self.columns:
            if not 0 < len(column.name) <= LONGEST_NAME:
                msg = (
                    f"the name of the column for {column.role} has {len(column.name):,} "
                    f"characters; expected 1 to {LONGEST_NAME:,}"
                )
                raise ValueError(msg)
        for name, text in (("an antigen", self.antigen), ("a parent", self.parent)):
            if text and not re.fullmatch(r"[A-Za-z|:\s]+", text):
                msg = f"reading has {name} that is not a sequence"
                raise ValueError(msg)
        if self.antigen:
            antigen_chains(self.antigen)
        if self.parent:
            parse_antibody(self.parent)
        for file in self.sequences:
            if not 0 < len(file.path) <= LONGEST_PATH or "\0" in file.path:
                msg = "reading has an invalid path of a file of sequences"
                raise ValueError(msg)
            if not re.fullmatch("([0-9a-f]{32})?", file.digest):
                msg = f"reading has the digest {file.digest!r} of a file of sequences"
                raise ValueError(msg)
        if abs(self.first_residue) > MOST_RESIDUE:
            msg = f"reading has residues from {self.first_residue} on"
            raise ValueError(msg)


NOTHING = ReadAs()


def as_in_the_run(
    table: TableLike, given: T, remembered: ReadAs, *, kinds: Sequence[Kind] = KINDS
) -> T:
    """Complete options of reading a table by those of the run.

    A column of the run is used where the table has it and the user named none for its role. The
    antigen of the run is used where the table has no antigen sequences, its parent where it has
    mutations and no antibodies. Names in columns of these `kinds` are looked up in the files of the
    run. Options that are None are as in the run.

    Raises
    ------
    TableError
        If there are names, and a file is missing or another one.
    """
    options = with_habits(given, remembered)
    named = remembered.named()
    if options.no_antigen:
        named.pop("antigen", None)
    if not (named or remembered.antigen or remembered.parent or remembered.sequences):
        return options
    first = next(read_chunks(table, replace(options, limit=ROWS_LOOKED_AT)))
    first = with_roles(first, roles_by_content(first, options))
    columns = _columns_of_run(first, options, named)
    completed = replace(options, columns={**columns, **options.columns})
    if options.antigen is None and remembered.antigen and not options.no_antigen:
        completed = _with_antigen(first, completed, remembered)
    if options.parent is None and remembered.parent:
        completed = _with_parent(first, completed, remembered)
    if remembered.sequences and not options.sequences:
        completed = _with_names(first, completed, remembered, kinds)
    return completed


def with_habits(given: T, remembered: ReadAs) -> T:
    """Complete the options that are None and do not depend on the table."""
    bad_rows: Any = given.bad_rows
    chains: Any = given.chains
    return replace(
        given,
        bad_rows=remembered.bad_rows if bad_rows is None else bad_rows,
        chains=remembered.chains if chains is None else chains,
    )


def _columns_of_run(
    first: Table, options: TableOptions, named: Mapping[str, str]
) -> dict[str, str]:
    """Return the columns of the run that a table has, where the user named no others."""
    taken = {*options.columns, *OF_VARIANTS}
    if taken & OF_ANTIBODIES or options.parent is not None:
        taken |= OF_ANTIBODIES
    if options.antigen is not None:
        taken.add("antigen")
    remembered = {role: name for role, name in named.items() if role not in taken}
    present = {*map(str, first.names)}
    for role, name in remembered.items():
        if not name or name in present:
            continue
        instead = first.columns.get(role)
        if instead is not None:
            say(f"{first.source}: column {instead!r} is used as {role}; the run used {name!r}")
    return {role: name for role, name in remembered.items() if not name or name in present}


def _with_antigen(first: Table, options: T, remembered: ReadAs) -> T:
    """Add the antigen of the run, unless a table has antigens of its own."""
    if "antigen" in options.columns:
        return options
    column = None if "antigen" in first.ties else first.columns.get("antigen")
    if not first.has("antigen") or (column is not None and not holds_sequences(first, column)):
        say(f"{first.source}: the antigen of the run is taken for all rows")
        added = _mutations_of_run(first, options, remembered, "antigen_mutations")
        return replace(_numbered(options, remembered), antigen=remembered.antigen, columns=added)
    if column is not None:
        say(f"{first.source}: antigens are those of column {column!r}, not that of the run")
    return options


def _with_parent(first: Table, options: T, remembered: ReadAs) -> T:
    """Add the parent of the run to a table of mutations that has no antibodies of its own."""
    if options.columns.keys() & OF_ANTIBODIES:
        return options
    if any(first.has(role) for role in OF_ANTIBODIES):
        say(f"{first.source}: antibodies are those of the table, not variants of the run's parent")
        return options
    added = _mutations_of_run(first, options, remembered, "mutations")
    completed = replace(_numbered(options, remembered), parent=remembered.parent, columns=added)
    try:
        find_references(first, completed, KINDS)
    except MissingColumn:
        return options
    say(f"{first.source}: mutations are of the parent of the run")
    return completed


def _with_names(first: Table, options: T, remembered: ReadAs, kinds: Sequence[Kind]) -> T:
    """Add the files of the run to a table with names, or without a column of sequences."""
    names = [name for kind in kinds if (name := _name_in(first, options, kind)) is not None]
    if not names:
        return options
    for file in remembered.sequences:
        if why := file.why_not():
            has = f"holds names, such as {names[0]!r}" if names[0] else "has no sequences"
            msg = (
                f"{first.source}: {has}, and {file.path}, in which the run looked names up, {why}; "
                "expected the same file. Give it with --sequences FILE, or a table of sequences."
            )
            raise TableError(msg)
    files = tuple(file.path for file in remembered.sequences)
    listed = ", ".join(Path(file).name for file in files)
    say(f"{first.source}: names are looked up in the file of the run, {listed}")
    return replace(options, sequences=files)


def _name_in(first: Table, options: TableOptions, kind: Kind) -> str | None:
    """Return a name in the columns of a kind; empty without columns, None if all are sequences."""
    constant = options.antigen if kind == "antigen" else options.parent
    if constant is not None or (kind == "antigen" and options.no_antigen):
        return None
    roles = frozenset({"antigen"}) if kind == "antigen" else OF_ANTIBODIES
    columns = {**first.columns, **options.columns}
    held = [columns[role] for role in sorted(roles & columns.keys())]
    held = [name for name in held if name in first.frame]
    for name in held:
        texts = [text for text in distinct_texts(first, name) if text not in NO_SEQUENCE]
        short = [text for text in texts if len(text) < SHORT]
        if short and not (kind == "antigen" and are_peptides(short)):
            return short[0]
    return None if held else ""


def _mutations_of_run(
    first: Table, options: TableOptions, remembered: ReadAs, role: str
) -> dict[str, str]:
    """Return the columns, with that of mutations that the run was told, if a table has it."""
    name = remembered.named().get(role)
    if role in options.columns or name is None or name not in map(str, first.names):
        return dict(options.columns)
    return {**options.columns, role: name}


def _numbered(options: T, remembered: ReadAs) -> T:
    """Number residues as the run did, unless the user says how."""
    if options.numbering != "sequential" or options.first_residue != 1:
        return options
    return replace(options, numbering=remembered.numbering, first_residue=remembered.first_residue)
