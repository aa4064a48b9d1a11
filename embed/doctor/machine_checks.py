"""Checks of installed packages, the device and the compiler."""

from __future__ import annotations

import os
import time
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import torch

from abag import AbagError
from abag.core.cache import keeping_kernels
from abag.core.device import DevicePlan, default_batch_tokens
from abag.core.messages import first_line
from abag.embed.doctor.check import Check
from abag.embed.doctor.versions import cuda_of_torch, installed, versions

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def check_versions() -> Check:
    """Compare the installed packages with abag's requirements."""
    from packaging.requirements import Requirement

    found = versions()
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    try:
        requirements = [Requirement(line) for line in requires("abag") or []]
    except PackageNotFoundError:
        return Check("versions", "note", f"{text}; abag itself is not installed", found)
    unmet = [
        f"{r.name} {installed(r.name) or 'missing'} (expected {r.specifier})"
        for r in requirements
        if (r.marker is None or r.marker.evaluate({"extra": ""}))
        and not r.specifier.contains(installed(r.name) or "0", prereleases=True)
    ]
    if unmet:
        text = f"{', '.join(unmet)}; install abag again: pip install -c constraints.txt -e ."
    return Check("versions", "FAIL" if unmet else "ok", text, found)


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
    values = {"device": "cpu", "cores": cores, "memory_bytes": memory}
    if requested == "auto" and NVIDIA_DRIVER.exists():
        text += (
            f"; this machine has an NVIDIA GPU that torch {installed('torch')} ({cuda_of_torch()}) "
            "cannot use: install a build of torch for CUDA that matches the driver"
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


def check_faesm() -> Check:
    """Check whether FAESM, which is optional, can be used."""
    from abag.embed.families.faesm import import_faesm

    if installed("faesm") is None:
        text = "not installed, and not needed: the packed encoder is the default"
        return Check("FAESM", "ok", text, {"importable": False})
    try:
        import_faesm()
    except AbagError as error:
        return Check("FAESM", "note", str(error), {"importable": False})
    text = "available with --antigen-backend faesm; the packed encoder is the default"
    return Check("FAESM", "ok", text, {"importable": True})


def check_compiler(plan: DevicePlan) -> Check:
    """Compile a small graph on the device, as `abag fit` does on a GPU."""
    start_s = time.perf_counter()
    try:
        x = torch.arange(8.0, device=plan.device)
        # a constant that no earlier graph had: a cached graph would hide a missing compiler
        constant = time.time()

        def graph(x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x - 3) * constant + x.sin()

        with keeping_kernels():
            correct = torch.allclose(torch.compile(graph, dynamic=False)(x), graph(x))
        problem = "" if correct else "wrong numbers"
    except Exception as error:  # noqa: BLE001 - every failure means the same here
        problem = first_line(error)
    seconds = time.perf_counter() - start_s
    values = {"works": not problem, "seconds": round(seconds, 2)}
    unused = "; abag fit does not need it on a CPU" if plan.device.type == "cpu" else ""
    if not problem:
        text = f"works; compiling a small graph took {seconds:.1f} s{unused}"
        return Check("compiler", "ok", text, values)
    text = f"torch.compile does not work ({problem})"
    if unused:
        return Check("compiler", "note", text + unused, values)
    text += (
        ", and abag fit would fail; install a C compiler (apt-get install gcc), or run "
        "abag fit --no-compile, which is about 14 times slower at small batches"
    )
    return Check("compiler", "FAIL", text, values)
