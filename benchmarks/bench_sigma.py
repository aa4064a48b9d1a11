"""Measure the accuracy of several heads and the coverage of sigma over many folds.

    python benchmarks/bench_sigma.py TABLE --store DIR --out FOLDER [--head mlp stack gp]
        [--members 8 16] [--precision fp32 bf16] [--seeds 0 100] [--split antigen random]
        [--workers N]
    python benchmarks/bench_sigma.py --tiny --out FOLDER               # seconds, on a CPU

The store must hold a vector for every sequence of the table (`abag embed`). All runs use the same
folds; only the seeds of the heads differ. Runs are trained in parallel, one process each. Writes
sigma.md.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from abag.embed.embed import embed_table
from abag.head.data.demo import demo_table
from abag.head.fit import fit

LEVELS = ("68", "90", "95")
DRAWS = 10_000


def interval(values) -> tuple[float, float]:
    """Return the central 95 % of the means of folds drawn with replacement."""
    values = np.asarray(values, float)
    drawn = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    return tuple(np.quantile(values[drawn].mean(axis=1), [0.025, 0.975]))


def train_one(table, store, options) -> dict[str, object]:
    """Train the heads of every fold and lay out what came of them."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as run:
        done = fit(
            table, store, run,
            say=lambda _text: None,
            report=False,
            split_seed=0,
            # capturing a graph takes 1 s, compiling for the shape of each fold 10 s
            compile="graph" if torch.cuda.is_available() else "off",
            **{"head": "mlp"} | options,
        )  # fmt: skip
    sigma, folds = done["sigma"], done["sigma"]["coverage_folds"]
    covered = {}
    for level in LEVELS:
        low, high = interval([share for share in folds[level] if share is not None])
        covered[f"{level} %"] = f"{sigma['coverage'][level]:.0%} [{low:.0%}, {high:.0%}]"
    shown = {key: options[key] for key in ("split", "head", "members", "precision", "seed")}
    worst = [f"{min(folds[level]):.0%}" for level in LEVELS]
    rmse = done["cv"]["head"]["rmse"] if "cv" in done else {"sd": None}
    return shown | covered | {
        "worst fold": " / ".join(worst),
        "RMSE": done["metrics"]["test"]["rmse"],
        "sd over folds": rmse["sd"],
        "Spearman": done["metrics"]["test"]["spearman"],
        "ridge RMSE": done["baselines"]["ridge"]["test"]["rmse"],
        "mean RMSE": done["baselines"]["train_mean"]["test"]["rmse"],
        "error against sigma": sigma["error_spearman"],
        "seconds": time.perf_counter() - begun,
    }  # fmt: skip


def table_of(rows: list[dict[str, object]]) -> list[str]:
    """Lay rows of equal keys out in Markdown."""
    cells = [[f"{v:.3f}" if isinstance(v, float) else str(v) for v in r.values()] for r in rows]
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return lines + ["| " + " | ".join(row) + " |" for row in cells]


def tiny_inputs(folder: Path) -> tuple[Path, Path]:
    """Make a small table and its store."""
    table, store = folder / "pairs.csv", folder / "store"
    demo_table().head(120).to_csv(table, index=False)
    embed_table(table, store, "composition", "composition")
    return table, store


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--antibody-encoder")
    parser.add_argument("--antigen-encoder")
    parser.add_argument("--head", nargs="+", default=["mlp"])
    parser.add_argument("--members", type=int, nargs="+", default=[16])
    parser.add_argument("--precision", nargs="+", default=["auto"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--split", nargs="+", default=["antigen"])
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if a.tiny:
            a.table, a.store = tiny_inputs(Path(folder))
            a.members, a.repeats, a.split = [2], 1, ["random"]
        asked = itertools.product(a.split, a.head, a.members, a.precision, a.seeds)
        todo = [
            {
                "split": split, "head": head, "members": members, "precision": precision,
                "seed": seed,
                "folds": a.folds, "repeats": a.repeats,
                "antibody_encoder": a.antibody_encoder, "antigen_encoder": a.antigen_encoder,
            }
            | ({"epochs": 2} if a.tiny else {})
            for split, head, members, precision, seed in asked
        ]  # fmt: skip
        with ProcessPoolExecutor(a.workers, mp_context=get_context("spawn")) as pool:
            pending = [pool.submit(train_one, a.table, a.store, options) for options in todo]
            rows = [done.result() for done in pending]
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    lines = [
        f"# Several heads over {a.folds * a.repeats} folds, {hardware}, {datetime.now(UTC).date()}",
        "",
        f"`python benchmarks/bench_sigma.py {' '.join(arguments or sys.argv[1:])}`; "
        f"torch {torch.__version__}, Python {platform.python_version()}.",
        "Share of exact test pairs inside sigma's central interval, averaged over folds; in brackets "
        f"95 % of {DRAWS:,} draws of the folds.",
        "",
        *table_of(rows),
    ]
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "sigma.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
