"""Options that several commands have in common."""

from __future__ import annotations

from dataclasses import dataclass

from abag.core.options import Options, option


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Where torch computes."""

    device: str = option(
        "auto", metavar="NAME", may_change=True, help="Device: auto, cpu, cuda or cuda:N."
    )


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(Options):
    """Which encoders turn sequences into vectors."""

    antibody_encoder: str = option(
        "igt5", metavar="NAME", help="Antibody encoder: alias, hub name or checkpoint folder."
    )
    antigen_encoder: str = option(
        "esm2-650m", metavar="NAME", help="Antigen encoder: alias, hub name or checkpoint folder."
    )
