"""Encoders by name: the fingerprint that identifies their vectors, and how they are loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.encoders.checkpoint_lookup import find_checkpoint
from abag.embed.families.family import Backend, Encoder, Family
from abag.embed.families.registry import FAMILIES
from abag.embed.packing.tokens import TOKENS_VERSION, Layout, LongPolicy
from abag.embed.sequences.chains import RESIDUES, Kind
from abag.embed.weights.adapters import with_adapter
from abag.embed.weights.checkpoints import EncoderCheckpoint
from abag.embed.weights.tensors import weights_digest

if TYPE_CHECKING:
    from abag.core.device import DevicePlan

POOLING_VERSION = 1
"""Part of the fingerprint; changes if the meaning of a pooled vector changes."""


class WrongBackend(AbagError):
    """A backend that cannot run the requested encoder."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An encoder that is chosen but not loaded: enough to find its vectors in a store.

    `fingerprint` has 32 hexadecimal digits and covers `meaning`: all that decides what a vector is.
    """

    checkpoint: EncoderCheckpoint
    layout: Layout
    fingerprint: str
    meaning: dict[str, object]

    @property
    def family(self) -> Family:
        """The encoder's family."""
        return FAMILIES[self.checkpoint.family]

    def info(self) -> dict[str, object]:
        """Return the content of the store's encoder.json."""
        return {
            "name": self.checkpoint.name,
            "fingerprint": self.fingerprint,
            "origin": self.checkpoint.origin,
            "random_weights": self.checkpoint.random,
            **self.meaning,
        }


def identify(
    name: str, kind: Kind, long: LongPolicy = "window", adapter: Path | str | None = None
) -> Identity:
    """Find an encoder's checkpoint and compute its fingerprint, without loading weights.

    `name` is an alias, a hub name or a folder. `long` says what happens to chains longer than the
    encoder accepts. `adapter` is the folder of an adapter to merge, or a store's copy of one.

    Raises
    ------
    EncoderNotFound, BadCheckpoint
        See `find_checkpoint`.
    AdapterNotFound, AdapterMismatch, AdapterDamaged
        See `with_adapter`.
    """
    checkpoint = find_checkpoint(name)
    if adapter is not None:
        checkpoint = with_adapter(checkpoint, Path(adapter), kind)
    family = FAMILIES[checkpoint.family]
    layout = Layout(kind, family.vocabulary_of(checkpoint), long)
    # "error" accepts only sequences that fit into one window
    policy = "truncate" if long == "truncate" else "window"
    meaning: dict[str, object] = {
        "weights": weights_digest(checkpoint),
        "family": checkpoint.family,
        "tokens": TOKENS_VERSION,
        "pooling": POOLING_VERSION,
        "long": f"{policy}-{layout.limit}" if layout.limit else "whole",
        "adapter": checkpoint.adapter.digest if checkpoint.adapter else None,
    }
    if settings := family.settings(checkpoint.config):
        meaning["config"] = settings
    if layout.vocabulary is not family.vocabulary:
        meaning["ids"] = layout.spans((RESIDUES,))[0].ids.tolist()
    canonical = json.dumps(meaning, sort_keys=True).encode()
    fingerprint = hashlib.blake2b(canonical, digest_size=16).hexdigest()
    return Identity(checkpoint, layout, fingerprint, meaning)


def count_flops(checkpoint: EncoderCheckpoint, lengths: Sequence[int] | NDArray[np.int32]) -> float:
    """Count floating-point operations of matrix products and attention.

    `lengths`, shape (N,), holds the tokens of each span."""
    shape = FAMILIES[checkpoint.family].shape(checkpoint.config)
    tokens_N = np.asarray(lengths, dtype=np.float64)
    feed_forward = shape.feed_forward_products * shape.feed_forward_width
    weights = shape.layers * shape.width * (4 * shape.attention_width + feed_forward)
    attention = 4 * shape.layers * shape.attention_width
    return float(2 * weights * tokens_N.sum() + attention * np.square(tokens_N).sum())


def layer_count(checkpoint: EncoderCheckpoint) -> int:
    """Return the number of layers of an encoder; 0 if it has none."""
    return int(FAMILIES[checkpoint.family].shape(checkpoint.config).layers)


def check_backend(identity: Identity, backend: Backend, *, layers: bool = False) -> None:
    """Check that a backend can run an encoder, and pool its inner layers if `layers` is true.

    Raises
    ------
    WrongBackend
        Unknown backend, or FAESM for another encoder than ESM-2 or for inner layers.
    FaesmUnavailable
    """
    if backend not in get_args(Backend):
        msg = f"backend {backend!r}: unknown; give one of {', '.join(get_args(Backend))}"
        raise WrongBackend(msg)
    if backend != "faesm":
        return
    if layers:
        msg = "backend faesm with --layers: FAESM returns the last layer only; give packed"
        raise WrongBackend(msg)
    if "faesm" not in identity.family.backends:
        msg = (
            f"backend faesm with encoder {identity.checkpoint.name}: its family is "
            f"{identity.family.name}, and FAESM runs only ESM-2; give packed or reference"
        )
        raise WrongBackend(msg)
    from abag.embed.families.faesm import import_faesm

    import_faesm()


def check_loadable(identity: Identity) -> None:
    """Check that a packed encoder can be loaded, without reading its weights.

    On torch's meta device a tensor is only a name and a shape; the first call takes 2 to 7 s,
    because torch imports its compiler for arithmetic there.

    Raises
    ------
    BadCheckpoint, TokenizerMismatch, AdapterMismatch
    """
    if "packed" not in identity.family.backends:
        return
    import torch

    from abag.core.device import DevicePlan

    load_encoder(identity, DevicePlan(torch.device("meta"), "fp32", "check of the weights"))


def load_encoder(
    identity: Identity, plan: DevicePlan, *, backend: Backend = "packed", attention: str = "auto"
) -> Encoder:
    """Load an encoder's weights onto a device.

    A family that lacks the backend uses its own default. `attention` is the kernel of the packed
    encoders; ``"auto"`` takes the fastest that runs on the device.

    Raises
    ------
    WrongBackend, FaesmUnavailable, AttentionUnavailable
        The backend or the kernel cannot run this encoder on this device.
    BadCheckpoint, TokenizerMismatch, AdapterMismatch
        The weights contradict config.json, the tokenizer abag's vocabulary, or the adapter the
        weights.
    """
    check_backend(identity, backend)
    checkpoint, family = identity.checkpoint, identity.family
    backend_used = family.effective_backend(backend)
    if checkpoint.folder is not None:
        from abag.embed.encoders.reference import ReferenceEncoder, check_tokenizer

        check_tokenizer(checkpoint, identity.layout)
        if backend_used == "reference":
            return ReferenceEncoder(checkpoint, plan)
    return family.build(backend_used, checkpoint, plan, attention)
