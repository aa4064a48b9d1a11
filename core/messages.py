"""Messages and progress bars: the one channel from abag to the person who runs it.

Everything goes to stderr unless `reporting` says otherwise; results never pass through here.
Callers that only want silence, or want the lines for themselves, set the channel once at the
entry point, and no function in between has to hand it down.
"""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from operator import length_hint
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

BAR_INTERVAL_S = 0.5
LINE_INTERVAL_S = 30.0
"""Time between two lines of progress where stderr is not a terminal."""
LINE_DELAY_S = 1.0
"""Shorter work is not worth a line."""
AS_BAR = "{desc} {percentage:3.0f}% |{bar}| {elapsed}, {remaining} left{postfix}"
AS_LINE = "{desc} {percentage:3.0f}%, {elapsed}, {remaining} left{postfix}"
AS_LINE_OF_UNKNOWN_LENGTH = "{desc} {n_fmt}{unit}, {elapsed}{postfix}"


@dataclass(frozen=True, slots=True)
class _Channel:
    send: Callable[[str], None]
    bars: bool = False
    silent: bool = False
    details: bool = True
    whole: _WholeBar | _PartOfStage | None = None
    """The bar that stands for all others, if there is one."""
    spelled: Callable[[str], str] = str
    """Spells a message for its reader: Python has keyword arguments instead of flags."""


def _to_stderr(text: str) -> None:
    with suppress(OSError):  # a closed terminal must not stop the work
        # keeps a bar that is being drawn in one piece
        tqdm.write(wrapped(printable(text), sys.stderr), file=sys.stderr)


_STDERR = _Channel(_to_stderr)
_channel: ContextVar[_Channel] = ContextVar("abag messages", default=_STDERR)


def say(text: str) -> None:
    """Send one message, a line without its newline."""
    channel = _channel.get()
    if not channel.silent:
        channel.send(channel.spelled(text))


def detail(text: str) -> None:
    """Send one message that a terminal shows only with ``--verbose``."""
    if _channel.get().details:
        say(text)


def note(text: str) -> None:
    """Send one message that must not get lost, also where other messages are silenced."""
    channel = _channel.get()
    channel.send(channel.spelled(f"note: {text}"))


def counted(number: int, noun: str) -> str:
    """Write a number and a noun: ``1 antigen``, ``2,000 antibodies``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def printable(text: str) -> str:
    """Escape what a terminal would obey or cannot show: names in files may be chosen by others."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def wrapped(text: str, stream: TextIO) -> str:
    """Wrap prose at words if the stream is a terminal; lines of tables stay as they are."""
    columns = _columns(stream)
    if columns is None:
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        is_table = "  " in line.strip()
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += [line] if is_table or len(line) <= columns else _wrap(line, columns, indent)
    return "\n".join(lines)


def beside(label: str, text: str, stream: TextIO) -> str:
    """Put text to the right of a label; on a terminal, it is wrapped in a column of its own."""
    columns = _columns(stream)
    if columns is None or columns < 2 * len(label):
        return label + text
    return "\n".join(_wrap(label + text, columns, " " * len(label)))


def _columns(stream: TextIO) -> int | None:
    """Return the width of a terminal; None if the stream is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None


def _wrap(line: str, columns: int, indent: str) -> list[str]:
    return textwrap.wrap(
        line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, shortened to 300 characters."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 300 else line[:300] + " ..."


def size_text(size: float) -> str:
    """Write a number of bytes in GB or MB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


