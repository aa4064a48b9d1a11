"""Measure what the tanh form of GELU does to vectors of trained weights (AntiBERTy's), on a CPU.

    python benchmarks/bench_gelu.py --out DIR [--tiny]

Mean relative distance of the mean vectors of synthetic antibodies from those in fp32 with the exact form.
Torch computes GELU in a product's epilogue on GPUs only, in the tanh form; here the tanh form is a step of its own.
"""

from __future__ import annotations

import argparse
import platform
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F

from abag.core.device import DevicePlan
from abag.embed.encoders.identity import identify
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.packing import pack_spans, pool_tokens
from abag.embed.kernels.ops import PlainOps
from abag.embed.tables.pairs import read_pairs
from abag.head.demo import demo_table


class TanhOps(PlainOps):
    """Plain operations with the tanh form of GELU."""

    def linear_gelu(self, x_TD, weight_FD, bias_F):
        """Return the tanh form of GELU of ``x W^T + b``."""
        return F.gelu(F.linear(x_TD, weight_FD, bias_F), approximate="tanh")


def means(identity, chains, precision, ops):
    """Return the mean vectors of sequences, with these operations."""
    encoder = load_encoder(identity, DevicePlan(torch.device("cpu"), precision, "a benchmark"))
    encoder._ops = ops
    pooled = []
    for sequence in chains:
        batch = pack_spans([(0, span) for span in identity.layout.spans(sequence)])
        bounds = torch.from_numpy(batch.bounds).long()
        weights = torch.from_numpy(batch.weights)
        pooled.append(pool_tokens(encoder(batch), weights, bounds))
    return torch.cat(pooled)[:, 0].double()


def main(argv=None):
    """Print the distances between vectors with either form of GELU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    identity = identify("antiberty", "antibody")
    chains = read_pairs(demo_table()).antibodies.chains[: 2 if args.tiny else 24]
    exact = means(identity, chains, "fp32", PlainOps())
    lines = [f"# GELU of tanh in AntiBERTy, {date.today()}", ""]
    lines += [f"{len(chains)} antibodies; torch {torch.__version__}, {platform.machine()}.", ""]
    lines += ["| precision | exact | tanh |", "|---|---|---|"]
    for precision in ("bf16", "fp16", "fp32"):
        vectors = (means(identity, chains, precision, ops()) for ops in (PlainOps, TanhOps))
        far = [((x - exact).norm(dim=1) / exact.norm(dim=1)).mean().item() for x in vectors]
        lines.append(f"| {precision} | {far[0]:.2e} | {far[1]:.2e} |")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "gelu.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
