"""Options of ``abag share``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from abag.core.options import BadOption, Options, option


@dataclass(frozen=True, kw_only=True)
class ShareOptions(Options, group="Output"):
    """All options of ``share``."""

    private: bool = option(
        False, help="Create the repository on the hub for you and your organization only."
    )
    license: str | None = option(
        None, metavar="ID", help="Licence that the hub shows, such as mit or cc-by-4.0."
    )

    def __post_init__(self) -> None:
        """Check the form of the licence; which ones exist is for the hub to know."""
        super().__post_init__()
        if self.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,40}", self.license):
            msg = (
                f"--license: {self.license!r} is not the id of a licence; expected one of the hub, "
                "such as mit or cc-by-4.0."
            )
            raise BadOption(msg)
