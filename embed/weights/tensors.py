"""Named tensors of a checkpoint: every shape is checked, and no tensor is overlooked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pickle import UnpicklingError  # the error of torch.load(weights_only=True)
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from abag.core.messages import first_line
from abag.embed.weights.checkpoints import BadCheckpoint, EncoderCheckpoint

if TYPE_CHECKING:
    from pathlib import Path

    from abag.core.device import DevicePlan


class EncoderWeights:
    """Reads an encoder's tensors by name, straight to the device, with its adapter merged.

    A context manager that accounts for every tensor: one that was neither read nor ignored is an
    error at exit, because a checkpoint that is only partly understood gives wrong vectors.

    Every name starts with `prefix`; a checkpoint that was saved without a task head lacks it.

    Raises
    ------
    BadCheckpoint
        A file that cannot be read, on entry; unknown tensors, at exit.
    AdapterMismatch
        At exit, an adapter with changes that match no tensor.
    """

    def __init__(
        self, checkpoint: EncoderCheckpoint, plan: DevicePlan, *, prefix: str = ""
    ) -> None:
        self.config: Mapping[str, Any] = checkpoint.config
        self._checkpoint, self._plan, self._prefix = checkpoint, plan, prefix
        self._files = ExitStack()
        self._readers: dict[str, Callable[[], torch.Tensor]] = {}
        self._unread: set[str] = set()
        self._merged: list[str] = []

    def __enter__(self) -> EncoderWeights:
        for path in self._checkpoint.weights:
            try:
                self._open(path)
            except (SafetensorError, RuntimeError, UnpicklingError, EOFError) as error:
                msg = (
                    f"{path}: cannot be read ({first_line(error)}); the download may be incomplete"
                )
                raise BadCheckpoint(msg) from error
        if not any(name.startswith(self._prefix) for name in self._readers):
            self._readers = {self._prefix + name: read for name, read in self._readers.items()}
        self._unread = set(self._readers)
        return self

    def _open(self, path: Path) -> None:
        if path.suffix == ".safetensors":
            file = self._files.enter_context(safe_open(path, framework="pt"))
            self._readers |= {name: partial(file.get_tensor, name) for name in file.keys()}
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            self._readers |= {name: partial(tensors.get, name) for name in tensors}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._files.close()
        if kind is not None:
            return
        if self._checkpoint.adapter is not None:
            self._checkpoint.adapter.check_all_merged(self._merged)
        if self._unread:
            shown = ", ".join(sorted(self._unread)[:3])
            msg = (
                f"{self._checkpoint.folder}: {len(self._unread)} weights are not part of a "
                f"{self._checkpoint.family} encoder as config.json describes it ({shown})"
            )
            raise BadCheckpoint(msg)

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Read one tensor of the given shape, in `dtype` or else in the plan's type.

        Raises
        ------
        BadCheckpoint
            A tensor that is missing or has another shape.
        """
        if name not in self._readers:
            folder = self._checkpoint.folder
            msg = f"{folder}: weight {name} is missing; the download may be incomplete"
            raise BadCheckpoint(msg)
        tensor = self._readers[name]()
        self._unread.discard(name)
        if tuple(tensor.shape) != shape:
            msg = (
                f"{self._checkpoint.folder}: weight {name} has shape {tuple(tensor.shape)}, "
                f"config.json says {shape}"
            )
            raise BadCheckpoint(msg)
        if self._checkpoint.adapter is not None:
            bare_name = name.removeprefix(self._prefix)
            tensor = self._checkpoint.adapter.merge(bare_name, tensor)
            self._merged.append(bare_name)
        return tensor.to(self._plan.device, dtype or self._plan.dtype)

    def ignore(self, *prefixes: str) -> None:
        """Allow tensors that are not part of the encoder, such as task heads or a decoder."""
        self._unread = {name for name in self._unread if not name.startswith(prefixes)}
