"""What this machine has, what abag will use of it, and what would fail later, found out now.

Every check looks for itself: a graph is compiled, a file renamed, sequences are encoded twice.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import torch

from abag import AbagError
from abag.core.device import DevicePlan, default_batch_tokens, plan_device
from abag.embed.doctor.disk_checks import (
    LEAST_FREE_BYTES,
    Check,
    check_store,
    check_temporary_folder,
    first_line,
)
from abag.embed.doctor.options import DoctorOptions
from abag.embed.doctor.versions import cuda_of_torch, installed, versions
from abag.embed.encoders.checkpoint_lookup import find_checkpoint
from abag.embed.encoders.families import FAMILIES, guess_family, hub_name_of
from abag.embed.kernels.attention import choose_attention, kernel_problems
from abag.embed.sequences.chains import Kind
from abag.embed.store.status import size_text
from abag.embed.weights.checkpoints import EncoderCheckpoint, EncoderNotFound

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def examine(**options: Any) -> Iterator[Check]:  # noqa: ANN401 - the fields of DoctorOptions
    """Look at everything that stage one and two will need; yields as it goes.

    Parameters
    ----------
    **options
        Fields of `DoctorOptions`. Nothing is downloaded: weights that are not on disk are looked
        up in the hub.
    """
    chosen = DoctorOptions.from_keywords(options, "doctor")
    encoders: list[tuple[Kind, str]] = [
        ("antibody", chosen.antibody_encoder),
        ("antigen", chosen.antigen_encoder),
    ]
    yield check_versions()
    yield check_temporary_folder()
    if chosen.store is not None:
        yield from check_store(Path(chosen.store))
    found = {kind: _found(name) for kind, name in encoders}
    for kind, name in encoders:
        yield check_weights(kind, name, found[kind])
    try:
        plan = plan_device(chosen.device)
    except AbagError as error:
        yield Check("device", "FAIL", str(error))
        return
    yield check_device(plan, asked=chosen.device)
    yield check_precision(plan)
    for kind, name in encoders:
        yield check_attention(plan, kind, name, found[kind])
    yield check_faesm()
    yield check_compiler(plan)
    for kind, name in encoders:
        yield check_parity(plan, kind, name, found[kind])


# --- software ------------------------------------------------------------------------------------


def check_versions() -> Check:
    """Compare what is installed with what abag asks for."""
    from packaging.requirements import Requirement

    found = versions()
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    try:
        asked = [Requirement(line) for line in requires("abag") or []]
    except PackageNotFoundError:
        return Check("versions", "note", f"{text}; abag itself is not installed", found)
    wrong = [
        f"{r.name} {installed(r.name) or 'missing'} ({r.specifier} expected)"
        for r in asked
        if (r.marker is None or r.marker.evaluate({"extra": ""}))
        and not r.specifier.contains(installed(r.name) or "0", prereleases=True)
    ]
    if wrong:
        text = f"{', '.join(wrong)}; install abag again: pip install -c constraints.txt -e ."
        return Check("versions", "FAIL", text, found)
    return Check("versions", "ok", text, found)


def check_faesm() -> Check:
    """Say whether FAESM can be chosen; nothing needs it."""
    from abag.embed.encoders.faesm import import_faesm

    if installed("faesm") is None:
        text = "not installed, not needed: the packed encoder is the default"
        return Check("FAESM", "ok", text, {"importable": False})
    try:
        import_faesm()
    except AbagError as error:
        return Check("FAESM", "note", str(error), {"importable": False})
    text = "importable: --antigen-backend faesm would use it; the packed encoder is the default"
    return Check("FAESM", "ok", text, {"importable": True})


def check_compiler(plan: DevicePlan) -> Check:
    """Compile a tiny graph on the device, as stage two does on a GPU."""
    start_s = time.perf_counter()
    try:
        x = torch.arange(8.0, device=plan.device)
        # a number that no graph had before: a cached one would hide a compiler that is gone
        number = time.time()

        def graph(x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x - 3) * number + x.sin()

        right = torch.allclose(torch.compile(graph, dynamic=False)(x), graph(x))
        problem = "" if right else "gave wrong numbers"
    except Exception as error:  # noqa: BLE001 - whatever a compiler says means the same here
        problem = first_line(error)
    seconds = time.perf_counter() - start_s
    values = {"works": not problem, "seconds": round(seconds, 2)}
    if not problem:
        text = f"works; a tiny graph took {seconds:.1f} s"
        unused = "; abag fit does without it on a CPU"
        return Check("compiler", "ok", text + unused * (plan.device.type == "cpu"), values)
    if plan.device.type == "cpu":
        text = f"torch.compile does not work ({problem}); abag fit does without it on a CPU"
        return Check("compiler", "note", text, values)
    text = (
        f"torch.compile does not work ({problem}), and abag fit would stop; install a C compiler "
        "(apt-get install gcc), or give abag fit --no-compile: its steps are then about 14 times "
        "slower at small batches"
    )
    return Check("compiler", "FAIL", text, values)


# --- encoders ------------------------------------------------------------------------------------


def _found(name: str) -> EncoderCheckpoint | AbagError:
    try:
        return find_checkpoint(name, download=False)
    except AbagError as error:
        return error


def check_weights(kind: Kind, name: str, found: EncoderCheckpoint | AbagError) -> Check:
    """Say whether an encoder's weights are on disk, or can be had."""
    title = f"{kind} weights"
    if isinstance(found, EncoderCheckpoint):
        size = sum(path.stat().st_size for path in found.weights)
        where = f" in {found.folder}" if found.folder else ": none are needed"
        text = f"{name}: {size_text(size)}{where}" if size else f"{name}{where}"
        if found.random:
            text += "; random: no biology in its vectors"
        return Check(title, "ok", text, {"present": True, "bytes": size})
    hub_name = hub_name_of(name)
    if not isinstance(found, EncoderNotFound) or "/" not in hub_name or hub_name.startswith("/"):
        return Check(title, "FAIL", str(found), {"present": False})
    try:
        size = _hub_bytes(hub_name)
    except Exception as error:  # noqa: BLE001 - many kinds, one meaning: not to be had
        text = (
            f"{name}: {hub_name} is neither on disk nor to be reached ({first_line(error)}); "
            f"run `hf download {hub_name}` where there is a network, or give a checkpoint folder"
        )
        return Check(title, "FAIL", text, {"present": False})
    return _downloadable(title, f"{name}: {hub_name}", size)


