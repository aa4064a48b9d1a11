"""Runs an encoder on probes: compares it with the fp32 reference, and measures its speed.

This takes seconds, and finds vectors that a kernel, a driver or the precision makes wrong.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from abag.core.device import DevicePlan, default_batch_tokens, synchronize
from abag.embed.encoders.identity import Identity, find_checkpoint, save_random_checkpoint
from abag.embed.encoders.loading import load_encoder
from abag.embed.families.family import Encoder
from abag.embed.families.registry import FAMILIES, guess_family
from abag.embed.packing.batches import PackedBatch, fill_batches
from abag.embed.packing.tokens import Layout
from abag.embed.sequences.chains import STANDARD_RESIDUES, Chains, Kind
from abag.embed.stream import encode_stream
from abag.embed.weights.checkpoints import EncoderCheckpoint

LAYERS = 2
"""Layers that are run; the time of all layers is a multiple of theirs."""
SECONDS = 3.0
MOST_TOKENS = 16_384
"""Most tokens per batch; larger batches are hardly faster."""
LIMITS = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 3e-2}
"""Relative distances: half precision moves a pooled vector by up to 1 %, a mutation by 3-5 %."""
# trastuzumab's variable domains and hen egg-white lysozyme
_HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS"
)
_LIGHT = (
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPT"
    "FGQGTKVEIK"
)
_ANTIGEN = (
    "KVFGRCELAAAMKRHGLDNYRGYSLGNWVCAAKFESNFNTQATNRNTDGSTDYGILQINSRWWCNDGRTPGSRNLCNIPCSALLSSDITASVNCAKK"
    "IVSDGNGMNAWVAWRNRCKGTDVQAWIRGCRL"
)


@dataclass(frozen=True, slots=True)
class Parity:
    """Relative distances of pooled vectors, each the maximum over all probes and poolings."""

    reference: float  # to the fp32 reference
    alone: float  # between a sequence in a batch and the same sequence alone
    mutation: float  # between a sequence and a single mutant, in the reference: for scale
    limit: float  # maximum of `reference` and `alone` in this precision

    @property
    def holds(self) -> bool:
        """Whether both distances are within the limit; false for NaN."""
        return self.reference <= self.limit and self.alone <= self.limit


def measure_parity(checkpoint: EncoderCheckpoint, kind: Kind, plan: DevicePlan) -> Parity:
    """Encode probes with an encoder as it will run, and with the reference in fp32.

    Raises
    ------
    BadCheckpoint, TokenizerMismatch, AttentionUnavailable
        See `abag.embed.encoders.loading.load_encoder`.
    """
    vocabulary = FAMILIES[checkpoint.family].vocabulary_of(checkpoint)
    identity = Identity(checkpoint, Layout(kind, vocabulary), "", {})
    probes = _probes(kind, large=plan.device.type == "cuda")
    fp32 = DevicePlan(plan.device, "fp32", "")
    exact = _vectors(load_encoder(identity, fp32, backend="reference"), identity, fp32, probes)
    if plan.device.type == "cuda":
        torch.cuda.empty_cache()
    encoder = load_encoder(identity, plan)
    together = _vectors(encoder, identity, plan, probes)
    alone = np.concatenate([_vectors(encoder, identity, plan, [probe]) for probe in probes])
    return Parity(
        _distance(together, exact),
        _distance(together, alone),
        _distance(exact[1:2], exact[:1]),
        LIMITS[plan.precision],
    )


def reduced_checkpoint(name: str, folder: Path) -> EncoderCheckpoint:
    """Write random weights of an encoder's architecture with few layers to a folder."""
    config = guess_family(name).reduced_config
    return find_checkpoint(str(save_random_checkpoint(folder, config, seed=0)))


def _vectors(
    encoder: Encoder, identity: Identity, plan: DevicePlan, probes: Sequence[Chains]
) -> NDArray[np.float32]:
    """Encode all probes in one batch, as `abag embed` does: shape (S, P, D)."""
    budget = sum(sum(identity.layout.span_lengths(probe)) for probe in probes)
    batches = encode_stream(encoder, identity.layout, probes, plan, budget, torch.float32)
    return np.concatenate([batch.stored_SPD for batch in batches]).astype(np.float32)


def _distance(x_SPD: NDArray[np.float32], y_SPD: NDArray[np.float32]) -> float:
    """Return the largest relative distance; NaN if any value is NaN."""
    norms = np.linalg.norm(y_SPD, axis=-1)
    return float((np.linalg.norm(x_SPD - y_SPD, axis=-1) / norms).max())


def _probes(kind: Kind, *, large: bool) -> list[Chains]:
    """Return sequences of several lengths; the second is a single mutant of the first."""
    lengths = (30, 90, 118, 250) + ((400, 700, 1022) if large and kind == "antigen" else ())
    rng = np.random.default_rng(0)
    light: Chains = (_LIGHT,) if kind == "antibody" else ()
    first, at = (_HEAVY, 100) if kind == "antibody" else (_ANTIGEN, 60)
    mutant = first[:at] + "K" + first[at + 1 :]
    varied: list[Chains] = [
        tuple(_mutated(chain * 9, rng)[:n] for chain in (first, *light)) for n in lengths
    ]
    return [(first, *light), (mutant, *light), *varied]


def _mutated(chain: str, rng: np.random.Generator) -> str:
    """Change a tenth of the residues."""
    letters = np.array(list(chain))
    at = rng.random(len(letters)) < 0.1
    letters[at] = rng.choice(list(STANDARD_RESIDUES), int(at.sum()))
    return "".join(letters)


def measure_speed(checkpoint: EncoderCheckpoint, kind: Kind, plan: DevicePlan) -> float:
    """Return the tokens per second of an encoder, from random weights for two of its layers.

    A family without random weights runs as it is.

    Raises
    ------
    BadCheckpoint, TokenizerMismatch, AttentionUnavailable
        See `abag.embed.encoders.loading.load_encoder`.
    """
    family = FAMILIES[checkpoint.family]
    layers = family.shape(checkpoint.config).layers
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
    return rate * family.shape(checkpoint.config).layers / layers


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
