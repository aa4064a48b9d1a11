"""Options of commands that score sequences with a predictor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from abag.core.options import DeviceOptions, option
from abag.embed.sequences.table_options import (
    BAD_ROWS_HELP,
    CHAINS_HELP,
    AntibodyRegion,
    ChainPlaces,
    TableOptions,
)


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(DeviceOptions, TableOptions, group="Encoders"):
    """Options of the store, of encoders for new sequences, and of reading a table of them."""

    store: Path | str | None = option(
        None,
        default_text="the store of the run",
        group="Data",
        help="Store that holds the vectors and receives those of new sequences.",
    )
    force: bool = option(False, group="Output", help="Overwrite the output file if it exists.")
    antibody_encoder: str | None = option(
        None,
        metavar="NAME",
        default_text="as in the run",
        help="Alias or folder of the run's antibody encoder on this machine.",
    )
    antigen_encoder: str | None = option(
        None,
        metavar="NAME",
        default_text="as in the run",
        help="Alias or folder of the run's antigen encoder on this machine.",
    )

    antibody_region: AntibodyRegion | None = option(  # type: ignore[assignment]
        None, python_only=True, help="As in the run; anything else is refused."
    )
    no_antigen: bool = option(
        False, python_only=True, help="As in the run; anything else is refused."
    )
    proposes_no_antigen = False

    bad_rows: Literal["error", "skip"] | None = option(  # type: ignore[assignment]
        None,
        group="Data",
        default_text="as in the run",
        help=BAD_ROWS_HELP,
    )
    chains: ChainPlaces | None = option(  # type: ignore[assignment]
        None,
        group="Data",
        rare=True,
        default_text="as in the run",
        help=CHAINS_HELP,
    )

    def encoding(self, progress: bool) -> dict[str, Any]:
        """Return the options with which `Predictor.encode` encodes new sequences."""
        return {
            "antibody_encoder": self.antibody_encoder,
            "antigen_encoder": self.antigen_encoder,
            "device": self.device,
            "progress": progress,
        }


@dataclass(frozen=True, kw_only=True)
class PredictOptions(ScoringOptions, group="Encoders"):
    """All options of ``predict``."""

    cross: Path | str | Any | None = option(
        None,
        metavar="ANTIGENS",
        group="Data",
        help="Score every antibody of TABLE against every antigen of this table, which may be "
        "TABLE itself.",
    )
    strong: float | None = option(
        None,
        metavar="PKD",
        group="Output",
        help="Add p_strong, the probability that a pKd is at least this: 9 is a Kd of 1 nM. Of "
        "another quantity: that it is this or better.",
    )
