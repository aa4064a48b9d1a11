"""Compare the time that `abag plan` expects of a fit with the time that it takes.

    python benchmarks/bench_plan.py --out DIR [--table skempi.csv] [--case NAME ...] [--tiny]

Draws tables of several sizes, and stores of random vectors. Antibodies resemble a repertoire
(`bench_clusters.synthetic_antibodies`) or are point mutants of one; antigens are unrelated. Each fit runs once, in
a process of its own and with empty caches, as `bench_time_to_answer.py` does. --table adds a table of measurements, with vectors of --widths. Cases
of earlier calls are kept in DIR/plan.json, and plan.md has all.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import NamedTuple

import bench_rows
import bench_time_to_answer
import numpy as np
import pandas as pd
import torch
from bench_clusters import RESIDUES, synthetic_antibodies, synthetic_antigens

from abag.core.cores import count_cores
from abag.embed.sequences.pairs import read_pairs
from abag.head.data.labels import label_pairs
from abag.head.data.options import LabelOptions
from abag.head.models.config import is_used
from abag.head.plan import DEFAULT_FOLDS, FitSize, are_variants, fit_time

ONCE = ("--split", "random")
FOLDS = (*ONCE, "--folds", "5", "--repeats", "4")


class Case(NamedTuple):
    """A table to draw, and how it is fitted."""

    pairs: int
    antibodies: int
    antigens: int
    options: tuple[str, ...] = ONCE
    variants: bool = False


CASES = {
    "100": Case(100, 60, 5),
    "100, folds": Case(100, 60, 5, FOLDS),
    "1,000 of one antigen": Case(1_000, 1_000, 1),
    "1,000 variants": Case(1_000, 1_000, 1, ONCE, True),
    "1,000 variants, folds": Case(1_000, 1_000, 1, FOLDS, True),
    "2,000": Case(2_000, 1_500, 300),
    "2,000, folds": Case(2_000, 1_500, 300, FOLDS),
    "2,000, mlp": Case(2_000, 1_500, 300, (*ONCE, "--head", "mlp")),
    "2,000, ridge": Case(2_000, 1_500, 300, (*ONCE, "--head", "ridge")),
    "2,000, kernel": Case(2_000, 1_500, 300, (*ONCE, "--head", "kernel")),
    "5,000": Case(5_000, 5_000, 20),
    "5,000 variants": Case(5_000, 5_000, 1, ONCE, True),
    "10,000": Case(10_000, 9_000, 1_000),
    "10,000 of few antibodies": Case(10_000, 300, 3_000),
    "20,000 of one antigen, default split": Case(20_000, 20_000, 1, ()),
    "50,000": Case(50_000, 40_000, 500),
    "50,000, mlp": Case(50_000, 40_000, 500, (*ONCE, "--head", "mlp")),
    "50,000, ridge": Case(50_000, 40_000, 500, (*ONCE, "--head", "ridge")),
    "50,000 of few antibodies": Case(50_000, 500, 2_000),
    "130,000, ridge": Case(130_000, 110_000, 3_000, (*ONCE, "--head", "ridge")),
    "160,000": Case(160_000, 110_000, 3_000),
    "160,000, default split": Case(160_000, 110_000, 3_000, ()),
}
GIVEN = {"given": ONCE, "given, folds": FOLDS}


def make_table(case, seed=0):
    """Draw the pairs of a case; every sequence is in one of them."""
    rng = np.random.default_rng(seed)
    antibodies = synthetic_antibodies(case.antibodies if not case.variants else 1, seed)
    if case.variants:
        antibodies = mutants(antibodies[0], case.antibodies, rng)
    antigens = synthetic_antigens(case.antigens)
    antibody, antigen = (
        rng.permutation(np.arange(case.pairs) % n) for n in (case.antibodies, case.antigens)
    )
    return pd.DataFrame(
        {
            "heavy": [antibodies[i][0] for i in antibody],
            "light": [antibodies[i][1] for i in antibody],
            "antigen": [antigens[i][0] for i in antigen],
            "pkd": rng.normal(8, 1, case.pairs).round(3),
        }
    )


def mutants(parent, n, rng):
    """Return an antibody with up to eight mutations in its heavy chain, n times."""
    found = []
    for count in rng.integers(1, 9, n):
        heavy = np.array(list(parent[0]))
        heavy[rng.choice(np.arange(25, 65), count, replace=False)] = rng.choice(RESIDUES, count)
        found.append(("".join(heavy), parent[1]))
    return found


def head_of(options):
    """Return the head that options of a fit name, or the default."""
    return options[options.index("--head") + 1] if "--head" in options else "stack"


def describe_fit(table, widths, options):
    """Return what `abag plan` estimates the time of a fit from."""
    read = read_pairs(table)
    unique = len(read.antibodies.keys), len(read.antigens.keys)
    size = FitSize(len(label_pairs(read, LabelOptions())), unique, tuple(widths))
    return {
        "size": size._replace(variants=are_variants(read.antibodies, size)),
        "on_gpu": torch.cuda.is_available(),
        "folds": DEFAULT_FOLDS if "--folds" in options else 1,
        "cores": count_cores(),
        "head": head_of(options),
    }


def expect(fit):
    """Return the time that `abag plan` expects, from `describe_fit`."""
    return fit_time(FitSize(*fit["size"]), **{k: v for k, v in fit.items() if k != "size"})


def run(table, widths, options, scratch):
    """Fit a table once; return what was fitted, and the seconds of each stage."""
    bench_rows.WIDTHS = dict(zip(("antibody", "antigen"), widths, strict=True))
    bench_rows.fill(scratch / "store", table)
    places = {"table": str(table), "store": str(scratch / "store")}
    command = "fit, default split"  # without options of its own
    measured = bench_time_to_answer.measure(command, places, scratch / "caches", options)
    return {
        "fit": describe_fit(table, widths, options),
        "seconds": {"whole": round(measured["seconds"]["whole"], 2)},
        "waited_s": round(measured["seconds"].get("(waiting for a core)", 0), 2),
    }


def describe(name, found):
    """Return the row of a case: seconds expected and measured."""
    expected, whole = expect(found["fit"]), found["seconds"]["whole"]
    waited = found.get("waited_s", "-")
    return f"| {name} | {expected:.1f} / {whole:.1f} | {expected / whole:.2f} | {waited} |"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--widths", type=int, nargs=2, default=[512, 256])
    parser.add_argument("--case", nargs="+", choices=[*CASES, *GIVEN])
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    cases = args.case or (["100"] if args.tiny else [*CASES, *(GIVEN if args.table else ())])
    kept = args.out / "plan.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    for name in cases:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            if name in GIVEN:
                table, widths, options = args.table, args.widths, GIVEN[name]
            else:
                table, widths = scratch / "pairs.csv", (1024, 1280)
                make_table(CASES[name]).to_csv(table, index=False)
                options = CASES[name].options
            if args.tiny:
                epochs = ["--epochs", "2"] if is_used("epochs", head_of(options)) else []
                options = [*options, *epochs, "--device", "cpu"]
            found[name] = run(table, widths, options, scratch)
        print(describe(name, found[name]), file=sys.stderr, flush=True)
        args.out.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items())
        kept.write_text(f"{{\n{lines}\n}}\n")
        write(args.out / "plan.md", found, argv or sys.argv[1:])


def write(path, found, argv):
    """Write what has been measured so far."""
    lines = [
        f"# The time of a fit as planned and measured, {date.today()}", "",
        f"{bench_time_to_answer.hardware()}; `python benchmarks/bench_plan.py {shlex.join(argv)}`."
        " Cells are seconds expected / measured. Waited: the main thread was ready to run, and had"
        " no core.", "",
        "| pairs | whole | ratio | waited |",
        "|---|---|---|---|",
        *(describe(name, one) for name, one in found.items()), "",
    ]  # fmt: skip
    path.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
