"""Options: each one is declared once, as a field of a frozen dataclass.

A declaration holds the type, default, help text, bounds and choices of an option. Validation,
command-line flags, ``config.json`` and the reference pages are derived from it. This module and
the modules that declare options import neither torch nor pandas, so that help is instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from numbers import Real
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as resolve_annotations

from abag import AbagError

T = TypeVar("T")
Choices = Sequence[str] | Callable[[], Sequence[str]]


class BadOption(AbagError):
    """An option is unknown, or its value is invalid."""


class Bounds(NamedTuple):
    """Range of a number: at least `low`, more than `above`, at most `high`."""

    low: float | None = None
    above: float | None = None
    high: float | None = None

    def __contains__(self, value: object) -> bool:
        """Tell whether a value is a number inside the range."""
        if not isinstance(value, Real):
            return False
        number = float(value)
        return (
            (self.low is None or number >= self.low)
            and (self.above is None or number > self.above)
            and (self.high is None or number <= self.high)
        )

    def __str__(self) -> str:
        """Spell the range as help shows it, such as ``0<x<=1``; empty without a bound."""
        if self.high is None:
            return "" if self.low is None and self.above is None else f"x{self._lower('>')}"
        lower = f"{self.low:g}<=" if self.low is not None else ""
        return f"{lower or ('' if self.above is None else f'{self.above:g}<')}x<={self.high:g}"

    def _lower(self, sign: str) -> str:
        return f"{sign}={self.low:g}" if self.low is not None else f"{sign}{self.above:g}"

    def expected(self) -> str:
        """Spell the range in words."""
        words = {"at least": self.low, "more than": self.above, "at most": self.high}
        return " and ".join(f"{word} {x:g}" for word, x in words.items() if x is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What `option` adds to a dataclass field."""

    help: str
    bounds: Bounds
    choices: Choices | None
    default_text: str | None
    metavar: str | None
    flag: str | None
    python_only: bool
    may_change: bool
    click: Mapping[str, object]


def option(
    default: T = MISSING,  # type: ignore[assignment]
    *,
    help: str,
    factory: Callable[[], T] = MISSING,  # type: ignore[assignment]
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: Choices | None = None,
    default_text: str | None = None,
    metavar: str | None = None,
    flag: str | None = None,
    python_only: bool = False,
    may_change: bool = False,
    click: Mapping[str, object] | None = None,
) -> T:
    """Declare an option as a field of an `Options` class.

    Parameters
    ----------
    default, factory
        As for `dataclasses.field`; without either, the option is required.
    help : str
        One line for the command line and the reference pages.
    low, above, high : float, optional
        Bounds of a number, or of each number of a tuple that must not be empty.
    choices : sequence of str or callable, optional
        Valid values; by default those of a ``Literal`` annotation. A callable is asked each time,
        so that a registry can supply them.
    default_text : str, optional
        What help shows as the default, where the value itself does not tell.
    metavar, flag : str, optional
        Placeholder and name on the command line, where they differ from the usual ones.
    python_only : bool
        Whether the option has no flag.
    may_change : bool
        Whether the option may differ when a run is resumed.
    click : mapping, optional
        Further arguments of ``click.Option``.
    """
    declaration = Declaration(
        help=help,
        bounds=Bounds(low, above, high),
        choices=choices,
        default_text=default_text,
        metavar=metavar,
        flag=flag,
        python_only=python_only,
        may_change=may_change,
        click=click or {},
    )
    declared: T = field(  # type: ignore[call-overload]
        default=default, default_factory=factory, metadata={"option": declaration}
    )
    return declared


