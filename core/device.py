"""The device and precision that an encoder or a head runs with."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from numpy.typing import NDArray

from abag.core.errors import DeviceError
from abag.core.options import Precision

_WITHOUT_CUDA = {
    "cpu": ("fp16", "a CPU", "CPU"),
    "mps": ("bf16", "an Apple GPU", "Apple GPU, which abag has not been tested on"),
}
"""By type of a device: the precision that it does not support, its name, and the reason."""
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Device and precision that an encoder runs with; `reason` explains the choice in messages."""

    device: torch.device
    precision: Literal["bf16", "fp16", "fp32"]
    reason: str

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of the precision."""
        return _DTYPES[self.precision]


def plan_device(device: str = "auto", precision: Precision = "auto") -> DevicePlan:
    """Choose device and precision of an encoder.

    That is fp32 on a CPU and on an Apple GPU, bf16 on a GPU since Ampere, else fp16.

    Raises
    ------
    DeviceError
        If the device does not exist, or does not support the precision.
    """
    chosen = resolve_device(device, of_encoder=True)
    if chosen.type != "cuda":
        unsupported, name, reason = _WITHOUT_CUDA[chosen.type]
        if precision == unsupported:
            msg = f"--precision {precision} on {name}: not supported; give fp32 or auto"
            raise DeviceError(msg)
        return DevicePlan(chosen, "fp32" if precision == "auto" else precision, reason)
    # not torch.cuda.is_bf16_supported: it is true on a T4, which emulates bf16 slowly
    major, minor = torch.cuda.get_device_capability(chosen)
    name = torch.cuda.get_device_name(chosen)
    if precision == "auto":
        reason = f"{name}, compute capability {major}.{minor}"
        return DevicePlan(chosen, "bf16" if major >= 8 else "fp16", reason)
    if precision == "bf16" and major < 8:
        msg = (
            f"--precision bf16 on {name}: compute capability {major}.{minor} has no bf16 units "
            "(8.0 and newer have); give fp16 or auto"
        )
        raise DeviceError(msg)
    return DevicePlan(chosen, precision, f"{name}, as requested")


def resolve_device(name: str, *, of_encoder: bool = False) -> torch.device:
    """Return a device by name; ``"auto"`` is the first GPU of CUDA, or the CPU if there is none.

    An Apple GPU, ``"mps"``, runs encoders only, and only if it is asked for: nobody has tested it.

    Raises
    ------
    DeviceError
        If this machine has no such device.
    """
    count = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    with suppress(RuntimeError):  # of a name that torch does not know
        device = torch.device(name)
        if device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < count):
            return device
        if device.type == "mps" and of_encoder and torch.backends.mps.is_available():
            return device
        if device.type == "mps" and not of_encoder:
            msg = "--device mps: runs encoders only; expected a device for heads. Give auto or cpu."
            raise DeviceError(msg)
    msg = f"--device {name}: this machine has {count} CUDA devices; give auto, cpu, cuda or cuda:N"
    raise DeviceError(msg)


def current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU torch's current device: Triton and events ignore that of their tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def default_batch_tokens(plan: DevicePlan) -> int:
    """Return the tokens per batch that suit the free memory, before the encoder is loaded."""
    # IgT5 takes 2.4 GiB of weights and about 65 KiB of activations per token
    if plan.device.type == "mps":  # which shares its memory with everything else
        return 8_192
    if plan.device.type == "cpu":
        return 2048  # a batch of a large encoder must take much less than a commit interval
    # 67,520 tokens are 422 tiles of 160, which an H100 multiplies in whole waves
    free_bytes, _ = torch.cuda.mem_get_info(plan.device)
    for gib, tokens in ((48, 135_040), (24, 67_520), (12, 33_760)):
        if free_bytes >= gib * 2**30:
            return tokens
    return 8_192


def to_device(x: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Start copying an array, of any shape and dtype, to the device; do not wait for the copy."""
    # pinned: from pageable memory the copy would wait until the device is idle
    host = torch.from_numpy(x)
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def device_name(device: torch.device) -> str:
    """Name the hardware: the model of a GPU, or the machine whose CPU it is."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"Apple GPU of {platform.node()}"
    return f"CPU of {platform.node()}"


def measure_matmul_flops(plan: DevicePlan) -> float:
    """Measure the floating-point operations per second of a large matrix product, best of three."""
    on_gpu = plan.device.type == "cuda"
    n = 8192 if on_gpu else 1024
    repeats = 4 if on_gpu else 1
    x = torch.randn(n, n, device=plan.device, dtype=plan.dtype)
    best_s = math.inf
    for _ in range(3):
        synchronize(plan.device)
        start_s = time.perf_counter()
        for _ in range(repeats):
            x @ x
        synchronize(plan.device)
        best_s = min(best_s, time.perf_counter() - start_s)
    tick_s = time.get_clock_info("perf_counter").resolution  # a clock can stand still
    return repeats * 2 * n**3 / max(best_s, tick_s)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # GPU sync
    if device.type == "mps":
        torch.mps.synchronize()  # GPU sync


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads on a CPU for what this thread does in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
