"""Writes a table in chunks; the file appears under its name only when it is whole."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self, cast

import pandas as pd

from abag.core.files import replacing
from abag.embed.sequences.columns import quote_names
from abag.embed.sequences.formats import FORMATS, BadTable, WriteFrame, bare_suffix, is_gzip


class TableWriter:
    """Writes frames with the same columns one below the other; a context manager.

    Parameters
    ----------
    path : Path
        Its suffix decides on the format. An existing file is replaced at the end of the block,
        unless the block raises.

    Raises
    ------
    BadTable
        The format is not supported, the file cannot be written, or the columns change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open_writer = check_writable(path)
        self._files = ExitStack()
        self._columns: list[object] | None = None

    def __enter__(self) -> Self:
        with self._explaining(), ExitStack() as files:
            raw = files.enter_context(files.enter_context(replacing(self._path)).open("wb"))
            file: IO[bytes] = raw
            if is_gzip(self._path):  # without name and time: the same rows give the same bytes
                zipped = gzip.GzipFile("", "wb", 6, raw, mtime=0)
                file = cast("IO[bytes]", files.enter_context(zipped))
            self._append = files.enter_context(self._open_writer(file))
            self._files = files.pop_all()
        return self

    def write(self, frame: pd.DataFrame) -> None:
        """Append rows.

        Raises
        ------
        BadTable
            If the columns change, or the file cannot be written.
        """
        if frame.empty:
            return
        names = [*frame.columns]
        if self._columns not in (None, names):
            msg = (
                f"{self._path}: rows with the columns {quote_names(names)} follow rows with "
                f"{quote_names(self._columns or [])}; expected the same columns in every file of "
                "the table. Predict these files one by one."
            )
            raise BadTable(msg)
        self._columns = names
        with self._explaining():
            self._append(frame)

    def __exit__(self, *raised: Any) -> None:  # noqa: ANN401 - as of any context manager
        with self._explaining():
            self._files.__exit__(*raised)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            fix = "Free disk space or choose another --out, and run the command again."
            msg = f"{self._path}: cannot be written ({error}). {fix}"
            raise BadTable(msg) from error


def check_writable(path: Path) -> Callable[[IO[bytes]], AbstractContextManager[WriteFrame]]:
    """Return what opens a writer of a file's format; raise `BadTable` if there is none."""
    form = FORMATS.get(suffix := bare_suffix(path))
    if form is None or form.open_writer is None:
        problem = f"{suffix} files are only read" if form else "not a supported table format"
        known = ", ".join(name for name, found in FORMATS.items() if found.open_writer)
        msg = f"{path}: {problem}; expected a name that ends in {known}, also with .gz. Rename it."
        raise BadTable(msg)
    return form.open_writer
