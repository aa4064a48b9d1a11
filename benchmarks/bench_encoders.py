"""Compare encoder implementations on one GPU: the old loop, transformers, and abag.

    python benchmarks/bench_encoders.py --out DIR [--encoder igt5 esmc-300m ...] [--tiny] [--quick]
                                        [--count 2048] [--budgets 8192 65536 ...] [--agreement 256]
                                        [--loglik]

The models have their real sizes and seeded random weights. Share of peak is
(2 x matmul weights x tokens + 4 x layers x inner width x sum of squared lengths) / seconds,
divided by the rate of an 8192-cubed bf16 product measured in the same run. The reference is
transformers' module, or abag's own plain torch module where transformers has none, as for AMPLIFY
and gLM2. A step that fails is reported, and the others are measured; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
import time
import traceback
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from shapes import SHAPES, count_flops

from abag.core.device import DevicePlan, plan_device, to_device
from abag.core.messages import first_line
from abag.embed.encoders.checkpoints import save_random_checkpoint
from abag.embed.encoders.families import FAMILIES, family_of
from abag.embed.encoders.identity import identify
from abag.embed.encoders.loading import LanguageModelHead, load_encoder
from abag.embed.encoders.packing import fill_batches, pack_spans, pool_tokens
from abag.embed.encoders.registry import ALIASES

LETTERS = np.array(list("ACDEFGHIKLMNPQRSTVWY"))


def config_of(name, tiny):
    """Return the config.json of an encoder at its published size, or of a tiny one."""
    return FAMILIES[ALIASES[name].family].tiny_config if tiny else SHAPES[name]


def draw_chains(kind, count, rng):
    """Draw sequences with lengths as in tables: antibodies, or antigens of 30 to 1,022 residues."""

    def chain(n):
        return "".join(rng.choice(LETTERS, max(1, int(n))))

    if kind == "antibody":
        return [(chain(rng.normal(121, 4)), chain(rng.normal(108, 3))) for _ in range(count)]
    return [
        (chain(np.clip(300 * np.exp(0.6 * rng.standard_normal()), 30, 1022)),) for _ in range(count)
    ]


def synchronize(device):
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def matmul_peak(device, tiny):
    """Return the FLOP/s of large matrix products in bf16."""
    n = 64 if tiny else 8192
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    b = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    for _ in range(5):
        a @ b
    synchronize(device)
    start = time.perf_counter()
    for _ in range(20):
        a @ b
    synchronize(device)
    return 20 * 2 * n**3 / (time.perf_counter() - start)


@contextmanager
def attempt(step, failures):
    """Note that a step failed, so that a run on a GPU does not lose the other steps."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - anything, such as a model that cannot be compiled
        traceback.print_exc()
        failures.append(f"{step} failed: {type(error).__name__}: {first_line(error)}")
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Bench:
    """One encoder on one device: its workload, its peak, its table."""

    def __init__(self, name, folder, config, device, peak, count):
        pairs = family_of(config).vocabulary.separator is not None
        self.kind = "antibody" if pairs else "antigen"
        self.identity = identify(str(folder), self.kind)
        self.config = config
        self.device = device
        self.peak = peak
        chains = draw_chains(self.kind, count, np.random.default_rng(0))
        layout = self.identity.layout
        self.chains = sorted(chains, key=lambda c: -sum(map(len, c)))
        self.spans = list(layout.numbered_spans(self.chains))
        self.rows = []
        self.name = name
        self.speeds = {}  # shares of peak, and the ratio of errors, for the summary

    def summary(self):
        """Describe in one line what was measured."""
        speeds = self.speeds
        whose = self.reference_name
        parts = []
        if ours := speeds.get("abag"):
            parts.append(f"{100 * ours:.1f} % of peak")
            if "loglik" in speeds:
                parts.append(f"with likelihoods {100 * speeds['loglik']:.1f} %")
            parts += [
                f"{ours / speeds[mode]:.2f} times the speed of {whose}, {mode}"
                for mode in ("sorted", "compiled")
                if mode in speeds
            ]
        if errors := speeds.get("ratio of errors"):
            parts.append(f"distance to fp32 {errors:.3f} times that of {whose} in bf16")
        return f"{self.name}: {'; '.join(parts) or 'abag was not measured'}"

    def count_flops(self, lengths):
        """Return the floating-point operations that spans of these lengths need."""
        return count_flops(self.identity.shape, lengths)

    def batches(self, budget, count=None):
        """Return packed batches of at most `budget` tokens, of the first `count` spans or of all."""
        return list(fill_batches(self.spans[:count], budget))

    def time(self, label, run, batches, repeat=1):
        """Time all batches after a warm-up and add a row to the table."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        for batch in batches[:1] + batches[-1:]:
            run(batch)
        synchronize(self.device)
        warm_s = time.perf_counter() - start
        seconds = []
        for _ in range(repeat):
            start = time.perf_counter()
            for batch in batches:
                run(batch)
            synchronize(self.device)
            seconds.append(time.perf_counter() - start)
        best = float(np.median(seconds))
        lengths = np.concatenate([np.diff(b.offsets) for b in batches])
        row = {
            "path": label,
            "sequences/s": len(lengths) / best,
            "tokens/s": lengths.sum() / best,
            "share of peak": self.count_flops(lengths) / best / self.peak,
            "GiB": torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else 0,
            "first batches, s": warm_s,
        }
        self.rows.append(row)
        print(
            f"{self.name:10} {label:48} {row['sequences/s']:8.1f} seq/s {row['tokens/s']:10.0f} tokens/s "
            f"{100 * row['share of peak']:5.1f} % {row['GiB']:5.1f} GiB, warm-up {warm_s:.1f} s",
            flush=True,
        )
        return row["share of peak"]

    def reference_model(self, dtype):
        """Load the module of transformers."""
        from abag.embed.encoders.loading import cast_parameters, load_transformers_model

        model = load_transformers_model(self.identity.checkpoint)
        precision = "fp32" if dtype is torch.float32 else "bf16"
        return cast_parameters(
            model.eval().requires_grad_(False), DevicePlan(self.device, precision, "")
        )

    @property
    def reference_name(self):
        """Whose module `reference_model` is: abag's own where transformers has no class."""
        import transformers

        cls = self.identity.family.transformers_class
        return "transformers" if cls and hasattr(transformers, cls) else "a plain torch module"

    def padded(self, model, autocast=False):
        """Return a function that runs a module on a padded copy of a batch."""
        pad = self.identity.layout.vocabulary.pad

        def run(batch):
            lengths = torch.from_numpy(np.diff(batch.offsets))
            inside = torch.arange(batch.max_length)[None] < lengths[:, None]
            ids = torch.full(inside.shape, pad)
            ids[inside] = torch.from_numpy(batch.ids).long()
            with (
                torch.inference_mode(),
                torch.autocast(self.device.type, torch.bfloat16, enabled=autocast),
            ):
                inside = inside.to(self.device)
                out = model(input_ids=ids.to(self.device), attention_mask=inside.long())
                return out.last_hidden_state[inside]

        return run

    def ours(self, precision="bf16", attention="auto"):
        """Load abag's packed encoder."""
        plan = plan_device(str(self.device), precision)
        return load_encoder(self.identity, plan, attention=attention)

    def with_likelihoods(self, encoder):
        """Run the encoder, then the head of its language model, as `embed --loglik` does."""
        head = LanguageModelHead(self.identity.checkpoint, plan_device(str(self.device), "bf16"))

        @torch.inference_mode()
        def run(batch):
            each_T = head.log_probabilities(encoder(batch), to_device(batch.ids, self.device))
            weights_TP = to_device(batch.weights[:, :1], self.device)
            bounds = to_device(batch.bounds.astype(np.int64), self.device)
            return pool_tokens(each_T[:, None], weights_TP, bounds)

        return run

    def products(self):
        """Time the matrix products of the encoder alone, on as many tokens."""
        d = {"device": self.device, "dtype": torch.bfloat16}
        layers, m, i, f, products = self.identity.family.shape(self.config)[:5]
        shapes = [(3 * i, m), (m, i), ((products - 1) * f, m), (m, f)]
        weights = [torch.randn(s, **d) for s in shapes]
        inputs: dict = {}

        def run(batch):
            t = len(batch.ids)
            for _, k in shapes:
                if (t, k) not in inputs:
                    inputs[t, k] = torch.randn(t, k, **d)
            for _ in range(layers):
                for w in weights:
                    F.linear(inputs[t, w.shape[1]], w)

        return run


