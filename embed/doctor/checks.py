"""Find out now what would fail later: every check of the machine, the encoders and the disks.

The checks try things out: a graph is compiled, a file is renamed, sequences are encoded twice.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, Literal

import torch

from abag import AbagError
from abag.core.cache import keeping_kernels, record_speed
from abag.core.device import DevicePlan, default_batch_tokens, device_name, plan_device
from abag.core.files import Files, partial_path, remove_quietly
from abag.core.messages import first_line, size_text
from abag.embed.doctor.doctor import cuda_of_torch, installed, versions
from abag.embed.doctor.probes import measure_parity, measure_speed, reduced_checkpoint
from abag.embed.encoders.identity import find_checkpoint
from abag.embed.families.registry import FAMILIES, SHAPES, HubSource, guess_family, hub_source
from abag.embed.kernels.attention import choose_attention, kernel_problems
from abag.embed.sequences.chains import Kind
from abag.embed.store.filesystem import is_unmounted_drive
from abag.embed.store.spool import spooled_rows
from abag.embed.store.store import open_store
from abag.embed.weights.checkpoints import EncoderCheckpoint, EncoderNotFound

State = Literal["ok", "note", "FAIL"]

MIN_FREE_BYTES = 256 << 20
"""With less free disk space a check fails."""
BYTES_PER_SEQUENCE = 6 << 10
"""Three poolings of 1,024 float16 values."""
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; ``"FAIL"``: a command would fail later."""

    name: str
    state: State
    text: str  # what was found, what will be used, and why; for "FAIL" also what to do
    values: dict[str, Any] = field(default_factory=dict)  # the same for scripts, with --json


def examine(
    *,
    store: Path | None = None,
    antibody_encoder: str = "igt5",
    antigen_encoder: str = "esm2-650m",
    device: str = "auto",
    bench: bool = False,
) -> Iterator[Check]:
    """Check everything that embedding and fitting will need; yields each result as it is found.

    Nothing is downloaded: if weights are not on disk, their size is looked up on the hub.
    With `bench`, speeds are measured and kept in the cache folder.
    """
    names: dict[Kind, str] = {"antibody": antibody_encoder, "antigen": antigen_encoder}
    encoders = [(kind, name, find_local_checkpoint(name)) for kind, name in names.items()]
    yield check_versions()
    yield check_temporary_folder()
    if store is not None:
        yield from check_store(store)
    for encoder in encoders:
        yield check_weights(*encoder)
    try:
        plan = plan_device(device)
    except AbagError as error:
        yield Check("device", "FAIL", str(error))
        return
    yield check_device(plan, requested=device)
    yield check_precision(plan)
    for encoder in encoders:
        yield check_attention(plan, *encoder)
    yield check_faesm()
    yield check_compiler(plan)
    for encoder in encoders:
        yield check_parity(plan, *encoder)
    if bench:
        for encoder in encoders:
            yield check_speed(plan, *encoder)


# --- the machine ---------------------------------------------------------------------------------


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


# --- the encoders --------------------------------------------------------------------------------


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
                checkpoint = reduced_checkpoint(name, Path(folder) / "reduced")
                weights = f"random weights of {name}'s architecture, 4 layers"
            measured = measure_parity(checkpoint, kind, plan)
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


def check_speed(
    plan: DevicePlan, kind: Kind, name: str, found: EncoderCheckpoint | AbagError
) -> Check:
    """Measure an encoder's tokens/s and keep the result for ``abag plan``."""
    title = f"{kind} speed"
    if not isinstance(found, EncoderCheckpoint) and name in SHAPES:
        family = guess_family(name).name
        found = EncoderCheckpoint(name, family, None, (), SHAPES[name], name)
    if not isinstance(found, EncoderCheckpoint):
        text = f"not measured: the shape of {name} is known when its weights are on disk"
        return Check(title, "note", text)
    if not FAMILIES[found.family].shape(found.config).layers:
        return Check(title, "ok", f"{name} counts residues: nothing to measure")
    try:
        rate = measure_speed(found, kind, plan)
    except Exception as error:  # noqa: BLE001 - a failure here is reported by the check of parity
        return Check(title, "note", f"not measured: {name} cannot be run ({first_line(error)})")
    device = device_name(plan.device)
    record_speed(device, name, rate)
    text = f"{name}, {plan.precision}: {rate:,.0f} tokens/s on {device}; kept for abag plan"
    return Check(title, "ok", text, {"tokens_per_s": rate, "device": device})


