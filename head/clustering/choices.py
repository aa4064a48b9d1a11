"""Choices of how sequences are clustered, for option classes: imports nothing heavy."""

from __future__ import annotations

from typing import Literal, TypeAlias

ClusterTool: TypeAlias = Literal["auto", "builtin", "mmseqs"]
AntibodyRegion: TypeAlias = Literal["fv", "cdrh3"]
