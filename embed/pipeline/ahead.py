"""What encoding needs and a table does not decide, started while the table is still being read.

On a cold machine torch, the start of CUDA and the digests of the weights take longer than reading.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from threading import Event, Thread
from typing import Self

from abag.embed.encoders.checkpoint_lookup import find_checkpoint
from abag.embed.weights.digest import weights_digest


class Ahead:
    """Imports torch, starts a GPU and hashes local weights in a thread; a context manager.

    Nothing is downloaded. Errors are left to the code that needs the result, and leaving the
    context ends the thread soon.
    """

    def __init__(self, encoders: Collection[str], *, gpu: str | None, precision: str) -> None:
        """`gpu` is a device, ``"auto"`` for the GPU if there is one, or None for none."""
        self._encoders, self._gpu, self._precision = encoders, gpu, precision
        self._stopped = Event()
        self._thread = Thread(target=self._work, name="ahead")

    def start(self) -> None:
        """Start, unless it has been started."""
        if self._thread.ident is None:
            self._thread.start()

    def wait(self) -> None:
        """Wait until all is done: two threads must not import or compute the same."""
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.wait()

    def _work(self) -> None:
        with suppress(Exception):
            import torch  # noqa: F401 - before two threads need it
        starting = Thread(target=self._start_gpu)
        starting.start()
        for name in self._encoders:
            with suppress(Exception):
                weights_digest(find_checkpoint(name, download=False), self._stopped)
        starting.join()

    def _start_gpu(self) -> None:
        """Start CUDA, and compile the Triton kernel that is tried first."""
        with suppress(Exception):
            from abag.core.device import resolve_device

            if self._gpu is None or (device := resolve_device(self._gpu)).type == "cpu":
                return
            if self._precision != "fp32":
                from abag.embed.kernels.attention import triton_problem

                triton_problem(device)
