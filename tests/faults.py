"""File operations of a commit that fail, wait or kill: for tests of what survives."""

import errno
import fcntl
import io
import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from safetensors import SafetensorError

from abag.core import files
from abag.core.files import UnsafeFile, host_name

__all__ = [
    "UnsafeFile",
    "adapter_step",
    "at_loss",
    "before_lock",
    "before_operations",
    "change_encoders",
    "denying",
    "failing",
    "fill_disk_for_tensors",
    "forbid_encoders",
    "host_name",
    "left_by_the_dead",
    "locked",
    "raising",
    "stop_after",
    "training_step",
]


def raising(error):
    """Return a function that raises, whatever it is given."""

    def call(*_arguments, **_options):
        raise error

    return call


def denying(patch, root, *, only_writing=False):
    """Let abag read or write nothing at or below `root`, which root may do whatever its mode is."""

    def through(real, name):
        def call(path, *rest, **options):
            if isinstance(path, str | Path) and Path(path).is_relative_to(root):
                if name == "access":
                    return only_writing and not rest[0] & os.W_OK
                if not only_writing:
                    raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path, *rest, **options)

        return call

    names = (os, "access"), (os, "open"), (os, "scandir"), (os, "listdir"), (io, "open")
    for owner, name in names:
        patch.setattr(owner, name, through(getattr(owner, name), name))


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

    def changed(encode, batch, _layer_pooling=None):
        return change(encode, batch)

    _replace_loading(
        patch, lambda load, *asked, **options: partial(changed, load(*asked, **options))
    )


def forbid_encoders(patch):
    """Fail the test if an encoder is loaded."""
    _replace_loading(patch, lambda *_asked, **_options: pytest.fail("an encoder was loaded"))


def _replace_loading(patch, load):
    from abag.embed.encoders import loading

    patch.setattr(loading, "load_encoder", partial(load, loading.load_encoder))


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


def left_by_the_dead(folder, stem):
    """Return the path of a partial file that a killed process of this host has left."""
    return folder / f"{stem}.0123.{files.host_name()}.999999999.partial"


@contextmanager
def locked(folder):
    """Hold a folder as another process does that writes into it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def before_lock(monkeypatch, action):
    """Call `action()` once, when a process is about to lock a folder to write into it."""
    real = fcntl.flock

    def first(*arguments):
        monkeypatch.setattr(fcntl, "flock", real)
        action()
        return real(*arguments)

    monkeypatch.setattr(fcntl, "flock", first)


def fill_disk_for_tensors(monkeypatch, library):
    """Let the disk be full when safetensors writes for `library`: "torch" or "numpy"."""

    def write_half(_tensors, path, metadata=None):
        Path(path).write_bytes(b"half")
        msg = "No space left on device"
        raise SafetensorError(msg)

    monkeypatch.setattr(f"safetensors.{library}.serialize_file", write_half)


def at_loss(monkeypatch, number, change):
    """Change the loss of a batch, counted from 1 over a training, by a function of the loss."""
    from abag.head.models.network import LOSSES

    counted = []

    def mse(predicted):
        counted.append(1)
        loss = real(predicted)
        return change(loss) if len(counted) == number else loss

    real = LOSSES["mse"]
    monkeypatch.setitem(LOSSES, "mse", mse)
