"""Checks of one encoder: its weights, its attention kernel, and its agreement with fp32."""

from __future__ import annotations

import fnmatch
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch

from abag import AbagError
from abag.core.device import DevicePlan
from abag.core.messages import first_line, size_text
from abag.embed.doctor import parity
from abag.embed.doctor.check import MIN_FREE_BYTES, Check
from abag.embed.encoders.checkpoint_lookup import find_checkpoint
from abag.embed.families.registry import FAMILIES, HubSource, guess_family, hub_source
from abag.embed.kernels.attention import choose_attention, kernel_problems
from abag.embed.sequences.chains import Kind
from abag.embed.weights.checkpoints import EncoderCheckpoint, EncoderNotFound


def find_local_checkpoint(name: str) -> EncoderCheckpoint | AbagError:
    """Return an encoder's checkpoint on disk, or why there is none; downloads nothing."""
    try:
        return find_checkpoint(name, download=False)
    except AbagError as error:
        return error


def check_weights(kind: Kind, name: str, found: EncoderCheckpoint | AbagError) -> Check:
    """Check that an encoder's weights are on disk, or can be downloaded."""
    title = f"{kind} weights"
    if isinstance(found, EncoderCheckpoint):
        size = sum(path.stat().st_size for path in found.weights)
        where = f" in {found.folder}" if found.folder else ": none are needed"
        text = f"{name}: {size_text(size)}{where}" if size else f"{name}{where}"
        if found.random:
            text += "; random: its vectors carry no biology"
        return Check(title, "ok", text, {"present": True, "bytes": size})
    source = hub_source(name)
    on_hub = "/" in source.name and not source.name.startswith("/")
    if not isinstance(found, EncoderNotFound) or not on_hub:
        return Check(title, "FAIL", str(found), {"present": False})
    try:
        size = _hub_bytes(source)
    except Exception as error:  # noqa: BLE001 - any failure means: not available
        text = (
            f"{name}: {source} is not on disk, and the hub cannot be reached "
            f"({first_line(error)}); run `{source.download_command}` on a machine with network "
            "access, or give a checkpoint folder"
        )
        return Check(title, "FAIL", text, {"present": False})
    return _check_download(title, f"{name}: {source}", size)


def _check_download(title: str, encoder: str, size: int) -> Check:
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    free = shutil.disk_usage(next(p for p in (cache, *cache.parents) if p.is_dir())).free
    text = f"{encoder} is not on disk; up to {size_text(size)} will be downloaded to {cache}"
    values = {"present": False, "bytes": size}
    if free < size + MIN_FREE_BYTES:
        text += f", where {size_text(free)} are free: free some space, or set HF_HOME"
        return Check(title, "FAIL", f"{text} to a folder on a larger disk", values)
    return Check(title, "note", f"{text} on first use", values)


def _hub_bytes(source: HubSource) -> int:
    """Ask the hub for the size of the weight files, at most: of shards, only some may be needed."""
    from huggingface_hub import HfApi

    files = (
        HfApi()
        .model_info(source.name, revision=source.revision, files_metadata=True, timeout=10)
        .siblings
        or []
    )
    sizes = {f.rfilename: f.size or 0 for f in files}
    for pattern in ("model.safetensors", "model-*.safetensors", "pytorch_model*.bin"):
        if names := fnmatch.filter(sizes, pattern):
            return sum(sizes[name] for name in names)
    return 0


def check_attention(
    plan: DevicePlan, kind: Kind, name: str, found: EncoderCheckpoint | AbagError
) -> Check:
    """Report the attention kernel that an encoder will use, and why not the others."""
    title = f"{kind} attention"
    family = guess_family(name)
    config = family.reduced_config
    if isinstance(found, EncoderCheckpoint):
        family, config = FAMILIES[found.family], found.config
    if "packed" not in family.backends:
        own = "transformers' own" if family.transformers_class else "none: it has no attention"
        return Check(title, "ok", f"{own} ({name})", {"attention": None})
    biased, head_width = family.biased_attention, family.shape(config).head_width
    kernel = choose_attention(plan, biased=biased, head_width=head_width)
    problems = kernel_problems(plan, biased=biased, head_width=head_width)
    usable = ", ".join(n for n, problem in problems.items() if not problem and n != kernel)
    text = f"{kernel}, the fastest on this device" + (f"; also {usable}" if usable else "")
    text += "".join(f"; {n}: {problem}" for n, problem in problems.items() if problem)
    return Check(title, "ok", text, {"attention": kernel})


def check_parity(
    plan: DevicePlan, kind: Kind, name: str, found: EncoderCheckpoint | AbagError
) -> Check:
    """Compare an encoder as it will run with the fp32 reference, on the same device."""
    title = f"{kind} parity"
    if isinstance(found, EncoderCheckpoint) and found.folder is None:
        return Check(title, "ok", f"{name} counts residues: nothing to compare")
    start_s = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="abag-doctor-") as folder:
            if isinstance(found, EncoderCheckpoint):
                checkpoint, weights = found, name
            else:
                checkpoint = parity.reduced_checkpoint(name, Path(folder) / "reduced")
                weights = f"random weights of {name}'s architecture, 4 layers"
            measured = parity.measure(checkpoint, kind, plan)
    except torch.OutOfMemoryError:
        text = f"not checked: {name} in fp32 does not fit into the free memory of {plan.device}"
        return Check(title, "note", text)
    except Exception as error:  # noqa: BLE001 - any failure here would also stop abag embed
        return Check(title, "FAIL", f"{name} cannot be run ({first_line(error)})")
    text = (
        f"{weights}, {plan.precision}: {measured.reference:.1e} from the fp32 reference, a "
        f"sequence alone {measured.alone:.1e} from the same in a batch (limit {measured.limit:g}; "
        f"one mutation {measured.mutation:.1e}), {time.perf_counter() - start_s:.0f} s"
    )
    if measured.holds:
        return Check(title, "ok", text, asdict(measured))
    text += "; the vectors would be wrong: run abag embed with --attention sdpa --precision fp32"
    return Check(title, "FAIL", text, asdict(measured))
