"""Checks that find now what would fail later: the machine, the encoders and the disks.

They try things out: a file is renamed, sequences are encoded twice.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from abag import __version__
from abag.core.device import DevicePlan, default_batch_tokens, plan_device
from abag.core.errors import AbagError
from abag.core.files import cache_dir, nearest_existing, remove_quietly, write_bytes
from abag.core.hub import HubAddress, is_repository_name
from abag.core.messages import first_line, size_text
from abag.embed.encode import PoolingSink, encode_stream
from abag.embed.encoders.checkpoints import find_checkpoint, save_random_checkpoint
from abag.embed.encoders.families import FAMILIES
from abag.embed.encoders.family import Backend
from abag.embed.encoders.identity import Identity, vocabulary_of
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.packing import TokenLayout
from abag.embed.encoders.registry import ALIASES, EncoderNotFound, download_command, hub_source
from abag.embed.encoders.weights import EncoderCheckpoint
from abag.embed.kernels.attention import kernel_problems, triton_problem
from abag.embed.store.shard import is_unmounted_drive
from abag.embed.store.store import open_store
from abag.embed.store.writer import spooled_rows
from abag.embed.tables.chains import STANDARD_RESIDUES, Chains, Kind

State = Literal["PASS", "WARN", "FAIL"]
Result = tuple[State, str]
PACKAGES = ("torch", "transformers", "h5py", "numpy", "pandas", "safetensors")
"""Packages whose versions are reported."""
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
"""Exists on Linux where the driver of an NVIDIA GPU is loaded."""
MIN_FREE_BYTES = 256 << 20
"""With less free disk space a check fails."""
LIMITS = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 3e-2}
"""Relative distances: half precision moves a pooled vector by up to 1 %, a mutation by 3-5 %."""


class Check(NamedTuple):
    """The result of one check."""

    name: str
    state: State
    """FAIL: a command would fail later."""
    text: str
    """The finding, and what to do if something is wrong."""


def examine(
    *,
    store: Path | None = None,
    antibody_encoder: str = "igt5",
    antigen_encoder: str = "esm2-650m",
    device: str = "auto",
) -> Iterator[Check]:
    """Check everything that embedding and fitting will need; nothing is downloaded.

    Parameters
    ----------
    store : path, optional
        A store to check, which need not exist.
    antibody_encoder, antigen_encoder : str
        Alias, hub name or checkpoint folder.
    device : str
        As for ``--device``.

    Yields
    ------
    Check
        In a fixed order, as soon as each is done; failures are results, not exceptions.
    """
    names: dict[Kind, str] = {"antibody": antibody_encoder, "antigen": antigen_encoder}
    checks: dict[str, Callable[[], Result]] = {
        "versions": check_versions,
        "temporary files": lambda: check_folder(Path(tempfile.gettempdir()), "set TMPDIR"),
        "cache": lambda: check_folder(cache_dir(), "set XDG_CACHE_HOME"),
    }
    if store is not None:
        checks["store"] = partial(check_store, store)
    for kind, name in names.items():
        checks[f"{kind} weights"] = partial(check_weights, name)
    yield from _results(checks)
    try:
        plan = plan_device(device)
    except AbagError as error:
        yield Check("device", "FAIL", str(error))
        return
    checks = {"device": partial(check_device, plan, requested=device)}
    for kind, name in names.items():
        checks[f"{kind} encoder"] = partial(check_encoder, plan, kind, name)
    yield from _results(checks)


def _results(checks: Mapping[str, Callable[[], Result]]) -> Iterator[Check]:
    """Run checks one after the other; one that raises has failed."""
    for name, check in checks.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's compiler and others warn of themselves
                state, text = check()
        except Exception as error:  # noqa: BLE001 - every failure would also stop a run
            state = "FAIL"
            text = first_line(error)
        yield Check(name, state, text)


# --- software ------------------------------------------------------------------------------------


def check_versions() -> Result:
    """Compare the installed packages with abag's requirements."""
    from packaging.requirements import Requirement

    packages = ", ".join(f"{name} {_installed(name) or 'not installed'}" for name in PACKAGES)
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
    text = (
        f"abag {__version__}, Python {platform.python_version()}, {packages}; torch is built for "
        f"{built_for}"
    )
    try:
        requirements = [Requirement(line) for line in requires("abag") or []]
    except PackageNotFoundError:
        return "WARN", f"{text}; abag is not installed: its requirements are not known"
    unmet = []
    for requirement in requirements:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue  # of an extra, or of another platform
        installed = _installed(requirement.name)
        if not requirement.specifier.contains(installed or "0", prereleases=True):
            unmet.append(
                f"{requirement.name} {installed or 'missing'} (expected {requirement.specifier})"
            )
    if unmet:
        fix = "install abag in a new environment"
        return "FAIL", f"{', '.join(unmet)}; {fix}"
    return "PASS", text


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# --- disks ---------------------------------------------------------------------------------------


