"""Compare `abag embed` with its encoders alone on the same sequences.

    python benchmarks/bench_embed.py --out DIR [--antibodies N] [--antigens N] [--tiny]

The models have their real sizes and seeded random weights. "Alone" is the encoder on prepared batches,
without reading, pooling, copying or writing. The time of the command is divided into loading and the
rest. A second run of the command measures the cost of resuming.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from bench_encoders import config_of, draw_chains, synchronize

from abag.core.device import default_batch_tokens, plan_device
from abag.embed.embed import embed_table
from abag.embed.encoders import loading
from abag.embed.encoders.checkpoints import save_random_checkpoint
from abag.embed.encoders.identity import identify
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.packing import fill_batches, longest_first


def pair_table(antibodies, antigens):
    """Return a table that contains every antibody and every antigen."""
    rows = range(max(len(antibodies), len(antigens)))
    return pd.DataFrame(
        {
            "heavy": [antibodies[i % len(antibodies)][0] for i in rows],
            "light": [antibodies[i % len(antibodies)][1] for i in rows],
            "antigen": [antigens[i % len(antigens)][0] for i in rows],
        }
    )


def time_encoder(identity, chains, plan, encoder):
    """Return the seconds that the encoder takes for all batches, prepared in advance."""
    layout = identity.layout
    order = longest_first([max(layout.span_lengths(c)) for c in chains])
    spans = layout.numbered_spans(chains[i] for i in order)
    batches = list(fill_batches(spans, default_batch_tokens(plan)))
    encoder(batches[0])
    encoder(batches[-1])
    synchronize(plan.device)
    start = time.perf_counter()
    for batch in batches:
        encoder(batch)
    synchronize(plan.device)
    return time.perf_counter() - start


def main(argv=None):
    """Run `abag embed` in new processes, and write their times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--antibodies", type=int, default=40000)
    parser.add_argument("--antigens", type=int, default=20000)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    if args.tiny:
        args.antibodies = 60
        args.antigens = 30
    rng = np.random.default_rng(0)
    antibodies = draw_chains("antibody", args.antibodies, rng)
    antigens = draw_chains("antigen", args.antigens, rng)
    plan = plan_device()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        names = {}
        for kind, name in (("antibody", "igt5"), ("antigen", "esm2-650m")):
            save_random_checkpoint(work / name, config_of(name, args.tiny), seed=0)
            names[kind] = str(work / name)
            start = time.perf_counter()
            identify(names[kind], kind)
            lines.append(f"{kind}: hashing the weights (once): {time.perf_counter() - start:.1f} s")
        pair_table(antibodies, antigens).to_csv(work / "pairs.csv", index=False)
        load_s = []

        def timed(*a, **k):
            start = time.perf_counter()
            encoder = load_encoder(*a, **k)
            synchronize(plan.device)
            load_s.append(time.perf_counter() - start)
            return encoder

        loading.load_encoder = timed
        start = time.perf_counter()
        done = embed_table(
            work / "pairs.csv", work / "store", names["antibody"], names["antigen"], progress=True
        )
        whole_s = time.perf_counter() - start
        start = time.perf_counter()
        embed_table(work / "pairs.csv", work / "store", names["antibody"], names["antigen"])
        lines.append(
            f"whole command: {whole_s:.1f} s; second run, nothing to encode: {time.perf_counter() - start:.1f} s"
        )
        for kind, plural, chains, load in (
            ("antibody", "antibodies", antibodies, load_s[0]),
            ("antigen", "antigens", antigens, load_s[1]),
        ):
            identity = identify(names[kind], kind)
            seconds = time_encoder(identity, chains, plan, load_encoder(identity, plan))
            counts = done[plural]
            working = counts["seconds"] - load
            lines.append(
                f"{kind}: {counts['encoded']} sequences, {counts['tokens']} tokens; loading {load:.1f} s, "
                f"encoding {working:.1f} s ({counts['tokens'] / working:.0f} tokens/s); encoder alone "
                f"{seconds:.1f} s: the command runs at {seconds / working:.1%} of its speed"
            )
        size = sum(p.stat().st_size for p in (work / "store").rglob("*.h5"))
        shards = len(list((work / "store").rglob("*.h5")))
        lines.append(f"store: {size / 2**20:.0f} MiB in {shards} shards")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    head = [
        f"# abag embed on {device or platform.machine()}, {date.today()}",
        "",
        f"torch {torch.__version__}; {plan.precision}; random weights of "
        f"{'small' if args.tiny else 'real'} models; `python benchmarks/bench_embed.py "
        f"--antibodies {args.antibodies} --antigens {args.antigens}`",
        "",
    ]
    print("\n".join(lines), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "embed.md").write_text("\n".join([*head, *(f"- {x}" for x in lines)]) + "\n")
    (args.out / "embed.json").write_text(json.dumps(done))


if __name__ == "__main__":
    main()
