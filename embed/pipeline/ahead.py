"""What encoding needs and a table does not decide, done while the table is still being read.

On a cold machine torch, the start of CUDA, the digests of the weights, loading them and compiling
kernels take longer than reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Self, TypeVar

from abag import AbagError
from abag.core.garbage import freeze_imports
from abag.embed.encoders.checkpoint_lookup import find_checkpoint
from abag.embed.encoders.loading import Identity
from abag.embed.families.family import Encoder
from abag.embed.packing.tokens import Layout
from abag.embed.pipeline.options import EmbedOptions
from abag.embed.pipeline.task import identify_for, load_for, plan_for
from abag.embed.sequences.chains import STANDARD_RESIDUES, Chains, Kind
from abag.embed.sequences.formats import suffix_of
from abag.embed.sequences.pairs import read_pair_chunks
from abag.embed.sequences.tables import TableLike
from abag.embed.weights.digest import weights_digest

if TYPE_CHECKING:
    import torch

    from abag.core.device import DevicePlan

T = TypeVar("T")

LOADED_ON = ("cuda",)
"""Types of devices onto which encoders are loaded ahead: reading keeps a CPU busy."""
ROOM_BYTES = 24 << 30
"""Free memory of a GPU with which an encoder is loaded while another one runs."""
TOP_ROWS = 1000
_READ_FROM_THE_TOP = (".csv", ".parquet")
"""Of the others, which may be small or have an antibody's chains far apart, all is read at once."""
_EXAMPLES: dict[Kind, list[Chains]] = {
    "antibody": [(STANDARD_RESIDUES * 6, STANDARD_RESIDUES * 5)] * 20,
    "antigen": [(STANDARD_RESIDUES * 15,)] * 15,
}
"""Over 4,096 tokens: with fewer, GPUs multiply matrices in other ways."""


class Ahead:
    """Imports torch; hashes weights, starts a GPU and loads encoders in threads; a context manager.

    Nothing is downloaded. Errors in threads are left to the code that needs the result, and leaving
    the context ends the threads soon.
    """

    def __init__(
        self, encoders: Mapping[Kind, str], options: EmbedOptions, *, device: str | None
    ) -> None:
        """`device` may be ``"auto"``, for the GPU if there is one; None: nothing is loaded."""
        self._encoders, self._options, self._device = encoders, options, device
        self._stopped = Event()
        self._hashing, self._gpu = (ThreadPoolExecutor(1, name) for name in ("hashing", "gpu"))
        self._prepared: list[Future[Identity] | Future[None]] = []
        self._loaded: dict[Kind, Future[tuple[Identity, Encoder] | None]] = {}

    def start(self) -> None:
        """Import torch and start the rest, unless it has been started.

        The import is waited for: like reading it needs the interpreter lock most of the time, and
        what follows it takes longer than reading.
        """
        if self._prepared:
            return
        import torch  # noqa: F401 - its errors are raised here: a second import gives another one

        freeze_imports()
        identified = {
            kind: _submit(self._hashing, self._identify, kind, name)
            for kind, name in self._encoders.items()
        }
        self._prepared = [*identified.values(), _submit(self._gpu, self._start_gpu)]
        for kind in self._encoders if self._device is not None else ():
            self._loaded[kind] = _submit(self._gpu, self._load, identified[kind])

    def wait(self) -> None:
        """Wait for all but the encoders: two threads must not import or compute the same."""
        for future in self._prepared:
            future.exception()

    def encoder(self, identity: Identity) -> Encoder | None:
        """Hand over an encoder that was loaded or is being loaded, at most once."""
        loading = self._loaded.pop(identity.layout.kind, None)
        if loading is None or loading.exception() is not None:
            return None
        loaded = loading.result()
        return loaded[1] if loaded and loaded[0].fingerprint == identity.fingerprint else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for threads in (self._hashing, self._gpu):
            threads.shutdown(cancel_futures=True)

    def _identify(self, kind: Kind, name: str) -> Identity:
        weights_digest(find_checkpoint(name, download=False), self._stopped)
        return identify_for(name, kind, self._options)

    def _start_gpu(self) -> None:
        """Start CUDA, and compile the Triton kernel that is tried first."""
        from abag.core.device import resolve_device

        if self._device is None or (device := resolve_device(self._device)).type == "cpu":
            return
        import abag.embed.pipeline.encode  # noqa: F401 - before two threads need it

        if self._options.precision != "fp32":
            from abag.embed.kernels.attention import triton_problem

            triton_problem(device)

    def _load(self, identified: Future[Identity]) -> tuple[Identity, Encoder] | None:
        """Load an encoder and run it."""
        identity, options = identified.result(), self._options
        plan = plan_for(identity, self._device or "cpu", options)
        if plan.device.type not in LOADED_ON or self._stopped.is_set():
            return None
        if identity.layout.kind != next(iter(self._encoders)) and not _has_room(plan.device):
            return None  # it is loaded when the first encoder is gone
        encoder = load_for(identity, plan, options)
        with suppress(Exception):  # what fails here will fail, or be handled, where it matters
            self._run_once(encoder, identity.layout, plan)
        return identity, encoder

    def _run_once(self, encoder: Encoder, layout: Layout, plan: DevicePlan) -> None:
        """Encode a few sequences, which compiles kernels and starts the libraries of the GPU."""
        from abag.embed.pipeline.encode import STORED
        from abag.embed.pipeline.stream import encode_stream

        examples, dtype = _EXAMPLES[layout.kind], STORED[self._options.store_dtype]
        budget = self._options.batch_tokens or 1 << 13
        for _ in encode_stream(encoder, layout, examples, plan, budget, dtype):
            pass


def begins_well(table: TableLike, options: EmbedOptions) -> bool:
    """Tell whether the first rows of a table are valid, if they can be read alone.

    It takes milliseconds. A table that is refused should not have to wait for torch.
    """
    top = replace(options, limit=min(TOP_ROWS, options.limit or TOP_ROWS))
    try:
        if isinstance(table, Path | str) and not Path(table).is_dir():
            if suffix_of(Path(table)) not in _READ_FROM_THE_TOP:
                return False
        chunks = read_pair_chunks(table, top, kinds=options.kinds, only_sequences=True)
        return next(chunks, None) is not None
    except AbagError:
        return False


def _has_room(device: torch.device) -> bool:
    import torch

    return device.type == "cpu" or torch.cuda.mem_get_info(device)[0] >= ROOM_BYTES


def _submit(threads: ThreadPoolExecutor, function: Callable[..., T], *args: object) -> Future[T]:
    """Call in a thread whose messages go where this thread's go."""
    return threads.submit(lambda context: context.run(function, *args), copy_context())
