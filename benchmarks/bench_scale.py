"""Measure `abag embed --devices N` on one host: throughput, efficiency, write rate of the store.

    python benchmarks/bench_scale.py --out DIR [--gpus 1,2,4] [--antibodies N] [--antigens N] [--tiny]

The models have their real sizes and seeded random weights. Each GPU gets --antibodies and --antigens
sequences, so that all runs take about the same time. The script runs the command, reads the seconds
of each rank from its messages, and checks their tokens against those of --json. The throughput is all
tokens divided by the seconds of the slowest rank after loading.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch
from bench_embed import pair_table
from bench_encoders import config_of, draw_chains

from abag.embed.encoders.checkpoints import save_random_checkpoint

RANK_LINE = re.compile(
    r"(antibodies|antigens): ([\d,]+) tokens; loaded in ([\d.]+) s, encoded in ([\d.]+) s"
)


def embed(table, store, encoders, gpus, device):
    """Run the command; return its summary, wall time in seconds, and per kind the numbers of each rank."""
    command = [sys.executable, "-m", "abag.cli", "embed", table, "--store", store, "--json"]
    command += ["--antibody-encoder", encoders["igt5"], "--antigen-encoder", encoders["esm2-650m"]]
    command += ["--devices", str(gpus), "--device", device]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=store.parent)
    wall_s = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(done.stderr)
    summary = json.loads(done.stdout)
    return summary, wall_s, seconds_of_ranks(done.stderr, summary)


def seconds_of_ranks(messages, summary):
    """Return tokens, seconds of loading and of encoding of each rank, by kind; or exit."""
    ranks = {"antibodies": [], "antigens": []}
    for plural, tokens, load_s, seconds in RANK_LINE.findall(messages):
        ranks[plural].append((int(tokens.replace(",", "")), float(load_s), float(seconds)))
    for plural, of_ranks in ranks.items():
        told = sum(tokens for tokens, _, _ in of_ranks)
        if told != summary[plural]["tokens"]:
            text = (
                f"messages tell of {told} tokens of {plural}, --json of {summary[plural]['tokens']}"
            )
            msg = f"bench_scale: {text}; expected the same. Has RANK_LINE changed?"
            raise SystemExit(msg)
    return ranks


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", default="1,2,4")
    parser.add_argument("--antibodies", type=int, default=20000)
    parser.add_argument("--antigens", type=int, default=10000)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    if args.tiny:
        args.gpus = "2"
        args.antibodies = 30
        args.antigens = 15
    device = "cpu" if args.tiny else "cuda"
    counts = [int(text) for text in args.gpus.split(",")]
    rng = np.random.default_rng(0)
    antibodies = draw_chains("antibody", args.antibodies * max(counts), rng)
    antigens = draw_chains("antigen", args.antigens * max(counts), rng)
    rows = []
    results = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        encoders = {name: work / name for name in ("igt5", "esm2-650m")}
        for name, path in encoders.items():
            save_random_checkpoint(path, config_of(name, args.tiny), seed=0)
        if not args.tiny:  # compiles the kernels, so that the first measurement does not include it
            pair_table(antibodies[:200], antigens[:200]).to_parquet(work / "few.parquet")
            embed(work / "few.parquet", work / "store-few", encoders, 1, device)
        for gpus in counts:
            table = work / f"{gpus}.parquet"
            store = work / f"store-{gpus}"
            share = antibodies[: args.antibodies * gpus], antigens[: args.antigens * gpus]
            pair_table(*share).to_parquet(table)
            summary, wall_s, ranks = embed(table, store, encoders, gpus, device)
            files = list(store.rglob("*.h5"))
            result = {"gpus": gpus, "wall_s": wall_s, "ranks": ranks, "summary": summary}
            result["store_bytes"] = sum(p.stat().st_size for p in files)
            result["files"] = len(files)
            for plural, of_ranks in ranks.items():
                tokens, loads, seconds = zip(*of_ranks, strict=True)
                assert len(of_ranks) == gpus or args.tiny
                result[plural] = sum(tokens) / max(seconds)
                rows.append(
                    f"| {gpus} | {plural} | {sum(tokens):,} | {max(tokens) / min(tokens) - 1:.2%} | "
                    f"{max(loads):.1f} | {max(seconds):.1f} | {result[plural]:,.0f} | "
                    f"{result[plural] / gpus / (results or [result])[0][plural] * counts[0]:.1%} |"
                )
            busy_s = sum(max(s for _, _, s in of_ranks) for of_ranks in ranks.values())
            result["store_bytes_per_s"] = result["store_bytes"] / busy_s
            results.append(result)
            print(rows[-2], rows[-1], f"whole command {wall_s:.1f} s", sep="\n", file=sys.stderr)
            write_report(args, rows, results)  # after each run, because the next one may fail


def write_report(args, rows, results):
    name = "CPU" if args.tiny else torch.cuda.get_device_name()
    lines = [
        f"# abag embed --devices on {name}, {date.today()}",
        "",
        f"torch {torch.__version__}; {os.cpu_count()} CPU cores ({platform.machine()}); random "
        f"weights of {'small' if args.tiny else 'real'} models; {args.antibodies:,} antibodies and "
        f"{args.antigens:,} antigens per GPU; `python benchmarks/bench_scale.py --gpus {args.gpus} "
        f"--antibodies {args.antibodies} --antigens {args.antigens}`",
        "",
        "| GPUs | kind | tokens | imbalance between ranks | loading, s | slowest rank, s | tokens/s | efficiency |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        "| GPUs | whole command, s | tokens/s overall | store, MB | files | written, MB/s |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        tokens = sum(r["summary"][p]["tokens"] for p in r["ranks"])
        lines.append(
            f"| {r['gpus']} | {r['wall_s']:.1f} | {tokens / r['wall_s']:,.0f} | "
            f"{r['store_bytes'] / 1e6:,.0f} | {r['files']} | {r['store_bytes_per_s'] / 1e6:,.1f} |"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "scale.md").write_text("\n".join(lines) + "\n")
    (args.out / "scale.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
