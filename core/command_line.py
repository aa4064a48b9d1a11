"""Build commands: error handling, signals, and options from option classes.

A command ends with exit code 0, with 1 and one line on stderr, with 2 after wrong usage, or with
128 + the number of the signal that stopped it.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn, get_args, get_origin

import click

from abag.core.errors import AbagError, is_out_of_memory
from abag.core.messages import counted, make_lock, printable, wrap
from abag.core.options import OptionSchema, alternatives, joint_schema, user_path

NO_MEMORY = (
    "not enough memory ({}). What is committed is safe; use a machine with more memory, or "
    "less data at a time."
)
LONGEST_CHOICES = 60
"""Characters of all choices that fit beside the name of an option in 80 columns."""
_ASKED_FOR_ALL = "abag.help_all"
HEADINGS = (
    "Data",
    "Choice",
    "Encoders",
    "Adapter",
    "Split",
    "Search",
    "Scan",
    "Head",
    "Training",
    "Hardware",
    "Output",
)
"""Headings of options in help, in their order."""


class _Stopped(BaseException):
    """A signal asked to stop; not an Exception, so that only `CommandGroup` catches it."""

    def __init__(self, number: int) -> None:
        self.number = number


class CommandGroup(click.Group):
    """Commands that report errors in one line and exit 1, or 128 + the number of a signal."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order in which they are declared, not in that of their names."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; its errors and signals end the process here."""
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        _open_standard_streams()
        make_lock()
        _collect_less_garbage()
        with _raising_on_signals(), _errors_in_one_line():
            return super().invoke(ctx)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:  # noqa: ANN401
        """Read the command line; its help and the versions are printed here."""
        with _errors_in_one_line():
            return super().make_context(*args, **extra)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except _Stopped as stopped:
        name = signal.Signals(stopped.number).name
        msg = "committed work is safe; run the same command again to continue."
        click.echo(wrap(f"Stopped by {name}: {msg}", sys.stderr), err=True)
        sys.exit(128 + stopped.number)
    except Exception as error:
        line = _in_one_line(error)
        if line is None:
            raise
        click.echo(wrap(printable(f"Error: {line}"), sys.stderr), err=True)
        _give_up_output()
        sys.exit(1)


def _give_up_output() -> None:
    """Drop what a full disk did not take: Python 3.14 would try it again at its end, and say so."""
    try:
        sys.stdout.flush()
    except OSError:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _in_one_line(error: Exception) -> str | None:
    """Say what the user can do about an error; None for a mistake of abag."""
    text = " ".join(str(error).split())
    match error:
        case AbagError():
            return str(error)
        case UnicodeEncodeError():  # of a path; pyarrow takes UTF-8 only
            return f"{error.object}: a name that is not UTF-8; expected UTF-8. Rename it."
        case OSError(errno=errno.EPIPE):  # click handles it
            return None
        case OSError():
            named = error.filename is not None
            where = os.fsdecode(error.filename) if named else "a file or the output"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return f"{where}: the disk is full. Free space, and run the command again."
            return (
                f"{where}: cannot be used ({error.strerror or error}); expected a readable and "
                "writable path. Fix it or give another, and run the command again."
            )
        case Exception() if is_out_of_memory(error):  # also of a damaged file that says it is huge
            # torch goes on to explain its settings
            return NO_MEMORY.format(". ".join(text.split(". ")[:2]) or "no more is available")
        case Exception() if type(error).__name__ == "ArrowException" and "Wrapping" in text:
            return NO_MEMORY.format("no more is available")  # Arrow could not make a text of Python
        case RuntimeError() if "can't start new thread" in text:
            return NO_MEMORY.format(f"{text}; or too many processes run, see ulimit -u")
        case ImportError() if "failed to map segment" in text and "permitted" not in text:
            return NO_MEMORY.format(text)  # if not permitted, the folder is mounted noexec
        case ImportError(name=str(name)) if not f"{name}.".startswith("abag."):
            return (
                f"{name.partition('.')[0]}: cannot be imported ({text}); expected a working "
                "installation. Install abag in a new environment."
            )
    return None


def _collect_less_garbage() -> None:
    """Let Python look for cycles less often than every 700 objects, and not as it ends.

    A table is hundreds of thousands of tuples, of which none is in a cycle: to look for some took
    a twelfth of the time of reading it. At the end, to visit all objects of torch takes a second.
    """
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)


def _open_standard_streams() -> None:
    """Replace closed streams: the next file opened would get their number, and their output."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))


