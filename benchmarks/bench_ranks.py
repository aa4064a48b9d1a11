"""Check that one process, `--devices N` and a launcher's ranks store the same bits, and time them.

    python benchmarks/bench_ranks.py --out DIR [--gpus 2] [--antibodies N]   # real shapes, random weights
    python benchmarks/bench_ranks.py --out DIR --tiny                        # seconds, on a CPU

Each way embeds the same table into a store of its own. Vectors of all rows are compared with those of one process,
and `abag store verify` reads each store.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import bench_rows
import numpy as np
import torch
from shapes import SHAPES

import abag
from abag.embed.encoders.checkpoints import save_random_checkpoint

ABAG = ("-m", "abag.cli")


def ways(gpus):
    """Return the start of the command of each way."""
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(gpus))
    return {
        "one process": (ABAG, ()),
        f"--devices {gpus}": (ABAG, ("--devices", str(gpus))),
        f"torchrun, {gpus} processes": ((*launcher, *ABAG), ()),
    }


def run_python(*arguments):
    """Run Python with arguments; return the seconds, or end with what it says."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - start


def read_vectors(store, table):
    """Return the vectors of all rows, antibodies and antigens."""
    opened = abag.open_store(store)
    antibodies = opened.vectors("antibody", zip(table["heavy"], table["light"], strict=True))
    return antibodies, opened.vectors("antigen", table["antigen"])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--antibodies", type=int, default=20_000)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    if args.tiny:
        args.antibodies = 100
    antigens = max(20, args.antibodies // 20)
    device = ("--device", "cpu") if args.tiny else ()
    lines = ["| way | whole command, s | same bits as one process |", "|---|--:|---|"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        encoders = ["composition"] * 2
        if not args.tiny:
            shapes = enumerate(("igt5", "esm2-650m"))
            encoders = [save_random_checkpoint(folder / n, SHAPES[n], seed) for seed, n in shapes]
        table = bench_rows.make_table(args.antibodies, args.antibodies, antigens).fillna("")
        table.to_csv(folder / "pairs.csv", index=False)
        expected = None
        for number, (way, (start, options)) in enumerate(ways(args.gpus).items()):
            store = folder / f"store{number}"
            command = ["embed", folder / "pairs.csv", "--store", store, *options, *device]
            command += ["--antibody-encoder", encoders[0], "--antigen-encoder", encoders[1]]
            seconds = run_python(*start, *map(str, command))
            run_python(*ABAG, "store", "verify", str(store))
            found = read_vectors(store, table)
            expected = expected or found
            same = all(np.array_equal(x, y) for x, y in zip(expected, found, strict=True))
            lines.append(f"| {way} | {seconds:.1f} | {'yes' if same else 'NO'} |")
    place = "CPU" if args.tiny else torch.cuda.get_device_name()
    head = (
        f"# Ranks on {place}, {date.today()}\n\ntorch {torch.__version__}; {args.antibodies:,} antibodies, "
        f"{antigens:,} antigens; `python benchmarks/bench_ranks.py {' '.join(argv or sys.argv[1:])}`\n"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "ranks.md").write_text("\n".join([head, *lines, ""]))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
