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
from functools import reduce
from numbers import Real
from operator import or_
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, Required, Self, TypedDict, TypeVar, Unpack

from abag.core.errors import OptionError
from abag.core.messages import quoted
from abag.core.schema import Mistyped, alternatives, in_words, parse, type_hints

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
    hints = type_hints(cls)
    return tuple(_option_schema(cls, declared, hints[declared.name]) for declared in fields(cls))


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

    def encoder(self, kind: str) -> str:
        """Return the encoder of antibodies, or of antigens, as the user gave it."""
        return self.antibody_encoder if kind == "antibody" else self.antigen_encoder
