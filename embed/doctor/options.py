"""Options of ``abag doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from abag.core.options import DeviceOptions, EncoderOptions, option


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(DeviceOptions, EncoderOptions, group="Checks"):
    """All options of ``doctor``."""

    store: Path | str | None = option(None, help="Store to check; it need not exist.")
    bench: bool = option(False, help="Measure the encoders' tokens/s, and keep them for abag plan.")
