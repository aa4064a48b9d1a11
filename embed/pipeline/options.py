"""The options of stage one, and what they decide about an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from abag import AbagError
from abag.core.device import Precision
from abag.embed.encoders.registry import Backend
from abag.embed.packing.tokens import LongPolicy
from abag.embed.pipeline.ranks import Devices
from abag.embed.sequences.chains import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedOptions:
    """Options of stage one."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Role to column name, where detection must be helped."""
    antigen: str | None = None
    """One antigen for a table without an antigen column."""
    limit: int | None = None
    """Take the first rows only; None: all."""
    bad_rows: Literal["error", "skip"] = "error"
    """Refuse the table for a bad row, or skip and count it."""
    long_antigens: LongPolicy = "window"
    """What happens to chains longer than 1,022 residues."""
    device: str = "auto"
    precision: Precision = "auto"
    strict_precision: bool = False
    """Refuse to add to a store begun in another precision."""
    antibody_backend: Backend = "packed"
    """Our packed encoders, or transformers' own modules."""
    antigen_backend: Backend = "packed"
    """The same, or FAESM's modules, which know ESM-2 only."""
    antibody_adapter: Path | str | None = None
    """Folder of an adapter to merge into the antibody encoder; None: the encoder as it is."""
    antigen_adapter: Path | str | None = None
    """The same for the antigen encoder."""
    layers: tuple[int, ...] | None = None
    """Layers whose poolings are stored too, as ``mean@24``; each encoder takes those it has. None:
    those that the store was begun with."""
    attention: str = "auto"
    """Attention kernel: triton, flash-attn, varlen, sdpa; auto: the fastest that runs here."""
    batch_tokens: int | None = None
    """Most tokens in a batch; None: chosen from the device."""
    commit_seconds: float = 30.0
    """Work at risk at most; 0 commits after every batch."""
    store_dtype: Literal["float16", "float32"] = "float16"
    devices: Devices | None = None
    """Start this many processes, one a device, or one for each GPU (``all``)."""
    ray: str | None = None
    """Address of the Ray cluster to run on; empty: the one at hand, or one started here."""
    progress: bool = False
    """Say on stderr what is done, with a progress bar."""

    def __post_init__(self) -> None:
        if self.batch_tokens is not None and self.batch_tokens < 1:
            msg = f"--batch-tokens {self.batch_tokens}: at least 1 is needed"
            raise AbagError(msg)
        if self.commit_seconds < 0:
            msg = f"--commit-seconds {self.commit_seconds}: a time cannot be negative"
            raise AbagError(msg)
        if self.devices is not None and self.ray is not None:
            msg = "--devices and --ray: both say where to run. Give one."
            raise AbagError(msg)

    def backend(self, kind: Kind) -> Backend:
        """Whose modules encode sequences of a kind."""
        return self.antibody_backend if kind == "antibody" else self.antigen_backend
