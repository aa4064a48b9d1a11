"""mkdocs hooks: add the pages outside docs/ to the site and adjust their links."""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

    from abag.core.options import Options

ROOT = Path(__file__).parent.parent
RESULTS = "benchmarks/results"
PACKAGE = TemporaryDirectory(prefix="abag-docs-")
"""Contains a link `abag` to this checkout, whose source the Python reference reads."""
LOG = logging.getLogger("mkdocs.hooks.abag")
_EXAMPLE = re.compile(r"<p>Example:\n(.*?)</p>", re.DOTALL)
_SKIP = re.compile(r'^(```\w+) data-skip="[^"]*"$', re.MULTILINE)
_OPTIONS = re.compile(r"^<!-- options of (\S+) -->$", re.MULTILINE)
_ENCODERS = "<!-- encoders -->"
_TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def places() -> dict[str, str]:
    """Map the repository paths of pages outside docs/ to their paths in the site."""
    results = [p for p in (ROOT / RESULTS).iterdir() if p.suffix in (".md", ".png")]
    notebooks = (ROOT / "notebooks").glob("*.ipynb")
    return {
        "README.md": "index.md",
        "CHANGELOG.md": "changelog.md",
        "CONTRIBUTING.md": "contributing.md",
        "CITATION.cff": "CITATION.cff",
        "Dockerfile": "Dockerfile",
        **{f"{RESULTS}/{p.name}": f"measurements/{p.name}" for p in sorted(results)},
        **{f"notebooks/{p.name}": f"notebooks/{p.name}" for p in sorted(notebooks)},
    }


def on_startup(command: str, dirty: bool) -> None:
    """Make the checkout importable as abag, before any installed version."""
    (Path(PACKAGE.name) / "abag").symlink_to(ROOT)
    sys.path.insert(0, PACKAGE.name)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/ and a list of the measurements."""
    for path, uri in places().items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "measurements/index.md", content=_measurements()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adjust links that leave docs/, code with pipes in tables and `data-skip` of code fences.

    With the attribute, Markdown would not recognize the fence. A pipe in the code of a table has to
    be escaped on GitHub, where the backslash is not shown, but here it would be.
    """
    listing = "measurements/index.md"
    to_site = {**places(), RESULTS: listing, f"{RESULTS}/index.md": listing}
    to_tree = {uri: path for path, uri in to_site.items()}
    uri = page.file.src_uri
    here = posixpath.dirname(to_tree.get(uri, f"docs/{uri}"))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[0]))
        place = to_site.get(target.rstrip("/"), target.removeprefix("docs/"))
        if files.get_file_from_path(place) is None:
            LOG.warning("%s: link to %s, which is not in the site", uri, target)
        return posixpath.relpath(place, posixpath.dirname(uri))

    markdown = markdown.replace(_ENCODERS, encoder_table())
    markdown = _OPTIONS.sub(lambda m: _option_table(resolve_name(m[1])), markdown)
    markdown = _TABLE_ROW.sub(lambda row: _CODE.sub(_without_escapes, row[0]), markdown)
    return _LINK.sub(moved, _SKIP.sub(r"\1", markdown))


def _without_escapes(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def _option_table(cls: type[Options]) -> str:
    """Lay out the options of a class: name, meaning, valid values and default."""
    from abag.core.options import schema

    lines = ["| Option | Meaning | Values | Default |", "|---|---|---|---|"]
    for one in schema(cls):
        values = ", ".join(one.choices) or one.bounds
        cells = [f"`{one.name}`", one.declaration["help"], values, one.default_text]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def encoder_table() -> str:
    """Lay out the encoders that have a short name."""
    from abag.embed.encoders.families import FAMILIES
    from abag.embed.encoders.registry import ALIASES

    lines = [
        "| Name | Source | Parameters | Width | Antibodies | Licence of the weights |",
        "|---|---|---:|---:|---|---|",
    ]
    for name, alias in ALIASES.items():
        pairs = FAMILIES[alias.family].vocabulary.separator is not None
        source = f"[{alias.hub_name}](https://huggingface.co/{alias.hub_name})"
        size = f"{alias.parameters / 1e6:,.0f} M" if alias.parameters else ""
        cells = [
            f"`{name}`", source if alias.hub_name else "built in", size, str(alias.width or ""),
            "pair" if pairs else "chain by chain",
            alias.licence + ("" if alias.commercial else ": **no commercial use**"),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Format the examples in the help texts of the commands as code."""
    if page.file.src_uri != "reference/cli.md":
        return html
    return _EXAMPLE.sub(lambda m: f"<p>Example:</p><pre><code>{_dedented(m[1])}</code></pre>", html)


def _dedented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def _measurements() -> str:
    """Return a page that links to every report by its title."""
    lines = ["# Measurements", "", "Reports with command, hardware, versions and date.", ""]
    for path, uri in places().items():
        if path.startswith(RESULTS) and uri.endswith(".md"):
            title = (ROOT / path).read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            lines.append(f"- [{title}]({Path(path).name})")
    return "\n".join(lines) + "\n"
