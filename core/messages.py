"""Messages and progress bars: the one channel from abag to the person who runs it.

Everything goes to stderr unless `reporting` says otherwise; results never pass through here.
Callers that only want silence, or want the lines for themselves, set the channel once at the
entry point, and no function in between has to hand it down.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Channel(NamedTuple):
    send: Callable[[str], None]
    bars: bool
    silent: bool = False


def _to_stderr(text: str) -> None:
    with suppress(OSError):  # a closed terminal must not stop the work
        tqdm.write(printable(text), file=sys.stderr)  # keeps a bar that is being drawn in one piece


_STDERR = _Channel(_to_stderr, False)
_channel: ContextVar[_Channel] = ContextVar("abag messages", default=_STDERR)


def say(text: str) -> None:
    """Send one message, a line without its newline."""
    channel = _channel.get()
    if not channel.silent:
        channel.send(text)


def note(text: str) -> None:
    """Send one message that must not get lost, also where other messages are silenced."""
    _channel.get().send(f"note: {text}")


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


def bar(**options: Any) -> tqdm[Any]:  # noqa: ANN401 - tqdm's own options
    """Make a tqdm progress bar on stderr; it draws nothing where bars are not wanted."""
    options = {**options, "desc": printable(options.get("desc") or "") or None}
    return tqdm(**({"disable": not _channel.get().bars, "dynamic_ncols": True} | options))


@contextmanager
def reporting(
    to: Callable[[str], None] | None = None, *, bars: bool | None = None, silent: bool = False
) -> Iterator[None]:
    """Choose where messages go and whether bars are drawn, for the code inside the block.

    None leaves either as it was. With `silent`, messages are discarded, but not notes.
    """
    before = _channel.get()
    channel = _Channel(to or before.send, before.bars if bars is None else bars, silent)
    token = _channel.set(channel)
    try:
        yield
    finally:
        _channel.reset(token)
