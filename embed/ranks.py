"""Several ranks on one machine: one process per device, under torch's elastic launcher.

Ranks never communicate: each encodes the sequences that it owns (see `job`), and the results meet
in the store. torch is imported where it is used.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable
from typing import Any, Literal, NoReturn

from abag.core.errors import AbagError, WorkerError

MAX_RESTARTS = 10
"""Restarts of all ranks together before the job fails."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

Devices = int | Literal["all"]


def count_devices(devices: Devices, device: str) -> int:
    """Turn ``--devices`` into a number of ranks.

    Raises
    ------
    DeviceError
        If there are fewer GPUs, or none is asked for.
    """
    import torch

    from abag.core.errors import DeviceError

    on_gpu = device != "cpu" and torch.cuda.is_available()
    gpus = torch.cuda.device_count() if on_gpu else 0
    ranks = gpus if devices == "all" else devices
    if ranks < 1 or (on_gpu and ranks > gpus):
        msg = (
            f"--devices {devices}: this machine has {gpus} GPUs; give at least 1 and at most that, "
            "or --device cpu and a number of processes"
        )
        raise DeviceError(msg)
    return ranks


def launch(ranks: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:  # noqa: ANN401
    """Run a function in several processes, which all start again when one dies.

    Parameters
    ----------
    ranks : int
        Number of processes.
    work : callable
        Raises `AbagError` for what a retry cannot fix; this is raised here, without a retry.
    *arguments
        Of `work`; both are pickled.

    Returns
    -------
    list
        What `work` returned in each rank.

    Raises
    ------
    WorkerError
        If ranks died more often than `MAX_RESTARTS` times.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    stopped: signal.Signals | None = None
    with tempfile.TemporaryDirectory(prefix="abag-ranks-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",  # any free port: other jobs may run here
            local_addr="localhost",
            max_restarts=MAX_RESTARTS,
            monitor_interval=0.5,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            results = elastic_launch(config, _in_rank)(work, ranks, arguments)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            reason = " ".join(str(failure.message).split())
            msg = (
                f"rank {rank} of {ranks} failed {MAX_RESTARTS + 1} times, last with {reason}. "
                "Everything committed is safe: fix the cause and run the same command again."
            )
            raise WorkerError(msg) from error
        except SignalException as error:
            stopped = error.sigval
        finally:  # the launcher installs its own handlers
            for number, handler in handlers.items():
                signal.signal(number, handler)
    if stopped is not None:
        signal.raise_signal(stopped)  # the ranks have stopped: now stop this process as well
    for result in results.values():
        if isinstance(result, AbagError):
            raise result
    return [results[rank] for rank in range(ranks)]


def _in_rank(work: Callable[..., Any], ranks: int, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """Run in a rank's process; an AbagError is returned, since the launcher would retry it."""

    def stop(number: int, _frame: object) -> NoReturn:
        sys.exit(128 + number)  # unwinds the stack, which commits

    import torch

    for number in _SIGNALS:
        signal.signal(number, stop)
    # else every rank would start a thread per core
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    try:
        return work(*arguments)
    except AbagError as error:
        return error
