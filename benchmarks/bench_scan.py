"""Measure the time of a scan of trastuzumab, with and without its mutants in the store.

    python benchmarks/bench_scan.py [TABLE] [--encoder NAME] [--limit N] [--region LIST ...]
                                    [--pairs-of N] [--out DIR]

A predictor (8 networks) is fitted to the first N rows of TABLE, or of the synthetic demo table;
antigens are encoded by residue composition. Each region is scanned twice, against the first antigen
of TABLE: cold, with the store of the fit, and warm, with all mutants in the store. A third column
has the time of `predict` for the rows of the warm scan: what numbering, differences and the
heat map add to it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pandas as pd

import abag
from abag.embed.tables.pairs import read_pairs
from abag.head.demo import demo_table

TRASTUZUMAB = {
    "heavy": "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAE"
    "DTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "light": "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQ"
    "QHYTTPPTFGQGTKVEIK",
}


def main() -> None:
    """Time `abag scan`, and write a report."""
    args = arguments()
    table = demo_table() if args.table is None else args.table
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        encoders = {"antibody_encoder": args.encoder, "antigen_encoder": "composition"}
        abag.embed_table(table, at / "store", limit=args.limit, **encoders)
        size = {"members": 2, "epochs": 2} if args.tiny else {"members": 8}
        abag.fit(
            table,
            at / "store",
            at / "run",
            limit=args.limit,
            head="mlp",
            report=False,
            say=lambda _: None,
            **size,
        )
        antigen = "|".join(read_pairs(table).antigens.chains[0])
        rows = [measure(args, at, region, antigen) for region in args.region]
    lines = [
        f"# Scans of trastuzumab, {args.table.name if args.table else 'synthetic demo table'}",
        "",
        f"{date.today()}, torch {version('torch')}; {args.encoder} + composition, {args.limit:,} rows.",
        "",
        "| region | mutants | encoded | cold s | warm s | predict of these rows s | heat map KiB |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]
    print("\n".join(lines))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "scan.md").write_text("\n".join(lines) + "\n")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--encoder", default="composition")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--region", nargs="+", default=["cdrh3", "cdr", "fv"])
    parser.add_argument("--pairs-of", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="100 rows, one region")
    parser.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args()
    if args.tiny:
        args.limit = 100
        args.region = ["cdrh3"]
        args.pairs_of = 3
    return args


def measure(args, at, region, antigen):
    """Scan a region twice, score its rows by `predict`, and return a row of the report."""
    seconds = []
    summaries = []
    for name in ("cold", "warm"):
        begun = time.perf_counter()
        summaries.append(
            abag.scan(
                at / "run",
                at / f"{region}-{name}.csv",
                **TRASTUZUMAB,
                antigen=antigen,
                region=region,
                pairs_of=args.pairs_of,
            )
        )
        seconds.append(time.perf_counter() - begun)
    scanned = pd.read_csv(at / f"{region}-warm.csv")
    scanned[["heavy", "light", "antigen"]].to_csv(at / "rows.csv", index=False)
    begun = time.perf_counter()
    abag.predict(at / "rows.csv", at / "run", at / "predicted.csv", force=True)
    seconds.append(time.perf_counter() - begun)
    plain = pd.read_csv(at / "predicted.csv")["pkd_predicted"]
    assert (scanned["pkd_predicted"] - plain).abs().max() < 1e-4
    size = (at / f"{region}-warm.html").stat().st_size / 1024
    antibodies = len(scanned.drop_duplicates(["heavy", "light"])) + 1  # with the parent
    cells = [region, f"{len(scanned):,}", f"{antibodies:,}"]
    cells += [f"{spent_s:.1f}" for spent_s in seconds]
    return f"| {' | '.join([*cells, f'{size:.0f}'])} |"


if __name__ == "__main__":
    main()