# --- the disks -----------------------------------------------------------------------------------


def check_temporary_folder() -> Check:
    """Check that shards can be prepared in the temporary folder."""
    try:
        folder = Path(tempfile.gettempdir())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"no writable folder ({error}); set TMPDIR to a writable one"
        return Check("temporary files", "FAIL", text)
    text, enough = f"{folder}, {free / 1e9:,.1f} GB free", free >= MIN_FREE_BYTES
    if not enough:
        text += "; shards are prepared there: free some space, or set TMPDIR to a larger disk"
    values = {"path": str(folder), "free_bytes": free}
    return Check("temporary files", "ok" if enough else "FAIL", text, values)


def check_store(store: Path, files: Files | None = None) -> Iterator[Check]:
    """Check the file system of a store, existing or not; leaves nothing behind."""
    files = files or Files()
    if is_unmounted_drive(store):
        text = f"{store}: no Drive is mounted there; files would be lost with this machine"
        yield Check("store", "FAIL", text)
        return
    try:
        content = _describe_content(store)
        folder = next(path for path in (store, *store.absolute().parents) if path.exists())
    except (AbagError, OSError) as error:
        yield Check("store", "FAIL", first_line(error))
        return
    if not folder.is_dir():
        yield Check("store", "FAIL", f"{folder}: a file; expected a folder; choose another --store")
        return
    yield Check("store", "ok", f"{store}: {content}", {"path": str(store)})
    yield _check_writing(folder, files)
    yield _check_space(folder)
    yield _check_spool(store)


def _describe_content(store: Path) -> str:
    if not store.exists():
        return "does not exist yet; abag embed creates it"
    if store.is_dir() and not any(store.iterdir()):
        return "empty; abag embed creates a store in it"
    folders = open_store(store).folders()
    names = ", ".join(f"{folder.path.name} ({folder.rows:,})" for folder in folders)
    return f"holds {names or 'no vectors yet'}"


def _check_writing(folder: Path, files: Files) -> Check:
    """Run the steps of a commit one by one, to name the one that fails."""
    # hidden: if doctor is killed, the file left behind is not mistaken for part of a store
    path = folder / f".abag-doctor-{os.getpid()}.probe"
    partial, data = partial_path(path), os.urandom(1 << 16)
    steps: dict[str, Callable[[], object]] = {
        "write and sync": lambda: files.write(partial, data),
        "rename": lambda: files.replace(partial, path),
        "sync the folder": lambda: files.sync_folder(folder),
        "read back": lambda: _expect_same(path.read_bytes(), data),
        "remove": lambda: files.remove(path),
    }
    start_s = time.perf_counter()
    for name, step in steps.items():
        try:
            step()
        except OSError as error:
            for leftover in (partial, path):
                remove_quietly(leftover, Files())
            text = (
                f"{folder}: cannot {name} ({error}); committing a shard needs {', '.join(steps)}. "
                "Choose another folder, or change how it is mounted."
            )
            return Check("store: writing", "FAIL", text, {"step": name})
    ms = (time.perf_counter() - start_s) * 1000
    text = f"{', '.join(steps)} work, in {ms:,.0f} ms"
    return Check("store: writing", "ok", text, {"milliseconds": round(ms, 1)})


def _expect_same(found: bytes, written: bytes) -> None:
    if found != written:
        msg = "the bytes read differ from those written"
        raise OSError(msg)


def _check_space(folder: Path) -> Check:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check("store: space", "note", f"{folder}: free space unknown ({error})")
    enough = free >= MIN_FREE_BYTES
    text = f"{free / 1e9:,.1f} GB free: room for about {free // BYTES_PER_SEQUENCE:,} sequences"
    if not enough:
        text += "; free some space, or choose another disk"
    return Check("store: space", "ok" if enough else "FAIL", text, {"free_bytes": free})


def _check_spool(store: Path) -> Check:
    waiting = spooled_rows(store)
    text = "empty"
    if waiting:
        text = (
            f"{waiting:,} sequences of an earlier run are in a local spool on this machine; the "
            "next abag embed into this store commits them"
        )
    return Check("store: spool", "note" if waiting else "ok", text, {"waiting": waiting})
