"""Compare the steps of IgT5 and ESM-2 with their alternatives on one GPU.

    python benchmarks/bench_steps.py --out DIR [--part products writes esm2 esm2-rotation esm2-biases esm2-fp16 igt5 esmc] [--tiny]

The models have their real sizes and seeded random weights. Share of peak is as in bench_encoders.py; the
distance is the relative one of mean vectors to our fp32 encoder, one sequence at a time.
"""

from __future__ import annotations

import argparse
import gc
import platform
import tempfile
import time
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from bench_encoders import (
    Bench,
    config_of,
    draw_chains,
    matmul_peak,
    pooled_means,
    profile,
    relative,
    synchronize,
)
from bench_turing import Fp16Bench

from abag.core.device import DevicePlan
from abag.embed.encoders.checkpoints import save_random_checkpoint
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.packing import pack_spans
from abag.embed.kernels import triton_kernels
from abag.embed.kernels.ops import HalfOps, PlainOps, Rotary


class Report:
    """A report that is printed and written line by line."""

    def __init__(self, path):
        self.path = path
        self.lines = []

    def add(self, *lines):
        """Add lines, print them, and write the report so far."""
        self.lines += lines
        print("\n".join(lines), flush=True)
        self.path.write_text("\n".join(self.lines) + "\n")


def milliseconds(run, device):
    """Time a step over a quarter of a second; a GPU is then at its power limit, as in a long run."""
    run()
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)

    def mean_of(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeat):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / repeat

    return mean_of(max(3, int(250 / mean_of(3))))


def draw(device, *shape):
    """Draw a tensor of normal values in bf16."""
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def bench_products(report, device, tiny):
    """Time the products of the encoders as torch and as the package compute them.

    Each for a quarter of a second at once, so that the GPU is at its power limit as in a long run.
    """
    from abag.embed.kernels.cublaslt import wide_products

    shapes = [
        ("igt5 qkv", 1024, 12288, ""),
        ("igt5 out", 4096, 1024, ""),
        ("igt5 up", 1024, 16384, "relu"),
        ("igt5 down", 16384, 1024, ""),
        ("esm2 qkv", 1280, 3840, "bias"),
        ("esm2 out", 1280, 1280, "sum"),
        ("esm2 up", 1280, 5120, "gelu"),
        ("esm2 down", 5120, 1280, "sum"),
        ("esmc qkv", 1152, 3456, ""),
        ("esmc gate and up", 1152, 6144, ""),
        ("ankh-large gate and up", 1536, 7680, ""),
        ("igbert up", 1024, 4096, "gelu"),
        ("esm2-3b up", 2560, 10240, "gelu"),
    ]
    wide = wide_products(device)
    report.add("", "## products, bf16: TFLOP/s", "")
    report.add("| product | with | tokens | torch | ours |", "|---|---|---|---|---|")
    for name, k, n, extra in shapes:
        for tokens in (64,) if tiny else (16384, 65536):
            x = draw(device, tokens, k)
            w = draw(device, n, k) / k**0.5
            bias = draw(device, n)
            y = draw(device, tokens, n)
            torchs = {
                "": lambda x=x, w=w: F.linear(x, w),
                "bias": lambda b=bias, x=x, w=w: torch.addmm(b, x, w.T),
                "sum": lambda y=y, x=x, w=w: y.addmm_(x, w.T),
                "relu": lambda b=bias, x=x, w=w: torch._addmm_activation(b, x, w.T),
                "gelu": lambda b=bias, x=x, w=w: torch._addmm_activation(b, x, w.T, use_gelu=True),
            }
            options = {
                "": {},
                "bias": {"bias_N": bias},
                "sum": {"add_to": y},
                "relu": {"epilogue": "relu"},
                "gelu": {"bias_N": bias, "epilogue": "gelu"},
            }
            runs = [torchs[extra]]
            if wide and wide(x, w, **options[extra]) is not None:
                runs.append(lambda x=x, w=w, o=options[extra]: wide(x, w, **o))
            flop = 2 * tokens * k * n
            cells = [f"{flop / milliseconds(run, device) / 1e9:.0f}" for run in runs]
            cells += ["-"] * (2 - len(cells))
            report.add(f"| {name} | {extra} | {tokens} | {' | '.join(cells)} |")


