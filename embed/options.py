"""The options of stage one, and those of exporting its vectors.

Flags, checks, help and signatures are derived from these fields, see `abag.core.options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from abag.core.errors import OptionError
from abag.core.options import DeviceOptions, Precision, VectorOptions, option, schema
from abag.embed.tables.chains import KINDS, PLURAL, Kind
from abag.embed.tables.options import SkippedOptions, TableOptions

CDR_MEAN = "cdr_mean"
"""The pooling over the CDR residues of both chains."""


@dataclass(frozen=True, kw_only=True)
class EncodingOptions(DeviceOptions, SkippedOptions, TableOptions, group="Encoders"):
    """Options of everything that encodes the sequences of a table."""

    kind: Literal["both", "antibody", "antigen"] = option(
        "both",
        group="Data",
        help="Encode only the antibodies or only the antigens; the table may lack the rest.",
    )
    long_antigens: Literal["window", "truncate", "error"] = option(
        "window",
        group="Data",
        help="Antigen chains that are longer than the encoder takes at once, 1,022 residues of "
        "most: overlapping windows, truncation or an error.",
    )
    precision: Precision = option(
        "auto",
        group="Hardware",
        help="Precision of the encoders; auto: bf16, fp16 on a GPU without bf16, fp32 on a CPU.",
    )
    antibody_backend: Literal["packed", "reference"] = option(
        "packed", rare=True, help="Packed encoders of abag, or the modules of transformers."
    )
    antigen_backend: Literal["packed", "reference", "faesm"] = option(
        "packed", rare=True, help="As for antibodies, or FAESM's modules for ESM-2."
    )
    antibody_adapter: Path | str | None = option(
        None,
        metavar="ADAPTER",
        help="Folder written by abag adapt; merged into the antibody encoder.",
    )
    antigen_adapter: Path | str | None = option(
        None,
        metavar="ADAPTER",
        help="Folder written by abag adapt; merged into the antigen encoder.",
    )
    attention: Literal["auto", "triton", "flash-attn", "varlen", "sdpa"] = option(
        "auto",
        rare=True,
        group="Hardware",
        help="Attention kernel of the packed encoders; auto: the fastest that runs here.",
    )
    batch_tokens: int | None = option(
        None,
        low=1,
        metavar="N",
        default_text="from the device",
        rare=True,
        group="Hardware",
        help="Most tokens per batch.",
    )
    progress: bool = option(False, python_only=True, help="Draw a progress bar on stderr.")

    def check_combination(self) -> None:
        """Refuse kinds that leave nothing to encode, or ignore a column that was given."""
        if self.kind == "antibody" and self.antigen is not None:
            msg = "--antigen with --kind antibody: no antigen is encoded. Remove one of them."
            raise OptionError(msg)
        if self.kind == "antigen" and self.no_antigen:
            msg = (
                "--no-antigen with --kind antigen: nothing is encoded; expected one of them. "
                "Remove the other."
            )
            raise OptionError(msg)

        for kind in KINDS:
            if kind not in self.kinds and getattr(self, f"{kind}_adapter") is not None:
                msg = (
                    f"--{kind}-adapter: no {PLURAL[kind]} are encoded, by --kind or --no-antigen; "
                    "expected an adapter of what is encoded. Remove one of them."
                )
                raise OptionError(msg)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of sequences that are encoded."""
        return super().kinds if self.kind == "both" else (self.kind,)

    def backend(self, kind: Kind) -> Literal["packed", "reference", "faesm"]:
        """Return the backend that was asked for."""
        return self.antibody_backend if kind == "antibody" else self.antigen_backend


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(EncodingOptions, group="Encoders"):
    """Options of stage one."""

    layers: tuple[int, ...] | None = option(
        None,
        metavar="NUMBERS",
        default_text="those of the store",
        rare=True,
        help="Also store poolings of these layers, such as 24,28, for abag fit --antigen-pooling "
        "mean@24.",
    )
    poolings: tuple[str, ...] | None = option(
        None,
        metavar="NAMES",
        default_text="those of the store",
        rare=True,
        help="Also store this pooling of antibodies: cdr_mean, the mean over CDR residues.",
    )
    loglik: bool | None = option(
        None,
        default_text="as the store was begun",
        help="Also store the mean log-probability of the residues, by the encoder's own language "
        "model.",
    )
    commit_seconds: float = option(
        30.0,
        low=0,
        rare=True,
        group="Output",
        help="Most seconds of work at risk; 0: commit after every batch.",
    )
    store_dtype: Literal["float16", "float32"] = option(
        "float16", group="Output", help="Type of the stored vectors."
    )
    devices: int | Literal["all"] | None = option(
        None,
        metavar="all|N",
        default_text="this process",
        group="Hardware",
        help="Start one process per GPU, or N processes.",
    )
    ray: str | None = option(
        None,
        metavar="[ADDRESS]",
        click={"is_flag": False, "flag_value": ""},
        group="Hardware",
        help="Run on a Ray cluster: the one at ADDRESS, the current one, or one started here.",
    )

    def check_combination(self) -> None:
        """Refuse two ways to spread the work, and poolings that abag does not know."""
        if self.devices is not None and self.ray is not None:
            msg = "--devices and --ray: cannot be combined; expected one of them. Remove the other."
            raise OptionError(msg)
        if self.poolings not in (None, (), (CDR_MEAN,)):
            msg = (
                f"--poolings {','.join(self.poolings or ())}: unknown; expected {CDR_MEAN}. "
                "All others are stored anyway."
            )
            raise OptionError(msg)


