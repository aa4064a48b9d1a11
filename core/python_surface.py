"""The functions of the package as Python users see them.

A function that takes ``**options`` gets the options as explicit keyword arguments of its signature,
errors and messages that name keyword arguments instead of flags, and a result that is shown in a
few lines.
"""

from __future__ import annotations

import functools
import html
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from os import PathLike
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ParamSpec, TypeAlias, TypeVar

from abag.core.errors import FLAG, AbagError, OptionError
from abag.core.messages import SHELL_APOSTROPHE, quoted, reporting
from abag.core.options import OptionSchema, alternatives, flag, joint_schema, user_path

P = ParamSpec("P")
R = TypeVar("R")
Keywords: TypeAlias = Mapping[str, OptionSchema | str]
"""Options, or names of other arguments, by their flags."""
SHOWN_LINES = 5
"""Most lines of a result in a notebook or interpreter."""
SHOWN_WIDTH = 160
"""Most characters of such a line."""
_QUOTED = rf"'[^']*'(?:{SHELL_APOSTROPHE[1:-1]}'[^']*')*"
_FLAG_AND_VALUE = re.compile(rf"({FLAG.pattern})(?: ({_QUOTED}|[\w=-]*\w))?")
_BLANK = "\ue000"
"""Stands for a blank inside the value of a flag; a private character, which no message has."""
_PATH = re.compile(r"\b(Path|AnyTables?)\b")
"""In the annotation of an argument that may be a path."""
_TABLES = {
    "TableLike": "AnyTables",
    "Path | str | pd.DataFrame": "AnyTable",
    "Path | str | Any": "AnyTable",
}
"""Annotations of tables as functions and options have them, and as callers may pass them."""
_IN_MEMORY = " | pd.DataFrame"
"""In the annotation of a result that is a table of the caller's kind if no file is written."""
_PAGES = {"fit": "report", "report": "report", "scan": "heat_map"}
"""Key of the page that a notebook shows for the result of a function."""
_REPORTING = (
    inspect.Parameter(
        "say",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation="Callable[[str], None] | Literal[False] | None",
    ),
    inspect.Parameter("progress", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool"),
)
"""Arguments of every public function: where its messages go (None: to stderr; False: nowhere), and
whether bars are drawn on stderr."""
_COMMAND = re.compile(r"\babag [a-z]+ ")
"""Where a command to be run begins in a sentence; its flags stay as they are."""


class PublicFunction:
    """A public function, the one that describes its result, and its option classes.

    They are imported when they are needed, so that others need not wait for them.

    Parameters
    ----------
    module : str
        Module of the function, below the root package.
    shown_by : str
        Name of the function that describes the result, in `module` or as ``module:name``; empty if
        the result describes itself.
    *classes : str
        Its option classes, as ``module:name``.
    """

    def __init__(self, name: str, module: str, shown_by: str, *classes: str) -> None:
        self.name = name
        self.module = module
        self.shown_by = shown_by
        self.classes = classes

    def function(self) -> Callable[..., Any]:
        """Import the function as it is written."""
        function: Callable[..., Any] = self._import(self.name)
        return function

    def describe(self) -> Callable[[Any], Iterable[str]] | None:
        """Import what describes the result; None if the result describes itself."""
        return self._import(self.shown_by) if self.shown_by else None

    def _import(self, name: str) -> Any:  # noqa: ANN401 - a function or a class
        return resolve_name(f"abag.{name}" if ":" in name else f"abag.{self.module}:{name}")

    def _options(self) -> tuple[OptionSchema, ...]:
        return joint_schema([self._import(name) for name in self.classes])

    def signature(self) -> inspect.Signature:
        """Return the signature with every option in place of ``**options``."""
        original = inspect.signature(self.function())
        taken = {*original.parameters, "progress"}
        options = [option for option in self._options() if option.name not in taken]
        parameters = [
            parameter.replace(annotation=_public_annotation(parameter.annotation))
            for parameter in with_options(original, options, _REPORTING).parameters.values()
        ]
        returned = _Source(original.return_annotation)
        if returned.endswith(_IN_MEMORY):  # its type depends on the arguments
            returned = _Source("Any")
        return original.replace(parameters=parameters, return_annotation=returned)

    def draws_bars(self) -> bool:
        """Tell whether the function as it is written takes ``progress``."""
        names = {*inspect.signature(self.function()).parameters}
        return "progress" in names | {option.name for option in self._options()}

    def load(self) -> Callable[..., Any]:
        """Make the function that users call, with the signature of `signature`."""
        from abag.core.frames import as_it_came, as_pandas, is_frame, is_table  # import pandas

        function = self.function()
        describe = self.describe()
        signature = self.signature()
        names = [*signature.parameters]
        keywords_of: dict[str, OptionSchema | str] = {flag(name): name for name in names}
        keywords_of |= {option.flag: option for option in self._options()}
        annotations = {name: signature.parameters[name].annotation for name in names}
        paths = {name for name in names if _PATH.search(annotations[name])}
        tables = [name for name in names if "AnyTable" in annotations[name]]
        draws_bars = self.draws_bars()

        def read(keyword: str, value: Any) -> Any:  # noqa: ANN401 - any argument
            if keyword in paths and isinstance(value, str | PathLike):
                return user_path(value, keyword)
            return as_pandas(value, keyword) if keyword in tables else value

        @functools.wraps(function)
        def public(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401 - see __signature__
            given = {**dict(zip(names, args, strict=False)), **keywords}
            say = keywords.pop("say", None)
            if not (say is None or say is False or callable(say)):
                msg = (
                    f"say: {quoted(say)}; expected a function such as print, or False for silence."
                )
                raise OptionError(msg)
            progress = (
                keywords.get("progress", False) if draws_bars else keywords.pop("progress", False)
            )
            with naming_keywords(keywords_of) as spelled:
                keywords = {keyword: read(keyword, value) for keyword, value in keywords.items()}
                args = (*map(read, names, args), *args[len(names) :])
                with reporting(say or None, bars=progress, silent=True if say is False else None):
                    result = function(*args, **keywords)
                    if inspect.isgenerator(result):  # its steps report as the call does
                        result = _steps(result, copy_context())
            if is_frame(result):
                came = [given[name] for name in tables if is_table(given.get(name))]
                return as_it_came(result, came[0] if came else None)
            page = _PAGES.get(self.name)
            return Summary(result, describe, spelled, page) if describe else result

        public.__signature__ = signature  # type: ignore[attr-defined]
        del public.__wrapped__  # its signature has **options
        return public


def with_options(
    signature: inspect.Signature,
    options: Iterable[OptionSchema],
    others: Iterable[inspect.Parameter] = (),
) -> inspect.Signature:
    """Return a signature with `others` and every option in place of ``**options``."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for parameter in signature.parameters.values():
        is_replaced = parameter.name in {other.name for other in others}
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and not is_replaced:
            parameters.append(parameter)
    parameters += others
    for option in options:
        text = annotation_text(option)
        parameters.append(
            inspect.Parameter(option.name, keyword, default=option.default, annotation=text)
        )
    return signature.replace(parameters=parameters)


@contextmanager
def naming_keywords(keywords: Keywords) -> Iterator[Callable[[str], str]]:
    """Let errors and messages in the block name keyword arguments instead of flags.

    Yields the function that rewrites a text.
    """
    spelled = functools.partial(in_python, keywords=keywords)
    try:
        with reporting(spelled=spelled):
            yield spelled
    except AbagError as error:
        error.args = (spelled(str(error)),)
        error.options = tuple(_keyword(keywords, name) for name in error.options)
        raise


def names_keywords(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method for Python users: errors and messages name its keyword arguments."""
    keywords_of = {flag(name): name for name in inspect.signature(method).parameters}

    @functools.wraps(method)
    def public(*args: P.args, **keywords: P.kwargs) -> R:
        with naming_keywords(keywords_of):
            return method(*args, **keywords)

    return public


def _steps(steps: Iterator[R], context: Context) -> Iterator[R]:
    """Yield what a generator does, each step of which runs in a context."""
    while True:
        try:
            step = context.run(next, steps)
        except StopIteration:
            return
        yield step


def _public_annotation(text: str) -> _Source:
    """Return an annotation, with tables of all kinds where a function takes those of pandas."""
    for written, public in _TABLES.items():
        text = text.replace(written, public)
    return _Source(text)


class _Source(str):
    """An annotation that signatures show as it is written in the source."""

    __slots__ = ()
    __repr__ = str.__str__


def annotation_text(option: OptionSchema) -> str:
    """Spell the type of an option, with ``None`` if that is its default."""
    types = alternatives(option.type)
    texts = [_spell(kind) for kind in types]
    if option.default is None:
        texts.append("None")
    return " | ".join(texts)


def _spell(annotation: Any) -> str:  # noqa: ANN401 - any type
    if annotation is ...:  # in tuple[int, ...]
        return "..."
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if arguments:
        return f"{origin.__name__}[{', '.join(map(_spell, arguments))}]"
    return str(annotation.__name__)


def _keyword(keywords: Keywords, flag_or_name: str) -> str:
    """Return the keyword argument of a flag; what is no flag of these stays as it is."""
    named = keywords.get(flag_or_name, flag_or_name)
    return named if isinstance(named, str) else named.name


def in_python(text: str, keywords: Keywords) -> str:
    """Replace the flags in a message by keyword arguments, except in commands to be run."""

    def keyword(match: re.Match[str]) -> str:
        option = keywords.get(match[1])
        written = match[2] or ""
        is_quoted = written.startswith("'")
        value = written[1:-1].replace(SHELL_APOSTROPHE, "'") if is_quoted else written
        name = _keyword(keywords, match[1])
        choices = option.choices if isinstance(option, OptionSchema) else ()
        key, equals, item = value.partition("=")
        if equals and name == "columns":
            return f"{name}={{{json.dumps(key)}: {json.dumps(item, ensure_ascii=False)}}}"
        is_placeholder = value.isupper() and value.isalpha()
        if value in choices or (is_quoted and match[1] in keywords):
            said = json.dumps(value, ensure_ascii=False)
        elif (value.isdigit() or is_placeholder) and not name.startswith("-"):
            said = value
        else:
            return f"{name} {value}" if value else name
        takes_several = isinstance(option, OptionSchema) and isinstance(option.default, tuple)
        return f"{name}=[{said}]" if takes_several else f"{name}={said}"

    def unbroken(match: re.Match[str]) -> str:
        return f"{match[1]} {match[2].replace(' ', _BLANK)}" if match[2] else match[0]

    # the name of a column may hold what ends a sentence
    sentences = re.split(r"(?<=[.;]) ", _FLAG_AND_VALUE.sub(unbroken, text))
    for i, sentence in enumerate(sentences):
        command = _COMMAND.search(sentence)
        start = command.start() if command else len(sentence)
        sentences[i] = _FLAG_AND_VALUE.sub(keyword, sentence[:start]) + sentence[start:]
    return " ".join(sentences).replace(_BLANK, " ")


class Summary(dict[str, Any]):
    """A summary that shows itself in a few lines; the keys are those of ``--json``.

    A notebook shows the page whose path has the key `page`, if there is one.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        describe: Callable[[Any], object],
        spelled: Callable[[str], str] = str,
        page: str | None = None,
    ) -> None:
        super().__init__(values)
        self._page = page
        self._describe = describe
        self._spelled = spelled

    def _lines(self) -> list[str]:
        described: Any = self._describe(dict(self))
        lines = described.splitlines() if isinstance(described, str) else list(described)
        return [self._spelled(line) for line in lines if line]

    def __repr__(self) -> str:
        return shorten(self._lines(), f"keys: {', '.join(self)}")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        path = self.get(self._page or "")
        if not path:
            return as_html("\n".join([*self._lines(), f"keys: {', '.join(self)}"]))
        page = html.escape(Path(path).read_text(encoding="utf-8"))
        # a frame keeps the styles and scripts of the page apart from those of the notebook
        return f'<iframe srcdoc="{page}" width="100%" height="900" style="border: 0"></iframe>'


def shorten(lines: Sequence[str], last: str | None = None) -> str:
    """Join the first lines and `last`, `SHOWN_LINES` in all, none longer than `SHOWN_WIDTH`."""
    room = SHOWN_LINES if last is None else SHOWN_LINES - 1
    shown = [*lines]
    if len(lines) > room:
        shown[room - 1 :] = [f"... {len(lines) - room + 1} more lines"]
    if last is not None:
        shown.append(last)
    cut = SHOWN_WIDTH - 4
    return "\n".join(x if len(x) <= SHOWN_WIDTH else f"{x[:cut]} ..." for x in shown)


def as_html(text: str) -> str:
    """Show a text in a notebook as it is, in a monospaced font."""
    return f"<pre>{html.escape(text)}</pre>"