class CompiledLayers:
    """An ESM-2 encoder in plain torch on packed tokens, with FlashAttention, as FAESM could be.

    torch.compile makes one function of a layer, which all layers call with their weights.
    """

    FIELDS = (
        "shift1_D",
        "qkv_3DD",
        "qkv_bias_3D",
        "out_DD",
        "shift2_D",
        "up",
        "up_bias",
        "down_DF",
    )

    def __init__(self, encoder):
        self.encoder = encoder
        self.attend = self.varlen
        if encoder._device.type != "cuda":  # has no FlashAttention
            self.attend = lambda q, k, v, _offsets, _longest: encoder._attention(
                torch.stack([q, k, v], 1).flatten(1), self.geometry
            )
        self.layer = torch.compile(self.plain_layer, dynamic=True)

    @staticmethod
    def varlen(q, k, v, offsets, longest):
        """Attend within each sequence by FlashAttention-2 as built into torch."""
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q, k, v, offsets, offsets, longest, longest).flatten(1)

    def plain_layer(self, x, layer, angles, offsets, longest):
        """Run a layer in plain torch operations, for the compiler."""
        shift1, qkv_weight, qkv_bias, out, shift2, up, up_bias, down = layer
        y = self.normed(x, shift1)
        qkv = F.linear(y, qkv_weight, qkv_bias).view(len(x), 3, self.encoder._shape.heads, 2, -1)
        low, high = qkv[:, :2].unbind(3)
        cos, sin = angles
        turned = torch.stack([low * cos - high * sin, high * cos + low * sin], 3).to(x.dtype)
        q, k = turned.flatten(3).unbind(1)
        x = x + F.linear(self.attend(q, k, qkv[:, 2].flatten(2), offsets, longest), out)
        return x + F.linear(F.gelu(F.linear(self.normed(x, shift2), up, up_bias)), down)

    def normed(self, x, shift):
        """Return the layer norm of ``x + shift``."""
        return F.layer_norm(x + shift, shift.shape, eps=self.encoder._eps).to(x.dtype)

    @torch.inference_mode()
    def __call__(self, batch):
        encoder = self.encoder
        self.geometry = encoder._attention.geometry(batch.offsets, encoder._device, encoder._dtype)
        x = encoder._embed_VD[torch.from_numpy(batch.ids).to(encoder._device)]
        angles = [table[self.geometry.positions, None, None] for table in encoder._rotary]
        for stored_layer in encoder._layers:
            layer = [getattr(stored_layer, name) for name in self.FIELDS]
            x = self.layer(x, layer, angles, self.geometry.offsets, self.geometry.max_length)
        return encoder._ops.layer_norm(x, encoder._last_shift_D, encoder._last_norm, encoder._eps)


