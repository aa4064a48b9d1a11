"""Measure tile sizes and fusions of the encoder kernels on the GPU of this machine.

    python benchmarks/bench_kernels.py [--tokens 16384]

Prints one line per variant: milliseconds (median) and TFLOP/s or GB/s.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
import torch
import torch.nn.functional as F
import triton

from abag.embed.encoders.packing import TokenSpan, pack_spans
from abag.embed.kernels import attention as attention_module
from abag.embed.kernels import triton_kernels as kernels
from abag.embed.kernels.attention import Attention
from abag.embed.kernels.ops import Rotary


def milliseconds(run) -> float:
    """Return the median time of a call."""
    return triton.testing.do_bench(run, warmup=10, rep=40, return_mode="median")


def lengths_of(kind: str, tokens: int) -> list[int]:
    """Draw the lengths of sequences, variable domains or antigens, that fill `tokens`."""
    rng = np.random.default_rng(0)
    out = []
    total = 0
    while True:
        if kind == "fv":
            n = int(rng.normal(121, 4)) + int(rng.normal(108, 3)) + 2
        else:
            n = int(np.clip(300 * np.exp(0.6 * rng.standard_normal()), 30, 1022)) + 2
        if total + n > tokens:
            return sorted(out, reverse=True)
        out.append(n)
        total += n


def bench_attention(kind, heads, width, tokens, biased):
    """Print the fastest tiles of the attention kernel."""
    lengths = lengths_of(kind, tokens)
    spans = [TokenSpan(np.zeros(n, np.int32), np.zeros((n, 1), np.float32)) for n in lengths]
    batch = pack_spans(list(enumerate(spans)))
    device = torch.device("cuda")
    qkv = torch.randn(sum(lengths), 3 * heads * width, device=device, dtype=torch.bfloat16)
    bias = torch.randn(heads, 257, device=device, dtype=torch.bfloat16) if biased else None
    flop = 4 * heads * width * sum(n * n for n in lengths)
    scale = 1.0 if biased else width**-0.5
    if biased:
        qkv[:, : heads * width] *= width**-0.5
    sdpa = Attention("sdpa", heads, scale, bias)
    expected = (
        sdpa(qkv.float(), sdpa.geometry(batch.offsets, device, torch.float32))
        if not biased
        else None
    )
    if biased:
        plain = Attention("sdpa", heads, scale, bias.float())
        expected = plain(qkv.float(), plain.geometry(batch.offsets, device, torch.float32))
    results = []
    key = "biased" if biased else "plain"
    for m, n, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
        if (m, warps) == (64, 8):
            continue
        attention_module._TILES[key] = (m, n, warps, stages)
        try:
            attention = Attention("triton", heads, scale, bias)
            geometry = attention.geometry(batch.offsets, device, qkv.dtype)
            out = attention(qkv, geometry)
            error = float((out.float() - expected).norm() / expected.norm())
            ms = milliseconds(lambda: attention(qkv, geometry))
        except Exception as error:  # noqa: BLE001 - a tile too large for the chip
            print(kind, (m, n, warps, stages), type(error).__name__, flush=True)
            continue
        results.append((ms, (m, n, warps, stages), error))
    if not biased:
        attention = Attention("varlen", heads, scale)
        geometry = attention.geometry(batch.offsets, device, qkv.dtype)
        out = attention(qkv, geometry)
        error = float((out.float() - expected).norm() / expected.norm())
        results.append((milliseconds(lambda: attention(qkv, geometry)), "torch varlen", error))
    for ms, name, error in sorted(results, key=lambda r: r[0])[:8]:
        print(
            f"attention {kind} {tokens} {name}: {ms:.3f} ms {flop / ms / 1e9:.0f} TFLOP/s, error {error:.1e}"
        )


def bench_steps(tokens):
    """Print the times of norms, activations and rotary positions, with the share of the bandwidth."""
    device = torch.device("cuda")
    bf16 = torch.bfloat16

    def line(name, run, flop=0.0, byte=0.0):
        ms = milliseconds(run)
        rate = f"{flop / ms / 1e9:.0f} TFLOP/s" if flop else f"{byte / ms / 1e6:.0f} GB/s"
        print(f"{name} {tokens}: {ms:.3f} ms {rate}", flush=True)

    for d, f in ((1024, 16384), (1280, 5120)):
        x = torch.randn(tokens, d, device=device, dtype=bf16)
        h = torch.randn(tokens, f, device=device, dtype=bf16)
        up = torch.randn(f, d, device=device, dtype=bf16) / d**0.5
        down = torch.randn(d, f, device=device, dtype=bf16) / f**0.5
        bias = torch.randn(f, device=device, dtype=bf16)
        w = torch.ones(d, device=device)
        flop = 2 * tokens * d * f
        line(f"up {d}->{f}", lambda: F.linear(x, up), flop)
        line("  + bias", lambda: torch.addmm(bias, x, up.T), flop)
        line("  + relu epilogue", lambda: torch._addmm_activation(bias, x, up.T), flop)
        line(
            "  + tanh gelu epilogue",
            lambda: torch._addmm_activation(bias, x, up.T, use_gelu=True),
            flop,
        )
        line("  + bias and erf gelu", lambda: kernels.gelu_(F.linear(x, up), bias), flop)
        line(f"down {f}->{d}", lambda: F.linear(h, down), flop)
        line("  + residual", lambda: x.addmm_(h, down.T), flop)
        line(f"gelu {f}", lambda: kernels.gelu_(h, bias), byte=4 * tokens * f)
        out = torch.empty_like(x)
        for warps in (1, 2, 4, 8):

            def norm():
                kernels._layer_norm_kernel[(tokens,)](
                    x,
                    w,
                    w,
                    w,
                    out,
                    1e-5,
                    WIDTH=d,
                    BLOCK=triton.next_power_of_2(d),
                    num_warps=warps,
                )

            line(f"layer norm {d} {warps} warps", norm, byte=4 * tokens * d)
        line(
            f"add and rms norm {d}",
            lambda: kernels.FusedOps(device).add_rms_norm_(x, out, 1.0, w, 1e-5),
            byte=8 * tokens * d,
        )
    for d, n in ((1024, 12288), (4096, 1024), (1280, 3840), (1280, 1280)):
        x = torch.randn(tokens, d, device=device, dtype=bf16)
        w = torch.randn(n, d, device=device, dtype=bf16)
        line(f"linear {d}->{n}", lambda: F.linear(x, w), 2 * tokens * d * n)
    qkv = torch.randn(tokens, 3840, device=device, dtype=bf16)
    cos = torch.randn(1026, 32, device=device)
    pos = torch.arange(tokens, device=device, dtype=torch.int32) % 400
    rotary_ = kernels.FusedOps(device).rotary_
    line("rotary", lambda: rotary_(qkv, Rotary(pos, cos, cos), 40), byte=tokens * 2560 * 4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    args = parser.parse_args()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    ms = milliseconds(lambda: a @ a)
    print(
        f"peak: {2 * 8192**3 / ms / 1e9:.0f} TFLOP/s; torch {torch.__version__}, triton {triton.__version__}"
    )
    for tokens in args.tokens:
        bench_steps(tokens)
    bench_attention("fv", 32, 128, 16384, True)
    bench_attention("antigen", 20, 64, 16384, False)