def check_store(store: Path) -> Result:
    """Check a store, existing or not, and the file system that holds it."""
    if is_unmounted_drive(store):
        return "FAIL", f"{store}: no Drive is mounted there, so files would be lost; mount it"
    content = "new; abag embed creates it"
    if store.is_file() or (store.exists() and any(store.iterdir())):
        folders = open_store(store).folders()
        names = ", ".join(f"{folder.path.name} ({folder.rows:,})" for folder in folders)
        content = f"holds {names or 'no vectors yet'}"
    state, text = check_folder(nearest_existing(store), "change --store")
    text = f"{store}: {content}; {text}"
    if spooled := spooled_rows(store):
        text += f"; {spooled:,} sequences wait in a local spool: run abag embed again to add them"
        return "WARN" if state == "PASS" else state, text
    return state, text


def check_folder(folder: Path, fix: str) -> Result:
    """Write a file as a commit does, read it back, and look at the free space."""
    # hidden: if doctor is killed, the file left behind is not mistaken for part of a store
    path = folder / f".abag-doctor-{os.getpid()}.probe"
    data = os.urandom(1 << 16)
    try:
        write_bytes(path, data)
        problem = "" if path.read_bytes() == data else "the bytes read are not those written"
        path.unlink()
    except OSError as error:
        remove_quietly(path)
        problem = str(error)
    if problem:
        text = f"{folder}: a file cannot be written, renamed, read and deleted ({problem})"
        return "FAIL", f"{text}; {fix} to another folder"
    free = shutil.disk_usage(folder).free
    text = f"{folder} is writable, {free / 1e9:,.1f} GB free"
    if free < MIN_FREE_BYTES:
        return "FAIL", f"{text}; free some space, or {fix} to a folder on another disk"
    return "PASS", text


# --- encoders ------------------------------------------------------------------------------------


def check_weights(name: str) -> Result:
    """Check that an encoder's weights are on disk, or can be downloaded."""
    source = hub_source(name)
    try:
        checkpoint = find_checkpoint(name, download=False)
    except EncoderNotFound:
        if not is_repository_name(source.name):
            raise
        return _check_download(f"{name}: {source.short}", source)
    if checkpoint.folder is None:
        return "PASS", f"{name}: no weights are needed"
    size = size_text(sum(path.stat().st_size for path in checkpoint.weights))
    random = "; random: its vectors carry no biology" if checkpoint.random else ""
    return "PASS", f"{name}: {size} in {checkpoint.folder}{random}"


def _check_download(encoder: str, source: HubAddress) -> Result:
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        size = _hub_bytes(source)
    except Exception as error:  # noqa: BLE001 - any failure means: not available
        return "FAIL", (
            f"{encoder} is not on disk, and the hub cannot be reached ({first_line(error)}); run "
            f"`{download_command(source)}` on a machine with network access, or give a checkpoint "
            "folder"
        )
    cache = Path(HF_HUB_CACHE)
    free = shutil.disk_usage(nearest_existing(cache)).free
    text = f"{encoder} is not on disk; up to {size_text(size)} will be downloaded to {cache}"
    if free < size + MIN_FREE_BYTES:
        text += f", where {size_text(free)} are free: free some space, or set HF_HOME"
        return "FAIL", f"{text} to a folder on a larger disk"
    return "WARN", f"{text} on first use"


def _hub_bytes(source: HubAddress) -> int:
    """Ask the hub for the size of the weight files, at most: not all may be needed."""
    from huggingface_hub import HfApi

    model = HfApi().model_info(
        source.name, revision=source.revision, files_metadata=True, timeout=10
    )
    bytes_of_format = {".safetensors": 0, ".bin": 0}
    for file in model.siblings or []:
        suffix = Path(file.rfilename).suffix
        if suffix in bytes_of_format:
            bytes_of_format[suffix] += file.size or 0
    return max(bytes_of_format.values())


def check_device(plan: DevicePlan, *, requested: str) -> Result:
    """Report the device that will be used, its precision and its memory.

    Parameters
    ----------
    plan : DevicePlan
    requested : str
        The value of ``--device``.
    """
    if plan.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(plan.device)
        return "PASS", (
            f"{plan.reason}; {plan.precision}; {free / 2**30:.1f} of {total / 2**30:.1f} GiB free; "
            f"batches of {default_batch_tokens(plan):,} tokens"
        )
    text = f"CPU, {os.cpu_count() or 1} cores; {plan.precision}"
    if requested == "auto" and NVIDIA_DRIVER.exists():
        return "FAIL", (
            f"{text}; this machine has an NVIDIA GPU that torch {torch.__version__} cannot use: "
            "install a build of torch for CUDA that matches the driver"
        )
    return "WARN", f"{text}; no GPU, so large encoders take about a second per sequence or more"


