"""Torch's process-wide settings while something trains: precision, threads, memory, determinism.

Each is set in a block and restored after it; only `keep_freed_memory` lasts.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import torch

from abag.core.cores import SMALL_FOLD_PAIRS, count_cores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from abag.head.models.config import FitConfig


M_TRIM_THRESHOLD = -1
"""Parameter of glibc's mallopt: free bytes above which memory is given back to the kernel."""
M_MMAP_THRESHOLD = -3
"""Parameter of glibc's mallopt: bytes from which a block is mapped on its own."""


@contextmanager
def torch_settings(device: torch.device, config: FitConfig) -> Iterator[None]:
    """Set torch's process-wide settings for one training, and restore them afterwards."""
    if device.type == "cpu":
        keep_freed_memory()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else "highest")  # TF32
    if config.deterministic and not deterministic:  # the call imports the compiler: 2 s
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
        torch.use_deterministic_algorithms(True)
    # CUDA graphs are captured on the current device
    current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    try:
        with _threads(config.threads), current:
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        if config.deterministic and not deterministic:
            torch.use_deterministic_algorithms(False)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def matrix_threads(training_pairs: int) -> Iterator[None]:
    """Let torch use all cores for the matrices of a large fold, which runs beside no other."""
    with _threads(count_cores()) if training_pairs > SMALL_FOLD_PAIRS else nullcontext():
        yield


def keep_freed_memory() -> None:
    """Make glibc keep blocks of up to 32 MiB, and up to 256 MiB in all, for the next allocation."""
    # or it returns gradients to the kernel, and gets zeroed pages: 40 % of a stacked step on a CPU
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_TRIM_THRESHOLD, 2**28)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
