"""Messages and progress bars: the one channel from abag to the person who runs it.

Everything goes to stderr unless `reporting` says otherwise; results never pass through here.
Callers that only want silence, or want the lines for themselves, set the channel once at the
entry point, and no function in between has to hand it down.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from shutil import get_terminal_size
from textwrap import TextWrapper
from typing import Any, NamedTuple, Self, TextIO

BAR_INTERVAL_S = 0.5
LINE_INTERVAL_S = 30.0
LINE_DELAY_S = 1.0
USUAL_WIDTH = 80
"""Columns of a screen whose width is not known, such as that of a file."""
_COMMAND = re.compile(r"\w+ {2,}abag ")
"""A line with a command to copy, which a line break would end."""
LONGEST_QUOTE = 100
"""Characters of a cell that a message shows."""
SHELL_APOSTROPHE = "'\"'\"'"
"""Spells an apostrophe between apostrophes in a shell."""
AS_BAR = "{desc} {done:3d}% |{bar}| {elapsed}, {left}{postfix}"
AS_LINE = "{desc} {done}%, {elapsed}, {left}{postfix}"
AS_LINE_OF_UNKNOWN_LENGTH = "{desc} {n_fmt}{unit}, {elapsed}{postfix}"


@dataclass(frozen=True, slots=True)
class _Channel:
    send: Callable[[str], None]
    bars: bool = False
    silent: bool = False
    details: bool = True
    spelled: Callable[[str], str] = str  # for its reader: Python has keywords instead of flags
    lock: Any = None  # of all bars; None: tqdm's


def _to_stderr(text: str) -> None:
    line = wrap(printable(text), sys.stderr)
    with suppress(OSError):  # a closed terminal must not stop the work
        if "tqdm" not in sys.modules:  # so that no bar is drawn
            print(f"{line}\n", end="", file=sys.stderr)
            return
        bars = _bars()
        try:
            # The lock keeps a bar that is being drawn in one piece. tqdm.write() would release it
            # also where a signal came before it was made or taken, and so replace the signal.
            with bars.get_lock():
                bars.write(line, file=sys.stderr, nolock=True)
        except RuntimeError:  # another thread began a bar of huggingface_hub, whose lock is its own
            print(line, file=sys.stderr)


def make_lock() -> None:
    """Make the lock of all bars and messages of this process, which a signal must not interrupt."""
    # that of tqdm is one of all processes, and takes 25 ms
    _channel.set(replace(_channel.get(), lock=threading.RLock()))


def _bars() -> Any:  # noqa: ANN401 - the class of tqdm, which has no types
    """Import tqdm, which takes 0.1 s, where the first bar is made."""
    from tqdm import tqdm

    if lock := _channel.get().lock:
        tqdm.set_lock(lock)
    return tqdm


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
    characters = []
    for character in text:
        is_shown = character.isprintable() or character == "\n"
        escaped = character.encode("unicode_escape").decode()
        characters.append(character if is_shown else escaped)
    return "".join(characters)


def quoted(value: object) -> str:
    """Quote a cell, name or value that a user wrote: both ends, if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write whole numbers of more than 4,300 digits
        return f"a number of more than {LONGEST_QUOTE} digits"
    except RecursionError:
        return f"a nested {type(value).__name__}"
    if len(text) <= LONGEST_QUOTE:
        return text
    length = len(value) if isinstance(value, str) else len(text)
    return f"{text[: LONGEST_QUOTE - 20]}...{text[-10:]} ({length:,} characters)"


def shell_quoted(text: str) -> str:
    """Quote a value as it is pasted into a shell, also one that needs no quotation marks.

    `python_surface.in_python` finds by them where it ends.
    """
    escaped = text.replace("'", SHELL_APOSTROPHE)
    return f"'{escaped}'"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, shortened to 300 characters."""
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= 300 else line[:300] + " ..."


def duration_text(seconds: float) -> str:
    """Write a duration in seconds, minutes, hours or days."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 1440:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes / 60:,.0f} h" if minutes < 14_400 else f"{minutes / 1440:,.0f} d"


def size_text(size: float) -> str:
    """Write a number of bytes in GB, or in MB or kB if it is small."""
    for unit, unit_bytes in (("GB", 1e9), ("MB", 1e6)):
        if size >= unit_bytes / 10:
            return f"{size / unit_bytes:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"


