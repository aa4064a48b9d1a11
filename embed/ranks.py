"""Which rank of a job encodes which sequences, and how one rank per device is started.

Ranks never communicate. Each computes the same owner for every sequence from the table alone, and
encodes the sequences that it owns and the store lacks. The results meet in the store. torch is
imported where it is used: a job that finds nothing missing does without it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from abag import AbagError

MAX_RESTARTS = 10
"""Restarts of all ranks together before the job fails."""

_NO_RUN_ID = "none"
"""What torchrun sets without ``--rdzv-id``, for every job."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

Devices = int | Literal["all"]


class RankFailed(AbagError):
    """A rank that failed again and again."""


class WrongRank(AbagError):
    """Launcher settings that contradict each other or the options."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job."""

    number: int = 0
    world: int = 1
    """Number of ranks."""
    local: int = 0
    """Index of this rank on its machine."""
    job: str = ""
    """Identifies the job: the same in all of its ranks, different in the next job; or empty."""

    def __str__(self) -> str:
        return f"rank {self.number} of {self.world}"

    def owns(self, keys: NDArray[np.uint8], tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Select the sequences that this rank encodes, shape (N,), dtype bool; see `owners`."""
        return np.equal(owners(keys, tokens, self.world, self.job), self.number)

    def device(self, asked: str) -> str:
        """Name the device of this rank: a GPU of its own, if GPUs are used.

        Raises
        ------
        WrongRank, DeviceUnavailable
            One device was named for several ranks, or the machine has fewer GPUs than ranks.
        """
        if self.world == 1 or asked == "cpu":
            return asked
        import torch

        from abag.core.device import DeviceUnavailable

        if not torch.cuda.is_available():
            return asked
        if asked not in ("auto", "cuda"):
            msg = f"--device {asked}: all {self.world} ranks would share it; give auto or cuda"
            raise WrongRank(msg)
        seen = torch.cuda.device_count()
        if seen > 1 and self.local >= seen:
            found = f"local rank {self.local}, but the machine has {seen} GPUs"
            msg = f"{self}: {found}; start one per GPU"
            raise DeviceUnavailable(msg)
        return f"cuda:{self.local % seen}"  # a launcher may show each rank one GPU only


def rank_here(environment: Mapping[str, str] = os.environ) -> Rank:
    """Read this process's rank from the variables of torchrun or srun; or raise `WrongRank`."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        job = environment.get("TORCHELASTIC_RUN_ID", "")
        job = "" if job == _NO_RUN_ID else job
    elif "SLURM_PROCID" in environment and not _is_batch_script(environment):
        tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
        names = ("SLURM_PROCID", tasks, "SLURM_LOCALID")
        ids = ("SLURM_JOB_ID", "SLURM_STEP_ID")
        job = ".".join(environment[name] for name in ids if name in environment)
    else:
        return Rank()
    try:
        number, world, local = (int(environment.get(name, default)) for name, default in
                                zip(names, ("", "1", "0"), strict=True))  # fmt: skip
    except ValueError:
        number, world, local = -1, 0, 0
    if not 0 <= number < world or local < 0:
        given = ", ".join(f"{name}={environment.get(name)}" for name in names)
        msg = f"environment: {given}; expected a rank below the number of ranks. Unset them."
        raise WrongRank(msg)
    return Rank(number, world, local, job)


def _is_batch_script(environment: Mapping[str, str]) -> bool:
    """Tell a batch script from a task that srun started: both have SLURM_PROCID=0."""
    return "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment


def owners(
    keys: NDArray[np.uint8], tokens: NDArray[np.int64], world: int, job: str = ""
) -> NDArray[np.int64]:
    """Assign sequences to ranks so that all ranks get about the same number of tokens.

    Sequences are sorted by tokens, and each group of `world` neighbours is spread over all ranks in
    a random order that depends on the keys and the job. The ranks' totals then differ by at most
    the tokens of the longest sequence. Since the order changes from job to job, what an interrupted
    job left over is balanced too.

    Parameters
    ----------
    keys : ndarray, shape=(N, 16), dtype=uint8
        Sorted, without duplicates; the same in every rank.
    tokens : ndarray, shape=(N,), dtype=int64

    Returns
    -------
    ndarray, shape=(N,), dtype=int64
        Rank of each sequence, 0 to ``world - 1``.
    """
    seed = hashlib.blake2b(job.encode() + keys[:1].tobytes(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    place = np.arange(len(keys))
    order = np.lexsort((rng.random(len(keys)), -tokens))
    order = order[np.lexsort((rng.random(len(keys)), place // world))]
    owner = np.empty(len(keys), np.int64)
    # a random first rank, or the remainder would always go to rank 0
    owner[order] = (place + rng.integers(world)) % world
    return owner


def count_devices(devices: Devices, device: str) -> int:
    """Turn ``--devices`` into a number of ranks; too few GPUs raise `DeviceUnavailable`."""
    import torch

    from abag.core.device import DeviceUnavailable

    on_gpu = device != "cpu" and torch.cuda.is_available()
    seen = torch.cuda.device_count() if on_gpu else 0
    if devices == "all":
        if not seen:
            msg = "--devices all: no GPU found; give a number of processes and --device cpu"
            raise DeviceUnavailable(msg)
        return seen
    if devices < 1:
        msg = f"--devices {devices}: expected 1 or more, or all"
        raise DeviceUnavailable(msg)
    if on_gpu and devices > seen:
        msg = f"--devices {devices}: this machine has {seen} GPUs; give {seen} or fewer, or all"
        raise DeviceUnavailable(msg)
    return devices


def launch(ranks: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:  # noqa: ANN401
    """Run a function in `ranks` processes on this machine, under torch's elastic launcher.

    When a rank dies, the others stop after committing their work, and all are started again.

    `work` is importable by name, its arguments are picklable, and it raises `AbagError` for errors
    that a retry cannot fix. Returns its results by rank.

    Raises
    ------
    AbagError
        The first one that a rank raised.
    RankFailed
        After `MAX_RESTARTS` restarts.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    stopped: signal.Signals | None = None
    with tempfile.TemporaryDirectory(prefix="abag-ranks-") as logs:
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=ranks, run_id=uuid.uuid4().hex,
            rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost",
            max_restarts=MAX_RESTARTS, monitor_interval=0.5,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )  # fmt: skip
        try:
            results = elastic_launch(config, _in_rank)(work, ranks, arguments)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            reason = " ".join(str(failure.message).split())
            msg = (
                f"rank {rank} of {ranks} failed {MAX_RESTARTS + 1} times, last with {reason}. "
                "Everything committed is safe: fix the cause and run the same command again."
            )
            raise RankFailed(msg) from error
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
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    try:
        return work(*arguments)
    except AbagError as error:
        return error