@contextmanager
def _raising_on_signals() -> Iterator[None]:
    """Let the first signal unwind the stack; a second one has its usual effect."""
    stopped = False
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        handler = signal.getsignal(number)
        if handler != signal.SIG_IGN:  # as SIGHUP is under nohup; it stays so
            before[number] = handler

    def stop(number: int, _frame: object) -> NoReturn:
        nonlocal stopped
        stopped = True
        for other, handler in before.items():
            signal.signal(other, handler)
        raise _Stopped(number)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if stopped else handler)


class UserPath(click.Path):
    """A path in which a leading ``~`` is expanded, as shells do not in ``--run=~/runs``."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's own signature
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Check a path as click does, after a leading ``~`` is expanded."""
        name = param.get_error_hint(ctx) if param else "path"
        return Path(str(super().convert(user_path(value, name.strip("'")), param, ctx)))


def one_or_all(
    _ctx: click.Context, _param: click.Parameter, paths: tuple[Path, ...]
) -> Path | list[Path] | None:
    """Return the only path, several as a list, and none as None."""
    if len(paths) == 1:
        return paths[0]
    return list(paths) or None


class GroupedOption(click.Option):
    """An option under a heading in help; `rare` ones are shown by ``--help-all`` only."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own arguments
        group: str = "Output",
        rare: bool = False,
        schema: OptionSchema | None = None,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **settings)
        self.group = group
        self.rare = rare
        self.schema = schema


def _print_all_help(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ASKED_FOR_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


HELP_ALL = GroupedOption(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_all_help,
    help="Show all options and exit.",
)


class OptionsCommand(click.Command):
    """A command whose options, of the `classes` (``module:Class``), are made when first needed."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own arguments
        classes: Sequence[str] = (),
        **settings: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **settings)
        self._classes = classes

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """List arguments and options, those of the option classes included."""
        classes = [resolve_name(place) for place in self._classes]
        self._classes = ()
        for option in joint_schema(classes):
            if not option.declaration.get("python_only"):
                self.params.append(_click_option(option))
        params = super().get_params(ctx)
        has_rare = any(getattr(param, "rare", False) for param in self.params)
        return [*params, HELP_ALL] if has_rare else params

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, but propose no opposite: --antigen instead of --no-antigen.

        Options of other commands are named as such: a line for `abag plan` is often pasted.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            others = _commands_with(error.option_name, ctx)
            if others:
                msg = f"{error.option_name} is an option of {', '.join(others)}; leave it out here."
                raise click.UsageError(msg, ctx) from None
            opposite = error.option_name.replace("--no-", "--", 1)
            likely = [name for name in error.possibilities or () if name != opposite]
            raise click.NoSuchOption(error.option_name, None, likely, ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings, the rare ones only for ``--help-all``."""
        headings: dict[str, list[tuple[str, str]]] = {name: [] for name in HEADINGS}
        left_out = 0
        for option in self.get_params(ctx):
            if not isinstance(option, click.Option):
                continue
            if getattr(option, "rare", False) and _ASKED_FOR_ALL not in ctx.meta:
                left_out += 1
                continue
            record = option.get_help_record(ctx)
            if record is not None:
                headings.setdefault(getattr(option, "group", "Output"), []).append(record)
        for name, records in headings.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(
                f"{counted(left_out, 'more option')}: {ctx.command_path} --help-all"
            )

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        """Call the command with the options that were given; all others have their defaults."""
        # an option that may be repeated is () if it was not given
        repeated = {option.name for option in self.params if getattr(option, "multiple", False)}
        given = {}
        for name, value in ctx.params.items():
            if value is not None and not (value == () and name in repeated):
                given[name] = value
        ctx.params = given
        return super().invoke(ctx)


def _commands_with(option: str, ctx: click.Context) -> list[str]:
    """List the commands of the group of this one that have an option."""
    group = ctx.parent
    if group is None or not isinstance(group.command, click.Group):
        return []
    found = []
    for name, command in group.command.commands.items():
        if any(option in param.opts for param in command.get_params(ctx)):
            found.append(name)
    return found


def _click_option(option: OptionSchema) -> click.Option:
    settings: dict[str, Any] = {
        "help": _help_text(option),
        "group": option.group,
        "rare": option.declaration.get("rare", False),
        "schema": option,
    }
    # click takes an option with a default, also None, for given
    settings |= {"required": True} if option.default is MISSING else {"default": None}
    settings |= {"is_flag": True} if option.type is bool else _reading(option)
    settings |= option.declaration.get("click", {})
    return GroupedOption([option.flag, option.name], **settings)


def _help_text(option: OptionSchema) -> str:
    text = option.declaration["help"]
    if not _fits(option):
        text += f" One of {', '.join(option.choices)}."
    notes = [f"default: {option.default_text}"] if option.default_text else []
    notes += [option.bounds] if option.bounds else []
    return f"{text}  [{'; '.join(notes)}]" if notes else text


def _fits(option: OptionSchema) -> bool:
    """Tell whether help has room for the choices in place of the value; else they follow below."""
    return len("|".join(option.choices)) <= LONGEST_CHOICES


def _reading(option: OptionSchema) -> dict[str, Any]:
    """Choose how a value is read; its range and choices are for `Options` to check."""

    def complete(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
        return [choice for choice in option.choices if choice.startswith(begun)]

    types = alternatives(option.type)
    metavar = option.declaration.get("metavar")
    if metavar is None and option.choices:
        metavar = f"[{'|'.join(option.choices)}]" if _fits(option) else "NAME"
    settings: dict[str, Any] = {"metavar": metavar, "shell_complete": complete}
    if isinstance(option.default, dict):
        return settings | {"multiple": True, "callback": _read_roles}
    if Path in types:
        return settings | {"type": UserPath()}
    if get_origin(option.type) is tuple:
        is_of_numbers = int in get_args(option.type)
        return settings | {"type": _read_numbers if is_of_numbers else _read_names}
    if len(types) > 1:
        return settings | {"type": _read_number_or_all}
    return settings | {"type": types[0] if types[0] in (int, float) else str}


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _read_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, _read_names(text)))
    except ValueError as error:
        msg = f"{text!r} is not a list of numbers, such as 24,28"
        raise click.BadParameter(msg) from error


def _read_number_or_all(text: str) -> int | str:
    if text != "all" and not text.lstrip("-").isdigit():
        msg = f"{text!r} is neither a number nor all"
        raise click.BadParameter(msg)
    return text if text == "all" else int(text)


def _read_roles(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str] | None:
    roles: dict[str, str] = {}
    for text in texts:
        role, equals, name = text.partition("=")
        if not equals:
            msg = f"{text!r} is not ROLE=NAME, such as heavy=VH"
            raise click.BadParameter(msg)
        if roles.get(role, name) != name:
            msg = f"{role} is given twice, {roles[role]!r} and {name!r}; expected one"
            raise click.BadParameter(msg)
        roles[role] = name
    return roles or None


def peak_gib() -> float:
    """Return the most memory in GiB that this process had, or one that it started."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(OSError, ValueError, IndexError):
        # on Linux, the former counts what the parent had at the start, too
        status = Path("/proc/self/status").read_text()
        own = int(status.partition("VmHWM:")[2].split()[0])
    most = max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    return round(most / (2**30 if sys.platform == "darwin" else 2**20), 3)
