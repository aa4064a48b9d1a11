"""Options of reading a table of sequences; imports no torch, so that help is instant."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from abag.core.errors import OptionError
from abag.core.messages import quoted
from abag.core.options import Options, option
from abag.embed.tables.chains import (
    ANTIBODY_ROLES,
    CHAIN_ROLES,
    KINDS,
    LIGHT_MUTATIONS,
    MUTATIONS,
    SEQUENCE_ROLES,
    ChainPlaces,
    Kind,
)

AntibodyRegion: TypeAlias = Literal["as-given", "fv"]
BadRows: TypeAlias = Literal["error", "skip"]
Numbering: TypeAlias = Literal["sequential", "imgt", "kabat", "chothia"]
MOST_RESIDUE = 1_000_000
"""Number of the first residue of a sequence, at most."""
BAD_ROWS_HELP = "Reject a table with an invalid row, or skip and count such rows."
CHAINS_HELP = (
    "auto: put heavy and light chains in the wrong column into their places, and split "
    "single-chain Fvs. most: of several chains of a type in an AIRR cell, take the productive one "
    "of most umi_count or duplicate_count."
)


def refuse_together(why: str, given: Mapping[str, object]) -> None:
    """Raise `OptionError` if several options, by their flags, are given that exclude each other."""
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        msg = f"{' and '.join(names)}: {why}; expected one of them. Remove the other."
        raise OptionError(msg)


@dataclass(frozen=True, kw_only=True)
class BadRowOptions(Options, group="Data"):
    """Options for rows that cannot be used."""

    bad_rows: BadRows = option("error", help=BAD_ROWS_HELP)


@dataclass(frozen=True, kw_only=True)
class SkippedOptions(BadRowOptions, group="Data"):
    """Options for the list of rows that cannot be used."""

    skipped: Path | str | None = option(
        None,
        metavar="FILE",
        default_text="not listed",
        rare=True,
        may_change=True,
        help="CSV that lists the rows skipped by --bad-rows skip, with the reasons.",
    )

    def check_combination(self) -> None:
        """Raise `OptionError` if no row can be skipped."""
        if self.skipped is not None and self.bad_rows == "error":
            msg = "--skipped: no row is skipped; expected --bad-rows skip with it. Add it."
            raise OptionError(msg)


@dataclass(frozen=True, kw_only=True)
class FileOptions(Options, group="Data"):
    """Options for the layout of rows in a file."""

    sheet: str | None = option(
        None,
        metavar="NAME",
        default_text="the only one with values",
        rare=True,
        may_change=True,
        help="Sheet of an Excel file.",
    )
    matrix: bool = option(
        False,
        rare=True,
        may_change=True,
        help="TABLE has a row per antibody, a column per antigen and labels in the cells.",
    )


@dataclass(frozen=True, kw_only=True)
class ReferenceOptions(Options, group="Data"):
    """Options for columns of sequences, and for sequences that are not in the table."""

    columns: Mapping[str, str] = option(
        factory=dict,
        flag="--column",
        metavar="ROLE=NAME",
        default_text="detected by name",
        help="Column of a role: heavy, light, antibody, antigen, label ... Repeat for several.",
    )
    antigen: str | None = option(
        None,
        metavar="SEQ|FILE",
        help="One antigen sequence, or a FASTA file with one, for a table without an antigen "
        "column.",
    )
    sequences: tuple[str, ...] = option(
        (),
        metavar="FILE",
        may_change=True,
        click={"multiple": True, "type": str},
        help="FASTA file, or table of names and sequences, for columns that hold names. Repeat for "
        "several.",
    )
    parent: str | None = option(
        None,
        metavar="SEQ|FILE",
        may_change=True,
        help="Antibody, or FASTA file with one, that the mutations in a column such as "
        "H:A50G,L:S52T are of.",
    )
    numbering: Numbering = option(
        "sequential", rare=True, may_change=True, help="Numbering of mutations."
    )
    first_residue: int = option(
        1,
        metavar="N",
        rare=True,
        may_change=True,
        help="Sequential number of the first residue of a mutated chain, such as 331 of an RBD.",
    )

    def check_combination(self) -> None:
        """Turn paths into text; raise `OptionError` for options that exclude each other."""
        # Python users pass paths, and config.json holds text
        object.__setattr__(self, "sequences", tuple(map(os.fspath, self.sequences)))
        for given in ("parent", "antigen"):
            value = getattr(self, given)
            if isinstance(value, os.PathLike):
                object.__setattr__(self, given, os.fspath(value))
        named = {f"--column {role}=NAME": role in self.columns for role in ("label", "pkd")}
        refuse_together("each names the label", named)
        antigens = {
            "--antigen": self.antigen is not None,
            "--column antigen=NAME": "antigen" in self.columns,
        }
        refuse_together("each defines the antigen", antigens)
        antibodies = {
            "--parent": self.parent is not None,
            "--column antibody=NAME": "antibody" in self.columns,
            "a heavy or light column": self.columns.keys() & {*CHAIN_ROLES},
        }
        refuse_together("each defines the antibody", antibodies)
        roles = [role for role in SEQUENCE_ROLES if role in self.columns]
        for role, other in combinations(roles, 2):
            name = self.columns[role]
            if name == self.columns[other]:
                msg = (
                    f"--column {role}={name} and --column {other}={name}: one column for two "
                    "roles; expected one for each. Correct one."
                )
                raise OptionError(msg)
        if abs(self.first_residue) > MOST_RESIDUE:
            msg = (
                f"--first-residue: {quoted(self.first_residue)} is out of range; expected "
                f"{-MOST_RESIDUE:,} to {MOST_RESIDUE:,}. Correct it."
            )
            raise OptionError(msg)
        if self.parent is not None and not self.parent.strip():
            msg = "--parent: is empty; expected a sequence or a file. Give one or leave it out."
            raise OptionError(msg)
        has_antigens = "antigen_mutations" in self.columns  # whose numbers are sequential
        numbers = {
            f"--first-residue {self.first_residue}": self.first_residue != 1 and not has_antigens,
            f"--numbering {self.numbering}": self.numbering != "sequential",
        }
        refuse_together("only sequential numbers begin somewhere", numbers)

    @property
    def refers(self) -> bool:
        """Whether cells may refer to sequences that the table does not hold."""
        mutated = self.columns.keys() & {*MUTATIONS.values(), LIGHT_MUTATIONS}
        return bool(self.sequences or self.parent or mutated)


@dataclass(frozen=True, kw_only=True)
class TableOptions(BadRowOptions, FileOptions, ReferenceOptions, group="Data"):
    """All options of reading a table of pairs."""

    proposes_no_antigen: ClassVar[bool] = True
    """Whether a table without antigens is told ``--no-antigen``; a run has decided that."""

    limit: int | None = option(
        None, low=1, metavar="N", help="Read only the first N rows.", default_text="all rows"
    )
    no_antigen: bool = option(
        False,
        help="The table has no antigen, or the label does not depend on it: antibodies alone.",
    )
    antibody_region: AntibodyRegion = option(
        "as-given",
        rare=True,
        help="Encode antibody chains as given, or cut to their variable domains.",
    )
    chains: ChainPlaces = option(
        "as-given",
        rare=True,
        help=CHAINS_HELP,
    )

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of sequences that the rows have; antibodies alone have no antigen."""
        return KINDS[:1] if self.no_antigen else KINDS

    @property
    def decided(self) -> frozenset[Kind]:
        """Kinds whose sequences the user named: by columns, by one for all rows, or as none."""
        is_given = {
            "antibody": self.parent is not None or bool(self.columns.keys() & {*ANTIBODY_ROLES}),
            "antigen": self.antigen is not None or self.no_antigen or "antigen" in self.columns,
        }
        return frozenset(kind for kind in KINDS if is_given[kind])

    def check_combination(self) -> None:
        """Raise `OptionError` if several options say what the antigen is."""
        antigens = {
            "--matrix": self.matrix,
            "--no-antigen": self.no_antigen,
            "--antigen": self.antigen is not None,
            "--column antigen=NAME": "antigen" in self.columns and not self.matrix,
        }
        refuse_together("each says what the antigen is", antigens)
