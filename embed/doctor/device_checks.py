"""Checks of the device and of the precision it computes in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from abag.core.device import DevicePlan, default_batch_tokens
from abag.embed.doctor.check import Check
from abag.embed.doctor.versions import cuda_of_torch, installed

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def check_device(plan: DevicePlan, *, requested: str) -> Check:
    """Report the device that will be used, and its memory."""
    if plan.device.type == "cpu":
        return _check_cpu(requested)
    free, total = torch.cuda.mem_get_info(plan.device)
    count = torch.cuda.device_count()
    text = f"{plan.reason}; {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    text += f"; batches of {default_batch_tokens(plan):,} tokens"
    text += f"; {plan.device} of {count} GPUs" if count > 1 else ""
    values = {"device": str(plan.device), "free_bytes": free, "memory_bytes": total}
    return Check("device", "ok", text, values)


def _check_cpu(requested: str) -> Check:
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"CPU: {cores} cores, {memory / 1e9:,.0f} GB of memory"
    values: dict[str, Any] = {"device": "cpu", "cores": cores, "memory_bytes": memory}
    if requested == "auto" and NVIDIA_DRIVER.exists():
        text += (
            f"; this machine has an NVIDIA GPU that torch {installed('torch')} "
            f"({cuda_of_torch()}) cannot use: install a build of torch for CUDA that matches "
            "the driver"
        )
        return Check("device", "FAIL", text, values)
    text += "; no GPU, so large encoders take about a second per sequence or more"
    return Check("device", "note", text, values)


def check_precision(plan: DevicePlan) -> Check:
    """Report the precision that the encoders will use, and why."""
    reason = "full precision on a CPU"
    if plan.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(plan.device)
        reason = f"compute capability {major}.{minor} has bf16 units"
        if major < 8:
            reason = (
                f"compute capability {major}.{minor} has no bf16 units, even if "
                "torch.cuda.is_bf16_supported is true; T5's residual stream stays in fp32"
            )
    return Check("precision", "ok", f"{plan.precision}: {reason}", {"precision": plan.precision})