def screen_width(stream: TextIO | None = None) -> int:
    """Return the columns of the terminal; COLUMNS of the environment counts first.

    While stdout is redirected, it is that of `stream`.
    """
    width = USUAL_WIDTH
    with suppress(AttributeError, OSError, ValueError):  # no file, no terminal, or closed
        width = os.get_terminal_size((stream or sys.stdout).fileno()).columns or width
    return get_terminal_size((width, 24)).columns


def wrap(text: str, stream: TextIO | None = None) -> str:
    """Break lines at words where a stream, by default stdout, is a terminal that breaks anywhere.

    A file gets whole sentences, which programs search, and a command stays whole.
    """
    try:
        if not (stream or sys.stdout).isatty():
            return text
    except (AttributeError, ValueError):  # there is none, or it is closed
        return text
    width = screen_width(stream)
    return "\n".join(chain.from_iterable(_wrapped(line, width) for line in text.split("\n")))


def _wrapped(line: str, width: int, indent: str = "  ") -> list[str]:
    if len(line) <= width or _COMMAND.match(line):
        return [line]
    wrapper = TextWrapper(
        width,
        subsequent_indent=line[: len(line) - len(line.lstrip())] + indent,
        break_long_words=False,  # paths and sequences stay whole
        break_on_hyphens=False,
    )
    return wrapper.wrap(line)


