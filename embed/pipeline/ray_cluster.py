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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from abag import AbagError
from abag.core.messages import bar, note
from abag.embed.packing.batches import longest_first
from abag.embed.pipeline.encode import EncodeProgress, encode_parts
from abag.embed.pipeline.options import EmbedOptions
from abag.embed.pipeline.task import EncodeTask, create_folder, identify_for, plan_for
from abag.embed.sequences.chains import Kind
from abag.embed.sequences.partitions import SequencePart
from abag.embed.store.store import StoreMismatch, open_store

if TYPE_CHECKING:
    from abag.embed.families.family import Encoder
    from abag.embed.packing.tokens import Layout

UNIT_TOKENS = {"GPU": 1 << 22, "CPU": 1 << 16}
"""Most tokens in a unit: about 15 s on an H200, 10 s on one core."""
UNITS_PER_SLOT = 4
"""Fewest units per device, so that all devices finish at about the same time."""
CONNECT_SECONDS = 5.0
"""Time in which the head node of a given cluster must answer."""
LOOK_SECONDS = 5.0
"""Most time between two looks at the size of the cluster."""
TRIES = 10
"""Retries of one unit before the unit, rather than the cluster, is taken to be at fault."""


class RayUnavailable(AbagError):
    """Ray is not installed, or its cluster cannot be reached."""


class UnitFailed(AbagError):
    """The actors of one unit of work died again and again."""


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What a worker on another machine needs: names, and a store that it can reach too."""

    name: str
    kind: Kind
    fingerprint: str
    store: Path
    options: EmbedOptions

    def on_this_machine(self, device: str) -> EncodeTask:
        """Find the encoder and the store here; other weights raise `StoreMismatch`."""
        identity = identify_for(self.name, self.kind, self.options)
        if identity.fingerprint != self.fingerprint:
            found = f"its fingerprint is {identity.fingerprint}; expected {self.fingerprint}"
            msg = f"encoder {self.name} on {platform.node()}: {found}. Put the same checkpoint on "
            msg += "every machine."
            raise StoreMismatch(msg)
        folder = create_folder(open_store(self.store), identity, self.options)
        return EncodeTask(identity, folder, plan_for(identity, device, self.options), self.options)


@contextmanager
def cluster(address: str) -> Iterator[str]:
    """Join a Ray cluster or start one here; yield the resource it computes on: GPU or CPU.

    `address` is that of `ray.init`; empty: the running cluster, or a new one on this machine.

    Raises
    ------
    RayUnavailable
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here reports nothing
    # leaves CUDA_VISIBLE_DEVICES alone for actors that ask for no GPU, as Ray announces it will
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        msg = "--ray: the package ray is not installed; pip install 'abag[ray]'"
        raise RayUnavailable(msg) from error
    joined = ray.is_initialized()
    try:
        if not joined:
            _reach(address)
            ray.init(address or None, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, OSError, OverflowError) as error:
        reason = " ".join(str(error).split())
        msg = f"--ray {address}: no cluster found ({reason}); start one with `ray start --head`"
        raise RayUnavailable(msg) from error
    # Ray prints the fate of its workers to stdout, which is for results
    with redirect_stdout(sys.stderr):
        try:
            yield "GPU" if _slots("GPU") else "CPU"
        finally:
            if not joined:
                ray.shutdown()


def encode_on(
    resource: str, task: WorkerTask, parts: Iterator[SequencePart], *, sequences: int, tokens: int
) -> None:
    """Encode and commit missing sequences on the cluster, with one `resource` per actor.

    Raises
    ------
    AbagError
        The error that a worker raised.
    UnitFailed
        If a unit's actors died more than `TRIES` times.
    """
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    gpus, cpus = (1, 0) if resource == "GPU" else (0, 1)
    remote: Any = ray.remote(max_restarts=-1, max_task_retries=TRIES, num_gpus=gpus, num_cpus=cpus)
    worker = remote(_Worker)
    layout = identify_for(task.name, task.kind, task.options).layout
    slots = _slots(resource)
    spread = tokens // max(1, UNITS_PER_SLOT * slots)
    units = _units(parts, layout, min(max(1, spread), UNIT_TOKENS[resource]))
    busy: dict[Any, Any] = {}  # one unit per actor: the next is cut when one is committed
    idle: list[Any] = []
    notes: set[str] = set()
    drawn = bar(total=sequences, unit="seq", desc=task.kind)
    try:
        while True:
            slots = _slots(resource)  # nodes come and go
            while idle or len(busy) < slots:
                unit = next(units, None)
                if unit is None:
                    break
                actor = idle.pop() if idle else worker.remote(task, resource)
                busy[actor.encode.remote(unit)] = actor
            while idle:  # no unit is left for it, and a lost actor can restart in its place
                ray.kill(idle.pop())
            if not busy:
                return
            done, _ = ray.wait(list(busy), timeout=LOOK_SECONDS)
            drawn.set_postfix_str(f"{len(busy)} of {slots} {resource}s at work")
            for committed in done:
                idle.append(busy.pop(committed))
                encoded, of_precision = ray.get(committed)
                drawn.update(encoded)
                notes.add(of_precision)
    except RayTaskError as error:
        if isinstance(error.cause, AbagError):
            raise error.cause from None
        raise
    except RayActorError as error:
        msg = (
            f"a unit of {task.kind} sequences: its actor died {TRIES + 1} times "
            f"({' '.join(str(error).split())[:200]}); everything committed is safe. Fix the cause "
            "and run the same command again."
        )
        raise UnitFailed(msg) from error
    finally:
        drawn.close()
        for text in sorted(notes - {""}):
            note(text)
        for actor in (*idle, *busy.values()):
            ray.kill(actor)


def _reach(address: str) -> None:
    """Raise `OSError` if nothing answers at HOST:PORT, for which Ray waits over a minute."""
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
        tokens = [sum(layout.span_lengths(chains)) for chains in part.chains]
        order = longest_first(tokens)
        unit = (np.cumsum(np.array(tokens)[order]) - 1) // most
        for at in np.split(order, np.flatnonzero(np.diff(unit)) + 1):
            yield part.take(at)


class _Worker:
    """An actor with one device and one encoder, which is loaded for the first unit and kept."""

    def __init__(self, task: WorkerTask, resource: str) -> None:
        self._worker_task, self._resource = task, resource
        self._task: EncodeTask | None = None
        self._encoder: Encoder | None = None
        self._note = ""

    def encode(self, unit: SequencePart) -> tuple[int, str]:
        """Encode and commit a unit; return its number of sequences, and a note for the user."""
        import ray

        if self._task is None or self._encoder is None:
            device = "cuda" if self._resource == "GPU" else "cpu"
            self._task = self._worker_task.on_this_machine(device)
            self._note = self._task.check_precision()
            self._encoder = self._task.load_encoder()
        left = unit
        if ray.get_runtime_context().was_current_actor_reconstructed:
            # the lost actor may have committed a part of this unit
            left = unit.take(np.flatnonzero(self._task.folder.missing(unit.keys)))
        progress = EncodeProgress(self._task, len(left.chains), shown=False)
        encode_parts(self._task, self._encoder, [left], progress)
        return len(unit.chains), self._note
