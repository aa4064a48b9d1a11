"""File operations of a commit that fail, wait or kill: for tests of what survives."""

import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from abag.core import files
from abag.core.files import UnsafeFile, host_name

__all__ = [
    "UnsafeFile",
    "adapter_step",
    "before_operations",
    "change_encoders",
    "failing",
    "forbid_encoders",
    "host_name",
    "raising",
    "stop_after",
    "training_step",
]


def raising(error):
    """Return a function that raises, whatever it is given."""

    def call(*_arguments, **_options):
        raise error

    return call


@contextmanager
def before_operations(root, step):
    """Call `step(name)` before each file operation of abag on a path under `root`.

    The names are write, rename, sync and remove. A write also calls it between its halves and at
    its end.
    """

    def through(name, real):
        def call(path, *rest, **options):
            if not Path(path).is_relative_to(root):
                return real(path, *rest, **options)
            step(name)
            if name != "write":
                return real(path, *rest, **options)
            (content,) = rest
            half = len(content) // 2
            real(path, content[:half])
            step(name)
            with path.open("ab") as file:
                file.write(content[half:])
            return step(name)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name, owner, method in (
            ("write", Path, "write_bytes"),
            ("rename", Path, "replace"),
            ("remove", Path, "unlink"),
            ("sync", files, "sync_folder"),
        ):
            patch.setattr(owner, method, through(name, getattr(owner, method)))
        yield


@contextmanager
def failing(root, code, *, when=lambda _number: True, at=None):
    """Fail with an errno at operations under `root`: all, those of a name, or by their number.

    Yields a list to which the number of each operation is appended.
    """
    counted = []

    def step(name):
        counted.append(len(counted) + 1)
        if at in (None, name) and when(counted[-1]):
            raise OSError(code, os.strerror(code))

    with before_operations(root, step):
        yield counted


def change_encoders(patch, change):
    """Let ``change(encode, batch)`` return the vectors of the tokens of each batch of `embed`.

    `encode` is what it replaces: a function of the batch, of the encoder that was asked for.
    """
    _replace_loading(
        patch, lambda load, *asked, **options: partial(change, load(*asked, **options))
    )


def forbid_encoders(patch):
    """Fail the test if an encoder is loaded."""
    _replace_loading(patch, lambda *_asked, **_options: pytest.fail("an encoder was loaded"))


def _replace_loading(patch, load):
    from abag.embed import encode
    from abag.embed.encoders import loading

    replaced = partial(load, loading.load_encoder)
    for module in (loading, encode):
        patch.setattr(module, "load_encoder", replaced)


def training_step():
    """Return the class and the name of the method that does a step of the training of networks."""
    from abag.head.training.stack import TrainingStep

    return TrainingStep, "run"


def adapter_step():
    """Return the class and the name of the method that does a step of the training of adapters."""
    from abag.adapt.train import AdapterTraining

    return AdapterTraining, "_take_step"


def stop_after(monkeypatch, steps, step_of=training_step, error=KeyboardInterrupt):
    """Make training fail after some steps, as if it was killed: nothing is saved on the way out."""
    owner, name = step_of()
    real = getattr(owner, name)
    taken = []

    def step(self, *arguments):
        if len(taken) == steps:
            raise error
        taken.append(arguments)
        real(self, *arguments)

    monkeypatch.setattr(owner, name, step)
