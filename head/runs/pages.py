"""Pages and texts that are rendered from the files in ``templates``.

A page loads nothing. Names in its data come from tables that others may have written: HTML is
escaped, and the page lets a browser run its own script only.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from abag import __version__
from abag.core.messages import printable


def render_page(
    template: str, data: Mapping[str, object], scripts: Sequence[str], **values: object
) -> str:
    """Render a page of ``templates``; values are escaped, and `data` is JSON for its scripts."""
    script = "\n".join(map(_read, scripts))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return render_template(
        template,
        version=__version__,
        style=Markup(_read("report.css")),
        # htmlsafe: no name can end the script
        data=htmlsafe_json_dumps(_shown(data), allow_nan=False, separators=(",", ":")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",  # the only script that the page's policy allows
        **values,
    )


def render_template(name: str, **values: object) -> str:
    """Render a file of ``templates``; values are escaped in HTML."""
    return _environment().get_template(name).render(**values)


@cache  # compiling a template takes longer than rendering it
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("abag.head.runs", "templates"),
        # the card is Markdown, which the filters `plain` and `code` escape
        autoescape=select_autoescape(["html.j2"], default=False),
        undefined=StrictUndefined,  # an error instead of an empty cell
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": _format_cell,
        "label": lambda name: str(name).replace("_", " "),
        "plain": plain_markdown,
        "code": _code_span,
    }
    return environment


def _read(name: str) -> str:
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _shown(value: Any) -> Any:  # noqa: ANN401
    """Write control and bidirectional characters of names as codes, also inside of lists."""
    if isinstance(value, Mapping):
        return {_shown(name): _shown(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(entry) for entry in value]
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    # pages separate words by no-break spaces
    return "\N{NO-BREAK SPACE}".join(map(printable, value.split("\N{NO-BREAK SPACE}")))


def plain_markdown(text: object) -> str:
    """Escape what Markdown reads as HTML, emphasis, code or a link: names are not ours."""
    line = " ".join(printable(str(text)).split())
    return re.sub(r"[\\`*<&|]|(?<=\])\(", r"\\\g<0>", line)


def _code_span(text: object) -> str:
    """Write text as code in Markdown, between more backticks than it has in a row."""
    shown = printable(str(text)).replace("\n", " ")
    runs = re.findall("`+", shown)
    fence = "`" * (len(max(runs, default="")) + 1)
    return f"{fence} {shown} {fence}" if runs else f"{fence}{shown}{fence}"


def _format_cell(value: object) -> object:
    if value is None:
        return "–"
    if isinstance(value, str):  # an interval stays on one line
        return re.sub(r"\[(\S+), (\S+)\]", "[\\1,\N{NO-BREAK SPACE}\\2]", value)
    return f"{value:.3f}" if isinstance(value, float) else value
