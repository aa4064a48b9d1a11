"""Options that choose among stored vectors, and those of exporting them.

Imports no torch, so that help is instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from abag.core.errors import OptionError
from abag.core.options import Options, option
from abag.embed.tables.options import TableOptions

if TYPE_CHECKING:
    from abag.embed.tables.chains import Kind


class VectorsOf(TypedDict):
    """Choice of the stored vectors of one kind."""

    encoder: str | None
    """None: the only one in the store."""
    pooling: str


@dataclass(frozen=True, kw_only=True)
class VectorOptions(Options, group="Encoders"):
    """Options that choose among stored vectors."""

    antibody_encoder: str | None = option(
        None,
        metavar="NAME",
        default_text="the only one in the store",
        help="Encoder of the antibody vectors.",
    )
    antigen_encoder: str | None = option(
        None,
        metavar="NAME",
        default_text="the only one in the store",
        help="Encoder of the antigen vectors.",
    )
    antibody_pooling: str = option(
        "mean",
        metavar="NAME",
        help="Pooling of the antibody vectors: mean, heavy_mean, light_mean, cls or mean@LAYER.",
    )
    antigen_pooling: str = option(
        "mean",
        metavar="NAME",
        help="Pooling of the antigen vectors: mean, cls or mean@LAYER.",
    )

    def vectors_of(self, kind: Kind) -> VectorsOf:
        """Return the encoder and the pooling of a kind."""
        if kind == "antibody":
            return {"encoder": self.antibody_encoder, "pooling": self.antibody_pooling}
        return {"encoder": self.antigen_encoder, "pooling": self.antigen_pooling}


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
        """Raise `OptionError` if pairs are asked for without a table of pairs."""
        if self.kind == "pair" and self.table is None:
            msg = (
                "--kind pair: a store holds sequences, not pairs; expected a table of pairs. Give "
                "--table TABLE, or another --kind."
            )
            raise OptionError(msg)
