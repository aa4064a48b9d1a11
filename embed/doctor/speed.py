"""Measures the tokens per second of an encoder on this machine, without loading all of it."""

from __future__ import annotations

import tempfile
import time
from itertools import cycle
from pathlib import Path

import numpy as np

from abag import AbagError
from abag.core.device import DevicePlan, default_batch_tokens, device_name, synchronize
from abag.core.messages import first_line
from abag.core.speeds import record_speed
from abag.embed.doctor.check import Check
from abag.embed.encoders.checkpoint_lookup import find_checkpoint
from abag.embed.encoders.loading import Identity, layer_count, load_encoder
from abag.embed.encoders.random_weights import save_random_checkpoint
from abag.embed.families.family import Encoder
from abag.embed.families.registry import FAMILIES, SHAPES, guess_family
from abag.embed.packing.batches import PackedBatch, fill_batches
from abag.embed.packing.tokens import Layout
from abag.embed.sequences.chains import STANDARD_RESIDUES, Chains, Kind
from abag.embed.weights.checkpoints import EncoderCheckpoint

LAYERS = 2
"""Layers that are run; the time of all layers is a multiple of theirs."""
SECONDS = 3.0
MOST_TOKENS = 16_384
"""Most tokens per batch; larger batches are hardly faster."""


def check_speed(
    plan: DevicePlan, kind: Kind, name: str, found: EncoderCheckpoint | AbagError
) -> Check:
    """Measure an encoder's tokens/s and keep the result for ``abag plan``."""
    title = f"{kind} speed"
    if not isinstance(found, EncoderCheckpoint) and name in SHAPES:
        family = guess_family(name).name
        found = EncoderCheckpoint(name, family, None, (), SHAPES[name], name)
    if not isinstance(found, EncoderCheckpoint):
        text = f"not measured: the shape of {name} is known when its weights are on disk"
        return Check(title, "note", text)
    if not layer_count(found):
        return Check(title, "ok", f"{name} counts residues: nothing to measure")
    try:
        rate = measure_speed(found, kind, plan)
    except Exception as error:  # noqa: BLE001 - a failure here is reported by the check of parity
        return Check(title, "note", f"not measured: {name} cannot be run ({first_line(error)})")
    device = device_name(plan.device)
    record_speed(device, name, rate)
    text = f"{name}, {plan.precision}: {rate:,.0f} tokens/s on {device}; kept for abag plan"
    return Check(title, "ok", text, {"tokens_per_s": rate, "device": device})


def measure_speed(checkpoint: EncoderCheckpoint, kind: Kind, plan: DevicePlan) -> float:
    """Return the tokens per second of an encoder, from random weights for two of its layers.

    A family without random weights runs as it is.

    Raises
    ------
    BadCheckpoint, TokenizerMismatch, AttentionUnavailable
        See `abag.embed.encoders.loading.load_encoder`.
    """
    family, layers = FAMILIES[checkpoint.family], layer_count(checkpoint)
    with tempfile.TemporaryDirectory(prefix="abag-doctor-") as folder:
        if family.tiny_config and layers > LAYERS:
            key = "num_layers" if "num_layers" in checkpoint.config else "num_hidden_layers"
            reduced = {**checkpoint.config, "model_type": family.model_type, key: LAYERS}
            saved = save_random_checkpoint(Path(folder) / "reduced", reduced, seed=0)
            checkpoint = find_checkpoint(str(saved))
        layout = Layout(kind, family.vocabulary_of(checkpoint))
        encoder = load_encoder(Identity(checkpoint, layout, "", {}), plan)
    budget = min(default_batch_tokens(plan), MOST_TOKENS)
    rate = _tokens_per_s(encoder, _batches(layout, budget), plan)
    return rate * layer_count(checkpoint) / layers


def _tokens_per_s(encoder: Encoder, batches: list[PackedBatch], plan: DevicePlan) -> float:
    def run(batch: PackedBatch) -> int:
        encoder(batch)
        synchronize(plan.device)
        return len(batch.ids)

    run(batches[-1])  # compiles kernels
    tokens, start_s = 0, time.perf_counter()
    for batch in cycle(batches):
        tokens += run(batch)
        if (seconds := time.perf_counter() - start_s) > SECONDS:
            return tokens / seconds
    raise AssertionError


def _batches(layout: Layout, budget: int) -> list[PackedBatch]:
    """Fill batches with random sequences of usual lengths, longest first."""
    rng = np.random.default_rng(0)

    def chain(length: float) -> str:
        return "".join(rng.choice(list(STANDARD_RESIDUES), int(length)))

    chains: list[Chains] = []
    for _ in range(max(8, budget // 60)):
        if layout.kind == "antibody":
            chains.append((chain(rng.normal(121, 4)), chain(rng.normal(108, 3))))
        else:
            chains.append((chain(np.clip(rng.lognormal(5.7, 0.6), 30, 1000)),))
    chains.sort(key=lambda c: -sum(map(len, c)))
    spans = [(i, span) for i, c in enumerate(chains) for span in layout.spans(c)]
    return list(fill_batches(spans, budget))
