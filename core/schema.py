"""Compare values with annotations: one reading of types, for options and for JSON from files.

A value that Python users pass or another program wrote becomes the plain value of its type: a list
is taken for a tuple, a whole number or one of NumPy for a number, and a path for a string.
"""

from __future__ import annotations

import os
import reprlib
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, partial
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from abag.core.messages import quoted

_PLAIN: Mapping[Any, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a finite number"),
    str: ((str, PathLike), "a string"),
    Path: (PathLike, "a path"),
    NoneType: (NoneType, "null"),
}
"""By a type without parts: the types that are taken for it, and the words of messages."""


type_hints: Callable[[Any], Mapping[str, Any]] = cache(get_type_hints)
"""The types of the members of a class, which take milliseconds to find."""


class Mistyped(TypeError):
    """A value is not of its type; the text says which, and what was expected."""


def parse(
    kind: Any,  # noqa: ANN401 - any type
    value: Any,  # noqa: ANN401 - any value
    where: str = "it",
    *,
    most: float = sys.float_info.max,
) -> Any:  # noqa: ANN401 - a value of the type
    """Convert a value to a type.

    Parameters
    ----------
    kind : type
        A plain type, dataclass, `TypedDict` or type of `typing`. Items of a tuple are of one type.
    value : object
        An object of JSON has exactly the names of a dataclass; it may have more than a `TypedDict`.
    where : str
        Name of the value in messages.
    most : float
        The largest number, and the size of the smallest; others are refused, and numbers that are
        not finite.

    Raises
    ------
    Mistyped
        If the value is of another type.
    """
    inside = partial(parse, most=most)
    origin = get_origin(kind) or kind
    arguments = get_args(kind)
    if kind is Any or (origin is Literal and value in arguments):
        return value
    if origin in (Union, UnionType):
        for alternative in arguments:
            with suppress(Mistyped):
                return inside(alternative, value, where)
        return inside(arguments[0], value, where)  # raises
    if origin in (bool, int, float, str, tuple) and hasattr(value, "tolist"):
        value = value.tolist()  # of NumPy, which is not imported for this
    if origin in (list, tuple) and isinstance(value, list | origin):
        return origin(inside(arguments[0], item, where) for item in value)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        members = {}
        for name, member in value.items():
            key = inside(arguments[0], name, where)
            members[key] = inside(arguments[1], member, f"{where}, {name}")
        return members
    if (is_dataclass(kind) or is_typeddict(kind)) and isinstance(value, Mapping):
        _check_names(kind, value, where)
        hints = type_hints(kind)
        members = {name: inside(hints[name], value[name], name) for name in hints if name in value}
        return kind(**{**value, **members})
    accepted, _ = _PLAIN.get(kind, ((), ""))
    # a truth value is an integer in Python
    if isinstance(value, accepted) and isinstance(value, bool) == (kind is bool):
        if kind not in (int, float):
            return os.fspath(value) if kind is str else value
        largest = most if kind is int else min(most, sys.float_info.max)
        if abs(value) <= largest:  # not if it is NaN
            return kind(value)
    msg = f"{where} is {_shown(value)}; expected {in_words(kind)}"
    raise Mistyped(msg)


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # Python does not write whole numbers of more than 4,300 digits
        return quoted(value)


def why_mistyped(value: object, kind: Any, where: str = "it") -> str:  # noqa: ANN401 - a type
    """Say where a value that was read from JSON is not of a type; empty if it is."""
    try:
        parse(kind, value, where)
    except Mistyped as error:
        return str(error)
    return ""


def alternatives(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any type
    """Return the types of a union without None, or the only type."""
    if get_origin(kind) not in (Union, UnionType):
        return (kind,)
    return tuple(alternative for alternative in get_args(kind) if alternative is not NoneType)


def _check_names(kind: type, value: Mapping[str, object], where: str) -> None:
    """Refuse an object that lacks members of a class, or has others than a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind) and value.keys() != hints.keys():
        msg = f"{where} has {', '.join(map(str, value))}; expected {', '.join(hints)}"
        raise Mistyped(msg)
    for name, hint in sorted(hints.items()):
        if name not in value and get_origin(hint) is not NotRequired:
            msg = f"{name} is missing"
            raise Mistyped(msg)


def in_words(kind: Any) -> str:  # noqa: ANN401 - any type
    """Say what values of a type are, for messages."""
    types = alternatives(kind)
    if len(types) > 1:
        return " or ".join(dict.fromkeys(map(in_words, types)))
    origin = get_origin(types[0]) or types[0]
    arguments = get_args(types[0])
    if origin in (list, tuple):
        return "a list" + {int: " of whole numbers", str: " of names"}.get(arguments[0], "")
    if origin is Literal:
        return ", ".join(map(repr, arguments))
    if origin is Mapping:
        return "a mapping of names"
    return _PLAIN.get(origin, (None, "an object"))[1]
