"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "FAIL"]

MIN_FREE_BYTES = 256 << 20
"""With less free disk space a check fails."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; ``"FAIL"``: a command would fail later."""

    name: str
    state: State
    text: str  # what was found, what will be used, and why; for "FAIL" also what to do
    values: dict[str, Any] = field(default_factory=dict)  # the same for scripts, with --json
