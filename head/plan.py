"""What `abag embed` and `abag fit` would do with a table, and how long it would take.

Nothing is encoded or written. Speeds were measured on one H200 (benchmarks/results); all others are
scaled by the speed of matrix products and called estimates, except for what a store has seen.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.sequences.chains import Kind
from abag.embed.sequences.columns import MissingColumn
from abag.embed.sequences.pairs import SequenceTable, read_pairs
from abag.embed.store.store import open_store
from abag.head.data.labels import FLOOR_SHARE, BadLabel, LabelledPairs, label_pairs
from abag.head.data.options import LabelOptions
from abag.head.evaluation.comparison import explained
from abag.head.model.config import FitConfig
from abag.head.runs.options import PlanOptions

Ints: TypeAlias = NDArray[np.int64]

WINDOW = 1022
"""Residues of a chain that an encoder takes at once; longer ones are cut, half a window apart."""
WINDOWS: Mapping[str, float] = {"antiberty": 510, "composition": math.inf}
"""Where that is another number."""
USUAL_PKD = (2.0, 14.0)
"""Affinities outside do not occur: above, the label is in another unit or of another kind."""
DOUBLE_LOG = (0.3, 1.2)
"""Where log10 of a pKd falls: labels there had their logarithm taken twice."""
CONFLICT = 1.0
"""Labels of one pair, or means of one antigen, that differ by more pKd than this conflict."""
SESSION_HOURS = (4, 12, 24)
HEAD_STEPS_PER_S = 1900
"""Of `fit`'s default preset on one H200, start and report included."""
CPU_HEAD_STEPS_PER_S = 100
"""The same on one core of a CPU."""
TRAIN_SHARE = 0.8
HEAD_WEIGHTS = 8e5
"""Of the default preset on vectors of the default encoders, about."""


class _Encoder(NamedTuple):
    weights: float
    """In the matrix products, a token."""
    width: int
    poolings: int
    """Vectors stored a sequence."""
    packed: float
    """Tokens/s of `abag embed` on one H200."""
    padded: float
    """Tokens/s of padded batches, which older GPUs need, on a GPU of the same published peak."""


# Measured for igt5 and esm2-650m; the others follow by their weights.
_IGT5 = _Encoder(1.21e9, 1024, 3, 239_000, 77_000)
_ESM2 = _Encoder(6.5e8, 1280, 2, 371_000, 146_000)


def _scaled(base: _Encoder, weights: float, width: int) -> _Encoder:
    faster = base.weights / weights
    return _Encoder(weights, width, base.poolings, base.packed * faster, base.padded * faster)


ENCODERS: Mapping[str, _Encoder] = {
    "igt5": _IGT5,
    "igt5-unpaired": _IGT5,
    "prott5": _IGT5,
    "esm2-650m": _ESM2,
    "esm2-8m": _scaled(_ESM2, 7.4e6, 320),
    "esm2-35m": _scaled(_ESM2, 3.3e7, 480),
    "esm2-150m": _scaled(_ESM2, 1.48e8, 640),
    "esm2-3b": _scaled(_ESM2, 2.8e9, 2560),
    "antiberty": _scaled(_ESM2, 2.6e7, 512),
}


class _Gpu(NamedTuple):
    tflops: float
    """Published peak of dense half-precision matrix products."""
    packed: bool
    """Compute capability 8.0 or newer: bfloat16 and packed attention."""
    gib: int


GPUS: Mapping[str, _Gpu] = {
    "T4": _Gpu(65, False, 16),
    "L4": _Gpu(121, True, 24),
    "V100": _Gpu(125, False, 16),
    "A100": _Gpu(312, True, 40),
    "H100": _Gpu(989, True, 80),
    "H200": _Gpu(989, True, 141),
}
MEASURED_ON = "H200"
MEASURED = frozenset({"igt5", "esm2-650m"})
PEAK_REACHED = 0.81
"""Share of the published peak that a matrix product reached on the H200."""