def _downloadable(title: str, text: str, size: int) -> Check:
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    free = shutil.disk_usage(next(p for p in (cache, *cache.parents) if p.is_dir())).free
    text += f" is not on disk; {size_text(size)} will be fetched to {cache} on first use"
    values = {"present": False, "bytes": size}
    if free < size + LEAST_FREE_BYTES:
        text += f", where {size_text(free)} are free: free some, or set HF_HOME to a larger disk"
        return Check(title, "FAIL", text, values)
    return Check(title, "note", text, values)


def _hub_bytes(hub_name: str) -> int:
    """Ask the hub how large the weight files are."""
    from huggingface_hub import HfApi

    files = HfApi().model_info(hub_name, files_metadata=True, timeout=10).siblings or []
    sizes = {f.rfilename: f.size or 0 for f in files}
    safe = {name for name in sizes if name.endswith(".safetensors")}
    old = {name for name in sizes if name.startswith("pytorch_model") and name.endswith(".bin")}
    return sum(sizes[name] for name in safe or old)


# --- device --------------------------------------------------------------------------------------


def check_device(plan: DevicePlan, *, asked: str) -> Check:
    """Say what will compute, and with how much memory."""
    if plan.device.type == "cpu":
        cores = os.cpu_count() or 1
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        text = f"CPU: {cores} cores, {memory / 1e9:,.0f} GB of memory"
        values: dict[str, Any] = {"device": "cpu", "cores": cores, "memory_bytes": memory}
        if asked == "auto" and NVIDIA_DRIVER.exists():
            text += (
                f"; an NVIDIA GPU is here, and torch {installed('torch')} ({cuda_of_torch()}) "
                "cannot use it: install a build of torch for CUDA that fits the driver"
            )
            return Check("device", "FAIL", text, values)
        text += "; no GPU, so large encoders take about a second a sequence or more"
        return Check("device", "note", text, values)
    free, total = torch.cuda.mem_get_info(plan.device)
    count = torch.cuda.device_count()
    text = f"{plan.reason}; {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    text += f"; batches of {default_batch_tokens(plan):,} tokens"
    text += f"; {plan.device} of {count} GPUs" if count > 1 else ""
    values = {"device": str(plan.device), "free_bytes": free, "memory_bytes": total}
    return Check("device", "ok", text, values)