def align(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Format a table as lines no wider than the screen.

    Columns that do not fit beside the others follow below, behind the first one again; where not
    even one fits, each cell has a line of its own. With `numbers`, all columns but the first are
    right-justified.
    """
    width = screen_width()
    first, *others = zip(*rows, strict=True)
    columns_of_blocks = [[first]]
    for column in others:
        block = columns_of_blocks[-1]
        if len(block) > 1 and table_width([*block, column]) > width:
            columns_of_blocks.append([first, column])
        else:
            block.append(column)
    if any(table_width(block) > width for block in columns_of_blocks):
        return _one_below_the_other(first, others, width)
    lines = list[str]()
    for block in columns_of_blocks:
        lines += ["", *_side_by_side(block, numbers)] if lines else _side_by_side(block, numbers)
    return lines


def table_width(columns: Sequence[Sequence[str]]) -> int:
    """Return how wide `align` makes lines of these columns."""
    return sum(max(map(len, column)) for column in columns) + 2 * (len(columns) - 1)


def _side_by_side(columns: Sequence[Sequence[str]], numbers: bool) -> list[str]:
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in zip(*columns, strict=True):
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            is_number = numbers and column > 0
            cells.append(cell.rjust(width) if is_number else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return lines


def _one_below_the_other(
    names: Sequence[str], columns: Sequence[Sequence[str]], width: int
) -> list[str]:
    """Write each cell below the name of its row, and each column below the other."""
    lines = list[str]()
    for column in columns or [[""] * len(names)]:
        for name, cell in zip(names, column, strict=True):
            lines += _wrapped(name, width) if name else []
            indent = "  " if name else ""
            lines += _wrapped(indent + cell, width, "") if cell else []
        lines.append("")
    return lines[:-1]


class Forecast(NamedTuple):
    """What is known of the time that a job takes."""

    left_s: float
    before_s: float
    """What an earlier session has done would have taken."""

    @classmethod
    def of(cls, elapsed_s: float, share: float, before: float = 0.0) -> Self | None:
        """Return what follows from the share that is done, `before` of which was done before."""
        if share <= before:
            return None
        whole_s = elapsed_s / (share - before)
        return cls(whole_s * (1 - share), whole_s * before)


def bar(
    *,
    line_interval_s: float = LINE_INTERVAL_S,
    line_delay_s: float = LINE_DELAY_S,
    forecast: Callable[[], Forecast | None] | None = None,
    **options: Any,  # noqa: ANN401 - tqdm's own
) -> Any:  # noqa: ANN401 - a bar that acts like tqdm's
    """Make a tqdm bar on stderr, or lines where it is no terminal; it draws only where wanted.

    Parameters
    ----------
    line_interval_s : float
        Seconds between two lines of progress where stderr is not a terminal.
    line_delay_s : float
        Seconds before the first of them: shorter work is not worth a line.
    forecast : callable, optional
        Returns the time left, None while it is unknown; by default, that at the mean speed so far.
    **options
        Those of tqdm.
    """
    # tqdm guesses the steps between two lines, so that unequal ones would let a bar stand still
    options = {"disable": not _channel.get().bars, "miniters": 0} | options
    options["desc"] = printable(options.get("desc") or "") or None
    has_length = options.get("total") is not None or options.get("iterable") is not None
    # a notebook's stderr is no terminal, but can draw over a line
    if sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel"):
        drawn: dict[str, Any] = {"dynamic_ncols": True, "mininterval": BAR_INTERVAL_S}
        drawn |= {"bar_format": AS_BAR} if has_length else {}
        # a terminal of a container may say that it has no columns, where tqdm draws nothing
        if sys.stderr.isatty() and not os.get_terminal_size(sys.stderr.fileno()).columns:
            drawn |= {"dynamic_ncols": False, "ncols": USUAL_WIDTH}
    else:
        # position: a bar inside another would move the cursor, which a log shows as an escape code
        drawn = {
            "file": _Lines(),
            "position": 0,
            "delay": line_delay_s,
            "mininterval": line_interval_s,
        }
        # a line's own interval and form win over those of the caller's bar
        options |= {**drawn, "bar_format": AS_LINE if has_length else AS_LINE_OF_UNKNOWN_LENGTH}
    drawing = _with_time_left(_bars())(**(drawn | {"leave": False} | options))
    drawing.forecast = forecast
    return drawing


@cache  # each class of tqdm starts a thread that watches its bars
def _with_time_left(bars: Any) -> Any:  # noqa: ANN401 - classes of tqdm
    """Make a class of bars that know the share that is ``done``, and what to say of the ``left``.

    The time left is that at the mean speed since the beginning: the speed of the last steps, as
    tqdm takes it, jumps where steps are unequal. With a ``forecast``, the share is that of the
    time. 100 % is all, not 99.6 %.
    """

    class Bar(bars):  # type: ignore[misc]
        forecast: Callable[[], Forecast | None] | None = None

        @property
        def format_dict(self) -> dict[str, Any]:
            shown: dict[str, Any] = super().format_dict
            total = shown["total"]
            if not total:
                return shown | {"done": 100, "left": "00:00 left"}
            share = shown["n"] / total
            begun = shown["n"] - shown["initial"]
            seconds = None
            if self.forecast is not None:
                share = 0.0
                if (forecast := self.forecast()) is not None:
                    seconds = forecast.left_s
                    done_s = shown["elapsed"] + forecast.before_s
                    share = done_s / max(done_s + seconds, 1e-9)
            elif begun > 0:
                seconds = (total - shown["n"]) * shown["elapsed"] / begun
            remaining = "?" if seconds is None else bars.format_interval(max(0, round(seconds)))
            shown["done"] = min(100, int(100 * share))
            shown["left"] = f"{remaining} left"
            return shown

    return Bar


_telling: ContextVar[Callable[[float, bool], None] | None] = ContextVar("share done", default=None)


@contextmanager
def telling(tell: Callable[[float, bool], None]) -> Iterator[None]:
    """Give what `tell_share` is told inside the block to a function, such as one with a bar."""
    token = _telling.set(tell)
    try:
        yield
    finally:
        _telling.reset(token)


def tell_share(done: float, *, before: bool = False) -> None:
    """Tell the bar of several tasks what share of the task that calls this is done.

    With `before`, it was done by an earlier session, and says nothing about the speed of this one.
    """
    tell = _telling.get()
    if tell is not None:
        tell(done, before)


class _Lines:
    """A file to which tqdm draws bars, and which makes them lines of stderr."""

    def write(self, drawn: str) -> None:
        """Send what tqdm draws as a line, without its control characters."""
        if text := drawn.strip("\r\n "):
            _to_stderr(text)

    def flush(self) -> None:
        """Do nothing: each line is sent at once."""


@contextmanager
def reporting(
    to: Callable[[str], None] | None = None,
    *,
    bars: bool | None = None,
    silent: bool | None = None,
    details: bool | None = None,
    spelled: Callable[[str], str] | None = None,
) -> Iterator[None]:
    """Choose where messages go and whether bars are drawn, for the code inside the block.

    None leaves each as it was. With `silent`, messages are discarded, but not notes. `spelled`
    changes each message before it is sent.
    """
    if to is not None and silent is None:
        silent = False  # a channel of its own is heard inside a silent block
    settings = {"send": to, "bars": bars, "silent": silent, "details": details, "spelled": spelled}
    changes: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    token = _channel.set(replace(_channel.get(), **changes))
    try:
        yield
    finally:
        _channel.reset(token)
