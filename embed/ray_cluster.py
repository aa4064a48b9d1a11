"""Stage one on a Ray cluster: units of missing sequences, encoded by one actor per device.

Ray starts the actors, restarts them, and repeats a unit whose actor was lost. This module only
cuts the units; workers meet in the store. A driver that is killed and run again cuts units of
what is still missing.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from abag.core.errors import AbagError, MissingPackage, StoreError, WorkerError
from abag.core.messages import bar, note
from abag.embed.embed_options import EmbedOptions
from abag.embed.encode import encode_parts
from abag.embed.encoders.loading import load_encoder
from abag.embed.job import KindJob, identify_for
from abag.embed.packing import longest_first
from abag.embed.sequences.chains import Kind
from abag.embed.sequences.partitions import SequencePart
from abag.embed.store.store import open_store

if TYPE_CHECKING:
    from abag.embed.families.family import Encoder
    from abag.embed.packing import Layout

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


@contextmanager
def cluster(address: str) -> Iterator[str]:
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
        msg = f"--ray {address}: no cluster found ({reason}); start one with `ray start --head`"
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
                actor = idle.pop() if idle else worker.remote(resource, *task)
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
    new = job.precisions() - before if before else set()
    if new:
        begun = ", ".join(sorted(before))
        note(f"{job.folder.path.name}: begun in {begun}, continued in {', '.join(sorted(new))}")


def _reach(address: str) -> None:
    """Raise `OSError` if nothing answers at HOST:PORT; Ray would wait over a minute."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _slots(resource: str) -> int:
    import ray

    resources: Any = ray.cluster_resources  # untyped
    return int(resources().get(resource, 0))


def _units(parts: Iterator[SequencePart], layout: Layout, most: int) -> Iterator[SequencePart]:
    """Cut parts into units of about `most` tokens, longest sequences first."""
    for part in parts:
        tokens = layout.count_tokens(part.chains)
        order = longest_first(tokens)
        unit = (np.cumsum(tokens[order]) - 1) // most
        for at in np.split(order, np.flatnonzero(np.diff(unit)) + 1):
            yield part.take(at)


class _Worker:
    """An actor with one device and one encoder, which is loaded for the first unit and kept."""

    def __init__(
        self,
        resource: str,
        name: str,
        kind: Kind,
        fingerprint: str,
        store: Path,
        options: EmbedOptions,
    ) -> None:
        self._device = "cuda" if resource == "GPU" else "cpu"
        self._task = (name, kind, fingerprint, store, options)
        self._loaded: tuple[KindJob, Encoder] | None = None

    def encode(self, unit: SequencePart) -> int:
        """Encode and commit a unit; return its number of sequences."""
        if self._loaded is None:
            self._loaded = self.load()
        job, encoder = self._loaded
        # a lost actor may have committed a part of this unit
        left = unit.take(np.flatnonzero(job.folder.missing(unit.keys)))
        encode_parts(job, encoder, [left], len(left.chains), shown=False)
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
        backend = options.backend(kind)
        attention = options.attention
        return job, load_encoder(identity, job.plan, backend=backend, attention=attention)
