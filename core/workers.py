"""Processes that answer requests, for work that holds the lock of the interpreter.

Each is a new interpreter that imports one module: it inherits no threads, works in notebooks, and
needs no ``if __name__ == "__main__"`` in the caller's script. The module calls `serving`.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen
from typing import IO, TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Buffer: TypeAlias = bytes | NDArray[Any]

_SIZE = 8
"""Bytes of the length before each buffer."""


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Processes of one module, as many as asked for; where one cannot be started, fewer.

    Parameters
    ----------
    module : str
        Run as ``python -m``.
    count : int
        Number of processes.
    first : buffers
        Sent to each process before any request.
    """

    def __init__(self, module: str, count: int, *first: Buffer) -> None:
        self.started: list[Popen[bytes]] = []
        command = [sys.executable, "-P", "-m", module]
        with suppress(OSError):
            for _ in range(count):
                # Ctrl-C reaches only this process, which ends them: else each prints a traceback.
                process = Popen(command, stdin=PIPE, stdout=PIPE, process_group=0)
                self.started.append(process)
        self._idle = list(self.started)
        for process in self.started:
            with suppress(BrokenPipeError):
                send(process.stdin, *first)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.started:
            process.kill()
            process.communicate()

    def ask(self, *request: Buffer) -> bytes | None:
        """Return a process's answer; None if none is left. As many threads as processes may ask."""
        with suppress(IndexError, EOFError, BrokenPipeError):  # some may have been killed
            process = self._idle.pop()
            send(process.stdin, *request)
            found = receive(process.stdout)
            self._idle.append(process)
            return found
        return None


def send(pipe: IO[bytes] | None, *buffers: Buffer) -> None:
    """Write buffers to a pipe, each with its length."""
    assert pipe is not None
    for buffer in buffers:
        content = buffer if isinstance(buffer, bytes) else buffer.tobytes()
        pipe.write(len(content).to_bytes(_SIZE))
        pipe.write(content)
    pipe.flush()


def receive(pipe: IO[bytes] | None) -> bytes:
    """Return the bytes of one buffer; raise EOFError if the pipe is closed."""
    assert pipe is not None
    size = int.from_bytes(pipe.read(_SIZE))
    data = pipe.read(size)
    if not size or len(data) < size:
        raise EOFError
    return data


@contextmanager
def serving() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the pipes of requests and answers, in a process that `Workers` started.

    The block reads and answers requests without end; it is left when the pipe is closed. The
    process that asks comes first, also on a machine with few cores.
    """
    if hasattr(os, "nice"):
        os.nice(5)
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        yield sys.stdin.buffer, sys.stdout.buffer
