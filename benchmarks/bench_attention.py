"""Compare abag's attention with FlashAttention and flex_attention on one GPU.

    python benchmarks/bench_attention.py --out DIR [--tokens 67520] [--tiny]

One layer of ESM-2 650M (rotated queries, no bias) and of IgT5 (bias by relative position), over one packed batch of
random values. FlashAttention-4 and the FLASH backend of flex_attention need the package flash-attn-4; what cannot run is
listed with its error. The distance is the relative one to fp32.
"""

from __future__ import annotations

import argparse
import platform
import traceback
from datetime import date
from pathlib import Path

import numpy as np
import torch
from bench_encoders import draw_chains, relative
from bench_steps import Report, milliseconds
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from abag.core.messages import first_line
from abag.embed.encoders.packing import TokenSpan, pack_spans
from abag.embed.kernels.attention import Attention

ENCODERS = {"ESM-2 650M": ("antigen", 20, 64, False), "IgT5": ("antibody", 32, 128, True)}
"""Sequences, heads, their width, and whether there is a bias."""
LONGEST = 128
"""Distance from which on the bias is the same."""


def draw_batch(kind, tokens):
    """Pack sequences of at most so many tokens, the longest first."""
    chains = draw_chains(kind, 16 + tokens // 100, np.random.default_rng(0))
    lengths = np.array([sum(map(len, sequence)) + 1 + len(sequence) for sequence in chains])
    lengths = np.sort(lengths[np.cumsum(lengths) <= tokens])[::-1]
    spans = [TokenSpan(np.zeros(n, np.int32), np.zeros((n, 1), np.float32)) for n in lengths]
    return pack_spans(list(enumerate(spans)))


def sequence_mask(offsets, rows, columns, device):
    """Return the mask by which a token attends to its own sequence, in blocks of rows x columns.

    Made on the host from the blocks' ends; `create_block_mask` would look at all pairs of tokens.
    """
    tokens = int(offsets[-1])
    sequence = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    starts = np.arange(0, tokens, rows)
    first = sequence[starts]
    last = sequence[np.minimum(starts + rows, tokens) - 1]
    begins = offsets[first] // columns
    ends = -(-offsets[last + 1] // columns)
    # all pairs of such a block are in one sequence, which no other block of columns needs to know
    inner_begins = -(-offsets[first] // columns)
    inner_ends = offsets[last + 1] // columns
    partial = []
    full = []
    for i in range(len(starts)):
        inner = range(inner_begins[i], inner_ends[i]) if first[i] == last[i] else range(0)
        full.append(list(inner))
        partial.append([j for j in range(begins[i], ends[i]) if j not in inner])
    of_token = torch.from_numpy(sequence).to(device)

    def same_sequence(_batch, _head, query, key):
        return of_token[query] == of_token[key]

    tensors = [_indices(part, -(-tokens // columns), device) for part in (partial, full)]
    return BlockMask.from_kv_blocks(
        *tensors[0], *tensors[1], (rows, columns), same_sequence, (tokens, tokens), False
    )


def _indices(blocks, columns, device):
    """Return the counts, (1, 1, rows), and the indices, (1, 1, rows, columns), of blocks."""
    indices = np.zeros((len(blocks), columns), np.int32)
    for row, block_indices in zip(indices, blocks, strict=True):
        row[: len(block_indices)] = block_indices
    counts = np.array([len(block_indices) for block_indices in blocks], np.int32)
    return [torch.from_numpy(part)[None, None].to(device) for part in (counts, indices)]


def flex(qkv, heads, scale, bias, offsets, blocks, backend):
    """Return a call of flex_attention with a mask in blocks of queries x keys; a GPU compiles it."""
    mask = sequence_mask(offsets, *blocks, qkv.device)
    q, k, v = (x.transpose(0, 1)[None] for x in qkv.view(len(qkv), 3, heads, -1).unbind(1))
    call = torch.compile(flex_attention, dynamic=False) if qkv.is_cuda else flex_attention
    options = {"BACKEND": backend} if qkv.is_cuda else None
    score = None
    if bias is not None:
        # wide enough for all pairs of a block: the FLASH backend cannot clamp
        reach = int(np.diff(offsets).max()) + 2 * max(mask.BLOCK_SIZE)
        distance = torch.arange(-reach, reach + 1, device=qkv.device).clamp(-LONGEST, LONGEST)
        wide = bias[:, distance + LONGEST].contiguous()

        def score(score, _batch, head, query, key):
            return score + wide[head, key - query + reach]

    def run():
        out = call(q, k, v, score_mod=score, block_mask=mask, scale=scale, kernel_options=options)
        return out[0].transpose(0, 1).flatten(1)

    return run


def flash_attention_4(qkv, heads, scale, offsets):
    """Return a call of flash-attn-4 for sequences of different lengths."""
    from flash_attn.cute import flash_attn_varlen_func

    q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    longest = int(np.diff(offsets).max())
    ends = torch.from_numpy(offsets.astype(np.int32)).to(qkv.device)

    def run():
        out = flash_attn_varlen_func(
            q,
            k,
            v,
            cu_seqlens_q=ends,
            cu_seqlens_k=ends,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            softmax_scale=scale,
        )
        return (out[0] if isinstance(out, tuple) else out).flatten(1)

    return run


def variants(qkv, heads, scale, bias, batch):
    """Yield the name of each implementation and a function that makes a call of it."""
    device = qkv.device
    offsets = np.asarray(batch.offsets)

    def ours(name):
        attention = Attention(name, heads, scale, bias)
        geometry = attention.geometry(batch.offsets, device, qkv.dtype)
        return lambda: attention(qkv, geometry)

    yield "abag", lambda: ours("triton" if qkv.is_cuda else "sdpa")
    if bias is None:
        yield "FlashAttention-2 of torch", lambda: ours("varlen")
        yield "flash-attn-4", lambda: flash_attention_4(qkv, heads, scale, offsets)
    # Triton's tiles are up to 128 queries, those of FLASH 192 or 128 by the width of a head
    on_gpu = (("TRITON", (128, 128)), ("FLASH", (192, 128)), ("FLASH", (128, 128)))
    for backend, blocks in on_gpu if qkv.is_cuda else (("CPU", (64, 64)),):
        yield (
            "flex_attention, {}, blocks of {} x {}".format(backend, *blocks),
            lambda blocks=blocks, backend=backend: flex(
                qkv, heads, scale, bias, offsets, blocks, backend
            ),
        )


def bench(report, name, device, tokens):
    """Time the variants of attention on a batch, with their distances from the first."""
    kind, heads, width, has_bias = ENCODERS[name]
    batch = draw_batch(kind, tokens)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    qkv = torch.randn(int(batch.offsets[-1]), 3 * heads * width, device=device, dtype=dtype)
    scale = 1.0 if has_bias else width**-0.5
    if has_bias:  # T5 does not scale
        qkv[:, : heads * width] *= width**-0.5
    bias = torch.randn(heads, 2 * LONGEST + 1, device=device, dtype=dtype) if has_bias else None
    plain = Attention("sdpa", heads, scale, None if bias is None else bias.float())
    exact = plain(qkv.float(), plain.geometry(batch.offsets, device, torch.float32)).cpu()
    lengths = np.diff(batch.offsets).astype(np.int64)
    flop = 4 * heads * width * int((lengths**2).sum())
    report.add("", f"## {name}: {len(lengths)} sequences, {len(qkv)} tokens", "")
    report.add("| attention | ms | TFLOP/s | mean distance |", "|---|---|---|---|")
    for title, make in variants(qkv, heads, scale, bias, batch):
        torch.compiler.reset()
        try:
            run = make()
            distance = relative(run().float().cpu(), exact).mean()
            ms = milliseconds(run, device)
        except Exception as error:  # noqa: BLE001 - what a device or a version lacks
            traceback.print_exc()
            report.add(f"| {title} | {type(error).__name__}: {first_line(error)[:80]} | | |")
            continue
        report.add(f"| {title} | {ms:.3f} | {flop / ms / 1e9:.0f} | {distance:.2e} |")


def main(argv=None):
    """Time attention as in each encoder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=67520)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    report = Report(args.out / "attention.md")
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor()
    report.add(f"# Attention on {gpu}, {date.today()}", "")
    report.add(f"torch {torch.__version__}, Python {platform.python_version()}.")
    for name in ENCODERS:
        bench(report, name, device, 800 if args.tiny else args.tokens)


if __name__ == "__main__":
    main()