def plan(
    table: Path | str | pd.DataFrame,
    **options: Any,  # noqa: ANN401 - the fields of PlanOptions
) -> dict[str, Any]:
    """Say what a table holds and what encoding and training on it would cost.

    Parameters
    ----------
    table : path or DataFrame
    **options
        Fields of `PlanOptions`. Encoders other than the aliases get no times.

    Returns
    -------
    dict
        ``rows``, ``antibodies`` and ``antigens`` (unique, lengths, tokens, bytes, windows),
        ``found`` (what the reader did), ``labels`` (None without a label column), ``problems``
        (one line each) and ``machines`` (by name: seconds, sessions, memory, price).
    """
    chosen = PlanOptions.from_keywords(options, "plan")
    read = read_pairs(table, chosen)
    labels, problems = _labels(read, chosen)
    sides = {
        "antibodies": _side(read.antibodies.chains, chosen.antibody_encoder),
        "antigens": _side(read.antigens.chains, chosen.antigen_encoder),
    }
    encoders = (chosen.antibody_encoder, chosen.antigen_encoder)
    store, price_per_hour = chosen.store, chosen.price_per_hour
    work = _Work(encoders, tuple(side["tokens"] for side in sides.values()), len(read.frame))
    machines = {
        name: _on_gpu(gpu, work, price_per_hour)
        | {"measured": name == MEASURED_ON and MEASURED.issuperset(encoders)}
        for name, gpu in GPUS.items()
    }
    name, here = _this_machine(work, price_per_hour)
    machines[name] = here if store is None else here | _seen(store, work, here, price_per_hour)
    return {
        "table": read.source,
        "rows": len(read.frame),
        **sides,
        "found": read.counts,
        "notes": read.notes,
        "labels": labels,
        "problems": problems,
        "machines": machines,
    }


def _side(sequences: Sequence[tuple[str, ...]], encoder: str) -> dict[str, Any]:
    """Unique sequences of one kind: lengths, tokens as encoded, windows, bytes in the store."""
    chains = Counter(len(chain) for sequence in sequences for chain in sequence if chain)
    lengths, times = np.array([*chains]), np.array([*chains.values()])
    size = WINDOWS.get(encoder, WINDOW)
    special, stride = 0 if math.isinf(size) else 2, size // 2
    windows, residues = np.ones(len(lengths)), lengths.astype(np.float64)
    long = lengths > size
    windows[long] += np.ceil((lengths[long] - size) / stride)
    residues[long] += (windows[long] - 1) * (size - stride)
    total = np.array([sum(map(len, sequence)) for sequence in sequences])
    known = ENCODERS.get(encoder)
    return {
        "encoder": encoder,
        "unique": len(sequences),
        "tokens": int(((residues + special * windows) * times).sum()),
        "longest": int(total.max()),
        "mean_length": float(total.mean()),
        "histogram": _histogram(total),
        "window": None if math.isinf(size) else int(size),
        "long_chains": int(times[long].sum()),
        "windows": int((windows * times)[long].sum()),
        "bytes": known and len(sequences) * (known.poolings * known.width * 2 + 22),
    }