@dataclass(frozen=True, kw_only=True)
class ResidueOptions(EncodingOptions, group="Encoders"):
    """Options of one vector per residue."""

    dtype: Literal["float16", "float32"] = option(
        "float16", group="Output", help="Number format of the vectors."
    )

    def check_combination(self) -> None:
        """Refuse to truncate: the residues that are cut off would have no vectors."""
        if self.long_antigens == "truncate":
            msg = (
                "--long-antigens truncate: the residues that are cut off would have no vectors; "
                "expected window or error. Give one of them."
            )
            raise OptionError(msg)


@dataclass(frozen=True, kw_only=True)
class ResidueFileOptions(ResidueOptions, group="Output"):
    """Options of files of one vector per residue."""

    file_mb: int = option(
        256,
        low=1,
        metavar="N",
        rare=True,
        help="Megabytes of vectors per file; a longer sequence has a file of its own.",
    )


@dataclass(frozen=True, kw_only=True)
class ExportOptions(VectorOptions, TableOptions, group="Data"):
    """All options of ``store export``."""

    table: Path | str | Any | None = option(
        None,
        metavar="TABLE",
        default_text="every stored vector",
        help="Export one vector per row of this table, beside its columns.",
    )
    kind: Literal["antibody", "antigen", "pair"] | None = option(
        None,
        default_text="the only kind in the store, or pair with --table",
        help="Vectors of antibodies or of antigens; pair: both joined, with --table.",
    )
    dtype: Literal["stored", "float32"] = option(
        "stored", group="Output", help="Number format of the vectors; stored: usually float16."
    )
    force: bool = option(False, group="Output", help="Overwrite the output file if it exists.")

    def check_combination(self) -> None:
        """Raise `OptionError` for pairs without a table, and for options that nothing would use."""
        if self.kind == "pair" and self.table is None:
            msg = (
                "--kind pair: a store holds sequences, not pairs; expected a table of pairs. Give "
                "--table TABLE, or another --kind."
            )
            raise OptionError(msg)
        if self.table is None:
            of_tables = {declared.name for declared in schema(TableOptions)}
            self.refuse_without("--table TABLE", of_tables)
        for kind in KINDS:
            unread = self.given((f"{kind}_encoder", f"{kind}_pooling"))
            if unread and self.kind not in (kind, "pair", None):
                msg = (
                    f"{unread} with --kind {self.kind}: no vectors of the other kind are exported; "
                    "expected one of them. Remove the other."
                )
                raise OptionError(msg)
