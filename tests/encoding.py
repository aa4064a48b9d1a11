"""Encoders of random weights, and batches and vectors of single sequences.

The one module of the tests that knows where abag keeps its encoders.
"""

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from abag.core.device import DevicePlan, plan_device
from abag.embed.encoders.checkpoints import TINY_CONFIG, find_checkpoint, save_random_checkpoint
from abag.embed.encoders.families import FAMILIES, family_of
from abag.embed.encoders.identity import identify, vocabulary_of
from abag.embed.encoders.loading import load_encoder
from abag.embed.encoders.packing import LayerPooling, TokenSpan, pack_spans, pool_tokens
from abag.embed.encoders.registry import ALIASES, EncoderNotFound
from abag.embed.encoders.weights import weights_digest

__all__ = [
    "ALIASES",
    "CPU",
    "FAMILIES",
    "TINY_CONFIG",
    "DevicePlan",
    "EncoderNotFound",
    "LayerStates",
    "TokenSpan",
    "assert_close",
    "batch_of",
    "change_weights",
    "distance",
    "family_of",
    "find_checkpoint",
    "identify",
    "load_encoder",
    "pack_spans",
    "plan_device",
    "pool_tokens",
    "pooled",
    "pooled_layers",
    "pooling_of",
    "random_encoder",
    "save_random_checkpoint",
    "vocabulary_of",
    "weights_digest",
]

CPU = plan_device("cpu")


def random_encoder(folder, family, kind="antigen", seed=1, **config):
    """Identify a checkpoint of random weights, with other values in its config.json."""
    save_random_checkpoint(folder, {**FAMILIES[family].tiny_config, **config}, seed=seed)
    return identify(str(folder), kind)


def change_weights(folder, change):
    """Write the tensors of a checkpoint again, as a function returns them."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def batch_of(identity, chains):
    return pack_spans([(0, span) for span in identity.layout.spans(chains)])


def pooling_of(batch):
    """Return weights and bounds of the sequences of a batch."""
    return torch.from_numpy(batch.weights), torch.from_numpy(batch.bounds).long()


@torch.no_grad()
def pooled(encoder, batch):
    """Return the pooled vectors of a batch, (sequences, poolings, D)."""
    return pool_tokens(encoder(batch), *pooling_of(batch))


def pooled_layers(encoder, batch, layers):
    """Return the pooled vectors of inner layers by their number."""
    pooling = LayerPooling(layers, *pooling_of(batch))
    encoder(batch, pooling)
    return pooling.pooled


def distance(ours, theirs):
    ours = np.asarray(ours)
    theirs = np.asarray(theirs)
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


def assert_close(ours, theirs):
    assert distance(ours, theirs) <= 1e-5


class LayerStates:
    """Keeps the token vectors of every layer, in the place of what pools them."""

    layers = frozenset(range(9))

    def __init__(self):
        self.states = []

    def add(self, layer, x_TD):
        self.states.append(x_TD.clone())
