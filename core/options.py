"""Options: each one is declared once, as a field of a frozen dataclass; and one check of types.

A declaration holds the type, default, help text, bounds and choices of an option. Validation,
command-line flags, ``config.json`` and the reference pages are derived from it. A value that Python
users pass or another program wrote becomes the plain value of its type: a list is taken for a
tuple, a whole number or one of NumPy for a number, and a path for a string; records of JSON files
are read in the same way. This module and the modules that declare options import neither torch nor
pandas, so that help is instant.
"""

from __future__ import annotations

import math
import ntpath
import os
import re
import sys
import typing
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, partial, reduce
from numbers import Integral, Real
from operator import or_
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    NotRequired,
    Required,
    Self,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from abag.core.errors import OptionError
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


T = TypeVar("T")
Precision = Literal["auto", "bf16", "fp16", "fp32"]
"""Precision that the user asks for; ``"auto"`` is resolved by the device."""


class Mistyped(TypeError):
    """A value is not of its type; the text says which, and what was expected."""


MAY_LACK: Mapping[str, bool] = {"may_lack": True}
"""Metadata of a dataclass field, with a default, that records of earlier versions do not have."""


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
        An object of JSON has exactly the names of a dataclass, but those that it `MAY_LACK`; it may
        have more than a `TypedDict`.
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
        if Any in arguments:  # a table, which to show in an error that is caught takes long
            return value
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
    msg = f"{where} is {quoted(value)}; expected {in_words(kind)}"
    raise Mistyped(msg)


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
    if is_dataclass(kind):
        may_lack = {member.name for member in fields(kind) if "may_lack" in member.metadata}
        if value.keys() | may_lack != hints.keys():
            msg = f"{where} has {', '.join(map(str, value))}; expected {', '.join(hints)}"
            raise Mistyped(msg)
        return
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


def names_folder(text: str) -> bool:
    """Tell whether a text is a path, and neither ``user/name@revision`` nor one word."""
    is_path = text.startswith((".", "~", "/")) or ntpath.isabs(text)
    is_on_hub = text.partition("@")[0].count("/") == 1  # a revision may have more
    return is_path or (text.count("/") > 1 and not is_on_hub)


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
    """The annotation without ``| None``."""
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

    def _is_in_range(self, number: float) -> bool:
        low = self.declaration.get("low", -math.inf)
        above = self.declaration.get("above", -math.inf)
        return low <= number <= self.declaration.get("high", math.inf) and number > above

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

    def parse(self, value: object) -> Any:  # noqa: ANN401 - a value of the option
        """Convert a value as config.json needs it.

        Raises
        ------
        OptionError
            If it is not of the type, or outside the choices or bounds.
        """
        if value is None and self.default is None:
            return None
        try:
            parsed = parse(self.type, value, most=math.inf)  # bounds have an error of their own
        except Mistyped as error:
            raise self._refusal(value) from error
        pattern = self.declaration.get("pattern", "$^")
        if self.choices and parsed not in self.choices and not re.fullmatch(pattern, str(parsed)):
            raise self._refusal(value)
        is_several = isinstance(parsed, tuple)
        numbers = parsed if is_several else (parsed,)
        if self.bounds and not (numbers and all(map(self._is_in_range, numbers))):
            words = "one or more numbers, each " if is_several else ""
            msg = f"{self.flag}: {quoted(value)} is out of range; expected {words}{self.bounds}."
            raise OptionError(msg)
        return parsed

    def _refusal(self, value: object) -> OptionError:
        """Make the error of a value that is not of the type or not one of the choices."""
        if self.choices:
            choices = ", ".join(self.choices)
            return OptionError(
                f"{self.flag}: {quoted(value)} is unknown; expected one of {choices}."
            )
        expected = ", ".join(filter(None, (in_words(self.type), self.bounds)))
        return OptionError(f"{self.flag}: {quoted(value)} is not valid; expected {expected}.")


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
            value = declared.parse(getattr(self, declared.name))
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
    def of(cls, others: Options, **changes: Any) -> Self:  # noqa: ANN401 - values of options
        """Make the options from those of another class that has all of them, but for `changes`."""
        names = [declared.name for declared in schema(cls)]
        return cls(**{name: getattr(others, name) for name in names} | changes)

    @classmethod
    def changeable(cls) -> frozenset[str]:
        """Return the names of the options that may differ when a run is resumed."""
        changing = [option for option in schema(cls) if option.declaration.get("may_change")]
        return frozenset(option.name for option in changing)

    def given(self, names: Container[str]) -> str:
        """List the flags of those options among `names` that are not their defaults."""
        flags = []
        for declared in schema(type(self)):
            if declared.name in names and getattr(self, declared.name) != declared.default:
                flags.append(declared.flag)
        return ", ".join(flags)

    def refuse_without(self, needed: str, names: Container[str]) -> None:
        """Refuse options among `names` that were given without what they need."""
        if given := self.given(names):
            msg = (
                f"{given}: given without {needed}; expected it, too. Add {needed}, or leave "
                f"{given} out."
            )
            raise OptionError(msg)

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


def _find_schema(cls: type[Options]) -> tuple[OptionSchema, ...]:
    hints = type_hints(cls)
    return tuple(_option_schema(cls, declared, hints[declared.name]) for declared in fields(cls))


schema: Callable[[Any], tuple[OptionSchema, ...]] = cache(_find_schema)
"""The options of a class in the order of its fields."""


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
    without_none = reduce(or_, alternatives(kind))
    return OptionSchema(declared.name, without_none, default, declaration, group)


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


def flag(name: str) -> str:
    """Spell the name of an option as its command-line flag."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options, group="Hardware"):
    """Options for the device."""

    device: str = option(
        "auto",
        metavar="NAME",
        may_change=True,
        help="Device: auto, cpu, cuda or cuda:N; of encoders also mps, an Apple GPU (not tested).",
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

    def encoder(self, kind: str) -> str:
        """Return the encoder of antibodies, or of antigens, as the user gave it."""
        return str(getattr(self, f"{kind}_encoder"))


class VectorsOf(TypedDict):
    """Choice of the stored vectors of one kind."""

    encoder: str | None
    """None: the only one in the store."""
    pooling: str


@dataclass(frozen=True, kw_only=True)
class VectorOptions(Options, group="Encoders"):
    """Options that choose among stored vectors."""

    antibody_encoder: str | None = option(
        None,
        metavar="NAME",
        default_text="the only one in the store",
        help="Encoder of the antibody vectors.",
    )
    antigen_encoder: str | None = option(
        None,
        metavar="NAME",
        default_text="the only one in the store",
        help="Encoder of the antigen vectors.",
    )
    antibody_pooling: str = option(
        "mean",
        metavar="NAME",
        help="Pooling of the antibody vectors: mean, heavy_mean, light_mean, cdr_mean, cls or "
        "mean@LAYER.",
    )
    antigen_pooling: str = option(
        "mean",
        metavar="NAME",
        help="Pooling of the antigen vectors: mean, cls or mean@LAYER.",
    )

    def vectors_of(self, kind: str) -> VectorsOf:
        """Return the encoder and the pooling of a kind."""
        return {
            "encoder": getattr(self, f"{kind}_encoder"),
            "pooling": getattr(self, f"{kind}_pooling"),
        }