@dataclass(frozen=True, slots=True)
class OptionSchema:
    """One option of an `Options` class, with its annotation resolved."""

    name: str
    type: Any
    """Its annotation without ``| None``."""
    default: Any
    """`dataclasses.MISSING` if the option is required."""
    declaration: Declaration

    @property
    def flag(self) -> str:
        """Return its name on the command line."""
        return self.declaration.flag or flag(self.name)

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the valid values; empty if it is not limited to a few."""
        declared = self.declaration.choices
        if declared is not None:
            return tuple(declared() if callable(declared) else declared)
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def default_text(self) -> str:
        """Spell the default as help shows it; empty if there is nothing to show."""
        if self.declaration.default_text is not None:
            return self.declaration.default_text
        if isinstance(self.default, bool):
            return self.name.replace("_", "-") if self.default else ""
        if isinstance(self.default, Real):
            return f"{self.default:g}"
        return self.default if isinstance(self.default, str) else ""

    def check(self, value: object) -> None:
        """Raise `BadOption` for an invalid value."""
        if value is None and self.default is None:
            return
        if self.choices and value not in self.choices:
            msg = f"{self.flag}: {value!r} is unknown; expected one of {', '.join(self.choices)}."
            raise BadOption(msg)
        bounds = self.declaration.bounds
        numbers = value if isinstance(value, tuple) else (value,)
        if any(bound is not None for bound in bounds) and (
            not numbers or any(number not in bounds for number in numbers)
        ):
            words = "one or more numbers of " if get_origin(self.type) is tuple else ""
            msg = f"{self.flag}: {value} is out of range; expected {words}{bounds.expected()}."
            raise BadOption(msg)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all option classes: validates every field against its declaration.

    Raises
    ------
    BadOption
        If a value is out of range, not one of the choices, or contradicts another option.
    """

    def __post_init__(self) -> None:
        """Validate each field; a subclass that checks combinations calls this first."""
        for one in schema(type(self)):
            one.check(getattr(self, one.name))

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any], command: str) -> Self:
        """Make the options from keyword arguments.

        Raises
        ------
        BadOption
            If a name is unknown or a value is invalid.
        """
        known = [one.name for one in schema(cls)]
        unknown = sorted(options.keys() - set(known))
        if unknown:
            msg = (
                f"{flag(unknown[0])}: no such option of {command}; "
                f"expected one of {', '.join(sorted(known))}."
            )
            raise BadOption(msg)
        return cls(**options)

    @classmethod
    def take(cls, options: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Make the options from those keyword arguments that they know; return the others too.

        Raises
        ------
        BadOption
            If a value is invalid.
        """
        known = {one.name for one in schema(cls)}
        others = {name: value for name, value in options.items() if name not in known}
        return cls(**{n: value for n, value in options.items() if n in known}), others

    @classmethod
    def changeable(cls) -> frozenset[str]:
        """Return the names of the options that may differ when a run is resumed."""
        return frozenset(one.name for one in schema(cls) if one.declaration.may_change)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        values = asdict(self)
        return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


def schema(cls: type[Options]) -> tuple[OptionSchema, ...]:
    """Return the options of a class in the order of its fields."""
    return _resolve(cls)  # type: ignore[arg-type]  # mypy doubts that a class can be hashed


@cache
def _resolve(cls: type[Options]) -> tuple[OptionSchema, ...]:
    types = resolve_annotations(cls)
    return tuple(
        OptionSchema(
            one.name,
            _without_none(types[one.name]),
            one.default if one.default_factory is MISSING else one.default_factory(),
            one.metadata["option"],
        )
        for one in fields(cls)
    )


def _without_none(annotation: Any) -> Any:  # noqa: ANN401 - any type
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    kept = tuple(one for one in get_args(annotation) if one is not NoneType)
    return kept[0] if len(kept) == 1 else kept


def flag(name: str) -> str:
    """Spell the name of an option as its command-line flag."""
    return "--" + name.replace("_", "-")


def describe(cls: type[Options]) -> list[dict[str, str]]:
    """Return one row per option for the reference pages: name, values, default and help."""
    return [
        {
            "name": one.name,
            "values": ", ".join(one.choices) or str(one.declaration.bounds),
            "default": one.default_text,
            "help": one.declaration.help,
        }
        for one in schema(cls)
    ]
