"""Builds encoders from names and shapes alone: a check of checkpoints that reads no weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_RUN = ("__get__", "__len__", "to")
"""Functions that read the properties of a tensor, or move it to the meta device."""


class SkippedArithmetic(TorchFunctionMode):
    """In this context, an operation on tensors of the meta device returns the first of them.

    torch would find the shape of the result, but imports its compiler for this, which takes 2 s.
    The shapes of the weights are checked where they are read, before any operation.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - of any function of torch
        """Skip a function of torch, or call it."""
        if func.__name__ not in _RUN and (first := next(_on_meta(args), None)) is not None:
            return first
        return func(*args, **(kwargs or {}))


def _on_meta(args: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors of the meta device in arguments and in lists of them."""
    for one in args:
        if isinstance(one, list | tuple):
            yield from _on_meta(one)
        elif isinstance(one, torch.Tensor) and one.is_meta:
            yield one
