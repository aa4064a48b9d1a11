"""Errors that a user can fix.

Every message is one line: where the problem is, what is wrong, with its value, what was expected,
and what to do. All classes are public as ``abag.NAME``. Those of invalid values are also
`ValueError`, as scikit-learn and other libraries expect. A module derives a class of its own from
one of them only where code has to catch it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
"""How messages name an option. The command line shows it as it is; `python_surface` spells it as a
keyword argument."""


class AbagError(Exception):
    """Base of all errors that the user can fix.

    The message says where the problem is, what is wrong, what was expected and what to do.

    Attributes
    ----------
    options : tuple of str
        The options that the message names, in their order, as the message spells them: keyword
        arguments in Python (``lr``), flags for the command line (``--lr``).
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.options: tuple[str, ...] = tuple(dict.fromkeys(FLAG.findall(str(self))))


class OptionError(AbagError, ValueError):
    """An option is unknown, its value is invalid, or options contradict each other."""


class MissingPackage(AbagError):
    """An optional package is not installed, or not in a version that is supported."""


class DeviceError(AbagError):
    """A device lacks the memory, the precision or the kernel asked for, or is not there."""


class HubError(AbagError):
    """The hub cannot be reached, refuses, or lists what a hub does not."""


class TableError(AbagError, ValueError):
    """A table cannot be read or written, has no rows, or its cells contradict each other."""


class ColumnError(TableError):
    """A column is missing, several could play a role, or values are not of the kind expected."""


class SequenceError(AbagError, ValueError):
    """A sequence, name or mutation is invalid, or a chain is too long for an encoder."""


class LabelError(AbagError, ValueError):
    """A label is invalid, its unit is not known, or nothing can be learned from the labels."""


class EncoderError(AbagError):
    """An encoder, checkpoint or adapter is missing, damaged, unsuitable, or returns NaN."""


class StoreError(AbagError):
    """A path is not a store, cannot be reached, or holds other vectors than those expected."""


class MissingVectors(StoreError):
    """A store has no vector for some sequences.

    Attributes
    ----------
    rows : ndarray of int64, shape=(M,), or None
        Which of the keys asked for are missing, where keys were asked for.
    """

    def __init__(self, message: str, rows: NDArray[np.int64] | None = None) -> None:
        super().__init__(message)
        self.rows = rows


class DamagedFile(AbagError):
    """A file of a store, run, checkpoint or predictor is not what was written."""


class OutputError(AbagError):
    """A file or folder cannot be written: it exists, is in use, or its disk is full."""


class SplitError(AbagError, ValueError):
    """A table cannot be split as requested, or a split would leak."""


class RunError(AbagError):
    """A run, sweep or campaign is not finished, or belongs to other settings or another table."""


class PredictionError(AbagError):
    """Pairs cannot be scored or ranked, or predictions are not valid."""


class TrainingError(AbagError):
    """Training diverged or was stopped; its checkpoints are whole."""


class WorkerError(AbagError):
    """A process of `abag embed` failed repeatedly, or its launcher's settings do not fit."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the memory of this machine or of its device ran out."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # torch is not imported for this
    # on a CPU and on an Apple GPU torch raises a plain RuntimeError
    texts = ("can't allocate memory", "MPS backend out of memory")
    return not kinds.isdisjoint(("MemoryError", "OutOfMemoryError")) or any(
        text in str(error) for text in texts
    )
