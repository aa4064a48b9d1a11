"""Stage one on a Ray cluster: units of missing sequences, run by one actor a device.

Ray starts the actors, restarts them, and runs a unit again whose actor was lost; what is known
here is only how to cut units and that they meet in the store. A driver that is killed and run
again cuts units of what is still missing.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from abag import AbagError
from abag.embed.packing.batches import longest_first
from abag.embed.pipeline.encode import (
    Bar,
    EncodeTask,
    begin_folder,
    check_precision,
    encode_parts,
    loaded,
)
from abag.embed.pipeline.options import EmbedOptions, identify_for, plan_for
from abag.embed.sequences.chains import Kind
from abag.embed.sequences.partitions import SequencePart
from abag.embed.store.store import StoreMismatch, open_store

if TYPE_CHECKING:
    from abag.embed.encoders.registry import Encoder
    from abag.embed.packing.tokens import Layout

UNIT_TOKENS = {"GPU": 1 << 22, "CPU": 1 << 16}  # most: about 15 s of an H200, 10 s of a core
UNITS_A_SLOT = 4  # at least, so that all devices end at about the same time
LOOK_SECONDS = 5.0  # between looks at the cluster's size, at most
TRIES = 10  # of one unit, before it and not the cluster is taken to be at fault


class RayUnavailable(AbagError):
    """Ray is not installed, or its cluster is out of reach."""


class UnitFailed(AbagError):
    """A unit of work whose actors died again and again."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker on another machine has to know: names, and a store that it sees, too."""

    name: str
    kind: Kind
    fingerprint: str
    store: Path
    options: EmbedOptions

    def task(self, device: str) -> EncodeTask:
        """Find encoder and store on this machine.

        Raises
        ------
        StoreMismatch
            When the name stands for other weights here.
        """
        identity = identify_for(self.name, self.kind, self.options)
        if identity.fingerprint != self.fingerprint:
            msg = (
                f"encoder {self.name} on {platform.node()}: fingerprint {identity.fingerprint}; "
                f"{self.fingerprint} was expected. Put the same checkpoint on every machine."
            )
            raise StoreMismatch(msg)
        folder = begin_folder(open_store(self.store), identity, self.options)
        return EncodeTask(identity, folder, plan_for(identity, device, self.options), self.options)


@contextmanager
def cluster(address: str) -> Iterator[str]:
    """Join a Ray cluster, or start one here; yields what it computes on, ``GPU`` or ``CPU``.

    Parameters
    ----------
    address : str
        As `ray.init` takes it; empty: the cluster at hand, or a new one on this machine.

    Raises
    ------
    RayUnavailable
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here reports nothing
    # what Ray warns that it will do: leave CUDA_VISIBLE_DEVICES to actors that ask for no GPU
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        msg = "--ray: the package ray is not installed; pip install 'abag[ray]'"
        raise RayUnavailable(msg) from error
    joined = ray.is_initialized()
    try:
        if not joined:
            ray.init(address or None, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        msg = f"--ray {address}: no cluster there ({reason}); start one with `ray start --head`"
        raise RayUnavailable(msg) from error
    # Ray prints what became of its workers, at the end too; stdout is for results
    with redirect_stdout(sys.stderr):
        try:
            yield "GPU" if _slots("GPU") else "CPU"
        finally:
            if not joined:
                ray.shutdown()


def encode_on(
    device: str, order: Order, parts: Iterator[SequencePart], *, sequences: int, tokens: int
) -> None:
    """Encode and commit sequences on the cluster that was joined.

    Parameters
    ----------
    device : {"GPU", "CPU"}
        What an actor takes one of.
    order : Order
    parts : iterator of Part
        What is missing in the store.
    sequences, tokens : int
        In `parts`.

    Raises
    ------
    AbagError
        What a worker refused.
    UnitFailed
    """
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    gpus, cpus = (1, 0) if device == "GPU" else (0, 1)
    remote: Any = ray.remote(max_restarts=-1, max_task_retries=TRIES, num_gpus=gpus, num_cpus=cpus)
    worker = remote(_Worker)
    layout = identify_for(order.name, order.kind, order.options).layout
    slots = _slots(device)
    spread = tokens // max(1, UNITS_A_SLOT * slots)
    units = _units(parts, layout, min(max(1, spread), UNIT_TOKENS[device]))
    busy: dict[Any, Any] = {}  # one unit an actor: the next is cut when one is committed
    idle: list[Any] = []
    notes: set[str] = set()
    bar = tqdm(total=sequences, unit="seq", desc=order.kind, disable=not order.options.progress)
    try:
        while True:
            slots = _slots(device)  # nodes come and go
            while idle or len(busy) < slots:
                unit = next(units, None)
                if unit is None:
                    break
                actor = idle.pop() if idle else worker.remote(order, device)
                busy[actor.encode.remote(unit)] = actor
            while idle:  # nothing left for it: a lost actor can restart in its place
                ray.kill(idle.pop())
            if not busy:
                return
            done, _ = ray.wait(list(busy), timeout=LOOK_SECONDS)
            bar.set_postfix_str(f"{len(busy)} of {slots} {device}s at work")
            for committed in done:
                idle.append(busy.pop(committed))
                sequences_of_unit, note = ray.get(committed)
                bar.update(sequences_of_unit)
                notes.add(note)
    except RayTaskError as error:
        if isinstance(error.cause, AbagError):
            raise error.cause from None
        raise
    except RayActorError as error:
        msg = (
            f"a unit of {order.kind} sequences: its actor died {TRIES + 1} times "
            f"({' '.join(str(error).split())[:200]}); what was committed is safe. Mend the cause "
            "and run the same command again."
        )
        raise UnitFailed(msg) from error
    finally:
        bar.close()
        for note in sorted(notes - {""}):
            print(f"note: {note}", file=sys.stderr)
        for actor in (*idle, *busy.values()):
            ray.kill(actor)


def _slots(device: str) -> int:
    import ray

    resources: Any = ray.cluster_resources  # untyped
    return int(resources().get(device, 0))


def _units(parts: Iterator[SequencePart], layout: Layout, most: int) -> Iterator[SequencePart]:
    """Cut parts into units of about `most` tokens, longest sequences first."""
    for part in parts:
        tokens = [sum(layout.piece_lengths(chains)) for chains in part.chains]
        order = longest_first(tokens)
        unit = (np.cumsum(np.array(tokens)[order]) - 1) // most
        for at in np.split(order, np.flatnonzero(np.diff(unit)) + 1):
            yield part.take(at)


class _Worker:
    """An actor: one device, one encoder, loaded with the first unit and kept."""

    def __init__(self, order: Order, device: str) -> None:
        self._order, self._device = order, device
        self._task: EncodeTask | None = None
        self._encoder: Encoder | None = None
        self._note = ""

    def encode(self, unit: SequencePart) -> tuple[int, str]:
        """Encode and commit a unit; returns its sequences, and what is to be said."""
        import ray

        if self._task is None or self._encoder is None:
            self._task = self._order.task("cuda" if self._device == "GPU" else "cpu")
            self._note = check_precision(self._task)
            self._encoder = loaded(self._task)
        left = unit
        if ray.get_runtime_context().was_current_actor_reconstructed:
            # the one that was lost may have committed a part of this unit
            left = unit.take(np.flatnonzero(self._task.folder.missing(unit.keys)))
        bar = Bar(self._task, len(left.chains), shown=False)
        encode_parts(self._task, self._encoder, [left], bar)
        return len(unit.chains), self._note
