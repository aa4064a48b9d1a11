"""Measure candidates for faster steps of IgT5 and ESM-2 on one GPU.

    python benchmarks/bench_steps.py --out DIR [--part products algorithms attention esm2 esm2-fp16 heavy igt5] [--tiny]

The models have their real sizes and seeded random weights. Share of peak is as in bench_encoders.py; the
distance is the relative one of mean vectors to our fp32 encoder, one sequence at a time.
"""

from __future__ import annotations

import argparse
import gc
import platform
import tempfile
import time
import traceback
from datetime import date
from importlib.util import find_spec
from pathlib import Path

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
from safetensors.numpy import load_file, save_file

from abag.core.device import DevicePlan
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.random_weights import save_random_checkpoint
from abag.embed.kernels.attention import Attention
from abag.embed.kernels.ops import HalfOps, PlainOps
from abag.embed.packing.batches import fill_batches

PARTS = ("products", "algorithms", "attention", "esm2", "esm2-fp16", "heavy", "igt5", "esm2-flash4")


class Report:
    def __init__(self, path):
        self.path, self.lines = path, []

    def add(self, *lines):
        self.lines += lines
        print("\n".join(lines), flush=True)
        self.path.write_text("\n".join(self.lines) + "\n")


def milliseconds(run, device):
    if device.type == "cuda":
        import triton

        return triton.testing.do_bench(run, warmup=10, rep=40, return_mode="median")
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def fails(report, name, run):
    """Run; a variant that this machine lacks is a line of the report, not the end of it."""
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - any failure of a variant is a result
        traceback.print_exc()
        report.add(
            f"| {name} | failed: {type(error).__name__}: {str(error).splitlines()[:1]} | | |"
        )
        return None


def bench_products(report, device, tiny):
    """Time the products of both models with every epilogue that torch offers."""
    shapes = [("igt5 qkv", 1024, 12288, ""), ("igt5 out", 4096, 1024, ""), ("igt5 up", 1024, 16384, "relu"),
              ("igt5 down", 16384, 1024, ""), ("esm2 qkv", 1280, 3840, "bias"), ("esm2 out", 1280, 1280, "add"),
              ("esm2 up", 1280, 5120, "gelu"), ("esm2 down", 5120, 1280, "add")]  # fmt: skip
    report.add(
        "", "## products, bf16: ms (TFLOP/s)", "", "| product | tokens | cublas | cublaslt |"
    )
    report.add("|---|---|---|---|")
    for tokens in (64,) if tiny else (16384, 65536):
        for name, k, n, epilogue in shapes:
            x = torch.randn(tokens, k, device=device, dtype=torch.bfloat16)
            w = torch.randn(n, k, device=device, dtype=torch.bfloat16) / k**0.5
            bias = torch.zeros(n, device=device, dtype=torch.bfloat16)
            y = torch.zeros(tokens, n, device=device, dtype=torch.bfloat16)
            ways = {"": lambda x=x, w=w: F.linear(x, w)}
            ways |= {
                "bias": {" + bias": lambda: torch.addmm(bias, x, w.T)},
                "add": {" + residual": lambda: y.addmm_(x, w.T)},
                "relu": {" + relu": lambda: torch._addmm_activation(bias, x, w.T)},
                "gelu": {" + gelu": lambda: torch._addmm_activation(bias, x, w.T, use_gelu=True)},
                "": {},
            }[epilogue]
            for way, run in ways.items():
                cells = []
                for library in ("cublas", "cublaslt"):
                    if device.type == "cuda":
                        torch.backends.cuda.preferred_blas_library(library)
                    ms = milliseconds(run, device)
                    cells.append(f"{ms:.3f} ({2 * tokens * k * n / ms / 1e9:.0f})")
                report.add(f"| {name}{way} | {tokens} | {' | '.join(cells)} |")
    if device.type == "cuda":
        torch.backends.cuda.preferred_blas_library("default")


