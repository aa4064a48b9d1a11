"""Which device, precision and attention to use, decided in one place, with the reason."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from numpy.typing import NDArray

from abag import AbagError

Precision = Literal["auto", "bf16", "fp16", "fp32"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class DeviceUnavailable(AbagError):
    """A device or precision that this machine does not have."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """How an encoder will run.

    Attributes
    ----------
    device : torch.device
    precision : {"bf16", "fp16", "fp32"}
    why : str
        One phrase for the person who wonders.
    """

    device: torch.device
    precision: Literal["bf16", "fp16", "fp32"]
    why: str

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights and activations."""
        return _DTYPES[self.precision]


def plan_device(device: str = "auto", precision: Precision = "auto") -> DevicePlan:
    """Decide device and precision.

    bf16 needs compute capability 8.0. `torch.cuda.is_bf16_supported` is not asked: it answers
    yes on a T4, which emulates bf16 slowly.

    Raises
    ------
    DeviceUnavailable
        For a device that is not there or a precision it cannot compute in.
    """
    chosen = resolve_device(device)
    if chosen.type == "cpu":
        if precision == "fp16":
            msg = "--precision fp16 on a CPU: not supported; give fp32 (or bf16)"
            raise DeviceUnavailable(msg)
        return DevicePlan(chosen, "fp32" if precision == "auto" else precision, "CPU")
    major, minor = torch.cuda.get_device_capability(chosen)
    name = torch.cuda.get_device_name(chosen)
    if precision == "auto":
        return DevicePlan(
            chosen, "bf16" if major >= 8 else "fp16", f"{name}, compute capability {major}.{minor}"
        )
    if precision == "bf16" and major < 8:
        msg = (
            f"--precision bf16 on {name}: compute capability {major}.{minor} has no bf16 "
            "units (8.0 and newer have); give fp16 or leave it to auto"
        )
        raise DeviceUnavailable(msg)
    return DevicePlan(chosen, precision, f"{name}, as asked")


def resolve_device(name: str = "auto") -> torch.device:
    """Choose a device by name: ``auto`` is the first GPU, or the CPU where there is none.

    Raises
    ------
    DeviceUnavailable
        For a name that is not a device, or a device that this machine does not have.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        msg = f"--device {name}: not a device; give auto, cpu, cuda or cuda:N"
        raise DeviceUnavailable(msg) from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        msg = f"--device {name}: this machine has {count} CUDA devices; give auto or cpu"
        raise DeviceUnavailable(msg)
    if device.type not in ("cpu", "cuda"):
        msg = f"--device {name}: only cpu and cuda are supported"
        raise DeviceUnavailable(msg)
    return device


def current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU torch's current one: Triton launches and events go there, whatever tensors say."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def default_batch_tokens(plan: DevicePlan) -> int:
    """Tokens a batch, from the device's free memory before the encoder is loaded.

    IgT5 takes 2.4 GiB of weights and about 65 KiB of activations a token; larger batches than
    65,536 tokens are no faster on an H200. On a CPU a batch of a large encoder must stay well
    under a commit interval.
    """
    if plan.device.type == "cpu":
        return 2048
    free, _ = torch.cuda.mem_get_info(plan.device)
    return next(t for gib, t in ((24, 65536), (12, 32768), (0, 8192)) if free >= gib * 2**30)


def to_device(x: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Start copying an array to the device, without waiting for it.

    From pinned memory: a copy from ordinary memory would first wait for the device to be idle.
    """
    host = torch.from_numpy(x)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def measure_matmul_flops(plan: DevicePlan) -> float:
    """Measure what this device's matrix units reach: FLOP/s of a large product in `precision`."""
    n = 4096
    x = torch.randn(n, n, device=plan.device, dtype=plan.dtype)
    begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    with current_device(plan.device):
        for _ in range(3):
            x @ x
        begin.record()
        for _ in range(10):
            x @ x
        end.record()
        end.synchronize()
    return float(10 * 2 * n**3 / (begin.elapsed_time(end) / 1000))
