"""Jinja templates of the files that people read: the report and the model card."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


def render_template(name: str, **values: object) -> str:
    """Render a file of ``abag/head/report/templates``; values are escaped in HTML."""
    environment = Environment(
        loader=PackageLoader("abag.head.report", "templates"),
        autoescape=select_autoescape(["html.j2"], default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": format_cell, "label": lambda name: name.replace("_", " ")}
    return environment.get_template(name).render(**values)


def format_cell(value: object) -> str:
    """Format a table cell: three decimals for a float, a dash for an undefined value."""
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
