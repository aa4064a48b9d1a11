"""Labels in raw units over decades, learned as they are written and as logarithms, beside the truth.

    python benchmarks/bench_log_scale.py FOLDER --out DIR [--seeds 2]
    python benchmarks/bench_log_scale.py --tiny --out DIR

Rows are held out before abag sees them: of the tables of FOLDER (HER2: 10 to the pKd less its lowest
one, as of a count; HIV: the IC50 as it is written, named like a titer), or of planted variants. Each
is fitted with `--scale linear` and `--scale log` and predicts the held-out rows. Printed are the
share of rows inside their 90 % interval, over all and over the lowest third, the share of intervals
that reach below 0, the errors of the lowest third in sigma (90th percentile), and Spearman's rank
correlation.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from bench_batches import planted_library

PAIRS, HELD_OUT = 300, 300
Z90 = 1.6449


def tables(folder):
    """Yield the name and the rows of each table, with a column ``titer``."""
    if folder is None:
        frame = planted_library("additive", 160)
        label = frame.pop(frame.columns[-1])
        yield "planted", frame.assign(titer=10 ** (label - 5))
        return
    her2 = pd.read_csv(folder / "alphabind_her2.csv.gz")
    her2 = her2.rename(columns={"antibody_heavy": "heavy", "antibody_light": "light"})
    her2 = her2.drop_duplicates(["heavy", "light", "antigen"])
    count = 10 ** (her2["pKd"] - her2["pKd"].min() + 1)
    yield "HER2", her2[["heavy", "light", "antigen"]].assign(titer=count)
    hiv = pd.read_csv(folder / "hiv_ic50_seen.csv.gz").drop_duplicates(["antibody", "antigen"])
    yield "HIV", hiv[["antibody", "antigen"]].assign(titer=hiv["ic50_ug_per_ml"])


def abag(*arguments):
    """Run a command of abag in a process of its own."""
    command = [sys.executable, "-m", "abag.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)


def score(held_out, scored, scale):
    """Compare predictions with the labels that abag has not seen."""
    truth = held_out["titer"].to_numpy()
    low = scored["predicted"] - Z90 * scored["sigma"]
    below = (low < 0).mean() if scale == "linear" else 0.0
    label = np.log10(truth) if scale == "log" else truth
    z = ((scored["predicted"] - label) / scored["sigma"]).abs().to_numpy()
    lowest = truth <= np.quantile(truth, 1 / 3)
    return {
        "inside": (z < Z90).mean(),
        "inside, lowest third": (z[lowest] < Z90).mean(),
        "below 0": below,
        "errors of the lowest third": np.quantile(z[lowest], 0.9),
        "Spearman": pd.Series(label).corr(scored["predicted"], method="spearman"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    folder = None if args.tiny else args.folder
    args.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name, frame in tables(folder):
        for seed in range(1 if args.tiny else args.seeds):
            drawn = frame.sample(min(len(frame), PAIRS + HELD_OUT), random_state=seed)
            n_training = min(PAIRS, len(drawn) // 2)
            at = args.out / f"{name}-{seed}"
            at.mkdir(exist_ok=True)
            held_out = drawn.iloc[n_training:].reset_index(drop=True)
            drawn.iloc[:n_training].to_csv(at / "train.csv", index=False)
            held_out.drop(columns="titer").to_csv(at / "new.csv", index=False)
            plain = ["--antibody-encoder", "composition", "--antigen-encoder", "composition"]
            abag("embed", at / "train.csv", at / "new.csv", "--store", at / "store", *plain)
            for scale in ("linear", "log"):
                run = at / scale
                options = ["--label", "value", "--better", "higher", "--scale", scale]
                options += ["--head", "ridge"] if args.tiny else []
                abag("fit", at / "train.csv", "--store", at / "store", "--run", run, *options)
                out = at / f"{scale}.csv"
                abag("predict", at / "new.csv", "--run", run, "--store", at / "store", "--out", out)
                found = score(held_out, pd.read_csv(out), scale)
                results.append({"table": name, "seed": seed, "scale": scale, **found})
    frame = pd.DataFrame(results)
    mean = frame.drop(columns="seed").groupby(["table", "scale"], sort=False).mean().round(2)
    lines = ["# Labels over decades, as written and as logarithms", ""]
    lines += [f"| {' | '.join([*mean.index.names, *mean.columns])} |"]
    lines += ["|---" * (len(mean.columns) + 2) + "|"]
    for names, row in mean.iterrows():
        lines.append(f"| {' | '.join([*names, *(f'{value:.2f}' for value in row)])} |")
    text = "\n".join(lines) + "\n"
    (args.out / "log_scale.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
