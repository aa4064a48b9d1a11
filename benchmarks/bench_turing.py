"""Compare fp16 encoders as GPUs without bf16 run them (T4, V100), with any GPU as a proxy.

    python benchmarks/bench_turing.py --out DIR [--encoder igt5 esm2-650m] [--no-compile] [--tiny]

FlashAttention and cuDNN attention, which those GPUs lack, are switched off for every row. The models have
their real sizes and seeded random weights. Batches are sorted by length. Agreement is the relative distance
of mean vectors to fp32 (transformers, one sequence at a time). The last table multiplies weights of a model
with four layers so that plain fp16 overflows.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
import threading
import time
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import numpy as np
import torch
import transformers
from bench_encoders import (
    Bench,
    config_of,
    draw_chains,
    matmul_peak,
    pooled_means,
    relative,
    synchronize,
)
from safetensors.numpy import load_file, save_file

from abag.core.device import DevicePlan
from abag.embed.encoders.checkpoints import save_random_checkpoint
from abag.embed.encoders.families import FAMILIES
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.packing import fill_batches, pack_spans
from abag.embed.kernels.ops import HalfOps


class HostMemory:
    """Peak of this process's anonymous memory, sampled: file pages can be dropped at any time."""

    def __enter__(self):
        self._stop = threading.Event()
        self._peak = 0
        self._before = self._now()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _watch(self):
        while not self._stop.is_set():
            self._peak = max(self._peak, self._now())
            time.sleep(0.005)

    @staticmethod
    def _now():
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(x for x in lines if x.startswith("RssAnon")).split()[1]) * 1024

    def __str__(self):
        return f"{self._peak / 2**30:.2f} GiB anonymous ({self._before / 2**30:.2f} before)"


class Fp16Bench(Bench):
    """A benchmark of an encoder in fp16, as on GPUs without bf16."""

    def ours(self, precision="fp16", attention="auto", plain=False):
        """Load abag's packed encoder, with plain torch operations if asked for."""
        plan = DevicePlan(self.device, precision, "")
        encoder = load_encoder(self.identity, plan, attention=attention)
        if plain:
            encoder._ops = HalfOps()
        return encoder

    def theirs(self, all_half=False, dtype=torch.float16):
        """Return transformers' module; by default it keeps some weights of T5 in fp32."""
        family = self.identity.family
        cls = getattr(transformers, family.transformers_class)
        folder = self.identity.checkpoint.folder
        options = family.transformers_options
        model = cls.from_pretrained(folder, dtype=dtype, **options).eval().requires_grad_(False)
        return (model.half() if all_half else model).to(self.device)

    def their_ways(self):
        """Say for each way of loading in transformers whether it casts all weights to fp16."""
        cls = getattr(transformers, self.identity.family.transformers_class)
        names = {False: "transformers, as it loads"}
        if cls._keep_in_fp32_modules:
            names[True] = "transformers, all weights in fp16"
        return names


