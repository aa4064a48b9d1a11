"""Named tensors of a checkpoint, each checked for its shape, none overlooked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pickle import UnpicklingError  # only the name: what torch.load refuses with
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from abag.embed.weights.checkpoints import BadCheckpoint, EncoderCheckpoint

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from abag.core.device import DevicePlan


class EncoderWeights:
    """Take an encoder's tensors by name, straight to the device.

    A name that is missing, a shape that disagrees with config.json, and a tensor that nobody
    took or named as no part of the encoder are errors: a checkpoint that is not wholly
    understood would give vectors that are quietly wrong.
    """

    def __init__(self, checkpoint: EncoderCheckpoint, plan: DevicePlan) -> None:
        self.config: Mapping[str, Any] = checkpoint.config
        self._checkpoint = checkpoint
        self._plan = plan
        self._files = ExitStack()
        self._home: dict[str, Any] = {}
        self._left: set[str] = set()
        self._merged: list[str] = []

    def __enter__(self) -> EncoderWeights:
        for path in self._checkpoint.weights:
            try:
                self._open(path)
            except (SafetensorError, RuntimeError, UnpicklingError, EOFError) as error:
                first_line = (str(error).splitlines() or [type(error).__name__])[0]
                msg = f"{path}: cannot be read ({first_line}); the download may be incomplete"
                raise BadCheckpoint(msg) from error
        self._add_prefix()
        self._left = set(self._home)
        return self

    def _open(self, path: Path) -> None:
        if path.suffix == ".safetensors":
            file = self._files.enter_context(safe_open(path, framework="pt"))
            self._home |= {name: file.get_tensor for name in file.keys()}
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            self._home |= {name: tensors.__getitem__ for name in tensors}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.close()
        if error is None and self._checkpoint.adapter is not None:
            self._checkpoint.adapter.refuse_unmerged(self._merged)
        if error is None and self._left:
            shown = ", ".join(sorted(self._left)[:3])
            msg = (
                f"{self._checkpoint.folder}: {len(self._left)} weights are not part of a "
                f"{self._checkpoint.family} encoder as config.json describes it ({shown})"
            )
            raise BadCheckpoint(msg)

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Take one tensor, in the plan's type unless `dtype` says otherwise."""
        if name not in self._home:
            msg = (
                f"{self._checkpoint.folder}: weight {name} is missing; "
                "the download may be incomplete"
            )
            raise BadCheckpoint(msg)
        get, own_name = self._home[name], self._names.get(name, name)
        tensor: torch.Tensor = get(own_name)
        self._left.discard(name)
        if tuple(tensor.shape) != shape:
            msg = (
                f"{self._checkpoint.folder}: weight {name} has shape {tuple(tensor.shape)}, "
                f"config.json says {shape}"
            )
            raise BadCheckpoint(msg)
        if self._checkpoint.adapter is not None:
            in_module = name.removeprefix("esm.")
            tensor = self._checkpoint.adapter.merge(in_module, tensor)
            self._merged.append(in_module)
        return tensor.to(self._plan.device, dtype or self._plan.dtype)

    def ignore(self, *prefixes: str) -> None:
        """Name what a checkpoint may hold beside the encoder: task heads, a decoder."""
        self._left = {name for name in self._left if not name.startswith(prefixes)}

    def _add_prefix(self) -> None:
        """ESM checkpoints saved without a task head lack the prefix ``esm.``."""
        self._names: dict[str, str] = {}
        if self._checkpoint.family != "esm":
            return
        if any(name.startswith("esm.") for name in self._home):
            return
        self._names = {f"esm.{name}": name for name in self._home}
        self._home = {f"esm.{name}": get for name, get in self._home.items()}