def bench_writes(report, device, tiny):
    """Time ways of writing a padded group's attention to its tokens, as in attention.py."""
    tokens, width = (64, 64) if tiny else (32768, 1280)
    y = draw(device, tokens + tokens // 20, width).half()
    out = draw(device, tokens, width).half()
    kept = torch.arange(tokens, device=device)

    def gather_and_copy():
        out[:] = y[kept]

    def scatter():
        out[kept] = y[kept]

    ways = {
        "scattered": scatter,
        "gathered, copied": gather_and_copy,
        "index_select": lambda: torch.index_select(y, 0, kept, out=out),
        "index": lambda: torch.ops.aten.index.Tensor_out(y, [kept], out=out),
    }
    report.add("", f"## writing {tokens} tokens of width {width}", "", "| way | ms |", "|---|---|")
    for name, run in ways.items():
        report.add(f"| {name} | {milliseconds(run, device):.3f} |")


class ExactGelu:
    """Mixed into the steps: GELU of erf, from the Triton kernel."""

    def linear_gelu(self, x_TD, weight_FD, bias_F):
        """Return the exact GELU of ``x W^T + b`` by abag's kernel."""
        return triton_kernels.gelu_(self.linear(x_TD, weight_FD), bias_F)


class CompiledOps(PlainOps):
    """Elementwise steps under torch.compile, one graph each, as in FAESM."""

    def __init__(self):
        super().__init__()
        self.layer_norm = torch.compile(super().layer_norm, dynamic=True)
        self._gelu = torch.compile(lambda x, bias: F.gelu(x + bias), dynamic=True)
        self._rotated = torch.compile(self._rotate, dynamic=True)

    def linear_gelu(self, x_TD, weight_FD, bias_F):
        """Return the GELU of ``x W^T + b`` by a compiled function."""
        return self._gelu(F.linear(x_TD, weight_FD), bias_F)

    @staticmethod
    def _rotate(x, positions, cos, sin, heads):
        """Return rotated heads; not in place, which the compiler would copy twice."""
        low, high = x.view(len(x), heads, 2, -1).unbind(2)
        c = cos[positions][:, None]
        s = sin[positions][:, None]
        return torch.stack([low * c - high * s, high * c + low * s], 2).flatten(1).to(x.dtype)

    def rotary_(self, x, rotary, heads):
        """Rotate by a compiled function."""
        turned = x[:, : 2 * heads * rotary.cos.shape[1]]
        turned.copy_(self._rotated(turned, *rotary, heads))
        return x


def biases_in_product(encoder):
    """Let the epilogue of their product add the biases of queries and keys, not what rotates them.

    Without Triton's attention this is so anyway.
    """

    def attend(y_TD, qkv_3ID, bias_3I, geometry, _qk_norm_2I=None):
        ops, shape = encoder._ops, encoder._shape
        qkv = ops.linear(y_TD, qkv_3ID, bias_3I)
        rotary = Rotary(geometry.positions, *encoder._rotary)
        ops.rotary_(qkv[:, shape.attention_width :], rotary, shape.heads)
        return encoder._attention(qkv, geometry)

    rotates = encoder._attention.rotates_queries
    return patch.object(encoder, "_attend", attend if rotates else encoder._attend)


class Steps:
    """Rows of one encoder: variant, share of peak, distance to fp32."""

    def __init__(self, report, bench, budgets, tiny):
        self.report = report
        self.bench = bench
        self.budgets = budgets
        self.repeat = 1 if tiny else 3
        self.gpu = bench.device.type == "cuda"
        chains = draw_chains(bench.kind, 4 if tiny else 64, np.random.default_rng(1))
        layout = bench.identity.layout
        self.singles = [pack_spans(list(layout.numbered_spans([chain]))) for chain in chains]
        self.exact = pooled_means(self.load("fp32"), self.singles, bench.device)
        titles = "".join(f" share, {b} | seq/s |" for b in budgets)
        report.add("", f"## {bench.name}, {len(bench.chains)} sequences", "")
        report.add(f"| variant |{titles} mean distance | worst |")
        report.add("|---" * (2 * len(budgets) + 3) + "|")

    def load(self, precision, attention="auto"):
        """Load abag's packed encoder."""
        gc.collect()
        if self.bench.device.type == "cuda":
            torch.cuda.empty_cache()
        plan = DevicePlan(self.bench.device, precision, "")
        return load_encoder(self.bench.identity, plan, attention=attention)

    def time(self, name, run, budget, repeat):
        """Return share of peak in per cent, and sequences per second."""
        self.bench.time(f"{name}, {budget}", run, self.bench.batches(budget), repeat)
        timed = self.bench.rows[-1]
        return 100 * timed["share of peak"], timed["sequences/s"]

    def distances(self, run):
        """Return cells with the mean and the largest distance from the reference."""
        distance = relative(pooled_means(run, self.singles, self.bench.device), self.exact)
        return f"{distance.mean():.3e} | {distance.max():.3e} |"

    def row(self, name, run):
        """Add the speeds of a way of encoding, with its distances, as a row."""
        distances = self.distances(run)
        cells = ""
        for budget in self.budgets:
            share, rate = self.time(name, run, budget, self.repeat)
            cells += f" {share:.1f} % | {rate:.0f} |"
        self.report.add(f"| {name} |{cells} {distances}")

    def alternate(self, encoder, variants, rounds=3):
        """Add a row per variant, an encoder with some patches: the median of alternate timings.

        In brackets, for each round: how many times as fast as the first variant.
        """
        order = list(variants)
        timed = {}
        distances = {}
        for turn in range(rounds + 1):
            for name in order:
                with ExitStack() as stack:
                    for change in variants[name]:
                        stack.enter_context(change)
                    if not turn:
                        distances[name] = self.distances(encoder)
                        continue
                    for budget in self.budgets:
                        result = self.time(name, encoder, budget, 1)
                        timed.setdefault((name, budget), []).append(result)
            order.reverse()  # no variant always meets the warmer GPU
        for name in variants:
            cells = ""
            for budget in self.budgets:
                times, first = (np.array(timed[n, budget]) for n in (name, next(iter(variants))))
                share, rate = np.median(times, 0)
                ratios = " ".join(f"{ratio:.4f}" for ratio in times[:, 1] / first[:, 1])
                cells += f" {share:.1f} % | {rate:.0f} ({ratios}) |"
            self.report.add(f"| {name} |{cells} {distances[name]}")

    def torch_products(self, encoder):
        """Add a row with torch's choice of algorithms."""
        wide = encoder._ops._wide
        encoder._ops._wide = None
        self.row("products by torch", encoder)
        encoder._ops._wide = wide

    def kernels(self, name, run):
        """Add the kernels that take most of the GPU's time."""
        if self.gpu:
            batches = self.bench.batches(self.budgets[-1])
            lines = profile(self.bench, run, batches[len(batches) // 2])
            self.report.add("", f"Kernels of {name}:", "", "```", *lines, "```", "")


def esm2_rows(steps):
    """Add the rows of ESM-2."""
    encoder = steps.load("bf16" if steps.gpu else "fp32")
    steps.row("now", encoder)
    if not steps.gpu:
        return
    fused = encoder._ops
    steps.torch_products(encoder)
    encoder._ops = type("Exact", (ExactGelu, type(fused)), {})(steps.bench.device)
    steps.row("exact GELU", encoder)
    varlen = steps.load("bf16", "varlen")
    steps.row("FlashAttention varlen, our steps", varlen)
    varlen._ops = CompiledOps()
    steps.row("FlashAttention varlen, compiled steps (as FAESM could be)", varlen)
    steps.kernels("FlashAttention varlen, compiled steps", varlen)
    encoder._ops = fused
    steps.kernels("now", encoder)


def rotation_rows(steps):
    """Compare the rotation of queries before attention with that inside it."""
    encoder = steps.load("bf16" if steps.gpu else "fp32")
    before = patch.object(encoder._attention, "_rotary", None)
    steps.alternate(encoder, {"queries rotated before attention": [before], "now": []})


def bias_rows(steps):
    """Compare the ways of adding a bias."""
    encoder = steps.load("bf16" if steps.gpu else "fp32")
    variants = {"biases in the product": [biases_in_product(encoder)], "biases in the rotation": []}
    steps.alternate(encoder, variants)


def fp16_rows(steps):
    """Add the rows of encoders in fp16."""
    encoder = steps.load("fp16", "sdpa")
    steps.row("grouped SDPA, fused steps", encoder)
    encoder._ops = HalfOps()
    steps.row("grouped SDPA, no Triton", encoder)
    steps.kernels("grouped SDPA, no Triton", encoder)
    del encoder
    steps.row("transformers fp16", steps.bench.padded(steps.bench.theirs()))


def rows(steps):
    """Add the rows that all encoders have."""
    encoder = steps.load("bf16" if steps.gpu else "fp32")
    steps.row("now", encoder)
    if steps.gpu:
        steps.torch_products(encoder)
        steps.kernels("now", encoder)


# 1,520 antigens fill their last batch
ENCODERS = {
    "esm2": ("esm2-650m", esm2_rows, (16384, 67520), 1024),
    "esm2-rotation": ("esm2-650m", rotation_rows, (67520, 135040), 1520),
    "esm2-biases": ("esm2-650m", bias_rows, (67520, 135040), 1520),
    "esm2-fp16": ("esm2-650m", fp16_rows, (16384, 32768), 1024),
    "igt5": ("igt5", rows, (16384, 67520), 1024),
    "esmc": ("esmc-600m", rows, (16384, 65536), 1024),
}
PARTS = {"products": bench_products, "writes": bench_writes}


def bench_encoder(report, part, device, peak, tiny):
    """Measure the steps of one encoder."""
    name, rows, budgets, count = ENCODERS[part]
    fp16 = part == "esm2-fp16"  # GPUs without bf16 have neither
    torch.backends.cuda.enable_flash_sdp(not fp16)
    torch.backends.cuda.enable_cudnn_sdp(not fp16)
    config = config_of(name, tiny)
    with tempfile.TemporaryDirectory() as folder:
        save_random_checkpoint(Path(folder), config, seed=0)
        cls = Fp16Bench if fp16 else Bench
        bench = cls(part, Path(folder), config, device, peak, 8 if tiny else count)
        rows(Steps(report, bench, (2048,) if tiny else budgets, tiny))


def main(argv=None):
    """Measure the parts that were asked for, and write a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*PARTS, *ENCODERS]
    parser.add_argument("--part", nargs="+", default=names, choices=names)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    args.out.mkdir(parents=True, exist_ok=True)
    report = Report(args.out / "steps.md")
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor()
    peak = matmul_peak(device, args.tiny)
    n = 64 if args.tiny else 8192
    x = draw(device, n, n)
    w = draw(device, n, n)
    steady = 2 * n**3 / milliseconds(lambda: x @ w, device) / 1e9
    report.add(f"# Steps of the encoders on {gpu}, {date.today()}", "")
    report.add(
        f"torch {torch.__version__}, Python {platform.python_version()}; random weights; bf16 product of "
        f"8192-cubed: {peak / 1e12:.0f} TFLOP/s for 20 products, {steady:.0f} for a quarter of a second."
    )
    for part in args.part:
        start = time.perf_counter()
        if part in PARTS:
            PARTS[part](report, device, args.tiny)
        else:
            bench_encoder(report, part, device, peak, args.tiny)
        synchronize(device)
        print(f"{part}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
