"""Stage one on several devices: ranks of one machine, or the actors of a Ray cluster.

Workers never communicate: each encodes the sequences that it owns (see `job`), and the results meet
in the store. Ranks run under torch's elastic launcher. Ray starts the actors, restarts them, and
repeats a unit whose actor was lost; a driver that is killed and run again cuts units of what is
still missing. torch and Ray are imported where they are used.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from abag.core.errors import AbagError, DeviceError, MissingPackage, StoreError, WorkerError
from abag.core.messages import bar
from abag.embed.encoders.family import Encoder
from abag.embed.encoders.packing import TokenLayout, longest_first
from abag.embed.job import KindJob, identify_for
from abag.embed.options import EmbedOptions
from abag.embed.store.store import open_store
from abag.embed.tables.chains import Kind
from abag.embed.tables.pairs import SequencePart

MAX_RESTARTS = 10
"""Restarts of all ranks together before the job fails."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

Devices = int | Literal["all"]
_Task = tuple[str, Kind, str, Path, EmbedOptions]
"""Name of the encoder, kind, fingerprint, store and options."""
UNIT_TOKENS = {"GPU": 1 << 22, "CPU": 1 << 16}
"""Most tokens of a unit: 15 s on an H200, 10 s on a core."""
UNITS_PER_SLOT = 4
"""Fewest units per device, so that all devices finish at about the same time."""
CONNECT_SECONDS = 5.0
"""Time in which the head node of a given cluster must answer."""
LOOK_SECONDS = 5.0
"""Most time between two looks at the size of the cluster."""
TRIES = 10
"""Tries of one unit before the unit, rather than the cluster, is taken to be at fault."""


def count_devices(devices: Devices, device: str) -> int:
    """Turn ``--devices`` into a number of ranks.

    Raises
    ------
    DeviceError
        If there are fewer GPUs, or none is asked for.
    """
    import torch

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