def _histogram(lengths: Ints) -> list[tuple[int, int, int]]:
    """Count lengths in at most ten bins of whole residues: first and last length, and number."""
    low = int(lengths.min())
    step = -(-(int(lengths.max()) - low + 1) // 10)
    counts = np.bincount((lengths - low) // step)
    return [(low + i * step, low + (i + 1) * step - 1, int(n)) for i, n in enumerate(counts)]


def _labels(table: SequenceTable, options: LabelOptions) -> tuple[dict[str, Any] | None, list[str]]:
    """Read the labels as `fit` would, every replicate kept, and look for what is odd."""
    kept = replace(options, replicates="keep")
    try:
        pairs = label_pairs(table, kept)
    except BadLabel as error:
        return None, [str(error)]
    except MissingColumn:
        return None, []
    pkd, exact = pairs.pkd, pairs.censored == 0
    repeated = pd.DataFrame({"a": pairs.antibody, "g": pairs.antigen, "y": pkd})[exact]
    spread = repeated.groupby(["a", "g"])["y"].agg(["size", np.ptp])
    values, counts = np.unique(pkd[exact], return_counts=True)
    labels = {
        "pairs": len(np.unique(pairs.antibody * len(table.antigens.chains) + pairs.antigen)),
        "range": [float(pkd.min()), float(pkd.max())],
        "duplicate_rows": int((spread["size"] - 1).sum()),
        "conflicting_pairs": int((spread["ptp"] > CONFLICT).sum()),
        "censored": int((~exact).sum()),
        "commonest": [float(values[counts.argmax()]), int(counts.max())] if len(values) else None,
        "out_of_range": int(((pkd < USUAL_PKD[0]) | (pkd > USUAL_PKD[1])).sum()),
        "double_logs": int(((pkd > DOUBLE_LOG[0]) & (pkd < DOUBLE_LOG[1])).sum()),
        "replicate_noise": pairs.noise,
        "disputed_antigens": _disputed_antigens(pairs),
    }
    return labels, _problems(pairs, labels, int(exact.sum()))


def _disputed_antigens(pairs: LabelledPairs) -> int:
    """Antigens whose labels differ between the assays that share them."""
    column = pairs.table.columns.get("assay")
    if column is None:
        return 0
    assay = pairs.table.frame[column].iloc[pairs.row].astype(str).to_numpy()
    frame = pd.DataFrame({"antigen": pairs.antigen, "assay": assay, "pkd": pairs.pkd})
    means = frame.groupby(["antigen", "assay"])["pkd"].mean().groupby("antigen")
    return int(((means.max() - means.min()) > CONFLICT).sum())


def _problems(pairs: LabelledPairs, labels: Mapping[str, Any], exact: int) -> list[str]:
    lines = []
    if labels["commonest"] and labels["commonest"][1] > FLOOR_SHARE * exact:
        value, n = labels["commonest"]
        lines.append(f"{n} rows have the label {value:.4g}: a floor? See --floor censor|drop.")
    if labels["double_logs"] > FLOOR_SHARE * len(pairs.pkd):
        n = labels["double_logs"]
        lines.append(f"{n} labels lie between 0.3 and 1.2: was the logarithm taken twice?")
    if labels["out_of_range"]:
        lines.append(f"{labels['out_of_range']} labels are no usual pKd (2 to 14). See --label.")
    if labels["conflicting_pairs"]:
        n = labels["conflicting_pairs"]
        lines.append(f"{n} pairs have labels over {CONFLICT:g} pKd apart. See --replicates.")
    if labels["disputed_antigens"]:
        n = labels["disputed_antigens"]
        lines.append(
            f"{n} antigens have assays over {CONFLICT:g} pKd apart: never mix them blindly."
        )
    share = explained(pairs.pkd, pairs.antigen)
    if share is not None and share > 0.5:
        lines.append(f"The antigen alone explains {share:.0%} of the labels' variance.")
    return lines


class _Work(NamedTuple):
    encoders: tuple[str, str]
    tokens: tuple[int, ...]
    rows: int

    def steps(self) -> int:
        """Count the optimiser steps of a default fit."""
        config, pairs = FitConfig(), max(1, int(TRAIN_SHARE * self.rows))
        size, accumulate = config.fitting_batch(pairs)
        return math.ceil(pairs / (size * accumulate)) * config.filled().epochs


def _on_gpu(gpu: _Gpu, work: _Work, price_per_hour: float | None) -> dict[str, Any]:
    """Time, memory and price on one GPU."""
    if not set(work.encoders) <= ENCODERS.keys():
        return {"embed_s": None}
    known = [ENCODERS[name] for name in work.encoders]
    speed = gpu.tflops / GPUS[MEASURED_ON].tflops
    rates = [(e.packed if gpu.packed else e.padded) * speed for e in known]
    # half-precision weights of the larger encoder, and activations of 16k tokens
    memory_gib = max(e.weights for e in known) * 2 / 2**30 + 6
    embed_s = sum(n / rate for n, rate in zip(work.tokens, rates, strict=True))
    fit_s = work.steps() / HEAD_STEPS_PER_S / min(1, max(speed, 0.25))
    return _times(embed_s, fit_s, memory_gib, price_per_hour)


def _times(
    embed_s: float, fit_s: float, memory_gib: float | None, price_per_hour: float | None
) -> dict[str, Any]:
    hours = (embed_s + fit_s) / 3600
    return {
        "embed_s": embed_s,
        "fit_s": fit_s,
        "memory_gib": memory_gib,
        "sessions": {f"{h} h": math.ceil(hours / h) for h in SESSION_HOURS},
        "price": price_per_hour and hours * price_per_hour,
    }


def _this_machine(work: _Work, price_per_hour: float | None) -> tuple[str, dict[str, Any]]:
    """Estimate the machine at hand from the speed of its matrix products."""
    import torch

    on_gpu = torch.cuda.is_available()
    name = f"this machine ({torch.cuda.get_device_name() if on_gpu else 'CPU'})"
    if not set(work.encoders) <= ENCODERS.keys():
        return name, {"embed_s": None, "measured": False}
    if on_gpu:
        peak_tflops = _product_flops("cuda") / PEAK_REACHED / 1e12
        packed = torch.cuda.get_device_capability() >= (8, 0)
        found = _on_gpu(_Gpu(peak_tflops, packed, 0), work, price_per_hour)
        return name, found | {"measured": False}
    flops = _product_flops("cpu")
    known = [ENCODERS[e] for e in work.encoders]
    products = sum(2 * e.weights * n for e, n in zip(known, work.tokens, strict=True))
    head = 6 * HEAD_WEIGHTS * TRAIN_SHARE * work.rows * FitConfig().filled().epochs
    memory_gib = max(e.weights for e in known) * 4 / 2**30 + 2
    times = _times(products / (0.5 * flops), head / (0.2 * flops), memory_gib, price_per_hour)
    return name, times | {"measured": False}


def _seen(
    store: Path | str, work: _Work, here: Mapping[str, Any], price_per_hour: float | None
) -> dict[str, Any]:
    """Time stage one by the speed at which a store was last written, where both are known."""
    opened, seconds = open_store(store), 0.0
    kinds: tuple[Kind, Kind] = ("antibody", "antigen")
    for kind, encoder, tokens in zip(kinds, work.encoders, work.tokens, strict=True):
        try:
            rate = opened.folder(kind, encoder).residues_per_s()
        except AbagError:  # the store has not met this encoder
            rate = None
        if rate is None:
            return {}
        seconds += tokens / rate
    fit_s = here.get("fit_s", work.steps() / CPU_HEAD_STEPS_PER_S)
    return _times(seconds, fit_s, here.get("memory_gib"), price_per_hour) | {"measured": True}


def _product_flops(device: str) -> float:
    """Floating-point operations a second of one matrix product, the best of three."""
    import torch

    size, dtype = (8192, torch.float16) if device == "cuda" else (1024, torch.float32)
    x = torch.ones((size, size), dtype=dtype, device=device)
    best = math.inf
    for _ in range(3):
        begun = time.perf_counter()
        (x @ x)[0, 0].item()  # GPU sync
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best


def describe_plan(found: Mapping[str, Any]) -> list[str]:
    """Say a plan in lines."""
    lines = [f"{found['table']}: {found['rows']:,} rows", *found["notes"]]
    for side in ("antibodies", "antigens"):
        s = found[side]
        size = "" if s["bytes"] is None else f", {s['bytes'] / 2**20:,.1f} MiB in the store"
        lines.append(
            f"{s['unique']:,} unique {side}, {s['mean_length']:.0f} residues on average, longest "
            f"{s['longest']:,}; {s['tokens']:,} tokens for {s['encoder']}{size}"
        )
        if s["long_chains"]:
            n = s["long_chains"]
            lines.append(f"{n:,} chains over {s['window']} residues need {s['windows']:,} windows")
        lines += _histogram_lines(s["histogram"])
    if found["labels"] is not None:
        la = found["labels"]
        lines.append(
            f"{la['pairs']:,} pairs with pKd {la['range'][0]:.2f} to {la['range'][1]:.2f}; "
            f"{la['duplicate_rows']:,} duplicate rows, {la['conflicting_pairs']:,} conflicting "
            f"pairs, {la['censored']:,} censored"
        )
    lines += [f"problem: {line}" for line in found["problems"]]
    return lines + [_machine_line(name, m) for name, m in found["machines"].items()]


def _histogram_lines(histogram: Sequence[tuple[int, int, int]]) -> list[str]:
    most = max(n for _, _, n in histogram)
    return [
        f"  {a:>6}-{b:<6} {n:>8,} {'#' * math.ceil(40 * n / most)}" for a, b, n in histogram if n
    ]


def _machine_line(name: str, machine: Mapping[str, Any]) -> str:
    if machine["embed_s"] is None:
        return f"{name}: no speed known for these encoders; try abag embed --limit 1000"
    sessions = ", ".join(f"{n} of {hours}" for hours, n in machine["sessions"].items())
    kind = "from measured tokens/s" if machine["measured"] else "estimate"
    price = "" if machine["price"] is None else f", price {machine['price']:.2f}"
    memory = "" if machine["memory_gib"] is None else f"{machine['memory_gib']:.0f} GiB; "
    return (
        f"{name}: embed {duration(machine['embed_s'])}, fit {duration(machine['fit_s'])} ({kind}); "
        f"{memory}sessions: {sessions}{price}"
    )


def duration(seconds: float) -> str:
    """Say a duration in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
