"""Messages and progress bars: the one channel from abag to the person who runs it.

Everything goes to stderr unless `reporting` says otherwise; results never pass through here.
Callers that only want silence, or want the lines for themselves, set the channel once at the
entry point, and no function in between has to hand it down.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from operator import length_hint
from typing import TYPE_CHECKING, Any

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
    whole: _Part | None = None
    """The part of the one bar of a command that other bars fill, if there is one."""
    spelled: Callable[[str], str] = str
    """Spells a message for its reader: Python has keyword arguments instead of flags."""


def _to_stderr(text: str) -> None:
    with suppress(OSError):  # a closed terminal must not stop the work
        # keeps a bar that is being drawn in one piece
        tqdm.write(printable(text), file=sys.stderr)


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
        return _Filling(channel.whole, **options)
    return _draw({"disable": not channel.bars} | options)


def _draw(options: dict[str, Any]) -> tqdm[Any]:
    options["desc"] = printable(options.get("desc") or "") or None
    known = options.get("total") is not None or options.get("iterable") is not None
    # a notebook's stderr is no terminal, but can draw over a line
    if sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel"):
        drawn = {"dynamic_ncols": True, "mininterval": BAR_INTERVAL_S, "leave": False}
        return tqdm(**(drawn | ({"bar_format": AS_BAR} if known else {}) | options))
    as_line = {
        "file": _Lines(), "leave": False, "delay": LINE_DELAY_S, "mininterval": LINE_INTERVAL_S,
        "bar_format": AS_LINE if known else AS_LINE_OF_UNKNOWN_LENGTH,
    }  # fmt: skip
    return tqdm(**(options | as_line))


class _Lines:
    """A file to which tqdm draws bars, and which makes them lines of stderr."""

    def write(self, drawn: str) -> None:
        if text := drawn.strip("\r\n "):
            _to_stderr(text)

    def flush(self) -> None:
        pass


class _Part:
    """A share of the bar of a command, which is filled from 0 to 1."""

    def __init__(self, drawn: tqdm[Any], share: float) -> None:
        self.drawn, self.share, self._done = drawn, share, 0.0

    def fill(self, done: float) -> None:
        """Fill the part up to `done`."""
        step = min(1.0, done) - self._done
        self._done += step
        # beyond its total, which rounding may reach, tqdm draws no bar
        self.drawn.update(min(step * self.share, 1.0 - self.drawn.n))


class _Stage(_Part):
    """The running stage of a command; the next one begins where it ends."""

    def __init__(self, drawn: tqdm[Any], title: str) -> None:
        super().__init__(drawn, 0.0)
        self._title, self._end = title, 0.0

    def begin(self, name: str, share: float) -> None:
        self.drawn.update(max(0.0, self._end - self.drawn.n))
        self._end += share
        self.share, self._done = share, 0.0
        self.drawn.set_description_str(f"{self._title}: {name}", refresh=False)


class _Filling:
    """A bar that is not drawn, but fills a `_Part`."""

    def __init__(
        self,
        part: _Part,
        *,
        iterable: Iterable[Any] = (),
        total: float | None = None,
        initial: float = 0,
        **_others: object,
    ) -> None:
        self._part, self._iterable, self.n = part, iterable, initial
        self._total = total or length_hint(iterable)

    def __enter__(self) -> _Filling:
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
            self._part.fill(self.n / self._total)


@contextmanager
def whole_bar(title: str) -> Iterator[None]:
    """Draw one bar for everything inside, if bars are wanted; `stage` names what it is at."""
    channel = _channel.get()
    if not channel.bars:
        yield
        return
    # smoothing 0: the time left follows from the average so far
    drawn = _draw({"desc": title, "total": 1.0, "smoothing": 0, "miniters": 0})
    with drawn, _set(replace(channel, whole=_Stage(drawn, title))):
        yield


def stage(name: str, share: float) -> None:
    """Begin a stage of the command, which takes about this share of its time."""
    whole = _channel.get().whole
    if isinstance(whole, _Stage):
        whole.begin(name, share)


@contextmanager
def part_of_stage(share: float) -> Iterator[None]:
    """Let the bars inside fill only a share of the stage; other threads may do the rest."""
    channel = _channel.get()
    if channel.whole is None:
        yield
        return
    part = _Part(channel.whole.drawn, share * channel.whole.share)
    with _set(replace(channel, whole=part)):
        yield
    part.fill(1.0)


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
    with _set(channel):
        yield


@contextmanager
def _set(channel: _Channel) -> Iterator[None]:
    token = _channel.set(channel)
    try:
        yield
    finally:
        _channel.reset(token)
