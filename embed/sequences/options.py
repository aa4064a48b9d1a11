"""How a table of sequences is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from abag.core.options import BadOption, Options, option
from abag.embed.sequences.columns import SEQUENCE_ROLES

AntibodyRegion: TypeAlias = Literal["as-given", "fv"]
ChainPlaces: TypeAlias = Literal["as-given", "auto", "most"]


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(Options, group="Data"):
    """Where a table holds its sequences."""

    columns: Mapping[str, str] = option(
        factory=dict, flag="--column", metavar="ROLE=NAME", default_text="detected by name",
        help="Column of a role: heavy, light, antibody, antigen, label ... Repeat for several.",
    )  # fmt: skip
    antigen: str | None = option(
        None, metavar="SEQ", help="One antigen sequence for a table without an antigen column."
    )

    def check_combination(self) -> None:
        if {"label", "pkd"} <= self.columns.keys():
            msg = (
                "--column label=NAME and --column pkd=NAME: each names the label; expected one "
                "of them. Remove the other."
            )
            raise BadOption(msg)
        if self.antigen is not None and "antigen" in self.columns:
            msg = (
                "--antigen and --column antigen=NAME: each defines the antigen; expected one of "
                "them. Remove the other."
            )
            raise BadOption(msg)
        if "antibody" in self.columns and self.columns.keys() & {"heavy", "light"}:
            msg = (
                "--column antibody=NAME: cannot be combined with a heavy or light column; expected "
                "one or the other. Remove one."
            )
            raise BadOption(msg)
        roles = [role for role in SEQUENCE_ROLES if role in self.columns]
        for at, role in enumerate(roles):
            for other in roles[at + 1 :]:
                if self.columns[role] == self.columns[other]:
                    msg = (
                        f"--column {role}={self.columns[role]} and --column "
                        f"{other}={self.columns[other]}: one column for two roles; expected one "
                        "for each. Correct one."
                    )
                    raise BadOption(msg)


@dataclass(frozen=True, kw_only=True)
class BadRowOptions(Options, group="Data"):
    """What happens to a row that cannot be used."""

    bad_rows: Literal["error", "skip"] = option(
        "error", help="Reject a table with an invalid row, or skip and count such rows."
    )


@dataclass(frozen=True, kw_only=True)
class SkippedOptions(BadRowOptions, group="Data"):
    """Where the rows that cannot be used are listed."""

    skipped: Path | str | None = option(
        None, metavar="FILE", default_text="not listed", rare=True, may_change=True,
        help="CSV that lists the rows skipped by --bad-rows skip, with the reasons.",
    )  # fmt: skip

    def check_combination(self) -> None:
        if self.skipped is not None and self.bad_rows == "error":
            msg = "--skipped: no row is skipped; expected --bad-rows skip with it. Add it."
            raise BadOption(msg)


@dataclass(frozen=True, kw_only=True)
class TableOptions(BadRowOptions, ColumnOptions, group="Data"):
    """How a table of pairs is read."""

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
        help="auto: put heavy and light chains in the wrong column into their places, and split "
        "single-chain Fvs. most: of several chains of a type in an AIRR cell, take the productive "
        "one of most umi_count or duplicate_count.",
    )

    def check_combination(self) -> None:
        if self.no_antigen and (self.antigen is not None or "antigen" in self.columns):
            given = "--antigen" if self.antigen is not None else "--column antigen=NAME"
            msg = (
                f"--no-antigen and {given}: each says what the antigen is; expected one of them. "
                "Remove the other."
            )
            raise BadOption(msg)
