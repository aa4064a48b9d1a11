"""Measure the time of a scan of trastuzumab, with and without its mutants in the store.

    python benchmarks/bench_scan.py [TABLE] [--encoder NAME] [--limit N] [--region LIST ...]
                                    [--pairs-of N] [--out DIR]
    python benchmarks/bench_scan.py --planted FIRST LAST --out DIR

A predictor (8 networks) is fitted to the first N rows of TABLE, or of the synthetic demo table;
antigens are encoded by residue composition. Each region is scanned twice, against the first antigen
of TABLE: cold, with the store of the fit, and warm, with all mutants in the store. A third column
has the time of `predict` for the rows of the warm scan: what numbering, differences and the
heat map add to it.

`--planted` compares the differences of scans, and their sigma, with laws whose effects are known, of
libraries that are numbered from FIRST to LAST - 1 (each four have one law): default fits of 60, 120
and 300 variants, and the mutants of CDR H3 of three measured and three other ones. Lines go to
`planted.jsonl` in DIR, which is added to; means of the regimes with 25 mutants or more are printed by
the factor of the predictor's sigma: how much of the differences is within 1.64 sigma, sigma over their
error (root mean squares), and of how many mutants that are predicted to improve by more than sigma it
is true. `none` is a sigma of 0, by which any gain is an improvement.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from bench_batches import FIRST_SITE, HEAVY, PLANTED, RESIDUES, SITES, planted_law, planted_library

import abag
from abag.core.messages import reporting
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
    if args.planted:
        return planted(args.out / "planted.jsonl", *args.planted)
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
    return None


SIZES = (60, 120, 300)


def planted(path, first, last):
    """Scan planted libraries, add lines to a file, and print means of all that it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(first, last):
        for law in PLANTED:
            for size in SIZES:
                lines = [*scan_planted(law, size, seed)]
                with path.open("a") as out:
                    out.writelines(json.dumps(line) + "\n" for line in lines)
    show_planted(pd.read_json(path, lines=True))


def scan_planted(law, size, seed):
    """Yield a line for each regime and way of the mutants of six variants."""
    library = planted_library(law, seed=5 + seed // 4)
    label_of = planted_law(law, np.random.default_rng(5 + seed // 4))

    def truth(heavy):
        return label_of([RESIDUES.index(heavy[FIRST_SITE + site]) for site in range(SITES)])

    order = np.random.default_rng([size, seed]).permutation(len(library))
    learned = library.iloc[order[:size]]
    parents = library.iloc[[*order[:3], *order[size : size + 3]]].drop(columns="pKd")
    with tempfile.TemporaryDirectory() as folder, reporting(silent=True, bars=False):
        at = Path(folder)
        abag.embed_table(
            learned, at / "store", antibody_encoder="composition", antigen_encoder="composition"
        )
        abag.fit(learned, at / "store", at / "run", report=False)
        scanned = abag.scan(at / "run", parents=parents, region="cdrh3", store=at / "store")
        predictor = abag.load_predictor(at / "run")
    outside = slice(None, FIRST_SITE), slice(FIRST_SITE + SITES, None)  # without effects
    scanned = scanned[scanned["heavy"].map(lambda h: all(h[at] == HEAVY[at] for at in outside))]
    of_parent = dict(zip(scanned["parent"].unique(), parents["heavy"].map(truth), strict=True))
    scanned = scanned.assign(true=scanned["heavy"].map(truth) - scanned["parent"].map(of_parent))
    for regime, mutants in scanned.groupby("regime"):
        factor = predictor.regimes[predictor.applied(regime)[1]].mixture.spread
        error = mutants["difference"] - mutants["true"]
        for way, sigma in (("now", mutants["difference_sigma"]), ("none", 0 * error)):
            called = mutants["difference"] > sigma
            yield {
                "law": law, "size": size, "seed": seed, "regime": regime, "mutants": len(mutants),
                "factor": factor, "way": way, "within": float((error.abs() <= 1.645 * sigma).mean()),
                "over error": float(np.sqrt(np.square(sigma).mean() / np.square(error).mean())),
                "sigma of 0": int((called & (sigma == 0)).sum()),
                "called": int(called.sum()), "right": int((called & (mutants["true"] > 0)).sum()),
                "improve": int((mutants["true"] > 0).sum()),
            }  # fmt: skip


def show_planted(frame, least=25):
    """Print means by the factor of the predictor's sigma, and by law."""
    frame = frame[frame["mutants"] >= least]
    frame["factor is"] = pd.cut(
        frame["factor"], [-1, 0, 0.6, 1, np.inf], labels=["0", "to .6", "to 1", "above"]
    )
    for by in ("factor is", "law", "size", None):
        key = ["way"] if by is None else [by, "way"]
        groups = frame.groupby(key, sort=False, observed=True)
        table = groups[["within", "over error"]].mean()
        table["tenth within"] = groups["within"].quantile(0.1)
        sums = groups[["called", "right", "improve", "sigma of 0"]].sum()
        table["right"] = sums["right"] / sums["called"]
        table["sigma of 0"] = sums["sigma of 0"] / sums["called"]
        table["found"] = sums["right"] / sums["improve"]
        print(table.assign(regimes=groups.size()).sort_index().round(3).to_string(), "\n")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--encoder", default="composition")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--region", nargs="+", default=["cdrh3", "cdr", "fv"])
    parser.add_argument("--pairs-of", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="100 rows, one region")
    parser.add_argument("--planted", type=int, nargs=2, metavar=("FIRST", "LAST"))
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
