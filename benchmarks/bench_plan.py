"""Compare the time that `abag plan` expects of a fit with the time that it takes.

    python benchmarks/bench_plan.py --out DIR [--table skempi.csv] [--case NAME ...] [--features N] [--tiny]

Draws tables of several sizes, and stores of random vectors. Antibodies resemble a repertoire
(`bench_clusters.synthetic_antibodies`) or are point mutants of one; antigens are unrelated. Each fit runs once, in
a process of its own and with empty caches, as `bench_time_to_answer.py` does. --table adds a table of measurements, with vectors of --widths.
--features fits each drawn table a second time, with that many columns of numbers, of which the label depends on the first. Cases of earlier
calls are kept in DIR/plan.json, and plan.md has all.
"""

from __future__ import annotations

import argparse
import json
import resource
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

from abag.embed.tables.options import TableOptions
from abag.head.labels.labelled_pairs import read_labelled_pairs
from abag.head.labels.options import LabelOptions
from abag.head.plan import fit_time


class Case(NamedTuple):
    """A table to draw."""

    pairs: int
    antibodies: int
    antigens: int
    variants: bool = False


CASES = {
    "100": Case(100, 60, 20),
    "1,000": Case(1_000, 800, 200),
    "1,000 variants": Case(1_000, 1_000, 1, True),
    "5,000": Case(5_000, 4_000, 500),
    "5,000 variants": Case(5_000, 5_000, 1, True),
    "20,000": Case(20_000, 15_000, 1_000),
    "20,000 of few antibodies": Case(20_000, 300, 2_000),
    "160,000": Case(160_000, 110_000, 3_000),
}


def make_table(case, seed=0, features=0):
    """Draw the pairs of a case; every sequence is in one of them."""
    rng = np.random.default_rng(seed)
    antibodies = synthetic_antibodies(case.antibodies if not case.variants else 1, seed)
    if case.variants:
        antibodies = mutants(antibodies[0], case.antibodies, rng)
    antigens = synthetic_antigens(case.antigens)
    antibody, antigen = (
        rng.permutation(np.arange(case.pairs) % n) for n in (case.antibodies, case.antigens)
    )
    table = pd.DataFrame(
        {
            "heavy": [antibodies[i][0] for i in antibody],
            "light": [antibodies[i][1] for i in antibody],
            "antigen": [antigens[i][0] for i in antigen],
            "pkd": rng.normal(8, 1, case.pairs).round(3),
        }
    )
    for at in range(features):
        signal = table["pkd"] if at == 0 else 0
        table[f"feature_{at}"] = (signal + rng.normal(size=case.pairs)).round(3)
    return table


def mutants(parent, n, rng):
    """Return an antibody with up to eight mutations in its heavy chain, n times."""
    sequences = []
    for count in rng.integers(1, 9, n):
        heavy = np.array(list(parent[0]))
        heavy[rng.choice(np.arange(25, 65), count, replace=False)] = rng.choice(RESIDUES, count)
        sequences.append(("".join(heavy), parent[1]))
    return sequences


def run(table, widths, options, scratch):
    """Fit a table once; return its pairs and the seconds."""
    bench_rows.WIDTHS = dict(zip(("antibody", "antigen"), widths, strict=True))
    bench_rows.fill(scratch / "store", table)
    places = {"table": str(table), "store": str(scratch / "store")}
    command = "fit, default split"  # without options of its own
    before = cpu_seconds()
    measured = bench_time_to_answer.measure(command, places, scratch / "caches", options)
    used = cpu_seconds() - before
    return {
        "pairs": len(read_labelled_pairs(table, TableOptions(), LabelOptions())),
        "on_gpu": torch.cuda.is_available(),
        "seconds": {"whole": round(measured["seconds"]["whole"], 2)},
        "cpu_s": round(used, 1),
        "waited_s": round(measured["seconds"].get("(waiting for a core)", 0), 2),
    }


def cpu_seconds():
    """Return the CPU seconds of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def describe(name, forecast):
    """Return the row of a case: seconds expected and measured."""
    features = forecast.get("features", 0) > 0
    expected = fit_time(forecast["pairs"], on_gpu=forecast["on_gpu"], features=features)
    whole = forecast["seconds"]["whole"]
    waited = forecast.get("waited_s", "-")
    cpu = forecast.get("cpu_s", "-")
    return f"| {name} | {expected:.1f} / {whole:.1f} | {expected / whole:.2f} | {waited} | {cpu} |"


def main(argv=None):
    """Compare the forecast of `abag plan` with a run, for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--widths", type=int, nargs=2, default=[512, 256])
    parser.add_argument("--case", nargs="+", choices=[*CASES, "given"])
    parser.add_argument("--features", type=int, default=0, metavar="N")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    cases = args.case or (["100"] if args.tiny else [*CASES, *(["given"] if args.table else [])])
    kept = args.out / "plan.json"
    forecasts = json.loads(kept.read_text()) if kept.exists() else {}
    for name, features in fits_of(cases, args.features):
        title = f"{name}, {features} features" if features else name
        forecasts[title] = fit(name, features, args)
        print(describe(title, forecasts[title]), file=sys.stderr, flush=True)
        args.out.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in forecasts.items())
        kept.write_text(f"{{\n{lines}\n}}\n")
        write(args.out / "plan.md", forecasts, argv or sys.argv[1:])


def fits_of(cases, features):
    """Return cases and numbers of features, those without features first."""
    bare = [(name, 0) for name in cases]
    return bare + [(name, features) for name in cases if features and name != "given"]


def fit(name, features, args):
    """Draw the table of a case, or take the given one, and fit it once."""
    options = ["--epochs", "2", "--device", "cpu", "--split", "random"] if args.tiny else []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if name == "given":
            return run(args.table, args.widths, options, scratch)
        table = scratch / "pairs.csv"
        make_table(CASES[name], features=features).to_csv(table, index=False)
        if features:
            names = [f"feature_{at}" for at in range(features)]
            options = [*options, "--features", ",".join(names)]
        return run(table, (1024, 1280), options, scratch) | {"features": features}


def write(path, forecasts, argv):
    """Write what has been measured so far."""
    lines = [
        f"# The time of a fit as planned and measured, {date.today()}",
        "",
        f"{bench_time_to_answer.hardware()}; `python benchmarks/bench_plan.py {shlex.join(argv)}`."
        " Cells are seconds expected / measured. Waited: the main thread was ready to run, and had"
        " no core. CPU: seconds of all threads, which other work on the machine changes little.",
        "",
        "| pairs | whole | ratio | waited | CPU |",
        "|---|---|---|---|---|",
        *(describe(name, forecast) for name, forecast in forecasts.items()),
        "",
    ]
    path.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
