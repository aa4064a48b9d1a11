"""Options of encoders."""

from __future__ import annotations

from dataclasses import dataclass

from abag.core.options import Options, option


@dataclass(frozen=True, kw_only=True)
class Lora(Options, group="Adapter"):
    """Where low-rank factors go, and how large they are."""

    rank: int = option(8, low=1, high=1024, metavar="R", help="Rank of the weight change B A.")
    alpha: float = option(16.0, above=0, help="The weight change is alpha / rank times B A.")
    dropout: float = option(
        0.1, low=0, high=0.95, help="Share of A's inputs dropped per training step."
    )
    targets: tuple[str, ...] = option(
        (), metavar="NAMES", default_text="queries and values: q,v of T5; query,value of ESM-2",
        help="Projections to adapt.",
    )  # fmt: skip
    layers: tuple[int, ...] = option(
        (), metavar="NUMBERS", default_text="all", help="Layers to adapt, counted from 1."
    )
