"""The functions of the package as Python users see them.

A function that takes ``**options`` gets the options as explicit keyword arguments of its signature,
errors and messages that name keyword arguments instead of flags, and a result that is shown in a
few lines.
"""

from __future__ import annotations

import functools
import html
import inspect
import re
import typing
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, ParamSpec, TypeVar

from abag import AbagError
from abag.core.messages import reporting
from abag.core.options import (
    BadOption,
    Options,
    OptionSchema,
    schema,
    unknown_option,
    user_path,
)

P = ParamSpec("P")
R = TypeVar("R")
SHOWN_LINES, SHOWN_WIDTH = 5, 160
_FLAG = re.compile(
    r"(?<![\w-])(?P<flag>--[a-z][a-z-]*[a-z])(?P<value> [\w=-]*\w)?(?P<colon>(?=:))?"
)
_PATH = re.compile(r"\b(Path|TableLike)\b")
"""In the annotation of an argument that may be a path."""
_COMMAND = re.compile(r"\babag [a-z]+ ")


class PublicFunction(NamedTuple):
    """Where a function is, as ``module:name``, and what belongs to it."""

    place: str
    classes: Sequence[str] = ()
    """Option classes whose fields are its keyword arguments; the first that has a name counts."""
    shown_by: str = ""
    """Function that describes the result."""
    without: str = ""
    """Set of the fields of the other classes that are not its arguments."""
    page: str = ""
    """Key of the result with the path of a page, which a notebook shows."""

    def options(self) -> dict[str, OptionSchema]:
        """Return the options by name, without those that the function declares itself."""
        without = self._without()
        own = inspect.signature(resolve_name(self.place)).parameters
        found: dict[str, OptionSchema] = {}
        for number, name in enumerate(self.classes):
            options: type[Options] = resolve_name(name)
            for one in schema(options):
                if one.name not in own and not (number and one.name in without):
                    found.setdefault(one.name, one)
        return found

    def _without(self) -> Container[str]:
        return resolve_name(self.without) if self.without else ()

    def signature(self) -> inspect.Signature:
        """Return the signature of the function, with every option."""
        original = inspect.signature(resolve_name(self.place))
        own = [
            one.replace(annotation=_Source(one.annotation))
            for one in original.parameters.values()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        given = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=_Source(annotation_text(one)),
            )
            for one in self.options().values()
        ]
        returned = _Source(original.return_annotation)
        return original.replace(parameters=own + given, return_annotation=returned)

    def load(self, name: str) -> Callable[..., Any]:
        """Import the function and make its public form."""
        function, signature, options = resolve_name(self.place), self.signature(), self.options()
        describe = resolve_name(self.shown_by) if self.shown_by else None
        function.__qualname__ = name  # which Python's errors of missing arguments name
        names = [*signature.parameters]
        paths = {n for n in names if _PATH.search(signature.parameters[n].annotation)}

        def read(keyword: str, value: Any) -> Any:  # noqa: ANN401 - any argument
            is_path = keyword in paths and isinstance(value, str | PathLike)
            return user_path(value, keyword) if is_path else value

        @functools.wraps(function)
        def public(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401 - see __signature__
            for keyword in keywords.keys() - signature.parameters.keys():
                if keyword in self._without():
                    msg = f"{keyword}: is chosen by {name} itself. Leave it out."
                    raise BadOption(msg)
                raise unknown_option(keyword, list(options.values()), name)
            keywords = {keyword: read(keyword, value) for keyword, value in keywords.items()}
            args = (*map(read, names, args), *args[len(names) :])
            with naming_keywords(options, signature.parameters) as spelled:
                result = function(*args, **keywords)
            if describe is None:
                return result
            return Summary(result, describe, spelled, self.page)

        public.__name__ = public.__qualname__ = name
        public.__signature__ = signature  # type: ignore[attr-defined]
        del public.__wrapped__  # its signature has **options
        return public


@contextmanager
def naming_keywords(
    options: Mapping[str, OptionSchema], names: Container[str] = ()
) -> Iterator[Callable[[str], str]]:
    """Let errors and messages name keyword arguments instead of flags; yield what spells them.

    Flags of `options` become the names of the options, other flags those of `names`.
    """

    def spelled(text: str) -> str:
        return in_python(text, options, names)

    try:
        with reporting(spelled=spelled):
            yield spelled
    except AbagError as error:
        error.args = (spelled(str(error)),)
        raise


def names_keywords(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method for Python users: errors and messages name its keyword arguments."""
    names = inspect.signature(method).parameters

    @functools.wraps(method)
    def public(*args: P.args, **keywords: P.kwargs) -> R:
        with naming_keywords({}, names):
            return method(*args, **keywords)

    return public


class _Source(str):
    """An annotation that signatures show as it is written in the source."""

    __slots__ = ()
    __repr__ = str.__str__


def annotation_text(one: OptionSchema) -> str:
    """Spell the type of an option as Python source."""
    types = one.type if isinstance(one.type, tuple) else (one.type,)
    texts = [_spell(each) for each in types] + ["None"] * (one.default is None)
    return " | ".join(texts)


def _spell(annotation: Any) -> str:  # noqa: ANN401 - any type
    if typing.get_origin(annotation) is typing.Literal:
        return f"Literal[{', '.join(map(repr, typing.get_args(annotation)))}]"
    if typing.get_args(annotation):
        inner = ", ".join("..." if a is ... else _spell(a) for a in typing.get_args(annotation))
        return f"{typing.get_origin(annotation).__name__}[{inner}]"
    return str(annotation.__name__)


def in_python(text: str, options: Mapping[str, OptionSchema], names: Container[str]) -> str:
    """Replace the flags in a message by keyword arguments, except in commands to be run."""
    by_flag = {one.flag: one for one in options.values()}

    def keyword(found: re.Match[str]) -> str:
        given, value = found["flag"], found["value"] or ""
        name = given.removeprefix("--").replace("-", "_")
        one = by_flag.get(given)
        if one is None:
            return (name if name in names else given) + value
        role, _, column = value.strip().partition("=")
        if isinstance(one.default, dict) and column:
            return f'{one.name}={{"{role}": "{column}"}}'
        if value.strip() in one.choices:
            return f'{one.name}="{value.strip()}"'
        if one.type is bool and found["colon"] is None:
            return f"{one.name}=True{value}"
        return one.name + (f"={value.strip()}" if value.strip().isdigit() else value)

    sentences = re.split(r"(?<=[.;]) ", text)
    return " ".join(s if _COMMAND.search(s) else _FLAG.sub(keyword, s) for s in sentences)


class Summary(dict[str, Any]):
    """A summary that shows itself in a few lines; the keys are those of ``--json``."""

    def __init__(
        self,
        values: Mapping[str, Any],
        describe: Callable[[Any], object],
        spelled: Callable[[str], str] = str,
        page: str = "",
    ) -> None:
        super().__init__(values)
        self._describe, self._spelled, self._page = describe, spelled, page

    def __repr__(self) -> str:
        found: Any = self._describe(dict(self))
        lines = found.splitlines() if isinstance(found, str) else list(found)
        keys = f"keys: {', '.join(self)}"
        return shorten([self._spelled(line) for line in lines if line], keys)

    def _repr_html_(self) -> str:
        if self._page:
            return in_frame(Path(self[self._page]).read_text(encoding="utf-8"))
        return as_html(repr(self))


def shorten(lines: Sequence[str], last: str | None = None) -> str:
    """Join the first lines and `last`, `SHOWN_LINES` in all, none longer than `SHOWN_WIDTH`."""
    room = SHOWN_LINES - (last is not None)
    kept = [*lines]
    if len(lines) > room:
        kept[room - 1 :] = [f"... {len(lines) - room + 1} more lines"]
    kept += [] if last is None else [last]
    return "\n".join(k if len(k) <= SHOWN_WIDTH else k[: SHOWN_WIDTH - 4] + " ..." for k in kept)


def in_frame(page: str) -> str:
    """Show a page in a notebook, apart from the styles and scripts of the notebook."""
    style = 'width="100%" height="900" style="border: 0"'
    return f'<iframe srcdoc="{html.escape(page)}" {style}></iframe>'


def as_html(text: str) -> str:
    """Show text in a notebook as it is."""
    return f"<pre>{html.escape(text)}</pre>"
