"""The start of a GPU's driver, which torch would wait for, beside the imports of a command.

A process makes a context on the GPU before its first kernel, and the first process on a machine
starts the driver. Neither needs torch, nor the lock of the interpreter.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress

LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"


def start_driver(device: str) -> threading.Thread | None:
    """Make the context that torch will use on a device, in a thread; None for a CPU.

    Where that fails, torch will fail, too, and its error is reported. The thread is no daemon: a
    process that ended in the middle of the driver's start could crash.
    """
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cuda"):
        return None
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does; read at the start
    thread = threading.Thread(target=_start, args=(int(index) if index.isdecimal() else 0,))
    thread.start()
    return thread


def _start(number: int) -> None:
    with suppress(OSError, AttributeError):  # there is no driver
        driver = ctypes.CDLL(LIBRARY)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), number) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