def bench_algorithms(report, device, tiny):
    """Time every algorithm that cuBLASLt proposes, with and without a bias in the epilogue."""
    from cublaslt import Product

    report.add(
        "", "## cuBLASLt itself, bf16: TFLOP/s by proposed algorithm, the first is its choice", ""
    )
    report.add("| product | tokens | epilogue | TFLOP/s |", "|---|---|---|---|")
    cases = [("igt5 up", 1024, 16384, ("", "relu", "relu, bias")), ("igt5 qkv", 1024, 12288, ("",)),
             ("igt5 down", 16384, 1024, ("",)), ("igt5 out", 4096, 1024, ("",)),
             ("esm2 up", 1280, 5120, ("", "gelu", "gelu, bias")), ("esm2 qkv", 1280, 3840, ("",)),
             ("esm2 down", 5120, 1280, ("",)), ("esm2 out", 1280, 1280, ("",))]  # fmt: skip
    for tokens in (16384, 65536):
        for name, k, n, epilogues in cases:
            x = torch.randn(tokens, k, device=device, dtype=torch.bfloat16)
            w = torch.randn(n, k, device=device, dtype=torch.bfloat16) / k**0.5
            bias = torch.zeros(n, device=device, dtype=torch.bfloat16)
            for epilogue in epilogues:
                product = Product(x, w, bias if "bias" in epilogue else None, epilogue=epilogue)
                expected = F.linear(x[:512], w)
                expected = expected.relu() if "relu" in epilogue else expected
                if "gelu" not in epilogue:
                    assert torch.allclose(product(product.algorithms[0])[:512], expected, atol=0.1)
                rates = [
                    2 * tokens * k * n / milliseconds(lambda p=product, a=a: p(a), device) / 1e9
                    for a in product.algorithms
                ]
                report.add(
                    f"| {name} | {tokens} | {epilogue} | {' '.join(f'{r:.0f}' for r in rates)} |"
                )