def pooled_means(run, batches, device):
    """Encode batches, and return the vectors of their sequences on the CPU."""
    with torch.inference_mode():
        return torch.cat(
            [
                pool_tokens(
                    run(b),
                    torch.from_numpy(b.weights).to(device),
                    torch.from_numpy(b.bounds).long().to(device),
                )[:, 0]
                for b in batches
            ]
        ).cpu()


def relative(a, b):
    """Return the relative distance of each row of `a` from that of `b`."""
    return ((a - b).norm(dim=1) / b.norm(dim=1)).numpy()


def agreement(bench, count, long_lengths):
    """Distance of pooled means to fp32, ours beside the reference's; and one mutation's shift."""
    rng = np.random.default_rng(1)
    layout = bench.identity.layout
    device = bench.device
    chains = draw_chains(bench.kind, count, rng)
    for n in long_lengths:
        chain = "".join(rng.choice(LETTERS, n))
        chains.append((chain, "") if bench.kind == "antibody" else (chain,))
    mutated = []
    for c in chains:
        at = int(rng.integers(len(c[0])))
        other = rng.choice([x for x in LETTERS if x != c[0][at]])
        mutated.append((c[0][:at] + other + c[0][at + 1 :], *c[1:]))
    chain_of_span = np.array([i for i, _ in layout.numbered_spans(chains)])

    def spans(chains):
        """Pool each span for itself: a long chain may have several."""
        return list(enumerate(span for _, span in layout.numbered_spans(chains)))

    def one_by_one(chains):
        return [pack_spans([span]) for span in spans(chains)]

    def distance(vectors, other):
        """Return the largest distance among the spans of each chain."""
        distances = np.zeros(len(chains))
        np.maximum.at(distances, chain_of_span, relative(vectors, other))
        return distances

    torch.backends.cuda.matmul.allow_tf32 = False
    model = bench.reference_model(torch.float32)
    exact = pooled_means(bench.padded(model), one_by_one(chains), device)
    shift = distance(pooled_means(bench.padded(model), one_by_one(mutated), device), exact)
    del model
    error32 = distance(pooled_means(bench.ours("fp32"), one_by_one(chains), device), exact)
    model = bench.reference_model(torch.bfloat16)
    theirs = distance(pooled_means(bench.padded(model), one_by_one(chains), device), exact)
    del model
    encoder = bench.ours()
    alone = pooled_means(encoder, one_by_one(chains), device)
    packed = pooled_means(encoder, list(fill_batches(spans(chains), 16384)), device)
    ours = distance(alone, exact)
    bench.speeds["ratio of errors"] = ours[:count].mean() / theirs[:count].mean()
    whose = bench.reference_name
    lines = [
        f"fp32 packed against {whose} in fp32, one at a time: mean {error32.mean():.2e}, worst {error32.max():.2e}",
        f"bf16 ours {ours[:count].mean():.3e}, {whose} in bf16 {theirs[:count].mean():.3e}, "
        f"ratio {bench.speeds['ratio of errors']:.3f} over {count} sequences",
        f"packed among others against alone: worst {distance(packed, alone).max():.2e}",
        f"one mutation moves the vector by {shift[:count].mean():.3e} (mean), {np.quantile(shift[:count], 0.05):.3e} (5 % quantile)",
    ]
    for i, n in enumerate(long_lengths, start=count):
        lines.append(
            f"  {n} residues: ours {ours[i]:.2e}, {whose} {theirs[i]:.2e}, mutation {shift[i]:.2e}"
        )
    for line in lines:
        print(line, flush=True)
    return lines


