"""Measure the speed and peak memory of LoRA training, with and without gradient checkpointing.

    python benchmarks/bench_adapt.py --out DIR [--gpu] [--steps 20] [--batches 8,16,32,64]

With --gpu, the models have their real sizes and seeded random weights; otherwise they are small. A
step is what `abag adapt` does for one kind: encode a batch, pool, backward, clip, AdamW. The same
batches are also timed in a forward pass alone.
"""

from __future__ import annotations

import argparse
import gc
import platform
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import peft
import torch
import transformers
from bench_encoders import config_of, draw_chains, synchronize
from shapes import count_flops

from abag.adapt.config import Lora
from abag.adapt.model import LoraEncoder, fit_lora
from abag.core.device import plan_device
from abag.embed.encoders.checkpoints import save_random_checkpoint
from abag.embed.encoders.identity import identify
from abag.embed.encoders.packing import pack_spans, pool_tokens

CARDS = {"T4 16": 14.5, "24": 22, "40": 38, "80": 78}  # GiB that are left for us


def make_batches(identity, size, steps, rng):
    """Return batches of sequences, similar lengths together as `abag adapt` makes them."""
    layout = identity.layout
    chains = draw_chains(layout.kind, size * steps, rng)
    chains.sort(key=lambda c: sum(map(len, c)))
    batches = []
    for i in rng.permutation(steps):
        of_batch = chains[i * size :][:size]
        batches.append(pack_spans(list(layout.numbered_spans(of_batch))))
    return batches


def step(encoder, optimiser, batch, device):
    """One optimiser step on mean-pooled vectors."""
    mean_T1 = torch.from_numpy(np.ascontiguousarray(batch.weights[:, :1])).to(device)
    bounds = torch.from_numpy(batch.bounds.astype(np.int64)).to(device)
    optimiser.zero_grad(set_to_none=True)
    pool_tokens(encoder(batch), mean_T1, bounds).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(list(encoder.factors().values()), 1.0)
    optimiser.step()


def measure(identity, plan, batches, *, saving):
    """Return steps/s, forward passes/s and peak memory; None if it does not fit."""
    device = plan.device
    lora = fit_lora(Lora(rank=8, alpha=16.0), identity.checkpoint)
    encoder = LoraEncoder(identity.checkpoint, plan, lora, gradient_checkpointing=saving).train()
    optimiser = torch.optim.AdamW(list(encoder.factors().values()), lr=1e-4)
    trainable = sum(p.numel() for p in encoder.factors().values())
    longest = max(batches, key=lambda b: len(b.offsets) * b.max_length)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        step(encoder, optimiser, longest, device)
        step(encoder, optimiser, batches[0], device)
        synchronize(device)
        start = time.perf_counter()
        for batch in batches:
            step(encoder, optimiser, batch, device)
        synchronize(device)
        step_s = (time.perf_counter() - start) / len(batches)
        peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
        with torch.no_grad():
            start = time.perf_counter()
            for batch in batches:
                encoder(batch)
            synchronize(device)
            forward_s = (time.perf_counter() - start) / len(batches)
    except torch.OutOfMemoryError:
        return None, trainable
    return (step_s, forward_s, peak), trainable


def main(argv=None):
    """Measure the steps of training, and write a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu", action="store_true", help="real shapes")
    parser.add_argument("--tiny", action="store_true", help="the default, named")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batches", default=None)
    args = parser.parse_args(argv)
    steps = args.steps or (20 if args.gpu else 2)
    sizes = [int(n) for n in (args.batches or ("8,16,32,64" if args.gpu else "4")).split(",")]
    plan = plan_device()
    rng = np.random.default_rng(0)
    device = torch.cuda.get_device_name() if plan.device.type == "cuda" else platform.machine()
    lines = [
        f"# LoRA training on {device}, {date.today()}",
        "",
        f"torch {torch.__version__}, transformers {transformers.__version__}, peft "
        f"{peft.__version__}; {plan.precision}; {'real' if args.gpu else 'tiny'} shapes, random "
        f"weights; r 8, alpha 16, queries and values of all layers, dropout 0.1; {steps} steps each; "
        f"`python benchmarks/bench_adapt.py{' --gpu' if args.gpu else ''} --steps {steps} --batches "
        f"{','.join(map(str, sizes))}`",
        "",
        "| encoder | sequences per step | gradient checkpointing | steps/s | sequences/s | TFLOP/s "
        "| step / forward | peak GiB | fits a card of |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    notes = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, name in (("antibody", "igt5"), ("antigen", "esm2-650m")):
            path = Path(folder) / name
            save_random_checkpoint(path, config_of(name, not args.gpu), seed=0)
            identity = identify(str(path), kind)
            trainable = 0
            for size in sizes:
                batches = make_batches(identity, size, steps, rng)
                work = np.mean([count_flops(identity.shape, np.diff(b.offsets)) for b in batches])
                for saving in (False, True):
                    measured, trainable = measure(identity, plan, batches, saving=saving)
                    cells = [name, str(size), "yes" if saving else "no"]
                    if measured is None:
                        cells += ["does not fit", "", "", "", "", ""]
                    else:
                        step_s, forward_s, peak = measured
                        fits = next((c for c, gib in CARDS.items() if peak < gib), "none")
                        # forward, and as much again to go back: the frozen weights have no gradient
                        cells += [
                            f"{1 / step_s:.2f}",
                            f"{size / step_s:.1f}",
                            f"{2 * work / step_s / 1e12:.1f}",
                            f"{step_s / forward_s:.2f}",
                            f"{peak:.1f}",
                            fits if peak == peak else "",
                        ]
                    lines.append("| " + " | ".join(cells) + " |")
                    print(lines[-1], flush=True)
                    gc.collect()
                    if plan.device.type == "cuda":
                        torch.cuda.empty_cache()
            notes.append(f"- {name}: {trainable:,} trainable parameters")
    lines += [
        "",
        *notes,
        "",
        "TFLOP/s counts forward and once more for going back, not what checkpointing computes "
        "again. The old guide advised r 8, alpha 16 on queries and values, and gradient "
        "checkpointing where memory is short.",
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "adapt.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
