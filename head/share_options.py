"""Options of ``share``; imported without pandas, so that help is instant."""

from __future__ import annotations

from dataclasses import dataclass

from abag.core.options import Options, option


@dataclass(frozen=True, kw_only=True)
class ShareOptions(Options, group="Output"):
    """All options of ``share``."""

    private: bool = option(
        False, help="Create the repository on the hub for you and your organization only."
    )
    with_sequences: bool = option(
        False,
        help="Keep the training sequences, so that near-duplicates of them are recognised; without "
        "them everything but an exact repeat counts as new.",
    )
    license: str | None = option(
        None, metavar="ID", help="Licence that the hub shows, such as mit or cc-by-4.0."
    )
