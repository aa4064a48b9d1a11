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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ParamSpec, TypeAlias, TypeVar

from abag.core.errors import AbagError
from abag.core.messages import reporting
from abag.core.options import OptionSchema, flag, joint_schema, user_path

P = ParamSpec("P")
R = TypeVar("R")
Keywords: TypeAlias = Mapping[str, OptionSchema | str]
"""Options, or names of other arguments, by their flags."""
SHOWN_LINES, SHOWN_WIDTH = 5, 160
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*[a-z])(?: ([\w=-]*\w))?")
_PATH = re.compile(r"\b(Path|TableLike)\b")
"""In the annotation of an argument that may be a path."""
_COMMAND = re.compile(r"\babag [a-z]+ ")


class PublicFunction:
    """A function, what describes its result, and its option classes, all imported when needed."""

    def __init__(self, name: str, module: str, shown_by: str, *classes: str) -> None:
        self.name, self.module, self.shown_by, self.classes = name, module, shown_by, classes

    def function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = self._import(self.name)
        return function

    def describe(self) -> Callable[[Any], Iterable[str]] | None:
        return self._import(self.shown_by) if self.shown_by else None

    def _import(self, name: str) -> Any:  # noqa: ANN401 - a function or a class
        return resolve_name(f"abag.{name}" if ":" in name else f"abag.{self.module}:{name}")

    def _options(self) -> tuple[OptionSchema, ...]:
        return joint_schema([self._import(name) for name in self.classes])

    def signature(self) -> inspect.Signature:
        """Return the signature with every option in place of ``**options``."""
        original = inspect.signature(self.function())
        own = [
            one.replace(annotation=_Source(one.annotation))
            for one in original.parameters.values()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        keyword = inspect.Parameter.KEYWORD_ONLY
        given = [
            inspect.Parameter(
                one.name, keyword, default=one.default, annotation=_Source(annotation_text(one))
            )
            for one in self._options()
            if one.name not in original.parameters
        ]
        returned = _Source(original.return_annotation)
        return original.replace(parameters=own + given, return_annotation=returned)

    def load(self) -> Callable[..., Any]:
        function, describe, signature = self.function(), self.describe(), self.signature()
        names = [*signature.parameters]
        keywords_of: dict[str, OptionSchema | str] = {flag(name): name for name in names}
        keywords_of |= {one.flag: one for one in self._options()}
        paths = {n for n in names if _PATH.search(signature.parameters[n].annotation)}

        def read(keyword: str, value: Any) -> Any:  # noqa: ANN401 - any argument
            is_path = keyword in paths and isinstance(value, str | PathLike)
            return user_path(value, keyword) if is_path else value

        @functools.wraps(function)
        def public(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401 - see __signature__
            keywords = {keyword: read(keyword, value) for keyword, value in keywords.items()}
            args = (*map(read, names, args), *args[len(names) :])
            with naming_keywords(keywords_of) as spelled:
                result = function(*args, **keywords)
            return Summary(result, describe, spelled) if describe else result

        public.__signature__ = signature  # type: ignore[attr-defined]
        del public.__wrapped__  # its signature has **options
        return public


@contextmanager
def naming_keywords(keywords: Keywords) -> Iterator[Callable[[str], str]]:
    """Let errors and messages name keyword arguments instead of flags; yield how."""
    spelled = functools.partial(in_python, keywords=keywords)
    try:
        with reporting(spelled=spelled):
            yield spelled
    except AbagError as error:
        error.args = (spelled(str(error)),)
        raise


def names_keywords(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method for Python users: errors and messages name its keyword arguments."""
    keywords_of = {flag(name): name for name in inspect.signature(method).parameters}

    @functools.wraps(method)
    def public(*args: P.args, **keywords: P.kwargs) -> R:
        with naming_keywords(keywords_of):
            return method(*args, **keywords)

    return public


class _Source(str):
    """An annotation that signatures show as it is written in the source."""

    __slots__ = ()
    __repr__ = str.__str__


def annotation_text(one: OptionSchema) -> str:
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


def in_python(text: str, keywords: Keywords) -> str:
    """Replace the flags in a message by keyword arguments, except in commands to be run."""

    def keyword(found: re.Match[str]) -> str:
        one, value = keywords.get(found[1], found[1]), found[2] or ""
        name, choices = (one, ()) if isinstance(one, str) else (one.name, one.choices)
        key, _, item = value.partition("=")
        if item and name == "columns":
            return f'{name}={{"{key}": "{item}"}}'
        if value in choices:
            return f'{name}="{value}"'
        if value.isdigit() and not name.startswith("-"):
            return f"{name}={value}"
        return f"{name} {value}" if value else name

    sentences = re.split(r"(?<=[.;]) ", text)
    return " ".join(s if _COMMAND.search(s) else _FLAG.sub(keyword, s) for s in sentences)


class Summary(dict[str, Any]):
    """A summary that shows itself in a few lines; the keys are those of ``--json``."""

    def __init__(
        self,
        values: Mapping[str, Any],
        describe: Callable[[Any], object],
        spelled: Callable[[str], str] = str,
    ) -> None:
        super().__init__(values)
        self._describe, self._spelled = describe, spelled

    def _lines(self) -> list[str]:
        found: Any = self._describe(dict(self))
        lines = found.splitlines() if isinstance(found, str) else list(found)
        return [self._spelled(line) for line in lines if line]

    def __repr__(self) -> str:
        return shorten(self._lines(), f"keys: {', '.join(self)}")

    def _repr_html_(self) -> str:
        if "report" not in self:
            return as_html("\n".join([*self._lines(), f"keys: {', '.join(self)}"]))
        page = html.escape(Path(self["report"]).read_text(encoding="utf-8"))
        # a frame keeps the styles and scripts of the page apart from those of the notebook
        return f'<iframe srcdoc="{page}" width="100%" height="900" style="border: 0"></iframe>'


def shorten(lines: Sequence[str], last: str | None = None) -> str:
    """Join the first lines and `last`, `SHOWN_LINES` in all, none longer than `SHOWN_WIDTH`."""
    room = SHOWN_LINES - (last is not None)
    kept = [*lines]
    if len(lines) > room:
        kept[room - 1 :] = [f"... {len(lines) - room + 1} more lines"]
    kept += [] if last is None else [last]
    return "\n".join(k if len(k) <= SHOWN_WIDTH else k[: SHOWN_WIDTH - 4] + " ..." for k in kept)


def as_html(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"
