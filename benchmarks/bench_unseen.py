"""Measure `abag predict` of variants that a library has not, and of many rows that it has.

    taskset -c 0 python benchmarks/bench_unseen.py TABLE --out unseen.jsonl [--unseen 20000 200000]
    python benchmarks/bench_unseen.py --tiny --out unseen.jsonl

TABLE has the columns antibody_heavy, antibody_light, antigen and pKd, and heavy chains of one length or
more, such as a library of HER2. The default head is fitted to 2,000 of its rows. Unseen variants have one
to three residues of others at positions that vary; they are encoded first by residue composition, then
scored again with vectors in the store. Known rows are drawn from those of training. To compare two
versions, run the script with each of them on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from bench_growth import measure
from bench_large_table import ENCODERS, RESIDUES

COLUMNS = {"antibody_heavy": "heavy", "antibody_light": "light"}


def draw_variants(heavies, number, rng):
    """Return heavy chains that are not among others, with one to three other residues."""
    length = len(heavies[0])
    alike = [heavy for heavy in heavies if len(heavy) == length]
    varied = [at for at in range(length) if len({heavy[at] for heavy in alike}) > 1]
    known = set(heavies)
    drawn = {}
    while len(drawn) < number:
        heavy = list(alike[rng.integers(len(alike))])
        for at in rng.choice(varied, min(len(varied), rng.integers(1, 4)), replace=False):
            heavy[at] = rng.choice(RESIDUES)
        text = "".join(heavy)
        if text not in known:
            drawn[text] = None
    return [*drawn]


def main():
    """Fit once, and predict tables of each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--unseen", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--known", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--tiny", action="store_true", help="demo antibodies, 50 rows")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.tiny:
        from abag.head.demo import demo_table

        frame = demo_table()[["heavy", "light", "antigen", "pKd"]]
        given.unseen = given.known = [50]
    else:
        frame = pd.read_csv(given.table).rename(columns=COLUMNS)
        frame = frame[["heavy", "light", "antigen", "pKd"]]
    trained = frame.sample(min(len(frame), 2_000), random_state=0)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(at / "cache")
        trained.to_csv(at / "train.csv", index=False)
        measure("embed", at / "train.csv", "--store", at / "store", *ENCODERS)
        measure("fit", at / "train.csv", "--store", at / "store", "--run", at / "run")
        tables = []
        for number in given.unseen:
            variants = draw_variants(frame["heavy"].tolist(), number, rng)
            first = frame.iloc[0]
            table = {"heavy": variants, "light": first["light"], "antigen": first["antigen"]}
            tables.append(("unseen, not stored", number, pd.DataFrame(table)))
            tables.append(("unseen, stored", number, None))
        for number in given.known:
            known = trained.drop(columns="pKd").sample(number, replace=True, random_state=1)
            tables.append(("known", number, known))
        for name, number, table in tables:
            if table is not None:
                table.to_csv(at / "new.csv", index=False)
            arguments = (at / "new.csv", "--run", at / "run", "--out", at / "out.csv", "--force")
            cpu_s, peak_mb = measure("predict", *arguments)
            line = {"rows": name, "number": number, "cpu_seconds": cpu_s, "peak_mb": peak_mb}
            print(json.dumps(line), flush=True)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
