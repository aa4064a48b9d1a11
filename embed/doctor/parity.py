"""Compares an encoder as it will run with the fp32 reference, on the same device.

This takes seconds, and finds vectors that a kernel, a driver or the precision makes wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from abag.core.device import DevicePlan
from abag.embed.encoders.checkpoint_lookup import find_checkpoint
from abag.embed.encoders.loading import Identity, load_encoder
from abag.embed.encoders.random_weights import save_random_checkpoint
from abag.embed.families.family import Encoder
from abag.embed.families.registry import FAMILIES, guess_family
from abag.embed.packing.tokens import Layout
from abag.embed.pipeline.stream import encode_stream
from abag.embed.sequences.chains import STANDARD_RESIDUES, Chains, Kind
from abag.embed.weights.checkpoints import EncoderCheckpoint

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


def measure(checkpoint: EncoderCheckpoint, kind: Kind, plan: DevicePlan) -> Parity:
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
