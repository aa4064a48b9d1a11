"""Count the cores of this process, share them among the folds of a fit, and keep freed memory."""

from __future__ import annotations

import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cache

from threadpoolctl import ThreadpoolController

MOST_THREADS = 4
SMALL_FOLD_PAIRS = 5_000
"""Training pairs of a fold up to which folds are fitted side by side. Matrices of larger ones would
take gigabytes, so these are fitted in sequence, with all cores for each."""
M_TRIM_THRESHOLD = -1
"""Parameter of glibc's mallopt: free bytes above which memory is given back to the kernel."""
M_MMAP_THRESHOLD = -3
"""Parameter of glibc's mallopt: bytes from which a block is mapped on its own."""
WITH_BLAS = ("numpy", "scipy.linalg", "torch")
"""Modules that load a library of linear algebra each."""


def count_cores() -> int:
    """Return how many cores this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_threads(tasks: int, n_training: int, cores: int) -> int:
    """Return how many threads share the tasks of a fit: one if its largest fold is large."""
    return max(1, min(MOST_THREADS, cores, tasks)) if n_training <= SMALL_FOLD_PAIRS else 1


def limit_blas(threads: int | None) -> AbstractContextManager[object]:
    """Limit the threads of linear algebra for the code inside the block; None: as they are."""
    loaded = [name in sys.modules for name in WITH_BLAS]
    controller = _controller(*loaded)  # of what is imported later, threads would not be limited
    limited: AbstractContextManager[object] = controller.limit(limits=threads, user_api="blas")
    return limited


def thread_pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool whose threads divide the work of torch as this one does."""
    torch = sys.modules.get("torch")
    # what it computes by OpenMP takes all cores in a thread that has not asked torch how many
    ask = None if torch is None else torch.get_num_threads
    return ThreadPoolExecutor(threads, initializer=ask)


@cache
def _controller(*_loaded: bool) -> ThreadpoolController:
    """Find the libraries, which takes 7 ms, once for each set of loaded modules."""
    return ThreadpoolController()


def keep_freed_memory() -> None:
    """Make glibc keep blocks of up to 32 MiB, and up to 256 MiB in all, for the next allocation."""
    # or it returns gradients to the kernel, and gets zeroed pages: 40 % of a stacked step on a CPU,
    # a seventh of the time of predictions
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_TRIM_THRESHOLD, 2**28)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
