"""Whether the training step is compiled: compiling takes longer than many trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from abag.head.model.config import Compile

CompiledMode = Literal["off", "graph", "full"]
COMPILE_S = 20.0
"""Time that torch.compile adds to the first step: 16 to 30 s with an empty cache."""
SAVED_S = 6.5e-5
"""Time that a compiled step of one head saves beside a CUDA graph: 0.272 instead of 0.337 ms with
the default preset on an H200 (benchmarks/results/fit_nvidia-h200_2026-11-21.md). The work of a
stack that the compiler fuses grows with its heads."""


def choose_mode(
    requested: Compile, device: torch.device, steps: int, heads: int, before: str | None = None
) -> tuple[CompiledMode, str]:
    """Choose how the remaining steps of a training run, and say why.

    Parameters
    ----------
    requested : {"auto", "off", "graph", "full"}
        The option ``--compile``.
    steps, heads : int
        Optimizer steps that are left, and heads that they train.
    before : str, optional
        What the checkpoint says: on a GPU a resumed training keeps it, for the same rounding.
    """
    if requested != "auto":
        return requested, "as requested"
    if device.type == "cpu":
        return "off", "on a CPU compiling takes longer than it saves"
    if before in ("graph", "full"):
        return ("graph" if before == "graph" else "full"), "as before the interruption"
    saved_s = steps * heads * SAVED_S
    found = f"it would save about {saved_s:.1f} s and take {COMPILE_S:.0f} s"
    return ("full" if saved_s > COMPILE_S else "graph"), found
