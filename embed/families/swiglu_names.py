"""How checkpoints of encoders with RMS norms, rotary positions and SwiGLU name their tensors."""

from __future__ import annotations

from typing import NamedTuple


class SwigluNames(NamedTuple):
    """Names of an encoder's tensors, without ``.weight``; those of a layer inside it."""

    embedding: str
    layers: str  # the list of layers
    qkv: tuple[str, ...]  # queries, keys and values, as one matrix or three
    out: str
    gate_up: tuple[str, ...]  # the gate, then what it multiplies, as one matrix or two
    down: str
    interleaved: bool  # whether neighbouring dimensions are rotated together, or halves of a head
    norms: tuple[str, str] = ("attention_norm", "ffn_norm")