def check_precision(plan: DevicePlan) -> Check:
    """Say which number format the encoders will compute in, and why."""
    why = "full precision on a CPU"
    if plan.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(plan.device)
        why = f"compute capability {major}.{minor} has bf16 units"
        if major < 8:
            why = (
                f"compute capability {major}.{minor} has no bf16 units, whatever "
                "torch.cuda.is_bf16_supported says; T5's residual stream stays in fp32"
            )
    return Check("precision", "ok", f"{plan.precision}: {why}", {"precision": plan.precision})


def check_attention(
    plan: DevicePlan, kind: Kind, name: str, found: EncoderCheckpoint | AbagError
) -> Check:
    """Say which attention kernel an encoder will use, and why not the others."""
    title = f"{kind} attention"
    if isinstance(found, EncoderCheckpoint):
        family = FAMILIES[found.family]
    else:
        family = guess_family(name)
    if "packed" not in family.backends:
        own = "transformers' own" if family.transformers_class else "none: it has no attention"
        return Check(title, "ok", f"{own} ({name})", {"attention": None})
    biased = family.biased_attention
    kernel = choose_attention(plan, biased=biased)
    others = {n: why for n, why in kernel_problems(plan, biased=biased).items() if n != kernel}
    usable = ", ".join(n for n, why in others.items() if not why)
    text = f"{kernel}, the fastest that runs here" + (f"; also {usable}" if usable else "")
    text += "".join(f"; {n}: {why}" for n, why in others.items() if why)
    return Check(title, "ok", text, {"attention": kernel})


def check_parity(
    plan: DevicePlan, kind: Kind, name: str, found: EncoderCheckpoint | AbagError
) -> Check:
    """Encode some sequences as they will be, and by the fp32 reference, on the device."""
    from abag.embed.doctor import parity

    title = f"{kind} parity"
    if isinstance(found, EncoderCheckpoint) and found.folder is None:
        return Check(title, "ok", f"{name} counts residues: nothing to compare")
    start_s = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="abag-doctor-") as folder:
            if isinstance(found, EncoderCheckpoint):
                checkpoint, what = found, name
            else:
                checkpoint = parity.reduced_checkpoint(name, Path(folder) / "reduced")
                what = f"random weights of {name}'s architecture, 4 layers"
            measured = parity.measure(checkpoint, kind, plan)
    except torch.OutOfMemoryError:
        text = f"not checked: {name} in fp32 does not fit on {plan.device} beside what is there"
        return Check(title, "note", text)
    except Exception as error:  # noqa: BLE001 - whatever fails here would fail abag embed
        return Check(title, "FAIL", f"{name} cannot be run ({first_line(error)})")
    values = {
        "reference": measured.reference,
        "alone": measured.alone,
        "mutation": measured.mutation,
        "limit": measured.limit,
    }
    text = (
        f"{what}, {plan.precision}: {measured.reference:.1e} from the fp32 reference, a sequence "
        f"alone {measured.alone:.1e} from itself in a batch (limit {measured.limit:g}; one "
        f"mutation {measured.mutation:.1e}), {time.perf_counter() - start_s:.0f} s"
    )
    if measured.holds:
        return Check(title, "ok", text, values)
    text += "; vectors made here would be wrong: give abag embed --attention sdpa --precision fp32"
    return Check(title, "FAIL", text, values)