def profile(bench, encoder, batch):
    """Share of GPU time by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    encoder(batch)
    synchronize(bench.device)
    with profiler(activities=[ProfilerActivity.CUDA]) as prof:
        encoder(batch)
        synchronize(bench.device)
    for _ in range(3):
        encoder(batch)
    synchronize(bench.device)
    start = time.perf_counter()
    for _ in range(3):
        encoder(batch)
    synchronize(bench.device)
    wall = (time.perf_counter() - start) / 3
    events = sorted(prof.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in events)
    lines = [
        f"{100 * e.self_device_time_total / total:5.1f} % {e.count:5d} x {e.key[:110]}"
        for e in events[:12]
    ]
    lines.append(f"kernels {total / 1e3:.2f} ms of {1e3 * wall:.2f} ms, {len(batch.ids)} tokens")
    print("\n".join(lines), flush=True)
    return lines


def bench_one(name, folder, config, args, device, peak):
    """Measure one encoder: agreement with the reference, speeds and kernels."""
    count = 24 if args.tiny else args.count
    bench = Bench(name, folder, config, device, peak, count)
    notes = []
    failures = []
    agreed = []
    kernels = []
    start = time.perf_counter()
    with attempt("abag", failures):
        kernels = time_abag(bench, args, notes)
    if not args.quick:
        with attempt("the reference", failures):
            time_reference(bench, args, failures)
    if args.agreement:
        with attempt("the agreement", failures):
            lengths = (1, 2, 127, 128, 129, 255, 256, 257, 1022, 4000)
            agreed = agreement(bench, args.agreement, lengths[:4] if args.tiny else lengths)
    notes += [f"reference: {bench.reference_name}", bench.summary(), *failures]
    notes.append(f"all of it: {time.perf_counter() - start:.0f} s")
    print("\n".join(notes[-3 - len(failures) :]), flush=True)
    return {
        "rows": bench.rows,
        "notes": notes,
        "agreement": agreed,
        "kernels": kernels,
        "failures": failures,
    }


def middle_batches(bench, args):
    """Return the batches that the reference is timed with."""
    return bench.batches(2048 if args.tiny else 16384)


def time_abag(bench, args, notes):
    """Time our encoder; returns the kernels of one of its largest batches."""
    device = bench.device
    full = middle_batches(bench, args)
    start = time.perf_counter()
    encoder = bench.ours()
    synchronize(device)
    notes.append(f"loading our encoder: {time.perf_counter() - start:.1f} s")
    print(notes[-1], flush=True)
    budgets = args.budgets if not args.tiny else (2048,)
    bench.speeds["abag"] = max(
        bench.time(f"abag packed, {n} tokens per batch", encoder, bench.batches(n), repeat=3)
        for n in budgets
    )
    if args.loglik and bench.identity.family.head is not None:
        bench.speeds["loglik"] = max(
            bench.time(
                f"abag packed with likelihoods, {n} tokens per batch",
                bench.with_likelihoods(encoder),
                bench.batches(n),
                repeat=3,
            )
            for n in budgets
        )
    if bench.name.startswith("esm2") and device.type == "cuda":
        other = bench.ours(attention="varlen")
        bench.time("abag packed, varlen attention", other, full, repeat=3)
        for n in budgets:
            label = f"packed, torch varlen, compiled layers, {n} tokens"
            bench.time(label, CompiledLayers(other), bench.batches(n), repeat=3)
        torch.compiler.reset()
        del other
    bench.time("the matrix products alone", bench.products(), full, repeat=3)
    if device.type != "cuda":
        return []
    largest = bench.batches(budgets[-1])
    return profile(bench, encoder, largest[len(largest) // 2])


def time_reference(bench, args, failures):
    """Time the reference in sorted batches, compiled, and as the old loop."""
    full = middle_batches(bench, args)
    whose = bench.reference_name
    model = bench.reference_model(torch.bfloat16)
    label = f"{whose}, SDPA, sorted, 16k-token batches"
    bench.speeds["sorted"] = bench.time(label, bench.padded(model), full)
    if bench.device.type == "cuda":
        with attempt("torch.compile of the reference", failures):
            compiled = bench.padded(torch.compile(model, dynamic=True))
            some = full[:: max(1, len(full) // 12)]
            bench.speeds["compiled"] = bench.time("  the same under torch.compile", compiled, some)
            del compiled
        torch.compiler.reset()
    del model
    slow = bench.padded(bench.reference_model(torch.float32), autocast=True)
    some = bench.spans[:: max(1, len(bench.chains) // 48)]
    singles = [pack_spans([span]) for span in some]
    bench.time("the old loop: one sequence a call, autocast", slow, singles)


def report(results, peak, args):
    """Return the report as Markdown."""
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    lines = [
        f"# Encoders on {device}, {date.today()}",
        "",
        f"torch {torch.__version__}, transformers {transformers.__version__}, Python "
        f"{platform.python_version()}; random weights of the real shapes; "
        f"bf16 product of 8192-cubed: {peak / 1e12:.0f} TFLOP/s in this run.",
        f"Command: `python benchmarks/bench_encoders.py --encoder {' '.join(args.encoder)} "
        f"--count {args.count} --budgets {' '.join(map(str, args.budgets))} "
        f"--agreement {args.agreement}{' --tiny' * args.tiny}{' --quick' * args.quick}"
        f"{' --loglik' * args.loglik}`",
    ]
    for name, result in results.items():
        lines += ["", f"## {name}", "", "| path | seq/s | tokens/s | share of peak | GiB |"]
        lines += ["|---|---|---|---|---|"]
        lines += [
            f"| {r['path']} | {r['sequences/s']:.1f} | {r['tokens/s']:.0f} | "
            f"{100 * r['share of peak']:.1f} % | {r['GiB']:.1f} |"
            for r in result["rows"]
        ]
        for title in ("notes", "agreement", "kernels"):
            lines += ["", f"{title.capitalize()}:", "", "```", *result[title], "```"]
    return "\n".join(lines) + "\n"


def main(argv=None):
    """Measure each encoder in turn, and write the reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", nargs="+", default=["igt5", "esm2-650m"], choices=SHAPES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--quick", action="store_true", help="ours only")
    parser.add_argument("--agreement", type=int, default=256, help="sequences compared with fp32")
    parser.add_argument("--loglik", action="store_true", help="ours with likelihoods, too")
    parser.add_argument("--count", type=int, default=2048, help="sequences")
    parser.add_argument("--budgets", type=int, nargs="+", default=[8192, 16384, 32768, 65536])
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peak = matmul_peak(device, args.tiny)
    print(f"peak {peak / 1e12:.1f} TFLOP/s", flush=True)
    results = {}
    failures = []
    for name in args.encoder:
        with attempt(name, failures), tempfile.TemporaryDirectory() as folder:
            config = config_of(name, args.tiny)
            with_head = args.loglik and family_of(config).head is not None
            save_random_checkpoint(Path(folder), config, seed=0, with_head=with_head)
            results[name] = bench_one(name, Path(folder), config, args, device, peak)
            failures += [f"{name}: {failure}" for failure in results[name]["failures"]]
        (args.out / "encoders.md").write_text(report(results, peak, args))
        (args.out / "encoders.json").write_text(json.dumps({"peak": peak, **results}, indent=1))
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