@contextmanager
def ray_cluster(address: str) -> Iterator[str]:
    """Join a Ray cluster, or start one, and leave it at the end.

    Parameters
    ----------
    address : str
        Address of the cluster; empty: the current one, or else a new one on this machine.

    Yields
    ------
    str
        The resource that actors take: ``"GPU"`` if the cluster has one, or else ``"CPU"``.

    Raises
    ------
    MissingPackage
        If ray is not installed, or there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here reports nothing
    # leaves CUDA_VISIBLE_DEVICES alone for actors that ask for no GPU, as Ray announces it will
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        msg = "--ray: the package ray is not installed; pip install ray"
        raise MissingPackage(msg) from error
    joined = ray.is_initialized()
    try:
        if not joined:
            _reach(address)
            ray.init(address or None, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, OSError, OverflowError) as error:
        reason = " ".join(str(error).split())
        msg = (
            f"--ray {address}: no cluster found ({reason}); start one with `ray start --head`, or "
            "set RAY_AUTH_MODE=token for one that asks for a token"
        )
        raise MissingPackage(msg) from error
    # Ray prints the fate of its workers to stdout, which is for results
    with redirect_stdout(sys.stderr):
        try:
            yield "GPU" if _slots("GPU") else "CPU"
        finally:
            if not joined:
                ray.shutdown()


def encode_on(resource: str, job: KindJob, name: str, store: Path) -> None:
    """Encode and commit a job's sequences on a cluster.

    Parameters
    ----------
    resource : {"GPU", "CPU"}
        Each actor takes one.
    job : KindJob
        Its folder exists.
    name : str
        The encoder as the user gave it.
    store : path
        The store as all machines see it.

    Raises
    ------
    WorkerError
        If the actors of a unit die too often.
    AbagError
        If a worker raised it.
    """
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    gpus = int(resource == "GPU")
    cpus = 1 - gpus
    remote: Any = ray.remote(max_restarts=-1, max_task_retries=TRIES, num_gpus=gpus, num_cpus=cpus)
    worker = remote(_Worker)
    encoder = str(Path(name).resolve()) if Path(name).is_dir() else name
    task = (encoder, job.kind, job.identity.fingerprint, store, job.options)
    before = job.precisions()
    slots = _slots(resource)
    most = min(max(1, job.tokens // max(1, UNITS_PER_SLOT * slots)), UNIT_TOKENS[resource])
    units = _units(job.own_parts(), job.identity.layout, most)
    busy: dict[Any, Any] = {}  # one unit per actor: the next is cut when one is committed
    idle: list[Any] = []
    drawn = bar(total=job.missing, unit="seq", desc=job.kind)
    try:
        while True:
            slots = _slots(resource)  # nodes come and go
            while idle or len(busy) < slots:
                unit = next(units, None)
                if unit is None:
                    break
                actor = idle.pop() if idle else worker.remote(resource, task)
                busy[actor.encode.remote(unit)] = actor
            while idle:  # no unit is left for it, and a lost actor can restart in its place
                ray.kill(idle.pop())
            if not busy:
                break
            done, _ = ray.wait(list(busy), timeout=LOOK_SECONDS)
            drawn.set_postfix_str(f"{len(busy)} of {slots} {resource}s at work")
            for committed in done:
                idle.append(busy.pop(committed))
                drawn.update(ray.get(committed))
    except RayTaskError as error:
        if isinstance(error.cause, AbagError):
            raise error.cause from None
        raise
    except RayActorError as error:
        msg = (
            f"a unit of {job.kind} sequences: its actor died {TRIES + 1} times "
            f"({' '.join(str(error).split())[:200]}); everything committed is safe. Fix the cause "
            "and run the same command again."
        )
        raise WorkerError(msg) from error
    finally:
        drawn.close()
        for actor in (*idle, *busy.values()):
            ray.kill(actor)
    job.note_precision(before, job.precisions() - before)


def _reach(address: str) -> None:
    """Raise `OSError` if nothing answers at HOST:PORT; Ray would wait over a minute."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _slots(resource: str) -> int:
    import ray

    resources: Any = ray.cluster_resources  # untyped
    return int(resources().get(resource, 0))


def _units(parts: Iterator[SequencePart], layout: TokenLayout, most: int) -> Iterator[SequencePart]:
    """Cut parts into units of about `most` tokens, longest sequences first."""
    for part in parts:
        tokens = layout.count_tokens(part.chains)
        order = longest_first(tokens)
        unit = (np.cumsum(tokens[order]) - 1) // most
        for at in np.split(order, np.flatnonzero(np.diff(unit)) + 1):
            yield part.take(at)


class _Worker:
    """An actor with one device and one encoder, which is loaded for the first unit and kept."""

    def __init__(self, resource: str, task: _Task) -> None:
        self._device = "cuda" if resource == "GPU" else "cpu"
        self._task = task
        self._loaded: tuple[KindJob, Encoder] | None = None

    def encode(self, unit: SequencePart) -> int:
        """Encode and commit a unit; return its number of sequences."""
        from abag.embed.encode import encode_parts  # imports torch, which takes seconds

        if self._loaded is None:
            self._loaded = self.load()
        job, encoder = self._loaded
        # a lost actor may have committed a part of this unit
        left = unit.take(np.flatnonzero(job.folder.missing(unit.keys)))
        encode_parts(job, encoder, [left], 0, shown=False)
        return len(unit.chains)

    def load(self) -> tuple[KindJob, Encoder]:
        """Find the encoder and the store here; other weights raise `StoreError`."""
        name, kind, fingerprint, store, options = self._task
        identity = identify_for(name, kind, options)
        if identity.fingerprint != fingerprint:
            msg = (
                f"encoder {name} on {platform.node()}: its fingerprint is {identity.fingerprint}; "
                f"expected {fingerprint}. Put the same checkpoint on every machine."
            )
            raise StoreError(msg)
        job = KindJob(identity, self._device, options)
        job.create_folder(open_store(store))
        return job, job.load()
