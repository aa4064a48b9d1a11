"""How long GPUs and this machine take to encode a table and to fit it.

Speeds of encoders were measured on one H100 and one H200 (benchmarks/results). All other times are
scaled by the speed of matrix products and marked as estimates. The time of a fit with default
options is interpolated between measured ones (``benchmarks/bench_plan.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from abag.core.cores import count_cores
from abag.embed.encoders.registry import ALIASES, FAMILIES, Alias

SESSION_HOURS = (4, 12, 24)
_PACKED = {
    "igt5": 250e3, "igbert": 815e3, "antiberta2": 1468e3, "ablang2": 3737e3, "ankh-large": 233e3,
    "esm2-35m": 4266e3, "esm2-650m": 426e3, "esmc-300m": 715e3, "esmc-600m": 431e3,
    "amplify-350m": 664e3, "glm2-650m": 385e3,
}  # fmt: skip
"""Measured tokens/s (benchmarks/results/encoders_h200_2026-11-23.md)."""
_GROUPED = {True: ("igt5", 182e3), False: ("esm2-650m", 197e3)}
"""The same in fp16 without Triton, by whether attention has a bias."""
MEASURED_ON = ("H100", "H200")
PEAK_REACHED = 0.81
"""Share of the published peak that a matrix product reached on the H200."""
CORE_FLOPS = 50e9
"""Of fp32 products on one core of a server; a measured rate would change from call to call."""
FIT_S: Mapping[bool, tuple[tuple[int, float], ...]] = {
    False: (
        (100, 8.7), (1_160, 28.3), (2_000, 27.9), (4_900, 56.6), (11_000, 113.9), (20_000, 166.8),
    ),
    True: ((100, 8.7), (1_160, 28.3), (160_000, 56.7)),
}  # fmt: skip
"""Pairs, and measured seconds of a first fit: on 2 CPU cores and, the largest, on an H100, because
models of small tables are fitted on the CPU. See benchmarks/results/default_fit_h200-16core."""
WITH_FEATURES = 2.1
"""CPU time of a fit with three features over that of the same fit without: 1.7, 2.3 and 2.4, see
benchmarks/results/plan_features_2core_2026-11-28.md. The mean of the logarithms."""


@dataclass(frozen=True, slots=True)
class EncoderSpeed:
    """Tokens/s on one H200, packed and in fp16 without Triton as on a GPU before Ampere."""

    weights: float
    """Weights in matrix products, per token."""
    width: int
    packed: float
    grouped: float
    measured: bool


def _speed(name: str, alias: Alias) -> EncoderSpeed:
    """Scale the speed of the measured encoder that is most alike by the number of weights."""

    def distance(measured: str) -> tuple[bool, float]:
        return ALIASES[measured].family != alias.family, abs(math.log(smaller(measured)))

    def smaller(measured: str) -> float:
        return ALIASES[measured].parameters / alias.parameters

    like = min(_PACKED, key=distance)
    alike, grouped = _GROUPED[FAMILIES[alias.family].biased_attention]
    return EncoderSpeed(
        weights=alias.parameters,
        width=alias.width,
        packed=_PACKED[like] * smaller(like),
        grouped=grouped * smaller(alike),
        measured=name in _PACKED,
    )


SPEEDS: Mapping[str, EncoderSpeed] = {
    name: _speed(name, alias) for name, alias in ALIASES.items() if alias.parameters
}
"""By alias, where known."""


class Gpu(NamedTuple):
    """Published peak of half-precision products; whether bfloat16 and packed attention work."""

    tflops: float
    packed: bool


GPUS: Mapping[str, Gpu] = {
    "T4": Gpu(65, False), "L4": Gpu(121, True), "V100": Gpu(125, False),
    "A100": Gpu(312, True), "H100": Gpu(989, True), "H200": Gpu(989, True),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a table takes to encode and to fit."""

    encoders: Sequence[str]
    """Those that run, antibodies' first."""
    tokens: Sequence[int]
    """Tokens that each of them encodes."""
    pairs: int
    has_features: bool
    price_per_hour: float | None

    def speeds(self) -> list[EncoderSpeed] | None:
        """Return the speed of each encoder; None if one is not known."""
        if not SPEEDS.keys() >= set(self.encoders):
            return None
        return [SPEEDS[name] for name in self.encoders]

    def estimate(
        self, embed_s: float, memory_gib: float | None, basis: str, *, on_gpu: bool, measured: bool
    ) -> dict[str, Any]:
        """Return what a plan says of a machine, given the time that it encodes."""
        fit_s = fit_time(self.pairs, on_gpu=on_gpu, features=self.has_features)
        hours = (embed_s + fit_s) / 3600
        return {
            "embed_s": embed_s, "fit_s": fit_s, "memory_gib": memory_gib,
            "measured": measured, "basis": basis,
            "sessions": {f"{h} h": math.ceil(hours / h) for h in SESSION_HOURS},
            "price": self.price_per_hour and hours * self.price_per_hour,
        }  # fmt: skip


