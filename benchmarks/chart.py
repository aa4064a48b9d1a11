"""Draw the speed chart of the README from a report of bench_encoders.py.

    python benchmarks/chart.py [REPORT] [--out FILE]

The SVG follows the light or dark setting of the browser.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from jinja2 import Environment

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "benchmarks/results/encoders_h200_2026-11-22.md"
CHART = ROOT / "docs/speed.svg"
ENCODERS = {"igt5": "IgT5, antibodies", "esm2-650m": "ESM-2 650M, antigens"}
PATHS = {
    "abag packed, 65536 tokens per batch": "abag",
    "the same under torch.compile": "transformers, sorted, torch.compile",
    "transformers, SDPA, sorted, 16k-token batches": "transformers, sorted batches",
    "the old loop: one sequence a call, autocast": "one sequence per call",
}
LEFT = 265
WIDE = 360
ROW = 24
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {{ height }}" role="img" font-size="14"
  font-family="system-ui, sans-serif" aria-label="Sequences encoded per second: {{ summary }}">
<style>
  text { fill: #24292f } .bar { fill: #9aa7b4 } .abag { fill: #2166ac } .strong { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #d0d7de } .bar { fill: #596673 } .abag { fill: #4e9de0 }
  }
</style>
{% for line in lines %}
{%- if line.label is not defined %}
<text class="strong" x="0" y="{{ line.y }}">{{ line.title }}: sequences per second</text>
{%- else %}
<text x="{{ left - 10 }}" y="{{ line.y }}" text-anchor="end">{{ line.label }}</text>
<rect class="{{ 'abag' if line.label == 'abag' else 'bar' }}" x="{{ left }}" y="{{ line.y - 14 }}" \
width="{{ '%.1f' % line.width }}" height="18" rx="2"/>
<text x="{{ '%.1f' % (left + line.width + 8) }}" y="{{ line.y }}">{{ '{:,.0f}'.format(line.speed) }}\
{{ ' (%.1fx)' % line.ratio if line.label == 'abag' }}</text>
{%- endif %}
{%- endfor %}
<text x="0" y="{{ height - 8 }}" font-size="12">{{ note }}</text>
</svg>
"""


def speeds(report: str) -> dict[str, dict[str, float]]:
    """Return sequences per second by encoder and path of a report in Markdown."""
    speeds_of: dict[str, dict[str, float]] = {}
    for section in report.split("\n## ")[1:]:
        rows = [line.strip("|").split("|") for line in section.splitlines() if line[:1] == "|"]
        speeds_of[section.split("\n")[0]] = {r[0].strip(): float(r[1]) for r in rows[2:]}
    return speeds_of


def draw(report: str) -> str:
    """Return the chart as SVG."""
    measured = speeds(report)
    lines = []
    summary = []
    y = 16
    for encoder, title in ENCODERS.items():
        bars = {label: measured[encoder][path] for path, label in PATHS.items()}
        best_other = max(speed for label, speed in bars.items() if label != "abag")
        ratio = bars["abag"] / best_other
        summary.append(f"{title}: {ratio:.1f} times the fastest other path")
        lines.append({"title": title, "y": y})
        for label, speed in bars.items():
            y += ROW
            width = WIDE * speed / max(bars.values())
            lines.append({"label": label, "speed": speed, "width": width, "ratio": ratio, "y": y})
        y += ROW + 14
    device = report.split("\n")[0].removeprefix("# Encoders on ")
    note = f"{device}; bf16, random weights of the real shapes; x: the fastest other path"
    chart = Environment(autoescape=True).from_string(SVG)
    return chart.render(
        lines=lines, height=y + 12, note=note, left=LEFT, summary="; ".join(summary)
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, nargs="?", default=REPORT)
    parser.add_argument("--out", type=Path, default=CHART)
    arguments = parser.parse_args()
    arguments.out.write_text(draw(arguments.report.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