def bench_attention(report, device, tiny):
    """Time attention alone: the kernel of the package, its variants, and other libraries."""
    from step_variants import VariantAttention

    from abag.embed.kernels.triton_kernels import tile_bias
    from abag.embed.packing.batches import pack_spans
    from abag.embed.packing.tokens import TokenSpan

    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    rng = np.random.default_rng(0)
    for kind, heads, width, biased in (("antibody", 32, 128, True), ("antigen", 20, 64, False)):
        lengths = [sum(map(len, c)) + 2 for c in draw_chains(kind, 4 if tiny else 200, rng)]
        kept = np.cumsum(lengths) <= (10**4 if tiny else 32768)
        lengths = sorted(np.array(lengths)[kept].tolist(), reverse=True)
        heads = 2 if tiny else heads
        spans = [TokenSpan(np.zeros(n, np.int32), np.zeros((n, 1), np.float32)) for n in lengths]
        batch = pack_spans(list(enumerate(spans)))
        qkv = torch.randn(sum(lengths), 3 * heads * width, device=device, dtype=half)
        bias = torch.randn(heads, 257, device=device, dtype=half) if biased else None
        if biased:
            qkv[:, : heads * width] *= width**-0.5
        scale = 1.0 if biased else width**-0.5
        flop = 4 * heads * width * sum(n * n for n in lengths)
        plain = Attention("sdpa", heads, scale, None if bias is None else bias.float())
        exact = plain(qkv.float(), plain.geometry(batch, device, torch.float32))
        report.add("", f"## attention, {kind}, {sum(lengths)} tokens", "")
        report.add("| kernel | ms | TFLOP/s | error |", "|---|---|---|---|")

        def row(name, make):
            attention = make()
            geometry = attention.geometry(batch, device, half)
            out = attention(qkv, geometry)
            error = float((out.float() - exact).norm() / exact.norm())
            ms = milliseconds(lambda: attention(qkv, geometry), device)
            report.add(f"| {name} | {ms:.3f} | {flop / ms / 1e9:.0f} | {error:.1e} |")

        fails(
            report,
            "package",
            lambda: row("package", lambda: Attention("triton", heads, scale, bias)),
        )

        def by_pointers(tile):
            attention = Attention("triton", heads, scale, bias)
            attention._descriptors, attention._tile = False, tile
            if biased:
                attention._tiled_bias = tile_bias(bias, *tile[:2])
            return attention

        for tile in ((64, 32, 4, 2), (64, 64, 4, 3), (64, 32, 4, 3), (128, 32, 8, 2)):
            fails(
                report,
                f"pointers {tile}",
                lambda tile=tile: row(f"package, by pointers {tile}", lambda: by_pointers(tile)),
            )
        tiles = [((64, 32, 4, 2), None), ((64, 32, 4, 3), None), ((64, 64, 4, 2), None)]
        if not tiny:
            tiles += [((64, 64, 4, 3), None), ((64, 32, 4, 1), None), ((128, 64, 8, 2), None)]
            tiles += [((64, 32, 4, 2), r) for r in (96, 128, 160)]
            tiles += [((64, 64, 4, 2), r) for r in (96, 128, 160)]
        for tile, registers in tiles:
            fails(report, f"variant {tile} {registers}", lambda tile=tile, registers=registers: row(
                f"variant {tile}, at most {registers} registers",
                lambda: VariantAttention(heads, scale, bias, tile=tile, maxnreg=registers)))  # fmt: skip
        if device.type == "cuda":
            for kernel in (
                ("cudnn_groups",)
                if biased
                else ("varlen", "cudnn", "flash4")[: 3 if find_spec("flash_attn") else 2]
            ):
                fails(report, kernel, lambda kernel=kernel: row(
                    kernel, lambda: VariantAttention(heads, scale, bias, kernel=kernel)))  # fmt: skip
        if not biased:  # the rotation of the queries inside: its cost, not its numbers

            def turning():
                attention = VariantAttention(heads, scale)
                table = torch.ones(1026, width // 2, device=device)
                attention.turn = (torch.zeros(2 * heads * width, device=device), table, 0 * table)
                return attention

            fails(
                report,
                "rotating queries",
                lambda: row("package's tiles, rotating the queries", turning),
            )


class Steps:
    """End-to-end rows of one encoder: variant, share of peak, distance to fp32."""

    def __init__(self, report, bench, budgets, repeat, count):
        self.report, self.bench, self.budgets, self.repeat = report, bench, budgets, repeat
        chains = draw_chains(bench.kind, count, np.random.default_rng(1))
        layout = bench.identity.layout
        self.singles = [
            b for c in chains for b in fill_batches([(0, p) for p in layout.spans(c)], 10**6)
        ]
        self.exact = pooled_means(self.load("fp32"), self.singles, bench.device)
        titles = "".join(f" share, {b} | seq/s |" for b in budgets)
        report.add("", f"## {bench.name}, {len(bench.chains)} sequences", "")
        report.add(
            f"| variant |{titles} mean distance | worst |", "|---" * (2 * len(budgets) + 3) + "|"
        )

    def load(self, precision, attention="auto"):
        gc.collect()
        if self.bench.device.type == "cuda":
            torch.cuda.empty_cache()
        return load_encoder(
            self.bench.identity, DevicePlan(self.bench.device, precision, ""), attention=attention
        )

    def row(self, name, run, speed=True):
        def measure():
            distance = relative(pooled_means(run, self.singles, self.bench.device), self.exact)
            cells = ""
            for budget in self.budgets if speed else ():
                self.bench.time(f"{name}, {budget}", run, self.bench.batches(budget), self.repeat)
                timed = self.bench.rows[-1]
                cells += f" {100 * timed['share of peak']:.1f} % | {timed['sequences/s']:.0f} |"
            cells = cells or " | |" * len(self.budgets)
            self.report.add(f"| {name} |{cells} {distance.mean():.3e} | {distance.max():.3e} |")

        fails(self.report, name, measure)

    def kernels(self, name, run):
        """Add the kernels that take most of the GPU's time."""
        if self.bench.device.type == "cuda":
            batches = self.bench.batches(self.budgets[-1])
            lines = profile(self.bench, run, batches[len(batches) // 2])
            self.report.add("", f"Kernels of {name}:", "```", *lines, "```", "")


def esm2_variants(steps, device):
    from step_variants import (
        CompiledOps,
        EpilogueOps,
        KeysOps,
        RowsOps,
        VariantAttention,
        VariantEsm,
    )

    encoder = steps.load(
        "bf16" if device.type == "cuda" else "fp32", "triton" if device.type == "cuda" else "sdpa"
    )
    package, heads = encoder._attention, encoder._heads
    scale = (encoder.width // heads) ** -0.5
    steps.row("now", encoder)
    if device.type != "cuda":
        return
    encoder._ops = EpilogueOps()
    steps.row("gelu epilogue", encoder)
    torch.backends.cuda.preferred_blas_library("cublaslt")
    steps.row("gelu epilogue, cublaslt", encoder)
    torch.backends.cuda.preferred_blas_library("default")
    encoder._ops = RowsOps()
    steps.row("gelu epilogue, rows", encoder)
    steps.kernels("gelu epilogue, rows", encoder)
    steps.row("gelu epilogue, rows, added in the norm", VariantEsm(encoder, add_norm=True))
    encoder._ops, encoder._attention = KeysOps(), VariantAttention(heads, scale)
    steps.row("gelu epilogue, rows, queries rotated in attention", VariantEsm(encoder))
    encoder._attention = VariantAttention(heads, scale, tile=(64, 32, 4, 3))
    steps.row("the same, tiles (64, 32, 4, 3)", VariantEsm(encoder))
    encoder._ops = RowsOps()
    for kernel in ("cudnn", "varlen"):
        encoder._attention = VariantAttention(heads, scale, kernel=kernel)
        steps.row(f"gelu epilogue, rows, {kernel}", encoder)
    encoder._attention = VariantAttention(heads, scale, kernel="varlen")
    encoder._ops = CompiledOps()
    steps.row("varlen and compiled steps, as FAESM could be", encoder)
    encoder._ops, encoder._attention = PlainOps(), package


def flash4_variants(steps, device):
    from step_variants import RowsOps, VariantAttention

    if device.type != "cuda":
        return
    encoder = steps.load("bf16", "triton")
    encoder._ops = RowsOps()
    steps.row("gelu epilogue, rows", encoder)
    scale = (encoder.width // encoder._heads) ** -0.5
    encoder._attention = VariantAttention(encoder._heads, scale, kernel="flash4")
    steps.row("gelu epilogue, rows, flash-attn-4", encoder)


def heavy_variants(steps, device):
    from step_variants import EpilogueOps, HalfEpilogueOps, HalfNormOps

    for precision in ("bf16", "fp16"):
        encoder = steps.load(precision)
        steps.row(f"{precision}, now", encoder, speed=False)
        for ops in (EpilogueOps, HalfEpilogueOps, HalfNormOps) if device.type == "cuda" else ():
            encoder._ops = ops()
            steps.row(f"{precision}, {ops.__name__}", encoder, speed=False)


def fp16_variants(steps, device):
    from step_variants import HalfEpilogueOps, HalfNormOps, HalfTurnOps, VariantEsm

    bench = steps.bench
    encoder = steps.load("fp16", "sdpa")
    steps.row("fp16, grouped SDPA, fused steps", encoder)
    for name, ops in (
        ("now", HalfOps),
        ("gelu epilogue", HalfEpilogueOps),
        ("and norm in fp16", HalfNormOps),
    ):
        encoder._ops = ops()
        steps.row(f"fp16, no Triton, {name}", encoder)
    encoder._ops = HalfTurnOps()
    steps.row("fp16, no Triton, and bias of queries and keys", VariantEsm(encoder, qkv_bias=True))
    steps.kernels("fp16, no Triton", VariantEsm(encoder, qkv_bias=True))
    del encoder
    steps.row("transformers fp16", bench.padded(bench.theirs()))


def igt5_variants(steps, device):
    from step_variants import VariantAttention

    encoder = steps.load(
        "bf16" if device.type == "cuda" else "fp32", "triton" if device.type == "cuda" else "sdpa"
    )
    steps.row("now", encoder)
    steps.kernels("now", encoder)
    if device.type != "cuda":
        return
    torch.backends.cuda.preferred_blas_library("cublaslt")
    steps.row("cublaslt", encoder)
    torch.backends.cuda.preferred_blas_library("default")
    package = encoder._attention
    bias = package._scaled_bias_HR
    for tile in ((64, 32, 4, 2), (64, 64, 4, 2)):
        encoder._attention = VariantAttention(package._heads, 1.0, bias, tile=tile)
        steps.row(f"bias before the product, {tile}", encoder)
    encoder._attention = package
    fused = type(encoder._ops)
    encoder._ops = type("Apart", (fused,), {"linear_relu": PlainOps.linear_relu})()
    steps.row("relu apart", encoder)


def heavy_tailed(folder, layers):
    """Scale the inputs of GELU per unit, log-normally: some reach hundreds."""
    weights, rng = load_file(folder / "model.safetensors"), np.random.default_rng(3)
    for name in weights:
        if name.endswith("intermediate.dense.weight"):
            weights[name] *= np.exp(rng.standard_normal((len(weights[name]), 1))).astype(np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def bench_encoder(report, part, device, peak, tiny):
    name = "igt5" if part == "igt5" else "esm2-650m"
    config = config_of(name, tiny)
    if part == "heavy" and not tiny:
        config = {**config, "num_hidden_layers": 12}
    cls = Fp16Bench if part == "esm2-fp16" else Bench
    sdp = torch.backends.cuda
    flash = part != "esm2-fp16"  # GPUs without bf16 have neither
    sdp.enable_flash_sdp(flash)
    sdp.enable_cudnn_sdp(flash)
    with tempfile.TemporaryDirectory() as folder:
        save_random_checkpoint(Path(folder), config, seed=0)
        if part == "heavy":
            heavy_tailed(Path(folder), config)
        bench = cls(part, Path(folder), config, device, peak, 24 if tiny else 1024)
        budgets = (2048,) if tiny else (32768,) if part == "esm2-fp16" else (16384, 65536)
        steps = Steps(report, bench, budgets, 1 if tiny else 3, 4 if tiny else 64)
        run = {"esm2": esm2_variants, "heavy": heavy_variants, "esm2-fp16": fp16_variants,
               "igt5": igt5_variants, "esm2-flash4": flash4_variants}[part]  # fmt: skip
        run(steps, device)
    sdp.enable_flash_sdp(True)
    sdp.enable_cudnn_sdp(True)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    args.out.mkdir(parents=True, exist_ok=True)
    report = Report(args.out / "steps.md")
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor()
    peak = matmul_peak(device, args.tiny)
    report.add(f"# Steps of the encoders on {gpu}, {date.today()}", "")
    report.add(
        f"torch {torch.__version__}, Python {platform.python_version()}; random weights; bf16 product of "
        f"8192-cubed: {peak / 1e12:.0f} TFLOP/s."
    )
    for part in args.part:
        start = time.perf_counter()
        if part == "products":
            fails(report, part, lambda: bench_products(report, device, args.tiny))
        elif part == "algorithms":
            if device.type == "cuda":
                fails(report, part, lambda: bench_algorithms(report, device, args.tiny))
        elif part == "attention":
            fails(report, part, lambda: bench_attention(report, device, args.tiny))
        else:
            fails(
                report, part, lambda part=part: bench_encoder(report, part, device, peak, args.tiny)
            )
        synchronize(device)
        print(f"{part}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
