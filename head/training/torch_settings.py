"""Process-wide settings of torch."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from abag.head.model.config import FitConfig


@contextmanager
def torch_settings(device: torch.device, config: FitConfig) -> Iterator[None]:
    """Set torch's process-wide settings for one training, and restore them afterwards.

    The device is made the current one, because CUDA graphs are captured there.
    """
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(config.threads)
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else "highest")  # TF32
    if config.deterministic and not deterministic:  # the call imports the compiler: 2 s
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
        torch.use_deterministic_algorithms(True)
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        if config.deterministic and not deterministic:
            torch.use_deterministic_algorithms(False)
