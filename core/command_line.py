"""Command-line options made from option classes."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_args, get_origin

import click

from abag.core.options import Options, OptionSchema, schema

Parameters = Callable[[], Sequence[click.Parameter]]


class OptionsCommand(click.Command):
    """A command with options that are made when first needed and passed on only if given.

    Parameters
    ----------
    make_options : callable
        Returns the options that follow those of the decorators. It may import what a list of
        commands should not wait for.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own arguments
        make_options: Parameters = tuple,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **settings)
        self._make_options: Parameters | None = make_options

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return all parameters."""
        if self._make_options is not None:
            self.params = [*self.params, *self._make_options()]
            self._make_options = None
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        """Run the command with the options that were given; the schema holds the defaults."""
        ctx.params = {name: value for name, value in ctx.params.items() if value is not None}
        return super().invoke(ctx)


def click_options(
    cls: type[Options], *, path: click.Path, without: Container[str] = ()
) -> list[click.Option]:
    """Make the command-line options of an option class.

    Parameters
    ----------
    cls : type
        A subclass of `Options`.
    path : click.Path
        Reads values that are paths.
    without : container of str
        Names of fields to leave out.
    """
    return [
        _click_option(one, path)
        for one in schema(cls)
        if one.name not in without and not one.declaration.python_only
    ]


def _click_option(one: OptionSchema, path: click.Path) -> click.Option:
    notes = [f"default: {one.default_text}"] if one.default_text else []
    notes += [str(one.declaration.bounds)] if str(one.declaration.bounds) else []
    settings: dict[str, Any] = {
        "help": one.declaration.help + (f"  [{'; '.join(notes)}]" if notes else ""),
        "required": one.default is MISSING,
        "default": None,
    }
    name = one.flag
    if one.type is bool:
        name += f"/--no-{name[2:]}" if one.default else ""
        settings["is_flag"] = True
    else:
        settings |= _reading(one, path)
    return click.Option([name, one.name], **(settings | dict(one.declaration.click)))


def _reading(one: OptionSchema, path: click.Path) -> dict[str, Any]:
    """Choose how a value is read; its range and choices are for `Options` to check."""
    types = one.type if isinstance(one.type, tuple) else (one.type,)
    settings: dict[str, Any] = {}
    if metavar := one.declaration.metavar or (one.choices and f"[{'|'.join(one.choices)}]"):
        settings["metavar"] = metavar
    if isinstance(one.default, dict):
        return settings | {"multiple": True, "callback": _read_roles}
    if Path in types:
        settings["type"] = path
    elif get_origin(one.type) is tuple:
        settings["type"] = _read_numbers if int in get_args(one.type) else _read_names
    elif len(types) > 1:
        settings["type"] = _read_number_or_all
    elif types[0] in (int, float):
        settings["type"] = types[0]
    return settings


def _read_names(text: str) -> tuple[str, ...]:
    """Turn q,v into a tuple."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _read_numbers(text: str) -> tuple[int, ...]:
    """Turn 24,28 into a tuple of numbers."""
    try:
        return tuple(map(int, _read_names(text)))
    except ValueError as error:
        msg = f"{text!r} is not a list of numbers, such as 24,28"
        raise click.BadParameter(msg) from error


def _read_number_or_all(text: str) -> int | str:
    """Read a number of processes."""
    if text != "all" and not text.lstrip("-").isdigit():
        msg = f"{text!r} is neither a number nor all"
        raise click.BadParameter(msg)
    return text if text == "all" else int(text)


def _read_roles(
    _ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> dict[str, str] | None:
    """Turn repeated ROLE=NAME into a mapping."""
    for text in given:
        if "=" not in text:
            msg = f"{text!r} is not ROLE=NAME, such as heavy=VH"
            raise click.BadParameter(msg)
    return dict(text.split("=", 1) for text in given) or None