def align(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Format a table as lines; with `numbers`, all columns but the first are right-justified."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if numbers and at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def bar(**options: Any) -> Any:  # noqa: ANN401 - tqdm's own options; a bar that acts like tqdm's
    """Make a tqdm progress bar on stderr; it draws nothing where bars are not wanted.

    Inside `whole_bar` it advances that one instead. Where stderr is not a terminal, it is a line
    every `LINE_INTERVAL_S`.
    """
    channel = _channel.get()
    if channel.whole is not None:
        return _PartOfWhole(channel.whole, **options)
    return _draw({"disable": not channel.bars} | options)


def _draw(options: dict[str, Any]) -> tqdm[Any]:
    options["desc"] = printable(options.get("desc") or "") or None
    known = options.get("total") is not None or options.get("iterable") is not None
    if _draws_over_lines():
        drawn = {"dynamic_ncols": True, "mininterval": BAR_INTERVAL_S, "leave": False}
        return tqdm(**(drawn | ({"bar_format": AS_BAR} if known else {}) | options))
    as_line = {
        "file": _Lines(), "leave": False, "delay": LINE_DELAY_S, "mininterval": LINE_INTERVAL_S,
        "bar_format": AS_LINE if known else AS_LINE_OF_UNKNOWN_LENGTH,
    }  # fmt: skip
    return tqdm(**(options | as_line))


def _draws_over_lines() -> bool:
    """Whether stderr is a terminal, or a notebook's, which is none but can draw over a line."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")


class _Lines:
    """A file to which tqdm draws bars, and which makes them lines of stderr."""

    def write(self, drawn: str) -> None:
        if text := drawn.strip("\r\n "):
            _to_stderr(text)

    def flush(self) -> None:
        pass


class _WholeBar:
    """One bar over the stages of a command; its length is 1."""

    def __init__(self, title: str) -> None:
        # smoothing 0: the time left follows from the average so far. miniters 0: float steps
        drawn = {"total": 1.0, "smoothing": 0, "miniters": 0}
        self.drawn = _draw({"desc": title, **drawn})
        self.title, self._start, self._share, self._done = title, 0.0, 0.0, 0.0
        self._lock = threading.Lock()

    def begin(self, stage: str, share: float) -> None:
        """Begin a stage that takes a share of the time."""
        self.advance(1.0)
        self._start, self._share, self._done = self._start + self._share, share, 0.0
        self.drawn.set_description_str(f"{self.title}: {stage}", refresh=False)

    def advance(self, done: float) -> None:
        """Move to a share of the stage."""
        self._done = done
        to = min(1.0, self._start + self._share * min(1.0, done))
        self.drawn.update(max(0.0, to - self.drawn.n))

    def add(self, done: float) -> None:
        """Move by a share of the stage; any thread may."""
        with self._lock:
            self.advance(self._done + done)


class _PartOfStage:
    """A part of a stage of a `_WholeBar`, see `part_of_stage`."""

    def __init__(self, whole: _WholeBar | _PartOfStage, share: float) -> None:
        self._whole, self._share, self._done = whole, share, 0.0

    def begin(self, stage: str, share: float) -> None:
        """Do nothing: a part has no stages."""

    def advance(self, done: float) -> None:
        """Move to a share of the part."""
        self.add(min(1.0, done) - self._done)

    def add(self, done: float) -> None:
        """Move by a share of the part."""
        self._done += done
        self._whole.add(self._share * done)


class _PartOfWhole:
    """A bar that is not drawn, but advances the stage of a `_WholeBar`."""

    def __init__(
        self,
        whole: _WholeBar | _PartOfStage,
        *,
        iterable: Iterable[Any] = (),
        total: float | None = None,
        initial: float = 0,
        **_others: object,
    ) -> None:
        self._whole, self._iterable, self.n = whole, iterable, initial
        self._total = total or length_hint(iterable)

    def __enter__(self) -> _PartOfWhole:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        for one in self._iterable:
            yield one
            self.update()

    def update(self, n: float = 1) -> None:
        self.n += n
        if self._total:
            self._whole.advance(self.n / self._total)


@contextmanager
def whole_bar(title: str) -> Iterator[None]:
    """Draw one bar for everything inside, if bars are wanted; `stage` names what it is at."""
    if not _channel.get().bars:
        yield
        return
    whole = _WholeBar(title)
    token = _channel.set(replace(_channel.get(), whole=whole))
    try:
        yield
    finally:
        _channel.reset(token)
        whole.drawn.close()


def stage(name: str, share: float) -> None:
    """Begin a stage of the command, which takes about this share of its time."""
    whole = _channel.get().whole
    if whole is not None:
        whole.begin(name, share)


@contextmanager
def part_of_stage(share: float) -> Iterator[None]:
    """Let the bars inside advance only a share of the stage; other threads may do the rest."""
    channel = _channel.get()
    if channel.whole is None:
        yield
        return
    part = _PartOfStage(channel.whole, share)
    token = _channel.set(replace(channel, whole=part))
    try:
        yield
        part.advance(1.0)
    finally:
        _channel.reset(token)


@contextmanager
def reporting(
    to: Callable[[str], None] | None = None,
    *,
    bars: bool | None = None,
    silent: bool = False,
    details: bool | None = None,
    spelled: Callable[[str], str] | None = None,
) -> Iterator[None]:
    """Choose where messages go and whether bars are drawn, for the code inside the block.

    None leaves each as it was. With `silent`, messages are discarded, but not notes. `spelled`
    changes each message before it is sent.
    """
    before = _channel.get()
    channel = _Channel(
        to or before.send,
        before.bars if bars is None else bars,
        silent,
        before.details if details is None else details,
        before.whole if bars is None else None,
        spelled or before.spelled,
    )
    token = _channel.set(channel)
    try:
        yield
    finally:
        _channel.reset(token)