@contextmanager
def freed(device):
    """Free what the block held on the GPU."""
    yield
    gc.collect()
    torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def bench_speed(bench, args):
    """Time every path on the same batches."""
    device = bench.device
    budgets = (2048,) if args.tiny else (16384, 32768)
    repeat = 1 if args.tiny else 3
    notes = []
    with freed(device):
        start = time.perf_counter()
        host = HostMemory()
        with host:
            encoder = bench.ours(attention="sdpa")
            synchronize(device)
        notes.append(f"loading in fp16: {time.perf_counter() - start:.1f} s, {host}")
        print(notes[-1], flush=True)
        for budget in budgets:
            title = f"abag fp16, grouped SDPA, fused steps, {budget}"
            bench.time(title, encoder, bench.batches(budget), repeat)
        encoder._ops = HalfOps()
        for budget in budgets:
            title = f"abag fp16, grouped SDPA, no Triton, {budget}"
            bench.time(title, encoder, bench.batches(budget), repeat)
        del encoder
    if device.type == "cuda":
        for precision in ("fp16", "bf16"):
            with freed(device):
                encoder = bench.ours(precision, "triton")
                for budget in budgets:
                    title = f"abag {precision}, Triton attention, {budget}"
                    bench.time(title, encoder, bench.batches(budget), repeat)
                del encoder
    batches = bench.batches(budgets[0])
    for all_half, title in bench.their_ways().items():
        with freed(device):
            model = bench.theirs(all_half)
            bench.time(f"{title}, {budgets[0]}", bench.padded(model), batches)
            if args.compile:
                some = batches[:: max(1, len(batches) // 6)]
                compiled = torch.compile(model, dynamic=True)
                bench.time(f"{title}, compiled, {budgets[0]}", bench.padded(compiled), some)
                del compiled
            del model
    return notes


def measure_agreement(bench, count):
    """Compare mean vectors of every path with fp32."""
    layout = bench.identity.layout
    device = bench.device
    chains = draw_chains(bench.kind, count, np.random.default_rng(1))
    singles = [pack_spans(list(layout.numbered_spans([chain]))) for chain in chains]
    packed = list(fill_batches(layout.numbered_spans(chains), 16384))
    paths = {
        "abag, grouped SDPA, fused steps": lambda: bench.ours(attention="sdpa"),
        "abag, grouped SDPA, no Triton": lambda: bench.ours(attention="sdpa", plain=True),
    }
    for all_half, name in bench.their_ways().items():
        paths[name] = lambda all_half=all_half: bench.padded(bench.theirs(all_half))
    if device.type == "cuda":
        paths["abag, Triton attention"] = lambda: bench.ours(attention="triton")
    with freed(device):
        exact = pooled_means(bench.padded(bench.theirs(dtype=torch.float32)), singles, device)
    rows = []
    for name, load in paths.items():
        with freed(device):
            run = load()
            distance = relative(pooled_means(run, singles, device), exact)
            together = relative(pooled_means(run, packed, device), exact)
            del run
        rows.append((name, distance.mean(), distance.max(), together.mean()))
        print(f"{name:36} {rows[-1][1]:.3e} {rows[-1][2]:.3e} {rows[-1][3]:.3e}", flush=True)
    return rows


def overflowing_bench(folder, device):
    """Make a T5 of four layers whose feed-forward products exceed fp16."""
    folder = save_random_checkpoint(folder, FAMILIES["t5"].reduced_config, seed=1)
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if name.endswith("DenseReluDense.wo.weight"):
            weights[name] *= np.float32(3e4)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return Fp16Bench("overflow", folder, FAMILIES["t5"].reduced_config, device, 1.0, 8)


def report(results, peak, args):
    """Return the report as Markdown."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    lines = [
        f"# fp16 encoders on {device}, {date.today()}",
        "",
        f"torch {torch.__version__}, transformers {transformers.__version__}, Python "
        f"{platform.python_version()}; random weights; no FlashAttention, no cuDNN attention; bf16 product "
        f"of 8192-cubed: {peak / 1e12:.0f} TFLOP/s in this run.",
        f"Command: `python benchmarks/bench_turing.py --encoder {' '.join(args.encoder)}"
        f"{'' if args.compile else ' --no-compile'}{' --tiny' if args.tiny else ''}`",
    ]
    for name, result in results.items():
        lines += ["", f"## {name}", ""]
        if result["rows"]:
            lines += ["| path, tokens per batch | seq/s | tokens/s | share of peak | GiB |"]
            lines += ["|---|---|---|---|---|"]
        lines += [
            f"| {r['path']} | {r['sequences/s']:.1f} | {r['tokens/s']:.0f} | "
            f"{100 * r['share of peak']:.1f} % | {r['GiB']:.1f} |"
            for r in result["rows"]
        ]
        lines += ["", *[f"- {note}" for note in result["notes"]], ""]
        lines += ["| distance to fp32 | mean | worst | mean, in batches |", "|---|---|---|---|"]
        lines += [f"| {n} | {m:.3e} | {w:.3e} | {b:.3e} |" for n, m, w, b in result["agreement"]]
    return "\n".join(lines) + "\n"


def main(argv=None):
    """Measure agreement and speed in fp16, and write a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", nargs="+", default=["igt5", "esm2-650m"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.compile &= device.type == "cuda"
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    transformers.utils.logging.set_verbosity_error()
    peak = matmul_peak(device, args.tiny)
    print(f"peak {peak / 1e12:.1f} TFLOP/s", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    results = {}

    def write():
        (args.out / "turing.md").write_text(report(results, peak, args))
        (args.out / "turing.json").write_text(json.dumps(results, indent=1, default=float))

    for name in args.encoder:
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(name, args.tiny)
            save_random_checkpoint(Path(folder), config, seed=0)
            bench = Fp16Bench(name, Path(folder), config, device, peak, 8 if args.tiny else 1024)
            notes = bench_speed(bench, args)  # first: it measures the memory of loading
            agreement = measure_agreement(bench, 2 if args.tiny else 128)
            results[name] = {"rows": bench.rows, "notes": notes, "agreement": agreement}
            write()
    with tempfile.TemporaryDirectory() as folder:
        bench = overflowing_bench(Path(folder), device)
        agreement = measure_agreement(bench, 2 if args.tiny else 64)
        results["igt5, 4 layers, products beyond fp16"] = {
            "rows": [],
            "notes": [],
            "agreement": agreement,
        }
        write()


if __name__ == "__main__":
    main()
