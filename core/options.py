"""Options: each one is declared once, as a field of a frozen dataclass.

A declaration holds the type, default, help text, bounds and choices of an option. Validation,
command-line flags, ``config.json`` and the reference pages are derived from it. This module and
the modules that declare options import neither torch nor pandas, so that help is instant.
"""

from __future__ import annotations

import math
import os
import re
import typing
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Required, Self, TypedDict, TypeVar, Unpack

from abag.core.errors import OptionError
from abag.core.messages import quoted

T = TypeVar("T")
Precision = Literal["auto", "bf16", "fp16", "fp32"]
"""Precision that the user asks for; ``"auto"`` is resolved by the device."""


def user_path(path_given: str | PathLike[str], name: str = "path") -> Path:
    """Return a path that the user gave for `name`, with a leading ``~`` expanded.

    Raises
    ------
    OptionError
        If it is empty.
    """
    text = os.fspath(path_given)
    if not text:
        msg = f"{name}: is empty; expected a path. Give one; the current folder is a dot (.)."
        raise OptionError(msg)
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - Path("./~") is Path("~")
    # absolute: else pandas and pyarrow would expand it again
    return path.absolute() if str(path).startswith("~") else path


class Declaration(TypedDict, total=False):
    """The metadata that `option` adds to a dataclass field."""

    help: Required[str]  # one line for the command line and the reference pages
    low: float  # least value of a number, or of each number of a tuple, which then is not empty
    above: float  # bound that a number must exceed
    high: float  # largest value of a number
    # by default those of a Literal annotation; a callable is asked each time, as by a registry
    choices: Sequence[str] | Callable[[], Sequence[str]]
    pattern: str  # regular expression of values that are valid beside the choices
    default_text: str  # what help shows as the default, where the value itself does not tell
    metavar: str  # placeholder of the value on the command line
    flag: str  # name on the command line, where it is not that of the field
    group: str  # heading in help, where it is not that of the class
    rare: bool  # whether only ``--help-all`` shows the option
    python_only: bool  # whether the option has no flag
    may_change: bool  # whether the option may differ when a run is resumed
    click: Mapping[str, object]  # further arguments of ``click.Option``


def option(
    default: T = MISSING,  # type: ignore[assignment]
    *,
    factory: Callable[[], T] = MISSING,  # type: ignore[assignment]
    **declaration: Unpack[Declaration],
) -> T:
    """Declare an option as a field of an `Options` class; without a default it is required."""
    metadata = {"option": declaration}
    return field(default=default, default_factory=factory, metadata=metadata)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, slots=True)