def check_encoder(plan: DevicePlan, kind: Kind, name: str) -> Result:
    """Compare an encoder as it will run with the fp32 reference, on the same device."""
    with tempfile.TemporaryDirectory(prefix="abag-doctor-") as folder:
        weights = name
        try:
            checkpoint = find_checkpoint(name, download=False)
        except AbagError:  # reported by `check_weights`
            if name.partition("@")[0] not in ALIASES:
                return "WARN", f"{name}: not checked, because only its files say what it is"
            checkpoint = reduced_checkpoint(name, Path(folder) / "reduced")
            weights = f"random weights of {name}'s architecture"
        if checkpoint.folder is None:
            return "PASS", f"{name} counts residues: nothing to compare"
        try:
            distance, limit = measure_parity(checkpoint, kind, plan)
        except torch.OutOfMemoryError:
            return "WARN", f"not checked: {name} in fp32 does not fit into the free memory"
    state, attention = _describe_attention(plan, checkpoint)
    text = (
        f"{weights}, {plan.precision}: {distance:.1e} from the fp32 reference (limit {limit:g}); "
        f"{attention}"
    )
    if distance <= limit:  # false for NaN
        return state, text
    fix = "run abag embed with --attention sdpa --precision fp32"
    return "FAIL", f"{text}; the vectors would be wrong: {fix}"


def _describe_attention(plan: DevicePlan, checkpoint: EncoderCheckpoint) -> Result:
    family = FAMILIES[checkpoint.family]
    if plan.device.type == "cpu" or "packed" not in family.backends:
        return "PASS", "attention of torch"
    width = family.shape(checkpoint.config).head_width
    problems = kernel_problems(plan, biased=family.biased_attention, head_width=width)
    if not problems["triton"] and (problem := triton_problem(plan.device)):
        return "WARN", (
            f"attention sdpa and slower steps, because Triton does not work ({problem}): install a "
            "C compiler (apt-get install gcc)"
        )
    usable = [name for name, problem in problems.items() if not problem]  # the fastest first
    others = [f"; {name}: {problem}" for name, problem in problems.items() if problem]
    return "PASS", f"attention {usable[0]}{''.join(others)}"


def measure_parity(
    checkpoint: EncoderCheckpoint, kind: Kind, plan: DevicePlan
) -> tuple[float, float]:
    """Measure the largest relative distance of a vector from the fp32 reference.

    Returns the distance, NaN if any value is, and its limit in the precision of the plan.
    """
    layout = TokenLayout(kind, vocabulary_of(checkpoint))
    identity = Identity(checkpoint, layout, "", {})
    probes = _probes(kind, large=plan.device.type == "cuda")
    budget = int(layout.count_tokens(probes).sum())  # all in one batch

    def encode(plan: DevicePlan, backend: Backend) -> NDArray[np.float32]:
        encoder = load_encoder(identity, plan, backend=backend)
        sink = PoolingSink(encoder, plan, "float32")
        batches = encode_stream(sink, layout, probes, budget)
        return np.concatenate([pooled.stored_SPD for _, pooled in batches]).astype(np.float32)

    exact = encode(DevicePlan(plan.device, "fp32", ""), "reference")
    if plan.device.type == "cuda":
        torch.cuda.empty_cache()
    distances = np.linalg.norm(encode(plan, "packed") - exact, axis=-1)
    relative = distances / np.linalg.norm(exact, axis=-1)
    return float(relative.max()), LIMITS[plan.precision]


def reduced_checkpoint(name: str, folder: Path) -> EncoderCheckpoint:
    """Write random weights of the architecture of an alias, with few layers, to a folder."""
    config = FAMILIES[ALIASES[name.partition("@")[0]].family].reduced_config
    return find_checkpoint(str(save_random_checkpoint(folder, config, seed=0)))


def _probes(kind: Kind, *, large: bool) -> list[Chains]:
    rng = np.random.default_rng(0)
    lengths = [120, 30, 90, 250]
    if large and kind == "antigen":
        lengths += [400, 700, 1022]
    drawn = ["".join(rng.choice(list(STANDARD_RESIDUES), length)) for length in lengths]
    if kind == "antibody":
        return [(chain, chain[::-1]) for chain in drawn]
    return [(chain,) for chain in drawn]
