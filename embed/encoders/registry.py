"""What an encoder is, what identifies its vectors, and how one is loaded by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from abag import AbagError
from abag.embed.packing.tokens import BERT, COMPOSITION, ESM, T5, TOKENS_VERSION, Layout, LongPolicy
from abag.embed.sequences.chains import Kind
from abag.embed.weights.adapters import with_adapter
from abag.embed.weights.checkpoints import EncoderCheckpoint, find_checkpoint, weights_digest

if TYPE_CHECKING:
    import torch

    from abag.core.device import DevicePlan
    from abag.embed.packing.batches import PackedBatch
    from abag.embed.packing.pooling import LayerPooling

POOLING_VERSION = 1  # changes when the pooled sums change meaning
ALPHABETS = {"t5": T5, "esm": ESM, "bert": BERT, "composition": COMPOSITION}

Backend = Literal["packed", "reference", "faesm"]


class WrongBackend(AbagError):
    """A backend that cannot run the encoder it was asked to run."""


def count_flops(checkpoint: EncoderCheckpoint, lengths: Sequence[int] | NDArray[np.int32]) -> float:
    """Count the floating-point operations of encoding spans: products and attention.

    Parameters
    ----------
    lengths : sequence of int
        Tokens in each span.
    """
    config = checkpoint.config
    if checkpoint.family == "composition":
        return 0.0
    if checkpoint.family == "t5":
        width, layers, up = config["d_model"], config["num_layers"], config["d_ff"]
        inner = config["num_heads"] * config["d_kv"]
    else:
        width, layers = config["hidden_size"], config["num_hidden_layers"]
        inner, up = width, config["intermediate_size"]
    tokens_N = np.asarray(lengths, dtype=np.float64)
    weights = layers * (4 * width * inner + 2 * width * up)
    return float(2 * weights * tokens_N.sum() + 4 * layers * inner * np.square(tokens_N).sum())


def layer_count(checkpoint: EncoderCheckpoint) -> int:
    """Count an encoder's layers; 0 where it has none."""
    names = ("num_layers", "num_hidden_layers")
    return next((int(checkpoint.config[n]) for n in names if n in checkpoint.config), 0)


class Encoder(Protocol):
    """Packed token ids to one vector a token."""

    width: int

    def __call__(
        self, batch: PackedBatch, layer_pooling: LayerPooling | None = None
    ) -> torch.Tensor:
        """Encode a batch.

        Parameters
        ----------
        batch : PackedBatch
        layer_pooling : LayerPooling, optional
            Is handed the token vectors of the layers that it wants.

        Returns
        -------
        Tensor, shape=(T, D), dtype=float32, bfloat16 or float16
            Last hidden state of every token, special tokens included, on the encoder's device.
        """
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """An encoder chosen but not loaded: enough to look its vectors up in a store.

    Attributes
    ----------
    checkpoint : Checkpoint
    layout : Layout
    fingerprint : str
        32 hexadecimal digits over everything that changes the meaning of a vector.
    meaning : dict
        The fields under the fingerprint.
    """

    checkpoint: EncoderCheckpoint
    layout: Layout
    fingerprint: str
    meaning: dict[str, object]

    def info(self) -> dict[str, object]:
        """Content of the store's encoder.json."""
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
    """Find an encoder's checkpoint and compute its fingerprint; loads no weights.

    Parameters
    ----------
    adapter : path, optional
        Folder of an adapter, or a store's copy of it, to merge into the encoder.

    Raises
    ------
    EncoderNotFound, BadCheckpoint
        See `find_checkpoint`.
    AdapterNotFound, AdapterMismatch, AdapterDamaged
    """
    checkpoint = find_checkpoint(name)
    if adapter is not None:
        checkpoint = with_adapter(checkpoint, Path(adapter), kind)
    layout = Layout(kind, ALPHABETS[checkpoint.family], long)
    # "error" stores only sequences that no policy would have touched: they are windows of one
    policy = "truncate" if long == "truncate" else "window"
    meaning: dict[str, object] = {
        "weights": weights_digest(checkpoint),
        "family": checkpoint.family,
        "tokens": TOKENS_VERSION,
        "pooling": POOLING_VERSION,
        "long": f"{policy}-{layout.limit}" if layout.limit else "whole",
        "adapter": checkpoint.adapter.digest if checkpoint.adapter else None,
    }
    canonical = json.dumps(meaning, sort_keys=True).encode()
    fingerprint = hashlib.blake2b(canonical, digest_size=16).hexdigest()
    return Identity(checkpoint, layout, fingerprint, meaning)


