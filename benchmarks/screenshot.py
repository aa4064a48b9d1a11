"""Photograph the charts of a run's report, or the page of a scan, for the documentation.

abag demo demo
python benchmarks/screenshot.py demo/run/report.html [--out docs/report.png] [--size 1200,935]

abag embed data/demo_pairs.csv --store store --antibody-encoder composition \\
  --antigen-encoder composition
abag fit data/demo_pairs.csv --store store --run run
sed -n '1p;4p' data/demo_pairs.csv > parent.csv
abag scan run --parents parent.csv --out scan.csv
python benchmarks/screenshot.py scan.html --whole --out docs/scan.png --size 1060,840

the campaign of docs/how-to/run-a-campaign.md, three rounds with --head ridge
python benchmarks/screenshot.py campaign/r3/report.html --only campaign --out docs/rounds.png --size 640,480
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

HIDDEN = "<style>ul, header, header ~ p { display: none !important }</style>"
ONLY = (
    "<style>body *:not(:has(ID)):not(ID):not(ID *) { display: none !important }"
    ".figures { display: block !important }</style>"
)


def photograph(report: Path, out: Path, size: str, style: str) -> None:
    """Write a PNG image of a page in a browser."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        html = report.read_text(encoding="utf-8")
        page.write_text(html.replace("</head>", f"{style}</head>"), encoding="utf-8")
        flags = f"--headless --no-sandbox --disable-gpu --hide-scrollbars --window-size={size}"
        command = ["chromium", *flags.split(), f"--screenshot={out.resolve()}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def main():
    """Take a picture of a report in a browser."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs/report.png")
    parser.add_argument("--size", default="1200,935")
    parser.add_argument("--whole", action="store_true", help="hide nothing")
    parser.add_argument("--only", metavar="ID", help="hide all but one figure")
    args = parser.parse_args()
    style = "" if args.whole else HIDDEN
    if args.only:
        style = ONLY.replace("ID", f"#{args.only}")
    photograph(args.report, args.out, args.size, style)


if __name__ == "__main__":
    main()
