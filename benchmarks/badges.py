"""Draw the badges of the README from pyproject.toml, so that they need no server.

python benchmarks/badges.py [--out docs/badges]
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
BADGES = ROOT / "docs/badges"
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" \
aria-label="{name}: {value}" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">
<rect width="{width}" height="20" rx="3" fill="#57606a"/>
<path d="M{left} 0h{bar}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{bar}z" fill="#2166ac"/>
<g fill="#fff" lengthAdjust="spacingAndGlyphs">
<text x="7" y="14" textLength="{name_width}">{name}</text>
<text x="{value_x}" y="14" textLength="{value_width}">{value}</text>
</g>
</svg>
"""
LETTER = 6.6
"""Mean width of a letter, in pixels."""


def draw(name: str, value: str) -> str:
    """Return a badge as SVG. The stated lengths of its texts hold in any font."""
    name_width = round(LETTER * len(name))
    value_width = round(LETTER * len(value))
    left = name_width + 14
    return SVG.format(
        name=name,
        value=value,
        name_width=name_width,
        value_width=value_width,
        left=left,
        value_x=left + 7,
        bar=value_width + 11,
        width=left + value_width + 14,
    )


def badges() -> dict[str, str]:
    """Return every badge by file name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = project["requires-python"].removeprefix(">=")
    facts = {
        "python": ("python", f"{python} or newer"),
        "licence": ("licence", project["license"]),
        "notebook": ("notebook", "for Colab"),
    }
    return {f"{file}.svg": draw(*fact) for file, fact in facts.items()}


def main():
    """Write the badges to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BADGES)
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    for name, svg in badges().items():
        (args.out / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
