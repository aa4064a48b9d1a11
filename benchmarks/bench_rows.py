"""Measure the time and memory that a long table needs before its first training step.

    python benchmarks/bench_rows.py [--rows 1000000] [--antibodies 200000] [--folder DIR]

Makes a table and a store with random vectors of the widths of the default encoders, and fits one
epoch. The split is random, so no clusters are needed.
"""

from __future__ import annotations

import argparse
import platform
import resource
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd

import abag
from abag.embed.store.store import open_store
from abag.embed.tables.pairs import read_pairs

RESIDUES = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", dtype=np.uint8)
WIDTHS = {"antibody": 1024, "antigen": 1280}
SHORTEST = 30
MEDIAN = 300
LONGEST = 1022
"""Residues of antigens, whose lengths are lognormal."""
SPREAD = 0.6
"""Standard deviation of the logarithm of these lengths."""


def draw_lengths(n, rng):
    """Lengths of n antigens, as in a table of many: few are of one length."""
    lengths = rng.lognormal(np.log(MEDIAN), SPREAD, n)
    return np.clip(lengths, SHORTEST, LONGEST).astype(int)


def draw_numbers(n, rows, rng):
    """Numbers below n for so many rows, in random order; each occurs if there are as many rows."""
    further = rng.integers(n, size=max(0, rows - n))
    return rng.permutation(np.concatenate([np.arange(n), further]))[:rows]


def make_table(rows, antibodies, antigens):
    """Random pairs of made chains: heavy 120, light 108 residues, antigens of lognormal lengths.

    Every chain occurs if there are as many rows.
    """
    rng = np.random.default_rng(0)
    lengths = {
        "heavy": [120] * antibodies,
        "light": [108] * antibodies,
        "antigen": draw_lengths(antigens, rng),
    }
    chains = {}
    for name, of_chains in lengths.items():
        letters = RESIDUES[rng.integers(20, size=sum(of_chains))].tobytes().decode()
        ends = np.cumsum(of_chains)
        chains[name] = [letters[a - n : a] for a, n in zip(ends, of_chains, strict=True)]
    body, target = (draw_numbers(n, rows, rng) for n in (antibodies, antigens))
    return pd.DataFrame(
        {
            "heavy": pd.Series(chains["heavy"])[body].to_numpy(),
            "light": pd.Series(chains["light"])[body].to_numpy(),
            "antigen": pd.Series(chains["antigen"])[target].to_numpy(),
            "pkd": rng.normal(8, 1, rows).round(3),
        }
    )


def fill(path, table):
    """Store a random vector for every sequence."""
    opened = open_store(path, create=True)
    rng = np.random.default_rng(1)
    pairs = read_pairs(table)
    for kind, unique in (("antibody", pairs.antibodies), ("antigen", pairs.antigens)):
        folder = opened.create_folder(kind, {"name": "drawn", "fingerprint": "ab" * 16})
        with folder.writer(attrs={"precision": "fp32"}) as writer:
            for keys in np.array_split(unique.keys, max(1, len(unique.keys) // 8192)):
                x_ND = rng.normal(size=(len(keys), WIDTHS[kind])).astype(np.float16)
                writer.add(keys, np.full(len(keys), 100, np.int32), {"mean": x_ND})


def fit(table, store, run):
    """Seconds to the first step and in all, and the most memory held, of this process."""
    begun = time.perf_counter()
    first = []

    def say(text):
        print(f"{time.perf_counter() - begun:7.1f} s  {text}", file=sys.stderr)
        if "epochs of" in text:
            first.append(time.perf_counter() - begun)
            print(f"           at most {_peak_gib():.2f} GiB held so far", file=sys.stderr)

    options = {"split": "random", "head": "mlp", "epochs": 1, "report": False}
    abag.fit(table, store, run, verbose=True, say=say, **options)
    return first[0], time.perf_counter() - begun, _peak_gib()


def _peak_gib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(arguments=None):
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--antibodies", type=int, default=200_000)
    parser.add_argument("--antigens", type=int, default=2_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--stage", choices=["make", "fit"], nargs="+", default=["make", "fit"])
    a = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        table = folder / "pairs.parquet"
        if "make" in a.stage:
            folder.mkdir(parents=True, exist_ok=True)
            make_table(a.rows, a.antibodies, a.antigens).to_parquet(table)
            fill(folder / "store", table)
        if "fit" in a.stage:
            first, whole, peak = fit(table, folder / "store", folder / "run")
            print(
                f"{a.rows:,} rows, {a.antibodies:,} antibodies: first step after {first:.1f} s, one epoch, "
                f"baselines and scores after {whole:.1f} s, at most {peak:.2f} GiB held. "
                f"{date.today()}, {platform.machine()} CPU, Python {platform.python_version()}"
            )


if __name__ == "__main__":
    main()
