"""Photograph the charts of a run's report with Chromium, for the documentation.

abag demo demo
python benchmarks/screenshot.py demo/run/report.html [--out docs/report.png] [--size 1000,1160]
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

HIDDEN = "<style>ul, section:first-of-type, header, header ~ p { display: none !important }</style>"


def photograph(report: Path, out: Path, size: str) -> None:
    """Write a PNG image of a report, from its charts on."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        html = report.read_text(encoding="utf-8")
        page.write_text(html.replace("</head>", f"{HIDDEN}</head>"), encoding="utf-8")
        flags = f"--headless --no-sandbox --disable-gpu --hide-scrollbars --window-size={size}"
        command = ["chromium", *flags.split(), f"--screenshot={out.resolve()}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs/report.png")
    parser.add_argument("--size", default="1000,1160")
    args = parser.parse_args()
    photograph(args.report, args.out, args.size)


if __name__ == "__main__":
    main()