def check_backend(identity: Identity, backend: Backend, *, layers: bool = False) -> None:
    """Refuse a backend that cannot run an encoder, before anything is loaded or encoded.

    Raises
    ------
    WrongBackend
        An unknown name, or FAESM for an encoder that is no ESM-2 or for single layers.
    FaesmUnavailable
        FAESM asked for and not importable.
    """
    if backend not in get_args(Backend):
        msg = f"backend {backend!r}: not known; give one of {', '.join(get_args(Backend))}"
        raise WrongBackend(msg)
    if backend != "faesm":
        return
    checkpoint = identity.checkpoint
    if layers:
        msg = "backend faesm with --layers: FAESM gives the last layer only; give packed"
        raise WrongBackend(msg)
    if checkpoint.family != "esm":
        msg = (
            f"backend faesm with encoder {checkpoint.name}: it is of family {checkpoint.family}, "
            "and FAESM runs ESM-2 only; give packed or reference"
        )
        raise WrongBackend(msg)
    from abag.embed.encoders.faesm import import_faesm

    import_faesm()


def effective_backend(identity: Identity, backend: Backend) -> str:
    """Name what will really run: some families have one way only."""
    only = {"bert": "reference", "composition": "composition"}
    return only.get(identity.checkpoint.family, backend)


def check_loadable(identity: Identity) -> None:
    """Refuse a checkpoint that our packed encoders cannot load, without reading its weights.

    On torch's device without memory a tensor is a name and a shape: that takes no time, where
    reading gigabytes does.

    Raises
    ------
    BadCheckpoint, TokenizerMismatch
        See `load_encoder`.
    """
    import torch

    from abag.core.device import DevicePlan

    if identity.checkpoint.family in ("t5", "esm"):
        load_encoder(identity, DevicePlan(torch.device("meta"), "fp32", "a look at the weights"))


def load_encoder(
    identity: Identity, plan: DevicePlan, *, backend: Backend = "packed", attention: str = "auto"
) -> Encoder:
    """Load an encoder's weights onto a device.

    Raises
    ------
    WrongBackend, FaesmUnavailable
        See `check_backend`.
    BadCheckpoint
        Weights that are missing, unexpected or of another shape than config.json says.
    TokenizerMismatch
        The checkpoint's tokenizer gives other ids than our table.
    AttentionUnavailable
        The attention asked for cannot run here.
    """
    check_backend(identity, backend)
    checkpoint = identity.checkpoint
    if checkpoint.family == "composition":
        from abag.embed.encoders.composition import Composition

        return Composition(plan.device)
    from abag.embed.encoders.reference import ReferenceEncoder, check_tokenizer

    check_tokenizer(checkpoint, identity.layout)
    if backend == "reference" or checkpoint.family == "bert":
        return ReferenceEncoder(checkpoint, plan)
    if backend == "faesm":
        from abag.embed.encoders.faesm import FaesmEncoder

        return FaesmEncoder(checkpoint, plan)
    if checkpoint.family == "t5":
        from abag.embed.encoders.t5 import PackedT5

        return PackedT5(checkpoint, plan, attention)
    from abag.embed.encoders.esm import PackedEsm

    return PackedEsm(checkpoint, plan, attention)