def estimate_gpu(name: str, work: Work) -> dict[str, Any]:
    """Return what a plan says of one of `GPUS`."""
    return _on_gpu(GPUS[name], work, measured=name in MEASURED_ON)


def _on_gpu(gpu: Gpu, work: Work, *, measured: bool) -> dict[str, Any]:
    speeds = work.speeds()
    if speeds is None:
        return {"embed_s": None, "measured": False}
    relative = gpu.tflops / GPUS["H200"].tflops
    embed_s = 0.0
    for tokens, speed in zip(work.tokens, speeds, strict=True):
        on_h200 = speed.packed if gpu.packed else speed.grouped
        embed_s += tokens / (on_h200 * relative)
    # half-precision weights of the larger encoder, and activations of 16k tokens
    memory_gib = max(speed.weights for speed in speeds) * 2 / 2**30 + 6
    path = "" if gpu.packed else " in fp16 without Triton"
    basis = f"estimate: {relative:.0%} of the speed of an H200{path}"
    if not all(speed.measured for speed in speeds):
        measured = False
        basis = "estimate from the number of weights"
    elif measured:
        basis = "from measured tokens/s"
    return work.estimate(embed_s, memory_gib, basis, on_gpu=True, measured=measured)


def estimate_here(work: Work) -> tuple[str, dict[str, Any]]:
    """Return a name for this machine, and what a plan says of it."""
    from abag.core.device import device_name, measure_matmul_flops, plan_device

    device = plan_device()
    speeds = work.speeds()
    on_gpu = device.device.type == "cuda"
    name = f"this machine ({device_name(device.device) if on_gpu else 'CPU'})"
    if speeds is None:
        return name, {"embed_s": None, "measured": False}
    if on_gpu:
        tflops = measure_matmul_flops(device) / PEAK_REACHED / 1e12
        return name, _on_gpu(Gpu(tflops, device.precision == "bf16"), work, measured=False)
    products = sum(2 * speed.weights * n for speed, n in zip(speeds, work.tokens, strict=True))
    memory_gib = max(speed.weights for speed in speeds) * 4 / 2**30 + 2
    embed_s = products / (0.5 * CORE_FLOPS * count_cores())
    basis = "estimate from the number of cores"
    return name, work.estimate(embed_s, memory_gib, basis, on_gpu=False, measured=False)


def fit_time(pairs: int, *, on_gpu: bool, features: bool = False) -> float:
    """Estimate the wall time of a first fit with default options, in seconds.

    `features` says whether pairs have columns of numbers or categories beside their vectors.
    """
    sizes, seconds = np.array(FIT_S[on_gpu]).T
    beyond = max(1.0, pairs / sizes[-1])  # in proportion to the largest that was measured
    beyond *= WITH_FEATURES if features else 1.0
    return float(beyond * np.exp(np.interp(np.log(max(1, pairs)), np.log(sizes), np.log(seconds))))
