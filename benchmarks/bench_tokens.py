"""Time how fast antibodies become packed batches of tokens on one core.

    OMP_NUM_THREADS=1 python benchmarks/bench_tokens.py

A GPU computes one batch while the next is tokenised (`abag.embed.encode.encode_stream`).
"""

from __future__ import annotations

import argparse
import platform
import time

from abag.embed.encoders.identity import identify
from abag.embed.encoders.packing import fill_batches
from abag.head.demo import demo_table

BATCH_TOKENS = 65_536


def main() -> None:
    """Print tokens per CPU second, the best of three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--antibodies", type=int, default=20_000)
    wanted = parser.parse_args().antibodies
    table = demo_table()
    pairs = list(zip(table["heavy"], table["light"], strict=True))
    antibodies = [pairs[i % len(pairs)] for i in range(wanted)]
    layout = identify("tiny-igt5", "antibody").layout
    best = 0.0
    for _ in range(3):
        start_s = time.process_time()
        spans = layout.numbered_spans(antibodies)
        tokens = sum(len(batch.ids) for batch in fill_batches(spans, BATCH_TOKENS))
        best = max(best, tokens / (time.process_time() - start_s))
    print(f"{tokens:,} tokens of {wanted:,} antibodies, {best / 1e6:.1f} million per CPU second")
    print(f"{platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