class OptionSchema:
    """One option of an `Options` class, with its annotation resolved."""

    name: str
    type: Any
    """The annotation without ``| None``; a tuple if several types remain."""
    default: Any
    """`dataclasses.MISSING` if the option is required."""
    declaration: Declaration
    group: str = ""
    """Heading in help."""

    @property
    def flag(self) -> str:
        """The flag on the command line, with its two hyphens."""
        return self.declaration.get("flag") or flag(self.name)

    @property
    def bounds(self) -> str:
        """Range of valid numbers; empty if all are valid."""
        low, above, high = map(self.declaration.get, ("low", "above", "high"))
        if low is not None and high is not None:
            return f"{low:g} to {high:g}"
        limits = []
        for words, limit in (("at least", low), ("more than", above), ("at most", high)):
            if limit is not None:
                limits.append(f"{words} {limit:g}")
        return ", ".join(limits)

    def _is_in_range(self, number: object) -> bool:
        if not isinstance(number, Real):
            return False
        try:
            value = float(number)
        except OverflowError:  # a whole number of hundreds of digits
            return False
        low = self.declaration.get("low", -math.inf)
        above = self.declaration.get("above", -math.inf)
        high = self.declaration.get("high", math.inf)
        return low <= value <= high and value > above and math.isfinite(value)

    @property
    def choices(self) -> tuple[str, ...]:
        """Valid values; empty if any value is valid."""
        declared = self.declaration.get("choices")
        if declared is not None:
            return tuple(declared() if callable(declared) else declared)
        return typing.get_args(self.type) if typing.get_origin(self.type) is Literal else ()

    @property
    def default_text(self) -> str:
        """The default as help shows it; empty if there is nothing to show."""
        if "default_text" in self.declaration:
            return self.declaration["default_text"]
        if isinstance(self.default, bool):
            return self.name.replace("_", "-") if self.default else ""
        if isinstance(self.default, Real):
            return f"{self.default:g}"
        return self.default if isinstance(self.default, str) else ""

    @property
    def _is_tuple(self) -> bool:
        return typing.get_origin(self.type) is tuple

    def plain(self, value: Any) -> Any:  # noqa: ANN401 - anything that Python users pass
        """Convert NumPy's values to Python's and a list to a tuple, as config.json needs them."""
        if self.type in _NUMBERS or self._is_tuple:
            value = _without_numpy(value)
        if self.type is str and isinstance(value, PathLike):
            return os.fspath(value)
        if self._is_tuple and isinstance(value, list | tuple):
            return tuple(map(_without_numpy, value))
        return value

    def check(self, value: object) -> None:
        """Raise `OptionError` if a value is not of the type, or outside the choices or bounds."""
        if value is None and self.default is None:
            return
        pattern = self.declaration.get("pattern", "$^")
        if self.choices and value not in self.choices and not re.fullmatch(pattern, str(value)):
            msg = (
                f"{self.flag}: {quoted(value)} is unknown; expected one of "
                f"{', '.join(self.choices)}."
            )
            raise OptionError(msg)
        if not _is_of(value, self.type):
            limits = f", {self.bounds}" if self.bounds else ""
            msg = (
                f"{self.flag}: {quoted(value)} is not valid; expected "
                f"{_in_words(self.type)}{limits}."
            )
            raise OptionError(msg)
        numbers = value if isinstance(value, tuple) else (value,)
        if self.bounds and not (numbers and all(map(self._is_in_range, numbers))):
            words = "one or more numbers, each " if self._is_tuple else ""
            words = "a finite number, " if value in (math.inf, -math.inf) else words
            msg = f"{self.flag}: {quoted(value)} is out of range; expected {words}{self.bounds}."
            raise OptionError(msg)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all option classes: validates every field against its declaration."""

    def __init_subclass__(cls, group: str = "", **others: object) -> None:
        """Name the heading in help of the options that this class adds."""
        super().__init_subclass__(**others)
        cls._group = group

    _group: ClassVar[str] = ""
    leaves_out: ClassVar[Container[str]] = ()
    """Options of other classes of the same command that the command does not have."""

    def __post_init__(self) -> None:
        """Validate each field, then the combinations that each class knows, base classes first."""
        for declared in schema(type(self)):
            value = declared.plain(getattr(self, declared.name))
            declared.check(value)
            object.__setattr__(self, declared.name, value)
        for cls in reversed(type(self).__mro__):
            if "check_combination" in vars(cls):
                cls.check_combination(self)  # type: ignore[attr-defined]

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any], command: str) -> Self:
        """Make the options from keyword arguments; raise `OptionError` if one is invalid."""
        made, others = cls.take(options)
        for name in sorted(others):
            raise unknown_option(name, schema(cls), command)
        return made

    @classmethod
    def take(cls, options: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Make the options from those keyword arguments that name them; return the others too."""
        others = {**options}
        taken = {}
        for declared in schema(cls):
            if declared.name in others:
                taken[declared.name] = others.pop(declared.name)
        return cls(**taken), others

    @classmethod
    def changeable(cls) -> frozenset[str]:
        """Return the names of the options that may differ when a run is resumed."""
        changing = [option for option in schema(cls) if option.declaration.get("may_change")]
        return frozenset(option.name for option in changing)

    def filled_in(self) -> dict[str, Any]:
        """Return the values that `to_json` has in place of options that were left out."""
        return {}

    def to_json(self) -> dict[str, Any]:
        """Return the options by name as config.json holds them, tuples as lists."""
        values = asdict(self) | self.filled_in()
        for name, value in values.items():
            if isinstance(value, tuple):
                values[name] = list(value)
        return values


def schema(cls: type[Options]) -> tuple[OptionSchema, ...]:
    """Return the options of a class in the order of its fields."""
    types = _types_of(cls)
    return tuple(_option_schema(cls, declared, types[declared.name]) for declared in fields(cls))


def _option_schema(cls: type[Options], declared: Field[Any], kind: Any) -> OptionSchema:  # noqa: ANN401 - any type
    factory = declared.default_factory
    default = declared.default if factory is MISSING else factory()
    declaration = declared.metadata["option"]
    group = declaration.get("group", "")
    if not group:  # that of the class which declares the option: `cls` may only inherit it
        for base in cls.__mro__:
            if issubclass(base, Options) and declared.name in base.__annotations__:
                group = base._group
                break
    return OptionSchema(declared.name, kind, default, declaration, group)


