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
from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Required, Self, TypedDict, TypeVar, Unpack

from abag.core.errors import OptionError

T = TypeVar("T")
Precision = Literal["auto", "bf16", "fp16", "fp32"]
"""Of an encoder."""


def user_path(given: str | PathLike[str], name: str = "path") -> Path:
    """Return a path that the user gave for `name`, with a leading ``~`` expanded."""
    text = os.fspath(given)
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
    type: Any  # its annotation without ``| None``
    default: Any  # `dataclasses.MISSING` if the option is required
    declaration: Declaration
    group: str = ""  # heading in help

    @property
    def flag(self) -> str:
        return self.declaration.get("flag") or flag(self.name)

    @property
    def bounds(self) -> str:
        """Range of valid numbers; empty if all are valid."""
        low, above, high = map(self.declaration.get, ("low", "above", "high"))
        if low is not None and high is not None:
            return f"{low:g} to {high:g}"
        words = {"at least": low, "more than": above, "at most": high}
        return ", ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None)

    def _is_in_range(self, number: object) -> bool:
        declared, value = self.declaration, float(number) if isinstance(number, Real) else math.nan
        at_least = declared.get("low", -math.inf) <= value <= declared.get("high", math.inf)
        return at_least and value > declared.get("above", -math.inf) and math.isfinite(value)

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
        """Return a value of NumPy as Python's, and a list as a tuple: config.json is made of it."""
        if self.type in _NUMBERS or self._is_tuple:
            value = _without_numpy(value)
        if self.type is str and isinstance(value, PathLike):
            return os.fspath(value)
        if self._is_tuple and isinstance(value, list | tuple):
            return tuple(map(_without_numpy, value))
        return value

    def check(self, value: object) -> None:
        if value is None and self.default is None:
            return
        pattern = self.declaration.get("pattern", "$^")
        if self.choices and value not in self.choices and not re.fullmatch(pattern, str(value)):
            msg = f"{self.flag}: {value!r} is unknown; expected one of {', '.join(self.choices)}."
            raise OptionError(msg)
        if not _is_of(value, self.type):
            limits = f", {self.bounds}" if self.bounds else ""
            msg = f"{self.flag}: {value!r} is not valid; expected {_in_words(self.type)}{limits}."
            raise OptionError(msg)
        numbers = value if isinstance(value, tuple) else (value,)
        if self.bounds and not (numbers and all(map(self._is_in_range, numbers))):
            words = "one or more numbers, each " if self._is_tuple else ""
            words = "a finite number, " if value in (math.inf, -math.inf) else words
            msg = f"{self.flag}: {value} is out of range; expected {words}{self.bounds}."
            raise OptionError(msg)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all option classes: validates every field against its declaration."""

    def __init_subclass__(cls, group: str = "", **others: object) -> None:
        """Name the heading in help of the options that this class adds."""
        super().__init_subclass__(**others)
        cls._group = group

    _group: ClassVar[str] = ""
    leaves_out: ClassVar[Container[str]] = ()  # of other classes of the same command

    def __post_init__(self) -> None:
        """Validate each field, then the combinations that each class knows, base classes first."""
        for one in schema(type(self)):
            value = one.plain(getattr(self, one.name))
            one.check(value)
            object.__setattr__(self, one.name, value)
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
        """Make the options from the keyword arguments that they know; return the others too."""
        known = {one.name for one in schema(cls)}
        others = {name: value for name, value in options.items() if name not in known}
        return cls(**{n: value for n, value in options.items() if n in known}), others

    @classmethod
    def changeable(cls) -> frozenset[str]:
        """Return the names of the options that may differ when a run is resumed."""
        return frozenset(one.name for one in schema(cls) if one.declaration.get("may_change"))

    def filled_in(self) -> dict[str, Any]:
        """Return values of the JSON in place of those that were left out."""
        return {}

    def to_json(self) -> dict[str, Any]:
        values = asdict(self) | self.filled_in()
        return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


def schema(cls: type[Options]) -> tuple[OptionSchema, ...]:
    """Return the options of a class in the order of its fields."""
    types = _types_of(cls)
    return tuple(
        OptionSchema(
            one.name,
            types[one.name],
            one.default if one.default_factory is MISSING else one.default_factory(),
            one.metadata["option"],
            one.metadata["option"].get("group") or _declared_by(cls, one.name)._group,
        )
        for one in fields(cls)
    )


_TYPES: dict[type, Mapping[str, Any]] = {}
"""Types of options by class; they take milliseconds to find."""


def _types_of(cls: type[Options]) -> Mapping[str, Any]:
    """Return the type of each option."""
    if cls not in _TYPES:
        hints = typing.get_type_hints(cls)
        _TYPES[cls] = {name: _without_none(of_one) for name, of_one in hints.items()}
    return _TYPES[cls]


def joint_schema(classes: Sequence[type[Options]]) -> tuple[OptionSchema, ...]:
    """Return the options of a command with several classes; the first that has a name counts."""
    found: dict[str, OptionSchema] = {}
    left_out: Container[str] = ()
    for cls in classes:
        for one in schema(cls):
            if one.name not in left_out:
                found.setdefault(one.name, one)
        left_out = left_out or cls.leaves_out
    return tuple(found.values())


def _declared_by(cls: type[Options], name: str) -> type[Options]:
    return next(c for c in cls.__mro__ if name in vars(c).get("__annotations__", {}))


def unknown_option(name: str, known: Sequence[OptionSchema], command: str) -> OptionError:
    """Make the error of a keyword argument that does not exist; it suggests what was meant."""
    names = sorted(one.name for one in known)
    words = name.replace("_", " ").lower()
    meant = [one.name for one in known if words in one.declaration["help"].lower()]
    close = get_close_matches(name, names, n=2)
    meant = (meant[:2] or close) if " " in words else (close or meant[:2])
    if meant:
        hint = f"Did you mean {' or '.join(map(repr, meant))}?"
    else:
        hint = f"The options are {', '.join(names)}."
    return OptionError(f"{command}: unknown option {name!r}. {hint}")


def _without_none(annotation: Any) -> Any:  # noqa: ANN401 - any type
    if typing.get_origin(annotation) not in (typing.Union, UnionType):
        return annotation
    kept = tuple(one for one in typing.get_args(annotation) if one is not NoneType)
    return kept[0] if len(kept) == 1 else kept


# types of numbers, what is accepted for them, and what they are called
_NUMBERS: Mapping[object, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


def _without_numpy(value: Any) -> Any:  # noqa: ANN401 - any type
    """Convert numbers and arrays of NumPy, which is not imported for this."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_of(value: object, kind: Any) -> bool:  # noqa: ANN401 - any type
    """Tell whether an option of this type takes a value; a tuple of types allows each."""
    if isinstance(kind, tuple):
        return any(_is_of(value, one) for one in kind)
    if kind in _NUMBERS:  # a truth value is an integer in Python
        return isinstance(value, _NUMBERS[kind][0]) and (kind is bool) == isinstance(value, bool)
    inner, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_of(one, inner[0]) for one in value)
    if origin is Literal:
        return value in inner
    if kind in (str, Path):
        return isinstance(value, str | PathLike)
    return kind is Any or isinstance(value, origin or kind)


def _in_words(kind: Any) -> str:  # noqa: ANN401 - any type
    if isinstance(kind, tuple):
        return " or ".join(dict.fromkeys(map(_in_words, kind)))
    if kind in _NUMBERS:
        return _NUMBERS[kind][1]
    inner, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is tuple:
        return "a list of whole numbers" if inner[0] is int else "a list of names"
    if origin is Literal:
        return ", ".join(map(repr, inner))
    return {str: "a string", Path: "a path"}.get(kind, "a mapping of names")


def flag(name: str) -> str:
    """Spell the name of an option as its command-line flag."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options, group="Hardware"):
    """Where torch computes."""

    device: str = option(
        "auto", metavar="NAME", may_change=True, help="Device: auto, cpu, cuda or cuda:N."
    )


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(Options, group="Encoders"):
    """Which encoders turn sequences into vectors."""

    antibody_encoder: str = option(
        "igt5", metavar="NAME", help="Antibody encoder: alias, hub name or checkpoint folder."
    )
    antigen_encoder: str = option(
        "esm2-650m", metavar="NAME", help="Antigen encoder: alias, hub name or checkpoint folder."
    )