_TYPES: dict[type, Mapping[str, Any]] = {}
"""Types of options by class; they take milliseconds to find."""


def _types_of(cls: type[Options]) -> Mapping[str, Any]:
    """Return the type of each option."""
    if cls not in _TYPES:
        hints = typing.get_type_hints(cls)
        _TYPES[cls] = {name: _without_none(hint) for name, hint in hints.items()}
    return _TYPES[cls]


def joint_schema(classes: Sequence[type[Options]]) -> tuple[OptionSchema, ...]:
    """Return the options of a command with several classes; the first that has a name counts."""
    options: dict[str, OptionSchema] = {}
    left_out: Container[str] = ()
    for cls in classes:
        for declared in schema(cls):
            if declared.name not in left_out:
                options.setdefault(declared.name, declared)
        left_out = left_out or cls.leaves_out
    return tuple(options.values())


def unknown_option(name: str, options: Sequence[OptionSchema], command: str) -> OptionError:
    """Make the error of a keyword argument that does not exist; it suggests what was meant."""
    names = sorted(option.name for option in options)
    words = name.replace("_", " ").lower()
    by_help = []
    for option in options:
        if words in option.declaration["help"].lower():
            by_help.append(option.name)
    by_name = get_close_matches(name, names, n=2)
    # several words are a description, such as early_stopping
    suggested = (by_help or by_name) if " " in words else (by_name or by_help)
    suggested = suggested[:2]
    if suggested:
        hint = f"Did you mean {' or '.join(map(repr, suggested))}?"
    else:
        hint = f"The options are {', '.join(names)}."
    return OptionError(f"{command}: unknown option {name!r}. {hint}")


def _without_none(annotation: Any) -> Any:  # noqa: ANN401 - any type
    if typing.get_origin(annotation) not in (typing.Union, UnionType):
        return annotation
    types = tuple(kind for kind in typing.get_args(annotation) if kind is not NoneType)
    return types[0] if len(types) == 1 else types


_NUMBERS: Mapping[object, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}
"""By the type of a number: the type that is accepted for it, and the words of messages."""


def _without_numpy(value: Any) -> Any:  # noqa: ANN401 - any type
    """Convert numbers and arrays of NumPy, which is not imported for this."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_of(value: object, kind: Any) -> bool:  # noqa: ANN401 - any type
    """Tell whether an option of this type takes a value; a tuple of types allows each."""
    if isinstance(kind, tuple):
        return any(_is_of(value, alternative) for alternative in kind)
    if kind in _NUMBERS:
        accepted, _ = _NUMBERS[kind]
        is_bool = isinstance(value, bool)  # a truth value is an integer in Python
        return isinstance(value, accepted) and is_bool == (kind is bool)
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_of(item, arguments[0]) for item in value)
    if origin is Literal:
        return value in arguments
    if kind in (str, Path):
        return isinstance(value, str | PathLike)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return False
        return all(_is_of(item, arguments[0]) for item in (*value, *value.values()))
    return kind is Any or isinstance(value, origin or kind)


def _in_words(kind: Any) -> str:  # noqa: ANN401 - any type
    if isinstance(kind, tuple):
        return " or ".join(dict.fromkeys(map(_in_words, kind)))
    if kind in _NUMBERS:
        return _NUMBERS[kind][1]
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is tuple:
        return "a list of whole numbers" if arguments[0] is int else "a list of names"
    if origin is Literal:
        return ", ".join(map(repr, arguments))
    return {str: "a string", Path: "a path"}.get(kind, "a mapping of names")


def flag(name: str) -> str:
    """Spell the name of an option as its command-line flag."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options, group="Hardware"):
    """Options for the device."""

    device: str = option(
        "auto", metavar="NAME", may_change=True, help="Device: auto, cpu, cuda or cuda:N."
    )


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(Options, group="Encoders"):
    """Options for the encoders of sequences."""

    antibody_encoder: str = option(
        "igt5", metavar="NAME", help="Antibody encoder: alias, hub name or checkpoint folder."
    )
    antigen_encoder: str = option(
        "esm2-650m", metavar="NAME", help="Antigen encoder: alias, hub name or checkpoint folder."
    )
